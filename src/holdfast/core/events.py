"""An event becomes a plan here: what its declared type makes of its payload, and the row of it.

What a process declared never changes, so an event is judged before anything is asked of the store.
The plan of an event that is none of the user's own says what else its row means: `means`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import msgspec

from holdfast.contract.errors import Corrupt, EventUndeclared, Invalid, PayloadRejected, TooLarge
from holdfast.contract.limits import Limits
from holdfast.contract.processes import (
    Appended,
    Authority,
    EndState,
    Event,
    EventType,
    ExternalRef,
    Lease,
    NewEvent,
    ProcessState,
    Scope,
    Wait,
    WakeOutcome,
)
from holdfast.core.payloads import check_id, check_int, check_text, encode
from holdfast.core.queue import pack_items, work_digest
from holdfast.core.schemas import offence
from holdfast.core.selectors import PointsAtNothing, is_true, select, text_of

RESERVED = "process."
ENDS: dict[str, EndState] = {f"{RESERVED}{state}": state for state in get_args(EndState)}
STARTED, WAITING, RESUMED = "process.started", "process.waiting", "process.resumed"
CANCEL, EXTERNAL = "process.cancel-requested", "process.external"
CHILD_ENDED, ABANDONED = "process.child-ended", "process.abandoned"
CORE = {STARTED, WAITING, RESUMED, CANCEL, EXTERNAL, CHILD_ENDED, ABANDONED, *ENDS}
END_KEY = "process.end"
# Before the key of an event that was sent without one.
ONCE = f"{RESERVED}once:"
# An event whose type made nothing of it: no end, no output, no wake.
NOTHING = (None, None, None)

AUTHORITIES: tuple[Authority, ...] = get_args(Authority)

Means = Literal["nothing", "ends", "waits", "resumes", "cancels", "external"]

_json = msgspec.json.Encoder()
_decode = msgspec.json.Decoder().decode
_pack = msgspec.msgpack.Encoder().encode


def event_digest(
    tenant: str,
    process: str,
    type: str,
    key: str | None,
    payload: bytes,
    ends: str | None,
    output: bytes | None,
    wake: bytes | None,
) -> bytes:
    """What proves an event: whose it is, and all that was decided before it had a place."""
    parts = _pack((tenant, process, type, key, payload, ends, output, wake))
    return hashlib.blake2b(parts, digest_size=16).digest()


def check_digest(tenant: str, process: str, parts: tuple[Any, ...], digest: bytes) -> None:
    """Raise when an event is not what its digest says."""
    if event_digest(tenant, process, *parts) != bytes(digest):
        raise Corrupt(
            table="process_event",
            key=f"{process}/{parts[0]}",
            reason="its digest does not match",
        )


@dataclass(frozen=True, slots=True)
class EventPlan:
    """An event, judged: what is written, and what it means for its process. `named` says that its
    target is its own, and not that of its process."""

    process: str
    type: str
    key: str | None
    payload: bytes
    means: Means = "nothing"
    ends: ProcessState | None = None
    output: bytes | None = None
    wake: str | None = None
    target: Scope | None = None
    named: bool = False
    authority: Authority | None = None
    lease: Lease | None = None
    wait: Wait | None = None

    def params(self, tenant: str, work: str, parent: str | None) -> dict[str, Any]:
        """The plan as parameters of the statement that appends it. `work` is the id that its wake
        gets as work; `parent` is told when the process ends."""
        wake = None if self.wake is None else self.wake.encode()
        own = (self.type, self.key, self.payload, self.ends, self.output, wake)
        target = self.target if self.wake is not None else None
        session = target.session if target is not None else None
        items = pack_items([self._wake_item(target)]) if target is not None else b""
        told = self._told() if parent is not None and self.ends is not None else b""
        child_key = f"{RESERVED}child:{self.process}"
        lease, wait = self.lease, self.wait
        return {
            "tenant": tenant,
            "process": self.process,
            "type": self.type,
            "key": self.key,
            "payload": self.payload,
            "means": self.means,
            "ends": self.ends,
            "output": self.output,
            "wake": wake,
            "digest": event_digest(tenant, self.process, *own),
            "authority": self.authority,
            "lease_owner": lease.owner if lease is not None else None,
            "lease_token": lease.token if lease is not None else None,
            "lease_generation": lease.generation if lease is not None else None,
            "wait_type": wait.type if wait is not None else None,
            "wait_after": wait.after if wait is not None else None,
            "wait_until_ms": wait.until_ms if wait is not None else None,
            "target": session,
            "target_frame": target.frame if target is not None else None,
            "named": self.named,
            "work": work,
            "items": items,
            "work_digest": b"" if session is None else work_digest(tenant, session, work, items),
            "parent": parent if told else None,
            "told": told,
            "told_key": child_key,
            "told_digest": b""
            if not told or parent is None
            else event_digest(tenant, parent, CHILD_ENDED, child_key, told, None, None, None),
        }

    def _wake_item(self, target: Scope) -> bytes:
        body = {
            "type": "process.wake",
            "process": self.process,
            "event": self.type,
            "frame": target.frame,
            "input": self.wake,
        }
        return _json.encode(body)

    def _told(self) -> bytes:
        output = msgspec.Raw(b"null" if self.output is None else self.output)
        return _json.encode({"process": self.process, "state": self.ends, "output": output})


def plan_event(
    process: str,
    declared: Mapping[str, EventType],
    target: Scope | None,
    event: NewEvent,
    *,
    lease: Lease | None,
    authority: Authority | None,
    limits: Limits,
) -> EventPlan:
    """An event of a declared type, or the refusal of it."""
    type = check_id("event.type", event.type)
    if type in CORE:
        raise Invalid(field="event.type", reason="an operation of its own appends this event")
    kind = declared.get(type)
    if kind is None:
        raise EventUndeclared(process=process, type=type)
    key = event.key
    if key is not None and check_id("event.key", key).startswith(RESERVED):
        raise Invalid(field="event.key", reason=f"keys that begin with {RESERVED} are reserved")
    if kind.ends is not None and key is None:
        raise Invalid(field="event.key", reason="an event that ends a process has a key")
    payload = encode("event.payload", event.payload, limits.payload_bytes)
    if event.wake is not None:
        check_scope("event.wake", event.wake)
        target = event.wake
    plan = _judged(process, kind, key, payload, target, limits)
    return _authorised(replace(plan, named=event.wake is not None), lease, authority)


def named_once(plan: EventPlan, fresh: str) -> EventPlan:
    """An event without a key gets one of its own, which nobody sees: when the store has to try
    again because an answer was lost, it finds what the first try has appended."""
    if plan.key is not None or plan.means != "nothing":
        return plan
    return replace(plan, key=f"{ONCE}{fresh}")


def plan_end(
    process: str,
    declared: Mapping[str, EventType],
    target: Scope | None,
    state: object,
    output: Any,
    *,
    lease: Lease | None,
    authority: Authority | None,
    limits: Limits,
) -> EventPlan:
    """The event that ends a process in a state."""
    if state not in get_args(EndState):
        raise Invalid(field="state", reason=f"it is one of {', '.join(get_args(EndState))}")
    type = f"{RESERVED}{state}"
    kind = declared.get(type) or EventType(name=type, ends=ENDS[type])
    payload = encode("output", output, limits.payload_bytes)
    _decoded("output", type, payload)
    return _authorised(_judged(process, kind, END_KEY, payload, target, limits), lease, authority)


def plan_abandon(process: str, reason: str, authority: object, limits: Limits) -> EventPlan:
    """The event that ends a process which nobody may run any more."""
    if not check_text("reason", reason, limits.text_chars):
        raise Invalid(field="reason", reason="to abandon a process needs a reason")
    if authority not in (None, "operator"):
        raise Invalid(field="authority", reason="it is 'operator', or left out")
    return EventPlan(
        process=process,
        type=ABANDONED,
        key=END_KEY,
        payload=_json.encode({"reason": reason}),
        means="ends",
        ends="abandoned",
        output=b"null",
        authority="operator" if authority == "operator" else "lapse",
    )


def plan_cancel(process: str, reason: str | None, limits: Limits) -> EventPlan:
    """The event that asks a process to end itself; the same reason has the same key."""
    if reason is not None:
        check_text("reason", reason, limits.text_chars)
    payload = _json.encode({"reason": reason})
    key = f"{RESERVED}cancel:{hashlib.sha256(payload).hexdigest()}"
    return EventPlan(process=process, type=CANCEL, key=key, payload=payload, means="cancels")


def started_event(tenant: str, process: str, owner: str) -> tuple[bytes, bytes]:
    """The payload and the digest of the event that says who was the first to run a process."""
    payload = _json.encode({"owner": owner})
    return payload, event_digest(tenant, process, STARTED, None, payload, *NOTHING)


def plan_wait(
    process: str, declared: Mapping[str, EventType], wait: Wait, lease: Lease | None
) -> EventPlan:
    """The event that says what a process waits for."""
    if wait.type is None and wait.until_ms is None:
        raise Invalid(field="wait", reason="it waits for an event or for a time, or for either")
    if wait.type is not None:
        check_id("wait.type", wait.type)
        if wait.type not in declared and wait.type not in CORE:
            raise EventUndeclared(process=process, type=wait.type)
    check_int("wait.after", wait.after)
    if wait.until_ms is not None:
        check_int("wait.until_ms", wait.until_ms)
    payload = _json.encode(wait)
    return EventPlan(
        process=process,
        type=WAITING,
        key=None,
        payload=payload,
        means="waits",
        lease=_checked(lease, process),
        wait=wait,
    )


def plan_resume(process: str, lease: Lease | None) -> EventPlan:
    """The event that says that a process waits no more."""
    return EventPlan(
        process=process,
        type=RESUMED,
        key=None,
        payload=b"null",
        means="resumes",
        lease=_checked(lease, process),
    )


def plan_external(process: str, ref: ExternalRef, limits: Limits) -> EventPlan:
    """The event that says where a process runs; it has one key, so there is one."""
    for field, value in (("ref.backend", ref.backend), ("ref.id", ref.id)):
        if not check_text(field, value, limits.text_chars).strip():
            raise Invalid(field=field, reason="where a process runs has a name")
    body = {"backend": ref.backend, "id": ref.id, "metadata": ref.metadata}
    payload = encode("ref", body, limits.payload_bytes)
    return EventPlan(
        process=process, type=EXTERNAL, key=EXTERNAL, payload=payload, means="external"
    )


def check_scope(field: str, scope: Scope) -> Scope:
    """A scope whose names are ids."""
    if not isinstance(scope, Scope):
        raise Invalid(field=field, reason=f"a Scope is wanted, not {type(scope).__name__}")
    check_id(f"{field}.session", scope.session)
    if scope.frame is not None:
        check_id(f"{field}.frame", scope.frame)
    return scope


def _checked(lease: Lease | None, process: str) -> Lease | None:
    if lease is None:
        return None
    check_id("lease.process", lease.process)
    if lease.process != process:
        raise Invalid(field="lease.process", reason=f"the lease is one of {lease.process!r}")
    check_id("lease.owner", lease.owner)
    check_id("lease.token", lease.token)
    check_int("lease.generation", lease.generation)
    return lease


def check_lease(lease: Lease) -> Lease:
    """A lease that is presented to be renewed or given back."""
    _checked(lease, lease.process)
    return lease


def _authorised(plan: EventPlan, lease: Lease | None, authority: object) -> EventPlan:
    """The plan with who says so; whether they may is for the statement to judge."""
    if authority not in (None, "external", "operator"):
        raise Invalid(field="authority", reason="it is 'external' or 'operator', or left out")
    named: Any = None if plan.ends is None else "lease" if lease is not None else authority
    return replace(plan, authority=named, lease=_checked(lease, plan.process))


def _decoded(field: str, type: str, payload: bytes) -> Any:
    try:
        return _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise PayloadRejected(field=field, type=type, reason="it is not JSON") from None


def _judged(
    process: str,
    kind: EventType,
    key: str | None,
    payload: bytes,
    target: Scope | None,
    limits: Limits,
) -> EventPlan:
    """What a declared type makes of a payload: its end, its output, its wake."""
    ends = kind.ends
    output = wake = None
    field = "output" if key == END_KEY else "payload"
    if kind.schema is not None or ends is not None or kind.wakes is not None:
        value = _decoded(field, kind.name, payload)
        if (wrong := offence(field, kind.schema, value)) is not None:
            raise PayloadRejected(field=wrong[0], type=kind.name, reason=wrong[1])
        try:
            if ends is not None:
                output = _json.encode(select(value, kind.output))
            rule = kind.wakes
            if rule is not None and (rule.when is None or is_true(select(value, rule.when))):
                wake = text_of(select(value, rule.input))
        except PointsAtNothing as nothing:
            raise PayloadRejected(
                field=field, type=kind.name, reason=f"{nothing.at!r} points at nothing"
            ) from None
        # A template may make more of a payload than there is in it.
        made = {"output": len(output or b""), "wake": len((wake or "").encode())}
        for name, size in made.items():
            if size > limits.payload_bytes:
                raise TooLarge(field=name, actual=size, limit=limits.payload_bytes)
    return EventPlan(
        process=process,
        type=kind.name,
        key=key,
        payload=payload,
        means="nothing" if ends is None else "ends",
        ends=ends,
        output=output,
        wake=wake,
        target=target,
    )


def appended_of(tenant: str, row: Sequence[Any]) -> Appended:
    """The answer to an append: the row of the event, behind whether it is new."""
    event = event_of(tenant, row[1:])
    outcome: WakeOutcome | None = None
    if event.wake is not None:
        gone: WakeOutcome = "no-target" if row[12] is None else "target-gone"
        outcome = "enqueued" if event.work is not None else gone
    # An event that was sent without a key is there because of this call, whichever try it was.
    once = row[5] is not None and row[5].startswith(ONCE)
    return Appended(event=event, replayed=not (row[0] or once), ordinal=row[4], wake=outcome)


def event_of(tenant: str, row: Sequence[Any]) -> Event:
    """A row of a log, verified."""
    (
        process, seq, type, ordinal, key, payload, ends, output, wake, digest, authority,
        wake_session, wake_frame, work, at_ms, acked_at_ms,
    ) = row  # fmt: skip
    body = bytes(payload)
    made = None if output is None else bytes(output)
    text = None if wake is None else bytes(wake)
    check_digest(tenant, process, (type, key, body, ends, made, text), digest)
    if not 1 <= ordinal <= seq or (authority in AUTHORITIES) is not (ends is not None):
        raise Corrupt(
            table="process_event",
            key=f"{process}/{type}",
            reason="its place or its authority is none that there is",
        )
    return Event(
        process=process,
        sequence=seq,
        type=type,
        payload=body,
        key=None if key is not None and key.startswith(RESERVED) else key,
        at_ms=at_ms,
        ends=ends,
        output=made,
        authority=authority,
        wake=None if text is None else text.decode(),
        woken=None if work is None else Scope(session=wake_session, frame=wake_frame),
        work=work,
        acked_at_ms=acked_at_ms,
    )
