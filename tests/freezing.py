"""What the tests share that stop workers with SIGSTOP: the worker process, and what it is told.

Such a test is a program too, which is run for each worker: it waits for lines of input, and says
with lines of output how far it is.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from holdfast.contract.errors import HoldfastError
from holdfast.stores import Store

if TYPE_CHECKING:
    from tests.conftest import Database, Rows

ROOT = Path(__file__).resolve().parent.parent


async def told(act: Awaitable[object]) -> object:
    """The code of the refusal, or what was answered."""
    try:
        return await act
    except HoldfastError as refused:
        return refused.code


async def written(act: Awaitable[object]) -> object:
    """The same for a write that answers a record: that it was accepted."""
    answer = await told(act)
    return answer if isinstance(answer, str) else "accepted"


class Frozen:
    """A worker process that can be stopped, and the tenant it works for."""

    def __init__(self, program: str, url: str, tenant: str, store: Store) -> None:
        self.tenant = tenant
        self.store = Store(dataclasses.replace(store._view, tenant=tenant))
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", program, url, tenant],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def pipe(self, which: str) -> IO[str]:
        found: IO[str] | None = getattr(self.process, which)
        assert found is not None
        return found

    def ask(self) -> None:
        """Give it the line it waits for."""
        self.pipe("stdin").write("go\n")
        self.pipe("stdin").flush()

    async def answer(self) -> str:
        """The next line it prints; an empty one when it has ended."""
        return (await asyncio.to_thread(self.pipe("stdout").readline)).strip()

    def freeze(self) -> None:
        """Stop it, and be sure that it has stopped."""
        self.process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"the worker ended: {status}"

    def wake(self) -> None:
        """Let it go on with the line it waits for."""
        self.process.send_signal(signal.SIGCONT)
        self.ask()

    def end(self) -> None:
        """Whatever state it is in."""
        self.process.kill()
        self.process.wait()
        for which in ("stdin", "stdout"):
            self.pipe(which).close()


@asynccontextmanager
async def at_work(workers: Sequence[Frozen]) -> AsyncIterator[None]:
    """The workers, from when all of them are open until they have ended by themselves."""
    try:
        for worker in workers:
            assert await worker.answer() == "open"
        yield
        for worker in workers:
            assert await asyncio.to_thread(worker.process.wait, 20) == 0
    finally:
        for worker in workers:
            worker.end()


async def rows_of(database: Database, workers: Sequence[Frozen]) -> list[Rows]:
    """All that is stored for each of them."""
    return await asyncio.gather(*(database.rows(worker.tenant) for worker in workers))
