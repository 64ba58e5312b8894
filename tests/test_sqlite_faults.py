"""What may happen to a database file, and to the processes that have it open.

Each fault ends in a typed error that names it, leaves nothing half stored, and leaves a handle that
works as soon as the fault is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.contract.errors import (
    Corrupt,
    ForeignDatabase,
    HandleClosed,
    SchemaDrift,
    SchemaNewer,
    SchemaOlder,
    StoreBusy,
    StoreFull,
    StoreMoved,
    StoreReadOnly,
    StoreUnreachable,
)
from holdfast.contract.records import NewNode, Turn
from holdfast.engine.sqlite import SqliteBlockingEngine
from holdfast.ops.sessions import head
from holdfast.sql.migrations import migrations

KNOWN = len(migrations("sqlite"))
ROOT = os.geteuid() == 0


def turn(name: str, body: Any = "body", session: str = "s") -> Turn:
    return Turn(session=session, turn=name, nodes=[NewNode(id=f"n-{name}", body=body)])


@contextlib.contextmanager
def opened(path: Path, **options: Any) -> Iterator[holdfast.BlockingStore]:
    store = holdfast.open_sync(str(path), **options)
    try:
        yield store
    finally:
        store.close()


def make(path: Path, *turns: str) -> None:
    """A store with a session and turns, closed again."""
    with opened(path) as store:
        store.sessions.create("s")
        for name in turns:
            store.sessions.commit(turn(name))


def raw(path: Path, sql: str) -> list[Any]:
    connection = apsw.Connection(str(path))
    try:
        connection.set_busy_timeout(10_000)
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def python(script: str, *args: object) -> dict[str, Any]:
    """Run a script in a process of its own; it prints one JSON object as its last line."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextlib.contextmanager
def open_directory() -> Iterator[Path]:
    """A directory that other accounts may enter too."""
    folder = Path(tempfile.mkdtemp(prefix="hf-"))
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- what a file is


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("PRAGMA application_id = 7", "application id 7"),
        ("PRAGMA user_version = 3", "user version 3"),
        ("CREATE TABLE notes (id INTEGER)", "1 objects"),
    ],
)
def test_the_database_of_another_program_is_refused_and_left_alone(
    sqlite_path: Path, sql: str, found: str
) -> None:
    raw(sqlite_path, f"{sql}; PRAGMA page_size = 4096; VACUUM")
    before = sqlite_path.read_bytes()
    with pytest.raises(ForeignDatabase) as caught:
        holdfast.open_sync(str(sqlite_path))
    assert found in caught.value.found
    assert sqlite_path.read_bytes() == before
    assert os.listdir(sqlite_path.parent) == [sqlite_path.name]


def test_a_text_file_is_refused_and_left_alone(sqlite_path: Path) -> None:
    sqlite_path.write_text("these are my notes\n" * 100)
    before = sqlite_path.read_bytes()
    with pytest.raises(ForeignDatabase) as caught:
        holdfast.open_sync(str(sqlite_path))
    assert "no database" in caught.value.found
    assert sqlite_path.read_bytes() == before


def test_an_empty_file_becomes_a_store(sqlite_path: Path) -> None:
    sqlite_path.touch()
    make(sqlite_path, "one")
    with opened(sqlite_path) as store:
        assert store.sessions.head("s").node_count == 1  # type: ignore[union-attr]


def test_a_newer_store_is_refused_unless_it_says_that_we_may(sqlite_path: Path) -> None:
    make(sqlite_path, "one")
    newer = KNOWN + 7
    raw(
        sqlite_path,
        f"PRAGMA user_version = {newer};"
        f" INSERT INTO migration VALUES ({newer}, 'later', 'x', {KNOWN + 1}, 0);"
        " ALTER TABLE session ADD COLUMN later TEXT",
    )
    with pytest.raises(SchemaNewer) as caught:
        holdfast.open_sync(str(sqlite_path))
    assert (caught.value.found, caught.value.expected) == (newer, KNOWN)
    raw(sqlite_path, f"UPDATE migration SET oldest_reader = {KNOWN} WHERE version = {newer}")
    with opened(sqlite_path) as store:
        assert store.sessions.commit(turn("two")).node_count == 2
    assert raw(sqlite_path, "PRAGMA user_version") == [(newer,)]


def test_a_drifted_structure_is_refused_by_name(sqlite_path: Path) -> None:
    make(sqlite_path, "one")
    raw(sqlite_path, "DROP INDEX tag_value; CREATE TABLE mine (x INTEGER)")
    with pytest.raises(SchemaDrift) as caught:
        holdfast.open_sync(str(sqlite_path))
    assert caught.value.version == KNOWN
    assert "missing index tag_value" in caught.value.differences
    assert "unexpected table mine" in caught.value.differences
    assert raw(sqlite_path, "SELECT count(*) FROM node") == [(1,)]


def test_without_migrating_an_older_store_is_refused(sqlite_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(SchemaOlder) as caught:
            holdfast.open_sync(str(sqlite_path), migrate=False)
        assert (caught.value.found, caught.value.expected) == (0, KNOWN)
    assert raw(sqlite_path, "SELECT count(*) FROM sqlite_schema") == [(0,)]
    make(sqlite_path, "one")
    with opened(sqlite_path, migrate=False) as store:
        assert store.sessions.head("s") is not None


def test_a_migration_that_was_applied_from_another_text_is_refused(sqlite_path: Path) -> None:
    make(sqlite_path)
    raw(sqlite_path, "UPDATE migration SET checksum = 'other' WHERE version = 1")
    with pytest.raises(SchemaDrift) as caught:
        holdfast.open_sync(str(sqlite_path))
    assert "migration 1 was applied from another text" in caught.value.differences


def test_an_overwritten_page_is_corrupt_and_never_empty(sqlite_path: Path) -> None:
    make(sqlite_path, *(f"t{n}" for n in range(40)))
    with sqlite_path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (sqlite_path.stat().st_size - 4096))
    with pytest.raises(Corrupt), opened(sqlite_path) as store:
        store.history.load("s")


# --- what may be done with it


async def test_a_store_opened_read_only_is_read(sqlite_path: Path) -> None:
    make(sqlite_path, "one")
    store = await holdfast.open(str(sqlite_path), read_only=True)
    with pytest.raises(StoreReadOnly):
        await store.sessions.commit(turn("two"))
    with pytest.raises(StoreReadOnly):
        await store.lanes.claim("s", "me")
    # What others commit meanwhile is seen.
    make(sqlite_path, "two")
    found = await store.history.load("s")
    assert found is not None
    assert [node.id for node in found.nodes] == ["n-one", "n-two"]
    await store.close()
    with pytest.raises(StoreUnreachable):
        await holdfast.open(str(sqlite_path.with_name("absent.db")), read_only=True)
    assert not sqlite_path.with_name("absent.db").exists()


READ_ONLY_FILE = """
import json, os, sys, holdfast
# Everything is imported while the account may read the interpreter's files.
holdfast.open_sync(":memory:").close()
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
store = holdfast.open_sync(sys.argv[1])
told = {"nodes": len(store.history.load("s").nodes)}
try:
    store.sessions.create("x")
except holdfast.StoreReadOnly as refused:
    told["error"] = refused.code
store.close()
print(json.dumps(told))
"""


def test_a_file_that_may_not_be_written_is_read() -> None:
    with open_directory() as folder:
        path = folder / "agents.db"
        make(path, "one")
        path.chmod(0o444)
        told = python(READ_ONLY_FILE, path)
        assert told == {"nodes": 1, "error": "store-read-only"}
        path.chmod(0o644)
        make(path, "two")


def filled(store: holdfast.BlockingStore, megabyte: bytes) -> list[str]:
    """Commit until there is no room; the turns that were acknowledged."""
    done: list[str] = []
    for number in range(200):
        name = f"big-{number}"
        try:
            store.sessions.commit(turn(name, megabyte))
        except StoreFull:
            # A full store goes on being full, and goes on being read.
            with pytest.raises(StoreFull):
                store.sessions.commit(turn(name, megabyte))
            found = store.history.load("s")
            assert found is not None
            assert [node.id for node in found.nodes] == [f"n-{name}" for name in done]
            return done
        done.append(name)
    raise AssertionError("it never filled up")


@pytest.mark.skipif(not ROOT, reason="mounting a small disk needs root; the next test does not")
def test_a_full_disk_is_told_and_writing_goes_on_when_there_is_room(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], check=True)
    try:
        spare = disk / "spare"
        spare.write_bytes(b"x" * 1_500_000)
        path = disk / "agents.db"
        with opened(path) as store:
            store.sessions.create("s")
            done = filled(store, os.urandom(100_000))
            assert done
            spare.unlink()
            lost = f"big-{len(done)}"
            receipt = store.sessions.commit(turn(lost, b"small"))
            assert (receipt.replayed, receipt.node_count) == (False, len(done) + 1)
        with opened(path) as store:
            assert store.sessions.head("s").node_count == len(done) + 1  # type: ignore[union-attr]
        assert raw(path, "PRAGMA integrity_check") == [("ok",)]
    finally:
        subprocess.run(["umount", disk], check=True)


FILE_LIMIT = """
import json, os, resource, sys, holdfast
from holdfast import NewNode, StoreFull, Turn
store = holdfast.open_sync(sys.argv[1])
store.sessions.create("s")
def commit(name, size):
    node = NewNode(id="n-" + name, body=os.urandom(size))
    return store.sessions.commit(Turn(session="s", turn=name, nodes=[node]))
commit("first", 100)
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY))
told = {"errors": [], "done": 0}
for number in range(20):
    try:
        commit(f"t{number}", 100_000)
        told["done"] += 1
    except holdfast.HoldfastError as error:
        told["errors"].append(error.code)
told["seen"] = len(store.history.load("s").nodes)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
told["after"] = commit("t19", 10).node_count
store.close()
print(json.dumps(told))
"""


def test_a_file_size_limit_is_told_as_a_full_store(sqlite_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    assert limit == resource.RLIM_INFINITY, "this test raises the limit again"
    told = python(FILE_LIMIT, sqlite_path)
    assert set(told["errors"]) == {"store-full"}
    assert told["done"] + len(told["errors"]) == 20
    assert told["seen"] == told["done"] + 1
    assert told["after"] == told["done"] + 2


@pytest.mark.parametrize("what", ["moved", "deleted", "replaced"])
def test_a_file_that_is_not_there_any_more_is_told(sqlite_path: Path, what: str) -> None:
    make(sqlite_path, "one")
    other = sqlite_path.with_name("other.db")
    make(other, "stranger")
    store = holdfast.open_sync(str(sqlite_path), readers=1)
    away = sqlite_path.with_name("away.db")
    if what == "moved":
        sqlite_path.rename(away)
    elif what == "deleted":
        sqlite_path.unlink()
    else:
        other.rename(sqlite_path)
    for _ in range(2):
        with pytest.raises(StoreMoved) as caught:
            store.sessions.commit(turn("two"))
        assert caught.value.path == str(sqlite_path)
        with pytest.raises(StoreMoved):
            store.history.load("s")
    assert sqlite_path.exists() == (what == "replaced"), "a file was made in its place"
    if what == "moved":
        away.rename(sqlite_path)
        assert store.sessions.commit(turn("two")).node_count == 2
        assert store.sessions.head("s").node_count == 2  # type: ignore[union-attr]
    store.close()


# --- several processes

BOTH = """
import json, os, sys, holdfast
from holdfast import NewNode, Turn
path, count = sys.argv[1], int(sys.argv[2])
for who in ("a", "b"):
    if os.fork() == 0:
        store = holdfast.open_sync(path)
        store.sessions.create("shared")
        store.sessions.create(who)
        for number in range(count):
            for session in (who, "shared"):
                node = NewNode(id=f"{who}-{number}", body=number)
                store.sessions.commit(Turn(session=session, turn=f"{who}-{number}", nodes=[node]))
        store.close()
        os._exit(0)
codes = [os.waitpid(-1, 0)[1] for _ in range(2)]
store = holdfast.open_sync(path)
heads = {s: store.sessions.head(s) for s in ("a", "b", "shared")}
nodes = [node.id for node in store.history.load("shared").nodes]
store.close()
print(json.dumps({"codes": codes, "nodes": nodes,
                  "counts": {s: h.node_count for s, h in heads.items()}}))
"""


def test_two_processes_write_one_file(sqlite_path: Path) -> None:
    told = python(BOTH, sqlite_path, 150)
    assert told["codes"] == [0, 0]
    assert told["counts"] == {"a": 150, "b": 150, "shared": 300}
    for who in ("a", "b"):
        mine = [node for node in told["nodes"] if node.startswith(who)]
        assert mine == [f"{who}-{number}" for number in range(150)]


HOLD = """
import sys, apsw
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
print("free", flush=True)
"""


def test_a_lock_that_is_held_for_too_long_is_told_and_reads_go_on(sqlite_path: Path) -> None:
    make(sqlite_path, "one")
    with opened(sqlite_path, busy_ms=200) as store:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLD, sqlite_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with holder:
            assert holder.stdin is not None
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(StoreBusy) as caught:
                store.sessions.commit(turn("two"))
            assert caught.value.retryable
            assert store.sessions.head("s").node_count == 1  # type: ignore[union-attr]
            holder.stdin.write("go\n")
            holder.stdin.flush()
            assert holder.stdout.readline() == "free\n"
        receipt = store.sessions.commit(turn("two"))
        assert (receipt.replayed, receipt.node_count) == (False, 2)


FIRST_OPENS = """
import json, os, sys, holdfast
ready, go = os.pipe(), os.pipe()
for number in range(16):
    if os.fork() == 0:
        os.write(ready[1], b".")
        os.read(go[0], 1)
        store = holdfast.open_sync(sys.argv[1])
        created = store.sessions.create(f"s{number}").created
        store.close()
        os._exit(0 if created else 1)
for _ in range(16):
    os.read(ready[0], 1)
os.write(go[1], b"g" * 16)
codes = [os.waitpid(-1, 0)[1] for _ in range(16)]
store = holdfast.open_sync(sys.argv[1])
print(json.dumps({"codes": codes, "sessions": len(store.sessions.list().items)}))
store.close()
"""


def test_sixteen_processes_open_a_new_file_at_once(sqlite_path: Path) -> None:
    assert python(FIRST_OPENS, sqlite_path) == {"codes": [0] * 16, "sessions": 16}
    assert raw(sqlite_path, "SELECT version FROM migration") == [(v + 1,) for v in range(KNOWN)]


def test_sixteen_threads_open_a_new_file_at_once(sqlite_path: Path) -> None:
    gate = threading.Barrier(16)

    def first(number: int) -> bool:
        gate.wait()
        with opened(sqlite_path) as store:
            return store.sessions.create(f"s{number}").created

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(first, range(16)))
    with opened(sqlite_path) as store:
        assert len(store.sessions.list().items) == 16


FORKED = """
import json, os, sys, asyncio, holdfast
from holdfast import NewNode, Turn
store = holdfast.open_sync(sys.argv[1])
store.sessions.create("s")
out, into = os.pipe()
child = os.fork()
if child == 0:
    told = {}
    for name, use in (
        ("write", lambda: store.sessions.create("x")),
        ("read", lambda: store.sessions.head("s")),
    ):
        try:
            use()
        except holdfast.WrongProcess as wrong:
            told[name] = [wrong.code, wrong.opened_in == os.getppid(), wrong.used_in == os.getpid()]
    store.close()
    own = holdfast.open_sync(sys.argv[1])
    told["own"] = own.sessions.create("of-child").created
    own.close()
    os.write(into, json.dumps(told).encode())
    sys.exit(0)
_, code = os.waitpid(child, 0)
told = json.loads(os.read(out, 10000))
told["code"] = code
told["on"] = [store.sessions.commit(Turn(session="s", nodes=[NewNode(body=n)])).node_count
              for n in range(3)]
told["sees"] = store.sessions.head("of-child") is not None
store.close()
print(json.dumps(told))
"""


def test_a_handle_is_refused_in_a_fork_and_goes_on_in_its_own_process(sqlite_path: Path) -> None:
    wrong = ["wrong-process", True, True]
    assert python(FORKED, sqlite_path) == {
        "write": wrong,
        "read": wrong,
        "own": True,
        "code": 0,
        "on": [1, 2, 3],
        "sees": True,
    }
    assert raw(sqlite_path, "PRAGMA integrity_check") == [("ok",)]
    with opened(sqlite_path) as store:
        assert store.sessions.head("s").node_count == 3  # type: ignore[union-attr]


# --- the end of a handle


async def test_a_closed_handle_says_so(sqlite_path: Path) -> None:
    store = await holdfast.open(str(sqlite_path))
    await store.sessions.create("s")
    await store.close()
    await store.close()
    for use in (
        store.sessions.create("x"),
        store.sessions.head("s"),
        store.history.load("s"),
        store.lanes.claim("s", "me"),
        store.usage.totals(),
    ):
        with pytest.raises(HandleClosed):
            await use
    with opened(sqlite_path) as again:
        assert again.sessions.head("s") is not None
    with pytest.raises(HandleClosed):
        again.sessions.head("s")
    with pytest.raises(HandleClosed):
        again.sessions.create("x")


async def test_what_was_handed_in_before_the_close_is_done(sqlite_path: Path) -> None:
    store = await holdfast.open(str(sqlite_path))
    await store.sessions.create("s")
    writes = [asyncio.create_task(store.sessions.commit(turn(f"t{n}"))) for n in range(50)]
    reads = [asyncio.create_task(store.sessions.head("s")) for _ in range(20)]
    await asyncio.sleep(0)
    await store.close()
    assert sorted([(await write).revision for write in writes]) == list(range(1, 51))
    assert all([await read for read in reads])


def test_readers_that_race_with_the_close_are_answered(sqlite_path: Path) -> None:
    make(sqlite_path, "one")
    for _ in range(20):
        store = holdfast.open_sync(str(sqlite_path), readers=1)
        gate = threading.Barrier(5)

        def look(store: holdfast.BlockingStore = store, gate: threading.Barrier = gate) -> None:
            gate.wait()
            with contextlib.suppress(HandleClosed):
                while store.sessions.head("s") is not None:
                    pass
                raise AssertionError("the session is not seen")

        with ThreadPoolExecutor(4) as threads:
            looks = [threads.submit(look) for _ in range(4)]
            gate.wait()
            store.close()
            for done in looks:
                done.result(timeout=30)


def test_a_reader_that_comes_after_the_last_one_left_is_answered(sqlite_path: Path) -> None:
    """Between its look at the handle and its wait for a connection, the handle was closed."""
    make(sqlite_path, "one")
    engine = SqliteBlockingEngine(str(sqlite_path))
    readers = engine._readers
    assert readers is not None
    engine.close()
    told: list[BaseException] = []

    def look() -> None:
        try:
            readers.run(head, ("default", "s"))
        except HandleClosed as closed:
            told.append(closed)

    for _ in range(2):
        late = threading.Thread(target=look, daemon=True)
        late.start()
        late.join(10)
        assert not late.is_alive(), "it waits for ever"
    assert [type(error) for error in told] == [HandleClosed, HandleClosed]
