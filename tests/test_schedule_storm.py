"""Fifty thousand instants on each database, ticked by two workers that are killed at any moment.

Every instant is in the past when the storm begins. When it is over, each has fired once or is told
as skipped: the occurrences, the stretches and the instants of the timings are compared, with what
the schedules have counted, what the workers were told, and what was started. Between the rounds
somebody pauses and resumes schedules, and the server is killed and started again.

The storm runs in a process of its own, which forks the workers and has no store open meanwhile.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    BlockingStore,
    Cron,
    Every,
    NewSchedule,
    NewSubscription,
    OccurrenceFilter,
    Unavailable,
    open_sync,
)
from holdfast.testing.postgres_server import PostgresServer, find_servers

WORKERS = 2
# How many instants each of these schedules has, and how many of them there are.
EACH = 2_500
PLAIN = 21
SECONDS = 90
SECOND, MINUTE = 1000, 60_000
# 2025-01-01T00:00Z, and 2025-03-29T12:00Z: in the night after it Berlin's clocks go on.
NEW_YEAR, SPRING = 1_735_689_600_000, 1_743_249_600_000


def plan() -> Iterator[tuple[NewSchedule, list[int]]]:
    """The schedules, and the instants of each, by hand."""
    for number in range(PLAIN):
        first = NEW_YEAR + number * MINUTE
        timing = Every(interval_ms=SECOND, anchor_ms=first)
        instants = [first + n * SECOND for n in range(EACH)]
        yield storming(f"every{number}", timing, instants, missed="all", cap=10_000), instants
    # The clocks go on, and the minutes that pass do not: no minute is missing.
    minutes = [SPRING + n * MINUTE for n in range(EACH)]
    berlin = Cron(expression="* * * * *", zone="Europe/Berlin")
    yield storming("cron", berlin, minutes, missed="all", cap=10_000), minutes
    yield storming("capped", berlin, minutes, missed="all", cap=1_000), minutes
    yield storming("one", berlin, minutes, missed="one"), minutes
    yield storming("skip", berlin, minutes, missed="skip"), minutes
    yield storming("paused", berlin, minutes, missed="all", cap=10_000), minutes


def storming(name: str, timing: Any, instants: list[int], **given: Any) -> NewSchedule:
    """A schedule of exactly these instants."""
    return NewSchedule(
        schedule=name, timing=timing, start_ms=instants[0], until_ms=instants[-1], **given
    )


INSTANTS = {new.schedule: instants for new, instants in plan()}
# What fires of the schedules that do not fire everything, by hand; of "paused" it is not known.
FIRES = {"capped": 1_000, "one": 1, "skip": 0}
# Somebody has subscribed to some of the schedules.
SUBSCRIBED = ("every0", "every1", "cron", "capped")


def prepare(url: str) -> None:
    with open_sync(url) as store:
        for name in SUBSCRIBED:
            store.triggers.register(
                NewSubscription(key=f"of-{name}", source_type="schedule", source_key=name)
            )
        for new, _ in plan():
            store.schedules.register(new)


def opened(url: str) -> BlockingStore:
    """A handle, when there is a server to open it on."""
    while True:
        try:
            return open_sync(url)
        except Unavailable:
            time.sleep(0.02)


def work(url: str, told: str) -> None:
    """Tick until there is nothing left, and write down what each tick has said."""
    file = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with opened(url) as store:
        while True:
            try:
                tick = store.schedules.tick(limit=128)
            except Unavailable:
                continue
            assert not tick.stuck, tick.stuck
            lines = [f"{each.schedule} {each.instant_ms}\n" for each in tick.fired]
            os.write(file, "".join(lines).encode())
            if not (tick.more or tick.contended):
                return


@dataclass
class Storm:
    url: str
    told: str
    server: PostgresServer | None
    rng: random.Random
    counts: dict[str, int] = field(
        default_factory=lambda: {"kills": 0, "rounds": 0, "restarts": 0, "pauses": 0}
    )

    def blow(self) -> None:
        """Rounds of workers, until two have found nothing left to do."""
        idle = 0
        while idle < WORKERS:
            idle = self.round()
            if self.counts["rounds"] % 20 == 8:
                self.restart()
            if self.counts["rounds"] % 4 == 2:
                with open_sync(self.url) as store:
                    store.schedules.pause("paused")
                    store.schedules.resume("paused")
                self.counts["pauses"] += 1

    def round(self) -> int:
        """Two workers start, and are killed one after the other; how many had ended before."""
        self.counts["rounds"] += 1
        workers = []
        for _ in range(WORKERS):
            pid = os.fork()
            if pid == 0:
                code = 3
                try:
                    work(self.url, self.told)
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            workers.append(pid)
        time.sleep(self.rng.uniform(0.02, 0.8))
        if self.server is not None and self.counts["rounds"] % 20 == 4:
            # The server goes first, with both at work; it comes back while they ask again.
            self.server.kill()
            self.server.start()
            self.counts["restarts"] += 1
        ended = 0
        for pid in workers:
            time.sleep(self.rng.uniform(0.0, 0.05))
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            if os.WIFSIGNALED(status):
                self.counts["kills"] += 1
            else:
                assert os.WEXITSTATUS(status) == 0, f"a worker failed: {status}"
                ended += 1
        return ended

    def restart(self) -> None:
        if self.server is not None:
            self.server.restart("immediate")
            self.counts["restarts"] += 1


def occurrences(store: BlockingStore, schedule: str) -> list[int]:
    """The instants of which there is an occurrence."""
    found: list[int] = []
    after = None
    which = OccurrenceFilter(source_type="schedule", source_key=schedule)
    while True:
        page = store.triggers.occurrences(which=which, after=after, limit=1000)
        for each in page.items:
            said: Any = each.json()
            assert (said["schedule"], said["request"]) == (schedule, None)
            assert each.key == f"schedule:{said['instant_ms']}:{schedule}"
            found.append(said["instant_ms"])
        after = page.next
        if after is None:
            return found


def skipped(store: BlockingStore, schedule: str, wanted: list[int]) -> list[int]:
    """The instants that the stretches tell of, each of which holds as many as it says."""
    page = store.schedules.skipped(schedule, limit=1000)
    assert page.next is None
    found: list[int] = []
    for each in page.items:
        inside = [at for at in wanted if each.first_ms <= at <= each.last_ms]
        assert (inside[0], inside[-1], len(inside)) == (each.first_ms, each.last_ms, each.count)
        found += inside
    return found


def started(store: BlockingStore) -> int:
    """How many processes there are, each of another occurrence."""
    causes: list[str | None] = []
    after = None
    while True:
        page = store.processes.list(after=after, limit=1000)
        causes += [each.cause for each in page.items]
        after = page.next
        if after is None:
            assert len(causes) == len(set(causes))
            return len(causes)


def check(store: BlockingStore, told: list[tuple[str, int]]) -> dict[str, int]:
    """Each instant has fired or was skipped, once; what anybody was told is so."""
    counts = {"fired": 0, "skipped": 0, "started": 0}
    assert len(told) == len(set(told)), "an instant was told twice"
    heard: dict[str, set[int]] = {name: set() for name in INSTANTS}
    for name, instant in told:
        heard[name].add(instant)
    subscribed = 0
    for name, wanted in INSTANTS.items():
        fires, skips = occurrences(store, name), skipped(store, name, wanted)
        assert sorted(fires + skips) == wanted, f"{name}: an instant is lost, or is there twice"
        assert heard[name] <= set(fires), f"{name}: what was told is not there"
        found = store.schedules.get(name)
        assert found is not None
        assert (found.fired, found.skipped) == (len(fires), len(skips))
        assert (found.next_at_ms, found.decided_ms >= wanted[-1]) == (None, True)
        if name != "paused":
            assert len(fires) == FIRES.get(name, EACH)
        subscribed += len(fires) if name in SUBSCRIBED else 0
        counts["fired"] += len(fires)
        counts["skipped"] += len(skips)
    counts["started"] = started(store)
    assert counts["started"] == subscribed
    return counts


@contextmanager
def database(kind: str, folder: Path) -> Iterator[tuple[str, PostgresServer | None]]:
    """An empty database; a server is our own, because it is not treated well."""
    servers = find_servers()
    own = nullcontext(None) if kind == "sqlite" else PostgresServer(servers[0])
    with own as server:
        yield (str(folder / "storm.db") if server is None else server.create_database("s")), server


def storm(kind: str, folder: Path, seed: int) -> dict[str, Any]:
    with database(kind, folder) as (url, server):
        prepare(url)
        began = time.monotonic()
        blown = Storm(url, str(folder / "told"), server, random.Random(seed))
        blown.blow()
        seconds = time.monotonic() - began
        lines = (folder / "told").read_text().splitlines()
        told = [(line.split()[0], int(line.split()[1])) for line in lines]
        with open_sync(url) as store:
            found = check(store, told)
    return {**blown.counts, **found, "told": len(told), "seconds": round(seconds, 1)}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_every_instant_fires_once_or_is_told_whoever_is_killed(kind: str, tmp_path: Path) -> None:
    """0 doubled, 0 missing, and the skipped ones are there."""
    seed = random.randrange(2**32)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, kind, str(tmp_path), str(seed)],
        capture_output=True,
        text=True,
        timeout=SECONDS * 3,
    )
    assert done.returncode == 0, f"seed {seed}:\n{done.stderr}"
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"{kind}, seed {seed}: {found}")
    assert found["fired"] + found["skipped"] == sum(map(len, INSTANTS.values())) >= 50_000
    assert found["kills"] >= 20
    assert found["pauses"] >= 1
    assert (found["restarts"] >= 2) is (kind == "postgres")


if __name__ == "__main__":
    print(json.dumps(storm(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))
