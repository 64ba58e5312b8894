"""Every record that crosses the contract lives here: frozen, keyword-only, and plain data.

Times are integer milliseconds since the epoch and end in `_ms`. A payload goes in as bytes, or as
a JSON value that is encoded at the door; it comes back as the bytes that were stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

T = TypeVar("T")

Json: TypeAlias = Any
"""A JSON value: None, bool, int (64 bits), float (finite), str, list/tuple, dict with str keys."""

Payload: TypeAlias = "bytes | Json"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The base of every record."""


# --- sessions


class Origin(Record, frozen=True, kw_only=True):
    """Where a fork came from."""

    session: str
    revision: int
    leaf: str | None


class SessionInfo(Record, frozen=True, kw_only=True):
    """One row of the catalog."""

    session: str
    title: str
    tags: dict[str, str]
    created_at_ms: int
    active_at_ms: int
    revision: int
    leaf: str | None
    node_count: int
    forked_from: Origin | None = None


class Created(Record, frozen=True, kw_only=True):
    """The answer to a create or a fork: `created` is False when the session was there already."""

    created: bool
    session: SessionInfo


class Deleted(Record, frozen=True, kw_only=True):
    """What deleting a session removed. `kept_nodes` are still needed by forks of the session. Of
    the running processes it had been granted, `orphaned` have no grant left, `preserved` have
    others. `subscriptions` are those it owned, and what was reserved for them went with them."""

    session: str
    deleted: bool
    nodes: int = 0
    kept_nodes: int = 0
    revisions: int = 0
    receipts: int = 0
    usage: int = 0
    blobs: int = 0
    work: int = 0
    grants: int = 0
    subscriptions: int = 0
    orphaned: tuple[str, ...] = ()
    preserved: tuple[str, ...] = ()


class Head(Record, frozen=True, kw_only=True):
    """The one mutable row of a session. `state` names the manifest of its state, if it has one."""

    session: str
    revision: int
    leaf: str | None
    depth: int
    node_count: int
    state: str | None


class Revision(Record, frozen=True, kw_only=True):
    """One entry of a session's history of heads."""

    session: str
    revision: int
    kind: str  # "created" | "forked" | "turn" | "rewound"
    turn: str | None
    reason: str | None
    leaf: str | None
    depth: int
    state: str | None
    at_ms: int


class Page(Record, Generic[T], frozen=True, kw_only=True):
    """A page of a listing. Pass `next` as `after` to get the following one; None means the end."""

    items: tuple[T, ...]
    next: str | None = None


# --- history


class NewNode(Record, frozen=True, kw_only=True):
    """A history entry to be stored. Without an id it gets `<turn>:<position>`.

    `parent` left out means "the node before it in this turn", and for the first node "the leaf of
    the session"; None makes it a root; an id names a node of the turn or one already stored.
    """

    body: Payload
    id: str | None = None
    kind: str = "message"
    parent: str | UnsetType | None = UNSET


class Node(Record, frozen=True, kw_only=True):
    """A history entry: immutable, with one parent. `depth` counts from 1 at the root."""

    id: str
    parent: str | None
    kind: str
    body: bytes
    depth: int
    session: str
    revision: int
    at_ms: int

    def json(self) -> Json:
        """The body, decoded as JSON."""
        return msgspec.json.decode(self.body)


class StateRef(Record, frozen=True, kw_only=True):
    """Stored content, named by its SHA-256: puts a component back without sending its bytes."""

    digest: str


class History(Record, frozen=True, kw_only=True):
    """What a load returns, all from one snapshot: a stretch of a path, oldest node first.

    `before` is the cursor of the page above it, None when the stretch reaches the root.
    """

    session: str
    revision: int
    leaf: str | None
    node_count: int
    nodes: tuple[Node, ...]
    before: str | None = None
    state: dict[str, bytes] = msgspec.field(default_factory=dict)
    refs: dict[str, StateRef] = msgspec.field(default_factory=dict)


class Vacuumed(Record, frozen=True, kw_only=True):
    """What a vacuum removed: the bodies of tombstoned nodes, and nodes no session can reach."""

    session: str
    nodes: int


class Diff(Record, frozen=True, kw_only=True):
    """How two heads differ: the nodes on each side of their last common node, and state keys."""

    left: Head
    right: Head
    common: str | None
    left_nodes: tuple[str, ...]
    right_nodes: tuple[str, ...]
    state_added: tuple[str, ...]
    state_removed: tuple[str, ...]
    state_changed: tuple[str, ...]


# --- lanes


class Fence(Record, frozen=True, kw_only=True):
    """Proof of one grant of a lane. It is what a commit presents."""

    session: str
    owner: str
    token: str
    generation: int


class Holder(Record, frozen=True, kw_only=True):
    """Who held a lane before."""

    owner: str
    generation: int
    expires_at_ms: int


class Lane(Record, frozen=True, kw_only=True):
    """A granted lane: the right to work on one session until it expires.

    `displaced` is the lapsed holder this grant took over from, if there was one.
    """

    session: str
    owner: str
    token: str
    generation: int
    claimed_at_ms: int
    expires_at_ms: int
    displaced: Holder | None = None

    @property
    def fence(self) -> Fence:
        """What a commit, a renewal and a release present."""
        return Fence(
            session=self.session, owner=self.owner, token=self.token, generation=self.generation
        )


class LaneStatus(Record, frozen=True, kw_only=True):
    """What anybody may know of a lane: never the token."""

    session: str
    owner: str | None
    generation: int
    claimed_at_ms: int | None
    expires_at_ms: int | None
    live: bool


# --- usage


class Usage(Record, frozen=True, kw_only=True):
    """What one step of a turn used: five disjoint token classes, and cost in micro-units."""

    model: str
    source: str = "turn"
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    cost_micros: int = 0
    currency: str = "USD"


class UsageRow(Record, frozen=True, kw_only=True):
    """One stored usage entry: unique by session, turn and ordinal."""

    session: str
    turn: str
    ordinal: int
    at_ms: int
    usage: Usage


class UsageTotal(Record, frozen=True, kw_only=True):
    """A roll-up. The fields it is grouped by are filled; the others are None."""

    usage: Usage
    entries: int
    session: str | None = None
    day: int | None = None  # days since the epoch, UTC


# --- the turn


class WorkClaim(Record, frozen=True, kw_only=True):
    """Claimed work that a turn settles."""

    claim: str
    token: str
    work: tuple[str, ...]


class Turn(Record, frozen=True, kw_only=True):
    """The unit of commit: nodes, state, usage and settled work, all or nothing.

    `nodes` are appended. `leaf` left out means "the last node of this turn", or with no nodes "the
    leaf stays"; an id moves the leaf there, None empties the path. `state` changes the components
    it names (None clears one) and leaves the others as they are. `expected` is the revision the
    caller decided upon; `fence` proves the lane; without one the lane must be free.
    """

    session: str
    turn: str | None = None
    nodes: Sequence[NewNode] = ()
    leaf: str | UnsetType | None = UNSET
    state: Mapping[str, bytes | StateRef | None] = msgspec.field(default_factory=dict)
    usage: Sequence[Usage] = ()
    expected: int | None = None
    fence: Fence | None = None
    release: bool = False
    claims: Sequence[WorkClaim] = ()
    attachments: Sequence[str] = ()


class Receipt(Record, frozen=True, kw_only=True):
    """Proof of a committed turn, stored with it. The same turn again returns it, `replayed`."""

    session: str
    turn: str
    revision: int
    leaf: str | None
    node_count: int
    at_ms: int
    replayed: bool = False
