"""The model oracle: what a store promises, as a plain program over objects and dicts.

It is written from the contract and imports nothing else, answers one call at a time, and counts and
searches instead of keeping sums and indexes. Its clock and its ids are handed in. It answers what
was accepted at the door; the limits on sizes, and the spelling of payloads and texts, are checked
by laws of their own.

Where the contract leaves a choice, the oracle takes the one the stores took, and says so here: a
fork sees the nodes that were stored up to its leaf, by the session that stored the leaf; a fork
from a node has the revision of that node as its origin; a fork is the same fork when what it names
agrees with the recorded origin; the place of a cursor stays good when its node is hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from holdfast.contract.errors import (
    AttachmentUnknown,
    ClaimLost,
    ComponentMissing,
    HeadMoved,
    Invalid,
    LaneLost,
    NodeCollision,
    NodeUnknown,
    NotRetained,
    SessionExists,
    SessionUnknown,
    TooLarge,
    TurnConflict,
)
from holdfast.contract.limits import Limits
from holdfast.contract.records import (
    Created,
    Deleted,
    Diff,
    Fence,
    Head,
    History,
    Node,
    Origin,
    Page,
    Receipt,
    Revision,
    SessionInfo,
    StateRef,
    Turn,
    Usage,
    UsageRow,
    UsageTotal,
    Vacuumed,
)
from holdfast.testing.oracle_lanes import OracleLanes
from holdfast.testing.oracle_processes import OracleProcesses
from holdfast.testing.oracle_queue import OracleQueue
from holdfast.testing.oracle_rows import (
    Intent,
    StoredNode,
    StoredRevision,
    StoredSession,
    StoredState,
    page_of,
    visible_path,
)
from holdfast.testing.oracle_schedules import OracleSchedules
from holdfast.testing.oracle_triggers import OracleTriggers
from holdfast.testing.oracle_turns import (
    ReadTurn,
    content_name,
    read_turn,
    require_fence,
    require_id,
)

DAY_MS = 86_400_000
AMOUNTS = ("input", "output", "cache_read", "cache_write", "reasoning", "cost_micros")


class Oracle(OracleLanes):
    """One tenant. The methods are those of the facades of a store, all on one object; only the
    queue, processes, triggers and schedules, whose methods have the names of others, are objects of
    their own."""

    def __init__(self, clock: Callable[[], int], new_id: Callable[[], str]) -> None:
        super().__init__(clock, new_id)
        self.queue = OracleQueue(self)
        self.processes = OracleProcesses(self, self.queue)
        self.triggers = OracleTriggers(self, self.processes)
        self.schedules = OracleSchedules(self, self.triggers)

    def live_sessions(self) -> list[StoredSession]:
        """Every session that can be read."""
        return [session for session in self._sessions.values() if not session.deleted]

    def contents(self) -> dict[str, bytes]:
        """All content that a retained revision of a session names, by digest."""
        return {
            content_name(value): value
            for session in self.live_sessions()
            for revision in session.revisions
            if revision.state is not None
            for value in revision.state.values.values()
        }

    # --- sessions

    def create(
        self, session: str, *, title: str = "", tags: Mapping[str, str] | None = None
    ) -> Created:
        require_id("session", session)
        if session in self._sessions:
            return Created(created=False, session=self._live(session).info())
        now = self._clock()
        made = StoredSession(session, title, dict(tags or {}), now, now)
        made.revisions.append(StoredRevision(0, "created", None, None, None, None, now))
        self._sessions[session] = made
        return Created(created=True, session=made.info())

    def get(self, session: str) -> SessionInfo | None:
        found = self._seen(session)
        return None if found is None else found.info()

    def list(
        self,
        *,
        tags: Mapping[str, str] | None = None,
        forked_from: str | None = None,
        active_since_ms: int | None = None,
        order: str = "active",
        after: str | None = None,
        limit: int = 100,
    ) -> Page[SessionInfo]:
        found = [
            session.info()
            for session in self.live_sessions()
            if (tags or {}).items() <= session.tags.items()
            and session.active_at_ms >= (active_since_ms or 0)
            and (
                forked_from is None
                or (session.origin is not None and session.origin.session == forked_from)
            )
        ]
        if order == "active":
            found.sort(key=lambda info: (info.active_at_ms // 60_000, info.session), reverse=True)
        else:
            found.sort(key=lambda info: (info.created_at_ms, info.session), reverse=True)
        return page_of(found, after, limit)

    def update(
        self,
        session: str,
        *,
        title: str | None = None,
        tags: Mapping[str, str | None] | None = None,
    ) -> SessionInfo:
        found = self._live(session)
        merged = {**found.tags, **(tags or {})}
        kept = {name: value for name, value in merged.items() if value is not None}
        if len(kept) > Limits().tags:
            raise TooLarge(field="tags", actual=len(kept), limit=Limits().tags)
        found.tags = kept
        if title is not None:
            found.title = title
        return found.info()

    def delete(self, session: str) -> Deleted:
        found = self._seen(session)
        if found is None:
            return Deleted(session=session, deleted=False)
        nodes, contents = self._stored_nodes(), len(self.contents())
        revisions, receipts = len(found.revisions), len(found.receipts)
        usage = len(found.usage)
        work = sum(one.settled_by is None for one in found.work)
        found.deleted = True
        found.revisions, found.receipts, found.usage, found.work = [], {}, [], []
        found.leaf = found.state = found.lane = None
        self._reclaim()
        grants, orphaned, preserved = self.processes.forget_session(session)
        subscriptions = self.triggers.forget_session(session)
        return Deleted(
            session=session,
            deleted=True,
            nodes=nodes - self._stored_nodes(),
            kept_nodes=len(found.nodes),
            revisions=revisions,
            receipts=receipts,
            usage=usage,
            blobs=contents - len(self.contents()),
            work=work,
            grants=grants,
            subscriptions=subscriptions,
            orphaned=orphaned,
            preserved=preserved,
        )

    def _stored_nodes(self) -> int:
        return sum(len(session.nodes) for session in self._sessions.values())

    def _reclaim(self) -> None:
        """Drop the nodes of deleted sessions that no fork sees."""
        needed: dict[str, int] = {}
        for session in self.live_sessions():
            for owner, upto in session.chain():
                needed[owner.id] = max(needed.get(owner.id, 0), upto)
        for session in self._sessions.values():
            del session.nodes[needed.get(session.id, 0) :]

    def head(self, session: str) -> Head | None:
        found = self._seen(session)
        return None if found is None else found.head()

    def receipt(self, session: str, turn: str) -> Receipt | None:
        found = self._sessions.get(session)
        stored = None if found is None else found.receipts.get(turn)
        return None if stored is None else stored[1]

    def revisions(
        self, session: str, *, after: str | None = None, limit: int = 100
    ) -> Page[Revision]:
        found = self._seen(session)
        rows = [] if found is None else [row.record(session) for row in found.revisions]
        return page_of(rows[::-1], after, limit)

    # --- the turn

    def commit(self, turn: Turn) -> Receipt:
        plan = read_turn(turn, turn.turn if turn.turn is not None else self._new_id())
        found = self._live(turn.session)
        replay = self._judge(found, plan.turn, plan.intent, turn.fence, turn.expected)
        if replay is not None:
            if turn.release and turn.fence is not None:
                self.release(turn.fence)
            return replay
        lost = self.queue.lost(found, turn)
        if lost is not None:
            raise ClaimLost(session=found.id, claim=lost)
        place = found.leaf if plan.at_leaf else found.visible(plan.place)
        if not plan.at_leaf and plan.place is not None and place is None:
            raise NodeUnknown(field=plan.place_field, session=found.id, node=plan.place)
        for node in plan.ids:
            if found.find(node) is not None:
                raise NodeCollision(session=found.id, node=node)
        state = self._next_state(found, turn)
        if turn.attachments:
            raise AttachmentUnknown(session=found.id, attachment=turn.attachments[0])
        return self._apply(found, turn, plan, place, state)

    def _judge(
        self,
        found: StoredSession,
        turn: str,
        intent: Intent,
        fence: Fence | None,
        expected: int | None,
    ) -> Receipt | None:
        """What turns and rewinds are judged by, in this order: receipt, lane, revision."""
        stored = found.receipts.get(turn)
        if stored is not None:
            if stored[0] != intent:
                raise TurnConflict(session=found.id, turn=turn)
            return _replayed(stored[1])
        live = self._live_lane(found)
        if fence is not None:
            if not self._holds(found, fence) or live is None:
                raise LaneLost(session=found.id)
        elif live is not None:
            raise self._busy(found, live)
        if expected is not None and expected != found.revision:
            raise HeadMoved(session=found.id, expected=expected, actual=found.revision)
        return None

    def _next_state(self, found: StoredSession, turn: Turn) -> StoredState | None:
        if not turn.state:
            return found.state
        brought = {content_name(v): v for v in turn.state.values() if isinstance(v, bytes)}
        known = {**self.contents(), **brought}
        values = dict(found.state.values) if found.state is not None else {}
        for name, value in sorted(turn.state.items()):
            if value is None:
                values.pop(name, None)
            elif isinstance(value, StateRef):
                digest = value.digest.lower()
                if digest not in known:
                    raise ComponentMissing(session=found.id, component=name, digest=digest)
                values[name] = known[digest]
            else:
                values[name] = value
        return StoredState(f"{found.id}@{found.revision + 1}", values)

    def _apply(
        self,
        found: StoredSession,
        turn: Turn,
        plan: ReadTurn,
        place: StoredNode | None,
        state: StoredState | None,
    ) -> Receipt:
        now = self._clock()
        made: list[StoredNode] = []
        for new, own, parent, body in zip(
            turn.nodes, plan.ids, plan.parents, plan.bodies, strict=True
        ):
            above = made[parent - 1] if parent else place
            depth = 1 if above is None else above.depth + 1
            number = len(found.nodes) + 1
            node = StoredNode(
                found, number, own, above, new.kind, body, depth, found.revision + 1, now
            )
            made.append(node)
            found.nodes.append(node)
        leaf = made[plan.leaf - 1] if made else place
        found.usage += [
            UsageRow(session=found.id, turn=plan.turn, ordinal=ordinal, at_ms=now, usage=entry)
            for ordinal, entry in enumerate(turn.usage)
        ]
        self.queue.settle(found, plan.turn, turn.claims)
        if turn.release and turn.fence is not None:
            found.lane = None
        return self._advance(found, "turn", plan.turn, None, leaf, state, plan.intent)

    def _advance(
        self,
        found: StoredSession,
        kind: str,
        turn: str,
        reason: str | None,
        leaf: StoredNode | None,
        state: StoredState | None,
        intent: Intent,
    ) -> Receipt:
        now = self._clock()
        found.revision += 1
        found.leaf, found.state, found.active_at_ms = leaf, state, now
        found.revisions.append(StoredRevision(found.revision, kind, turn, reason, leaf, state, now))
        receipt = Receipt(
            session=found.id,
            turn=turn,
            revision=found.revision,
            leaf=None if leaf is None else leaf.id,
            node_count=found.node_count,
            at_ms=now,
        )
        found.receipts[turn] = (intent, receipt)
        return receipt

    # --- places in the past

    def _place(
        self, found: StoredSession, revision: int | None, node: str | None
    ) -> tuple[int, StoredNode | None, StoredState | None]:
        """The revision, leaf and state of a place: now, at a revision, or of a node."""
        if node is not None:
            leaf = found.visible(node)
            if leaf is None:
                raise NodeUnknown(field="node", session=found.id, node=node)
            if leaf.owner.deleted:
                raise NotRetained(session=found.id, what=f"the revision of node {node!r}")
            return leaf.revision, leaf, leaf.owner.revisions[leaf.revision].state
        if revision is None:
            return found.revision, found.leaf, found.state
        if revision > found.revision:
            raise NotRetained(session=found.id, what=f"revision {revision}")
        row = found.revisions[revision]
        return revision, row.leaf, row.state

    def fork(
        self,
        source: str,
        session: str,
        *,
        revision: int | None = None,
        node: str | None = None,
        title: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> Created:
        if revision is not None and node is not None:
            raise Invalid(field="node", reason="a revision or a node")
        found = self._live(source)
        if session in self._sessions:
            there = self._live(session)
            origin = there.origin
            if (
                origin is None
                or origin.session != source
                or revision not in (None, origin.revision)
                or node not in (None, origin.leaf)
            ):
                raise SessionExists(session=session)
            return Created(created=False, session=there.info())
        at, leaf, state = self._place(found, revision, node)
        now = self._clock()
        made = StoredSession(
            session,
            title,
            dict(tags or {}),
            now,
            now,
            origin=Origin(session=source, revision=at, leaf=None if leaf is None else leaf.id),
            base=None if leaf is None else (leaf.owner, leaf.number),
            leaf=leaf,
            state=state,
        )
        made.revisions.append(StoredRevision(0, "forked", None, None, leaf, state, now))
        self._sessions[session] = made
        return Created(created=True, session=made.info())

    def rewind(
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
        turn_id = turn if turn is not None else self._new_id()
        if (revision is None) == (node is None):
            raise Invalid(field="revision" if node is None else "node", reason="one place")
        require_fence(session, fence)
        found = self._live(session)
        intent = ("rewind", revision, node, reason)
        replay = self._judge(found, turn_id, intent, fence, expected)
        if replay is not None:
            return replay
        _, leaf, state = self._place(found, revision, node)
        return self._advance(found, "rewound", turn_id, reason, leaf, state, intent)

    def diff(self, left: str, right: str) -> Diff:
        heads: list[StoredSession] = []
        for name in (left, right):
            found = self._seen(name)
            if found is None:
                raise SessionUnknown(session=name)
            heads.append(found)
        paths = [
            list(found.leaf.ancestry())[::-1] if found.leaf is not None else [] for found in heads
        ]
        shared = 0
        for one, two in zip(*paths, strict=False):
            shared += one is two
        common = paths[0][shared - 1] if shared else None
        sides = [tuple(node.id for node in path[shared:] if not node.hidden) for path in paths]
        was, now = ({} if found.state is None else found.state.values for found in heads)
        return Diff(
            left=heads[0].head(),
            right=heads[1].head(),
            common=None if common is None or common.hidden else common.id,
            left_nodes=sides[0],
            right_nodes=sides[1],
            state_added=tuple(sorted(now.keys() - was.keys())),
            state_removed=tuple(sorted(was.keys() - now.keys())),
            state_changed=tuple(sorted(k for k in was.keys() & now.keys() if was[k] != now[k])),
        )

    # --- history

    def load(
        self,
        session: str,
        *,
        leaf: str | None = None,
        revision: int | None = None,
        tail: int | None = None,
        before: str | None = None,
        state: bool = True,
    ) -> History | None:
        found = self._seen(session)
        if found is None:
            return None
        at, end, carried = found.revision, found.leaf, found.state
        if revision is not None:
            at, end, carried = self._place(found, revision, None)
        elif before is not None:
            cursor = found.find(before)
            if cursor is None:
                raise Invalid(field="before", reason="not a cursor")
            end = cursor.above
        elif leaf is not None:
            end = found.find(leaf)
        path = visible_path(end)
        shown = path[-tail:] if tail is not None else path
        values = carried.values if state and carried is not None else {}
        top = shown[0].above if shown else None
        named = end
        if before is not None:
            # A page above a cursor names what it shows.
            named = path[-1] if path else None
        return History(
            session=session,
            revision=at,
            leaf=leaf if leaf is not None else None if named is None else named.id,
            node_count=found.node_count,
            nodes=tuple(node.record() for node in shown),
            before=None if top is None or top.hidden else shown[0].id,
            state=dict(values),
            refs={name: StateRef(digest=content_name(value)) for name, value in values.items()},
        )

    def node(self, session: str, node: str) -> Node | None:
        found = self._seen(session)
        seen = None if found is None else found.visible(node)
        return None if seen is None else seen.record()

    def graph(self, session: str, *, after: str | None = None, limit: int = 1000) -> Page[Node]:
        found = self._seen(session)
        nodes = [] if found is None else [node for node in found.seen() if not node.hidden]
        return page_of([node.record() for node in nodes], after, limit)

    def tombstone(self, session: str, nodes: Sequence[str]) -> int:
        found = self._live(session)
        hit = [node for node in found.nodes if node.id in nodes and not node.hidden]
        for node in hit:
            node.hidden = True
        return len(hit)

    def vacuum(self, session: str) -> Vacuumed:
        found = self._live(session)
        hit = [node for node in found.nodes if node.hidden and not node.emptied]
        for node in hit:
            node.emptied = True
        return Vacuumed(session=session, nodes=len(hit))

    # --- usage

    def totals(
        self,
        *,
        session: str | None = None,
        by: Sequence[str] = ("source", "model"),
        since_day: int | None = None,
        until_day: int | None = None,
    ) -> tuple[UsageTotal, ...]:
        sums: dict[tuple[str | None, str, str, int | None, str], list[int]] = {}
        for found in self.live_sessions():
            for row in found.usage if session in (None, found.id) else ():
                day, used = row.at_ms // DAY_MS, row.usage
                if day < (since_day or 0) or (until_day is not None and day > until_day):
                    continue
                key = (
                    found.id if "session" in by else None,
                    used.source if "source" in by else "",
                    used.model if "model" in by else "",
                    day if "day" in by else None,
                    used.currency,
                )
                total = sums.setdefault(key, [0] * 7)
                for place, value in enumerate((1, *(getattr(used, name) for name in AMOUNTS))):
                    total[place] += value
        return tuple(
            UsageTotal(
                usage=Usage(
                    model=model,
                    source=source,
                    currency=currency,
                    **dict(zip(AMOUNTS, total[1:], strict=True)),
                ),
                entries=total[0],
                session=group,
                day=day,
            )
            for (group, source, model, day, currency), total in sums.items()
        )

    def rows(self, session: str, *, after: str | None = None, limit: int = 100) -> Page[UsageRow]:
        found = self._seen(session)
        return page_of([] if found is None else found.usage, after, limit)


def _replayed(receipt: Receipt) -> Receipt:
    return Receipt(
        session=receipt.session,
        turn=receipt.turn,
        revision=receipt.revision,
        leaf=receipt.leaf,
        node_count=receipt.node_count,
        at_ms=receipt.at_ms,
        replayed=True,
    )
