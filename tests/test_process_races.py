"""The races of processes: every guarded statement, by callers that start at the same moment.

`HOLDFAST_ROUNDS` is the number of rounds of each race on each database.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import holdfast
from holdfast.contract.errors import LeaseLost
from holdfast.contract.processes import EventType, NewEvent, NewGrant, NewProcess, Scope
from holdfast.testing.postgres_server import PostgresServer
from tests.process_race_laws import MERGED, RACES, Race
from tests.process_rings import Ring, ring

ROUNDS = int(os.environ.get("HOLDFAST_ROUNDS", "300"))


def fresh_tenant() -> str:
    return f"t{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def sqlite_ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    path = str(tmp_path_factory.mktemp("races") / "agents.db")
    with ring(path, fresh_tenant(), synchronous="normal") as found:
        yield found


@pytest.fixture(scope="module")
def postgres_races(postgres_server: PostgresServer) -> Iterator[str]:
    name = f"process_races_{uuid.uuid4().hex}"
    url = postgres_server.create_database(name)
    # What a server that loses power may lose is no question here, and each flush costs a wait.
    postgres_server.run_sql(f"ALTER DATABASE {name} SET synchronous_commit = off")
    yield url
    postgres_server.drop_database(name)


@pytest.fixture(scope="module")
def postgres_ring(postgres_races: str) -> Iterator[Ring]:
    with ring(postgres_races, fresh_tenant(), pool_size=3, allow_unsafe=True) as found:
        yield found


def troubles(server: PostgresServer) -> tuple[int, int]:
    """How often the server had to end a deadlock, and a unique index to refuse a row: both are nets
    under the guards that hold nothing, and a caller would see a delay only."""
    log = (server.directory / "log").read_text(errors="replace")
    return log.count("deadlock detected"), log.count("duplicate key value")


def run(race: Race, found: Ring, rounds: int) -> None:
    """Run a race, and say in which round it failed."""
    for number in range(rounds):
        try:
            race(found, f"{race.__name__.replace('_', '-')}-{number}")
        except AssertionError as wrong:
            raise AssertionError(f"round {number}: {race.__doc__}\n{wrong}") from wrong


@pytest.mark.parametrize("race", RACES, ids=lambda race: race.__name__)
def test_race_on_sqlite(sqlite_ring: Ring, race: Race) -> None:
    """Four handles on one file, each in a thread."""
    run(race, sqlite_ring, ROUNDS)


@pytest.mark.parametrize("race", RACES, ids=lambda race: race.__name__)
def test_race_on_postgres(postgres_ring: Ring, postgres_server: PostgresServer, race: Race) -> None:
    """Four handles with pools of their own, so that no merging keeps the rivals apart."""
    before = troubles(postgres_server)
    run(race, postgres_ring, ROUNDS)
    assert troubles(postgres_server) == before


@pytest.mark.parametrize("race", MERGED, ids=lambda race: race.__name__)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_race_through_one_handle(
    kind: str, race: Race, sqlite_path: Path, request: pytest.FixtureRequest
) -> None:
    """Four threads on one handle, which puts what waits into one call or one transaction."""
    own: dict[str, Any] = {"synchronous": "normal"}
    url = str(sqlite_path)
    if kind == "postgres":
        url, own = request.getfixturevalue("postgres_races"), {"allow_unsafe": True}
    with ring(url, fresh_tenant(), handles=1, **own) as found:
        run(race, found, max(1, ROUNDS // 6))


@pytest.mark.parametrize("verb", ["append", "end", "renew", "claim", "abandon"])
async def test_who_waited_is_judged_by_the_time_after(postgres_races: str, verb: str) -> None:
    """What waited for a process is judged by the time after the wait: a lease that has lapsed
    meanwhile is lost, and may be taken."""
    tenant = fresh_tenant()
    store = await holdfast.open(postgres_races, tenant=tenant, allow_unsafe=True)
    process = NewProcess(
        process="p",
        events=[EventType(name="step")],
        recovery="owner-bound" if verb == "abandon" else "rerunnable",
    )
    await store.processes.register(process)
    lease = await store.processes.claim("p", "ada", ttl_ms=400)
    calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "append": lambda: store.processes.append("p", NewEvent(type="step"), lease=lease),
        "end": lambda: store.processes.end("p", lease=lease),
        "renew": lambda: store.processes.renew(lease),
        "claim": lambda: store.processes.claim("p", "bob"),
        "abandon": lambda: store.processes.abandon("p", reason="gone"),
    }
    rival = await asyncpg.connect(postgres_races)
    async with rival.transaction():
        await rival.execute(
            "SELECT FROM holdfast.process WHERE tenant = $1 AND process = 'p' FOR UPDATE", tenant
        )
        waiting = asyncio.create_task(calls[verb]())
        while await rival.fetchval(
            "SELECT holdfast.now_ms() <= lease_expires_at_ms FROM holdfast.process"
            " WHERE tenant = $1 AND process = 'p'",
            tenant,
        ):
            await asyncio.sleep(0.02)
        assert not waiting.done()
    if verb in ("claim", "abandon"):
        await waiting
    else:
        with pytest.raises(LeaseLost):
            await waiting
    await rival.close()
    await store.close()


WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()"
LOCK = "SELECT FROM holdfast.process WHERE tenant = $1 AND process = $2 FOR UPDATE"


@pytest.mark.parametrize("verb", ["end", "transfer"])
async def test_processes_are_locked_in_one_order(postgres_races: str, verb: str) -> None:
    """Who locks two processes takes them in the order of their ids, whatever order the call has:
    while the first is locked by somebody else, nobody holds the second and waits."""
    tenant = fresh_tenant()
    store = await holdfast.open(postgres_races, tenant=tenant, allow_unsafe=True)
    source, target = Scope(session="s"), Scope(session="t")
    for process, parent in (("a", "b"), ("b", "a")):
        new = NewProcess(process=process, parent=parent, grants=[NewGrant(scope=source)])
        await store.processes.register(new)
    calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "end": lambda: store.processes.end("b", authority="operator"),
        "transfer": lambda: store.processes.transfer(source, target, ["b", "a"]),
    }
    rival, watch = [await asyncpg.connect(postgres_races) for _ in range(2)]
    async with rival.transaction():
        await rival.execute(LOCK, tenant, "a")
        waiting = asyncio.create_task(calls[verb]())
        while not waiting.done() and not await watch.fetchval(WAITING):
            await asyncio.sleep(0.01)
        assert not waiting.done()
        await rival.execute(f"{LOCK} NOWAIT", tenant, "b")
    await waiting
    for connection in (rival, watch):
        await connection.close()
    await store.close()


async def test_readers_give_different_places(postgres_races: str) -> None:
    """Readers of the feed who give places at the same time, while others write, never give one
    place twice: a cursor never stands on two changes."""
    tenant = fresh_tenant()
    stores = [
        await holdfast.open(postgres_races, tenant=tenant, allow_unsafe=True) for _ in range(3)
    ]
    rival = await asyncpg.connect(postgres_races)
    for number in range(200):
        await stores[0].processes.register(NewProcess(process=f"p{number}"))

    async def follow(store: holdfast.Store, name: str) -> None:
        for part in range(3):
            await store.processes.register(NewProcess(process=f"{name}-{part}"))
            await store.processes.changes(limit=1)

    for number in range(max(20, ROUNDS // 6)):
        await rival.execute("UPDATE holdfast.process SET change = NULL WHERE tenant = $1", tenant)
        await asyncio.gather(
            *(follow(store, f"n{number}-{place}") for place, store in enumerate(stores))
        )
        places = await rival.fetch(
            "SELECT change FROM holdfast.process WHERE tenant = $1 AND change IS NOT NULL"
            " GROUP BY change HAVING count(*) > 1",
            tenant,
        )
        assert places == []
    await rival.close()
    for store in stores:
        await store.close()
