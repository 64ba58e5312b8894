"""The inbox: the work of a session, read in pages and counted.

Reading says what is so now: work whose claim has died, or whose time has come, is shown as ready
before anybody has claimed it. Nothing that is read changes anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast.contract.errors import (
    Invalid,
)
from holdfast.contract.queue import NewWork, Work, WorkCounts
from holdfast.contract.records import Page, Turn
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import (
    Kit,
    add,
    all_pages,
    bodies,
    inbox,
    won,
)

HOUR_MS = 3_600_000
FOREVER = 9_223_372_036_854_775_807  # 2**63 - 1
NOTHING = WorkCounts(ready=0, delayed=0, claimed=0, dead=0, done=0)


async def settled(store: Store, session: str, turn: str) -> None:
    """Claim what stands first, and settle it in a turn."""
    claim = won(await store.queue.claim(session, "worker"))
    await store.sessions.commit(Turn(session=session, turn=turn, claims=[claim.settlement]))


async def _page(store: Store, states: tuple[Any, ...], limit: int, after: str | None) -> Page[Work]:
    page = await store.queue.list("s", states=states, after=after, limit=limit)
    assert len(page.items) <= limit
    return page


async def test_law_i01_a_listing_has_pages_and_states(kit: Kit) -> None:
    """The pages of a listing are the listing, whatever their size; it may be of some states only.
    What is enqueued behind a cursor is on a later page. (i01)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "done", key="k")
        await settled(store, "s", "t")
        await add(store, "s", "claimed")
        won(await store.queue.claim("s", "worker"))
        await add(store, "s", "r1", "r2")
        await add(store, "s", "later", delay_ms=HOUR_MS)
        every = ("ready", "delayed", "claimed", "dead", "done")
        for limit in (1, 2, 5, 1000):
            found = await all_pages(partial(_page, store, every, limit))
            assert bodies(found) == ["", "claimed", "r1", "r2", "later"]
            found = await all_pages(partial(_page, store, ("ready", "delayed"), limit))
            assert bodies(found) == ["r1", "r2", "later"]
        assert await inbox(store, "s", "dead") == []
        assert bodies((await store.queue.list("s", states=())).items) == []
        first = await store.queue.list("s", limit=4)
        assert first.next is not None
        await add(store, "s", "new")
        rest = await store.queue.list("s", after=first.next)
        assert (bodies(rest.items), rest.next) == (["later", "new"], None)


async def test_law_i02_a_bad_page_is_refused_by_field(kit: Kit) -> None:
    """A page holds 1 to 1,000 works. Another limit, a cursor the store did not give, or a state
    there is not is Invalid, which names the argument. (i02)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a")
        queue = store.queue
        for limit in (0, -1, 1001, True):
            for read in (partial(queue.list, "s"), queue.dead, queue.prune):
                with pytest.raises(Invalid) as it:
                    await read(limit=limit)
                assert it.value.field == "limit"
        for after in ("", "!", "no cursor", "é", "²", "9" * 5000, str(FOREVER + 1), "-1"):
            with pytest.raises(Invalid) as it:
                await queue.list("s", after=after)
            assert it.value.field == "after", after
        for after in ("", "!", "7", "x.s", "9" * 5000 + ".s", "1.a b", "1.\x00", "1.", ".s"):
            with pytest.raises(Invalid) as it:
                await queue.dead(after=after)
            assert it.value.field == "after", after
        states: Any = ("ready", "gone")
        with pytest.raises(Invalid) as it:
            await queue.list("s", states=states)
        assert it.value.field == "states[1]"
        for session in ("", "a b", "\x00"):
            reads: list[Callable[[], Awaitable[object]]] = [
                partial(queue.list, session),
                partial(queue.get, session, "w"),
                partial(queue.cancel, session, "w"),
                partial(queue.requeue, session, "w"),
                partial(queue.counts, session=session or " "),
                partial(queue.why, session),
            ]
            for ask in reads:
                with pytest.raises(Invalid) as it:
                    await ask()
                assert it.value.field == "session"
        for name in ("", "a b"):
            for ask in (
                partial(queue.get, "s", name),
                partial(queue.cancel, "s", name),
                partial(queue.requeue, "s", name),
            ):
                with pytest.raises(Invalid) as it:
                    await ask()
                assert it.value.field == "work"


async def test_law_i03_counts_are_exact(kit: Kit) -> None:
    """The counts by state are those of the work there is now, of one session or of all; each work
    is in one state. (i03)"""
    async with kit.open() as store:
        assert await store.queue.counts() == NOTHING
        for session in ("s", "other"):
            await store.sessions.create(session)
        assert await store.queue.counts(session="s") == NOTHING
        await add(store, "other", "x", "y")
        await add(store, "s", "done", key="k")
        await settled(store, "s", "t")
        await add(store, "s", "dead", "claimed", "claimed", merge="m")
        claim = won(await store.queue.claim("s", "worker", limit=1))
        await store.queue.abandon(claim, dead=True)
        won(await store.queue.claim("s", "worker"))
        await add(store, "s", "r", "r", "r")
        await add(store, "s", *"dddd", delay_ms=HOUR_MS)
        own = WorkCounts(ready=3, delayed=4, claimed=2, dead=1, done=1)
        assert await store.queue.counts(session="s") == own
        assert await store.queue.counts() == msgspec.structs.replace(own, ready=5)
        await store.sessions.delete("s")
        assert await store.queue.counts() == msgspec.structs.replace(NOTHING, ready=2)


async def test_law_i04_keys_are_forgotten_when_their_time_is_over(kit: Kit) -> None:
    """Pruning forgets the keys of settled work whose time is over, at most so many at a time, and
    touches nothing else; a key whose time is over is free before, too. (i04)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        for number in range(3):
            await add(store, "s", f"{number}", key=f"k{number}", keep_ms=0)
            await settled(store, "s", f"t{number}")
        await add(store, "s", "kept", key="kept")
        await settled(store, "s", "t3")
        await add(store, "s", "waits", key="waits", keep_ms=0)
        counts = await store.queue.counts(session="s")
        assert (counts.done, counts.ready) == (4, 1)
        assert await store.queue.prune(limit=2) == 2
        assert await store.queue.prune() == 1
        assert await store.queue.prune() == 0
        assert bodies((await store.queue.list("s")).items) == ["", "waits"]
        await add(store, "s", "now", key="now", keep_ms=0)
        claim = won(await store.queue.claim("s", "worker"))
        await store.sessions.commit(Turn(session="s", turn="t4", claims=[claim.settlement]))
        assert bodies(claim.work) == ["waits"]
        again = await store.queue.enqueue(NewWork(session="s", payloads=["new"], key="waits"))
        assert (again.enqueued, bodies([again.work])) == (True, ["new"])
        assert await store.queue.prune() == 0


async def test_law_i05_reading_is_of_now(kit: Kit) -> None:
    """Work whose claim has lapsed is read as ready, by name, in a listing and in the counts, before
    anybody claims it, and names no holder; how often it was claimed stays. (i05)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        (name, _) = await add(store, "s", "a", "b", merge="m")
        won(await store.queue.claim("s", "worker", ttl_ms=0))
        for _ in range(2):
            found = await store.queue.get("s", name)
            assert found is not None
            assert (found.state, found.claimed_by, found.attempts) == ("ready", None, 1)
            assert await inbox(store, "s", "ready") == ["a", "b"]
            assert await inbox(store, "s", "claimed") == []
            counts = await store.queue.counts(session="s")
            assert (counts.ready, counts.claimed) == (2, 0)
