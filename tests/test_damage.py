"""What stored data that has changed by itself is answered with, on both databases.

Damage is a typed error that names the row, never silence and never absence; whoever does not need
the damaged row goes on, and a counter that cannot be right is not counted on.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest

import holdfast
from holdfast.contract.errors import (
    Corrupt,
    CounterOverflow,
    HoldfastError,
    NodeUnknown,
    Unavailable,
)
from holdfast.contract.limits import MAX_INT
from holdfast.contract.queue import NewWork
from holdfast.contract.records import History, NewNode, Turn, Usage
from holdfast.contract.stores import Store
from holdfast.core.payloads import node_digest, pack

if TYPE_CHECKING:
    from tests.conftest import Database

BIG = b"compressible state " * 100
SMALL = b"raw state"
FIRST = Turn(
    session="s",
    turn="first",
    nodes=[NewNode(id=f"a{n}", body={"n": n}) for n in range(1, 6)],
    state={"big": BIG, "small": SMALL},
    usage=[Usage(model="m", input=3)],
)
# A branch below a3: the path to the leaf is two runs, a1 to a3 and b1 to b3.
SECOND = Turn(
    session="s",
    turn="second",
    nodes=[
        NewNode(id="b1", body=b"b1", parent="a3"),
        NewNode(id="b2", body=b"b2"),
        NewNode(id="b3", body=b"b3"),
    ],
)
PATH = ["a1", "a2", "a3", "b1", "b2", "b3"]


# A read of damaged rows must end; where it does not, the test fails and does not hang.
PATIENCE_SECONDS = 3


@pytest.fixture(autouse=True)
def bounded_reads() -> Iterator[None]:
    """No statement on a file takes longer than this."""

    def bound(connection: apsw.Connection) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        connection.set_progress_handler(lambda: time.monotonic() > deadline, 100_000)

    apsw.connection_hooks.append(bound)
    yield
    apsw.connection_hooks.remove(bound)


@contextlib.asynccontextmanager
async def opened(database: Database) -> AsyncIterator[Store]:
    """A store whose statements end in time."""
    if database.kind == "postgres":
        name = (await database.run("SELECT current_database() AS name"))[0]["name"]
        await database.run(f'ALTER DATABASE "{name}" SET statement_timeout = {PATIENCE_SECONDS}000')
    async with database.open() as store:
        yield store


async def fill(store: Store) -> History:
    for session in ("s", "other"):
        await store.sessions.create(session)
    await store.sessions.commit(FIRST)
    await store.sessions.commit(SECOND)
    other = Turn(
        session="other", turn="o", nodes=[NewNode(id="o1", body=b"o")], state={"own": b"own"}
    )
    await store.sessions.commit(other)
    found = await store.history.load("s")
    assert found is not None
    assert [node.id for node in found.nodes] == PATH
    return found


async def others_go_on(store: Store, *, commits: int = 0) -> None:
    found = await store.history.load("other")
    assert found is not None
    assert found.state == {"own": b"own"}
    assert found.nodes[0].body == b"o"
    turn = Turn(session="other", turn="more", nodes=[NewNode(id="more", body=1)])
    assert (await store.sessions.commit(turn)).node_count == 2


def flipped(value: Any) -> Any:
    """The same with its last bit turned over: bytes, or text."""
    if isinstance(value, bytes):
        return value[:-1] + bytes([value[-1] ^ 1])
    return value[:-1] + chr(ord(value[-1]) ^ 1)


NODE = "session = 's' AND node = "
BLOB_OF = (
    "digest IN (SELECT digest FROM component WHERE tenant = 'a' AND session = 's' AND name = {})"
)
BIG_BLOB, SMALL_BLOB = BLOB_OF.format("'big'"), BLOB_OF.format("'small'")
SESSION = "session = 's'"
BRANCH = "session = 's' AND base_session IS NOT NULL"
# The row, the column that has a bit turned over, and the table the error names.
FLIPS = [
    ("node", f"{NODE} 'a2'", "body", "node"),
    ("node", f"{NODE} 'b3'", "body", "node"),
    ("node", f"{NODE} 'b2'", "digest", "node"),
    ("node", f"{NODE} 'a1'", "kind", "node"),
    ("node", f"{NODE} 'b1'", "node", "node"),
    ("blob", SMALL_BLOB, "data", "blob"),
    ("blob", BIG_BLOB, "data", "blob"),
    ("blob", SMALL_BLOB, "digest", "blob"),
    ("component", "session = 's' AND name = 'big'", "digest", "blob"),
]
# What is set to another value, or removed, and the table the error names.
CHANGES = [
    (f"UPDATE blob SET size = size + 1 WHERE {SMALL_BLOB}", "blob"),
    (f"UPDATE blob SET size = size - 1 WHERE {BIG_BLOB}", "blob"),
    (f"UPDATE blob SET encoding = 1 WHERE {SMALL_BLOB}", "blob"),
    (f"UPDATE blob SET encoding = 0 WHERE {BIG_BLOB}", "blob"),
    (f"DELETE FROM blob WHERE {BIG_BLOB}", "blob"),
    (f"DELETE FROM node WHERE {NODE} 'a1'", "node"),
    (f"DELETE FROM node WHERE {NODE} 'a3'", "node"),
    (f"DELETE FROM node WHERE {NODE} 'b2'", "node"),
    (f"DELETE FROM node WHERE {NODE} 'b3'", "node"),
    (f"UPDATE node SET body = NULL WHERE {NODE} 'b1'", "node"),
    (f"UPDATE node SET parent = 'a2' WHERE {NODE} 'b1'", "node"),
    (f"UPDATE node SET parent = NULL WHERE {NODE} 'a3'", "node"),
    (f"UPDATE node SET parent = 'a1' WHERE {NODE} 'a1'", "node"),
    (f"UPDATE node SET depth = depth + 1 WHERE {NODE} 'a2'", "node"),
    (f"UPDATE node SET depth = depth - 1 WHERE {NODE} 'b3'", "node"),
    (f"UPDATE node SET seq = seq + 100 WHERE {NODE} 'b2'", "node"),
    (f"DELETE FROM run WHERE {SESSION} AND base_session IS NULL", "node"),
    (f"DELETE FROM run WHERE {BRANCH}", "node"),
    (f"UPDATE run SET base_session = 'other' WHERE {BRANCH}", "node"),
    (f"UPDATE run SET base_session = 'nobody' WHERE {BRANCH}", "node"),
    (f"UPDATE run SET base_run = base_run + 1 WHERE {BRANCH}", "node"),
    (f"UPDATE run SET base_run = run WHERE {BRANCH}", "node"),
    (f"UPDATE run SET base_seq = base_seq - 1 WHERE {BRANCH}", "node"),
    (f"UPDATE run SET base_seq = base_seq + 1 WHERE {BRANCH}", "node"),
    (f"UPDATE run SET base_depth = base_depth + 1 WHERE {BRANCH}", "node"),
    (f"UPDATE session SET leaf_run = 1 WHERE {SESSION}", "node"),
    (f"UPDATE session SET leaf_run = 99 WHERE {SESSION}", "node"),
    (f"UPDATE session SET leaf_seq = leaf_seq - 1 WHERE {SESSION}", "node"),
    (f"UPDATE session SET leaf_depth = leaf_depth - 1 WHERE {SESSION}", "session"),
    (f"UPDATE session SET leaf_depth = leaf_depth + 1 WHERE {SESSION}", "node"),
    (f"UPDATE session SET leaf_session = 'other' WHERE {SESSION}", "node"),
    (f"UPDATE session SET leaf = 'a1' WHERE {SESSION}", "session"),
    (f"UPDATE session SET leaf = 'nobody' WHERE {SESSION}", "session"),
]
# What is known from elsewhere too: a load that does not need it is right, and never wrong.
SPARE = [
    f"UPDATE run SET base_depth = base_depth - 1 WHERE {BRANCH}",
    f"UPDATE run SET base_depth = 1 WHERE {SESSION} AND base_session IS NULL",
    f"UPDATE session SET leaf_seq = leaf_seq + 1 WHERE {SESSION}",
    f"UPDATE node SET run = run + 1 WHERE {NODE} 'b3'",
    f"UPDATE node SET run = run + 1 WHERE {NODE} 'a2'",
]
DAMAGE = [
    *(pytest.param(flip, id=f"flip {flip[0]}.{flip[2]} {flip[1][-8:]}") for flip in FLIPS),
    *(pytest.param(change, id=change[0].replace("'", "")) for change in CHANGES),
]


async def damage(database: Database, what: tuple[str, ...]) -> str:
    """Do it, and name the table that the error is about."""
    if len(what) == 2:
        sql, table = what
        await database.run(sql)
        return table
    rows, where, column, table = what
    where = f"tenant = 'a' AND {where}"
    found = await database.run(f"SELECT {column} FROM {rows} WHERE {where}")
    assert len(found) == 1
    value = found[0][column]
    await database.run(f"UPDATE {rows} SET {column} = $1 WHERE {where}", flipped(value))
    return table


@pytest.mark.parametrize("what", DAMAGE)
async def test_damage_is_a_typed_error_and_never_absence(
    database: Database, what: tuple[str, ...]
) -> None:
    async with opened(database) as store:
        await fill(store)
        table = await damage(database, what)
        for _ in range(2):
            with pytest.raises(Corrupt) as caught:
                await store.history.load("s")
            assert caught.value.table == table
            assert caught.value.key
            assert not caught.value.retryable
        await others_go_on(store)


@pytest.mark.parametrize("sql", SPARE)
async def test_damage_that_a_load_need_not_meet_leaves_it_right(
    database: Database, sql: str
) -> None:
    async with opened(database) as store:
        expected = await fill(store)
        await database.run(sql)
        for leaf, tail in (
            (None, None),
            (None, 1),
            (None, 4),
            ("b3", None),
            ("a2", None),
            ("b2", 2),
        ):
            try:
                found = await store.history.load("s", leaf=leaf, tail=tail)
            except Corrupt as damaged:
                assert damaged.table == "node"  # noqa: PT017
                continue
            assert found is not None
            end = PATH.index(leaf) + 1 if leaf else len(PATH)
            begin = 0 if tail is None else end - tail
            assert found.nodes == expected.nodes[begin:end]
        await others_go_on(store)


@pytest.mark.parametrize("node", ["a2", "b3"])
async def test_a_damaged_node_is_told_by_every_read_of_it(database: Database, node: str) -> None:
    async with opened(database) as store:
        await fill(store)
        await store.sessions.fork("s", "fork")
        await damage(database, ("node", f"{NODE} '{node}'", "body", "node"))
        for read in (
            store.history.node("s", node),
            store.history.node("fork", node),
            store.history.graph("s"),
            store.history.load("fork"),
            store.history.load("s", leaf=node),
            store.history.load("s", state=False),
        ):
            with pytest.raises(Corrupt) as caught:
                await read
            assert (caught.value.table, caught.value.key) == ("node", f"s/{node}")
        intact = await store.history.load("s", leaf="a1")
        assert intact is not None
        assert [found.id for found in intact.nodes] == ["a1"]
        await others_go_on(store)


async def test_damaged_state_does_not_hide_the_history(database: Database) -> None:
    async with opened(database) as store:
        await fill(store)
        await damage(database, ("blob", SMALL_BLOB, "data", "blob"))
        with pytest.raises(Corrupt):
            await store.history.load("s")
        found = await store.history.load("s", state=False)
        assert found is not None
        assert [node.id for node in found.nodes] == PATH
        # A turn that does not touch the damaged component goes on, and one that sets it heals it.
        turn = Turn(session="s", turn="heal", nodes=[NewNode(body=1)], state={"small": b"new"})
        await store.sessions.commit(turn)
        healed = await store.history.load("s")
        assert healed is not None
        assert healed.state == {"big": BIG, "small": b"new"}


async def test_a_dangling_parent_is_corrupt(database: Database) -> None:
    async with opened(database) as store:
        await fill(store)
        await database.run(f"UPDATE node SET parent = 'gone' WHERE {NODE} 'b2'")
        for tail in (3, 4, None):
            with pytest.raises(Corrupt) as caught:
                await store.history.load("s", tail=tail)
            assert caught.value.table == "node"
        await database.run(f"UPDATE node SET parent = 'b1' WHERE {NODE} 'b2'")
        await database.run(f"UPDATE node SET parent = 'gone' WHERE {NODE} 'a1'")
        with pytest.raises(Corrupt) as caught:
            await store.history.load("s")
        assert caught.value.key == "s/a1"
        await others_go_on(store)


@pytest.mark.parametrize("circle", [("s", "s"), ("fork", "fork"), ("s", "fork")])
async def test_a_lineage_in_a_circle_ends(database: Database, circle: tuple[str, str]) -> None:
    async with opened(database) as store:
        await fill(store)
        await store.sessions.fork("s", "fork")
        session, base = circle
        sql = "UPDATE session SET base_session = $1, base_seq = 3 WHERE session = $2"
        await database.run(sql, base, session)
        for read in (
            store.history.node("fork", "nobody"),
            store.history.load("fork", leaf="nobody"),
            store.history.graph("fork"),
            store.sessions.diff("s", "fork"),
        ):
            with contextlib.suppress(Corrupt, NodeUnknown):
                await read
        await others_go_on(store)


async def test_a_damaged_receipt_is_no_conflict_of_the_caller(database: Database) -> None:
    """The caller repeats a turn honestly. Told `TurnConflict`, which says that they changed it,
    they would give the turn a new id, and it would be done twice."""
    async with opened(database) as store:
        await fill(store)
        where = "session = 's' AND turn = 'second'"
        await damage(database, ("receipt", where, "intent", "receipt"))
        before = await database.rows("a")
        with pytest.raises(Corrupt) as caught:
            await store.sessions.commit(SECOND)
        assert caught.value.table == "receipt"
        assert await database.rows("a") == before
        await others_go_on(store)


COUNTERS = [
    ("session", "revision", -1, Corrupt),
    ("session", "revision", -5, Corrupt),
    ("session", "revision", -(2**63), Corrupt),
    ("session", "revision", MAX_INT, CounterOverflow),
    ("session", "last_seq", MAX_INT, CounterOverflow),
    ("session", "last_seq", -7, Corrupt),
    ("session", "node_count", MAX_INT, CounterOverflow),
    ("session", "node_count", -7, Corrupt),
    ("usage_total", "input", MAX_INT - 2, CounterOverflow),
    ("usage_total", "entries", MAX_INT, CounterOverflow),
]


@pytest.mark.parametrize(("table", "column", "value", "error"), COUNTERS)
async def test_a_damaged_counter_is_refused_and_nothing_changes(
    database: Database, table: str, column: str, value: int, error: type[HoldfastError]
) -> None:
    async with opened(database) as store:
        await fill(store)
        await database.drop_checks()
        await database.run(f"UPDATE {table} SET {column} = $1 WHERE {SESSION}", value)
        before = await database.rows("a")
        turn = Turn(
            session="s",
            turn="third",
            nodes=[NewNode(body=1)],
            state={"small": b"third"},
            usage=[Usage(model="m", input=3)],
        )
        for _ in range(2):
            with pytest.raises(error) as caught:
                await store.sessions.commit(turn)
            assert type(caught.value) is error
            assert not isinstance(caught.value, Unavailable)
        if column == "revision":
            with pytest.raises(error):
                await store.sessions.rewind("s", turn="back", revision=1, reason="why")
        if error is Corrupt and column in ("revision", "node_count"):
            with pytest.raises(Corrupt):
                await store.sessions.head("s")
        assert await database.rows("a") == before
        await others_go_on(store)


@pytest.mark.parametrize(("value", "error"), [(-3, Corrupt), (MAX_INT, CounterOverflow)])
async def test_a_damaged_generation_is_refused_and_nothing_changes(
    database: Database, value: int, error: type[HoldfastError]
) -> None:
    async with opened(database) as store:
        await fill(store)
        await database.drop_checks()
        sql = f"UPDATE session SET lane_generation = $1 WHERE {SESSION}"
        await database.run(sql, value)
        before = await database.rows("a")
        for _ in range(2):
            with pytest.raises(error):
                await store.lanes.claim("s", "me")
            with pytest.raises(error):
                await store.lanes.displace("s")
        assert await database.rows("a") == before
        await others_go_on(store)


async def test_a_total_that_overflows_when_it_is_read_is_told(database: Database) -> None:
    async with opened(database) as store:
        await fill(store)
        turn = Turn(session="other", turn="u", usage=[Usage(model="m", input=1)])
        await store.sessions.commit(turn)
        await database.run("UPDATE usage_total SET input = $1", MAX_INT)
        with pytest.raises(CounterOverflow):
            await store.usage.totals()
        alone = await store.usage.totals(session="s")
        assert alone[0].usage.input == MAX_INT
        await others_go_on(store)


WORK_DAMAGE = {
    "kind": "UPDATE work SET kind = 'wish'",
    "delivery": "UPDATE work SET delivery = 'never'",
    "slot": "UPDATE work SET slot = 'both'",
    "state": "UPDATE work SET state = 'gone', claim = NULL",
    "seq": "UPDATE work SET seq = -1",
    "attempts": "UPDATE work SET attempts = -5",
    "name": "UPDATE work SET work = 'renamed'",
    "items": "work.items",
    "digest": "work.digest",
}


@pytest.mark.parametrize("what", WORK_DAMAGE.values(), ids=WORK_DAMAGE)
async def test_damaged_work_is_a_typed_error_and_is_never_passed_over(
    database: Database, what: str
) -> None:
    """Every read of it names the row. A claim that meets it is refused and leaves nothing claimed,
    and does not go on with what stands behind it."""
    async with opened(database) as store:
        await fill(store)
        enqueued = [
            await store.queue.enqueue(NewWork(session="s", payloads=[body], key=f"k-{body}"))
            for body in ("first", "second")
        ]
        name = enqueued[0].work.work
        await store.queue.enqueue(NewWork(session="other", payloads=["whole"]))
        await database.drop_checks()
        where = f"session = 's' AND work = '{name}'"
        if what.startswith("work."):
            await damage(database, ("work", where, what.removeprefix("work."), "work"))
        else:
            await database.run(f"{what} WHERE {where}")
        name = "renamed" if "renamed" in what else name
        reads: list[Callable[[], Awaitable[object]]] = [
            lambda: store.queue.list("s"),
            lambda: store.queue.get("s", name),
            lambda: store.queue.cancel("s", name),
            lambda: store.queue.enqueue(NewWork(session="s", key="k-first")),
        ]
        for read in reads:
            with pytest.raises(Corrupt) as caught:
                await read()
            assert (caught.value.table, caught.value.key) == ("work", f"s/{name}")
            assert not caught.value.retryable
        for _ in range(2 if "state" not in what else 0):
            with pytest.raises(Corrupt):
                await store.queue.claim("s", "me")
        if "state" in what:
            for session in ("s", None):
                with pytest.raises(Corrupt):
                    await store.queue.counts(session=session)
        held = await database.run("SELECT count(*) AS n FROM work WHERE state = 'claimed'")
        assert held[0]["n"] == 0
        assert len(await database.run("SELECT seq FROM work WHERE session = 's'")) == 2
        taken = await store.queue.claim("other", "me")
        assert taken.claim is not None
        assert taken.claim.work[0].items[0].json() == "whole"
        await others_go_on(store)


# --- bits of a file

FLIPPED_BITS = 400


def spans(content: bytes, payloads: list[bytes]) -> list[int]:
    """Where in the file the bytes of the payloads are; splitting a page may leave a stale copy."""
    places: list[int] = []
    for payload in payloads:
        if content.count(payload) == 1:
            at = content.find(payload)
            places += range(at, at + len(payload))
    return places


def test_no_turned_bit_of_a_payload_is_read_as_if_nothing_were(sqlite_path: Path) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    bodies = [rng.randbytes(rng.choice([3, 40, 700])) for _ in range(60)]
    state = {"raw": rng.randbytes(300), "packed": b"abcdefgh" * 100 + rng.randbytes(200)}
    with holdfast.open_sync(str(sqlite_path)) as store:
        store.sessions.create("s")
        nodes = [NewNode(id=f"n{n}", body=body) for n, body in enumerate(bodies)]
        store.sessions.commit(Turn(session="s", turn="t", nodes=nodes, state=state))
    content = sqlite_path.read_bytes()
    payloads = [*bodies, state["raw"], pack(state["packed"])[1]]
    payloads += [
        node_digest("default", "s", f"n{n}", "message", body) for n, body in enumerate(bodies)
    ]
    places = spans(content, payloads)
    assert len(places) > 10_000
    told = 0
    for _ in range(FLIPPED_BITS):
        place, bit = rng.choice(places), rng.randrange(8)
        damaged = bytearray(content)
        damaged[place] ^= 1 << bit
        sqlite_path.write_bytes(damaged)
        with holdfast.open_sync(str(sqlite_path), readers=1) as store:
            try:
                found = store.history.load("s")
            except Corrupt:
                told += 1
                continue
            assert found is not None, f"absent: seed {seed}, byte {place}, bit {bit}"
            same = [node.body for node in found.nodes] == bodies and found.state == state
            assert same, f"silently wrong: seed {seed}, byte {place}, bit {bit}"
    # Of compressed bytes one or the other may be turned without a difference to what they say.
    assert told >= FLIPPED_BITS * 0.97
    sqlite_path.write_bytes(content)
    with holdfast.open_sync(str(sqlite_path)) as store:
        assert store.history.load("s") is not None


def test_no_turned_bit_anywhere_in_the_file_is_worse_than_an_error(sqlite_path: Path) -> None:
    """Of what has no seal (times, counts, an index) not every bit can be told; but what is loaded
    has the right contents, and nothing hangs, crashes, or raises what is not ours."""
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    with holdfast.open_sync(str(sqlite_path)) as store:
        store.sessions.create("s")
        for number in range(12):
            parent: dict[str, Any] = {"parent": "n3"} if number == 8 else {}
            nodes = [NewNode(id=f"n{number}", body=f"body {number} " * 20, **parent)]
            state = {"agent": f"state {number} {'x' * number}".encode()}
            store.sessions.commit(Turn(session="s", turn=f"t{number}", nodes=nodes, state=state))
        expected = store.history.load("s")
    assert expected is not None
    bodies = {node.id: node.body for node in expected.nodes}
    content = sqlite_path.read_bytes()
    used = [at for at, byte in enumerate(content) if byte]
    told = 0
    for _ in range(300):
        place, bit = rng.choice(used), rng.randrange(8)
        damaged = bytearray(content)
        damaged[place] ^= 1 << bit
        sqlite_path.write_bytes(damaged)
        try:
            with holdfast.open_sync(str(sqlite_path), readers=1, busy_ms=100) as store:
                found = store.history.load("s")
        except HoldfastError:
            told += 1
            continue
        finally:
            for left in ("-wal", "-shm", "-journal"):
                sqlite_path.with_name(sqlite_path.name + left).unlink(missing_ok=True)
        if found is None:
            continue
        for node in found.nodes:
            assert bodies.get(node.id, node.body) == node.body, f"seed {seed}, {place}, {bit}"
    assert told > 10
