"""The operations on processes: registering, their log, their end, and reading them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec

from holdfast.contract.errors import (
    Corrupt,
    ProcessConflict,
    ProcessPruned,
    ProcessUnknown,
    Refused,
    StoreBusy,
)
from holdfast.contract.processes import (
    Appended,
    Change,
    Changes,
    Event,
    Process,
    PrunedProcesses,
    Registered,
)
from holdfast.contract.records import Page
from holdfast.core import events, processes
from holdfast.core.events import EventPlan
from holdfast.core.processes import Declared
from holdfast.core.registrations import ProcessPlan, RegisterFacts, explain_register
from holdfast.ops.op import ASK_AGAIN, Op, Step, Stmt, call, guarded, one

Row = tuple[Any, ...]
Plan = Callable[[Declared], EventPlan]
# How many processes a handle remembers what they have declared of.
REMEMBERED = 10_000
# Where the rows of a log have the number of an event, and its number among those of its type.
SEQUENCE, ORDINAL = 1, 3


def _row(*row: Any) -> Row:
    return row


REGISTER = Stmt("processes.register", _row, RegisterFacts)
DECLARED: Stmt[Row, None] = Stmt("processes.declared", _row)
GET: Stmt[Row, None] = Stmt("processes.get", _row)
LISTS: dict[str, Stmt[Row, None]] = {
    "state": Stmt("processes.list_in_state", _row),
    "states": Stmt("processes.list", _row),
    "origin": Stmt("processes.list_of_origin", _row),
    "parent": Stmt("processes.list_of_parent", _row),
}
APPEND = Stmt("processes.append", _row, processes.AppendFacts)
LOG: Stmt[Row, None] = Stmt("processes.log", _row)
LOG_OF_TYPE: Stmt[Row, None] = Stmt("processes.log_of_type", _row)
RECENT: Stmt[Row, None] = Stmt("processes.recent", _row)
WAKES: Stmt[Row, None] = Stmt("processes.wakes", _row)
COUNT: Stmt[tuple[bool, int], None] = Stmt("processes.count", lambda gone, n: (bool(gone), n))
ACK = Stmt("processes.ack", bool, processes.ProcessFacts)
CHANGES: Stmt[Row, None] = Stmt("processes.changes", _row)
PRUNE = Stmt("processes.prune", _row, str)


def register(plan: ProcessPlan) -> Op[Registered]:
    """Register a process; one that is there already is answered as it is now."""
    tenant = plan.params["tenant"]
    for _ in range(ASK_AGAIN):
        try:
            done = yield from guarded(REGISTER, explain_register(plan), plan.params)
        except ProcessConflict:
            # A damaged registration is no conflict of the caller.
            yield from declared(tenant, plan.process)
            raise
        if not isinstance(done, bool):
            made = processes.registered_process(
                plan.process, plan.kept, plan.declared.identity, done[0]
            )
            if done[1]:
                made = msgspec.structs.replace(made, wake=None)
            return Registered(created=True, process=made)
        found = yield from get(tenant, plan.process)
        if found is not None:
            return Registered(created=False, process=found)
    raise StoreBusy(reason=f"the process was pruned {ASK_AGAIN} times in a row")


def get(tenant: str, process: str) -> Op[Process | None]:
    """The record of a process."""
    row = yield from one(GET, tenant=tenant, process=process)
    return None if row is None else processes.process_of(tenant, row)


def list_page(tenant: str, which: dict[str, Any], after: str, limit: int) -> Op[Page[Process]]:
    """A page of processes, by whichever of their columns narrows it most."""
    params = {**which, "tenant": tenant, "after": after, "limit": limit + 1}
    if which["session"] is not None:
        kind = "origin"
    elif which["parent"] is not None:
        kind = "parent"
    elif len(which["states"]) == 1:
        kind, params["state"] = "state", which["states"][0][0]
    else:
        kind = "states"
    rows = yield from call(LISTS[kind], **params)
    shown = tuple(processes.process_of(tenant, row) for row in rows[:limit])
    return Page(items=shown, next=shown[-1].process if len(rows) > limit else None)


# --- the log


def declared(tenant: str, process: str) -> Op[Declared]:
    """What a process was registered as."""
    row = yield from one(DECLARED, tenant=tenant, process=process)
    if row is None:
        raise ProcessUnknown(process=process)
    if row[2]:
        raise ProcessPruned(process=process)
    identity = bytes(row[0])
    kept = processes.registration_of(tenant, process, identity, bytes(row[1]))
    return processes.declared_of(identity, kept)


def append(tenant: str, process: str, known: dict[str, Declared], plan: Plan, work: str) -> Op[Row]:
    """Append an event. `known` remembers what processes have declared, which never changes: but a
    registration may have been undone with the transaction of whoever made it, and a process pruned.
    So what is remembered is compared where the event is written, and refuses nothing by itself."""
    for _ in range(ASK_AGAIN):
        found = remembered = known.get(process)
        if found is None:
            if len(known) >= REMEMBERED:
                known.clear()
            found = known[process] = yield from declared(tenant, process)
        try:
            event = events.named_once(plan(found), work)
        except Refused:
            if remembered is None:
                raise
            known.pop(process, None)
            continue
        params = {**event.params(tenant, work, found.parent), "identity": found.identity}
        answer = yield Step(APPEND, params)
        if not answer.refused:
            row: Row = tuple(answer.rows[0])
            return row
        facts = processes.AppendFacts(*answer.rows[0])
        if facts.known and not facts.pruned and not facts.identity_ok:
            known.pop(process, None)
            continue
        processes.explain_append(tenant, event)(facts)
    raise StoreBusy(reason=f"processes.append met rivals {ASK_AGAIN} times in a row")


def append_event(
    tenant: str, process: str, known: dict[str, Declared], plan: Plan, work: str
) -> Op[Appended]:
    """Append an event, and answer it."""
    row = yield from append(tenant, process, known, plan, work)
    return events.appended_of(tenant, row)


def append_record(
    tenant: str, process: str, known: dict[str, Declared], plan: Plan, work: str
) -> Op[Process]:
    """Append an event, and answer the process."""
    yield from append(tenant, process, known, plan, work)
    found = yield from get(tenant, process)
    if found is None:
        raise ProcessPruned(process=process)
    return found


def require(tenant: str, process: str) -> Op[None]:
    """Raise when there is no such process. Asked only where a log has nothing to show."""
    row = yield from one(DECLARED, tenant=tenant, process=process)
    if row is None:
        raise ProcessUnknown(process=process)
    if row[2]:
        raise ProcessPruned(process=process)


def _log_page(
    tenant: str, process: str, rows: list[Row], limit: int, counted: int = SEQUENCE
) -> Op[Page[Event]]:
    """A page of rows of a log, of which one column counts up by one."""
    if not rows:
        yield from require(tenant, process)
    for earlier, later in pairwise(rows):
        if counted and later[counted] != earlier[counted] + 1:
            raise _missing(process, earlier[SEQUENCE] + 1)
    shown = tuple(events.event_of(tenant, row) for row in rows[:limit])
    return Page(items=shown, next=str(shown[-1].sequence) if len(rows) > limit else None)


def _missing(process: str, sequence: int) -> Corrupt:
    return Corrupt(
        table="process_event", key=f"{process}/{sequence}", reason="the log is not dense here"
    )


def log(tenant: str, process: str, type: str | None, after: int, limit: int) -> Op[Page[Event]]:
    """A page of the log."""
    params = {"tenant": tenant, "process": process, "after": after, "limit": limit + 1}
    if type is not None:
        rows = yield from call(LOG_OF_TYPE, **params, type=type)
        return (yield from _log_page(tenant, process, rows, limit, ORDINAL))
    rows = yield from call(LOG, **params)
    if rows and rows[0][SEQUENCE] != after + 1:
        raise _missing(process, after + 1)
    return (yield from _log_page(tenant, process, rows, limit))


def recent(tenant: str, process: str, limit: int) -> Op[tuple[Event, ...]]:
    """The last events of the log, in order."""
    rows = yield from call(RECENT, tenant=tenant, process=process, limit=limit)
    page = yield from _log_page(tenant, process, rows[::-1], limit)
    return page.items


def count(tenant: str, process: str, type: str, through: int) -> Op[int]:
    """How many events of a type there are up to a sequence."""
    found = yield from one(COUNT, tenant=tenant, process=process, type=type, through=through)
    if found is None:
        raise ProcessUnknown(process=process)
    if found[0]:
        raise ProcessPruned(process=process)
    return found[1]


def wakes(tenant: str, process: str, after: int, limit: int) -> Op[Page[Event]]:
    """A page of the events whose wakes were not seen to."""
    rows = yield from call(WAKES, tenant=tenant, process=process, after=after, limit=limit + 1)
    return (yield from _log_page(tenant, process, rows, limit, counted=0))


def ack(tenant: str, process: str, sequence: int) -> Op[bool]:
    """Say that the wake of an event was seen to."""
    params = {"tenant": tenant, "process": process, "seq": sequence}
    return bool((yield from guarded(ACK, processes.explain_missing(process), params)))


# --- the feed, and letting go


def changes(tenant: str, after: int, limit: int) -> Op[Changes]:
    """A page of the feed of changes."""
    rows = yield from call(CHANGES, tenant=tenant, after=after, limit=limit + 1)
    items = tuple(
        Change(process=row[1], record=None if row[2] else processes.process_of(tenant, row[3:]))
        for row in rows[:limit]
    )
    last = rows[len(items) - 1][0] if items else after
    return Changes(items=items, next=str(last), more=len(rows) > limit)


def prune(tenant: str, before_ms: int, limit: int) -> Op[PrunedProcesses]:
    """Let go of processes that ended before a time."""
    row = yield from guarded(
        PRUNE,
        lambda nothing: None,
        {"tenant": tenant, "before_ms": before_ms, "limit": limit},
    )
    assert row is not None
    return PrunedProcesses(
        processes=tuple(msgspec.json.decode(row[0], type=list[str])),
        events=row[1],
        grants=row[2],
        more=bool(row[3]),
    )
