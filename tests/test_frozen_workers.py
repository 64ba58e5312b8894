"""Workers that are stopped with SIGSTOP past their lanes, and woken when another has their work.

A worker claims, says so, and waits for a line of input. It is stopped, what it held lapses and is
taken over, and only then is it woken and given the line: it does all the writes that it had in mind
with the proofs in its memory. Each must be refused with the right error, and not a row may change.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

import holdfast
from holdfast import NewNode, Turn
from holdfast.contract.queue import Claim, ClaimedNext, NewWork
from holdfast.contract.records import Fence
from holdfast.stores import Store
from tests.freezing import Frozen, at_work, rows_of, told, written

if TYPE_CHECKING:
    from tests.conftest import Database

WORKERS, CYCLES = 10, 10
TTL_MS, LONG_MS = 1_000, 600_000
JOBS = 2
# How a worker holds its work: with the lane of whatever is first, with a lane it asked for, or for
# a time without one. Work that was enqueued in one moment is next in the order of these names.
HOLDS = ("first", "lane", "time")

# What a frozen worker is told, when its work is still in the hands of the one who took it over, and
# when that one is done. A commit that names no fence meets whoever holds the lane by then.
REFUSED = {
    "commit": "lane-lost",
    "commit with the fence only": "lane-lost",
    "commit with the claim only": "lane-busy",
    "renew the lane": "lane-lost",
    "release the lane": False,
    "claim more": "lane-lost",
    "abandon": 0,
    "abandon as dead": 0,
}
REFUSED_TOO_LATE = {**REFUSED, "commit with the claim only": "claim-lost"}
REFUSED_BY_TIME = {
    "commit": "lane-busy",
    "renew": "claim-lost",
    "abandon": 0,
    "abandon as dead": 0,
}
REFUSED_BY_TIME_TOO_LATE = {**REFUSED_BY_TIME, "commit": "claim-lost"}


def expected(hold: str, done: bool) -> dict[str, Any]:
    """What the writes of a worker must come to."""
    if hold == "time":
        return REFUSED_BY_TIME_TOO_LATE if done else REFUSED_BY_TIME
    return REFUSED_TOO_LATE if done else REFUSED


# --- the worker


async def take(store: Store, cycle: int, hold: str) -> tuple[Fence | None, Claim]:
    """Claim the work of one session."""
    session = f"{hold}-{cycle}"
    if hold == "first":
        found: Any = await store.queue.claim_next("zombie", lane_ttl_ms=TTL_MS)
        assert found.lane is not None
        fence = found.lane.fence
    elif hold == "lane":
        fence = (await store.lanes.claim(session, "zombie", ttl_ms=TTL_MS)).fence
        found = await store.queue.claim(session, "zombie", fence=fence)
    else:
        fence = None
        found = await store.queue.claim(session, "zombie", ttl_ms=TTL_MS)
    assert found.claim is not None
    assert found.claim.session == session
    return fence, found.claim


async def write_all(store: Store, fence: Fence | None, claim: Claim) -> dict[str, object]:
    """Everything that somebody who holds this might still write."""
    turn = Turn(
        session=claim.session,
        nodes=[NewNode(body="of a zombie")],
        fence=fence,
        claims=[claim.settlement],
    )
    found: dict[str, object] = {"commit": await written(store.sessions.commit(turn))}
    if fence is None:
        found["renew"] = await written(store.queue.renew(claim, ttl_ms=LONG_MS))
    else:
        plain = Turn(session=claim.session, nodes=turn.nodes, fence=fence, release=True)
        found["commit with the fence only"] = await written(store.sessions.commit(plain))
        bare = Turn(session=claim.session, nodes=turn.nodes, claims=turn.claims)
        found["commit with the claim only"] = await written(store.sessions.commit(bare))
        found["renew the lane"] = await written(store.lanes.renew(fence, ttl_ms=LONG_MS))
        found["claim more"] = await written(store.queue.claim(claim.session, "zombie", fence=fence))
        found["release the lane"] = await told(store.lanes.release(fence))
    found["abandon"] = await told(store.queue.abandon(claim, error="of a zombie"))
    found["abandon as dead"] = await told(store.queue.abandon(claim, dead=True))
    return found


async def haunt(url: str, tenant: str) -> None:
    """Claim, wait for a line, write, and tell what came of it; once for each cycle."""
    async with await holdfast.open(url, tenant=tenant) as store:
        print("open", flush=True)
        for cycle in range(CYCLES):
            sys.stdin.readline()
            held = {hold: await take(store, cycle, hold) for hold in HOLDS}
            print("claimed", flush=True)
            sys.stdin.readline()
            answers = {hold: await write_all(store, *held[hold]) for hold in HOLDS}
            print(json.dumps(answers), flush=True)


# --- the test


class Zombie(Frozen):
    """A worker process, and the tenant it works for."""

    async def provide(self, cycle: int) -> None:
        """Work for the next cycle; what was put in first is next."""
        for hold in HOLDS:
            session = f"{hold}-{cycle}"
            await self.store.sessions.create(session)
            for number in range(JOBS):
                await self.store.queue.enqueue(
                    NewWork(session=session, payloads=[number], merge="m")
                )

    async def take_over(self) -> list[ClaimedNext]:
        """Take all that has lapsed, as soon as it has."""
        taken: list[ClaimedNext] = []
        while len(taken) < len(HOLDS):
            found = await self.store.queue.claim_next("heir", lane_ttl_ms=LONG_MS)
            if found.claim is None:
                await asyncio.sleep(0.02)
                continue
            assert found.claim.redelivered
            assert len(found.claim.work) == JOBS
            taken.append(found)
        return taken

    async def settle(self, taken: list[ClaimedNext]) -> None:
        """The one who took over does the work."""
        for found in taken:
            assert found.claim is not None
            assert found.lane is not None
            turn = Turn(
                session=found.claim.session,
                nodes=[NewNode(body="of the heir")],
                fence=found.lane.fence,
                release=True,
                claims=[found.claim.settlement],
            )
            await self.store.sessions.commit(turn)


async def one_cycle(database: Database, zombies: list[Zombie], cycle: int) -> int:
    """Every worker is stopped once. Returns how many writes were accepted from one."""
    done = cycle % 2 == 1
    await asyncio.gather(*(zombie.provide(cycle) for zombie in zombies))
    for zombie in zombies:
        zombie.ask()
    for zombie in zombies:
        assert await zombie.answer() == "claimed"
        zombie.freeze()
    taken = await asyncio.gather(*(zombie.take_over() for zombie in zombies))
    if done:
        await asyncio.gather(*(z.settle(found) for z, found in zip(zombies, taken, strict=True)))
    before = await rows_of(database, zombies)
    for zombie in zombies:
        zombie.wake()
    answers = [json.loads(await zombie.answer()) for zombie in zombies]
    after = await rows_of(database, zombies)
    accepted = 0
    for zombie, answer, was, now in zip(zombies, answers, before, after, strict=True):
        wanted = {hold: expected(hold, done) for hold in HOLDS}
        accepted += sum(list(found.values()).count("accepted") for found in answer.values())
        assert answer == wanted, f"{zombie.tenant} in cycle {cycle}"
        assert now == was, f"{zombie.tenant} changed something in cycle {cycle}"
    if not done:
        await asyncio.gather(*(z.settle(found) for z, found in zip(zombies, taken, strict=True)))
    return accepted


async def test_a_frozen_worker_writes_nothing_when_it_wakes(database: Database) -> None:
    """A hundred pauses on each database, of workers that hold three sessions each."""
    async with database.open(tenant="heirs") as store:
        zombies = [
            Zombie("tests.test_frozen_workers", database.url, f"t{n}", store)
            for n in range(WORKERS)
        ]
        async with at_work(zombies):
            accepted = [await one_cycle(database, zombies, cycle) for cycle in range(CYCLES)]
        for zombie in zombies:
            await check_all(zombie.store)
    pauses = len(zombies) * len(accepted)
    print(f"{database.kind}: {pauses} pauses, {sum(accepted)} writes accepted")
    assert pauses == 100


async def check_all(store: Store) -> None:
    """All work was done once, by the one who took it over."""
    for cycle in range(CYCLES):
        for hold in HOLDS:
            history = await store.history.load(f"{hold}-{cycle}")
            assert history is not None
            assert [node.json() for node in history.nodes] == ["of the heir"]
    counts = await store.queue.counts()
    assert (counts.ready, counts.delayed, counts.claimed, counts.dead) == (0, 0, 0, 0)


if __name__ == "__main__":
    asyncio.run(haunt(sys.argv[1], sys.argv[2]))
