"""The operations on queued work: enqueue, claim, give back, cancel, and reading it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.contract.errors import Corrupt, StoreBusy
from holdfast.contract.queue import (
    Claim,
    Claimed,
    ClaimedNext,
    Enqueued,
    Work,
    WorkCounts,
)
from holdfast.contract.records import Fence, Holder, Lane, Page
from holdfast.core import queue, sessions
from holdfast.core.turns import fence_params
from holdfast.ops.lanes import RELEASE
from holdfast.ops.op import ASK_AGAIN, Op, Stmt, call, guarded, guarded_rows, one

Row = tuple[Any, ...]


def _row(*row: Any) -> Row:
    return row


ENQUEUE = Stmt("queue.enqueue", _row, queue.EnqueueFacts)
CLAIM = Stmt("queue.claim", _row, queue.LaneFacts)
RENEW = Stmt("queue.renew", _row, sessions.Known)
ABANDON: Stmt[int, None] = Stmt("queue.abandon", int)
CANCEL: Stmt[Row, None] = Stmt("queue.cancel", _row)
REQUEUE = Stmt("queue.requeue", _row, queue.RequeueFacts)
PRUNE: Stmt[int, None] = Stmt("queue.prune", int)
GET: Stmt[Row, None] = Stmt("queue.get", _row)
BY_KEY: Stmt[Row, None] = Stmt("queue.by_key", _row)
LIST: Stmt[Row, None] = Stmt("queue.list", _row)
DEAD: Stmt[Row, None] = Stmt("queue.dead", _row)
COUNTS: Stmt[tuple[str, int], None] = Stmt("queue.counts", lambda state, n: (state, n))
COUNTS_OF_ALL: Stmt[tuple[str, int], None] = Stmt(
    "queue.counts_of_all", lambda state, n: (state, n)
)
WHY: Stmt[queue.Waiting, None] = Stmt("queue.why", queue.Waiting)


def enqueue(params: dict[str, Any]) -> Op[Enqueued]:
    """Put work into an inbox. When its key, or its id, is there already, answer what is there; when
    that was removed at the same moment, ask again."""
    tenant, session = params["tenant"], params["session"]
    for _ in range(ASK_AGAIN):
        done = yield from guarded(ENQUEUE, queue.explain_enqueue(session), params)
        assert done is not None
        if done[0]:
            return Enqueued(enqueued=True, work=queue.fresh_work(params, *done[1:]))
        found = yield from get(tenant, session, params["work"])
        if found is None and params["key"] is not None:
            row = yield from one(BY_KEY, tenant=tenant, session=session, key=params["key"])
            found = None if row is None else queue.work_of(tenant, bool(row[0]), row[1:])
        if found is not None:
            return Enqueued(enqueued=False, work=found)
    raise StoreBusy(reason=f"the work that has the key was removed {ASK_AGAIN} times in a row")


@dataclass(frozen=True, slots=True)
class Wish:
    """What a claim asks for. Without a session it is the next one, with a lane of `lane_ttl_ms`."""

    session: str | None
    owner: str
    fence: Fence | None
    boundary: str
    kind: str
    limit: int
    exact: list[tuple[str]]
    ttl_ms: int
    lane_ttl_ms: int
    claim: str
    claim_token: str
    lane_token: str

    def params(self, tenant: str) -> dict[str, Any]:
        """The wish as parameters."""
        return {
            "tenant": tenant,
            "session": self.session,
            "next": self.session is None,
            "owner": self.owner,
            **fence_params(self.session or "", self.fence),
            "boundary": self.boundary,
            "kind": self.kind,
            "limit": self.limit,
            "exact": self.exact,
            "ttl_ms": self.ttl_ms,
            "lane_ttl_ms": self.lane_ttl_ms,
            "claim": self.claim,
            "claim_token": self.claim_token,
            "lane_token": self.lane_token,
        }


def _taken(tenant: str, wish: Wish) -> Op[list[Row]]:
    """The rows of a claim, or one that says why there are none."""
    explain = queue.explain_claim_work(wish.session or "", wish.fence)
    rows: list[Row] = []
    for _ in range(ASK_AGAIN):
        found = yield from guarded_rows(CLAIM, explain, wish.params(tenant))
        assert found is not None
        rows = found
        if rows[0][0] != "again":
            break
    return rows


def claim(tenant: str, wish: Wish) -> Op[Claimed]:
    """Claim work of one session."""
    rows = yield from _taken(tenant, wish)
    why_not, next_at_ms = rows[0][:2]
    if why_not is not None:
        return Claimed(why_not=why_not, next_at_ms=next_at_ms)
    return Claimed(claim=(yield from _claim(tenant, wish, rows)))


def claim_next(tenant: str, wish: Wish) -> Op[ClaimedNext]:
    """Claim the work of the next session that has some and no holder, with its lane."""
    rows = yield from _taken(tenant, wish)
    why_not, next_at_ms, generation, until_ms, owner, old_generation, expires = rows[0][:7]
    if why_not is not None:
        return ClaimedNext(
            why_not="contended" if why_not == "again" else why_not, next_at_ms=next_at_ms
        )
    taken = yield from _claim(tenant, wish, rows)
    displaced = None
    if owner is not None and expires is not None:
        displaced = Holder(owner=owner, generation=old_generation, expires_at_ms=expires)
    lane = Lane(
        session=taken.session,
        owner=wish.owner,
        token=wish.lane_token,
        generation=generation,
        claimed_at_ms=taken.claimed_at_ms,
        expires_at_ms=until_ms,
        displaced=displaced,
    )
    return ClaimedNext(lane=lane, claim=taken)


def _claim(tenant: str, wish: Wish, rows: list[Row]) -> Op[Claim]:
    """The claim of these rows. One that cannot be read is given back, with its lane, so that it
    is not held by nobody where the statement was a transaction of its own."""
    generation, redelivered = rows[0][2], rows[0][7]
    try:
        works = tuple(queue.work_of(tenant, True, row[10:]) for row in rows)
    except Corrupt as damage:
        held = {"tenant": tenant, "session": rows[0][10]}
        token = {"claim": wish.claim, "claim_token": wish.claim_token}
        yield from one(ABANDON, **held, **token, error=damage.reason, delay_ms=0, dead=False)
        if wish.session is None:
            fence = {"fence_owner": wish.owner, "fence_token": wish.lane_token}
            yield from call(RELEASE, **held, **fence, fence_generation=generation)
        raise
    return Claim(
        session=works[0].session,
        claim=wish.claim,
        token=wish.claim_token,
        owner=wish.owner,
        generation=generation,
        claimed_at_ms=rows[0][8],
        expires_at_ms=rows[0][9],
        work=works,
        redelivered=bool(redelivered),
    )


def renew(tenant: str, claim: Claim, ttl_ms: int) -> Op[Claim]:
    """Move the expiry of a claim that has no lane."""
    params = {**queue.claim_params(tenant, claim), "ttl_ms": ttl_ms}
    done = yield from guarded(RENEW, queue.explain_renew_claim(claim), params)
    assert done is not None
    return queue.renewed(claim, done[1])


def abandon(tenant: str, claim: Claim, error: str | None, delay_ms: int, dead: bool) -> Op[int]:
    """Give claimed work back; how much was still owned."""
    params = queue.claim_params(tenant, claim)
    returned = yield from one(ABANDON, **params, error=error, delay_ms=delay_ms, dead=dead)
    return returned or 0


def cancel(tenant: str, session: str, work: str) -> Op[Work | None]:
    """Remove work that nobody holds. It is read first, so that what is damaged is not removed."""
    if (yield from get(tenant, session, work)) is None:
        return None
    row = yield from one(CANCEL, tenant=tenant, session=session, work=work)
    return None if row is None else queue.work_of(tenant, bool(row[0]), row[1:])


def requeue(tenant: str, session: str, work: str, delay_ms: int) -> Op[Work]:
    """Put dead work back. It is read first, so that what is damaged stays as it is."""
    yield from get(tenant, session, work)
    params = {"tenant": tenant, "session": session, "work": work, "delay_ms": delay_ms}
    row = yield from guarded(REQUEUE, queue.explain_requeue(session, work), params)
    assert row is not None
    return queue.work_of(tenant, bool(row[0]), row[1:])


def prune(tenant: str, limit: int) -> Op[int]:
    """Forget keys whose time is over."""
    return (yield from one(PRUNE, tenant=tenant, limit=limit)) or 0


def get(tenant: str, session: str, work: str) -> Op[Work | None]:
    """One work."""
    row = yield from one(GET, tenant=tenant, session=session, work=work)
    return None if row is None else queue.work_of(tenant, bool(row[0]), row[1:])


def list_page(
    tenant: str, session: str, states: list[tuple[str]], after: int, limit: int
) -> Op[Page[Work]]:
    """A page of an inbox, in order."""
    rows = yield from call(
        LIST, tenant=tenant, session=session, states=states, after=after, limit=limit + 1
    )
    shown = tuple(queue.work_of(tenant, bool(row[0]), row[1:]) for row in rows[:limit])
    return Page(items=shown, next=str(shown[-1].seq) if len(rows) > limit else None)


def dead_page(tenant: str, after: tuple[str, int], limit: int) -> Op[Page[Work]]:
    """A page of the dead work of all sessions."""
    rows = yield from call(
        DEAD, tenant=tenant, after_session=after[0], after=after[1], limit=limit + 1
    )
    shown = tuple(queue.work_of(tenant, bool(row[0]), row[1:]) for row in rows[:limit])
    more = f"{shown[-1].seq}.{shown[-1].session}" if len(rows) > limit else None
    return Page(items=shown, next=more)


def counts(tenant: str, session: str | None) -> Op[WorkCounts]:
    """How much work there is in each state."""
    if session is None:
        rows = yield from call(COUNTS_OF_ALL, tenant=tenant)
    else:
        rows = yield from call(COUNTS, tenant=tenant, session=session)
    return queue.counted(rows)


def why(tenant: str, session: str, boundary: str, kind: str) -> Op[Claimed]:
    """Why a claim would find nothing; changes nothing."""
    found = yield from one(WHY, tenant=tenant, session=session)
    assert found is not None
    return queue.why_not(session, found, boundary, kind)
