"""Long inboxes are laid down here, straight into the tables: a store would take minutes for them.

The rows are what an enqueue writes, digests included, so that whatever is claimed from them can be
read. The session must be there already.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apsw
import asyncpg

from holdfast.core.queue import pack_items, work_digest

COLUMNS = (
    "tenant",
    "session",
    "seq",
    "work",
    "key",
    "kind",
    "delivery",
    "slot",
    "merge_key",
    "state",
    "available_at_ms",
    "enqueued_at_ms",
    "items",
    "digest",
    "attempts",
    "claim",
    "claim_token",
    "claim_owner",
    "claim_generation",
    "claimed_at_ms",
    "keep_ms",
    "keep_until_ms",
)
HOUR_MS = 3_600_000
ITEMS = pack_items([b"body"])
Row = tuple[Any, ...]


def work_rows(tenant: str, session: str, states: Iterable[str], *, now: int) -> Iterator[Row]:
    """The inbox of a session, one work per state. What is claimed is so under its generation 1."""
    for seq, state in enumerate(states, 1):
        work = f"w{seq}"
        items = b"" if state == "done" else ITEMS
        claimed = state == "claimed"
        yield (
            tenant,
            session,
            seq,
            work,
            f"k{seq}" if state == "done" else None,
            "turn",
            "earliest",
            "join",
            "m",
            state,
            now + HOUR_MS if state == "delayed" else now,
            now,
            items,
            work_digest(tenant, session, work, items),
            int(claimed),
            "c" if claimed else None,
            "ct" if claimed else None,
            "me" if claimed else None,
            1 if claimed else None,
            now if claimed else None,
            HOUR_MS,
            now + HOUR_MS if state == "done" else None,
        )


def now_ms() -> int:
    """The time of this machine, which is also the time of both databases under test."""
    return int(time.time() * 1000)


async def fill_server(url: str, rows: Iterable[Row]) -> None:
    """Put rows into the table of work, and tell their sessions; statistics stay as they are."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SET search_path TO holdfast")
        await connection.copy_records_to_table("work", records=rows, columns=COLUMNS)
        await connection.execute(
            "UPDATE session s SET work_seq = w.seq, due_at_ms = w.due FROM"
            " (SELECT tenant, session, max(seq) AS seq, min(available_at_ms) AS due"
            " FROM work GROUP BY 1, 2) w WHERE s.tenant = w.tenant AND s.session = w.session"
        )
    finally:
        await connection.close()


def fill_file(path: Path, rows: Iterable[Row]) -> None:
    """The same for a file, which no store may have open meanwhile."""
    connection = apsw.Connection(str(path))
    try:
        with connection:
            connection.executemany(
                f"INSERT INTO work ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})",
                rows,
            )
            connection.execute(
                "UPDATE session SET work_seq = w.seq, due_at_ms = w.due FROM"
                " (SELECT tenant, session, max(seq) AS seq, min(available_at_ms) AS due"
                " FROM work GROUP BY 1, 2) w"
                " WHERE session.tenant = w.tenant AND session.session = w.session"
            )
    finally:
        connection.close()
