"""A server that crashes, and a network that loses answers, beneath a handle that many tasks share.

Every call returns, or raises an `Unavailable` that is resolved by repeating the same turn. Nothing
acknowledged is lost, nothing is half there, and nothing is done twice.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, get_args

import pytest

import holdfast
from holdfast.contract.errors import OutcomeUnknown, StoreUnreachable, Unavailable
from holdfast.contract.limits import Limits
from holdfast.contract.records import NewNode, Receipt, Turn, Usage
from holdfast.engine.postgres import PostgresEngine
from holdfast.stores import Store, View
from holdfast.testing.postgres_server import PostgresServer, find_servers
from holdfast.testing.wire import Place, WireProxy

RESTARTS = 10
TASKS = 8
CUTS = 200
NODES = 2


def turn(session: str, name: str) -> Turn:
    return Turn(
        session=session,
        turn=name,
        nodes=[NewNode(id=f"{name}.{n}", body={"turn": name, "n": n}) for n in range(NODES)],
        state={"agent": name.encode()},
        usage=[Usage(model="m", input=1)],
    )


class Ledger:
    """What was sent, and what was acknowledged, turn by turn."""

    def __init__(self) -> None:
        self.acked: dict[str, Receipt] = {}
        self.sessions: dict[str, str] = {}
        self.unknown = 0
        self.unavailable = 0
        self.replayed = 0

    async def commit(self, store: Store, session: str, name: str) -> Receipt:
        """Commit a turn, repeating it as the errors say one may."""
        self.sessions[name] = session
        while True:
            try:
                receipt = await store.sessions.commit(turn(session, name))
            except OutcomeUnknown as unknown:
                assert f"session={session} turn={name}" in unknown.operation  # noqa: PT017
                self.unknown += 1
            except Unavailable:
                self.unavailable += 1
            else:
                self.replayed += receipt.replayed
                self.acked[name] = receipt
                return receipt

    async def check(self, store: Store) -> None:
        """All that was acknowledged is there once, whole, and where its receipt says."""
        found: dict[str, str] = {}
        for session in sorted(set(self.sessions.values())):
            history = await store.history.load(session)
            head = await store.sessions.head(session)
            assert history is not None
            assert head is not None
            assert head.node_count == len(history.nodes) == NODES * head.revision
            for at, node in enumerate(history.nodes):
                name, _, n = node.id.rpartition(".")
                assert node.json() == {"turn": name, "n": int(n)}
                assert int(n) == at % NODES
                assert node.revision == self.acked[name].revision == at // NODES + 1
                found[name] = session
            assert history.state == {"agent": history.nodes[-1].id.rpartition(".")[0].encode()}
            totals = await store.usage.totals(session=session)
            assert [total.usage.input for total in totals] == [head.revision]
        assert found == self.sessions
        for name, receipt in self.acked.items():
            known = await store.sessions.receipt(self.sessions[name], name)
            assert known is not None
            assert (known.revision, known.leaf) == (receipt.revision, f"{name}.{NODES - 1}")


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server that nobody else uses, because it is not treated well."""
    found = find_servers()
    assert found
    with PostgresServer(found[0], settings={"max_connections": "50"}) as server:
        yield server


async def test_crashes_of_the_server_lose_and_double_nothing(own_server: PostgresServer) -> None:
    url = own_server.create_database("restarts")
    store = await holdfast.open(url)
    ledger = Ledger()
    ended = asyncio.Event()
    sessions = [f"s{number}" for number in range(TASKS // 2)]
    for session in sessions:
        await store.sessions.create(session)

    async def worker(number: int) -> None:
        nth = 0
        while not ended.is_set():
            # Two tasks share each session, so that commits also wait for each other.
            await ledger.commit(store, sessions[number % len(sessions)], f"w{number}-{nth}")
            nth += 1

    async def reader() -> None:
        while not ended.is_set():
            try:
                assert await store.sessions.head(sessions[0]) is not None
            except StoreUnreachable:
                ledger.unavailable += 1
            await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(worker(number)) for number in range(TASKS)]
    tasks.append(asyncio.create_task(reader()))
    for number in range(RESTARTS):
        before = len(ledger.acked)
        while len(ledger.acked) < before + 20:
            done, _ = await asyncio.wait(tasks, timeout=0.02, return_when="FIRST_EXCEPTION")
            for task in done:
                task.result()
        if number % 5 == 4:
            await asyncio.to_thread(own_server.kill)
            await asyncio.to_thread(own_server.start)
        else:
            await asyncio.to_thread(own_server.restart, "immediate")
    ended.set()
    await asyncio.gather(*tasks)
    await ledger.check(store)
    await store.close()
    print(
        f"{len(ledger.acked)} turns, {ledger.replayed} replayed, {ledger.unknown} unknown,"
        f" {ledger.unavailable} unavailable"
    )
    assert len(ledger.acked) >= RESTARTS * 20


@asynccontextmanager
async def through(url: str, **options: Any) -> AsyncIterator[tuple[WireProxy, Store]]:
    """A store whose connections pass a proxy that can cut them."""
    async with WireProxy(url) as wire:
        engine = await PostgresEngine.open(wire.url, **options)
        store = Store(View(engine, "a", Limits(), iter_ids().__next__))
        try:
            yield wire, store
        finally:
            await store.close()


def iter_ids() -> Iterator[str]:
    for number in range(10**9):
        yield f"id-{number}"


async def test_lost_acknowledgements_are_answered_once(own_server: PostgresServer) -> None:
    url = own_server.create_database("acks")
    rng = random.Random(7)
    ledger = Ledger()
    async with through(url) as (wire, store):
        for number in range(4):
            await store.sessions.create(f"s{number}")
        ended = asyncio.Event()
        cuts = dict.fromkeys(get_args(Place), 0)

        async def worker(number: int) -> None:
            nth = 0
            while not ended.is_set():
                await ledger.commit(store, f"s{number % 4}", f"w{number}-{nth}")
                nth += 1

        tasks = [asyncio.create_task(worker(number)) for number in range(TASKS)]
        # A commit is one statement in autocommit, so its place is an execution.
        places: list[Place] = ["before execute", "after execute", "mid reply"]
        while sum(cuts.values()) < CUTS:
            place = rng.choice(places)
            wire.cut(place, nth=rng.randint(1, 3))
            await asyncio.wait_for(wire.cuts.wait(), 30)
            cuts[place] += 1
        ended.set()
        await asyncio.gather(*tasks)
        await ledger.check(store)
    print(
        f"{cuts}: {len(ledger.acked)} turns, {ledger.replayed} replayed, {ledger.unknown} unknown"
    )
    assert ledger.replayed > 0


async def test_cuts_around_a_commit_of_several_statements(own_server: PostgresServer) -> None:
    """A rewind is a transaction with a COMMIT of its own, which may be lost on either side."""
    url = own_server.create_database("commits")
    async with through(url) as (wire, store):
        await store.sessions.create("s")
        await store.sessions.commit(turn("s", "one"))
        revision, replays = 1, 0
        places: list[Place] = ["before commit", "after commit", "before execute", "after execute"]
        for number in range(24):
            wire.cut(places[number % len(places)])
            receipt = None
            while receipt is None:
                try:
                    receipt = await store.sessions.rewind(
                        "s", turn=f"back-{number}", revision=1, reason="why"
                    )
                except Unavailable:
                    continue
            assert wire.cuts.is_set()
            revision += 1
            replays += receipt.replayed
            assert receipt.revision == revision
        head = await store.sessions.head("s")
        assert head is not None
        assert (head.revision, head.node_count) == (revision, NODES)
        kinds = [r.kind for r in (await store.sessions.revisions("s")).items]
        assert kinds == ["rewound"] * 24 + ["turn", "created"]
        assert replays >= 6, "a lost answer after COMMIT is a replay"


async def test_a_network_that_swallows_everything_is_told_in_time(
    own_server: PostgresServer,
) -> None:
    url = own_server.create_database("blackhole")
    ledger = Ledger()
    async with through(url, command_timeout=0.3, acquire_timeout=0.5) as (wire, store):
        for number in range(TASKS):
            await store.sessions.create(f"s{number}")
        for hole in range(3):
            for _ in range(TASKS):
                # Warm connections, so that what is lost is an answer and not a greeting.
                await ledger.commit(store, "s0", f"warm-{hole}-{_}")
            wire.blackhole(True)
            commits = [
                asyncio.create_task(ledger.commit(store, f"s{number}", f"h{hole}-{number}"))
                for number in range(TASKS)
            ]
            await asyncio.wait(commits, timeout=0.5)
            wire.blackhole(False)
            await asyncio.gather(*commits)
        await ledger.check(store)
    assert len(ledger.acked) == 3 * TASKS * 2


async def test_an_outage_is_told_and_the_handle_comes_back(own_server: PostgresServer) -> None:
    url = own_server.create_database("outage")
    store = await holdfast.open(url)
    await store.sessions.create("s")
    await store.sessions.commit(turn("s", "one"))
    await asyncio.to_thread(own_server.stop, "immediate")
    outcomes = await asyncio.gather(
        store.sessions.head("s"), store.sessions.commit(turn("s", "two")), return_exceptions=True
    )
    for outcome in outcomes:
        assert type(outcome) is StoreUnreachable
        assert outcome.retryable
    await asyncio.to_thread(own_server.start)
    receipt = await store.sessions.commit(turn("s", "two"))
    assert (receipt.revision, receipt.replayed) == (2, False)
    await store.close()
