"""How the answers of a store and of its oracle are compared.

What may differ is named here: a store has its own clock, its own names for states and its own
cursors. Times must be the oracle's in order, and equal where the oracle's are equal; names must
correspond one to one; cursors must lead through the same listing. All else must be equal.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import msgspec

from holdfast.contract.errors import (
    ComponentMissing,
    GrantUnknown,
    HoldfastError,
    Invalid,
    NotRecoverable,
    NotRetained,
    PayloadRejected,
)
from holdfast.contract.processes import Changes, Due, Process, PrunedProcesses
from holdfast.contract.queue import ClaimedNext
from holdfast.contract.records import Head, History, Page, Revision
from holdfast.contract.triggers import Occurrence, PrunedOccurrences, TriggerDelivery

Names: TypeAlias = dict[str, str]
"""The names a store gave to what the oracle has other names for, and the other way round."""

AMOUNTS = ("input", "output", "cache_read", "cache_write", "reasoning", "cost_micros")
# What an error says in words is for people.
WORDS = {
    Invalid: {"reason"},
    NotRetained: {"what"},
    ComponentMissing: {"component"},
    PayloadRejected: {"reason"},
    NotRecoverable: {"reason"},
    GrantUnknown: {"scope"},
}


class Differs(AssertionError):
    """The store and the oracle do not say the same"""


class Comparison:
    """Compares answers, and remembers which time of the store is which of the oracle's."""

    def __init__(self) -> None:
        self._times: dict[int, int] = {}
        self._ordered: list[int] = []

    def compare(self, names: Names, name: str, args: dict[str, Any], model: Any, real: Any) -> None:
        """Raise `Differs` unless the answers to a call say the same."""
        if isinstance(real, HoldfastError) or isinstance(model, HoldfastError):
            self._same_error(args, model, real)
        elif name.startswith("schedules."):
            _same_schedules(model, real)
        elif name == "totals":
            self._same(names, _sorted_totals(model, args), _sorted_totals(real, args))
        elif name == "list":
            self._same_listing(names, args, model, real)
        elif name == "queue.claim_next" and real.why_not is not None:
            _same_refusal(model, real)
        elif name in READ_AS:
            self._same(names, READ_AS[name](model), READ_AS[name](real))
            if name == "processes.due":
                _require_order(real)
            if name == "triggers.occurrences":
                _require_times(real)
        else:
            self._same(names, model, real)

    def _same_error(self, args: dict[str, Any], model: Any, real: Any) -> None:
        if type(model) is not type(real):
            raise Differs("another outcome")
        if isinstance(real, ComponentMissing):
            # Where several components name the content, any of them is the one.
            named = args["it"].state[real.component]
            if named.digest != real.digest:
                raise Differs("the field component")
        for key in model.fields.keys() | real.fields.keys():
            if key in WORDS.get(type(real), ()):
                continue
            one, two = model.fields.get(key), real.fields.get(key)
            if key.endswith("_ms"):
                self._same_time(one, two)
            elif one != two:
                raise Differs(f"the field {key}")

    def _same_listing(self, names: Names, args: dict[str, Any], model: Any, real: Any) -> None:
        """Times of a store may be equal where the oracle's are not, so the order is its own."""
        by_id = {info.session: info for info in real.items}
        self._same(names, {info.session: info for info in model.items}, by_id)
        if args.get("order") == "created":
            keys = [(info.created_at_ms, info.session) for info in real.items]
        else:
            keys = [(info.active_at_ms // 60_000, info.session) for info in real.items]
        if keys != sorted(keys, reverse=True):
            raise Differs("the order of the listing")

    def _same(self, names: Names, model: Any, real: Any, where: str = "") -> None:
        """Walk both answers; `where` names the place of a difference."""
        if type(model) is not type(real):
            raise Differs(f"{where}: {model!r}, not {real!r}")
        if isinstance(model, msgspec.Struct):
            for key in model.__struct_fields__:
                one, two = getattr(model, key), getattr(real, key)
                inner = f"{where}.{key}"
                if key.endswith("_ms") and key != "until_ms":
                    self._same_time(one, two, inner)
                elif (key == "state" and isinstance(model, Head | Revision)) or (
                    key == "identity" and isinstance(model, Process)
                ):
                    self._same_name(names, one, two, inner)
                elif key == "events":
                    # What was declared has no times and no names, and is long.
                    if one != two:
                        raise Differs(f"{inner}: {one!r}, not {two!r}")
                elif key == "reason" and isinstance(model, TriggerDelivery):
                    # Why a delivery was rejected is for people.
                    if (one is None) != (two is None):
                        raise Differs(f"{inner}: {one!r}, not {two!r}")
                elif key == "before":
                    _same_cursor(cast(History, model), cast(History, real))
                elif key == "next":
                    if (one is None) != (two is None):
                        raise Differs(f"{inner}: one listing goes on")
                else:
                    self._same(names, one, two, inner)
        elif isinstance(model, dict):
            if model.keys() != real.keys():
                raise Differs(f"{where}: {sorted(model)}, not {sorted(real)}")
            for key in model:
                self._same(names, model[key], real[key], f"{where}[{key!r}]")
        elif isinstance(model, tuple):
            if len(model) != len(real):
                raise Differs(f"{where}: {len(model)} entries, not {len(real)}")
            for number, (one, two) in enumerate(zip(model, real, strict=True)):
                self._same(names, one, two, f"{where}[{number}]")
        elif model != real:
            raise Differs(f"{where}: {model!r}, not {real!r}")

    def _same_time(self, model: int | None, real: int | None, where: str = "time") -> None:
        if model is None or real is None:
            if model is not real:
                raise Differs(f"{where}: {model!r}, not {real!r}")
            return
        if model in self._times:
            if self._times[model] != real:
                raise Differs(f"{where}: {real} is not the time that was told before")
            return
        at = bisect.bisect(self._ordered, model)
        near = self._ordered[max(0, at - 1) : at + 1]
        for other in near:
            if (other < model) != (self._times[other] < real) and self._times[other] != real:
                raise Differs(f"{where}: {real} is out of order")
        self._times[model] = real
        self._ordered.insert(at, model)

    def _same_name(self, names: Names, model: str | None, real: str | None, where: str) -> None:
        if model is None or real is None:
            if model is not real:
                raise Differs(f"{where}: {model!r}, not {real!r}")
        elif names.setdefault(f"model {model}", real) != real or (
            names.setdefault(f"store {real}", model) != model
        ):
            raise Differs(f"{where}: it has two names")


def _same_refusal(model: Any, real: ClaimedNext) -> None:
    """Why there is no next session. When there may be one is known of what waits; of what was taken
    away meanwhile it may still be believed."""
    if model.claim is not None or model.why_not not in ("empty", real.why_not):
        raise Differs("another reason")
    if real.why_not not in ("zero-limit", "empty", "not-yet-available"):
        raise Differs("another reason")
    if (real.next_at_ms is not None) != (real.why_not == "not-yet-available"):
        raise Differs("the time that goes with the reason")


def _same_schedules(model: Any, real: Any) -> None:
    """The oracle was told what time it was for the store, so that all else follows to the
    millisecond; cursors are the store's own."""
    if isinstance(model, Page) and isinstance(real, Page):
        if (model.next is None) != (real.next is None):
            raise Differs("one listing goes on")
        model, real = model.items, real.items
    if model != real:
        raise Differs("another answer")


def _same_cursor(model: History, real: History) -> None:
    """A cursor leads on where the oracle's does, and ends at the root; at a cut either may be."""
    reaches_root = not model.nodes or model.nodes[0].parent is None
    if (model.before is not None and real.before is None) or (
        reaches_root and real.before is not None
    ):
        raise Differs(f"the cursor {real.before!r} where the oracle has {model.before!r}")


def _sorted_totals(totals: Sequence[Any], args: dict[str, Any]) -> dict[str, Any]:
    """Totals by what they are of; a day is the store's own, so days are added up."""
    found: dict[str, Any] = {}
    for total in totals:
        if ("day" in args.get("by", ())) != (total.day is not None):
            raise Differs("the day")
        used = total.usage
        key = repr((total.session, used.source, used.model, used.currency))
        sums = found.setdefault(key, {"entries": 0, **dict.fromkeys(AMOUNTS, 0)})
        sums["entries"] += total.entries
        for name in AMOUNTS:
            sums[name] += getattr(used, name)
    return found


def _require_order(page: Page[Due]) -> None:
    """What became due first is first; when that was is the store's own knowledge."""
    keys = [(due.due_at_ms, due.process.process) for due in page.items]
    if keys != sorted(keys):
        raise Differs("the order of what is due")


def _require_times(page: Page[Occurrence]) -> None:
    """What happened first is first; which of those of one moment was, is the store's own choice."""
    times = [one.at_ms for one in page.items]
    if times != sorted(times):
        raise Differs("the order of what happened")


def _read_due(page: Page[Due]) -> dict[str, Any]:
    return {due.process.process: (due.process, due.lost) for due in page.items}


def _read_changes(changes: Changes) -> dict[str, Any]:
    return {"more": changes.more} | {change.process: change for change in changes.items}


def _read_pruned(pruned: PrunedProcesses) -> tuple[Any, ...]:
    return tuple(sorted(pruned.processes)), pruned.events, pruned.grants, pruned.more


def _read_occurrences(page: Page[Occurrence]) -> dict[str, Any]:
    return {one.occurrence: one for one in page.items}


def _read_gone(pruned: PrunedOccurrences) -> tuple[Any, ...]:
    return tuple(sorted(pruned.occurrences)), pruned.deliveries, pruned.more


READ_AS: dict[str, Callable[[Any], Any]] = {
    "processes.due": _read_due,
    "processes.changes": _read_changes,
    "processes.prune": _read_pruned,
    "triggers.occurrences": _read_occurrences,
    "triggers.prune": _read_gone,
}
"""Listings whose order is the store's own, as what is promised of them."""
