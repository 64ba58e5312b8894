"""The operations on usage: roll-ups and single entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.contract.records import Page, Usage, UsageRow, UsageTotal
from holdfast.ops.op import Op, Stmt, call

Row = tuple[Any, ...]


def _total(*row: Any) -> UsageTotal:
    session, source, model, day, currency, entries, *amounts = row
    return UsageTotal(
        usage=_usage(source or "", model or "", amounts, currency),
        entries=entries,
        session=session,
        day=day,
    )


def _usage(source: str, model: str, amounts: Sequence[int], currency: str) -> Usage:
    return Usage(
        model=model,
        source=source,
        input=amounts[0],
        output=amounts[1],
        cache_read=amounts[2],
        cache_write=amounts[3],
        reasoning=amounts[4],
        cost_micros=amounts[5],
        currency=currency,
    )


def _row(*row: Any) -> Row:
    return row


TOTALS: Stmt[UsageTotal, None] = Stmt("usage.totals", _total)
ROWS: Stmt[Row, None] = Stmt("usage.rows", _row)


def totals(
    tenant: str, session: str | None, by: frozenset[str], since_day: int, until_day: int
) -> Op[tuple[UsageTotal, ...]]:
    """Sums, grouped."""
    rows = yield from call(
        TOTALS,
        tenant=tenant,
        session=session,
        by_session="session" in by,
        by_source="source" in by,
        by_model="model" in by,
        by_day="day" in by,
        since_day=since_day,
        until_day=until_day,
    )
    return tuple(rows)


def rows(tenant: str, session: str, after: tuple[int, int], limit: int) -> Op[Page[UsageRow]]:
    """A page of single entries."""
    found = yield from call(
        ROWS,
        tenant=tenant,
        session=session,
        revision=after[0],
        ordinal=after[1],
        limit=limit + 1,
    )
    shown = found[:limit]
    items = tuple(
        UsageRow(
            session=session,
            turn=row[2],
            ordinal=row[1],
            at_ms=row[3],
            usage=_usage(row[4], row[5], row[6:12], row[12]),
        )
        for row in shown
    )
    more = f"{shown[-1][0]}.{shown[-1][1]}" if len(found) > limit else None
    return Page(items=items, next=more)
