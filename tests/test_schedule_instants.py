"""The instants of a timing: what an expression names in a zone, whatever its clocks do.

The tables of instants are written by hand, in UTC, from what the clocks of a zone did. Beside each
of them stands what was on the wall.
"""

from __future__ import annotations

import dataclasses
import io
import struct
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Cron, Every, Timing
from holdfast.contract.limits import MAX_TIME_MS
from holdfast.core.cron import Calendar, calendar
from holdfast.core.schedules import count, instants

SECOND = 1000
MINUTE = 60 * SECOND
DAY = 24 * 60 * MINUTE


def ms(utc: str) -> int:
    """The instant of a time of UTC."""
    return int(datetime.fromisoformat(utc).replace(tzinfo=UTC).timestamp() * 1000)


def between(timing: Timing, first: str, last: str) -> list[str]:
    """The instants of a timing after one time of UTC and up to another."""
    found = instants(timing, ms(first), ms(last))
    return [datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%dT%H:%M") for at in found]


# --- by hand: the clocks are put forward and back

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
LORD_HOWE, KOLKATA = "Australia/Lord_Howe", "Asia/Kolkata"
SAO_PAULO, APIA, ST_JOHNS = "America/Sao_Paulo", "Pacific/Apia", "America/St_Johns"

TABLE = [
    # Berlin skips 02:00 to 03:00 on 29 March 2026, at 01:00Z.
    (
        "a fixed time that is skipped is the moment at which the clocks go on",
        Cron(expression="30 2 * * *", zone=BERLIN),
        ("2026-03-28T00:00", "2026-03-30T12:00"),
        ["2026-03-28T01:30", "2026-03-29T01:00", "2026-03-30T00:30"],
    ),
    (
        "several of them are one instant",
        Cron(expression="0,15,30 2,3 * * *", zone=BERLIN),
        ("2026-03-29T00:00", "2026-03-29T12:00"),
        # 03:00 on the wall, for 02:00, 02:15, 02:30 and 03:00; then 03:15 and 03:30
        ["2026-03-29T01:00", "2026-03-29T01:15", "2026-03-29T01:30"],
    ),
    (
        "by the minutes that pass, a skipped time is no instant",
        Cron(expression="*/30 2 * * *", zone=BERLIN),
        ("2026-03-28T00:00", "2026-03-30T12:00"),
        ["2026-03-28T01:00", "2026-03-28T01:30", "2026-03-30T00:00", "2026-03-30T00:30"],
    ),
    (
        "half an hour is half an hour when the clocks go forward",
        Cron(expression="*/30 * * * *", zone=BERLIN),
        ("2026-03-29T00:00", "2026-03-29T02:00"),
        ["2026-03-29T00:30", "2026-03-29T01:00", "2026-03-29T01:30", "2026-03-29T02:00"],
    ),
    # Berlin shows 02:00 to 03:00 twice on 25 October 2026, from 00:00Z and from 01:00Z.
    (
        "a fixed time that is shown twice is the first of the two",
        Cron(expression="30 2 * * *", zone=BERLIN),
        ("2026-10-24T00:00", "2026-10-26T12:00"),
        ["2026-10-24T00:30", "2026-10-25T00:30", "2026-10-26T01:30"],
    ),
    (
        "by the minutes that pass, a time that is shown twice is two instants",
        Cron(expression="30 * * * *", zone=BERLIN),
        ("2026-10-24T23:00", "2026-10-25T02:00"),
        # 01:30, 02:30, 02:30 again
        ["2026-10-24T23:30", "2026-10-25T00:30", "2026-10-25T01:30"],
    ),
    (
        "a fixed time is kept on the wall all the year",
        Cron(expression="0 9 1 jan,jul *", zone=BERLIN),
        ("2026-01-01T00:00", "2026-12-31T00:00"),
        ["2026-01-01T08:00", "2026-07-01T07:00"],
    ),
    # New York skips 02:00 to 03:00 on 8 March 2026, at 07:00Z; it shows 01:00 to 02:00 twice on
    # 1 November, from 05:00Z and from 06:00Z.
    (
        "forward in New York",
        Cron(expression="15 2 * * SUN", zone=NEW_YORK),
        ("2026-03-01T00:00", "2026-03-16T00:00"),
        ["2026-03-01T07:15", "2026-03-08T07:00", "2026-03-15T06:15"],
    ),
    (
        "back in New York",
        Cron(expression="15 1 * * SUN", zone=NEW_YORK),
        ("2026-10-25T00:00", "2026-11-09T00:00"),
        ["2026-10-25T05:15", "2026-11-01T05:15", "2026-11-08T06:15"],
    ),
    (
        "back in New York, by the minutes that pass",
        Cron(expression="*/20 1 * * *", zone=NEW_YORK),
        ("2026-11-01T00:00", "2026-11-01T12:00"),
        [
            "2026-11-01T05:00",
            "2026-11-01T05:20",
            "2026-11-01T05:40",
            "2026-11-01T06:00",
            "2026-11-01T06:20",
            "2026-11-01T06:40",
        ],
    ),
    # Lord Howe shows 01:30 to 02:00 twice on 5 April 2026, from 14:30Z and from 15:00Z the day
    # before; it skips 02:00 to 02:30 on 4 October, at 15:30Z the day before.
    (
        "half an hour back, by the minutes that pass",
        Cron(expression="30 * * * *", zone=LORD_HOWE),
        ("2026-04-04T13:00", "2026-04-04T16:00"),
        # 00:30, 01:30, 01:30 again, 02:30
        ["2026-04-04T13:30", "2026-04-04T14:30", "2026-04-04T15:00", "2026-04-04T16:00"],
    ),
    (
        "half an hour back, by the day",
        Cron(expression="45 1 * * *", zone=LORD_HOWE),
        ("2026-04-03T00:00", "2026-04-05T23:00"),
        ["2026-04-03T14:45", "2026-04-04T14:45", "2026-04-05T15:15"],
    ),
    (
        "half an hour forward, by the minutes that pass",
        Cron(expression="*/15 1,2 * * *", zone=LORD_HOWE),
        ("2026-10-03T14:30", "2026-10-03T16:30"),
        # 01:15, 01:30, 01:45, 02:30, 02:45
        [
            "2026-10-03T14:45",
            "2026-10-03T15:00",
            "2026-10-03T15:15",
            "2026-10-03T15:30",
            "2026-10-03T15:45",
        ],
    ),
    (
        "half an hour forward, by the day",
        Cron(expression="15 2 * * *", zone=LORD_HOWE),
        ("2026-10-02T00:00", "2026-10-04T23:00"),
        ["2026-10-02T15:45", "2026-10-03T15:30", "2026-10-04T15:15"],
    ),
    (
        "the hours after half an hour forward begin where they begin",
        Cron(expression="*/20 5 * * *", zone=LORD_HOWE),
        ("2026-10-03T12:00", "2026-10-04T12:00"),
        ["2026-10-03T18:00", "2026-10-03T18:20", "2026-10-03T18:40"],
    ),
    # Kolkata is 5 hours and a half ahead, and leaves its clocks alone.
    (
        "a zone that is half an hour off",
        Cron(expression="0 9 * * MON-FRI", zone=KOLKATA),
        ("2026-03-27T00:00", "2026-03-31T00:00"),
        ["2026-03-27T03:30", "2026-03-30T03:30"],
    ),
    (
        "every quarter of an hour of a zone that is half an hour off",
        Cron(expression="*/45 * * * *", zone=KOLKATA),
        ("2026-03-27T00:00", "2026-03-27T02:00"),
        # 05:45, 06:00, 06:45, 07:00
        ["2026-03-27T00:15", "2026-03-27T00:30", "2026-03-27T01:15", "2026-03-27T01:30"],
    ),
    # Sao Paulo skipped 00:00 to 01:00 on 4 November 2018, at 03:00Z; on 18 February 2018 it showed
    # the last hour of the 17th twice, from 01:00Z and from 02:00Z. It gave that up in 2019.
    (
        "midnight is skipped",
        Cron(expression="0 0 * * *", zone=SAO_PAULO),
        ("2018-11-03T00:00", "2018-11-05T12:00"),
        ["2018-11-03T03:00", "2018-11-04T03:00", "2018-11-05T02:00"],
    ),
    (
        "midnight is skipped, by the minutes that pass",
        Cron(expression="*/30 0 * * *", zone=SAO_PAULO),
        ("2018-11-03T12:00", "2018-11-05T12:00"),
        ["2018-11-05T02:00", "2018-11-05T02:30"],
    ),
    (
        "the hour before midnight is shown twice",
        Cron(expression="30 23 * * *", zone=SAO_PAULO),
        ("2018-02-17T00:00", "2018-02-19T12:00"),
        # of the 16th, the first of the 17th, of the 18th
        ["2018-02-17T01:30", "2018-02-18T01:30", "2018-02-19T02:30"],
    ),
    (
        "a rule that was given up",
        Cron(expression="0 0 * * *", zone=SAO_PAULO),
        ("2025-11-01T00:00", "2025-11-03T12:00"),
        ["2025-11-01T03:00", "2025-11-02T03:00", "2025-11-03T03:00"],
    ),
    # St. John's put its clocks back at one minute past midnight: on 7 November 2010, at 02:31Z,
    # from 00:01 to 23:01 of the day before.
    (
        "what is repeated belongs to the day before",
        Cron(expression="*/30 0,23 * * *", zone=ST_JOHNS),
        ("2010-11-07T01:30", "2010-11-07T04:30"),
        # 23:30, 00:00, 23:30 again, 00:00 again, 00:30
        [
            "2010-11-07T02:00",
            "2010-11-07T02:30",
            "2010-11-07T03:00",
            "2010-11-07T03:30",
            "2010-11-07T04:00",
        ],
    ),
    (
        "what is repeated belongs to the day before, by the day",
        Cron(expression="0,30 0,23 * * *", zone=ST_JOHNS),
        ("2010-11-07T01:00", "2010-11-07T04:30"),
        # 23:00, 23:30, 00:00, and 00:30, which is shown once
        ["2010-11-07T01:30", "2010-11-07T02:00", "2010-11-07T02:30", "2010-11-07T04:00"],
    ),
    # Apia had no 30 December 2011: its clocks went from the end of the 29th to the 31st at 10:00Z.
    (
        "a day that is skipped, by the day",
        Cron(expression="0 9 * * *", zone=APIA),
        ("2011-12-28T00:00", "2011-12-31T00:00"),
        # 09:00 of the 28th, of the 29th; for the 30th the moment at which the 31st began; the 31st
        ["2011-12-28T19:00", "2011-12-29T19:00", "2011-12-30T10:00", "2011-12-30T19:00"],
    ),
    (
        "a day that is skipped, by the minutes that pass",
        Cron(expression="0 */6 * * *", zone=APIA),
        ("2011-12-29T16:00", "2011-12-31T00:00"),
        # 12:00 and 18:00 of the 29th, then 00:00, 06:00 and 12:00 of the 31st
        [
            "2011-12-29T22:00",
            "2011-12-30T04:00",
            "2011-12-30T10:00",
            "2011-12-30T16:00",
            "2011-12-30T22:00",
        ],
    ),
    (
        "the only day in the week that is skipped",
        Cron(expression="0 9 * * FRI", zone=APIA),
        ("2011-12-20T00:00", "2012-01-07T00:00"),
        ["2011-12-23T19:00", "2011-12-30T10:00", "2012-01-05T19:00"],
    ),
    # What an expression means.
    (
        "either of two days, when both are given",
        Cron(expression="0 12 13 * FRI"),
        ("2026-02-05T00:00", "2026-02-21T00:00"),
        ["2026-02-06T12:00", "2026-02-13T12:00", "2026-02-20T12:00"],
    ),
    (
        "Sunday has two numbers and a name",
        Cron(expression="0 0 * 2 0,7,sun"),
        ("2026-02-01T12:00", "2026-02-16T00:00"),
        ["2026-02-08T00:00", "2026-02-15T00:00"],
    ),
    (
        "a day that comes every four years, but not in 2100",
        Cron(expression="0 0 29 feb *"),
        ("2091-01-01T00:00", "2105-01-01T00:00"),
        ["2092-02-29T00:00", "2096-02-29T00:00", "2104-02-29T00:00"],
    ),
    # Intervals ask no clock on a wall.
    (
        "an interval from its anchor, in both directions",
        Every(interval_ms=40 * MINUTE, anchor_ms=ms("2026-03-29T01:00")),
        ("2026-03-29T00:00", "2026-03-29T02:30"),
        ["2026-03-29T00:20", "2026-03-29T01:00", "2026-03-29T01:40", "2026-03-29T02:20"],
    ),
]


@pytest.mark.parametrize(
    ("timing", "span", "wanted"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_instants_by_hand(timing: Timing, span: tuple[str, str], wanted: list[str]) -> None:
    """What the clocks of a zone do, and what becomes of the instants."""
    assert between(timing, *span) == wanted


def zone_that_goes_back(at_second: int, before: int, after: int) -> ZoneInfo:
    """A zone of our own: the file of a zone whose clocks were changed once."""
    head = struct.pack(">4s16x6l", b"TZif", 0, 0, 0, 1, 2, 4)
    types = struct.pack(">lBlbBlbB", at_second, 1, before, 0, 0, after, 0, 0)
    return ZoneInfo.from_file(io.BytesIO(head + types + b"OLD\0"), "Our/Own")


def test_what_is_shown_again_after_midnight_of_utc() -> None:
    """No zone has done it yet: the clocks go back at 23:30Z, and the hour shown again ends on
    another day of UTC."""
    changed = ms("2026-06-10T23:30")
    zone = zone_that_goes_back(changed // 1000, 7200, 3600)
    by_day = dataclasses.replace(calendar("15,45 1 * * *", "UTC"), zone=zone)
    passing = dataclasses.replace(calendar("*/30 1 * * *", "UTC"), zone=zone)

    def found(cal: Calendar) -> list[int]:
        around = cal.blocks(changed - DAY, changed + DAY)
        return [base + each for base, added in around for each in added]

    # 01:15 was shown first at 23:15Z; 01:45 is shown once, at 00:45Z.
    assert found(by_day) == [
        ms("2026-06-09T23:45"),
        ms("2026-06-10T23:15"),
        ms("2026-06-11T00:45"),
    ]
    # 01:00, 01:00 again, 01:30
    assert found(passing) == [
        ms("2026-06-10T23:00"),
        ms("2026-06-11T00:00"),
        ms("2026-06-11T00:30"),
    ]


ZONES = [BERLIN, NEW_YORK, LORD_HOWE, KOLKATA, SAO_PAULO, APIA, ST_JOHNS, "UTC", "Africa/Monrovia"]
EXPRESSIONS = [
    "* * * * *",
    "*/7 * * * *",
    "*/20 1,2,23 * * *",
    "30 * * * SUN",
    "45 1,2 * * *",
    "0,30 0,23 * * *",
    "30 2 1-7 * SAT",
    "0-59/20 0-3 * mar-apr,oct-dec *",
    "0 0 L * *",
    "0 12 * * MON#2",
    "0 6 29 2 *",
]


def by_the_clock(cron: Cron, first_ms: int, last_ms: int) -> list[int]:
    """The instants again, the slow way: every second at which a minute begins on the wall is
    looked at, and what has been on the wall is remembered."""
    zone = ZoneInfo(cron.zone)
    spec = CronSim(cron.expression, datetime(2000, 1, 1))
    minute, hour = cron.expression.split()[:2]
    by_day = not (minute.startswith("*") or hour.startswith("*"))

    def named(wall: datetime) -> bool:
        times = wall.minute in spec.minutes and wall.hour in spec.hours
        return times and wall.month in spec.months and spec.match_day(wall.date())

    found: set[int] = set()
    furthest: datetime | None = None
    # Two days earlier, so that what is shown again is known.
    start = (first_ms - 2 * DAY) // MINUTE * 60
    for second in range(start, last_ms // 1000 + 1, 30):
        wall = datetime.fromtimestamp(second, zone).replace(tzinfo=None)
        if by_day and furthest is not None:
            skipped = furthest + timedelta(seconds=30)
            while skipped < wall:
                if skipped.second == 0 and named(skipped):
                    found.add(second * 1000)
                skipped += timedelta(seconds=30)
        again = furthest is not None and wall <= furthest
        if wall.second == 0 and named(wall) and not (by_day and again):
            found.add(second * 1000)
        furthest = wall if furthest is None else max(furthest, wall)
    return sorted(at for at in found if first_ms < at <= last_ms)


# The days around a change of the clocks in each zone, and one far from any.
CHANGES = {
    BERLIN: ["2026-03-29", "2026-10-25"],
    NEW_YORK: ["2026-03-08", "2026-11-01"],
    LORD_HOWE: ["2026-04-04", "2026-10-03"],
    KOLKATA: ["2026-02-27"],
    SAO_PAULO: ["2018-02-18", "2018-11-04"],
    APIA: ["2011-12-30"],
    ST_JOHNS: ["2010-11-07", "2010-03-14"],
    "UTC": ["2028-02-28"],
    # Its clocks were 44 minutes and 30 seconds behind until 7 January 1972.
    "Africa/Monrovia": ["1972-01-07"],
}


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_instants_are_those_of_the_clock_on_the_wall(zone: str, expression: str) -> None:
    """Looking at the clock at every minute comes to the same instants."""
    cron = Cron(expression=expression, zone=zone)
    for day in CHANGES[zone]:
        first, last = ms(day) - DAY, ms(day) + 2 * DAY
        assert list(instants(cron, first, last)) == by_the_clock(cron, first, last)


@settings(max_examples=100, deadline=None)
@given(
    zone=st.sampled_from(ZONES),
    expression=st.sampled_from(EXPRESSIONS),
    start=st.sampled_from(range(ms("2008-01-01"), ms("2040-01-01"), 977 * MINUTE)),
    cuts=st.lists(st.sampled_from(range(0, 400 * DAY, 7919 * SECOND)), min_size=1, max_size=4),
)
def test_it_does_not_matter_where_one_begins(
    zone: str, expression: str, start: int, cuts: list[int]
) -> None:
    """The instants of a stretch are those of its pieces, in order, each once, and counted."""
    cron = Cron(expression=expression, zone=zone)
    places = [start, *(start + cut for cut in sorted(cuts))]
    whole = list(instants(cron, places[0], places[-1]))
    assert whole == [at for a, b in pairwise(places) for at in instants(cron, a, b)]
    assert all(a < b for a, b in pairwise(whole))
    assert count(cron, places[0], places[-1]) == len(whole)


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, KOLKATA, "UTC"])
@pytest.mark.parametrize("expression", ["30 2 * * *", "*/7 1-3 * * *", "0 9 * * MON-FRI"])
def test_the_parser_walks_the_same_where_an_hour_is_an_hour(zone: str, expression: str) -> None:
    """The walk of the parser itself, which follows Debian's cron, comes to the same there."""
    there = ZoneInfo(zone)
    walk = CronSim(expression, datetime(2026, 1, 1, tzinfo=there))
    start = int(datetime(2026, 1, 1, tzinfo=there).timestamp() * 1000)
    found = instants(Cron(expression=expression, zone=zone), start, MAX_TIME_MS)
    for at, walked in zip(found, walk, strict=False):
        assert at == int(walked.timestamp() * 1000)
        if walked.year > 2026:
            break
