"""Decisions about triggers: what may be subscribed to, whom an occurrence is delivered to, and how.

The ids of an occurrence and of the process of a delivery are made of what they are about, so that
whoever asks again asks for the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from holdfast.contract.errors import (
    Corrupt,
    Invalid,
    OccurrenceConflict,
    OperationConflict,
    SessionDeleted,
    SubscriptionMoved,
    SubscriptionUnknown,
    TooLarge,
)
from holdfast.contract.limits import Limits
from holdfast.contract.processes import NewProcess, Scope
from holdfast.contract.records import Json
from holdfast.contract.triggers import (
    DeliveryState,
    NewOccurrence,
    NewSubscription,
    Occurrence,
    ProcessTemplate,
    Subscribed,
    Subscription,
    TriggerDelivery,
)
from holdfast.core.events import check_scope
from holdfast.core.payloads import check_id, check_int, check_text, encode
from holdfast.core.registrations import check_selector, plan_register
from holdfast.core.schemas import check_schema, offence
from holdfast.core.selectors import PointsAtNothing, select

VERSION = 1
# How much of what is kept of an intent proves the rest.
INTENT_SEAL = 8
Row = Sequence[Any]


class Definition(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What is kept of a subscription, as it was given; two are the same when this is."""

    version: int
    name: str
    source_type: str
    source_key: str
    schema: Json
    process: ProcessTemplate


DELIVERY_STATES: tuple[DeliveryState, ...] = get_args(DeliveryState)
# The columns of a process beside its id, in the order of its rows.
_PROCESS = (
    "kind", "definition", "recovery", "origin_session", "wake_session", "registration", "identity",
)  # fmt: skip

_pack = msgspec.msgpack.Encoder(order="deterministic").encode
_unpack = msgspec.msgpack.Decoder(Definition).decode
_json = msgspec.json.Encoder().encode
_value = msgspec.json.Decoder().decode


def _seal(*parts: Any) -> bytes:
    return hashlib.blake2b(_pack(parts), digest_size=16).digest()


def occurrence_id(source_type: str, source_key: str, key: str) -> str:
    """The id of what happened at a source, under a key."""
    return f"occurrence:{_seal(source_type, source_key, key).hex()}"


def process_id(occurrence: str, subscription: str) -> str:
    """The id of the process that an occurrence starts for a subscription."""
    return f"delivery:{_seal(occurrence, subscription).hex()}"


# --- owners


def owner_row(owner: Scope | None) -> tuple[str, str]:
    """An owner as its columns: both are empty for the host."""
    if owner is None:
        return "", ""
    check_scope("owner", owner)
    return owner.session, owner.frame or ""


def _owner_of(session: str, frame: str) -> Scope | None:
    return Scope(session=session, frame=frame or None) if session else None


def _shown(session: str, frame: str) -> str | None:
    return (f"{session}/{frame}" if frame else session) or None


# --- subscriptions


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """A checked change of a subscription, ready to be written."""

    owner: Scope | None
    key: str
    expected: int | None
    operation: str | None
    params: dict[str, Any]


def plan_subscription(
    new: NewSubscription,
    *,
    tenant: str,
    fresh: str,
    expected: int | None,
    operation: str | None,
    limits: Limits,
) -> ChangePlan:
    """A checked registration; a subscription that is made by it gets the fresh id."""
    name = check_text("name", new.name, limits.text_chars)
    encode("schema", new.schema, limits.payload_bytes)
    check_schema("schema", new.schema)
    if not isinstance(new.enabled, bool):
        raise Invalid(field="enabled", reason="it is True or False")
    _check_template(new.process, tenant, limits)
    definition = _pack(
        Definition(
            version=VERSION,
            name=name,
            source_type=check_id("source_type", new.source_type),
            source_key=check_id("source_key", new.source_key),
            schema=new.schema,
            process=new.process,
        )
    )
    if len(definition) > limits.commit_bytes:
        raise TooLarge(field="subscription", actual=len(definition), limit=limits.commit_bytes)
    registered = {
        "subscription": fresh,
        "name": name,
        "source_type": new.source_type,
        "source_key": new.source_key,
        "enabled": new.enabled,
        "definition": definition,
    }
    return _change("register", new.owner, new.key, tenant, expected, operation, registered)


def plan_change(
    verb: str,
    owner: Scope | None,
    key: str,
    *,
    tenant: str,
    expected: int | None,
    operation: str | None,
) -> ChangePlan:
    """A subscription that is to be enabled, disabled or deleted."""
    nothing = dict.fromkeys(
        ("subscription", "name", "source_type", "source_key", "enabled", "definition")
    )
    return _change(verb, owner, key, tenant, expected, operation, nothing)


def _change(
    verb: str,
    owner: Scope | None,
    key: str,
    tenant: str,
    expected: int | None,
    operation: str | None,
    registered: dict[str, Any],
) -> ChangePlan:
    session, frame = owner_row(owner)
    check_id("key", key)
    if expected is not None:
        check_int("expected", expected)
    if operation is not None:
        check_id("operation", operation)
    definition = registered["definition"]
    own = (tenant, session, frame, key)
    params = {
        **registered,
        "tenant": tenant,
        "verb": verb,
        "owner_session": session,
        "owner_frame": frame,
        "key": key,
        "expected": expected,
        "operation": operation,
        "intent": _sealed_intent(
            tenant, operation, _seal(verb, *own, expected, registered["enabled"], definition)
        ),
        "digest": None if definition is None else _seal(*own, definition),
    }
    return ChangePlan(owner, key, expected, operation, params)


def _sealed_intent(tenant: str, operation: str | None, intent: bytes) -> bytes:
    """An intent with what proves that it is the one that was stored for this operation."""
    return intent + _seal(tenant, operation, intent)[:INTENT_SEAL]


def _check_template(template: ProcessTemplate, tenant: str, limits: Limits) -> None:
    """A template is sound when a process can be registered from it."""
    if not isinstance(template, ProcessTemplate):
        raise Invalid(field="process", reason="a ProcessTemplate is wanted")
    if len(template.inputs) > limits.declared:
        raise TooLarge(field="process.inputs", actual=len(template.inputs), limit=limits.declared)
    for name, selector in template.inputs.items():
        check_id("process.inputs", name)
        check_selector(f"process.inputs.{name}", selector, limits)
    try:
        plan_register(_process_of(template, None), tenant=tenant, fresh="delivery", limits=limits)
    except (Invalid, TooLarge) as wrong:
        raise type(wrong)(**{**wrong.fields, "field": f"process.{wrong.field}"}) from None


def _process_of(template: ProcessTemplate, owner: Scope | None, **made: Any) -> NewProcess:
    return NewProcess(
        kind=template.kind,
        label=template.label,
        definition=template.definition,
        events=template.events,
        recovery=template.recovery,
        origin=owner,
        wake=template.wake,
        grants=template.grants,
        **made,
    )


def _definition_of(
    tenant: str, own: tuple[str, str, str], definition: bytes, digest: bytes
) -> Definition:
    """What was registered, verified."""
    if _seal(tenant, *own, definition) != digest:
        raise Corrupt(table="trigger_subscription", key="/".join(own), reason="its digest is wrong")
    try:
        kept = _unpack(definition)
    except msgspec.DecodeError as broken:
        raise Corrupt(
            table="trigger_subscription", key="/".join(own), reason="it cannot be read"
        ) from broken
    process = kept.process
    whole = msgspec.structs.replace(
        process, events=tuple(process.events), grants=tuple(process.grants)
    )
    return msgspec.structs.replace(kept, process=whole)


def _require_columns(
    own: tuple[str, str, str], kept: Definition, name: str, type: str, key: str
) -> None:
    if (kept.name, kept.source_type, kept.source_key) != (name, type, key):
        raise Corrupt(
            table="trigger_subscription",
            key="/".join(own),
            reason="its columns are not what was registered",
        )


def subscription_of(tenant: str, row: Row) -> Subscription:
    """A row of subscriptions, verified."""
    (
        session, frame, key, subscription, incarnation, revision, enabled, name, source_type,
        source_key, definition, digest, created_at_ms, updated_at_ms, deleted_at_ms,
    ) = row  # fmt: skip
    own = (session, frame, key)
    kept = _definition_of(tenant, own, bytes(definition), bytes(digest))
    _require_columns(own, kept, name, source_type, source_key)
    if incarnation < 1 or revision < 1:
        raise Corrupt(
            table="trigger_subscription", key="/".join(own), reason="a counter is less than one"
        )
    return Subscription(
        subscription=subscription,
        owner=_owner_of(session, frame),
        key=key,
        incarnation=incarnation,
        revision=revision,
        enabled=bool(enabled),
        name=name,
        source_type=source_type,
        source_key=source_key,
        schema=kept.schema,
        process=kept.process,
        created_at_ms=created_at_ms,
        updated_at_ms=updated_at_ms,
        deleted_at_ms=deleted_at_ms,
    )


def subscribed_of(tenant: str, row: Row) -> Subscribed:
    """The answer to a change: the subscription, behind what became of it."""
    return Subscribed(
        created=bool(row[0]), changed=bool(row[1]), subscription=subscription_of(tenant, row[2:])
    )


@dataclass(frozen=True, slots=True)
class ChangeFacts:
    """Why a subscription was not changed."""

    gone: bool
    known: bool
    deleted: bool
    revision: int | None
    intent: bytes | None


def explain_change(plan: ChangePlan) -> Callable[[ChangeFacts], None]:
    """A change that was refused; nothing is said when another moment may allow it."""
    registers = plan.params["verb"] == "register"
    owner = _shown(plan.params["owner_session"], plan.params["owner_frame"])

    def judge(facts: ChangeFacts) -> None:
        if registers and facts.gone:
            raise SessionDeleted(session=plan.params["owner_session"])
        if facts.intent is not None:
            stored = bytes(facts.intent)
            if stored == plan.params["intent"]:
                return
            of = plan.params["tenant"], plan.operation, stored[:-INTENT_SEAL]
            if stored != _sealed_intent(*of):
                raise Corrupt(
                    table="trigger_receipt",
                    key=plan.operation or "",
                    reason="its intent is not the one that was stored",
                )
            raise OperationConflict(operation=plan.operation or "")
        if not registers and (not facts.known or facts.deleted):
            raise SubscriptionUnknown(owner=owner, key=plan.key)
        actual = facts.revision or 0
        # To a registration that changes something, no revision is a wrong one too.
        free = not facts.known or facts.deleted or not registers
        if plan.expected != actual and not (free and plan.expected is None):
            raise SubscriptionMoved(
                owner=owner, key=plan.key, expected=plan.expected, actual=actual
            )

    return judge


# --- occurrences


def plan_occurrence(new: NewOccurrence, *, tenant: str, limits: Limits) -> dict[str, Any]:
    """A checked occurrence, as the parameters of the statements about it."""
    source_type = check_id("source_type", new.source_type)
    source_key = check_id("source_key", new.source_key)
    key = check_id("key", new.key)
    payload = encode("payload", new.payload, limits.payload_bytes)
    if isinstance(new.payload, bytes):
        try:
            _value(payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Invalid(field="payload", reason="it is not JSON") from None
    source = None if new.source is None else encode("source", new.source, limits.payload_bytes)
    occurrence = occurrence_id(source_type, source_key, key)
    own = (occurrence, source_type, source_key, key, payload, source)
    return {
        "tenant": tenant,
        "occurrence": occurrence,
        "source_type": source_type,
        "source_key": source_key,
        "key": key,
        "payload": payload,
        "source": source,
        "digest": _seal(tenant, *own),
    }


def occurrence_of(tenant: str, row: Row) -> Occurrence:
    """A row of occurrences, verified."""
    occurrence, source_type, source_key, key, payload, source, digest, at_ms = row
    own = (occurrence, source_type, source_key, key, bytes(payload))
    more = None if source is None else bytes(source)
    if _seal(tenant, *own, more) != bytes(digest):
        raise Corrupt(table="trigger_occurrence", key=occurrence, reason="its digest is wrong")
    return Occurrence(
        occurrence=occurrence,
        source_type=source_type,
        source_key=source_key,
        key=key,
        payload=bytes(payload),
        source=more,
        at_ms=at_ms,
    )


def planned_occurrence(plan: dict[str, Any], at_ms: int) -> Occurrence:
    """An occurrence that was stored just now."""
    fields = {name: value for name, value in plan.items() if name not in ("tenant", "digest")}
    return Occurrence(**fields, at_ms=at_ms)


def same_occurrence(plan: dict[str, Any], row: Row) -> Occurrence:
    """The occurrence that has the key already; another one is a conflict."""
    found = occurrence_of(plan["tenant"], row)
    if bytes(row[6]) != plan["digest"]:
        raise OccurrenceConflict(key=plan["key"])
    return found


# --- deliveries


def delivery_of(row: Row) -> TriggerDelivery:
    """A row of deliveries."""
    occurrence, session, frame, key, subscription, process, state, reason, at_ms = row
    wrong = ""
    if state not in DELIVERY_STATES or (reason is None) is (state == "rejected"):
        wrong = "its state is none that there is, or has no reason"
    elif process != process_id(occurrence, subscription):
        wrong = "its process is not that of its occurrence and its subscription"
    if wrong:
        named = "/".join((occurrence, session, frame, key))
        raise Corrupt(table="trigger_delivery", key=named, reason=wrong)
    return TriggerDelivery(
        occurrence=occurrence,
        subscription=subscription,
        owner=_owner_of(session, frame),
        key=key,
        process=process,
        state=state,
        reason=reason,
        at_ms=at_ms,
    )


def ordered(rows: Sequence[Row]) -> tuple[TriggerDelivery, ...]:
    """Deliveries in the order of owners and keys; a row of none is left out."""
    there = [row for row in rows if row[0] is not None]
    return tuple(delivery_of(row) for row in sorted(there, key=lambda row: tuple(row[1:5])))


@dataclass(frozen=True, slots=True)
class FanOut:
    """What an occurrence starts: the rows of deliveries, of processes and of their grants."""

    deliveries: list[tuple[Any, ...]]
    processes: list[tuple[Any, ...]]
    grants: list[tuple[Any, ...]]
    size: int

    def params(self) -> dict[str, Any]:
        """The rows in the order in which they are to be written."""
        return {
            "deliveries": sorted(self.deliveries, key=lambda row: row[:4]),
            "processes": sorted(self.processes, key=lambda row: str(row[0])),
            "grants": sorted(self.grants),
        }


def check_fan_out(count: int, limits: Limits) -> None:
    """Refuse to deliver one occurrence to more subscriptions than a handle may write rows for."""
    if count > limits.commit_rows:
        raise TooLarge(field="subscriptions", actual=count, limit=limits.commit_rows)


def check_size(fan: FanOut, limits: Limits) -> None:
    """Refuse to register more at once than a handle may write bytes."""
    if fan.size > limits.commit_bytes:
        raise TooLarge(field="processes", actual=fan.size, limit=limits.commit_bytes)


def fan_out(
    tenant: str, occurrence: str, payload: bytes, matched: Sequence[Row], limits: Limits
) -> FanOut:
    """The processes that an occurrence starts. Whom it cannot be delivered to is told why, and
    keeps it from nobody else. Each has the payload in it, so that what is more than a handle may
    write is not made to its end."""
    made = FanOut([], [], [], 0)
    size = 0
    value = _value(payload)
    for row in matched:
        process = process_id(occurrence, row[3])
        place = (*row[:4], process)
        owner = _owner_of(row[0], row[1])
        try:
            kept = _subscribed(tenant, row)
            new = _process_of(
                kept.process,
                owner,
                process=process,
                input=_input(kept, payload, value),
                cause=occurrence,
            )
            plan = plan_register(new, tenant=tenant, fresh=process, limits=limits)
        except (Corrupt, Invalid, TooLarge, _Rejected) as wrong:
            made.deliveries.append((*place, "rejected", str(wrong), None, None, None))
            continue
        told = plan.params
        size += len(told["registration"])
        made.deliveries.append((*place, "started", None, None, None, told["identity"]))
        made.processes.append((process, *(told[name] for name in _PROCESS)))
        made.grants.extend((at, fr, process, kind, label) for at, fr, kind, label in told["grants"])
        if size > limits.commit_bytes:
            break
    return FanOut(made.deliveries, made.processes, made.grants, size)


def reservations(tenant: str, occurrence: str, matched: Sequence[Row]) -> list[tuple[Any, ...]]:
    """The deliveries of an occurrence that are to be started later. What was registered of a
    subscription is kept with them; one that is damaged is told so now."""
    made: list[tuple[Any, ...]] = []
    for row in matched:
        place = (*row[:4], process_id(occurrence, row[3]))
        try:
            _subscribed(tenant, row)
        except Corrupt as damage:
            made.append((*place, "rejected", str(damage), None, None, None))
        else:
            made.append((*place, "reserved", None, *row[7:], None))
    return sorted(made, key=lambda row: row[:4])


def _subscribed(tenant: str, row: Row) -> Definition:
    """What is delivered to: what was registered, verified, and found by what it is for. What was
    reserved has no columns for that any more."""
    session, frame, key, _, name, source_type, source_key, definition, digest = row
    own = (session, frame, key)
    kept = _definition_of(tenant, own, bytes(definition), bytes(digest))
    if name is not None:
        _require_columns(own, kept, name, source_type, source_key)
    return kept


class _Rejected(Exception):
    """Why a payload is not delivered to a subscription."""


def _input(kept: Definition, payload: bytes, value: Any) -> bytes:
    """The input of a process, taken out of the payload."""
    if (wrong := offence("payload", kept.schema, value)) is not None:
        raise _Rejected(f"{wrong[0]}: {wrong[1]}")
    if not kept.process.inputs:
        return payload
    taken: dict[str, Any] = {}
    for name, selector in kept.process.inputs.items():
        try:
            taken[name] = select(value, selector)
        except PointsAtNothing as nothing:
            raise _Rejected(f"input {name!r}: {nothing.at!r} points at nothing") from None
    return _json(taken)
