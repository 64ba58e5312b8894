"""The facades for blocking callers. Generated from `stores.py` by `tools/blocking.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from holdfast.contract.errors import Invalid, TooLarge
from holdfast.contract.limits import MAX_INT, Limits
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
from holdfast.contract.stores import SessionOrder, UsageGroup
from holdfast.core.history import cursor_pair
from holdfast.core.payloads import check_id, check_int, check_text
from holdfast.core.sessions import check_place, check_tags, check_ttl, rewind_params
from holdfast.core.turns import fence_params, plan_commit
from holdfast.engine.base import BlockingEngine
from holdfast.ops import history, lanes, sessions, usage


@dataclass(frozen=True, slots=True)
class BlockingView:
    """What every facade of one handle works with."""

    engine: BlockingEngine
    tenant: str
    limits: Limits
    new_id: Callable[[], str]

    def page(self, limit: int) -> int:
        """A checked page size."""
        return check_int("limit", limit, 1, self.limits.page)


class BlockingSessions:
    """BlockingSessions: the catalog, the head, the turn commit, forks and revisions."""

    def __init__(self, view: BlockingView) -> None:
        self._view = view

    def create(
        self, session: str, *, title: str = "", tags: Mapping[str, str] | None = None
    ) -> Created:
        """Make sure the session exists. An existing one is left as it is."""
        view = self._view
        check_id("session", session)
        check_text("title", title, view.limits.text_chars)
        rows = check_tags(tags, view.limits)
        return view.engine.write(sessions.create, view.tenant, session, title, rows)

    def get(self, session: str) -> SessionInfo | None:
        """The session's catalog entry, or None when it does not exist (or was deleted)."""
        check_id("session", session)
        return self._view.engine.read(sessions.get, self._view.tenant, session)

    def list(
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
        view = self._view
        if order not in sessions.LISTS:
            raise Invalid(field="order", reason="it is 'active' or 'created'")
        if forked_from is not None:
            check_id("forked_from", forked_from)
        place, name = MAX_INT, ""
        if after is not None:
            number, dot, name = after.partition(".")
            if not dot or not (number.isascii() and number.isdigit()) or int(number) > MAX_INT:
                raise Invalid(field="after", reason="this is not a cursor of this listing")
            place = int(number)
        return view.engine.read(
            sessions.list_page,
            view.tenant,
            order,
            check_tags(tags, view.limits),
            forked_from,
            check_int("active_since_ms", active_since_ms or 0),
            place,
            name,
            view.page(limit),
        )

    def update(
        self,
        session: str,
        *,
        title: str | None = None,
        tags: Mapping[str, str | None] | None = None,
    ) -> SessionInfo:
        """Rename and tag. A tag given as None is removed, tags not named stay."""
        view = self._view
        check_id("session", session)
        if title is not None:
            check_text("title", title, view.limits.text_chars)
        rows = check_tags(tags, view.limits, clearing=True)
        return view.engine.write(sessions.update, view.tenant, session, title, rows, view.limits)

    def delete(self, session: str) -> Deleted:
        """Remove all the session owns, for ever: its id is never used again."""
        check_id("session", session)
        return self._view.engine.write(sessions.delete, self._view.tenant, session)

    def head(self, session: str) -> Head | None:
        """The head, from one row."""
        check_id("session", session)
        return self._view.engine.read(sessions.head, self._view.tenant, session)

    def commit(self, turn: Turn) -> Receipt:
        """Commit a turn: all of it, or nothing. The same turn again returns its receipt."""
        view = self._view
        turn_id = turn.turn if turn.turn is not None else view.new_id()
        plan = plan_commit(turn, tenant=view.tenant, turn_id=turn_id, limits=view.limits)
        return view.engine.write(sessions.commit, plan)

    def receipt(self, session: str, turn: str) -> Receipt | None:
        """The receipt of a committed turn, or None."""
        check_id("session", session)
        check_id("turn", turn)
        return self._view.engine.read(sessions.receipt, self._view.tenant, session, turn)

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
        """A new session that begins where another one stands, or stood. Nothing is copied."""
        view = self._view
        check_id("source", source)
        check_id("session", session)
        check_place(revision, node)
        check_text("title", title, view.limits.text_chars)
        rows = check_tags(tags, view.limits)
        return view.engine.write(
            sessions.fork, view.tenant, source, session, revision, node, title, rows
        )

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
        """Move the session's own leaf and state back, as a new revision that keeps the reason."""
        view = self._view
        turn_id = turn if turn is not None else view.new_id()
        params = rewind_params(
            view.tenant, session, turn_id, revision, node, reason, expected, fence, view.limits
        )
        return view.engine.write(sessions.rewind, params)

    def revisions(
        self, session: str, *, after: str | None = None, limit: int = 100
    ) -> Page[Revision]:
        """The retained revisions, newest first."""
        view = self._view
        check_id("session", session)
        before = sessions.revision_cursor(after)
        return view.engine.read(sessions.revisions, view.tenant, session, before, view.page(limit))

    def diff(self, left: str, right: str) -> Diff:
        """How the heads of two sessions differ."""
        check_id("left", left)
        check_id("right", right)
        return self._view.engine.read(sessions.diff, self._view.tenant, left, right)


class BlockingHistoryNodes:
    """The nodes of a session: reading paths, and hiding what must not be seen."""

    def __init__(self, view: BlockingView) -> None:
        self._view = view

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
        """The path to the head's leaf (or to `leaf`, or of an earlier `revision`), from one
        snapshot. `tail` asks for the last k nodes only, `before` for the page above a cursor."""
        view = self._view
        check_id("session", session)
        for name, value in (("leaf", leaf), ("before", before)):
            if value is not None:
                check_id(name, value)
        if revision is not None:
            check_int("revision", revision)
            if leaf is not None or before is not None:
                raise Invalid(field="revision", reason="name a revision, a leaf or a cursor")
        window = view.limits.window if tail is None else tail
        return view.engine.read(
            history.load,
            view.tenant,
            session,
            leaf,
            before,
            revision,
            check_int("tail", window, 1, view.limits.window),
            state,
        )

    def node(self, session: str, node: str) -> Node | None:
        """One node the session can see, or None."""
        check_id("session", session)
        check_id("node", node)
        return self._view.engine.read(history.node, self._view.tenant, session, node)

    def graph(self, session: str, *, after: str | None = None, limit: int = 1000) -> Page[Node]:
        """Every node the session can see, on all branches, in the order they were stored."""
        view = self._view
        check_id("session", session)
        place = None if after is None else cursor_pair("after", after, (0, 0))
        return view.engine.read(history.graph, view.tenant, session, place, view.page(limit))

    def tombstone(self, session: str, nodes: Sequence[str]) -> int:
        """Hide nodes of the session from every read. Unknown ids are ignored."""
        view = self._view
        check_id("session", session)
        if len(nodes) > view.limits.commit_rows:
            raise TooLarge(field="nodes", actual=len(nodes), limit=view.limits.commit_rows)
        ids = sorted({check_id(f"nodes[{i}]", node) for i, node in enumerate(nodes)})
        rows = [(node,) for node in ids]
        return view.engine.write(history.tombstone, view.tenant, session, rows)

    def vacuum(self, session: str) -> Vacuumed:
        """Remove the bodies of the session's tombstoned nodes."""
        check_id("session", session)
        return self._view.engine.write(history.vacuum, self._view.tenant, session)


class BlockingLanes:
    """BlockingLanes: the right to work on a session, one holder at a time."""

    def __init__(self, view: BlockingView) -> None:
        self._view = view

    def claim(self, session: str, owner: str, *, ttl_ms: int = 30_000) -> Lane:
        """Take the lane, or raise `LaneBusy`. The same owner gets it again with a new token."""
        view = self._view
        check_id("session", session)
        check_id("owner", owner)
        check_ttl(ttl_ms)
        return view.engine.write(lanes.claim, view.tenant, session, owner, view.new_id(), ttl_ms)

    def renew(self, fence: Fence, *, ttl_ms: int = 30_000) -> Lane:
        """Move the expiry, or raise `LaneLost`. An expired lane cannot be renewed."""
        _check_fence(fence)
        check_ttl(ttl_ms)
        return self._view.engine.write(lanes.renew, self._view.tenant, fence, ttl_ms)

    def release(self, fence: Fence) -> bool:
        """Give the lane back. False when it was not held by this fence any more."""
        _check_fence(fence)
        return self._view.engine.write(lanes.release, self._view.tenant, fence)

    def read(self, session: str) -> LaneStatus | None:
        """Who holds the lane. Changes nothing."""
        check_id("session", session)
        return self._view.engine.read(lanes.read, self._view.tenant, session)

    def displace(self, session: str) -> LaneStatus:
        """An operator's verb: take the lane from its holder, whose writes are refused from now."""
        check_id("session", session)
        return self._view.engine.write(lanes.displace, self._view.tenant, session)


def _check_fence(fence: Fence) -> None:
    fence_params(check_id("fence.session", fence.session), fence)


class BlockingUsageLedger:
    """Usage: what the turns of a store have cost."""

    def __init__(self, view: BlockingView) -> None:
        self._view = view

    def totals(
        self,
        *,
        session: str | None = None,
        by: Sequence[UsageGroup] = ("source", "model"),
        since_day: int | None = None,
        until_day: int | None = None,
    ) -> tuple[UsageTotal, ...]:
        """Sums over committed turns, grouped. Currencies are never added to each other."""
        if session is not None:
            check_id("session", session)
        groups = frozenset(by)
        if not groups <= {"session", "source", "model", "day"}:
            raise Invalid(field="by", reason="group by session, source, model or day")
        return self._view.engine.read(
            usage.totals,
            self._view.tenant,
            session,
            groups,
            check_int("since_day", since_day if since_day is not None else 0),
            check_int("until_day", until_day if until_day is not None else MAX_INT),
        )

    def rows(self, session: str, *, after: str | None = None, limit: int = 100) -> Page[UsageRow]:
        """The single entries of a session, in the order they were committed."""
        view = self._view
        check_id("session", session)
        place = cursor_pair("after", after, (0, -1))
        return view.engine.read(usage.rows, view.tenant, session, place, view.page(limit))


class BlockingStore:
    """One tenant's view of one database."""

    def __init__(self, view: BlockingView) -> None:
        self._view = view
        self.sessions = BlockingSessions(view)
        self.history = BlockingHistoryNodes(view)
        self.lanes = BlockingLanes(view)
        self.usage = BlockingUsageLedger(view)

    @property
    def tenant(self) -> str:
        """The tenant whose rows this handle sees, and no others."""
        return self._view.tenant

    def on(self, connection: Any) -> BlockingStore:
        """The same store inside the caller's own transaction, where the database allows it."""
        view = self._view
        inside = view.engine.on(connection)
        return BlockingStore(BlockingView(inside, view.tenant, view.limits, view.new_id))

    def close(self) -> None:
        """Finish what is under way, then let go of the database. May be called twice."""
        self._view.engine.close()

    def __enter__(self) -> BlockingStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
