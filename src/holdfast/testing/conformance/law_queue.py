"""Queued work: what waits for a session, durably and in order.

Work is one or more payloads that travel together. It stays in the inbox of its session until a turn
settles it or somebody cancels it. A key makes it unique in its session, and is kept for a while
after the work is done, so that whoever sends it again learns that it was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast.contract.errors import (
    HoldfastError,
    Invalid,
    SessionDeleted,
    SessionUnknown,
    TooLarge,
    WorkUnknown,
)
from holdfast.contract.queue import Claimed, NewWork, Work, WorkCounts
from holdfast.contract.records import Deleted, Turn
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import (
    Kit,
    add,
    bodies,
    grow,
    inbox,
    picture,
    refused,
    won,
    works,
)

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
FOREVER = 9_223_372_036_854_775_807  # 2**63 - 1
NOTHING = WorkCounts(ready=0, delayed=0, claimed=0, dead=0, done=0)


async def settled(store: Store, session: str, turn: str) -> None:
    """Claim what stands first, and settle it in a turn."""
    claim = won(await store.queue.claim(session, "worker"))
    await store.sessions.commit(Turn(session=session, turn=turn, claims=[claim.settlement]))


async def work(store: Store, name: str, session: str = "s") -> Work:
    found = await store.queue.get(session, name)
    assert found is not None
    return found


async def test_law_084_a_key_enqueues_once(kit: Kit) -> None:
    """The same key again enqueues nothing and answers the work that has it, with its own payloads
    and policies, while that waits, while it is claimed, and after it is done. (84)"""
    async with kit.open() as store, kit.open() as other:
        await store.sessions.create("s")
        first = await store.queue.enqueue(
            NewWork(session="s", payloads=["one", {"n": 1}], key="k", slot="exclusive")
        )
        again = NewWork(session="s", payloads=["two"], key="k", kind="command", merge="m")
        for handle in (store, other):
            answer = await handle.queue.enqueue(again)
            assert (answer.enqueued, answer.work) == (False, first.work)
        claim = won(await store.queue.claim("s", "worker"))
        answer = await store.queue.enqueue(again)
        assert (answer.enqueued, answer.work.state) == (False, "claimed")
        assert (answer.work.work, answer.work.slot) == (first.work.work, "exclusive")
        assert answer.work.items == first.work.items
        await store.sessions.commit(Turn(session="s", turn="t", claims=[claim.settlement]))
        for handle in (store, other):
            answer = await handle.queue.enqueue(again)
            assert (answer.enqueued, answer.work.work) == (False, first.work.work)
            assert (answer.work.state, answer.work.settled_by) == ("done", "t")
        assert len(await inbox(store, "s")) == 1


async def test_law_085_a_listing_has_the_order_of_the_inbox(kit: Kit) -> None:
    """A listing has the work of one session and no other, in the order it was enqueued. (85)"""
    async with kit.open() as store:
        for session in ("s", "other"):
            await store.sessions.create(session)
        await add(store, "s", "a", "b")
        await add(store, "other", "x")
        await add(store, "s", "c", delay_ms=HOUR_MS)
        await add(store, "s", "d", kind="command")
        found = (await store.queue.list("s")).items
        assert bodies(found) == ["a", "b", "c", "d"]
        assert [one.seq for one in found] == [1, 2, 3, 4]
        assert {one.session for one in found} == {"s"}
        assert await inbox(store, "other") == ["x"]
        assert await inbox(store, "nobody") == []


async def test_law_086_a_key_is_for_one_session(kit: Kit) -> None:
    """The same key in two sessions is two works; without a key nothing is ever the same. (86)"""
    async with kit.open() as store:
        for session in ("s", "other"):
            await store.sessions.create(session)
        made = [*await add(store, "s", "a", key="k"), *await add(store, "other", "a", key="k")]
        made += await add(store, "s", "a", "a")
        assert len(set(made)) == 4
        assert await inbox(store, "s") == ["a", "a", "a"]
        assert await inbox(store, "other") == ["a"]


async def test_law_087_enqueues_of_one_moment_are_two(kit: Kit) -> None:
    """Two enqueues without a key at the same moment are two works, with a place each. (87)"""
    async with kit.open() as one, kit.open() as two:
        await one.sessions.create("s")
        new = NewWork(session="s", payloads=["same"])
        answers = await asyncio.gather(*(store.queue.enqueue(new) for store in (one, two) * 4))
        assert [answer.enqueued for answer in answers] == [True] * 8
        assert len({answer.work.work for answer in answers}) == 8
        assert sorted(answer.work.seq for answer in answers) == [1, 2, 3, 4, 5, 6, 7, 8]
        assert await inbox(one, "s") == ["same"] * 8


async def test_law_088_of_concurrent_enqueues_with_a_key_one_is_done(kit: Kit) -> None:
    """Of concurrent enqueues with one key exactly one enqueues; all answer its work. (88)"""
    async with kit.open() as one, kit.open() as two:
        await one.sessions.create("s")
        answers = await asyncio.gather(
            *(
                store.queue.enqueue(NewWork(session="s", payloads=[number], key="k"))
                for number, store in enumerate((one, two) * 3)
            )
        )
        (first,) = [answer.work for answer in answers if answer.enqueued]
        assert [answer.work for answer in answers] == [first] * 6
        assert (await one.queue.list("s")).items == (first,)


async def test_law_089_work_that_waits_can_be_cancelled(kit: Kit) -> None:
    """Cancelling work that nobody holds removes it and answers it; a second time there is nothing
    to cancel. Its key is free, and its place is never used again. (89)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await add(store, "s", "a")
        (name,) = await add(store, "s", "b", key="k")
        await add(store, "s", "c", delay_ms=HOUR_MS)
        there = await work(store, name)
        assert await store.queue.cancel("s", name) == there
        assert await store.queue.cancel("s", name) is None
        assert await store.queue.get("s", name) is None
        assert await inbox(store, "s") == ["a", "c"]
        again = await store.queue.enqueue(NewWork(session="s", payloads=["b"], key="k"))
        assert (again.enqueued, again.work.seq) == (True, 4)
        assert again.work.work != name


async def test_law_090_claimed_work_does_not_wait(kit: Kit) -> None:
    """Work that somebody holds is not listed as ready, and is listed as claimed, with its holder;
    it cannot be cancelled. (90)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        (name, _) = await add(store, "s", "a", "b")
        won(await store.queue.claim("s", "worker"))
        assert await inbox(store, "s", "ready") == ["b"]
        assert await inbox(store, "s", "claimed") == ["a"]
        assert await inbox(store, "s") == ["a", "b"]
        assert (await work(store, name)).claimed_by == "worker"
        before = await picture(store, "s")
        assert await store.queue.cancel("s", name) is None
        assert await picture(store, "s") == before


async def test_law_091_work_that_was_given_back_waits_again(kit: Kit) -> None:
    """After its claim was given back work is ready at its old place, can be claimed, and can be
    cancelled. (91)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        (name, _) = await add(store, "s", "a", "b")
        claim = won(await store.queue.claim("s", "worker"))
        assert await store.queue.abandon(claim) == 1
        assert await inbox(store, "s", "ready") == ["a", "b"]
        claim = won(await store.queue.claim("s", "worker"))
        assert bodies(claim.work) == ["a"]
        assert await store.queue.abandon(claim) == 1
        gone = await store.queue.cancel("s", name)
        assert gone is not None
        assert (gone.work, gone.state, gone.claimed_by) == (name, "ready", None)
        assert await inbox(store, "s") == ["b"]


async def test_law_092_work_is_cancelled_in_its_own_session(kit: Kit) -> None:
    """Cancelling work by the name of another session answers None and removes nothing. (92)"""
    async with kit.open() as store:
        for session in ("s", "other"):
            await store.sessions.create(session)
        (name,) = await add(store, "s", "a")
        for session in ("other", "nobody"):
            assert await store.queue.cancel(session, name) is None
            assert await store.queue.get(session, name) is None
        assert await inbox(store, "s") == ["a"]


async def test_law_119_work_may_have_no_payload(kit: Kit) -> None:
    """Work without payloads is stored, listed, claimed and settled as any other. (119)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        made = await store.queue.enqueue(NewWork(session="s"))
        assert (made.enqueued, made.work.items) == (True, ())
        claim = won(await store.queue.claim("s", "worker"))
        assert [(one.work, one.items) for one in claim.work] == [(made.work.work, ())]
        await store.sessions.commit(Turn(session="s", turn="t", claims=[claim.settlement]))
        assert await inbox(store, "s") == []


async def test_law_120_work_survives_a_reopening(kit: Kit) -> None:
    """Work is there after its handle was closed, under its name, with all it was enqueued
    with. (120)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        made = await store.queue.enqueue(
            NewWork(session="s", payloads=["a", b"\x00raw"], key="k", merge="m", max_attempts=3)
        )
        before = await picture(store, "s")
    async with kit.open() as late:
        assert await picture(late, "s") == before
        assert await work(late, made.work.work) == made.work
        assert won(await late.queue.claim("s", "worker")).work[0].items == made.work.items


async def test_law_126_far_times_are_kept_or_refused(kit: Kit) -> None:
    """Work may be put off to the end of the range of 64 bits; beyond it, or for longer than 3,660
    days from now, it is refused with Invalid, which names the field. Nothing is wrapped. (126)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        far = await store.queue.enqueue(NewWork(session="s", available_at_ms=FOREVER))
        assert (far.work.state, far.work.available_at_ms) == ("delayed", FOREVER)
        late = await store.queue.enqueue(NewWork(session="s", delay_ms=3660 * DAY_MS))
        assert late.work.available_at_ms == late.work.enqueued_at_ms + 3660 * DAY_MS
        refusal = await store.queue.claim("s", "worker")
        assert (refusal.why_not, refusal.next_at_ms) == (
            "not-yet-available",
            late.work.available_at_ms,
        )
        beyond: tuple[tuple[str, int], ...] = (
            ("available_at_ms", FOREVER + 1),
            ("available_at_ms", -1),
            ("delay_ms", 3660 * DAY_MS + 1),
            ("delay_ms", -1),
        )
        for field, value in beyond:
            change: dict[str, Any] = {field: value}
            async with refused(store, "s", Invalid) as it:
                await store.queue.enqueue(NewWork(session="s", **change))
            assert it.value.field == field


async def test_law_127_what_was_settled_is_not_done_twice(kit: Kit) -> None:
    """As long as its key is kept, 7 days if nothing else was asked for, settled work is not
    enqueued again: the answer is what was done. (127)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        for key, keep_ms in (("week", None), ("hour", HOUR_MS)):
            await add(store, "s", key, key=key, **({"keep_ms": keep_ms} if keep_ms else {}))
            await settled(store, "s", f"t-{key}")
        await works(store, "s")
        assert await store.queue.prune() == 0
        for key in ("week", "hour"):
            answer = await store.queue.enqueue(NewWork(session="s", key=key))
            assert (answer.enqueued, answer.work.settled_by) == (False, f"t-{key}")
        assert (await store.queue.claim("s", "worker")).why_not == "empty"


async def test_law_q01_work_needs_a_session(kit: Kit) -> None:
    """Work for a session that is unknown or deleted is refused by name, and creates nothing; so are
    a claim, a question why, and putting work back. (q01)"""
    async with kit.open() as store:
        await store.sessions.create("gone")
        (name,) = await add(store, "gone", "a")
        claim = won(await store.queue.claim("gone", "worker"))
        await store.sessions.delete("gone")
        cases: list[tuple[str, type[HoldfastError]]] = [
            ("gone", SessionDeleted),
            ("ghost", SessionUnknown),
        ]
        for session, error in cases:
            moved = msgspec.structs.replace(claim, session=session)
            writes: list[Callable[[], Awaitable[object]]] = [
                partial(store.queue.enqueue, NewWork(session=session)),
                partial(store.queue.enqueue, NewWork(session=session, key="k")),
                partial(store.queue.claim, session, "worker"),
                partial(store.queue.why, session),
                partial(store.queue.renew, moved),
                partial(store.queue.requeue, session, name),
            ]
            for write in writes:
                async with refused(store, session, error) as it:
                    await write()
                assert it.value.fields["session"] == session
            assert await store.queue.abandon(moved) == 0
            assert await store.queue.cancel(session, name) is None
            assert await store.queue.get(session, name) is None
            assert (await store.queue.list(session)).items == ()
            assert await store.queue.counts(session=session) == NOTHING
        assert await store.sessions.get("ghost") is None


async def test_law_q02_work_is_read_as_it_was_enqueued(kit: Kit) -> None:
    """Each field of work is read back as it was given, or has its default, by the answer to the
    enqueue, by name and in a listing; payloads are the bytes that were stored, in order. (q02)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        given = NewWork(
            session="s",
            payloads=[{"a": [1, None]}, b"\xff\x00", "ü"],
            key="k",
            kind="command",
            delivery="after-turn",
            slot="exclusive",
            merge="m",
            max_attempts=5,
        )
        made = (await store.queue.enqueue(given)).work
        assert [item.body for item in made.items] == [
            b'{"a":[1,null]}',
            b"\xff\x00",
            '"ü"'.encode(),
        ]
        assert [item.id for item in made.items] == [f"{made.work}:item:{at}" for at in range(3)]
        assert made.items[0].json() == {"a": [1, None]}
        assert (made.session, made.seq, made.key, made.kind) == ("s", 1, "k", "command")
        assert (made.delivery, made.slot, made.merge) == ("after-turn", "exclusive", "m")
        assert (made.state, made.attempts, made.max_attempts) == ("ready", 0, 5)
        assert made.available_at_ms == made.enqueued_at_ms
        plain = (await store.queue.enqueue(NewWork(session="s"))).work
        assert (plain.seq, plain.key, plain.kind, plain.delivery) == (2, None, "turn", "earliest")
        assert (plain.slot, plain.merge, plain.max_attempts) == ("join", None, None)
        for one in (made, plain):
            assert (one.last_error, one.claimed_by, one.settled_by, one.wake) == (None,) * 4
            assert await work(store, one.work) == one
        assert (await store.queue.list("s")).items == (made, plain)


BAD_WORK: list[tuple[str, dict[str, Any]]] = [
    ("session", {"session": "a b"}),
    ("session", {"session": ""}),
    ("payloads", {"payloads": "text"}),
    ("payloads", {"payloads": {"a": 1}}),
    ("payloads[1]", {"payloads": ["fine", {1, 2}]}),
    ("payloads[0].x[1]", {"payloads": [{"x": [0, float("nan")]}]}),
    ("payloads[0].a", {"payloads": [{"a": "\ud800"}]}),
    ("payloads[0]", {"payloads": [2**63]}),
    ("key", {"key": ""}),
    ("key", {"key": "a\x00"}),
    ("key", {"key": "k" * 201}),
    ("merge", {"merge": " "}),
    ("kind", {"kind": "wish"}),
    ("delivery", {"delivery": "never"}),
    ("slot", {"slot": None}),
    ("max_attempts", {"max_attempts": 0}),
    ("max_attempts", {"max_attempts": 1_000_001}),
    ("max_attempts", {"max_attempts": True}),
    ("keep_ms", {"keep_ms": -1}),
    ("keep_ms", {"keep_ms": 3660 * DAY_MS + 1}),
    ("delay_ms", {"delay_ms": 1.5}),
    ("available_at_ms", {"available_at_ms": "now"}),
]


@pytest.mark.parametrize(("field", "change"), BAD_WORK, ids=lambda value: str(value)[:24])
async def test_law_q03_bad_work_is_refused_by_field(
    kit: Kit, field: str, change: dict[str, Any]
) -> None:
    """Work that cannot be stored as it was given is refused with Invalid, which names the field,
    and nothing is stored. (q03)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        async with refused(store, "s", Invalid) as it:
            await store.queue.enqueue(NewWork(**{"session": "s", **change}))
        assert (it.value.field, it.value.code) == (field, "invalid")
        assert (await add(store, "s", "fine")) != []


async def test_law_q04_work_that_is_too_large_is_refused(kit: Kit) -> None:
    """A payload over 16 MiB, payloads over 16 MiB together, or more than 4,096 of them are refused
    with TooLarge, which names field, size and limit; what is just within is stored. (q04)"""
    mib = 1024 * 1024
    async with kit.open() as store:
        await store.sessions.create("s")
        half = b"x" * (8 * mib)
        cases: list[tuple[list[bytes], str, int]] = [
            ([b"x" * (16 * mib + 1)], "payloads[0]", 16 * mib),
            ([half, half], "payloads", 16 * mib),
            ([b""] * 4097, "payloads", 4096),
        ]
        for payloads, field, limit in cases:
            async with refused(store, "s", TooLarge) as it:
                await store.queue.enqueue(NewWork(session="s", payloads=payloads))
            assert (it.value.field, it.value.limit) == (field, limit)
            assert it.value.actual > limit
        made = await store.queue.enqueue(NewWork(session="s", payloads=[b""] * 4096))
        assert len(made.work.items) == 4096
        assert len((await work(store, made.work.work)).items) == 4096


async def test_law_q05_another_tenants_work_is_not_there(kit: Kit) -> None:
    """Another tenant's work is answered as work that does not exist, by every operation, also to
    who knows its name and its claim; nothing of it changes. (q05)"""
    async with kit.open() as store, kit.open(kit.other_tenant()) as other:
        await store.sessions.create("s")
        (name, _) = await add(store, "s", "a", "b", key=None)
        await add(store, "s", "dead")
        claim = won(await store.queue.claim("s", "worker"))
        before = await picture(store, "s")
        for session in (False, True):
            if session:
                await other.sessions.create("s")
                with pytest.raises(WorkUnknown):
                    await other.queue.requeue("s", name)
                assert (await other.queue.claim("s", "thief")).why_not == "empty"
            assert await other.queue.get("s", name) is None
            assert await other.queue.cancel("s", name) is None
            assert await other.queue.abandon(claim, dead=True) == 0
            with pytest.raises(HoldfastError):
                await other.queue.renew(claim)
            with pytest.raises(HoldfastError):
                await other.sessions.commit(Turn(session="s", claims=[claim.settlement]))
            assert (await other.queue.list("s")).items == ()
            assert (await other.queue.dead()).items == ()
            assert await other.queue.counts() == NOTHING
            assert await other.queue.counts(session="s") == NOTHING
            assert (await other.queue.claim_next("thief")).why_not == "empty"
            assert await other.queue.prune() == 0
        await other.queue.enqueue(NewWork(session="s", payloads=["own"], key="k"))
        assert await picture(store, "s") == before


async def test_law_q06_a_deleted_session_takes_its_work_with_it(kit: Kit) -> None:
    """Deleting a session removes its work, also what is claimed, and reports how much was not yet
    done. Nobody can settle, renew or give back what is gone. (q06)"""
    async with kit.open() as store:
        for session in ("s", "other"):
            await store.sessions.create(session)
        await add(store, "other", "x")
        other = await picture(store, "other")
        await add(store, "s", "done", key="k")
        await settled(store, "s", "t")
        await add(store, "s", "a", "b")
        await add(store, "s", "c", delay_ms=HOUR_MS)
        claim = won(await store.queue.claim("s", "worker"))
        gone = await store.sessions.delete("s")
        assert gone == Deleted(session="s", deleted=True, revisions=2, receipts=1, work=3)
        late = Turn(session="s", turn="late", claims=[claim.settlement])
        async with refused(store, "s", SessionDeleted, turn="late"):
            await store.sessions.commit(late)
        assert await store.queue.abandon(claim) == 0
        assert await picture(store, "other") == other
        assert won(await store.queue.claim_next("worker")).session == "other"


async def test_law_q07_a_fork_begins_with_an_empty_inbox(kit: Kit) -> None:
    """A fork inherits no work and no keys, and takes none from its source; a rewind changes
    nothing in the inbox. (q07)"""
    async with kit.open() as store:
        await grow(store, "s", "a", "b")
        await add(store, "s", "one", key="k")
        await add(store, "s", "two")
        won(await store.queue.claim("s", "worker"))
        before = await picture(store, "s")
        await store.sessions.fork("s", "fork")
        assert await store.queue.claim("fork", "worker") == Claimed(why_not="empty")
        made = await store.queue.enqueue(NewWork(session="fork", payloads=["own"], key="k"))
        assert (made.enqueued, made.work.seq) == (True, 1)
        assert await picture(store, "s") == before
        await store.sessions.rewind("s", revision=1, reason="again")
        after = await picture(store, "s")
        assert (after.work, after.counts) == (before.work, before.counts)


async def test_law_q08_work_on_the_inbox_changes_no_history(kit: Kit) -> None:
    """Enqueueing, claiming, giving back and cancelling change no revision, no history, no catalog
    entry, and no lane. (q08)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        before = await picture(store, "s")
        (name,) = await add(store, "s", "w")
        claim = won(await store.queue.claim("s", "worker"))
        await store.queue.renew(claim)
        await store.queue.abandon(claim, dead=True)
        await store.queue.requeue("s", name)
        await store.queue.cancel("s", name)
        assert await picture(store, "s") == before


async def test_law_q09_of_two_times_the_later_counts(kit: Kit) -> None:
    """Work is delayed until both its times are over: so long from now, and not before a moment; a
    moment that is past delays nothing. (q09)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        now = (await store.queue.enqueue(NewWork(session="s", available_at_ms=1))).work
        assert (now.state, now.available_at_ms) == ("ready", now.enqueued_at_ms)
        moment = now.enqueued_at_ms + DAY_MS
        for delay_ms, at_ms, least, most in (
            (HOUR_MS, 0, HOUR_MS, HOUR_MS),
            (HOUR_MS, moment, DAY_MS - HOUR_MS, DAY_MS),
            (2 * DAY_MS, moment, 2 * DAY_MS, 2 * DAY_MS),
        ):
            made = (
                await store.queue.enqueue(
                    NewWork(session="s", delay_ms=delay_ms, available_at_ms=at_ms)
                )
            ).work
            assert made.state == "delayed"
            assert least <= made.available_at_ms - made.enqueued_at_ms <= most
            if at_ms and delay_ms == HOUR_MS:
                assert made.available_at_ms == moment
        counts = await store.queue.counts(session="s")
        assert (counts.ready, counts.delayed) == (1, 3)
