"""Lanes: the right to work on a session, one holder at a time.

A lane is claimed for a time and proved by its fence: owner, token and generation. The generation
grows with every grant and never goes back, so what a former holder still sends is known to be old.
A turn may be committed with a live fence, or without one while the lane is free.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from holdfast.contract.errors import (
    HeadMoved,
    Invalid,
    LaneBusy,
    LaneLost,
    SessionDeleted,
    SessionUnknown,
    TurnConflict,
)
from holdfast.contract.records import Fence, Holder, Lane, LaneStatus, NewNode, Turn
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import Kit, grow, path, picture, refused, works

HOUR_MS = 3_600_000


def turn(fence: Fence | None = None, *, turn: str = "t", release: bool = False) -> Turn:
    return Turn(
        session="s",
        turn=turn,
        nodes=[NewNode(id=f"{turn}-node", body=turn)],
        fence=fence,
        release=release,
    )


async def status(store: Store, session: str = "s") -> LaneStatus:
    found = await store.lanes.read(session)
    assert found is not None
    return found


async def dead(store: Store, fence: Fence) -> None:
    """The fence is refused by everything, and frees nothing."""
    async with refused(store, "s", LaneLost, turn="dead") as it:
        await store.sessions.commit(turn(fence, turn="dead"))
    assert it.value.session == "s"
    assert (it.value.code, it.value.retryable) == ("lane-lost", False)
    async with refused(store, "s", LaneLost) as it:
        await store.lanes.renew(fence, ttl_ms=HOUR_MS)
    assert it.value.session == "s"


async def test_law_064_a_live_lane_has_one_holder(kit: Kit) -> None:
    """A lane is granted to one owner; while it is live another owner is refused with LaneBusy,
    which says who holds it, in which generation, and until when. (64)"""
    async with kit.open() as store, kit.open() as other:
        await store.sessions.create("s")
        lane = await store.lanes.claim("s", "one", ttl_ms=HOUR_MS)
        assert (lane.session, lane.owner, lane.generation) == ("s", "one", 1)
        assert lane.expires_at_ms == lane.claimed_at_ms + 3_600_000
        assert (lane.displaced, len(lane.token) > 0) == (None, True)
        assert lane.fence == Fence(session="s", owner="one", token=lane.token, generation=1)
        for handle in (store, other):
            async with refused(handle, "s", LaneBusy) as it:
                await handle.lanes.claim("s", "two")
            assert (it.value.session, it.value.owner, it.value.generation) == ("s", "one", 1)
            assert it.value.expires_at_ms == lane.expires_at_ms
            assert (it.value.code, it.value.retryable) == ("lane-busy", False)
        await works(other, "s", fence=lane.fence)


async def test_law_065_claiming_again_rotates_the_token(kit: Kit) -> None:
    """The holder may claim its live lane again: it keeps the generation and the time of the grant,
    and gets a new token and a new expiry; the old token is dead. (65)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        first = await store.lanes.claim("s", "one", ttl_ms=60_000)
        second = await store.lanes.claim("s", "one", ttl_ms=HOUR_MS)
        assert second.token != first.token
        assert (second.generation, second.claimed_at_ms) == (1, first.claimed_at_ms)
        assert second.expires_at_ms > first.expires_at_ms
        assert second.displaced is None
        await dead(store, first.fence)
        assert await store.lanes.release(first.fence) is False
        assert (await status(store)).live is True
        shorter = await store.lanes.claim("s", "one", ttl_ms=1_000_000)
        assert shorter.expires_at_ms < second.expires_at_ms
        await works(store, "s", fence=shorter.fence)


async def test_law_066_renewing_keeps_the_token(kit: Kit) -> None:
    """A renewal keeps token, generation and time of the grant, and moves the expiry. (66)"""
    async with kit.open() as store, kit.open() as other:
        await store.sessions.create("s")
        lane = await store.lanes.claim("s", "one", ttl_ms=60_000)
        renewed = await other.lanes.renew(lane.fence, ttl_ms=HOUR_MS)
        assert renewed.fence == lane.fence
        assert renewed.claimed_at_ms == lane.claimed_at_ms
        assert renewed.expires_at_ms > lane.expires_at_ms
        assert renewed.displaced is None
        assert (await status(store)).expires_at_ms == renewed.expires_at_ms
        await works(store, "s", fence=lane.fence)


@pytest.mark.parametrize("wrong", ["token", "owner", "generation"])
async def test_law_067_renewing_needs_the_whole_fence(kit: Kit, wrong: str) -> None:
    """A renewal whose token, owner or generation is not that of the live lane is refused with
    LaneLost, and the expiry stays. (67)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        lane = await store.lanes.claim("s", "one")
        fence = msgspec.structs.replace(
            lane.fence, **{wrong: 2 if wrong == "generation" else "other"}
        )
        await dead(store, fence)
        assert (await status(store)).expires_at_ms == lane.expires_at_ms
        await works(store, "s", fence=lane.fence)


@pytest.mark.parametrize("wrong", ["token", "owner", "generation"])
async def test_law_068_a_stale_release_frees_nothing(kit: Kit, wrong: str) -> None:
    """A release with a fence that is not that of the lane answers False and frees nothing. (68)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        lane = await store.lanes.claim("s", "one")
        before = await picture(store, "s")
        fence = msgspec.structs.replace(
            lane.fence, **{wrong: 2 if wrong == "generation" else "other"}
        )
        assert await store.lanes.release(fence) is False
        assert await picture(store, "s") == before
        async with refused(store, "s", LaneBusy):
            await store.lanes.claim("s", "two")
        await works(store, "s", fence=lane.fence)


async def test_law_069_after_a_release_the_next_generation_begins(kit: Kit) -> None:
    """After a release another owner may claim, with a greater generation; a second release of the
    same fence answers False. (69)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        first = await store.lanes.claim("s", "one")
        assert await store.lanes.release(first.fence) is True
        assert await store.lanes.release(first.fence) is False
        second = await store.lanes.claim("s", "two")
        assert (second.owner, second.generation) == ("two", 2)
        assert second.token != first.token
        assert await store.lanes.release(second.fence) is True
        third = await store.lanes.claim("s", "one")
        assert third.generation == 3
        await works(store, "s", fence=third.fence)


async def test_law_070_an_old_release_does_not_free_a_new_grant(kit: Kit) -> None:
    """A release with the fence of an earlier grant answers False and leaves the new holder the
    lane, also where the owner is the same. (70)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        first = await store.lanes.claim("s", "one", ttl_ms=0)
        second = await store.lanes.claim("s", "one")
        assert second.generation == 2
        assert await store.lanes.release(first.fence) is False
        async with refused(store, "s", LaneBusy) as it:
            await store.lanes.claim("s", "two")
        assert it.value.generation == 2
        await works(store, "s", fence=second.fence)


async def test_law_071_a_lane_of_no_time_expires_at_once(kit: Kit) -> None:
    """A lane claimed for 0 ms has expired when it is granted: anybody may claim it, with a greater
    generation. (71)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        first = await store.lanes.claim("s", "one", ttl_ms=0)
        assert (first.generation, first.expires_at_ms) == (1, first.claimed_at_ms)
        assert (await status(store)).live is False
        second = await store.lanes.claim("s", "two", ttl_ms=0)
        third = await store.lanes.claim("s", "one")
        assert (second.generation, third.generation) == (2, 3)
        await works(store, "s", fence=third.fence)


async def test_law_072_an_expired_lane_is_dead(kit: Kit) -> None:
    """An expired lane can be neither renewed nor used to commit, although nobody has taken it; a
    renewal for 0 ms ends a lane. (72)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        lane = await store.lanes.claim("s", "one", ttl_ms=0)
        await dead(store, lane.fence)
        lane = await store.lanes.claim("s", "one")
        ended = await store.lanes.renew(lane.fence, ttl_ms=0)
        assert ended.fence == lane.fence
        await dead(store, lane.fence)
        await works(store, "s")


async def test_law_073_without_a_fence_the_lane_must_be_free(kit: Kit) -> None:
    """While somebody holds the lane a turn without its fence is refused with LaneBusy; with the
    live fence, or without one while the lane is free, it is committed. (73)"""
    async with kit.open() as store, kit.open() as other:
        await store.sessions.create("s")
        await works(store, "s")
        lane = await store.lanes.claim("s", "one")
        for handle in (store, other):
            async with refused(handle, "s", LaneBusy, turn="t") as it:
                await handle.sessions.commit(turn())
            assert (it.value.session, it.value.owner, it.value.generation) == ("s", "one", 1)
            assert it.value.expires_at_ms == lane.expires_at_ms
        assert (await store.sessions.commit(turn(lane.fence))).revision == 2
        assert await store.lanes.release(lane.fence) is True
        await works(other, "s")


async def test_law_074_a_turn_may_release_its_lane(kit: Kit) -> None:
    """A turn may release the lane it was committed under: it is free for another owner at once, and
    the fence is dead. (74)"""
    async with kit.open() as store, kit.open() as other:
        await store.sessions.create("s")
        lane = await store.lanes.claim("s", "one")
        await store.sessions.commit(turn(lane.fence, release=True))
        free = await status(other)
        assert (free.live, free.owner, free.generation) == (False, None, 1)
        await dead(store, lane.fence)
        second = await other.lanes.claim("s", "two")
        assert (second.generation, second.displaced) == (2, None)
        await works(other, "s", fence=second.fence)


async def test_law_075_a_replay_needs_no_live_lane(kit: Kit) -> None:
    """The replay of a turn succeeds with the fence it was committed with, although that is dead and
    another owner holds the lane; and it takes nothing from that owner. (75)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        lane = await store.lanes.claim("s", "one")
        first = await store.sessions.commit(turn(lane.fence, release=True))
        rival = await store.lanes.claim("s", "two")
        before = await picture(store, "s", turn="t")
        for retry in (turn(lane.fence, release=True), turn(lane.fence), turn()):
            again = await store.sessions.commit(retry)
            assert again == msgspec.structs.replace(first, replayed=True)
        assert await picture(store, "s", turn="t") == before
        await works(store, "s", fence=rival.fence)


async def test_law_076_a_released_fence_is_dead(kit: Kit) -> None:
    """After a release the fence is refused by every operation that needs it; a live one is
    taken. (76)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        lane = await store.lanes.claim("s", "one")
        assert (await store.lanes.renew(lane.fence)).fence == lane.fence
        assert await store.lanes.release(lane.fence) is True
        await dead(store, lane.fence)
        async with refused(store, "s", LaneLost):
            await store.sessions.rewind("s", revision=0, reason="x", fence=lane.fence)
        await works(store, "s")


async def test_law_077_of_two_concurrent_claims_one_wins(kit: Kit) -> None:
    """Of two concurrent first claims on different handles exactly one is granted; the other is
    refused with LaneBusy, which names the winner. (77)"""
    async with kit.open() as one, kit.open() as two:
        await one.sessions.create("s")
        answers = await asyncio.gather(
            one.lanes.claim("s", "one"), two.lanes.claim("s", "two"), return_exceptions=True
        )
        (won,) = [answer for answer in answers if isinstance(answer, Lane)]
        (lost,) = [answer for answer in answers if not isinstance(answer, Lane)]
        assert isinstance(lost, LaneBusy)
        assert (lost.owner, lost.generation) == (won.owner, 1)
        assert lost.expires_at_ms == won.expires_at_ms
        for handle in (one, two):
            found = await status(handle)
            assert (found.owner, found.generation, found.live) == (won.owner, 1, True)
        await works(one, "s", fence=won.fence)


async def test_law_078_a_fence_is_for_one_session(kit: Kit) -> None:
    """A turn that presents the fence of another session is Invalid, whatever the lane of that one,
    and nothing changes in either. (78)"""
    async with kit.open() as store:
        for session in ("s", "other"):
            await grow(store, session, "a")
        lane = await store.lanes.claim("other", "one")
        other = await picture(store, "other")
        async with refused(store, "s", Invalid, turn="t") as it:
            await store.sessions.commit(turn(lane.fence))
        assert (it.value.field, it.value.code) == ("fence.session", "invalid")
        async with refused(store, "s", Invalid, turn="t"):
            await store.sessions.commit(turn(lane.fence, release=True))
        moved = msgspec.structs.replace(lane.fence, session="s")
        await dead(store, moved)
        assert await store.lanes.release(moved) is False
        assert await picture(store, "other") == other
        await works(store, "s")
        await works(store, "other", fence=lane.fence)


async def test_law_079_a_lane_needs_a_session_and_no_commit(kit: Kit) -> None:
    """The lane of a created session may be claimed before its first turn. The lane of a session
    that is unknown or deleted may not: the claim is refused by name, and creates nothing. (79)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        lane = await store.lanes.claim("s", "one")
        await works(store, "s", fence=lane.fence)
        async with refused(store, "ghost", SessionUnknown) as unknown:
            await store.lanes.claim("ghost", "one")
        assert unknown.value.session == "ghost"
        async with refused(store, "ghost", SessionUnknown):
            await store.lanes.displace("ghost")
        async with refused(store, "ghost", SessionUnknown):
            await store.lanes.renew(msgspec.structs.replace(lane.fence, session="ghost"))
        assert await store.lanes.read("ghost") is None
        assert await store.sessions.get("ghost") is None
        await store.sessions.delete("s")
        async with refused(store, "s", SessionDeleted) as deleted:
            await store.lanes.claim("s", "one")
        assert deleted.value.session == "s"
        async with refused(store, "s", SessionDeleted):
            await store.lanes.renew(lane.fence)
        async with refused(store, "s", SessionDeleted):
            await store.lanes.displace("s")


async def test_law_080_a_refused_turn_keeps_the_lane(kit: Kit) -> None:
    """A turn that is refused does not release the lane, although it asks to; the replay of a turn
    that asks to, with the live fence, does. (80)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await store.sessions.commit(turn())
        lane = await store.lanes.claim("s", "one")
        late = msgspec.structs.replace(turn(lane.fence, turn="u", release=True), expected=0)
        async with refused(store, "s", HeadMoved, turn="u"):
            await store.sessions.commit(late)
        other = msgspec.structs.replace(turn(lane.fence, release=True), leaf="t-node", nodes=())
        async with refused(store, "s", TurnConflict, turn="t"):
            await store.sessions.commit(other)
        assert (await status(store)).live is True
        assert (await store.sessions.commit(turn(lane.fence))).replayed is True
        assert (await status(store)).live is True
        assert (await store.sessions.commit(turn(lane.fence, release=True))).replayed is True
        free = await status(store)
        assert (free.live, free.owner, free.generation) == (False, None, 1)
        assert (await store.lanes.claim("s", "two")).displaced is None


async def test_law_081_a_claim_names_whom_it_displaced(kit: Kit) -> None:
    """A claim names the holder whose lane had expired without a release; after a release, and on
    claiming again, it names nobody. Reading a lane changes nothing, and shows no token. (81)"""
    async with kit.open() as store, kit.open() as other:
        await store.sessions.create("s")
        fresh = await status(store)
        assert fresh == LaneStatus(
            session="s",
            owner=None,
            generation=0,
            claimed_at_ms=None,
            expires_at_ms=None,
            live=False,
        )
        first = await store.lanes.claim("s", "one", ttl_ms=0)
        assert first.displaced is None
        second = await store.lanes.claim("s", "two")
        assert second.displaced == Holder(
            owner="one", generation=1, expires_at_ms=first.expires_at_ms
        )
        assert (await store.lanes.claim("s", "two")).displaced is None
        before = await picture(store, "s")
        for handle in (store, other, store):
            found = await status(handle)
            assert (found.owner, found.generation, found.live) == ("two", 2, True)
            assert found.claimed_at_ms == second.claimed_at_ms
            assert not hasattr(found, "token")
        assert await picture(store, "s") == before
        third = await store.lanes.claim("s", "two")
        assert await store.lanes.release(third.fence) is True
        assert (await store.lanes.claim("s", "three")).displaced is None


async def test_law_082_a_renewal_that_hits_nothing_is_refused(kit: Kit) -> None:
    """A renewal of a lane that was never claimed, was released, or was taken by another is refused
    with LaneLost; it does not bring the lane back. (82)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        guess = Fence(session="s", owner="one", token="guess", generation=1)
        for generation in (0, 1):
            await dead(store, msgspec.structs.replace(guess, generation=generation))
        assert (await status(store)).generation == 0
        lane = await store.lanes.claim("s", "one")
        await store.lanes.release(lane.fence)
        await dead(store, lane.fence)
        assert (await status(store)).live is False
        lapsed = await store.lanes.claim("s", "one", ttl_ms=0)
        taken = await store.lanes.claim("s", "two")
        await dead(store, lapsed.fence)
        assert (await status(store)).owner == "two"
        await works(store, "s", fence=taken.fence)


async def test_law_083_after_a_lane_has_lapsed_the_head_decides(kit: Kit) -> None:
    """When a lane has lapsed and nobody has claimed it, a turn that presents no fence is decided by
    the expected revision alone. A turn that presents the lapsed fence is refused, except where it
    is a replay. (83)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        lane = await store.lanes.claim("s", "one")
        first = await store.sessions.commit(turn(lane.fence))
        await store.lanes.renew(lane.fence, ttl_ms=0)
        on_time = turn(turn="u")
        async with refused(store, "s", LaneLost, turn="u"):
            await store.sessions.commit(turn(lane.fence, turn="u"))
        async with refused(store, "s", HeadMoved, turn="u"):
            await store.sessions.commit(msgspec.structs.replace(on_time, expected=0))
        committed = await store.sessions.commit(msgspec.structs.replace(on_time, expected=1))
        assert (committed.revision, committed.replayed) == (2, False)
        again = await store.sessions.commit(turn(lane.fence))
        assert again == msgspec.structs.replace(first, replayed=True)
        assert await path(store, "s") == ["t-node", "u-node"]


async def test_law_l01_an_operator_may_displace_a_holder(kit: Kit) -> None:
    """Displacing takes the lane from its holder at once: its fence is dead, the generation moves
    on, and anybody may claim. (l01)"""
    async with kit.open() as store, kit.open() as other:
        await store.sessions.create("s")
        lane = await store.lanes.claim("s", "one", ttl_ms=HOUR_MS)
        after = await other.lanes.displace("s")
        assert (after.session, after.live) == ("s", False)
        assert after.generation > lane.generation
        assert after == await status(store)
        await dead(store, lane.fence)
        assert await store.lanes.release(lane.fence) is False
        await works(store, "s")
        second = await store.lanes.claim("s", "two")
        assert second.generation > after.generation
        assert (await status(other)).owner == "two"
        await works(other, "s", fence=second.fence)


async def test_law_l02_displacing_nobody_is_no_error(kit: Kit) -> None:
    """Displacing where nobody holds the lane succeeds, and the lane stays free. (l02)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        assert (await store.lanes.displace("s")).live is False
        lane = await store.lanes.claim("s", "one")
        assert lane.generation >= 1
        await works(store, "s", fence=lane.fence)


async def test_law_l03_tokens_are_never_the_same(kit: Kit) -> None:
    """Every grant has a token of its own that cannot be guessed from owner, session, generation and
    time: equal claims have different tokens. (l03)"""
    async with kit.open() as store:
        tokens: list[str] = []
        for number in range(10):
            await store.sessions.create(f"s{number}")
            for _ in range(3):
                tokens.append((await store.lanes.claim(f"s{number}", "one", ttl_ms=0)).token)
        assert len(set(tokens)) == 30
        assert all(len(token) >= 16 for token in tokens)


async def test_law_l04_generations_only_grow(kit: Kit) -> None:
    """The generation grows with every grant, whether the lane was released, had expired, or was
    displaced, and over the life of the handle. (l04)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        seen = [0]
        for number in range(4):
            lane = await store.lanes.claim("s", f"o{number}", ttl_ms=0)
            seen.append(lane.generation)
            lane = await store.lanes.claim("s", f"o{number}")
            seen.append(lane.generation)
            if number % 2:
                await store.lanes.release(lane.fence)
            else:
                await store.lanes.displace("s")
    async with kit.open() as late:
        seen.append((await late.lanes.claim("s", "late")).generation)
    assert seen == sorted(set(seen))
    assert len(seen) == 10


async def test_law_l05_a_time_to_live_has_a_range(kit: Kit) -> None:
    """A lane is granted or renewed for 0 ms to 7 days; another time, or an ill-formed owner, is
    Invalid, which names the argument, and nothing changes. (l05)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        for ttl_ms in (-1, 604_800_001, 2**63):
            async with refused(store, "s", Invalid) as it:
                await store.lanes.claim("s", "one", ttl_ms=ttl_ms)
            assert it.value.field == "ttl_ms"
        for owner in ("", "a b", "\x00", "x" * 201):
            async with refused(store, "s", Invalid) as it:
                await store.lanes.claim("s", owner)
            assert it.value.field == "owner"
        lane = await store.lanes.claim("s", "one", ttl_ms=604_800_000)
        assert lane.expires_at_ms == lane.claimed_at_ms + 604_800_000
        for ttl_ms in (-1, 604_800_001):
            async with refused(store, "s", Invalid) as it:
                await store.lanes.renew(lane.fence, ttl_ms=ttl_ms)
            assert it.value.field == "ttl_ms"
        await works(store, "s", fence=lane.fence)


async def test_law_l06_the_default_is_thirty_seconds(kit: Kit) -> None:
    """Without a time a lane is granted for 30 seconds. (l06)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        lane = await store.lanes.claim("s", "one")
        assert lane.expires_at_ms == lane.claimed_at_ms + 30_000


async def test_law_l07_lanes_of_different_sessions_are_independent(kit: Kit) -> None:
    """One owner may hold the lanes of many sessions; claiming, releasing and displacing one touches
    no other. (l07)"""
    async with kit.open() as store:
        for session in ("s", "other"):
            await store.sessions.create(session)
        lane = await store.lanes.claim("s", "one")
        other = await store.lanes.claim("other", "one")
        assert (lane.generation, other.generation) == (1, 1)
        assert lane.token != other.token
        before = await picture(store, "other")
        await store.lanes.release(lane.fence)
        await store.lanes.displace("s")
        await store.lanes.claim("s", "two")
        assert await picture(store, "other") == before
        await works(store, "other", fence=other.fence)


async def test_law_l08_work_on_the_lane_changes_no_history(kit: Kit) -> None:
    """Claiming, renewing, releasing and displacing change no revision, no history and no
    catalog entry. (l08)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        before = await picture(store, "s")
        lane = await store.lanes.claim("s", "one")
        await store.lanes.renew(lane.fence)
        await store.lanes.release(lane.fence)
        await store.lanes.displace("s")
        after = await picture(store, "s")
        assert (after.info, after.head, after.history) == (
            before.info,
            before.head,
            before.history,
        )
        assert (after.revisions, after.graph) == (before.revisions, before.graph)
