"""The SQLite engine: one writer thread with group commit, and a pool of query-only readers."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any, NoReturn, TypeVar

import apsw

from holdfast.contract.errors import (
    HandleClosed,
    Invalid,
    NotSupported,
    StoreReadOnly,
    WrongProcess,
)
from holdfast.engine import sqlite_schema
from holdfast.engine.drive import drive
from holdfast.engine.signals import Signals
from holdfast.engine.sqlite_errors import DRIVER_ERRORS, translate
from holdfast.engine.sqlite_run import Script, run_step, scripts
from holdfast.engine.sqlite_schema import StoreFile
from holdfast.engine.sqlite_signals import FILES, FileSignals
from holdfast.engine.sqlite_writer import Failed, Job, Writer
from holdfast.engine.watching import BlockingWatch, BlockingWatching, Watch, Watching
from holdfast.ops.op import Answer, Op, Step

T = TypeVar("T")
MEMORY = ":memory:"


def wall_clock_ms() -> int:
    """The clock of the machine; a store takes another one where it is opened."""
    return time.time_ns() // 1_000_000


class _Ended(Enum):
    """What waits in place of a connection once the handle is closed."""

    ENDED = 0


_Idle = apsw.Connection | None | _Ended


class _Readers:
    """Query-only connections, made when wanted. Each read is one snapshot."""

    def __init__(
        self,
        path: str,
        file: StoreFile,
        connect: Callable[[], apsw.Connection],
        book: dict[str, Script],
        clock: Callable[[], int],
        size: int,
    ) -> None:
        self._path = path
        self._file = file
        self._connect = connect
        self._book = book
        self._clock = clock
        self._idle: queue.LifoQueue[_Idle] = queue.LifoQueue()
        for _ in range(size):
            self._idle.put(None)
        self._size = size
        self.threads = ThreadPoolExecutor(size, thread_name_prefix="holdfast-reader")

    def run(self, op: Callable[..., Op[T]], args: tuple[Any, ...]) -> T:
        """Run a reading operation on one snapshot, on the calling thread."""
        connection = self._idle.get()
        try:
            if isinstance(connection, _Ended):
                raise HandleClosed()
            self._file.require()
            if connection is None:
                connection = self._connect()
                # It may have been replaced between the look and the opening.
                self._file.require()
            return self._snapshot(connection, op, args)
        except DRIVER_ERRORS as failure:
            number = 0
            if isinstance(connection, apsw.Connection):
                number = connection.system_errno
                connection.close()
                connection = None
            raise translate(failure, self._path, number) from failure
        finally:
            self._idle.put(connection)

    def _snapshot(
        self, connection: apsw.Connection, op: Callable[..., Op[T]], args: tuple[Any, ...]
    ) -> T:
        now = self._clock()
        connection.execute("BEGIN")
        try:

            def run(step: Step) -> Answer:
                return run_step(connection, self._book, step, now)

            return drive(op(*args), run)
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def close(self) -> None:
        """Wait for the readers under way, then close every connection."""
        self.threads.shutdown(wait=True)
        for _ in range(self._size):
            connection = self._idle.get()
            if isinstance(connection, apsw.Connection):
                connection.close()
        self._idle.put(_Ended.ENDED)


class SqliteCore:
    """What both colours share: the writer, the readers, and the rules of a handle."""

    def __init__(
        self,
        path: str,
        *,
        clock: Callable[[], int] | None = None,
        synchronous: str = "full",
        readers: int = 4,
        read_only: bool = False,
        migrate: bool = True,
        busy_ms: int = sqlite_schema.BUSY_MS,
        max_group: int = 64,
        max_group_seconds: float = 0.05,
        allow_network: bool = False,
    ) -> None:
        if synchronous not in sqlite_schema.SYNCHRONOUS:
            raise Invalid(field="synchronous", reason="it is 'full' or 'normal'")
        self.path = path
        self._clock = clock or wall_clock_ms
        self._pid = os.getpid()
        self._closed = False
        self._close_gate = threading.Lock()
        self._book = scripts()
        self._busy_ms = busy_ms
        self._group = (max_group, max_group_seconds)
        self._synchronous = synchronous
        self.writer: Writer | None = None
        self._readers: _Readers | None = None
        # What is in memory has one handle, which needs nobody's help to hear of its own writes.
        self.signals = Signals()
        memory = path == MEMORY
        if not memory and not allow_network:
            sqlite_schema.refuse_network(path)
        self._read_only = read_only or (os.path.exists(path) and not os.access(path, os.W_OK))
        try:
            if memory:
                self.writer = self._start_writer(None)
            else:
                self._prepare_file(readers, migrate)
        except DRIVER_ERRORS as failure:
            raise translate(failure, self.path) from failure

    def _connect(self, *, query_only: bool = False, create: bool = False) -> apsw.Connection:
        return sqlite_schema.connect(
            self.path,
            read_only=self._read_only,
            synchronous=self._synchronous,
            query_only=query_only,
            create=create,
            busy_ms=self._busy_ms,
        )

    def _start_writer(self, file: StoreFile | None) -> Writer:
        """A database in memory has one connection, so its reads go through the writer too."""

        def connect() -> apsw.Connection:
            connection = self._connect(create=file is None)
            if file is None:
                sqlite_schema.apply(connection, self._clock)
            else:
                file.require()
            sqlite_schema.become_wal(connection, self._busy_ms)
            return connection

        max_group, max_group_seconds = self._group
        return Writer(
            self.path,
            file,
            connect,
            self._book,
            self._clock,
            busy_ms=self._busy_ms,
            max_group=max_group,
            max_group_seconds=max_group_seconds,
        )

    def _prepare_file(self, readers: int, migrate: bool) -> None:
        connection = self._connect(create=True)
        try:
            # One snapshot, because another process may be migrating.
            connection.execute("BEGIN")
            status = sqlite_schema.status(connection)
            connection.execute("ROLLBACK")
            status.require_usable(migrate=migrate and not self._read_only)
            if status.pending:
                sqlite_schema.become_wal(connection, self._busy_ms)
                status = sqlite_schema.apply(connection, self._clock)
                status.require_usable(migrate=False)
            # Its inode is looked at while it is held open.
            file = StoreFile(self.path)
            if not self._read_only:
                self.writer = self._start_writer(file)
        finally:
            connection.close()
        self._readers = _Readers(
            self.path,
            file,
            lambda: self._connect(query_only=True),
            self._book,
            self._clock,
            readers,
        )
        self._file = file
        self.signals = FILES.join(file, partial(self._connect, query_only=True))

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise WrongProcess(opened_in=self._pid, used_in=os.getpid())
        if self._closed:
            raise HandleClosed()

    def _require_writer(self) -> Writer:
        self._check()
        if self.writer is None:
            raise StoreReadOnly(reason="it was opened read-only")
        return self.writer

    def publish(self, topics: Iterable[str]) -> None:
        """Wake whoever waits in this process; the others see that the file has changed."""
        self.signals.publish(topics)

    def on(self, connection: object) -> NoReturn:
        """A file has one writer, and it is ours: there is no caller's transaction to join."""
        raise NotSupported(
            what="store.on(connection)", reason="a SQLite store writes through its own connection"
        )

    def _wake_own(self) -> None:
        """Let whoever waits on this handle find out that it is closed."""
        raise NotImplementedError

    def _shut(self) -> None:
        with self._close_gate:
            if self._closed:
                return
            self._closed = True
        if self._pid != os.getpid():
            return
        self._wake_own()
        if isinstance(self.signals, FileSignals):
            FILES.leave(self.signals, self._file)
        if self._readers is not None:
            self._readers.close()
        if self.writer is not None:
            self.writer.close()


class SqliteBlockingEngine(SqliteCore):
    """The engine for blocking callers: a writer's caller waits for the writer thread itself."""

    def __init__(self, path: str, **options: Any) -> None:
        super().__init__(path, **options)
        self._watching = BlockingWatching(self.read, self.signals, self.signals.attend)

    def watch(self, topic: str, op: Callable[..., Op[T]], *args: Any) -> BlockingWatch[T]:
        """Watch what a reading operation answers."""
        self._check()
        return self._watching.watch(topic, op, args)

    def _wake_own(self) -> None:
        self._watching.ring_all()

    def read(self, op: Callable[..., Op[T]], *args: Any) -> T:
        """Run a reading operation on the calling thread."""
        self._check()
        if self._readers is None:
            return self.write(op, *args)
        return self._readers.run(op, args)

    def write(self, op: Callable[..., Op[T]], *args: Any) -> T:
        """Run a writing operation; a signal does not take the caller away before the outcome."""
        writer = self._require_writer()
        done = threading.Event()

        def deliver(job: Job) -> None:
            done.set()

        job = Job(op, args, deliver)
        writer.submit(job)
        interrupted: BaseException | None = None
        while True:
            try:
                done.wait()
                break
            except BaseException as signal:
                interrupted = signal
        if interrupted is not None:
            raise interrupted
        if isinstance(job.value, Failed):
            raise job.value.error
        value: T = job.value
        return value

    def close(self) -> None:
        """Finish what is under way, then let go of the file."""
        self._shut()


class SqliteEngine(SqliteCore):
    """The engine for async callers, from any event loop."""

    _box: _Mailbox | None = None

    def __init__(self, path: str, **options: Any) -> None:
        super().__init__(path, **options)
        self._watching = Watching(self.read, self.signals, self.signals.attend)

    def watch(self, topic: str, op: Callable[..., Op[T]], *args: Any) -> Watch[T]:
        """Watch what a reading operation answers."""
        self._check()
        return self._watching.watch(topic, op, args)

    def _wake_own(self) -> None:
        self._watching.ring_all()

    async def read(self, op: Callable[..., Op[T]], *args: Any) -> T:
        """Run a reading operation on a reader thread."""
        self._check()
        if self._readers is None:
            return await self.write(op, *args)
        loop = asyncio.get_running_loop()
        try:
            running = loop.run_in_executor(self._readers.threads, self._readers.run, op, args)
        except RuntimeError:
            # The handle was closed by another thread since it was looked at.
            self._check()
            raise
        return await running

    async def write(self, op: Callable[..., Op[T]], *args: Any) -> T:
        """Run a writing operation. A cancelled caller is cancelled after the outcome is known."""
        writer = self._require_writer()
        loop = asyncio.get_running_loop()
        box = self._box
        if box is None or box.loop is not loop:
            self._box = box = _Mailbox(loop)
        waiter = _Waiter(loop, box)
        job = Job(op, args, waiter.deliver)
        writer.submit(job)
        cancelled: asyncio.CancelledError | None = None
        while not waiter.arrived:
            try:
                await waiter.future
            except asyncio.CancelledError as cancel:
                cancelled = cancel
                waiter.future = loop.create_future()
        if cancelled is not None:
            raise cancelled
        if isinstance(job.value, Failed):
            raise job.value.error
        value: T = job.value
        return value

    async def close(self) -> None:
        """Finish what is under way, then let go of the file."""
        await asyncio.get_running_loop().run_in_executor(None, self._shut)


class _Waiter:
    """An async caller of the writer. A cancelled wait is begun again, with another future."""

    __slots__ = ("_box", "arrived", "future")

    def __init__(self, loop: asyncio.AbstractEventLoop, box: _Mailbox) -> None:
        self.arrived = False
        self.future: asyncio.Future[None] = loop.create_future()
        self._box = box

    def deliver(self, job: Job) -> Callable[[], None]:
        """Called by the writer's thread."""
        self._box.waiters.append(self)
        return self._box.ring


class _Mailbox:
    """Where the writer leaves outcomes for one event loop, which it wakes once for a group."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waiters: deque[_Waiter] = deque()

    def ring(self) -> None:
        """Called by the writer's thread, after everything was left."""
        with suppress(RuntimeError):  # The callers' loop is gone, and nobody waits.
            self.loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        while self.waiters:
            waiter = self.waiters.popleft()
            waiter.arrived = True
            if not waiter.future.done():
                waiter.future.set_result(None)
