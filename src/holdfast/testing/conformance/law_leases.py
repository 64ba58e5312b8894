"""Leases: the right to run a process, one holder at a time, and what becomes of it without one.

A lease is claimed for a time and proved by its token and its generation. The generation grows with
every grant and never goes back. When a holder goes away, what was registered says what may be done:
run the process again, never run it again, or nothing, because it runs somewhere else.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.contract.errors import (
    EndForbidden,
    Invalid,
    LeaseBusy,
    LeaseLost,
    NotRecoverable,
    ProcessEnded,
    ProcessUnknown,
)
from holdfast.contract.processes import Due, ExternalRef, Lease, NewEvent, Wait
from holdfast.contract.records import Holder
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import Kit, all_pages
from holdfast.testing.conformance.kit_processes import (
    HOUR_MS,
    NEVER,
    begin,
    denied,
    goes_on,
    log,
    record,
    seen,
    status,
    step,
    stop,
    types,
)


async def lost(store: Store, lease: Lease) -> None:
    """The lease is refused by everything, and frees nothing."""
    event = NewEvent(type="step")
    report = NewEvent(type="report", payload={"summary": 1}, key="lost")
    calls = (
        lambda: store.processes.renew(lease),
        lambda: store.processes.append(lease.process, event, lease=lease),
        lambda: store.processes.append(lease.process, report, lease=lease),
        lambda: store.processes.end(lease.process, lease=lease),
        lambda: store.processes.suspend(lease.process, Wait(until_ms=1), lease=lease),
    )
    for call in calls:
        async with denied(store, LeaseLost, lease.process) as it:
            await call()
        assert it.value.process == lease.process
        assert (it.value.code, it.value.retryable) == ("lease-lost", False)


async def lives(store: Store, lease: Lease) -> None:
    """The lease is taken."""
    renewed = await store.processes.renew(lease, ttl_ms=HOUR_MS)
    assert (renewed.token, renewed.generation) == (lease.token, lease.generation)
    before = (await record(store, lease.process)).sequence
    told = await store.processes.append(lease.process, NewEvent(type="step"), lease=lease)
    assert told.event.sequence == before + 1


async def due(store: Store) -> list[tuple[str, bool]]:
    """What somebody may take up now, and whether it is lost."""
    found = await all_pages(lambda after: store.processes.due(after=after, limit=2))
    return [(item.process.process, item.lost) for item in found]


async def due_one(store: Store, process: str = "p") -> Due | None:
    """The entry of one process in the worklist."""
    found = await all_pages(lambda after: store.processes.due(after=after))
    return next((item for item in found if item.process.process == process), None)


async def test_law_194_a_live_lease_has_one_holder(kit: Kit) -> None:
    """A lease is granted to one owner; while it is live another owner is refused with LeaseBusy,
    which says who holds it, in which generation, and until when. The same owner may claim
    again. (194)"""
    async with kit.open() as store, kit.open() as other:
        await begin(store)
        lease = await store.processes.claim("p", "one", ttl_ms=HOUR_MS)
        assert (lease.process, lease.owner, lease.generation) == ("p", "one", 1)
        assert lease.expires_at_ms == lease.claimed_at_ms + 3_600_000
        assert (lease.displaced, len(lease.token) >= 16) == (None, True)
        for handle in (store, other):
            async with denied(handle, LeaseBusy) as it:
                await handle.processes.claim("p", "two")
            assert (it.value.process, it.value.owner, it.value.generation) == ("p", "one", 1)
            assert it.value.expires_at_ms == lease.expires_at_ms
            assert (it.value.code, it.value.retryable) == ("lease-busy", False)
        found = await status(other)
        assert (found.owner, found.generation, found.live) == ("one", 1, True)
        assert (found.claimed_at_ms, found.expires_at_ms) == (
            lease.claimed_at_ms,
            lease.expires_at_ms,
        )
        await lives(other, lease)
        again = await other.processes.claim("p", "one")
        await lives(store, again)


async def test_law_195_claiming_again_begins_a_generation(kit: Kit) -> None:
    """The holder may claim its live lease again: it gets a new token and a greater generation, took
    over from nobody, and the old token is dead. (195)"""
    async with kit.open() as store:
        await begin(store)
        first = await store.processes.claim("p", "one", ttl_ms=HOUR_MS)
        second = await store.processes.claim("p", "one", ttl_ms=60_000)
        assert second.token != first.token
        assert (second.generation, second.displaced) == (2, None)
        assert second.expires_at_ms == second.claimed_at_ms + 60_000
        await lost(store, first)
        assert await store.processes.release(first) is False
        assert (await status(store)).live is True
        await lives(store, second)


@pytest.mark.parametrize("wrong", ["token", "owner", "generation"])
async def test_law_196_a_superseded_lease_is_lost(kit: Kit, wrong: str) -> None:
    """A lease whose token, owner or generation is not that of the live one is refused with
    LeaseLost by everything that is sent with it, and the expiry stays. (196)"""
    async with kit.open() as store:
        await begin(store)
        lease = await store.processes.claim("p", "one", ttl_ms=HOUR_MS)
        other: Any = 2 if wrong == "generation" else "other"
        await lost(store, msgspec.structs.replace(lease, **{wrong: other}))
        assert (await status(store)).expires_at_ms == lease.expires_at_ms
        await lives(store, lease)


async def test_law_197_a_renewal_moves_the_expiry(kit: Kit) -> None:
    """A renewal keeps token, generation and time of the grant, and moves the expiry; a lease that
    has lapsed cannot be renewed, although nobody has taken it. (197)"""
    async with kit.open() as store, kit.open() as other:
        await begin(store)
        lease = await store.processes.claim("p", "one", ttl_ms=60_000)
        renewed = await other.processes.renew(lease, ttl_ms=HOUR_MS)
        assert (renewed.token, renewed.generation) == (lease.token, lease.generation)
        assert renewed.claimed_at_ms == lease.claimed_at_ms
        assert renewed.expires_at_ms > lease.expires_at_ms
        assert (await status(store)).expires_at_ms == renewed.expires_at_ms
        async with denied(store, LeaseBusy):
            await store.processes.claim("p", "two")
        await lives(store, lease)
        ended = await store.processes.renew(lease, ttl_ms=0)
        assert ended.token == lease.token
        assert (await status(store)).live is False
        await lost(store, lease)


async def test_law_198_the_next_holder_has_a_greater_generation(kit: Kit) -> None:
    """After a release another owner may claim, with a greater generation; a lease that lapsed is
    taken over, and the grant says from whom. (198)"""
    async with kit.open() as store, kit.open() as other:
        await begin(store)
        first = await store.processes.claim("p", "one", ttl_ms=HOUR_MS)
        assert await store.processes.release(first) is True
        free = await status(other)
        assert (free.live, free.owner, free.generation) == (False, None, 1)
        second = await other.processes.claim("p", "two", ttl_ms=0)
        assert (second.generation, second.displaced) == (2, None)
        third = await store.processes.claim("p", "three")
        assert (third.owner, third.generation) == ("three", 3)
        assert third.displaced == Holder(
            owner="two", generation=2, expires_at_ms=second.expires_at_ms
        )
        assert len({first.token, second.token, third.token}) == 3
        await lost(store, second)
        await lives(other, third)


async def test_law_199_a_stale_release_frees_nothing(kit: Kit) -> None:
    """A release with a token that is not that of the lease answers False and frees nothing; one
    with the last token answers True, also when it has lapsed, and then no more. (199)"""
    async with kit.open() as store:
        await begin(store)
        first = await store.processes.claim("p", "one", ttl_ms=0)
        second = await store.processes.claim("p", "one", ttl_ms=HOUR_MS)
        before = await seen(store, "p")
        assert await store.processes.release(first) is False
        for wrong in ({"token": "other"}, {"generation": 3}, {"owner": "two"}):
            stale = msgspec.structs.replace(second, **wrong)
            assert await store.processes.release(stale) is False
        assert await seen(store, "p") == before
        await lives(store, second)
        assert await store.processes.release(second) is True
        assert await store.processes.release(second) is False
        third = await store.processes.claim("p", "two", ttl_ms=0)
        assert await store.processes.release(third) is True
        assert await store.processes.release(third) is False
        assert (await status(store)).generation == 3


async def test_law_200_a_lease_is_for_a_process_that_runs(kit: Kit) -> None:
    """The lease of an unknown process, or of one that has ended, cannot be claimed; ending gives it
    back, and what its holder still sends is refused. (200)"""
    async with kit.open() as store:
        async with denied(store, ProcessUnknown, NEVER) as unknown:
            await store.processes.claim(NEVER, "one")
        assert unknown.value.process == NEVER
        await begin(store)
        lease = await store.processes.claim("p", "one", ttl_ms=HOUR_MS)
        await stop(store)
        free = await status(store)
        assert (free.live, free.owner, free.generation) == (False, None, 1)
        for owner in ("one", "two"):
            async with denied(store, ProcessEnded) as ended:
                await store.processes.claim("p", owner)
            assert (ended.value.process, ended.value.state) == ("p", "completed")
        async with denied(store, LeaseLost):
            await store.processes.renew(lease)
        async with denied(store, LeaseLost):
            await store.processes.append("p", NewEvent(type="step"), lease=lease)
        assert await store.processes.release(lease) is False


async def test_law_201_recovery_obeys_what_was_registered(kit: Kit) -> None:
    """When its holder has gone away, a process that is rerunnable is claimed again; one that is
    bound to its owner is never run again once it has started; one that runs somewhere else is
    never claimed. (201)"""
    async with kit.open() as store:
        await begin(store, "again")
        await store.processes.claim("again", "one", ttl_ms=0)
        assert (await store.processes.claim("again", "two", ttl_ms=0)).generation == 2
        await begin(store, "bound", recovery="owner-bound")
        first = await store.processes.claim("bound", "one", ttl_ms=HOUR_MS)
        async with denied(store, LeaseBusy, "bound"):
            await store.processes.claim("bound", "two")
        second = await store.processes.claim("bound", "one", ttl_ms=HOUR_MS)
        assert second.generation == 2
        await lost(store, first)
        await store.processes.renew(second, ttl_ms=0)
        for owner in ("one", "two"):
            async with denied(store, NotRecoverable, "bound") as it:
                await store.processes.claim("bound", owner)
            assert (it.value.process, it.value.recovery) == ("bound", "owner-bound")
            assert (it.value.code, it.value.retryable) == ("not-recoverable", False)
        await begin(store, "given", recovery="owner-bound")
        lease = await store.processes.claim("given", "one")
        assert await store.processes.release(lease) is True
        async with denied(store, NotRecoverable, "given"):
            await store.processes.claim("given", "one")
        await begin(store, "far", recovery="external")
        async with denied(store, NotRecoverable, "far") as it:
            await store.processes.claim("far", "one")
        assert (it.value.process, it.value.recovery) == ("far", "external")
        await goes_on(store, "far")


async def test_law_191_an_end_with_a_lease_gives_it_back(kit: Kit) -> None:
    """An end that is sent with a lease takes place only while that lease is live, and gives it back
    with the same stroke; a holder whose lease lapsed or was taken over ends nothing. (191)"""
    async with kit.open() as store, kit.open() as other:
        await begin(store)
        zombie = await store.processes.claim("p", "one", ttl_ms=0)
        await lost(store, zombie)
        live = await other.processes.claim("p", "two", ttl_ms=HOUR_MS)
        await lost(store, zombie)
        for wrong in ({"token": "other"}, {"generation": 1}, {"owner": "one"}):
            forged = msgspec.structs.replace(live, **wrong)
            async with denied(store, LeaseLost):
                await store.processes.end("p", lease=forged)
        ended = await other.processes.end("p", "failed", "no", lease=live)
        assert (ended.state, ended.ended_by) == ("failed", "lease")
        assert (await status(store)).live is False
        async with denied(store, ProcessEnded):
            await store.processes.claim("p", "one")


async def test_law_164_a_scan_of_the_worklist_has_an_end(kit: Kit) -> None:
    """The pages of one scan hold what was due when it began, longest due first. What has ended
    before its page is read is not there; what became due later is in the next scan. (164)"""
    async with kit.open() as store, kit.open() as other:
        for number, process in enumerate(("d", "b", "a", "c", "e")):
            await begin(store, process)
            await store.processes.suspend(process, Wait(until_ms=number + 10))
        assert await due(store) == [(process, False) for process in "dbace"]
        first = await store.processes.due(limit=2)
        assert [(item.process.process, item.due_at_ms) for item in first.items] == [
            ("d", 10),
            ("b", 11),
        ]
        assert first.next is not None
        await stop(other, "c")
        for number in range(1000):
            probe = await begin(other, f"late-{number:03}")
            if number and probe.created_at_ms > (await record(other, "late-000")).created_at_ms:
                break
        await begin(other, "behind")
        await other.processes.suspend("behind", Wait(until_ms=1))
        rest: list[str] = []
        after: str | None = first.next
        while after is not None:
            page = await store.processes.due(after=after, limit=2)
            rest += [item.process.process for item in page.items]
            after = page.next
        assert [process for process in rest if not process.startswith("late-")] == ["a", "e"]
        assert probe.process not in rest
        later = [process for process, _ in await due(store)]
        assert later[:5] == ["behind", "d", "b", "a", "e"]
        assert probe.process in later


async def test_law_x50_a_lease_has_a_range_and_a_default(kit: Kit) -> None:
    """A lease is granted or renewed for 0 ms to 7 days, and for 30 seconds when nothing is
    said. (x50)"""
    async with kit.open() as store:
        await begin(store)
        for ttl_ms in (-1, 604_800_001, 2**63):
            async with denied(store, Invalid) as it:
                await store.processes.claim("p", "one", ttl_ms=ttl_ms)
            assert it.value.field == "ttl_ms"
        week = await store.processes.claim("p", "one", ttl_ms=604_800_000)
        assert week.expires_at_ms == week.claimed_at_ms + 604_800_000
        lease = await store.processes.claim("p", "one")
        assert lease.expires_at_ms == lease.claimed_at_ms + 30_000
        gone = await store.processes.claim("p", "one", ttl_ms=0)
        assert gone.expires_at_ms == gone.claimed_at_ms
        assert (await status(store)).live is False
        await goes_on(store)


async def test_law_x51_the_first_claim_is_the_start(kit: Kit) -> None:
    """The first claim of a process is an event that names the owner, and the time when it started;
    later claims, renewals and releases are no events. (x51)"""
    async with kit.open() as store:
        await begin(store)
        assert (await record(store)).started_at_ms is None
        lease = await store.processes.claim("p", "one", ttl_ms=0)
        (event,) = await log(store, "p")
        assert (event.type, event.json()) == ("process.started", {"owner": "one"})
        started = await record(store)
        assert (started.started_at_ms, started.sequence) == (event.at_ms, 1)
        lease = await store.processes.claim("p", "two")
        await store.processes.renew(lease)
        await store.processes.release(lease)
        assert await record(store) == started
        assert await types(store, "p") == ["process.started"]


async def test_law_x52_of_concurrent_claims_one_wins(kit: Kit) -> None:
    """Of concurrent first claims on different handles exactly one is granted; the others are
    refused with LeaseBusy, which names the winner. (x52)"""
    async with kit.open() as one, kit.open() as two, kit.open() as three:
        await begin(one)
        answers = await asyncio.gather(
            *(
                handle.processes.claim("p", f"o{place}")
                for place, handle in enumerate((one, two, three))
            ),
            return_exceptions=True,
        )
        (won,) = [answer for answer in answers if isinstance(answer, Lease)]
        refused = [answer for answer in answers if isinstance(answer, LeaseBusy)]
        assert [(it.owner, it.generation) for it in refused] == [(won.owner, 1)] * 2
        assert (await status(two)).owner == won.owner
        assert await types(one, "p") == ["process.started"]


async def test_law_x53_work_to_be_taken_up_is_listed(kit: Kit) -> None:
    """A process is due from its registration until it is claimed, again when its lease has lapsed
    or is given back, and no more when it has ended; one that runs somewhere else never is. (x53)"""
    async with kit.open() as store:
        made = await begin(store)
        await begin(store, "far", recovery="external")
        first = await due_one(store)
        assert first == Due(process=made, due_at_ms=made.created_at_ms, lost=False)
        lease = await store.processes.claim("p", "one", ttl_ms=HOUR_MS)
        assert await due(store) == []
        await store.processes.release(lease)
        assert await due(store) == [("p", False)]
        lease = await store.processes.claim("p", "one", ttl_ms=0)
        lapsed = await due_one(store)
        assert lapsed is not None
        assert (lapsed.due_at_ms, lapsed.lost) == (lease.expires_at_ms, False)
        lease = await store.processes.claim("p", "two", ttl_ms=HOUR_MS)
        assert await due(store) == []
        await store.processes.renew(lease, ttl_ms=0)
        assert await due(store) == [("p", False)]
        await stop(store)
        assert await due(store) == []


async def test_law_x54_what_waits_is_due_when_it_is_over(kit: Kit) -> None:
    """A process that waits is due when an event of the type it waits for is there, later than the
    one it named, or when its time has come, or a cancel was asked for; not before. (x54)"""
    far = 9_000_000_000_000
    async with kit.open() as store:
        await begin(store)
        await store.processes.signal("p", "go")
        await store.processes.suspend("p", Wait(type="signal.go", after=1))
        assert await due(store) == []
        await step(store)
        assert await due(store) == []
        woken = await store.processes.signal("p", "go")
        found = await due_one(store)
        assert found is not None
        assert found.due_at_ms == woken.event.at_ms
        await store.processes.suspend("p", Wait(type="signal.go", after=woken.event.sequence))
        assert await due(store) == []
        await store.processes.suspend("p", Wait(type="signal.go", after=1, until_ms=far))
        assert await due(store) == [("p", False)]
        await store.processes.suspend("p", Wait(until_ms=far))
        assert await due(store) == []
        await store.processes.suspend("p", Wait(type="step", after=99, until_ms=7))
        found = await due_one(store)
        assert found is not None
        assert found.due_at_ms == 7
        await store.processes.suspend("p", Wait(until_ms=far))
        await store.processes.request_cancel("p", reason="late")
        assert await due(store) == [("p", False)]
        await store.processes.suspend("p", Wait(type="step", after=99))
        assert await due(store) == [("p", False)]
        await store.processes.resume("p")
        assert await due(store) == [("p", False)]


async def test_law_x55_a_suspended_process_gives_its_lease_back(kit: Kit) -> None:
    """A lease that is sent with a wait is given back with it, unless the process is bound to its
    owner; without it the lease stays where it is. (x55)"""
    wait = Wait(type="signal.go")
    async with kit.open() as store:
        await begin(store)
        lease = await store.processes.claim("p", "one", ttl_ms=HOUR_MS)
        await store.processes.suspend("p", wait)
        assert (await status(store)).live is True
        await store.processes.resume("p", lease=lease)
        assert (await status(store)).live is True
        await store.processes.suspend("p", wait, lease=lease)
        free = await status(store)
        assert (free.live, free.owner, free.generation) == (False, None, 1)
        async with denied(store, LeaseLost):
            await store.processes.resume("p", lease=lease)
        assert await due(store) == []
        await store.processes.signal("p", "go")
        assert (await store.processes.claim("p", "two")).generation == 2
        await begin(store, "bound", recovery="owner-bound")
        lease = await store.processes.claim("bound", "one", ttl_ms=HOUR_MS)
        waiting = await store.processes.suspend("bound", wait, lease=lease)
        assert waiting.wait == wait
        assert (await status(store, "bound")).live is True
        await store.processes.signal("bound", "go")
        assert await due(store) == []
        resumed = await store.processes.resume("bound", lease=lease)
        assert resumed.wait is None


async def test_law_x56_a_lost_process_is_abandoned(kit: Kit) -> None:
    """A process that is bound to its owner, has started and is not held any more, is listed as
    lost, and anybody may abandon it; nobody may run it. (x56)"""
    async with kit.open() as store, kit.open() as other:
        await begin(store, recovery="owner-bound")
        assert await due(store) == [("p", False)]
        async with denied(store, EndForbidden):
            await store.processes.abandon("p", reason="gone")
        lease = await store.processes.claim("p", "one", ttl_ms=HOUR_MS)
        async with denied(store, EndForbidden) as it:
            await other.processes.abandon("p", reason="gone")
        assert it.value.process == "p"
        await store.processes.renew(lease, ttl_ms=0)
        assert await due(other) == [("p", True)]
        ended = await other.processes.abandon("p", reason="gone")
        assert (ended.state, ended.ended, ended.ended_by) == ("abandoned", True, "lapse")
        assert ended.output == b"null"
        event = (await log(store, "p"))[-1]
        assert (event.type, event.json()) == ("process.abandoned", {"reason": "gone"})
        assert (event.ends, event.authority) == ("abandoned", "lapse")
        assert await other.processes.abandon("p", reason="gone") == ended
        async with denied(store, ProcessEnded):
            await store.processes.abandon("p", reason="other")
        async with denied(store, ProcessEnded):
            await store.processes.end("p", authority="operator")
        assert await due(store) == []


async def test_law_x57_an_operator_may_abandon_any_process(kit: Kit) -> None:
    """An operator may abandon any process that runs, also while its lease is live: its holder is
    refused from then on. Without that authority only a lost one is abandoned. (x57)"""
    async with kit.open() as store:
        for process, recovery in (("a", "rerunnable"), ("b", "owner-bound"), ("c", "external")):
            await begin(store, process, recovery=recovery)
            async with denied(store, EndForbidden, process):
                await store.processes.abandon(process, reason="no")
            ended = await store.processes.abandon(process, reason="no", authority="operator")
            assert (ended.state, ended.ended_by) == ("abandoned", "operator")
        await begin(store)
        await store.processes.claim("p", "one", ttl_ms=0)
        async with denied(store, EndForbidden):
            await store.processes.abandon("p", reason="no")
        lease = await store.processes.claim("p", "one", ttl_ms=HOUR_MS)
        await store.processes.abandon("p", reason="no", authority="operator")
        assert (await status(store)).live is False
        async with denied(store, LeaseLost):
            await store.processes.renew(lease)
        async with denied(store, ProcessEnded):
            await store.processes.end("p", authority="operator")


async def test_law_x58_leases_of_different_processes_are_independent(kit: Kit) -> None:
    """A lease is for one process; it is of no use for another one, also of the same owner. (x58)"""
    async with kit.open() as store:
        for process in ("p", "q"):
            await begin(store, process)
        mine = await store.processes.claim("p", "one")
        other = await store.processes.claim("q", "one")
        await lost(store, msgspec.structs.replace(mine, process="q"))
        await lives(store, mine)
        await lives(store, other)
        with pytest.raises((LeaseLost, Invalid)):
            await store.processes.append("q", NewEvent(type="step"), lease=mine)
        with pytest.raises((LeaseLost, Invalid)):
            await store.processes.end("q", lease=mine)
        assert (await record(store, "q")).state == "running"


async def test_law_x59_what_runs_elsewhere_is_ended_there(kit: Kit) -> None:
    """A process that runs somewhere else is never due and never claimed; it is told where it runs,
    may wait, and is ended by the authority of where it runs. (x59)"""
    async with kit.open() as store:
        await begin(store, recovery="external")
        await store.processes.set_external("p", ExternalRef(backend="batch", id="1"))
        await store.processes.suspend("p", Wait(until_ms=1))
        await store.processes.request_cancel("p")
        assert await due(store) == []
        ended = await store.processes.end("p", "cancelled", authority="external")
        assert (ended.state, ended.ended_by) == ("cancelled", "external")
        assert await store.processes.end("p", "cancelled", authority="external") == ended
