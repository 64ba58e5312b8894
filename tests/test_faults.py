"""Every public write operation, failed before and after each of its steps, on both databases.

The law: a failed operation leaves all of itself or nothing, never a part; asked again it ends where
an undisturbed one ends. On a file a failed step takes the whole operation back; on a server each
step that writes is a transaction of its own, so what is found may also be the finished operation.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

import holdfast
from holdfast.contract.errors import OutcomeUnknown, StoreUnreachable, Unavailable
from holdfast.contract.records import NewNode, Receipt, StateRef, Turn, Usage
from holdfast.contract.stores import Store
from holdfast.core.payloads import content_digest
from holdfast.stores import Store as AsyncStore
from holdfast.stores_blocking import BlockingStore
from holdfast.testing.async_over import AsyncOver
from holdfast.testing.faults import Place, Plan, wrap

if TYPE_CHECKING:
    from tests.conftest import Database, Rows

Act = Callable[[Store, dict[str, Any]], Awaitable[object]]

FULL_TURN = Turn(
    session="s",
    turn="full",
    nodes=[
        NewNode(id="f1", body={"n": 1}),
        NewNode(id="f2", body=b"raw"),
        NewNode(id="f3", body="branch", parent="f1"),
    ],
    leaf="f2",
    state={
        "agent": b"changed" * 200,
        "tools": None,
        "copy": StateRef(digest=content_digest(b"kept").hex()),
    },
    usage=[Usage(model="m", input=5), Usage(model="m", output=7, currency="EUR")],
    expected=2,
)


async def prepare(store: Store, kept: dict[str, Any]) -> None:
    """A session with two turns, one hidden node, a lane of another session, and a line of forks."""
    await store.sessions.create("s", title="t", tags={"a": "1", "b": "2"})
    first = Turn(
        session="s",
        turn="one",
        nodes=[NewNode(id="n1", body="one"), NewNode(id="n2", body="two")],
        state={"agent": b"first", "tools": b"kept"},
        usage=[Usage(model="m", input=1)],
    )
    await store.sessions.commit(first)
    second = Turn(session="s", turn="two", nodes=[NewNode(id="n3", body="hidden", parent="n1")])
    await store.sessions.commit(second)
    await store.history.tombstone("s", ["n2"])
    # Each of these keeps what the one before it has left, although that one is deleted.
    for source, fork in (("line", "line2"), ("line2", "line3")):
        await store.sessions.create(source)
        await store.sessions.commit(
            Turn(
                session=source,
                turn=f"of-{source}",
                nodes=[NewNode(id=f"of-{source}", body=source)],
                state={source: source.encode()},
            )
        )
        await store.sessions.fork(source, fork)
    await store.sessions.delete("line")
    await store.sessions.delete("line2")
    await store.sessions.create("laned")
    kept["fence"] = (await store.lanes.claim("laned", "owner", ttl_ms=600_000)).fence


async def fenced(store: Store, kept: dict[str, Any]) -> object:
    turn = Turn(session="laned", turn="f", nodes=[NewNode(body=1)], fence=kept["fence"])
    return await store.sessions.commit(msgspec.structs.replace(turn, release=True))


ACTS: dict[str, Act] = {
    "create": lambda s, k: s.sessions.create("new", title="t", tags={"x": "1", "y": "2"}),
    "update": lambda s, k: s.sessions.update("s", title="new", tags={"a": None, "c": "3"}),
    "commit": lambda s, k: s.sessions.commit(FULL_TURN),
    "commit fenced": fenced,
    "fork": lambda s, k: s.sessions.fork("s", "fork", revision=1, tags={"x": "1"}),
    "rewind": lambda s, k: s.sessions.rewind("s", turn="back", revision=1, reason="why"),
    "delete": lambda s, k: s.sessions.delete("s"),
    "delete a line": lambda s, k: s.sessions.delete("line3"),
    "tombstone": lambda s, k: s.history.tombstone("s", ["n1", "n3"]),
    "vacuum": lambda s, k: s.history.vacuum("s"),
    "claim": lambda s, k: s.lanes.claim("s", "owner", ttl_ms=600_000),
    "renew": lambda s, k: s.lanes.renew(k["fence"], ttl_ms=900_000),
    "release": lambda s, k: s.lanes.release(k["fence"]),
    "displace": lambda s, k: s.lanes.displace("laned"),
}
# What cannot be equal in two runs: times, secrets, and what is made of the tenant.
UNEQUAL = {"active_minute", "day", "lane_token", "tenant"}


def comparable(rows: Rows) -> Rows:
    return {
        table: sorted(
            ({name: masked(table, name, value) for name, value in row.items()} for row in found),
            key=repr,
        )
        for table, found in rows.items()
    }


def masked(table: str, name: str, value: Any) -> Any:
    """The value, less what cannot be equal; what is there stays told from what is not."""
    if value is None:
        return None
    if name == "intent":
        # Its seal covers the tenant, and every test of an operation has a tenant of its own.
        return bytes(value)[:32]
    sealed = name == "digest" and table not in ("blob", "component")
    timed = name.endswith("_at_ms") or name == "at_ms"
    return "masked" if sealed or timed or name in UNEQUAL else value


class Bench:
    """One handle, seen as many tenants, with a plan in between."""

    def __init__(self, store: AsyncStore | BlockingStore) -> None:
        self.plan = Plan()
        self._store = store

    def tenant(self, name: str) -> Store:
        if isinstance(self._store, AsyncStore):
            view = dataclasses.replace(self._store._view, tenant=name)
            return wrap(AsyncStore(view), self.plan)
        blocking = dataclasses.replace(self._store._view, tenant=name)
        return cast(Store, AsyncOver(wrap(BlockingStore(blocking), self.plan)))


@contextlib.asynccontextmanager
async def opened(database: Database, colour: str) -> AsyncIterator[Bench]:
    if colour == "async":
        async with database.open() as store:
            yield Bench(store)
    else:
        blocking = await asyncio.to_thread(holdfast.open_sync, database.url)
        try:
            yield Bench(blocking)
        finally:
            await asyncio.to_thread(blocking.close)


# The two colours share the engine beneath; of the blocking one a few operations are enough.
BLOCKING = ("commit", "rewind", "delete")
CASES = [("async", name) for name in ACTS] + [("blocking", name) for name in BLOCKING]


@pytest.mark.parametrize(("colour", "name"), CASES)
async def test_a_failed_operation_is_never_half_stored(
    database: Database, colour: str, name: str
) -> None:
    act = ACTS[name]
    async with opened(database, colour) as bench:
        clean = bench.tenant("clean")
        kept: dict[str, Any] = {}
        await prepare(clean, kept)
        await act(clean, kept)
        steps = list(bench.plan.steps)
        done = comparable(await database.rows("clean"))
        places: list[tuple[Place, int]] = [("answer", 0)]
        for step in range(1, len(steps) + 1):
            places += [("before", step), ("after", step)]
        for place, step in places:
            tenant = f"{place}{step}"
            store = bench.tenant(tenant)
            kept = {}
            await prepare(store, kept)
            before = comparable(await database.rows(tenant))
            bench.plan.arm(place, step=step)
            error: type[Unavailable] = StoreUnreachable if place == "before" else OutcomeUnknown
            with pytest.raises(error) as caught:
                await act(store, kept)
            assert type(caught.value) is error
            assert bench.plan.struck()
            found = comparable(await database.rows(tenant))
            if place == "answer":
                assert found == done
            elif database.kind == "postgres" and name == "delete a line":
                # Each session of the line is deleted whole; what is left is reclaimed below.
                assert found == before or (place, step) != ("before", 1)
            elif database.kind == "sqlite" or (place, step) == ("before", 1):
                assert found == before
            else:
                assert found in (before, done), f"half stored: {place} step {step} of {steps}"
            again = await act(store, kept)
            assert not bench.plan.struck()
            found = comparable(await database.rows(tenant))
            if name == "displace":
                # An operator who takes a lane twice takes it twice: only its number differs.
                found["session"] = done["session"]
            assert found == done, f"{place} step {step} of {steps}"
            if place == "answer" and name in ("commit", "commit fenced", "rewind"):
                assert isinstance(again, Receipt)
                assert again.replayed
        await store.sessions.create("goes-on")


@pytest.mark.parametrize("colour", ["async", "blocking"])
async def test_a_failed_read_is_told_and_the_next_one_is_answered(
    database: Database, colour: str
) -> None:
    async with opened(database, colour) as bench:
        store = bench.tenant("a")
        await prepare(store, {})
        bench.plan.arm("before", step=3)
        with pytest.raises(StoreUnreachable) as caught:
            await store.sessions.diff("s", "laned")
        assert "step 3" in str(caught.value)
        assert bench.plan.steps[0] == "sessions.head"
        assert (await store.sessions.diff("s", "laned")).left.session == "s"


async def test_a_plan_that_is_not_met_disturbs_nothing(sqlite_database: Database) -> None:
    async with opened(sqlite_database, "async") as bench:
        store = bench.tenant("a")
        bench.plan.arm("before", step=9)
        assert (await store.sessions.create("s")).created
        assert not bench.plan.struck()
        assert bench.plan.steps == ["sessions.create", "sessions.get"]
