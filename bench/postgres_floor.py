"""The PostgreSQL floors: the same rows in the same schema, written by hand over the same driver.

`SingleStatement` sends each turn as one statement of scalar parameters, with the lock before the
verdict and the check against a stale snapshot. `Naive` sends one plain statement per read and
write. Both know this one shape of turn only.
"""

from __future__ import annotations

import time
from typing import Any

import asyncpg
from backports import zstd

from bench.content import NODES, Content
from bench.sqlite_floor import Sealed
from bench.subject import CURRENCY, MODEL, SOURCE, TENANT
from holdfast.engine.postgres_open import know_types

SETTINGS = {"jit": "off", "application_name": "bench"}


def _values(first: int, rows: int, types: tuple[str, ...]) -> str:
    """A VALUES list of scalar parameters, each row with its position at the end."""
    out = []
    for row in range(rows):
        at = first + row * len(types)
        cells = [f"${at + i}::{kind}" for i, kind in enumerate(types)]
        out.append(f"({', '.join(cells)}, {row + 1})")
    return ", ".join(out)


# $1 tenant, $2 session, $3 turn, $4 expected, $5 intent, $6 leaf, $7 model, $8 source,
# $9 currency, $10-$15 amounts, $16.. nodes, then components, then blobs.
_NODE_AT = 16
_COMPONENT_AT = _NODE_AT + 3 * NODES
_BLOB_AT = _COMPONENT_AT + 2 * 2

SINGLE = f"""WITH seen AS MATERIALIZED (
  SELECT s.session, s.revision AS seen FROM {{s}}.session s
  WHERE s.tenant = $1 AND s.session = $2 AND s.deleted_at_ms IS NULL AND s.revision = $4
    AND NOT EXISTS (SELECT FROM {{s}}.receipt p
      WHERE p.tenant = $1 AND p.session = $2 AND p.turn = $3)
), held AS MATERIALIZED (
  SELECT s.*, q.seen FROM seen q JOIN {{s}}.session s ON s.tenant = $1 AND s.session = q.session
  FOR NO KEY UPDATE OF s
), verdict AS MATERIALIZED (
  SELECT h.revision + 1 AS revision, h.leaf, h.leaf_depth, h.last_seq, h.node_count,
    coalesce(h.leaf_run, h.last_seq + 1) AS run, h.leaf_run IS NULL AS starts, c.now
  FROM held h
  CROSS JOIN (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) c
  WHERE h.revision = h.seen AND h.deleted_at_ms IS NULL
    AND (h.lane_token IS NULL OR h.lane_expires_at_ms <= c.now)
    AND NOT EXISTS (SELECT FROM {{s}}.node n WHERE n.tenant = $1 AND n.session = $2
      AND n.node IN ({", ".join(f"${_NODE_AT + 3 * i}" for i in range(NODES))}))
), head AS (
  UPDATE {{s}}.session s SET revision = v.revision, leaf = $6, leaf_session = $2, leaf_run = v.run,
    leaf_seq = v.last_seq + {NODES}, leaf_depth = v.leaf_depth + {NODES},
    last_seq = v.last_seq + {NODES}, node_count = v.node_count + {NODES}, state_session = $2,
    state_revision = v.revision, active_at_ms = v.now, active_minute = v.now / 60000
  FROM verdict v WHERE s.tenant = $1 AND s.session = $2
), node_in AS (
  INSERT INTO {{s}}.node (tenant, session, seq, node, run, depth, parent, revision, kind, body,
    digest, at_ms)
  SELECT $1, $2, v.last_seq + x.pos, x.node, v.run, v.leaf_depth + x.pos,
    coalesce(lag(x.node) OVER (ORDER BY x.pos), v.leaf), v.revision, 'message', x.body, x.digest,
    v.now
  FROM verdict v CROSS JOIN (
    VALUES {_values(_NODE_AT, NODES, ("text", "bytea", "bytea"))}) AS x(node, body, digest, pos)
), run_in AS (
  INSERT INTO {{s}}.run (tenant, session, run, base_depth)
  SELECT $1, $2, v.run, 0 FROM verdict v WHERE v.starts
), blob_in AS (
  INSERT INTO {{s}}.blob AS b (tenant, digest, encoding, size, data)
  SELECT $1, x.digest, x.encoding, x.size, x.data FROM verdict v CROSS JOIN (
    VALUES {_values(_BLOB_AT, 2, ("bytea", "bigint", "bigint", "bytea"))})
    AS x(digest, encoding, size, data, pos)
  ORDER BY x.pos ON CONFLICT (tenant, digest) DO UPDATE SET size = b.size WHERE false
), component_in AS (
  INSERT INTO {{s}}.component (tenant, session, revision, name, digest)
  SELECT $1, $2, v.revision, x.name, x.digest FROM verdict v CROSS JOIN (
    VALUES {_values(_COMPONENT_AT, 2, ("text", "bytea"))}) AS x(name, digest, pos)
), revision_in AS (
  INSERT INTO {{s}}.revision (tenant, session, revision, kind, turn, leaf, leaf_session, leaf_run,
    leaf_seq, leaf_depth, state_session, state_revision, at_ms)
  SELECT $1, $2, v.revision, 'turn', $3, $6, $2, v.run, v.last_seq + {NODES},
    v.leaf_depth + {NODES}, $2, v.revision, v.now FROM verdict v
), usage_in AS (
  INSERT INTO {{s}}.usage_row (tenant, session, revision, ordinal, turn, at_ms, source, model,
    input, output, cache_read, cache_write, reasoning, cost_micros, currency)
  SELECT $1, $2, v.revision, 0, $3, v.now, $8, $7, $10, $11, $12, $13, $14, $15, $9 FROM verdict v
), total_in AS (
  INSERT INTO {{s}}.usage_total AS t (tenant, session, day, source, model, currency, entries,
    input, output, cache_read, cache_write, reasoning, cost_micros)
  SELECT $1, $2, v.now / 86400000, $8, $7, $9, 1, $10, $11, $12, $13, $14, $15 FROM verdict v
  ON CONFLICT (tenant, session, day, source, model, currency) DO UPDATE SET
    entries = t.entries + 1, input = t.input + excluded.input,
    output = t.output + excluded.output, cache_read = t.cache_read + excluded.cache_read,
    cache_write = t.cache_write + excluded.cache_write,
    reasoning = t.reasoning + excluded.reasoning,
    cost_micros = t.cost_micros + excluded.cost_micros
), receipt_in AS (
  INSERT INTO {{s}}.receipt (tenant, session, turn, intent, revision, leaf, node_count, at_ms)
  SELECT $1, $2, $3, $5, v.revision, $6, v.node_count + {NODES}, v.now FROM verdict v
)
SELECT v.revision FROM verdict v"""

NAIVE = {
    "head": """SELECT revision, leaf, leaf_run, leaf_depth, last_seq, node_count, lane_token,
        lane_expires_at_ms, (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
        FROM {s}.session WHERE tenant = $1 AND session = $2 AND deleted_at_ms IS NULL
        FOR NO KEY UPDATE""",
    "receipt": "SELECT 1 FROM {s}.receipt WHERE tenant = $1 AND session = $2 AND turn = $3",
    "clash": "SELECT 1 FROM {s}.node WHERE tenant = $1 AND session = $2 AND node = ANY ($3)",
    "update": """UPDATE {s}.session SET revision = $3, leaf = $4, leaf_session = $2, leaf_run = $5,
        leaf_seq = $6, leaf_depth = $7, last_seq = $6, node_count = $8, state_session = $2,
        state_revision = $3, active_at_ms = $9, active_minute = $10
        WHERE tenant = $1 AND session = $2""",
    "node": """INSERT INTO {s}.node (tenant, session, seq, node, run, depth, parent, revision, kind,
        body, digest, at_ms) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'message', $9, $10, $11)""",
    "run": """INSERT INTO {s}.run (tenant, session, run, base_depth) VALUES ($1, $2, $3, 0)""",
    "blob": """INSERT INTO {s}.blob (tenant, digest, encoding, size, data)
        VALUES ($1, $2, $3, $4, $5) ON CONFLICT (tenant, digest) DO NOTHING""",
    "component": """INSERT INTO {s}.component (tenant, session, revision, name, digest)
        VALUES ($1, $2, $3, $4, $5)""",
    "revision": """INSERT INTO {s}.revision (tenant, session, revision, kind, turn, leaf,
        leaf_session, leaf_run, leaf_seq, leaf_depth, state_session, state_revision, at_ms)
        VALUES ($1, $2, $3, 'turn', $4, $5, $2, $6, $7, $8, $2, $3, $9)""",
    "usage": """INSERT INTO {s}.usage_row (tenant, session, revision, ordinal, turn, at_ms, source,
        model, input, output, cache_read, cache_write, reasoning, cost_micros, currency)
        VALUES ($1, $2, $3, 0, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)""",
    "total": """INSERT INTO {s}.usage_total AS t (tenant, session, day, source, model, currency,
        entries, input, output, cache_read, cache_write, reasoning, cost_micros)
        VALUES ($1, $2, $3, $4, $5, $6, 1, $7, $8, $9, $10, $11, $12)
        ON CONFLICT (tenant, session, day, source, model, currency) DO UPDATE SET
        entries = t.entries + 1, input = t.input + excluded.input,
        output = t.output + excluded.output, cache_read = t.cache_read + excluded.cache_read,
        cache_write = t.cache_write + excluded.cache_write,
        reasoning = t.reasoning + excluded.reasoning,
        cost_micros = t.cost_micros + excluded.cost_micros""",
    "write_receipt": """INSERT INTO {s}.receipt (tenant, session, turn, intent, revision, leaf,
        node_count, at_ms) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)""",
}


async def _keep(connection: Any) -> None:
    """The pool's own reset is a round trip for each turn; neither floor needs it."""


class _Pooled:
    def __init__(self, name: str, pool: Any, schema: str) -> None:
        self.name = name
        self._pool = pool
        self._single = SINGLE.format(s=schema)
        self._text = {key: sql.format(s=schema) for key, sql in NAIVE.items()}
        self._compressor = zstd.ZstdCompressor(level=1)

    @classmethod
    async def open(cls, name: str, url: str, schema: str, *, cached: bool, size: int = 16) -> Any:
        """With prepared statements, or as behind a pooler that forgets them."""
        pool = await asyncpg.create_pool(
            url,
            min_size=size,
            max_size=size,
            statement_cache_size=1024 if cached else 0,
            max_cacheable_statement_size=0,
            server_settings=SETTINGS,
            init=know_types,
            reset=_keep,
        )
        return cls(name, pool, schema)

    async def prepare(self, sessions: int) -> None:
        """The sessions are there: the schema is one that the library has set up."""

    async def close(self) -> None:
        await self._pool.close()


class SingleStatement(_Pooled):
    """One statement of scalar parameters for each turn."""

    async def commit(self, session: str, turn: str, expected: int, content: Content) -> int:
        sealed = Sealed(self._compressor, session, turn, content)
        arguments: list[Any] = [TENANT, session, turn, expected, sealed.intent]
        arguments += [sealed.nodes[-1][0], MODEL, SOURCE, CURRENCY, *content.usage]
        for group in (sealed.nodes, sealed.components, sealed.blobs):
            for row in group:
                arguments += row
        async with self._pool.acquire() as connection:
            row = await connection.fetchrow(self._single, *arguments)
        if row is None:
            raise RuntimeError("the turn was refused")
        return int(row[0])


class Naive(_Pooled):
    """One plain statement for each read and write, in a transaction."""

    async def commit(self, session: str, turn: str, expected: int, content: Content) -> int:
        sealed = Sealed(self._compressor, session, turn, content)
        async with self._pool.acquire() as connection, connection.transaction():
            return await self._write(connection, session, turn, expected, content, sealed)

    async def _write(
        self,
        connection: Any,
        session: str,
        turn: str,
        expected: int,
        content: Content,
        sealed: Sealed,
    ) -> int:
        text, execute, key = self._text, connection.execute, (TENANT, session)
        ids = [node[0] for node in sealed.nodes]
        head = await connection.fetchrow(text["head"], *key)
        now = head["now"] if head else round(time.time() * 1000)
        lane_free = head and (head["lane_token"] is None or head["lane_expires_at_ms"] <= now)
        if not lane_free or head["revision"] != expected:
            raise RuntimeError("the head has moved, or the lane is taken")
        if await connection.fetchrow(text["receipt"], *key, turn):
            raise RuntimeError("the turn is there already")
        if await connection.fetchrow(text["clash"], *key, ids):
            raise RuntimeError("a node is there already")
        revision, run = head["revision"] + 1, head["leaf_run"]
        last, base, count = head["last_seq"], head["leaf_depth"], head["node_count"] + len(ids)
        if run is None:
            run = last + 1
            await execute(text["run"], *key, run)
        seq, depth = last + len(ids), base + len(ids)
        minute = now // 60_000
        await execute(text["update"], *key, revision, ids[-1], run, seq, depth, count, now, minute)
        parent = head["leaf"]
        for pos, (node, body, digest) in enumerate(sealed.nodes, 1):
            place = (last + pos, node, run, base + pos, parent, revision)
            await execute(text["node"], *key, *place, body, digest, now)
            parent = node
        for blob in sealed.blobs:
            await execute(text["blob"], TENANT, *blob)
        for component in sealed.components:
            await execute(text["component"], *key, revision, *component)
        await execute(text["revision"], *key, revision, turn, ids[-1], run, seq, depth, now)
        used = content.usage
        await execute(text["usage"], *key, revision, turn, now, SOURCE, MODEL, *used, CURRENCY)
        await execute(text["total"], *key, now // 86_400_000, SOURCE, MODEL, CURRENCY, *used)
        intent = sealed.intent
        await execute(text["write_receipt"], *key, turn, intent, revision, ids[-1], count, now)
        return int(revision)
