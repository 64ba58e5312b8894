"""Watches: how one waiter looks at a question again and again, and all who ask the same share it.

A watch listens before it looks. It is woken by a signal, or looks again when its own patience ends.
Its looks go through the question, which answers all its watches with one read: an answer serves
every look that wanted one no older. A thousand waiters thus cost the reads of one.
"""

from __future__ import annotations

import asyncio
import copy
import random
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from holdfast.engine.signals import Signals
from holdfast.ops.op import Op

T = TypeVar("T")

# Waiters of many handles spread their looks, so that they do not come in step.
LEAST_PATIENCE = 0.75


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a read answered, or how it failed, and when it began."""

    began: float
    value: Any = None
    failure: Exception | None = None


_NEVER = _Answer(began=float("-inf"))


class _Freshness:
    """When a watch looked last, and how old an answer its next look may get."""

    __slots__ = ("judged", "since")

    def __init__(self) -> None:
        self.judged = self.since = time.monotonic()

    def serves(self, answer: _Answer) -> bool:
        """Whether an answer is fresh enough."""
        return answer.began > self.since

    def take(self, answer: _Answer, *, mine: bool) -> Any:
        """The value of an answer, or its failure: a copy, unless it was this watch's own read."""
        self.judged = answer.began
        if answer.failure is not None:
            raise answer.failure if mine else copy.copy(answer.failure)
        return answer.value

    def patience(self, seconds: float, at_most: float) -> float:
        """How long to wait for a signal: a while since the last answer, or until a moment that is
        known. At that moment nothing older will do; otherwise anything newer will."""
        now = time.monotonic()
        pause = self.judged + seconds * random.uniform(LEAST_PATIENCE, 1.0) - now
        self.since = self.judged if pause < at_most else now + at_most
        return max(0.0, min(pause, at_most))

    def woken(self) -> None:
        """There was a signal: nothing older than it will do."""
        self.since = time.monotonic()


# --- for async callers


class _Question:
    """What several watches of one event loop ask."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.reading = asyncio.Lock()
        self.latest = _NEVER
        self.events: set[asyncio.Event] = set()

    def ring(self) -> None:
        """Wake every watch; called from any thread."""
        with suppress(RuntimeError):  # The loop is gone, and nobody waits.
            self.loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        for event in self.events:
            event.set()


class Watch(Generic[T]):
    """One waiter's watch of a question. Close it, whatever happens."""

    def __init__(
        self,
        question: _Question,
        ask: Callable[[], Awaitable[T]],
        attend: Callable[[], None],
        leave: Callable[[], None],
    ) -> None:
        self._question = question
        self._ask = ask
        self._attend = attend
        self._leave = leave
        self._event = asyncio.Event()
        self._fresh = _Freshness()
        question.events.add(self._event)

    async def look(self) -> T:
        """The answer now: one whose read began after this watch did, and after what woke it."""
        question = self._question
        mine = False
        async with question.reading:
            if not self._fresh.serves(question.latest):
                mine = True
                began = time.monotonic()
                try:
                    question.latest = _Answer(began, value=await self._ask())
                except Exception as failure:
                    question.latest = _Answer(began, failure=failure)
            answer = question.latest
        value: T = self._fresh.take(answer, mine=mine)
        return value

    async def wait(self, seconds: float, *, at_most: float) -> None:
        """Return when it is time to look: there was a signal since the last wait, or is one, or the
        last answer is about so many seconds old, or a moment that is known has come."""
        self._attend()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._fresh.patience(seconds, at_most)):
                await self._event.wait()
                self._event.clear()
                self._fresh.woken()

    def close(self) -> None:
        """Watch no more."""
        self._question.events.discard(self._event)
        self._leave()


class Watching:
    """The questions that the async callers of one handle ask."""

    def __init__(
        self, read: Callable[..., Awaitable[Any]], signals: Signals, attend: Callable[[], None]
    ) -> None:
        self._read = read
        self._signals = signals
        self._attend = attend
        self._gate = threading.Lock()
        self._asked: dict[tuple[Any, ...], tuple[_Question, int]] = {}

    def watch(self, topic: str, op: Callable[..., Op[T]], args: tuple[Any, ...]) -> Watch[T]:
        """Watch what a reading operation answers, listening to a topic from now on."""
        loop = asyncio.get_running_loop()
        key = (loop, topic, op, args)
        with self._gate:
            question, watches = self._asked.get(key) or (_Question(loop), 0)
            if not watches:
                self._signals.add(topic, question.ring)
            self._asked[key] = question, watches + 1

        def leave() -> None:
            _left(self._gate, self._asked, key, lambda: self._signals.remove(topic, question.ring))

        return Watch(question, lambda: self._read(op, *args), self._attend, leave)

    def ring_all(self) -> None:
        """Wake every watch of this handle."""
        with self._gate:
            questions = [question for question, _ in self._asked.values()]
        for question in questions:
            question.ring()


# --- for blocking callers


class _BlockingQuestion:
    """What several watches of any thread ask."""

    def __init__(self) -> None:
        self.reading = threading.Lock()
        self.latest = _NEVER
        self.bell = threading.Condition()
        self.rings = 0

    def ring(self) -> None:
        """Wake every watch."""
        with self.bell:
            self.rings += 1
            self.bell.notify_all()


class BlockingWatch(Generic[T]):
    """One waiter's watch of a question. Close it, whatever happens."""

    def __init__(
        self,
        question: _BlockingQuestion,
        ask: Callable[[], T],
        attend: Callable[[], None],
        leave: Callable[[], None],
    ) -> None:
        self._question = question
        self._ask = ask
        self._attend = attend
        self._leave = leave
        self._heard = question.rings
        self._fresh = _Freshness()

    def look(self) -> T:
        """The answer now: one whose read began after this watch did, and after what woke it."""
        question = self._question
        mine = False
        with question.reading:
            if not self._fresh.serves(question.latest):
                mine = True
                began = time.monotonic()
                try:
                    question.latest = _Answer(began, value=self._ask())
                except Exception as failure:
                    question.latest = _Answer(began, failure=failure)
            answer = question.latest
        value: T = self._fresh.take(answer, mine=mine)
        return value

    def wait(self, seconds: float, *, at_most: float) -> None:
        """Return when it is time to look: there was a signal since the last wait, or is one, or the
        last answer is about so many seconds old, or a moment that is known has come."""
        self._attend()
        question = self._question
        patience = self._fresh.patience(seconds, at_most)
        with question.bell:
            if question.bell.wait_for(lambda: question.rings != self._heard, patience):
                self._heard = question.rings
                self._fresh.woken()

    def close(self) -> None:
        """Watch no more."""
        self._leave()


class BlockingWatching:
    """The questions that the blocking callers of one handle ask."""

    def __init__(
        self, read: Callable[..., Any], signals: Signals, attend: Callable[[], None]
    ) -> None:
        self._read = read
        self._signals = signals
        self._attend = attend
        self._gate = threading.Lock()
        self._asked: dict[tuple[Any, ...], tuple[_BlockingQuestion, int]] = {}

    def watch(
        self, topic: str, op: Callable[..., Op[T]], args: tuple[Any, ...]
    ) -> BlockingWatch[T]:
        """Watch what a reading operation answers, listening to a topic from now on."""
        key = (topic, op, args)
        with self._gate:
            question, watches = self._asked.get(key) or (_BlockingQuestion(), 0)
            if not watches:
                self._signals.add(topic, question.ring)
            self._asked[key] = question, watches + 1

        def leave() -> None:
            _left(self._gate, self._asked, key, lambda: self._signals.remove(topic, question.ring))

        return BlockingWatch(question, lambda: self._read(op, *args), self._attend, leave)

    def ring_all(self) -> None:
        """Wake every watch of this handle."""
        with self._gate:
            questions = [question for question, _ in self._asked.values()]
        for question in questions:
            question.ring()


def _left(
    gate: threading.Lock,
    asked: dict[tuple[Any, ...], tuple[Any, int]],
    key: tuple[Any, ...],
    forget: Callable[[], None],
) -> None:
    """One watch less; the last one takes the question with it."""
    with gate:
        question, watches = asked[key]
        if watches > 1:
            asked[key] = question, watches - 1
        else:
            del asked[key]
            forget()
