"""Forks: new sessions that begin where another one stands, or stood.

A fork copies nothing: it sees the nodes its origin had stored, starts with that leaf and that
state, and goes its own way. Neither changes the other any more.
"""

from __future__ import annotations

import pytest

from holdfast.contract.errors import (
    Invalid,
    NodeCollision,
    NodeUnknown,
    NotRetained,
    SessionDeleted,
    SessionExists,
    SessionUnknown,
)
from holdfast.contract.records import Head, NewNode, Origin, Turn, Usage
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import (
    Kit,
    all_pages,
    graph,
    grow,
    ids,
    path,
    picture,
    refused,
    works,
)


async def three_turns(store: Store, session: str = "source") -> None:
    """A session of three turns: nodes a, b, c, and state that changes with each."""
    await store.sessions.create(session)
    for number, node in enumerate("abc", 1):
        await store.sessions.commit(
            Turn(
                session=session,
                turn=f"t-{node}",
                nodes=[NewNode(id=node, body=node)],
                state={"agent": str(number).encode(), f"only-{node}": b"x"},
            )
        )


async def state(store: Store, session: str) -> dict[str, bytes]:
    history = await store.history.load(session)
    assert history is not None
    return history.state


async def test_law_f01_a_fork_begins_where_its_origin_stands(kit: Kit) -> None:
    """A fork begins with the leaf, the path and the state of its origin, and says where it comes
    from. It has a title and tags of its own, revision 0, and no nodes of its own. (f01)"""
    async with kit.open() as store:
        await three_turns(store)
        made = await store.sessions.fork("source", "fork", title="Again", tags={"user": "ada"})
        assert made.created is True
        info = made.session
        assert (info.session, info.title, info.tags) == ("fork", "Again", {"user": "ada"})
        assert (info.revision, info.leaf, info.node_count) == (0, "c", 0)
        assert info.forked_from == Origin(session="source", revision=3, leaf="c")
        assert await store.sessions.get("fork") == info
        head = await store.sessions.head("fork")
        source = await store.sessions.head("source")
        assert head is not None
        assert source is not None
        assert head == Head(
            session="fork", revision=0, leaf="c", depth=3, node_count=0, state=head.state
        )
        assert await path(store, "fork") == ["a", "b", "c"]
        assert await graph(store, "fork") == ["a", "b", "c"]
        wanted = {"agent": b"3", "only-a": b"x", "only-b": b"x", "only-c": b"x"}
        assert await state(store, "fork") == wanted
        (row,) = (await store.sessions.revisions("fork")).items
        assert (row.revision, row.kind, row.turn, row.leaf) == (0, "forked", None, "c")
        assert (row.depth, row.state) == (3, head.state)


async def test_law_f02_a_fork_begins_at_an_earlier_revision(kit: Kit) -> None:
    """A fork from an earlier revision has the leaf, the path and the state of that revision, and
    sees nothing that was stored later. (f02)"""
    async with kit.open() as store:
        await three_turns(store)
        made = await store.sessions.fork("source", "fork", revision=2)
        assert made.session.forked_from == Origin(session="source", revision=2, leaf="b")
        assert await path(store, "fork") == ["a", "b"]
        assert await graph(store, "fork") == ["a", "b"]
        assert await store.history.node("fork", "c") is None
        assert await path(store, "fork", leaf="c") == []
        assert await state(store, "fork") == {"agent": b"2", "only-a": b"x", "only-b": b"x"}
        empty = await store.sessions.fork("source", "empty", revision=0)
        assert empty.session.forked_from == Origin(session="source", revision=0, leaf=None)
        assert await path(store, "empty") == []
        assert await graph(store, "empty") == []
        assert await state(store, "empty") == {}
        await works(store, "empty")
        await works(store, "fork")


async def test_law_f03_a_fork_begins_at_a_node(kit: Kit) -> None:
    """A fork from a node has that node as its leaf, its path, and the state of the revision that
    stored it, on whatever branch it is. (f03)"""
    async with kit.open() as store:
        await three_turns(store)
        made = await store.sessions.fork("source", "fork", node="b")
        assert made.session.forked_from == Origin(session="source", revision=2, leaf="b")
        assert await path(store, "fork") == ["a", "b"]
        assert await state(store, "fork") == {"agent": b"2", "only-a": b"x", "only-b": b"x"}
        branch = [NewNode(id="x", body="x", parent="a"), NewNode(id="y", body="y")]
        await store.sessions.commit(Turn(session="source", turn="side", nodes=branch))
        await store.sessions.commit(Turn(session="source", turn="back", leaf="c"))
        await store.sessions.fork("source", "side", node="x")
        assert await path(store, "side") == ["a", "x"]
        await grow(store, "side", "z")
        assert await path(store, "side") == ["a", "x", "z"]
        assert await path(store, "source") == ["a", "b", "c"]


async def test_law_f04_a_fork_and_its_origin_go_their_own_ways(kit: Kit) -> None:
    """After a fork neither session changes the other: nodes, state, leaf, title, tags and usage are
    each session's own. (f04)"""
    async with kit.open() as store:
        await three_turns(store)
        await store.sessions.fork("source", "fork")
        before = await picture(store, "source")
        await store.sessions.update("fork", title="Mine", tags={"mine": "yes"})
        await store.sessions.commit(
            Turn(
                session="fork",
                turn="t",
                nodes=[NewNode(id="f", body="f")],
                state={"agent": b"fork", "only-a": None},
                usage=[Usage(model="m", input=1)],
            )
        )
        assert await picture(store, "source") == before
        before = await picture(store, "fork")
        await grow(store, "source", "d")
        await store.sessions.commit(Turn(session="source", turn="s", state={"agent": b"source"}))
        await store.sessions.update("source", title="Theirs")
        assert await picture(store, "fork") == before
        assert await path(store, "source") == ["a", "b", "c", "d"]
        assert await path(store, "fork") == ["a", "b", "c", "f"]
        assert await store.history.node("fork", "d") is None
        assert await store.history.node("source", "f") is None
        assert (await state(store, "fork"))["agent"] == b"fork"
        assert (await state(store, "source"))["agent"] == b"source"


async def test_law_f05_a_fork_inherits_no_usage_receipts_or_lane(kit: Kit) -> None:
    """A fork inherits no usage, no receipts and no lane: a turn id of its origin is free in it, and
    it may be written to while somebody works on its origin. (f05)"""
    async with kit.open() as store:
        await store.sessions.create("source")
        turn = Turn(
            session="source",
            turn="t",
            nodes=[NewNode(id="a", body="a")],
            usage=[Usage(model="m", input=5)],
        )
        await store.sessions.commit(turn)
        await store.lanes.claim("source", "worker")
        await store.sessions.fork("source", "fork")
        assert await store.sessions.receipt("fork", "t") is None
        assert await store.usage.totals(session="fork") == ()
        assert (await store.usage.rows("fork")).items == ()
        lane = await store.lanes.read("fork")
        assert lane is not None
        assert (lane.live, lane.owner, lane.generation) == (False, None, 0)
        receipt = await store.sessions.commit(
            Turn(session="fork", turn="t", nodes=[NewNode(id="b", body="b")])
        )
        assert (receipt.revision, receipt.node_count, receipt.replayed) == (1, 1, False)
        totals = await store.usage.totals(by=("session",))
        assert [(total.session, total.usage.input) for total in totals] == [("source", 5)]


async def test_law_f06_a_repeated_fork_answers_the_same_session(kit: Kit) -> None:
    """The same fork again succeeds, says that it was there, and changes nothing, also after the
    fork and its origin have gone on. (f06)"""
    async with kit.open() as store:
        await three_turns(store)
        await store.sessions.fork("source", "fork", title="First")
        await store.sessions.fork("source", "old", revision=1)
        await store.sessions.fork("source", "at", node="b")
        await grow(store, "fork", "f")
        await grow(store, "source", "d")
        before = await picture(store, "fork")
        again = await store.sessions.fork("source", "fork", title="Second", tags={"x": "y"})
        assert again.created is False
        assert again.session == before.info
        assert again.session.title == "First"
        assert await picture(store, "fork") == before
        assert (await store.sessions.fork("source", "old", revision=1)).created is False
        assert (await store.sessions.fork("source", "at", node="b")).created is False


async def test_law_f07_a_fork_onto_another_session_is_refused(kit: Kit) -> None:
    """A fork onto an id that is in use, by a session with another origin or with none, is refused
    with SessionExists, and nothing changes. (f07)"""
    async with kit.open() as store:
        await three_turns(store)
        await three_turns(store, "other")
        await store.sessions.fork("source", "fork", revision=2)
        async with refused(store, "fork", SessionExists) as it:
            await store.sessions.fork("source", "fork", revision=1)
        assert (it.value.session, it.value.code) == ("fork", "session-exists")
        async with refused(store, "fork", SessionExists) as it:
            await store.sessions.fork("other", "fork", revision=2)
        assert it.value.session == "fork"
        async with refused(store, "other", SessionExists) as it:
            await store.sessions.fork("source", "other")
        assert it.value.session == "other"
        async with refused(store, "source", SessionExists) as it:
            await store.sessions.fork("source", "source")
        assert it.value.session == "source"
        await works(store, "fork")
        await works(store, "other")


async def test_law_f08_a_fork_needs_a_place_that_is_there(kit: Kit) -> None:
    """A fork from a session that is unknown or deleted, from a revision that is not there, or from
    a node the origin cannot see is refused, each by name, and creates nothing. (f08)"""
    async with kit.open() as store:
        await three_turns(store)
        await grow(store, "gone", "a")
        await grow(store, "other", "theirs")
        await store.sessions.delete("gone")
        await store.history.tombstone("source", ["b"])
        async with refused(store, "source", SessionUnknown) as unknown:
            await store.sessions.fork("ghost", "fork")
        assert unknown.value.session == "ghost"
        async with refused(store, "source", SessionDeleted) as deleted:
            await store.sessions.fork("gone", "fork")
        assert deleted.value.session == "gone"
        async with refused(store, "source", NotRetained) as old:
            await store.sessions.fork("source", "fork", revision=4)
        assert (old.value.session, old.value.code) == ("source", "not-retained")
        for node in ("nowhere", "theirs", "b"):
            async with refused(store, "source", NodeUnknown) as it:
                await store.sessions.fork("source", "fork", node=node)
            assert (it.value.field, it.value.session) == ("node", "source")
            assert it.value.node == node
        async with refused(store, "source", Invalid) as both:
            await store.sessions.fork("source", "fork", revision=1, node="a")
        assert both.value.field in ("revision", "node")
        async with refused(store, "source", Invalid) as negative:
            await store.sessions.fork("source", "fork", revision=-1)
        assert negative.value.field == "revision"
        assert await store.sessions.get("fork") is None
        assert (await store.sessions.fork("source", "fork")).created is True
        await works(store, "fork")


async def test_law_f09_inherited_ids_are_taken(kit: Kit) -> None:
    """In a fork the ids of inherited nodes are taken, also of those that were hidden; the ids of
    nodes its origin stored after the fork are not, and each session then reads its own. (f09)"""
    async with kit.open() as store:
        await three_turns(store)
        await store.history.tombstone("source", ["a"])
        await store.sessions.fork("source", "fork")
        await store.sessions.fork("fork", "second")
        for session in ("fork", "second"):
            for node in ("a", "b", "c"):
                async with refused(store, session, NodeCollision) as it:
                    await store.sessions.commit(
                        Turn(session=session, turn="t", nodes=[NewNode(id=node, body="new")])
                    )
                assert (it.value.session, it.value.node) == (session, node)
        await grow(store, "source", "d")
        await store.sessions.commit(
            Turn(session="fork", turn="t", nodes=[NewNode(id="d", body="of the fork")])
        )
        theirs = await store.history.node("source", "d")
        own = await store.history.node("fork", "d")
        assert theirs is not None
        assert own is not None
        assert (theirs.session, theirs.json()) == ("source", "d")
        assert (own.session, own.json()) == ("fork", "of the fork")
        assert await path(store, "fork") == ["b", "c", "d"]
        await works(store, "second")


async def test_law_f10_a_fork_may_be_forked(kit: Kit) -> None:
    """A fork may be forked, at nodes of its own and at inherited ones, as deep as one likes; every
    path is whole, and each node says who stored it. (f10)"""
    async with kit.open() as store:
        await grow(store, "s0", "n0")
        for level in range(1, 8):
            await store.sessions.fork(f"s{level - 1}", f"s{level}")
            await grow(store, f"s{level}", f"n{level}")
        history = await store.history.load("s7")
        assert history is not None
        assert [(node.id, node.session, node.depth) for node in history.nodes] == [
            (f"n{level}", f"s{level}", level + 1) for level in range(8)
        ]
        await store.sessions.fork("s7", "middle", node="n3")
        assert await path(store, "middle") == ["n0", "n1", "n2", "n3"]
        await grow(store, "middle", "m")
        assert await path(store, "middle") == ["n0", "n1", "n2", "n3", "m"]
        assert await path(store, "s7", leaf="n2") == ["n0", "n1", "n2"]
        page = await store.history.load("s7", tail=3)
        assert page is not None
        assert (ids(page.nodes), page.before is None) == (["n5", "n6", "n7"], False)
        above = await store.history.load("s7", before=page.before)
        assert above is not None
        assert ids(above.nodes) == ["n0", "n1", "n2", "n3", "n4"]
        listed = await all_pages(lambda after: store.history.graph("s7", after=after, limit=3))
        assert ids(listed) == [f"n{level}" for level in range(8)]


async def test_law_f11_deleting_the_origin_keeps_what_forks_need(kit: Kit) -> None:
    """Deleting a session keeps the nodes and the content that forks of it need, and reports how
    many; the fork loads in full, takes turns, and can be forked. (f11)"""
    async with kit.open() as store:
        await three_turns(store)
        await store.sessions.fork("source", "fork", revision=2)
        await grow(store, "fork", "f")
        before = await picture(store, "fork")
        report = await store.sessions.delete("source")
        assert (report.deleted, report.nodes, report.kept_nodes) == (True, 1, 2)
        assert (report.revisions, report.receipts) == (4, 3)
        assert await picture(store, "fork") == before
        assert await path(store, "fork") == ["a", "b", "f"]
        assert await state(store, "fork") == {"agent": b"2", "only-a": b"x", "only-b": b"x"}
        assert await store.sessions.get("source") is None
        assert await store.history.node("source", "a") is None
        await store.sessions.fork("fork", "second")
        assert await path(store, "second") == ["a", "b", "f"]
        await works(store, "second")
        await works(store, "fork")
        async with refused(store, "fork", SessionDeleted):
            await store.sessions.fork("source", "third")


async def test_law_f12_a_chain_survives_its_middle(kit: Kit) -> None:
    """Where the origin of an origin, or the session between, is deleted, what hangs on them stays
    whole; with the last of the chain all of it goes. (f12)"""
    async with kit.open() as store:
        await grow(store, "one", "a")
        await store.sessions.fork("one", "two")
        await grow(store, "two", "b")
        await store.sessions.fork("two", "three")
        await grow(store, "three", "c")
        before = await picture(store, "three")
        for middle in ("two", "one"):
            report = await store.sessions.delete(middle)
            assert (report.nodes, report.kept_nodes) == (0, 1)
            assert await picture(store, "three") == before
        assert await path(store, "three") == ["a", "b", "c"]
        async with refused(store, "three", NodeCollision):
            await store.sessions.commit(
                Turn(session="three", turn="t", nodes=[NewNode(id="a", body="a")])
            )
        await store.sessions.commit(Turn(session="three", turn="t"))
        report = await store.sessions.delete("three")
        assert (report.nodes, report.kept_nodes) == (3, 0)


async def test_law_f13_deleting_a_fork_leaves_its_origin(kit: Kit) -> None:
    """Deleting a fork removes what is its own and leaves its origin, and its sisters, as they
    were. (f13)"""
    async with kit.open() as store:
        await three_turns(store)
        await store.sessions.fork("source", "fork")
        await store.sessions.fork("source", "sister")
        await grow(store, "fork", "f", "g")
        source, sister = await picture(store, "source"), await picture(store, "sister")
        report = await store.sessions.delete("fork")
        assert (report.deleted, report.nodes, report.kept_nodes) == (True, 2, 0)
        assert (report.revisions, report.receipts) == (3, 2)
        assert await picture(store, "source") == source
        assert await picture(store, "sister") == sister
        await works(store, "source")


async def test_law_f14_forks_are_found_by_their_origin(kit: Kit) -> None:
    """The catalog lists the forks of a session, those taken from it directly, also after it was
    deleted. (f14)"""
    async with kit.open() as store:
        await three_turns(store)
        await grow(store, "other", "a")
        await store.sessions.fork("source", "one")
        await store.sessions.fork("source", "two", revision=1)
        await store.sessions.fork("one", "grandchild")
        await store.sessions.fork("other", "three")

        async def forks_of(session: str) -> set[str]:
            found = await all_pages(
                lambda after: store.sessions.list(forked_from=session, after=after, limit=1)
            )
            return {info.session for info in found}

        assert await forks_of("source") == {"one", "two"}
        assert await forks_of("one") == {"grandchild"}
        assert await forks_of("two") == set()
        assert await forks_of("ghost") == set()
        await store.sessions.delete("source")
        assert await forks_of("source") == {"one", "two"}


async def test_law_f15_hiding_belongs_to_the_session_that_stored(kit: Kit) -> None:
    """A node is hidden by the session that stored it, and is then hidden in its forks too. A fork
    cannot hide what it inherited: such ids count as unknown. (f15)"""
    async with kit.open() as store:
        await three_turns(store)
        await store.sessions.fork("source", "fork")
        await grow(store, "fork", "f")
        before = await picture(store, "source")
        assert await store.history.tombstone("fork", ["a", "c"]) == 0
        assert await picture(store, "source") == before
        assert await path(store, "fork") == ["a", "b", "c", "f"]
        assert await store.history.tombstone("source", ["b"]) == 1
        assert await path(store, "fork") == ["c", "f"]
        assert await store.history.node("fork", "b") is None
        assert await graph(store, "fork") == ["a", "c", "f"]
        assert (await store.history.vacuum("fork")).nodes == 0
        assert (await store.history.vacuum("source")).nodes == 1
        assert await path(store, "fork") == ["c", "f"]
        await works(store, "fork")


@pytest.mark.parametrize("bad", ["", "a b", "-", "x" * 201])
async def test_law_f16_ill_formed_sources_are_refused(kit: Kit, bad: str) -> None:
    """An ill-formed source or node in a fork is Invalid, which names the field, and nothing is
    created. (f16)"""
    async with kit.open() as store:
        await grow(store, "source", "a")
        async with refused(store, "source", Invalid) as it:
            await store.sessions.fork(bad, "fork")
        assert it.value.field == "source"
        async with refused(store, "source", Invalid) as it:
            await store.sessions.fork("source", "fork", node=bad)
        assert it.value.field == "node"
        assert await store.sessions.get("fork") is None
        await works(store, "source")


@pytest.mark.parametrize("node", ["with nodes", "without nodes"])
async def test_law_f17_the_last_fork_takes_all_with_it(kit: Kit, node: str) -> None:
    """What a deleted session keeps for its forks is freed with the last of them: nodes and content
    are gone, and the reports add up. (f17)"""
    async with kit.open() as store:
        nodes = [NewNode(id="a", body="a")] if node == "with nodes" else []
        await store.sessions.create("source")
        await store.sessions.commit(
            Turn(session="source", turn="t", nodes=nodes, state={"agent": b"of the source"})
        )
        await store.sessions.fork("source", "one")
        await store.sessions.fork("source", "two")
        report = await store.sessions.delete("source")
        assert (report.nodes, report.kept_nodes, report.blobs) == (0, len(nodes), 0)
        report = await store.sessions.delete("one")
        assert (report.nodes, report.kept_nodes, report.blobs) == (0, 0, 0)
        assert await state(store, "two") == {"agent": b"of the source"}
        report = await store.sessions.delete("two")
        assert (report.nodes, report.kept_nodes, report.blobs) == (len(nodes), 0, 1)


async def test_law_f18_content_of_a_deleted_middle_goes_with_its_fork(kit: Kit) -> None:
    """Content that a deleted fork keeps for a fork of its own is freed with that one, also where
    the nodes come from further up and stay. (f18)"""
    async with kit.open() as store:
        await grow(store, "source", "a")
        await store.sessions.fork("source", "middle")
        await store.sessions.commit(
            Turn(session="middle", turn="t", state={"agent": b"of the middle"})
        )
        await store.sessions.fork("middle", "end")
        assert (await store.sessions.delete("middle")).blobs == 0
        assert await state(store, "end") == {"agent": b"of the middle"}
        assert (await store.sessions.delete("end")).blobs == 1
        assert await path(store, "source") == ["a"]
        await works(store, "source")


async def test_law_f19_a_fork_branches_off_what_it_inherited(kit: Kit) -> None:
    """A fork may move its leaf to any node it inherited, or name one as the place of a turn, and
    branches there; all its paths are whole, and its origin sees none of it. (f19)"""
    async with kit.open() as store:
        await grow(store, "source", "a", "b", "c")
        await store.sessions.fork("source", "fork")
        for number, inherited in enumerate("cab", 1):
            await store.sessions.commit(
                Turn(session="fork", turn=f"to-{inherited}", leaf=inherited)
            )
            await grow(store, "fork", f"f{number}")
        assert await path(store, "fork") == ["a", "b", "f3"]
        assert await path(store, "fork", leaf="f2") == ["a", "f2"]
        assert await path(store, "fork", leaf="f1") == ["a", "b", "c", "f1"]
        place = [NewNode(id="f4", body="f4", parent="b"), NewNode(id="f5", body="f5")]
        await store.sessions.commit(Turn(session="fork", turn="place", nodes=place))
        assert await path(store, "fork") == ["a", "b", "f4", "f5"]
        history = await store.history.load("fork")
        assert history is not None
        assert [node.depth for node in history.nodes] == [1, 2, 3, 4]
        assert await graph(store, "fork") == ["a", "b", "c", "f1", "f2", "f3", "f4", "f5"]
        assert await graph(store, "source") == ["a", "b", "c"]


async def test_law_f20_what_the_origin_stores_later_is_not_there(kit: Kit) -> None:
    """What the origin stores after the fork does not exist in the fork: not as the place of a turn,
    not as its leaf, not to rewind to and not to fork from. (f20)"""
    async with kit.open() as store:
        await grow(store, "source", "a")
        await store.sessions.fork("source", "fork")
        await grow(store, "source", "later")
        nodes = [NewNode(id="f", body="f", parent="later")]
        async with refused(store, "fork", NodeUnknown, turn="t") as it:
            await store.sessions.commit(Turn(session="fork", turn="t", nodes=nodes))
        assert (it.value.field, it.value.node) == ("nodes[0].parent", "later")
        async with refused(store, "fork", NodeUnknown, turn="t") as it:
            await store.sessions.commit(Turn(session="fork", turn="t", leaf="later"))
        assert it.value.field == "leaf"
        async with refused(store, "fork", NodeUnknown, turn="t") as it:
            await store.sessions.rewind("fork", turn="t", node="later", reason="x")
        assert (it.value.field, it.value.session) == ("node", "fork")
        async with refused(store, "fork", NodeUnknown) as it:
            await store.sessions.fork("fork", "second", node="later")
        assert (it.value.field, it.value.session) == ("node", "fork")
        assert await store.sessions.get("second") is None
        assert await store.history.tombstone("fork", ["later"]) == 0
        assert await path(store, "source") == ["a", "later"]
        await works(store, "fork")
