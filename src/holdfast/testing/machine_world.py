"""The world of the state machine: real stores and their oracles, asked the same and compared.

A call is asked of both with the same values, and the answers are compared at once; what later
calls refer to, such as a lease that was given, is remembered for each side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET

from holdfast.contract.errors import HoldfastError
from holdfast.contract.processes import PrunedProcesses
from holdfast.contract.queue import Claim, Claimed, ClaimedNext, NewWork
from holdfast.contract.records import Deleted, Fence, History, NewNode, Node, Turn, WorkClaim
from holdfast.contract.triggers import PrunedOccurrences
from holdfast.testing.machine_calls import Again, Call, Fresh, Live, Proof, Seen, Step, built
from holdfast.testing.machine_compare import Comparison, Differs
from holdfast.testing.machine_process_world import (
    ENDED,
    ProcessSide,
    glances,
    looks,
    process_kind,
    studies,
    walks,
)
from holdfast.testing.machine_queue_calls import Heads, Held, Settled, Standing, Taken
from holdfast.testing.machine_schedule_world import (
    ScheduleSide,
    schedule_glances,
    schedule_kind,
    schedule_looks,
    schedule_walks,
    skip_reasons,
)
from holdfast.testing.machine_trigger_world import (
    TriggerSide,
    trigger_glances,
    trigger_kind,
    trigger_looks,
    trigger_walks,
)
from holdfast.testing.oracle import Oracle

FACADES = {
    **dict.fromkeys(("create", "get", "list", "update", "delete", "head", "commit"), "sessions"),
    **dict.fromkeys(("receipt", "fork", "rewind", "revisions", "diff"), "sessions"),
    **dict.fromkeys(("load", "node", "graph", "tombstone", "vacuum"), "history"),
    **dict.fromkeys(("claim", "renew", "release", "read", "displace"), "lanes"),
    **dict.fromkeys(("totals", "rows"), "usage"),
}
"""Where a method is; those of the queue, of processes, of triggers and of schedules, of which some
have names of others, are named with it."""

NUMBERED = {"processes.events", "processes.wakes"}
"""The listings whose cursor is a number that may also be named."""


class Ticker:
    """A clock that stands still during a call, and leaps only when it is told to. A store goes by
    the same one, or by one that `strays_ms` from it at most."""

    strays_ms = 0

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def go_on(self) -> None:
        """Something happens after something else."""
        self.now_ms += 1

    def leap(self, ms: int) -> None:
        self.now_ms += ms


class Minter:
    """Ids for a store, in a fixed order; the oracle is given those of a call once more."""

    def __init__(self) -> None:
        self.count = 0
        self._given: list[str] = []

    def __call__(self) -> str:
        self.count += 1
        self._given.append(f"id-{self.count}")
        return self._given[-1]

    def begin(self) -> None:
        """From here on another call is made."""
        self._given.clear()

    def again(self) -> str:
        """The next of the ids that the call was given."""
        return self._given.pop(0) if self._given else "none"


def method_of(target: Any, name: str) -> Callable[..., Any]:
    """The method of a store, or of an oracle, that a call names."""
    facade, dot, method = name.partition(".")
    if dot:
        target = getattr(target, facade)
    elif not isinstance(target, Oracle):
        target = getattr(target, FACADES[name])
    found: Callable[..., Any] = getattr(target, method or name)
    return found


@dataclass
class Side:
    """One tenant: the store's view of it, its oracle, and what calls have left to refer to."""

    store: Any
    oracle: Oracle
    fences: dict[str, list[Fence]] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    own_claims: dict[str, Claim] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    latest: dict[str, dict[str, Any]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    known: list[str] = field(default_factory=list)
    processes: ProcessSide = field(init=False)
    triggers: TriggerSide = field(init=False)
    schedules: ScheduleSide = field(init=False)


class World:
    """Plays calls on stores and oracles, and compares. In a `certain` world nothing is asked whose
    answer the contract leaves open, so that two stores are left with the same rows."""

    def __init__(
        self,
        open_tenant: Callable[[int], Any],
        clock: Ticker,
        minter: Minter,
        *,
        tenants: int = 2,
        certain: bool = False,
    ) -> None:
        self.clock = clock
        self.minter = minter
        self.certain = certain
        minter.count = 0
        self.sides = [
            Side(open_tenant(number), Oracle(clock, minter.again)) for number in range(tenants)
        ]
        for side in self.sides:
            live = partial(self._live, side)
            side.processes = ProcessSide(side.oracle, certain, live, clock)
            side.triggers = TriggerSide(side.oracle, certain, live, clock, self._fresh_name)
            side.schedules = ScheduleSide(side.oracle, certain, clock)
            side.oracle.schedules.strays_ms = clock.strays_ms
            side.oracle.schedules.goes_on = clock.go_on
        self.seen: Counter[str] = Counter()
        self.log: list[str] = []
        self._fresh = 0
        self._comparison = Comparison()

    # --- playing

    def play(self, call: Call) -> str:
        """Make the call on both, compare, and say what kind of outcome it had."""
        self.clock.go_on()
        side = self.sides[call.tenant]
        if call.name == "leap":
            self.clock.leap(call.args["ms"])
            return "leap"
        made = self._made(side, call)
        if made is None:
            return "nothing"
        name, args = made
        self.log.append(f"[{call.tenant}] {name} {args}")
        return self._ask(side, name, args)

    def _ask(self, side: Side, name: str, args: dict[str, Any]) -> str:
        called = dict(args)
        positional = [args.pop("it")] if "it" in args else []
        self.minter.begin()
        own = dict(args)
        if name == "processes.changes":
            own["after"], args["after"] = side.processes.cursors(args.get("after"))
        ended: dict[str, int] = {}
        if name == "processes.prune":
            there = side.store.processes.list(which=ENDED).items
            ended = {process.process: process.updated_at_ms for process in there}
        real = _outcome(method_of(side.store, name), positional, args)
        args = own
        if isinstance(real, ClaimedNext):
            side.oracle.queue.told = None if real.lane is None else real.lane.session
        if isinstance(real, PrunedProcesses):
            side.oracle.processes.told = real.processes
            side.processes.require_oldest(ended, real.processes)
        if isinstance(real, PrunedOccurrences):
            side.oracle.triggers.told = real.occurrences
        side.oracle.schedules.told = real
        presented = args.get("claim")
        if presented is not None and presented.claim in side.own_claims:
            # The oracle has times of its own, and is shown its own claim.
            mine = side.own_claims[presented.claim]
            args = {**args, "claim": msgspec.structs.replace(mine, token=presented.token)}
        model = _outcome(method_of(side.oracle, name), positional, args)
        self._compare(side, name, called, model, real)
        self._remember(side, name, args, model, real)
        kind = f"{name}: {_kind(name, real)}"
        if positional and isinstance(positional[0], Turn) and positional[0].claims:
            kind = kind.replace("commit: replayed False", "commit: settled")
        self.seen[kind] += 1
        if isinstance(real, Deleted):
            for told in ("orphaned", "preserved"):
                self.seen[f"{name}: {told}"] += len(getattr(real, told))
            self.seen[f"{name}: subscriptions"] += real.subscriptions
        if name.startswith("schedules."):
            self.seen.update(f"skipped: {reason}" for reason in skip_reasons(real))
        return kind

    def _remember(self, side: Side, name: str, args: dict[str, Any], model: Any, real: Any) -> None:
        """What later calls refer to."""
        if isinstance(real, HoldfastError):
            return
        if name.startswith("processes."):
            side.processes.remember(name, model, real)
            return
        if name.startswith("triggers."):
            side.triggers.remember(args, real)
            return
        if name.startswith("schedules."):
            side.triggers.at = (side.oracle.triggers.happened("any") or [side.triggers.at])[-1]
            return
        lane = real if name in ("claim", "renew") else getattr(real, "lane", None)
        if lane is not None:
            side.fences.setdefault(lane.session, []).append(lane.fence)
        claim = real if name == "queue.renew" else getattr(real, "claim", None)
        if isinstance(claim, Claim):
            side.claims.append(claim)
            side.own_claims[claim.claim] = model if name == "queue.renew" else model.claim
        if name in ("create", "fork") and args.get("session") not in side.known:
            side.known.append(args["session"])

    def _made(self, side: Side, call: Call) -> tuple[str, dict[str, Any]] | None:
        """The call with its marks replaced by values of the moment."""
        name, args = call.name, dict(call.args)
        if name.startswith("processes."):
            return side.processes.made(name, args)
        if name.startswith("triggers."):
            return side.triggers.made(name, args)
        if name.startswith("schedules."):
            return side.schedules.made(name, args)
        if name == "again":
            mark: Again = args["turn"]
            if mark.change in side.latest:
                return mark.change, dict(side.latest[mark.change])
            if not side.turns:
                return None
            sent = side.turns[-1 - mark.back % len(side.turns)]
            return "commit", {"it": self._changed(side, sent, mark.change)}
        for key, value in args.items():
            if isinstance(value, Live):
                args[key] = self._live(side, value.number)
            elif isinstance(value, Taken):
                args[key] = _session_of_claim(side, value)
        session = args.get("source", args.get("session")) or "s0"
        head = side.oracle.head(session)
        revision = 0 if head is None else head.revision
        nodes = side.oracle.graph(session).items
        for key, value in args.items():
            if isinstance(value, Seen):
                args[key] = _seen(nodes, value)
            elif key == "nodes":
                args[key] = [_named(nodes, node) for node in value]
            elif isinstance(value, Fresh):
                args[key] = self._fresh_name()
            elif isinstance(value, Step):
                args[key] = max(0, revision + value.by)
            elif isinstance(value, Proof):
                args[key] = self._fence(side, session, value.kind)
            elif isinstance(value, Held | Settled | Standing | Heads):
                args[key] = _of_queue(side, session, value)
        if name == "queue.enqueue":
            return name, {"it": NewWork(**args)}
        if name == "queue.claim_next":
            queue = side.oracle.queue
            open_choice = self.certain and len(queue.choices()) > 1
            return None if open_choice or queue.undecided() else (name, args)
        if name.startswith("queue."):
            return name, args
        if name in ("renew", "release"):
            del args["session"]
            return name, args
        if name == "commit":
            turn = built(args)
            if turn.turn is not None:
                side.turns.append(turn)
            return name, {"it": turn}
        side.latest[name] = dict(args)
        return name, args

    def _fresh_name(self) -> str:
        self._fresh += 1
        return f"u{self._fresh}"

    def _live(self, side: Side, number: int) -> str:
        live = side.oracle.live_sessions()
        return live[number % len(live)].id if live else "s0"

    def _fence(self, side: Side, session: str, kind: str) -> Fence | None:
        forged = Fence(session=session, owner="ada", token="forged", generation=1)
        held = side.fences.get(session, [])
        if kind == "proper":
            status = side.oracle.read(session)
            return held[-1] if status is not None and status.live and held else None
        if kind == "foreign":
            others = [
                fence for name, own in side.fences.items() for fence in own if name != session
            ]
            return others[-1] if others else msgspec.structs.replace(forged, session="other")
        if kind == "forged" or not held:
            return msgspec.structs.replace(held[-1], token="forged") if held else forged
        return held[-1] if kind == "latest" else held[max(0, len(held) - 2)]

    def _changed(self, side: Side, turn: Turn, change: str) -> Turn:
        """The same turn, or one that differs in one thing."""
        replace = msgspec.structs.replace
        nodes = list(turn.nodes)
        if change == "expected":
            return replace(turn, expected=0)
        if change == "fence":
            return replace(turn, fence=self._fence(side, turn.session, "older"))
        if change == "release":
            return replace(turn, fence=self._fence(side, turn.session, "latest"), release=True)
        if change == "ids" and len(nodes) == 1 and turn.leaf is UNSET:
            return replace(turn, nodes=[replace(nodes[0], id="renamed")])
        if change == "body":
            return replace(turn, nodes=[*nodes[:-1], NewNode(body="changed")])
        if change == "state":
            return replace(turn, state={**turn.state, "agent": b"changed"})
        if change == "usage":
            return replace(turn, usage=turn.usage[1:])
        if change == "leaf" and not nodes:
            return replace(turn, leaf="a")
        return turn

    # --- comparing

    def _compare(self, side: Side, name: str, args: dict[str, Any], model: Any, real: Any) -> None:
        try:
            self._comparison.compare(side.names, name, args, model, real)
        except Differs as difference:
            told = "\n  ".join(self.log[-40:])
            raise Differs(
                f"{name}: {difference}\noracle: {model!r}\nstore:  {real!r}\nafter\n  {told}"
            ) from (real if isinstance(real, BaseException) else None)

    # --- reading back

    def glance(self, call: Call) -> None:
        """Read something of what a call was about, each time something else."""
        side = self.sides[call.tenant]
        if call.name.startswith("processes."):
            self._ask(side, *glances(side.processes.at, len(self.log)))
            return
        if call.name.startswith("triggers."):
            self._ask(side, *trigger_glances(side.triggers.at, len(self.log)))
            return
        if call.name.startswith("schedules."):
            at = (side.schedules.at, side.triggers.at)
            self._ask(side, *schedule_glances(*at, len(self.log)))
            return
        session = call.args.get("session") or "s0"
        if isinstance(session, Live):
            session = self._live(side, session.number)
        elif isinstance(session, Taken):
            session = _session_of_claim(side, session)
        names = ["load", "queue.list", "head", "graph", "get", "load", "revisions", "queue.counts"]
        names += ["read", "queue.list", "rows"]
        self._ask(side, names[len(self.log) % len(names)], {"session": session})

    def look(self) -> None:
        """Read what there is of every tenant, once."""
        for side in self.sides:
            for session in side.known:
                for name in ("load", "graph", "revisions", "queue.list", "queue.why"):
                    self._ask(side, name, {"session": session})
            self._ask(side, "queue.dead", {})
            self._ask(side, "queue.counts", {})
            self._ask(side, "list", {})
            self._ask(side, "totals", {"by": ("session", "source", "model")})
            happened = side.oracle.triggers.happened("any")
            for name, args in (
                *looks(side.oracle.processes.named("any")),
                *trigger_looks(happened),
                *schedule_looks(side.schedules.known),
            ):
                self._ask(side, name, args)

    def study(self) -> None:
        """Read everything of every tenant, whole and in pages, and every retained revision."""
        self.look()
        for side in self.sides:
            for session in side.known:
                for name in ("get", "head", "rows", "read"):
                    self._ask(side, name, {"session": session})
                for row in side.oracle.revisions(session).items[::-1]:
                    self._ask(side, "load", {"session": session, "revision": row.revision})
                self._walk(side, "graph", {"session": session, "limit": 2})
                self._walk(side, "rows", {"session": session, "limit": 1})
                self._walk(side, "revisions", {"session": session, "limit": 3})
                self._walk(side, "queue.list", {"session": session, "limit": 2})
                self._climb(side, session)
            for left, right in zip(side.known, side.known[1:], strict=False):
                self._ask(side, "diff", {"left": left, "right": right})
            self._ask(side, "list", {"order": "created"})
            self._walk(side, "list", {"limit": 2})
            self._walk(side, "queue.dead", {"limit": 1})
            processes = side.oracle.processes
            for name, args in studies(processes.named("any"), side.known):
                self._ask(side, name, args)
            happened = side.oracle.triggers.happened("any")
            for name, args in (
                *walks(processes.named("kept"), side.known),
                *trigger_walks(happened),
                *schedule_walks(side.oracle.schedules.named()),
            ):
                self._walk(side, name, args)

    def _walk(self, side: Side, name: str, args: dict[str, Any]) -> None:
        """Page after page, the listing is the whole listing."""
        method = method_of(side.store, name)
        items: list[Any] = []
        after: str | None = None
        while True:
            begin = {} if after is None else {"after": int(after) if name in NUMBERED else after}
            page: Any = method(**args, **begin)
            items += page.items
            # A feed says where its next reading begins, and beside it whether there is more.
            after = page.next if getattr(page, "more", True) else None
            if after is None or len(items) > 1000:
                break
        whole = msgspec.structs.replace(page, items=tuple(items))
        model = method_of(side.oracle, name)(**{**args, "limit": 1000})
        self._compare(side, name, args, model, whole)

    def _climb(self, side: Side, session: str) -> None:
        """Page above page, the path is the whole path."""
        page: History | None = side.store.history.load(session, tail=2)
        ids: list[str] = []
        while page is not None:
            ids[:0] = [node.id for node in page.nodes]
            if page.before is None:
                break
            page = side.store.history.load(session, tail=2, before=page.before)
        model = side.oracle.load(session)
        if model is not None and [node.id for node in model.nodes] != ids:
            raise Differs(f"{session}: the pages of the path are {ids}, {self.log[-40:]}")


def _session_of_claim(side: Side, mark: Taken) -> str:
    return side.claims[-1 - mark.back % len(side.claims)].session if side.claims else "s0"


def _of_queue(side: Side, session: str, mark: Held | Settled | Standing | Heads) -> Any:
    """What a mark of the queue stands for."""
    replace = msgspec.structs.replace
    queue = side.oracle.queue
    if isinstance(mark, Held):
        none = Claim(
            session="s0", claim="none", token="none", owner="ada", generation=None,
            claimed_at_ms=0, expires_at_ms=0, work=(),
        )  # fmt: skip
        claims = [claim for claim in side.claims if not (mark.timed and claim.generation)]
        claim = claims[-1 - mark.back % len(claims)] if claims else none
        return replace(claim, token="forged") if mark.forged else claim
    if isinstance(mark, Standing):
        there = [
            work
            for work in queue.list(session, limit=1000).items
            if mark.state in (None, work.state)
        ]
        return there[mark.place].work if mark.place < len(there) else "nowhere"
    if isinstance(mark, Heads):
        ready = queue.list(session, states=("ready",), limit=1000).items
        names = [work.work for work in ready][mark.skipped : mark.skipped + mark.count]
        return names or ["nowhere"] * mark.count
    given = [claim for claim in side.claims if claim.session == session]
    settled = {claim.claim: claim.settlement for claim in given if queue.holds(claim)}
    if mark.how == "held" or not given:
        return tuple(settled.values())
    latest = given[-1].settlement
    if mark.how == "part":
        latest = replace(latest, work=latest.work[1:])
    elif mark.how == "more":
        latest = replace(latest, work=(*latest.work, "nowhere"))
    elif mark.how == "forged":
        latest = replace(latest, token="forged")
    elif mark.how == "twice":
        return (latest, WorkClaim(claim="other", token="k", work=latest.work))
    return (latest,)


def _seen(nodes: Sequence[Node], mark: Any) -> Any:
    """What a mark of a node stands for; anything else stands for itself."""
    if not isinstance(mark, Seen):
        return mark
    return nodes[-1 - mark.back % len(nodes)].id if nodes else "a"


def _named(nodes: Sequence[Node], node: Any) -> Any:
    if isinstance(node, NewNode):
        return msgspec.structs.replace(node, parent=_seen(nodes, node.parent))
    return _seen(nodes, node)


def _outcome(method: Callable[..., Any], positional: Sequence[Any], args: dict[str, Any]) -> Any:
    try:
        return method(*positional, **args)
    except HoldfastError as refusal:
        return refusal


def _kind(name: str, real: Any) -> str:
    """What kind of outcome it was, for the count of what was covered."""
    if isinstance(real, HoldfastError):
        return real.code
    told = process_kind(name, real) if name.startswith("processes.") else None
    if name.startswith("triggers."):
        told = trigger_kind(name, real)
    if name.startswith("schedules."):
        told = schedule_kind(name, real)
    if told is not None:
        return told
    if isinstance(real, Claimed | ClaimedNext):
        if real.claim is None:
            return real.why_not or "free"
        return "redelivered" if real.claim.redelivered else "taken"
    for flag in ("replayed", "created", "deleted", "enqueued"):
        if hasattr(real, flag):
            return f"{flag} {getattr(real, flag)}"
    if getattr(real, "displaced", None) is not None:
        return "displaced"
    if isinstance(real, bool | int):
        return str(bool(real))
    return "nothing" if real is None else "answer"
