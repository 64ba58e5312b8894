"""What is written of a schedule when it is registered, changed by hand, or decided.

A change is made of a schedule as somebody has looked at it, and carries the proof of that: its
revision, the time up to which it was decided, and the digest of its definition. A schedule that was
removed and registered anew begins again with the same numbers, but not with another definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from holdfast.contract.errors import Invalid, ScheduleMoved
from holdfast.contract.limits import MAX_INT
from holdfast.contract.schedules import Schedule, Skipped
from holdfast.core.schedules import (
    Decision,
    begin,
    decode_timing,
    let_pass,
    next_of,
    plan_of,
    schedule_of,
)

Params = dict[str, Any]

# The columns of a row that were registered, in their order after the id.
DEFINITION = (
    "timing",
    "payload",
    "digest",
    "missed",
    "cap",
    "grace_ms",
    "start_ms",
    "until_ms",
)
# What of a definition says which instants there are.
INSTANTS = ("timing", "start_ms", "until_ms")
BEFORE_ALL = -MAX_INT - 1


@dataclass(frozen=True, slots=True)
class Seen:
    """A schedule as somebody has looked at it."""

    stored: Schedule
    definition: Params

    def proof(self, tenant: str) -> Params:
        """What a guard compares."""
        return {
            "tenant": tenant,
            "schedule": self.stored.schedule,
            "seen_revision": self.stored.revision,
            "seen_decided_ms": self.stored.decided_ms,
            "seen_digest": self.definition["digest"],
        }


def seen_of(tenant: str, row: Sequence[Any]) -> Seen:
    """A row of a schedule, verified, with what proves it."""
    definition = dict(zip(DEFINITION, row[1 : 1 + len(DEFINITION)], strict=True))
    for name in ("timing", "payload", "digest"):
        definition[name] = bytes(definition[name])
    return Seen(schedule_of(tenant, row), definition)


def skip_params(decision: Decision) -> Params:
    """What a decision skips, as it is written."""
    skip = decision.skip
    return {
        "skip_first_ms": skip.first_ms if skip else None,
        "skip_last_ms": skip.last_ms if skip else None,
        "skip_count": skip.size if skip else 0,
        "skip_reason": skip.reason if skip else None,
    }


# --- by hand


def registered(new: Params, now_ms: int) -> tuple[Params, Schedule]:
    """What is written for a new schedule, and the schedule that it becomes."""
    plan = begin(new, now_ms)
    next_at_ms = next_of(plan)
    made = Schedule(
        schedule=new["schedule"],
        timing=plan.timing,
        missed=plan.missed,
        cap=plan.cap,
        grace_ms=plan.grace_ms,
        payload=new["payload"],
        start_ms=new["start_ms"],
        until_ms=new["until_ms"],
        revision=1,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
        decided_ms=plan.decided_ms,
        next_at_ms=next_at_ms,
    )
    place = {"decided_ms": plan.decided_ms, "next_at_ms": next_at_ms}
    return {**new, **place, "at_ms": now_ms}, made


def paused(seen: Seen, now_ms: int) -> Params | None:
    """What pausing writes; None when it is paused already."""
    stored = seen.stored
    if stored.paused:
        return None
    still = Decision(None, (), stored.decided_ms, None)
    return _change(seen.definition, still, now_ms, paused_at_ms=now_ms)


def resumed(seen: Seen, now_ms: int) -> Params | None:
    """What resuming writes; None when it is not paused."""
    if not seen.stored.paused:
        return None
    passed = let_pass(plan_of(seen.stored), now_ms, "paused")
    return _change(seen.definition, passed, now_ms, paused_at_ms=None)


def replaced(seen: Seen, new: Params, expected: int | None, now_ms: int) -> Params | None:
    """What another definition writes; None when it is no other one.

    With the same instants it goes on where it was. With others, those that had not fired are
    skipped. One that is paused stays so.
    """
    stored = seen.stored
    if seen.definition["digest"] == new["digest"]:
        return None
    if expected != stored.revision:
        raise ScheduleMoved(schedule=stored.schedule, expected=expected, actual=stored.revision)
    if all(seen.definition[name] == new[name] for name in INSTANTS):
        passed = Decision(None, (), stored.decided_ms, stored.next_at_ms)
    else:
        passed = let_pass(plan_of(stored), now_ms, "replaced")
        after = begin(new, now_ms, decided_ms=passed.decided_ms)
        after = replace(after, paused=stored.paused)
        passed = replace(passed, decided_ms=after.decided_ms, next_at_ms=next_of(after))
    definition = {name: new[name] for name in DEFINITION}
    return _change(definition, passed, now_ms, paused_at_ms=stored.paused_at_ms)


def _change(
    definition: Params, passed: Decision, now_ms: int, *, paused_at_ms: int | None
) -> Params:
    return {
        **definition,
        **skip_params(passed),
        "decided_ms": passed.decided_ms,
        "next_at_ms": passed.next_at_ms,
        "paused_at_ms": paused_at_ms,
        "at_ms": now_ms,
    }


def changed_schedule(stored: Schedule, change: Params) -> Schedule:
    """The schedule that a change has made of another one."""
    names = ("missed", "cap", "grace_ms", "payload", "start_ms", "until_ms")
    place = ("decided_ms", "next_at_ms", "paused_at_ms")
    return msgspec.structs.replace(
        stored,
        timing=decode_timing(stored.schedule, change["timing"]),
        revision=stored.revision + 1,
        updated_at_ms=change["at_ms"],
        skipped=stored.skipped + change["skip_count"],
        **{name: change[name] for name in (*names, *place)},
    )


# --- by a tick


def decided(decision: Decision, now_ms: int) -> Params:
    """What is written of a decision."""
    return {
        **skip_params(decision),
        "decided_ms": decision.decided_ms,
        "next_at_ms": decision.next_at_ms,
        "last_at_ms": decision.fire[-1] if decision.fire else None,
        "fire_count": len(decision.fire),
        "at_ms": now_ms,
    }


# --- pages


def skipped_of(row: Sequence[Any]) -> Skipped:
    """A row of what was skipped."""
    schedule, first_ms, last_ms, count, reason, at_ms = row
    return Skipped(
        schedule=schedule,
        first_ms=first_ms,
        last_ms=last_ms,
        count=count,
        reason=reason,
        at_ms=at_ms,
    )


def skip_place(after: str | None) -> int:
    """The cursor of what was skipped."""
    if after is None:
        return BEFORE_ALL
    if not (after.isascii() and after.isdigit() and int(after) <= MAX_INT):
        raise Invalid(field="after", reason="this is not a cursor of this listing")
    return int(after)
