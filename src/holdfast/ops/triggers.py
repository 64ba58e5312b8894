"""The operations on triggers: subscriptions, what happens, and whom it is delivered to.

To ingest is two steps: what the deliveries are decided by is read, and they are written if that is
so still. Both are generators, so that another operation can ingest inside its own.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.contract.errors import Corrupt, OccurrenceUnknown, StoreBusy, SubscriptionMoved
from holdfast.contract.limits import MAX_INT, Limits
from holdfast.contract.records import Page
from holdfast.contract.triggers import (
    Ingested,
    Occurrence,
    PrunedOccurrences,
    Recorded,
    Subscribed,
    Subscription,
    TriggerDelivery,
)
from holdfast.core import trigger_places, triggers
from holdfast.core.triggers import ChangePlan
from holdfast.ops.op import ASK_AGAIN, Op, Step, Stmt, call, guarded, one

Row = tuple[Any, ...]


def _row(*row: Any) -> Row:
    return row


CHANGE = Stmt("triggers.change", _row, triggers.ChangeFacts)
GET: Stmt[Row, None] = Stmt("triggers.get", _row)
LISTS: dict[str, Stmt[Row, None]] = {
    "all": Stmt("triggers.list", _row),
    "session": Stmt("triggers.list_of_session", _row),
    "source": Stmt("triggers.list_of_source", _row),
}
RECORD = Stmt("triggers.record", int, _row)
MATCH: Stmt[Row, None] = Stmt("triggers.match", _row)
UNRESERVED: Stmt[Row, None] = Stmt("triggers.unreserved", _row)
UNSTARTED: Stmt[Row, None] = Stmt("triggers.unstarted", _row)
INGEST = Stmt("triggers.ingest", _row, int)
RESERVE = Stmt("triggers.reserve", _row, bool)
START: Stmt[Row, None] = Stmt("triggers.start", _row)
OCCURRENCE: Stmt[Row, None] = Stmt("triggers.occurrence", _row)
OCCURRENCES: dict[str, Stmt[Row, None]] = {
    "all": Stmt("triggers.occurrences", _row),
    "source": Stmt("triggers.occurrences_of_source", _row),
}
DELIVERIES: Stmt[Row, None] = Stmt("triggers.deliveries", _row)
RESERVED: Stmt[Row, None] = Stmt("triggers.reserved", _row)
PRUNE = Stmt("triggers.prune", _row, str)


def change(tenant: str, plan: ChangePlan) -> Op[Subscribed]:
    """Register, enable, disable or delete a subscription."""
    own = (plan.params["owner_session"], plan.params["owner_frame"])
    try:
        row = yield from guarded(CHANGE, triggers.explain_change(plan), plan.params)
        assert row is not None
        return triggers.subscribed_of(tenant, row)
    except SubscriptionMoved:
        # A damaged subscription is no conflict of the caller.
        yield from get(tenant, own, plan.key)
        raise
    except Corrupt as damage:
        # What is damaged is the receipt, when the subscription is not.
        if plan.operation is None or damage.table == "trigger_receipt":
            raise
        yield from get(tenant, own, plan.key)
        reason = f"the answer that it keeps is damaged: {damage.reason}"
        raise Corrupt(table="trigger_receipt", key=plan.operation, reason=reason) from damage


def get(tenant: str, owner: tuple[str, str], key: str) -> Op[Subscription | None]:
    """A subscription."""
    row = yield from one(GET, tenant=tenant, owner_session=owner[0], owner_frame=owner[1], key=key)
    return None if row is None else triggers.subscription_of(tenant, row)


def list_page(
    tenant: str, which: dict[str, Any], after: tuple[str, ...], limit: int
) -> Op[Page[Subscription]]:
    """A page of subscriptions, by whichever of their columns narrows it most."""
    kind = "all"
    if which["source_type"] is not None and which["source_key"] is not None:
        kind = "source"
    elif which["session"] is not None:
        kind = "session"
    rows = yield from call(
        LISTS[kind],
        **which,
        tenant=tenant,
        after_session=after[0],
        after_frame=after[1],
        after_key=after[2],
        limit=limit + 1,
    )
    shown = tuple(triggers.subscription_of(tenant, row) for row in rows[:limit])
    more = trigger_places.place_of(*rows[limit - 1][:3]) if len(rows) > limit else None
    return Page(items=shown, next=more)


# --- what happens


def record(plan: dict[str, Any]) -> Op[Recorded]:
    """Store what happened, and start nothing."""

    def there(row: Row) -> Occurrence | None:
        return None if row[0] is None else triggers.same_occurrence(plan, row)

    done = yield from guarded(RECORD, there, plan)
    if isinstance(done, Occurrence):
        return Recorded(recorded=False, occurrence=done)
    return Recorded(recorded=True, occurrence=triggers.planned_occurrence(plan, done))


def ingest(plan: dict[str, Any], limits: Limits) -> Op[Ingested]:
    """Store what happened, and start all that it starts."""
    tenant, occurrence = plan["tenant"], plan["occurrence"]
    looked_for = {name: plan[name] for name in ("tenant", "source_type", "source_key")}
    for _ in range(ASK_AGAIN):
        rows = yield from call(
            MATCH, **looked_for, occurrence_key=plan["key"], limit=limits.commit_rows + 1
        )
        if rows[0][1] is not None:
            found = triggers.same_occurrence(plan, rows[0][1:9])
            told = yield from _all_deliveries(tenant, occurrence)
            return Ingested(recorded=False, occurrence=found, deliveries=told)
        matched = subscribers(rows)
        triggers.check_fan_out(len(matched), limits)
        fan = triggers.fan_out(tenant, occurrence, plan["payload"], matched, limits)
        triggers.check_size(fan, limits)
        answer = yield Step(INGEST, {**plan, **fan.params(), "version": rows[0][0]})
        if not answer.refused:
            at_ms = answer.rows[0][0]
            return Ingested(
                recorded=True,
                occurrence=triggers.planned_occurrence(plan, at_ms),
                deliveries=triggers.ordered([row[1:] for row in answer.rows]),
            )
    # An occurrence that has this id and not this key is damaged, and says so when it is read.
    yield from get_occurrence(tenant, occurrence)
    raise StoreBusy(reason=f"the source has changed {ASK_AGAIN} times in a row")


def subscribers(rows: list[Row]) -> list[Row]:
    """The subscriptions of an answer, which has one row without any when there are none."""
    return [row[9:18] for row in rows if row[9] is not None]


def _all_deliveries(tenant: str, occurrence: str) -> Op[tuple[TriggerDelivery, ...]]:
    rows = yield from _deliveries(tenant, occurrence, ("",) * 4, MAX_INT)
    return triggers.ordered(rows)


def reserve(tenant: str, occurrence: str, limits: Limits) -> Op[tuple[TriggerDelivery, ...]]:
    """Reserve the deliveries of an occurrence that are new."""
    for _ in range(ASK_AGAIN):
        rows = yield from call(
            UNRESERVED, tenant=tenant, occurrence=occurrence, limit=limits.commit_rows + 1
        )
        if not rows:
            raise OccurrenceUnknown(occurrence=occurrence)
        matched = subscribers(rows)
        if not matched:
            return ()
        triggers.check_fan_out(len(matched), limits)
        params = {
            "tenant": tenant,
            "occurrence": occurrence,
            "source_type": rows[0][2],
            "source_key": rows[0][3],
            "version": rows[0][0],
            "deliveries": triggers.reservations(tenant, occurrence, matched),
        }
        answer = yield Step(RESERVE, params)
        if not answer.refused:
            return triggers.ordered([row[1:] for row in answer.rows])
    raise StoreBusy(reason=f"the source has changed {ASK_AGAIN} times in a row")


def start(tenant: str, occurrence: str, limits: Limits) -> Op[tuple[TriggerDelivery, ...]]:
    """Register the processes of what is reserved, as many at a time as one commit may have."""
    started: list[Row] = []
    while True:
        rows = yield from call(
            UNSTARTED, tenant=tenant, occurrence=occurrence, limit=limits.commit_rows
        )
        if not rows:
            raise OccurrenceUnknown(occurrence=occurrence)
        found = triggers.occurrence_of(tenant, rows[0][:8])
        unnamed = (None, None, None)
        waiting = [(*row[8:12], *unnamed, *row[13:15]) for row in rows if row[8] is not None]
        if not waiting:
            return triggers.ordered(started)
        fan = triggers.fan_out(tenant, occurrence, found.payload, waiting, limits)
        while fan.size > limits.commit_bytes and len(waiting) > 1:
            waiting = waiting[: len(waiting) // 2]
            fan = triggers.fan_out(tenant, occurrence, found.payload, waiting, limits)
        done = yield from call(START, tenant=tenant, occurrence=occurrence, **fan.params())
        started.extend(row[1:] for row in done)


# --- reading


def get_occurrence(tenant: str, occurrence: str) -> Op[Occurrence | None]:
    """An occurrence."""
    row = yield from one(OCCURRENCE, tenant=tenant, occurrence=occurrence)
    return None if row is None else triggers.occurrence_of(tenant, row)


def occurrences(
    tenant: str, which: dict[str, Any], after: tuple[int, str], limit: int
) -> Op[Page[Occurrence]]:
    """A page of occurrences, oldest first."""
    rows = yield from call(
        OCCURRENCES["all" if None in which.values() else "source"],
        **which,
        tenant=tenant,
        after_ms=after[0],
        after=after[1],
        limit=limit + 1,
    )
    shown = tuple(triggers.occurrence_of(tenant, row) for row in rows[:limit])
    more = f"{shown[-1].at_ms}.{shown[-1].occurrence}" if len(rows) > limit else None
    return Page(items=shown, next=more)


def _deliveries(tenant: str, occurrence: str, after: tuple[str, ...], limit: int) -> Op[list[Row]]:
    session, frame, key, subscription = after
    return (
        yield from call(
            DELIVERIES,
            tenant=tenant,
            occurrence=occurrence,
            after_session=session,
            after_frame=frame,
            after_key=key,
            after=subscription,
            limit=limit,
        )
    )


def deliveries(
    tenant: str, occurrence: str, after: tuple[str, ...], limit: int
) -> Op[Page[TriggerDelivery]]:
    """A page of the deliveries of an occurrence."""
    rows = yield from _deliveries(tenant, occurrence, after, limit + 1)
    if not rows and (yield from one(OCCURRENCE, tenant=tenant, occurrence=occurrence)) is None:
        raise OccurrenceUnknown(occurrence=occurrence)
    shown = tuple(triggers.delivery_of(row) for row in rows[:limit])
    more = trigger_places.place_of(*rows[limit - 1][1:5]) if len(rows) > limit else None
    return Page(items=shown, next=more)


def reserved(tenant: str, after: tuple[str, ...], limit: int) -> Op[Page[TriggerDelivery]]:
    """A page of the deliveries that wait for their process."""
    rows = yield from call(
        RESERVED,
        tenant=tenant,
        after_occurrence=after[0],
        after_session=after[1],
        after_frame=after[2],
        after_key=after[3],
        after=after[4],
        limit=limit + 1,
    )
    shown = tuple(triggers.delivery_of(row) for row in rows[:limit])
    more = trigger_places.place_of(*rows[limit - 1][:5]) if len(rows) > limit else None
    return Page(items=shown, next=more)


def prune(tenant: str, before_ms: int, limit: int) -> Op[PrunedOccurrences]:
    """Let go of occurrences that start nothing any more."""
    row = yield from guarded(
        PRUNE,
        lambda nothing: None,
        {"tenant": tenant, "before_ms": before_ms, "limit": limit},
    )
    assert row is not None
    return PrunedOccurrences(
        occurrences=tuple(msgspec.json.decode(row[0], type=list[str])),
        deliveries=row[1],
        more=bool(row[2]),
    )
