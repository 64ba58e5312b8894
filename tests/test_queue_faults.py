"""Operations on queued work, failed before and after each of their steps, and under wrong clocks.

The law is that of the other fault tests: a failed operation leaves all of itself or nothing, and
asked again it comes to one outcome. What a caller asks again is named by a key, an id or a proof.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
from holdfast.contract.errors import OutcomeUnknown
from holdfast.contract.queue import Claimed, ClaimedNext, Enqueued, NewWork
from holdfast.contract.records import NewNode, Receipt, Turn
from holdfast.contract.stores import Store
from holdfast.stores import Store as AsyncStore
from holdfast.testing.faults import Plan, wrap
from tests.faulting import Act, Kept, Struck, strike_everywhere

if TYPE_CHECKING:
    from tests.conftest import Database

HOUR_MS, YEAR_MS = 3_600_000, 365 * 24 * 3_600_000


async def prepare(store: Store, kept: Kept) -> None:
    """Inboxes with ready, delayed, claimed, dead and settled work."""
    for session in ("s", "held", "laned", "ended"):
        await store.sessions.create(session)
        for number in range(3):
            await store.queue.enqueue(
                NewWork(session=session, key=f"{session}{number}", payloads=[number], merge="m")
            )
    await store.queue.enqueue(NewWork(session="s", payloads=["later"], delay_ms=HOUR_MS))
    kept["claim"] = (await store.queue.claim("held", "me", limit=2)).claim
    kept["fence"] = (await store.lanes.claim("laned", "me", ttl_ms=HOUR_MS)).fence
    found = await store.queue.claim("laned", "me", fence=kept["fence"], limit=2)
    kept["laned"] = found.claim
    dead = (await store.queue.claim("ended", "me", limit=1)).claim
    assert dead is not None
    await store.queue.abandon(dead, error="why", dead=True)
    kept["dead"] = dead.work[0].work
    page = await store.queue.list("s")
    kept["free"] = page.items[1].work


async def settle(store: Store, kept: Kept) -> Receipt:
    turn = Turn(
        session="laned",
        turn="settles",
        nodes=[NewNode(body=1)],
        fence=kept["fence"],
        release=True,
        claims=[kept["laned"].settlement],
    )
    return await store.sessions.commit(turn)


ACTS: dict[str, Act] = {
    "enqueue": lambda s, k: s.queue.enqueue(NewWork(session="s", key="new", payloads=["x"])),
    "enqueue again": lambda s, k: s.queue.enqueue(NewWork(session="s", key="s1", payloads=["x"])),
    "claim": lambda s, k: s.queue.claim("s", "me", limit=2),
    "claim with a fence": lambda s, k: s.queue.claim("laned", "me", fence=k["fence"]),
    "claim_next": lambda s, k: s.queue.claim_next("me", limit=2, lane_ttl_ms=HOUR_MS),
    "renew": lambda s, k: s.queue.renew(k["claim"], ttl_ms=HOUR_MS),
    "settle": settle,
    "abandon": lambda s, k: s.queue.abandon(k["claim"], error="why", delay_ms=HOUR_MS),
    "cancel": lambda s, k: s.queue.cancel("s", k["free"]),
    "requeue": lambda s, k: s.queue.requeue("ended", k["dead"]),
    "delete": lambda s, k: s.sessions.delete("held"),
}


def check_again(name: str, again: Any, was_done: bool) -> None:
    """What the second time says of an operation whose first time was done, or was not."""
    if name == "enqueue":
        assert isinstance(again, Enqueued)
        assert again.enqueued is not was_done
    elif name == "settle":
        assert isinstance(again, Receipt)
        assert again.replayed is was_done
    elif name == "abandon":
        assert again == (0 if was_done else 2)
    elif name == "cancel":
        assert (again is None) is was_done


# A claim whose answer was lost is held by nobody who knows: it comes back when it lapses.
LOST = {"claim", "claim with a fence", "claim_next"}


@pytest.mark.parametrize("name", ACTS)
async def test_a_failed_operation_on_work_is_never_half_stored(
    database: Database, name: str
) -> None:
    async def check(struck: Struck) -> None:
        if struck.done and name == "requeue":
            # What was put back is not dead any more: the second time is told so.
            return
        if struck.done and name in LOST:
            return
        if struck.done and name == "delete":
            assert not (await struck.store.sessions.delete("held")).deleted
            return
        check_again(name, await ACTS[name](struck.store, struck.kept), struck.done)
        assert await struck.rows() == struck.undisturbed, struck.at

    await strike_everywhere(database, "async", prepare, ACTS[name], check)


async def test_a_claim_whose_answer_was_lost_comes_back(database: Database) -> None:
    """It is held until its time is over, and then claimed again, whole and in order."""
    plan = Plan()
    async with database.open() as opened:
        assert isinstance(opened, AsyncStore)
        store = wrap(opened, plan)
        await store.sessions.create("s")
        for number in range(4):
            await store.queue.enqueue(NewWork(session="s", payloads=[number], merge="m"))
        plan.arm("answer")
        with pytest.raises(OutcomeUnknown):
            await store.queue.claim("s", "me", limit=3, ttl_ms=0)
        found = (await store.queue.claim("s", "me", limit=64)).claim
        assert found is not None
        assert found.redelivered
        assert [work.items[0].json() for work in found.work] == [0, 1, 2]
        assert [work.attempts for work in found.work] == [2, 2, 2]
        assert await store.queue.abandon(found) == 3
        plan.arm("answer")
        with pytest.raises(OutcomeUnknown):
            await store.queue.claim_next("me", limit=2, lane_ttl_ms=0)
        again = await store.queue.claim_next("me", limit=64)
        assert again.claim is not None
        assert again.claim.redelivered
        assert [work.items[0].json() for work in again.claim.work] == [0, 1]


# --- clocks


JUMPS = {
    "an hour ahead": HOUR_MS,
    "an hour behind": -HOUR_MS,
    "ten years ahead": 10 * YEAR_MS,
    "ten years behind": -10 * YEAR_MS,
}


async def work_on(store: Store, jobs: dict[int, int], rounds: int) -> None:
    """Take and settle some work, and remember how often each job was settled."""
    for _ in range(rounds):
        found: ClaimedNext = await store.queue.claim_next("w", limit=3)
        if found.claim is None or found.lane is None:
            return
        turn = Turn(
            session=found.claim.session,
            nodes=[NewNode(body=work.items[0].json()) for work in found.claim.work],
            fence=found.lane.fence,
            release=True,
            claims=[found.claim.settlement],
        )
        await store.sessions.commit(turn)
        for work in found.claim.work:
            number = work.items[0].json()
            jobs[number] = jobs.get(number, 0) + 1


@pytest.mark.parametrize("jump", JUMPS)
async def test_clocks_that_differ_between_workers_lose_and_double_nothing(
    sqlite_database: Database, jump: str
) -> None:
    """Each worker of a file goes by its own clock. One that is wrong may take over too early or too
    late, but whoever was taken over is refused, and all work is settled once."""
    right = [1_700_000_000_000]
    shift = JUMPS[jump]
    async with AsyncExitStack() as stack:

        async def opened(clock: Callable[[], int]) -> Store:
            return await stack.enter_async_context(sqlite_database.open(clock=clock))

        one = await opened(lambda: right[0])
        other = await opened(lambda: right[0] + shift)
        for session in ("a", "b"):
            await one.sessions.create(session)
        for number in range(40):
            store = one if number % 3 else other
            session = "ab"[number % 2]
            merge = "m" if number % 5 else None
            await store.queue.enqueue(NewWork(session=session, payloads=[number], merge=merge))
        # Somebody holds work when the other one comes with his clock.
        held = await one.queue.claim_next("holder", limit=3)
        assert held.claim is not None
        assert held.lane is not None
        jobs: dict[int, int] = {}
        for _ in range(4):
            for store in (other, one):
                await work_on(store, jobs, 2)
                right[0] += 10
        turn = Turn(
            session=held.claim.session,
            nodes=[NewNode(body=work.items[0].json()) for work in held.claim.work],
            fence=held.lane.fence,
            release=True,
            claims=[held.claim.settlement],
        )
        if shift > 0:
            # The one whose clock is ahead has taken it over.
            with pytest.raises(holdfast.Superseded):
                await one.sessions.commit(turn)
        else:
            await one.sessions.commit(turn)
            for work in held.claim.work:
                number = work.items[0].json()
                jobs[number] = jobs.get(number, 0) + 1
        # When both clocks have come to the end of every lane, nothing is left.
        right[0] += abs(shift) + HOUR_MS
        for store in (one, other) * 2:
            await work_on(store, jobs, 100)
        assert jobs == dict.fromkeys(range(40), 1)
        for session, first in (("a", 0), ("b", 1)):
            history = await one.history.load(session)
            assert history is not None
            numbers = [node.json() for node in history.nodes]
            assert numbers == list(range(first, 40, 2))
        counts = await one.queue.counts()
        assert (counts.ready, counts.delayed, counts.claimed, counts.dead) == (0, 0, 0, 0)


@pytest.mark.parametrize("jump", JUMPS)
async def test_a_server_does_not_hear_of_the_clocks_of_workers(
    postgres_database: Database, monkeypatch: pytest.MonkeyPatch, jump: str
) -> None:
    """Leases, claims and delays go by the clock of the server, whatever this machine believes."""
    async with postgres_database.open() as one:
        await one.sessions.create("s")
        for number in range(6):
            await one.queue.enqueue(NewWork(session="s", payloads=[number], merge="m"))
        await one.queue.enqueue(NewWork(session="s", payloads=["later"], delay_ms=HOUR_MS))
        held = await one.queue.claim_next("holder", limit=2)
        assert held.claim is not None
        monkeypatch.setattr("time.time", shifted("time", JUMPS[jump] / 1000))
        monkeypatch.setattr("time.time_ns", shifted("time_ns", JUMPS[jump] * 1_000_000))
        async with postgres_database.open() as other:
            found = await other.queue.claim_next("w")
            assert (found.claim, found.why_not) == (None, "not-yet-available")
            assert held.lane is not None
            assert found.next_at_ms == held.lane.expires_at_ms
            with pytest.raises(holdfast.LaneBusy):
                await other.queue.claim("s", "w")
            work = (await other.queue.enqueue(NewWork(session="s", payloads=["new"]))).work
            assert abs(work.enqueued_at_ms - held.claim.claimed_at_ms) < HOUR_MS / 2
            turn = Turn(
                session="s",
                nodes=[NewNode(body=1)],
                fence=held.lane.fence,
                release=True,
                claims=[held.claim.settlement],
            )
            await other.sessions.commit(turn)
            jobs: dict[int, int] = {}
            await work_on(other, jobs, 3)
            assert list(jobs) == [2, 3, 4, 5, "new"]
            left: Claimed = await other.queue.claim("s", "w")
            assert left.why_not == "not-yet-available"


def shifted(name: str, by: float) -> Callable[[], Any]:
    """A clock of this machine that is wrong."""
    import time

    real = getattr(time, name)
    return lambda: real() + by
