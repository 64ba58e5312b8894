"""The races: every guarded statement, by callers that start at the same moment.

`HOLDFAST_ROUNDS` is the number of rounds of each race on each database.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import apsw
import asyncpg
import pytest

import holdfast
from holdfast.contract.errors import ClaimLost, LaneLost
from holdfast.contract.queue import NewWork
from holdfast.contract.records import NewNode, Turn, Usage
from holdfast.testing.postgres_server import PostgresServer
from holdfast.testing.race_laws import RACES
from holdfast.testing.race_laws_processes import PROCESS_RACES
from holdfast.testing.race_laws_queue import QUEUE_RACES
from holdfast.testing.races import RACERS, Arena, ProcessRacer, Race, ThreadRacer

ROUNDS = int(os.environ.get("HOLDFAST_ROUNDS", "300"))
ALL = (*RACES, *QUEUE_RACES, *PROCESS_RACES)
Arenas = tuple[str, dict[bool, Arena]]
COMMITS = [race for race in RACES if race.name.startswith("commit-")]
NEXT = [race for race in QUEUE_RACES if race.name == "next"]
SETTLES = [race for race in QUEUE_RACES if race.name.startswith("settle")]

# Content that is named and not there, and content that is there and nobody names.
DANGLING = """
SELECT count(*) FROM {schema}component c WHERE NOT EXISTS (
  SELECT 1 FROM {schema}blob b WHERE b.tenant = c.tenant AND b.digest = c.digest)
"""
LEFT = """
SELECT count(*) FROM {schema}blob b WHERE NOT EXISTS (
  SELECT 1 FROM {schema}component c WHERE c.tenant = b.tenant AND c.digest = b.digest)
"""


@contextmanager
def arena(url: str, tenant: str, *, handles: int = RACERS, **options: Any) -> Iterator[Arena]:
    """Racers in threads, on as many handles as asked for."""
    with ExitStack() as stack:
        stores = [
            stack.enter_context(holdfast.open_sync(url, tenant=tenant, **options))
            for _ in range(handles)
        ]
        barrier = threading.Barrier(RACERS)
        racers = [ThreadRacer(stores[n % handles], barrier) for n in range(RACERS)]
        for racer in racers:
            stack.callback(racer.close)
        yield Arena(stores, racers, random.getrandbits(32))


def fresh_tenant() -> str:
    return f"t{uuid.uuid4().hex}"


@contextmanager
def arenas(url: str, **options: Any) -> Iterator[Arenas]:
    """One for most races, and one in a tenant of its own for those that are run alone."""
    with (
        arena(url, fresh_tenant(), **options) as shared,
        arena(url, fresh_tenant(), **options) as empty,
    ):
        yield url, {False: shared, True: empty}


@pytest.fixture(scope="module")
def sqlite_races(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arenas]:
    path = str(tmp_path_factory.mktemp("races") / "agents.db")
    with arenas(path, synchronous="normal") as found:
        yield found


@pytest.fixture(scope="module")
def postgres_database(postgres_server: PostgresServer) -> Iterator[str]:
    name = f"races_{uuid.uuid4().hex}"
    url = postgres_server.create_database(name)
    # What a server that loses power may lose is no question here, and each flush costs a wait.
    postgres_server.run_sql(f"ALTER DATABASE {name} SET synchronous_commit = off")
    yield url
    postgres_server.drop_database(name)


@pytest.fixture(scope="module")
def postgres_races(postgres_database: str) -> Iterator[Arenas]:
    with arenas(postgres_database, pool_size=3, allow_unsafe=True) as found:
        yield found


def rounds_of(race: Race) -> int:
    """Each guard of processes has a race of its own elsewhere; what meets here are several."""
    return max(1, ROUNDS // 3) if race in PROCESS_RACES else ROUNDS


def sqlite_count(path: str, query: str) -> int:
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    (count,) = next(iter(connection.execute(query.format(schema=""))))
    connection.close()
    return int(count)


def postgres_count(server: PostgresServer, url: str, query: str) -> int:
    database = urlsplit(url).path[1:]
    return int(server.run_sql(query.format(schema="holdfast."), database=database))


def troubles(server: PostgresServer) -> tuple[int, int]:
    """How often the server had to end a deadlock, and a unique index to refuse a row: both are nets
    under the guards that hold nothing, and a caller would see a delay only."""
    log = (server.directory / "log").read_text(errors="replace")
    return log.count("deadlock detected"), log.count("duplicate key value")


@pytest.mark.parametrize("race", ALL, ids=lambda race: race.name)
def test_race_on_sqlite(sqlite_races: Arenas, race: Race) -> None:
    """Four handles on one file, each in a thread."""
    path, found = sqlite_races
    found[race.alone].run(race, rounds_of(race))
    assert (sqlite_count(path, DANGLING), sqlite_count(path, LEFT)) == (0, 0)


@pytest.mark.parametrize("race", ALL, ids=lambda race: race.name)
def test_race_on_postgres(
    postgres_races: Arenas, postgres_server: PostgresServer, race: Race
) -> None:
    """Four handles with pools of their own, so that no merging keeps the rivals apart."""
    url, found = postgres_races
    before = troubles(postgres_server)
    found[race.alone].run(race, rounds_of(race))
    counts = [postgres_count(postgres_server, url, query) for query in (DANGLING, LEFT)]
    assert counts == [0, 0]
    assert troubles(postgres_server) == before


def test_races_in_processes(sqlite_path: Path) -> None:
    """Four processes on one file."""
    barrier = ProcessRacer.barrier(RACERS)
    tenant = fresh_tenant()
    with ExitStack() as stack:
        home = stack.enter_context(holdfast.open_sync(str(sqlite_path), tenant=tenant))
        racers = [ProcessRacer(str(sqlite_path), tenant, barrier) for _ in range(RACERS)]
        for racer in racers:
            stack.callback(racer.close)
        found = Arena([home], racers, random.getrandbits(32))
        for race in (*NEXT, *COMMITS[:3], *SETTLES):
            found.run(race, ROUNDS)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_races_through_one_handle(
    kind: str, sqlite_path: Path, request: pytest.FixtureRequest
) -> None:
    """Four threads on one handle, which puts what waits into one call or one transaction."""
    own: dict[str, Any] = {"synchronous": "normal"}
    url = str(sqlite_path)
    if kind == "postgres":
        url, own = request.getfixturevalue("postgres_database"), {"allow_unsafe": True}
    with arena(url, fresh_tenant(), handles=1, **own) as found:
        for race in (*COMMITS, *SETTLES):
            found.run(race, max(1, ROUNDS // 6))


async def test_merged_turns_of_many_sessions_never_deadlock(
    postgres_database: str, postgres_server: PostgresServer
) -> None:
    """Four handles commit turns of the same sessions, with shared content, in orders of their own:
    all are committed, and the server never has to end a deadlock."""
    tenant, chance = fresh_tenant(), random.Random(5)
    stores = [
        await holdfast.open(postgres_database, tenant=tenant, allow_unsafe=True) for _ in range(4)
    ]
    sessions = [f"s{number}" for number in range(8)]
    for session in sessions:
        await stores[0].sessions.create(session)
    before = troubles(postgres_server)
    rounds = max(40, ROUNDS // 6)
    for number in range(rounds):
        turns = []
        for place, store in enumerate(stores):
            for session in chance.sample(sessions, len(sessions)):
                content = [f"{number} {part}".encode() for part in range(4)]
                chance.shuffle(content)
                state = {f"c{part}": value for part, value in enumerate(content)}
                turn = Turn(
                    session=session,
                    turn=f"{number}-{place}",
                    nodes=[NewNode(body=place)],
                    state=state,
                    usage=[Usage(model="m", input=1)],
                )
                turns.append(store.sessions.commit(turn))
        receipts = await asyncio.gather(*turns)
        assert not any(receipt.replayed for receipt in receipts)
    for session in sessions:
        head = await stores[0].sessions.head(session)
        assert head is not None
        assert (head.revision, head.node_count) == (4 * rounds, 4 * rounds)
    for store in stores:
        await store.close()
    assert troubles(postgres_server) == before


async def test_a_lane_that_lapses_while_a_turn_waits_is_lost(postgres_database: str) -> None:
    """A turn that waited for the session is judged by the time after the wait: when the lane has
    lapsed meanwhile, it is refused."""
    tenant = fresh_tenant()
    store = await holdfast.open(postgres_database, tenant=tenant, allow_unsafe=True)
    await store.sessions.create("s")
    lane = await store.lanes.claim("s", "ada", ttl_ms=400)
    rival = await asyncpg.connect(postgres_database)
    async with rival.transaction():
        await rival.execute(
            "SELECT FROM holdfast.session WHERE tenant = $1 AND session = 's' FOR UPDATE", tenant
        )
        turn = Turn(session="s", turn="t", nodes=[NewNode(body="late")], fence=lane.fence)
        waiting = asyncio.create_task(store.sessions.commit(turn))
        while await rival.fetchval(
            "SELECT holdfast.now_ms() <= lane_expires_at_ms FROM holdfast.session"
            " WHERE tenant = $1 AND session = 's'",
            tenant,
        ):
            await asyncio.sleep(0.02)
        assert not waiting.done()
    with pytest.raises(LaneLost):
        await waiting
    assert await store.sessions.receipt("s", "t") is None
    await rival.close()
    await store.close()


async def test_a_claim_that_is_given_back_while_a_turn_waits_is_lost(
    postgres_database: str,
) -> None:
    """A turn that waited for the session is judged by what is claimed after the wait: when its work
    was given back meanwhile, it is refused."""
    store = await holdfast.open(postgres_database, tenant=fresh_tenant(), allow_unsafe=True)
    await store.sessions.create("s")
    await store.queue.enqueue(NewWork(session="s", payloads=["w"], key="k"))
    claim = (await store.queue.claim("s", "ada")).claim
    assert claim is not None
    rival = await asyncpg.connect(postgres_database)
    watch = await asyncpg.connect(postgres_database)
    async with rival.transaction():
        assert await store.on(rival).queue.abandon(claim) == 1
        turn = Turn(session="s", turn="t", claims=[claim.settlement])
        waiting = asyncio.create_task(store.sessions.commit(turn))
        while not waiting.done() and not await watch.fetchval(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()"
        ):
            await asyncio.sleep(0.01)
    with pytest.raises(ClaimLost):
        await waiting
    assert await store.sessions.receipt("s", "t") is None
    assert (await store.queue.list("s")).items[0].state == "ready"
    await watch.close()
    await rival.close()
    await store.close()


async def test_work_that_is_claimed_while_a_cancel_waits_is_kept(postgres_database: str) -> None:
    """A cancel that waited is judged by who holds the lane after the wait: when a session was
    handed out meanwhile, its work is not removed."""
    store = await holdfast.open(postgres_database, tenant=fresh_tenant(), allow_unsafe=True)
    await store.sessions.create("s")
    work = (await store.queue.enqueue(NewWork(session="s", payloads=["w"]))).work
    rival = await asyncpg.connect(postgres_database)
    watch = await asyncpg.connect(postgres_database)
    async with rival.transaction():
        taken = await store.on(rival).queue.claim_next("bob")
        assert taken.claim is not None
        waiting = asyncio.create_task(store.queue.cancel("s", work.work))
        while not waiting.done() and not await watch.fetchval(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()"
        ):
            await asyncio.sleep(0.01)
    assert await waiting is None
    assert (await store.queue.list("s")).items == taken.claim.work
    await watch.close()
    await rival.close()
    await store.close()


async def test_content_that_a_turn_names_waits_for_the_turn(postgres_database: str) -> None:
    """A delete of the last owner waits for a turn that names its content, and keeps it."""
    tenant = fresh_tenant()
    store = await holdfast.open(postgres_database, tenant=tenant, allow_unsafe=True)
    for session in ("owner", "s"):
        await store.sessions.create(session)
    await store.sessions.commit(Turn(session="owner", turn="t", state={"agent": b"mine"}))
    history = await store.history.load("owner")
    assert history is not None
    rival = await asyncpg.connect(postgres_database)
    watch = await asyncpg.connect(postgres_database)
    async with rival.transaction():
        own = store.on(rival)
        await own.sessions.commit(Turn(session="s", turn="t", state=history.refs))
        deleting = asyncio.create_task(store.sessions.delete("owner"))
        while not deleting.done() and not await watch.fetchval(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()"
        ):
            await asyncio.sleep(0.01)
    assert (await deleting).blobs == 0
    found = await store.history.load("s")
    assert found is not None
    assert found.state == {"agent": b"mine"}
    await watch.close()
    await rival.close()
    await store.close()
