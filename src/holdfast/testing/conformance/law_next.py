"""What is next: the session to work on now, or why there is nothing to do.

A worker that serves all sessions asks for the next one: it gets the lane and a claim under it of
the session whose work has waited longest. A claim that finds nothing always says why, and when
time alone may change that.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.contract.errors import Invalid
from holdfast.contract.queue import Claim, Claimed, ClaimedNext
from holdfast.contract.records import Holder, Lane, Turn
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import Kit, add, bodies, inbox, picture, refused, won, works

HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS


async def reason(store: Store, expected: Claimed, **how: Any) -> None:
    """A claim finds nothing and says why; so does the question why, and neither changes a thing."""
    before = await picture(store, "s")
    asked = {name: how[name] for name in ("boundary", "kind") if name in how}
    assert await store.queue.why("s", **asked) == expected
    assert await store.queue.claim("s", "worker", **how) == expected
    assert await picture(store, "s") == before


async def taken(store: Store, owner: str = "worker", **how: Any) -> tuple[Lane, Claim]:
    answer = await store.queue.claim_next(owner, **how)
    claim = won(answer)
    assert answer.lane is not None
    assert answer.lane.session == claim.session
    assert (answer.lane.owner, claim.owner) == (owner, owner)
    assert (claim.generation, claim.expires_at_ms) == (answer.lane.generation, None)
    return answer.lane, claim


async def done(store: Store, lane: Lane, claim: Claim) -> None:
    """Settle the claim, and give the lane back."""
    await store.sessions.commit(
        Turn(session=lane.session, fence=lane.fence, release=True, claims=[claim.settlement])
    )


async def tick(store: Store) -> None:
    """Wait until the store's clock has moved."""
    await store.sessions.create("clock")
    first = await store.lanes.claim("clock", "watch", ttl_ms=0)
    while (await store.lanes.claim("clock", "watch", ttl_ms=0)).claimed_at_ms == (
        first.claimed_at_ms
    ):
        pass


async def test_law_125_an_empty_claim_says_why(kit: Kit) -> None:
    """A claim that finds nothing names its reason: "empty", "not-yet-available", "claimed",
    "boundary", "command-at-head", "turn-at-head", "not-at-head" or "zero-limit"; and when time
    alone will change it. Asking why answers the same, and changes nothing. (125)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await reason(store, Claimed(why_not="empty"))
        (later,) = await add(store, "s", "later", delay_ms=2 * HOUR_MS)
        (sooner,) = await add(store, "s", "sooner", delay_ms=HOUR_MS)
        at_ms = {work.work: work.available_at_ms for work in (await store.queue.list("s")).items}
        await reason(store, Claimed(why_not="not-yet-available", next_at_ms=at_ms[sooner]))
        await store.queue.cancel("s", sooner)
        await reason(store, Claimed(why_not="not-yet-available", next_at_ms=at_ms[later]))
        await add(store, "s", "late", delivery="after-turn")
        await reason(store, Claimed(why_not="boundary"), boundary="checkpoint")
        await reason(store, Claimed(why_not="turn-at-head"), kind="command")
        assert await store.queue.why("s") == Claimed()
        claim = won(await store.queue.claim("s", "worker", ttl_ms=HOUR_MS))
        await reason(store, Claimed(why_not="claimed", next_at_ms=claim.expires_at_ms))
        await store.sessions.commit(Turn(session="s", turn="t", claims=[claim.settlement]))
        (command, other) = await add(store, "s", "stop", "go", kind="command")
        await reason(store, Claimed(why_not="command-at-head"), kind="turn")
        before = await picture(store, "s")
        answer = await store.queue.claim("s", "worker", works=[other])
        assert answer == Claimed(why_not="not-at-head")
        answer = await store.queue.claim("s", "worker", limit=0)
        assert answer == Claimed(why_not="zero-limit")
        assert await picture(store, "s") == before
        assert [work.work for work in won(await store.queue.claim("s", "w")).work] == [command]


async def test_law_b01_the_next_session_comes_with_its_lane(kit: Kit) -> None:
    """Who asks for the next session gets its lane, for the time asked for, and a claim under it;
    with the fence the work is settled and the lane given back in one turn. (b01)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a", "b", "c", merge="m")
        lane, claim = await taken(store, lane_ttl_ms=HOUR_MS, limit=2)
        assert (lane.generation, lane.displaced) == (1, None)
        assert lane.expires_at_ms == lane.claimed_at_ms + HOUR_MS == claim.claimed_at_ms + HOUR_MS
        assert (bodies(claim.work), claim.redelivered) == (["a", "b"], False)
        assert [work.claimed_by for work in claim.work] == ["worker", "worker"]
        status = await store.lanes.read("s")
        assert status is not None
        assert (status.owner, status.live, status.generation) == ("worker", True, 1)
        more = won(await store.queue.claim("s", "worker", fence=lane.fence))
        assert bodies(more.work) == ["c"]
        await works(store, "s", fence=lane.fence)
        await store.queue.abandon(more)
        await done(store, lane, claim)
        lane, claim = await taken(store)
        assert (lane.generation, bodies(claim.work)) == (2, ["c"])
        assert lane.expires_at_ms == lane.claimed_at_ms + 30_000


async def test_law_b02_who_waited_longest_is_next(kit: Kit) -> None:
    """Sessions are handed out in the order in which they began to wait. One that had its turn waits
    anew, so a full inbox does not keep others from theirs. (b02)"""
    async with kit.open() as store:
        for session in ("z", "m", "a"):
            await store.sessions.create(session)
            await tick(store)
            await add(store, session, f"{session}1", slot="exclusive")
        await add(store, "z", "z2", "z3")
        order: list[str] = []
        for _ in range(5):
            lane, claim = await taken(store)
            order += bodies(claim.work)
            await tick(store)
            await done(store, lane, claim)
        assert order == ["z1", "m1", "a1", "z2", "z3"]
        assert await store.queue.claim_next("worker") == ClaimedNext(why_not="empty")


async def test_law_b03_held_sessions_are_passed_over(kit: Kit) -> None:
    """A session whose lane somebody holds is not handed out, and neither is one whose work is
    claimed for a time, delayed, dead or done. While nothing is left for now the answer is
    "not-yet-available", with the time of the next; where nothing waits at all it is "empty". (b03)
    """
    async with kit.open() as store:
        assert await store.queue.claim_next("worker") == ClaimedNext(why_not="empty")
        for session in ("held", "timed", "later", "dead", "gone"):
            await store.sessions.create(session)
        await add(store, "dead", "d")
        await store.queue.abandon(won(await store.queue.claim("dead", "worker")), dead=True)
        await add(store, "gone", "g")
        await store.sessions.delete("gone")
        assert await store.queue.claim_next("worker") == ClaimedNext(why_not="empty")
        await add(store, "later", "l", delay_ms=3 * HOUR_MS)
        (delayed,) = (await store.queue.list("later")).items
        await add(store, "timed", "t")
        timed = won(await store.queue.claim("timed", "worker", ttl_ms=2 * HOUR_MS))
        lane = await store.lanes.claim("held", "rival", ttl_ms=HOUR_MS)
        await add(store, "held", "h")
        for session, next_at_ms in (
            ("held", lane.expires_at_ms),
            ("timed", timed.expires_at_ms),
            ("later", delayed.available_at_ms),
        ):
            for _ in range(2):
                assert await store.queue.claim_next("worker") == ClaimedNext(
                    why_not="not-yet-available", next_at_ms=next_at_ms
                )
            await store.sessions.delete(session)
        assert await store.queue.claim_next("worker") == ClaimedNext(why_not="empty")


@pytest.mark.parametrize("end", ["release", "displace", "lapse", "turn", "rewind"])
async def test_law_b04_work_is_found_when_its_lane_is_free(kit: Kit, end: str) -> None:
    """Work that came while somebody held the lane is found as soon as the lane was released,
    displaced, has lapsed, or was given back in a turn. (b04)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        lane = await store.lanes.claim("s", "rival", ttl_ms=HOUR_MS)
        await add(store, "s", "a")
        assert (await store.queue.claim_next("worker")).why_not == "not-yet-available"
        if end == "release":
            await store.lanes.release(lane.fence)
        elif end == "displace":
            await store.lanes.displace("s")
        elif end == "lapse":
            await store.lanes.renew(lane.fence, ttl_ms=0)
        elif end == "turn":
            await store.sessions.commit(Turn(session="s", fence=lane.fence, release=True))
        else:
            await store.sessions.rewind("s", revision=0, reason="again", fence=lane.fence)
            assert (await store.queue.claim_next("worker")).why_not == "not-yet-available"
            await store.lanes.release(lane.fence)
        _, claim = await taken(store)
        assert (claim.session, bodies(claim.work)) == ("s", ["a"])


async def test_law_b05_workers_get_different_sessions(kit: Kit) -> None:
    """Of workers that ask at the same moment no two get the same session; who gets none is told
    that all are held, or "contended", and may ask again. (b05)"""
    async with kit.open() as one, kit.open() as two:
        for number in range(4):
            await one.sessions.create(f"s{number}")
            await add(one, f"s{number}", "a", "b")
        answers = await asyncio.gather(
            *(store.queue.claim_next(f"o{n}") for n, store in enumerate((one, two) * 4))
        )
        won_by = [answer.lane.session for answer in answers if answer.lane is not None]
        assert len(set(won_by)) == len(won_by)
        reasons = {answer.why_not for answer in answers if answer.lane is None}
        assert reasons <= {"not-yet-available", "contended"}
        while len(won_by) < 4:
            lane, _ = await taken(two)
            won_by.append(lane.session)
        assert sorted(won_by) == ["s0", "s1", "s2", "s3"]
        assert (await one.queue.claim_next("late")).why_not == "not-yet-available"


async def test_law_b06_what_a_worker_left_behind_is_handed_out_again(kit: Kit) -> None:
    """Work of a worker that went away is handed out again as it was claimed, once its lane has
    lapsed, in the next generation; the lane names whom it was taken from. (b06)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a", "b", "c", merge="m")
        first, stale = await taken(store, "gone", lane_ttl_ms=0, limit=2)
        lane, claim = await taken(store, limit=1)
        assert (lane.generation, claim.redelivered) == (2, True)
        assert lane.displaced == Holder(
            owner="gone", generation=1, expires_at_ms=first.expires_at_ms
        )
        assert bodies(claim.work) == ["a", "b"]
        assert [work.attempts for work in claim.work] == [2, 2]
        assert await store.queue.abandon(stale) == 0
        await done(store, lane, claim)
        assert await inbox(store, "s") == ["c"]


async def test_law_b07_whatever_stands_first_is_taken(kit: Kit) -> None:
    """The next session is handed out with the work at its head, be that a command or work for the
    end of a turn; what is there otherwise follows the rule of the prefix. (b07)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "stop", kind="command")
        await add(store, "s", "late", delivery="after-turn", merge="m")
        await add(store, "s", "soon", "soon", merge="m")
        for expected in (["stop"], ["late"], ["soon", "soon"]):
            lane, claim = await taken(store)
            assert bodies(claim.work) == expected
            await done(store, lane, claim)


async def test_law_b08_work_that_was_given_back_is_next_again(kit: Kit) -> None:
    """Work that was given back, put back, or enqueued anew is found by who asks for the next
    session, when its lane is free. (b08)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        (name,) = await add(store, "s", "a")
        lane, claim = await taken(store)
        await store.queue.abandon(claim)
        assert (await store.queue.claim_next("worker")).why_not == "not-yet-available"
        await store.lanes.release(lane.fence)
        lane, claim = await taken(store)
        await store.queue.abandon(claim, dead=True)
        await store.lanes.release(lane.fence)
        assert (await store.queue.claim_next("worker")).why_not == "empty"
        await store.queue.requeue("s", name)
        lane, claim = await taken(store)
        await done(store, lane, claim)
        assert (await store.queue.claim_next("worker")).why_not == "empty"
        await add(store, "s", "b")
        timed = won(await store.queue.claim("s", "worker"))
        assert (await store.queue.claim_next("worker")).next_at_ms == timed.expires_at_ms
        longer = await store.queue.renew(timed, ttl_ms=HOUR_MS)
        await store.queue.abandon(longer)
        assert bodies((await taken(store))[1].work) == ["b"]


async def test_law_b09_a_worker_that_asks_badly_is_told_the_field(kit: Kit) -> None:
    """An ill-formed owner, a lane for less than 0 ms or more than 7 days, or a limit that is not 0
    to 256 is Invalid, which names the argument, and nothing is handed out. (b09)"""
    bad: list[tuple[str, dict[str, Any]]] = [
        ("owner", {"owner": ""}),
        ("owner", {"owner": "a b"}),
        ("lane_ttl_ms", {"lane_ttl_ms": -1}),
        ("lane_ttl_ms", {"lane_ttl_ms": WEEK_MS + 1}),
        ("limit", {"limit": -1}),
        ("limit", {"limit": 257}),
    ]
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a")
        for field, change in bad:
            wish: dict[str, Any] = {"owner": "worker", **change}
            async with refused(store, "s", Invalid) as it:
                await store.queue.claim_next(**wish)
            assert it.value.field == field
        for wrong in ({"boundary": "soon"}, {"kind": "wish"}):
            ask: dict[str, Any] = {**wrong}
            async with refused(store, "s", Invalid) as it:
                await store.queue.why("s", **ask)
            assert it.value.field == next(iter(wrong))
        assert bodies((await taken(store))[1].work) == ["a"]


async def test_law_b10_asking_why_needs_no_lane(kit: Kit) -> None:
    """Why a claim would find nothing is answered whoever holds the lane, as to somebody who may
    claim: what the live lane holds is "claimed", and what a former one held is not. (b10)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a")
        lane = await store.lanes.claim("s", "rival")
        assert await store.queue.why("s") == Claimed()
        won(await store.queue.claim("s", "rival", fence=lane.fence))
        assert await store.queue.why("s") == Claimed(why_not="claimed")
        await store.lanes.displace("s")
        assert await store.queue.why("s") == Claimed()
        assert await store.queue.why("s", kind="command") == Claimed(why_not="turn-at-head")
