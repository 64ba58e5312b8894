"""The oracle's queue: the work that waits for a session, who has taken it, and whether that lasts.

A claim is never taken back by anybody: it holds as long as its lane or its time, and nothing when
that is over. Where the contract leaves a choice, the oracle takes the one the stores took: what
died with its last claim is told why when its session is next looked at by somebody who may claim;
a claim finds its fault before it finds that its lane is another's.

Which session has waited longest depends on what a store remembers of the past, so the oracle is
told which one was taken, and judges whether it could be.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.contract.errors import ClaimLost, Invalid, LaneLost, WorkNotDead, WorkUnknown
from holdfast.contract.queue import (
    Claim,
    Claimed,
    ClaimedNext,
    Enqueued,
    NewWork,
    WakeOrigin,
    Work,
    WorkCounts,
    WorkItem,
    WorkState,
)
from holdfast.contract.records import Fence, Holder, Page, Turn, WorkClaim
from holdfast.testing.oracle_lanes import OracleLanes
from holdfast.testing.oracle_rows import (
    StoredClaim,
    StoredLane,
    StoredSession,
    StoredWork,
    page_of,
)
from holdfast.testing.oracle_turns import require_fence

GONE = "whoever had claimed it went away"
STATES: tuple[WorkState, ...] = ("ready", "delayed", "claimed", "dead", "done")


class OracleQueue:
    """The queue of one tenant. The methods are those of the facade."""

    def __init__(self, lanes: OracleLanes) -> None:
        self._lanes = lanes
        self.told: str | None = None

    # --- what there is

    def _now(self) -> int:
        return self._lanes._clock()

    def _sessions(self) -> list[StoredSession]:
        return [found for found in self._lanes._sessions.values() if not found.deleted]

    def _holds(self, found: StoredSession, claim: StoredClaim) -> bool:
        """Whether a claim holds its work: as long as its lane is live, or until its time."""
        if claim.generation is None:
            return claim.expires_at_ms is not None and claim.expires_at_ms > self._now()
        live = self._lanes._live_lane(found)
        return live is not None and claim.generation == found.generation

    def _held(self, found: StoredSession, work: StoredWork) -> bool:
        return work.claim is not None and self._holds(found, work.claim)

    def _state(self, found: StoredSession, work: StoredWork) -> WorkState:
        if work.settled_by is not None:
            return "done"
        if self._held(found, work):
            return "claimed"
        if work.dead or self._spent(work):
            return "dead"
        return "delayed" if work.available_at_ms > self._now() else "ready"

    def _record(self, found: StoredSession, work: StoredWork) -> Work:
        held = self._held(found, work)
        items = work.bodies if work.settled_by is None else ()
        return Work(
            session=found.id,
            work=work.id,
            seq=work.seq,
            key=work.new.key,
            kind=work.new.kind,
            delivery=work.new.delivery,
            slot=work.new.slot,
            merge=work.new.merge,
            state=self._state(found, work),
            available_at_ms=work.available_at_ms,
            enqueued_at_ms=work.enqueued_at_ms,
            items=tuple(
                WorkItem(id=f"{work.id}:item:{at}", body=body) for at, body in enumerate(items)
            ),
            attempts=work.attempts,
            max_attempts=work.new.max_attempts,
            last_error=work.last_error,
            claimed_by=work.claim.owner if work.claim is not None and held else None,
            settled_by=work.settled_by,
            wake=work.wake,
        )

    def _find(self, session: str, work: str) -> tuple[StoredSession, StoredWork] | None:
        found = self._lanes._seen(session)
        for one in found.work if found is not None else ():
            if one.id == work and found is not None:
                return found, one
        return None

    # --- putting work in

    def enqueue(self, work: NewWork, *, wake: WakeOrigin | None = None) -> Enqueued:
        name = self._lanes._new_id()
        if wake is None and (work.key or "").startswith("process:"):
            raise Invalid(field="key", reason="of wakes")
        found = self._lanes._live(work.session)
        now = self._now()
        for old in list(found.work) if work.key is not None else ():
            if old.new.key == work.key:
                if old.settled_by is None or old.kept_until_ms > now:
                    return Enqueued(enqueued=False, work=self._record(found, old))
                found.work.remove(old)
        found.work_count += 1
        bodies = tuple(
            body if isinstance(body, bytes) else msgspec.json.encode(body) for body in work.payloads
        )
        at_ms = max(work.available_at_ms, now + work.delay_ms)
        made = StoredWork(name, found.work_count, work, bodies, now, at_ms, wake)
        found.work.append(made)
        return Enqueued(enqueued=True, work=self._record(found, made))

    # --- taking it

    def claim(
        self,
        session: str,
        owner: str,
        *,
        fence: Fence | None = None,
        boundary: str = "idle",
        kind: str = "any",
        limit: int = 64,
        works: Sequence[str] | None = None,
        ttl_ms: int = 300_000,
    ) -> Claimed:
        if limit == 0 or (works is not None and not works):
            return Claimed(why_not="zero-limit")
        ids = self._lanes._new_id(), self._lanes._new_id()
        require_fence(session, fence)
        found = self._lanes._live(session)
        live = self._lanes._live_lane(found)
        if fence is not None and (live is None or not self._lanes._holds(found, fence)):
            raise LaneLost(session=session)
        if fence is None and live is not None:
            raise self._lanes._busy(found, live)
        self._bury(found)
        refusal = self._refusal(found, boundary, kind)
        if refusal is not None:
            return refusal
        chosen = self._chosen(found, len(works) if works is not None else limit)
        if works is not None and list(works) != [work.id for work in chosen]:
            return Claimed(why_not="not-at-head")
        lasts = (found.generation, None) if fence is not None else (None, self._now() + ttl_ms)
        return Claimed(claim=self._take(found, chosen, StoredClaim(*ids, owner, *lasts)))

    def _bury(self, found: StoredSession) -> None:
        """What has been claimed as often as it may be, and is not held any more, is dead."""
        for work in found.work:
            if self._spent(work) and not self._held(found, work):
                work.dead, work.claim = True, None
                work.last_error = work.last_error if work.last_error is not None else GONE

    def _claimable(self, found: StoredSession) -> list[StoredWork]:
        return [work for work in found.work if self._state(found, work) == "ready"]

    def _refusal(self, found: StoredSession, boundary: str, kind: str) -> Claimed | None:
        """Why nothing can be claimed, in the order the contract lists the reasons."""
        there = self._claimable(found)
        if not there:
            times = [
                work.available_at_ms for work in found.work if self._state(found, work) == "delayed"
            ]
            held = [work.claim for work in found.work if self._held(found, work)]
            times += [claim.expires_at_ms for claim in held if claim and claim.expires_at_ms]
            if held:
                return Claimed(why_not="claimed", next_at_ms=min(times, default=None))
            if not times:
                return Claimed(why_not="empty")
            return Claimed(why_not="not-yet-available", next_at_ms=min(times))
        head = there[0].new
        if boundary == "checkpoint" and head.delivery != "earliest":
            return Claimed(why_not="boundary")
        if kind not in ("any", head.kind):
            return Claimed(why_not="command-at-head" if head.kind == "command" else "turn-at-head")
        return None

    def _chosen(self, found: StoredSession, limit: int) -> list[StoredWork]:
        """The head with what joins it. What was claimed together is claimed together again."""
        there = self._claimable(found)
        head = there[0]
        if head.claim is not None:
            again = head.claim.id
            return [work for work in there if work.claim is not None and work.claim.id == again]
        chosen = [head]
        for work in there[1:limit]:
            one, two = head.new, work.new
            if (
                work.claim is not None
                or one.merge is None
                or "command" in (one.kind, two.kind)
                or "exclusive" in (one.slot, two.slot)
                or (one.merge, one.delivery) != (two.merge, two.delivery)
            ):
                break
            chosen.append(work)
        return chosen

    def _take(self, found: StoredSession, chosen: list[StoredWork], claim: StoredClaim) -> Claim:
        redelivered = chosen[0].claim is not None
        for work in chosen:
            work.claim = claim
            work.attempts += 1
        # Work of a claim that has no time left is shown as it is in the answer: claimed.
        shown = [
            msgspec.structs.replace(
                self._record(found, work), state="claimed", claimed_by=claim.owner
            )
            for work in chosen
        ]
        return Claim(
            session=found.id,
            claim=claim.id,
            token=claim.token,
            owner=claim.owner,
            generation=claim.generation,
            claimed_at_ms=self._now(),
            expires_at_ms=claim.expires_at_ms,
            work=tuple(shown),
            redelivered=redelivered,
        )

    def choices(self) -> list[str]:
        """The sessions that somebody who takes the next one may get."""
        free = [found for found in self._sessions() if self._lanes._live_lane(found) is None]
        return [found.id for found in free if self._claimable(found)]

    def undecided(self) -> bool:
        """Whether some work would be dead if its session were looked at."""
        return any(
            work.claim is not None and self._spent(work) and not self._held(found, work)
            for found in self._sessions()
            for work in found.work
        )

    def _spent(self, work: StoredWork) -> bool:
        most = work.new.max_attempts
        return work.claim is not None and most is not None and work.attempts >= most

    def claim_next(self, owner: str, *, lane_ttl_ms: int = 30_000, limit: int = 64) -> ClaimedNext:
        if limit == 0:
            return ClaimedNext(why_not="zero-limit")
        ids = self._lanes._new_id(), self._lanes._new_id()
        token = self._lanes._new_id()
        choices = self.choices()
        if not choices:
            waiting = any(
                self._state(found, work) not in ("dead", "done")
                for found in self._sessions()
                for work in found.work
            )
            return ClaimedNext(why_not="not-yet-available" if waiting else "empty")
        name = self.told if self.told in choices else choices[0]
        found = self._lanes._live(name)
        was = found.lane
        displaced = None
        if was is not None:
            displaced = Holder(
                owner=was.owner, generation=found.generation, expires_at_ms=was.expires_at_ms
            )
        self._bury(found)
        chosen = self._chosen(found, limit)
        now = self._now()
        found.generation += 1
        found.lane = StoredLane(owner, token, now, now + lane_ttl_ms)
        lane = self._lanes._granted(found, found.lane, displaced)
        claim = StoredClaim(*ids, owner, found.generation, None)
        return ClaimedNext(lane=lane, claim=self._take(found, chosen, claim))

    # --- keeping it, giving it back

    def holds(self, claim: Claim) -> bool:
        """Whether a claim holds work."""
        return bool(self._still(claim))

    def _still(self, claim: Claim) -> list[StoredWork]:
        """The work that a claim holds."""
        found = self._lanes._seen(claim.session)
        return [
            work
            for work in (found.work if found is not None else ())
            if found is not None
            and work.claim is not None
            and (work.claim.id, work.claim.token) == (claim.claim, claim.token)
            and self._held(found, work)
        ]

    def renew(self, claim: Claim, *, ttl_ms: int = 300_000) -> Claim:
        if claim.generation is not None:
            raise Invalid(field="claim", reason="it has a lane")
        _require_work(claim)
        self._lanes._live(claim.session)
        held = self._still(claim)
        old = held[0].claim if held else None
        if old is None or {work.id for work in held} != {work.work for work in claim.work}:
            raise ClaimLost(session=claim.session, claim=claim.claim)
        until = max(old.expires_at_ms or 0, self._now() + ttl_ms)
        for work in held:
            work.claim = StoredClaim(old.id, old.token, old.owner, None, until)
        return msgspec.structs.replace(claim, expires_at_ms=until)

    def abandon(
        self, claim: Claim, *, error: str | None = None, delay_ms: int = 0, dead: bool = False
    ) -> int:
        _require_work(claim)
        held = self._still(claim)
        for work in held:
            most = work.new.max_attempts
            work.claim = None
            work.dead = dead or (most is not None and work.attempts >= most)
            work.available_at_ms = self._now() + delay_ms
            work.last_error = error if error is not None else work.last_error
        return len(held)

    def cancel(self, session: str, work: str) -> Work | None:
        there = self._find(session, work)
        if there is None or self._state(*there) in ("done", "claimed"):
            return None
        gone = self._record(*there)
        there[0].work.remove(there[1])
        return gone

    def requeue(self, session: str, work: str, *, delay_ms: int = 0) -> Work:
        self._lanes._live(session)
        there = self._find(session, work)
        if there is None:
            raise WorkUnknown(session=session, work=work)
        state = self._state(*there)
        if state != "dead":
            raise WorkNotDead(session=session, work=work, state=state)
        there[1].dead, there[1].attempts, there[1].claim = False, 0, None
        there[1].available_at_ms = self._now() + delay_ms
        return self._record(*there)

    # --- settling it

    def lost(self, found: StoredSession, turn: Turn) -> str | None:
        """The first claim of a turn that does not hold exactly the work the turn names for it."""
        for claim in turn.claims:
            held = [
                work
                for work in found.work
                if work.claim is not None
                and work.claim.id == claim.claim
                and work.claim.token == claim.token
                and self._held(found, work)
            ]
            if not held or {work.id for work in held} != set(claim.work):
                return claim.claim
        return None

    def settle(self, found: StoredSession, turn: str, claims: Sequence[WorkClaim]) -> None:
        """Work with a key stays, without its payloads, as long as the key is kept."""
        settled = {work for claim in claims for work in claim.work}
        for work in [work for work in found.work if work.id in settled]:
            if work.new.key is None:
                found.work.remove(work)
            else:
                work.claim, work.settled_by = None, turn
                work.kept_until_ms = self._now() + work.new.keep_ms

    # --- looking at it

    def get(self, session: str, work: str) -> Work | None:
        there = self._find(session, work)
        return None if there is None else self._record(*there)

    def list(
        self,
        session: str,
        *,
        states: Sequence[WorkState] = STATES,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[Work]:
        found = self._lanes._seen(session)
        shown = [self._record(found, work) for work in found.work] if found is not None else []
        return page_of([work for work in shown if work.state in states], after, limit)

    def dead(self, *, after: str | None = None, limit: int = 100) -> Page[Work]:
        gone = [
            self._record(found, work)
            for found in sorted(self._sessions(), key=lambda found: found.id)
            for work in found.work
            if self._state(found, work) == "dead"
        ]
        return page_of(gone, after, limit)

    def counts(self, *, session: str | None = None) -> WorkCounts:
        states = [
            self._state(found, work)
            for found in self._sessions()
            for work in found.work
            if session in (None, found.id)
        ]
        return WorkCounts(**{state: states.count(state) for state in STATES})

    def why(self, session: str, *, boundary: str = "idle", kind: str = "any") -> Claimed:
        found = self._lanes._live(session)
        return self._refusal(found, boundary, kind) or Claimed()

    def prune(self, *, limit: int = 1000) -> int:
        """Which ones are forgotten first is left open, so it is asked to forget all."""
        forgotten = 0
        for found in self._sessions():
            over = [
                work
                for work in found.work
                if work.settled_by is not None and work.kept_until_ms <= self._now()
            ]
            for work in over[: limit - forgotten]:
                found.work.remove(work)
                forgotten += 1
        return forgotten


def _require_work(claim: Claim) -> None:
    if not claim.work:
        raise Invalid(field="claim.work", reason="a claim is of some work")
