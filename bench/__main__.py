"""The command line of the measures: `python -m bench turn`.

JSON lines go to standard output, the table to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses

from bench.report import Report
from bench.turn import Effort, measure


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    turn = commands.add_parser("turn", help="the turn commit, against hand-written floors")
    turn.add_argument("--rounds", type=int, default=Effort.rounds)
    turn.add_argument("--seconds", type=float, default=Effort.seconds, help="per subject and round")
    turn.add_argument("--databases", type=_words, default=Effort.databases)
    turn.add_argument("--parts", type=_words, default=Effort.parts, help="rate, growth, bytes")
    turn.add_argument("--kinds", type=_words, default=Effort.kinds, help="text, noise")
    turn.add_argument("--sessions", type=_numbers, default=Effort.counts, dest="counts")
    turn.add_argument("--quick", action="store_true", help="a glance: the figures mean little")
    given = vars(parser.parse_args())
    quick = given.pop("quick")
    given.pop("command")
    effort = Effort(**given)
    if quick:
        effort = dataclasses.replace(
            effort, rounds=2, seconds=0.3, long_history=5000, byte_turns=200
        )
    asyncio.run(measure(effort, Report()))


if __name__ == "__main__":
    main()
