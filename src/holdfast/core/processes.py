"""Decisions about processes: what may be registered, what rows mean, what a refusal was about."""

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
    ProcessConflict,
    ProcessEnded,
    ProcessPruned,
    ProcessUnknown,
    SessionDeleted,
    TooLarge,
)
from holdfast.contract.limits import MAX_INT, Limits
from holdfast.contract.processes import (
    Const,
    Due,
    EventType,
    ExternalRef,
    Grant,
    Lease,
    NewProcess,
    Pointer,
    Present,
    Process,
    ProcessFilter,
    ProcessState,
    Recovery,
    Scope,
    Selector,
    Template,
    Wait,
    Whole,
)
from holdfast.contract.records import Holder
from holdfast.core.events import (
    ENDS,
    EXTERNAL,
    NOTHING,
    RESERVED,
    WAITING,
    EventPlan,
    check_digest,
    check_scope,
)
from holdfast.core.payloads import check_id, check_text, encode
from holdfast.core.schemas import check_schema
from holdfast.core.selectors import pointer_parts

VERSION = 1
STATES: tuple[ProcessState, ...] = get_args(ProcessState)
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


_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_decode = msgspec.msgpack.Decoder(Registration).decode
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


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """A checked registration, ready to be written."""

    process: str
    kept: Registration
    declared: Declared
    params: dict[str, Any]


def plan_register(new: NewProcess, *, tenant: str, fresh: str, limits: Limits) -> ProcessPlan:
    """A checked registration. One without an id gets the fresh one."""
    process = fresh if new.process is None else check_id("process", new.process)
    if new.recovery not in get_args(Recovery):
        raise Invalid(field="recovery", reason=f"it is one of {', '.join(get_args(Recovery))}")
    kept = Registration(
        version=VERSION,
        kind=check_id("kind", new.kind),
        label=check_text("label", new.label, limits.text_chars),
        definition=None if new.definition is None else check_id("definition", new.definition),
        input=encode("input", new.input, limits.payload_bytes),
        events=_checked_types(new.events, limits),
        recovery=new.recovery,
        origin=None if new.origin is None else check_scope("origin", new.origin),
        parent=None if new.parent is None else check_id("parent", new.parent),
        cause=None if new.cause is None else check_id("cause", new.cause),
        wake=None if new.wake is None else check_scope("wake", new.wake),
    )
    if kept.parent == process:
        raise Invalid(field="parent", reason="a process is not its own parent")
    registration = _encode(kept)
    if len(registration) > limits.commit_bytes:
        raise TooLarge(field="process", actual=len(registration), limit=limits.commit_bytes)
    identity = process_identity(tenant, process, registration)
    params = {
        "tenant": tenant,
        "process": process,
        "kind": kept.kind,
        "definition": kept.definition,
        "recovery": kept.recovery,
        "origin_session": kept.origin.session if kept.origin is not None else None,
        "parent": kept.parent,
        "wake_session": kept.wake.session if kept.wake is not None else None,
        "registration": registration,
        "identity": identity,
        "grants": _checked_grants(new, limits),
    }
    return ProcessPlan(process, kept, declared_of(identity, kept), params)


def _checked_grants(new: NewProcess, limits: Limits) -> list[tuple[str, str, str, str]]:
    if len(new.grants) > limits.declared:
        raise TooLarge(field="grants", actual=len(new.grants), limit=limits.declared)
    rows: dict[tuple[str, str], tuple[str, str, str, str]] = {}
    for at, grant in enumerate(new.grants):
        session, frame = scope_row(f"grants[{at}].scope", grant.scope)
        if (session, frame) in rows:
            raise Invalid(field=f"grants[{at}].scope", reason="it is there twice")
        kind = check_text(f"grants[{at}].kind", grant.kind, limits.text_chars)
        label = check_text(f"grants[{at}].label", grant.label, limits.text_chars)
        rows[session, frame] = (session, frame, kind, label)
    return [rows[place] for place in sorted(rows)]


def scope_row(field: str, scope: Scope) -> tuple[str, str]:
    """A scope as its columns: the frame of a whole session is empty."""
    check_scope(field, scope)
    return scope.session, scope.frame or ""


def _checked_types(types: Sequence[EventType], limits: Limits) -> tuple[EventType, ...]:
    if len(types) > limits.declared:
        raise TooLarge(field="events", actual=len(types), limit=limits.declared)
    seen: set[str] = set()
    for at, kind in enumerate(types):
        field = f"events[{at}]"
        name = check_id(f"{field}.name", kind.name)
        if name in seen:
            raise Invalid(field=f"{field}.name", reason=f"{name!r} is declared twice")
        seen.add(name)
        if name.startswith(RESERVED) and name not in ENDS:
            raise Invalid(
                field=f"{field}.name", reason=f"names that begin with {RESERVED} are reserved"
            )
        if kind.ends is not None and kind.ends not in ENDS.values():
            raise Invalid(field=f"{field}.ends", reason=f"it is one of {', '.join(ENDS.values())}")
        if name in ENDS and kind.ends != ENDS[name]:
            raise Invalid(field=f"{field}.ends", reason=f"an event {name} ends as {ENDS[name]}")
        encode(f"{field}.schema", kind.schema, limits.payload_bytes)
        check_schema(f"{field}.schema", kind.schema)
        check_selector(f"{field}.output", kind.output, limits)
        if kind.wakes is not None:
            check_selector(f"{field}.wakes.input", kind.wakes.input, limits)
            if kind.wakes.when is not None:
                check_selector(f"{field}.wakes.when", kind.wakes.when, limits)
    return tuple(types)


def check_selector(field: str, selector: Selector, limits: Limits) -> None:
    """Refuse a selector that is none, or takes what cannot be stored."""
    match selector:
        case Whole():
            pass
        case Pointer(at=at) | Present(at=at):
            if not isinstance(at, str) or pointer_parts(at) is None:
                raise Invalid(field=f"{field}.at", reason="a JSON pointer begins with /, or is ''")
        case Const(value=value):
            encode(f"{field}.value", value, limits.payload_bytes)
        case Template(text=text, fields=fields):
            encode(f"{field}.text", text, limits.payload_bytes)
            for name, inner in fields.items():
                check_selector(f"{field}.fields.{name}", inner, limits)
        case _:
            raise Invalid(field=field, reason="this is no selector")


# --- rows


def registration_of(tenant: str, process: str, identity: bytes, kept: bytes) -> Registration:
    """What was registered, verified."""
    if process_identity(tenant, process, kept) != identity:
        raise Corrupt(table="process", key=process, reason="its identity does not match")
    return _decode(kept)


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
        external, external_digest, started_at_ms, cancel_at_ms, wake_gone,
    ) = row  # fmt: skip
    kept = registration_of(tenant, process, bytes(identity), bytes(registration))
    reason = ""
    if state not in STATES or last_event < 0:
        reason = "its state or its counter is none that there is"
    elif ends != (None if state == "running" else state):
        reason = "its state is not that of the event that ended it"
    if reason:
        raise Corrupt(table="process", key=process, reason=reason)
    if end_type is not None:
        parts = (end_type, end_key, bytes(end_payload), ends, bytes(output), end_wake)
        check_digest(tenant, process, parts, end_digest)
    if wait is not None:
        check_digest(tenant, process, (WAITING, None, bytes(wait), *NOTHING), wait_digest)
    if external is not None:
        named = (EXTERNAL, EXTERNAL, bytes(external), *NOTHING)
        check_digest(tenant, process, named, external_digest)
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
class RegisterFacts(ProcessFacts):
    """Why nothing was registered."""

    identity: bytes | None
    deleted: str | None


def explain_register(plan: ProcessPlan) -> Callable[[RegisterFacts], bool | None]:
    """A registration that was refused; False when the same process is there already."""

    def judge(facts: RegisterFacts) -> bool | None:
        if facts.pruned:
            raise ProcessPruned(process=plan.process)
        if facts.known and facts.identity is not None:
            if bytes(facts.identity) != plan.declared.identity:
                raise ProcessConflict(process=plan.process)
            return False
        if facts.deleted is not None:
            raise SessionDeleted(session=facts.deleted)
        return None

    return judge


@dataclass(frozen=True, slots=True)
class AppendFacts(ProcessFacts):
    """Why an event was not appended."""

    identity_ok: bool
    clash: bool
    state: str
    recovery: str
    lease_ok: bool
    lost: bool
    last_event: int
    parent_last: int | None


def explain_append(plan: EventPlan) -> Callable[[AppendFacts], None]:
    """An append that was refused; nothing is said when another moment may allow it."""

    def judge(facts: AppendFacts) -> None:
        facts.require(plan.process)
        ended = facts.state != "running"
        if facts.clash:
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


def explain_claim_lease(process: str, owner: str) -> Callable[[LeaseFacts], None]:
    """A claim that was refused."""

    def judge(facts: LeaseFacts) -> None:
        facts.require(process)
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
