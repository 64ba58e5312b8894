"""Tenants: a handle sees one tenant, and there is no other.

A tenant is the first part of every key. What belongs to another tenant is answered exactly as what
does not exist, by every operation, so that not even its existence can be found out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from holdfast.contract.errors import ComponentMissing, HoldfastError, SessionUnknown
from holdfast.contract.records import Deleted, NewNode, Turn, Usage
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import Kit, grow, path, picture, works


async def furnished(store: Store) -> None:
    """Session "s" with something of everything."""
    await store.sessions.create("s", title="Secret", tags={"user": "ada"})
    await store.sessions.commit(
        Turn(
            session="s",
            turn="t",
            nodes=[NewNode(id="a", body="secret")],
            state={"agent": b"secret state"},
            usage=[Usage(model="m", input=5)],
        )
    )


async def test_law_t01_another_tenants_session_is_not_there_to_read(kit: Kit) -> None:
    """Every read of another tenant's session answers as for one that does not exist. (t01)"""
    async with kit.open() as store, kit.open(kit.other_tenant()) as other:
        await furnished(store)
        assert store.tenant != other.tenant
        assert await other.sessions.get("s") is None
        assert await other.sessions.head("s") is None
        assert await other.sessions.receipt("s", "t") is None
        assert await other.history.load("s") is None
        assert await other.history.load("s", leaf="a") is None
        assert await other.history.load("s", revision=0) is None
        assert await other.history.node("s", "a") is None
        assert await other.lanes.read("s") is None
        assert (await other.sessions.list()).items == ()
        assert (await other.sessions.list(tags={"user": "ada"})).items == ()
        assert (await other.sessions.revisions("s")).items == ()
        assert (await other.history.graph("s")).items == ()
        assert (await other.usage.rows("s")).items == ()
        assert await other.usage.totals() == ()
        assert await other.usage.totals(session="s") == ()


async def test_law_t02_another_tenants_session_cannot_be_changed(kit: Kit) -> None:
    """Every write to another tenant's session is refused as for one that does not exist, also with
    the fence of its lane; a delete finds nothing. Nothing of it changes. (t02)"""
    async with kit.open() as store, kit.open(kit.other_tenant()) as other:
        await furnished(store)
        lane = await store.lanes.claim("s", "worker")
        await other.sessions.create("mine")
        before = await picture(store, "s", turn="t")
        node = NewNode(id="b", body="b")
        writes: dict[str, Callable[[], Awaitable[object]]] = {
            "commit": lambda: other.sessions.commit(Turn(session="s", nodes=[node])),
            "fenced": lambda: other.sessions.commit(Turn(session="s", fence=lane.fence)),
            "replay": lambda: other.sessions.commit(Turn(session="s", turn="t")),
            "update": lambda: other.sessions.update("s", title="taken"),
            "fork": lambda: other.sessions.fork("s", "new"),
            "rewind": lambda: other.sessions.rewind("s", revision=0, reason="x"),
            "diff": lambda: other.sessions.diff("mine", "s"),
            "tombstone": lambda: other.history.tombstone("s", ["a"]),
            "vacuum": lambda: other.history.vacuum("s"),
            "claim": lambda: other.lanes.claim("s", "thief"),
            "renew": lambda: other.lanes.renew(lane.fence),
            "displace": lambda: other.lanes.displace("s"),
        }
        for name, write in writes.items():
            with pytest.raises(SessionUnknown) as it:
                await write()
            assert it.value.session == "s", name
        absent = Deleted(session="s", deleted=False)
        assert await other.sessions.delete("s") == absent
        assert await picture(store, "s", turn="t") == before
        assert await other.sessions.get("new") is None
        assert await other.sessions.get("s") is None
        await works(store, "s", fence=lane.fence)


async def test_law_t03_a_fence_is_no_use_in_another_tenant(kit: Kit) -> None:
    """The fence of a lane is of no use in another tenant, where a session of the same id has a lane
    of its own: releasing, renewing and committing answer as for a stranger's. (t03)"""
    async with kit.open() as store, kit.open(kit.other_tenant()) as other:
        for handle in (store, other):
            await grow(handle, "s", "a")
        lane = await store.lanes.claim("s", "worker")
        own = await other.lanes.claim("s", "worker")
        before = await picture(other, "s")
        assert await other.lanes.release(lane.fence) is False
        wrong = msgspec.structs.replace(lane.fence, session="ghost")
        outcomes: list[type[HoldfastError]] = []
        for fence in (lane.fence, wrong):
            with pytest.raises(HoldfastError) as it:
                await other.lanes.renew(fence)
            outcomes.append(type(it.value))
        assert [kind.__name__ for kind in outcomes] == ["LaneLost", "SessionUnknown"]
        assert await picture(other, "s") == before
        await works(other, "s", fence=own.fence)
        await works(store, "s", fence=lane.fence)


async def test_law_t04_the_same_id_in_two_tenants_is_two_sessions(kit: Kit) -> None:
    """A session id in two tenants is two sessions with nodes, turns and lanes of their own;
    deleting one neither touches the other nor burns its id. (t04)"""
    tenant = kit.other_tenant()
    async with kit.open() as store, kit.open(tenant) as other:
        await furnished(store)
        made = await other.sessions.create("s", title="Theirs")
        assert (made.created, made.session.title) == (True, "Theirs")
        receipt = await other.sessions.commit(
            Turn(session="s", turn="t", nodes=[NewNode(id="a", body="other")])
        )
        assert (receipt.revision, receipt.replayed) == (1, False)
        await store.lanes.claim("s", "worker")
        lane = await other.lanes.claim("s", "worker")
        assert lane.generation == 1
        before = await picture(other, "s", turn="t")
        await store.history.tombstone("s", ["a"])
        await store.history.vacuum("s")
        assert (await store.sessions.delete("s")).deleted is True
        assert await picture(other, "s", turn="t") == before
        await works(other, "s", fence=lane.fence)
    async with kit.open(tenant) as late:
        assert await path(late, "s") == ["a", "works-2:0"]


async def test_law_t05_content_is_not_shared_between_tenants(kit: Kit) -> None:
    """Content that another tenant has stored cannot be named by its digest, and is not freed when
    that tenant deletes its own. (t05)"""
    async with kit.open() as store, kit.open(kit.other_tenant()) as other:
        await furnished(store)
        history = await store.history.load("s")
        assert history is not None
        ref = history.refs["agent"]
        await other.sessions.create("s")
        with pytest.raises(ComponentMissing) as it:
            await other.sessions.commit(Turn(session="s", turn="t", state={"agent": ref}))
        assert (it.value.component, it.value.digest) == ("agent", ref.digest)
        await other.sessions.commit(Turn(session="s", turn="t", state={"agent": b"secret state"}))
        assert (await other.sessions.delete("s")).blobs == 1
        again = await store.history.load("s")
        assert again is not None
        assert again.state == {"agent": b"secret state"}
        await works(store, "s")


async def test_law_t06_listings_and_totals_are_the_tenants_own(kit: Kit) -> None:
    """The catalog, its pages and the totals of usage hold what the tenant has stored and nothing
    else. (t06)"""
    async with kit.open() as store, kit.open(kit.other_tenant()) as other:
        for number in range(3):
            await store.sessions.create(f"mine-{number}", tags={"user": "ada"})
            await other.sessions.create(f"theirs-{number}", tags={"user": "ada"})
        await store.sessions.commit(
            Turn(session="mine-0", turn="t", usage=[Usage(model="m", input=1)])
        )
        await other.sessions.commit(
            Turn(session="theirs-0", turn="t", usage=[Usage(model="m", input=2)])
        )
        for handle, name, spent in ((store, "mine", 1), (other, "theirs", 2)):
            seen: list[str] = []
            after: str | None = None
            for _ in range(3):
                page = await handle.sessions.list(tags={"user": "ada"}, after=after, limit=1)
                seen += [info.session for info in page.items]
                after = page.next
                if after is None:
                    break
            assert sorted(seen) == [f"{name}-0", f"{name}-1", f"{name}-2"]
            assert [total.usage.input for total in await handle.usage.totals()] == [spent]


async def test_law_t07_a_cursor_is_no_key_to_another_tenant(kit: Kit) -> None:
    """A cursor of one tenant shows another tenant nothing but its own: what it answers, if it
    answers, are that tenant's sessions and nodes. (t07)"""
    async with kit.open() as store, kit.open(kit.other_tenant()) as other:
        for name, handle in (("mine", store), ("theirs", other)):
            for node in "abc":
                await handle.sessions.create(f"{name}-{node}")
            await handle.sessions.create("s")
            for node in "abc":
                await handle.sessions.commit(
                    Turn(session="s", turn=node, nodes=[NewNode(id=f"{name}-{node}", body=name)])
                )
        listed = (await store.sessions.list(limit=2)).next
        loaded = await store.history.load("s", tail=2)
        assert listed is not None
        assert loaded is not None
        assert loaded.before is not None
        try:
            foreign = [info.session for info in (await other.sessions.list(after=listed)).items]
        except HoldfastError:
            foreign = []
        assert not [name for name in foreign if name.startswith("mine")]
        try:
            page = await other.history.load("s", before=loaded.before)
            bodies = [node.body for node in page.nodes] if page is not None else []
        except HoldfastError:
            bodies = []
        assert b'"mine"' not in bodies
        assert await path(other, "s") == ["theirs-a", "theirs-b", "theirs-c"]
