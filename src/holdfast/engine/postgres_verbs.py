"""The schema verbs on a PostgreSQL schema: what an operator asks for without opening the store.

Only `apply` changes anything. Each verb uses one connection on a private loop, so that it can be
called from anywhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

from holdfast.engine import postgres_schema
from holdfast.engine.loop_thread import LoopThread
from holdfast.engine.postgres_open import CONNECT_SECONDS, unopened
from holdfast.sql.migrations import SchemaStatus


class PostgresVerbs:
    """The verbs on one schema of one database."""

    def __init__(self, url: str, schema: str) -> None:
        self._url = url
        self._schema = postgres_schema.check_schema(schema)

    def status(self) -> SchemaStatus:
        """What the schema is, against what this holdfast knows."""
        return self._run(postgres_schema.status)

    def script(self) -> str:
        """The pending migrations as one text; empty when there are none."""
        status = self.status()
        if not status.pending:
            return ""
        return postgres_schema.script(self._schema, after=status.found)

    def apply(self) -> SchemaStatus:
        """Bring the schema up to date, making it when it is not there."""
        self.status().require_usable(migrate=True)
        status = self._run(postgres_schema.apply)
        status.require_usable(migrate=False)
        return status

    def _run(self, verb: Callable[[Any, str], Awaitable[SchemaStatus]]) -> SchemaStatus:
        loop = LoopThread("holdfast-schema")
        try:
            return loop.run(self._on_connection(verb))
        finally:
            loop.stop()

    async def _on_connection(
        self, verb: Callable[[Any, str], Awaitable[SchemaStatus]]
    ) -> SchemaStatus:
        try:
            connection = await asyncpg.connect(
                self._url,
                timeout=CONNECT_SECONDS,
                statement_cache_size=0,
                server_settings={"application_name": "holdfast"},
            )
        except Exception as failure:
            raise unopened(failure, self._url) from None
        try:
            status = await verb(connection, self._schema)
            await connection.close(timeout=CONNECT_SECONDS)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as failure:
            raise unopened(failure, self._url) from None
        finally:
            connection.terminate()
        return status
