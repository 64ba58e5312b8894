"""Decisions about schedules, without a store: what fires, what is skipped, and what is next.

Expected values are written by hand; what is searched for is that no instant is lost or doubled.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import Cron, Every, Invalid
from holdfast.contract.limits import MAX_TIME_MS
from holdfast.contract.schedules import Missed, Skipped, SkipReason, Timing
from holdfast.core import schedules
from holdfast.core.schedules import Decision, Plan, Stretch, due, instants, let_pass

SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
# 2025-01-01T00:00Z
NEW_YEAR = 1_735_689_600_000
MINUTES_OF_A_YEAR = 525_600
BERLIN, LORD_HOWE, SAO_PAULO = "Europe/Berlin", "Australia/Lord_Howe", "America/Sao_Paulo"


def ms(utc: str) -> int:
    """The instant of a time of UTC."""
    return int(datetime.fromisoformat(utc).replace(tzinfo=UTC).timestamp() * 1000)


# --- what a tick decides, by hand


def hourly(missed: Missed, **more: Any) -> Plan:
    """A schedule of every hour that has nothing decided since New Year."""
    plan = Plan(Every(interval_ms=HOUR), missed, cap=3, grace_ms=5 * MINUTE, decided_ms=NEW_YEAR)
    return replace(plan, **more)


def at(hour: float) -> int:
    """So many hours after New Year."""
    return NEW_YEAR + int(hour * HOUR)


def test_on_time_it_fires_whatever_the_policy() -> None:
    """An instant fires when it is there, and as long as it is no older than the grace."""
    policies: list[Missed] = ["skip", "one", "all"]
    for missed in policies:
        plan = hourly(missed)
        assert due(plan, at(1) - 1, 10) == Decision(None, (), at(0), at(1))
        assert due(plan, at(1), 10) == Decision(None, (at(1),), at(1), at(2))
        assert due(plan, at(1) + 5 * MINUTE, 10).fire == (at(1),)


def test_skip_fires_nothing_that_was_missed() -> None:
    """Five hours late, with none on time, and with one."""
    late = due(hourly("skip"), at(5.5), 10)
    assert late == Decision(Stretch(at(1), at(5), 5, "missed"), (), at(5), at(6))
    late = due(hourly("skip"), at(5), 10)
    assert late == Decision(Stretch(at(1), at(4), 4, "missed"), (at(5),), at(5), at(6))
    one_too_old = due(hourly("skip"), at(1) + 5 * MINUTE + 1, 10)
    assert one_too_old == Decision(Stretch(at(1), at(1), 1, "missed"), (), at(1), at(2))


def test_one_fires_the_latest() -> None:
    """The latest that was missed, unless one on time stands for it."""
    late = due(hourly("one"), at(5.5), 10)
    assert late == Decision(Stretch(at(1), at(4), 4, "missed"), (at(5),), at(5), at(6))
    late = due(hourly("one"), at(5), 10)
    assert late == Decision(Stretch(at(1), at(4), 4, "missed"), (at(5),), at(5), at(6))
    assert due(hourly("one"), at(1.5), 10) == Decision(None, (at(1),), at(1), at(2))


def test_all_fires_the_latest_up_to_the_cap() -> None:
    """What is on time is not among those that the cap counts."""
    late = due(hourly("all"), at(5.5), 10)
    fire = (at(3), at(4), at(5))
    assert late == Decision(Stretch(at(1), at(2), 2, "capped"), fire, at(5), at(6))
    late = due(hourly("all"), at(5), 10)
    four = (at(2), at(3), at(4), at(5))
    assert late == Decision(Stretch(at(1), at(1), 1, "capped"), four, at(5), at(6))
    assert due(hourly("all"), at(3.5), 10).skip is None


def test_a_batch_is_followed_by_the_next() -> None:
    """What does not fit is next, and is due at once."""
    first = due(hourly("all"), at(5.5), 2)
    skip = Stretch(at(1), at(2), 2, "capped")
    assert first == Decision(skip, (at(3), at(4)), at(4), at(5), more=True)
    second = due(hourly("all", decided_ms=at(4)), at(5.5), 2)
    assert second == Decision(None, (at(5),), at(5), at(6))


def test_a_clock_that_goes_backwards_finds_nothing() -> None:
    """Neither an hour nor ten years back does anything fire, and what is decided stays."""
    plan = hourly("all", decided_ms=at(5))
    for now in (at(5), at(4), at(4) - 3660 * DAY):
        decision = due(plan, now, 10)
        assert decision == Decision(None, (), at(5), at(6))
        assert not decision.changes


def test_a_clock_that_leaps_ten_years() -> None:
    """The leap is one stretch, and the way back finds nothing to do."""
    now = at(87_672.5)
    leap = due(hourly("one"), now, 10)
    assert leap.skip == Stretch(at(1), at(87_671), 87_671, "missed")
    assert leap.fire == (at(87_672),)
    back = due(hourly("one", decided_ms=leap.decided_ms), at(3), 10)
    assert back == Decision(None, (), at(87_672), at(87_673))


def test_paused_nothing_fires_and_resumed_nothing_is_made_up_for() -> None:
    """What had not fired, and what came since, is skipped; the next one is in the future."""
    plan = hourly("all", paused=True)
    assert due(plan, at(5.5), 10) == Decision(None, (), at(0), None)
    resumed = let_pass(plan, at(5.5), "paused")
    assert resumed == Decision(Stretch(at(1), at(5), 5, "paused"), (), at(5.5), at(6))
    nothing = let_pass(hourly("all", paused=True), at(0.5), "paused")
    assert nothing == Decision(None, (), at(0.5), at(1))
    backwards = let_pass(hourly("all", decided_ms=at(5)), at(3), "paused")
    assert backwards == Decision(None, (), at(5), at(6))


def test_it_comes_to_its_end() -> None:
    """The last instant is included, and behind it there is none."""
    plan = hourly("all", until_ms=at(2))
    assert due(plan, at(1), 10) == Decision(None, (at(1),), at(1), at(2))
    assert due(plan, at(9), 10) == Decision(None, (at(1), at(2)), at(2), None)
    over = hourly("all", until_ms=at(2), decided_ms=at(2))
    assert due(over, at(9), 10) == Decision(None, (), at(2), None)
    assert let_pass(over, at(9), "paused") == Decision(None, (), at(9), None)


@pytest.mark.parametrize("zone", ["UTC", BERLIN])
def test_a_year_behind_every_minute(zone: str) -> None:
    """Half a million instants are one stretch, exactly counted, and what the policy leaves."""
    minutes = Cron(expression="* * * * *", zone=zone)
    now = NEW_YEAR + MINUTES_OF_A_YEAR * MINUTE + 30 * SECOND
    last = now - 30 * SECOND
    skip = Plan(minutes, "skip", cap=100, grace_ms=MINUTE // 4, decided_ms=NEW_YEAR)
    first = NEW_YEAR + MINUTE
    skipped = due(skip, now, 1000)
    assert skipped.skip == Stretch(first, last, 525_600, "missed")
    assert skipped.fire == ()
    one = due(replace(skip, missed="one"), now, 1000)
    assert one.skip == Stretch(first, last - MINUTE, 525_599, "missed")
    assert one.fire == (last,)
    everything = due(replace(skip, missed="all"), now, 1000)
    assert everything.skip == Stretch(first, last - 100 * MINUTE, 525_500, "capped")
    assert everything.fire == tuple(last - (99 - back) * MINUTE for back in range(100))
    assert {each.next_at_ms for each in (skipped, one, everything)} == {last + MINUTE}


def test_what_is_next_is_what_will_fire() -> None:
    """Of a paused schedule it is what would, and of one that is behind nothing that is overdue."""
    assert schedules.next_instants(hourly("one"), at(5.5), 2) == (at(6), at(7))
    assert schedules.next_instants(hourly("one", paused=True), at(5.5), 1) == (at(6),)
    assert schedules.next_instants(hourly("one", decided_ms=at(9)), at(5.5), 1) == (at(10),)
    assert schedules.next_instants(hourly("one", until_ms=at(7)), at(5.5), 9) == (at(6), at(7))


@pytest.mark.parametrize(("after_ms", "limit", "field"), [(-1, 1, "after_ms"), (0, 0, "limit")])
def test_upcoming_says_what_is_wrong(after_ms: int, limit: int, field: str) -> None:
    """So does it of a timing."""
    with pytest.raises(Invalid) as refused:
        holdfast.upcoming(Every(interval_ms=HOUR), after_ms=after_ms, limit=limit)
    assert refused.value.field == field
    with pytest.raises(Invalid):
        holdfast.upcoming(Every(interval_ms=1), after_ms=0)


def test_time_has_an_end() -> None:
    """In the year 9999 there is nothing next any more, and nothing breaks."""
    last = Plan(Every(interval_ms=HOUR), "all", cap=3, grace_ms=0, decided_ms=MAX_TIME_MS)
    assert due(last, MAX_TIME_MS + DAY, 5) == Decision(None, (), MAX_TIME_MS, None)
    for timing in TIMINGS:
        assert holdfast.upcoming(timing, after_ms=MAX_TIME_MS - 1, limit=2) in ((), (MAX_TIME_MS,))


def test_a_decision_is_told() -> None:
    """What fired and what was skipped, with the key of what happened."""
    decision = Decision(Stretch(at(1), at(3), 3, "capped"), (at(4), at(5)), at(5), at(6))
    fired, skipped = schedules.told("rounds", decision, at(5) + 7)
    assert skipped == (
        Skipped(
            schedule="rounds",
            first_ms=at(1),
            last_ms=at(3),
            count=3,
            reason="capped",
            at_ms=at(5) + 7,
        ),
    )
    assert [(each.instant_ms, each.late_ms) for each in fired] == [
        (at(4), HOUR + 7),
        (at(5), 7),
    ]
    assert fired[0].occurrence == "schedule:1735704000000:rounds"
    assert schedules.told("rounds", Decision(None, (), 0, None), 5) == ((), ())


# --- searched

TIMINGS: list[Timing] = [
    Every(interval_ms=SECOND),
    Every(interval_ms=37 * MINUTE, anchor_ms=11 * SECOND),
    Every(interval_ms=100 * DAY),
    *(
        Cron(expression=expression, zone=zone)
        for expression in ("*/5 * * * *", "15,45 1,2 * * *", "0 9 * * MON-FRI", "0 0 1 * *")
        for zone in (BERLIN, LORD_HOWE, SAO_PAULO, "UTC")
    ),
]
LEAPS = [0, 1, SECOND, MINUTE, 7 * MINUTE, HOUR, DAY, 40 * DAY, -1, -HOUR, -30 * DAY]


def searched_plan(timing: Timing, missed: Missed, cap: int, grace_ms: int) -> Plan:
    """A schedule that begins shortly before Berlin's clocks go forward."""
    start = ms("2018-03-24T22:58") if timing != Every(interval_ms=SECOND) else ms("2018-03-25")
    return Plan(timing=timing, missed=missed, cap=cap, grace_ms=grace_ms, decided_ms=start)


def leaps_of(timing: Timing) -> st.SearchStrategy[list[int]]:
    """How the clock goes on from tick to tick; seconds are not asked for in months."""
    most = HOUR if timing == Every(interval_ms=SECOND) else 40 * DAY
    return st.lists(
        st.sampled_from([leap for leap in LEAPS if leap <= most]), min_size=1, max_size=8
    )


def settle(plan: Plan, now_ms: int, batch: int) -> tuple[Plan, list[Decision]]:
    """Tick until there is nothing more to be done at that time."""
    decisions: list[Decision] = []
    while True:
        decision = due(plan, now_ms, batch)
        assert decision.decided_ms >= plan.decided_ms
        assert len(decision.fire) <= batch
        plan = replace(plan, decided_ms=decision.decided_ms)
        decisions.append(decision)
        if not decision.more:
            return plan, decisions


def told(decisions: list[Decision], timing: Timing) -> list[tuple[int, str]]:
    """Each instant with what became of it, in the order in which it was decided."""
    found: list[tuple[int, str]] = []
    for decision in decisions:
        if decision.skip is not None:
            stretch = decision.skip
            inside = list(instants(timing, stretch.first_ms - 1, stretch.last_ms))
            assert len(inside) == stretch.size
            assert (inside[0], inside[-1]) == (stretch.first_ms, stretch.last_ms)
            found += [(each, stretch.reason) for each in inside]
        found += [(each, "fired") for each in decision.fire]
    return found


@st.composite
def runs(draw: st.DrawFn) -> tuple[Plan, list[int]]:
    """A schedule, and the times at which somebody ticks."""
    timing = draw(st.sampled_from(TIMINGS))
    plan = searched_plan(
        timing,
        draw(st.sampled_from(["skip", "one", "all"])),
        draw(st.sampled_from([1, 2, 7, 100])),
        draw(st.sampled_from([0, SECOND, MINUTE, HOUR])),
    )
    now, times = plan.decided_ms, []
    for leap in draw(leaps_of(timing)):
        now += leap
        times.append(now)
    return plan, times


@settings(max_examples=150, deadline=None)
@given(run=runs(), batch=st.sampled_from([1, 2, 50, 5000]))
def test_every_instant_is_decided_once_and_in_order(
    run: tuple[Plan, list[int]], batch: int
) -> None:
    """However the clock goes, what fired and what was skipped are the instants of the timing."""
    plan, times = run
    begun = plan.decided_ms
    decisions: list[Decision] = []
    for now in times:
        before = plan.decided_ms
        plan, made = settle(plan, now, batch)
        decisions += made
        # What is next is what was not decided, and it is in the future.
        rest = next(instants(plan.timing, plan.decided_ms, MAX_TIME_MS), None)
        assert made[-1].next_at_ms == rest
        assert rest is None or rest > now
        assert plan.decided_ms <= max(before, now)
    wanted = list(instants(plan.timing, begun, max(begun, *times)))
    assert [each for each, _ in told(decisions, plan.timing)] == wanted


@settings(max_examples=100, deadline=None)
@given(run=runs(), batch=st.integers(1, 20))
def test_a_batch_of_any_size_comes_to_the_same(run: tuple[Plan, list[int]], batch: int) -> None:
    """At the same times the same instants fire, and the same are skipped for the same reason."""
    plan, times = run
    small, large = plan, plan
    for now in times:
        small, few = settle(small, now, batch)
        large, many = settle(large, now, 1_000_000)
        assert told(few, plan.timing) == told(many, plan.timing)
    assert small == large


@settings(max_examples=100, deadline=None)
@given(timing=st.sampled_from(TIMINGS), missed=st.sampled_from(["skip", "one", "all"]))
def test_the_next_instants_are_those_that_fire(timing: Timing, missed: Missed) -> None:
    """Somebody who ticks at each of them fires it, and nothing between."""
    plan = searched_plan(timing, missed, 1, 0)
    promised = schedules.next_instants(plan, plan.decided_ms, 20)
    assert len(promised) == 20
    assert promised == holdfast.upcoming(timing, after_ms=plan.decided_ms, limit=20)
    for instant in promised:
        assert due(plan, instant - 1, 5).fire == ()
        decision = due(plan, instant, 5)
        assert (decision.skip, decision.fire) == (None, (instant,))
        plan = replace(plan, decided_ms=decision.decided_ms)


@settings(max_examples=100, deadline=None)
@given(run=runs(), passing=st.sampled_from(["paused", "replaced"]))
def test_what_is_let_pass_is_told(run: tuple[Plan, list[int]], passing: SkipReason) -> None:
    """Pausing between ticks loses no instant, and doubles none."""
    plan, times = run
    begun = plan.decided_ms
    decisions: list[Decision] = []
    for turn, now in enumerate(times):
        if turn % 2:
            decision = let_pass(plan, now, passing)
            assert decision.fire == ()
            assert decision.decided_ms == max(plan.decided_ms, now)
            plan = replace(plan, decided_ms=decision.decided_ms)
            decisions.append(decision)
        else:
            plan, made = settle(plan, now, 3)
            decisions += made
    wanted = list(instants(plan.timing, begun, max(begun, *times)))
    assert [each for each, _ in told(decisions, plan.timing)] == wanted
