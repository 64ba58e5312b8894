"""The SQLite floor: the same rows in the same schema, by the leanest code over the same driver.

It knows this one shape of turn (four nodes after the leaf, two state components, one usage row),
keeps the guards (revision, lane, receipt, node ids), the digests and the compression, and gives
each turn a transaction of its own on one worker thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import queue
import threading
import time
from typing import Any

import apsw
from backports import zstd

from bench.content import Content
from bench.subject import CURRENCY, MODEL, SOURCE, TENANT

HEAD = """SELECT revision, leaf, leaf_run, leaf_seq, leaf_depth, last_seq, node_count
FROM session WHERE tenant = ? AND session = ? AND deleted_at_ms IS NULL AND revision = ?
AND (lane_token IS NULL OR lane_expires_at_ms <= ?)"""
RECEIPT = "SELECT 1 FROM receipt WHERE tenant = ? AND session = ? AND turn = ?"
CLASH = "SELECT 1 FROM node WHERE tenant = ? AND session = ? AND node IN (?, ?, ?, ?)"
UPDATE = """UPDATE session SET revision = ?, leaf = ?, leaf_session = ?, leaf_run = ?, leaf_seq = ?,
leaf_depth = ?, last_seq = ?, node_count = ?, state_session = ?, state_revision = ?,
active_at_ms = ?, active_minute = ? WHERE tenant = ? AND session = ?"""
NODE = """INSERT INTO node (tenant, session, seq, node, run, depth, parent, revision, kind, body,
digest, at_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
RUN = """INSERT INTO run (tenant, session, run, base_session, base_run, base_seq, base_depth)
VALUES (?, ?, ?, NULL, NULL, NULL, 0)"""
BLOB = """INSERT INTO blob (tenant, digest, encoding, size, data) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (tenant, digest) DO NOTHING"""
COMPONENT = "INSERT INTO component (tenant, session, revision, name, digest) VALUES (?, ?, ?, ?, ?)"
REVISION = """INSERT INTO revision (tenant, session, revision, kind, turn, leaf, leaf_session,
leaf_run, leaf_seq, leaf_depth, state_session, state_revision, at_ms)
VALUES (?, ?, ?, 'turn', ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
USAGE = """INSERT INTO usage_row (tenant, session, revision, ordinal, turn, at_ms, source, model,
input, output, cache_read, cache_write, reasoning, cost_micros, currency)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
TOTAL = """INSERT INTO usage_total (tenant, session, day, source, model, currency, entries, input,
output, cache_read, cache_write, reasoning, cost_micros) VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?,
?, ?) ON CONFLICT (tenant, session, day, source, model, currency) DO UPDATE SET
entries = entries + 1, input = input + excluded.input, output = output + excluded.output,
cache_read = cache_read + excluded.cache_read, cache_write = cache_write + excluded.cache_write,
reasoning = reasoning + excluded.reasoning, cost_micros = cost_micros + excluded.cost_micros"""
WRITE_RECEIPT = """INSERT INTO receipt (tenant, session, turn, intent, revision, leaf, node_count,
at_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""


class Sealed:
    """What a turn is hashed and compressed into, for every floor alike."""

    __slots__ = ("blobs", "components", "intent", "nodes")

    def __init__(
        self, compressor: zstd.ZstdCompressor, session: str, turn: str, content: Content
    ) -> None:
        self.nodes: list[tuple[str, bytes, bytes]] = []
        prefix = f"{TENANT}\0{session}\0"
        intent = hashlib.sha256(prefix.encode())
        for number, body in enumerate(content.bodies):
            node = f"{turn}:{number}"
            seal = hashlib.blake2b(f"{prefix}{node}\0message\0".encode(), digest_size=16)
            seal.update(body)
            self.nodes.append((node, body, seal.digest()))
            intent.update(hashlib.sha256(body).digest())
        self.components: list[tuple[str, bytes]] = []
        self.blobs: list[tuple[bytes, int, int, bytes]] = []
        for name, data in (("agent", content.agent), ("head", content.head)):
            digest = hashlib.sha256(data).digest()
            packed = compressor.compress(data, compressor.FLUSH_FRAME)
            worth = len(packed) < len(data) * 7 / 8
            self.components.append((name, digest))
            self.blobs.append((digest, int(worth), len(data), packed if worth else data))
            intent.update(digest)
        self.intent = intent.digest()
        self.blobs.sort()


class _Work:
    __slots__ = ("arguments", "done", "error", "loop", "revision")

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self.loop.create_future()
        self.arguments = arguments
        self.error: Exception | None = None
        self.revision = 0


class SqliteFloor:
    """One worker thread, one transaction for each turn."""

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self._path = path
        self._compressor = zstd.ZstdCompressor(level=1)
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._db = apsw.Connection(path, statementcachesize=100)
        self._db.set_busy_timeout(15_000)
        self._db.execute("PRAGMA foreign_keys = ON; PRAGMA synchronous = FULL")
        self._db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        self._db.wal_autocheckpoint(4000)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    async def prepare(self, sessions: int) -> None:
        """The sessions are there: the file is one that the library has set up."""

    async def commit(self, session: str, turn: str, expected: int, content: Content) -> int:
        work = _Work((session, turn, expected, content))
        self._queue.put(work)
        await work.done
        if work.error is not None:
            raise work.error
        return work.revision

    async def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
        self._db.close()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work.revision = self._commit(*work.arguments)
            except Exception as error:
                work.error = error
            work.loop.call_soon_threadsafe(work.done.set_result, None)

    def _commit(self, session: str, turn: str, expected: int, content: Content) -> int:
        sealed = Sealed(self._compressor, session, turn, content)
        execute = self._db.execute
        execute("BEGIN IMMEDIATE")
        try:
            revision = self._write(session, turn, expected, content, sealed)
            execute("COMMIT")
        except BaseException:
            execute("ROLLBACK")
            raise
        return revision

    def _write(
        self, session: str, turn: str, expected: int, content: Content, sealed: Sealed
    ) -> int:
        execute, many = self._db.execute, self._db.executemany
        now = time.time_ns() // 1_000_000
        key = (TENANT, session)
        head = execute(HEAD, (*key, expected, now)).fetchone()
        ids = [node[0] for node in sealed.nodes]
        if head is None:
            raise RuntimeError("the head has moved, or the lane is taken")
        if execute(RECEIPT, (*key, turn)).fetchone() or execute(CLASH, (*key, *ids)).fetchone():
            raise RuntimeError("the turn or a node is there already")
        revision, leaf, run, _, depth, last_seq, count = head
        revision += 1
        if run is None:
            run = last_seq + 1
            execute(RUN, (*key, run))
        seq, new_depth, count = last_seq + len(ids), depth + len(ids), count + len(ids)
        place = (ids[-1], session, run, seq, new_depth)
        execute(UPDATE, (revision, *place, seq, count, session, revision, now, now // 60_000, *key))
        parents = [leaf, *ids]
        many(
            NODE,
            [
                (*key, last_seq + i + 1, node, run, depth + i + 1, parents[i], revision, "message",
                 body, digest, now)
                for i, (node, body, digest) in enumerate(sealed.nodes)
            ],
        )  # fmt: skip
        many(BLOB, [(TENANT, *blob) for blob in sealed.blobs])
        many(COMPONENT, [(*key, revision, *component) for component in sealed.components])
        execute(REVISION, (*key, revision, turn, *place, session, revision, now))
        used = content.usage
        execute(USAGE, (*key, revision, 0, turn, now, SOURCE, MODEL, *used, CURRENCY))
        execute(TOTAL, (*key, now // 86_400_000, SOURCE, MODEL, CURRENCY, *used))
        execute(WRITE_RECEIPT, (*key, turn, sealed.intent, revision, ids[-1], count, now))
        return revision
