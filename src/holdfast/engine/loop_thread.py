"""A private event loop in a daemon thread, for blocking callers, lives here.

The callers only hand in coroutines and wait; whatever interrupts a caller never reaches the loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from holdfast.contract.errors import HandleClosed, WrongLoop, WrongProcess

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for any thread of the process it was made in."""

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._stopped = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and wait for its result. It runs on when the caller is interrupted."""
        with self._lock:
            try:
                self._check()
            except BaseException:
                work.close()
                raise
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result()

    def require(self) -> None:
        """Raise when it cannot be used here, or not any more."""
        self._check()

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Have a function called on the loop, without waiting for it."""
        with self._lock:
            self._check()
            self._loop.call_soon_threadsafe(function, *args)

    def stop(self) -> None:
        """End the loop and the thread, once everything handed in is done or given up."""
        with self._lock:
            if self._stopped or os.getpid() != self._pid:
                return
            self._stopped = True
        asyncio.run_coroutine_threadsafe(_end_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise WrongProcess(opened_in=self._pid, used_in=os.getpid())
        if self._stopped:
            raise HandleClosed()
        if threading.get_ident() == self._thread.ident:
            raise WrongLoop()


async def _end_others() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
