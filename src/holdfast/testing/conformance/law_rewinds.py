"""Rewinds: moving a session's own leaf and state back.

A rewind forgets nothing: it is a new revision, with a reason, whose leaf and state are those of an
earlier one. It is committed as a turn is: it obeys the lane and the expected revision, and the
same rewind again returns its receipt.
"""

from __future__ import annotations

import msgspec
import pytest

from holdfast.contract.errors import (
    HeadMoved,
    Invalid,
    LaneBusy,
    LaneLost,
    NodeUnknown,
    NotRetained,
    SessionDeleted,
    SessionUnknown,
    TooLarge,
    TurnConflict,
)
from holdfast.contract.records import NewNode, Turn
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import Kit, graph, grow, path, picture, refused, works


async def three_turns(store: Store) -> None:
    """Session "s" of three turns: nodes a, b, c, and state that changes with each."""
    await store.sessions.create("s")
    for number, node in enumerate("abc", 1):
        nodes = [NewNode(id=node, body=node)]
        state = {"agent": str(number).encode(), f"only-{node}": b"x"}
        await store.sessions.commit(Turn(session="s", turn=f"t-{node}", nodes=nodes, state=state))


async def state(store: Store) -> dict[str, bytes]:
    history = await store.history.load("s")
    assert history is not None
    return history.state


async def test_law_r01_a_rewind_restores_a_revision(kit: Kit) -> None:
    """A rewind to an earlier revision makes a new revision with the leaf and the state of that one.
    Nothing is forgotten: the nodes and revisions between stay readable. (r01)"""
    async with kit.open() as store, kit.open() as other:
        await three_turns(store)
        receipt = await store.sessions.rewind("s", turn="r", revision=1, reason="wrong turn")
        assert (receipt.session, receipt.turn, receipt.revision) == ("s", "r", 4)
        assert (receipt.leaf, receipt.node_count, receipt.replayed) == ("a", 3, False)
        for handle in (store, other):
            assert await path(handle, "s") == ["a"]
            assert await state(handle) == {"agent": b"1", "only-a": b"x"}
            assert await path(handle, "s", leaf="c") == ["a", "b", "c"]
            assert await graph(handle, "s") == ["a", "b", "c"]
        head = await store.sessions.head("s")
        assert head is not None
        assert (head.revision, head.leaf, head.depth, head.node_count) == (4, "a", 1, 3)
        old = await store.history.load("s", revision=3)
        assert old is not None
        assert old.state["agent"] == b"3"


async def test_law_r02_a_rewind_records_its_reason(kit: Kit) -> None:
    """The history of heads shows a rewind as an entry of kind "rewound" with its turn, its reason,
    and the leaf, depth and state it restored. (r02)"""
    reason = "Zürich was wrong — 東京 😀"
    async with kit.open() as store:
        await three_turns(store)
        await store.sessions.rewind("s", turn="r", revision=2, reason=reason)
        rows = (await store.sessions.revisions("s")).items
        kinds = [(row.revision, row.kind, row.turn, row.reason) for row in rows]
        assert kinds == [
            (4, "rewound", "r", reason),
            (3, "turn", "t-c", None),
            (2, "turn", "t-b", None),
            (1, "turn", "t-a", None),
            (0, "created", None, None),
        ]
        assert (rows[0].leaf, rows[0].depth, rows[0].state) == ("b", 2, rows[2].state)


async def test_law_r03_a_rewind_restores_the_place_of_a_node(kit: Kit) -> None:
    """A rewind to a node makes it the leaf, with the state of the revision that stored it, on
    whatever branch it is. (r03)"""
    async with kit.open() as store:
        await three_turns(store)
        receipt = await store.sessions.rewind("s", node="b", reason="again")
        assert (receipt.revision, receipt.leaf) == (4, "b")
        assert await path(store, "s") == ["a", "b"]
        assert await state(store) == {"agent": b"2", "only-a": b"x", "only-b": b"x"}
        await grow(store, "s", "d")
        assert await path(store, "s") == ["a", "b", "d"]
        await store.sessions.rewind("s", node="c", reason="no, that one")
        assert await path(store, "s") == ["a", "b", "c"]
        assert (await state(store))["agent"] == b"3"


async def test_law_r04_a_session_goes_on_from_where_it_was_rewound_to(kit: Kit) -> None:
    """The next turn after a rewind extends the restored leaf and changes the restored state; a
    rewind to revision 0 empties both. (r04)"""
    async with kit.open() as store:
        await three_turns(store)
        await store.sessions.rewind("s", revision=1, reason="back")
        await store.sessions.commit(
            Turn(session="s", turn="d", nodes=[NewNode(id="d", body="d")], state={"new": b"y"})
        )
        assert await path(store, "s") == ["a", "d"]
        assert await state(store) == {"agent": b"1", "only-a": b"x", "new": b"y"}
        receipt = await store.sessions.rewind("s", revision=0, reason="all wrong")
        assert (receipt.leaf, receipt.node_count) == (None, 4)
        assert (await path(store, "s"), await state(store)) == ([], {})
        await grow(store, "s", "e")
        assert await path(store, "s") == ["e"]
        receipt = await store.sessions.rewind("s", revision=3, reason="undo the rewind")
        assert receipt.leaf == "c"
        assert await path(store, "s") == ["a", "b", "c"]


async def test_law_r05_the_same_rewind_again_returns_its_receipt(kit: Kit) -> None:
    """The same rewind under the same turn id returns its receipt and does nothing, also after the
    session has gone on and while another holds the lane. (r05)"""
    async with kit.open() as store:
        await three_turns(store)
        first = await store.sessions.rewind("s", turn="r", revision=1, reason="back", expected=3)
        await grow(store, "s", "d")
        await store.lanes.claim("s", "rival")
        before = await picture(store, "s", turn="r")
        again = await store.sessions.rewind("s", turn="r", revision=1, reason="back", expected=9)
        assert again == msgspec.structs.replace(first, replayed=True)
        found = await store.sessions.receipt("s", "r")
        assert found is not None
        assert msgspec.structs.replace(found, replayed=False) == first
        assert await picture(store, "s", turn="r") == before


async def test_law_r06_turns_and_rewinds_share_their_ids(kit: Kit) -> None:
    """A rewind under an id of another rewind, or of a turn, is refused with TurnConflict, and so is
    a turn under an id of a rewind; nothing changes. (r06)"""
    async with kit.open() as store:
        await three_turns(store)
        await store.sessions.rewind("s", turn="r", revision=1, reason="back")
        async with refused(store, "s", TurnConflict, turn="r") as it:
            await store.sessions.rewind("s", turn="r", revision=2, reason="back")
        assert (it.value.session, it.value.turn) == ("s", "r")
        async with refused(store, "s", TurnConflict, turn="r"):
            await store.sessions.rewind("s", turn="r", node="a", reason="back")
        async with refused(store, "s", TurnConflict, turn="t-b") as it:
            await store.sessions.rewind("s", turn="t-b", revision=1, reason="back")
        assert it.value.turn == "t-b"
        async with refused(store, "s", TurnConflict, turn="r"):
            await store.sessions.commit(Turn(session="s", turn="r", leaf="a"))
        await works(store, "s")


async def test_law_r07_a_rewind_without_an_id_is_a_new_one(kit: Kit) -> None:
    """A rewind without a turn id gets one of its own; sent again it is another rewind. (r07)"""
    async with kit.open() as store:
        await three_turns(store)
        first = await store.sessions.rewind("s", revision=1, reason="back")
        second = await store.sessions.rewind("s", revision=1, reason="back")
        assert (first.revision, second.revision) == (4, 5)
        assert first.turn != second.turn
        found = await store.sessions.receipt("s", first.turn)
        assert found is not None
        assert found.revision == 4


async def test_law_r08_a_rewind_obeys_lane_and_revision(kit: Kit) -> None:
    """A rewind is refused with LaneBusy while another works on the session, with LaneLost when its
    fence is dead, and with HeadMoved when the head is not where it expects; with a live fence and
    the right revision it is done. (r08)"""
    async with kit.open() as store:
        await three_turns(store)
        async with refused(store, "s", HeadMoved, turn="r") as moved:
            await store.sessions.rewind("s", turn="r", revision=1, reason="x", expected=2)
        assert (moved.value.expected, moved.value.actual) == (2, 3)
        lane = await store.lanes.claim("s", "worker")
        async with refused(store, "s", LaneBusy, turn="r") as busy:
            await store.sessions.rewind("s", turn="r", revision=1, reason="x")
        assert (busy.value.owner, busy.value.generation) == ("worker", 1)
        assert busy.value.expires_at_ms == lane.expires_at_ms
        stale = msgspec.structs.replace(lane.fence, token="guess")
        async with refused(store, "s", LaneLost, turn="r") as lost:
            await store.sessions.rewind("s", turn="r", revision=1, reason="x", fence=stale)
        assert lost.value.session == "s"
        foreign = msgspec.structs.replace(lane.fence, session="other")
        async with refused(store, "s", Invalid, turn="r") as invalid:
            await store.sessions.rewind("s", turn="r", revision=1, reason="x", fence=foreign)
        assert invalid.value.field == "fence.session"
        receipt = await store.sessions.rewind(
            "s", turn="r", revision=1, reason="x", expected=3, fence=lane.fence
        )
        assert receipt.revision == 4
        await works(store, "s", fence=lane.fence)


async def test_law_r09_a_rewind_needs_a_place_that_is_there(kit: Kit) -> None:
    """A rewind of a session that is unknown or deleted, to a revision that is not there, or to a
    node the session cannot see is refused, each by name, and nothing changes. (r09)"""
    async with kit.open() as store:
        await three_turns(store)
        await grow(store, "gone", "a")
        await grow(store, "other", "theirs")
        await store.sessions.delete("gone")
        await store.history.tombstone("s", ["b"])
        async with refused(store, "s", SessionUnknown) as unknown:
            await store.sessions.rewind("ghost", revision=0, reason="x")
        assert unknown.value.session == "ghost"
        async with refused(store, "gone", SessionDeleted) as deleted:
            await store.sessions.rewind("gone", revision=0, reason="x")
        assert deleted.value.session == "gone"
        for revision in (4, 99):
            async with refused(store, "s", NotRetained, turn="r") as old:
                await store.sessions.rewind("s", turn="r", revision=revision, reason="x")
            assert (old.value.session, old.value.code) == ("s", "not-retained")
            assert str(revision) in old.value.what
        for node in ("nowhere", "theirs", "b"):
            async with refused(store, "s", NodeUnknown, turn="r") as it:
                await store.sessions.rewind("s", turn="r", node=node, reason="x")
            assert (it.value.field, it.value.session) == ("node", "s")
            assert it.value.node == node
        await works(store, "s")


async def test_law_r10_a_rewind_names_one_place_and_a_reason(kit: Kit) -> None:
    """A rewind names a revision or a node, and not both; its reason is text of at most 2,000
    characters without control characters. Anything else is refused, by name. (r10)"""
    async with kit.open() as store:
        await three_turns(store)
        async with refused(store, "s", Invalid) as it:
            await store.sessions.rewind("s", reason="x")
        assert it.value.field in ("revision", "node")
        async with refused(store, "s", Invalid) as it:
            await store.sessions.rewind("s", revision=1, node="a", reason="x")
        assert it.value.field in ("revision", "node")
        async with refused(store, "s", Invalid) as it:
            await store.sessions.rewind("s", revision=-1, reason="x")
        assert it.value.field == "revision"
        async with refused(store, "s", Invalid) as it:
            await store.sessions.rewind("s", turn="a b", revision=1, reason="x")
        assert it.value.field == "turn"
        for bad in ("a\x00b", "\x1b[1m", "\ud800"):
            async with refused(store, "s", Invalid) as it:
                await store.sessions.rewind("s", revision=1, reason=bad)
            assert it.value.field == "reason"
        async with refused(store, "s", TooLarge) as large:
            await store.sessions.rewind("s", revision=1, reason="x" * 2001)
        assert (large.value.field, large.value.actual) == ("reason", 2001)
        assert large.value.limit == 2000
        await store.sessions.rewind("s", revision=1, reason="x" * 2000)
        await works(store, "s")


@pytest.mark.parametrize("by", ["revision", "node"])
async def test_law_r11_a_fork_is_rewound_to_what_it_inherited(kit: Kit, by: str) -> None:
    """A fork may be rewound to where it began, and to nodes it inherited; its origin does not
    move. (r11)"""
    async with kit.open() as store:
        await three_turns(store)
        await store.sessions.fork("s", "fork")
        await grow(store, "fork", "f")
        await store.sessions.commit(Turn(session="fork", turn="t", state={"agent": b"fork"}))
        before = await picture(store, "s")
        if by == "revision":
            await store.sessions.rewind("fork", revision=0, reason="begin again")
            assert await path(store, "fork") == ["a", "b", "c"]
        else:
            await store.sessions.rewind("fork", node="a", reason="begin again")
            assert await path(store, "fork") == ["a"]
        history = await store.history.load("fork")
        assert history is not None
        assert history.state["agent"] == (b"3" if by == "revision" else b"1")
        assert await picture(store, "s") == before
        await works(store, "fork")
