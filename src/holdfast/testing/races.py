"""The arena: a few callers ask a store at the same moment, and somebody explains the answers.

What came out of a round is right when some order of its calls, one after the other on the model
oracle, gives the same answers and leaves the same to be read. Nothing else is right: an error that
no order explains, a receipt too many, a node that nobody stored. Handles are given: when each
racer has its own, nothing inside one handle can keep the rivals apart.
"""

from __future__ import annotations

import itertools
import multiprocessing
import queue
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec

import holdfast
from holdfast.contract.errors import HoldfastError
from holdfast.contract.processes import Appended, Event, Lease, Process
from holdfast.contract.queue import Claim, Claimed, ClaimedNext, Enqueued, Work, WorkItem
from holdfast.contract.records import Head, Lane, Revision, Turn
from holdfast.testing.machine_compare import WORDS
from holdfast.testing.machine_world import Ticker, method_of
from holdfast.testing.oracle import Oracle

A = TypeVar("A")
B = TypeVar("B")

RACERS = 4
PAUSE_SECONDS = 0.002
# What differs between the answers of two orders, or of a store and the oracle, and may: times,
# names and tokens are the store's own, what an error says in words is for people. What a create,
# a fork and an update show of the session is read after them, and may be younger than they are; so
# may what an enqueue shows of the work that had its key, and what is shown of a process.
YOUNGER = {"create", "fork", "update"} | {
    f"processes.{name}"
    for name in ("register", "end", "abandon", "suspend", "resume", "set_external")
}
# The names that a store gives; the place of work in its inbox says which one it is.
NAMES: dict[type, str] = {
    Head: "state",
    Revision: "state",
    Work: "work",
    WorkItem: "id",
    Claim: "claim",
    Process: "identity",
    Event: "work",
}
# How far the clock of the oracle leaps: beyond every time that is shorter than an hour.
LEAP_MS = 60_000


@dataclass(frozen=True)
class Ask:
    """One call, as data, so that it can be sent to another thread or process, or to the oracle."""

    name: str
    args: dict[str, Any] = field(default_factory=dict)

    def of(self, store: Any) -> Any:
        """What the store answers, refusals included."""
        method = method_of(store, self.name)
        try:
            if isinstance(self.args.get("turn"), Turn):
                return method(self.args["turn"])
            return method(**self.args)
        except HoldfastError as refusal:
            return refusal

    def made(self, given: list[Any]) -> Ask:
        """The ask, with what it takes from what was given before it."""
        args = {key: arg(given) if callable(arg) else arg for key, arg in self.args.items()}
        return Ask(self.name, args)


Setting = Callable[[str], list[Ask]]
Moves = Callable[[str, list[Any]], list[Ask]]


@dataclass(frozen=True)
class Race:
    """A law: what is there before, what the racers ask, and how many of them may win. The moves
    are shown what was given before: lanes, claims, work and leases. What is left is read of the
    `sessions` and `processes`, which are named by what follows the prefix of the round. While a
    race is run `alone` there is nothing else in the tenant; when one `lapses`, short times end
    before, between or after the calls."""

    name: str
    law: str
    setting: Setting
    moves: Moves
    sessions: tuple[str, ...] = ()
    winners: tuple[int, ...] = ()
    summed: tuple[str, ...] = ()
    alone: bool = False
    lapses: bool = False
    processes: tuple[str, ...] = ()

    def told(self, answers: Sequence[tuple[Ask, Any]]) -> list[Any]:
        """What the racers were told. Of `summed` only the sums, where who did it does not matter
        and it was done once."""
        plain = [_plain(ask, answer) for ask, answer in answers]
        if not self.summed:
            return plain
        sums = [sum(getattr(answer, name, 0) for _, answer in answers) for name in self.summed]
        for one in plain:
            for name in (*self.summed, "kept_nodes"):
                one[1].pop(name, None)
        return [*plain, sums]


@dataclass
class Round:
    """One round of a race."""

    prefix: str
    settings: list[Ask]
    ids: list[str]
    moves: list[Ask]
    answers: list[Any] = field(default_factory=list)


class Racer(Protocol):
    """Somebody who starts when all others do."""

    def ask(self, ask: Ask, pause: float) -> None: ...
    def answer(self) -> Any: ...
    def close(self) -> None: ...


class ThreadRacer:
    """A racer in a thread of its own, with a handle that may be its own."""

    def __init__(self, store: Any, barrier: threading.Barrier) -> None:
        self._store = store
        self._barrier = barrier
        self._asks: queue.SimpleQueue[tuple[Ask, float] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def ask(self, ask: Ask, pause: float) -> None:
        self._asks.put((ask, pause))

    def answer(self) -> Any:
        return self._answers.get()

    def close(self) -> None:
        self._asks.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (asked := self._asks.get()) is not None:
            self._barrier.wait()
            time.sleep(asked[1])
            try:
                answer = asked[0].of(self._store)
            except Exception as failure:
                answer = failure
            self._answers.put(answer)


class ProcessRacer:
    """A racer in a process of its own, which opens the store there."""

    def __init__(self, url: str, tenant: str, barrier: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._end, far = context.Pipe()
        self._process = context.Process(
            target=_race_in_process, args=(url, tenant, barrier, far), daemon=True
        )
        self._process.start()

    @staticmethod
    def barrier(count: int) -> Any:
        """What the processes wait for together."""
        return multiprocessing.get_context("spawn").Barrier(count)

    def ask(self, ask: Ask, pause: float) -> None:
        self._end.send((ask, pause))

    def answer(self) -> Any:
        return self._end.recv()

    def close(self) -> None:
        self._end.send(None)
        self._process.join()


def _race_in_process(url: str, tenant: str, barrier: Any, end: Any) -> None:
    with holdfast.open_sync(url, tenant=tenant) as store:
        while (asked := end.recv()) is not None:
            barrier.wait()
            time.sleep(asked[1])
            try:
                end.send(asked[0].of(store))
            except Exception as failure:
                end.send(RuntimeError(repr(failure)))


class Arena:
    """The racers, and the handles with which rounds are set up and looked at."""

    def __init__(self, homes: Sequence[Any], racers: Sequence[Racer], seed: int) -> None:
        self._homes = homes
        self._racers = racers
        self._chance = random.Random(seed)

    def run(self, race: Race, rounds: int) -> None:
        """Run a race, and fail with every round that no order explains."""
        names = [f"{race.name}-{n}" for n in range(rounds)]
        wrong: list[str] = []
        for batch in [[name] for name in names] if race.alone else [names]:
            made = self._each(self._set_up, [(race, name) for name in batch])
            for one in made:
                one.answers = self.together(one.moves)
            found = self._each(self._explain, [(race, one) for one in made])
            wrong += [text for text in found if text]
            for session in race.sessions if race.alone else ():
                self._homes[0].sessions.delete(f"{batch[0]}{session}")
        if wrong:
            shown = "\n\n".join(wrong[:3])
            raise AssertionError(f"{race.name}: {len(wrong)} of {rounds} rounds\n{shown}")

    def together(self, asks: Sequence[Ask]) -> list[Any]:
        """Ask all at once, and wait for every answer."""
        for racer, ask in zip(self._racers, asks, strict=True):
            pause = self._chance.choice((0.0, self._chance.uniform(0, PAUSE_SECONDS)))
            racer.ask(ask, pause)
        return [racer.answer() for racer in self._racers]

    def _each(self, work: Callable[[Any, A], B], items: Iterable[A]) -> list[B]:
        homes = itertools.cycle(self._homes)
        with ThreadPoolExecutor(len(self._homes)) as pool:
            return list(pool.map(work, homes, list(items)))

    def _set_up(self, home: Any, item: tuple[Race, str]) -> Round:
        race, prefix = item
        settings: list[Ask] = []
        given: list[Any] = []
        ids: list[str] = []
        for ask in race.setting(prefix):
            settings.append(ask.made(given))
            answer = settings[-1].of(home)
            if isinstance(answer, BaseException):
                raise AssertionError(f"{race.name}: {ask} is refused: {answer!r}")
            for record in _given(answer):
                given.append(record)
                ids += _ids(record)
        return Round(prefix, settings, ids, race.moves(prefix, given))

    def _explain(self, home: Any, item: tuple[Race, Round]) -> str | None:
        race, one = item
        found = readings(home, race, one.prefix)
        if race.winners and sum(map(_won, one.answers)) not in race.winners:
            why = f"{sum(map(_won, one.answers))} winners"
        elif explained(race, one, found):
            return None
        else:
            why = "no order explains it"
        shown = [
            f"  {ask}\n    {answer!r}" for ask, answer in zip(one.moves, one.answers, strict=True)
        ]
        return "\n".join([f"{one.prefix}: {why}", *shown, *(f"  {row}" for row in found)])


def explained(race: Race, one: Round, found: list[Any]) -> bool:
    """Whether some order of the calls gives these answers and leaves this to be read."""
    told = race.told(list(zip(one.moves, one.answers, strict=True)))
    by_luck = sorted(range(len(one.moves)), key=lambda place: not _won(one.answers[place]))
    for order in itertools.permutations(by_luck):
        for leap in range(len(order) + 1) if race.lapses else (-1,):
            oracle, answers = _played(one, order, leap)
            model = race.told([(one.moves[place], answers[place]) for place in sorted(answers)])
            if model == told and readings(oracle, race, one.prefix) == found:
                return True
    return False


def _played(one: Round, order: Sequence[int], leap: int) -> tuple[Oracle, dict[int, Any]]:
    """The calls of a round in an order, on an oracle whose clock leaps before the one at `leap`.
    It is told who was given which session; who met only rivals has changed nothing."""
    unseen = (f"unseen-{number}" for number in itertools.count())
    clock = Ticker(0)
    oracle = Oracle(clock, itertools.chain(one.ids, unseen).__next__)
    for ask in one.settings:
        ask.of(oracle)
    answers: dict[int, Any] = {}
    for at, place in enumerate((*order, None)):
        if at == leap:
            clock.leap(LEAP_MS)
        if place is None:
            break
        real = one.answers[place]
        if isinstance(real, ClaimedNext):
            oracle.queue.told = None if real.lane is None else real.lane.session
            if real.why_not == "contended":
                answers[place] = real
                continue
        answers[place] = one.moves[place].of(oracle)
    return oracle, answers


def readings(store: Any, race: Race, prefix: str) -> list[Any]:
    """All there is to be read of the sessions, with every retained revision loaded, and of the
    processes."""
    found: list[Any] = []
    for process in (f"{prefix}{name}" for name in race.processes):
        asks = [
            Ask(f"processes.{name}", {"process": process})
            for name in ("get", "events", "lease", "grants_of", "wakes")
        ]
        found += [_plain(ask, ask.of(store)) for ask in asks]
    for session in (f"{prefix}{name}" for name in race.sessions):
        asks = [Ask(name, {"session": session}) for name in ("get", "graph", "read", "rows")]
        asks.append(Ask("totals", {"session": session}))
        asks += [Ask(f"queue.{name}", {"session": session}) for name in ("list", "counts")]
        revisions = Ask("revisions", {"session": session})
        page = revisions.of(store)
        found.append(_plain(revisions, page))
        for row in page.items:
            asks.append(Ask("load", {"session": session, "revision": row.revision}))
            if row.turn is not None:
                asks.append(Ask("receipt", {"session": session, "turn": row.turn}))
        found += [_plain(ask, ask.of(store)) for ask in asks]
    return found


def _given(answer: Any) -> list[Any]:
    """What an answer gives that later calls may refer to."""
    if isinstance(answer, Claimed | ClaimedNext | Enqueued):
        parts = (getattr(answer, name, None) for name in ("work", "claim", "lane"))
        return [part for part in parts if part is not None]
    if isinstance(answer, Appended):
        return [] if answer.event.work is None else [answer]
    return [answer] if isinstance(answer, Lane | Lease) else []


def _ids(record: Any) -> list[str]:
    """The names and tokens that a store made for what it gave, in the order it made them."""
    if isinstance(record, Work):
        return [record.work]
    if isinstance(record, Appended):
        return [str(record.event.work)]
    return [record.claim, record.token] if isinstance(record, Claim) else [record.token]


def _won(answer: Any) -> bool:
    """Whether the call changed something, as the one winner of a race does."""
    if isinstance(answer, BaseException):
        return False
    if isinstance(answer, Claimed | ClaimedNext):
        return answer.claim is not None
    flags = (("replayed", False), ("created", True), ("deleted", True), ("enqueued", True))
    for flag, value in flags:
        if hasattr(answer, flag):
            return bool(getattr(answer, flag) == value)
    return bool(getattr(answer, "nodes", answer))


def _plain(ask: Ask, answer: Any) -> Any:
    """An answer without what may differ."""
    if isinstance(answer, HoldfastError):
        mine = WORDS.get(type(answer), set())
        fields = {k: v for k, v in answer.fields.items() if k not in mine}
        return type(answer).__name__, _bare(fields)
    if isinstance(answer, BaseException):
        return repr(answer)
    if ask.name in YOUNGER and answer is not None:
        return getattr(answer, "created", True)
    if isinstance(answer, Enqueued):
        return answer.enqueued, answer.work.seq
    if isinstance(answer, ClaimedNext) and answer.claim is None:
        # What a store remembers of the past says why, and when to ask again.
        return "nothing"
    if ask.name == "totals":
        return sorted(repr(_bare(total)) for total in answer)
    return _bare(answer)


def _bare(value: Any) -> Any:
    """Plain data without times, tokens and names of states."""
    if isinstance(value, msgspec.Struct):
        fields = {key: getattr(value, key) for key in value.__struct_fields__}
        fields.pop(NAMES.get(type(value), ""), None)
        return type(value).__name__, _bare(fields)
    if isinstance(value, dict):
        return {
            key: _bare(inner)
            for key, inner in value.items()
            if key not in ("token", "before", "next") and not str(key).endswith("_ms")
        }
    if isinstance(value, tuple | list):
        return [_bare(inner) for inner in value]
    return value
