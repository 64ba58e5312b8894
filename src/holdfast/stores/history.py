"""The facade of history: the nodes of sessions."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.contract.errors import Invalid, TooLarge
from holdfast.contract.records import History, Node, Page, Vacuumed
from holdfast.core.cursors import cursor_pair
from holdfast.core.payloads import check_id, check_int
from holdfast.ops import history
from holdfast.stores.view import View


class HistoryNodes:
    """The nodes of a session: reading paths, and hiding what must not be seen."""

    def __init__(self, view: View) -> None:
        self._view = view

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
        return await view.engine.read(
            history.load,
            view.tenant,
            session,
            leaf,
            before,
            revision,
            check_int("tail", window, 1, view.limits.window),
            state,
        )

    async def node(self, session: str, node: str) -> Node | None:
        """One node the session can see, or None."""
        check_id("session", session)
        check_id("node", node)
        return await self._view.engine.read(history.node, self._view.tenant, session, node)

    async def graph(
        self, session: str, *, after: str | None = None, limit: int = 1000
    ) -> Page[Node]:
        """Every node the session can see, on all branches, in the order they were stored."""
        view = self._view
        check_id("session", session)
        place = None if after is None else cursor_pair("after", after, (0, 0))
        return await view.engine.read(history.graph, view.tenant, session, place, view.page(limit))

    async def tombstone(self, session: str, nodes: Sequence[str]) -> int:
        """Hide nodes of the session from every read. Unknown ids are ignored."""
        view = self._view
        check_id("session", session)
        if len(nodes) > view.limits.commit_rows:
            raise TooLarge(field="nodes", actual=len(nodes), limit=view.limits.commit_rows)
        ids = sorted({check_id(f"nodes[{i}]", node) for i, node in enumerate(nodes)})
        rows = [(node,) for node in ids]
        return await view.engine.write(history.tombstone, view.tenant, session, rows)

    async def vacuum(self, session: str) -> Vacuumed:
        """Remove the bodies of the session's tombstoned nodes."""
        check_id("session", session)
        return await self._view.engine.write(history.vacuum, self._view.tenant, session)
