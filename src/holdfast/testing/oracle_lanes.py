"""The oracle's lanes: who may work on a session, and until when.

A lane that lapsed stays with its last holder until it is given back, claimed or displaced; only
then does it name nobody.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.contract.errors import LaneBusy, LaneLost, SessionDeleted, SessionUnknown
from holdfast.contract.records import Fence, Holder, Lane, LaneStatus
from holdfast.testing.oracle_rows import StoredLane, StoredSession


class OracleLanes:
    """The sessions of one tenant, and the lanes of them."""

    def __init__(self, clock: Callable[[], int], new_id: Callable[[], str]) -> None:
        self._clock = clock
        self._new_id = new_id
        self._sessions: dict[str, StoredSession] = {}

    def _live(self, session: str) -> StoredSession:
        found = self._sessions.get(session)
        if found is None:
            raise SessionUnknown(session=session)
        if found.deleted:
            raise SessionDeleted(session=session)
        return found

    def _seen(self, session: str) -> StoredSession | None:
        found = self._sessions.get(session)
        return None if found is None or found.deleted else found

    def _live_lane(self, found: StoredSession) -> StoredLane | None:
        lane = found.lane
        return lane if lane is not None and lane.expires_at_ms > self._clock() else None

    def _holds(self, found: StoredSession, fence: Fence) -> bool:
        lane = found.lane
        return lane is not None and (lane.owner, lane.token, found.generation) == (
            fence.owner,
            fence.token,
            fence.generation,
        )

    def _busy(self, found: StoredSession, lane: StoredLane) -> LaneBusy:
        return LaneBusy(
            session=found.id,
            owner=lane.owner,
            generation=found.generation,
            expires_at_ms=lane.expires_at_ms,
        )

    def claim(self, session: str, owner: str, *, ttl_ms: int = 30_000) -> Lane:
        token = self._new_id()
        found = self._live(session)
        now, was, live = self._clock(), found.lane, self._live_lane(found)
        displaced = None
        if live is not None:
            if live.owner != owner:
                raise self._busy(found, live)
            claimed_at_ms = live.claimed_at_ms
        else:
            claimed_at_ms = now
            if was is not None:
                displaced = Holder(
                    owner=was.owner,
                    generation=found.generation,
                    expires_at_ms=was.expires_at_ms,
                )
            found.generation += 1
        found.lane = StoredLane(owner, token, claimed_at_ms, now + ttl_ms)
        return self._granted(found, found.lane, displaced)

    def _granted(self, found: StoredSession, lane: StoredLane, displaced: Holder | None) -> Lane:
        return Lane(
            session=found.id,
            owner=lane.owner,
            token=lane.token,
            generation=found.generation,
            claimed_at_ms=lane.claimed_at_ms,
            expires_at_ms=lane.expires_at_ms,
            displaced=displaced,
        )

    def renew(self, fence: Fence, *, ttl_ms: int = 30_000) -> Lane:
        found = self._live(fence.session)
        lane = self._live_lane(found)
        if lane is None or not self._holds(found, fence):
            raise LaneLost(session=fence.session)
        lane.expires_at_ms = self._clock() + ttl_ms
        return self._granted(found, lane, None)

    def release(self, fence: Fence) -> bool:
        found = self._seen(fence.session)
        if found is None or not self._holds(found, fence):
            return False
        found.lane = None
        return True

    def read(self, session: str) -> LaneStatus | None:
        found = self._seen(session)
        if found is None:
            return None
        lane = found.lane
        return LaneStatus(
            session=session,
            owner=None if lane is None else lane.owner,
            generation=found.generation,
            claimed_at_ms=None if lane is None else lane.claimed_at_ms,
            expires_at_ms=None if lane is None else lane.expires_at_ms,
            live=self._live_lane(found) is not None,
        )

    def displace(self, session: str) -> LaneStatus:
        found = self._live(session)
        found.lane = None
        found.generation += 1
        status = self.read(session)
        assert status is not None
        return status
