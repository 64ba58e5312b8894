"""What the marks in a call about processes stand for at the moment, and what is read afterwards.

A time is told to the store and the oracle alike, so it is one that stays on the same side of now
however far their clocks are apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.contract.processes import (
    Appended,
    EventType,
    Lease,
    NewEvent,
    NewGrant,
    NewProcess,
    Process,
    ProcessFilter,
    Registered,
    Scope,
    Wait,
)
from holdfast.contract.records import Page
from holdfast.testing.machine_calls import Live
from holdfast.testing.machine_compare import Differs
from holdfast.testing.machine_process_calls import (
    NOWHERE,
    Again,
    Ahead,
    Feed,
    Hold,
    Near,
    Proc,
    Wake,
)
from holdfast.testing.oracle import Oracle

FAR_MS = 4_102_444_800_000
ENDED = ProcessFilter(states=("completed", "failed", "cancelled", "abandoned"))
EVERY = ProcessFilter(states=("running", *ENDED.states))


@dataclass
class ProcessSide:
    """What calls about the processes of one tenant have left to refer to."""

    oracle: Oracle
    certain: bool
    live: Callable[[int], str]
    now: Callable[[], int]
    leases: dict[str, list[Lease]] = field(default_factory=dict)
    registered: list[NewProcess] = field(default_factory=list)
    read_to: tuple[str | None, str | None] = (None, None)
    at: str = NOWHERE
    sent: NewProcess | None = None
    sent_last: dict[str, dict[str, Any]] = field(default_factory=dict)

    def made(self, name: str, args: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
        """The call with its marks replaced by values of the moment; None when there is none."""
        mark = args.get("again")
        if isinstance(mark, Again):
            if not self.registered:
                return None
            sent = self.registered[-1 - mark.back % len(self.registered)]
            return name, {"it": changed(sent, mark.change)}
        repeat = args.pop("repeat", None)
        if repeat is not None:
            if name not in self.sent_last:
                return None
            args = {**self.sent_last[name], **args}
        process = self._value(NOWHERE, args["process"]) if "process" in args else NOWHERE
        self.at = process if process is not None else NOWHERE
        args = {key: self._value(process, value) for key, value in args.items()}
        method = name.partition(".")[2]
        if repeat is not None:
            return name, args
        if method == "register":
            args["grants"] = [NewGrant(scope=scope, kind="tool") for scope in args["grants"]]
            self.sent = NewProcess(**args)
            return name, {"it": self.sent}
        if method == "append":
            said = {key: args.pop(key) for key in ("type", "payload", "key", "wake")}
            args["event"] = NewEvent(**said)
            if said["key"] is not None:
                self.sent_last[name] = args
        elif method == "suspend":
            said = {key: args.pop(key) for key in ("type", "after", "until_ms")}
            args["wait"] = Wait(**said)
        elif method in ("end", "request_cancel"):
            self.sent_last[name] = args
        elif method == "list":
            args = {"which": ProcessFilter(**args)}
        elif method in ("renew", "release"):
            del args["process"]
        elif method == "prune" and self.certain:
            args["limit"] = 100
        return name, args

    def _value(self, process: str, mark: Any) -> Any:
        match mark:
            case Proc(back=back, which=which):
                named = self.oracle.processes.named
                there = named(which) or named("kept")
                return there[-1 - back % len(there)] if there else NOWHERE
            case Near(session=session, frame=frame):
                return Scope(session=self._value(process, session), frame=frame)
            case Hold(kind=kind):
                return self._lease(process, kind)
            case Ahead(ms=ms):
                if self.certain:
                    return FAR_MS if ms > 0 else 0
                return self.now() + ms
            case Wake(back=back):
                return self._wake(process, back)
            case Live(number=number):
                return self.live(number)
            case list() | tuple() if any(isinstance(one, Proc | Near) for one in mark):
                return [self._value(process, one) for one in mark]
        return mark

    def _lease(self, process: str, kind: str) -> Lease | None:
        forged = Lease(
            process=process, owner="ada", token="forged", generation=1, claimed_at_ms=0,
            expires_at_ms=FAR_MS,
        )  # fmt: skip
        held = self.leases.get(process, [])
        if kind == "proper":
            status = self.oracle.processes.lease(process)
            return held[-1] if status is not None and status.live and held else None
        if kind == "forged" or not held:
            return msgspec.structs.replace(held[-1], token="forged") if held else forged
        return held[-1] if kind == "latest" else held[max(0, len(held) - 2)]

    def _wake(self, process: str, back: int) -> int:
        if self.oracle.processes.get(process) is None:
            return 1
        there = [
            event.sequence
            for event in self.oracle.processes.events(process, limit=1000).items
            if event.wake is not None
        ]
        return there[-1 - back % len(there)] if there else 1

    def remember(self, name: str, model: Any, real: Any) -> None:
        """What later calls refer to."""
        if isinstance(real, Lease):
            self.leases.setdefault(real.process, []).append(real)
        elif name == "processes.register" and isinstance(real, Registered) and real.created:
            self.at = real.process.process
            if self.sent is not None:
                self.registered.append(msgspec.structs.replace(self.sent, process=self.at))
        elif name == "processes.changes":
            self.read_to = (model.next, real.next)

    def require_oldest(self, before: Mapping[str, int], pruned: Sequence[str]) -> None:
        """Raise unless what was pruned had ended before all that was kept, by the store's times."""
        kept = [ended for process, ended in before.items() if process not in pruned]
        if any(before[process] > min(kept, default=before[process]) for process in pruned):
            raise Differs(f"{pruned} was pruned before what ended earlier: {before}")

    def cursors(self, mark: Any) -> tuple[str | None, str | None]:
        """The oracle's and the store's cursor of a feed."""
        return (None, None) if isinstance(mark, Feed) and mark.whole else self.read_to


def changed(sent: NewProcess, change: str) -> NewProcess:
    """The same registration, the same said otherwise, or one that differs in one thing."""
    replace = msgspec.structs.replace
    if change == "kind":
        return replace(sent, kind="other")
    if change == "input":
        return replace(sent, input={"other": 1})
    if change == "grants":
        return replace(sent, grants=[NewGrant(scope=Scope(session="s0", frame="g"))])
    if change == "order":
        return replace(sent, events=[_reordered(kind) for kind in sent.events])
    return sent


def _reordered(kind: EventType) -> EventType:
    if not isinstance(kind.schema, dict):
        return kind
    return msgspec.structs.replace(kind, schema=dict(reversed(kind.schema.items())))


def process_kind(name: str, real: Any) -> str | None:
    """What kind of outcome a call about processes had, for the count of what was covered."""
    match real:
        case Appended(replayed=False, wake=str(wake)):
            return wake
        case Process() if name in ("processes.end", "processes.abandon"):
            return f"{real.state} by {real.ended_by}"
        case Page() | tuple():
            items = real.items if isinstance(real, Page) else real
            if name == "processes.due" and any(due.lost for due in items):
                return "lost"
            return "some" if items else "none"
    there = getattr(real, "items", getattr(real, "processes", None))
    return None if there is None else "some" if there else "none"


GLANCES = ("get", "events", "lease", "get", "wakes", "due", "recent", "changes")


def glances(process: str, number: int) -> tuple[str, dict[str, Any]]:
    """One of the readings after a call about a process."""
    name = GLANCES[number % len(GLANCES)]
    if name == "changes":
        return "processes.changes", {"after": Feed()}
    return f"processes.{name}", {} if name == "due" else {"process": process}


def looks(processes: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """What there is of the processes of a tenant, once."""
    asked: list[tuple[str, dict[str, Any]]] = [
        ("processes.list", {"which": EVERY}),
        ("processes.due", {}),
        ("processes.changes", {"after": Feed()}),
    ]
    for process in processes:
        asked += [(f"processes.{name}", {"process": process}) for name in ("events", "lease")]
    return asked


def studies(processes: Sequence[str], sessions: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """All that can be read of the processes of a tenant."""
    asked: list[tuple[str, dict[str, Any]]] = [("processes.changes", {"after": Feed(whole=True)})]
    for process in processes:
        names = ("get", "recent", "wakes", "grants_of")
        asked += [(f"processes.{name}", {"process": process}) for name in names]
    for session in sessions:
        for frame in (None, "f"):
            scope = Scope(session=session, frame=frame)
            asked.append(("processes.grants", {"scope": scope}))
    return asked


def walks(processes: Sequence[str], sessions: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """The listings of a tenant that are read page by page."""
    asked: list[tuple[str, dict[str, Any]]] = [
        ("processes.list", {"which": EVERY, "limit": 2}),
        ("processes.due", {"limit": 1}),
        ("processes.changes", {"limit": 2}),
    ]
    for process in processes:
        asked.append(("processes.events", {"process": process, "limit": 3}))
        asked.append(("processes.wakes", {"process": process, "limit": 1}))
        asked.append(("processes.grants_of", {"process": process, "limit": 1}))
    for session in sessions:
        asked.append(("processes.grants", {"scope": Scope(session=session), "limit": 1}))
    return asked
