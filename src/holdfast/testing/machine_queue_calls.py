"""What the state machine may ask of a queue: calls, made from whatever makes the choices.

As with all calls, what depends on the moment is a mark in the call: the claim that was given last,
the work that stands first. Time passes in leaps, which end lanes, claims and delays at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.contract.queue import WEEK_MS
from holdfast.testing.machine_calls import (
    BODIES,
    HOUR_MS,
    OWNERS,
    SESSIONS,
    Call,
    Fresh,
    Live,
    Pick,
    nodes,
    proof,
    state,
    tenant,
)

KEYS = ("k0", "k1", "k2")
STATES = ("ready", "delayed", "claimed", "dead", "done")


@dataclass(frozen=True)
class Taken:
    """The session of a claim that was given, the latest being 0."""

    back: int


@dataclass(frozen=True)
class Held:
    """A claim that was given, the latest being 0, of those without a lane if `timed`; a `forged`
    one has another token."""

    back: int
    timed: bool = False
    forged: bool = False


@dataclass(frozen=True)
class Settled:
    """What a turn settles: what it may, or something that is not quite that."""

    how: str


@dataclass(frozen=True)
class Standing:
    """Work of the session, the first of its inbox being 0, of those in a state if one is named."""

    place: int
    state: str | None = None


@dataclass(frozen=True)
class Heads:
    """So many ids from the head of what can be claimed, or from behind it."""

    count: int
    skipped: int = 0


def session(pick: Pick) -> Any:
    """Mostly one of two that are there: much has to happen to one inbox."""
    return pick((*[Live(0)] * 12, *[Live(1)] * 4, *SESSIONS[1:4]))


def enqueue(pick: Pick) -> Call:
    plain = pick((True, True, False))
    args = {
        "session": session(pick),
        "payloads": pick((BODIES[:1], BODIES, ())),
        "key": pick((*[None, None, *KEYS] * 5, "process:first:event:1:wake")),
        "kind": "turn" if plain else pick(("turn", "command")),
        "delivery": "earliest" if plain else pick(("earliest", "after-turn")),
        "slot": "join" if plain else pick(("join", "join", "exclusive")),
        "merge": pick(("m", "m", None, "n")),
        "delay_ms": pick((0, 0, 0, 0, 0, HOUR_MS)),
        "available_at_ms": pick((0, 0, 0, 1)),
        "max_attempts": pick((None, None, 1, 2)),
        "keep_ms": pick((WEEK_MS, WEEK_MS, 0, HOUR_MS)),
    }
    return Call(tenant(pick), "queue.enqueue", args)


def take(pick: Pick) -> Call:
    """A claim, of a session that is named or of the next one."""
    if pick((False, False, True)):
        args: dict[str, Any] = {
            "owner": pick(OWNERS),
            "lane_ttl_ms": pick((HOUR_MS, HOUR_MS, 0)),
            "limit": pick((*[64] * 6, 2, 1, 0)),
        }
        return Call(tenant(pick), "queue.claim_next", args)
    works = (*[None] * 12, Heads(1), Heads(2), Heads(2), Heads(1, 1), Heads(0))
    args = {
        "session": session(pick),
        "owner": pick(OWNERS),
        "fence": proof(pick),
        "boundary": pick(("idle", "idle", "checkpoint")),
        "kind": pick(("any", "any", "turn", "command")),
        "limit": pick((*[64] * 8, 2, 2, 1, 0)),
        "works": pick(works),
        "ttl_ms": pick((HOUR_MS, HOUR_MS, 0)),
    }
    return Call(tenant(pick), "queue.claim", args)


SETTLED = tuple(
    Settled(how)
    for how in ("held", "held", "held", "held", "held", "latest", "part", "more", "forged", "twice")
)


def settle(pick: Pick) -> Call:
    """A turn that settles what is claimed."""
    args = {
        "session": pick((Taken(0), Taken(0), Taken(0), Taken(1), session(pick))),
        "turn": pick((Fresh(), Fresh(), Fresh(), "t0")),
        "nodes": pick(([], [], [], nodes(pick))),
        "state": pick(({}, {}, {}, state(pick))),
        "fence": proof(pick),
        "release": pick((False, False, True)),
        "claims": pick(SETTLED),
    }
    return Call(tenant(pick), "commit", args)


def keep(pick: Pick) -> Call:
    """What happens to work between its claim and its end."""
    name = pick(
        ("renew", "abandon", "abandon", "abandon", "cancel", "requeue", "requeue", "prune", "prune")
    )
    args: dict[str, Any] = {}
    if name in ("renew", "abandon"):
        forged = pick((False, False, False, False, False, True))
        args["claim"] = Held(pick((0, 0, 0, 0, 1)), name == "renew" and pick((True, False)), forged)
    elif name == "requeue":
        mark = pick((Standing(0, "dead"), Standing(0, "dead"), Standing(0), Standing(99)))
        args = {"session": session(pick), "work": mark}
    elif name == "cancel":
        args = {"session": session(pick), "work": Standing(pick((0, 0, 1, 2, 99)))}
    if name == "renew":
        args["ttl_ms"] = pick((HOUR_MS, 2 * HOUR_MS, 0))
    elif name == "abandon":
        args["error"] = pick((None, "it broke"))
        args["dead"] = pick((False, False, True))
    if name in ("abandon", "requeue"):
        args["delay_ms"] = pick((0, 0, HOUR_MS))
    return Call(tenant(pick), f"queue.{name}", args)


def peek(pick: Pick) -> Call:
    """A look at the queue that the readings after each step do not take."""
    name = pick(("why", "why", "why", "get", "list", "counts", "dead"))
    args: dict[str, Any] = {} if name == "dead" else {"session": session(pick)}
    if name == "why":
        args["boundary"] = pick(("idle", "checkpoint"))
        args["kind"] = pick(("any", "turn", "command"))
    elif name == "get":
        args["work"] = Standing(pick((0, 1, 99)))
    elif name == "list":
        args["states"] = pick((STATES[:1], STATES[1:3], STATES[3:], STATES))
    return Call(tenant(pick), f"queue.{name}", args)


def leap(pick: Pick) -> Call:
    """Time passes, for all tenants."""
    return Call(0, "leap", {"ms": 2 * HOUR_MS})


KINDS = {
    "enqueue": enqueue,
    "take": take,
    "settle": settle,
    "keep": keep,
    "peek": peek,
    "leap": leap,
}
"""The rules of the machine: each makes calls of one kind."""

WEIGHTS = {"enqueue": 26, "take": 22, "settle": 16, "keep": 12, "peek": 6, "leap": 2}
