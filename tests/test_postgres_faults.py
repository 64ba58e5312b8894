"""The PostgreSQL engine when connections, servers and rivals fail."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import asyncpg
import pytest

from holdfast.contract.errors import (
    OutcomeUnknown,
    StoreBusy,
    StoreReadOnly,
    StoreUnreachable,
)
from holdfast.engine import postgres as engine_module
from holdfast.ops.op import Op
from holdfast.sql.catalog import _block
from holdfast.testing.postgres_server import PostgresServer
from holdfast.testing.wire import Place, WireProxy
from tests.postgres_blocks import (
    BLOCKS,
    READ_ONLY,
    Opened,
    add,
    once,
    one,
    open_engine,
    run,
    step,
    until,
)

# --- faults


def test_a_killed_backend_is_survived(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store:
            await store.counters("c", "d")
            for op, name in ((once, "c"), (lambda n, e: step("t.script", name=n, entries=[]), "d")):
                other = await asyncpg.connect(postgres_url)
                async with other.transaction():
                    await other.execute(
                        "SELECT FROM holdfast.counter WHERE name=$1 FOR UPDATE", name
                    )
                    task = asyncio.ensure_future(store.engine.write(op, name, "e"))
                    await store.waiting()
                    await store.sql.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE wait_event_type = 'Lock'"
                    )
                await task
                assert await store.value(name) == 1
                other.terminate()
            store.whole()

    run(main())


@pytest.mark.parametrize(
    ("place", "answer"),
    [
        ("before execute", "done"),
        ("after execute", "replayed"),
        ("mid reply", "replayed"),
    ],
)
def test_a_cut_statement_is_resolved(postgres_url: str, place: Any, answer: str) -> None:
    async def main() -> None:
        async with (
            WireProxy(postgres_url) as wire,
            Opened(wire.url, direct=postgres_url) as store,
        ):
            await store.counters("c")
            await store.engine.write(one, "c", 0)
            await store.engine.write(add, "c", 1)
            wire.cut(place)
            assert await store.engine.write(once, "c", "e") == answer
            assert wire.cuts.is_set()
            assert await store.entries("c") == 1
            assert await store.value("c") == 2
            store.whole()

    run(main())


@pytest.mark.parametrize(
    ("place", "answer"),
    [("before commit", (False, [(1,)])), ("after commit", (True, [(1,)]))],
)
def test_a_cut_commit_is_resolved(postgres_url: str, place: Any, answer: Any) -> None:
    async def main() -> None:
        async with (
            WireProxy(postgres_url) as wire,
            Opened(wire.url, direct=postgres_url) as store,
        ):
            await store.counters("c")
            wire.cut(place)
            op = step("t.script", name="c", entries=[("e", b"x")])
            op.close()
            got = await store.engine.write(
                lambda: step("t.script", name="c", entries=[("e", b"x")])
            )
            assert got == answer
            assert await store.entries("c") == 1
            assert await store.value("c") == 1

    run(main())


def test_what_stays_unknown_is_said(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "ATTEMPTS", 2)

    async def main() -> None:
        async with (
            WireProxy(postgres_url) as wire,
            Opened(wire.url, direct=postgres_url) as store,
        ):
            await store.counters("c")
            await store.engine.write(add, "c")

            async def keep_cutting() -> None:
                while True:
                    wire.cut("after execute")
                    await wire.cuts.wait()

            cutter = asyncio.ensure_future(keep_cutting())
            await asyncio.sleep(0)
            with pytest.raises(OutcomeUnknown) as caught:
                await store.engine.write(
                    lambda: step("t.one", name="c", by=1, session="s1", turn="t1", token="secret")
                )
            assert caught.value.operation == "t.one session=s1 turn=t1"
            with pytest.raises(StoreUnreachable):
                await store.engine.read(lambda: step("t.read", name="c"))
            cutter.cancel()

            def script() -> Op[Any]:
                return step("t.script", name="c", entries=[])

            monkeypatch.setattr(engine_module, "ATTEMPTS", 1)
            for place, said in (
                ("before execute", StoreUnreachable),
                ("before commit", OutcomeUnknown),
                ("after commit", OutcomeUnknown),
            ):
                wire.cut(cast(Place, place))
                with pytest.raises(said):
                    await store.engine.write(script)
            store.whole()

    run(main())


def test_a_hung_server_is_bounded(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "ATTEMPTS", 1)

    async def main() -> None:
        async with (
            WireProxy(postgres_url) as wire,
            Opened(wire.url, direct=postgres_url, command_timeout=0.2) as store,
        ):
            await store.counters("c")
            await store.engine.write(add, "c")
            wire.blackhole(True)
            with pytest.raises(OutcomeUnknown):
                await store.engine.write(add, "c")
            wire.blackhole(False)
            await store.engine.write(add, "c")
            store.whole()

    run(main())


def test_a_connection_that_was_given_up_is_not_used_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "ATTEMPTS", 1)

    async def main() -> None:
        own = """t.own
-- Names the backend of this connection.
-- mode: read
-- returns: pid
SELECT pg_backend_pid() AS pid
"""
        async with Opened(
            postgres_url,
            blocks={**BLOCKS, "t.own": _block(own)},
            pool_size=1,
            command_timeout=0.2,
        ) as store:
            before = await store.engine.read(lambda: step("t.own"))
            assert await store.engine.read(lambda: step("t.own")) == before
            with pytest.raises(OutcomeUnknown):
                await store.engine.write(lambda: step("t.sleep", seconds=9))
            assert await store.engine.read(lambda: step("t.own")) != before
            store.whole()

    run(main())


def test_what_was_unknown_stays_so_when_the_server_turns_read_only(postgres_url: str) -> None:
    async def main() -> None:
        async with (
            WireProxy(postgres_url) as wire,
            Opened(wire.url, direct=postgres_url, pool_size=1) as store,
        ):
            await store.counters("c")
            await store.engine.write(one, "c")
            await store.sql.execute(READ_ONLY)
            wire.cut("after execute")
            with pytest.raises(OutcomeUnknown):
                await store.engine.write(one, "c")
            assert await store.value("c") == 2

    run(main())


def test_an_immediate_restart_in_the_middle_loses_nothing(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store:
            await store.counters(*(f"c{n}" for n in range(8)))
            stop = asyncio.Event()
            done: list[int] = [0] * 8

            async def work(n: int) -> None:
                while not stop.is_set():
                    await store.engine.write(once, f"c{n}", f"{n}-{done[n]}")
                    done[n] += 1

            async def progress() -> None:
                goal = sum(done) + 50
                async with asyncio.timeout(20):
                    await until(lambda: asyncio.sleep(0, sum(done)), lambda now: now >= goal)

            tasks = [asyncio.ensure_future(work(n)) for n in range(8)]
            for _ in range(2):
                await progress()
                await asyncio.to_thread(postgres_server.restart, "immediate")
            await progress()
            stop.set()
            await asyncio.gather(*tasks)
            store.whole()
            store.sql = await asyncpg.connect(postgres_url)
            assert [await store.entries(f"c{n}") for n in range(8)] == done
            assert [await store.value(f"c{n}") for n in range(8)] == done

    run(main())


def test_rivals_are_repeated_and_a_lasting_lock_is_busy(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(engine_module._SETTINGS, "lock_timeout", "20ms")
    monkeypatch.setattr(engine_module, "RIVAL_DELAYS", (0.001,) * 5)

    async def main() -> None:
        async with Opened(postgres_url) as store:
            names = ["a", "b", "held", "c", "d"]
            await store.counters(*names)
            other = await asyncpg.connect(postgres_url)
            async with other.transaction():
                await other.execute("SELECT FROM holdfast.counter WHERE name='held' FOR UPDATE")
                # The first two go out alone; the others share a call with the one that waits.
                answers: list[Any] = await asyncio.gather(
                    *(store.engine.write(add, name) for name in names), return_exceptions=True
                )
                assert isinstance(answers.pop(2), StoreBusy)
                assert answers == [(False, [(1, name)]) for name in "abcd"]
            assert await store.engine.write(add, "held") == (False, [(1, "held")])
            other.terminate()

    run(main())


def test_a_deadlocked_call_is_repeated(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store:
            await store.sql.execute(
                "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = 50',"
                " current_database()); END $$"
            )
            await store.counters("a", "b", "w", "x")
            engine = await open_engine(postgres_url)
            # Two calls in flight, so that the next two requests share one.
            warm = [asyncio.ensure_future(engine.write(add, name)) for name in "wx"]
            other = await asyncpg.connect(postgres_url)
            transaction = other.transaction()
            await transaction.start()
            # This one waits with patience: the engine's call is the one that is ended.
            await other.execute("SET LOCAL deadlock_timeout = '10s'")
            await other.execute("SELECT FROM holdfast.counter WHERE name='b' FOR UPDATE")
            await asyncio.gather(*warm)
            blockers = [asyncio.ensure_future(engine.write(add, name)) for name in "wx"]
            tasks = [asyncio.ensure_future(engine.write(add, name)) for name in "ab"]
            await store.waiting()
            await other.execute("SELECT FROM holdfast.counter WHERE name='a' FOR UPDATE")
            await transaction.rollback()
            answers = await asyncio.gather(*tasks)
            assert sorted(rows[0] for _, rows in answers) == [(1, "a"), (1, "b")]
            await asyncio.gather(*blockers)
            await engine.close()
            other.terminate()

    run(main())


def test_a_cut_call_of_many_is_resolved_for_each(postgres_url: str) -> None:
    async def main() -> None:
        async with (
            WireProxy(postgres_url) as wire,
            Opened(wire.url, direct=postgres_url) as store,
        ):
            names = [f"c{n:02}" for n in range(20)]
            await store.counters("w", "x", *names)
            other = await asyncpg.connect(postgres_url)
            async with other.transaction():
                # Two calls wait for locks, so that the others are there together when one goes out.
                await other.execute(
                    "SELECT FROM holdfast.counter WHERE name IN ('w', 'x') FOR UPDATE"
                )
                blockers = [asyncio.ensure_future(store.engine.write(add, name)) for name in "wx"]
                await store.waiting(2)
                wire.cut("after execute")
                tasks = [
                    asyncio.ensure_future(store.engine.write(once, name, name)) for name in names
                ]
                await asyncio.sleep(0)
            answers = await asyncio.gather(*tasks)
            await asyncio.gather(*blockers)
            other.terminate()
            assert wire.cuts.is_set()
            assert answers.count("replayed") >= 8
            assert set(answers) == {"done", "replayed"}
            assert [await store.value(name) for name in names] == [1] * 20
            assert [await store.entries(name) for name in names] == [1] * 20
            store.whole()

    run(main())


def test_a_read_only_server_is_said_so(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store:
            await store.counters("c")
            await store.sql.execute(READ_ONLY)
            engine = await open_engine(postgres_url)
            with pytest.raises(StoreReadOnly):
                await engine.write(add, "c")
            assert await engine.read(lambda: step("t.read", name="c")) == (False, [("c", 0)])
            await engine.close()

    run(main())


def test_an_exhausted_pool_is_busy(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url, pool_size=1, acquire_timeout=0.05) as store:
            sleeper = asyncio.ensure_future(store.engine.write(lambda: step("t.sleep", seconds=9)))
            pid = await store.running("pg_sleep")
            with pytest.raises(StoreBusy):
                await store.engine.read(lambda: step("t.read", name="c"))
            await store.sql.execute("SELECT pg_cancel_backend($1)", pid)
            with pytest.raises(StoreBusy):
                await sleeper
            store.whole()

    run(main())
