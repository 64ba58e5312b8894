"""Signals of a database file: the thread that watches it, when it runs, and when it fails."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.contract.errors import HandleClosed, StoreMoved
from holdfast.contract.records import Turn
from holdfast.engine import sqlite_signals
from holdfast.engine.sqlite_signals import FILES
from holdfast.testing.async_over import AsyncOver
from tests.conftest import Database
from tests.waiting import (
    LONG_MS,
    POLL_SECONDS,
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


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only signals wake whoever waits."""
    put_off_polls(monkeypatch)


def watchers() -> list[threading.Thread]:
    """The threads that watch a file."""
    return [thread for thread in threading.enumerate() if thread.name == "holdfast-signals"]


@pytest.mark.parametrize("colour", ["async", "blocking"])
async def test_a_file_is_watched_while_somebody_waits(
    sqlite_database: Database, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter = Waiter(sqlite_database, colour)
    monkeypatch.setattr(sqlite_signals, "LINGER_SECONDS", 0.1)
    async with waiter.open() as store, waiter.open() as other:
        await store.sessions.create("s")
        # Neither what is there already nor a look is a wait.
        assert await store.waits.head("s", after=0, timeout_ms=0) is None
        await store.sessions.commit(Turn(session="s"))
        assert await store.waits.head("s", after=0) is not None
        assert watchers() == []
        for _ in range(2):
            waits = [store.waits.head("s", after=1, timeout_ms=300) for _ in range(5)]
            waits += [other.waits.head("s", after=1, timeout_ms=300)]
            running = asyncio.gather(*waits)
            await until(lambda: len(watchers()) == 1)
            assert await running == [None] * 6
            await until(lambda: watchers() == [])


async def test_the_watcher_ends_with_the_last_handle(sqlite_database: Database) -> None:
    async with sqlite_database.open() as other:
        async with sqlite_database.open() as store:
            await store.sessions.create("s")
            assert engine(store).signals is engine(other).signals
            wait = asyncio.ensure_future(store.waits.head("s", after=0))
            await settled(store)
        assert isinstance((await asyncio.gather(wait, return_exceptions=True))[0], HandleClosed)
        assert len(watchers()) == 1
        assert len(FILES._open) == 1
    assert watchers() == []
    assert not FILES._open


async def test_a_file_in_memory_hears_itself(no_polls: None) -> None:
    async with await holdfast.open(":memory:") as store, await holdfast.open(":memory:") as other:
        await store.sessions.create("s")
        await other.sessions.create("s")
        wait = asyncio.ensure_future(store.waits.head("s", after=0))
        await until(lambda: signals(store).listeners == 1)
        await other.sessions.commit(Turn(session="s"))
        await store.sessions.commit(Turn(session="s"))
        assert (await asyncio.wait_for(wait, 10)) == await store.sessions.head("s")
        assert watchers() == []


async def test_who_waits_on_a_file_that_is_moved_is_told(
    sqlite_database: Database, no_polls: None
) -> None:
    """The watcher sees it, wakes who waits, and ends."""
    async with sqlite_database.open() as store:
        await store.sessions.create("s")
        wait = asyncio.ensure_future(store.waits.head("s", after=0))
        await settled(store)
        os.rename(sqlite_database.url, f"{sqlite_database.url}.moved")
        with pytest.raises(StoreMoved):
            await asyncio.wait_for(wait, 10)
        await until(lambda: watchers() == [])
        os.rename(f"{sqlite_database.url}.moved", sqlite_database.url)


async def test_many_questions_are_looked_at_less_often(sqlite_database: Database) -> None:
    """Somebody commits all the time, and what nobody waits for: the looks stay bounded."""
    async with sqlite_database.open() as store, writer_process(sqlite_database.url) as other:
        names = [f"s{n}" for n in range(200)]
        for name in [*names, "s"]:
            await store.sessions.create(name)
        reads = Reads(store)
        waits = [asyncio.ensure_future(store.waits.head(name, after=0)) for name in names]
        await settled(store, questions=200)
        before, began = reads.number, time.monotonic()
        while time.monotonic() - began < 4:
            await other.does("commit")
        rate = (reads.number - before) / (time.monotonic() - began)
        print(f"200 questions under commits of another process: {rate:.0f} reads/s")
        assert rate <= 1.5 / sqlite_signals.SECONDS_PER_QUESTION
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)


async def test_a_commit_before_the_watcher_looked_first_is_not_missed(
    sqlite_database: Database, no_polls: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after the look of who waits, and before the watcher knows what there was."""
    other = await asyncio.to_thread(holdfast.open_sync, sqlite_database.url, tenant="a")
    async with sqlite_database.open() as store, AsyncOver(other):
        await store.sessions.create("s")
        # As if it were another process.
        monkeypatch.setattr(other._view.engine, "publish", lambda topics: None)
        connect = engine(store).signals._connect

        def late(*args: Any) -> apsw.Connection:
            other.sessions.commit(Turn(session="s"))
            connection: apsw.Connection = connect()
            return connection

        monkeypatch.setattr(engine(store).signals, "_connect", late)
        head = await asyncio.wait_for(store.waits.head("s", after=0, timeout_ms=LONG_MS), 10)
        assert head is not None
        assert head.revision == 1


async def test_a_watcher_that_fails_leaves_the_polls(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not started again and again, and the waiter polls."""
    tried = 0

    def broken(*args: Any) -> None:
        nonlocal tried
        tried += 1
        raise apsw.IOError("the disk is gone")

    async with sqlite_database.open() as store, writer_process(sqlite_database.url) as other:
        await store.sessions.create("s")
        monkeypatch.setattr(engine(store).signals, "_connect", broken)
        wait = asyncio.create_task(timed(store.waits.head("s", after=0)))
        await asyncio.wait({wait}, timeout=0.5)
        done_at = await other.does("commit")
        head, woken_at = await wait
        assert head.revision == 1
        assert woken_at - done_at < POLL_SECONDS
        assert 1 <= tried <= 3


async def test_a_fork_hears_with_a_thread_of_its_own(
    sqlite_database: Database, no_polls: None
) -> None:
    """The thread of the parent stayed there, and so did what it had woken."""
    async with sqlite_database.open() as store, writer_process(sqlite_database.url) as other:
        await store.sessions.create("s")
        wait = asyncio.ensure_future(store.waits.head("s", after=0))
        await settled(store)
        ready, told = os.pipe()

        def check() -> None:
            os.write(told, b"1")
            mine = holdfast.open_sync(sqlite_database.url, tenant="a")
            assert engine(mine).signals is not engine(store).signals
            head = mine.waits.head("s", after=0, timeout_ms=LONG_MS)
            assert head is not None
            assert head.revision == 1

        forked = asyncio.ensure_future(asyncio.to_thread(in_a_fork, check))
        await asyncio.to_thread(os.read, ready, 1)
        await other.does("commit")
        await asyncio.gather(forked, wait)
        os.close(ready)
        os.close(told)
