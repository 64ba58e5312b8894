"""Everything that wakes a waiter before its next poll lives here: LISTEN and NOTIFY.

A signal is only a hint. It never rides in a commit, because NOTIFY serialises commits; the topics
touched are collected and sent a few milliseconds after, on a connection of their own. A signal may
be lost when a connection is; then every waiter is woken once, to look for itself. Nothing here ever
fails an operation.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import secrets
from collections.abc import Iterable
from typing import Any

import asyncpg

from holdfast.engine.postgres_open import CONNECT_SECONDS, know_types
from holdfast.engine.signals import Signals

INTERVAL_SECONDS = 0.005
PAYLOAD_BYTES = 7900
MAX_TOPICS = 10_000
PROBE_SECONDS = 30.0
LONGEST_DELAY_SECONDS = 5.0
# A handle that is closed does not wait longer for its last signals to be sent.
CLOSE_SECONDS = 1.0


class PostgresSignals(Signals):
    """The signals of one store, for the event loop it was opened on. It listens on the server from
    the first wait on."""

    def __init__(self, url: str, *, schema: str, listen_url: str | None) -> None:
        super().__init__()
        self._url = url
        self._listen_url = listen_url
        digest = hashlib.sha256(schema.encode()).hexdigest()
        self.channel = f"holdfast_{digest[:24]}"
        self._origin = secrets.token_hex(8)
        self._loop = asyncio.get_running_loop()
        self._pending: dict[str, None] = {}
        self._publisher: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._connection: Any = None
        self._closed = False
        self.listening = asyncio.Event()

    def publish(self, topics: Iterable[str]) -> None:
        """Wake whoever waits for a topic, here at once and elsewhere in a few milliseconds."""
        said = tuple(topics)
        self.wake(said)
        if self._closed or len(self._pending) >= MAX_TOPICS:
            return
        self._pending.update(dict.fromkeys(said))
        if self._publisher is None:
            self._publisher = self._loop.create_task(self._publish())

    def attend(self) -> None:
        """Listen on the server, too. Whoever waits is woken once when that has begun."""
        if self._listener is None and self._listen_url is not None and not self._closed:
            self._listener = self._loop.create_task(self._listen(self._listen_url))

    async def close(self) -> None:
        """Send what is pending, then end both connections and every wait."""
        self._closed = True
        if self._publisher is not None:
            await asyncio.wait({self._publisher}, timeout=CLOSE_SECONDS)
        tasks = {task for task in (self._listener, self._publisher) if task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
        # Whoever waits finds out that the handle is closed.
        self.wake_all()

    # --- sending

    async def _publish(self) -> None:
        """Send the topics collected so far, and go on while new ones come in."""
        try:
            while self._pending:
                topics, self._pending = list(self._pending), {}
                await self._notify(self._payloads(topics))
                await asyncio.sleep(INTERVAL_SECONDS)
        finally:
            self._publisher = None

    async def _notify(self, payloads: list[str]) -> None:
        """One statement for all payloads, tried on a second connection when the first is dead."""
        for _ in range(2):
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await _connect(self._url)
                await self._connection.execute(
                    "SELECT pg_notify($1, p) FROM unnest($2::text[]) AS p", self.channel, payloads
                )
                return
            except Exception:
                # It is a hint: who misses it polls.
                if self._connection is not None:
                    self._connection.terminate()
                    self._connection = None

    def _payloads(self, topics: list[str]) -> list[str]:
        """Lists of topics, each below the limit of one notification; an empty one means any."""
        payloads: list[str] = []
        batch: list[str] = []
        size = 0
        for topic in topics:
            cost = len(json.dumps(topic)) + 2
            if cost > PAYLOAD_BYTES - 64:
                payloads.append(json.dumps([self._origin]))
                continue
            if size + cost > PAYLOAD_BYTES - 64:
                payloads.append(json.dumps([self._origin, *batch]))
                batch, size = [], 0
            batch.append(topic)
            size += cost
        if batch:
            payloads.append(json.dumps([self._origin, *batch]))
        return payloads

    # --- hearing

    async def _listen(self, url: str) -> None:
        """Listen for ever; a lost connection is made again, with growing and jittered delays."""
        delay = 0.05
        while True:
            connection: Any = None
            try:
                connection = await _connect(url)
                lost = asyncio.Event()
                connection.add_termination_listener(lambda _, lost=lost: lost.set())
                await connection.add_listener(self.channel, self._heard)
                delay = 0.05
                self.listening.set()
                self.wake_all()
                await self._until(lost, connection)
            except Exception:
                delay = min(delay * 2, LONGEST_DELAY_SECONDS)
            finally:
                self.listening.clear()
                if connection is not None:
                    connection.terminate()
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))

    async def _until(self, lost: asyncio.Event, connection: Any) -> None:
        """Wait for the end of a connection; one that went silent is found out by asking."""
        while True:
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    await lost.wait()
                return
            except TimeoutError:
                await connection.execute("SELECT 1")

    def _heard(self, connection: object, pid: int, channel: str, payload: object) -> None:
        try:
            origin, *topics = json.loads(str(payload))
        except ValueError:
            self.wake_all()
            return
        if origin == self._origin:
            return
        if topics:
            self.wake(topics)
        else:
            self.wake_all()


async def _connect(url: str) -> Any:
    connection = await asyncpg.connect(
        url,
        timeout=CONNECT_SECONDS,
        command_timeout=CONNECT_SECONDS,
        statement_cache_size=0,
        server_settings={"application_name": "holdfast signals"},
    )
    await know_types(connection)
    return connection
