"""How things are measured: sessions commit at the same time for a while, subject by subject.

All subjects of a comparison take their turn within each round, in an order that changes from round
to round, and are compared within the round; the answer is the median of the rounds' ratios. Many
short rounds do better than few long ones: what else the machine does then hits a pair alike.
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.content import Contents
from bench.subject import Subject

TIDY_EVERY = 5
WARM_SECONDS = 0.5


@dataclass(slots=True)
class Sample:
    """What one subject did in one round."""

    per_second: float
    p50_ms: float
    p95_ms: float
    client_us: float  # CPU time of a turn, here and in the server
    server_us: float
    turns: int

    @property
    def cpu_us(self) -> float:
        """All of it: what is left of a ratio when something else has the machine."""
        return self.client_us + self.server_us


@dataclass(slots=True)
class Track:
    """A subject on its way through the rounds: how far each of its sessions is."""

    subject: Subject
    contents: Contents
    server_seconds: Callable[[], float] = lambda: 0.0
    revisions: dict[str, int] = field(default_factory=dict)
    samples: dict[int, list[Sample]] = field(default_factory=dict)

    async def one(self, session: str) -> None:
        """Commit the next turn of a session."""
        was = self.revisions.get(session, 0)
        turn = f"turn-{session}-{was:08d}"
        self.revisions[session] = await self.subject.commit(
            session, turn, was, self.contents.next()
        )

    async def work(self, sessions: int, seconds: float) -> Sample:
        """Let the sessions commit for a while, each one turn after the other."""
        latencies: list[float] = []

        async def keep(session: str, until: float) -> None:
            while (began := time.perf_counter()) < until:
                await self.one(session)
                latencies.append(time.perf_counter() - began)

        gc.collect()
        server, cpu, began = self.server_seconds(), time.process_time(), time.perf_counter()
        until = began + seconds
        await asyncio.gather(*(keep(f"s{number}", until) for number in range(sessions)))
        took = time.perf_counter() - began
        cpu, server = time.process_time() - cpu, self.server_seconds() - server
        return summed(latencies, took, cpu, server)


def summed(latencies: list[float], took: float, cpu: float, server: float) -> Sample:
    """The figures of one stretch of work."""
    latencies.sort()
    count = len(latencies)
    return Sample(
        per_second=count / took,
        p50_ms=latencies[count // 2] * 1e3,
        p95_ms=latencies[min(count - 1, int(count * 0.95))] * 1e3,
        client_us=cpu / count * 1e6,
        server_us=server / count * 1e6,
        turns=count,
    )


async def compete(
    tracks: Sequence[Track],
    sessions: Iterable[int],
    *,
    rounds: int,
    seconds: float,
    between: Callable[[], Awaitable[None]] | None = None,
    tell: Callable[[dict[str, Any]], None],
) -> None:
    """Interleave the subjects: every count of sessions and every subject once in each round."""
    counts = list(sessions)
    rng = random.Random(1)
    for track in tracks:
        await track.subject.prepare(max(counts))
        await track.work(max(counts), WARM_SECONDS)
        await track.work(1, WARM_SECONDS / 2)
    for number in range(rounds):
        if between is not None and number % TIDY_EVERY == 0:
            await between()
        for count in counts:
            order = list(tracks)
            rng.shuffle(order)
            for track in order:
                sample = await track.work(count, seconds)
                track.samples.setdefault(count, []).append(sample)
                tell(
                    {
                        "subject": track.subject.name,
                        "sessions": count,
                        "round": number,
                        "per_second": round(sample.per_second, 1),
                        "p50_ms": round(sample.p50_ms, 4),
                        "p95_ms": round(sample.p95_ms, 4),
                        "client_us": round(sample.client_us, 1),
                        "server_us": round(sample.server_us, 1),
                    }
                )


def server_clock(pid: int) -> Callable[[], float]:
    """The CPU time of a server's processes, in seconds; 0 where the system does not tell."""

    def read() -> float:
        total = 0
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                if parent == str(pid):
                    total += int((entry / "schedstat").read_text().split()[0])
        return total / 1e9

    return read


def paired(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """The median of the rounds' ratios, with its spread."""
    return middle([mine / other for mine, other in zip(ours, theirs, strict=True)])


def middle(values: Sequence[float]) -> tuple[float, float, float]:
    """The median, and the quartiles; of fewer than four values the lowest and the highest."""
    if len(values) < 4:
        return statistics.median(values), min(values), max(values)
    low, mid, high = statistics.quantiles(values, n=4, method="inclusive")
    return mid, low, high
