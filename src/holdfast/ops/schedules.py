"""The operations on schedules: what is changed by hand, and the tick that decides what is due."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.contract.errors import (
    Corrupt,
    HoldfastError,
    Invalid,
    NotSupported,
    ScheduleUnknown,
    StoreBusy,
    TooLarge,
)
from holdfast.contract.limits import Limits
from holdfast.contract.records import Page
from holdfast.contract.schedules import Fired, RanNow, Schedule, Scheduled, Skipped, Stuck, Ticked
from holdfast.core import schedule_changes as changes
from holdfast.core import schedule_firing as firing
from holdfast.core import schedules
from holdfast.core.schedule_changes import BEFORE_ALL, Params, Seen
from holdfast.core.schedules import Decision
from holdfast.ops.op import ASK_AGAIN, Op, Step, Stmt, call, guarded, one
from holdfast.ops.triggers import MATCH, subscribers

Row = tuple[Any, ...]
Change = Callable[[Seen, int], Params | None]
# What is wrong with one schedule, and with no other one.
STUCK = (Corrupt, Invalid, NotSupported, TooLarge)


def _row(*row: Any) -> Row:
    return row


READ: Stmt[Row, None] = Stmt("schedules.read", _row)
LIST: Stmt[Row, None] = Stmt("schedules.list", _row)
SKIPS: Stmt[Row, None] = Stmt("schedules.skips", _row)
DUE: Stmt[Row, None] = Stmt("schedules.due", _row)
REGISTER = Stmt("schedules.register", bool, bool)
CHANGE = Stmt("schedules.change", bool, bool)
FIRE = Stmt("schedules.fire", int, firing.FireFacts)
DELETE: Stmt[int, None] = Stmt("schedules.delete", int)


def _moved(_: bool) -> bool:
    """A guard that refuses has seen another schedule than its caller: nothing else explains it."""
    return False


def _read(tenant: str, schedule: str) -> Op[tuple[int, Row | None]]:
    """What time it is, and the row of a schedule."""
    row = yield from one(READ, tenant=tenant, schedule=schedule)
    assert row is not None
    return row[0], row[1:] if row[1] is not None else None


def get(tenant: str, schedule: str) -> Op[Schedule | None]:
    """A schedule."""
    _, row = yield from _read(tenant, schedule)
    return None if row is None else schedules.schedule_of(tenant, row)


def list_page(tenant: str, after: str, limit: int) -> Op[Page[Schedule]]:
    """A page of the schedules."""
    rows = yield from call(LIST, tenant=tenant, after=after, limit=limit + 1)
    shown = tuple(schedules.schedule_of(tenant, row) for row in rows[:limit])
    return Page(items=shown, next=shown[-1].schedule if len(rows) > limit else None)


def next_instants(tenant: str, schedule: str, limit: int) -> Op[tuple[int, ...]]:
    """The next instants of a schedule."""
    now_ms, row = yield from _read(tenant, schedule)
    if row is None:
        raise ScheduleUnknown(schedule=schedule)
    plan = schedules.plan_of(schedules.schedule_of(tenant, row))
    return schedules.next_instants(plan, now_ms, limit)


def skipped(tenant: str, schedule: str, after: int, limit: int) -> Op[Page[Skipped]]:
    """A page of what was skipped of a schedule."""
    rows = yield from call(SKIPS, tenant=tenant, schedule=schedule, after=after, limit=limit + 1)
    if not rows and (yield from _read(tenant, schedule))[1] is None:
        raise ScheduleUnknown(schedule=schedule)
    shown = tuple(changes.skipped_of(row) for row in rows[:limit])
    return Page(items=shown, next=str(shown[-1].first_ms) if len(rows) > limit else None)


# --- by hand


def register(new: Params, expected: int | None) -> Op[Scheduled]:
    """Register a schedule, or make another one of it. The same definition changes nothing."""
    tenant, schedule = new["tenant"], new["schedule"]
    for _ in range(ASK_AGAIN):
        now_ms, row = yield from _read(tenant, schedule)
        if row is None:
            params, made = changes.registered(new, now_ms)
            if (yield from guarded(REGISTER, _moved, params)):
                return Scheduled(created=True, schedule=made)
            continue
        seen = changes.seen_of(tenant, row)
        change = changes.replaced(seen, new, expected, now_ms)
        if change is None:
            return Scheduled(created=False, schedule=seen.stored)
        if (yield from guarded(CHANGE, _moved, {**change, **seen.proof(tenant)})):
            made = changes.changed_schedule(seen.stored, change)
            return Scheduled(created=False, changed=True, schedule=made)
    raise _busy()


def change(tenant: str, schedule: str, wanted: Change) -> Op[Schedule]:
    """Change a schedule by hand; when there is nothing to change it is answered as it is."""
    for _ in range(ASK_AGAIN):
        now_ms, row = yield from _read(tenant, schedule)
        if row is None:
            raise ScheduleUnknown(schedule=schedule)
        seen = changes.seen_of(tenant, row)
        params = wanted(seen, now_ms)
        if params is None:
            return seen.stored
        if (yield from guarded(CHANGE, _moved, {**params, **seen.proof(tenant)})):
            return changes.changed_schedule(seen.stored, params)
    raise _busy()


def _busy() -> StoreBusy:
    return StoreBusy(reason=f"the schedule was changed {ASK_AGAIN} times in a row")


def delete(tenant: str, schedule: str) -> Op[bool]:
    """Remove a schedule. It is not read before, so that a damaged one can be removed."""
    return bool((yield from one(DELETE, tenant=tenant, schedule=schedule)))


def run_now(tenant: str, schedule: str, request: str, limits: Limits) -> Op[RanNow]:
    """Let a schedule happen now, once for each request."""
    key = schedules.run_key(schedule, request)
    for _ in range(ASK_AGAIN):
        now_ms, row = yield from _read(tenant, schedule)
        if row is None:
            raise ScheduleUnknown(schedule=schedule)
        seen = changes.seen_of(tenant, row)
        version, matched = yield from _subscribed(tenant, schedule, limits)
        params = firing.run(tenant, seen, request, matched, version, limits)
        answer = yield Step(FIRE, params)
        if not answer.refused:
            ran = bool(answer.rows[0][0])
            return RanNow(ran=ran, schedule=schedule, occurrence=key, at_ms=now_ms)
    raise _busy()


def _subscribed(tenant: str, schedule: str, limits: Limits) -> Op[tuple[int, list[Row]]]:
    """Whom a schedule is delivered to, and as of which version of it as a source."""
    rows = yield from call(
        MATCH,
        tenant=tenant,
        source_type=firing.SOURCE,
        source_key=schedule,
        occurrence_key="",
        limit=limits.commit_rows + 1,
    )
    return rows[0][0], subscribers(rows)


# --- by a tick


@dataclass(slots=True)
class _Tick:
    """What a tick has done so far, and how much more it may."""

    left: int
    limits: Limits
    at_ms: int | None = None
    later_ms: int | None = None
    more: bool = False
    fired: list[Fired] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    contended: list[str] = field(default_factory=list)
    stuck: list[Stuck] = field(default_factory=list)

    def stick(self, schedule: str, wrong: HoldfastError) -> None:
        """A schedule cannot be decided."""
        self.stuck.append(Stuck(schedule=schedule, code=wrong.code, reason=str(wrong)))

    def note(self, schedule: str, decision: Decision, now_ms: int) -> None:
        """A schedule was decided."""
        fired, skipped = schedules.told(schedule, decision, now_ms)
        self.fired += fired
        self.skipped += skipped
        # What fires nothing is work as well.
        self.left -= max(1, len(fired))
        self.more = self.more or decision.more
        after = decision.next_at_ms
        if after is not None and not decision.more:
            self.later_ms = after if self.later_ms is None else min(self.later_ms, after)

    def told(self) -> Ticked:
        """The answer."""
        assert self.at_ms is not None
        return Ticked(
            at_ms=self.at_ms,
            fired=tuple(self.fired),
            skipped=tuple(self.skipped),
            contended=tuple(self.contended),
            stuck=tuple(self.stuck),
            more=self.more,
            next_at_ms=self.later_ms,
        )


def tick(tenant: str, limit: int, limits: Limits) -> Op[Ticked]:
    """Decide what is due, longest due first, and share the limit out among the schedules: one that
    is far behind does not make the others late. What cannot be decided is stepped over."""
    found = _Tick(limit, limits)
    after_ms, after, full = BEFORE_ALL, "", True
    while full and found.left > 0:
        size = found.left
        rows = yield from call(
            DUE,
            tenant=tenant,
            upper_ms=found.at_ms,
            after_ms=after_ms,
            after=after,
            limit=size + 1,
        )
        if found.at_ms is None:
            found.at_ms, found.later_ms = rows[0][:2]
        rows = [row[2:] for row in rows if row[3] is not None]
        full = len(rows) > size
        rows = rows[:size]
        for at, row in enumerate(rows):
            share = max(1, found.left // (len(rows) - at))
            yield from _decide(tenant, row[0], row[1:], share, found)
        if rows:
            after_ms, after = rows[-1][14], rows[-1][1]
    found.more = found.more or full
    return found.told()


def _decide(tenant: str, version: int | None, row: Row, share: int, found: _Tick) -> Op[None]:
    """Decide one schedule, at most `share` of what it fires. Nobody has ever subscribed to one that
    has no version."""
    schedule, now_ms, limits = row[0], found.at_ms, found.limits
    assert now_ms is not None
    try:
        seen = changes.seen_of(tenant, row)
        decision = schedules.due(schedules.plan_of(seen.stored), now_ms, share)
        for _ in range(ASK_AGAIN):
            matched: list[Row] = []
            if decision.fire and version is not None:
                version, matched = yield from _subscribed(tenant, schedule, limits)
            decision, params = firing.fitting(
                tenant, seen, decision, now_ms, matched, version or 0, limits
            )
            answer = yield Step(FIRE, params)
            if not answer.refused:
                found.note(schedule, decision, now_ms)
                return
            version = firing.FireFacts(*answer.rows[0]).resubscribed(params)
            if version is None:
                break
    except STUCK as wrong:
        found.stick(schedule, wrong)
    else:
        found.contended.append(schedule)
