"""The schema of a PostgreSQL store: first opens, drift, foreign and newer ones."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.contract.errors import (
    ForeignDatabase,
    NotSupported,
    SchemaDrift,
    SchemaNewer,
    SchemaOlder,
)
from holdfast.engine import postgres_schema
from holdfast.engine.postgres import PostgresBlockingEngine
from holdfast.sql.migrations import expected_structure
from holdfast.testing.postgres_server import PostgresServer
from tests.postgres_blocks import BLOCKS, connected, open_engine, run

# --- the schema


def test_sixteen_first_opens_at_once(postgres_url: str) -> None:
    async def main() -> None:
        engines = await asyncio.gather(
            *(open_engine(postgres_url, blocks=None, pool_size=1) for _ in range(16))
        )
        await asyncio.gather(*(engine.close() for engine in engines))
        async with connected(postgres_url) as connection:
            found = await postgres_schema.status(connection, "holdfast")
            assert found.found == found.expected > 0
            assert not found.pending
            assert not found.differences

    run(main())


def test_the_structure_does_not_depend_on_the_name_of_the_schema(postgres_url: str) -> None:
    async def main() -> None:
        async with connected(postgres_url) as connection:
            structures = []
            for schema in ("holdfast", "user", "session", "s"):
                async with connection.transaction():
                    text = postgres_schema.script(schema)
                    await connection.execute(text.replace("BEGIN;", "").replace("COMMIT;", ""))
                structures.append(await postgres_schema.structure(connection, schema))
            assert structures[0]
            assert all(structure == structures[0] for structure in structures)
            assert structures[0] == expected_structure("postgres")
            assert await connection.fetchval("SHOW search_path") == '"$user", public'

    run(main())


def test_what_drifted_is_named(postgres_url: str) -> None:
    async def main() -> None:
        async with connected(postgres_url) as connection:
            assert (await postgres_schema.status(connection, "holdfast")).found == 0
            with pytest.raises(SchemaOlder):
                await open_engine(postgres_url, blocks=None, migrate=False)
            assert (await postgres_schema.apply(connection, "holdfast")).differences == ()
            await connection.execute("ALTER TABLE holdfast.session ALTER title DROP NOT NULL")
            with pytest.raises(SchemaDrift, match=r"session\.title"):
                await open_engine(postgres_url, blocks=None)
            await connection.execute(
                "ALTER TABLE holdfast.session ALTER title SET NOT NULL;"
                "UPDATE holdfast.migration SET checksum = 'other' WHERE version = 1"
            )
            with pytest.raises(SchemaDrift, match="another text"):
                await open_engine(postgres_url, blocks=None)
            await connection.execute(
                "INSERT INTO holdfast.migration SELECT max(version) + 1, 'next', 'x', 99, 0"
                " FROM holdfast.migration"
            )
            with pytest.raises(SchemaNewer):
                await open_engine(postgres_url, blocks=None)

    run(main())


def test_a_server_that_forgets_is_refused(postgres_server: PostgresServer) -> None:
    settings = {"fsync": "off", "synchronous_commit": "off"}
    with PostgresServer(postgres_server.bindir, settings=settings) as server:
        with pytest.raises(NotSupported, match="fsync"):
            run(open_engine(server.url(), allow_unsafe=False))
        server.settings["fsync"] = "on"
        server.restart()
        with pytest.warns(RuntimeWarning, match="synchronous_commit"):
            engine = PostgresBlockingEngine.open(server.url(), blocks=BLOCKS)
        engine.close()


def test_script_of_the_schema_is_text() -> None:
    text = postgres_schema.script("other")
    assert '"other"' in text
    assert "{schema}" not in text


def test_a_foreign_schema_is_refused(postgres_url: str) -> None:
    async def main() -> None:
        async with connected(postgres_url) as connection:
            await connection.execute(
                "CREATE SCHEMA holdfast; CREATE TABLE holdfast.customers(id int)"
            )
            for call in (postgres_schema.status, postgres_schema.apply):
                with pytest.raises(ForeignDatabase, match="customers"):
                    await call(connection, "holdfast")
            await connection.execute("CREATE TABLE holdfast.migration(id int)")
            with pytest.raises(ForeignDatabase, match="customers, migration"):
                await postgres_schema.status(connection, "holdfast")

    run(main())
