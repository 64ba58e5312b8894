"""Cron: which instants an expression names in a zone. Pure: the zones are data, nobody's clock.

An expression is read by the parser of the extra `schedules`, which knows Debian's fields. Walking
through time is done here, because it must hold in every zone and at any place to begin with: the
time line is cut into days of UTC, and the instants of a day follow from nothing but the
expression, the zone and the day. In a day in which the clocks are left alone they are found by
adding; in the few others each wall time is asked for by itself. No zone changes its clocks twice
in a day, there and back.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from holdfast.contract.errors import Invalid, NotSupported
from holdfast.contract.limits import MAX_CRON_CHARS, MAX_TIME_MS

if TYPE_CHECKING:
    from cronsim import CronSim

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
FIELDS = ("minute", "hour", "day-of-month", "month", "day-of-week")
# The 29th of February is the same day of the week again after at most 40 years.
RAREST_MS = 50 * 366 * DAY_MS

_EPOCH = datetime(1970, 1, 1)
_ORDINAL = _EPOCH.toordinal()

Block = tuple[int, Sequence[int]]
"""Instants in order: a base, and what is to be added to it for each."""


@dataclass(frozen=True, slots=True, eq=False)
class Calendar:
    """The instants of one expression in one zone."""

    spec: CronSim
    zone: tzinfo
    # By the day rather than by the minutes that pass.
    fixed: bool
    times: tuple[int, ...]

    def blocks(self, after_ms: int, upto_ms: int) -> Iterator[Block]:
        """The instants after one time and up to another, in order and in pieces of a day."""
        upto_ms = min(upto_ms, MAX_TIME_MS)
        day, last_day = max(after_ms + 1, 0) // DAY_MS, upto_ms // DAY_MS
        while day <= last_day:
            there = date.fromordinal(_ORDINAL + day)
            if there.month not in self.spec.months and 2 < there.day < 27:
                # No zone is in another month then, and no month ends before its 28th.
                day += 27 - there.day
                continue
            for base, added in self._of_day(day):
                first = bisect_right(added, after_ms - base)
                last = bisect_right(added, upto_ms - base)
                if first < last:
                    yield base, added[first:last]
            day += 1

    def _of_day(self, day: int) -> list[Block]:
        """The instants of a day of UTC."""
        # What is shown again by the day depends on what was shown the day before.
        first = day - 1 if self.fixed else day
        around = [_offset_ms(self.zone, at) for at in range(first, day + 2)]
        if any(offset != around[0] for offset in around):
            return [(0, self._changing(day, around))]
        # One offset: the day is the end of one local day and the beginning of another.
        local = divmod(day * DAY_MS + around[0], DAY_MS)
        cut = bisect_left(self.times, local[1])
        base = local[0] * DAY_MS - around[0]
        found: list[Block] = []
        if cut < len(self.times) and self._matches(local[0]):
            found.append((base, self.times[cut:]))
        if cut and self._matches(local[0] + 1):
            found.append((base + DAY_MS, self.times[:cut]))
        return found

    def _changing(self, day: int, around: Sequence[int]) -> list[int]:
        """The instants of a day of UTC in which, or next to which, the clocks are changed."""
        start, end = day * DAY_MS, (day + 1) * DAY_MS
        # What the clocks show in it, and what they skip.
        low, high = start + min(around), end + max(around)
        found: set[int] = set()
        for local in range(low // DAY_MS, high // DAY_MS + 1):
            if self._matches(local):
                base = local * DAY_MS
                first = bisect_left(self.times, low - base)
                for time in self.times[first : bisect_left(self.times, high - base)]:
                    found.update(self._of_wall_time(base + time))
        return sorted(at for at in found if start <= at < end)

    def _of_wall_time(self, wall_ms: int) -> list[int]:
        """The instants for a time on the wall, by the rule of the expression."""
        shown = _EPOCH + timedelta(milliseconds=wall_ms)
        early, late = (
            wall_ms - _milliseconds(shown.replace(tzinfo=self.zone, fold=fold).utcoffset())
            for fold in (0, 1)
        )
        if early > late:
            return [_change_between(self.zone, late, early)] if self.fixed else []
        return [early] if self.fixed else [early, late]

    def _matches(self, local_day: int) -> bool:
        there = date.fromordinal(_ORDINAL + local_day)
        return there.month in self.spec.months and self.spec.match_day(there)


def _milliseconds(offset: timedelta | None) -> int:
    assert offset is not None
    return offset // timedelta(milliseconds=1)


def _offset_at(zone: tzinfo, at_ms: int) -> int:
    at = (_EPOCH + timedelta(milliseconds=at_ms)).replace(tzinfo=UTC)
    return _milliseconds(at.astimezone(zone).utcoffset())


@lru_cache(maxsize=8192)
def _offset_ms(zone: tzinfo, day: int) -> int:
    """How far the clocks of a zone are ahead at the beginning of a day of UTC."""
    return _offset_at(zone, day * DAY_MS)


def _change_between(zone: tzinfo, low_ms: int, high_ms: int) -> int:
    """The moment at which the clocks are changed, after one time and not after another."""
    before = _offset_at(zone, low_ms)
    low, high = low_ms // 1000, -(-high_ms // 1000)
    while high - low > 1:
        middle = (low + high) // 2
        if _offset_at(zone, middle * 1000) == before:
            low = middle
        else:
            high = middle
    return high * 1000


@lru_cache(maxsize=1024)
def calendar(expression: str, zone: str) -> Calendar:
    """The calendar of an expression and a zone; `Invalid` says what is wrong with either."""
    spec = _parsed(expression)
    fields = expression.split()
    return Calendar(
        spec=spec,
        zone=_zone(zone),
        fixed=not (fields[0].startswith("*") or fields[1].startswith("*")),
        times=tuple(
            (hour * 60 + minute) * MINUTE_MS
            for hour in sorted(spec.hours)
            for minute in sorted(spec.minutes)
        ),
    )


def _missing(missing: ImportError) -> NotSupported:
    return NotSupported(
        what="a cron expression",
        reason=f"{missing.name} is not installed; install holdfast[schedules]",
    )


def _parsed(expression: str) -> CronSim:
    field = "timing.expression"
    if len(expression) > MAX_CRON_CHARS or not expression.isascii():
        reason = f"it is up to {MAX_CRON_CHARS} characters of ASCII"
        raise Invalid(field=field, reason=reason)
    texts = expression.split()
    if len(texts) != len(FIELDS):
        raise Invalid(field=field, reason=f"it has {len(texts)} fields, not 5: {', '.join(FIELDS)}")
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as missing:
        raise _missing(missing) from None
    try:
        return CronSim(" ".join(texts), _EPOCH)
    except CronSimError as wrong:
        found = next((at for at, name in enumerate(FIELDS) if name in str(wrong)), None)
        if found is None:
            raise Invalid(field=field, reason=str(wrong)) from wrong
        reason = f"its {FIELDS[found]} {texts[found]!r} is not understood"
        if found == 2 and _understood(CronSim, CronSimError, f"0 0 {texts[2]} * *"):
            reason = f"its months {texts[3]!r} never have the day {texts[2]!r}"
    raise Invalid(field=field, reason=reason)


def _understood(parser: type[CronSim], refusal: type[Exception], expression: str) -> bool:
    try:
        parser(expression, _EPOCH)
    except refusal:
        return False
    return True


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """The names of all zones, the same on every machine, whatever files a machine has besides."""
    from importlib import resources

    try:
        listed = resources.files("tzdata").joinpath("zones").read_text("utf-8")
    except ImportError as missing:
        raise _missing(missing) from None
    return frozenset(listed.split())


def _zone(name: str) -> tzinfo:
    if name not in zone_names():
        raise Invalid(
            field="timing.zone", reason=f"{name!r} is not a zone; one is called 'Europe/Berlin'"
        )
    # The parser and the offsets treat it like any other; it is only faster.
    return UTC if name == "UTC" else ZoneInfo(name)
