"""The clock of the server, asked once for all that one operation writes at the same moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import NewGrant, NewProcess
from holdfast.testing.conformance.kit_processes import here

if TYPE_CHECKING:
    from tests.conftest import Database

# A clock that goes on whenever it is asked.
HASTY = """CREATE OR REPLACE FUNCTION holdfast.now_ms() RETURNS bigint LANGUAGE sql VOLATILE
AS 'SELECT 2000000000000 + nextval(''holdfast.hasty'')'"""


async def test_grants_that_move_together_have_one_time(postgres_database: Database) -> None:
    """However many they are, they were granted at one moment."""
    async with postgres_database.open() as store, postgres_database.connected() as run:
        for session in ("s", "t"):
            await store.sessions.create(session)
        names = ["a", "b", "c"]
        for name in names:
            await store.processes.register(
                NewProcess(process=name, kind="k", grants=[NewGrant(scope=here("s"))])
            )
        await run("CREATE SEQUENCE holdfast.hasty")
        await run(HASTY)
        assert await store.processes.transfer(here("s"), here("t"), names) == 3
        page = await store.processes.grants(here("t"))
        assert len({one.grant.granted_at_ms for one in page.items}) == 1
