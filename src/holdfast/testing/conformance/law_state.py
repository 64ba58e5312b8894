"""State: the named byte values a session carries from turn to turn.

A turn changes the components it names and leaves the others as they are. Every revision keeps the
state as it was then. Content is stored once, under its digest, and may be put back by it.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest

from holdfast.contract.errors import ComponentMissing, Invalid, TooLarge
from holdfast.contract.records import History, NewNode, Receipt, StateRef, Turn
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import Kit, grow, picture, refused, works

# The digests are those of sha256sum.
ONE = StateRef(digest="7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed")
EMPTY = StateRef(digest="e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
NOWHERE = StateRef(digest="ab" * 32)


async def put(store: Store, turn: str, **state: bytes | StateRef | None) -> Receipt:
    return await store.sessions.commit(Turn(session="s", turn=turn, state=state))


async def load(store: Store, session: str = "s", *, revision: int | None = None) -> History:
    history = await store.history.load(session, revision=revision)
    assert history is not None
    return history


def noise(size: int) -> bytes:
    """Bytes that do not compress, the same in every run."""
    blocks = (hashlib.sha256(number.to_bytes(8, "big")).digest() for number in range(size // 32))
    return b"".join(blocks)


async def test_law_019_state_is_read_back_byte_for_byte(kit: Kit) -> None:
    """Each component of the state is read back byte for byte, small or large, empty, compressible
    or not, from any handle. (19)"""
    state = {
        "agent": b"\x00\x01\xff",
        "empty": b"",
        "text": "Zürich 😀".encode(),
        "every": bytes(range(256)) * 3,
        "zeros": b"\x00" * 1_000_000,
        "noise": noise(1_000_000),
        "a.b_c:d@e/f+g=h~i-j": b"named",
    }
    async with kit.open() as store, kit.open() as other:
        await store.sessions.create("s")
        await store.sessions.commit(Turn(session="s", turn="t", state=state))
        for handle in (store, other):
            history = await load(handle)
            assert history.state == state
            assert set(history.refs) == set(state)
        head = await store.sessions.head("s")
        assert head is not None
        assert head.state is not None


async def test_law_048_what_a_revision_names_is_kept(kit: Kit) -> None:
    """Content that any retained revision names is kept: it survives being replaced, being cleared,
    a vacuum and the deletion of other sessions. (48)"""
    async with kit.open() as store:
        await grow(store, "s", "a", "b")
        await put(store, "t1", agent=b"one", tools=b"hammer")
        await put(store, "t2", agent=b"two")
        await put(store, "t3", agent=None, tools=None)
        await store.sessions.create("twin")
        await store.sessions.commit(Turn(session="twin", turn="t", state={"x": b"one"}))
        await store.sessions.delete("twin")
        await store.history.tombstone("s", ["a"])
        await store.history.vacuum("s")
        assert (await load(store, revision=3)).state == {"agent": b"one", "tools": b"hammer"}
        assert (await load(store, revision=4)).state == {"agent": b"two", "tools": b"hammer"}
        assert (await load(store)).state == {}
        await put(store, "t4", agent=ONE)
        assert (await load(store)).state == {"agent": b"one"}


async def test_law_051_content_is_put_back_by_its_digest(kit: Kit) -> None:
    """A component may be given as the digest of stored content, and reads as that content. A digest
    the store does not hold is refused with ComponentMissing, which names the component, and
    nothing changes. (51)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await put(store, "t1", agent=b"one")
        await put(store, "t2", agent=b"two")
        assert (await load(store, revision=1)).refs == {"agent": ONE}
        await put(store, "t3", agent=ONE, again=ONE)
        history = await load(store)
        assert history.state == {"agent": b"one", "again": b"one"}
        assert history.refs == {"agent": ONE, "again": ONE}
        async with refused(store, "s", ComponentMissing, turn="t4") as it:
            await put(store, "t4", agent=b"three", tools=NOWHERE)
        assert (it.value.session, it.value.component) == ("s", "tools")
        assert (it.value.digest, it.value.code) == ("ab" * 32, "component-missing")
        assert (await load(store)).state == {"agent": b"one", "again": b"one"}
        await works(store, "s")


async def test_law_052_a_component_is_cleared_with_none(kit: Kit) -> None:
    """A component given as None is cleared: it is in no later state, until it is set again. An
    empty value is a value. Clearing what is not there is no error. (52)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await put(store, "t1", agent=b"one", tools=b"hammer", empty=b"")
        await put(store, "t2", tools=None, never=None)
        history = await load(store)
        assert history.state == {"agent": b"one", "empty": b""}
        assert history.refs == {"agent": ONE, "empty": EMPTY}
        await put(store, "t3", agent=None, empty=None)
        history = await load(store)
        assert (history.state, history.refs) == ({}, {})
        await put(store, "t4", tools=b"saw")
        assert (await load(store)).state == {"tools": b"saw"}


async def test_law_v01_a_turn_changes_only_what_it_names(kit: Kit) -> None:
    """Components a turn does not name stay as they are, over any number of turns. (v01)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await put(store, "t1", a=b"1", b=b"1", c=b"1")
        await put(store, "t2", b=b"2")
        await grow(store, "s", "node")
        await put(store, "t3", c=b"3", d=b"3")
        assert (await load(store)).state == {"a": b"1", "b": b"2", "c": b"3", "d": b"3"}
        await put(store, "t4", a=None)
        assert (await load(store)).state == {"b": b"2", "c": b"3", "d": b"3"}
        assert (await load(store, revision=1)).state == {"a": b"1", "b": b"1", "c": b"1"}


async def test_law_v02_a_load_may_leave_the_state_out(kit: Kit) -> None:
    """A load may leave the state out; the path is the same. (v02)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        await put(store, "t", agent=b"one")
        whole = await load(store)
        bare = await store.history.load("s", state=False)
        assert bare is not None
        assert bare.state == {}
        assert (bare.nodes, bare.leaf, bare.revision) == (whole.nodes, "a", 2)
        assert whole.state == {"agent": b"one"}


async def test_law_v03_a_reference_names_content_by_sha256(kit: Kit) -> None:
    """A reference is the SHA-256 of the content in lower-case hexadecimal, so equal content has
    equal references, in every component and every session. (v03)"""
    async with kit.open() as store:
        for session in ("s", "other"):
            await store.sessions.create(session)
            await store.sessions.commit(
                Turn(session=session, turn="t", state={"x": b"one", "y": b"one", "z": b""})
            )
            refs = (await load(store, session)).refs
            assert refs == {"x": ONE, "y": ONE, "z": EMPTY}


async def test_law_v04_references_put_an_old_state_back(kit: Kit) -> None:
    """The references of an earlier revision, sent as state, put that state back, without the
    bytes. (v04)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await put(store, "t1", agent=b"one", tools=b"hammer")
        await put(store, "t2", agent=b"two", tools=None)
        old = await load(store, revision=1)
        turn = Turn(session="s", turn="t3", state=old.refs)
        receipt = await store.sessions.commit(turn)
        assert (await load(store)).state == {"agent": b"one", "tools": b"hammer"}
        again = await store.sessions.commit(turn)
        assert again == msgspec.structs.replace(receipt, replayed=True)


async def test_law_v05_a_turn_may_refer_to_content_it_brings(kit: Kit) -> None:
    """A turn may name content that it brings itself in another component. (v05)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await put(store, "t", agent=b"one", copy=ONE)
        assert (await load(store)).state == {"agent": b"one", "copy": b"one"}


async def test_law_v06_a_refused_turn_stores_no_content(kit: Kit) -> None:
    """A refused turn stores no content: what it brought cannot be named afterwards. (v06)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        async with refused(store, "s", ComponentMissing):
            await put(store, "t1", agent=b"one", tools=NOWHERE)
        async with refused(store, "s", ComponentMissing) as it:
            await put(store, "t1", agent=ONE)
        assert (it.value.component, it.value.digest) == ("agent", ONE.digest)
        await put(store, "t1", agent=b"one")
        assert (await load(store)).state == {"agent": b"one"}


async def test_law_v07_many_components_are_one_state(kit: Kit) -> None:
    """A turn may carry up to 1,024 components; one more is refused with TooLarge, and nothing
    changes. (v07)"""
    many = {f"c{number}": str(number).encode() for number in range(1024)}
    async with kit.open() as store:
        await store.sessions.create("s")
        await store.sessions.commit(Turn(session="s", turn="t1", state=many))
        assert (await load(store)).state == many
        await put(store, "t2", c7=b"seven", c8=None)
        wanted = {**many, "c7": b"seven"}
        del wanted["c8"]
        assert (await load(store)).state == wanted
        async with refused(store, "s", TooLarge, turn="t3") as it:
            await put(store, "t3", **many, more=b"x")
        assert (it.value.actual, it.value.limit) == (1025, 1024)
        assert it.value.field == "state"
        await works(store, "s")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("", b"x"),
        ("a b", b"x"),
        ("é", b"x"),
        ("agent", "text"),
        ("agent", 5),
        ("agent", {"a": 1}),
        ("agent", StateRef(digest="")),
        ("agent", StateRef(digest="ab")),
        ("agent", StateRef(digest="zz" * 32)),
    ],
    ids=ascii,
)
async def test_law_v08_ill_formed_state_is_refused(kit: Kit, name: str, value: Any) -> None:
    """A component has a well-formed name, and its value is bytes, a reference of 64 hexadecimal
    digits, or None; anything else is Invalid, which names the field, and nothing changes. (v08)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        async with refused(store, "s", Invalid, turn="t") as it:
            await store.sessions.commit(Turn(session="s", turn="t", state={name: value}))
        assert it.value.field == ("state.agent" if name == "agent" else "state")
        await works(store, "s")


async def test_law_v09_unchanged_content_is_the_same_state(kit: Kit) -> None:
    """A turn that does not change the state leaves its name in the head as it was, and one that
    changes it gives it another. (v09)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        names: list[str | None] = []
        await put(store, "t1", agent=b"one")
        names.append(await _state_name(store))
        await put(store, "t2")
        names.append(await _state_name(store))
        await put(store, "t3", agent=b"two")
        names.append(await _state_name(store))
        assert names[0] is not None
        assert names[0] == names[1]
        assert names[2] not in (None, names[0])
        before = await picture(store, "s")
        rows = [row.state for row in before.revisions]
        assert rows == [names[2], names[1], names[0], None]


async def _state_name(store: Store) -> str | None:
    head = await store.sessions.head("s")
    assert head is not None
    return head.state


async def test_law_v10_state_and_nodes_change_together(kit: Kit) -> None:
    """State and nodes of a turn appear together: a load that shows the one shows the
    other. (v10)"""
    async with kit.open() as store, kit.open() as other:
        await store.sessions.create("s")
        for number in range(1, 6):
            nodes = [NewNode(id=f"n{number}", body=number)]
            state = {"count": str(number).encode()}
            await store.sessions.commit(
                Turn(session="s", turn=f"t{number}", nodes=nodes, state=state)
            )
            history = await load(other)
            assert len(history.nodes) == number
            assert (history.revision, history.state) == (number, state)


async def test_law_v11_the_state_is_that_of_the_head_whatever_the_path(kit: Kit) -> None:
    """The state of a load is that of the head, or of the revision named, and not of the path: it is
    the same for every leaf, page and tail that is asked for. (v11)"""
    async with kit.open() as store:
        await grow(store, "s", "a", "b", "c")
        await put(store, "t", agent=b"one")
        await store.history.tombstone("s", ["a"])
        whole = await load(store)
        tail = await store.history.load("s", tail=1)
        assert tail is not None
        assert tail.before is not None
        for other in (
            tail,
            await store.history.load("s", before=tail.before, tail=1),
            await store.history.load("s", leaf="b"),
            await store.history.load("s", leaf="a"),
            await store.history.load("s", leaf="nowhere"),
        ):
            assert other is not None
            assert (other.state, other.refs) == ({"agent": b"one"}, {"agent": ONE})
            assert other.revision == whole.revision == 4
