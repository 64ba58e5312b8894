"""What was measured, told twice: JSON lines for machines, a table for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from bench.measure import Track, middle, paired


@dataclass(frozen=True, slots=True)
class Goal:
    """A ratio that has to be reached; `most` turns it round."""

    says: str
    ratio: tuple[float, float, float]
    wanted: float
    most: bool = False

    @property
    def met(self) -> bool:
        return self.ratio[0] <= self.wanted if self.most else self.ratio[0] >= self.wanted

    def line(self) -> str:
        """One line of the table of goals."""
        sign = "<=" if self.most else ">="
        verdict = "met" if self.met else "MISSED"
        middle, low, high = self.ratio
        found = f"{middle:6.2f} [{low:.2f}-{high:.2f}]"
        return f"{self.says:<68} {found}  {sign} {self.wanted:<5} {verdict}"


class Report:
    """Where results go as they arrive."""

    def __init__(self, lines: TextIO = sys.stdout, table: TextIO = sys.stderr) -> None:
        self._lines = lines
        self._table = table
        self.goals: list[Goal] = []

    def tell(self, **facts: Any) -> None:
        """One JSON line."""
        print(json.dumps(facts), file=self._lines, flush=True)

    def say(self, text: str = "") -> None:
        """A line for people."""
        print(text, file=self._table, flush=True)

    def goal(self, goal: Goal) -> None:
        """A result that has a target."""
        self.goals.append(goal)
        self.tell(
            goal=goal.says,
            ratio=round(goal.ratio[0], 4),
            low=round(goal.ratio[1], 4),
            high=round(goal.ratio[2], 4),
            wanted=goal.wanted,
            met=goal.met,
        )

    def finish(self) -> None:
        """The goals, all in one place."""
        self.say("\n== goals (median of the rounds' ratios [quartiles])")
        for goal in self.goals:
            self.say(goal.line())

    def rates(self, title: str, tracks: Sequence[Track], base: Track) -> None:
        """Turns per second of every subject at every count, and its ratio to the base."""
        self.say(f"\n== {title}: turns/s median [quartiles], p50/p95 ms, CPU us of a turn here")
        self.say("   and in the server, ratio of the rates [quartiles], ratio of the CPU times")
        for count in base.samples:
            self.say(f"  {count} session(s)")
            floor = [sample.per_second for sample in base.samples[count]]
            for track in tracks:
                samples = track.samples[count]
                rate = middle([sample.per_second for sample in samples])
                ratio = paired([sample.per_second for sample in samples], floor)
                p50 = middle([sample.p50_ms for sample in samples])[0]
                p95 = middle([sample.p95_ms for sample in samples])[0]
                client = middle([sample.client_us for sample in samples])[0]
                server = middle([sample.server_us for sample in samples])[0]
                spent = paired(
                    [sample.cpu_us for sample in base.samples[count]],
                    [sample.cpu_us for sample in samples],
                )[0]
                self.say(
                    f"    {track.subject.name:<28}{rate[0]:7.0f} [{rate[1]:.0f}-{rate[2]:.0f}]"
                    f"  {p50:.3f}/{p95:.3f}  {client:.0f} + {server:.0f}"
                    f"  x{ratio[0]:.2f} [{ratio[1]:.2f}-{ratio[2]:.2f}]  cpu x{spent:.2f}"
                )


def ratio(ours: Track, theirs: Track, sessions: int) -> tuple[float, float, float]:
    """Ours against theirs, round by round."""
    return paired(
        [sample.per_second for sample in ours.samples[sessions]],
        [sample.per_second for sample in theirs.samples[sessions]],
    )
