"""The records of queued work: what waits for a session, and who has taken it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.contract.records import Json, Lane, Payload, Record, WorkClaim

WorkKind = Literal["turn", "command"]
Delivery = Literal["earliest", "after-turn"]
Slot = Literal["join", "exclusive"]
WorkState = Literal["ready", "delayed", "claimed", "dead", "done"]
Boundary = Literal["idle", "checkpoint"]
Wanted = Literal["any", "turn", "command"]
WhyNot = Literal[
    "empty",
    "not-yet-available",
    "claimed",
    "command-at-head",
    "turn-at-head",
    "boundary",
    "not-at-head",
    "zero-limit",
    "contended",
]

WEEK_MS = 7 * 24 * 3600 * 1000


class NewWork(Record, frozen=True, kw_only=True):
    """Work to be put into the inbox of a session: one or more payloads that travel together.

    `key` makes it unique in its session: as long as the key is kept (`keep_ms` after the work is
    done) the same key enqueues nothing. It is available `delay_ms` from now, and not before
    `available_at_ms`. Work may share a turn with the work next to it when both have the slot
    "join", the same delivery, and the same `merge` key; without one it travels alone. After
    `max_attempts` claims that came to nothing it is dead.
    """

    session: str
    payloads: Sequence[Payload] = ()
    key: str | None = None
    kind: WorkKind = "turn"
    delivery: Delivery = "earliest"
    slot: Slot = "join"
    merge: str | None = None
    delay_ms: int = 0
    available_at_ms: int = 0
    max_attempts: int | None = None
    keep_ms: int = WEEK_MS


class WorkItem(Record, frozen=True, kw_only=True):
    """One payload of work."""

    id: str
    body: bytes

    def json(self) -> Json:
        """The body, decoded as JSON."""
        return msgspec.json.decode(self.body)


class WakeOrigin(Record, frozen=True, kw_only=True):
    """The event of a process that became this work."""

    process: str
    sequence: int


class Work(Record, frozen=True, kw_only=True):
    """Queued work. `seq` is its place in the inbox, `attempts` how often it was claimed.

    Work whose claim has died is "ready" again. What is "done" has no items any more, and names the
    turn that settled it.
    """

    session: str
    work: str
    seq: int
    key: str | None
    kind: WorkKind
    delivery: Delivery
    slot: Slot
    merge: str | None
    state: WorkState
    available_at_ms: int
    enqueued_at_ms: int
    items: tuple[WorkItem, ...]
    attempts: int
    max_attempts: int | None
    last_error: str | None
    claimed_by: str | None
    settled_by: str | None
    wake: WakeOrigin | None = None


class Enqueued(Record, frozen=True, kw_only=True):
    """The answer to an enqueue: `enqueued` is False when the key was taken; `work` has it."""

    enqueued: bool
    work: Work


class Claim(Record, frozen=True, kw_only=True):
    """Claimed work, in order. It is held as long as the lane of its generation is live, or, without
    a lane, until it expires. `redelivered` work was claimed before, by somebody who went away."""

    session: str
    claim: str
    token: str
    owner: str
    generation: int | None
    claimed_at_ms: int
    expires_at_ms: int | None
    work: tuple[Work, ...]
    redelivered: bool = False

    @property
    def settlement(self) -> WorkClaim:
        """What a turn names to settle this work."""
        return WorkClaim(
            claim=self.claim, token=self.token, work=tuple(work.work for work in self.work)
        )


class Claimed(Record, frozen=True, kw_only=True):
    """The answer to a claim: the claim, or why there is none, and when that may change."""

    claim: Claim | None = None
    why_not: WhyNot | None = None
    next_at_ms: int | None = None


class ClaimedNext(Record, frozen=True, kw_only=True):
    """The answer to a claim on whatever session is next: its lane and its work, or why not."""

    lane: Lane | None = None
    claim: Claim | None = None
    why_not: WhyNot | None = None
    next_at_ms: int | None = None


class WorkCounts(Record, frozen=True, kw_only=True):
    """How much work there is in each state, exactly."""

    ready: int
    delayed: int
    claimed: int
    dead: int
    done: int
