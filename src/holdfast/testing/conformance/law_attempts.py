"""Attempts: what becomes of work that was claimed and not settled.

Each claim is an attempt. Work that was given back, or whose holder went away, is tried again, now
or later, until it is settled, cancelled, or dead: given up, kept, and put back only when asked.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from holdfast.contract.errors import Invalid, WorkNotDead, WorkUnknown
from holdfast.contract.queue import Claim, Claimed, Work
from holdfast.contract.records import Page, Turn
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import (
    Kit,
    add,
    all_pages,
    bodies,
    inbox,
    picture,
    refused,
    won,
)

HOUR_MS = 3_600_000
LONGEST_MS = 3660 * 24 * HOUR_MS


async def take(store: Store, **how: Any) -> Claim:
    return won(await store.queue.claim("s", "worker", **how))


async def work(store: Store, name: str) -> Work:
    found = await store.queue.get("s", name)
    assert found is not None
    return found


async def test_law_e01_each_claim_is_an_attempt(kit: Kit) -> None:
    """Each claim counts one attempt of each of its works, whether they are given back or their
    holder goes away; the error of an attempt stays until another one is told. (e01)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        names = await add(store, "s", "a", "b", merge="m")
        errors = (("it broke", "it broke"), (None, "it broke"), ("again", "again"))
        for number, (told, kept) in enumerate(errors, 1):
            claim = await take(store)
            assert [one.attempts for one in claim.work] == [number] * 2
            assert await store.queue.abandon(claim, error=told) == 2
            for name in names:
                found = await work(store, name)
                assert (found.attempts, found.last_error) == (number, kept)
                assert (found.state, found.claimed_by) == ("ready", None)
        await take(store, ttl_ms=0)
        assert [one.attempts for one in (await take(store)).work] == [5, 5]


async def test_law_e02_work_may_be_given_back_for_later(kit: Kit) -> None:
    """Work that is given back for later is delayed until then, at its old place, and what stands
    behind it is claimed meanwhile. (e02)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        (name, _) = await add(store, "s", "a", "b")
        claim = await take(store)
        assert await store.queue.abandon(claim, delay_ms=HOUR_MS) == 1
        found = await work(store, name)
        assert (found.state, found.seq) == ("delayed", 1)
        assert 0 <= found.available_at_ms - claim.claimed_at_ms - HOUR_MS < HOUR_MS
        other = await take(store)
        assert bodies(other.work) == ["b"]
        await store.sessions.commit(Turn(session="s", turn="t", claims=[other.settlement]))
        answer = await store.queue.claim("s", "worker")
        expected = Claimed(why_not="not-yet-available", next_at_ms=found.available_at_ms)
        assert answer == expected


async def test_law_e03_work_may_be_given_up(kit: Kit) -> None:
    """Work that is given back as dead is kept with its error and its payloads. Nobody claims it,
    and it blocks nothing; it can be cancelled. (e03)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        (name, _) = await add(store, "s", "a", "b")
        claim = await take(store)
        assert await store.queue.abandon(claim, error="no hope", dead=True, delay_ms=HOUR_MS) == 1
        found = await work(store, name)
        assert (found.state, found.last_error, bodies([found])) == ("dead", "no hope", ["a"])
        assert bodies((await take(store, ttl_ms=0)).work) == ["b"]
        assert await inbox(store, "s", "dead") == ["a"]
        assert (await store.queue.dead()).items == (found,)
        assert await store.queue.cancel("s", name) == found
        assert await inbox(store, "s") == ["b"]


async def test_law_e04_after_its_last_attempt_work_is_dead(kit: Kit) -> None:
    """Work that is given back after as many claims as it may have is dead, whatever delay was asked
    for; the last claim can still settle it. Work without a limit never dies. (e04)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        (name,) = await add(store, "s", "a", max_attempts=2, merge="m")
        (other,) = await add(store, "s", "b", merge="m")
        (settled,) = await add(store, "s", "c", max_attempts=1)
        for state in ("ready", "dead"):
            claim = await take(store, limit=1)
            assert bodies(claim.work) == ["a"]
            await store.queue.abandon(claim, error="it broke")
            assert (await work(store, name)).state == state
        for _ in range(5):
            await store.queue.abandon(await take(store))
        found = await work(store, other)
        assert (found.state, found.attempts, found.max_attempts) == ("ready", 5, None)
        await store.queue.cancel("s", other)
        claim = await take(store)
        assert (await work(store, settled)).state == "claimed"
        await store.sessions.commit(Turn(session="s", turn="t", claims=[claim.settlement]))
        assert await inbox(store, "s") == ["a"]


async def test_law_e05_a_holder_that_goes_away_uses_an_attempt(kit: Kit) -> None:
    """Work whose last claim lapsed, or lost its lane, is dead from then on: it is counted and
    listed so at once, and nobody claims it. When work is next looked for, it is told why. (e05)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a", max_attempts=1)
        await add(store, "s", "b", max_attempts=1)
        await take(store, ttl_ms=0)
        lane = await store.lanes.claim("s", "worker")
        await take(store, fence=lane.fence)
        assert (await store.queue.counts(session="s")).claimed == 1
        assert await store.lanes.release(lane.fence)
        counts = await store.queue.counts(session="s")
        assert (counts.dead, counts.ready, counts.claimed) == (2, 0, 0)
        assert await inbox(store, "s", "dead") == ["a", "b"]
        assert bodies((await store.queue.dead()).items) == ["a", "b"]
        assert await store.queue.why("s") == Claimed(why_not="empty")
        assert await store.queue.claim("s", "worker") == Claimed(why_not="empty")
        for found in (await store.queue.list("s")).items:
            assert (found.state, found.attempts, found.claimed_by) == ("dead", 1, None)
            assert found.last_error is not None


async def test_law_e06_only_dead_work_is_put_back(kit: Kit) -> None:
    """Dead work is put back at its place with no attempt counted, now or for later, and keeps its
    last error. Work in another state is WorkNotDead, which names the state; work that is not there
    is WorkUnknown. (e06)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        (name, later, ready) = await add(store, "s", "a", "b", "c", max_attempts=1)
        for _ in range(2):
            await store.queue.abandon(await take(store), error="it broke")
        back = await store.queue.requeue("s", name)
        assert (back.state, back.seq, back.attempts, back.max_attempts) == ("ready", 1, 0, 1)
        assert back.last_error == "it broke"
        assert await work(store, name) == back
        put_off = await store.queue.requeue("s", later, delay_ms=HOUR_MS)
        assert (put_off.state, put_off.seq) == ("delayed", 2)
        for one, state in ((name, "ready"), (later, "delayed"), (ready, "ready")):
            async with refused(store, "s", WorkNotDead) as it:
                await store.queue.requeue("s", one)
            assert (it.value.session, it.value.work, it.value.state) == ("s", one, state)
        claim = await take(store)
        assert (bodies(claim.work), claim.work[0].attempts) == (["a"], 1)
        async with refused(store, "s", WorkNotDead) as it:
            await store.queue.requeue("s", name)
        assert it.value.state == "claimed"
        for session, missing in (("s", "ghost"), ("other", name)):
            await store.sessions.create(session)
            async with refused(store, session, WorkUnknown) as unknown:
                await store.queue.requeue(session, missing)
            assert (unknown.value.session, unknown.value.work) == (session, missing)
        lapsed = await take(store, ttl_ms=0)
        assert bodies(lapsed.work) == ["c"]
        again = await store.queue.requeue("s", ready)
        assert (again.state, again.attempts) == ("ready", 0)
        assert bodies((await take(store)).work) == ["c"]


async def _dead(store: Store, limit: int, after: str | None) -> Page[Work]:
    page = await store.queue.dead(after=after, limit=limit)
    assert len(page.items) <= limit
    return page


async def test_law_e07_dead_work_is_listed_across_sessions(kit: Kit) -> None:
    """Dead work of all sessions has one listing with pages, by session and place; it has nothing
    else, and nothing of a session that was deleted. (e07)"""
    async with kit.open() as store:
        for session in ("s1", "s10", "s2", "gone"):
            await store.sessions.create(session)
            await add(store, session, *(f"{session}-{n}" for n in range(3)), max_attempts=1)
            for ends in (True, False):
                claim = won(await store.queue.claim(session, "worker", ttl_ms=HOUR_MS * ends))
                if ends:
                    await store.queue.abandon(claim)
        await store.sessions.delete("gone")
        expected = [f"{session}-{n}" for session in ("s1", "s10", "s2") for n in (0, 1)]
        for limit in (1, 2, 4, 6, 1000):
            found = await all_pages(partial(_dead, store, limit))
            assert bodies(found) == expected
            assert {one.state for one in found} == {"dead"}
        first = await store.queue.dead(limit=1)
        await store.queue.requeue("s1", first.items[0].work)
        rest = await store.queue.dead(after=first.next)
        assert bodies(rest.items) == expected[1:]


async def test_law_e08_errors_are_kept_as_readable_text(kit: Kit) -> None:
    """An error is kept as text that can be read: what cannot be printed becomes a space, and what
    is longer than 2,000 characters is cut; it is never a reason not to take work back. (e08)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        (name,) = await add(store, "s", "a")
        for told, kept in (
            ("", ""),
            ("line\nline\x00\t\ud800end", "line line   end"),
            ("ü ✓", "ü ✓"),
            ("x" * 2001, "x" * 2000),
        ):
            assert await store.queue.abandon(await take(store), error=told) == 1
            assert (await work(store, name)).last_error == kept
        claim = await take(store)
        wrong: Any = 7
        async with refused(store, "s", Invalid) as it:
            await store.queue.abandon(claim, error=wrong)
        assert it.value.field == "error"


@pytest.mark.parametrize("delay_ms", [-1, LONGEST_MS + 1, 2**63, True])
async def test_law_e09_a_delay_has_a_range(kit: Kit, delay_ms: int) -> None:
    """Work is given back, or put back, for 0 ms to 3,660 days; another delay is Invalid, which
    names it, and nothing changes. (e09)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        (name,) = await add(store, "s", "a")
        claim = await take(store)
        async with refused(store, "s", Invalid) as it:
            await store.queue.abandon(claim, delay_ms=delay_ms)
        assert it.value.field == "delay_ms"
        await store.queue.abandon(claim, dead=True)
        async with refused(store, "s", Invalid) as it:
            await store.queue.requeue("s", name, delay_ms=delay_ms)
        assert it.value.field == "delay_ms"
        assert (await store.queue.requeue("s", name, delay_ms=LONGEST_MS)).state == "delayed"


async def test_law_e10_one_claim_is_given_back_at_once(kit: Kit) -> None:
    """All work of a claim is given back together, each by its own count: what has attempts left is
    ready, the rest is dead. A second time there is nothing to give back. (e10)"""
    async with kit.open() as store, kit.open() as other:
        await store.sessions.create("s")
        await add(store, "s", "a", max_attempts=1, merge="m")
        await add(store, "s", "b", max_attempts=2, merge="m")
        await add(store, "s", "c", merge="m")
        claim = await take(store)
        assert await other.queue.abandon(claim) == 3
        assert await store.queue.abandon(claim) == 0
        assert await inbox(store, "s", "dead") == ["a"]
        assert await inbox(store, "s", "ready") == ["b", "c"]
        again = await take(store)
        assert (again.redelivered, bodies(again.work)) == (False, ["b", "c"])


async def test_law_e11_what_lapsed_together_dies_apart(kit: Kit) -> None:
    """Of work whose holder went away, what had its last attempt is dead, and the rest of the claim
    is claimed again, together. (e11)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a", merge="m")
        await add(store, "s", "b", merge="m", max_attempts=1)
        await add(store, "s", "c", "d", merge="m")
        await take(store, limit=3, ttl_ms=0)
        before = await picture(store, "s")
        assert (before.counts.ready, before.counts.dead) == (3, 1)
        again = await take(store)
        assert (again.redelivered, bodies(again.work)) == (True, ["a", "c"])
        assert bodies((await take(store)).work) == ["d"]
        assert await inbox(store, "s", "dead") == ["b"]
