"""A proxy in front of a PostgreSQL server that counts round trips and cuts connections lives here.

It reads the messages of the wire protocol, so that it can cut at an exact place: before or after a
COMMIT, before or after the n-th execution of a statement. Signals have a connection of their own,
for which no operation waits: it is neither counted nor cut at a place. The proxy listens on a Unix
socket in a directory of its own, and runs on the event loop of the test.

    async with WireProxy(url) as wire:
        engine = await PostgresEngine.open(wire.url)
        wire.cut("after execute")
"""

from __future__ import annotations

import asyncio
import shutil
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal
from urllib.parse import parse_qs, quote, urlencode, urlsplit, urlunsplit

Place = Literal["before commit", "after commit", "before execute", "after execute", "mid reply"]
_PORT = 5432
_NO_STARTUP = {80877103, 80877104}  # requests for TLS and for GSS encryption
_SIGNALS = b"holdfast signals\0"


@dataclass
class _Order:
    place: Place
    left: int


class _Link:
    """One client connection and its server connection."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.swallows = False
        self.half = False
        self.aside = False

    def close(self) -> None:
        for writer in (self.client, self.server):
            if not writer.is_closing():
                writer.transport.abort()


class WireProxy:
    """Counts and cuts what passes between clients and the server of a URL."""

    def __init__(self, url: str) -> None:
        self._upstream = url
        self._directory = ""
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._order: _Order | None = None
        self.syncs = 0
        self.queries = 0
        self.connections = 0
        self.texts: list[str] = []
        self.cuts = asyncio.Event()

    @property
    def url(self) -> str:
        """The URL of the same database, by way of this proxy."""
        parts = urlsplit(self._upstream)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        query["host"] = self._directory
        query.pop("port", None)
        user, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(
            parts._replace(netloc=user + at, query=urlencode(query, quote_via=quote, safe=""))
        )

    @property
    def round_trips(self) -> int:
        """How often a client waited for the server: Sync messages and simple queries."""
        return self.syncs + self.queries

    def cut(self, place: Place, *, nth: int = 1) -> None:
        """Cut the connection that reaches this place for the n-th time from now, once."""
        self.cuts.clear()
        self._order = _Order(place, nth)

    def cut_all(self) -> None:
        """Cut every connection now."""
        for link in list(self._links):
            link.close()

    def blackhole(self, on: bool) -> None:
        """Let nothing through in either direction, with every connection left open."""
        if on:
            self._open.clear()
        else:
            self._open.set()

    async def __aenter__(self) -> WireProxy:
        self._directory = tempfile.mkdtemp(prefix="hfw-")
        path = str(Path(self._directory) / f".s.PGSQL.{_PORT}")
        self._server = await asyncio.start_unix_server(self._accept, path)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        link: _Link | None = None
        try:
            await self._open.wait()
            upstream, server = await self._connect()
            link = _Link(writer, server)
            self._links.add(link)
            self.connections += 1
            await self._start(reader, link)
            both = {
                asyncio.ensure_future(self._pump(reader, link, self._from_client)),
                asyncio.ensure_future(self._pump(upstream, link, self._from_server)),
            }
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for half in both:
                    half.cancel()
                await asyncio.gather(*both, return_exceptions=True)
        except (OSError, EOFError, asyncio.CancelledError):
            # A cut connection is what this proxy is for.
            pass
        finally:
            writer.transport.abort()
            if link is not None:
                link.close()
                self._links.discard(link)
            self._tasks.discard(task)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self._upstream)
        query = parse_qs(parts.query)
        host = query.get("host", [parts.hostname or "localhost"])[-1]
        port = int(query.get("port", [str(parts.port or _PORT)])[-1])
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def _start(self, reader: asyncio.StreamReader, link: _Link) -> None:
        """Pass the startup message on; it alone has no type byte."""
        while True:
            head = await reader.readexactly(8)
            length, code = struct.unpack("!ii", head)
            body = await reader.readexactly(length - 8)
            if code in _NO_STARTUP:
                link.client.write(b"N")
                continue
            link.aside = _SIGNALS in body
            link.server.write(head + body)
            return

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        link: _Link,
        take: Callable[[_Link, bytes, bytes], bool],
    ) -> None:
        while True:
            head = await reader.readexactly(5)
            body = await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
            await self._open.wait()
            if not take(link, head, body):
                self.cuts.set()
                link.close()
                return
            await link.client.drain()
            await link.server.drain()

    def _from_client(self, link: _Link, head: bytes, body: bytes) -> bool:
        kind = head[:1]
        commit = False
        if kind == b"S":
            self.syncs += not link.aside
        elif kind == b"Q":
            self.queries += not link.aside
            text = body.rstrip(b"\0").decode()
            self.texts.append(text)
            commit = text.upper().startswith("COMMIT")
        elif kind == b"P":
            self.texts.append(body.split(b"\0", 2)[1].decode())
        order = self._order
        if (
            order is not None
            and not link.aside
            and (commit if "commit" in order.place else kind == b"E")
        ):
            order.left -= 1
            if order.left == 0:
                self._order = None
                if order.place.startswith("before"):
                    return False
                link.swallows = True
                link.half = order.place == "mid reply"
        link.server.write(head + body)
        return True

    def _from_server(self, link: _Link, head: bytes, body: bytes) -> bool:
        if link.half and head[:1] == b"D":
            message = head + body
            link.client.write(message[: len(message) // 2])
            link.half = False
        if link.swallows:
            return head[:1] != b"Z"
        link.client.write(head + body)
        return True
