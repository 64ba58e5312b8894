"""What of a schedule is kept: what may be registered, and its row, its bytes and its keys."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import (
    Corrupt,
    Cron,
    Every,
    Invalid,
    Limits,
    NewSchedule,
    NotSupported,
    Schedule,
    Timing,
    TooLarge,
)
from holdfast.contract.limits import MAX_DELAY_MS, MAX_TIME_MS
from holdfast.core import schedules
from holdfast.core.schedules import Decision, Plan, due

MINUTE = 60 * 1000
HOUR = 60 * MINUTE
# 2025-01-01T00:00Z
NEW_YEAR = 1_735_689_600_000
BERLIN = "Europe/Berlin"


def at(hour: float) -> int:
    """So many hours after New Year."""
    return NEW_YEAR + int(hour * HOUR)


# --- what may be registered


def wrong(value: Any) -> Any:
    """A value of a type that the types forbid."""
    return value


NEVER = "no day is ever like that"
REFUSED: list[tuple[Any, str, str]] = [
    (Cron(expression="* * * *"), "timing.expression", "it has 4 fields, not 5"),
    (Cron(expression="0 * * * * *"), "timing.expression", "it has 6 fields, not 5"),
    (Cron(expression=""), "timing.expression", "it has 0 fields, not 5"),
    (Cron(expression="@daily"), "timing.expression", "it has 1 fields, not 5"),
    (Cron(expression="60 * * * *"), "timing.expression", "its minute '60' is not understood"),
    (Cron(expression="0 24 * * *"), "timing.expression", "its hour '24' is not understood"),
    (Cron(expression="0 0 0 * *"), "timing.expression", "its day-of-month '0' is not understood"),
    (Cron(expression="0 0 * MAI *"), "timing.expression", "its month 'MAI' is not understood"),
    (Cron(expression="0 0 * * 8"), "timing.expression", "its day-of-week '8' is not understood"),
    (Cron(expression="*/0 * * * *"), "timing.expression", "its minute '*/0' is not understood"),
    (Cron(expression="5-1 * * * *"), "timing.expression", "its minute '5-1' is not understood"),
    (Cron(expression="0 0 30 2 *"), "timing.expression", "its months '2' never have the day '30'"),
    (Cron(expression="0 0 31 4,6 *"), "timing.expression", "its months '4,6' never have the day"),
    (Cron(expression="0 0 */20 * 1L"), "timing.expression", NEVER),
    (Cron(expression="0," * 100 + "0 * * * *"), "timing.expression", "it is up to 200 characters"),
    (Cron(expression="0 0 * * \u017fun"), "timing.expression", "of ASCII"),
    (Cron(expression=wrong(b"* * * * *")), "timing.expression", "a text is a string, not bytes"),
    (Cron(expression="* * * * *", zone="Europe/Atlantis"), "timing.zone", "is not a zone"),
    (Cron(expression="* * * * *", zone="europe/berlin"), "timing.zone", "is not a zone"),
    (Cron(expression="* * * * *", zone="../UTC"), "timing.zone", "is not a zone"),
    (Cron(expression="* * * * *", zone="localtime"), "timing.zone", "is not a zone"),
    (Cron(expression="* * * * *", zone=""), "timing.zone", "is not a zone"),
    (
        Cron(expression="* * * * *", zone=wrong(None)),
        "timing.zone",
        "a text is a string, not NoneType",
    ),
    (Every(interval_ms=999), "timing.interval_ms", "999 is not between 1000 and"),
    (Every(interval_ms=MAX_DELAY_MS + 1), "timing.interval_ms", "is not between 1000 and"),
    (Every(interval_ms=wrong(1000.0)), "timing.interval_ms", "an integer is wanted, not float"),
    (Every(interval_ms=1000, anchor_ms=-1), "timing.anchor_ms", "-1 is not between 0 and"),
    ("* * * * *", "timing", "a Cron or an Every is wanted, not str"),
]


@pytest.mark.parametrize(
    ("timing", "field", "reason"), REFUSED, ids=[repr(row[0])[:60] for row in REFUSED]
)
def test_a_timing_that_is_wrong_says_where(timing: Any, field: str, reason: str) -> None:
    """The refusal names the field, and the part of the expression."""
    with pytest.raises(Invalid) as refused:
        plan(timing)
    assert refused.value.field == field
    assert reason in refused.value.reason


@settings(max_examples=300, deadline=None)
@given(
    expression=st.one_of(
        st.text(max_size=30),
        st.lists(
            st.text("0123456789*/,-#LWMONFEB?", min_size=1, max_size=6), min_size=5, max_size=5
        ).map(" ".join),
    )
)
def test_an_expression_is_kept_or_refused(expression: str) -> None:
    """Whatever is written there, nothing else is raised."""
    with contextlib.suppress(Invalid):
        kept = schedules.check_timing(Cron(expression=expression))
        assert schedules.first_after(kept, NEW_YEAR) is not None


def new_schedule(timing: Timing | None = None, **given: Any) -> NewSchedule:
    """A schedule of every hour, and what is said besides."""
    wanted: dict[str, Any] = {
        "schedule": "rounds",
        "timing": timing or Every(interval_ms=HOUR),
        **given,
    }
    return NewSchedule(**wanted)


def plan(timing: Timing | None = None, **given: Any) -> dict[str, Any]:
    """What would be written for it."""
    return schedules.plan_schedule(new_schedule(timing, **given), tenant="t", limits=Limits())


@pytest.mark.parametrize(
    ("given", "field", "reason"),
    [
        ({"schedule": ""}, "schedule", "an id has 1 to 200 characters"),
        ({"missed": "some"}, "missed", "it is one of skip, one, all"),
        ({"cap": 0}, "cap", "0 is not between 1 and 10000"),
        ({"cap": 10_001}, "cap", "10001 is not between 1 and 10000"),
        ({"grace_ms": -1}, "grace_ms", "-1 is not between 0 and"),
        ({"start_ms": -1}, "start_ms", "-1 is not between 0 and"),
        ({"until_ms": MAX_TIME_MS + 1}, "until_ms", "is not between 0 and"),
        ({"start_ms": 1, "until_ms": HOUR - 1}, "until_ms", "no instant lies between"),
        ({"start_ms": HOUR, "until_ms": 0}, "until_ms", "no instant lies between"),
        ({"payload": b"raw"}, "payload", "a JSON value is wanted, not bytes"),
        ({"payload": {"a": float("nan")}}, "payload.a", "nan is not JSON"),
    ],
)
def test_a_schedule_that_is_wrong_says_where(
    given: dict[str, Any], field: str, reason: str
) -> None:
    """The refusal names the field."""
    with pytest.raises(Invalid) as refused:
        plan(**given)
    assert refused.value.field == field
    assert reason in refused.value.reason


def test_the_id_leaves_room_for_the_key() -> None:
    """The longest id makes a key that is an id itself."""
    longest = "a" * 160
    assert plan(schedule=longest)["schedule"] == longest
    assert len(schedules.instant_key(longest, MAX_TIME_MS)) <= 200
    with pytest.raises(TooLarge):
        plan(schedule=longest + "a")


def test_a_start_and_an_end_on_the_same_instant_are_one_instant() -> None:
    """Both ends are included."""
    begun = schedules.begin(plan(start_ms=at(1), until_ms=at(1)), at(0))
    assert due(begun, at(1), 10) == Decision(None, (at(1),), at(1), None)


def test_it_begins_now_or_at_its_start() -> None:
    """Without a start the instant of this moment is past; one that replaces never goes back."""
    assert schedules.begin(plan(), at(1)).decided_ms == at(1)
    assert schedules.begin(plan(start_ms=at(1)), at(5)).decided_ms == at(1) - 1
    assert schedules.begin(plan(start_ms=at(9)), at(5)).decided_ms == at(9) - 1
    assert schedules.begin(plan(), at(5), decided_ms=at(6)).decided_ms == at(6)
    assert schedules.begin(plan(start_ms=at(1)), at(5), decided_ms=at(6)).decided_ms == at(6)
    assert schedules.begin(plan(start_ms=at(9)), at(5), decided_ms=at(6)).decided_ms == at(9) - 1


# --- as bytes


def test_a_timing_is_kept_as_these_bytes() -> None:
    """What was written by one version is read by the next."""
    cron = Cron(expression="0 9 * * MON", zone="Europe/Berlin")
    assert schedules.encode_timing(cron) == (
        b'{"v":1,"timing":{"type":"cron","expression":"0 9 * * MON","zone":"Europe/Berlin"}}'
    )
    every = Every(interval_ms=60_000, anchor_ms=5)
    assert schedules.encode_timing(every) == (
        b'{"v":1,"timing":{"type":"every","interval_ms":60000,"anchor_ms":5}}'
    )
    for timing in (cron, every):
        assert schedules.decode_timing("rounds", schedules.encode_timing(timing)) == timing


def test_blanks_do_not_make_another_timing() -> None:
    """The same fields are the same bytes."""
    assert plan(Cron(expression=" 0  9 * *\tMON "))["timing"] == schedules.encode_timing(
        Cron(expression="0 9 * * MON")
    )


@pytest.mark.parametrize(
    "kept", [b"", b"{}", b"\xff", b'{"v":1}', b'{"v":1,"timing":{"type":"moon"}}', b'{"v":"1"}']
)
def test_a_damaged_timing_is_corrupt(kept: bytes) -> None:
    """It names the row."""
    with pytest.raises(Corrupt) as damaged:
        schedules.decode_timing("rounds", kept)
    assert (damaged.value.table, damaged.value.key) == ("schedule", "rounds")


def test_a_timing_from_the_future_is_not_damaged() -> None:
    """It is another holdfast that can read it."""
    with pytest.raises(NotSupported, match="it has version 2"):
        schedules.decode_timing("rounds", b'{"v":2,"timing":{"type":"moon","phase":"full"}}')


def test_the_digest_proves_each_part() -> None:
    """None of them can be exchanged, and no byte can go from one to the next."""
    parts = ("t", "rounds", b"ab", b"cd", b"ef")
    others = [("u", "rounds", b"ab", b"cd", b"ef"), ("t", "round", b"ab", b"cd", b"ef")]
    others += [("t", "rounds", b"ax", b"cd", b"ef"), ("t", "rounds", b"ab", b"cx", b"ef")]
    others += [("t", "rounds", b"ab", b"cd", b"ex"), ("t", "rounds", b"a", b"bcd", b"ef")]
    others += [("t", "rounds", b"abc", b"d", b"ef"), ("t", "rounds", b"ab", b"cde", b"f")]
    digests = {schedules.schedule_digest(*each) for each in [parts, *others]}
    assert len(digests) == 9


def stored_row(**other: Any) -> list[Any]:
    """The row of a schedule that was paused after two instants and three skipped ones."""
    cron = Cron(expression="0 9 * * MON", zone=BERLIN)
    written = plan(cron, payload={"room": 4}, cap=7, start_ms=1, until_ms=at(999))
    names = ("timing", "payload", "digest", "missed", "cap", "grace_ms", "start_ms", "until_ms")
    row: dict[str, Any] = {
        "schedule": "rounds",
        **{name: written[name] for name in names},
        "revision": 2,
        "created_at_ms": 10,
        "updated_at_ms": 11,
        "decided_ms": at(0),
        "next_at_ms": None,
        "last_at_ms": 12,
        "paused_at_ms": 13,
        "fired": 2,
        "skipped": 3,
        "ran": 1,
    }
    return list({**row, **other}.values())


def test_a_row_is_a_schedule() -> None:
    """Every column is where it belongs."""
    cron = Cron(expression="0 9 * * MON", zone=BERLIN)
    stored = schedules.schedule_of("t", stored_row())
    assert stored == Schedule(
        schedule="rounds",
        timing=cron,
        missed="one",
        cap=7,
        grace_ms=MINUTE,
        payload=b'{"room":4}',
        start_ms=1,
        until_ms=at(999),
        revision=2,
        created_at_ms=10,
        updated_at_ms=11,
        decided_ms=at(0),
        next_at_ms=None,
        last_at_ms=12,
        paused_at_ms=13,
        fired=2,
        skipped=3,
        ran=1,
    )
    assert stored.paused
    assert stored.json() == {"room": 4}
    assert schedules.plan_of(stored) == Plan(
        cron, "one", cap=7, grace_ms=MINUTE, decided_ms=at(0), until_ms=at(999), paused=True
    )


@pytest.mark.parametrize(
    "other",
    [
        {"payload": b'{"room":5}'},
        {"timing": schedules.encode_timing(Every(interval_ms=HOUR))},
        {"schedule": "round"},
        {"missed": "some"},
        {"missed": "all"},
        {"cap": 8},
        {"grace_ms": 0},
        {"start_ms": None},
        {"until_ms": at(998)},
    ],
    ids=str,
)
def test_a_damaged_row_is_corrupt(other: dict[str, Any]) -> None:
    """Nothing is decided by what nobody wrote."""
    with pytest.raises(Corrupt, match="its digest does not match"):
        schedules.schedule_of("t", stored_row(**other))


def test_the_keys_of_occurrences() -> None:
    """The same for everybody, and another one for each instant, request and schedule."""
    assert schedules.instant_key("rounds", 1_735_689_600_000) == "schedule:1735689600000:rounds"
    assert schedules.run_key("rounds", "r1") == schedules.run_key("rounds", "r1")
    keys = {
        schedules.instant_key("a", 5),
        schedules.instant_key("a:5", 5),
        schedules.instant_key("5:a", 5),
        schedules.run_key("a", "b:c"),
        schedules.run_key("a:b", "c"),
        schedules.run_key("a", "5"),
    }
    assert len(keys) == 6
    with pytest.raises(Invalid):
        schedules.run_key("a", "")


def test_what_an_occurrence_says() -> None:
    """The schedule, when or why, and the payload as it was registered."""
    kept = plan(payload={"room": 4})["payload"]
    assert schedules.occurrence_payload("rounds", kept, instant_ms=5, request=None) == (
        b'{"schedule":"rounds","instant_ms":5,"request":null,"payload":{"room":4}}'
    )
