"""Every public write operation, failed before and after each of its steps, on both databases.

The law: a failed operation leaves all of itself or nothing, never a part; asked again it ends where
an undisturbed one ends. On a file a failed step takes the whole operation back; on a server each
step that writes is a transaction of its own, so what is found may also be the finished operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from holdfast.contract.errors import StoreUnreachable
from holdfast.contract.records import NewNode, Receipt, StateRef, Turn, Usage
from holdfast.contract.stores import Store
from holdfast.core.payloads import content_digest
from tests.faulting import Act, Struck, opened, strike_everywhere

if TYPE_CHECKING:
    from tests.conftest import Database

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
# The two colours share the engine beneath; of the blocking one a few operations are enough.
BLOCKING = ("commit", "rewind", "delete")
CASES = [("async", name) for name in ACTS] + [("blocking", name) for name in BLOCKING]


@pytest.mark.parametrize(("colour", "name"), CASES)
async def test_a_failed_operation_is_never_half_stored(
    database: Database, colour: str, name: str
) -> None:
    async def check(struck: Struck) -> None:
        again = await ACTS[name](struck.store, struck.kept)
        found = await struck.rows()
        if name == "displace":
            # An operator who takes a lane twice takes it twice: only its number differs.
            found["session"] = struck.undisturbed["session"]
        assert found == struck.undisturbed, struck.at
        if struck.done and name in ("commit", "commit fenced", "rewind"):
            assert isinstance(again, Receipt)
            assert again.replayed
        await struck.store.sessions.create("goes-on")

    # Each session of a line is deleted whole; what is left is reclaimed by the next time.
    in_parts = name == "delete a line"
    await strike_everywhere(database, colour, prepare, ACTS[name], check, in_parts=in_parts)


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
