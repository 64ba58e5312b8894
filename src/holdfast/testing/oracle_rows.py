"""What the model oracle holds of a session: plain objects that point at each other.

A node points at the node above it, so a path is a walk; a session counts its own nodes, and a fork
remembers how many of another session's nodes it sees. Nothing here is an index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.contract.queue import NewWork, WakeOrigin
from holdfast.contract.records import (
    Head,
    Node,
    Origin,
    Page,
    Receipt,
    Revision,
    SessionInfo,
    UsageRow,
)

T = TypeVar("T")
Intent = tuple[object, ...]


@dataclass(eq=False, slots=True)
class StoredNode:
    """A node, where it hangs, and whether it may be seen."""

    owner: StoredSession
    number: int
    id: str
    above: StoredNode | None
    kind: str
    body: bytes
    depth: int
    revision: int
    at_ms: int
    hidden: bool = False
    emptied: bool = False

    def record(self) -> Node:
        return Node(
            id=self.id,
            parent=None if self.above is None else self.above.id,
            kind=self.kind,
            body=self.body,
            depth=self.depth,
            session=self.owner.id,
            revision=self.revision,
            at_ms=self.at_ms,
        )

    def ancestry(self) -> Iterator[StoredNode]:
        """The node and all above it, hidden or not, from the leaf up."""
        node: StoredNode | None = self
        while node is not None:
            yield node
            node = node.above


@dataclass(frozen=True, slots=True)
class StoredState:
    """The state one revision made, and its name."""

    name: str
    values: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class StoredRevision:
    """A place in the history of heads."""

    revision: int
    kind: str
    turn: str | None
    reason: str | None
    leaf: StoredNode | None
    state: StoredState | None
    at_ms: int

    def record(self, session: str) -> Revision:
        return Revision(
            session=session,
            revision=self.revision,
            kind=self.kind,
            turn=self.turn,
            reason=self.reason,
            leaf=None if self.leaf is None else self.leaf.id,
            depth=0 if self.leaf is None else self.leaf.depth,
            state=None if self.state is None else self.state.name,
            at_ms=self.at_ms,
        )


@dataclass(slots=True)
class StoredLane:
    """A grant that was not given back; it may have lapsed."""

    owner: str
    token: str
    claimed_at_ms: int
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class StoredClaim:
    """Who took work, and what the claim lasts with: a lane's generation, or a time."""

    id: str
    token: str
    owner: str
    generation: int | None
    expires_at_ms: int | None


@dataclass(eq=False, slots=True)
class StoredWork:
    """Work of a session: as it was asked for, and what has become of it."""

    id: str
    seq: int
    new: NewWork
    bodies: tuple[bytes, ...]
    enqueued_at_ms: int
    available_at_ms: int
    wake: WakeOrigin | None = None
    attempts: int = 0
    dead: bool = False
    last_error: str | None = None
    claim: StoredClaim | None = None
    settled_by: str | None = None
    kept_until_ms: int = 0


@dataclass(eq=False, slots=True)
class StoredSession:
    """A session. `base` says which nodes of another session a fork sees: the first so many."""

    id: str
    title: str
    tags: dict[str, str]
    created_at_ms: int
    active_at_ms: int
    origin: Origin | None = None
    base: tuple[StoredSession, int] | None = None
    deleted: bool = False
    revision: int = 0
    leaf: StoredNode | None = None
    state: StoredState | None = None
    generation: int = 0
    lane: StoredLane | None = None
    nodes: list[StoredNode] = field(default_factory=list)
    revisions: list[StoredRevision] = field(default_factory=list)
    receipts: dict[str, tuple[Intent, Receipt]] = field(default_factory=dict)
    usage: list[UsageRow] = field(default_factory=list)
    work: list[StoredWork] = field(default_factory=list)
    work_count: int = 0

    @property
    def node_count(self) -> int:
        return sum(not node.hidden for node in self.nodes)

    @property
    def depth(self) -> int:
        return 0 if self.leaf is None else self.leaf.depth

    def chain(self) -> list[tuple[StoredSession, int]]:
        """The sessions whose nodes it sees, and how many of each: itself first."""
        found = [(self, len(self.nodes))]
        base = self.base
        while base is not None:
            found.append(base)
            base = base[0].base
        return found

    def seen(self) -> list[StoredNode]:
        """The nodes it sees, hidden ones too: oldest ancestor first, in the order stored."""
        return [node for owner, upto in reversed(self.chain()) for node in owner.nodes[:upto]]

    def find(self, node: str | None) -> StoredNode | None:
        """A node it sees, hidden or not."""
        return next((found for found in self.seen() if found.id == node), None)

    def visible(self, node: str | None) -> StoredNode | None:
        """A node it sees that is not hidden."""
        found = self.find(node)
        return None if found is None or found.hidden else found

    def info(self) -> SessionInfo:
        return SessionInfo(
            session=self.id,
            title=self.title,
            tags=dict(sorted(self.tags.items())),
            created_at_ms=self.created_at_ms,
            active_at_ms=self.active_at_ms,
            revision=self.revision,
            leaf=None if self.leaf is None else self.leaf.id,
            node_count=self.node_count,
            forked_from=self.origin,
        )

    def head(self) -> Head:
        return Head(
            session=self.id,
            revision=self.revision,
            leaf=None if self.leaf is None else self.leaf.id,
            depth=self.depth,
            node_count=self.node_count,
            state=None if self.state is None else self.state.name,
        )


def visible_path(leaf: StoredNode | None) -> list[StoredNode]:
    """The path to a leaf, oldest first, cut below the first hidden node on the way up."""
    path: list[StoredNode] = []
    for node in leaf.ancestry() if leaf is not None else ():
        if node.hidden:
            break
        path.append(node)
    return path[::-1]


def page_of(items: Sequence[T], after: str | None, limit: int) -> Page[T]:
    """The oracle's own cursor is the number of items that came before."""
    begin = int(after or 0)
    end = begin + limit
    return Page(items=tuple(items[begin:end]), next=str(end) if end < len(items) else None)
