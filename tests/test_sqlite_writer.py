"""What the writer thread owes its callers: one sync per group, nobody answered before it, and an
outcome for each of them whatever happens to the group, the callers, or the disk beneath.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.contract.errors import (
    Corrupt,
    Invalid,
    OutcomeUnknown,
    StoreUnreachable,
)
from holdfast.contract.records import NewNode, Receipt, Turn, Usage
from holdfast.engine import sqlite_writer
from holdfast.engine.sqlite import SqliteBlockingEngine, SqliteEngine
from holdfast.ops.op import Op, Step, Stmt
from holdfast.stores import Store


def turn(name: str, kind: str = "message", session: str = "s") -> Turn:
    return Turn(
        session=session,
        turn=name,
        nodes=[NewNode(id=f"n-{name}", kind=kind, body="body")],
        state={"agent": name.encode()},
        usage=[Usage(model="m", input=1)],
    )


class Gate:
    """An operation that holds the writer thread until it is let go."""

    def __init__(self) -> None:
        self.held = threading.Event()
        self._go = threading.Event()

    def hold(self) -> Op[None]:
        self.held.set()
        assert self._go.wait(30)
        yield from ()

    def open(self) -> None:
        self._go.set()


@contextlib.asynccontextmanager
async def held(store: Store) -> AsyncIterator[Callable[[], None]]:
    """While inside, the writer does nothing; what is handed in waits and becomes one group."""
    gate = Gate()
    holding = asyncio.create_task(store._view.engine.write(gate.hold))
    await asyncio.to_thread(gate.held.wait)
    try:
        yield gate.open
    finally:
        gate.open()
        await holding


@contextlib.asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[Store]:
    store = await holdfast.open(str(path), **options)
    try:
        yield store
    finally:
        await store.close()


async def seen(store: Store, *sessions: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for session in sessions:
        history = await store.history.load(session)
        assert history is not None
        found[session] = [node.id for node in history.nodes]
    return found


def raw(path: Path, sql: str) -> list[Any]:
    connection = apsw.Connection(str(path))
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


class Disk(apsw.VFS):
    """The file system, with every sync counted, and failed where the test says so."""

    def __init__(self) -> None:
        self.syncs: list[str] = []
        self.fails: Callable[[str], bool] = lambda name: False
        self.locked_up = False
        self.beneath = apsw.vfs_names()[0]
        super().__init__("holdfast-test-disk", self.beneath, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> DiskFile:  # noqa: N802
        if self.locked_up:
            raise apsw.CantOpenError("the disk is gone")
        return DiskFile(self, name, flags)


class DiskFile(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        path = name if isinstance(name, str) else name.filename() if name else ""
        self._kind = path.rpartition("-")[2] if path.endswith(("-wal", "-journal")) else "db"
        super().__init__(disk.beneath, name, flags)

    def xSync(self, flags: int) -> None:  # noqa: N802
        if self._disk.fails(self._kind):
            # SQLite does with this what it does with a failed fsync.
            raise apsw.IOError("the disk did not sync")
        self._disk.syncs.append(self._kind)
        super().xSync(flags)


@pytest.fixture
def disk() -> Iterator[Disk]:
    found = Disk()
    try:
        yield found
    finally:
        apsw.set_default_vfs(found.beneath)
        found.unregister()


# --- groups


@pytest.mark.parametrize("many", [1, 2, 16, 64])
async def test_a_group_of_commits_is_one_sync(sqlite_path: Path, disk: Disk, many: int) -> None:
    async with opened(sqlite_path, max_group_seconds=30) as store:
        for number in range(many):
            await store.sessions.create(f"s{number}")
        disk.syncs.clear()
        async with held(store) as let_go:
            commits = [
                asyncio.create_task(store.sessions.commit(turn("one", session=f"s{number}")))
                for number in range(many)
            ]
            await asyncio.sleep(0)
            let_go()
            receipts = await asyncio.gather(*commits)
        assert [receipt.revision for receipt in receipts] == [1] * many
        assert disk.syncs == ["wal"]


@pytest.mark.parametrize(("synchronous", "syncs"), [("full", 5), ("normal", 0)])
async def test_only_the_opt_out_answers_before_the_disk_does(
    sqlite_path: Path, disk: Disk, synchronous: str, syncs: int
) -> None:
    async with opened(sqlite_path, synchronous=synchronous) as store:
        await store.sessions.create("s")
        disk.syncs.clear()
        for number in range(5):
            await store.sessions.commit(turn(f"t{number}"))
        assert disk.syncs.count("wal") == syncs
        assert len((await seen(store, "s"))["s"]) == 5


def plant(path: Path, action: str) -> None:
    """Make the database refuse a node of kind `poison`, in the way the action says."""
    raw(
        path,
        "CREATE TRIGGER poison BEFORE INSERT ON node WHEN new.kind = 'poison'"
        f" BEGIN SELECT RAISE({action}, 'planted'); END",
    )


@pytest.mark.parametrize("action", ["ABORT", "FAIL", "ROLLBACK"])
@pytest.mark.parametrize("place", [0, 3, 6])
async def test_one_member_of_a_group_fails_alone(
    sqlite_path: Path, disk: Disk, action: str, place: int
) -> None:
    names = [f"s{number}" for number in range(7)]
    async with opened(sqlite_path, max_group_seconds=30) as store:
        for name in names:
            await store.sessions.create(name)
        plant(sqlite_path, action)
        async with held(store) as let_go:
            commits = [
                asyncio.create_task(
                    store.sessions.commit(
                        turn("t", "poison" if number == place else "message", session=name)
                    )
                )
                for number, name in enumerate(names)
            ]
            await asyncio.sleep(0)
            let_go()
            outcomes = await asyncio.gather(*commits, return_exceptions=True)
        for number, outcome in enumerate(outcomes):
            if number == place:
                assert type(outcome) is Corrupt
                assert "planted" in str(outcome)
            else:
                assert isinstance(outcome, Receipt)
                assert (outcome.revision, outcome.replayed) == (1, False)
        found = await seen(store, *names)
        assert found == {n: [] if n == names[place] else ["n-t"] for n in names}
        raw(sqlite_path, "DROP TRIGGER poison")
        receipt = await store.sessions.commit(turn("t", session=names[place]))
        assert (receipt.revision, receipt.replayed) == (1, False)
    tables = ("node", "receipt", "usage_row", "component")
    counts = [raw(sqlite_path, f"SELECT count(*) FROM {table}")[0][0] for table in tables]
    assert counts == [7, 7, 7, 7]


async def test_a_refusal_in_a_group_costs_the_others_nothing(sqlite_path: Path, disk: Disk) -> None:
    async with opened(sqlite_path, max_group_seconds=30) as store:
        await store.sessions.create("s")
        disk.syncs.clear()
        async with held(store) as let_go:
            commits = [
                asyncio.create_task(store.sessions.commit(turn(name, session=session)))
                for name, session in (("a", "s"), ("b", "absent"), ("c", "s"))
            ]
            await asyncio.sleep(0)
            let_go()
            first, second, third = await asyncio.gather(*commits, return_exceptions=True)
        assert isinstance(first, Receipt)
        assert type(second) is holdfast.SessionUnknown
        assert isinstance(third, Receipt)
        assert disk.syncs == ["wal"]


async def test_what_a_group_has_committed_is_not_taken_back_by_what_follows(
    sqlite_path: Path,
) -> None:
    """A group that runs out of time goes on in a second transaction, which may fail by itself."""
    async with opened(sqlite_path, max_group_seconds=0.0, busy_ms=50) as store:
        await store.sessions.create("s")
        rival = apsw.Connection(str(sqlite_path))
        engine = store._view.engine
        assert isinstance(engine, SqliteEngine)

        def lock_out() -> Op[None]:
            """Done outside the transaction of the group: the next one meets a rival's lock."""
            writer = engine.writer
            assert writer is not None
            writer.connection.set_wal_hook(after_commit)
            yield from ()

        def after_commit(connection: apsw.Connection, name: str, pages: int) -> int:
            if not rival.in_transaction:
                rival.execute("BEGIN IMMEDIATE")
            return 0

        await engine.write(lock_out)
        async with held(store) as let_go:
            commits = [
                asyncio.create_task(store.sessions.commit(turn(name))) for name in ("a", "b", "c")
            ]
            await asyncio.sleep(0)
            let_go()
            outcomes = await asyncio.gather(*commits, return_exceptions=True)
        rival.execute("ROLLBACK")
        rival.close()
        done = [n for n, o in zip("abc", outcomes, strict=True) if isinstance(o, Receipt)]
        busy = [o for o in outcomes if type(o) is holdfast.StoreBusy]
        assert done
        assert len(done) + len(busy) == 3
        assert busy
        assert len({id(error) for error in busy}) == len(busy)
        assert (await seen(store, "s"))["s"] == [f"n-{name}" for name in done]
        engine.writer.connection.set_wal_hook(None)  # type: ignore[union-attr]
        for name in "abc":
            receipt = await store.sessions.commit(turn(name))
            assert receipt.replayed == (name in done)


# --- a disk that fails


async def test_a_failed_sync_is_an_unknown_outcome_that_repeating_resolves(
    sqlite_path: Path, disk: Disk
) -> None:
    async with opened(sqlite_path, max_group_seconds=30) as store:
        await store.sessions.create("s")
        await store.sessions.create("other")
        await store.sessions.commit(turn("kept"))
        engine = store._view.engine
        assert isinstance(engine, SqliteEngine)
        assert engine.writer is not None
        distrusted = engine.writer.connection
        disk.fails = lambda kind: kind == "wal"
        async with held(store) as let_go:
            commits = [
                asyncio.create_task(store.sessions.commit(turn("one", session=session)))
                for session in ("s", "other", "absent")
            ]
            await asyncio.sleep(0)
            let_go()
            first, second, third = await asyncio.gather(*commits, return_exceptions=True)
        assert type(first) is OutcomeUnknown
        assert first.operation == "sessions.commit session=s turn=one"
        assert type(second) is OutcomeUnknown
        assert second.operation == "sessions.commit session=other turn=one"
        assert type(third) is holdfast.SessionUnknown
        disk.fails = lambda kind: False
        known = {name: await store.sessions.receipt(name, "one") for name in ("s", "other")}
        for name in ("s", "other"):
            receipt = await store.sessions.commit(turn("one", session=name))
            assert receipt.replayed == (known[name] is not None)
        assert engine.writer.connection is not distrusted
        assert (await seen(store, "s", "other")) == {"s": ["n-kept", "n-one"], "other": ["n-one"]}
    assert raw(sqlite_path, "SELECT count(*) FROM receipt") == [(3,)]
    assert raw(sqlite_path, "PRAGMA integrity_check") == [("ok",)]


async def test_a_disk_that_is_gone_for_a_while_is_told_and_the_store_comes_back(
    sqlite_path: Path, disk: Disk
) -> None:
    async with opened(sqlite_path) as store:
        await store.sessions.create("s")
        disk.fails = lambda kind: True
        disk.locked_up = True
        with pytest.raises(OutcomeUnknown):
            await store.sessions.commit(turn("one"))
        for _ in range(2):
            with pytest.raises(StoreUnreachable) as caught:
                await store.sessions.commit(turn("two"))
            assert caught.value.retryable
        disk.fails = lambda kind: False
        disk.locked_up = False
        assert (await store.sessions.commit(turn("two"))).node_count in (1, 2)
        await store.sessions.commit(turn("one"))
        assert sorted((await seen(store, "s"))["s"]) == ["n-one", "n-two"]


async def test_a_defect_in_an_operation_stays_a_defect(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        engine = store._view.engine

        def broken() -> Op[None]:
            yield Step(Stmt("no.such.block", tuple), {})

        with pytest.raises(KeyError):
            await engine.write(broken)
        with pytest.raises(KeyError):
            await engine.read(broken)
        assert (await store.sessions.create("s")).created


# --- callers that go away


async def test_a_cancelled_writer_is_cancelled_when_the_outcome_is_known(
    sqlite_path: Path,
) -> None:
    async with opened(sqlite_path) as store:
        await store.sessions.create("s")
        for times in (1, 2, 5):
            name = f"t{times}"
            async with held(store) as let_go:
                commit = asyncio.create_task(store.sessions.commit(turn(name)))
                await asyncio.sleep(0)
                for _ in range(times):
                    # More than once, as some frameworks do it.
                    commit.cancel()
                    await asyncio.sleep(0)
                    assert not commit.done()
                let_go()
                with pytest.raises(asyncio.CancelledError):
                    await commit
            receipt = await store.sessions.receipt("s", name)
            assert receipt is not None
            assert (await store.sessions.commit(turn(name))).replayed
        async with held(store) as let_go:
            limit = asyncio.timeout(0.01)
            asyncio.get_running_loop().call_later(0.02, let_go)

            async def in_time() -> None:
                async with limit:
                    await store.sessions.commit(turn("late"))

            with pytest.raises(TimeoutError):
                await in_time()
        assert await store.sessions.receipt("s", "late") is not None


async def test_cancelling_at_every_await_leaves_a_known_outcome(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        await store.sessions.create("s")
        for spins in range(12):
            name = f"t{spins}"
            commit = asyncio.create_task(store.sessions.commit(turn(name)))
            read = asyncio.create_task(store.history.load("s"))
            for _ in range(spins):
                await asyncio.sleep(0)
            commit.cancel()
            read.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await commit
            known = await store.sessions.receipt("s", name)
            with contextlib.suppress(asyncio.CancelledError):
                await read
            receipt = await store.sessions.commit(turn(name))
            assert receipt.replayed == (known is not None)
            assert len((await seen(store, "s"))["s"]) == spins + 1


async def test_a_storm_of_cancellations_leaves_the_store_healthy(sqlite_path: Path) -> None:
    async with opened(sqlite_path, synchronous="normal") as store:
        await store.sessions.create("s")

        async def worker(number: int) -> None:
            for nth in range(20):
                name = f"w{number}-{nth}"
                commit = asyncio.create_task(store.sessions.commit(turn(name)))
                look = asyncio.create_task(store.sessions.head("s"))
                for _ in range((number + nth) % 7):
                    await asyncio.sleep(0)
                commit.cancel()
                look.cancel()
                await asyncio.gather(commit, look, return_exceptions=True)
                known = await store.sessions.receipt("s", name)
                assert (await store.sessions.commit(turn(name))).replayed == (known is not None)

        await asyncio.gather(*(worker(number) for number in range(16)))
        assert len((await seen(store, "s"))["s"]) == 320


def test_an_event_loop_may_end_while_a_write_is_waiting(sqlite_path: Path) -> None:
    engine = SqliteEngine(str(sqlite_path))
    view = holdfast.open_sync(":memory:")._view
    store = Store(type_view(engine, view))
    gate = Gate()
    loop = asyncio.new_event_loop()

    async def begin() -> list[asyncio.Task[Any]]:
        await store.sessions.create("s")
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(engine.write(gate.hold))]
        await asyncio.to_thread(gate.held.wait)
        tasks += [asyncio.create_task(store.sessions.commit(turn("one")))]
        await asyncio.sleep(0)
        return tasks

    tasks = loop.run_until_complete(begin())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    for task in tasks:
        # The loop ended without its tasks; that is the point here, and not worth a message.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    gate.open()

    async def after() -> None:
        assert (await store.sessions.commit(turn("one"))).replayed
        assert await seen(store, "s") == {"s": ["n-one"]}
        await store.close()

    asyncio.run(after())


def type_view(engine: Any, like: Any) -> Any:
    from holdfast.stores import View

    return View(engine, like.tenant, like.limits, like.new_id)


def test_an_interrupted_caller_leaves_when_the_outcome_is_known(sqlite_path: Path) -> None:
    store = holdfast.open_sync(str(sqlite_path))
    store.sessions.create("s")
    engine = store._view.engine
    assert isinstance(engine, SqliteBlockingEngine)
    gate = Gate()
    interrupted = threading.Event()
    main = threading.get_ident()

    def interrupt(number: int, frame: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    def helper() -> None:
        while sys._current_frames()[main].f_code is not threading.Condition.wait.__code__:
            time.sleep(0.001)
        # A signal that comes just before a wait begins is noticed after it; so there are several.
        while not interrupted.wait(0.01):
            signal.pthread_kill(main, signal.SIGINT)
        gate.open()

    holder = threading.Thread(target=engine.write, args=(gate.hold,))
    helping = threading.Thread(target=helper)
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        holder.start()
        while not gate.held.is_set():
            time.sleep(0.001)
        helping.start()
        with pytest.raises(KeyboardInterrupt):
            store.sessions.commit(turn("one"))
    finally:
        gate.open()
        helping.join()
        holder.join()
        signal.signal(signal.SIGINT, before)
    assert store.sessions.receipt("s", "one") is not None
    assert store.sessions.commit(turn("one")).replayed
    store.close()


# --- the log


def log_size(path: Path) -> int:
    # A stat opens nothing.
    return os.stat(f"{path}-wal").st_size


async def test_the_log_stays_bounded_under_constant_writing(sqlite_path: Path) -> None:
    largest = 0
    async with opened(sqlite_path, synchronous="normal") as store:
        for number in range(50):
            await store.sessions.create(f"s{number}")

        async def writer(session: str) -> None:
            nonlocal largest
            for nth in range(400):
                name = f"t{nth}"
                await store.sessions.commit(
                    Turn(session=session, turn=name, nodes=[NewNode(body="x" * 100)])
                )
                largest = max(largest, log_size(sqlite_path))

        await asyncio.gather(*(writer(f"s{number}") for number in range(50)))
        page = 4096 + 24
        # It is looked at after each group, and a group has at most 64 small commits.
        assert largest < (sqlite_writer.LOADED_PAGES + 64 * 20) * page, largest
    assert raw(sqlite_path, "SELECT count(*) FROM receipt") == [(20_000,)]


async def test_a_long_reader_holds_up_the_log_and_not_the_writer(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_writer, "LOADED_PAGES", 200)
    monkeypatch.setattr(sqlite_writer, "RESTART_PAGES", 400)
    async with opened(sqlite_path, synchronous="normal") as store:
        await store.sessions.create("s")
        reader = apsw.Connection(str(sqlite_path))
        reader.execute("BEGIN; SELECT count(*) FROM session").fetchall()
        loop = asyncio.get_running_loop()
        slowest = 0.0
        for number in range(200):
            began = loop.time()
            node = NewNode(body="x" * 20_000)
            await store.sessions.commit(Turn(session="s", turn=f"t{number}", nodes=[node]))
            slowest = max(slowest, loop.time() - began)
        assert slowest < 5, "the writer waited for a reader"
        held_up = log_size(sqlite_path)
        assert held_up > 400 * 4096
        assert reader.execute("SELECT count(*) FROM node").get == 0, "a snapshot moved"
        reader.execute("ROLLBACK")
        reader.close()
        for number in range(200, 400):
            node = NewNode(body="x" * 20_000)
            await store.sessions.commit(Turn(session="s", turn=f"t{number}", nodes=[node]))
        # Without a new start these turns would add more than 4 MB.
        assert log_size(sqlite_path) < held_up + 2 * 200 * 4096, "the log did not start over"


async def test_a_log_that_grew_is_cut_down_when_it_starts_over(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engine.sqlite_schema.LOG_BYTES", 1_000_000)
    async with opened(sqlite_path, synchronous="normal") as store:
        await store.sessions.create("s")
        reader = apsw.Connection(str(sqlite_path))
        reader.execute("BEGIN; SELECT count(*) FROM session").fetchall()
        for number in range(3):
            node = NewNode(body=os.urandom(1_000_000))
            await store.sessions.commit(Turn(session="s", turn=f"t{number}", nodes=[node]))
        assert log_size(sqlite_path) > 3_000_000
        reader.close()
        while log_size(sqlite_path) > 1_000_000:
            # The checkpoint comes when the writer is idle; the next commit starts the log over.
            await asyncio.sleep(0.06)
            await store.sessions.update("s", title="again")
    with pytest.raises(Invalid):
        await holdfast.open(str(sqlite_path), synchronous="extra")
