"""The measure of the turn: throughput against the floors, growth of a session, bytes on disk."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

import holdfast
from bench.content import KINDS, Contents
from bench.growth import bytes_of_postgres, bytes_of_sqlite, growth
from bench.measure import Track, compete, server_clock
from bench.postgres_floor import Naive, SingleStatement
from bench.report import Goal, Report, ratio
from bench.sqlite_floor import SqliteFloor
from bench.subject import Ours
from holdfast.testing.postgres_server import PostgresServer, find_servers

COUNTS = (1, 8, 16, 64)
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}


@dataclass(frozen=True)
class Effort:
    """How long to measure, and what."""

    rounds: int = 20
    seconds: float = 0.2
    databases: tuple[str, ...] = ("sqlite", "postgres")
    parts: tuple[str, ...] = ("rate", "growth", "bytes")
    kinds: tuple[str, ...] = KINDS
    counts: tuple[int, ...] = COUNTS
    long_history: int = 100_000
    byte_turns: int = 1000


async def measure(effort: Effort, report: Report) -> None:
    """Everything that was asked for, database by database."""
    if "sqlite" in effort.databases:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            await _sqlite(effort, report, Path(folder))
    if "postgres" in effort.databases:
        with PostgresServer(find_servers()[0], settings=DURABLE) as server:
            report.say(f"PostgreSQL {server.version}")
            await _postgres(effort, report, server)
    report.finish()


async def _sqlite(effort: Effort, report: Report, folder: Path) -> None:
    if "rate" in effort.parts:
        for kind in effort.kinds:
            await _sqlite_rate(effort, report, folder, kind)
    if "growth" in effort.parts:
        async with _sqlite_store(folder / "growth.db") as store:
            await growth(report, "SQLite", store, effort)
    if "bytes" in effort.parts:
        for kind in effort.kinds:
            await bytes_of_sqlite(report, folder / f"bytes-{kind}.db", kind, effort.byte_turns)


@contextlib.asynccontextmanager
async def _sqlite_store(path: Path) -> AsyncIterator[Any]:
    store = await holdfast.open(str(path))
    try:
        yield store
    finally:
        await store.close()


async def _sqlite_rate(effort: Effort, report: Report, folder: Path, kind: str) -> None:
    path = folder / f"floor-{kind}.db"
    async with _sqlite_store(path) as store:
        await Ours("set up", store).prepare(max(effort.counts))
    ours = Track(
        Ours("holdfast", await holdfast.open(str(folder / f"ours-{kind}.db"))), Contents(kind)
    )
    floor = Track(SqliteFloor("floor, one txn each", str(path)), Contents(kind))
    tracks = [floor, ours]

    def tell(facts: dict[str, Any]) -> None:
        report.tell(database="sqlite", kind=kind, **facts)

    try:
        await compete(
            tracks, effort.counts, rounds=effort.rounds, seconds=effort.seconds, tell=tell
        )
    finally:
        for track in tracks:
            await track.subject.close()
    report.rates(f"SQLite FULL, {kind}", tracks, floor)
    for count, wanted in ((1, 0.8), (64, 1.8)):
        if count in effort.counts:
            says = f"SQLite FULL, {kind}, {count} session(s) / one transaction each"
            report.goal(Goal(says, ratio(ours, floor, count), wanted))


async def _postgres(effort: Effort, report: Report, server: PostgresServer) -> None:
    if "rate" in effort.parts:
        for kind in effort.kinds:
            await _postgres_rate(effort, report, server, kind)
    if "growth" in effort.parts:
        url = server.create_database("growth")
        store = await holdfast.open(url)
        try:
            await growth(report, "PostgreSQL", store, effort, url)
        finally:
            await store.close()
    if "bytes" in effort.parts:
        for kind in effort.kinds:
            url = server.create_database(f"bytes_{kind}")
            await bytes_of_postgres(report, url, kind, effort.byte_turns)


async def _postgres_tracks(effort: Effort, url: str, kind: str) -> dict[str, Track]:
    async def schema(name: str, *, cached: bool) -> Any:
        store = await holdfast.open(url, schema=name, pooler=not cached)
        await Ours("set up", store).prepare(max(effort.counts))
        return store

    tracks: dict[str, Track] = {}
    for cached in (True, False):
        tail = "" if cached else ", cache off"
        key = "" if cached else "_off"
        for name, kind_of in (("single", SingleStatement), ("naive", Naive)):
            await (await schema(name + key, cached=True)).close()
            title = {"single": "single statement", "naive": "naive"}[name] + tail
            subject = await kind_of.open(title, url, name + key, cached=cached)
            tracks[name + key] = Track(subject, Contents(kind))
        store = await schema("ours" + key, cached=cached)
        tracks["ours" + key] = Track(Ours("holdfast" + tail, store), Contents(kind))
    return tracks


async def _postgres_rate(effort: Effort, report: Report, server: PostgresServer, kind: str) -> None:
    url = server.create_database(f"rate_{kind}")
    tracks = await _postgres_tracks(effort, url, kind)
    for track in tracks.values():
        track.server_seconds = server_clock(server.pid)
    admin = await asyncpg.connect(url)

    async def between() -> None:
        await admin.execute("VACUUM (ANALYZE)")
        await admin.execute("CHECKPOINT")

    def tell(facts: dict[str, Any]) -> None:
        report.tell(database="postgres", kind=kind, **facts)

    try:
        await compete(
            list(tracks.values()),
            effort.counts,
            rounds=effort.rounds,
            seconds=effort.seconds,
            between=between,
            tell=tell,
        )
    finally:
        for track in tracks.values():
            await track.subject.close()
        await admin.close()
    on = [tracks[name] for name in ("single", "naive", "ours")]
    off = [tracks[name] for name in ("single_off", "naive_off", "ours_off")]
    report.rates(f"PostgreSQL, {kind}", on, tracks["single"])
    report.rates(f"PostgreSQL without prepared statements, {kind}", off, tracks["naive_off"])
    goals = [
        (1, "ours", "single", 0.8, "single statement"),
        (16, "ours", "single", 1.5, "single statement"),
        (16, "ours", "naive", 2.2, "naive"),
        (16, "ours_off", "naive_off", 3.0, "naive, both without prepared statements"),
    ]
    for count, mine, other, wanted, words in goals:
        if count in effort.counts:
            says = f"PostgreSQL, {kind}, {count} session(s) / {words}"
            report.goal(Goal(says, ratio(tracks[mine], tracks[other], count), wanted))
