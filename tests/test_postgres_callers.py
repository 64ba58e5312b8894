"""The PostgreSQL engine and its callers: cancelled, blocking, in their own transaction."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from holdfast.contract.errors import (
    HandleClosed,
    Invalid,
    StoreBusy,
    StoreUnreachable,
    WrongLoop,
    WrongProcess,
)
from holdfast.engine import postgres as engine_module
from holdfast.engine.postgres import PostgresEngine
from holdfast.engine.postgres_signals import PostgresSignals
from holdfast.ops.op import Op
from holdfast.sql.catalog import _block
from tests.postgres_blocks import (
    BLOCKS,
    Opened,
    add,
    connected,
    once,
    one,
    open_blocking,
    open_engine,
    run,
    step,
)

# --- cancellation


@pytest.mark.parametrize("op", ["add", "one", "script"])
def test_cancelled_at_every_moment(postgres_url: str, op: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url, pool_size=3) as store:
            await store.counters("c")
            ops: dict[str, Callable[[], Op[Any]]] = {
                "add": lambda: add("c"),
                "one": lambda: one("c"),
                "script": lambda: step("t.script", name="c", entries=[]),
            }
            await store.engine.write(ops[op])
            done = 1
            finished = 0
            for ticks in range(60):
                task = asyncio.ensure_future(store.engine.write(ops[op]))
                for _ in range(ticks):
                    await asyncio.sleep(0)
                    if task.done():
                        break
                cancelled = task.cancel()
                try:
                    await task
                    finished += 1
                    done += 1
                except asyncio.CancelledError:
                    assert cancelled
                    # The outcome is known: what was begun is done, what was not is not.
                    done += ticks > 0
                assert await store.value("c") == done
                store.whole()
            assert finished < 60

    run(main())


def test_a_cancelled_operation_is_not_repeated(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(engine_module._SETTINGS, "lock_timeout", "20ms")
    monkeypatch.setattr(engine_module, "RIVAL_DELAYS", (0.001,) * 1000)
    monkeypatch.setattr(engine_module, "ATTEMPTS", 1000)

    async def main() -> None:
        async with Opened(postgres_url) as store:
            await store.counters("held")
            started = asyncio.get_running_loop().time()
            async with connected(postgres_url) as other, other.transaction():
                await other.execute("SELECT FROM holdfast.counter FOR UPDATE")
                for op in (add, one):
                    task = asyncio.ensure_future(store.engine.write(op, "held"))
                    await store.waiting()
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    store.whole()
            # Repeating goes on for much longer than that.
            assert asyncio.get_running_loop().time() - started < engine_module.PATIENCE_SECONDS / 2
            assert await store.value("held") == 0

    run(main())


def test_after_a_storm_of_cancellations_the_pool_is_whole(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url, pool_size=4) as store:
            await store.counters(*(f"c{n}" for n in range(50)))

            async def stormy(n: int) -> int:
                kept = 0
                for turn in range(20):
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.0005 * ((n + turn) % 9)):
                            await store.engine.write(add, f"c{n}")
                            kept += 1
                return kept

            kept = await asyncio.gather(*(stormy(n) for n in range(50)))
            store.whole()
            for n in range(50):
                assert kept[n] <= (await store.value(f"c{n}") or 0) <= 20

    run(main())


# --- handles


def test_handles_know_where_they_belong(postgres_url: str) -> None:
    async def main() -> PostgresEngine:
        async with Opened(postgres_url) as store:
            await store.counters("c")

            def elsewhere(work: Callable[[], Awaitable[Any]]) -> BaseException | None:
                async def body() -> None:
                    await work()

                try:
                    asyncio.run(body())
                except Exception as failure:
                    return failure
                return None

            async def read() -> Any:
                return await store.engine.read(lambda: step("t.read", name="c"))

            assert isinstance(await asyncio.to_thread(elsewhere, read), WrongLoop)
            assert isinstance(await asyncio.to_thread(elsewhere, store.engine.close), WrongLoop)
            store.engine._pid += 1
            with pytest.raises(WrongProcess):
                await read()
            with pytest.raises(WrongProcess):
                await store.engine.close()
            store.engine._pid -= 1
            task = asyncio.ensure_future(store.engine.write(add, "c"))
            await asyncio.sleep(0)
            await store.engine.close()
            # Closing waited for what was under way.
            assert await task == (False, [(1, "c")])
            with pytest.raises(HandleClosed):
                await read()
            with pytest.raises(HandleClosed):
                store.engine.on(store.sql)
            await asyncio.gather(store.engine.close(), store.engine.close())
            left = await store.sql.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'holdfast%'"
            )
            assert left == 0
            return store.engine

    run(main())


def test_opening_never_tells_the_password(postgres_url: str) -> None:
    def failure(url: str) -> Exception:
        try:
            run(open_engine(url))
        except Exception as caught:
            text = f"{caught!r} {caught} {caught.__cause__!r}"
            assert "s3cret" not in text, text
            return caught
        raise AssertionError(url)

    host = postgres_url.partition("?")[2]
    assert isinstance(failure(f"postgresql://u:s3cret@/nowhere?{host}"), StoreUnreachable)
    assert isinstance(failure("postgresql://u:s3cret@127.0.0.1:1/x"), StoreUnreachable)
    assert isinstance(failure("postgresql://u:s3cret@127.0.0.1:s3cret/x"), Invalid)
    assert isinstance(failure("mysql://u:s3cret@127.0.0.1/x"), Invalid)
    with pytest.raises(Invalid):
        run(open_engine(postgres_url, schema='x"y'))


def test_pooler_mode_leaves_no_named_statement(postgres_url: str) -> None:
    async def main() -> None:
        listed = """t.listed
-- Lists the statements that the server keeps for this connection.
-- mode: read
-- returns: count, application
SELECT count(*) AS count, current_setting('application_name') AS application
FROM pg_prepared_statements WHERE name <> ''
"""
        blocks = {**BLOCKS, "t.listed": _block(listed)}
        async with Opened(postgres_url) as store:
            await store.counters("c")
            for pooler, kept in ((True, 0), (False, 1)):
                engine = await open_engine(postgres_url, blocks=blocks, pooler=pooler, pool_size=1)
                await engine.write(add, "c")
                _, rows = await engine.read(lambda: step("t.listed"))
                assert min(rows[0][0], 1) == kept
                await engine.close()

    run(main())


# --- the caller's own transaction


def test_on_a_connection_the_caller_commits(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store:
            await store.counters("c")
            mine = await asyncpg.connect(postgres_url)
            on = store.engine.on(mine)
            with pytest.raises(Invalid):
                await on.write(add, "c")
            async with mine.transaction():
                assert await on.write(add, "c", 1, [("e", b"x", 1)]) == (False, [(1, "c")])
                assert await on.read(lambda: step("t.read", name="c")) == (False, [("c", 1)])
                assert await on.write(add, "nobody") == (True, [(False, None)])
                # A guard that wrote before it refused has written nothing.
                assert await on.write(lambda: step("t.sly", name="c")) == (True, [(0,)])
                # A unique violation is a refusal here too, and spoils nothing.
                assert await on.write(add, "c", 1, [("e", b"x", 1)]) == (True, [(True, 1)])
                assert await store.value("c") == 0
            assert await store.value("c") == 1
            transaction = mine.transaction()
            await transaction.start()
            await on.write(lambda: step("t.script", name="c", entries=[("f", b"x")]))
            await transaction.rollback()
            assert (await store.value("c"), await store.entries("c")) == (1, 1)
            async with mine.transaction():
                for op in (
                    lambda: step("t.script", name="c", entries=[("g", "no bytes")]),
                    lambda: step("t.script", name="c", entries=[(None, b"x")]),
                ):
                    with pytest.raises(Invalid):
                        await on.write(op)
            assert (await store.value("c"), await store.entries("c")) == (1, 1)
            async with mine.transaction():
                await mine.execute("SET LOCAL lock_timeout = '20ms'")
                async with store.sql.transaction():
                    await store.sql.execute("SELECT FROM holdfast.counter FOR UPDATE")
                    with pytest.raises(StoreBusy):
                        await on.write(add, "c")
            mine.terminate()

    run(main())


# --- signals


class Heard(asyncio.Event):
    """Whether a topic was heard of since the last wait."""

    def __init__(self, signals: PostgresSignals, topic: str) -> None:
        super().__init__()
        signals.add(topic, self.set)
        signals.attend()

    async def was(self, seconds: float = 0) -> bool:
        """Whether it was, or is within so many seconds."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wait(), seconds)
        heard = self.is_set()
        self.clear()
        return heard


def test_signals_reach_other_engines_and_survive_their_connection(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store, asyncio.timeout(10):
            other = await open_engine(postgres_url)
            local = Heard(store.engine.signals, "session s1")
            far = Heard(other.signals, "session s1")
            deaf = Heard(other.signals, "session s2")
            await asyncio.gather(
                store.engine.signals.listening.wait(), other.signals.listening.wait()
            )
            for heard in (local, far, deaf):
                # The first connection wakes everybody once.
                assert await heard.was()
                assert not await heard.was()
            store.engine.signals.publish(["session s1"])
            assert await local.was()
            assert await far.was(5)
            assert not await deaf.was()
            for n in range(2000):
                store.engine.signals.publish([f"session {n:0200}"])
            store.engine.signals.publish(["session s2"])
            assert await deaf.was(5)

            other.signals.listening.clear()
            await store.sql.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'holdfast signals'"
            )
            await other.signals.listening.wait()
            # What was said meanwhile may be lost, so everybody looks.
            assert await deaf.was(5)
            assert await far.was(5)
            store.engine.signals.publish(["session s2"])
            assert await deaf.was(5)
            other.signals.remove("session s2", deaf.set)
            other.signals.remove("session s1", far.set)
            assert other.signals.listeners == 0
            await other.close()

    run(main())


# --- blocking callers


def test_blocking_callers_from_many_threads(postgres_url: str) -> None:
    async def tables() -> None:
        async with Opened(postgres_url) as store:
            await store.counters("c")

    run(tables())
    engine = open_blocking(postgres_url)
    errors: list[BaseException] = []

    def work(n: int) -> None:
        try:
            for turn in range(25):
                assert engine.write(once, "c", f"{n}-{turn}") == "done"
        except BaseException as failure:
            errors.append(failure)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert engine.read(lambda: step("t.read", name="c")) == (False, [("c", 200)])
    engine.close()
    engine.close()
    with pytest.raises(HandleClosed):
        engine.read(lambda: step("t.read", name="c"))


def test_an_interrupted_blocking_caller_leaves_the_engine_healthy(postgres_url: str) -> None:
    async def tables() -> None:
        async with Opened(postgres_url) as store:
            await store.counters("c")

    run(tables())
    engine = open_blocking(postgres_url)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), 2))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        engine.write(lambda: step("t.sleep", seconds=0.4))
    assert engine.write(add, "c") == (False, [(1, "c")])
    engine.close()


def test_a_fork_is_refused(postgres_url: str) -> None:
    async def tables() -> None:
        async with Opened(postgres_url) as store:
            await store.counters("c")

    run(tables())
    engine = open_blocking(postgres_url)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            engine.write(add, "c")
        except WrongProcess:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert engine.write(add, "c") == (False, [(1, "c")])
    engine.close()
