"""One thread owns the write connection: it takes what waits, runs it, and commits it as a group.

Nobody is answered before the COMMIT that holds their work. A group runs without savepoints; when
something unexpected happens in it, it is rolled back and run again with one savepoint per
operation, so that only the culprit fails. The writer also owns checkpoints.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import apsw

from holdfast.contract.errors import HandleClosed, HoldfastError, OutcomeUnknown, StoreMoved
from holdfast.engine.drive import drive
from holdfast.engine.sqlite_errors import translate
from holdfast.engine.sqlite_run import Script, run_step
from holdfast.ops.op import Answer, Op, Step

# Pages in the log: above the first it is checkpointed when idle, above the second under load too,
# above the third new readers are held off until the log can start over.
IDLE_PAGES, LOADED_PAGES, RESTART_PAGES = 250, 4_000, 40_000
IDLE_SECONDS = 0.05


class Job:
    """One operation waiting for the writer, and where its outcome goes."""

    __slots__ = ("args", "deliver", "op", "value")

    def __init__(
        self, op: Callable[..., Op[Any]], args: tuple[Any, ...], deliver: Callable[[Job], None]
    ) -> None:
        self.op = op
        self.args = args
        self.deliver = deliver
        self.value: Any = None


class Failed:
    """An outcome that is raised."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Redo(Exception):
    """The group has to be rolled back and run again, carefully."""


class Writer:
    """The writer thread."""

    def __init__(
        self,
        path: str,
        connect: Callable[[], apsw.Connection],
        book: Mapping[str, Script],
        clock: Callable[[], int],
        *,
        max_group: int,
        max_group_seconds: float,
    ) -> None:
        self._path = path
        self._connect = connect
        self._book = book
        self._clock = clock
        self._max_group = max_group
        self._max_group_seconds = max_group_seconds
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._wal_pages = 0
        self._step_now = 0
        self._closing = False
        self._gate = threading.Lock()
        self.connection = self._open()
        self._identity = self._file_identity()
        self._thread = threading.Thread(target=self._run, name="holdfast-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Hand an operation to the writer."""
        with self._gate:
            if self._closing:
                raise HandleClosed()
            self._queue.put(job)

    def close(self) -> None:
        """Finish what was handed in, then close the connection. May be called twice."""
        with self._gate:
            first = not self._closing
            self._closing = True
            if first:
                self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # --- the thread

    def _open(self) -> apsw.Connection:
        connection = self._connect()
        connection.set_wal_hook(self._saw_wal)
        return connection

    def _saw_wal(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self._wal_pages = pages
        return 0

    def _file_identity(self) -> tuple[int, int] | None:
        if self._path == ":memory:":
            return None
        # A stat does not open the file: closing a descriptor of it would drop SQLite's locks.
        found = os.stat(self._path)
        return found.st_dev, found.st_ino

    def _run(self) -> None:
        while True:
            job = self._next()
            if job is None:
                break
            group = [job]
            ended = False
            while len(group) < self._max_group:
                try:
                    more = self._queue.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    ended = True
                    break
                group.append(more)
            self._serve(group)
            if ended:
                break
        self.connection.close()

    def _next(self) -> Job | None:
        if self._wal_pages < IDLE_PAGES:
            return self._queue.get()
        try:
            return self._queue.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
            return self._queue.get()

    def _checkpoint(self, mode: int) -> None:
        try:
            _, done = self.connection.wal_checkpoint(mode=mode)
        except apsw.Error:
            return  # A checkpoint that cannot be done now is done later; nothing depends on it.
        self._wal_pages = max(0, self._wal_pages - done)

    def _serve(self, group: list[Job]) -> None:
        try:
            self._require_file()
            self._run_group(group)
        except BaseException as failure:
            error = translate(failure, self._path, self._errno())
            self._rollback()
            for job in group:
                job.value = Failed(error)
        for job in group:
            job.deliver(job)
        if self._wal_pages > RESTART_PAGES:
            self._checkpoint(apsw.SQLITE_CHECKPOINT_RESTART)
        elif self._wal_pages > LOADED_PAGES:
            self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _require_file(self) -> None:
        if self._identity is None:
            return
        try:
            found = self._file_identity()
        except OSError:
            found = None
        if found != self._identity:
            raise StoreMoved(path=self._path)

    def _run_group(self, group: list[Job]) -> None:
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            deadline = time.monotonic() + self._max_group_seconds
            for number, job in enumerate(group):
                if number and time.monotonic() > deadline:
                    self._commit(group[:number])
                    self._run_group(group[number:])
                    return
                self._run_plain(job)
        except _Redo:
            self._rollback()
            self._run_carefully(group)
            return
        self._commit(group)

    def _run_plain(self, job: Job) -> None:
        before = self.connection.total_changes()
        try:
            job.value = self._drive(job)
        except HoldfastError as refused:
            if self.connection.total_changes() != before:
                raise _Redo from refused
            job.value = Failed(refused)
        except Exception as unexpected:
            raise _Redo from unexpected

    def _run_carefully(self, group: list[Job]) -> None:
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE")
        for number, job in enumerate(group):
            connection.execute("SAVEPOINT operation")
            try:
                job.value = self._drive(job)
            except Exception as failure:
                job.value = Failed(translate(failure, self._path, self._errno()))
                if not connection.in_transaction:
                    # The database gave up the whole transaction, and with it what came before.
                    for other in group[:number]:
                        self._run_alone(other)
                    for other in group[number + 1 :]:
                        self._run_alone(other)
                    return
                connection.execute("ROLLBACK TO operation")
            connection.execute("RELEASE operation")
        self._commit(group)

    def _run_alone(self, job: Job) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            job.value = self._drive(job)
        except Exception as failure:
            job.value = Failed(translate(failure, self._path, self._errno()))
            self._rollback()
            return
        self._commit([job])

    def _drive(self, job: Job) -> Any:
        self._step_now = self._clock()
        return drive(job.op(*job.args), self._step)

    def _step(self, step: Step) -> Answer:
        return run_step(self.connection, self._book, step, self._step_now)

    def _errno(self) -> int:
        return int(self.connection.system_errno)

    def _commit(self, group: list[Job]) -> None:
        """One COMMIT for the group. When it fails, all of it failed, and perhaps it did not."""
        try:
            self.connection.execute("COMMIT")
        except Exception as failure:
            error = translate(failure, self._path, self._errno())
            if self.connection.in_transaction:
                self._rollback()
            if not isinstance(failure, apsw.FullError | apsw.BusyError):
                # After a failed sync the connection's view is not to be trusted.
                self.connection.close()
                self.connection = self._open()
                error = OutcomeUnknown(operation="the group", reason=str(error))
            for job in group:
                if not isinstance(job.value, Failed):
                    job.value = Failed(error)

    def _rollback(self) -> None:
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")
