"""What the state machine may ask of schedules: calls, made from whatever makes the choices.

As with all calls, what depends on the moment is a mark in the call: when a schedule begins and
ends, its revision. Schedules begin some hours ago or will soon, so that there is something due at
once, and more when time leaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.contract.schedules import MINUTE_MS, Cron, Every, Timing
from holdfast.testing.machine_calls import HOUR_MS, Call, Pick, tenant
from holdfast.testing.machine_process_calls import GO, NOTE, Near
from holdfast.testing.machine_trigger_calls import Resaid, Rev

SCHEDULES = ("c0", "c1", "c2")
DAY_MS = 24 * HOUR_MS


@dataclass(frozen=True)
class Hence:
    """A time, so long from now."""

    ms: int


@dataclass(frozen=True)
class Planned:
    """A schedule that is there, the one registered first being 0."""

    number: int


# Each has the same instants on every day.
TIMINGS: tuple[Timing, ...] = (
    Every(interval_ms=HOUR_MS),
    Every(interval_ms=HOUR_MS),
    Cron(expression="*/5 * * * *"),
    Cron(expression="0 9 * * *"),
    Cron(expression=" 30  1,13 * * * "),
    Every(interval_ms=8 * MINUTE_MS, anchor_ms=3 * MINUTE_MS),
)
BEGUN = Hence(-4 * HOUR_MS)
WINDOWS: tuple[dict[str, Any], ...] = (
    {"start_ms": BEGUN, "until_ms": None},
    {"start_ms": BEGUN, "until_ms": None},
    {"start_ms": Hence(-30 * HOUR_MS), "until_ms": Hence(-HOUR_MS)},
    {"start_ms": Hence(-DAY_MS), "until_ms": Hence(3 * HOUR_MS)},
    {"start_ms": None, "until_ms": None},
    {"start_ms": None, "until_ms": Hence(5 * HOUR_MS)},
    {"start_ms": Hence(HOUR_MS), "until_ms": None},
    {"start_ms": Hence(-HOUR_MS), "until_ms": Hence(-2 * HOUR_MS)},
)
RULES: tuple[dict[str, Any], ...] = (
    {"missed": "all", "cap": 2},
    {"missed": "all", "cap": 100},
    {"missed": "one", "cap": 100},
    {"missed": "one", "cap": 1},
    {"missed": "skip", "cap": 100},
    {"missed": "skip", "cap": 1},
)
GRACES_MS = (MINUTE_MS, 2 * HOUR_MS, 0, 30 * DAY_MS)


def first_schedule(tenant: int) -> Call:
    """A schedule that has begun."""
    args: dict[str, Any] = {
        "schedule": "c0",
        "timing": TIMINGS[0],
        "missed": "all",
        "cap": 2,
        "grace_ms": MINUTE_MS,
        "payload": {"who": "ada"},
        "start_ms": BEGUN,
        "until_ms": None,
        "expected": None,
    }
    return Call(tenant, "schedules.register", args)


def listener(tenant: int, schedule: str) -> Call:
    """Somebody subscribes to a schedule."""
    args: dict[str, Any] = {
        "owner": None,
        "key": f"on-{schedule}",
        "source_type": "schedule",
        "source_key": schedule,
        "events": (NOTE, GO),
        "kind": "task",
        "inputs": {},
        "recovery": "rerunnable",
        "wake": Near(),
        "grants": (Near(),),
        "expected": None,
        "operation": None,
    }
    return Call(tenant, "triggers.register", args)


def arrange(pick: Pick) -> Call:
    """A schedule is registered: a new one, the same again, or another one in its place; or somebody
    subscribes to one."""
    if pick((*[False] * 5, True)):
        return listener(tenant(pick), pick(SCHEDULES))
    expected = pick((None, None, Rev(), Rev(), Rev(), Rev(-1)))
    if pick((False, True)):
        changes: tuple[dict[str, Any], ...] = (
            {},
            {"payload": "other"},
            {"missed": "one"},
            {"timing": TIMINGS[-1]},
            {"until_ms": Hence(9 * HOUR_MS)},
            {"start_ms": None},
        )
        args: dict[str, Any] = {"again": Resaid(pick(changes))}
    else:
        args = {
            "schedule": pick(SCHEDULES),
            "timing": pick(TIMINGS),
            **pick(RULES),
            "grace_ms": pick(GRACES_MS),
            "payload": pick(({"who": "ada"}, None, "text")),
            **pick(WINDOWS),
        }
    return Call(tenant(pick), "schedules.register", {**args, "expected": expected})


def tick(pick: Pick) -> Call:
    """What is due is decided, all of it or some."""
    return Call(tenant(pick), "schedules.tick", {"limit": pick((6, 3, 2, 1))})


DIRECTED = (
    *("pause", "pause", "resume", "resume", "resume", "run_now", "run_now", "run_now"),
    *("next", "next", "delete", "skipped", "get"),
)


def direct(pick: Pick) -> Call:
    """A schedule is paused, resumed, run by hand or removed; or it is asked what it will do."""
    name = pick(DIRECTED)
    there = (Planned(0), Planned(0), Planned(1), Planned(1), Planned(2))
    args: dict[str, Any] = {"schedule": pick((*there, SCHEDULES[2]))}
    if name == "run_now":
        args["request"] = pick(("q0", "q1"))
    elif name == "next":
        args["limit"] = pick((10, 1))
    return Call(tenant(pick), f"schedules.{name}", args)


KINDS = {"arrange": arrange, "tick": tick, "direct": direct}
"""The rules of the machine: each makes calls of one kind."""

WEIGHTS = {"arrange": 8, "tick": 9, "direct": 9}
