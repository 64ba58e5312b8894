"""Claims: work that somebody has taken, to settle it in a turn.

A claim takes work from the head of an inbox: one work, or several that may share a turn. Under a
lane it is held as long as that generation of the lane is live; without one it is held for a time
that can be renewed. The turn that settles a claim settles all of it, or is refused.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.contract.errors import (
    ClaimLost,
    LaneBusy,
    LaneLost,
)
from holdfast.contract.queue import Claim, Claimed, NewWork
from holdfast.contract.records import Fence, NewNode, Turn
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import (
    Kit,
    add,
    bodies,
    inbox,
    path,
    picture,
    refused,
    won,
    works,
)

HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS


def turn(*claims: Claim, turn: str = "t", fence: Fence | None = None, **how: Any) -> Turn:
    """A turn with a node, state and usage enough to see it, which settles claims."""
    return Turn(
        session="s",
        turn=turn,
        nodes=[NewNode(id=f"{turn}-node", body=turn)],
        state={"agent": turn.encode()},
        claims=[claim.settlement for claim in claims],
        fence=fence,
        **how,
    )


async def lost(store: Store, *claims: Claim, fence: Fence | None = None, name: str = "") -> None:
    """A turn that settles these claims is refused with ClaimLost, which names the claim."""
    async with refused(store, "s", ClaimLost, turn="lost") as it:
        await store.sessions.commit(turn(*claims, turn="lost", fence=fence))
    assert (it.value.session, it.value.claim) == ("s", name or claims[0].claim)
    assert (it.value.code, it.value.retryable) == ("claim-lost", False)


async def take(store: Store, session: str = "s", **how: Any) -> Claim:
    return won(await store.queue.claim(session, how.pop("owner", "worker"), **how))


async def test_law_093_exact_claims_do_not_pass_over_others(kit: Kit) -> None:
    """A claim on exactly these works, where others stand before them, or in another order, claims
    nothing ("not-at-head"), and everything waits as before. (93)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        a, b, c = await add(store, "s", "a", "b", "c", merge="m")
        before = await picture(store, "s")
        for wanted in ([b], [b, c], [b, a], [a, c], [a, b, c, a], ["no-such-work"]):
            answer = await store.queue.claim("s", "worker", works=wanted)
            assert answer == Claimed(why_not="not-at-head"), wanted
        assert await picture(store, "s") == before


async def test_law_094_exact_claims_take_just_those(kit: Kit) -> None:
    """A claim on exactly the work at the head claims it and no more, although more could join
    it. (94)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        a, b, c = await add(store, "s", "a", "b", "c", merge="m")
        one = await take(store, works=[a])
        assert [work.work for work in one.work] == [a]
        two = await take(store, works=(b, c))
        assert [work.work for work in two.work] == [b, c]


async def test_law_095_wanting_nothing_takes_nothing(kit: Kit) -> None:
    """A claim on no works, or on at most 0, answers "zero-limit", whoever holds the lane and
    whatever fence is shown. (95)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a")
        lane = await store.lanes.claim("s", "rival")
        dead = msgspec.structs.replace(lane.fence, token="dead")
        before = await picture(store, "s")
        for fence in (None, lane.fence, dead):
            for answer in (
                await store.queue.claim("s", "worker", fence=fence, limit=0),
                await store.queue.claim("s", "worker", fence=fence, works=[]),
            ):
                assert answer == Claimed(why_not="zero-limit")
        assert (await store.queue.claim_next("worker", limit=0)).why_not == "zero-limit"
        assert await picture(store, "s") == before


async def test_law_096_at_a_checkpoint_the_head_decides(kit: Kit) -> None:
    """At a checkpoint within a turn, work that is to wait for the end of the turn blocks what
    stands behind it, although that need not wait: "boundary". (96)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "late", delivery="after-turn")
        await add(store, "s", "soon")
        before = await picture(store, "s")
        answer = await store.queue.claim("s", "worker", boundary="checkpoint")
        assert answer == Claimed(why_not="boundary")
        assert await picture(store, "s") == before


async def test_law_097_between_turns_every_delivery_is_taken(kit: Kit) -> None:
    """Between turns work that waited for the end of a turn is taken, without the work of another
    delivery behind it. (97)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "late", delivery="after-turn", merge="m")
        await add(store, "s", "soon", merge="m")
        assert bodies((await take(store, boundary="idle")).work) == ["late"]
        assert bodies((await take(store, boundary="checkpoint")).work) == ["soon"]


async def test_law_098_claimed_work_blocks_nothing(kit: Kit) -> None:
    """Work that somebody holds is passed over: what stands behind it is claimed, at a checkpoint
    too. (98)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "late", delivery="after-turn")
        await add(store, "s", "soon")
        lane = await store.lanes.claim("s", "worker")
        assert bodies((await take(store, fence=lane.fence)).work) == ["late"]
        soon = await take(store, fence=lane.fence, boundary="checkpoint")
        assert bodies(soon.work) == ["soon"]


async def test_law_099_a_new_claim_is_another_one(kit: Kit) -> None:
    """Work that was given back and is claimed again has a claim with another name and token, in the
    generation of the lane it is taken under; the old one can settle nothing. (99)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a")
        lane = await store.lanes.claim("s", "worker")
        first = await take(store, fence=lane.fence)
        assert (first.generation, first.expires_at_ms) == (1, None)
        assert await store.queue.abandon(first) == 1
        second = await take(store, fence=lane.fence)
        assert second.generation == 1
        await lost(store, first, fence=lane.fence)
        assert await store.queue.abandon(second) == 1
        await store.lanes.release(lane.fence)
        lane = await store.lanes.claim("s", "worker")
        third = await take(store, fence=lane.fence)
        assert third.generation == 2
        assert len({one.claim for one in (first, second, third)}) == 3
        assert len({one.token for one in (first, second, third)}) == 3
        assert [one.work[0].attempts for one in (first, second, third)] == [1, 2, 3]
        assert not any(one.redelivered for one in (first, second, third))
        await lost(store, second, fence=lane.fence)
        await store.sessions.commit(turn(third, fence=lane.fence))


async def test_law_100_renewing_keeps_the_claim(kit: Kit) -> None:
    """Renewing keeps name, token and work of a claim, and moves its expiry; it never brings it
    forward. (100)"""
    async with kit.open() as store, kit.open() as other:
        await store.sessions.create("s")
        await add(store, "s", "a", "b", merge="m")
        claim = await take(store, ttl_ms=HOUR_MS)
        assert claim.expires_at_ms == claim.claimed_at_ms + HOUR_MS
        longer = await other.queue.renew(claim, ttl_ms=2 * HOUR_MS)
        assert longer.expires_at_ms is not None
        assert longer.expires_at_ms >= claim.claimed_at_ms + 2 * HOUR_MS
        assert msgspec.structs.replace(longer, expires_at_ms=claim.expires_at_ms) == claim
        for ttl_ms in (0, HOUR_MS):
            again = await store.queue.renew(longer, ttl_ms=ttl_ms)
            assert again.expires_at_ms == longer.expires_at_ms
        assert (await store.queue.claim("s", "rival")).why_not == "claimed"
        await store.sessions.commit(turn(claim))


async def test_law_101_delayed_work_blocks_nothing(kit: Kit) -> None:
    """Work that is not yet available is passed over, and what stands behind it is claimed; it does
    not part what stands on both sides of it. (101)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "later", delay_ms=HOUR_MS, merge="m")
        await add(store, "s", "a", merge="m")
        await add(store, "s", "later", delay_ms=HOUR_MS, merge="m")
        await add(store, "s", "b", merge="m")
        assert bodies((await take(store)).work) == ["a", "b"]
        assert await inbox(store, "s", "delayed") == ["later", "later"]


async def test_law_102_exclusive_work_travels_alone(kit: Kit) -> None:
    """Exclusive work is claimed alone, whatever stands behind it, and joins nothing before
    it. (102)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "alone", slot="exclusive", merge="m")
        await add(store, "s", "a", "b", merge="m")
        await add(store, "s", "last", slot="exclusive", merge="m")
        for expected in (["alone"], ["a", "b"], ["last"]):
            assert bodies((await take(store)).work) == expected


async def test_law_103_claims_stay_in_their_session(kit: Kit) -> None:
    """Claims, renewals and settlements of one session touch no other. (103)"""
    async with kit.open() as store:
        for session in ("s", "other"):
            await store.sessions.create(session)
            await add(store, session, "a", "b", merge="m")
        before = await picture(store, "other")
        claim = await take(store)
        await store.queue.renew(claim)
        await store.sessions.commit(turn(claim))
        assert await picture(store, "other") == before
        assert bodies((await take(store, "other")).work) == ["a", "b"]


async def test_law_104_a_claim_of_no_time_is_over_at_once(kit: Kit) -> None:
    """Work claimed for 0 ms is ready for anybody, and is claimed again as redelivered, with one
    more attempt; whoever had it can neither settle nor renew it. (104)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a")
        first = await take(store, ttl_ms=0)
        assert (first.work[0].state, first.redelivered) == ("claimed", False)
        assert first.expires_at_ms == first.claimed_at_ms
        assert await inbox(store, "s", "ready") == ["a"]
        await lost(store, first)
        second = await take(store, owner="rival")
        assert (second.redelivered, second.work[0].attempts) == (True, 2)
        assert second.claim != first.claim
        await lost(store, first)
        async with refused(store, "s", ClaimLost):
            await store.queue.renew(first)
        await store.sessions.commit(turn(second))


async def test_law_105_a_claim_is_cut_to_its_limit(kit: Kit) -> None:
    """A claim takes no more works than its limit; the rest is claimed next, in order. (105)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", *"abcde", merge="m")
        for limit, expected in ((2, ["a", "b"]), (1, ["c"]), (64, ["d", "e"])):
            assert bodies((await take(store, limit=limit)).work) == expected
        assert (await store.queue.claim("s", "worker")).why_not == "claimed"


async def test_law_106_work_joins_its_equal_neighbours(kit: Kit) -> None:
    """Work joins what stands next to it with the same delivery and the same merge key, and nothing
    else; without a merge key it joins nothing. What is left is claimed next, in order. (106)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a1", "a2", merge="a")
        await add(store, "s", "b1", merge="b")
        await add(store, "s", "a3", merge="a")
        await add(store, "s", "a4", "a5", merge="a", delivery="after-turn")
        await add(store, "s", "n1", "n2")
        await add(store, "s", "a6", merge="a")
        expected = (["a1", "a2"], ["b1"], ["a3"], ["a4", "a5"], ["n1"], ["n2"], ["a6"])
        for group in expected:
            assert bodies((await take(store)).work) == group


JOINED: dict[str, tuple[list[dict[str, Any]], dict[str, Any], int]] = {
    "alone": ([{}], {}, 1),
    "no-key": ([{}, {}], {}, 1),
    "same-key": ([{"merge": "m"}] * 3, {}, 3),
    "up-to-the-limit": ([{"merge": "m"}] * 3, {"limit": 2}, 2),
    "key-and-none": ([{"merge": "m"}, {}, {"merge": "m"}], {}, 1),
    "none-and-key": ([{}, {"merge": "m"}], {}, 1),
    "other-key": ([{"merge": "m"}, {"merge": "n"}], {}, 1),
    "other-delivery": ([{"merge": "m"}, {"merge": "m", "delivery": "after-turn"}], {}, 1),
    "exclusive-first": ([{"merge": "m", "slot": "exclusive"}, {"merge": "m"}], {}, 1),
    "exclusive-second": ([{"merge": "m"}, {"merge": "m", "slot": "exclusive"}], {}, 1),
    "commands": ([{"merge": "m", "kind": "command"}] * 2, {}, 1),
    "turn-and-command": ([{"merge": "m"}, {"merge": "m", "kind": "command"}], {}, 1),
    "mismatch-stops": ([{"merge": "m"}, {"merge": "n"}, {"merge": "m"}], {}, 1),
    "late-at-idle": ([{"merge": "m", "delivery": "after-turn"}] * 2, {}, 2),
    "late-at-checkpoint": ([{"delivery": "after-turn"}], {"boundary": "checkpoint"}, 0),
    "soon-at-checkpoint": ([{"merge": "m"}] * 2, {"boundary": "checkpoint"}, 2),
    "key-of-a-key": ([{"merge": "m", "key": "a"}, {"merge": "m", "key": "b"}], {}, 2),
    "attempts": ([{"merge": "m", "max_attempts": 1}, {"merge": "m"}], {}, 2),
}


@pytest.mark.parametrize("case", JOINED)
async def test_law_107_the_rule_of_the_prefix(kit: Kit, case: str) -> None:
    """The head decides: exclusive work, a command, and work without a merge key are 1; else it and
    the work right behind it, as long as that has the slot "join", is no command, and has the same
    delivery and merge key, up to the limit. Two claims never have the same name. (107)"""
    given, how, count = JOINED[case]
    async with kit.open() as store:
        await store.sessions.create("s")
        for number, change in enumerate(given):
            await add(store, "s", f"{number}", **change)
        answer = await store.queue.claim("s", "worker", **how)
        taken = bodies(answer.claim.work) if answer.claim is not None else []
        assert taken == [f"{number}" for number in range(count)]
        rest = await inbox(store, "s", "ready")
        assert rest == [f"{number}" for number in range(count, len(given))]


async def test_law_108_a_wrong_token_settles_nothing(kit: Kit) -> None:
    """A turn that shows a wrong token for a claim, or a claim there is not, is refused with
    ClaimLost: all work stays claimed, and neither history nor state is stored. (108)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a", "b", merge="m")
        claim = await take(store)
        await lost(store, msgspec.structs.replace(claim, token="guess"))
        await lost(store, msgspec.structs.replace(claim, claim="guess"))
        assert await inbox(store, "s", "claimed") == ["a", "b"]
        await store.sessions.commit(turn(claim))
        assert await inbox(store, "s") == []


async def test_law_109_a_turn_settles_just_its_claims(kit: Kit) -> None:
    """A turn settles the work of the claims it names, of several if it names several, and no
    other. (109)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a1", "a2", merge="a")
        await add(store, "s", "b", "c", "d")
        one, two, three = [await take(store) for _ in range(3)]
        receipt = await store.sessions.commit(turn(one, three))
        assert (receipt.revision, receipt.replayed) == (1, False)
        assert await inbox(store, "s", "claimed") == ["b"]
        assert await inbox(store, "s") == ["b", "d"]
        await store.sessions.commit(turn(two, turn="u"))
        assert await inbox(store, "s") == ["d"]


async def test_law_110_a_stale_settlement_leaves_no_trace(kit: Kit) -> None:
    """A turn whose claim was superseded stores no head, no receipt and no settlement. The turn of
    the new holder then stores all of it, and its retry is a replay. (110)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a", "b")
        stale = await take(store, ttl_ms=0)
        valid = await take(store, owner="rival")
        await lost(store, stale)
        async with refused(store, "s", ClaimLost, turn="t"):
            await store.sessions.commit(turn(stale))
        first = await store.sessions.commit(turn(valid))
        assert (first.revision, first.replayed) == (1, False)
        assert await inbox(store, "s") == ["b"]
        again = await store.sessions.commit(turn(valid))
        assert again == msgspec.structs.replace(first, replayed=True)
        assert await path(store, "s") == ["t-node"]


async def test_law_111_an_event_is_told_once(kit: Kit) -> None:
    """Work whose key names the event it tells of is enqueued once however often it is sent, also by
    senders at the same moment; it is claimed once, and settled by one turn. (111)"""
    async with kit.open() as one, kit.open() as two:
        await one.sessions.create("s")
        wake = NewWork(session="s", payloads=["done"], key="upload:p1:event:7", slot="exclusive")
        answers = await asyncio.gather(*(store.queue.enqueue(wake) for store in (one, two) * 2))
        assert sorted(answer.enqueued for answer in answers) == [False, False, False, True]
        claim = await take(one)
        assert bodies(claim.work) == ["done"]
        assert (await two.queue.claim("s", "rival")).why_not == "claimed"
        await one.sessions.commit(turn(claim))
        assert (await two.queue.enqueue(wake)).enqueued is False
        assert (await two.queue.claim("s", "rival")).why_not == "empty"


async def test_law_112_held_work_is_not_for_others(kit: Kit) -> None:
    """While work is held nobody else gets it: the answer is "claimed", with the time it lapses; its
    holder can still renew it. (112)"""
    async with kit.open() as store, kit.open() as other:
        await store.sessions.create("s")
        await add(store, "s", "a")
        claim = await take(store)
        before = await picture(store, "s")
        answer = await other.queue.claim("s", "rival")
        assert answer == Claimed(why_not="claimed", next_at_ms=claim.expires_at_ms)
        assert await picture(store, "s") == before
        assert (await store.queue.renew(claim)).claim == claim.claim


async def test_law_113_of_two_concurrent_claims_one_wins(kit: Kit) -> None:
    """Of concurrent claims on one work exactly one gets it, the others are told "claimed"; the
    winner can renew. (113)"""
    async with kit.open() as one, kit.open() as two:
        await one.sessions.create("s")
        await add(one, "s", "a")
        answers = await asyncio.gather(
            *(store.queue.claim("s", f"o{n}") for n, store in enumerate((one, two) * 2))
        )
        (claim,) = [answer.claim for answer in answers if answer.claim is not None]
        reasons = [answer.why_not for answer in answers if answer.claim is None]
        assert reasons == ["claimed"] * 3
        assert (await two.queue.renew(claim)).claim == claim.claim
        await two.sessions.commit(turn(claim))


async def test_law_114_a_claim_has_the_order_of_the_inbox(kit: Kit) -> None:
    """The work of a claim is in the order of the inbox, and its payloads in the order they were
    given, each named after its work and its place. (114)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        for number in range(12):
            await store.queue.enqueue(
                NewWork(session="s", payloads=[number, number + 100, b"raw"], merge="m")
            )
        claim = await take(store)
        assert [work.seq for work in claim.work] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
        assert [work.items[0].json() for work in claim.work] == list(range(12))
        for work in claim.work:
            assert [item.id for item in work.items] == [f"{work.work}:item:{n}" for n in range(3)]
            assert work.items[1].json() == work.items[0].json() + 100
            assert work.items[2].body == b"raw"


async def test_law_115_a_claim_that_lost_its_work_is_not_renewed(kit: Kit) -> None:
    """Renewing a claim is refused with ClaimLost when its time is over, or its work was claimed by
    another, settled, given back, or cancelled; when it shows another token; and when the work it
    names is not all it has, or not its own. (115)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        names = await add(store, "s", *"abcde")

        async def not_renewed(claim: Claim) -> None:
            async with refused(store, "s", ClaimLost) as it:
                await store.queue.renew(claim, ttl_ms=HOUR_MS)
            assert (it.value.session, it.value.claim) == ("s", claim.claim)

        lapsed = await take(store, ttl_ms=0)
        await not_renewed(lapsed)
        again = await take(store)
        await not_renewed(lapsed)
        await not_renewed(msgspec.structs.replace(again, token="guess"))
        await not_renewed(msgspec.structs.replace(again, claim="guess"))
        await store.sessions.commit(turn(again))
        await not_renewed(again)
        back = await take(store)
        await store.queue.abandon(back)
        await not_renewed(back)
        gone = await take(store, ttl_ms=0)
        await store.queue.cancel("s", names[1])
        await not_renewed(gone)
        await add(store, "s", "x", "y", merge="m")
        three = [await take(store) for _ in range(3)]
        two = await take(store)
        assert bodies(two.work) == ["x", "y"]
        for part in (two.work[:1], (*two.work, three[0].work[0]), three[0].work):
            await not_renewed(msgspec.structs.replace(two, work=part))
        await store.queue.renew(two)


async def test_law_116_giving_back_what_was_lost_changes_nothing(kit: Kit) -> None:
    """Giving back a claim that is held no more, or with another token, answers 0 and changes
    nothing, whoever has the work now. (116)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a", "b")
        lapsed = await take(store, ttl_ms=0)
        before = await picture(store, "s")
        assert await store.queue.abandon(lapsed, error="late", dead=True) == 0
        assert await picture(store, "s") == before
        claim = await take(store)
        before = await picture(store, "s")
        forged = msgspec.structs.replace(claim, token="guess")
        for stale in (lapsed, forged):
            assert await store.queue.abandon(stale, error="late", dead=True) == 0
        assert await picture(store, "s") == before
        await store.sessions.commit(turn(claim))
        assert await store.queue.abandon(claim) == 0
        assert await inbox(store, "s") == ["b"]


async def test_law_117_a_claim_is_settled_in_its_session(kit: Kit) -> None:
    """A turn of another session cannot settle a claim: it is refused with ClaimLost, and changes
    neither session. (117)"""
    async with kit.open() as store:
        for session in ("s", "other"):
            await store.sessions.create(session)
            await add(store, session, "a")
        claim = await take(store, "other")
        other = await picture(store, "other")
        await lost(store, claim)
        assert await picture(store, "other") == other
        await works(store, "s")


async def test_law_121_a_claim_lives_as_long_as_its_lane(kit: Kit) -> None:
    """A claim under a lane belongs to its generation, which never claims its own work again. When
    the lane was released, has lapsed or was displaced, the work is ready for anybody and can be
    cancelled; what the former holder sends is refused and changes nothing. (121)"""
    async with kit.open() as store, kit.open() as other:
        await store.sessions.create("s")
        for number, end in enumerate(("release", "lapse", "displace")):
            one, two = await add(store, "s", "a", "b")
            lane = await store.lanes.claim("s", "worker")
            first = await take(store, fence=lane.fence, limit=1)
            assert (first.generation, first.expires_at_ms) == (lane.generation, None)
            second = await take(store, fence=lane.fence)
            assert bodies(second.work) == ["b"]
            answer = await store.queue.claim("s", "worker", fence=lane.fence)
            assert answer == Claimed(why_not="claimed")
            assert await store.queue.cancel("s", one) is None
            if end == "release":
                await store.lanes.release(lane.fence)
            elif end == "lapse":
                await store.lanes.renew(lane.fence, ttl_ms=0)
            else:
                await store.lanes.displace("s")
            assert await inbox(store, "s", "ready") == ["a", "b"]
            assert await store.queue.cancel("s", two) is not None
            assert await store.queue.abandon(first) == 0
            async with refused(store, "s", LaneLost):
                await store.sessions.commit(turn(first, fence=lane.fence))
            await lost(store, first)
            successor = await other.lanes.claim("s", "rival")
            again = await take(other, fence=successor.fence, owner="rival")
            assert (again.redelivered, [work.work for work in again.work]) == (True, [one])
            async with refused(store, "s", LaneLost):
                await store.sessions.commit(turn(first, fence=lane.fence))
            async with refused(store, "s", LaneBusy):
                await store.sessions.commit(turn(first))
            await lost(store, first, fence=successor.fence)
            settled = turn(again, turn=f"t{number}", fence=successor.fence, release=True)
            assert (await other.sessions.commit(settled)).revision == number + 1


async def test_law_122_claimed_work_hides_nothing(kit: Kit) -> None:
    """However much claimed work stands in front, what stands behind it is reached. (122)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", *(f"{number}" for number in range(101)), merge="m")
        lane = await store.lanes.claim("s", "worker")
        for number in range(50):
            taken = await take(store, fence=lane.fence, limit=2)
            assert bodies(taken.work) == [f"{2 * number}", f"{2 * number + 1}"]
        assert bodies((await take(store, fence=lane.fence)).work) == ["100"]


async def test_law_123_commands_are_not_turn_work(kit: Kit) -> None:
    """Commands and turn work are claimed apart. A command at the head is never passed over: who
    wants turn work is told "command-at-head", who wants a command "turn-at-head"; who wants any
    gets a command alone. (123)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "stop", kind="command", merge="m")
        await add(store, "s", "reset", kind="command", merge="m")
        await add(store, "s", "say", merge="m")
        before = await picture(store, "s")
        answer = await store.queue.claim("s", "worker", kind="turn")
        assert answer == Claimed(why_not="command-at-head")
        assert await picture(store, "s") == before
        assert bodies((await take(store, kind="command")).work) == ["stop"]
        one = await take(store, kind="any")
        assert ([work.kind for work in one.work], bodies(one.work)) == (["command"], ["reset"])
        answer = await store.queue.claim("s", "worker", kind="command")
        assert answer == Claimed(why_not="turn-at-head")
        assert bodies((await take(store, kind="turn")).work) == ["say"]


async def test_law_124_what_was_claimed_together_comes_again_together(kit: Kit) -> None:
    """Work whose holder went away is claimed again in exactly the set it was claimed in, whatever
    has come since, and whatever limit is asked for. (124)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        a, b, c = await add(store, "s", "a", "b", "c", merge="m")
        await take(store, limit=2, ttl_ms=0)
        await add(store, "s", "d", merge="m")
        for limit in (1, 64, 2):
            again = await take(store, limit=limit, ttl_ms=0)
            assert (again.redelivered, bodies(again.work)) == (True, ["a", "b"])
        for wanted in ([a], [a, b, c]):
            answer = await store.queue.claim("s", "worker", works=wanted)
            assert answer.why_not == "not-at-head"
        claim = await take(store, works=[a, b])
        assert [work.attempts for work in claim.work] == [5, 5]
        rest = await take(store)
        assert (rest.redelivered, bodies(rest.work)) == (False, ["c", "d"])
