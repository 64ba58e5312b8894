"""Signals of one database file: all handles of this process share them, and one thread hears the
other processes.

SQLite tells a connection that somebody else has committed (`data_version`), not what. So while
somebody waits, one thread per file asks every few milliseconds, and wakes all who wait. It sees the
commits of this process too, whose waiters were woken by name before; how often it asks depends on
how many questions there are, so that the looks it causes stay bounded.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import apsw

from holdfast.contract.errors import StoreMoved
from holdfast.engine.signals import Signals
from holdfast.engine.sqlite_errors import DRIVER_ERRORS
from holdfast.engine.sqlite_schema import StoreFile

INTERVAL_SECONDS = 0.025
SECONDS_PER_QUESTION = 0.001
LONGEST_INTERVAL_SECONDS = 1.0
# Who waits again soon finds the thread still there.
LINGER_SECONDS = 1.0
# After a failure nobody asks for a while: whoever waits polls.
REST_SECONDS = 1.0


class FileSignals(Signals):
    """The signals of one file, for every handle of this process."""

    def __init__(self, file: StoreFile, connect: Callable[[], apsw.Connection]) -> None:
        super().__init__()
        self._file = file
        self._connect = connect
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._rests_until = 0.0
        self.handles = 0

    @property
    def watched(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None

    def attend(self) -> None:
        """Have the thread run, unless it does, or has just failed."""
        with self._starting:
            rests = self._ended.is_set() or time.monotonic() < self._rests_until
            if self._thread is None and not rests:
                self._thread = threading.Thread(
                    target=self._watch, name="holdfast-signals", daemon=True
                )
                self._thread.start()

    def end(self) -> None:
        """Stop the thread and let go of the file."""
        with self._starting:
            self._ended.set()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _watch(self) -> None:
        connection: apsw.Connection | None = None
        try:
            self._file.require()
            connection = self._connect()
            self._follow(connection)
        except StoreMoved:
            self._rests_until = time.monotonic() + REST_SECONDS
            # They find out for themselves.
            self.wake_all()
        except DRIVER_ERRORS:
            self._rests_until = time.monotonic() + REST_SECONDS
        finally:
            if connection is not None:
                with suppress(apsw.Error):
                    connection.close()
            with self._starting:
                # Another one may have been started since this one was given up.
                if self._thread is threading.current_thread():
                    self._thread = None

    def _follow(self, connection: apsw.Connection) -> None:
        """Wake everybody at each change, and at first, until nobody has waited for a while."""
        seen: int | None = None
        wanted_at = time.monotonic()
        while True:
            # It may have been replaced between the look and the opening.
            self._file.require()
            version = connection.pragma("data_version")
            if version != seen:
                seen = version
                self.wake_all()
            questions = self.listeners
            now = time.monotonic()
            if questions:
                wanted_at = now
            elif now - wanted_at > LINGER_SECONDS and self._nobody():
                return
            interval = max(INTERVAL_SECONDS, questions * SECONDS_PER_QUESTION)
            if self._ended.wait(min(interval, LONGEST_INTERVAL_SECONDS)):
                return

    def _nobody(self) -> bool:
        """Whether nobody listens, after the thread was given up: who comes now starts another."""
        with self._starting:
            if self.listeners:
                return False
            self._thread = None
            return True


class _Files:
    """The signals of every file that this process has open."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, as a fork does: the threads stayed behind."""
        self._gate = threading.Lock()
        self._open: dict[tuple[int, int], FileSignals] = {}

    def join(self, file: StoreFile, connect: Callable[[], apsw.Connection]) -> FileSignals:
        """The signals of a file, for one more handle."""
        with self._gate:
            signals = self._open.get(file.identity)
            if signals is None:
                signals = self._open[file.identity] = FileSignals(file, connect)
            signals.handles += 1
            return signals

    def leave(self, signals: FileSignals, file: StoreFile) -> None:
        """One handle less; the last one ends the thread."""
        with self._gate:
            signals.handles -= 1
            if signals.handles:
                return
            del self._open[file.identity]
        signals.end()


FILES = _Files()
os.register_at_fork(after_in_child=FILES.forget)
