"""Everything that knows how the schema of a PostgreSQL store is made and read back lives here.

The schema is made by numbered migrations, all pending ones in one transaction under one lock. What
is there is read back as text in which the name of the schema does not occur, so that the same store
has the same structure under any schema name and on every supported server version.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from holdfast.contract.errors import ForeignDatabase, Invalid
from holdfast.sql.migrations import Migration, SchemaStatus, differences, migrations

_DIALECT = "postgres"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}\Z")
_MIGRATION_COLUMNS = {
    "version": "integer",
    "name": "text",
    "checksum": "text",
    "oldest_reader": "integer",
    "applied_at_ms": "bigint",
}
_EXPECTED = "a holdfast store or an empty schema"
_NOW_MS = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"


def check_schema(schema: object) -> str:
    """A name of a schema that is the same quoted and unquoted: it is put into every statement."""
    if not isinstance(schema, str) or not _NAME.match(schema):
        raise Invalid(field="schema", reason="must match [a-z_][a-z0-9_]{0,62}")
    return schema


async def status(connection: Any, schema: str) -> SchemaStatus:
    """What the schema is, against what this holdfast knows. Changes nothing."""
    async with connection.transaction(readonly=True, isolation="repeatable_read"):
        return await _status(connection, schema)


async def apply(connection: Any, schema: str) -> SchemaStatus:
    """Bring the schema up to date, all or nothing; whoever comes at the same time waits."""
    found = await status(connection, schema)
    if not found.pending:
        return found
    async with connection.transaction(isolation="read_committed"):
        # The lock comes first: two sessions that create one schema at the same time collide.
        await connection.execute("SET LOCAL lock_timeout = 0")
        await connection.execute(f"SELECT pg_advisory_xact_lock({_lock(schema)})")
        found = await _status(connection, schema)
        if not found.pending:
            return found
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)}")
        for migration in found.pending:
            await connection.execute(migration.text.replace("{schema}", _quoted(schema)))
            await connection.execute(_record(migration, schema))
        return await _status(connection, schema)


def script(schema: str, *, after: int = 0) -> str:
    """The migrations after a version as one text, to be read or to be run by hand."""
    lines = [
        "BEGIN;",
        f"SELECT pg_advisory_xact_lock({_lock(schema)});",
        f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)};",
    ]
    for migration in migrations(_DIALECT):
        if migration.version > after:
            lines.append(f"\n-- {migration.version:04d} {migration.name}")
            text = migration.text.replace("{schema}", _quoted(schema)).rstrip()
            lines.append(text if text.endswith(";") else text + ";")
            lines.append(_record(migration, schema) + ";")
    lines.append("\nCOMMIT;\n")
    return "\n".join(lines)


async def structure(connection: Any, schema: str) -> dict[str, str]:
    """Each object of the schema and its definition, without the name of the schema."""
    found: dict[str, str] = {}
    # Names are printed without a schema when the search path has it; so the path is made known.
    async with connection.transaction():
        path = await connection.fetchval("SELECT current_setting('search_path')")
        await connection.execute("SET LOCAL search_path = pg_catalog")
        for query in (_COLUMNS, _TABLES, _CONSTRAINTS, _INDEXES, _FUNCTIONS):
            for row in await connection.fetch(query, schema):
                definition = row["definition"]
                if row["body"] is not None:
                    # A body is the text of the migration, where the name is always quoted.
                    body = row["body"].replace(f"{_quoted(schema)}.", "")
                    digest = hashlib.md5(body.encode(), usedforsecurity=False)
                    definition = f"{definition} body {digest.hexdigest()}"
                name = row["object"]
                if name.startswith("function "):
                    name = _bare(name, schema)
                found[name] = _bare(definition, schema)
        await connection.execute("SELECT set_config('search_path', $1, true)", path)
    return found


async def _status(connection: Any, schema: str) -> SchemaStatus:
    known = migrations(_DIALECT)
    rows = await _applied(connection, schema)
    by_version = {migration.version: migration for migration in known}
    lines: list[str] = []
    for at, row in enumerate(rows, 1):
        migration = by_version.get(row["version"])
        if row["version"] != at:
            lines.append(f"migration {at} was never applied")
            break
        if migration is not None and migration.checksum != row["checksum"]:
            lines.append(f"migration {at} was applied with another text")
    found = rows[-1]["version"] if rows else 0
    expected = known[-1].version if known else 0
    if found == expected and found > 0:
        lines.extend(differences(_DIALECT, await structure(connection, schema)))
    return SchemaStatus(
        found=found,
        expected=expected,
        oldest_reader=rows[-1]["oldest_reader"] if rows else 0,
        pending=tuple(migration for migration in known if migration.version > found),
        differences=tuple(lines),
    )


async def _applied(connection: Any, schema: str) -> list[Any]:
    """The rows of the migration table; none for an empty schema; anything else is foreign."""
    objects = await connection.fetch(_OBJECTS, schema)
    if not objects:
        return []
    columns = {row["name"]: row["type"] for row in await connection.fetch(_SHAPE, schema)}
    if columns != _MIGRATION_COLUMNS:
        names = ", ".join(row["name"] for row in objects[:5])
        more = ", …" if len(objects) > 5 else ""
        raise ForeignDatabase(found=f"schema {schema} with {names}{more}", expected=_EXPECTED)
    table = f"{_quoted(schema)}.migration"
    rows: list[Any] = await connection.fetch(
        f"SELECT version, name, checksum, oldest_reader FROM {table} ORDER BY version"  # noqa: S608
    )
    if not rows:
        raise ForeignDatabase(
            found=f"schema {schema} with an empty migration table", expected=_EXPECTED
        )
    return rows


def _quoted(schema: str) -> str:
    return f'"{schema}"'


def _lock(schema: str) -> int:
    digest = hashlib.sha256(f"holdfast schema {schema}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _record(migration: Migration, schema: str) -> str:
    """The statement that notes an applied migration; its values are the package's own."""
    return (
        f"INSERT INTO {_quoted(schema)}.migration"  # noqa: S608
        "(version, name, checksum, oldest_reader, applied_at_ms) VALUES"
        f" ({migration.version}, '{migration.name}', '{migration.checksum}',"
        f" {migration.oldest_reader}, {_NOW_MS})"
    )


def _bare(text: str, schema: str) -> str:
    """A definition with the name of the schema taken out, quoted or not."""
    return re.sub(rf'(?:"{schema}"|(?<![\w".]){schema})\.', "", text)


_OBJECTS = """
SELECT c.relname AS name FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') ORDER BY 1
"""

_SHAPE = """
SELECT a.attname AS name, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = 'migration' AND c.relkind = 'r'
  AND a.attnum > 0 AND NOT a.attisdropped
"""

_TABLES = """
SELECT 'table ' || c.relname AS object, NULL AS body,
  CASE c.relkind WHEN 'r' THEN 'table' WHEN 'p' THEN 'partitioned table' WHEN 'v' THEN 'view'
    WHEN 'm' THEN 'materialized view' ELSE 'foreign table' END
  || CASE c.relpersistence WHEN 'p' THEN '' WHEN 'u' THEN ' unlogged' ELSE ' temporary' END
  AS definition
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""

_COLUMNS = """
SELECT 'column ' || c.relname || '.' || a.attname AS object, NULL AS body,
  pg_catalog.format_type(a.atttypid, a.atttypmod)
  || CASE WHEN l.oid IS NOT NULL THEN ' collate ' || pg_catalog.quote_ident(l.collname) ELSE '' END
  || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END
  || CASE WHEN a.attidentity <> '' THEN ' identity ' || a.attidentity::text ELSE '' END
  || CASE WHEN d.oid IS NULL THEN '' WHEN a.attgenerated <> '' THEN ' generated ' ELSE ' default '
     END
  || coalesce(pg_catalog.pg_get_expr(d.adbin, d.adrelid), '') AS definition
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation AND a.attcollation <> t.typcollation
WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
"""

_CONSTRAINTS = """
SELECT 'constraint ' || c.relname || '.' || k.conname AS object, NULL AS body,
  pg_catalog.pg_get_constraintdef(k.oid) AS definition
FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_class c ON c.oid = k.conrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND k.contype IN ('p', 'u', 'f', 'c', 'x')
"""

_INDEXES = """
SELECT 'index ' || i.relname AS object, NULL AS body,
  pg_catalog.pg_get_indexdef(x.indexrelid) || CASE WHEN x.indisvalid THEN '' ELSE ' invalid' END
  AS definition
FROM pg_catalog.pg_index x JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
JOIN pg_catalog.pg_class c ON c.oid = x.indrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind IN ('r', 'p', 'm') AND NOT EXISTS (
  SELECT FROM pg_catalog.pg_constraint k
  WHERE k.conindid = x.indexrelid AND k.conrelid = x.indrelid AND k.contype IN ('p', 'u', 'x'))
"""

_FUNCTIONS = """
SELECT 'function ' || p.proname || '(' || pg_catalog.pg_get_function_identity_arguments(p.oid)
  || ')' AS object, p.prosrc AS body,
  'returns ' || coalesce(pg_catalog.pg_get_function_result(p.oid), 'nothing') || ' language '
  || l.lanname || ' ' || CASE p.provolatile WHEN 'v' THEN 'volatile' WHEN 's' THEN 'stable' ELSE
  'immutable' END || coalesce(' set ' || pg_catalog.array_to_string(p.proconfig, ', '), '')
  AS definition
FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
JOIN pg_catalog.pg_language l ON l.oid = p.prolang
WHERE n.nspname = $1
"""
