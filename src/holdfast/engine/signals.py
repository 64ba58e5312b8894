"""Who is to be woken by what: the topics of one place, and who listens to them.

A signal is only a hint, and who is woken looks for itself. This knows the listeners of this process
only; what reaches further is the business of each engine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

Listener = Callable[[], None]


class Signals:
    """Listeners by topic, safe from threads. A listener is called and must not block."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._listeners: dict[str, set[Listener]] = {}

    @property
    def listeners(self) -> int:
        """How many listen."""
        with self._gate:
            return sum(map(len, self._listeners.values()))

    def add(self, topic: str, listener: Listener) -> None:
        """Listen to a topic from now on."""
        with self._gate:
            self._listeners.setdefault(topic, set()).add(listener)

    def remove(self, topic: str, listener: Listener) -> None:
        """Listen no more."""
        with self._gate:
            listeners = self._listeners.get(topic, set())
            listeners.discard(listener)
            if not listeners:
                self._listeners.pop(topic, None)

    def publish(self, topics: Iterable[str]) -> None:
        """Wake whoever listens to one of the topics."""
        self.wake(topics)

    def attend(self) -> None:
        """Somebody is about to wait: hear from now on what is said elsewhere."""

    def wake(self, topics: Iterable[str]) -> None:
        """Wake whoever listens here to one of the topics."""
        if not self._listeners:
            return
        with self._gate:
            woken = {one for topic in topics for one in self._listeners.get(topic, ())}
        for listener in woken:
            listener()

    def wake_all(self) -> None:
        """Wake everybody who listens here."""
        with self._gate:
            woken = {one for listeners in self._listeners.values() for one in listeners}
        for listener in woken:
            listener()
