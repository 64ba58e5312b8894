"""Decisions about processes: what rows mean, and what a refusal was about."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from holdfast.contract.errors import (
    Corrupt,
    CounterOverflow,
    EndForbidden,
    EventConflict,
    GrantUnknown,
    Invalid,
    LeaseBusy,
    LeaseLost,
    NotRecoverable,
    ProcessEnded,
    ProcessPruned,
    ProcessUnknown,
    SessionDeleted,
)
from holdfast.contract.limits import MAX_INT
from holdfast.contract.processes import (
    Due,
    EventType,
    ExternalRef,
    Grant,
    Lease,
    Process,
    ProcessFilter,
    ProcessState,
    Recovery,
    Scope,
    Wait,
)
from holdfast.contract.records import Holder
from holdfast.core.events import (
    AUTHORITIES,
    EXTERNAL,
    NOTHING,
    WAITING,
    EventPlan,
    check_digest,
    check_scope,
)
from holdfast.core.payloads import check_id

VERSION = 1
STATES: tuple[ProcessState, ...] = get_args(ProcessState)
RECOVERIES: tuple[Recovery, ...] = get_args(Recovery)
# The columns by which processes are found and judged.
COLUMNS = ("kind", "definition", "recovery", "origin_session", "parent", "wake_session")
# Where a listing begins: before every id.
FIRST = ""


class Registration(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What is kept of a registration, as it was given; its encoding is what its identity proves."""

    version: int
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


encode_registration = msgspec.msgpack.Encoder(order="deterministic").encode
decode_registration = msgspec.msgpack.Decoder(Registration).decode
_refs = msgspec.json.Decoder(ExternalRef).decode
_waits = msgspec.json.Decoder(Wait).decode


def process_identity(tenant: str, process: str, registration: bytes) -> bytes:
    """The name of what was registered, which also proves the row."""
    seal = hashlib.blake2b(f"{tenant}\0{process}\0".encode(), digest_size=16)
    seal.update(registration)
    return seal.digest()


@dataclass(frozen=True, slots=True)
class Declared:
    """What a handle may remember of a process, because it never changes."""

    identity: bytes
    types: Mapping[str, EventType]
    wake: Scope | None
    parent: str | None


def declared_of(identity: bytes, kept: Registration) -> Declared:
    """What events of a process are judged by."""
    types = {kind.name: kind for kind in kept.events}
    return Declared(identity, types, kept.wake, kept.parent)


def scope_row(field: str, scope: Scope) -> tuple[str, str]:
    """A scope as its columns: the frame of a whole session is empty."""
    check_scope(field, scope)
    return scope.session, scope.frame or ""


# --- rows


def registration_of(tenant: str, process: str, identity: bytes, kept: bytes) -> Registration:
    """What was registered, verified."""
    if process_identity(tenant, process, kept) != identity:
        raise Corrupt(table="process", key=process, reason="its identity does not match")
    return decode_registration(kept)


def columns_of(kept: Registration) -> tuple[str | None, ...]:
    """What was registered, as the columns by which processes are found and judged."""
    return (
        kept.kind,
        kept.definition,
        kept.recovery,
        kept.origin.session if kept.origin is not None else None,
        kept.parent,
        kept.wake.session if kept.wake is not None else None,
    )


def registered_process(
    process: str, kept: Registration, identity: bytes, created_at_ms: int
) -> Process:
    """The record of a process to which nothing has happened yet."""
    return Process(
        process=process,
        kind=kept.kind,
        label=kept.label,
        definition=kept.definition,
        input=kept.input,
        events=kept.events,
        recovery=kept.recovery,
        origin=kept.origin,
        parent=kept.parent,
        cause=kept.cause,
        wake=kept.wake,
        identity=identity.hex(),
        created_at_ms=created_at_ms,
        updated_at_ms=created_at_ms,
    )


def process_of(tenant: str, row: Sequence[Any]) -> Process:
    """The record of a process: what was registered, and what its log has made of it."""
    (
        process, registration, identity, created_at_ms, state, last_event, updated_at_ms, end_type,
        end_key, end_payload, ends, output, end_wake, end_digest, authority, wait, wait_digest,
        external, external_digest, started_at_ms, cancel_at_ms, wake_gone, kind, definition,
        recovery, origin_session, parent, wake_session, wait_event, external_event,
    ) = row  # fmt: skip
    kept = registration_of(tenant, process, bytes(identity), bytes(registration))
    columns = (kind, definition, recovery, origin_session, parent, wake_session)
    reason = ""
    if columns != columns_of(kept):
        reason = "its columns are not what was registered"
    elif state not in STATES or last_event < 0:
        reason = "its state or its counter is none that there is"
    elif ends != (None if state == "running" else state) or (ends is None) != (end_type is None):
        reason = "its state is not that of the event that ended it"
    elif (authority in AUTHORITIES) is not (ends is not None):
        reason = "nobody was allowed to end it like this"
    if reason:
        raise Corrupt(table="process", key=process, reason=reason)
    if end_type is not None:
        woke = None if end_wake is None else bytes(end_wake)
        said = (end_type, end_key, bytes(end_payload), ends, bytes(output), woke)
        check_digest(tenant, process, said, end_digest)
    # Where the event that is pointed at is not there, nothing has the digest.
    if wait_event is not None:
        waits = (WAITING, None, bytes(wait or b""), *NOTHING)
        check_digest(tenant, process, waits, wait_digest or b"")
    if external_event is not None:
        named = (EXTERNAL, EXTERNAL, bytes(external or b""), *NOTHING)
        check_digest(tenant, process, named, external_digest or b"")
    return msgspec.structs.replace(
        registered_process(process, kept, bytes(identity), created_at_ms),
        wake=None if wake_gone else kept.wake,
        sequence=last_event,
        updated_at_ms=updated_at_ms,
        state=state,
        output=None if output is None else bytes(output),
        ended_by=authority,
        wait=None if wait is None else _waits(bytes(wait)),
        external=None if external is None else _refs(bytes(external)),
        started_at_ms=started_at_ms,
        cancel_requested_at_ms=cancel_at_ms,
    )


def due_of(tenant: str, row: Sequence[Any]) -> Due:
    """A row of the worklist."""
    due_at_ms, lost, *rest = row
    return Due(process=process_of(tenant, rest), due_at_ms=due_at_ms, lost=bool(lost))


def grant_of(row: Sequence[Any]) -> Grant:
    """A row of grants."""
    session, frame, process, kind, label, granted_at_ms = row
    return Grant(
        scope=Scope(session=session, frame=frame or None),
        process=process,
        kind=kind,
        label=label,
        granted_at_ms=granted_at_ms,
    )


# --- refusals


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """The facts every refusal about a process begins with."""

    known: bool
    pruned: bool

    def require(self, process: str) -> None:
        """Raise when the process is not there, or not any more."""
        if not self.known:
            raise ProcessUnknown(process=process)
        if self.pruned:
            raise ProcessPruned(process=process)


@dataclass(frozen=True, slots=True)
class AppendFacts(ProcessFacts):
    """Why an event was not appended."""

    identity_ok: bool
    same: bool
    clash: bool
    state: str
    recovery: str
    lease_ok: bool
    lost: bool
    last_event: int
    parent_last: int | None
    log_last: int | None
    old_type: str | None
    old_payload: bytes | None
    old_ends: str | None
    old_output: bytes | None
    old_wake: bytes | None
    old_digest: bytes | None

    def check_old(self, tenant: str, process: str, key: str | None) -> None:
        """Raise when the event that has the key is damaged: that is no conflict of the caller."""
        made = (self.old_ends, _bytes(self.old_output), _bytes(self.old_wake))
        parts = (self.old_type, key, _bytes(self.old_payload), *made)
        check_digest(tenant, process, parts, self.old_digest or b"")


def _bytes(value: bytes | None) -> bytes | None:
    return None if value is None else bytes(value)


def check_row(
    process: str, state: str, recovery: str, last_event: int | None, log_last: int | None
) -> None:
    """Raise when a process that was refused something cannot be as it is stored."""
    reason = ""
    if state not in STATES or recovery not in RECOVERIES:
        reason = "its state or its recovery is none that there is"
    elif (last_event or 0) < (log_last or 0):
        reason = "its counter is behind its log"
    if reason:
        raise Corrupt(table="process", key=process, reason=reason)


def explain_append(tenant: str, plan: EventPlan) -> Callable[[AppendFacts], None]:
    """An append that was refused; nothing is said when another moment may allow it."""

    def judge(facts: AppendFacts) -> None:
        facts.require(plan.process)
        check_row(plan.process, facts.state, facts.recovery, facts.last_event, facts.log_last)
        ended = facts.state != "running"
        if facts.same:
            return  # A rival appended it since: asked again, it is answered.
        if facts.clash:
            facts.check_old(tenant, plan.process, plan.key)
            if plan.ends is not None and ended:
                raise ProcessEnded(process=plan.process, state=facts.state)
            raise EventConflict(process=plan.process, key=plan.key or "")
        if plan.lease is not None and not facts.lease_ok and not (ended and plan.ends):
            raise LeaseLost(process=plan.process)
        if ended and plan.means in ("ends", "waits", "cancels"):
            raise ProcessEnded(process=plan.process, state=facts.state)
        if plan.ends is not None and not may_end(plan, facts):
            raise EndForbidden(process=plan.process)
        for name, last in ((plan.process, facts.last_event), ("its parent", facts.parent_last)):
            if last is not None and last < 0:
                raise Corrupt(table="process", key=name, reason="a counter is negative")
            if last == MAX_INT:
                raise CounterOverflow(counter="event", key=name)

    return judge


def may_end(plan: EventPlan, facts: AppendFacts) -> bool:
    """Whether who says so may end the process."""
    match plan.authority:
        case "lease":
            return facts.lease_ok
        case "operator":
            return True
        case "external":
            return facts.recovery == "external"
        case "lapse":
            return facts.lost
        case _:
            return False


@dataclass(frozen=True, slots=True)
class LeaseFacts(ProcessFacts):
    """Why a lease was not granted or renewed."""

    state: str
    recovery: str
    started: bool
    owner: str | None
    generation: int | None
    expires_at_ms: int | None
    last_event: int | None
    log_last: int | None


def explain_claim_lease(process: str, owner: str) -> Callable[[LeaseFacts], None]:
    """A claim that was refused."""

    def judge(facts: LeaseFacts) -> None:
        facts.require(process)
        check_row(process, facts.state, facts.recovery, facts.last_event, facts.log_last)
        if facts.state != "running":
            raise ProcessEnded(process=process, state=facts.state)
        if facts.recovery == "external":
            raise NotRecoverable(process=process, recovery="external", reason="runs somewhere else")
        if facts.owner is not None and facts.owner != owner:
            raise LeaseBusy(
                process=process,
                owner=facts.owner,
                generation=facts.generation or 0,
                expires_at_ms=facts.expires_at_ms or 0,
            )
        if facts.recovery == "owner-bound" and facts.started and facts.owner is None:
            raise NotRecoverable(
                process=process, recovery="owner-bound", reason="has started already"
            )
        if min(facts.generation or 0, facts.last_event or 0) < 0:
            raise Corrupt(table="process", key=process, reason="a counter is negative")
        if facts.generation == MAX_INT or facts.last_event == MAX_INT:
            raise CounterOverflow(counter="lease or event", key=process)

    return judge


def explain_missing(
    process: str, otherwise: bool | None = None
) -> Callable[[ProcessFacts], bool | None]:
    """A statement that refuses only where there is no process, or has an answer of its own."""

    def judge(facts: ProcessFacts) -> bool | None:
        facts.require(process)
        return otherwise

    return judge


def explain_renew_lease(process: str) -> Callable[[ProcessFacts], None]:
    """A renewal that was refused."""

    def judge(facts: ProcessFacts) -> None:
        facts.require(process)
        raise LeaseLost(process=process)

    return judge


@dataclass(frozen=True, slots=True)
class GrantFacts(ProcessFacts):
    """Why a grant was not given."""

    deleted: bool


def explain_grant(process: str, session: str) -> Callable[[GrantFacts], None]:
    """A grant that was refused."""

    def judge(facts: GrantFacts) -> None:
        facts.require(process)
        if facts.deleted:
            raise SessionDeleted(session=session)

    return judge


@dataclass(frozen=True, slots=True)
class TransferFacts:
    """Why grants were not moved."""

    missing: str | None
    deleted: bool


def explain_transfer(source: Scope, target: Scope) -> Callable[[TransferFacts], None]:
    """A transfer that was refused."""
    shown = source.session if source.frame is None else f"{source.session}/{source.frame}"

    def judge(facts: TransferFacts) -> None:
        if facts.deleted:
            raise SessionDeleted(session=target.session)
        if facts.missing is not None:
            raise GrantUnknown(scope=shown, process=facts.missing)

    return judge


def granted_lease(process: str, owner: str, token: str, row: Sequence[Any]) -> Lease:
    """A lease that was granted, with whom it was taken over from."""
    generation, claimed_at_ms, expires_at_ms, old_owner, old_generation, old_expires = row
    displaced = None
    if old_owner is not None and old_expires is not None:
        displaced = Holder(owner=old_owner, generation=old_generation, expires_at_ms=old_expires)
    return Lease(
        process=process,
        owner=owner,
        token=token,
        generation=generation,
        claimed_at_ms=claimed_at_ms,
        expires_at_ms=expires_at_ms,
        displaced=displaced,
    )


def check_filter(which: ProcessFilter | None) -> dict[str, Any]:
    """What a listing asks for, as parameters."""
    which = ProcessFilter() if which is None else which
    if not which.states:
        raise Invalid(field="which.states", reason="name one state at least")
    for at, state in enumerate(which.states):
        if state not in STATES:
            raise Invalid(field=f"which.states[{at}]", reason=f"one of {', '.join(STATES)}")
    if which.waiting not in (None, True, False):
        raise Invalid(field="which.waiting", reason="it is True, False, or left out")
    named = {
        name: None if value is None else check_id(f"which.{name}", value)
        for name, value in (
            ("kind", which.kind),
            ("definition", which.definition),
            ("session", which.session),
            ("parent", which.parent),
        )
    }
    states = [(state,) for state in dict.fromkeys(which.states)]
    return {**named, "waiting": which.waiting, "states": states}


def due_place(after: str | None) -> tuple[int | None, int, str]:
    """The cursor of a worklist: the moment its first page was read at, and the last place seen."""
    if after is None:
        return None, -MAX_INT - 1, FIRST
    upper, _, rest = after.partition(".")
    due, _, process = rest.partition(".")
    if not (_is_number(upper) and _is_number(due) and process):
        raise Invalid(field="after", reason="this is not a cursor of this listing")
    return int(upper), int(due), process


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) <= MAX_INT


def check_place(after: str | None) -> str:
    """The cursor of a listing in the order of ids."""
    return FIRST if after is None else check_id("after", after)


def change_place(after: str | None) -> int:
    """The cursor of the feed of changes."""
    if after is None:
        return 0
    if not _is_number(after):
        raise Invalid(field="after", reason="this is not a cursor of this feed")
    return int(after)


def check_scope_place(after: str | None) -> tuple[str, str]:
    """The cursor of a listing in the order of sessions and frames."""
    if after is None:
        return FIRST, FIRST
    session, space, frame = after.partition(" ")
    if not space:
        raise Invalid(field="after", reason="this is not a cursor of this listing")
    return check_id("after", session), frame
