"""The facade of queued work: what waits for a session, and who has taken it."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.contract.errors import Invalid
from holdfast.contract.limits import MAX_DELAY_MS, MAX_INT
from holdfast.contract.queue import (
    Boundary,
    Claim,
    Claimed,
    ClaimedNext,
    Enqueued,
    NewWork,
    Wanted,
    Work,
    WorkCounts,
    WorkState,
)
from holdfast.contract.records import Fence, Page
from holdfast.core import topics
from holdfast.core.cursors import cursor_named, cursor_number
from holdfast.core.payloads import check_id, check_int
from holdfast.core.queue import STATES, check_claim, check_error, plan_enqueue
from holdfast.core.sessions import check_ttl
from holdfast.ops import queue
from holdfast.stores.view import View

MINUTES_MS = 5 * 60_000


class Queue:
    """Queued work: the inbox of each session."""

    def __init__(self, view: View) -> None:
        self._view = view

    async def enqueue(self, work: NewWork) -> Enqueued:
        """Put work into the inbox of a session. The same key again enqueues nothing."""
        view = self._view
        params = plan_enqueue(work, tenant=view.tenant, work=view.new_id(), limits=view.limits)
        answer = await view.engine.write(queue.enqueue, params)
        if answer.enqueued:
            self._changed(work.session)
        return answer

    async def claim(
        self,
        session: str,
        owner: str,
        *,
        fence: Fence | None = None,
        boundary: Boundary = "idle",
        kind: Wanted = "any",
        limit: int = 64,
        works: Sequence[str] | None = None,
        ttl_ms: int = MINUTES_MS,
    ) -> Claimed:
        """Take work from the head of an inbox, to settle it in a turn. With a fence the claim lives
        as long as the lane; without one the lane must be free, and it lives for `ttl_ms`. `works`
        asks for exactly these, in order, or nothing."""
        view = self._view
        exact = check_claim(
            session, boundary=boundary, kind=kind, limit=limit, works=works, limits=view.limits
        )
        check_id("owner", owner)
        check_ttl(ttl_ms)
        if limit == 0 or (works is not None and not works):
            return Claimed(why_not="zero-limit")
        wish = queue.Wish(
            session=session,
            owner=owner,
            fence=fence,
            boundary=boundary,
            kind=kind,
            limit=len(exact) or limit,
            exact=exact,
            ttl_ms=ttl_ms,
            lane_ttl_ms=0,
            claim=view.new_id(),
            claim_token=view.new_id(),
            lane_token="",
        )
        return await view.engine.write(queue.claim, view.tenant, wish)

    async def claim_next(
        self, owner: str, *, lane_ttl_ms: int = 30_000, limit: int = 64
    ) -> ClaimedNext:
        """Take the work of the session that has waited longest and that nobody holds: its lane and
        a claim under it."""
        view = self._view
        check_claim(None, boundary="idle", kind="any", limit=limit, works=None, limits=view.limits)
        check_id("owner", owner)
        check_ttl(lane_ttl_ms, field="lane_ttl_ms")
        if limit == 0:
            return ClaimedNext(why_not="zero-limit")
        wish = queue.Wish(
            session=None,
            owner=owner,
            fence=None,
            boundary="idle",
            kind="any",
            limit=limit,
            exact=[],
            ttl_ms=0,
            lane_ttl_ms=lane_ttl_ms,
            claim=view.new_id(),
            claim_token=view.new_id(),
            lane_token=view.new_id(),
        )
        return await view.engine.write(queue.claim_next, view.tenant, wish)

    async def renew(self, claim: Claim, *, ttl_ms: int = MINUTES_MS) -> Claim:
        """Move the expiry of a claim that has no lane, or raise `ClaimLost`. One that has a lane
        lives as long as the lane: renew that."""
        check_ttl(ttl_ms)
        if claim.generation is not None:
            raise Invalid(field="claim", reason="it lives as long as its lane: renew the lane")
        return await self._view.engine.write(queue.renew, self._view.tenant, claim, ttl_ms)

    async def abandon(
        self, claim: Claim, *, error: str | None = None, delay_ms: int = 0, dead: bool = False
    ) -> int:
        """Give claimed work back, to be claimed again after `delay_ms`, or as dead. How much was
        still held; 0 when the claim was lost meanwhile."""
        view = self._view
        check_int("delay_ms", delay_ms, 0, MAX_DELAY_MS)
        kept = check_error(error, view.limits)
        given = await view.engine.write(queue.abandon, view.tenant, claim, kept, delay_ms, dead)
        if given:
            self._changed(claim.session)
        return given

    async def cancel(self, session: str, work: str) -> Work | None:
        """Remove work that is not done and that nobody holds, and answer it; None otherwise."""
        check_id("session", session)
        check_id("work", work)
        view = self._view
        removed = await view.engine.write(queue.cancel, view.tenant, session, work)
        if removed is not None:
            self._changed(session)
        return removed

    async def requeue(self, session: str, work: str, *, delay_ms: int = 0) -> Work:
        """Put dead work back at its place, with no attempt counted."""
        check_id("session", session)
        check_id("work", work)
        check_int("delay_ms", delay_ms, 0, MAX_DELAY_MS)
        view = self._view
        put_back = await view.engine.write(queue.requeue, view.tenant, session, work, delay_ms)
        self._changed(session)
        return put_back

    async def get(self, session: str, work: str) -> Work | None:
        """One work, or None."""
        check_id("session", session)
        check_id("work", work)
        return await self._view.engine.read(queue.get, self._view.tenant, session, work)

    async def list(
        self,
        session: str,
        *,
        states: Sequence[WorkState] = STATES,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[Work]:
        """A page of the inbox of a session, in its order."""
        view = self._view
        check_id("session", session)
        for at, state in enumerate(states):
            if state not in STATES:
                raise Invalid(field=f"states[{at}]", reason=f"it is one of {', '.join(STATES)}")
        rows = [(state,) for state in dict.fromkeys(states)]
        place = cursor_number("after", after, -1 - MAX_INT)
        size = view.page(limit)
        return await view.engine.read(queue.list_page, view.tenant, session, rows, place, size)

    async def dead(self, *, after: str | None = None, limit: int = 100) -> Page[Work]:
        """A page of the dead work of all sessions."""
        view = self._view
        number, session = cursor_named("after", after, (0, ""))
        place = (session, number)
        return await view.engine.read(queue.dead_page, view.tenant, place, view.page(limit))

    async def counts(self, *, session: str | None = None) -> WorkCounts:
        """How much work there is in each state, of one session or of all; counted, so exact."""
        if session is not None:
            check_id("session", session)
        return await self._view.engine.read(queue.counts, self._view.tenant, session)

    async def why(
        self, session: str, *, boundary: Boundary = "idle", kind: Wanted = "any"
    ) -> Claimed:
        """Why a claim would find nothing now, whoever holds the lane; no reason when it would find
        something. Changes nothing."""
        view = self._view
        check_claim(session, boundary=boundary, kind=kind, limit=1, works=None, limits=view.limits)
        return await view.engine.read(queue.why, view.tenant, session, boundary, kind)

    async def prune(self, *, limit: int = 1000) -> int:
        """Forget keys of settled work whose time is over, so many at a time; how many."""
        return await self._view.engine.write(queue.prune, self._view.tenant, self._view.page(limit))

    def _changed(self, session: str) -> None:
        """Tell who waits for work that there may be some, here and in general."""
        view = self._view
        view.engine.publish(topics.inbox(view.tenant, session))
