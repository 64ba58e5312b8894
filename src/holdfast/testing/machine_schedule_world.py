"""What the marks in a call about schedules stand for at the moment, and what is read afterwards.

In a certain world the beginnings and the ends of schedules are the same on every machine, and over
since days: what fires then does not depend on what time it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.contract.records import Page
from holdfast.contract.schedules import NewSchedule, RanNow, Schedule, Scheduled, Skipped, Ticked
from holdfast.testing.machine_schedule_calls import DAY_MS, Hence, Planned
from holdfast.testing.machine_trigger_calls import Resaid, Rev
from holdfast.testing.oracle import Oracle

# Noon, some days ago: the same for all worlds of a run, however long it takes.
LONG_AGO_MS = (time.time_ns() // 1_000_000 // DAY_MS - 5) * DAY_MS + DAY_MS // 2


@dataclass
class ScheduleSide:
    """What calls about the schedules of one tenant have left to refer to."""

    oracle: Oracle
    certain: bool
    now: Callable[[], int]
    said: dict[str, Any] | None = None
    known: list[str] = field(default_factory=list)
    at: str = "c0"

    def made(self, name: str, args: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
        """The call with its marks replaced by values of the moment; None when there is none."""
        if name != "schedules.register":
            there = self.oracle.schedules.named() or ("c0",)
            if isinstance(args.get("schedule"), Planned):
                args["schedule"] = there[args["schedule"].number % len(there)]
            self.at = args.get("schedule", there[-1])
            return name, args
        mark = args.pop("again", None)
        if isinstance(mark, Resaid):
            if self.said is None:
                return None
            args = {**self.said, **args, **mark.change}
        args |= {name: self._time(name, args[name]) for name in ("start_ms", "until_ms")}
        self.at = args["schedule"]
        if self.at not in self.known:
            self.known.append(self.at)
        expected = args.pop("expected")
        if isinstance(expected, Rev):
            expected = max(1, self.oracle.schedules.revision(self.at) + expected.by)
        self.said = args
        return name, {"it": NewSchedule(**args), "expected": expected}

    def _time(self, name: str, mark: Any) -> int | None:
        if isinstance(mark, Hence):
            return (LONG_AGO_MS if self.certain else self.now()) + mark.ms
        if self.certain and mark is None:
            return LONG_AGO_MS + (-DAY_MS if name == "start_ms" else DAY_MS)
        time_ms: int | None = mark
        return time_ms


def schedule_kind(name: str, real: Any) -> str | None:
    """What kind of outcome a call about schedules had, for the count of what was covered."""
    match real:
        case Scheduled(created=True):
            return "created"
        case Scheduled(changed=changed):
            return f"changed {changed}"
        case Ticked(fired=(), skipped=()):
            return "nothing"
        case Ticked():
            did = [what for what in ("fired", "skipped", "more") if getattr(real, what)]
            return " and ".join(did)
        case RanNow(ran=ran):
            return f"ran {ran}"
        case Schedule(paused=paused) if name != "schedules.get":
            return f"paused {paused}"
        case tuple() | Page():
            there = real.items if isinstance(real, Page) else real
            return "some" if there else "none"
    return None


def skip_reasons(real: Any) -> list[str]:
    """Why anything was skipped that an answer tells of."""
    match real:
        case Ticked(skipped=there) | Page(items=there):
            return [one.reason for one in there if isinstance(one, Skipped)]
    return []


def schedule_glances(schedule: str, occurrence: str, number: int) -> tuple[str, dict[str, Any]]:
    """One of the readings after a call about schedules."""
    names = ("get", "skipped", "next", "list", "deliveries")
    name = names[number % len(names)]
    if name == "deliveries":
        return "triggers.deliveries", {"occurrence": occurrence}
    return f"schedules.{name}", {} if name == "list" else {"schedule": schedule}


def schedule_looks(schedules: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """What there is of the schedules of a tenant, once."""
    asked: list[tuple[str, dict[str, Any]]] = [("schedules.list", {})] if schedules else []
    return asked + [("schedules.skipped", {"schedule": one}) for one in schedules]


def schedule_walks(schedules: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """The listings of a tenant that are read page by page."""
    asked: list[tuple[str, dict[str, Any]]] = [("schedules.list", {"limit": 1})]
    return asked + [("schedules.skipped", {"schedule": one, "limit": 1}) for one in schedules]
