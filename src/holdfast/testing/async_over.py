"""A blocking store, offered to async callers: how one law text is run against both colours."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

_VALUES = (str, bytes, int, float, bool, type(None))


class AsyncOver:
    """Each method of the blocking object as an awaitable that is run in a worker thread.

    A part of the object that is neither a method nor a plain value, such as the session store of a
    store, is wrapped in the same way.
    """

    def __init__(self, blocking: Any) -> None:
        self._blocking = blocking

    def __getattr__(self, name: str) -> Any:
        part = getattr(self._blocking, name)
        if isinstance(part, _VALUES):
            return part
        if not callable(part):
            return AsyncOver(part)

        @functools.wraps(part)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(part, *args, **kwargs)

        return awaited

    async def __aenter__(self) -> AsyncOver:
        return self

    async def __aexit__(self, *trouble: object) -> None:
        await asyncio.to_thread(self._blocking.close)
