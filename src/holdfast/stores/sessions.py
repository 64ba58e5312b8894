"""The facade of sessions: the catalog, the head, the turn commit, forks and revisions."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.contract.errors import Invalid
from holdfast.contract.limits import MAX_INT
from holdfast.contract.records import (
    Created,
    Deleted,
    Diff,
    Fence,
    Head,
    Page,
    Receipt,
    Revision,
    SessionInfo,
    Turn,
)
from holdfast.contract.stores import SessionOrder
from holdfast.core import topics
from holdfast.core.cursors import cursor_named, cursor_number
from holdfast.core.payloads import check_id, check_int, check_text
from holdfast.core.sessions import check_place, check_tags, rewind_params
from holdfast.core.turns import plan_commit
from holdfast.ops import sessions
from holdfast.stores.view import View


class Sessions:
    """Sessions: the catalog, the head, the turn commit, forks and revisions."""

    def __init__(self, view: View) -> None:
        self._view = view

    async def create(
        self, session: str, *, title: str = "", tags: Mapping[str, str] | None = None
    ) -> Created:
        """Make sure the session exists. An existing one is left as it is."""
        view = self._view
        check_id("session", session)
        check_text("title", title, view.limits.text_chars)
        rows = check_tags(tags, view.limits)
        return await view.engine.write(sessions.create, view.tenant, session, title, rows)

    async def get(self, session: str) -> SessionInfo | None:
        """The session's catalog entry, or None when it does not exist (or was deleted)."""
        check_id("session", session)
        return await self._view.engine.read(sessions.get, self._view.tenant, session)

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
        view = self._view
        if order not in sessions.LISTS:
            raise Invalid(field="order", reason="it is 'active' or 'created'")
        if forked_from is not None:
            check_id("forked_from", forked_from)
        place, name = cursor_named("after", after, (MAX_INT, ""))
        return await view.engine.read(
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

    async def update(
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
        return await view.engine.write(
            sessions.update, view.tenant, session, title, rows, view.limits
        )

    async def delete(self, session: str) -> Deleted:
        """Remove all the session owns, for ever: its id is never used again."""
        check_id("session", session)
        view = self._view
        report = await view.engine.write(sessions.delete, view.tenant, session)
        if report.deleted:
            gone = topics.head(view.tenant, session)
            view.engine.publish((gone, *topics.inbox(view.tenant, session)))
        return report

    async def head(self, session: str) -> Head | None:
        """The head, from one row."""
        check_id("session", session)
        return await self._view.engine.read(sessions.head, self._view.tenant, session)

    async def commit(self, turn: Turn) -> Receipt:
        """Commit a turn: all of it, or nothing. The same turn again returns its receipt."""
        view = self._view
        turn_id = turn.turn if turn.turn is not None else view.new_id()
        plan = plan_commit(turn, tenant=view.tenant, turn_id=turn_id, limits=view.limits)
        receipt = await view.engine.write(sessions.commit, plan)
        moved = () if receipt.replayed else (topics.head(view.tenant, plan.session),)
        frees = topics.inbox(view.tenant, plan.session) if plan.params["frees"] else ()
        if moved or frees:
            view.engine.publish((*moved, *frees))
        return receipt

    async def receipt(self, session: str, turn: str) -> Receipt | None:
        """The receipt of a committed turn, or None."""
        check_id("session", session)
        check_id("turn", turn)
        return await self._view.engine.read(sessions.receipt, self._view.tenant, session, turn)

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
        view = self._view
        check_id("source", source)
        check_id("session", session)
        check_place(revision, node)
        check_text("title", title, view.limits.text_chars)
        rows = check_tags(tags, view.limits)
        return await view.engine.write(
            sessions.fork, view.tenant, source, session, revision, node, title, rows
        )

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
        view = self._view
        turn_id = turn if turn is not None else view.new_id()
        params = rewind_params(
            view.tenant, session, turn_id, revision, node, reason, expected, fence, view.limits
        )
        receipt = await view.engine.write(sessions.rewind, params)
        if not receipt.replayed:
            view.engine.publish((topics.head(view.tenant, session),))
        return receipt

    async def revisions(
        self, session: str, *, after: str | None = None, limit: int = 100
    ) -> Page[Revision]:
        """The retained revisions, newest first."""
        view = self._view
        check_id("session", session)
        before = cursor_number("after", after, MAX_INT)
        return await view.engine.read(
            sessions.revisions, view.tenant, session, before, view.page(limit)
        )

    async def diff(self, left: str, right: str) -> Diff:
        """How the heads of two sessions differ."""
        check_id("left", left)
        check_id("right", right)
        return await self._view.engine.read(sessions.diff, self._view.tenant, left, right)
