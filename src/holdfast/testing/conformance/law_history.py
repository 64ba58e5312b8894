"""History: reading paths and graphs, and hiding what must not be seen.

The history of a session is read as a path: the leaf and all its ancestors, oldest first. A read is
one snapshot. A node that must not be seen any more is tombstoned, which hides it from every read;
a vacuum removes what is hidden.
"""

from __future__ import annotations

from holdfast.contract.errors import Invalid, NotRetained, SessionUnknown
from holdfast.contract.records import History, NewNode, Turn, Vacuumed
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import Kit, graph, grow, ids, path, picture, refused, works


async def branched(store: Store) -> None:
    """Session "s": a-b-c, and from a the branch x-y. The leaf is y."""
    await grow(store, "s", "a", "b", "c")
    branch = [NewNode(id="x", body="x", parent="a"), NewNode(id="y", body="y")]
    await store.sessions.commit(Turn(session="s", turn="branch", nodes=branch))


async def load(
    store: Store, *, tail: int | None = None, before: str | None = None, session: str = "s"
) -> History:
    history = await store.history.load(session, tail=tail, before=before)
    assert history is not None
    return history


async def test_law_031_the_graph_holds_all_branches(kit: Kit) -> None:
    """The graph of a session holds every node it can see, on all branches, in the order they were
    stored, wherever the leaf is. (31)"""
    async with kit.open() as store:
        await branched(store)
        assert await graph(store, "s") == ["a", "b", "c", "x", "y"]
        await store.sessions.commit(Turn(session="s", turn="back", leaf="a"))
        assert await graph(store, "s") == ["a", "b", "c", "x", "y"]
        seen: list[str] = []
        after: str | None = None
        sizes: list[int] = []
        for _ in range(3):
            page = await store.history.graph("s", after=after, limit=2)
            seen += ids(page.items)
            sizes.append(len(page.items))
            after = page.next
        assert (seen, sizes, after) == (["a", "b", "c", "x", "y"], [2, 2, 1], None)


async def test_law_032_the_path_is_the_ancestry_of_the_leaf(kit: Kit) -> None:
    """A load returns the stored leaf and its ancestors, oldest first, and nothing of other
    branches. (32)"""
    async with kit.open() as store:
        await branched(store)
        history = await load(store)
        assert (history.leaf, ids(history.nodes)) == ("y", ["a", "x", "y"])
        assert [node.parent for node in history.nodes] == [None, "a", "x"]
        assert (history.session, history.revision, history.node_count) == ("s", 4, 5)
        assert history.before is None


async def test_law_033_any_leaf_may_be_read(kit: Kit) -> None:
    """A load may name another leaf: it returns that one's path and that leaf, and moves
    nothing. (33)"""
    async with kit.open() as store:
        await branched(store)
        before = await picture(store, "s")
        history = await store.history.load("s", leaf="c")
        assert history is not None
        assert (history.leaf, ids(history.nodes)) == ("c", ["a", "b", "c"])
        assert await path(store, "s", leaf="b") == ["a", "b"]
        assert await path(store, "s", leaf="a") == ["a"]
        assert await picture(store, "s") == before
        assert await path(store, "s") == ["a", "x", "y"]


async def test_law_034_the_path_to_an_unknown_leaf_is_empty(kit: Kit) -> None:
    """The path to a leaf that does not exist, or that only another session has, is empty; this is
    no error, and the leaf is returned as it was asked for. (34)"""
    async with kit.open() as store:
        await grow(store, "other", "theirs")
        await grow(store, "s", "a")
        for leaf in ("nowhere", "theirs"):
            history = await store.history.load("s", leaf=leaf)
            assert history is not None
            assert (history.nodes, history.leaf, history.before) == ((), leaf, None)
            assert (history.revision, history.node_count) == (1, 1)
        await works(store, "s")


async def test_law_037_a_node_is_read_by_its_id(kit: Kit) -> None:
    """A node is read by its id, on whatever branch it is; one that is unknown, was tombstoned, or
    belongs to another session is None. (37)"""
    async with kit.open() as store:
        await branched(store)
        await grow(store, "other", "theirs")
        node = await store.history.node("s", "c")
        assert node is not None
        assert (node.id, node.parent, node.body) == ("c", "b", b'"c"')
        assert await store.history.node("s", "nowhere") is None
        assert await store.history.node("s", "theirs") is None
        await store.history.tombstone("s", ["c"])
        assert await store.history.node("s", "c") is None
        await store.history.vacuum("s")
        assert await store.history.node("s", "c") is None
        assert await store.history.node("s", "b") is not None


async def test_law_038_a_tombstoned_node_is_hidden(kit: Kit) -> None:
    """A tombstoned node is in no graph and on no path. A path is cut where it was: the nodes below
    it, towards the leaf, remain, and the first of them still names its parent. (38)"""
    async with kit.open() as store, kit.open() as other:
        await grow(store, "s", "a", "b", "c", "d")
        assert await store.history.tombstone("s", ["b"]) == 1
        for handle in (store, other):
            history = await load(handle)
            assert (history.leaf, ids(history.nodes)) == ("d", ["c", "d"])
            assert (history.nodes[0].parent, history.nodes[0].depth) == ("b", 3)
            assert await graph(handle, "s") == ["a", "c", "d"]
            assert await path(handle, "s", leaf="b") == []
            assert await path(handle, "s", leaf="a") == ["a"]
        await store.history.vacuum("s")
        assert await path(store, "s") == ["c", "d"]
        assert await graph(store, "s") == ["a", "c", "d"]
        await grow(store, "s", "e")
        assert await path(store, "s") == ["c", "d", "e"]


async def test_law_039_vacuum_reports_what_it_removed(kit: Kit) -> None:
    """A vacuum reports how many tombstoned nodes it removed; a second one removes none. (39)"""
    async with kit.open() as store:
        await grow(store, "s", "a", "b", "c")
        assert await store.history.vacuum("s") == Vacuumed(session="s", nodes=0)
        await store.history.tombstone("s", ["a", "c"])
        assert await store.history.vacuum("s") == Vacuumed(session="s", nodes=2)
        assert await store.history.vacuum("s") == Vacuumed(session="s", nodes=0)
        await store.history.tombstone("s", ["a", "b"])
        assert await store.history.vacuum("s") == Vacuumed(session="s", nodes=1)
        assert await graph(store, "s") == []
        await works(store, "s")


async def test_law_040_tombstoning_nothing_changes_nothing(kit: Kit) -> None:
    """A tombstone answers how many nodes it has newly hidden. No ids, unknown ids, ids of another
    session and ids already hidden count for nothing and change nothing. (40)"""
    async with kit.open() as store:
        await grow(store, "other", "theirs")
        await grow(store, "s", "a", "b", "c")
        before = await picture(store, "s")
        assert await store.history.tombstone("s", []) == 0
        assert await store.history.tombstone("s", ["nowhere", "theirs"]) == 0
        assert await picture(store, "s") == before
        assert await store.history.tombstone("s", ["a", "nowhere", "b", "a"]) == 2
        before = await picture(store, "s")
        assert await store.history.tombstone("s", ["a", "b"]) == 0
        assert await picture(store, "s") == before
        assert await graph(store, "s") == ["c"]
        assert await path(store, "other") == ["theirs"]


async def test_law_041_a_turn_that_names_no_leaf_leaves_it(kit: Kit) -> None:
    """A turn without nodes that names no leaf leaves the leaf where it is, on whatever branch that
    is. (41)"""
    async with kit.open() as store:
        await branched(store)
        await store.sessions.commit(Turn(session="s", turn="back", leaf="b"))
        receipt = await store.sessions.commit(Turn(session="s", turn="idle", state={"k": b"v"}))
        assert (receipt.revision, receipt.leaf) == (6, "b")
        assert await path(store, "s") == ["a", "b"]


async def test_law_042_replacing_history_is_a_new_root(kit: Kit) -> None:
    """History is replaced by a turn that begins a new root: the path holds the new nodes only, and
    the old ones stay readable, by leaf, by id and in the graph. (42)"""
    async with kit.open() as store:
        await grow(store, "s", "a", "b")
        fresh = [NewNode(id="r", body="summary", parent=None), NewNode(id="q", body="on")]
        receipt = await store.sessions.commit(Turn(session="s", turn="compact", nodes=fresh))
        assert (receipt.leaf, receipt.node_count) == ("q", 4)
        history = await load(store)
        assert [(node.id, node.parent, node.depth) for node in history.nodes] == [
            ("r", None, 1),
            ("q", "r", 2),
        ]
        assert await path(store, "s", leaf="b") == ["a", "b"]
        assert await graph(store, "s") == ["a", "b", "r", "q"]
        assert await store.history.node("s", "a") is not None
        await works(store, "s")


async def test_law_047_vacuum_may_be_called_at_any_time(kit: Kit) -> None:
    """A vacuum may be called at any time, on a session without nodes, while somebody holds the
    lane, and again; it never changes what can be read. (47)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        assert await store.history.vacuum("s") == Vacuumed(session="s", nodes=0)
        await branched(store)
        await store.history.tombstone("s", ["b"])
        await store.sessions.commit(Turn(session="s", turn="k", state={"agent": b"1"}))
        lane = await store.lanes.claim("s", "worker")
        before = await picture(store, "s", turn="t-a")
        assert await store.history.vacuum("s") == Vacuumed(session="s", nodes=1)
        assert await store.history.vacuum("s") == Vacuumed(session="s", nodes=0)
        assert await picture(store, "s", turn="t-a") == before
        await works(store, "s", fence=lane.fence)


async def test_law_060_the_head_agrees_with_the_load(kit: Kit) -> None:
    """The head, read alone, reports the same revision, leaf, depth and node count as a load and as
    the newest entry of the history of heads, after every turn. (60)"""
    async with kit.open() as store:
        await branched(store)
        turns = (
            Turn(session="s", turn="1", nodes=[NewNode(body=1), NewNode(body=2)]),
            Turn(session="s", turn="2", leaf="c", state={"agent": b"1"}),
            Turn(session="s", turn="3", state={"agent": None}),
            Turn(session="s", turn="4", leaf=None),
        )
        for turn in turns:
            await store.sessions.commit(turn)
            head = await store.sessions.head("s")
            history = await load(store)
            newest = (await store.sessions.revisions("s", limit=1)).items[0]
            assert head is not None
            assert (head.session, head.revision) == ("s", history.revision)
            assert (head.leaf, head.node_count) == (history.leaf, history.node_count)
            assert head.depth == len(history.nodes)
            assert (head.revision, head.leaf) == (newest.revision, newest.leaf)
            assert (head.depth, head.state) == (newest.depth, newest.state)


async def test_law_h01_a_tail_is_the_end_of_the_path(kit: Kit) -> None:
    """A load of a tail of k returns the last k nodes of the path, or all of it where it is
    shorter, in the same order as the whole. (h01)"""
    async with kit.open() as store:
        await grow(store, "s", "a", "b", "c", "d", "e")
        whole = await load(store)
        assert ids((await load(store, tail=1)).nodes) == ["e"]
        two = await load(store, tail=2)
        assert (ids(two.nodes), two.leaf, two.revision) == (["d", "e"], "e", 5)
        assert two.nodes == whole.nodes[-2:]
        assert two.node_count == 5
        for enough in (5, 6, 100_000):
            full = await load(store, tail=enough)
            assert (ids(full.nodes), full.before) == (["a", "b", "c", "d", "e"], None)


async def test_law_h02_a_path_is_paged_upwards(kit: Kit) -> None:
    """A load that does not reach the root returns a cursor; the load before that cursor is the page
    above it. The pages together are the path, each node once, and the last has no cursor. (h02)"""
    async with kit.open() as store:
        await grow(store, "s", "a", "b", "c", "d", "e")
        branch = [NewNode(id=node, body=node) for node in ("f", "g")]
        branch[0] = NewNode(id="f", body="f", parent="d")
        await store.sessions.commit(Turn(session="s", turn="branch", nodes=branch))
        page = await load(store, tail=2)
        pages = [ids(page.nodes)]
        while page.before is not None:
            page = await load(store, tail=2, before=page.before)
            pages.append(ids(page.nodes))
        assert pages == [["f", "g"], ["c", "d"], ["a", "b"]]
        page = await load(store, tail=4)
        assert page.before is not None
        above = await load(store, tail=4, before=page.before)
        assert (ids(page.nodes), ids(above.nodes)) == (["c", "d", "f", "g"], ["a", "b"])
        assert above.before is None
        rest = await load(store, before=page.before)
        assert (ids(rest.nodes), rest.before) == (["a", "b"], None)


async def test_law_h03_a_cursor_stays_good(kit: Kit) -> None:
    """A cursor names a place on a path, not a moment: the page above it is the same after the
    session has gone on, on this branch or another, and from another handle. (h03)"""
    async with kit.open() as store, kit.open() as other:
        await grow(store, "s", "a", "b", "c", "d")
        page = await load(store, tail=2)
        assert page.before is not None
        await grow(store, "s", "e")
        branch = [NewNode(id="x", body="x", parent="a")]
        await store.sessions.commit(Turn(session="s", turn="branch", nodes=branch))
        for handle in (store, other):
            above = await load(handle, tail=2, before=page.before)
            assert (ids(above.nodes), above.before) == (["a", "b"], None)


async def test_law_h04_a_tail_and_a_cursor_work_for_any_leaf(kit: Kit) -> None:
    """A tail may be read of any leaf and of any revision, not only of the head. (h04)"""
    async with kit.open() as store:
        await branched(store)
        end = await store.history.load("s", leaf="c", tail=1)
        assert end is not None
        assert (ids(end.nodes), end.leaf) == (["c"], "c")
        assert end.before is not None
        above = await store.history.load("s", before=end.before, tail=5)
        assert above is not None
        assert (ids(above.nodes), above.before) == (["a", "b"], None)
        old = await store.history.load("s", revision=3, tail=2)
        assert old is not None
        assert (ids(old.nodes), old.leaf, old.revision) == (["b", "c"], "c", 3)


async def test_law_h05_pages_end_where_a_path_is_cut(kit: Kit) -> None:
    """Where a path is cut by a tombstone its pages end too: together they hold what a whole load
    holds. (h05)"""
    async with kit.open() as store:
        await grow(store, "s", "a", "b", "c", "d", "e")
        await store.history.tombstone("s", ["b"])
        assert await path(store, "s") == ["c", "d", "e"]
        for tail in (1, 2, 3, 4):
            page = await load(store, tail=tail)
            seen = ids(page.nodes)
            for _ in range(5):
                if page.before is None:
                    break
                page = await load(store, tail=tail, before=page.before)
                seen = ids(page.nodes) + seen
            assert page.before is None
            assert seen == ["c", "d", "e"], tail


async def test_law_h06_a_retained_revision_can_be_read(kit: Kit) -> None:
    """A load of an earlier revision returns the leaf, the path and the state as they were then,
    and moves nothing. A revision that is not there is refused with NotRetained. (h06)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        for number, state in enumerate((b"one", b"two", b"three"), 1):
            nodes = [NewNode(id=f"n{number}", body=number)]
            await store.sessions.commit(
                Turn(session="s", turn=f"t{number}", nodes=nodes, state={"agent": state})
            )
        await store.sessions.commit(Turn(session="s", turn="t4", leaf="n1", state={"agent": None}))
        expected: tuple[tuple[list[str], dict[str, bytes]], ...] = (
            ([], {}),
            (["n1"], {"agent": b"one"}),
            (["n1", "n2"], {"agent": b"two"}),
            (["n1", "n2", "n3"], {"agent": b"three"}),
            (["n1"], {}),
        )
        for revision, (nodes_then, state_then) in enumerate(expected):
            history = await store.history.load("s", revision=revision)
            assert history is not None
            assert (history.revision, history.state) == (revision, state_then)
            assert ids(history.nodes) == nodes_then
            assert history.leaf == (nodes_then[-1] if nodes_then else None)
        for unknown in (5, 99):
            async with refused(store, "s", NotRetained) as it:
                await store.history.load("s", revision=unknown)
            assert (it.value.session, it.value.code) == ("s", "not-retained")
            assert str(unknown) in it.value.what
        await works(store, "s")


async def test_law_h07_a_session_goes_on_after_its_leaf_was_hidden(kit: Kit) -> None:
    """When the leaf itself is tombstoned the path is empty, and the session goes on: the next turn
    is committed as after any other leaf. (h07)"""
    async with kit.open() as store:
        await grow(store, "s", "a", "b")
        assert await store.history.tombstone("s", ["b"]) == 1
        history = await load(store)
        assert (history.leaf, history.nodes, history.before) == ("b", (), None)
        await grow(store, "s", "c")
        history = await load(store)
        assert (history.leaf, ids(history.nodes)) == ("c", ["c"])
        await store.history.vacuum("s")
        await grow(store, "s", "d")
        assert await path(store, "s") == ["c", "d"]
        assert await graph(store, "s") == ["a", "c", "d"]


async def test_law_h08_a_window_is_asked_for_in_bounds(kit: Kit) -> None:
    """A tail is 1 to 100,000 nodes; another one, a cursor the store did not give, or a negative
    revision is refused with Invalid, which names the argument. (h08)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        for tail in (0, -1, 100_001):
            async with refused(store, "s", Invalid) as it:
                await store.history.load("s", tail=tail)
            assert it.value.field == "tail"
        for before in ("", "!", "no cursor", "é", "a" * 5000):
            async with refused(store, "s", Invalid) as it:
                await store.history.load("s", before=before)
            assert it.value.field == "before"
        async with refused(store, "s", Invalid) as it:
            await store.history.load("s", revision=-1)
        assert it.value.field == "revision"
        await works(store, "s")


async def test_law_h09_hiding_nodes_of_an_unknown_session_is_refused(kit: Kit) -> None:
    """Tombstone and vacuum of a session that does not exist are refused with
    SessionUnknown. (h09)"""
    async with kit.open() as store:
        async with refused(store, "ghost", SessionUnknown) as it:
            await store.history.tombstone("ghost", ["a"])
        assert it.value.session == "ghost"
        async with refused(store, "ghost", SessionUnknown) as it:
            await store.history.vacuum("ghost")
        assert it.value.session == "ghost"
        assert await store.sessions.get("ghost") is None


async def test_law_h10_long_paths_are_read_whole(kit: Kit) -> None:
    """A path is read whole and in order however many turns and branches made it. (h10)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        wanted: list[str] = []
        for turn in range(40):
            nodes = [NewNode(id=f"{turn}-{n}", body=n) for n in range(7)]
            side = [NewNode(id=f"{turn}-side", body="side", parent=f"{turn}-3")]
            await store.sessions.commit(
                Turn(session="s", turn=f"t{turn}", nodes=nodes + side, leaf=f"{turn}-6")
            )
            wanted += [f"{turn}-{n}" for n in range(7)]
        history = await load(store)
        assert ids(history.nodes) == wanted
        assert [node.depth for node in history.nodes] == list(range(1, 281))
        assert ids((await load(store, tail=100)).nodes) == wanted[-100:]
        side_path = await path(store, "s", leaf="20-side")
        assert side_path == [*wanted[:144], "20-side"]
        assert len(await graph(store, "s")) == 320
