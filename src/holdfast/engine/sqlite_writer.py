"""One thread owns the write connection: it takes what waits, runs it, and commits it as a group.

Nobody is answered before the COMMIT that holds their work. A group runs without savepoints; when
something unexpected happens in it, it is rolled back and run again with one savepoint per
operation, so that only the culprit fails. An outcome that is settled is never overwritten by what
happens to the rest of its group. The writer also owns checkpoints.
"""

from __future__ import annotations

import copy
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import apsw

from holdfast.contract.errors import (
    HandleClosed,
    HoldfastError,
    OutcomeUnknown,
    StoreBusy,
    StoreFull,
)
from holdfast.engine.drive import drive
from holdfast.engine.sqlite_errors import translate
from holdfast.engine.sqlite_run import Script, run_step
from holdfast.engine.sqlite_schema import StoreFile
from holdfast.ops.op import Answer, Op, Step

# Pages in the log: above the first it is checkpointed when idle, above the second under load too,
# above the third new readers are held off for a moment, so that the log can start over.
IDLE_PAGES, LOADED_PAGES, RESTART_PAGES = 250, 4_000, 40_000
IDLE_SECONDS = 0.05
# How long the writer waits for readers that keep the log from starting over.
RESTART_MS = 100


class Job:
    """One operation waiting for the writer, and where its outcome goes.

    What `deliver` returns is called once for all jobs of a group that return the same.
    """

    __slots__ = ("args", "deliver", "op", "settled", "step", "value")

    def __init__(
        self,
        op: Callable[..., Op[Any]],
        args: tuple[Any, ...],
        deliver: Callable[[Job], Callable[[], None] | None],
    ) -> None:
        self.op = op
        self.args = args
        self.deliver = deliver
        self.value: Any = None
        self.settled = False
        self.step: Step | None = None

    def operation(self) -> str:
        """The last step and its ids, for errors."""
        if self.step is None:
            return "operation"
        params = self.step.params
        ids = [f"{name}={params[name]}" for name in ("session", "turn") if name in params]
        return " ".join([self.step.stmt.name, *ids])

    def fail(self, error: BaseException) -> None:
        """Settle it with an error of its own, because a raised error belongs to one caller."""
        self.value = Failed(copy.copy(error) if isinstance(error, HoldfastError) else error)
        self.settled = True


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
        file: StoreFile | None,
        connect: Callable[[], apsw.Connection],
        book: Mapping[str, Script],
        clock: Callable[[], int],
        *,
        busy_ms: int,
        max_group: int,
        max_group_seconds: float,
    ) -> None:
        self._path = path
        self._file = file
        self._connect = connect
        self._book = book
        self._clock = clock
        self._busy_ms = busy_ms
        self._max_group = max_group
        self._max_group_seconds = max_group_seconds
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._log_pages = 0
        self._copied_pages = 0
        self._restart_from = RESTART_PAGES
        self._step_now = 0
        self._last_step: Step | None = None
        self._distrusted = False
        self._closing = False
        self._gate = threading.Lock()
        self.connection = self._open()
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
        connection.set_wal_hook(self._saw_log)
        return connection

    def _saw_log(self, connection: apsw.Connection, name: str, pages: int) -> int:
        if pages < self._log_pages:
            # It has started over.
            self._copied_pages = 0
            self._restart_from = RESTART_PAGES
        self._log_pages = pages
        return 0

    def _run(self) -> None:
        ended = False
        while not ended:
            job = self._next()
            if job is None:
                break
            group = [job]
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
        self._close()

    def _next(self) -> Job | None:
        if self._log_pages - self._copied_pages < IDLE_PAGES:
            return self._queue.get()
        try:
            return self._queue.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
            return self._queue.get()

    def _serve(self, group: list[Job]) -> None:
        try:
            self._require_connection()
            left = group
            while left:
                left = left[self._run_some(left) :]
        except Exception as failure:
            error = translate(failure, self._path, self._errno())
            self._rollback()
            for job in group:
                if not job.settled:
                    job.fail(error)
        for ring in {job.deliver(job) for job in group}:
            if ring is not None:
                ring()
        self._tend_log()

    def _require_connection(self) -> None:
        if self._file is not None:
            self._file.require()
        if self._distrusted:
            self.connection = self._open()
            self._distrusted = False

    def _run_some(self, group: list[Job]) -> int:
        """Run and commit operations until the time is up. Returns how many have an outcome."""
        self.connection.execute("BEGIN IMMEDIATE")
        deadline = time.monotonic() + self._max_group_seconds
        try:
            for number, job in enumerate(group):
                if number and time.monotonic() > deadline:
                    return self._commit(group[:number])
                self._run_plain(job)
        except _Redo:
            self._rollback()
            return self._run_carefully(group)
        return self._commit(group)

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

    def _run_carefully(self, group: list[Job]) -> int:
        """The same with a savepoint for each operation."""
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE")
        deadline = time.monotonic() + self._max_group_seconds
        for number, job in enumerate(group):
            if number and time.monotonic() > deadline:
                return self._commit(group[:number])
            connection.execute("SAVEPOINT operation")
            try:
                job.value = self._drive(job)
            except Exception as failure:
                job.value = Failed(translate(failure, self._path, self._errno()))
                if not connection.in_transaction:
                    # The database gave up the whole transaction, and with it what came before.
                    job.settled = True
                    for other in group[:number]:
                        self._run_alone(other)
                    return number + 1
                connection.execute("ROLLBACK TO operation")
            connection.execute("RELEASE operation")
        return self._commit(group)

    def _run_alone(self, job: Job) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            job.value = self._drive(job)
        except Exception as failure:
            job.fail(translate(failure, self._path, self._errno()))
            self._rollback()
            return
        self._commit([job])

    def _drive(self, job: Job) -> Any:
        self._step_now = self._clock()
        try:
            return drive(job.op(*job.args), self._step)
        finally:
            job.step = self._last_step

    def _step(self, step: Step) -> Answer:
        self._last_step = step
        return run_step(self.connection, self._book, step, self._step_now)

    def _errno(self) -> int:
        try:
            return int(self.connection.system_errno)
        except apsw.Error:
            return 0

    def _commit(self, group: list[Job]) -> int:
        """One COMMIT for the group. When it fails, all of it failed, and perhaps it did not."""
        try:
            self.connection.execute("COMMIT")
        except Exception as failure:
            self._commit_failed(group, failure)
        for job in group:
            job.settled = True
        return len(group)

    def _commit_failed(self, group: list[Job], failure: Exception) -> None:
        error = translate(failure, self._path, self._errno())
        # A log whose last frame could not be written has no end mark: nothing was done. After any
        # other error, a failed sync above all, the mark may be there and be found by the next
        # one who opens the file.
        synced = getattr(failure, "extendedresult", 0) == apsw.SQLITE_IOERR_FSYNC
        known = isinstance(error, StoreFull | StoreBusy) and not synced
        self._rollback()
        for job in group:
            if not isinstance(job.value, Failed):
                job.fail(
                    error if known else OutcomeUnknown(operation=job.operation(), reason=str(error))
                )
        if not known and self._file is not None:
            # What the connection has in memory is not to be trusted any more.
            self._distrust()

    def _distrust(self) -> None:
        self._distrusted = True
        self._close()

    def _close(self) -> None:
        # Closing folds the log in where it can. What a failing disk says to that is no news.
        with suppress(apsw.Error):
            self.connection.close()

    def _rollback(self) -> None:
        try:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
        except apsw.Error:
            # A connection that cannot roll back is replaced before it is used again.
            if self._file is not None and not self._distrusted:
                self._distrust()

    # --- the log

    def _tend_log(self) -> None:
        if self._log_pages > self._restart_from:
            self._restart_from = self._log_pages + LOADED_PAGES
            # Readers of other processes may take as long as they like; the writer does not wait.
            self.connection.set_busy_timeout(RESTART_MS)
            self._checkpoint(apsw.SQLITE_CHECKPOINT_RESTART)
            self.connection.set_busy_timeout(self._busy_ms)
        elif self._log_pages - self._copied_pages > LOADED_PAGES:
            self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _checkpoint(self, mode: int) -> None:
        try:
            self._log_pages, self._copied_pages = self.connection.wal_checkpoint(mode=mode)
        except apsw.Error:
            return  # A checkpoint that cannot be done now is done later; nothing depends on it.
