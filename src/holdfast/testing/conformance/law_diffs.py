"""Diffs: how the heads of two sessions differ.

A diff names the last node the two paths share, the nodes on each side of it, and the components of
the state that were added, removed or changed from the left to the right.
"""

from __future__ import annotations

import pytest

from holdfast.contract.errors import Invalid, SessionUnknown
from holdfast.contract.records import NewNode, Turn
from holdfast.testing.conformance.kit import Kit, grow, picture, works


async def test_law_d01_a_diff_parts_at_the_last_common_node(kit: Kit) -> None:
    """A diff of two forks names their last common node, and the nodes on each side below it, oldest
    first, with both heads. (d01)"""
    async with kit.open() as store:
        await grow(store, "left", "a", "b")
        await store.sessions.fork("left", "right")
        await grow(store, "left", "l1", "l2")
        await grow(store, "right", "r1", "r2", "r3")
        diff = await store.sessions.diff("left", "right")
        assert diff.common == "b"
        assert diff.left_nodes == ("l1", "l2")
        assert diff.right_nodes == ("r1", "r2", "r3")
        assert diff.left == await store.sessions.head("left")
        assert diff.right == await store.sessions.head("right")
        back = await store.sessions.diff("right", "left")
        assert (back.common, back.left_nodes) == ("b", ("r1", "r2", "r3"))
        assert back.right_nodes == ("l1", "l2")


async def test_law_d02_a_diff_names_the_state_that_differs(kit: Kit) -> None:
    """A diff names the components that only the right has as added, those only the left has as
    removed, and those both have with other content as changed, in order of name. (d02)"""
    async with kit.open() as store:
        await store.sessions.create("left")
        base = {"same": b"1", "changed": b"1", "also": b"1", "gone": b"1", "went": b"1"}
        await store.sessions.commit(Turn(session="left", turn="t", state=base))
        await store.sessions.fork("left", "right")
        change: dict[str, bytes | None] = {
            "changed": b"2",
            "also": b"2",
            "gone": None,
            "went": None,
            "new": b"1",
            "fresh": b"1",
        }
        await store.sessions.commit(Turn(session="right", turn="t", state=change))
        diff = await store.sessions.diff("left", "right")
        assert diff.state_added == ("fresh", "new")
        assert diff.state_removed == ("gone", "went")
        assert diff.state_changed == ("also", "changed")
        back = await store.sessions.diff("right", "left")
        assert back.state_added == ("gone", "went")
        assert back.state_removed == ("fresh", "new")
        assert back.state_changed == ("also", "changed")


async def test_law_d03_equal_heads_do_not_differ(kit: Kit) -> None:
    """A session does not differ from itself, nor from a fresh fork of it; content that was changed
    and put back does not differ either. (d03)"""
    async with kit.open() as store:
        await grow(store, "s", "a", "b")
        await store.sessions.commit(Turn(session="s", turn="t1", state={"agent": b"1"}))
        await store.sessions.fork("s", "fork")
        await store.sessions.commit(Turn(session="s", turn="t2", state={"agent": b"2"}))
        await store.sessions.commit(Turn(session="s", turn="t3", state={"agent": b"1"}))
        for left, right in (("s", "s"), ("s", "fork"), ("fork", "s")):
            diff = await store.sessions.diff(left, right)
            assert (diff.common, diff.left_nodes, diff.right_nodes) == ("b", (), ())
            assert (diff.state_added, diff.state_removed, diff.state_changed) == ((), (), ())


async def test_law_d04_one_side_may_be_ahead(kit: Kit) -> None:
    """Where one head is an ancestor of the other, it is the common node, and only the other side
    has nodes. (d04)"""
    async with kit.open() as store:
        await grow(store, "s", "a", "b", "c")
        await store.sessions.fork("s", "behind", revision=1)
        await store.sessions.fork("s", "empty", revision=0)
        diff = await store.sessions.diff("behind", "s")
        assert (diff.common, diff.left_nodes, diff.right_nodes) == ("a", (), ("b", "c"))
        diff = await store.sessions.diff("s", "empty")
        assert (diff.common, diff.left_nodes, diff.right_nodes) == (None, ("a", "b", "c"), ())
        diff = await store.sessions.diff("empty", "empty")
        assert (diff.common, diff.left_nodes, diff.right_nodes) == (None, (), ())


async def test_law_d05_sessions_of_no_common_origin_share_nothing(kit: Kit) -> None:
    """Two sessions that are not related share no node, also where their nodes have the same ids and
    the same content. (d05)"""
    async with kit.open() as store:
        await grow(store, "one", "a", "b")
        await grow(store, "two", "a", "b")
        diff = await store.sessions.diff("one", "two")
        assert diff.common is None
        assert (diff.left_nodes, diff.right_nodes) == (("a", "b"), ("a", "b"))


async def test_law_d06_forks_of_one_origin_part_where_their_paths_part(kit: Kit) -> None:
    """Two forks of one origin part at the last node both paths hold, also when they began at
    different places or on different branches. (d06)"""
    async with kit.open() as store:
        await grow(store, "s", "a", "b", "c", "d")
        branch = [NewNode(id="x", body="x", parent="b"), NewNode(id="y", body="y")]
        await store.sessions.commit(Turn(session="s", turn="branch", nodes=branch))
        await store.sessions.fork("s", "main", node="d")
        await store.sessions.fork("s", "side", node="y")
        await store.sessions.fork("s", "early", node="c")
        await grow(store, "early", "e")
        diff = await store.sessions.diff("main", "side")
        assert (diff.common, diff.left_nodes, diff.right_nodes) == ("b", ("c", "d"), ("x", "y"))
        diff = await store.sessions.diff("main", "early")
        assert (diff.common, diff.left_nodes, diff.right_nodes) == ("c", ("d",), ("e",))
        diff = await store.sessions.diff("early", "side")
        assert (diff.common, diff.left_nodes, diff.right_nodes) == ("b", ("c", "e"), ("x", "y"))
        assert (await store.sessions.delete("s")).deleted is True
        again = await store.sessions.diff("early", "side")
        assert again == diff


async def test_law_d07_a_diff_needs_two_sessions(kit: Kit) -> None:
    """A diff with a session that does not exist, or was deleted, is refused with SessionUnknown;
    with an ill-formed id it is Invalid, which names the side. Nothing changes. (d07)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        await grow(store, "gone", "a")
        await store.sessions.delete("gone")
        before = await picture(store, "s")
        for absent in ("ghost", "gone"):
            for left, right in (("s", absent), (absent, "s")):
                with pytest.raises(SessionUnknown) as unknown:
                    await store.sessions.diff(left, right)
                assert unknown.value.session == absent
        for left, right, field in (("s", "", "right"), ("", "s", "left")):
            with pytest.raises(Invalid) as it:
                await store.sessions.diff(left, right)
            assert it.value.field == field
        assert await picture(store, "s") == before
        await works(store, "s")
