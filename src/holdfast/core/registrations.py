"""Decisions about registrations: what may be registered, and what a refused one was about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from holdfast.contract.errors import (
    Invalid,
    ProcessConflict,
    ProcessPruned,
    SessionDeleted,
    TooLarge,
)
from holdfast.contract.limits import Limits
from holdfast.contract.processes import (
    Const,
    EventType,
    NewGrant,
    NewProcess,
    Pointer,
    Present,
    Recovery,
    Selector,
    Template,
    WakeRule,
    Whole,
)
from holdfast.core.events import (
    ENDS,
    RESERVED,
    check_scope,
)
from holdfast.core.payloads import check_id, check_text, encode
from holdfast.core.processes import (
    COLUMNS,
    VERSION,
    Declared,
    ProcessFacts,
    Registration,
    columns_of,
    declared_of,
    decode_registration,
    encode_registration,
    process_identity,
    scope_row,
)
from holdfast.core.schemas import check_schema
from holdfast.core.selectors import pointer_parts


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
    registration = _encoded(kept)
    if len(registration) > limits.commit_bytes:
        raise TooLarge(field="process", actual=len(registration), limit=limits.commit_bytes)
    identity = process_identity(tenant, process, registration)
    params = {
        "tenant": tenant,
        "process": process,
        **dict(zip(COLUMNS, columns_of(kept), strict=True)),
        "registration": registration,
        "identity": identity,
        "grants": _checked_grants(new, limits),
    }
    return ProcessPlan(process, kept, declared_of(identity, kept), params)


def _encoded(kept: Registration) -> bytes:
    """What is kept of a registration. What could not be read again is refused, because every
    listing would meet it."""
    try:
        registration = encode_registration(kept)
        decode_registration(registration)
    except (TypeError, msgspec.ValidationError) as wrong:
        raise Invalid(field="process", reason=str(wrong)) from None
    return registration


def _check_list(field: str, values: object, kind: type) -> None:
    if not isinstance(values, list | tuple):
        raise Invalid(field=field, reason=f"a list is wanted, not {type(values).__name__}")
    for at, value in enumerate(values):
        _check_kind(f"{field}[{at}]", value, kind)


def _check_kind(field: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        wrong = f"{kind.__name__} is wanted, not {type(value).__name__}"
        raise Invalid(field=field, reason=wrong)


def _checked_grants(new: NewProcess, limits: Limits) -> list[tuple[str, str, str, str]]:
    _check_list("grants", new.grants, NewGrant)
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


def _checked_types(types: Sequence[EventType], limits: Limits) -> tuple[EventType, ...]:
    _check_list("events", types, EventType)
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
            _check_kind(f"{field}.wakes", kind.wakes, WakeRule)
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
            _check_json(f"{field}.value", value, object, limits)
        case Template(text=text, fields=fields):
            _check_json(f"{field}.text", text, str, limits)
            if not isinstance(fields, Mapping):
                raise Invalid(field=f"{field}.fields", reason="selectors by their names are wanted")
            named: Mapping[str, object] = fields
            for name, inner in named.items():
                if not isinstance(inner, Whole | Pointer | Const):
                    wrong = "it is the payload, a pointer or a constant"
                    raise Invalid(field=f"{field}.fields.{name}", reason=wrong)
                check_selector(f"{field}.fields.{name}", inner, limits)
        case _:
            raise Invalid(field=field, reason="this is no selector")


def _check_json(field: str, value: object, kind: type, limits: Limits) -> None:
    if isinstance(value, bytes) or not isinstance(value, kind):
        raise Invalid(field=field, reason=f"{type(value).__name__} has no place here")
    encode(field, value, limits.payload_bytes)


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
