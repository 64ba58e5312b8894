"""The facade of usage: what the turns of a store have cost."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.contract.errors import Invalid
from holdfast.contract.limits import MAX_INT
from holdfast.contract.records import Page, UsageRow, UsageTotal
from holdfast.contract.stores import UsageGroup
from holdfast.core.cursors import cursor_pair
from holdfast.core.payloads import check_id, check_int
from holdfast.ops import usage
from holdfast.stores.view import View


class UsageLedger:
    """Usage: what the turns of a store have cost."""

    def __init__(self, view: View) -> None:
        self._view = view

    async def totals(
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
        return await self._view.engine.read(
            usage.totals,
            self._view.tenant,
            session,
            groups,
            check_int("since_day", since_day if since_day is not None else 0),
            check_int("until_day", until_day if until_day is not None else MAX_INT),
        )

    async def rows(
        self, session: str, *, after: str | None = None, limit: int = 100
    ) -> Page[UsageRow]:
        """The single entries of a session, in the order they were committed."""
        view = self._view
        check_id("session", session)
        place = cursor_pair("after", after, (0, -1))
        return await view.engine.read(usage.rows, view.tenant, session, place, view.page(limit))
