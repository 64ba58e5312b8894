"""Stores and the model oracle are the same thing: long runs, searched runs, and equal rows.

`HOLDFAST_EXAMPLES` is the number of searched examples on each database.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import apsw
import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

import holdfast
from holdfast.backend import is_postgres
from holdfast.contract.processes import EventType, WakeRule
from holdfast.contract.schedules import Cron
from holdfast.stores_blocking import BlockingStore
from holdfast.testing.machine import WANTED, seeded_run, store_machine
from holdfast.testing.machine_calls import HOUR_MS, Call
from holdfast.testing.machine_process_calls import Ahead, Near, Proc
from holdfast.testing.machine_schedule_calls import DAY_MS, Hence, first_schedule, listener
from holdfast.testing.machine_schedule_world import LONG_AGO_MS
from holdfast.testing.machine_trigger_calls import Happened, first_rule
from holdfast.testing.machine_world import Minter, Ticker, World
from holdfast.testing.postgres_server import PostgresServer

EXAMPLES = int(os.environ.get("HOLDFAST_EXAMPLES", "2000"))

# What of a schedule is told by whoever registers it, or follows from that alone.
TOLD = {"start_ms", "until_ms", "grace_ms", "last_at_ms", "first_ms", "last_ms"}

# Made by the server from another column, for the sake of an index.
GENERATED = {"listed"}

Rows = dict[str, list[tuple[Any, ...]]]


class ServerTicker(Ticker):
    """A server has its own clock, and leaps with this one: what its clock is put forward by stands
    in a sequence, whose value does not wait for a transaction."""

    strays_ms = HOUR_MS

    def __init__(self, url: str) -> None:
        super().__init__(time.time_ns() // 1_000_000)
        self._url = url
        self._shift_ms = 0

    def take_over(self) -> None:
        asyncio.run(
            self._execute(
                "CREATE SEQUENCE holdfast.leap MINVALUE 0 START 0;"
                " CREATE OR REPLACE FUNCTION holdfast.now_ms() RETURNS bigint LANGUAGE sql VOLATILE"
                " AS 'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint + last_value"
                " FROM holdfast.leap'"
            )
        )

    def leap(self, ms: int) -> None:
        super().leap(ms)
        self._shift_ms += ms
        asyncio.run(self._execute(f"SELECT setval('holdfast.leap', {self._shift_ms})"))

    async def _execute(self, sql: str) -> None:
        connection = await asyncpg.connect(self._url)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()


class Ground:
    """One database: worlds with tenants of their own on it, and its raw rows."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = Ticker(time.time_ns() // 1_000_000)
        self.minter = Minter()
        own: dict[str, Any] = {"clock": self.clock, "synchronous": "normal"}
        if is_postgres(url):
            self.clock, own = ServerTicker(url), {"allow_unsafe": True}
        self._store = holdfast.open_sync(url, ids=self.minter, **own)
        if isinstance(self.clock, ServerTicker):
            self.clock.take_over()
        self._numbers = itertools.count()
        self._prefix = uuid.uuid4().hex

    def tenant(self, name: str) -> BlockingStore:
        """Another tenant's view; a handle for each of some thousands would only cost time."""
        return BlockingStore(dataclasses.replace(self._store._view, tenant=name))

    def world(self, name: str | None = None, *, certain: bool = False) -> World:
        """Two tenants that nobody has used, with empty oracles."""
        base = name or f"{self._prefix}-{next(self._numbers)}"
        tenants = lambda number: self.tenant(f"{base}-{number}")  # noqa: E731
        return World(tenants, self.clock, self.minter, certain=certain)

    def rows(self, tenants: list[str]) -> Rows:
        """Every row of the tenants in every table, sorted, with times replaced by a sign."""
        if is_postgres(self.url):
            return asyncio.run(self._postgres_rows(tenants))
        connection = apsw.Connection(self.url, flags=apsw.SQLITE_OPEN_READONLY)
        found: Rows = {}
        tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'migration'"
        for (table,) in list(connection.execute(tables)):
            columns = [row[1] for row in connection.execute(f"PRAGMA table_xinfo({table})")]
            marks = ", ".join("?" for _ in tenants)
            rows = connection.execute(f"SELECT * FROM {table} WHERE tenant IN ({marks})", tenants)
            found[table] = _timeless(table, columns, list(rows))
        connection.close()
        return found

    async def _postgres_rows(self, tenants: list[str]) -> Rows:
        connection = await asyncpg.connect(self.url)
        found: Rows = {}
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'"
        for (table,) in await connection.fetch(tables):
            if table == "migration":
                continue
            rows = await connection.fetch(
                f"SELECT * FROM holdfast.{table} WHERE tenant = ANY ($1)", tenants
            )
            columns = list(rows[0].keys()) if rows else []
            found[table] = _timeless(table, columns, [tuple(row) for row in rows])
        await connection.close()
        return found

    def close(self) -> None:
        self._store.close()


def _timeless(table: str, columns: list[str], rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    told = TOLD if table.startswith("schedule") else set()

    def shown(column: str, value: Any) -> Any:
        if (column.endswith("_ms") and column not in told) or column in ("active_minute", "day"):
            return value is not None
        return int(value) if isinstance(value, bool) else value

    cleaned = [
        tuple(
            sorted(
                (c, repr(shown(c, v)))
                for c, v in zip(columns, row, strict=True)
                if c not in GENERATED
            )
        )
        for row in rows
    ]
    return sorted(cleaned)


@pytest.fixture
def sqlite_ground(sqlite_url: str) -> Iterator[Ground]:
    ground = Ground(sqlite_url)
    yield ground
    ground.close()


@pytest.fixture
def postgres_ground(postgres_server: PostgresServer, postgres_url: str) -> Iterator[Ground]:
    # What a server that loses power may lose is no question here, and each flush costs a wait.
    database = urlsplit(postgres_url).path[1:]
    postgres_server.run_sql(f"ALTER DATABASE {database} SET synchronous_commit = off")
    ground = Ground(postgres_url)
    yield ground
    ground.close()


def search(ground: Ground) -> None:
    """Let Hypothesis look for a sequence that tells the store from the oracle."""
    seen: Counter[str] = Counter()
    machine = store_machine(ground.world, seen)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=10,
            deadline=None,
            database=None,
            derandomize=False,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert seen["commit: replayed False"] > EXAMPLES // 10


def test_no_sequence_tells_sqlite_from_the_oracle(sqlite_ground: Ground) -> None:
    """Whatever is asked, in whatever order, SQLite answers as the oracle does."""
    search(sqlite_ground)


def test_no_sequence_tells_postgres_from_the_oracle(postgres_ground: Ground) -> None:
    """Whatever is asked, in whatever order, PostgreSQL answers as the oracle does."""
    search(postgres_ground)


def _tell(process: str, **how: Any) -> Call:
    said = {"type": "tell", "payload": "x", "key": None, "wake": None, "lease": None}
    return Call(0, "processes.append", {"process": process, **said, "authority": None, **how})


def _register(process: str, *events: EventType) -> Call:
    args = {"process": process, "events": events, "wake": Near("s0"), "grants": ()}
    return Call(0, "processes.register", args)


def _mail(how: str, **said: Any) -> Call:
    args = {"key": "e", "source_type": "mail", "source_key": "in", "source": None, **said}
    return Call(0, f"triggers.{how}", args)


def _on(how: str) -> Call:
    return Call(0, f"triggers.{how}", {"occurrence": Happened()})


def _timed(how: str, **said: Any) -> Call:
    return Call(0, f"schedules.{how}", {"schedule": "c0", **said})


def _plan(**other: Any) -> Call:
    return Call(0, "schedules.register", {**first_schedule(0).args, **other})


_TICK, _LEAP = Call(0, "schedules.tick", {"limit": 100}), Call(0, "leap", {"ms": 2 * HOUR_MS})
_END = Call(0, "processes.end", {"process": Proc(0, "delivered"), "authority": "operator"})
_PRUNE = Call(0, "triggers.prune", {"before_ms": Ahead(HOUR_MS), "limit": 100})
_OWNED = Call(0, "triggers.register", {**first_rule(0).args, "owner": Near("s0")})
TELL = EventType(name="tell", wakes=WakeRule())
COUNTS = {"type": "object", "additionalProperties": {"type": "integer"}}
SEQUENCES: dict[str, list[tuple[Call, str]]] = {
    "the session that a process wakes is deleted before and after it is registered": [
        (Call(0, "create", {"session": "s0"}), "create: created True"),
        (_register("before", TELL), "processes.register: created True"),
        (_tell("before", key="k"), "processes.append: enqueued"),
        (Call(0, "delete", {"session": "s0"}), "delete: deleted True"),
        (_register("after", TELL), "processes.register: created True"),
        (_tell("before", key="k"), "processes.append: replayed True"),
        (_tell("before"), "processes.append: no-target"),
        (_tell("after"), "processes.append: no-target"),
        (_tell("after", wake=Near("s0")), "processes.append: target-gone"),
    ],
    "a process that was pruned is pruned, whatever is asked of it": [
        (_register("p", TELL), "processes.register: created True"),
        (_tell("p"), "processes.append: target-gone"),
        (
            Call(0, "processes.abandon", {"process": "p", "reason": "r", "authority": "operator"}),
            "processes.abandon: abandoned by operator",
        ),
        (
            Call(0, "processes.prune", {"ended_before_ms": Ahead(HOUR_MS), "limit": 100}),
            "processes.prune: some",
        ),
        (_tell("p", type="undeclared"), "processes.append: process-pruned"),
        (_tell("p", key="process.k"), "processes.append: process-pruned"),
    ],
    "a schema of additional properties needs no others": [
        (_register("p", EventType(name="tell", schema=COUNTS)), "processes.register: created True"),
        (_tell("p", payload={"a": 1}), "processes.append: replayed False"),
        (_tell("p", payload={"a": "1"}), "processes.append: payload-rejected"),
    ],
    "the keys of wakes are taken": [
        (Call(0, "create", {"session": "s0"}), "create: created True"),
        (
            Call(0, "queue.enqueue", {"session": "s0", "key": "process:p:event:1:wake"}),
            "queue.enqueue: invalid",
        ),
    ],
    "what was pruned happens again, and starts no process twice": [
        (first_rule(0), "triggers.register: created"),
        (_mail("ingest", payload="x"), "triggers.ingest: started"),
        (_END, "processes.end: completed by operator"),
        (_PRUNE, "triggers.prune: delivered"),
        (_mail("ingest", payload="x"), "triggers.ingest: started"),
        (_PRUNE, "triggers.prune: delivered"),
        (_mail("ingest", payload="y"), "triggers.ingest: rejected"),
    ],
    "what is reserved is started after its rule was deleted": [
        (first_rule(0), "triggers.register: created"),
        (_mail("record", payload="x"), "triggers.record: recorded True"),
        (_on("reserve"), "triggers.reserve: reserved"),
        (_on("reserve"), "triggers.reserve: none"),
        (Call(0, "triggers.delete", {"key": "r0", "owner": None}), "triggers.delete: answer"),
        (_on("start"), "triggers.start: started"),
        (_on("start"), "triggers.start: none"),
    ],
    "what is reserved for a session goes with it": [
        (Call(0, "create", {"session": "s0"}), "create: created True"),
        (_OWNED, "triggers.register: created"),
        (_mail("record", payload="x"), "triggers.record: recorded True"),
        (_on("reserve"), "triggers.reserve: reserved"),
        (Call(0, "delete", {"session": "s0"}), "delete: deleted True"),
        (_on("start"), "triggers.start: none"),
        (_mail("ingest", payload="x"), "triggers.ingest: replayed"),
        (_OWNED, "triggers.register: session-deleted"),
    ],
    "what has fired fires again under another schedule of that id, and starts nothing": [
        (listener(0, "c0"), "triggers.register: created"),
        (_plan(start_ms=LONG_AGO_MS), "schedules.register: created"),
        (_TICK, "schedules.tick: fired and skipped"),
        (_timed("run_now", request="q"), "schedules.run_now: ran True"),
        (_timed("delete"), "schedules.delete: True"),
        (_timed("skipped"), "schedules.skipped: schedule-unknown"),
        (_plan(start_ms=LONG_AGO_MS, payload="other"), "schedules.register: created"),
        (_TICK, "schedules.tick: fired and skipped"),
        (_timed("run_now", request="q"), "schedules.run_now: ran False"),
        (_on("deliveries"), "triggers.deliveries: some"),
    ],
    "what comes while a schedule is paused is skipped, as what its timing was replaced by": [
        (_plan(), "schedules.register: created"),
        (_timed("pause"), "schedules.pause: paused True"),
        (_LEAP, "leap"),
        (_TICK, "schedules.tick: nothing"),
        (
            _plan(timing=Cron(expression="*/5 * * * *"), expected=2),
            "schedules.register: changed True",
        ),
        (_LEAP, "leap"),
        (_timed("resume"), "schedules.resume: paused False"),
        (_TICK, "schedules.tick: nothing"),
        (_timed("skipped"), "schedules.skipped: some"),
    ],
    "a tick that decides one schedule asks for another because of the next one": [
        (_plan(missed="skip", grace_ms=0), "schedules.register: created"),
        (_plan(schedule="c1", missed="one", grace_ms=0), "schedules.register: created"),
        (Call(0, "schedules.tick", {"limit": 1}), "schedules.tick: skipped and more"),
        (Call(0, "schedules.tick", {"limit": 1}), "schedules.tick: fired and skipped"),
        (_TICK, "schedules.tick: nothing"),
    ],
    "what only skips counts too, and does not change when a schedule has fired last": [
        (_plan(), "schedules.register: created"),
        (_TICK, "schedules.tick: fired and skipped"),
        (_plan(missed="skip", grace_ms=0, expected=1), "schedules.register: changed True"),
        (_plan(schedule="c1"), "schedules.register: created"),
        (_LEAP, "leap"),
        (
            _plan(schedule="c2", start_ms=Hence(-3 * HOUR_MS), cap=100),
            "schedules.register: created",
        ),
        (Call(0, "schedules.tick", {"limit": 3}), "schedules.tick: fired and skipped and more"),
        (_timed("get"), "schedules.get: answer"),
        (_TICK, "schedules.tick: fired"),
    ],
    "a schedule that is behind does not make another one late": [
        (_plan(cap=100, missed="all"), "schedules.register: created"),
        (_plan(schedule="c1"), "schedules.register: created"),
        (Call(0, "schedules.tick", {"limit": 3}), "schedules.tick: fired and skipped and more"),
        (Call(0, "schedules.tick", {"limit": 1}), "schedules.tick: fired and more"),
        (_TICK, "schedules.tick: fired"),
    ],
}
"""What once told a store from the oracle, call by call, with the outcome of each."""


@pytest.mark.parametrize("sequence", SEQUENCES)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_what_once_told_them_apart(
    kind: str, sequence: str, request: pytest.FixtureRequest
) -> None:
    """Sequences in which a store and the oracle have differed are played again, and end as they
    should."""
    world = request.getfixturevalue(f"{kind}_ground").world()
    for call, outcome in SEQUENCES[sequence]:
        assert world.play(call) == outcome, call
    world.study()


def test_long_runs_reach_every_kind_of_outcome(sqlite_ground: Ground) -> None:
    """Long runs agree too, and the calls are such that every kind of outcome occurs."""
    seen: Counter[str] = Counter()
    # The same time of the day in every run, because what a schedule does depends on it.
    sqlite_ground.clock.now_ms = LONG_AGO_MS + 5 * DAY_MS
    for seed in range(132):
        world = sqlite_ground.world()
        seeded_run(world, seed, 150)
        seen += world.seen
    assert sorted(WANTED - seen.keys()) == []


@pytest.mark.parametrize("seed", range(12))
def test_both_databases_end_with_the_same_rows(
    sqlite_ground: Ground, postgres_ground: Ground, seed: int
) -> None:
    """The same calls leave the same rows in every table of both databases, times aside."""
    for ground in (sqlite_ground, postgres_ground):
        seeded_run(ground.world("same", certain=True), 1000 + seed, 80)
    ours, theirs = (g.rows(["same-0", "same-1"]) for g in (sqlite_ground, postgres_ground))
    assert ours.keys() == theirs.keys()
    assert sum(map(len, ours.values())) > 20
    for table, rows in ours.items():
        assert theirs[table] == rows, table
    assert bool(ours["schedule"]) is (seed % 4 == 0)
