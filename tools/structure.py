"""Generates `structure.json` of both dialects from their migrations, or checks them.

The structure is read back from live databases: SQLite in memory, and a PostgreSQL started for it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import apsw
import asyncpg

from holdfast.engine import postgres_schema, sqlite_schema
from holdfast.sql.migrations import migrations
from holdfast.testing.postgres_server import PostgresServer, find_servers

SQL = Path(__file__).resolve().parent.parent / "src/holdfast/sql"


def sqlite_structure() -> dict[str, str]:
    """What the migrations make of an empty file."""
    connection = apsw.Connection(":memory:")
    for migration in migrations("sqlite"):
        connection.execute(migration.text)
    found = sqlite_schema.structure(connection)
    connection.close()
    return found


async def postgres_structure(url: str) -> dict[str, str]:
    """What the migrations make of an empty database."""
    connection = await asyncpg.connect(url)
    try:
        schema = "structure_probe"
        await connection.execute(postgres_schema.script(schema))
        return await postgres_schema.structure(connection, schema)
    finally:
        await connection.close()


def main() -> int:
    """Write both files, or with --check compare them."""
    found = {"sqlite": sqlite_structure()}
    servers = find_servers()
    if not servers:
        print("no PostgreSQL found: install the dev extra")
        return 1
    with PostgresServer(servers[0]) as server:
        found["postgres"] = asyncio.run(postgres_structure(server.url()))
    stale = False
    for dialect, structure in found.items():
        target = SQL / dialect / "structure.json"
        text = json.dumps(structure, indent=1, sort_keys=True) + "\n"
        if "--check" in sys.argv:
            if not target.exists() or target.read_text("utf-8") != text:
                print(f"{target.name} of {dialect} is not up to date: run make generate")
                stale = True
        else:
            target.write_text(text, "utf-8")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
