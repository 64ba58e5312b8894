"""The facade of lanes: the right to work on a session."""

from __future__ import annotations

from holdfast.contract.records import Fence, Lane, LaneStatus
from holdfast.core import topics
from holdfast.core.payloads import check_id
from holdfast.core.sessions import check_ttl
from holdfast.core.turns import fence_params
from holdfast.ops import lanes
from holdfast.stores.view import View


class Lanes:
    """Lanes: the right to work on a session, one holder at a time."""

    def __init__(self, view: View) -> None:
        self._view = view

    async def claim(self, session: str, owner: str, *, ttl_ms: int = 30_000) -> Lane:
        """Take the lane, or raise `LaneBusy`. The same owner gets it again with a new token."""
        view = self._view
        check_id("session", session)
        check_id("owner", owner)
        check_ttl(ttl_ms)
        return await view.engine.write(
            lanes.claim, view.tenant, session, owner, view.new_id(), ttl_ms
        )

    async def renew(self, fence: Fence, *, ttl_ms: int = 30_000) -> Lane:
        """Move the expiry, or raise `LaneLost`. An expired lane cannot be renewed."""
        _check_fence(fence)
        check_ttl(ttl_ms)
        return await self._view.engine.write(lanes.renew, self._view.tenant, fence, ttl_ms)

    async def release(self, fence: Fence) -> bool:
        """Give the lane back. False when it was not held by this fence any more."""
        _check_fence(fence)
        view = self._view
        released = await view.engine.write(lanes.release, view.tenant, fence)
        if released:
            view.engine.publish(topics.inbox(view.tenant, fence.session))
        return released

    async def read(self, session: str) -> LaneStatus | None:
        """Who holds the lane. Changes nothing."""
        check_id("session", session)
        return await self._view.engine.read(lanes.read, self._view.tenant, session)

    async def displace(self, session: str) -> LaneStatus:
        """An operator's verb: take the lane from its holder, whose writes are refused from now."""
        check_id("session", session)
        view = self._view
        status = await view.engine.write(lanes.displace, view.tenant, session)
        view.engine.publish(topics.inbox(view.tenant, session))
        return status


def _check_fence(fence: Fence) -> None:
    fence_params(check_id("fence.session", fence.session), fence)
