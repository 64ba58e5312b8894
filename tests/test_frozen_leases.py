"""Workers that are stopped with SIGSTOP past the leases of their processes, and woken later.

A worker claims, appends, says so, and waits for a line of input. It is stopped, and its leases
lapse; most of its processes are taken over or given up by another, and only then is it woken. It
does all the writes that it had in mind with the leases in its memory: each must be refused with the
right error, and not a row may change.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

import holdfast
from holdfast.contract.errors import EndForbidden, LeaseBusy
from holdfast.contract.processes import EventType, Lease, NewEvent, NewProcess, Wait
from holdfast.stores import Store
from holdfast.testing.conformance.kit_processes import log
from tests.freezing import Frozen, at_work, rows_of, told, written

if TYPE_CHECKING:
    from tests.conftest import Database

WORKERS, CYCLES = 10, 5
TTL_MS, LONG_MS = 1_000, 600_000
# What becomes of a process whose worker is frozen: another runs it, another has to give it up
# because it is bound to its owner, or nobody has come yet.
HOLDS = ("taken", "bound", "lapsed")
TYPES = (EventType(name="step"), EventType(name="finish", ends="completed"))

# What a frozen worker is told. What it had appended under a key before is answered again.
REFUSED = {
    "append": "lease-lost",
    "append the end": "lease-lost",
    "append again": "accepted",
    "end": "lease-lost",
    "suspend": "lease-lost",
    "renew": "lease-lost",
    "release": False,
}
ENDED = {**REFUSED, "append the end": "process-ended", "end": "process-ended"}
# A lapsed lease that nobody has taken may still be given back: that would change a row.
LAPSED = {name: answer for name, answer in REFUSED.items() if name != "release"}


def expected(done: bool) -> dict[str, dict[str, object]]:
    """What the writes of a worker must come to; `done` says that its heir has ended the process."""
    return {"taken": ENDED if done else REFUSED, "bound": ENDED, "lapsed": LAPSED}


# --- the worker


def first(process: str) -> NewEvent:
    """What a worker appends before it is frozen."""
    return NewEvent(type="step", payload=process, key="first")


async def take(store: Store, process: str) -> Lease:
    """Claim a process, and begin with it."""
    lease = await store.processes.claim(process, "zombie", ttl_ms=TTL_MS)
    await store.processes.append(process, first(process), lease=lease)
    return lease


async def write_all(store: Store, hold: str, lease: Lease) -> dict[str, object]:
    """Everything that somebody who holds this lease might still write."""
    name, processes = lease.process, store.processes
    step = NewEvent(type="step", payload="of a zombie")
    finish = NewEvent(type="finish", payload="of a zombie", key="last")
    found = {
        "append": await written(processes.append(name, step, lease=lease)),
        "append the end": await written(processes.append(name, finish, lease=lease)),
        "append again": await written(processes.append(name, first(name), lease=lease)),
        "end": await written(processes.end(name, output="of a zombie", lease=lease)),
        "suspend": await written(processes.suspend(name, Wait(type="step"), lease=lease)),
        "renew": await written(processes.renew(lease, ttl_ms=LONG_MS)),
    }
    if hold != "lapsed":
        found["release"] = await told(processes.release(lease))
    return found


async def haunt(url: str, tenant: str) -> None:
    """Claim, wait for a line, write, and tell what came of it; once for each cycle."""
    async with await holdfast.open(url, tenant=tenant) as store:
        print("open", flush=True)
        for cycle in range(CYCLES):
            sys.stdin.readline()
            held = {hold: await take(store, f"{hold}-{cycle}") for hold in HOLDS}
            print("claimed", flush=True)
            sys.stdin.readline()
            answers = {hold: await write_all(store, hold, held[hold]) for hold in HOLDS}
            print(json.dumps(answers), flush=True)


# --- the test


class Zombie(Frozen):
    """A worker process, and what is done to its processes behind its back."""

    async def provide(self, cycle: int) -> None:
        """Processes for the next cycle."""
        for hold in HOLDS:
            recovery: Any = "owner-bound" if hold == "bound" else "rerunnable"
            await self.store.processes.register(
                NewProcess(process=f"{hold}-{cycle}", recovery=recovery, events=TYPES)
            )

    async def take_over(self, cycle: int) -> Lease:
        """Take one, and give up another, as soon as they have lapsed."""
        processes = self.store.processes
        while True:
            try:
                lease = await processes.claim(f"taken-{cycle}", "heir", ttl_ms=LONG_MS)
                await processes.abandon(f"bound-{cycle}", reason="its owner is frozen")
            except (LeaseBusy, EndForbidden):
                await asyncio.sleep(0.02)
                continue
            status = await processes.lease(f"lapsed-{cycle}")
            assert status is not None
            if not status.live:
                break
            await asyncio.sleep(0.02)
        step = NewEvent(type="step", payload="of the heir")
        await processes.append(lease.process, step, lease=lease)
        return lease

    async def finish(self, lease: Lease) -> None:
        """The one who took over ends the process."""
        await self.store.processes.end(lease.process, output="of the heir", lease=lease)


async def one_cycle(database: Database, zombies: list[Zombie], cycle: int) -> int:
    """Every worker is stopped once. Returns how many new writes were accepted from one."""
    done = cycle % 2 == 1
    await asyncio.gather(*(zombie.provide(cycle) for zombie in zombies))
    for zombie in zombies:
        zombie.ask()
    for zombie in zombies:
        assert await zombie.answer() == "claimed"
        zombie.freeze()
    taken = await asyncio.gather(*(zombie.take_over(cycle) for zombie in zombies))
    if done:
        await asyncio.gather(*(z.finish(found) for z, found in zip(zombies, taken, strict=True)))
    before = await rows_of(database, zombies)
    for zombie in zombies:
        zombie.wake()
    answers = [json.loads(await zombie.answer()) for zombie in zombies]
    after = await rows_of(database, zombies)
    for zombie, answer, was, now in zip(zombies, answers, before, after, strict=True):
        assert answer == expected(done), f"{zombie.tenant} in cycle {cycle}"
        assert now == was, f"{zombie.tenant} changed something in cycle {cycle}"
    if not done:
        await asyncio.gather(*(z.finish(found) for z, found in zip(zombies, taken, strict=True)))
    return len(zombies)


async def test_a_frozen_worker_writes_nothing_with_its_lease(database: Database) -> None:
    """Fifty pauses on each database, of workers that hold three processes each."""
    async with database.open(tenant="heirs") as store:
        program = "tests.test_frozen_leases"
        zombies = [Zombie(program, database.url, f"t{n}", store) for n in range(WORKERS)]
        async with at_work(zombies):
            pauses = [await one_cycle(database, zombies, cycle) for cycle in range(CYCLES)]
        for zombie in zombies:
            await check_all(zombie.store)
    assert sum(pauses) == 50


LOGS = {
    "taken": ["process.started", "step", "step", "process.completed"],
    "bound": ["process.started", "step", "process.abandoned"],
    "lapsed": ["process.started", "step"],
}


async def check_all(store: Store) -> None:
    """What is in the logs is from before the freeze, and from the one who took over."""
    for cycle in range(CYCLES):
        for hold, types in LOGS.items():
            events = await log(store, f"{hold}-{cycle}")
            assert [event.type for event in events] == types
            assert [event.sequence for event in events] == list(range(1, len(types) + 1))
            assert not any(event.payload == b'"of a zombie"' for event in events)


if __name__ == "__main__":
    asyncio.run(haunt(sys.argv[1], sys.argv[2]))
