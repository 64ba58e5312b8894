"""What the oracle holds of a process: what was registered, and its log.

Nothing that the log makes of a process is kept: whoever asks for the record gets the log folded
from its first entry on. The lease and the place in the feed of changes are beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.contract.errors import Invalid
from holdfast.contract.processes import (
    Event,
    EventType,
    ExternalRef,
    NewProcess,
    Process,
    Scope,
    Wait,
    WakeOutcome,
)
from holdfast.contract.records import Holder
from holdfast.testing.oracle_turns import require_id

ENDS: dict[str, Any] = {
    "process.completed": "completed",
    "process.failed": "failed",
    "process.cancelled": "cancelled",
}
CORE = {
    *ENDS,
    "process.started",
    "process.waiting",
    "process.resumed",
    "process.cancel-requested",
    "process.external",
    "process.child-ended",
    "process.abandoned",
}


@dataclass(slots=True)
class StoredLease:
    """A lease that was not given back; it may have lapsed."""

    owner: str
    token: str
    claimed_at_ms: int
    expires_at_ms: int
    displaced: Holder | None


@dataclass(eq=False, slots=True)
class StoredProcess:
    """A process. `outcomes` has what became of the wakes of its events; `changed` is its place in
    the order of changes. Of a pruned one only the id is left."""

    id: str
    new: NewProcess
    input: bytes
    identity: str
    created_at_ms: int
    log: list[Event] = field(default_factory=list)
    outcomes: dict[int, WakeOutcome] = field(default_factory=dict)
    lease: StoredLease | None = None
    generation: int = 0
    changed: int = 0
    pruned: bool = False

    def declared(self, name: str) -> EventType | None:
        return next((kind for kind in self.new.events if kind.name == name), None)

    def keyed(self, key: str | None) -> Event | None:
        return next((old for old in self.log if key is not None and old.key == key), None)

    def ending(self) -> Event | None:
        """The event that ended it."""
        return next((event for event in self.log if event.ends is not None), None)

    def last(self, *types: str) -> Event | None:
        """The last event of some types."""
        return next((event for event in self.log[::-1] if event.type in types), None)

    @property
    def ended(self) -> bool:
        return self.ending() is not None

    @property
    def started(self) -> bool:
        return self.last("process.started") is not None

    @property
    def wait(self) -> Wait | None:
        """What it waits for, as the last event says that is about that."""
        said = self.last("process.waiting", "process.resumed")
        if said is None or said.type == "process.resumed" or self.ended:
            return None
        return msgspec.json.decode(said.payload, type=Wait)

    @property
    def asked_to_end(self) -> Event | None:
        return next((event for event in self.log if event.type == "process.cancel-requested"), None)

    def record(self, wake: Scope | None) -> Process:
        """The fold of its log."""
        end, external = self.ending(), self.last("process.external")
        started, asked = self.last("process.started"), self.asked_to_end
        return Process(
            process=self.id,
            kind=self.new.kind,
            label=self.new.label,
            definition=self.new.definition,
            input=self.input,
            events=tuple(self.new.events),
            recovery=self.new.recovery,
            origin=self.new.origin,
            parent=self.new.parent,
            cause=self.new.cause,
            wake=wake,
            identity=self.identity,
            created_at_ms=self.created_at_ms,
            sequence=len(self.log),
            updated_at_ms=self.log[-1].at_ms if self.log else self.created_at_ms,
            state="running" if end is None or end.ends is None else end.ends,
            output=None if end is None else end.output,
            ended_by=None if end is None else end.authority,
            wait=self.wait,
            external=None
            if external is None
            else msgspec.json.decode(external.payload, type=ExternalRef),
            started_at_ms=None if started is None else started.at_ms,
            cancel_requested_at_ms=None if asked is None else asked.at_ms,
        )


def meaning(new: NewProcess, payload: bytes) -> str:
    """What makes a registration the same as another one: all of it but the grants, with schemas
    that say the same in another order being the same."""
    said = {name: getattr(new, name) for name in new.__struct_fields__}
    said.update(input=payload.hex(), grants=())
    return msgspec.json.encode(said, order="sorted").decode()


def require_events(events: Any) -> None:
    """Each type has a name of its own, and only the types that end may be declared over."""
    for place, kind in enumerate(events):
        require_id(f"events[{place}].name", kind.name)
        if kind.name in [other.name for other in events[:place]]:
            raise Invalid(field=f"events[{place}].name", reason="twice")
        if kind.name.startswith("process."):
            if kind.name not in ENDS:
                raise Invalid(field=f"events[{place}].name", reason="reserved")
            if kind.ends != ENDS[kind.name]:
                raise Invalid(field=f"events[{place}].ends", reason="not its own state")
