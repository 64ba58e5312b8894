"""What happens when an instant of a schedule fires, or when somebody runs it.

Each is an occurrence of the source `schedule` whose key is the id of the schedule, under a key that
is made of the schedule and the instant, or the request: whoever decides it again comes to the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.contract.errors import TooLarge
from holdfast.contract.limits import Limits
from holdfast.contract.triggers import NewOccurrence
from holdfast.core import triggers
from holdfast.core.schedule_changes import Params, Seen, decided
from holdfast.core.schedules import (
    Decision,
    due,
    instant_key,
    occurrence_payload,
    plan_of,
    run_key,
)

SOURCE = "schedule"
# What is written of a run by hand: nothing is decided by it.
UNDECIDED: Params = {
    "by_hand": True,
    "decided_ms": None,
    "next_at_ms": None,
    "last_at_ms": None,
    "fire_count": 0,
    "skip_first_ms": None,
    "skip_last_ms": None,
    "skip_count": 0,
    "skip_reason": None,
    "at_ms": None,
}


@dataclass(frozen=True, slots=True)
class FireFacts:
    """Why nothing was written: whether the schedule is the same still, and the version of it as a
    source."""

    same: bool
    version: int

    def resubscribed(self, params: Params) -> int | None:
        """The version to ask again with, when it was that; else somebody has the schedule."""
        moved = bool(params["occurrences"]) and self.version != params["version"]
        return self.version if self.same and moved else None


def fitting(
    tenant: str,
    seen: Seen,
    decision: Decision,
    now_ms: int,
    matched: Sequence[triggers.Row],
    version: int,
    limits: Limits,
) -> tuple[Decision, Params]:
    """A decision as it is written, with all that it starts; one of fewer instants when that is more
    than a handle may write at once."""
    triggers.check_fan_out(len(matched), limits)
    most = max(1, limits.commit_rows // (len(matched) + 1))
    while True:
        if len(decision.fire) > most:
            decision = due(plan_of(seen.stored), now_ms, most)
        try:
            written = _fired(tenant, seen, decision.fire, matched, limits)
        except TooLarge:
            if len(decision.fire) <= 1:
                raise
            most = len(decision.fire) // 2
            continue
        place = {"by_hand": False, "version": version, **seen.proof(tenant)}
        return decision, {**decided(decision, now_ms), **written, **place}


def _fired(
    tenant: str,
    seen: Seen,
    instants: Sequence[int],
    matched: Sequence[triggers.Row],
    limits: Limits,
) -> Params:
    schedule, payload = seen.stored.schedule, seen.stored.payload
    told = [
        (
            instant_key(schedule, instant),
            occurrence_payload(schedule, payload, instant_ms=instant, request=None),
        )
        for instant in instants
    ]
    return _written(tenant, schedule, told, matched, limits)


def run(
    tenant: str,
    seen: Seen,
    request: str,
    matched: Sequence[triggers.Row],
    version: int,
    limits: Limits,
) -> Params:
    """A run by hand, as it is written."""
    triggers.check_fan_out(len(matched), limits)
    schedule = seen.stored.schedule
    payload = occurrence_payload(schedule, seen.stored.payload, instant_ms=None, request=request)
    told = [(run_key(schedule, request), payload)]
    written = _written(tenant, schedule, told, matched, limits)
    return {**UNDECIDED, **written, "version": version, **seen.proof(tenant)}


def _written(
    tenant: str,
    schedule: str,
    told: Sequence[tuple[str, bytes]],
    matched: Sequence[triggers.Row],
    limits: Limits,
) -> Params:
    occurrences: list[tuple[Any, ...]] = []
    deliveries: list[tuple[Any, ...]] = []
    processes: list[tuple[Any, ...]] = []
    grants: list[tuple[Any, ...]] = []
    size = 0
    for key, payload in told:
        new = NewOccurrence(source_type=SOURCE, source_key=schedule, key=key, payload=payload)
        plan = triggers.plan_occurrence(new, tenant=tenant, limits=limits)
        own = (key, plan["occurrence"])
        occurrences.append((plan["occurrence"], key, payload, plan["digest"]))
        size += len(payload)
        if matched:
            fan = triggers.fan_out(tenant, plan["occurrence"], payload, matched, limits)
            deliveries += [(*own, *row[:7], row[9]) for row in fan.deliveries]
            processes += [(*own, *row) for row in fan.processes]
            grants += [(*own, *row) for row in fan.grants]
            size += fan.size
    if size > limits.commit_bytes:
        raise TooLarge(field="processes", actual=size, limit=limits.commit_bytes)
    return {
        "occurrences": sorted(occurrences, key=lambda row: str(row[1])),
        "deliveries": sorted(deliveries, key=lambda row: row[1:6]),
        "processes": sorted(processes, key=lambda row: str(row[2])),
        "grants": sorted(grants, key=lambda row: row[2:5]),
    }
