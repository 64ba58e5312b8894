"""The ring: a few callers who ask a store about processes at the same moment.

Each has a handle of its own in a thread of its own, unless they are to share one. A race says what
is there before, what they ask, and what must be true of the answers and of what is left.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import holdfast
from holdfast.contract.errors import HoldfastError
from holdfast.contract.processes import (
    Event,
    EventType,
    NewEvent,
    NewProcess,
    Pointer,
    Process,
    WakeRule,
)

CALLERS = 4
PAUSE_SECONDS = 0.002
HOUR_MS = 3_600_000
SHORT_MS = 2
FAR_MS = 9_000_000_000_000
EVENTS = (
    EventType(name="step"),
    EventType(name="report", ends="completed", output=Pointer(at="/summary")),
    EventType(name="ping", wakes=WakeRule()),
    EventType(name="signal.go"),
)

Call = Callable[[Any], Any]


class Ring:
    """The callers, and a handle with which a round is set up and looked at."""

    def __init__(self, stores: Sequence[Any], pool: ThreadPoolExecutor) -> None:
        self.home = stores[0]
        self._stores = stores
        self._pool = pool
        self._chance = random.Random(7)
        self._cursor: str | None = None

    @property
    def processes(self) -> Any:
        """The processes, as the first caller sees them."""
        return self.home.processes

    def together(self, *calls: Call) -> list[Any]:
        """Ask all at once, and wait for every answer, refusals included."""
        barrier = threading.Barrier(len(calls))

        def ask(place: int, call: Call, pause: float) -> Any:
            barrier.wait()
            time.sleep(pause)
            try:
                return call(self._stores[place % len(self._stores)])
            except HoldfastError as refusal:
                return refusal

        pauses = [self._pause() for _ in calls]
        return list(self._pool.map(ask, range(len(calls)), calls, pauses))

    def _pause(self) -> float:
        return self._chance.choice((0.0, self._chance.uniform(0, PAUSE_SECONDS)))

    def begin(self, process: str, **how: Any) -> Process:
        """Register a process."""
        new = NewProcess(process=process, events=EVENTS, **how)
        registered = self.processes.register(new)
        assert registered.created
        made: Process = registered.process
        return made

    def record(self, process: str) -> Process:
        """The record of a process that is there."""
        found: Process | None = self.processes.get(process)
        assert found is not None
        return found

    def log(self, process: str) -> list[Event]:
        """The log of a process, which has no gap and ends where the record says."""
        events: list[Event] = list(self.processes.events(process, limit=1000).items)
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        assert self.record(process).sequence == len(events)
        return events

    def types(self, process: str) -> list[str]:
        """The types of the events of a process, in order."""
        return [event.type for event in self.log(process)]

    def caught_up(self) -> str:
        """Where the feed of changes ends."""
        while True:
            page = self.processes.changes(after=self._cursor, limit=1000)
            self._cursor = page.next
            if not page.more:
                return str(page.next)

    def stop(self, process: str) -> None:
        """End a process as an operator does, so that it is due no more."""
        self.processes.end(process, authority="operator")


def of(kind: type, answers: Sequence[Any]) -> list[Any]:
    """The answers of a kind."""
    return [answer for answer in answers if type(answer) is kind]


def kinds(answers: Sequence[Any]) -> list[str]:
    """The names of the kinds of answers, sorted."""
    return sorted(type(answer).__name__ for answer in answers)


def append(process: str, type: str = "step", payload: Any = None, **how: Any) -> Call:
    """Append an event."""
    leased = {name: how.pop(name) for name in ("lease", "authority") if name in how}
    event = NewEvent(type=type, payload=payload, **how)
    return lambda store: store.processes.append(process, event, **leased)


def claim(process: str, owner: str, ttl_ms: int = HOUR_MS) -> Call:
    return lambda store: store.processes.claim(process, owner, ttl_ms=ttl_ms)


def end(process: str, state: str = "completed", output: Any = None, **how: Any) -> Call:
    """End a process, as an operator when nothing else is said."""
    how = how or {"authority": "operator"}
    return lambda store: store.processes.end(process, state, output, **how)


@contextmanager
def ring(url: str, tenant: str, *, handles: int = CALLERS, **options: Any) -> Iterator[Ring]:
    """Callers on as many handles as asked for."""
    with ExitStack() as stack:
        stores = [
            stack.enter_context(holdfast.open_sync(url, tenant=tenant, **options))
            for _ in range(handles)
        ]
        yield Ring(stores, stack.enter_context(ThreadPoolExecutor(CALLERS)))
