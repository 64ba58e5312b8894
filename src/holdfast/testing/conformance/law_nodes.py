"""Nodes: what a turn stores, and where it hangs.

A node is one history entry: immutable, written once, with one parent. A turn extends one place,
which is the leaf of the session unless the turn names another; its nodes hang there or on earlier
nodes of the turn. So the nodes of a session are trees, never cycles, and no parent is missing.
"""

from __future__ import annotations

import pytest
from msgspec import UNSET, UnsetType

from holdfast.contract.errors import Invalid, NodeCollision, NodeUnknown
from holdfast.contract.records import NewNode, Node, Turn
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import Kit, graph, grow, path, refused, works


async def nodes_of(store: Store, session: str) -> dict[str, Node]:
    return {node.id: node for node in (await store.history.graph(session)).items}


def said(node: str, parent: str | UnsetType | None = UNSET) -> NewNode:
    """A node whose body is its id."""
    return NewNode(id=node, body=node, parent=parent)


async def test_law_018_nodes_are_read_back_as_they_were_stored(kit: Kit) -> None:
    """A node is read back with the id, the kind, the body and the parent it was stored with, and
    with the session, the revision, the time and the depth it was stored at. Kinds are the caller's
    own labels. (18)"""
    async with kit.open() as store, kit.open() as other:
        await store.sessions.create("s")
        receipt = await store.sessions.commit(
            Turn(
                session="s",
                turn="t",
                nodes=[
                    NewNode(id="a", body={"role": "user", "text": "hi"}),
                    NewNode(id="b", body=b"\x00raw\xff", kind="frame:compaction"),
                    NewNode(id="c", body="plain", kind="X"),
                ],
            )
        )
        await grow(store, "s", "d")
        at = receipt.at_ms
        expected = (
            ("a", None, "message", b'{"role":"user","text":"hi"}', 1, "s", 1, at),
            ("b", "a", "frame:compaction", b"\x00raw\xff", 2, "s", 1, at),
            ("c", "b", "X", b'"plain"', 3, "s", 1, at),
        )
        for handle in (store, other):
            history = await handle.history.load("s")
            assert history is not None
            assert len(history.nodes) == 4
            for node, want in zip(history.nodes[:3], expected, strict=True):
                found = (node.id, node.parent, node.kind, node.body, node.depth)
                assert (*found, node.session, node.revision, node.at_ms) == want
                assert await handle.history.node("s", node.id) == node
            last = history.nodes[3]
            assert (last.parent, last.depth, last.revision) == ("c", 4, 2)
            assert history.nodes[0].json() == {"role": "user", "text": "hi"}
            assert (await handle.history.graph("s")).items == history.nodes


async def test_law_036_there_are_no_cycles(kit: Kit) -> None:
    """A cycle of parents cannot be stored: a node cannot hang on itself or on a later node of its
    turn, and a node already stored never gets another parent. (36)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        itself = [said("x", parent="x")]
        async with refused(store, "s", NodeUnknown, turn="t") as it:
            await store.sessions.commit(Turn(session="s", turn="t", nodes=itself))
        assert (it.value.field, it.value.node) == ("nodes[0].parent", "x")
        later = [said("x", parent="y"), said("y")]
        async with refused(store, "s", NodeUnknown, turn="t") as it:
            await store.sessions.commit(Turn(session="s", turn="t", nodes=later))
        assert (it.value.field, it.value.node) == ("nodes[0].parent", "y")
        for parent in ("y", "z"):
            loop = [said("x"), said("y", parent=parent), said("z", parent="y")]
            async with refused(store, "s", Invalid, turn="t") as bad:
                await store.sessions.commit(Turn(session="s", turn="t", nodes=loop))
            assert bad.value.field == "nodes[1].parent"
        async with refused(store, "s", NodeCollision, turn="t"):
            await store.sessions.commit(
                Turn(session="s", turn="t", nodes=[said("b"), said("a", parent="b")])
            )
        assert await path(store, "s") == ["a"]
        await works(store, "s")


async def test_law_043_a_node_is_never_written_twice(kit: Kit) -> None:
    """A turn that brings a node with an id that is taken is refused with NodeCollision, also when
    the content is the same, and also when the node was tombstoned or vacuumed; two nodes with one
    id in a turn are Invalid. Nothing changes. (43)"""
    async with kit.open() as store:
        await grow(store, "s", "a", "b", "c")
        await store.history.tombstone("s", ["b", "c"])
        for taken in ("a", "b"):
            async with refused(store, "s", NodeCollision, turn="t") as it:
                await store.sessions.commit(
                    Turn(session="s", turn="t", nodes=[said("new"), said(taken)])
                )
            assert (it.value.session, it.value.node) == ("s", taken)
            assert it.value.code == "node-collision"
        assert (await store.history.vacuum("s")).nodes == 2
        for taken in ("a", "b", "c"):
            async with refused(store, "s", NodeCollision, turn="t") as it:
                await store.sessions.commit(Turn(session="s", turn="t", nodes=[said(taken)]))
            assert it.value.node == taken
        twice = [said("x"), said("y"), said("x")]
        async with refused(store, "s", Invalid, turn="t") as bad:
            await store.sessions.commit(Turn(session="s", turn="t", nodes=twice))
        assert bad.value.field == "nodes[2].id"
        assert await graph(store, "s") == ["a"]
        await works(store, "s")


async def test_law_044_the_node_count_is_that_of_visible_nodes(kit: Kit) -> None:
    """The node count of the head, the catalog, a load and a receipt is the number of the session's
    own nodes that are not tombstoned, on all branches. (44)"""

    async def counts(store: Store) -> tuple[int, int, int]:
        head = await store.sessions.head("s")
        info = await store.sessions.get("s")
        history = await store.history.load("s")
        assert head is not None
        assert info is not None
        assert history is not None
        return head.node_count, info.node_count, history.node_count

    async with kit.open() as store:
        await grow(store, "s", "a", "b")
        assert await counts(store) == (2, 2, 2)
        branch = [said("x", parent="a"), said("y"), said("z")]
        receipt = await store.sessions.commit(Turn(session="s", turn="t", nodes=branch))
        assert receipt.node_count == 5
        assert await counts(store) == (5, 5, 5)
        assert await store.history.tombstone("s", ["b", "y"]) == 2
        assert await counts(store) == (3, 3, 3)
        assert await store.history.tombstone("s", ["b"]) == 0
        assert await counts(store) == (3, 3, 3)
        await store.history.vacuum("s")
        assert await counts(store) == (3, 3, 3)
        receipt = await store.sessions.commit(Turn(session="s", turn="u", nodes=[said("w")]))
        assert receipt.node_count == 4
        assert await counts(store) == (4, 4, 4)


async def test_law_059_depth_is_one_more_than_the_parents(kit: Kit) -> None:
    """A root has depth 1, and every other node one more than its parent, on every branch; the head
    and each revision report the depth of their leaf. (59)"""
    async with kit.open() as store:
        await grow(store, "s", "a", "b")
        nodes = [
            said("c", parent="a"),
            said("d"),
            said("e", parent="c"),
            said("f", parent="a"),
            said("g", parent="d"),
        ]
        await store.sessions.commit(Turn(session="s", turn="t", nodes=nodes))
        await store.sessions.commit(Turn(session="s", turn="u", nodes=[said("r", parent=None)]))
        found = await nodes_of(store, "s")
        assert {node.id: (node.parent, node.depth) for node in found.values()} == {
            "a": (None, 1),
            "b": ("a", 2),
            "c": ("a", 2),
            "d": ("c", 3),
            "e": ("c", 3),
            "f": ("a", 2),
            "g": ("d", 4),
            "r": (None, 1),
        }
        rows = (await store.sessions.revisions("s")).items
        assert [row.depth for row in rows] == [1, 4, 2, 1, 0]
        head = await store.sessions.head("s")
        assert head is not None
        assert head.depth == 1
        assert await path(store, "s", leaf="g") == ["a", "c", "d", "g"]
        assert await path(store, "s", leaf="e") == ["a", "c", "e"]


async def test_law_n01_a_node_without_an_id_is_named_after_its_turn(kit: Kit) -> None:
    """A node without an id is named after its turn and its position in it, counted from
    0. (n01)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        nodes = [NewNode(body=0), NewNode(body=1, id="own"), NewNode(body=2)]
        receipt = await store.sessions.commit(Turn(session="s", turn="t", nodes=nodes))
        assert receipt.leaf == "t:2"
        assert await path(store, "s") == ["t:0", "own", "t:2"]
        async with refused(store, "s", NodeCollision) as it:
            await store.sessions.commit(
                Turn(session="s", turn="u", nodes=[NewNode(id="t:0", body=0)])
            )
        assert it.value.node == "t:0"
        await works(store, "s")


async def test_law_n02_a_turn_extends_the_leaf_by_default(kit: Kit) -> None:
    """The first node of a turn hangs on the leaf of the session, and each further one on the node
    before it; in a session without a leaf the first is a root. (n02)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await store.sessions.commit(Turn(session="s", turn="t", nodes=[said("a"), said("b")]))
        await store.sessions.commit(Turn(session="s", turn="u", nodes=[said("c"), said("d")]))
        found = await nodes_of(store, "s")
        parents = {node.id: node.parent for node in found.values()}
        assert parents == {"a": None, "b": "a", "c": "b", "d": "c"}
        assert await path(store, "s") == ["a", "b", "c", "d"]


async def test_law_n03_a_turn_may_branch_within_itself(kit: Kit) -> None:
    """A node may hang on any earlier node of its turn, and the last node is the new leaf unless the
    turn says otherwise. (n03)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        nodes = [said("b"), said("c"), said("d", parent="b"), said("e", parent="c"), said("f")]
        receipt = await store.sessions.commit(Turn(session="s", turn="t", nodes=nodes))
        assert receipt.leaf == "f"
        assert await path(store, "s") == ["a", "b", "c", "e", "f"]
        assert await path(store, "s", leaf="d") == ["a", "b", "d"]
        assert await graph(store, "s") == ["a", "b", "c", "d", "e", "f"]


async def test_law_n04_a_turn_extends_one_place_only(kit: Kit) -> None:
    """Several nodes of a turn may hang on the place it extends, be that a node or the root; naming
    a second stored node is Invalid, and nothing changes. (n04)"""
    async with kit.open() as store:
        await grow(store, "s", "a", "b")
        siblings = [said("x", parent="a"), said("y", parent="a"), said("z", parent="x")]
        await store.sessions.commit(Turn(session="s", turn="t", nodes=siblings))
        assert await path(store, "s", leaf="y") == ["a", "y"]
        assert await path(store, "s") == ["a", "x", "z"]
        roots = [said("r", parent=None), said("q", parent=None)]
        await store.sessions.commit(Turn(session="s", turn="u", nodes=roots))
        assert await path(store, "s") == ["q"]
        for first, second in (("a", "b"), ("a", None), (None, "a")):
            two = [said("v", parent=first), said("w", parent=second)]
            async with refused(store, "s", Invalid, turn="v") as it:
                await store.sessions.commit(Turn(session="s", turn="v", nodes=two))
            assert it.value.field == "nodes[1].parent"
        unknown = [said("v"), said("w"), said("x", parent="nowhere")]
        async with refused(store, "s", Invalid, turn="v") as it:
            await store.sessions.commit(Turn(session="s", turn="v", nodes=unknown))
        assert it.value.field == "nodes[2].parent"
        await works(store, "s")


async def test_law_n05_the_place_must_be_visible(kit: Kit) -> None:
    """A turn cannot extend a node that is unknown, that was tombstoned, or that only another
    session has; it is refused with NodeUnknown, and nothing changes. (n05)"""
    async with kit.open() as store:
        await grow(store, "other", "theirs")
        await grow(store, "s", "a", "b", "c")
        await store.history.tombstone("s", ["b"])
        for place in ("nowhere", "b", "theirs"):
            nodes = [said("x", parent=place)]
            async with refused(store, "s", NodeUnknown, turn="t") as it:
                await store.sessions.commit(Turn(session="s", turn="t", nodes=nodes))
            assert (it.value.field, it.value.session) == ("nodes[0].parent", "s")
            assert it.value.node == place
        await works(store, "s")


async def test_law_n06_the_leaf_of_a_turn_is_one_of_its_nodes(kit: Kit) -> None:
    """A turn with nodes may choose which of them becomes the leaf; any other leaf is Invalid, and
    nothing changes. (n06)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        receipt = await store.sessions.commit(
            Turn(session="s", turn="t", nodes=[said("b"), said("c"), said("d")], leaf="c")
        )
        assert receipt.leaf == "c"
        assert await path(store, "s") == ["a", "b", "c"]
        assert await path(store, "s", leaf="d") == ["a", "b", "c", "d"]
        for leaf in ("a", "d", "nowhere", None):
            async with refused(store, "s", Invalid, turn="u") as it:
                await store.sessions.commit(
                    Turn(session="s", turn="u", nodes=[said("e")], leaf=leaf)
                )
            assert it.value.field == "leaf"
        await works(store, "s")


async def test_law_n07_a_turn_without_nodes_may_move_the_leaf(kit: Kit) -> None:
    """A turn without nodes may move the leaf to any node the session can see, or to none, which
    empties the path; the next turn extends the place it was moved to. (n07)"""
    async with kit.open() as store:
        await grow(store, "s", "a", "b", "c")
        receipt = await store.sessions.commit(Turn(session="s", turn="back", leaf="a"))
        assert (receipt.revision, receipt.leaf, receipt.node_count) == (4, "a", 3)
        assert await path(store, "s") == ["a"]
        await grow(store, "s", "d")
        assert await path(store, "s") == ["a", "d"]
        await store.sessions.commit(Turn(session="s", turn="side", leaf="c"))
        assert await path(store, "s") == ["a", "b", "c"]
        receipt = await store.sessions.commit(Turn(session="s", turn="none", leaf=None))
        assert receipt.leaf is None
        assert await path(store, "s") == []
        await grow(store, "s", "e")
        assert await path(store, "s") == ["e"]
        assert await graph(store, "s") == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("leaf", ["nowhere", "hidden", "theirs"])
async def test_law_n08_the_leaf_must_be_visible(kit: Kit, leaf: str) -> None:
    """The leaf cannot be moved to a node that is unknown, that was tombstoned, or that only another
    session has; it is refused with NodeUnknown, and nothing changes. (n08)"""
    async with kit.open() as store:
        await grow(store, "other", "theirs")
        await grow(store, "s", "a", "hidden", "b")
        await store.history.tombstone("s", ["hidden"])
        async with refused(store, "s", NodeUnknown, turn="t") as it:
            await store.sessions.commit(Turn(session="s", turn="t", leaf=leaf))
        assert (it.value.field, it.value.session, it.value.node) == ("leaf", "s", leaf)
        await works(store, "s")


async def test_law_n09_node_ids_belong_to_their_session(kit: Kit) -> None:
    """Two sessions may have nodes with the same id; each reads its own. (n09)"""
    async with kit.open() as store:
        for session in ("one", "two"):
            await store.sessions.create(session)
            await store.sessions.commit(
                Turn(session=session, turn="t", nodes=[NewNode(id="n", body=session)])
            )
        for session in ("one", "two"):
            node = await store.history.node(session, "n")
            assert node is not None
            assert (node.session, node.json()) == (session, session)
        await store.history.tombstone("one", ["n"])
        assert await store.history.node("one", "n") is None
        assert await path(store, "two") == ["n"]
