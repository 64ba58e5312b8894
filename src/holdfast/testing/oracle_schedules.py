"""The oracle's schedules: which instants there are, which of them fire, and why the others do not.

Instants are counted out one after the other, those of a cron expression by looking at every minute;
of cron it understands the few expressions that the machine uses. What fires happens through the
oracle's triggers. Where the contract leaves a choice, the oracle takes the one the stores took.

What is due depends on what time it is for a store, so the oracle is told that time, and judges
whether it can be: it is as far from the oracle's own as `strays_ms` at most, and never goes back.
Of what a tick decides each schedule is decided by itself, and time goes on between them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.contract.errors import Invalid, ScheduleMoved, ScheduleUnknown
from holdfast.contract.limits import MAX_CATCH_UP
from holdfast.contract.records import Page
from holdfast.contract.schedules import (
    Cron,
    Fired,
    NewSchedule,
    RanNow,
    Schedule,
    Scheduled,
    Skipped,
    SkipReason,
    Ticked,
    Timing,
)
from holdfast.contract.triggers import NewOccurrence
from holdfast.testing.oracle_lanes import OracleLanes
from holdfast.testing.oracle_payloads import encoded
from holdfast.testing.oracle_rows import page_of
from holdfast.testing.oracle_triggers import OracleTriggers
from holdfast.testing.oracle_turns import require_id

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
DAY_MINUTES = 24 * 60

# Of each expression, at which minutes of the day of UTC it is true.
CRONS: dict[str, frozenset[int]] = {
    "* * * * *": frozenset(range(DAY_MINUTES)),
    "*/5 * * * *": frozenset(minute for minute in range(DAY_MINUTES) if minute % 5 == 0),
    "0 9 * * *": frozenset({9 * 60}),
    "30 1,13 * * *": frozenset({60 + 30, 13 * 60 + 30}),
}


def after(timing: Timing, begin_ms: int) -> Iterator[int]:
    """The instants after a time, in order and without an end."""
    if isinstance(timing, Cron):
        minutes = CRONS[timing.expression]
        minute = begin_ms // MINUTE_MS + 1
        while True:
            if minute % DAY_MINUTES in minutes:
                yield minute * MINUTE_MS
            minute += 1
    instant = timing.anchor_ms
    instant += (begin_ms - instant) // timing.interval_ms * timing.interval_ms
    while True:
        instant += timing.interval_ms
        yield instant


def between(timing: Timing, begin_ms: int, end_ms: int) -> list[int]:
    """The instants after one time and up to another."""
    found: list[int] = []
    if begin_ms < end_ms:
        for instant in after(timing, begin_ms):
            if instant > end_ms:
                break
            found.append(instant)
    return found


@dataclass(eq=False, slots=True)
class StoredSchedule:
    """A schedule as it was registered last, and what has become of its instants."""

    new: NewSchedule
    created_at_ms: int
    updated_at_ms: int
    decided_ms: int
    revision: int = 1
    last_at_ms: int | None = None
    paused_at_ms: int | None = None
    fired: int = 0
    ran: int = 0
    skips: list[Skipped] = field(default_factory=list)

    def undecided(self, upto_ms: int) -> list[int]:
        """The instants up to a time of which nobody has said what becomes of them."""
        until = self.new.until_ms
        end = upto_ms if until is None else min(upto_ms, until)
        return between(self.new.timing, self.decided_ms, end)

    def next_at_ms(self) -> int | None:
        """The first of them; none while it is paused, and none after the end."""
        if self.paused_at_ms is not None:
            return None
        first = next(after(self.new.timing, self.decided_ms))
        until = self.new.until_ms
        return first if until is None or first <= until else None

    def pass_over(self, instants: list[int], reason: SkipReason, now_ms: int) -> Skipped | None:
        """Tell that some instants do not fire, and why."""
        if not instants:
            return None
        skipped = Skipped(
            schedule=self.new.schedule,
            first_ms=instants[0],
            last_ms=instants[-1],
            count=len(instants),
            reason=reason,
            at_ms=now_ms,
        )
        self.skips.append(skipped)
        self.decided_ms = instants[-1]
        return skipped

    def record(self) -> Schedule:
        new = self.new
        return Schedule(
            schedule=new.schedule,
            timing=new.timing,
            missed=new.missed,
            cap=new.cap,
            grace_ms=new.grace_ms,
            payload=encoded(new.payload),
            start_ms=new.start_ms,
            until_ms=new.until_ms,
            revision=self.revision,
            created_at_ms=self.created_at_ms,
            updated_at_ms=self.updated_at_ms,
            decided_ms=self.decided_ms,
            next_at_ms=self.next_at_ms(),
            last_at_ms=self.last_at_ms,
            paused_at_ms=self.paused_at_ms,
            fired=self.fired,
            skipped=sum(skipped.count for skipped in self.skips),
            ran=self.ran,
        )


class OracleSchedules:
    """The schedules of one tenant. The methods are those of the facade."""

    def __init__(self, lanes: OracleLanes, triggers: OracleTriggers) -> None:
        self._lanes = lanes
        self._triggers = triggers
        self._schedules: dict[str, StoredSchedule] = {}
        self._latest_ms = 0
        self.strays_ms = 0
        self.goes_on: Callable[[], None] = _nothing
        self.told: Any = None

    def _now(self) -> int:
        """What time it is for the store, as far as that can be believed."""
        own, told = self._lanes._clock(), self.told
        said = own
        match told:
            case Ticked() | RanNow():
                said = told.at_ms
            case Schedule():
                said = told.updated_at_ms
            case Scheduled():
                said = told.schedule.updated_at_ms
        if abs(said - own) > self.strays_ms or said < self._latest_ms:
            return own
        self._latest_ms = said
        return said

    def _found(self, schedule: str) -> StoredSchedule:
        require_id("schedule", schedule)
        found = self._schedules.get(schedule)
        if found is None:
            raise ScheduleUnknown(schedule=schedule)
        return found

    # --- by hand

    def register(self, schedule: NewSchedule, *, expected: int | None = None) -> Scheduled:
        new = _kept(schedule)
        if expected is not None and expected < 1:
            raise Invalid(field="expected", reason="no revision")
        found = self._schedules.get(new.schedule)
        if found is None:
            now = self._now()
            decided = now if new.start_ms is None else new.start_ms - 1
            found = self._schedules[new.schedule] = StoredSchedule(new, now, now, decided)
            return Scheduled(created=True, schedule=found.record())
        old = found.new
        if encoded(old) == encoded(new):
            return Scheduled(created=False, schedule=found.record())
        if expected != found.revision:
            raise ScheduleMoved(schedule=new.schedule, expected=expected, actual=found.revision)
        now = self._now()
        if (old.timing, old.start_ms, old.until_ms) != (new.timing, new.start_ms, new.until_ms):
            found.pass_over(found.undecided(now), "replaced", now)
            found.decided_ms = max(found.decided_ms, now)
            if new.start_ms is not None:
                found.decided_ms = max(found.decided_ms, new.start_ms - 1)
        found.new = new
        found.revision += 1
        found.updated_at_ms = now
        return Scheduled(created=False, changed=True, schedule=found.record())

    def pause(self, schedule: str) -> Schedule:
        found = self._found(schedule)
        if found.paused_at_ms is None:
            found.paused_at_ms = found.updated_at_ms = self._now()
            found.revision += 1
        return found.record()

    def resume(self, schedule: str) -> Schedule:
        found = self._found(schedule)
        if found.paused_at_ms is not None:
            now = found.updated_at_ms = self._now()
            found.pass_over(found.undecided(now), "paused", now)
            found.decided_ms = max(found.decided_ms, now)
            found.paused_at_ms = None
            found.revision += 1
        return found.record()

    def delete(self, schedule: str) -> bool:
        require_id("schedule", schedule)
        return self._schedules.pop(schedule, None) is not None

    def run_now(self, schedule: str, request: str) -> RanNow:
        require_id("request", request)
        found = self._found(schedule)
        key = run_name(schedule, request)
        ran = self._happens(found, key, None, request)
        found.ran += ran
        return RanNow(ran=ran, schedule=schedule, occurrence=key, at_ms=self._now())

    def _happens(
        self, found: StoredSchedule, key: str, instant_ms: int | None, request: str | None
    ) -> bool:
        """Let it happen, unless something has happened under its key."""
        if self._triggers.has_happened(key):
            return False
        said = {
            "schedule": found.new.schedule,
            "instant_ms": instant_ms,
            "request": request,
            "payload": found.new.payload,
        }
        self._triggers.ingest(
            NewOccurrence(
                source_type="schedule",
                source_key=found.new.schedule,
                key=key,
                payload=encoded(said),
            )
        )
        return True

    # --- by a tick

    def tick(self, *, limit: int = 100) -> Ticked:
        now = self._now()
        ahead = {name: found.next_at_ms() for name, found in self._schedules.items()}
        due = sorted((at, name) for name, at in ahead.items() if at is not None and at <= now)
        later = [at for at in ahead.values() if at is not None and at > now]
        fired: list[Fired] = []
        skipped: list[Skipped] = []
        more, left = len(due) > limit, limit
        for place, (_, name) in enumerate(due[:limit]):
            if place > 0:
                self.goes_on()
            found = self._schedules[name]
            share = max(1, left // (len(due[:limit]) - place))
            firing, passed = self._decide(found, now)
            fired += [self._fire(found, instant, now) for instant in firing[:share]]
            skipped += [] if passed is None else [passed]
            left -= max(1, len(firing[:share]))
            comes = found.next_at_ms()
            if len(firing) > share:
                more = True
            elif comes is not None:
                later.append(comes)
        return Ticked(
            at_ms=now,
            fired=tuple(fired),
            skipped=tuple(skipped),
            more=more,
            next_at_ms=min(later, default=None),
        )

    def _decide(self, found: StoredSchedule, now: int) -> tuple[list[int], Skipped | None]:
        """What has come and fires, when what is too old for that was skipped."""
        new, come = found.new, found.undecided(now)
        on_time = [instant for instant in come if now - instant <= new.grace_ms]
        old = come[: len(come) - len(on_time)]
        made_up = 0
        if new.missed == "all":
            made_up = new.cap
        elif new.missed == "one" and not on_time:
            made_up = 1
        kept = old[max(0, len(old) - made_up) :]
        gone = old[: len(old) - len(kept)]
        passed = found.pass_over(gone, "capped" if new.missed == "all" else "missed", now)
        return kept + on_time, passed

    def _fire(self, found: StoredSchedule, instant: int, now: int) -> Fired:
        name = found.new.schedule
        key = f"schedule:{instant}:{name}"
        self._happens(found, key, instant, None)
        found.decided_ms = found.last_at_ms = instant
        found.fired += 1
        return Fired(schedule=name, instant_ms=instant, occurrence=key, late_ms=now - instant)

    # --- reading

    def get(self, schedule: str) -> Schedule | None:
        found = self._schedules.get(schedule)
        return None if found is None else found.record()

    def list(self, *, after: str | None = None, limit: int = 100) -> Page[Schedule]:
        there = [found.record() for _, found in sorted(self._schedules.items())]
        return page_of(there, after, limit)

    def skipped(
        self, schedule: str, *, after: str | None = None, limit: int = 100
    ) -> Page[Skipped]:
        return page_of(self._found(schedule).skips, after, limit)

    def next(self, schedule: str, *, limit: int = 10) -> tuple[int, ...]:
        """What time it was for the store is not told: it was the latest at which it would say this,
        if that can be."""
        found = self._found(schedule)
        own = self._lanes._clock()
        now = max(own - self.strays_ms, self._latest_ms)
        if isinstance(self.told, tuple) and self.told:
            now = max(now, min(self.told[0] - 1, own + self.strays_ms))
        begin, until = max(now, found.decided_ms), found.new.until_ms
        coming: list[int] = []
        for instant in after(found.new.timing, begin):
            if len(coming) == limit or (until is not None and instant > until):
                break
            coming.append(instant)
        return tuple(coming)

    def named(self) -> tuple[str, ...]:
        """The ids of the schedules."""
        return tuple(self._schedules)

    def revision(self, schedule: str) -> int:
        """The revision of a schedule; 0 when there is none."""
        found = self._schedules.get(schedule)
        return 0 if found is None else found.revision


def _nothing() -> None:
    """No time goes by."""


def _kept(new: NewSchedule) -> NewSchedule:
    """A schedule that can be registered, as it is answered again."""
    require_id("schedule", new.schedule)
    if not 1 <= new.cap <= MAX_CATCH_UP:
        raise Invalid(field="cap", reason="out of range")
    timing = new.timing
    if isinstance(timing, Cron):
        timing = Cron(expression=" ".join(timing.expression.split()), zone=timing.zone)
        if timing.expression not in CRONS:
            raise Invalid(field="timing.expression", reason="not one of those")
    elif timing.interval_ms < SECOND_MS:
        raise Invalid(field="timing.interval_ms", reason="too short")
    start, until = new.start_ms, new.until_ms
    if start is not None and until is not None and not between(timing, start - 1, until):
        raise Invalid(field="until_ms", reason="no instant between")
    return msgspec.structs.replace(new, timing=timing)


def run_name(schedule: str, request: str) -> str:
    """The key under which a run by hand happens: the same for the same request."""
    said = f"{schedule}\0{request}".encode()
    return f"schedule-run:{hashlib.blake2b(said, digest_size=16).hexdigest()}"
