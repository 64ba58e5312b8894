"""The composition root: a URL becomes a store, and this is the only place that knows which."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

from holdfast.contract.errors import Invalid
from holdfast.contract.limits import Limits
from holdfast.core.payloads import check_id
from holdfast.sql.migrations import SchemaStatus
from holdfast.stores import Store, View
from holdfast.stores_blocking import BlockingStore, BlockingView

DEFAULT_TENANT = "default"
DEFAULT_SCHEMA = "holdfast"
_POSTGRES = ("postgresql://", "postgres://")
_SQLITE = "sqlite:///"


def random_id() -> str:
    """An id nobody can guess: 120 bits."""
    return secrets.token_hex(15)


def is_postgres(url: str) -> bool:
    """Whether the URL names a PostgreSQL database."""
    return url.startswith(_POSTGRES)


def sqlite_path(url: str) -> str:
    """The file a URL names: `sqlite:///relative.db`, `sqlite:////absolute.db`, or a plain path."""
    if not isinstance(url, str) or not url:
        raise Invalid(field="url", reason="a path, sqlite:///path, :memory: or postgresql://…")
    if url.startswith(_SQLITE):
        url = url[len(_SQLITE) :] or ":memory:"
    elif "://" in url or url.startswith("file:"):
        raise Invalid(field="url", reason="a path, sqlite:///path, :memory: or postgresql://…")
    if "\0" in url or not url:
        raise Invalid(field="url", reason="this is not a path")
    return url


def _only(options: dict[str, Any], allowed: set[str], url_kind: str) -> dict[str, Any]:
    for name in options:
        if name not in allowed:
            raise Invalid(field=name, reason=f"not an option of a {url_kind} store")
    return options


SQLITE_OPTIONS = {
    "clock",
    "synchronous",
    "readers",
    "read_only",
    "migrate",
    "busy_ms",
    "max_group",
    "max_group_seconds",
    "allow_network",
}
POSTGRES_OPTIONS = {
    "schema",
    "pooler",
    "listen_url",
    "pool_size",
    "migrate",
    "acquire_timeout",
    "max_group",
    "max_group_bytes",
    "allow_unsafe",
}


async def open(
    url: str,
    *,
    tenant: str = DEFAULT_TENANT,
    limits: Limits | None = None,
    ids: Callable[[], str] | None = None,
    **options: Any,
) -> Store:
    """Open a store: a file path, `sqlite:///path`, `:memory:` or `postgresql://…`.

    An empty database is set up; another program's, or a newer one, is refused. SQLite takes
    `synchronous` ("full", or "normal", which may lose the last commits in a power cut), `clock`,
    `read_only`, `readers`; PostgreSQL takes `schema`, `pooler`, `listen_url`, `pool_size`.
    """
    check_id("tenant", tenant)
    view: Any
    if is_postgres(url):
        from holdfast.engine.postgres import PostgresEngine

        view = await PostgresEngine.open(url, **_only(options, POSTGRES_OPTIONS, "PostgreSQL"))
    else:
        from holdfast.engine.sqlite import SqliteEngine

        path = sqlite_path(url)
        checked = _only(options, SQLITE_OPTIONS, "SQLite")
        loop = asyncio.get_running_loop()
        view = await loop.run_in_executor(None, lambda: SqliteEngine(path, **checked))
    return Store(View(view, tenant, limits or Limits(), ids or random_id))


def open_sync(
    url: str,
    *,
    tenant: str = DEFAULT_TENANT,
    limits: Limits | None = None,
    ids: Callable[[], str] | None = None,
    **options: Any,
) -> BlockingStore:
    """Open the same store with blocking methods, safe from threads."""
    check_id("tenant", tenant)
    engine: Any
    if is_postgres(url):
        from holdfast.engine.postgres import PostgresBlockingEngine

        engine = PostgresBlockingEngine.open(url, **_only(options, POSTGRES_OPTIONS, "PostgreSQL"))
    else:
        from holdfast.engine.sqlite import SqliteBlockingEngine

        engine = SqliteBlockingEngine(sqlite_path(url), **_only(options, SQLITE_OPTIONS, "SQLite"))
    return BlockingStore(BlockingView(engine, tenant, limits or Limits(), ids or random_id))


def schema_status(url: str, *, schema: str | None = None) -> SchemaStatus:
    """What the schema of a store is, against what this holdfast knows. Changes nothing."""
    status: SchemaStatus = _verbs(url, schema).status()
    return status


def schema_sql(url: str, *, schema: str | None = None) -> str:
    """The text of the migrations a store lacks, to be run by hand; empty when it lacks none."""
    text: str = _verbs(url, schema).script()
    return text


def schema_apply(url: str, *, schema: str | None = None) -> SchemaStatus:
    """Apply the migrations a store lacks, all or nothing. One that drifted is refused."""
    status: SchemaStatus = _verbs(url, schema).apply()
    return status


def _verbs(url: str, schema: str | None) -> Any:
    if is_postgres(url):
        from holdfast.engine.postgres_verbs import PostgresVerbs

        return PostgresVerbs(url, DEFAULT_SCHEMA if schema is None else schema)
    from holdfast.engine.sqlite_verbs import SqliteVerbs

    path = sqlite_path(url)
    if path == ":memory:":
        raise Invalid(field="url", reason="a database in memory has no schema to look after")
    if schema is not None:
        raise Invalid(field="schema", reason="not an option of a SQLite store")
    return SqliteVerbs(path)
