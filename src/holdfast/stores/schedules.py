"""The facade of schedules: what is to happen again and again, and what became of it."""

from __future__ import annotations

from holdfast.contract.limits import MAX_INT
from holdfast.contract.records import Page
from holdfast.contract.schedules import (
    NewSchedule,
    RanNow,
    Schedule,
    Scheduled,
    Skipped,
    Ticked,
)
from holdfast.core import schedule_changes, topics
from holdfast.core.payloads import check_id, check_int
from holdfast.core.processes import check_place
from holdfast.core.schedules import check_schedule, plan_schedule
from holdfast.ops import schedules
from holdfast.stores.view import View


class Schedules:
    """Schedules: each instant fires once, or is skipped for a reason that is kept."""

    def __init__(self, view: View) -> None:
        self._view = view

    async def register(self, schedule: NewSchedule, *, expected: int | None = None) -> Scheduled:
        """Make sure the schedule is registered. The same definition again changes nothing; another
        one replaces it when `expected` is its revision, or raises `ScheduleMoved`."""
        view = self._view
        new = plan_schedule(schedule, tenant=view.tenant, limits=view.limits)
        if expected is not None:
            check_int("expected", expected, 1, MAX_INT)
        return await view.engine.write(schedules.register, new, expected)

    async def get(self, schedule: str) -> Schedule | None:
        """A schedule; None when there is none."""
        check_schedule(schedule)
        return await self._view.engine.read(schedules.get, self._view.tenant, schedule)

    async def list(self, *, after: str | None = None, limit: int = 100) -> Page[Schedule]:
        """A page of the schedules, in the order of their ids."""
        view = self._view
        place = check_place(after)
        return await view.engine.read(schedules.list_page, view.tenant, place, view.page(limit))

    async def pause(self, schedule: str) -> Schedule:
        """Let nothing fire any more. One that is paused is left as it is."""
        check_schedule(schedule)
        view = self._view
        return await view.engine.write(
            schedules.change, view.tenant, schedule, schedule_changes.paused
        )

    async def resume(self, schedule: str) -> Schedule:
        """Let it go on from now: what had not fired is skipped. One that is not paused is left as
        it is."""
        check_schedule(schedule)
        view = self._view
        return await view.engine.write(
            schedules.change, view.tenant, schedule, schedule_changes.resumed
        )

    async def run_now(self, schedule: str, request: str) -> RanNow:
        """Let it happen now, besides its instants and even when it is paused; once for each
        request."""
        check_schedule(schedule)
        check_id("request", request)
        view = self._view
        run = await view.engine.write(
            schedules.run_now, view.tenant, schedule, request, view.limits
        )
        self._told(run.ran)
        return run

    def _told(self, happened: bool) -> None:
        """Tell who waits for something to do."""
        if happened:
            self._view.engine.publish((topics.processes(self._view.tenant),))

    async def delete(self, schedule: str) -> bool:
        """Remove a schedule with what was skipped of it; what has fired stays. False when there was
        none."""
        check_schedule(schedule)
        return await self._view.engine.write(schedules.delete, self._view.tenant, schedule)

    async def next(self, schedule: str, *, limit: int = 10) -> tuple[int, ...]:
        """The next instants that fire when somebody ticks in time; of a paused schedule, those that
        would if it were resumed now."""
        check_schedule(schedule)
        view = self._view
        return await view.engine.read(
            schedules.next_instants, view.tenant, schedule, view.page(limit)
        )

    async def skipped(
        self, schedule: str, *, after: str | None = None, limit: int = 100
    ) -> Page[Skipped]:
        """A page of what was skipped of a schedule, in order."""
        check_schedule(schedule)
        view = self._view
        place = schedule_changes.skip_place(after)
        size = view.page(limit)
        return await view.engine.read(schedules.skipped, view.tenant, schedule, place, size)

    async def tick(self, *, limit: int = 100) -> Ticked:
        """Decide what is due of all schedules, and start what is subscribed to it. At most `limit`
        instants fire, shared out among the schedules; any number of workers may tick at once."""
        view = self._view
        size = view.page(limit)
        ticked = await view.engine.write(schedules.tick, view.tenant, size, view.limits)
        self._told(bool(ticked.fired))
        return ticked
