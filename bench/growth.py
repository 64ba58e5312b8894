"""What grows: commits and tail loads with the history, the bytes on disk with the turns."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg

import holdfast
from bench.content import Contents
from bench.measure import middle, paired
from bench.report import Goal, Report
from bench.subject import Ours
from holdfast import NewNode, Turn

SHORT = 100
NODES_A_TURN = 1000
REPEATS = 20
TAIL = 50
MOST_GROWTH, MOST_BYTES = 1.15, 1.4


async def _fill(store: Any, session: str, nodes: int) -> int:
    """A session with so many nodes; its revision."""
    await store.sessions.create(session)
    contents = Contents("text")
    revision = 0
    for first in range(0, nodes, NODES_A_TURN):
        bodies: list[bytes] = []
        while len(bodies) < min(NODES_A_TURN, nodes - first):
            bodies.extend(contents.next().bodies)
        count = min(NODES_A_TURN, nodes - first)
        turn = Turn(
            session=session,
            turn=f"fill-{first}",
            nodes=[NewNode(body=body) for body in bodies[:count]],
            state={"head": b"{}", "agent": b"{}"},
        )
        revision = (await store.sessions.commit(turn)).revision
    return revision


async def _time(action: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    await action()
    return time.perf_counter() - began


async def growth(
    report: Report, database: str, store: Any, effort: Any, url: str | None = None
) -> None:
    """Commits and tail loads on a short and a long session, one beside the other."""
    lengths = (SHORT, effort.long_history)
    revisions = {length: await _fill(store, f"h{length}", length) for length in lengths}
    if url is not None:
        admin = await asyncpg.connect(url)
        await admin.execute("VACUUM (ANALYZE)")
        await admin.execute("CHECKPOINT")
        await admin.close()
    subject, contents, rng = Ours("holdfast", store), Contents("text"), random.Random(3)
    medians: dict[str, dict[int, list[float]]] = {}
    for number in range(effort.rounds + 1):
        taken: dict[str, dict[int, list[float]]] = {
            what: {length: [] for length in lengths} for what in ("commit", "tail")
        }
        for _ in range(REPEATS):
            for length in rng.sample(lengths, 2):
                session, was = f"h{length}", revisions[length]

                async def commit(
                    length: int = length, session: str = session, was: int = was
                ) -> Any:
                    content = contents.next()
                    revisions[length] = await subject.commit(session, f"t-{was}", was, content)

                async def tail(session: str = session) -> Any:
                    return await store.history.load(session, tail=TAIL)

                taken["commit"][length].append(await _time(commit))
                taken["tail"][length].append(await _time(tail))
        if number:  # The first round warms up.
            for what, by_length in taken.items():
                for length, times in by_length.items():
                    found = middle(times)[0] * 1e3
                    medians.setdefault(what, {}).setdefault(length, []).append(found)
                    report.tell(
                        database=database, measure=what, nodes=length, round=number,
                        p50_ms=round(found, 4),
                    )  # fmt: skip
    report.say(f"\n== {database}: p50 ms by nodes of history [quartiles of the rounds]")
    for what, by_length in medians.items():
        for length, found in by_length.items():
            mid, low, high = middle(found)
            report.say(f"    {what:<8}{length:>8} {mid:8.3f} [{low:.3f}-{high:.3f}]")
        ratio = paired(by_length[lengths[1]], by_length[lengths[0]])
        says = f"{database}, {what} at {lengths[1]} nodes / at {lengths[0]}"
        report.goal(Goal(says, ratio, MOST_GROWTH, most=True))


async def _turns(url: str, kind: str, turns: int) -> int:
    """Commit turns to one session; the payload they carried."""
    store = await holdfast.open(url)
    subject, contents, payload = Ours("holdfast", store), Contents(kind), 0
    await subject.prepare(1)
    for number in range(turns):
        content = contents.next()
        payload += content.size
        await subject.commit("s0", f"turn-s0-{number:08d}", number, content)
    await store.close()
    return payload


def _tell_bytes(
    report: Report, database: str, kind: str, turns: int, stored: int, payload: int
) -> None:
    found = stored / payload
    report.tell(
        database=database, measure="bytes", kind=kind,
        stored=round(stored / turns), payload=round(payload / turns),
    )  # fmt: skip
    report.say(
        f"    {database}, {kind}: {stored / turns:.0f} bytes stored a turn,"
        f" {payload / turns:.0f} handed in"
    )
    says = f"{database}, {kind}, bytes on disk / payload over {turns} turns"
    report.goal(Goal(says, (found, found, found), MOST_BYTES, most=True))


async def bytes_of_sqlite(report: Report, path: Path, kind: str, turns: int) -> None:
    """The file, and its log after the last connection closed, less the empty database."""
    payload = await _turns(str(path), kind, turns)
    files = (path, path.with_name(path.name + "-wal"))
    stored = sum(file.stat().st_size for file in files if file.exists())
    _tell_bytes(report, "SQLite", kind, turns, stored, payload)


async def bytes_of_postgres(report: Report, url: str, kind: str, turns: int) -> None:
    """All tables with their indexes and what is stored out of line, vacuumed and checkpointed."""
    payload = await _turns(url, kind, turns)
    admin = await asyncpg.connect(url)
    await admin.execute("VACUUM")
    await admin.execute("CHECKPOINT")
    rows = await admin.fetch(
        "SELECT c.relname, pg_total_relation_size(c.oid) AS bytes FROM pg_class c"
        " WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relkind = 'r' ORDER BY 2 DESC"
    )
    await admin.close()
    for row in rows:
        report.tell(database="PostgreSQL", kind=kind, table=row["relname"], bytes=row["bytes"])
    _tell_bytes(report, "PostgreSQL", kind, turns, sum(row["bytes"] for row in rows), payload)
