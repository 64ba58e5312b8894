"""What the marks in a call about triggers stand for at the moment, and what is read afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.contract.processes import NewGrant, Scope
from holdfast.contract.records import Page
from holdfast.contract.triggers import (
    Ingested,
    NewOccurrence,
    NewSubscription,
    OccurrenceFilter,
    ProcessTemplate,
    PrunedOccurrences,
    Recorded,
    Subscribed,
    SubscriptionFilter,
    TriggerDelivery,
)
from holdfast.testing.machine_calls import Fresh, Live
from holdfast.testing.machine_process_calls import Ahead, Near
from holdfast.testing.machine_process_world import FAR_MS
from holdfast.testing.machine_trigger_calls import UNHEARD, Happened, Resaid, Rev, Rule
from holdfast.testing.oracle import Oracle

PROCESS = ("kind", "inputs", "events", "recovery", "wake", "grants")
GOVERNED = {"triggers.enable", "triggers.disable", "triggers.delete"}


@dataclass
class TriggerSide:
    """What calls about the triggers of one tenant have left to refer to."""

    oracle: Oracle
    certain: bool
    live: Callable[[int], str]
    now: Callable[[], int]
    fresh: Callable[[], str]
    said: dict[str, dict[str, Any]] = field(default_factory=dict)
    at: str = UNHEARD

    def made(self, name: str, args: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
        """The call with its marks replaced by values of the moment; None when there is none."""
        kind = "govern" if name in GOVERNED else name.replace("record", "ingest")
        mark = args.pop("again", None)
        if isinstance(mark, Resaid):
            if kind not in self.said:
                return None
            args = {**self.said[kind], **args, **mark.change}
            name = args.pop("name_of_call", name)
        args = {key: self._value(value) for key, value in args.items()}
        rule = args.pop("rule", None)
        if rule is not None:
            args["owner"], args["key"] = rule
        if isinstance(args.get("expected"), Rev):
            there = self.oracle.triggers.revision(args["key"], args["owner"])
            args["expected"] = max(0, there + args["expected"].by)
        if kind == "govern":
            self.said[kind] = {**args, "name_of_call": name}
        elif name in ("triggers.register", "triggers.ingest", "triggers.record"):
            self.said[kind] = {k: v for k, v in args.items() if k not in ("expected", "operation")}
        return name, _built(name, args, self.certain)

    def _value(self, mark: Any) -> Any:
        match mark:
            case Happened(back=back, which=which):
                triggers = self.oracle.triggers
                there = triggers.happened(which) or triggers.happened("any")
                return there[-1 - back % len(there)] if there else UNHEARD
            case Rule(back=back, which=which):
                triggers = self.oracle.triggers
                rules = triggers.rules(which) or triggers.rules("any")
                return rules[-1 - back % len(rules)] if rules else (None, "r0")
            case Near(session=session, frame=frame):
                return Scope(session=self._value(session), frame=frame)
            case Live(number=number):
                return self.live(number)
            case Fresh():
                return self.fresh()
            case Ahead(ms=ms):
                if self.certain:
                    return FAR_MS if ms > 0 else 0
                return self.now() + ms
            case list() | tuple() if any(isinstance(one, Near) for one in mark):
                return [self._value(one) for one in mark]
        return mark

    def remember(self, args: dict[str, Any], real: Any) -> None:
        """What the readings afterwards are about."""
        if isinstance(real, Ingested | Recorded):
            self.at = real.occurrence.occurrence
        elif "occurrence" in args:
            self.at = args["occurrence"]


def _built(name: str, args: dict[str, Any], certain: bool) -> dict[str, Any]:
    """The arguments of the call."""
    if name == "triggers.register":
        how = {key: args.pop(key) for key in ("expected", "operation")}
        said = {key: value for key, value in args.items() if key in PROCESS}
        said["grants"] = [NewGrant(scope=scope, kind="tool") for scope in said["grants"]]
        rule = {key: value for key, value in args.items() if key not in PROCESS}
        return {"it": NewSubscription(**rule, process=ProcessTemplate(**said)), **how}
    if name in ("triggers.ingest", "triggers.record"):
        return {"it": NewOccurrence(**args)}
    if name == "triggers.list":
        return {"which": SubscriptionFilter(**args)}
    if name == "triggers.occurrences":
        return {"which": OccurrenceFilter(**args)}
    if name == "triggers.prune" and certain:
        return {**args, "limit": 100}
    return args


def trigger_kind(name: str, real: Any) -> str | None:
    """What kind of outcome a call about triggers had, for the count of what was covered."""
    match real:
        case Subscribed(created=False, changed=changed):
            return f"changed {changed}"
        case Subscribed(subscription=made):
            return "revived" if made.incarnation > 1 else "created"
        case Recorded(recorded=recorded):
            return f"recorded {recorded}"
        case Ingested(recorded=False):
            return "replayed"
        case Ingested(deliveries=deliveries):
            return _states(deliveries)
        case PrunedOccurrences(deliveries=count):
            return "delivered" if count else "some" if real.occurrences else "none"
        case tuple():
            return _states(real)
        case Page():
            return "some" if real.items else "none"
    return None


def _states(deliveries: Sequence[TriggerDelivery]) -> str:
    """The states of some deliveries, each once."""
    return " and ".join(sorted({one.state for one in deliveries})) or "none"


def trigger_glances(occurrence: str, number: int) -> tuple[str, dict[str, Any]]:
    """One of the readings after a call about triggers."""
    names = ("list", "deliveries", "reserved", "occurrence")
    name = names[number % len(names)]
    asked = {"occurrence": occurrence} if name in ("deliveries", "occurrence") else {}
    return f"triggers.{name}", asked


def trigger_looks(occurrences: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """What there is of the triggers of a tenant, once; where nothing has happened, the rules."""
    asked: list[tuple[str, dict[str, Any]]] = [("triggers.list", {})]
    if occurrences:
        asked += [(f"triggers.{name}", {"limit": 1000}) for name in ("reserved", "occurrences")]
    return asked + [("triggers.deliveries", {"occurrence": one}) for one in occurrences[-3:]]


def trigger_walks(occurrences: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """The listings of a tenant that are read page by page."""
    asked: list[tuple[str, dict[str, Any]]] = [
        (f"triggers.{name}", {"limit": 2}) for name in ("list", "reserved", "occurrences")
    ]
    return asked + [("triggers.deliveries", {"occurrence": one, "limit": 1}) for one in occurrences]
