"""What the races share that explain themselves: callers with handles of their own, who start at the
same moment.

`HOLDFAST_ROUNDS` is the number of rounds of each race on each database.
"""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import holdfast
from holdfast import BlockingStore, HoldfastError
from holdfast.testing.postgres_server import PostgresServer

ROUNDS = int(os.environ.get("HOLDFAST_ROUNDS", "100"))
CALLERS = 4
Call = Callable[[BlockingStore], Any]
Check = Callable[[BlockingStore, Sequence[Any]], None]
Race = Callable[[BlockingStore, str], tuple[list[Call], Check]]


class Callers:
    """Four threads with a store each, and one that sets up and looks."""

    def __init__(self, stores: list[BlockingStore], pool: ThreadPoolExecutor) -> None:
        self._stores = stores
        self._pool = pool
        self._barrier = threading.Barrier(CALLERS)

    def _ask(self, nth: int, call: Call) -> Any:
        self._barrier.wait()
        try:
            return call(self._stores[nth])
        except HoldfastError as refusal:
            return refusal

    def run(self, race: Race, rounds: int = ROUNDS) -> None:
        home = self._stores[-1]
        for _ in range(rounds):
            calls, check = race(home, f"r{uuid.uuid4().hex}")
            asked = [self._pool.submit(self._ask, nth, call) for nth, call in enumerate(calls)]
            answers = [one.result() for one in asked]
            try:
                check(home, answers)
            except Exception as wrong:
                raise AssertionError(f"{race.__name__}: {answers}") from wrong


@contextlib.contextmanager
def callers_on(kind: str, folder: Path, server: PostgresServer) -> Iterator[Callers]:
    """The callers, on a database of their own."""
    with ExitStack() as stack:
        options: dict[str, Any] = {"synchronous": "normal"}
        url = str(folder / "agents.db")
        if kind == "postgres":
            name = f"races_{uuid.uuid4().hex}"
            url, options = server.create_database(name), {"pool_size": 2}
            stack.callback(server.drop_database, name)
            server.run_sql(f"ALTER DATABASE {name} SET synchronous_commit = off")
            options["allow_unsafe"] = True
        stores = [
            stack.enter_context(holdfast.open_sync(url, **options)) for _ in range(CALLERS + 1)
        ]
        pool = stack.enter_context(ThreadPoolExecutor(CALLERS))
        yield Callers(stores, pool)


def troubles(server: PostgresServer) -> tuple[int, int]:
    """How often the server ended a deadlock, and a unique index refused a row."""
    log = (server.directory / "log").read_text(errors="replace")
    return log.count("deadlock detected"), log.count("duplicate key value")
