"""Many workers drain one queue: each job is done once, in the order of its session, none is stuck.

A worker takes whatever session is next, and settles its work in one turn whose nodes name the jobs.
So the proof is in the store: the histories are all that was done. In the storms a worker is killed
with SIGKILL every few moments, and another one takes its place. Everything runs in a process of its
own, which forks the producer and the workers and has no store open meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import NewNode, Turn
from holdfast.contract.errors import ClaimLost, LaneLost
from holdfast.contract.queue import NewWork
from holdfast.testing.postgres_server import PostgresServer

JOBS, SESSIONS, KILLS = 20_000, 250, 100
PRODUCED_AT_ONCE = 50
LIMIT = 32
POLL_S = 0.01
SECONDS = 120
# How the work of a session may travel: some of it together, some alone.
SHAPES: tuple[dict[str, Any], ...] = (
    {"merge": 1_000},
    {"merge": 1_000, "keyed": True},
    {"merge": 8},
    {"slot": "exclusive", "keyed": True, "max_attempts": 1_000},
)


def new_job(session: int, number: int) -> NewWork:
    """The n-th job of a session."""
    shape = dict(SHAPES[session % len(SHAPES)])
    key = f"key-{number}" if shape.pop("keyed", False) else None
    if "merge" in shape:
        shape["merge"] = f"m{number // shape['merge']}"
    return NewWork(session=f"s{session}", payloads=[{"job": number}], key=key, **shape)


async def produce(url: str, numbers: range) -> None:
    """Enqueue these jobs of each session, in their order."""
    async with await holdfast.open(url) as store:
        turns = asyncio.Semaphore(PRODUCED_AT_ONCE)

        async def fill(session: int) -> None:
            for number in numbers:
                async with turns:
                    assert (await store.queue.enqueue(new_job(session, number))).enqueued

        await asyncio.gather(*(fill(session) for session in range(SESSIONS)))


async def drain(store: holdfast.Store, who: str, ttl_ms: int, finished: Path) -> None:
    """Work until the queue is empty and stays so."""
    while True:
        last = os.access(finished, os.F_OK)
        found = await store.queue.claim_next(who, lane_ttl_ms=ttl_ms, limit=LIMIT)
        if found.claim is None or found.lane is None:
            if found.why_not == "empty" and last:
                return
            await asyncio.sleep(POLL_S)
            continue
        again = found.claim.redelivered
        turn = Turn(
            session=found.claim.session,
            nodes=[
                NewNode(body={**item.json(), "work": work.work, "again": again})
                for work in found.claim.work
                for item in work.items
            ],
            fence=found.lane.fence,
            release=True,
            claims=[found.claim.settlement],
        )
        try:
            await store.sessions.commit(turn)
        except (LaneLost, ClaimLost):
            # It was too slow, and somebody else has the work: nothing of the turn is stored.
            continue


async def work(url: str, who: str, tasks: int, ttl_ms: int, finished: Path) -> None:
    """Several claimers with one handle."""
    options: dict[str, Any] = {"pool_size": tasks} if "://" in url else {}
    async with await holdfast.open(url, **options) as store:
        await asyncio.gather(
            *(drain(store, f"{who}.{task}", ttl_ms, finished) for task in range(tasks))
        )


def forked(main: Any) -> int:
    """Run a coroutine in a process of its own."""
    pid = os.fork()
    if pid == 0:
        code = 3
        try:
            asyncio.run(main)
            code = 0
        finally:
            os._exit(code)
    main.close()
    return pid


def ended(pid: int) -> bool:
    """Whether a process has ended, which it may only do well."""
    found, status = os.waitpid(pid, os.WNOHANG)
    assert found == 0 or status == 0, f"a worker failed: {status}"
    return found != 0


def storm(
    url: str, folder: str, *, processes: int, tasks: int, ttl_ms: int, kills: int, seed: int
) -> dict[str, Any]:
    """Fork the producer and the workers, kill as many as asked for, and wait for the others."""
    rng = random.Random(seed)
    finished = Path(folder) / "finished"
    asyncio.run(create(url))
    began = time.monotonic()
    # Half of the work is there when the workers come, the other half comes meanwhile.
    each = JOBS // SESSIONS
    asyncio.run(produce(url, range(each // 2)))
    workers = [
        forked(work(url, f"w{number}", tasks, ttl_ms, finished)) for number in range(processes)
    ]
    producer = forked(produce(url, range(each // 2, each)))
    killed = 0
    while not ended(producer):
        time.sleep(rng.uniform(0.01, 0.07))
        if killed < kills:
            killed += kill_one(workers, rng)
            workers.append(forked(work(url, f"k{killed}", tasks, ttl_ms, finished)))
    while killed < kills:
        time.sleep(rng.uniform(0.01, 0.07))
        killed += kill_one(workers, rng)
        workers.append(forked(work(url, f"k{killed}", tasks, ttl_ms, finished)))
    finished.touch()
    while workers:
        assert time.monotonic() - began < SECONDS, "work is stuck"
        workers = [pid for pid in workers if not ended(pid)]
        time.sleep(0.01)
    seconds = time.monotonic() - began
    told = asyncio.run(check(url))
    return {**told, "kills": killed, "seconds": round(seconds, 1), "per s": int(JOBS / seconds)}


def kill_one(workers: list[int], rng: random.Random) -> int:
    """Kill a worker, whatever it is doing."""
    pid = workers.pop(rng.randrange(len(workers)))
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), f"a worker ended by itself: {status}"
    return 1


async def create(url: str) -> None:
    """The sessions, still empty."""
    async with await holdfast.open(url) as store:
        await asyncio.gather(*(store.sessions.create(f"s{n}") for n in range(SESSIONS)))


async def check(url: str) -> dict[str, int]:
    """Every job is in the history of its session once and in its order, and nothing is left."""
    redelivered = turns = 0
    async with await holdfast.open(url) as store:
        for session in range(SESSIONS):
            history = await store.history.load(f"s{session}")
            assert history is not None
            bodies = [node.json() for node in history.nodes]
            assert [body["job"] for body in bodies] == list(range(JOBS // SESSIONS))
            assert len({body["work"] for body in bodies}) == len(bodies)
            redelivered += sum(body["again"] for body in bodies)
            turns += history.revision
        left = await store.queue.counts()
        assert (left.ready, left.delayed, left.claimed, left.dead) == (0, 0, 0, 0)
        keyed = sum("keyed" in SHAPES[n % len(SHAPES)] for n in range(SESSIONS))
        assert left.done == keyed * (JOBS // SESSIONS)
        last = await store.queue.claim_next("last")
        assert (last.claim, last.why_not) == (None, "empty")
    return {"turns": turns, "redelivered": redelivered}


def run(url: str, folder: Path, **options: int) -> dict[str, Any]:
    """Run a storm in a process of its own, and say what came of it."""
    options["seed"] = random.randrange(2**32)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, url, str(folder), json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=SECONDS * 2,
    )
    assert done.returncode == 0, f"{options}:\n{done.stderr}"
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{url.partition(':')[0][:10]} {options}: {told}")
    return told


@pytest.fixture(scope="module")
def vacuumed(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A server that tends its tables each second: a storm is the churn of hours in a minute."""
    settings = {**postgres_server.settings, "autovacuum_naptime": "1s"}
    with PostgresServer(postgres_server.bindir, settings=settings) as server:
        yield server


@pytest.fixture
def vacuumed_url(vacuumed: PostgresServer) -> Iterator[str]:
    """The URL of an empty database there."""
    name = f"drain_{random.randrange(2**32)}"
    yield vacuumed.create_database(name)
    vacuumed.drop_database(name)


PLACES = [
    pytest.param("vacuumed_url", {"processes": 4, "tasks": 2}, id="postgres"),
    pytest.param("sqlite_url", {"processes": 4, "tasks": 8}, id="sqlite"),
]


@pytest.mark.parametrize(("place", "options"), PLACES)
def test_a_queue_is_drained_once_and_in_order(
    request: pytest.FixtureRequest, tmp_path: Path, place: str, options: dict[str, int]
) -> None:
    told = run(request.getfixturevalue(place), tmp_path, **options, ttl_ms=30_000, kills=0)
    assert told["redelivered"] == 0


@pytest.mark.parametrize(("place", "options"), PLACES)
def test_a_queue_is_drained_once_and_in_order_under_kills(
    request: pytest.FixtureRequest, tmp_path: Path, place: str, options: dict[str, int]
) -> None:
    told = run(request.getfixturevalue(place), tmp_path, **options, ttl_ms=400, kills=KILLS)
    assert told["kills"] == KILLS
    if told["redelivered"] == 0:
        pytest.fail("no work was taken over: the storm is too gentle to show anything")


if __name__ == "__main__":
    print(json.dumps(storm(sys.argv[1], sys.argv[2], **json.loads(sys.argv[3]))))
