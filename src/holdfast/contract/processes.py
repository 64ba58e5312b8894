"""The records of processes: background work with a record, a log of events, and a lease.

The record of a process is a fold of its events: it is what was registered, changed by nothing but
the entries of its log. Grants and leases are beside it, and change nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from holdfast.contract.records import Holder, Json, Payload, Record

ProcessState = Literal["running", "completed", "failed", "cancelled", "abandoned"]
EndState = Literal["completed", "failed", "cancelled"]
Recovery = Literal["rerunnable", "owner-bound", "external"]
Authority = Literal["lease", "external", "operator", "lapse"]
WakeOutcome = Literal["enqueued", "no-target", "target-gone"]

# --- selectors: what is taken out of the payload of an event


class Whole(Record, frozen=True, kw_only=True, tag="whole"):
    """The payload itself."""


class Pointer(Record, frozen=True, kw_only=True, tag="pointer"):
    """The value at a JSON pointer; an event in which it points at nothing is refused."""

    at: str


class Const(Record, frozen=True, kw_only=True, tag="const"):
    """A value that does not depend on the payload."""

    value: Json


class Template(Record, frozen=True, kw_only=True, tag="template"):
    """A text in which each `{name}` is replaced by the text of what its selector takes."""

    text: str
    fields: Mapping[str, Whole | Pointer | Const] = msgspec.field(default_factory=dict)


class Present(Record, frozen=True, kw_only=True, tag="present"):
    """Whether a JSON pointer points at something."""

    at: str


Selector: TypeAlias = Whole | Pointer | Const | Template | Present

# --- what is registered


class Scope(Record, frozen=True, kw_only=True):
    """A session, or one frame of it: who may see a process, and who is woken by it."""

    session: str
    frame: str | None = None


class WakeRule(Record, frozen=True, kw_only=True):
    """An event of this type wakes the target of its process with the text of `input`, when `when`
    takes something that is true, or is left out."""

    input: Selector = Whole()
    when: Selector | None = None


class EventType(Record, frozen=True, kw_only=True):
    """A type of event that a process may append.

    `schema` is the part of JSON Schema that the documentation names; without one any payload will
    do. A type with `ends` ends the process in that state, and `output` takes what it came to.
    """

    name: str
    schema: Json = None
    ends: EndState | None = None
    output: Selector = Whole()
    wakes: WakeRule | None = None


class NewGrant(Record, frozen=True, kw_only=True):
    """Permission for a scope to see a process, with what it is called there."""

    scope: Scope
    kind: str = ""
    label: str = ""


class NewProcess(Record, frozen=True, kw_only=True):
    """A process to be registered. The same registration again is the same process; another one
    under the same id is refused. `grants` are no part of that, and are given with the first.

    `recovery` says what may be done when whoever runs it goes away: run it again, never run it
    again once it has started, or nothing, because it runs somewhere else. `parent` is told when it
    ends. `wake` is the scope its events wake.
    """

    process: str | None = None
    kind: str = "task"
    label: str = ""
    definition: str | None = None
    input: Payload = None
    events: Sequence[EventType] = ()
    recovery: Recovery = "rerunnable"
    origin: Scope | None = None
    parent: str | None = None
    cause: str | None = None
    wake: Scope | None = None
    grants: Sequence[NewGrant] = ()


# --- the record


class Wait(Record, frozen=True, kw_only=True):
    """What a process waits for: an event of a type later than `after`, or a time, or either."""

    type: str | None = None
    after: int = 0
    until_ms: int | None = None


class ExternalRef(Record, frozen=True, kw_only=True):
    """Where a process that runs somewhere else is found."""

    backend: str
    id: str
    metadata: Json = None


class Process(Record, frozen=True, kw_only=True):
    """A process: what was registered, and what its events have made of it.

    `sequence` is that of its last event. `output` is JSON. What has ended was ended by the holder
    of its lease, by where it runs, by an operator, or because its lease had lapsed; `ended_by` says
    which. `wake` is None when the session it named was deleted.
    """

    process: str
    kind: str
    label: str
    definition: str | None
    input: bytes
    events: tuple[EventType, ...]
    recovery: Recovery
    origin: Scope | None
    parent: str | None
    cause: str | None
    wake: Scope | None
    identity: str
    created_at_ms: int
    # From here on: the fold of its events.
    sequence: int = 0
    updated_at_ms: int
    state: ProcessState = "running"
    output: bytes | None = None
    ended_by: Authority | None = None
    wait: Wait | None = None
    external: ExternalRef | None = None
    started_at_ms: int | None = None
    cancel_requested_at_ms: int | None = None

    @property
    def ended(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.state != "running"


class Registered(Record, frozen=True, kw_only=True):
    """The answer to a registration: `created` is False when the process was there already."""

    created: bool
    process: Process


# --- events


class NewEvent(Record, frozen=True, kw_only=True):
    """An event to be appended. The same key with the same type and payload appends nothing again.
    `wake` is woken instead of the target of the process."""

    type: str
    payload: Payload = None
    key: str | None = None
    wake: Scope | None = None


class Event(Record, frozen=True, kw_only=True):
    """Entry number `sequence` of the log of a process, with what its type made of its payload: the
    state in which it `ends` the process and the `output`, and the text of the `wake`."""

    process: str
    sequence: int
    type: str
    payload: bytes
    key: str | None
    at_ms: int
    ends: ProcessState | None = None
    output: bytes | None = None
    authority: Authority | None = None
    wake: str | None = None
    woken: Scope | None = None
    work: str | None = None
    acked_at_ms: int | None = None

    def json(self) -> Json:
        """The payload, decoded as JSON."""
        return msgspec.json.decode(self.payload)


class Appended(Record, frozen=True, kw_only=True):
    """The answer to an append: the event, whether it was there already, what became of its wake,
    and how many events of its type there are up to it."""

    event: Event
    replayed: bool
    ordinal: int
    wake: WakeOutcome | None = None


# --- leases


class Lease(Record, frozen=True, kw_only=True):
    """A granted lease: the right to run one process until it expires. `displaced` is the lapsed
    holder this grant took over from, if there was one."""

    process: str
    owner: str
    token: str
    generation: int
    claimed_at_ms: int
    expires_at_ms: int
    displaced: Holder | None = None


class LeaseStatus(Record, frozen=True, kw_only=True):
    """What anybody may know of a lease: never the token."""

    process: str
    owner: str | None
    generation: int
    claimed_at_ms: int | None
    expires_at_ms: int | None
    live: bool


class Due(Record, frozen=True, kw_only=True):
    """A process that somebody may take up now. One that is `lost` must not be run again: it is to
    be abandoned."""

    process: Process
    due_at_ms: int
    lost: bool


# --- grants


class Grant(Record, frozen=True, kw_only=True):
    """Permission for a scope to see a process."""

    scope: Scope
    process: str
    kind: str
    label: str
    granted_at_ms: int


class Granted(Record, frozen=True, kw_only=True):
    """A grant with the record of its process."""

    grant: Grant
    process: Process


# --- finding them, and letting go of them


class ProcessFilter(Record, frozen=True, kw_only=True):
    """Which processes a listing holds: those to which all that is given applies."""

    states: Sequence[ProcessState] = ("running",)
    kind: str | None = None
    definition: str | None = None
    waiting: bool | None = None
    session: str | None = None
    parent: str | None = None


class Change(Record, frozen=True, kw_only=True):
    """A process that has changed, as it is now; of one that was pruned nothing is left but its
    id."""

    process: str
    record: Process | None


class Changes(Record, frozen=True, kw_only=True):
    """A page of the change feed. `next` is where the following one begins, also after the last
    change; `more` says whether there is more already."""

    items: tuple[Change, ...]
    next: str
    more: bool


class PrunedProcesses(Record, frozen=True, kw_only=True):
    """What a prune removed; `more` says whether there is more to be pruned."""

    processes: tuple[str, ...]
    events: int
    grants: int
    more: bool
