"""What the tests of waits share: handles of both colours, a writer that is another process, and a
look at what is asked and heard behind a handle."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

import holdfast
from holdfast.core import waits as core_waits
from holdfast.engine import sqlite_signals
from holdfast.engine.signals import Signals
from holdfast.testing.async_over import AsyncOver
from tests.conftest import Database

NEVER_SECONDS = 60.0
LONG_MS = 30_000
SIGNAL_SECONDS = 0.1
# One poll, and what a busy machine may add to it.
POLL_SECONDS = core_waits.LONGEST_SECONDS + 1.0

WRITER = """
import sys, time, holdfast
from holdfast import NewWork, Turn
store = holdfast.open_sync(sys.argv[1], tenant="a")
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "commit":
        store.sessions.commit(Turn(session="s"))
    else:
        store.queue.enqueue(NewWork(session="s"))
    print(time.monotonic(), flush=True)
store.close()
"""


@dataclass(frozen=True)
class Waiter:
    """A database, and the colour of the handles that wait on it."""

    database: Database
    colour: str

    @contextlib.asynccontextmanager
    async def open(self, **options: Any) -> AsyncIterator[holdfast.Store]:
        """A handle of this colour, with awaitable methods."""
        if self.colour == "async":
            async with self.database.open(**options) as store:
                yield store
            return
        blocking = await asyncio.to_thread(
            holdfast.open_sync, self.database.url, tenant="a", **options
        )
        async with AsyncOver(blocking) as over:
            yield cast(holdfast.Store, over)


def put_off_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits is woken by a signal, or looks again when no test is there any more."""
    for module in ("holdfast.stores.waits", "holdfast.stores_blocking.waits"):
        monkeypatch.setattr(f"{module}.FIRST_SECONDS", NEVER_SECONDS)
        monkeypatch.setattr(f"{module}.LONGEST_SECONDS", NEVER_SECONDS)


def engine(store: Any) -> Any:
    """What is under a handle of either colour."""
    inner = store._blocking if isinstance(store, AsyncOver) else store
    return inner._view.engine


def signals(store: Any) -> Signals:
    """Where a handle listens."""
    under = engine(store)
    found: Signals = under.signals if hasattr(under, "signals") else under._engine.signals
    return found


async def until(true: Callable[[], bool]) -> None:
    """Wait for what no event of ours announces."""
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.001)


async def settled(store: Any, questions: int = 1, *, alone: bool = False) -> None:
    """So many questions are asked and answered, and what is said elsewhere is heard, unless this
    handle is to be alone with its process."""
    heard = signals(store)
    asked = engine(store)._watching._asked
    await until(
        lambda: (
            len(asked) == questions
            and all(question.latest.began > 0 for question, _ in list(asked.values()))
        )
    )
    if alone:
        return
    if isinstance(heard, sqlite_signals.FileSignals):
        await until(lambda: heard.watched)
    else:
        await until(lambda: cast(Any, heard).listening.is_set())
    # The first thing that is heard wakes everybody once, who then looks again.
    looks = {id(q): q.latest.began for q, _ in list(asked.values())}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            await until(lambda: any(q.latest.began > looks[id(q)] for q, _ in asked.values()))


async def timed(wait: Awaitable[Any]) -> tuple[Any, float]:
    """The answer, and when it came."""
    answer = await wait
    return answer, time.monotonic()


class Writer:
    """Another process that has the same store open."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def _line(self) -> str:
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()

    async def does(self, what: str) -> float:
        """Have it commit, or enqueue; when it had done so."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n".encode())
        return float(await self._line())


@contextlib.asynccontextmanager
async def writer_process(url: str) -> AsyncIterator[Writer]:
    """A process that writes when it is told to."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, url, stdin=-1, stdout=-1
    )
    writer = Writer(process)
    try:
        assert await writer._line() == "ready"
        yield writer
    finally:
        await process.communicate(b"")


class Reads:
    """How often the waiters of a handle read."""

    def __init__(self, store: Any) -> None:
        self.number = 0
        watching = engine(store)._watching
        read = watching._read

        def counted(*args: Any) -> Any:
            self.number += 1
            return read(*args)

        watching._read = counted


def in_a_fork(check: Callable[[], None]) -> None:
    """Run something in a fork of this process, and fail when it fails there."""
    with warnings.catch_warnings():
        # Newer Pythons warn of forking with threads, which is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            check()
            code = 0
        os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
