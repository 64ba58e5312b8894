"""What an operation may cost: round trips, statements, and plans that use an index.

Budgets are counted and never timed, so they hold on any machine. They are counted on grown tables,
because a plan that reads a whole table is a good plan on an empty one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import msgspec
import pytest

import holdfast
from holdfast.contract.errors import HeadMoved
from holdfast.contract.processes import (
    EventType,
    NewEvent,
    NewGrant,
    NewProcess,
    ProcessFilter,
    Scope,
    Wait,
    WakeRule,
)
from holdfast.contract.queue import NewWork
from holdfast.contract.records import NewNode, StateRef, Turn, Usage
from holdfast.contract.schedules import Every, NewSchedule
from holdfast.contract.triggers import (
    NewOccurrence,
    NewSubscription,
    OccurrenceFilter,
    ProcessTemplate,
    SubscriptionFilter,
)
from holdfast.engine.postgres_calls import Text, compiled
from holdfast.engine.sqlite_run import CompiledPart, scripts
from holdfast.sql.catalog import catalog
from holdfast.stores import Store
from holdfast.testing.postgres_server import PostgresServer
from holdfast.testing.wire import WireProxy

LONG, SHORT, SESSIONS = 10_000, 10, 2_000
TENANT = "a"
PROCESS: dict[str, Any] = {
    "events": [EventType(name="line", wakes=WakeRule())],
    "origin": Scope(session="template"),
    "parent": "parent",
    "wake": Scope(session="template"),
    "grants": [NewGrant(scope=Scope(session="template"))],
}


def turn(session: str, name: str, **fields: Any) -> Turn:
    return Turn(
        session=session,
        turn=name,
        nodes=[NewNode(id=f"n-{name}", body=b"body")],
        usage=[Usage(model="m", input=1)],
        **fields,
    )


async def grow(store: Store, session: str, nodes: int, components: int = 10) -> None:
    """A session with this many nodes, in turns of 2,000 at most."""
    await store.sessions.create(session, title="t", tags={"team": "x"})
    state = {f"c{n}": f"component {n}".encode() for n in range(components)}
    for first in range(0, nodes, 2_000):
        many = range(first, min(first + 2_000, nodes))
        part = [NewNode(id=f"b{n}", body=f"body {n}".encode()) for n in many]
        await store.sessions.commit(
            Turn(session=session, turn=f"grow-{first}", nodes=part, state=state)
        )
        state = {}


# --- the operations that have a budget

Act = Callable[[Store, str, int], Awaitable[object]]


async def refused(store: Store, session: str, nth: int) -> None:
    with pytest.raises(HeadMoved):
        await store.sessions.commit(turn(session, f"refused-{nth}", expected=0))


async def renewed(store: Store, session: str, nth: int) -> None:
    lane = await store.lanes.claim(session, "me", ttl_ms=100)
    await store.lanes.renew(lane.fence, ttl_ms=200)
    await store.lanes.release(lane.fence)


def process_of(session: str, nth: int) -> NewProcess:
    return NewProcess(**{**PROCESS, "process": f"{session}-{nth}", "wake": Scope(session=session)})


async def appended(store: Store, session: str, nth: int) -> None:
    event = NewEvent(type="line", payload=f"{nth}", key=f"{session}-{nth}")
    answer = await store.processes.append("template", event)
    assert answer.wake == "enqueued"


async def leased(store: Store, session: str, nth: int) -> None:
    lease = await store.processes.claim("template", "me", ttl_ms=100)
    await store.processes.renew(lease, ttl_ms=200)
    await store.processes.release(lease)


BUDGETS: dict[str, tuple[int, Act]] = {
    "commit": (1, lambda s, name, n: s.sessions.commit(turn(name, f"t{n}"))),
    "commit with state": (
        1,
        lambda s, name, n: s.sessions.commit(turn(name, f"s{n}", state={"c1": b"new %d" % n})),
    ),
    "commit refused": (2, refused),
    "commit repeated": (2, lambda s, name, n: s.sessions.commit(turn(name, "t0"))),
    "head": (1, lambda s, name, n: s.sessions.head(name)),
    "get": (1, lambda s, name, n: s.sessions.get(name)),
    "receipt": (1, lambda s, name, n: s.sessions.receipt(name, "t0")),
    "list": (1, lambda s, name, n: s.sessions.list(limit=20)),
    "load": (1, lambda s, name, n: s.history.load(name)),
    "load tail": (1, lambda s, name, n: s.history.load(name, tail=5)),
    "node": (1, lambda s, name, n: s.history.node(name, "b3")),
    "create": (2, lambda s, name, n: s.sessions.create(f"new-{name}-{n}")),
    "claim": (1, lambda s, name, n: s.lanes.claim(name, "me", ttl_ms=0)),
    "claim, renew, release": (3, renewed),
    "totals": (1, lambda s, name, n: s.usage.totals(session=name)),
    "register a process": (1, lambda s, name, n: s.processes.register(process_of(name, n))),
    "append and wake": (1, appended),
    "claim a process": (1, lambda s, name, n: s.processes.claim("template", "me", ttl_ms=0)),
    "claim, renew, release a process": (3, leased),
    "due": (1, lambda s, name, n: s.processes.due(limit=20)),
    "log": (1, lambda s, name, n: s.processes.events("template", limit=5)),
}


def started_by(scope: Scope) -> NewProcess:
    """A process with the name of a session, which started it and is all that sees it."""
    own = {"origin": scope, "wake": scope, "grants": [NewGrant(scope=scope)]}
    return NewProcess(
        **{**PROCESS, **own, "process": scope.session, "parent": scope.session + "-p"}
    )


async def subscribed(store: Store, nth: int) -> None:
    """A subscription to a source of its own, where two things happen: one that is delivered, and
    one that is reserved."""
    named: dict[str, Any] = {"source_type": "type", "source_key": f"source-{nth}"}
    owner = Scope(session=f"copy-{nth}") if nth % 2 else None
    new = NewSubscription(owner=owner, key=f"key-{nth}", **named)
    await store.triggers.register(new, operation=f"operation-{nth}")
    await store.triggers.ingest(NewOccurrence(key=f"ingested-{nth}", **named))
    done = await store.triggers.record(NewOccurrence(key=f"recorded-{nth}", **named))
    await store.triggers.reserve(done.occurrence.occurrence)


@pytest.fixture(scope="module")
def grown(postgres_server: PostgresServer) -> Iterator[str]:
    """A database with a long session, a short one, and two thousand others."""
    url = postgres_server.create_database("budgets")
    asyncio.run(_fill(url))
    yield url
    postgres_server.drop_database("budgets")


async def _fill(url: str) -> None:
    async with await holdfast.open(url, tenant=TENANT) as store:
        await grow(store, "long", LONG)
        await grow(store, "short", SHORT)
        await grow(store, "template", 6, components=3)
        await store.sessions.commit(turn("template", "t0"))
        await store.sessions.rewind("template", turn="back", revision=1, reason="why")
        await store.queue.enqueue(NewWork(session="template", payloads=["body"], key="key"))
        await store.processes.register(NewProcess(process="template", **PROCESS))
        await store.processes.append("template", NewEvent(type="line", payload="a", key="key"))
        many = [started_by(Scope(session=f"copy-{n}")) for n in range(SESSIONS)]
        await asyncio.gather(*(store.processes.register(one) for one in many))
        await asyncio.gather(*(subscribed(store, n) for n in range(SESSIONS)))
        # What it missed since 1970 is one stretch that is skipped.
        past = NewSchedule(
            schedule="template", timing=Every(interval_ms=60_000), missed="skip", start_ms=1
        )
        await store.schedules.register(past)
        await store.schedules.tick()
        found = await store.processes.changes(limit=1000)
        while found.more:
            found = await store.processes.changes(after=found.next, limit=1000)
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SET search_path TO holdfast")
        tables = await connection.fetch(
            "SELECT table_name AS name, array_agg(column_name::text) AS columns"
            " FROM information_schema.columns WHERE table_schema = 'holdfast'"
            " AND is_generated = 'NEVER' AND table_name IN (SELECT table_name"
            " FROM information_schema.tables WHERE table_type = 'BASE TABLE') GROUP BY 1"
        )
        for name, columns in sorted((t["name"], t["columns"]) for t in tables):
            owners = ("session", "process", "schedule")
            owner = next((owner for owner in owners if owner in columns), "tenant")
            if name in ("blob", "migration", "process", "process_grant") or "trigger_" in name:
                continue
            await connection.execute(
                f"INSERT INTO {name} ({', '.join(columns)})"
                f" SELECT {', '.join(_copied(column, owner) for column in columns)}"
                f" FROM {name}, generate_series(1, {SESSIONS}) g"
                f" WHERE {owner} = '{TENANT if owner == 'tenant' else 'template'}'"
            )
        await connection.execute(
            "INSERT INTO blob SELECT tenant, digest, 0, 4, 'copy' FROM component c"
            " ON CONFLICT DO NOTHING"
        )
        await connection.execute("ANALYZE")
        assert await connection.fetchval("SELECT count(*) FROM session") > SESSIONS
        assert await connection.fetchval("SELECT count(*) FROM blob") > SESSIONS
    finally:
        await connection.close()


def _copied(column: str, owner: str) -> str:
    """A column of the g-th copy: under its own name, at its own time, with its own content."""
    if "session" in column or column == "process":
        return f"CASE WHEN {column} = 'template' THEN 'copy-' || g END"
    if column == "change" or column == owner:
        return f"{column} || g::text" if column == owner else f"{column} + g"
    if column == "digest":
        return "sha256(digest || g::text::bytea)"
    if column.endswith("at_ms") and column != "deleted_at_ms":
        return f"{column} - g * 90000"
    return "active_minute - g * 90000 / 60000" if column == "active_minute" else column


@asynccontextmanager
async def counted(url: str) -> AsyncIterator[tuple[WireProxy, Store]]:
    async with (
        WireProxy(url) as wire,
        await holdfast.open(wire.url, tenant=TENANT, pool_size=1) as store,
    ):
        yield wire, store


@pytest.mark.parametrize("name", BUDGETS)
async def test_round_trips_stay_within_the_budget_at_any_length(grown: str, name: str) -> None:
    budget, act = BUDGETS[name]
    async with counted(grown) as (wire, store):
        found: dict[str, set[int]] = {}
        for session in ("short", "long"):
            await store.sessions.commit(turn(session, "t0"))
            for nth in range(6):
                before = wire.round_trips
                await act(store, session, hash((name, session, nth, id(wire))) % 10**9)
                if nth >= 2:
                    # The first ones may prepare a statement.
                    found.setdefault(session, set()).add(wire.round_trips - before)
        assert found == {"short": {budget}, "long": {budget}}


async def test_statements_do_not_grow_with_components(grown: str, sqlite_path: Path) -> None:
    async with counted(grown) as (wire, store):
        counts: list[list[int]] = []
        for many in (1, 300):
            session = f"components-{many}"
            await grow(store, session, 3, components=many)
            counts.append([])
            for nth in range(4):
                before = wire.round_trips
                state = {"c0": b"%d" % nth, f"c{many - 1}": None}
                await store.sessions.commit(turn(session, f"t{nth}", state=state))
                counts[-1].append(wire.round_trips - before)
                before = wire.round_trips
                await store.history.load(session)
                counts[-1].append(wire.round_trips - before)
        assert counts[0][2:] == counts[1][2:] == [1] * 6
    with Statements() as statements:
        async with await holdfast.open(str(sqlite_path), readers=1) as store:
            per_size: list[list[int]] = []
            for many in (2, 300):
                session = f"components-{many}"
                await grow(store, session, 3, components=many)
                await store.history.load(session)
                statements.clear()
                await store.sessions.commit(turn(session, "t", state={"c0": b"x", "c1": None}))
                committed = len(statements.texts)
                statements.clear()
                await store.history.load(session)
                per_size.append([committed, len(statements.texts)])
            assert per_size[0] == per_size[1]


# --- PostgreSQL: plans

TABLE = re.compile(r"Seq Scan on (\w+)")
# Blocks that are allowed to read a whole table, each with the reason.
WHOLE_TABLE = {"queue.counts_of_all 0": "it counts everything there is, and says so exactly"}


def texts() -> dict[str, Text]:
    found: dict[str, Text] = {}
    for name, block in catalog("postgres").items():
        call = compiled(block, '"holdfast"')
        for number, part in enumerate([*call.parts, *([call.refused] if call.refused else [])]):
            found[f"{name} {number} {part.kind}"] = part
    return found


async def plan(connection: Any, sql: str, arguments: int) -> str:
    await connection.execute(f"PREPARE p AS {sql}")
    nothing = f"({', '.join(['NULL'] * arguments)})" if arguments else ""
    try:
        rows = await connection.fetch(f"EXPLAIN EXECUTE p{nothing}")
    finally:
        await connection.execute("DEALLOCATE p")
    return "\n".join(row[0] for row in rows)


async def test_every_statement_on_the_server_uses_an_index(grown: str) -> None:
    connection = await asyncpg.connect(grown)
    try:
        await connection.execute("SET plan_cache_mode = force_generic_plan; SET jit = off")
        whole: dict[str, str] = {}
        for name, text in texts().items():
            found = await plan(connection, text.sql, len(text.values))
            tables = set(TABLE.findall(found))
            if tables:
                whole[name] = f"{sorted(tables)}\n{found}"
        unexpected = {n: p for n, p in whole.items() if n.rpartition(" ")[0] not in WHOLE_TABLE}
        assert not unexpected, "\n".join(f"{n}: {p}" for n, p in unexpected.items())
    finally:
        await connection.close()


async def test_the_functions_of_the_server_use_an_index_too(grown: str) -> None:
    """A plan does not show what a function does inside, but the server counts the tables that were
    read whole. It is told to make one plan for all values, as it does after a few executions."""
    connection = await asyncpg.connect(grown)
    sql = (
        "SELECT relname, seq_scan FROM pg_stat_user_tables"
        " WHERE schemaname = 'holdfast' AND relname <> 'migration'"
    )
    try:
        await connection.execute("ALTER DATABASE budgets SET plan_cache_mode = force_generic_plan")
        before = dict(await connection.fetch(sql))
        async with await holdfast.open(grown, tenant=TENANT) as store:
            await everything(store)
        # The connections of the store are closed, and have handed their numbers in.
        await connection.execute("SELECT pg_stat_clear_snapshot()")
        after = dict(await connection.fetch(sql))
        grew = {name: after[name] - before[name] for name in after if after[name] != before[name]}
        assert not grew, f"read whole: {grew}"
    finally:
        await connection.execute("ALTER DATABASE budgets RESET plan_cache_mode")
        await connection.close()


async def everything(store: Store) -> None:
    """Each operation, on a long session and on a fork of it."""
    head = await store.sessions.head("long")
    assert head is not None
    fork = f"fork-{head.revision}"
    await store.sessions.fork("long", fork)
    found = await store.history.load("long", tail=1)
    assert found is not None
    ref = StateRef(digest=found.refs["c0"].digest)
    await store.sessions.commit(
        turn(fork, "of-fork", state={"c0": None, "c2": b"new", "copy": ref}, expected=0)
    )
    branch = [NewNode(id="x1", body=1, parent="b17"), NewNode(id="x2", body=2)]
    await store.sessions.commit(Turn(session=fork, turn="branch", nodes=branch))
    await store.sessions.commit(Turn(session=fork, turn="move", leaf="b4000"))
    many = [turn(f"copy-{n}", "merged", state={"c1": b"%d" % n}) for n in range(1, 40)]
    await asyncio.gather(*(store.sessions.commit(one) for one in many))
    await refused(store, "long", 1)
    lane = await store.lanes.claim(fork, "me")
    await store.lanes.renew(lane.fence)
    await store.lanes.read(fork)
    await store.sessions.commit(turn(fork, "fenced", fence=lane.fence, release=True))
    await store.lanes.displace(fork)
    await store.sessions.rewind(fork, turn="back", node="x1", reason="why")
    await store.sessions.update(fork, title="new", tags={"team": "y"})
    await store.sessions.list(limit=5)
    await store.sessions.list(order="created", limit=5, tags={"team": "x"})
    await store.sessions.revisions(fork)
    await store.sessions.diff("long", fork)
    await store.history.load(fork, leaf="b5000", tail=3)
    await store.history.load(fork, before="b5000", tail=3)
    await store.history.load("long", revision=2, tail=3)
    await store.history.node(fork, "b9")
    await store.history.graph(fork, limit=10)
    await store.history.tombstone(fork, ["x2"])
    await store.history.vacuum(fork)
    await store.usage.totals(session=fork)
    await store.usage.rows(fork)
    await store.sessions.receipt(fork, "branch")
    await store.sessions.create(f"{fork}-new", tags={"a": "b"})
    await processes_of(store, fork)
    await triggers_of(store, fork)
    await store.sessions.delete(fork)


async def processes_of(store: Store, session: str) -> None:
    """Each operation on processes, on a child of the one there are many of."""
    child, processes, scope = f"{session}-process", store.processes, Scope(session=session)
    made = {**PROCESS, "parent": "template", "wake": scope}
    await processes.register(NewProcess(process=child, **made))
    lease = await processes.claim(child, "me")
    await processes.renew(lease)
    await processes.append(child, NewEvent(type="line", payload="b", key="k"), lease=lease)
    await processes.append(child, NewEvent(type="line", payload="b", key="k"), lease=lease)
    await processes.grant(scope, child)
    await processes.transfer(scope, Scope(session="elsewhere"), [child])
    await processes.revoke(Scope(session="elsewhere"), child)
    await processes.suspend(child, Wait(type="line", after=9), lease=lease)
    await processes.resume(child)
    await processes.request_cancel(child)
    await processes.ack(child, 2)
    await processes.release(await processes.claim(child, "you"))
    await processes.end(child, authority="operator")
    await processes.due(limit=5)
    await processes.changes(after="3", limit=5)
    await processes.prune(ended_before_ms=1)
    which: list[dict[str, Any]] = [
        {},
        {"states": ("running", "failed")},
        {"session": "template"},
        {"parent": "template"},
    ]
    for one in which:
        await processes.list(which=ProcessFilter(**one), limit=5)


async def triggers_of(store: Store, session: str) -> None:
    """Each operation on triggers, on a source that several have subscribed to."""
    triggers, owner = store.triggers, Scope(session=session)
    named: dict[str, Any] = {"source_type": "type", "source_key": session}
    process = ProcessTemplate(grants=[NewGrant(scope=owner)])
    for nth in range(3):
        new = NewSubscription(owner=owner, key=f"key-{nth}", process=process, **named)
        await triggers.register(new, operation=f"{session}-{nth}")
        await triggers.register(new, operation=f"{session}-{nth}")
    moved = NewSubscription(owner=owner, key="key-2", source_type="type", source_key="source-2")
    await triggers.register(moved, expected=1)
    await triggers.disable("key-0", owner=owner)
    await triggers.enable("key-0", owner=owner, expected=2)
    await triggers.delete("key-2", owner=owner)
    await triggers.get("key-0", owner=owner)
    which: list[dict[str, Any]] = [{}, {"session": session}, named, {"enabled": True}]
    for one in which:
        await triggers.list(which=SubscriptionFilter(**one), limit=5)
    happens = NewOccurrence(key=f"{session}-ingested", **named)
    done = await triggers.ingest(happens)
    assert await triggers.ingest(happens) == msgspec.structs.replace(done, recorded=False)
    assert len(done.deliveries) == 2
    found = await triggers.record(NewOccurrence(key=f"{session}-recorded", **named))
    name = found.occurrence.occurrence
    assert len(await triggers.reserve(name)) == 2
    await triggers.reserved(after=f"{name}    ", limit=5)
    assert len(await triggers.start(name)) == 2
    await triggers.occurrence(name)
    await triggers.occurrences(limit=5)
    await triggers.occurrences(which=OccurrenceFilter(**named), limit=5)
    await triggers.deliveries(name, limit=5)
    await triggers.prune(before_ms=found.occurrence.at_ms - 3_600_000, limit=5)
    late = await triggers.record(NewOccurrence(key=f"{session}-late", **named))
    await triggers.reserve(late.occurrence.occurrence)


# --- SQLite: plans and statements


def parts() -> dict[str, CompiledPart]:
    found: dict[str, CompiledPart] = {}
    for name, script in scripts().items():
        every = [*script.parts, *([script.refused] if script.refused else [])]
        for number, part in enumerate(every):
            found[f"{name} {number} {part.kind}"] = part
    return found


async def test_every_statement_on_a_file_uses_an_index(sqlite_path: Path) -> None:
    """The machine code of a statement says it exactly: to walk a table or an index from one of its
    ends is `Rewind` or `Last`, to look a place up in it is one of the seeks."""
    async with await holdfast.open(str(sqlite_path)) as store:
        await grow(store, "s", 50)
    connection = apsw.Connection(str(sqlite_path))
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    roots = dict(connection.execute("SELECT rootpage, name FROM sqlite_schema WHERE rootpage > 0"))
    whole: dict[str, set[str]] = {}
    seeks = 0
    for name, part in parts().items():
        numbers = [int(n) for n in re.findall(r"\?(\d+)", part.text)]
        values = (None,) * max(numbers, default=0)
        opened: dict[int, str] = {}
        code: list[Any] = connection.execute(f"EXPLAIN {part.text}", values).fetchall()
        for _, opcode, cursor, root, *_ in code:
            if opcode in ("OpenRead", "OpenWrite", "ReopenIdx") and root in roots:
                opened[cursor] = roots[root]
        for _, opcode, cursor, *_ in code:
            seeks += cursor in opened and opcode.startswith("Seek")
            if opcode in ("Rewind", "Last") and cursor in opened:
                whole.setdefault(name, set()).add(opened[cursor])
    connection.close()
    assert not whole
    assert seeks > 100


class Statements:
    """Every statement that any connection runs meanwhile, with the steps of SQLite's machine."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.steps = 0
        self.whole_rows = 0

    def clear(self) -> None:
        self.texts.clear()
        self.steps = self.whole_rows = 0

    def __enter__(self) -> Statements:
        apsw.connection_hooks.append(self._watch)
        return self

    def __exit__(self, *trouble: object) -> None:
        apsw.connection_hooks.remove(self._watch)

    def _watch(self, connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._note)

    def _note(self, event: dict[str, Any]) -> None:
        self.texts.append(event["sql"])
        status = event["stmt_status"]
        self.steps += status["SQLITE_STMTSTATUS_VM_STEP"]
        self.whole_rows += status["SQLITE_STMTSTATUS_FULLSCAN_STEP"]


ACTS_ON_A_FILE = {
    name: BUDGETS[name][1]
    for name in (
        "commit",
        "commit with state",
        "commit refused",
        "commit repeated",
        "head",
        "get",
        "receipt",
        "load tail",
        "node",
        "claim",
        "claim, renew, release",
    )
}


async def test_the_work_on_a_file_does_not_grow_with_history(sqlite_path: Path) -> None:
    with Statements() as statements:
        async with await holdfast.open(str(sqlite_path), tenant=TENANT, readers=1) as store:
            await grow(store, "short", SHORT)
            await grow(store, "long", LONG)
            for name, act in ACTS_ON_A_FILE.items():
                counts: dict[str, tuple[int, int]] = {}
                for session in ("short", "long"):
                    await store.sessions.commit(turn(session, "t0"))
                    for nth in (1, 2):
                        statements.clear()
                        await act(store, session, nth)
                    counts[session] = len(statements.texts), statements.steps
                short, long = counts["short"], counts["long"]
                assert long[0] == short[0], name
                # A deeper tree is a few comparisons more.
                assert long[1] <= short[1] * 1.1 + 20, f"{name}: {counts}"
