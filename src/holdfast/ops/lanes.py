"""The operations on lanes: claim, renew, release, read and displace."""

from __future__ import annotations

from typing import Any

from holdfast.contract.records import Fence, Holder, Lane, LaneStatus
from holdfast.core import sessions
from holdfast.core.turns import fence_params
from holdfast.ops.op import Op, Stmt, guarded, one

Grant = tuple[int, int, int, str | None, int, int | None, bool]


def _status(*row: Any) -> LaneStatus:
    session, owner, generation, claimed_at_ms, expires_at_ms, live = row
    return LaneStatus(
        session=session,
        owner=owner,
        generation=generation,
        claimed_at_ms=claimed_at_ms,
        expires_at_ms=expires_at_ms,
        live=bool(live),
    )


def _grant(*row: Any) -> Grant:
    return row


def _times(claimed_at_ms: int, expires_at_ms: int) -> tuple[int, int]:
    return claimed_at_ms, expires_at_ms


CLAIM = Stmt("lanes.claim", _grant, sessions.ClaimFacts)
RENEW = Stmt("lanes.renew", _times, sessions.Known)
RELEASE = Stmt("lanes.release", bool, sessions.Known)
READ: Stmt[LaneStatus, None] = Stmt("lanes.read", _status)
DISPLACE = Stmt("lanes.displace", int, sessions.DisplaceFacts)


def claim(tenant: str, session: str, owner: str, token: str, ttl_ms: int) -> Op[Lane]:
    """Take the lane. The token is the caller's, so that a repeated claim gets the same grant."""
    params = {
        "tenant": tenant,
        "session": session,
        "owner": owner,
        "token": token,
        "ttl_ms": ttl_ms,
    }
    grant = yield from guarded(CLAIM, sessions.explain_claim(session), params)
    generation, claimed_at_ms, expires_at_ms, old_owner, old_generation, old_expires, lapsed = grant
    displaced = None
    if lapsed and old_owner is not None and old_expires is not None:
        displaced = Holder(owner=old_owner, generation=old_generation, expires_at_ms=old_expires)
    return Lane(
        session=session,
        owner=owner,
        token=token,
        generation=generation,
        claimed_at_ms=claimed_at_ms,
        expires_at_ms=expires_at_ms,
        displaced=displaced,
    )


def renew(tenant: str, fence: Fence, ttl_ms: int) -> Op[Lane]:
    """Move the expiry of a live lane."""
    params = {
        "tenant": tenant,
        "session": fence.session,
        "ttl_ms": ttl_ms,
        **fence_params(fence.session, fence),
    }
    times = yield from guarded(RENEW, sessions.explain_renew(fence.session), params)
    return Lane(
        session=fence.session,
        owner=fence.owner,
        token=fence.token,
        generation=fence.generation,
        claimed_at_ms=times[0],
        expires_at_ms=times[1],
    )


def release(tenant: str, fence: Fence) -> Op[bool]:
    """Give the lane back; False when it was not this fence's any more."""
    params = {"tenant": tenant, "session": fence.session, **fence_params(fence.session, fence)}
    return (yield from guarded(RELEASE, lambda facts: False, params))


def read(tenant: str, session: str) -> Op[LaneStatus | None]:
    """Who holds the lane."""
    return (yield from one(READ, tenant=tenant, session=session))


def displace(tenant: str, session: str) -> Op[LaneStatus]:
    """Take the lane from its holder."""
    params = {"tenant": tenant, "session": session}
    generation = yield from guarded(DISPLACE, sessions.explain_displace(session), params)
    return LaneStatus(
        session=session,
        owner=None,
        generation=generation or 0,
        claimed_at_ms=None,
        expires_at_ms=None,
        live=False,
    )
