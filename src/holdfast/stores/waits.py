"""The facade of waits: until the head moves, until there is work, an event, an end.

Nothing here is stored. Whoever waits listens first, then looks, and is woken by a signal, by a
moment that is known, or by looking again; a signal that is lost costs one such look.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.contract.processes import Event, Process
from holdfast.contract.queue import Boundary, Wanted
from holdfast.contract.records import Fence, Head
from holdfast.core import topics
from holdfast.core.payloads import check_id, check_int
from holdfast.core.queue import check_claim
from holdfast.core.turns import fence_params
from holdfast.core.waits import (
    FIRST_SECONDS,
    LONGEST_SECONDS,
    Outlook,
    check_anywhere,
    check_timeout,
    end_of,
    first_event,
    head_above,
)
from holdfast.ops import waits
from holdfast.ops.op import Op
from holdfast.stores.view import View

A = TypeVar("A")
T = TypeVar("T")


class Waits:
    """Waits: until something is there, or the time is up."""

    def __init__(self, view: View) -> None:
        self._view = view

    async def head(self, session: str, *, after: int, timeout_ms: int | None = None) -> Head | None:
        """The head as soon as its revision is above `after`; None when the time is up. Without a
        timeout it waits for ever; 0 looks once."""
        check_id("session", session)
        check_int("after", after)
        return await self._until(
            check_timeout(timeout_ms),
            topics.head(self._view.tenant, session),
            lambda head: head_above(head, after),
            waits.head,
            self._view.tenant,
            session,
        )

    async def work(
        self,
        session: str | None = None,
        *,
        fence: Fence | None = None,
        boundary: Boundary = "idle",
        kind: Wanted = "any",
        timeout_ms: int | None = None,
    ) -> bool:
        """True as soon as there is work to claim, in this session or in any that nobody holds;
        False when the time is up. With a fence it is what the holder of the lane may claim, and
        `LaneLost` when the lane is not held any more. Somebody else may be quicker to claim."""
        view = self._view
        seconds = check_timeout(timeout_ms)
        if session is None:
            check_anywhere(fence, boundary, kind)
            topic = topics.works(view.tenant)
            op, args = waits.work_anywhere, (view.tenant,)
            return await self._until(seconds, topic, _as_it_is, op, *args) or False
        check_claim(session, boundary=boundary, kind=kind, limit=1, works=None, limits=view.limits)
        fence_params(session, fence)
        topic = topics.work(view.tenant, session)
        question = (view.tenant, session, fence, boundary, kind)
        return (
            await self._until(seconds, topic, _as_it_is, waits.work_of_session, *question) or False
        )

    async def event(
        self, process: str, *, after: int, type: str | None = None, timeout_ms: int | None = None
    ) -> Event | None:
        """The first event, or the first of a type, later than `after`; None when the time is up.
        `ProcessEnded` when none will come any more."""
        check_id("process", process)
        check_int("after", after)
        if type is not None:
            check_id("type", type)
        tenant = self._view.tenant
        topic = topics.process(tenant, process)
        question = (tenant, process, type, after)
        return await self._until(
            check_timeout(timeout_ms), topic, first_event, waits.event, *question
        )

    async def ended(self, process: str, *, timeout_ms: int | None = None) -> Process | None:
        """The process as soon as it has ended, in whatever way; None when the time is up."""
        check_id("process", process)
        tenant = self._view.tenant
        topic = topics.process(tenant, process)
        return await self._until(
            check_timeout(timeout_ms), topic, end_of, waits.ended, tenant, process
        )

    async def _until(
        self,
        seconds: float | None,
        topic: str,
        judge: Callable[[A], Outlook[T]],
        op: Callable[..., Op[A]],
        *args: Any,
    ) -> T | None:
        """Look at what an operation answers until it is what was waited for, or the time is up."""
        ends = float("inf") if seconds is None else time.monotonic() + seconds
        pause = FIRST_SECONDS
        watch = self._view.engine.watch(topic, op, *args)
        try:
            while True:
                found, in_ms = judge(await watch.look())
                if found is not None:
                    return found
                left = ends - time.monotonic()
                if left <= 0:
                    return None
                # One more than that, because what begins with a millisecond is there at its end.
                moment = float("inf") if in_ms is None else (in_ms + 1) / 1000
                await watch.wait(pause, at_most=min(left, moment))
                # It grows after a signal, too: who is woken for nothing need not look more often.
                pause = min(2 * pause, LONGEST_SECONDS)
        finally:
            watch.close()


def _as_it_is(outlook: Outlook[T]) -> Outlook[T]:
    return outlook
