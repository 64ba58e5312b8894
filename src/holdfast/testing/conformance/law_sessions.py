"""Sessions: creating, naming, listing and deleting them.

A session is one conversation. It is created before it is written to, it is found through the
catalog, and once deleted its id is never used again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from holdfast.contract.errors import (
    ComponentMissing,
    HandleClosed,
    Invalid,
    SessionDeleted,
    SessionUnknown,
)
from holdfast.contract.records import (
    Created,
    Deleted,
    Head,
    NewNode,
    StateRef,
    Turn,
    Usage,
    Vacuumed,
)
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import (
    Kit,
    graph,
    grow,
    path,
    picture,
    refused,
    works,
)


async def test_law_001_reading_an_unknown_session_answers_none(kit: Kit) -> None:
    """Reading a session that does not exist answers None, and creates nothing. (1)"""
    async with kit.open() as store:
        assert await store.sessions.get("ghost") is None
        assert await store.sessions.head("ghost") is None
        assert await store.sessions.receipt("ghost", "t") is None
        assert await store.history.load("ghost") is None
        assert await store.history.node("ghost", "n") is None
        assert await store.lanes.read("ghost") is None
        assert (await store.sessions.list()).items == ()
        assert (await store.sessions.create("ghost")).created is True
        await works(store, "ghost")


async def test_law_003_create_records_title_and_tags(kit: Kit) -> None:
    """Creating a session records its title, its tags and the time, and says that it was created.
    It starts at revision 0 with no leaf and no nodes. (3)"""
    async with kit.open() as store:
        made = await store.sessions.create("s", title="Trip to Rome", tags={"user": "ada"})
        assert made.created is True
        info = made.session
        assert (info.session, info.title, info.tags) == ("s", "Trip to Rome", {"user": "ada"})
        assert (info.revision, info.leaf, info.node_count) == (0, None, 0)
        assert info.forked_from is None
        assert info.created_at_ms > 0
        assert info.active_at_ms >= info.created_at_ms
        plain = (await store.sessions.create("plain")).session
        assert (plain.title, plain.tags) == ("", {})


async def test_law_004_get_answers_what_create_answered(kit: Kit) -> None:
    """What create returned is what get returns, from any handle. (4)"""
    async with kit.open() as one, kit.open() as two:
        made = await one.sessions.create("s", title="Trip", tags={"user": "ada", "kind": "demo"})
        assert await one.sessions.get("s") == made.session
        assert await two.sessions.get("s") == made.session


async def test_law_005_create_leaves_an_existing_session_as_it_is(kit: Kit) -> None:
    """Creating a session that exists already changes nothing of it: neither its title nor its tags
    nor its history. (5)"""
    async with kit.open() as store:
        await store.sessions.create("s", title="First", tags={"user": "ada"})
        await grow(store, "s", "a")
        before = await picture(store, "s")
        again = await store.sessions.create("s", title="Second", tags={"user": "bob", "x": "y"})
        assert again.created is False
        assert (again.session.title, again.session.tags) == ("First", {"user": "ada"})
        assert again.session.revision == 1
        assert await picture(store, "s") == before
        await works(store, "s")


async def test_law_006_a_deleted_session_is_gone_from_every_read(kit: Kit) -> None:
    """After a delete the session is gone from every read: it answers as if it had never been, and
    the catalog does not list it. (6)"""
    async with kit.open() as store:
        await grow(store, "s", "a", "b")
        await store.sessions.delete("s")
        assert await store.sessions.get("s") is None
        assert await store.sessions.head("s") is None
        assert await store.sessions.receipt("s", "t-a") is None
        assert await store.history.load("s") is None
        assert await store.history.load("s", leaf="a") is None
        assert await store.history.node("s", "a") is None
        assert await store.lanes.read("s") is None
        assert (await store.sessions.list()).items == ()


async def test_law_007_delete_is_idempotent(kit: Kit) -> None:
    """Deleting a session twice succeeds: the second time says that nothing was deleted. Deleting an
    id that was never created succeeds too, and does not burn the id. (7)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        assert (await store.sessions.delete("s")).deleted is True
        assert await store.sessions.delete("s") == Deleted(session="s", deleted=False)
        assert await store.sessions.delete("never") == Deleted(session="never", deleted=False)
        assert (await store.sessions.create("never")).created is True
        await works(store, "never")


async def test_law_008_a_deleted_id_is_never_used_again(kit: Kit) -> None:
    """The id of a deleted session is never used again: creating it, or forking onto it, is refused
    for ever. (8)"""
    async with kit.open() as store, kit.open() as other:
        await grow(store, "s", "a")
        await grow(store, "source", "x")
        await store.sessions.delete("s")
        for handle in (store, other):
            async with refused(handle, "s", SessionDeleted) as it:
                await handle.sessions.create("s")
            assert (it.value.session, it.value.code) == ("s", "session-deleted")
            async with refused(handle, "source", SessionDeleted) as it:
                await handle.sessions.fork("source", "s")
            assert it.value.session == "s"
        assert await store.sessions.get("s") is None
        await works(store, "source")


async def test_law_011_delete_removes_all_that_the_session_owns(kit: Kit) -> None:
    """Deleting a session removes its nodes, revisions, receipts, usage and state, and reports how
    many. What other sessions own stays, down to the last byte. (11)"""
    async with kit.open() as store:
        for session in ("gone", "kept"):
            await store.sessions.create(session, title=session, tags={"user": "ada"})
            for turn in ("t1", "t2"):
                await store.sessions.commit(
                    Turn(
                        session=session,
                        turn=turn,
                        nodes=[NewNode(body=f"{session} {turn}")],
                        state={"agent": f"state of {session} in {turn}".encode()},
                        usage=[Usage(model="m", input=5)],
                    )
                )
        before = await picture(store, "kept", turn="t1")
        report = await store.sessions.delete("gone")
        assert (report.session, report.deleted) == ("gone", True)
        assert (report.nodes, report.kept_nodes, report.revisions) == (2, 0, 3)
        assert (report.receipts, report.usage) == (2, 2)
        assert await picture(store, "kept", turn="t1") == before
        assert [info.session for info in (await store.sessions.list()).items] == ["kept"]
        totals = await store.usage.totals(by=("session",))
        assert [(t.session, t.entries, t.usage.input) for t in totals] == [("kept", 2, 10)]
        await works(store, "kept")


async def test_law_012_writes_to_a_deleted_session_are_refused(kit: Kit) -> None:
    """Every write to a deleted session is refused with SessionDeleted, also through a handle that
    was opened before, also with a fence that was live, and also the replay of a turn. (12)"""
    async with kit.open() as store, kit.open() as other:
        await grow(store, "s", "a")
        await grow(store, "free")
        lane = await store.lanes.claim("s", "worker")
        await other.sessions.delete("s")
        a = NewNode(id="a", body="a")
        writes: dict[str, Callable[[], Awaitable[object]]] = {
            "create": lambda: store.sessions.create("s"),
            "update": lambda: store.sessions.update("s", title="new"),
            "commit": lambda: store.sessions.commit(Turn(session="s", turn="t-b")),
            "fenced commit": lambda: store.sessions.commit(Turn(session="s", fence=lane.fence)),
            "replay": lambda: store.sessions.commit(Turn(session="s", turn="t-a", nodes=[a])),
            "rewind": lambda: store.sessions.rewind("s", revision=0, reason="again"),
            "fork from": lambda: store.sessions.fork("s", "new"),
            "fork onto": lambda: store.sessions.fork("free", "s"),
            "tombstone": lambda: store.history.tombstone("s", ["a"]),
            "vacuum": lambda: store.history.vacuum("s"),
            "claim": lambda: store.lanes.claim("s", "worker"),
            "displace": lambda: store.lanes.displace("s"),
        }
        for name, write in writes.items():
            async with refused(store, "s", SessionDeleted) as it:
                await write()
            assert it.value.session == "s", name
        assert await store.sessions.get("new") is None
        await works(store, "free")


async def test_law_013_delete_and_vacuum_touch_one_session_only(kit: Kit) -> None:
    """Deleting, tombstoning or vacuuming one session touches no other, even where both have nodes
    and turns with the same ids. (13)"""
    async with kit.open() as store:
        for session in ("one", "two", "three"):
            await grow(store, session, "a", "b", "c")
        before = await picture(store, "two", turn="t-b")
        assert await store.history.tombstone("one", ["b"]) == 1
        assert await store.history.vacuum("one") == Vacuumed(session="one", nodes=1)
        await store.sessions.delete("three")
        assert await picture(store, "two", turn="t-b") == before
        assert await path(store, "two") == ["a", "b", "c"]
        await works(store, "two")


async def test_law_014_create_is_idempotent_and_says_which(kit: Kit) -> None:
    """Creating an existing session succeeds and says that it was there; an empty id is refused. The
    answer to a repeated create is the same session. (14)"""
    async with kit.open() as store:
        first = await store.sessions.create("s", title="Trip")
        second = await store.sessions.create("s", title="Trip")
        assert (first.created, second.created) == (True, False)
        assert second == Created(created=False, session=first.session)
        with pytest.raises(Invalid) as it:
            await store.sessions.create("")
        assert (it.value.field, it.value.code) == ("session", "invalid")
        assert [info.session for info in (await store.sessions.list()).items] == ["s"]
        await works(store, "s")


async def test_law_015_delete_frees_the_content_only_it_held(kit: Kit) -> None:
    """Deleting a session frees the content of its state that nobody else holds, and reports how
    much; content that another session or a fork holds stays and stays readable. (15)"""
    async with kit.open() as store:
        state = {"agent": b"held by both", "tools": b"only in the source"}
        await store.sessions.create("source")
        await store.sessions.commit(Turn(session="source", turn="t1", state=state))
        await store.sessions.fork("source", "fork")
        await store.sessions.create("twin")
        await store.sessions.commit(
            Turn(session="twin", turn="t1", state={"agent": b"held by both"})
        )
        await store.sessions.commit(
            Turn(session="source", turn="t2", state={"plan": b"nobody else has this"})
        )
        report = await store.sessions.delete("source")
        assert report.blobs == 1
        fork = await store.history.load("fork")
        twin = await store.history.load("twin")
        assert fork is not None
        assert twin is not None
        assert fork.state == state
        assert twin.state == {"agent": b"held by both"}
        assert (await store.sessions.delete("fork")).blobs == 1
        assert (await store.sessions.delete("twin")).blobs == 1


async def test_law_045_title_and_tags_are_changed_by_update(kit: Kit) -> None:
    """An update replaces the title when it is given, sets the tags it names, removes those given
    as None, and leaves all others. It changes no history. (45)"""
    async with kit.open() as store, kit.open() as other:
        await store.sessions.create("s", title="Old", tags={"user": "ada", "kind": "demo"})
        await grow(store, "s", "a")
        head = await store.sessions.head("s")
        info = await store.sessions.update("s", title="New")
        assert (info.title, info.tags) == ("New", {"user": "ada", "kind": "demo"})
        info = await store.sessions.update("s", tags={"user": "bob", "kind": None, "team": "x"})
        assert (info.title, info.tags) == ("New", {"user": "bob", "team": "x"})
        info = await store.sessions.update("s", tags={"absent": None})
        assert info.tags == {"user": "bob", "team": "x"}
        info = await store.sessions.update("s", title="")
        assert (info.title, info.tags) == ("", {"user": "bob", "team": "x"})
        assert await other.sessions.get("s") == info
        assert await store.sessions.head("s") == head == await other.sessions.head("s")
        await works(store, "s")


async def test_law_046_another_handle_reads_what_one_handle_wrote(kit: Kit) -> None:
    """What one handle has written, another one, opened on its own, reads: title and tags, head,
    nodes, state, usage, receipts and lane; and so does a handle opened after the first is
    closed. (46)"""
    async with kit.open() as writer, kit.open() as reader:
        await writer.sessions.create("s", title="Trip", tags={"user": "ada"})
        await writer.sessions.commit(
            Turn(
                session="s",
                turn="t1",
                nodes=[NewNode(id="a", body={"text": "hello"})],
                state={"agent": b"\x00\x01"},
                usage=[Usage(model="m", input=3)],
            )
        )
        await writer.lanes.claim("s", "worker")
        written = await picture(writer, "s", turn="t1")
        assert await picture(reader, "s", turn="t1") == written
    async with kit.open() as late:
        assert await picture(late, "s", turn="t1") == written
    assert written.head is not None
    assert (written.head.revision, written.head.leaf, written.head.node_count) == (1, "a", 1)
    assert written.history is not None
    assert written.history.nodes[0].body == b'{"text":"hello"}'
    assert written.history.state == {"agent": b"\x00\x01"}


async def test_law_s01_a_fresh_session_has_revision_zero(kit: Kit) -> None:
    """A fresh session has revision 0, no leaf, an empty path, no state and a free lane; its
    history of heads has one entry, of kind "created". (s01)"""
    async with kit.open() as store:
        info = (await store.sessions.create("s")).session
        assert await store.sessions.head("s") == Head(
            session="s", revision=0, leaf=None, depth=0, node_count=0, state=None
        )
        history = await store.history.load("s")
        assert history is not None
        assert (history.session, history.revision, history.leaf) == ("s", 0, None)
        assert (history.nodes, history.before, history.node_count) == ((), None, 0)
        assert (history.state, history.refs) == ({}, {})
        (row,) = (await store.sessions.revisions("s")).items
        assert (row.revision, row.kind, row.turn, row.reason) == (0, "created", None, None)
        assert (row.session, row.leaf, row.depth, row.state) == ("s", None, 0, None)
        assert row.at_ms == info.created_at_ms


async def test_law_s02_updating_an_unknown_session_is_refused(kit: Kit) -> None:
    """Updating a session that does not exist is refused and creates nothing. (s02)"""
    async with kit.open() as store:
        async with refused(store, "ghost", SessionUnknown) as it:
            await store.sessions.update("ghost", title="new")
        assert (it.value.session, it.value.code) == ("ghost", "session-unknown")
        assert (await store.sessions.list()).items == ()
        await grow(store, "ghost")
        await works(store, "ghost")


async def test_law_s03_listings_of_what_is_not_there_are_empty(kit: Kit) -> None:
    """The revisions, nodes and usage of a session that does not exist, or was deleted, are an empty
    page, and its usage adds up to nothing. (s03)"""
    async with kit.open() as store:
        await grow(store, "deleted", "a")
        await store.sessions.commit(
            Turn(session="deleted", turn="paid", usage=[Usage(model="m", input=1)])
        )
        await store.sessions.delete("deleted")
        for session in ("ghost", "deleted"):
            revisions = await store.sessions.revisions(session)
            nodes = await store.history.graph(session)
            rows = await store.usage.rows(session)
            assert (revisions.items, revisions.next) == ((), None)
            assert (nodes.items, nodes.next) == ((), None)
            assert (rows.items, rows.next) == ((), None)
            assert await store.usage.totals(session=session) == ()


async def test_law_s04_a_closed_handle_refuses_everything(kit: Kit) -> None:
    """A closed handle refuses every operation with HandleClosed, may be closed again, and takes
    nothing away: another handle goes on. (s04)"""
    async with kit.open() as open_one:
        async with kit.open() as store:
            await grow(store, "s", "a")
            await store.close()
            await store.close()
            uses: tuple[Callable[[], Awaitable[object]], ...] = (
                lambda: store.sessions.get("s"),
                lambda: store.sessions.create("new"),
                lambda: store.sessions.commit(Turn(session="s", turn="t")),
                lambda: store.history.load("s"),
                lambda: store.lanes.claim("s", "worker"),
                lambda: store.usage.totals(),
            )
            for use in uses:
                with pytest.raises(HandleClosed) as it:
                    await use()
                assert it.value.code == "handle-closed"
        assert await open_one.sessions.get("new") is None
        assert await graph(open_one, "s") == ["a"]
        await works(open_one, "s")


async def test_law_s05_content_freed_by_delete_cannot_be_named_again(kit: Kit) -> None:
    """Content that a delete freed is gone: naming it by its digest is refused as if it had never
    been stored. (s05)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await store.sessions.commit(Turn(session="s", turn="t1", state={"k": b"only in s"}))
        ref = await _ref(store, "s", "k")
        await store.sessions.delete("s")
        await store.sessions.create("next")
        async with refused(store, "next", ComponentMissing) as it:
            await store.sessions.commit(Turn(session="next", turn="t1", state={"k": ref}))
        assert (it.value.component, it.value.digest) == ("k", ref.digest)
        await works(store, "next")


async def _ref(store: Store, session: str, component: str) -> StateRef:
    history = await store.history.load(session)
    assert history is not None
    return history.refs[component]
