"""Settling work: a turn that is committed is the proof that its work is done.

What a turn settles is part of the turn: all of it is stored, or nothing. Work that has a key stays
behind without its payloads, and names the turn that settled it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from holdfast.contract.errors import (
    ClaimLost,
    HeadMoved,
    Invalid,
    LaneBusy,
    LaneLost,
    SessionUnknown,
    TooLarge,
    TurnConflict,
    WorkNotDead,
    WorkUnknown,
)
from holdfast.contract.queue import Claim, Claimed
from holdfast.contract.records import Fence, NewNode, Receipt, Turn, WorkClaim
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import (
    Kit,
    add,
    bodies,
    inbox,
    picture,
    refused,
    won,
    works,
)

HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS


def turn(*claims: WorkClaim, name: str = "t", fence: Fence | None = None, **how: Any) -> Turn:
    nodes = [NewNode(id=f"{name}-node", body=name)]
    return Turn(session="s", turn=name, nodes=nodes, claims=claims, fence=fence, **how)


async def take(store: Store, **how: Any) -> Claim:
    return won(await store.queue.claim("s", how.pop("owner", "worker"), **how))


async def test_law_243_a_claim_that_lapsed_is_recovered_once(kit: Kit) -> None:
    """Work of a claim that lapsed is recovered by one of those who ask; what was committed before
    it is there; one turn settles it, and its replay settles nothing more. (243)"""
    async with kit.open() as store, kit.open() as other:
        await store.sessions.create("s")
        await add(store, "s", "a", "b")
        stale = await take(store, ttl_ms=0)
        checkpoint = Turn(session="s", turn="checkpoint", state={"agent": b"half"})
        await store.sessions.commit(checkpoint)
        answers = await asyncio.gather(
            *(handle.queue.claim("s", f"o{n}") for n, handle in enumerate((store, other)))
        )
        claims = [won(answer) for answer in answers]
        assert sorted((claim.redelivered, bodies(claim.work)[0]) for claim in claims) == [
            (False, "b"),
            (True, "a"),
        ]
        (again,) = [claim for claim in claims if claim.redelivered]
        history = await other.history.load("s")
        assert history is not None
        assert history.state == {"agent": b"half"}
        first = await other.sessions.commit(turn(again.settlement))
        assert first.revision == 2
        before = await picture(store, "s", turn="t")
        assert await store.sessions.commit(turn(again.settlement)) == msgspec.structs.replace(
            first, replayed=True
        )
        async with refused(store, "s", ClaimLost):
            await store.sessions.commit(turn(stale.settlement, name="late"))
        assert await picture(store, "s", turn="t") == before


async def test_law_k01_work_is_claimed_by_who_may_work(kit: Kit) -> None:
    """A claim with a fence needs the live lane it proves, else it is LaneLost; one without a fence
    needs a free lane, else it is LaneBusy, which says who holds it. A fence of another session is
    Invalid. (k01)"""
    async with kit.open() as store:
        for session in ("s", "other"):
            await store.sessions.create(session)
        await add(store, "s", "a")
        lane = await store.lanes.claim("s", "worker")
        foreign = await store.lanes.claim("other", "worker")
        async with refused(store, "s", LaneBusy) as busy:
            await store.queue.claim("s", "worker")
        assert (busy.value.owner, busy.value.generation) == ("worker", 1)
        assert busy.value.expires_at_ms == lane.expires_at_ms
        changes: tuple[dict[str, Any], ...] = ({"token": "x"}, {"owner": "x"}, {"generation": 2})
        for change in changes:
            async with refused(store, "s", LaneLost) as it:
                fence = msgspec.structs.replace(lane.fence, **change)
                await store.queue.claim("s", "worker", fence=fence)
            assert it.value.session == "s"
        async with refused(store, "s", Invalid) as wrong:
            await store.queue.claim("s", "worker", fence=foreign.fence)
        assert wrong.value.field == "fence.session"
        assert bodies((await take(store, fence=lane.fence)).work) == ["a"]
        await store.lanes.renew(lane.fence, ttl_ms=0)
        async with refused(store, "s", LaneLost):
            await store.queue.claim("s", "worker", fence=lane.fence)
        assert bodies((await take(store)).work) == ["a"]


async def test_law_k02_a_claim_under_a_lane_has_no_time_of_its_own(kit: Kit) -> None:
    """A claim under a lane has a generation and no expiry, and cannot be renewed: that is Invalid.
    It lasts as long as the lane is renewed, also under the new token of the same grant. One without
    a lane has an expiry and no generation. (k02)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a", "b")
        lane = await store.lanes.claim("s", "worker")
        claim = await take(store, fence=lane.fence, ttl_ms=0)
        assert (claim.generation, claim.expires_at_ms) == (1, None)
        async with refused(store, "s", Invalid) as it:
            await store.queue.renew(claim)
        assert it.value.field == "claim"
        async with refused(store, "s", ClaimLost):
            await store.queue.renew(msgspec.structs.replace(claim, generation=None))
        lane = await store.lanes.claim("s", "worker")
        await store.lanes.renew(lane.fence)
        await store.sessions.commit(turn(claim.settlement, fence=lane.fence, release=True))
        free = await take(store)
        assert (free.generation, free.owner, free.session) == (None, "worker", "s")
        assert free.expires_at_ms == free.claimed_at_ms + 300_000


async def test_law_k03_a_claim_of_a_time_outlasts_lanes(kit: Kit) -> None:
    """Work that is claimed for a time is held until then, whoever gets the lane: its holder settles
    it in a turn without a fence while the lane is free, or in one with the fence. (k03)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a", "b", "c")
        one, two = await take(store), await take(store)
        rival = await store.lanes.claim("s", "rival")
        assert bodies((await take(store, fence=rival.fence, owner="rival")).work) == ["c"]
        assert (await store.queue.renew(one)).claim == one.claim
        async with refused(store, "s", LaneBusy):
            await store.sessions.commit(turn(one.settlement))
        await store.sessions.commit(turn(one.settlement, fence=rival.fence))
        await store.lanes.release(rival.fence)
        await store.sessions.commit(turn(two.settlement, name="u"))
        assert await inbox(store, "s") == ["c"]


async def test_law_k04_a_claim_is_settled_whole(kit: Kit) -> None:
    """A turn names for each claim exactly the work the claim holds, in any order: a part of it,
    more than it, or the work of another claim is refused with ClaimLost. (k04)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a", "b", "c", merge="m")
        await add(store, "s", "d", "e")
        three, one = await take(store), await take(store)
        (waits,) = [work.work for work in (await store.queue.list("s")).items[4:]]
        a, b, c = three.settlement.work
        (d,) = one.settlement.work
        for names in ((a,), (a, b), (a, b, c, d), (a, b, d), (a, b, c, waits), (d,), ("ghost",)):
            part = msgspec.structs.replace(three.settlement, work=names)
            for claims in ((part,), (one.settlement, part), (part, one.settlement)):
                async with refused(store, "s", ClaimLost, turn="t") as it:
                    await store.sessions.commit(turn(*claims))
                assert (it.value.session, it.value.claim) == ("s", three.claim), names
        whole = msgspec.structs.replace(three.settlement, work=(c, a, b))
        await store.sessions.commit(turn(whole, one.settlement))
        assert await inbox(store, "s") == ["e"]


async def test_law_k05_a_bad_settlement_is_refused_by_field(kit: Kit) -> None:
    """A settlement of no work, of a work twice, or of a claim twice, and one with an ill-formed
    name, is Invalid, which names the field; so is a claim that is presented like that. (k05)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a", "b", merge="m")
        claim = await take(store)
        good = claim.settlement
        cases: list[tuple[str, tuple[WorkClaim, ...]]] = [
            ("claims[0].work", (msgspec.structs.replace(good, work=()),)),
            ("claims[0].work", (msgspec.structs.replace(good, work=good.work[:1] * 2),)),
            ("claims[1].claim", (good, good)),
            ("claims[0].claim", (msgspec.structs.replace(good, claim=""),)),
            ("claims[0].token", (msgspec.structs.replace(good, token="a b"),)),
            ("claims[0].work[1]", (msgspec.structs.replace(good, work=(good.work[0], "\x00")),)),
        ]
        for field, claims in cases:
            async with refused(store, "s", Invalid, turn="t") as it:
                await store.sessions.commit(turn(*claims))
            assert it.value.field == field
        shown: list[tuple[str, dict[str, Any]]] = [
            ("claim.work", {"work": ()}),
            ("claim.work", {"work": claim.work[:1] * 2}),
            ("claim.session", {"session": ""}),
            ("claim.claim", {"claim": "a b"}),
            ("claim.token", {"token": "\x00"}),
        ]
        for field, change in shown:
            for ask in (store.queue.renew, store.queue.abandon):
                async with refused(store, "s", Invalid) as it:
                    await ask(msgspec.structs.replace(claim, **change))
                assert it.value.field == field
        await store.sessions.commit(turn(good))


async def test_law_k06_settled_work_names_its_turn(kit: Kit) -> None:
    """Settled work that has a key stays, as done, without its payloads, and names the turn; without
    a key nothing of it stays. Neither can be claimed, cancelled, given back or put back. (k06)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        (plain,) = await add(store, "s", "a", merge="m")
        (keyed,) = await add(store, "s", "b", merge="m", key="k")
        claim = await take(store)
        await store.sessions.commit(turn(claim.settlement))
        assert await store.queue.get("s", plain) is None
        done = await store.queue.get("s", keyed)
        assert done is not None
        assert (done.state, done.settled_by, done.items) == ("done", "t", ())
        assert (done.key, done.seq, done.attempts, done.claimed_by) == ("k", 2, 1, None)
        before = await picture(store, "s")
        assert (await store.queue.claim("s", "worker")) == Claimed(why_not="empty")
        assert await store.queue.abandon(claim) == 0
        for name in (plain, keyed):
            assert await store.queue.cancel("s", name) is None
        async with refused(store, "s", WorkUnknown) as unknown:
            await store.queue.requeue("s", plain)
        assert (unknown.value.session, unknown.value.work) == ("s", plain)
        async with refused(store, "s", WorkNotDead) as it:
            await store.queue.requeue("s", keyed)
        assert (it.value.work, it.value.state) == (keyed, "done")
        assert await picture(store, "s") == before


async def test_law_k07_a_refused_turn_keeps_the_claim(kit: Kit) -> None:
    """A turn that is refused for another reason settles nothing: its work stays claimed, and
    another turn settles it. A claim is looked at after receipt, lane and revision. (k07)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await works(store, "s")
        await add(store, "s", "a")
        lane = await store.lanes.claim("s", "worker")
        claim = await take(store, fence=lane.fence)
        wrong = msgspec.structs.replace(claim.settlement, token="guess")
        dead = msgspec.structs.replace(lane.fence, token="dead")
        for settlement in (claim.settlement, wrong):
            async with refused(store, "s", HeadMoved, turn="t"):
                await store.sessions.commit(turn(settlement, fence=lane.fence, expected=0))
            async with refused(store, "s", LaneLost, turn="t"):
                await store.sessions.commit(turn(settlement, fence=dead))
            async with refused(store, "s", TurnConflict, turn="works-1"):
                await store.sessions.commit(turn(settlement, name="works-1", fence=lane.fence))
        async with refused(store, "s", ClaimLost, turn="t"):
            await store.sessions.commit(turn(wrong, fence=lane.fence, leaf="t-node"))
        assert await inbox(store, "s", "claimed") == ["a"]
        await store.sessions.commit(turn(claim.settlement, fence=lane.fence, expected=1))


async def test_law_k08_a_turn_is_the_same_by_the_work_it_settles(kit: Kit) -> None:
    """A turn sent again is a replay when it settles the same work, under whatever claim; it is
    TurnConflict when it settles other work, or none. (k08)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a", "b")
        claim = await take(store)
        first = await store.sessions.commit(turn(claim.settlement))
        other = await take(store)
        renamed = msgspec.structs.replace(claim.settlement, claim="another", token="another")
        for settlement in (claim.settlement, renamed):
            again = await store.sessions.commit(turn(settlement))
            assert again == msgspec.structs.replace(first, replayed=True)
        for claims in ((), (other.settlement,), (claim.settlement, other.settlement)):
            async with refused(store, "s", TurnConflict, turn="t"):
                await store.sessions.commit(turn(*claims))
        await store.sessions.commit(turn(other.settlement, name="u"))


async def test_law_k09_of_concurrent_settlements_one_is_stored(kit: Kit) -> None:
    """Of turns that settle the same claim at the same moment one is committed, and the others are
    refused with ClaimLost. (k09)"""
    async with kit.open() as one, kit.open() as two:
        await one.sessions.create("s")
        await add(one, "s", "a")
        claim = await take(one)
        answers = await asyncio.gather(
            *(
                store.sessions.commit(turn(claim.settlement, name=f"t{n}"))
                for n, store in enumerate((one, two) * 2)
            ),
            return_exceptions=True,
        )
        (stored,) = [answer for answer in answers if isinstance(answer, Receipt)]
        assert stored.revision == 1
        others = [type(answer) for answer in answers if not isinstance(answer, Receipt)]
        assert others == [ClaimLost] * 3
        assert await inbox(one, "s") == []


async def test_law_k10_tokens_are_never_the_same(kit: Kit) -> None:
    """Every claim has a name and a token of its own that cannot be guessed from what is
    public. (k10)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a")
        claims = [await take(store, ttl_ms=0) for _ in range(20)]
        assert len({claim.token for claim in claims}) == 20
        assert len({claim.claim for claim in claims}) == 20
        assert all(len(claim.token) >= 16 for claim in claims)
        assert not {claim.token for claim in claims} & {claim.claim for claim in claims}


BAD_CLAIMS: list[tuple[str, dict[str, Any]]] = [
    ("session", {"session": "a b"}),
    ("session", {"session": "\x00"}),
    ("owner", {"owner": ""}),
    ("boundary", {"boundary": "soon"}),
    ("kind", {"kind": "wish"}),
    ("limit", {"limit": -1}),
    ("limit", {"limit": 257}),
    ("limit", {"limit": True}),
    ("works", {"works": "abc"}),
    ("works[1]", {"works": ["a", "b c"]}),
    ("ttl_ms", {"ttl_ms": -1}),
    ("ttl_ms", {"ttl_ms": WEEK_MS + 1}),
]


async def test_law_k11_a_bad_claim_is_refused_by_field(kit: Kit) -> None:
    """A claim takes at most 256 works, for 0 ms to 7 days. What is beyond, ill-formed or unknown is
    Invalid or TooLarge, which names the argument, and nothing is claimed. (k11)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a")
        for field, change in BAD_CLAIMS:
            wish: dict[str, Any] = {"session": "s", "owner": "worker", **change}
            async with refused(store, "s", Invalid) as it:
                await store.queue.claim(**wish)
            assert it.value.field == field, change
        async with refused(store, "s", TooLarge) as large:
            await store.queue.claim("s", "worker", works=["w"] * 257)
        assert (large.value.field, large.value.actual, large.value.limit) == ("works", 257, 256)
        for ttl_ms in (-1, WEEK_MS + 1):
            claim = await take(store, ttl_ms=HOUR_MS)
            async with refused(store, "s", Invalid) as it:
                await store.queue.renew(claim, ttl_ms=ttl_ms)
            assert it.value.field == "ttl_ms"
            await store.queue.abandon(claim)
        longest = await take(store, ttl_ms=WEEK_MS, limit=256)
        assert longest.expires_at_ms == longest.claimed_at_ms + WEEK_MS


async def test_law_k12_work_is_settled_in_sessions_that_are_there(kit: Kit) -> None:
    """A turn that settles work of a session that does not exist is refused by that name. (k12)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a")
        claim = await take(store)
        ghost = Turn(session="ghost", turn="t", claims=[claim.settlement])
        async with refused(store, "s", SessionUnknown) as it:
            await store.sessions.commit(ghost)
        assert it.value.session == "ghost"
        assert await store.sessions.get("ghost") is None
