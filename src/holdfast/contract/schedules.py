"""The records of schedules: when something is to happen again and again, and what became of it.

An instant is an integer of milliseconds since the epoch, and there is one of it: whatever the
clocks on the walls do, a schedule fires an instant once, or says why it was skipped.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from holdfast.contract.records import Json, Record

Missed = Literal["skip", "one", "all"]
SkipReason = Literal["missed", "capped", "paused", "replaced"]

MINUTE_MS = 60 * 1000

# --- when


class Cron(Record, frozen=True, kw_only=True, tag="cron"):
    """The minutes that a cron expression names, on the clocks of a zone.

    The five fields are minute, hour, day of the month, month and day of the week, with the names
    of months and days. Of a time that the clocks show twice, and of one that they skip, decides
    how the minute and the hour are written. When one of them begins with `*` the schedule goes by
    the minutes that pass: a time shown twice is two instants, a skipped one is none. When both are
    given as numbers it goes by the day: a time shown twice is the first of the two, and a skipped
    one is the moment at which the clocks go on. Times that come to the same moment are one instant.
    """

    expression: str
    zone: str = "UTC"


class Every(Record, frozen=True, kw_only=True, tag="every"):
    """Every `interval_ms`, counted from `anchor_ms` in both directions; no clock on a wall is
    asked. When it begins is a matter of the schedule."""

    interval_ms: int
    anchor_ms: int = 0


Timing: TypeAlias = Cron | Every

# --- what is registered


class NewSchedule(Record, frozen=True, kw_only=True):
    """A schedule to be registered.

    It has the instants of its timing from `start_ms` to `until_ms`, both of them included; without
    a start, those after its registration. A start in the past makes what has passed since a matter
    of `missed`.

    An instant is on time until it is `grace_ms` old, and on time it fires. An older one is missed,
    and `missed` says what then: "skip" fires none of them, "all" fires the latest `cap` of them,
    and "one" fires the latest when nothing is on time that stands for it.
    """

    schedule: str
    timing: Timing
    missed: Missed = "one"
    cap: int = 100
    grace_ms: int = MINUTE_MS
    payload: Json = None
    start_ms: int | None = None
    until_ms: int | None = None


# --- what is stored


class Schedule(Record, frozen=True, kw_only=True):
    """A schedule as it is stored.

    Every instant up to `decided_ms` has fired or was skipped, and none after it. `next_at_ms` is
    the first of those; there is none when it is paused or has come to its end. `revision` counts
    the changes made to it by hand, and `updated_at_ms` is when the last of them was. `fired`,
    `skipped` and `ran` count its instants and the times that it was run by hand.
    """

    schedule: str
    timing: Timing
    missed: Missed
    cap: int
    grace_ms: int
    payload: bytes
    start_ms: int | None
    until_ms: int | None
    revision: int
    created_at_ms: int
    updated_at_ms: int
    decided_ms: int
    next_at_ms: int | None
    last_at_ms: int | None = None
    paused_at_ms: int | None = None
    fired: int = 0
    skipped: int = 0
    ran: int = 0

    @property
    def paused(self) -> bool:
        """Whether nothing fires until it is resumed."""
        return self.paused_at_ms is not None

    def json(self) -> Json:
        """The payload, decoded as JSON."""
        return msgspec.json.decode(self.payload)


class Scheduled(Record, frozen=True, kw_only=True):
    """The answer to a registration: `created` is False when the schedule was there already, and
    `changed` True when it has become another one."""

    created: bool
    changed: bool = False
    schedule: Schedule


class Skipped(Record, frozen=True, kw_only=True):
    """A stretch of instants that did not fire: `count` of them, one after the other, from
    `first_ms` to `last_ms`, and why.

    "missed": they were too old, and the schedule does not make up for them. "capped": it does, but
    there were too many. "paused": they had not fired when it was paused, or came while it was.
    "replaced": they had not fired when its timing was replaced.
    """

    schedule: str
    first_ms: int
    last_ms: int
    count: int
    reason: SkipReason
    at_ms: int


class Fired(Record, frozen=True, kw_only=True):
    """An instant that fired: `occurrence` is the key of what happened. `late_ms` is how old the
    instant was."""

    schedule: str
    instant_ms: int
    occurrence: str
    late_ms: int


class Stuck(Record, frozen=True, kw_only=True):
    """A schedule that could not be decided here: the code of the error, and its text. Nothing of it
    was lost; it is due until somebody can."""

    schedule: str
    code: str
    reason: str


class Ticked(Record, frozen=True, kw_only=True):
    """What one tick did. `more` says whether there is more to be done already, and `next_at_ms`
    when there will be. `contended` schedules were decided or changed by somebody else meanwhile:
    nothing is said of when they are next. `stuck` ones hold up no other."""

    at_ms: int
    fired: tuple[Fired, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    contended: tuple[str, ...] = ()
    stuck: tuple[Stuck, ...] = ()
    more: bool = False
    next_at_ms: int | None = None


class RanNow(Record, frozen=True, kw_only=True):
    """The answer to a run by hand: `ran` is False when the same request was answered before. No
    instant of the schedule is touched by it."""

    ran: bool
    schedule: str
    occurrence: str
    at_ms: int
