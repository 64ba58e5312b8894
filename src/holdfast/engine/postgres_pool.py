"""How a statement gets a connection, and what becomes of it afterwards, lives here.

A connection on which something unexpected happened is discarded; one that is whole stays at hand
for a moment, and then goes back to the pool.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Any

import asyncpg

from holdfast.engine.postgres_errors import DISCARD, Failed, Fault, fault_of, reason_of

# How long a connection stays at hand after its use, and how many do.
KEPT_SECONDS, KEPT_MOST = 0.1, 4


class Kept:
    """Connections that stay at hand for a moment after their use.

    Taking one from the pool and giving it back costs two tasks, as much as a small statement. None
    is kept while somebody may be waiting for the pool.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._idle: list[tuple[float, Any]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._returns: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._idle)

    def take(self) -> Any:
        """A connection that is still good, or None."""
        while self._idle:
            connection = self._idle.pop()[1]
            # One that the server has closed is in the pool again, and says so when it is asked.
            with suppress(asyncpg.InterfaceError):
                if not connection.is_closed():
                    return connection
                self._give_back(connection)
        return None

    def put(self, connection: Any) -> bool:
        """Keep a connection; False when it had better go back."""
        full = self._pool.get_size() >= self._pool.get_max_size()
        if len(self._idle) >= KEPT_MOST or (full and self._pool.get_idle_size() == 0):
            return False
        loop = asyncio.get_running_loop()
        self._idle.append((loop.time(), connection))
        if self._timer is None:
            self._timer = loop.call_later(KEPT_SECONDS, self._expire)
        return True

    async def close(self) -> None:
        """Give all back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._idle:
            self._give_back(self._idle.pop()[1])
        while self._returns:
            await asyncio.wait(self._returns)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        # The last in is the first out, so those that have waited for long are in front.
        while self._idle and self._idle[0][0] <= loop.time() - KEPT_SECONDS:
            self._give_back(self._idle.pop(0)[1])
        if self._idle:
            self._timer = loop.call_at(self._idle[0][0] + KEPT_SECONDS, self._expire)

    def _give_back(self, connection: Any) -> None:
        task = asyncio.get_running_loop().create_task(_released(self._pool, connection))
        self._returns.add(task)
        task.add_done_callback(self._returns.discard)


async def _released(pool: Any, connection: Any) -> None:
    try:
        await pool.release(connection)
    except Exception:
        # The pool has taken back already what the driver has seen closing, and says so.
        with suppress(asyncpg.InterfaceError):
            connection.terminate()


class Lease:
    """A connection of the pool for a while. What the driver raises meanwhile leaves as `Failed`.

    `ambiguous` is set before a statement is sent that may be done without our hearing of it.
    """

    __slots__ = ("_connection", "_kept", "_pool", "_timeout", "ambiguous")

    def __init__(self, pool: Any, kept: Kept, timeout: float) -> None:
        self._pool = pool
        self._kept = kept
        self._timeout = timeout
        self._connection: Any = None
        self.ambiguous = False

    async def __aenter__(self) -> Any:
        self._connection = self._kept.take()
        if self._connection is not None:
            return self._connection
        try:
            self._connection = await self._pool.acquire(timeout=self._timeout)
        except TimeoutError as failure:
            if self._pool.get_idle_size() == 0 and self._pool.get_size() > 0:
                raise Failed(Fault.BUSY, "no connection of the pool was free in time") from failure
            raise Failed(Fault.UNREACHABLE, reason_of(failure)) from failure
        except Exception as failure:
            fault = fault_of(failure)
            fault = Fault.UNREACHABLE if fault is Fault.LOST else fault
            raise Failed(fault, reason_of(failure)) from failure
        return self._connection

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if failure is None:
            await self._release()
        elif isinstance(failure, Failed):
            if failure.fault in DISCARD:
                self._discard()
            else:
                await self._release()
            failure.ambiguous = failure.fault is Fault.LOST and self.ambiguous
        elif isinstance(failure, Exception):
            fault = fault_of(failure)
            if fault in DISCARD:
                self._discard()
            else:
                await self._release()
            ambiguous = fault is Fault.LOST and self.ambiguous
            raise Failed(fault, reason_of(failure), ambiguous=ambiguous) from failure
        else:
            # The event loop is ending; the state of the connection is not known.
            self._discard()

    async def _release(self) -> None:
        if not self._kept.put(self._connection):
            await _released(self._pool, self._connection)

    def _discard(self) -> None:
        # The pool has taken back already what the driver has seen closing, and says so.
        with suppress(asyncpg.InterfaceError):
            self._connection.terminate()
