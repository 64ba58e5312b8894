"""The port: what an engine offers to the facades, whatever the database.

An engine runs operations. It is given a function and its arguments, never a generator, because an
operation may have to be run again from its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from holdfast.engine.watching import BlockingWatch, Watch
from holdfast.ops.op import Op

T = TypeVar("T")


class Engine(Protocol):
    """Runs operations on one database, for async callers."""

    async def read(self, op: Callable[..., Op[T]], *args: Any) -> T:
        """Run an operation that writes nothing."""
        ...

    async def write(self, op: Callable[..., Op[T]], *args: Any) -> T:
        """Run an operation that writes. It has returned, or raised, only when the outcome is
        durable or known not to be; `OutcomeUnknown` says that it is neither."""
        ...

    def publish(self, topics: Iterable[str]) -> None:
        """Wake whoever watches one of these, here and elsewhere. A hint: it never fails, and may
        be lost."""
        ...

    def watch(self, topic: str, op: Callable[..., Op[T]], *args: Any) -> Watch[T]:
        """Listen to a topic from now on, to look at what a reading operation answers."""
        ...

    def on(self, connection: Any) -> Engine:
        """The same operations inside the caller's own transaction, where that is possible."""
        ...

    async def close(self) -> None:
        """Finish what is under way, then let go of the database."""
        ...


class BlockingEngine(Protocol):
    """The same for blocking callers, safe from threads."""

    def read(self, op: Callable[..., Op[T]], *args: Any) -> T: ...
    def write(self, op: Callable[..., Op[T]], *args: Any) -> T: ...
    def publish(self, topics: Iterable[str]) -> None: ...
    def watch(self, topic: str, op: Callable[..., Op[T]], *args: Any) -> BlockingWatch[T]: ...
    def on(self, connection: Any) -> BlockingEngine: ...
    def close(self) -> None: ...
