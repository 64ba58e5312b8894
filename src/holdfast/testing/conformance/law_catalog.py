"""The catalog: finding sessions, and what may be their ids, titles and tags.

The catalog lists the sessions of a tenant in pages, newest first, by order of creation or of last
activity, and filtered by tags, origin and activity.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.contract.errors import Invalid, TooLarge
from holdfast.contract.records import Turn
from holdfast.testing.conformance.kit import Kit, all_pages, grow, refused, works


async def test_law_g01_a_listing_is_complete_page_by_page(kit: Kit) -> None:
    """Pages of the catalog hold at most the number asked for, and together they hold each session
    exactly once, whatever the page size and the order. (g01)"""
    async with kit.open() as store:
        for number in range(7):
            await store.sessions.create(f"s{number}")
        everything = {"s0", "s1", "s2", "s3", "s4", "s5", "s6"}
        orders: tuple[Any, ...] = ("active", "created")
        for order in orders:
            for limit in (1, 2, 3, 7, 8):
                seen: list[str] = []
                after: str | None = None
                for _ in range(8):
                    page = await store.sessions.list(order=order, after=after, limit=limit)
                    assert len(page.items) <= limit
                    seen += [info.session for info in page.items]
                    after = page.next
                    if after is None:
                        break
                assert after is None
                assert len(seen) == 7
                assert set(seen) == everything


async def test_law_g02_the_catalog_lists_the_newest_first(kit: Kit) -> None:
    """The catalog is ordered newest first: by creation, or by last activity to the minute. An entry
    is what get returns. (g02)"""
    async with kit.open() as store:
        for number in range(5):
            await store.sessions.create(f"s{number}", title=f"Number {number}")
        await grow(store, "s1", "a")
        created = await all_pages(lambda a: store.sessions.list(order="created", after=a, limit=2))
        active = await all_pages(lambda a: store.sessions.list(order="active", after=a, limit=2))
        times = [info.created_at_ms for info in created]
        assert times == sorted(times, reverse=True)
        minutes = [info.active_at_ms // 60_000 for info in active]
        assert minutes == sorted(minutes, reverse=True)
        for info in created:
            assert info == await store.sessions.get(info.session)
            assert info in active


async def test_law_g03_the_catalog_is_filtered_by_tags(kit: Kit) -> None:
    """A listing by tags holds the sessions that carry every tag named with the value named, as the
    tags are now. (g03)"""
    async with kit.open() as store:
        await store.sessions.create("both", tags={"user": "ada", "kind": "demo"})
        await store.sessions.create("ada", tags={"user": "ada"})
        await store.sessions.create("bob", tags={"user": "bob", "kind": "demo"})
        await store.sessions.create("none")

        async def having(tags: dict[str, str]) -> set[str]:
            found = await all_pages(lambda a: store.sessions.list(tags=tags, after=a, limit=1))
            assert len({info.session for info in found}) == len(found)
            return {info.session for info in found}

        assert await having({"user": "ada"}) == {"both", "ada"}
        assert await having({"user": "ada", "kind": "demo"}) == {"both"}
        assert await having({"user": "eve"}) == set()
        assert await having({"kind": "ada"}) == set()
        assert await having({}) == {"both", "ada", "bob", "none"}
        await store.sessions.update("bob", tags={"user": "ada"})
        await store.sessions.update("both", tags={"user": None})
        assert await having({"user": "ada"}) == {"ada", "bob"}


async def test_law_g04_the_catalog_is_filtered_by_activity(kit: Kit) -> None:
    """A listing of what was active since a time holds the sessions whose last activity is at that
    time or later. (g04)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        info = await store.sessions.get("s")
        assert info is not None
        now, day = info.active_at_ms, 86_400_000
        for since in (0, now - day, now):
            page = await store.sessions.list(active_since_ms=since)
            assert [found.session for found in page.items] == ["s"], since
        assert (await store.sessions.list(active_since_ms=now + day)).items == ()


async def test_law_g05_the_catalog_entry_follows_the_head(kit: Kit) -> None:
    """The catalog entry of a session shows its head: the revision, the leaf and the number of nodes
    are those of the last turn, and its last activity is the time of that turn. (g05)"""
    async with kit.open() as store:
        made = (await store.sessions.create("s")).session
        await grow(store, "s", "a", "b")
        info = await store.sessions.get("s")
        assert info is not None
        assert (info.revision, info.leaf, info.node_count) == (2, "b", 2)
        assert info.created_at_ms == made.created_at_ms
        assert info.active_at_ms >= made.active_at_ms
        assert (await store.sessions.list()).items == (info,)
        # No sleeping: as many turns as it takes for the clock to show another millisecond.
        for _ in range(500):
            receipt = await store.sessions.commit(Turn(session="s"))
            if receipt.at_ms > made.active_at_ms:
                break
        moved = await store.sessions.get("s")
        assert moved is not None
        assert (moved.active_at_ms, moved.created_at_ms) == (receipt.at_ms, made.created_at_ms)


GOOD_IDS = (
    "a",
    "0",
    "Z9",
    "a.b_c:d@e/f+g=h~i-j",
    "user/42:thread=7",
    "a" * 200,
    "../x"[3:],
    "CON",
    "a--",
    "0e1",
)
BAD_IDS = (
    "",
    " ",
    "a b",
    " a",
    "a ",
    "a\n",
    "a\x00b",
    "-a",
    ".a",
    "/a",
    "_a",
    "é",
    "a\u00e9",
    "\u0661",
    "a'b",
    'a"b',
    "a%b",
    "a\\b",
    "a;b",
    "a*",
    "\ud800",
    "a" * 201,
)


async def test_law_g06_well_formed_ids_are_taken_as_they_are(kit: Kit) -> None:
    """An id is 1 to 200 characters: a letter or digit, then letters, digits and . _ : @ / + = ~ -.
    It is kept as it is: ids that differ in case or in one character are different. (g06)"""
    async with kit.open() as store:
        for good in (*GOOD_IDS, "A"):
            assert (await store.sessions.create(good)).created is True
            await grow(store, good, "n")
        for good in (*GOOD_IDS, "A"):
            info = await store.sessions.get(good)
            assert info is not None
            assert (info.session, info.revision) == (good, 1)
        found = await all_pages(lambda a: store.sessions.list(after=a, limit=4))
        assert {info.session for info in found} == {*GOOD_IDS, "A"}


@pytest.mark.parametrize("bad", BAD_IDS, ids=ascii)
async def test_law_g07_ill_formed_ids_are_refused(kit: Kit, bad: str) -> None:
    """An ill-formed id is refused with Invalid, which names the field, and nothing is
    created. (g07)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        async with refused(store, "s", Invalid) as it:
            await store.sessions.create(bad)
        assert it.value.field == "session"
        async with refused(store, "s", Invalid) as it:
            await store.sessions.fork("s", bad)
        assert it.value.field == "session"
        async with refused(store, "s", Invalid) as it:
            await store.sessions.commit(Turn(session=bad, turn="t"))
        assert it.value.field == "session"
        assert [info.session for info in (await store.sessions.list()).items] == ["s"]
        await works(store, "s")


async def test_law_g08_titles_and_tags_are_text_without_control_characters(kit: Kit) -> None:
    """Titles and tags are text: control characters and lone surrogates are refused with Invalid,
    which names the field; all other text is kept as it is. (g08)"""
    async with kit.open() as store:
        text = "Zürich — 東京 😀 'quoted' %s \\ {x}"
        await store.sessions.create("s", title=text, tags={"note": text})
        info = await store.sessions.get("s")
        assert info is not None
        assert (info.title, info.tags) == (text, {"note": text})
        found = await store.sessions.list(tags={"note": text})
        assert [info.session for info in found.items] == ["s"]
        for bad in ("a\x00b", "a\x1bb", "\ud800", "a\udfff"):
            async with refused(store, "s", Invalid) as it:
                await store.sessions.create("new", title=bad)
            assert it.value.field == "title"
            async with refused(store, "s", Invalid) as it:
                await store.sessions.update("s", title=bad)
            assert it.value.field == "title"
            async with refused(store, "s", Invalid) as it:
                await store.sessions.create("new", tags={"note": bad})
            assert it.value.field.startswith("tags")
            async with refused(store, "s", Invalid) as it:
                await store.sessions.update("s", tags={bad: "x"})
            assert it.value.field.startswith("tags")
        assert await store.sessions.get("new") is None
        await works(store, "s")


async def test_law_g09_titles_and_tags_have_limits(kit: Kit) -> None:
    """A title has at most 2,000 characters and a session at most 64 tags, also after an update;
    over a limit is TooLarge, which names the field, the limit and the size. (g09)"""
    async with kit.open() as store:
        tags = {f"tag{number}": "x" for number in range(64)}
        await store.sessions.create("s", title="é" * 2000, tags=tags)
        info = await store.sessions.get("s")
        assert info is not None
        assert (info.title, info.tags) == ("é" * 2000, tags)
        async with refused(store, "s", TooLarge) as it:
            await store.sessions.create("new", title="é" * 2001)
        assert (it.value.field, it.value.actual, it.value.limit) == ("title", 2001, 2000)
        assert it.value.code == "too-large"
        async with refused(store, "s", TooLarge) as it:
            await store.sessions.update("s", title="e" * 2001)
        assert (it.value.field, it.value.actual, it.value.limit) == ("title", 2001, 2000)
        async with refused(store, "s", TooLarge) as it:
            await store.sessions.create("new", tags={**tags, "one": "more"})
        assert (it.value.field, it.value.actual, it.value.limit) == ("tags", 65, 64)
        async with refused(store, "s", TooLarge) as it:
            await store.sessions.update("s", tags={"one": "more"})
        assert (it.value.field, it.value.actual, it.value.limit) == ("tags", 65, 64)
        assert await store.sessions.get("new") is None
        await store.sessions.update("s", tags={"tag0": None, "one": "more"})
        await works(store, "s")


async def test_law_g10_a_page_is_asked_for_in_bounds(kit: Kit) -> None:
    """A page holds 1 to 1,000 entries. Another limit, a cursor the store did not give, or an order
    it does not know is refused with Invalid, which names the argument. (g10)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        listings: tuple[Callable[..., Awaitable[object]], ...] = (
            store.sessions.list,
            lambda **how: store.sessions.revisions("s", **how),
            lambda **how: store.history.graph("s", **how),
            lambda **how: store.usage.rows("s", **how),
        )
        for listing in listings:
            for limit in (0, -1, 1001):
                async with refused(store, "s", Invalid) as it:
                    await listing(limit=limit)
                assert it.value.field == "limit"
            for after in ("", "!", "no cursor", "é", "a" * 5000, "9" * 5000, "1.\x00"):
                async with refused(store, "s", Invalid) as it:
                    await listing(after=after)
                assert it.value.field == "after"
            await listing(limit=1)
            await listing(limit=1000)
        wrong: Any = "size"
        async with refused(store, "s", Invalid) as it:
            await store.sessions.list(order=wrong)
        assert it.value.field == "order"
        await works(store, "s")
