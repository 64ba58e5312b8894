"""Decisions about waiting: is this what was waited for, and if not, when to look again."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from holdfast.contract.errors import Invalid, LaneLost
from holdfast.contract.limits import MAX_DELAY_MS
from holdfast.contract.processes import Event, Process
from holdfast.contract.records import Fence, Head
from holdfast.core.payloads import check_int
from holdfast.core.queue import Waiting, why_not

T = TypeVar("T")

# Who waits looks again after the first, then after twice as long each time, up to the second.
FIRST_SECONDS = 0.025
LONGEST_SECONDS = 1.0


class Outlook(NamedTuple, Generic[T]):
    """What was waited for, or None and, where it is known, in how long it may be there unsaid."""

    found: T | None
    in_ms: int | None = None


def check_timeout(timeout_ms: object) -> float | None:
    """How long to wait, in seconds; None is for ever."""
    if timeout_ms is None:
        return None
    return check_int("timeout_ms", timeout_ms, 0, MAX_DELAY_MS) / 1000


def head_above(head: Head, after: int) -> Outlook[Head]:
    """A head that is newer than a revision."""
    return Outlook(head if head.revision > after else None)


def first_event(event: Event | None) -> Outlook[Event]:
    """An event that has come."""
    return Outlook(event)


def end_of(process: Process) -> Outlook[Process]:
    """A process that has ended."""
    return Outlook(process if process.ended else None)


def _soonest(now_ms: int, *moments: int | None) -> int | None:
    """In how long the first of these moments is over; one that has passed says nothing."""
    return min((at - now_ms for at in moments if at is not None and at > now_ms), default=None)


def work_of_session(
    session: str, fence: Fence | None, boundary: str, kind: str, found: Waiting
) -> Outlook[bool]:
    """Whether the holder of this fence, or without one anybody, would find work in a session."""
    blocked = why_not(session, found, boundary, kind).why_not
    now_ms, lapse = found.now_ms, found.lane_expires_at_ms if found.lane_live else None
    if fence is None:
        if lapse is not None:
            return Outlook(None, _soonest(now_ms, lapse))
    else:
        held = (fence.owner, fence.token, fence.generation)
        lane = (found.lane_owner, found.lane_token, found.lane_generation)
        if lapse is None or held != lane:
            raise LaneLost(session=session)
    if blocked is None:
        return Outlook(True)
    return Outlook(None, _soonest(now_ms, found.next_at_ms, lapse))


def work_anywhere(ready: bool, next_at_ms: int | None, now_ms: int) -> Outlook[bool]:
    """Whether somebody who asks for the next session would be given one."""
    return Outlook(True) if ready else Outlook(None, _soonest(now_ms, next_at_ms))


def check_anywhere(fence: Fence | None, boundary: object, kind: object) -> None:
    """Only work of one session is asked for in particular."""
    if fence is not None or boundary != "idle" or kind != "any":
        raise Invalid(field="session", reason="name it to wait with a fence, a boundary or a kind")
