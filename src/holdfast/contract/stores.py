"""What a holdfast store promises, as Protocols: the seam for anybody's backend.

Every method ends in exactly one of four ways: it returns (done), raises `Refused`, `Superseded` or
`Corrupt` (refused, nothing changed), raises `Unavailable` (not done, retryable), or raises
`OutcomeUnknown` (ask again with the same ids). A read of what is not there answers None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from holdfast.contract.background import ProcessStore, ScheduleStore, TriggerStore
from holdfast.contract.processes import Event, Process
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
from holdfast.contract.records import (
    Created,
    Deleted,
    Diff,
    Fence,
    Head,
    History,
    Lane,
    LaneStatus,
    Node,
    Page,
    Receipt,
    Revision,
    SessionInfo,
    Turn,
    UsageRow,
    UsageTotal,
    Vacuumed,
)

SessionOrder = Literal["active", "created"]
UsageGroup = Literal["session", "source", "model", "day"]


class SessionStore(Protocol):
    """Sessions: the catalog, the head, the turn commit, forks and revisions."""

    async def create(
        self, session: str, *, title: str = "", tags: Mapping[str, str] | None = None
    ) -> Created:
        """Make sure the session exists. An existing one is left as it is."""
        ...

    async def get(self, session: str) -> SessionInfo | None:
        """The session's catalog entry, or None when it does not exist (or was deleted)."""
        ...

    async def list(
        self,
        *,
        tags: Mapping[str, str] | None = None,
        forked_from: str | None = None,
        active_since_ms: int | None = None,
        order: SessionOrder = "active",
        after: str | None = None,
        limit: int = 100,
    ) -> Page[SessionInfo]:
        """A page of the catalog, newest first. Activity is ordered to the minute."""
        ...

    async def update(
        self,
        session: str,
        *,
        title: str | None = None,
        tags: Mapping[str, str | None] | None = None,
    ) -> SessionInfo:
        """Rename and tag. A tag given as None is removed, tags not named stay."""
        ...

    async def delete(self, session: str) -> Deleted:
        """Remove all the session owns, for ever: its id is never used again."""
        ...

    async def head(self, session: str) -> Head | None:
        """The head, from one row."""
        ...

    async def commit(self, turn: Turn) -> Receipt:
        """Commit a turn: all of it, or nothing. The same turn again returns its receipt."""
        ...

    async def receipt(self, session: str, turn: str) -> Receipt | None:
        """The receipt of a committed turn, or None."""
        ...

    async def fork(
        self,
        source: str,
        session: str,
        *,
        revision: int | None = None,
        node: str | None = None,
        title: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> Created:
        """A new session that begins where another one stands, or stood. Nothing is copied."""
        ...

    async def rewind(
        self,
        session: str,
        *,
        turn: str | None = None,
        revision: int | None = None,
        node: str | None = None,
        reason: str,
        expected: int | None = None,
        fence: Fence | None = None,
    ) -> Receipt:
        """Move the session's own leaf and state back, as a new revision that keeps the reason."""
        ...

    async def revisions(
        self, session: str, *, after: str | None = None, limit: int = 100
    ) -> Page[Revision]:
        """The retained revisions, newest first."""
        ...

    async def diff(self, left: str, right: str) -> Diff:
        """How the heads of two sessions differ."""
        ...


class HistoryStore(Protocol):
    """The nodes of a session: reading paths, and hiding what must not be seen."""

    async def load(
        self,
        session: str,
        *,
        leaf: str | None = None,
        revision: int | None = None,
        tail: int | None = None,
        before: str | None = None,
        state: bool = True,
    ) -> History | None:
        """The path to the head's leaf (or to `leaf`, or of an earlier `revision`), from one
        snapshot. `tail` asks for the last k nodes only, `before` for the page above a cursor."""
        ...

    async def node(self, session: str, node: str) -> Node | None:
        """One node the session can see, or None."""
        ...

    async def graph(
        self, session: str, *, after: str | None = None, limit: int = 1000
    ) -> Page[Node]:
        """Every node the session can see, on all branches, in the order they were stored."""
        ...

    async def tombstone(self, session: str, nodes: Sequence[str]) -> int:
        """Hide nodes of the session from every read. Unknown ids are ignored."""
        ...

    async def vacuum(self, session: str) -> Vacuumed:
        """Remove the bodies of the session's tombstoned nodes."""
        ...


class LaneStore(Protocol):
    """Lanes: the right to work on a session, one holder at a time."""

    async def claim(self, session: str, owner: str, *, ttl_ms: int = 30_000) -> Lane:
        """Take the lane, or raise `LaneBusy`. The same owner gets it again with a new token."""
        ...

    async def renew(self, fence: Fence, *, ttl_ms: int = 30_000) -> Lane:
        """Move the expiry, or raise `LaneLost`. An expired lane cannot be renewed."""
        ...

    async def release(self, fence: Fence) -> bool:
        """Give the lane back. False when it was not held by this fence any more."""
        ...

    async def read(self, session: str) -> LaneStatus | None:
        """Who holds the lane. Changes nothing."""
        ...

    async def displace(self, session: str) -> LaneStatus:
        """An operator's verb: take the lane from its holder, whose writes are refused from now."""
        ...


class UsageStore(Protocol):
    """Usage: what the turns of a store have cost."""

    async def totals(
        self,
        *,
        session: str | None = None,
        by: Sequence[UsageGroup] = ("source", "model"),
        since_day: int | None = None,
        until_day: int | None = None,
    ) -> tuple[UsageTotal, ...]:
        """Sums over committed turns, grouped. Currencies are never added to each other."""
        ...

    async def rows(
        self, session: str, *, after: str | None = None, limit: int = 100
    ) -> Page[UsageRow]:
        """The single entries of a session, in the order they were committed."""
        ...


class QueueStore(Protocol):
    """Queued work: the inbox of each session."""

    async def enqueue(self, work: NewWork) -> Enqueued:
        """Put work into the inbox of a session. The same key again enqueues nothing."""
        ...

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
        ttl_ms: int = 300_000,
    ) -> Claimed:
        """Take work from the head of an inbox, to settle it in a turn. With a fence the claim lives
        as long as the lane; without one the lane must be free, and it lives for `ttl_ms`. `works`
        asks for exactly these, in order, or nothing."""
        ...

    async def claim_next(
        self, owner: str, *, lane_ttl_ms: int = 30_000, limit: int = 64
    ) -> ClaimedNext:
        """Take the work of the session that has waited longest and that nobody holds: its lane and
        a claim under it."""
        ...

    async def renew(self, claim: Claim, *, ttl_ms: int = 300_000) -> Claim:
        """Move the expiry of a claim that has no lane, or raise `ClaimLost`. One that has a lane
        lives as long as the lane: renew that."""
        ...

    async def abandon(
        self, claim: Claim, *, error: str | None = None, delay_ms: int = 0, dead: bool = False
    ) -> int:
        """Give claimed work back, to be claimed again after `delay_ms`, or as dead. How much was
        still held; 0 when the claim was lost meanwhile."""
        ...

    async def cancel(self, session: str, work: str) -> Work | None:
        """Remove work that is not done and that nobody holds, and answer it; None otherwise."""
        ...

    async def requeue(self, session: str, work: str, *, delay_ms: int = 0) -> Work:
        """Put dead work back at its place, with no attempt counted."""
        ...

    async def get(self, session: str, work: str) -> Work | None:
        """One work, or None."""
        ...

    async def list(
        self,
        session: str,
        *,
        states: Sequence[WorkState] = ("ready", "delayed", "claimed", "dead", "done"),
        after: str | None = None,
        limit: int = 100,
    ) -> Page[Work]:
        """A page of the inbox of a session, in its order."""
        ...

    async def dead(self, *, after: str | None = None, limit: int = 100) -> Page[Work]:
        """A page of the dead work of all sessions."""
        ...

    async def counts(self, *, session: str | None = None) -> WorkCounts:
        """How much work there is in each state, of one session or of all; counted, so exact."""
        ...

    async def why(
        self, session: str, *, boundary: Boundary = "idle", kind: Wanted = "any"
    ) -> Claimed:
        """Why a claim would find nothing now, whoever holds the lane; no reason when it would find
        something. Changes nothing."""
        ...

    async def prune(self, *, limit: int = 1000) -> int:
        """Forget keys of settled work whose time is over, so many at a time; how many."""
        ...


class WaitStore(Protocol):
    """Waits: until something is there, or the time is up."""

    async def head(self, session: str, *, after: int, timeout_ms: int | None = None) -> Head | None:
        """The head as soon as its revision is above `after`; None when the time is up. Without a
        timeout it waits for ever; 0 looks once."""
        ...

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
        ...

    async def event(
        self, process: str, *, after: int, type: str | None = None, timeout_ms: int | None = None
    ) -> Event | None:
        """The first event, or the first of a type, later than `after`; None when the time is up.
        `ProcessEnded` when none will come any more."""
        ...

    async def ended(self, process: str, *, timeout_ms: int | None = None) -> Process | None:
        """The process as soon as it has ended, in whatever way; None when the time is up."""
        ...


class Store(Protocol):
    """One tenant's view of one database."""

    @property
    def tenant(self) -> str: ...
    @property
    def sessions(self) -> SessionStore: ...
    @property
    def history(self) -> HistoryStore: ...
    @property
    def lanes(self) -> LaneStore: ...
    @property
    def usage(self) -> UsageStore: ...
    @property
    def queue(self) -> QueueStore: ...
    @property
    def processes(self) -> ProcessStore: ...
    @property
    def triggers(self) -> TriggerStore: ...
    @property
    def schedules(self) -> ScheduleStore: ...
    @property
    def waits(self) -> WaitStore: ...
    async def close(self) -> None: ...
