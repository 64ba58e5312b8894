"""The turn: the unit of commit.

A turn commits nodes, state, usage and settled work, all of it or nothing. It leaves a receipt; the
same turn sent again returns the receipt and does nothing, so a turn is done once however often it
is tried.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from holdfast.contract.errors import (
    AttachmentUnknown,
    ClaimLost,
    ComponentMissing,
    HeadMoved,
    Invalid,
    LaneBusy,
    NodeCollision,
    NodeUnknown,
    SessionDeleted,
    SessionUnknown,
    TooLarge,
    TurnConflict,
)
from holdfast.contract.records import (
    Fence,
    NewNode,
    Receipt,
    StateRef,
    Turn,
    Usage,
    WorkClaim,
)
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import Kit, graph, grow, path, picture, refused, works

NOWHERE = StateRef(digest="ab" * 32)


def full_turn(turn: str = "t", **other: object) -> Turn:
    """A turn with something of everything, for session "s"."""
    whole = Turn(
        session="s",
        turn=turn,
        nodes=[
            NewNode(id=f"{turn}-1", body={"text": "hello"}),
            NewNode(id=f"{turn}-2", body="two", kind="note"),
        ],
        state={"agent": f"state of {turn}".encode()},
        usage=[Usage(model="m", input=7, output=3)],
    )
    return msgspec.structs.replace(whole, **other)


async def test_law_016_a_created_session_loads_empty_before_its_first_turn(kit: Kit) -> None:
    """A session that has been created and not yet written to loads as an empty history; one that
    was not created loads as None. (16)"""
    async with kit.open() as store:
        assert await store.history.load("s") is None
        await store.sessions.create("s")
        history = await store.history.load("s")
        assert history is not None
        assert (history.revision, history.leaf, history.nodes) == (0, None, ())


async def test_law_017_first_commit_yields_revision_one(kit: Kit) -> None:
    """The first turn of a session yields revision 1, and each further turn one more; the head, a
    load and the catalog report the same revision. (17)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        for revision in (1, 2, 3):
            receipt = await store.sessions.commit(
                Turn(session="s", turn=f"t{revision}", nodes=[NewNode(body="x")])
            )
            assert (receipt.session, receipt.turn) == ("s", f"t{revision}")
            assert (receipt.revision, receipt.replayed) == (revision, False)
            assert (receipt.leaf, receipt.node_count) == (f"t{revision}:0", revision)
            head = await store.sessions.head("s")
            history = await store.history.load("s")
            info = await store.sessions.get("s")
            assert head is not None
            assert history is not None
            assert info is not None
            assert head.revision == history.revision == info.revision == revision


async def test_law_021_a_turn_changes_only_its_own_session(kit: Kit) -> None:
    """A turn changes the session it names and no other, whatever the handle was used for before; a
    turn for a session that was never created stores nothing. (21)"""
    async with kit.open() as store:
        await grow(store, "alpha", "a")
        await grow(store, "beta", "a")
        before = await picture(store, "beta", turn="t-a")
        await grow(store, "alpha", "b")
        assert await picture(store, "beta", turn="t-a") == before
        async with refused(store, "alpha", SessionUnknown) as it:
            await store.sessions.commit(Turn(session="gamma", turn="t", nodes=[NewNode(body="x")]))
        assert it.value.session == "gamma"
        assert await store.sessions.get("gamma") is None
        assert await path(store, "beta") == ["a"]
        await works(store, "alpha")


async def test_law_022_of_two_concurrent_turns_one_wins(kit: Kit) -> None:
    """Of two concurrent turns on different handles that expect revision 0, exactly one is
    committed; the other is refused with HeadMoved, and the revision is 1. (22)"""
    async with kit.open() as one, kit.open() as two:
        await one.sessions.create("s")
        answers = await asyncio.gather(
            one.sessions.commit(full_turn("one", expected=0)),
            two.sessions.commit(full_turn("two", expected=0)),
            return_exceptions=True,
        )
        (won,) = [answer for answer in answers if isinstance(answer, Receipt)]
        (lost,) = [answer for answer in answers if not isinstance(answer, Receipt)]
        assert isinstance(lost, HeadMoved)
        assert (lost.session, lost.expected, lost.actual) == ("s", 0, 1)
        assert won.revision == 1
        for handle in (one, two):
            head = await handle.sessions.head("s")
            assert head is not None
            assert (head.revision, head.node_count) == (1, 2)
            assert await graph(handle, "s") == [f"{won.turn}-1", f"{won.turn}-2"]
        await works(one, "s")
        await works(two, "s")


async def test_law_023_a_loser_leaves_nothing_behind(kit: Kit) -> None:
    """A turn that is refused because the head has moved leaves nothing: no nodes, no state, no
    usage, no receipt; the same turn may be committed afterwards. (23)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        async with refused(store, "s", HeadMoved, turn="late") as it:
            await store.sessions.commit(full_turn("late", expected=0))
        assert (it.value.expected, it.value.actual) == (0, 1)
        assert await store.sessions.receipt("s", "late") is None
        assert await store.history.node("s", "late-1") is None
        assert await store.usage.totals(session="s") == ()
        assert (await store.sessions.commit(full_turn("late", expected=1))).revision == 2
        assert await path(store, "s") == ["a", "late-1", "late-2"]


async def test_law_024_the_expected_revision_is_checked_when_given(kit: Kit) -> None:
    """A turn without an expected revision is committed on whatever is current; one with an expected
    revision only there, else HeadMoved says what was expected and what is. (24)"""
    async with kit.open() as store:
        await grow(store, "s", "a", "b")
        assert (await store.sessions.commit(full_turn("t3"))).revision == 3
        for wrong in (0, 2, 4, 2**62):
            async with refused(store, "s", HeadMoved, turn="t4") as it:
                await store.sessions.commit(full_turn("t4", expected=wrong))
            assert it.value.session == "s"
            assert (it.value.expected, it.value.actual) == (wrong, 3)
            assert (it.value.code, it.value.retryable) == ("head-moved", False)
        assert (await store.sessions.commit(full_turn("t4", expected=3))).revision == 4


async def test_law_025_head_moved_names_the_revision_that_is_read(kit: Kit) -> None:
    """The actual revision that HeadMoved names is the one a read reports, and a turn that expects
    it is committed. (25)"""
    async with kit.open() as store, kit.open() as other:
        await grow(store, "s", "a", "b")
        await grow(other, "s", "c")
        with pytest.raises(HeadMoved) as it:
            await store.sessions.commit(full_turn(expected=2))
        assert it.value.actual == 3
        head = await store.sessions.head("s")
        assert head is not None
        assert head.revision == 3
        assert (await store.sessions.commit(full_turn(expected=3))).revision == 4


async def test_law_026_the_same_turn_again_returns_its_receipt(kit: Kit) -> None:
    """The same turn again returns the first receipt, marked as replayed, from any handle and as
    often as it is sent; nodes, state, usage, head and activity do not change. (26)"""
    async with kit.open() as store, kit.open() as other:
        await store.sessions.create("s")
        first = await store.sessions.commit(full_turn())
        assert first.replayed is False
        before = await picture(store, "s", turn="t")
        for handle in (store, other, store):
            again = await handle.sessions.commit(full_turn())
            assert again == msgspec.structs.replace(first, replayed=True)
        assert await picture(store, "s", turn="t") == before
        assert await graph(store, "s") == ["t-1", "t-2"]
        await works(store, "s")


async def test_law_027_another_turn_under_the_same_id_is_refused(kit: Kit) -> None:
    """A turn with other content under an id that was committed is refused with TurnConflict, and
    nothing changes; the first content still replays. (27)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await store.sessions.commit(full_turn())
        async with refused(store, "s", TurnConflict, turn="t") as it:
            await store.sessions.commit(full_turn(state={"agent": b"other"}))
        assert (it.value.session, it.value.turn) == ("s", "t")
        assert (it.value.code, it.value.retryable) == ("turn-conflict", False)
        assert (await store.sessions.commit(full_turn())).replayed is True
        await works(store, "s")


async def test_law_028_the_same_turn_id_in_two_sessions_is_two_turns(kit: Kit) -> None:
    """Turn ids belong to their session: the same id in two sessions is two turns with a receipt
    each, also where the content is the same. (28)"""
    async with kit.open() as store:
        for session in ("one", "two"):
            await store.sessions.create(session)
            receipt = await store.sessions.commit(
                Turn(session=session, turn="t", nodes=[NewNode(id="n", body="same")])
            )
            assert (receipt.session, receipt.revision, receipt.replayed) == (session, 1, False)
        for session in ("one", "two"):
            found = await store.sessions.receipt(session, "t")
            assert found is not None
            assert (found.session, found.turn, found.revision) == (session, "t", 1)
            assert await path(store, session) == ["n"]


async def test_law_029_a_replay_needs_no_lane_and_no_revision(kit: Kit) -> None:
    """A replay succeeds although the expected revision is stale, although somebody else holds the
    lane, and although its own fence is dead. (29)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        lane = await store.lanes.claim("s", "worker")
        turn = full_turn(expected=0, fence=lane.fence)
        first = await store.sessions.commit(turn)
        assert await store.lanes.release(lane.fence) is True
        await grow(store, "s", "later")
        await store.lanes.claim("s", "rival")
        before = await picture(store, "s", turn="t")
        for retry in (turn, full_turn(), full_turn(expected=5)):
            again = await store.sessions.commit(retry)
            assert again == msgspec.structs.replace(first, replayed=True)
        assert await picture(store, "s", turn="t") == before


async def test_law_030_the_intent_is_what_the_turn_means(kit: Kit) -> None:
    """Whether a turn is the same is decided by what it means: not by the expected revision, the
    fence, the release, or the ids it gives to its new nodes. The receipt of a replay names the
    stored leaf, not the new id. (30)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        first = await store.sessions.commit(full_turn(expected=1))
        assert first.leaf == "t-2"
        lane = await store.lanes.claim("s", "worker")
        fresh = [
            NewNode(id="new-1", body={"text": "hello"}),
            NewNode(id="new-2", body="two", kind="note", parent="new-1"),
        ]
        retries = (
            full_turn(nodes=fresh),
            full_turn(nodes=fresh, expected=0, fence=lane.fence),
            full_turn(nodes=[msgspec.structs.replace(node, id=None) for node in full_turn().nodes]),
            full_turn(expected=2, fence=lane.fence, release=True),
        )
        for retry in retries:
            again = await store.sessions.commit(retry)
            assert again == msgspec.structs.replace(first, replayed=True)
        assert await graph(store, "s") == ["a", "t-1", "t-2"]
        assert await store.history.node("s", "new-1") is None
        await works(store, "s")


async def test_law_055_the_store_derives_the_intent_from_the_content(kit: Kit) -> None:
    """The store itself works out what a turn means, from all it holds: another body, kind, order,
    structure, leaf, state, usage, attachment or claimed work under the same id is a
    TurnConflict. (55)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        await store.sessions.commit(full_turn())
        one, two = full_turn().nodes
        used = Usage(model="m", input=7, output=3)
        claim = WorkClaim(claim="c", token="k", work=("w",))
        changed = msgspec.structs.replace
        variants = {
            "body": full_turn(nodes=[changed(one, body={"text": "bye"}), two]),
            "kind": full_turn(nodes=[one, changed(two, kind="other")]),
            "order": full_turn(nodes=[changed(two, id="x"), changed(one, id="y")]),
            "one less": full_turn(nodes=[one]),
            "one more": full_turn(nodes=[one, two, NewNode(body="three")]),
            "none": full_turn(nodes=[]),
            "root": full_turn(nodes=[changed(one, parent=None), two]),
            "structure": full_turn(nodes=[changed(one, parent="a"), changed(two, parent="a")]),
            "leaf": full_turn(leaf="t-1"),
            "state value": full_turn(state={"agent": b"state of T"}),
            "state name": full_turn(state={"tools": b"state of t"}),
            "state cleared": full_turn(state={"agent": None}),
            "state more": full_turn(state={"agent": b"state of t", "tools": b""}),
            "state none": full_turn(state={}),
            "usage amount": full_turn(usage=[changed(used, output=4)]),
            "usage class": full_turn(usage=[changed(used, output=0, reasoning=3)]),
            "usage model": full_turn(usage=[changed(used, model="n")]),
            "usage source": full_turn(usage=[changed(used, source="tool")]),
            "usage cost": full_turn(usage=[changed(used, cost_micros=1)]),
            "usage twice": full_turn(usage=[used, used]),
            "usage none": full_turn(usage=[]),
            "attachment": full_turn(attachments=["cd" * 32]),
            "work": full_turn(claims=[claim]),
        }
        for name, variant in variants.items():
            async with refused(store, "s", TurnConflict, turn="t") as it:
                await store.sessions.commit(variant)
            assert (it.value.session, it.value.turn) == ("s", "t"), name
        assert (await store.sessions.commit(full_turn())).replayed is True
        chain = [NewNode(body=1, parent="a"), NewNode(body=2), NewNode(body=3)]
        await store.sessions.commit(Turn(session="s", turn="u", nodes=chain))
        for index, parent in ((1, "a"), (2, "a"), (2, "u:0")):
            other = list(chain)
            other[index] = changed(chain[index], parent=parent)
            async with refused(store, "s", TurnConflict, turn="u"):
                await store.sessions.commit(Turn(session="s", turn="u", nodes=other))
        assert (await store.sessions.commit(Turn(session="s", turn="u", nodes=chain))).replayed
        await works(store, "s")


async def test_law_056_a_turn_replays_after_the_head_has_advanced(kit: Kit) -> None:
    """A turn replays after other turns have moved the head; the receipt is as it was, and the
    head stays where the others have moved it. (56)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        first = await store.sessions.commit(full_turn())
        await grow(store, "s", "b", "c")
        again = await store.sessions.commit(full_turn())
        assert again == msgspec.structs.replace(first, replayed=True)
        assert (again.revision, again.leaf, again.node_count) == (1, "t-2", 2)
        assert await path(store, "s") == ["t-1", "t-2", "b", "c"]
        async with refused(store, "s", TurnConflict, turn="t"):
            await store.sessions.commit(full_turn(usage=[]))
        await works(store, "s")


async def test_law_057_a_turn_may_name_the_place_it_extends(kit: Kit) -> None:
    """A turn may name the stored node it extends. An advanced head alone is tolerated: the turn
    becomes a branch at that node, and the head moves there. A place that is not there is refused,
    and nothing changes. (57)"""
    async with kit.open() as store:
        await grow(store, "s", "a", "b", "c")
        nodes = [NewNode(id="x", body="x", parent="a"), NewNode(id="y", body="y")]
        receipt = await store.sessions.commit(Turn(session="s", turn="branch", nodes=nodes))
        assert (receipt.revision, receipt.leaf) == (4, "y")
        assert await path(store, "s") == ["a", "x", "y"]
        assert await path(store, "s", leaf="c") == ["a", "b", "c"]
        lost = [NewNode(id="z", body="z", parent="nowhere")]
        async with refused(store, "s", NodeUnknown, turn="lost") as it:
            await store.sessions.commit(Turn(session="s", turn="lost", nodes=lost))
        assert (it.value.field, it.value.session) == ("nodes[0].parent", "s")
        assert (it.value.node, it.value.code) == ("nowhere", "node-unknown")
        await works(store, "s")


async def test_law_058_a_turn_over_the_limits_is_refused(kit: Kit) -> None:
    """A turn of more than 16 MiB or 4,096 rows is refused with TooLarge, which names the limit and
    the size, before anything is written. A turn below the limits is committed. (58)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        half = b"\xff" * (9 * 1024 * 1024)
        async with refused(store, "s", TooLarge, turn="t") as it:
            await store.sessions.commit(full_turn(nodes=[NewNode(body=half), NewNode(body=half)]))
        assert it.value.limit == 16 * 1024 * 1024
        assert it.value.actual >= 18 * 1024 * 1024
        async with refused(store, "s", TooLarge, turn="t") as it:
            await store.sessions.commit(full_turn(state={"one": half, "two": half[:-1] + b"0"}))
        assert it.value.limit == 16 * 1024 * 1024
        many = [NewNode(body=number) for number in range(4097)]
        async with refused(store, "s", TooLarge, turn="t") as it:
            await store.sessions.commit(full_turn(nodes=many))
        assert it.value.limit == 4096
        assert it.value.actual >= 4097
        assert (await store.sessions.commit(full_turn(nodes=many[:4000]))).node_count == 4001
        await works(store, "s")


async def test_law_c01_a_session_is_created_before_it_is_written_to(kit: Kit) -> None:
    """A turn for a session that does not exist is refused with SessionUnknown and creates nothing;
    after a create the same turn is committed. (c01)"""
    async with kit.open() as store:
        async with refused(store, "s", SessionUnknown, turn="t") as it:
            await store.sessions.commit(full_turn(expected=0))
        assert (it.value.session, it.value.code) == ("s", "session-unknown")
        assert (await store.sessions.list()).items == ()
        assert (await store.sessions.create("s")).created is True
        assert (await store.sessions.commit(full_turn(expected=0))).revision == 1


async def test_law_c02_refusals_come_in_a_fixed_order(kit: Kit) -> None:
    """A turn with several faults is refused for the first of: session, receipt, lane, expected
    revision, claimed work, place, node ids, state, attachments. (c02)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        await store.sessions.commit(Turn(session="s", turn="done"))
        changed = msgspec.structs.replace
        wrong = Turn(
            session="s",
            turn="done",
            nodes=[NewNode(id="a", body="again", parent="nowhere")],
            state={"agent": NOWHERE},
            expected=99,
            claims=[WorkClaim(claim="c", token="k", work=("w",))],
            attachments=["cd" * 32],
        )
        lane = await store.lanes.claim("s", "rival")
        async with refused(store, "s", SessionUnknown):
            await store.sessions.commit(changed(wrong, session="ghost"))
        async with refused(store, "s", TurnConflict):
            await store.sessions.commit(wrong)
        wrong = changed(wrong, turn="t")
        async with refused(store, "s", LaneBusy):
            await store.sessions.commit(wrong)
        assert await store.lanes.release(lane.fence) is True
        async with refused(store, "s", HeadMoved):
            await store.sessions.commit(wrong)
        wrong = changed(wrong, expected=2)
        async with refused(store, "s", ClaimLost):
            await store.sessions.commit(wrong)
        wrong = changed(wrong, claims=())
        async with refused(store, "s", NodeUnknown):
            await store.sessions.commit(wrong)
        wrong = changed(wrong, nodes=[NewNode(id="a", body="again")])
        async with refused(store, "s", NodeCollision):
            await store.sessions.commit(wrong)
        wrong = changed(wrong, nodes=[NewNode(id="b", body="b")])
        async with refused(store, "s", ComponentMissing):
            await store.sessions.commit(wrong)
        wrong = changed(wrong, state={})
        async with refused(store, "s", AttachmentUnknown):
            await store.sessions.commit(wrong)
        assert (await store.sessions.commit(changed(wrong, attachments=()))).revision == 3
        await store.sessions.delete("s")
        async with refused(store, "s", SessionDeleted):
            await store.sessions.commit(changed(wrong, turn="done", expected=99))


async def test_law_c03_a_turn_without_an_id_gets_one(kit: Kit) -> None:
    """A turn without an id gets one of its own, which its receipt names; sent again it is another
    turn. (c03)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        turn = Turn(session="s", nodes=[NewNode(body="hello")])
        first = await store.sessions.commit(turn)
        second = await store.sessions.commit(turn)
        assert (first.revision, second.revision) == (1, 2)
        assert (first.replayed, second.replayed) == (False, False)
        assert first.turn != second.turn
        assert await path(store, "s") == [f"{first.turn}:0", f"{second.turn}:0"]
        found = await store.sessions.receipt("s", first.turn)
        assert found is not None
        assert (found.turn, found.revision) == (first.turn, 1)


async def test_law_c04_an_empty_turn_is_a_turn(kit: Kit) -> None:
    """A turn that holds nothing is still a turn: it makes a revision and a receipt, and leaves the
    leaf, the state and the nodes as they are. (c04)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await store.sessions.commit(full_turn())
        before = await store.history.load("s")
        receipt = await store.sessions.commit(Turn(session="s", turn="empty"))
        assert (receipt.revision, receipt.leaf, receipt.node_count) == (2, "t-2", 2)
        after = await store.history.load("s")
        assert before is not None
        assert after is not None
        assert (after.nodes, after.state, after.revision) == (before.nodes, before.state, 2)
        assert (await store.sessions.commit(Turn(session="s", turn="empty"))).replayed is True


async def test_law_c05_the_receipt_is_stored_with_the_turn(kit: Kit) -> None:
    """The receipt of a committed turn can be read from any handle; that of a turn which was
    refused, or never sent, is None. (c05)"""
    async with kit.open() as store, kit.open() as other:
        await store.sessions.create("s")
        first = await store.sessions.commit(full_turn())
        await grow(store, "s", "b")
        for handle in (store, other):
            found = await handle.sessions.receipt("s", "t")
            assert found is not None
            assert msgspec.structs.replace(found, replayed=False) == first
        with pytest.raises(HeadMoved):
            await store.sessions.commit(full_turn("refused", expected=0))
        assert await store.sessions.receipt("s", "refused") is None
        assert await store.sessions.receipt("s", "never") is None


async def test_law_c06_claimed_work_must_be_owned(kit: Kit) -> None:
    """A turn that settles work which its claim does not own is refused with ClaimLost, and nothing
    changes. (c06)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        claim = WorkClaim(claim="c1", token="guess", work=("w1",))
        async with refused(store, "s", ClaimLost, turn="t") as it:
            await store.sessions.commit(full_turn(claims=[claim]))
        assert (it.value.session, it.value.claim) == ("s", "c1")
        assert (it.value.code, it.value.retryable) == ("claim-lost", False)
        await works(store, "s")


async def test_law_c07_attachments_must_be_there(kit: Kit) -> None:
    """A turn that names an attachment the session does not have is refused with AttachmentUnknown,
    and nothing changes. (c07)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        async with refused(store, "s", AttachmentUnknown, turn="t") as it:
            await store.sessions.commit(full_turn(attachments=["cd" * 32]))
        assert (it.value.session, it.value.attachment) == ("s", "cd" * 32)
        assert it.value.code == "attachment-unknown"
        await works(store, "s")


async def test_law_c08_every_turn_is_a_revision(kit: Kit) -> None:
    """Every turn makes one entry in the history of heads, newest first, which names the turn, the
    leaf and the depth; a replay and a refusal make none. (c08)"""
    async with kit.open() as store:
        await grow(store, "s", "a", "b")
        await _replay_and_refuse(store)
        rows = (await store.sessions.revisions("s")).items
        seen = [(row.revision, row.kind, row.turn, row.leaf, row.depth) for row in rows]
        assert seen == [
            (2, "turn", "t-b", "b", 2),
            (1, "turn", "t-a", "a", 1),
            (0, "created", None, None, 0),
        ]
        assert [row.reason for row in rows] == [None, None, None]
        assert rows[0].at_ms >= rows[1].at_ms >= rows[2].at_ms
        first = await store.sessions.revisions("s", limit=2)
        assert first.items == rows[:2]
        assert first.next is not None
        rest = await store.sessions.revisions("s", limit=2, after=first.next)
        assert (rest.items, rest.next) == (rows[2:], None)


async def _replay_and_refuse(store: Store) -> None:
    """A replay, and a refusal: neither makes a revision."""
    await store.sessions.commit(Turn(session="s", turn="t-b", nodes=[NewNode(id="b", body="b")]))
    async with refused(store, "s", HeadMoved):
        await store.sessions.commit(full_turn(expected=1))


async def test_law_c09_ill_formed_turns_are_refused(kit: Kit) -> None:
    """An ill-formed id, kind, owner or number in a turn is refused with Invalid, which names the
    field, also where the session does not exist. (c09)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        fence = Fence(session="s", owner="o", token="k", generation=1)
        changed = msgspec.structs.replace
        wrong = {
            "turn": Turn(session="s", turn="a b"),
            "nodes[0].id": Turn(session="s", turn="t", nodes=[NewNode(id="", body=1)]),
            "nodes[1].kind": Turn(
                session="s", turn="t", nodes=[NewNode(body=1), NewNode(body=2, kind="")]
            ),
            "nodes[0].parent": Turn(session="s", turn="t", nodes=[NewNode(body=1, parent="")]),
            "leaf": Turn(session="s", turn="t", leaf=""),
            "expected": Turn(session="s", turn="t", expected=-1),
            "fence.owner": Turn(session="s", turn="t", fence=changed(fence, owner="")),
            "fence.generation": Turn(session="s", turn="t", fence=changed(fence, generation=-1)),
            "usage[0].model": Turn(session="s", turn="t", usage=[Usage(model="")]),
        }
        for field, turn in wrong.items():
            async with refused(store, "s", Invalid, turn="t") as it:
                await store.sessions.commit(turn)
            assert (it.value.field, it.value.code) == (field, "invalid")
            async with refused(store, "ghost", Invalid, turn="t") as it:
                if field.startswith("fence"):
                    assert turn.fence is not None
                    turn = changed(turn, fence=changed(turn.fence, session="ghost"))
                await store.sessions.commit(changed(turn, session="ghost"))
            assert it.value.field == field
        await works(store, "s")
