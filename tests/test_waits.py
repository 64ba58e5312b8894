"""Waits, behind the contract: how soon they wake and by what, what they cost, what they leave.

Where a test is about signals, polls are put off until no test would pass by them; where signals
are lost, polls are as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import statistics
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import asyncpg
import pytest

import holdfast
from holdfast.contract.errors import (
    HandleClosed,
    NotSupported,
    StoreUnreachable,
    WrongProcess,
)
from holdfast.contract.processes import EventType, NewEvent, NewProcess, Scope, WakeRule
from holdfast.contract.queue import NewWork
from holdfast.contract.records import Turn
from holdfast.engine import sqlite_signals
from holdfast.engine.signals import Signals
from holdfast.engine.watching import Watching
from holdfast.testing.async_over import AsyncOver
from tests.conftest import Database
from tests.waiting import (
    LONG_MS,
    NEVER_SECONDS,
    POLL_SECONDS,
    SIGNAL_SECONDS,
    Reads,
    Waiter,
    engine,
    in_a_fork,
    put_off_polls,
    settled,
    signals,
    timed,
    until,
    writer_process,
)


@pytest.fixture(params=["async", "blocking"])
def waiter(request: pytest.FixtureRequest, database: Database) -> Waiter:
    """An empty database of each kind, for waiters of each colour."""
    return Waiter(database, request.param)


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only signals wake whoever waits."""
    put_off_polls(monkeypatch)


async def latency(
    store: holdfast.Store,
    write: Callable[[], Awaitable[float]],
    revisions: itertools.count[int],
    *,
    alone: bool,
) -> float:
    """How long after a commit was done its waiter had the head."""
    revision = next(revisions)
    wait = asyncio.create_task(timed(store.waits.head("s", after=revision - 1, timeout_ms=LONG_MS)))
    await settled(store, alone=alone)
    done_at = await write()
    head, woken_at = await wait
    assert head.revision == revision
    return float(woken_at - done_at)


# --- how soon


@pytest.mark.parametrize("by", ["the same handle", "another handle", "another process"])
async def test_a_signal_wakes_a_waiter(
    waiter: Waiter, by: str, no_polls: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody polls here, nor watches a file for what this process says itself, so that only the
    signal can be what woke the waiter."""
    alone = waiter.database.kind == "sqlite" and by != "another process"
    if alone:
        monkeypatch.setattr(sqlite_signals.FileSignals, "attend", lambda self: None)
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(waiter.open())
        await store.sessions.create("s")

        async def commit(handle: holdfast.Store) -> float:
            await handle.sessions.commit(Turn(session="s"))
            return time.monotonic()

        if by == "another process":
            process = await stack.enter_async_context(writer_process(waiter.database.url))
            write = lambda: process.does("commit")  # noqa: E731
        elif by == "another handle":
            other = await stack.enter_async_context(waiter.open())
            write = lambda: commit(other)  # noqa: E731
        else:
            write = lambda: commit(store)  # noqa: E731
        revisions = itertools.count(1)
        found = [await latency(store, write, revisions, alone=alone) for _ in range(7)]
        print(f"{waiter.database.kind} {waiter.colour}, {by}:", [round(x * 1e3, 2) for x in found])
        assert statistics.median(found) < SIGNAL_SECONDS


@pytest.mark.parametrize("session", ["s", None])
async def test_a_signal_wakes_who_waits_for_work(
    waiter: Waiter, session: str | None, no_polls: None
) -> None:
    async with waiter.open() as store, writer_process(waiter.database.url) as other:
        await store.sessions.create("s")
        wait = asyncio.create_task(timed(store.waits.work(session, timeout_ms=LONG_MS)))
        await settled(store)
        done_at = await other.does("enqueue")
        found, woken_at = await wait
        assert found is True
        # Once only, so generously; without a signal it would be a minute.
        assert woken_at - done_at < 10 * SIGNAL_SECONDS


async def test_a_moment_that_is_known_needs_no_poll(waiter: Waiter, no_polls: None) -> None:
    async with waiter.open() as store:
        await store.sessions.create("s")
        begun = time.monotonic()
        await store.queue.enqueue(NewWork(session="s", delay_ms=700))
        assert await store.waits.work("s", timeout_ms=LONG_MS)
        assert await store.waits.work(timeout_ms=LONG_MS)
        assert 0.7 <= time.monotonic() - begun < 0.7 + POLL_SECONDS


async def test_a_change_between_the_look_and_the_wait_is_not_missed(
    waiter: Waiter, no_polls: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head moves when it was just read, and is told of while nobody waits yet."""
    monkeypatch.setattr(sqlite_signals.FileSignals, "attend", lambda self: None)
    async with waiter.open() as store:
        await store.sessions.create("s")
        under = engine(store)
        read, looks = under._watching._read, 0
        turn = Turn(session="s", turn="between")

        async def then_it_moves(*args: Any) -> Any:
            nonlocal looks
            looks += 1
            answer = await read(*args)
            await store.sessions.commit(turn)
            return answer

        def then_it_moves_blocking(*args: Any) -> Any:
            nonlocal looks
            looks += 1
            answer = read(*args)
            cast(Any, store)._blocking.sessions.commit(turn)
            return answer

        over = isinstance(store, AsyncOver)
        under._watching._read = then_it_moves_blocking if over else then_it_moves
        head = await asyncio.wait_for(store.waits.head("s", after=0, timeout_ms=LONG_MS), 10)
        assert head is not None
        assert (head.revision, looks) == (1, 2)


async def test_an_answer_serves_who_wanted_one_no_older() -> None:
    """Two watches share what either reads, but for a signal or a moment that came since."""
    reads = 0

    async def read(op: object, *args: object) -> int:
        nonlocal reads
        reads += 1
        return reads

    heard = Signals()
    watching = Watching(read, heard, heard.attend)
    ask: Any = "an operation, which this engine does not run"
    one, two = (watching.watch("topic", ask, ()) for _ in range(2))
    assert (await one.look(), await two.look()) == (1, 1)
    await one.wait(0.0, at_most=NEVER_SECONDS)
    assert await one.look() == 2
    heard.publish(["topic"])
    await two.wait(NEVER_SECONDS, at_most=NEVER_SECONDS)
    assert await two.look() == 3
    await two.wait(0.05, at_most=NEVER_SECONDS)
    assert await two.look() == 4
    await one.wait(NEVER_SECONDS, at_most=NEVER_SECONDS)
    # It had the signal still to hear, and so looks for itself.
    assert await one.look() == 5
    at_the_moment = asyncio.ensure_future(two.wait(NEVER_SECONDS, at_most=0.1))
    await one.wait(0.0, at_most=NEVER_SECONDS)
    assert await one.look() == 6
    await at_the_moment
    assert await two.look() == 7
    one.close()
    two.close()
    assert heard.listeners == 0


# --- signals that are lost


async def test_a_lost_signal_costs_one_poll(
    waiter: Waiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process writes, and nobody hears of it."""
    options: dict[str, Any] = {}
    if waiter.database.kind == "postgres":
        # Without an address of its own to listen on, a store behind a pooler does not.
        options["pooler"] = True
    else:
        monkeypatch.setattr(sqlite_signals.FileSignals, "attend", lambda self: None)
    async with waiter.open(**options) as store, writer_process(waiter.database.url) as other:
        await store.sessions.create("s")
        for revision in (1, 2):
            wait = asyncio.create_task(
                timed(store.waits.head("s", after=revision - 1, timeout_ms=LONG_MS))
            )
            # By then it looks once a second only.
            await asyncio.wait({wait}, timeout=2.2)
            done_at = await other.does("commit")
            head, woken_at = await wait
            assert head.revision == revision
            assert woken_at - done_at < POLL_SECONDS


async def test_the_end_of_the_signals_connection_costs_one_poll(
    postgres_database: Database,
) -> None:
    """The connections of the signals are cut right before the commit, in both processes."""
    async with (
        postgres_database.open() as store,
        writer_process(postgres_database.url) as other,
        postgres_database.connected() as run,
    ):
        await store.sessions.create("s")
        for revision in range(1, 4):
            wait = asyncio.create_task(timed(store.waits.head("s", after=revision - 1)))
            await settled(store)
            cut = await run(
                "SELECT pg_terminate_backend(pid) AS cut FROM pg_stat_activity"
                " WHERE application_name = 'holdfast signals'"
            )
            assert cut
            done_at = await other.does("commit")
            head, woken_at = await wait
            assert head.revision == revision
            assert woken_at - done_at < POLL_SECONDS


async def test_what_is_done_in_the_callers_transaction_is_seen_by_a_poll(
    postgres_database: Database,
) -> None:
    """Nobody is told of it before it is committed, nor after; and there is no waiting inside."""
    async with postgres_database.open() as store, postgres_database.open() as other:
        await store.sessions.create("s")
        wait = asyncio.create_task(timed(store.waits.head("s", after=0)))
        await settled(store)
        connection = await asyncpg.connect(postgres_database.url)
        try:
            async with connection.transaction():
                inside = other.on(connection)
                await inside.sessions.commit(Turn(session="s"))
                with pytest.raises(NotSupported):
                    await inside.waits.head("s", after=0, timeout_ms=0)
                assert await store.waits.head("s", after=0, timeout_ms=0) is None
            done_at = time.monotonic()
            head, woken_at = await wait
        finally:
            await connection.close()
        assert head.revision == 1
        assert woken_at - done_at < POLL_SECONDS


# --- what is said


async def test_only_changes_are_told(database: Database) -> None:
    """Each operation says what it changed, and one that changed nothing says nothing."""
    async with database.open() as store:
        said: list[str] = []
        under = signals(store)
        under.publish = lambda topics: said.extend(topics)  # type: ignore[method-assign]

        async def told(done: Awaitable[Any]) -> tuple[Any, set[str]]:
            said.clear()
            return await done, {topic.replace(" a", "", 1) for topic in said}

        work = {"work s", "works"}
        turn = Turn(session="s", turn="t1")
        new = NewWork(session="s", key="k")
        assert (await told(store.sessions.create("s")))[1] == set()
        assert (await told(store.sessions.commit(turn)))[1] == {"head s"}
        assert (await told(store.sessions.commit(turn)))[1] == set()
        assert (await told(store.queue.enqueue(new)))[1] == work
        assert (await told(store.queue.enqueue(new)))[1] == set()
        claimed, told_of = await told(store.queue.claim("s", "me"))
        assert told_of == set()
        assert (await told(store.queue.abandon(claimed.claim, dead=True)))[1] == work
        assert (await told(store.queue.abandon(claimed.claim)))[1] == set()
        name = claimed.claim.work[0].work
        assert (await told(store.queue.requeue("s", name)))[1] == work
        assert (await told(store.queue.cancel("s", name)))[1] == work
        assert (await told(store.queue.cancel("s", name)))[1] == set()
        await store.queue.enqueue(NewWork(session="s"))
        claim = (await store.queue.claim("s", "me")).claim
        assert claim is not None
        settles = Turn(session="s", claims=[claim.settlement])
        assert (await told(store.sessions.commit(settles)))[1] == {"head s", *work}
        lane, told_of = await told(store.lanes.claim("s", "me"))
        assert told_of == set()
        held = Turn(session="s", fence=lane.fence)
        assert (await told(store.sessions.commit(held)))[1] == {"head s"}
        assert (await told(store.lanes.release(lane.fence)))[1] == work
        assert (await told(store.lanes.release(lane.fence)))[1] == set()
        fence = (await store.lanes.claim("s", "me")).fence
        gives_back = Turn(session="s", fence=fence, release=True)
        assert (await told(store.sessions.commit(gives_back)))[1] == {"head s", *work}
        assert (await told(store.lanes.displace("s")))[1] == work
        back = store.sessions.rewind("s", turn="b", revision=1, reason="again")
        assert (await told(back))[1] == {"head s"}
        back = store.sessions.rewind("s", turn="b", revision=1, reason="again")
        assert (await told(back))[1] == set()
        told_p = {"process p", "processes"}
        wakes = EventType(name="done", wakes=WakeRule())
        new_p = NewProcess(process="p", events=[wakes], wake=Scope(session="s"), parent="q")
        assert (await told(store.processes.register(NewProcess(process="q"))))[1] == {
            "process q",
            "processes",
        }
        assert (await told(store.processes.register(new_p)))[1] == told_p
        assert (await told(store.processes.register(new_p)))[1] == set()
        done = NewEvent(type="done", payload="x", key="k")
        assert (await told(store.processes.append("p", done)))[1] == {*told_p, *work}
        assert (await told(store.processes.append("p", done)))[1] == set()
        lease, told_of = await told(store.processes.claim("p", "me"))
        assert told_of == set()
        assert (await told(store.processes.release(lease)))[1] == told_p
        assert (await told(store.processes.release(lease)))[1] == set()
        ends = store.processes.end("p", authority="operator")
        assert (await told(ends))[1] >= {*told_p, "process q"}
        pruned = store.processes.prune(ended_before_ms=0)
        assert (await told(pruned))[1] == set()
        far = 2**62
        assert (await told(store.processes.prune(ended_before_ms=far)))[1] == told_p
        assert (await told(store.sessions.delete("s")))[1] == {"head s", *work}
        assert (await told(store.sessions.delete("s")))[1] == set()


# --- what waiting costs


async def test_a_thousand_waiters_read_as_one(database: Database) -> None:
    """They are woken together, too. Their revisions differ, their question is the same."""
    async with database.open() as store:
        await store.sessions.create("s")
        reads = Reads(store)
        waits = [asyncio.ensure_future(store.waits.head("s", after=n % 2)) for n in range(1000)]
        await settled(store)
        await asyncio.wait(waits, timeout=2.0)
        before, began = reads.number, time.monotonic()
        await asyncio.wait(waits, timeout=5.0)
        rate = (reads.number - before) / (time.monotonic() - began)
        before, began = reads.number, time.monotonic()
        await store.sessions.commit(Turn(session="s"))
        await asyncio.gather(*waits[::2])
        took = time.monotonic() - began
        print(f"{database.kind}: {rate:.2f} reads/s idle, 500 woken in {took * 1e3:.0f} ms")
        assert rate <= 2.0
        assert reads.number - before <= 20
        await store.sessions.commit(Turn(session="s"))
        assert {head.revision for head in await asyncio.gather(*waits[1::2]) if head} == {2}
        assert not engine(store)._watching._asked


def test_many_blocking_waiters_read_as_one(database: Database) -> None:
    store = holdfast.open_sync(database.url, tenant="a")
    store.sessions.create("s")
    reads = Reads(store)
    found: list[int] = []

    def wait() -> None:
        head = store.waits.head("s", after=0)
        assert head is not None
        found.append(head.revision)

    threads = [threading.Thread(target=wait) for _ in range(200)]
    for thread in threads:
        thread.start()
    threads[0].join(2.0)
    before, began = reads.number, time.monotonic()
    threads[0].join(4.0)
    rate = (reads.number - before) / (time.monotonic() - began)
    print(f"{database.kind}, blocking: {rate:.2f} reads/s idle")
    store.sessions.commit(Turn(session="s"))
    for thread in threads:
        thread.join()
    assert found == [1] * 200
    assert rate <= 2.0
    store.close()


async def test_waiters_share_how_a_read_failed(database: Database) -> None:
    """A hundred who wait do not find out one after the other that the store is away."""
    async with database.open() as store:
        await store.sessions.create("s")
        watching = engine(store)._watching
        reads, gone = 0, asyncio.Event()

        async def read(*args: Any) -> Any:
            nonlocal reads
            reads += 1
            await gone.wait()
            raise StoreUnreachable(reason="it is away")

        watching._read = read
        waits = [asyncio.ensure_future(store.waits.head("s", after=0)) for _ in range(100)]
        await until(lambda: reads == 1 and next(iter(watching._asked.values()))[1] == 100)
        gone.set()
        done = await asyncio.gather(*waits, return_exceptions=True)
        assert {type(failure) for failure in done} == {StoreUnreachable}
        # The first read began before the others had asked, the second one serves them all.
        assert reads <= 2
        assert len({id(failure) for failure in done}) == 100


# --- what waiting leaves behind


async def test_a_cancelled_wait_leaves_nothing(database: Database) -> None:
    """At whatever moment it is cancelled."""
    async with database.open() as store:
        await store.sessions.create("s")
        for ticks in range(40):
            wait = asyncio.ensure_future(store.waits.head("s", after=0))
            for _ in range(ticks):
                await asyncio.sleep(0 if ticks < 20 else 0.002)
            wait.cancel()
            with pytest.raises(asyncio.CancelledError):
                await wait
            assert not engine(store)._watching._asked
            assert signals(store).listeners == 0
        wait = asyncio.ensure_future(store.waits.head("s", after=0))
        await store.sessions.commit(Turn(session="s"))
        assert (await wait) == await store.sessions.head("s")


async def test_one_cancelled_reader_does_not_stop_the_others(database: Database) -> None:
    async with database.open() as store:
        await store.sessions.create("s")
        first, second = (asyncio.ensure_future(store.waits.head("s", after=0)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await store.sessions.commit(Turn(session="s"))
        head = await second
        assert head is not None
        assert head.revision == 1
        assert first.cancelled() or first.done()


def test_an_interrupted_blocking_wait_leaves_nothing(database: Database) -> None:
    """What a signal of the system raises ends the wait."""

    def alarmed(*args: object) -> None:
        raise InterruptedError("that is enough")

    store = holdfast.open_sync(database.url, tenant="a")
    store.sessions.create("s")
    before = signal.signal(signal.SIGALRM, alarmed)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(InterruptedError):
            store.waits.head("s", after=0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not engine(store)._watching._asked
    assert signals(store).listeners == 0
    store.close()


async def test_closing_ends_each_wait_of_this_handle_only(waiter: Waiter, no_polls: None) -> None:
    async with waiter.open() as other:
        async with waiter.open() as store:
            await store.sessions.create("s")
            mine = [asyncio.ensure_future(store.waits.head("s", after=0)) for _ in range(3)]
            theirs = asyncio.ensure_future(other.waits.head("s", after=0))
            await settled(store)
            await settled(other)
            began = time.monotonic()
            await store.close()
            ended = asyncio.gather(*mine, return_exceptions=True)
            done = await asyncio.wait_for(ended, 10)
            assert {type(failure) for failure in done} == {HandleClosed}
            assert time.monotonic() - began < POLL_SECONDS
        assert not theirs.done()
        await other.sessions.commit(Turn(session="s"))
        head = await theirs
        assert head is not None
        assert head.revision == 1


async def test_a_fork_does_not_wait_on_the_handle_of_its_parent(database: Database) -> None:
    """While others wait on it in the process that opened it."""
    blocking = await asyncio.to_thread(holdfast.open_sync, database.url, tenant="a")
    async with database.open() as store, AsyncOver(blocking):
        await store.sessions.create("s")
        wait = asyncio.ensure_future(store.waits.head("s", after=0))
        await settled(store)

        def check() -> None:
            with pytest.raises(WrongProcess):
                store.waits.head("s", after=0).send(None)
            with pytest.raises(WrongProcess):
                blocking.waits.head("s", after=0, timeout_ms=0)

        in_a_fork(check)
        await store.sessions.commit(Turn(session="s"))
        assert (await wait) == await store.sessions.head("s")
