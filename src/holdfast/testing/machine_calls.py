"""What the state machine may ask a store: calls, made from whatever makes the choices.

The alphabets are small, so that ids collide, forks are forked and turns are sent again. What
depends on the moment, such as the live fence or the revision before the current one, is a mark
in the call; the world puts the value in when the call is played.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from msgspec import UNSET

from holdfast.contract.records import NewNode, StateRef, Turn, Usage, WorkClaim

T = TypeVar("T")

SESSIONS = ("s0", "s1", "s2", "s3", "s4", "s5")
NODES = ("a", "b", "c", "d", "e", "f")
TURNS = ("t0", "t1", "t2")
OWNERS = ("ada", "bob")
NAMES = ("agent", "tools")
TAGS: tuple[dict[str, str] | None, ...] = (None, {"user": "ada"}, {"user": "bob", "kind": "demo"})
VALUES = (b"", b"one", b"two", b"long " * 400)
REFS = tuple(StateRef(digest=hashlib.sha256(value).hexdigest()) for value in VALUES)
NOWHERE = StateRef(digest="ab" * 32)
BODIES: tuple[Any, ...] = ("x", {"n": 1}, b"\x00raw")
USAGES = (
    Usage(model="large", input=1, output=2, cost_micros=3),
    Usage(model="small", source="tool", cache_read=4, cache_write=5, reasoning=6),
    Usage(model="large", input=7, cost_micros=8, currency="EUR"),
)
HOUR_MS = 3_600_000


class Pick(Protocol):
    """Whoever makes the choices: one of the options, the first being the plainest."""

    def __call__(self, options: Sequence[T], /) -> T: ...


@dataclass(frozen=True)
class Fresh:
    """A turn id that was not used before."""


@dataclass(frozen=True)
class Live:
    """A session that is there, the one used first being 0."""

    number: int


@dataclass(frozen=True)
class Seen:
    """A node the session can see, the one stored last being 0."""

    back: int


@dataclass(frozen=True)
class Step:
    """A revision, counted from the current one."""

    by: int


@dataclass(frozen=True)
class Proof:
    """A fence: the proper one for the moment (none where the lane is free), an earlier grant's, one
    that was never given, or that of another session."""

    kind: str = "proper"


@dataclass(frozen=True)
class Again:
    """A turn that was sent before, the latest being 0, with one thing changed; or the latest rewind
    or fork."""

    back: int
    change: str


@dataclass(frozen=True)
class Call:
    """One call on one of the tenants."""

    tenant: int
    name: str
    args: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.args.items())
        return f"{self.name}[{self.tenant}]({shown})"


PROOFS = (
    *[Proof()] * 16,
    None,
    *(Proof(kind) for kind in ("latest", "latest", "older", "forged", "foreign")),
)


def tenant(pick: Pick) -> int:
    return pick((0, 0, 0, 1))


def session(pick: Pick) -> Any:
    """Mostly one that is there; a name may be one that is not, or not any more."""
    live = [Live(number) for number in (0, 0, 0, 0, 1, 1, 1, 2, 2, 3)]
    return pick((*live, *SESSIONS[1:4]))


def node(pick: Pick) -> Any:
    """Often one that is there."""
    return pick((Seen(0), Seen(1), Seen(2), Seen(4), *NODES[:3], "f"))


def proof(pick: Pick) -> Proof | None:
    return pick(PROOFS)


def expected(pick: Pick) -> Step | None:
    return pick((None, None, None, None, Step(0), Step(0), Step(-1), Step(1)))


def place(pick: Pick) -> dict[str, Any]:
    """A place in the past of a session, or sometimes two."""
    return pick(
        (
            {"revision": Step(-1)},
            {"revision": Step(-2)},
            {"revision": 0},
            {"revision": 1},
            {"revision": Step(1)},
            {"node": node(pick)},
            {"node": node(pick)},
            {"node": node(pick)},
            {"node": node(pick)},
            {"node": "a", "revision": 0},
        )
    )


def nodes(pick: Pick) -> list[NewNode]:
    """Up to four nodes: a chain, branches within the turn, a named place, or a mistake."""
    made: list[NewNode] = []
    for number in range(pick((1, 1, 1, 2, 2, 3, 4, 0))):
        own = pick((*[None] * 8, *NODES))
        parent: Any = UNSET
        how = pick(("on", "on", "on", "on", "on", "side", "side", "root", "stored"))
        if number == 0 and how in ("side", "stored"):
            parent = node(pick)
        elif how == "root":
            parent = None if number == 0 else made[0].parent
        elif number and how == "side":
            named = [node.id for node in made if node.id is not None]
            parent = pick(named) if named else UNSET
        elif number and how == "stored":
            parent = pick((UNSET, UNSET, UNSET, "a", "f"))
        made.append(
            NewNode(id=own, body=pick(BODIES), kind=pick(("message", "note")), parent=parent)
        )
    return made


def state(pick: Pick) -> dict[str, Any]:
    wanted = pick(((), (), NAMES[:1], NAMES[1:], NAMES))
    return {name: pick((*VALUES, *VALUES, None, None, *REFS, *REFS, NOWHERE)) for name in wanted}


def turn(pick: Pick) -> dict[str, Any]:
    """The parts of a turn; `turn` may be the mark of a fresh id."""
    made = nodes(pick)
    leaf: Any = UNSET
    if not made:
        leaf = pick((UNSET, UNSET, None, node(pick), node(pick)))
    elif pick((False, False, False, False, True)):
        leaf = pick([node.id or UNSET for node in made])
    claim = WorkClaim(claim="c", token="k", work=("w",))
    return {
        "turn": pick((Fresh(), Fresh(), Fresh(), Fresh(), None, *TURNS)),
        "nodes": made,
        "leaf": leaf,
        "state": state(pick),
        "usage": pick(((), (), (), USAGES[:1], USAGES[1:], USAGES)),
        "expected": expected(pick),
        "fence": proof(pick),
        "release": pick((False, False, False, True)),
        "claims": pick((*[()] * 30, (claim,))),
        "attachments": pick((*[()] * 30, ("cd" * 32,))),
    }


def commit(pick: Pick) -> Call:
    return Call(tenant(pick), "commit", {"session": session(pick), **turn(pick)})


CHANGES = (
    *("same", "same", "same", "expected", "fence", "release", "ids"),
    *("body", "state", "usage", "leaf", "rewind", "rewind", "fork", "fork"),
)


def again(pick: Pick) -> Call:
    return Call(tenant(pick), "again", {"turn": Again(pick((0, 0, 1, 2, 5)), pick(CHANGES))})


def create(pick: Pick) -> Call:
    return Call(
        tenant(pick),
        "create",
        {"session": pick(SESSIONS), "title": pick(("", "one")), "tags": pick(TAGS)},
    )


def fork(pick: Pick) -> Call:
    at = {} if pick((True, True, False)) else place(pick)
    args = {"source": session(pick), "session": pick(SESSIONS), **at, "tags": pick(TAGS)}
    return Call(tenant(pick), "fork", args)


def rewind(pick: Pick) -> Call:
    args = {
        "session": session(pick),
        "turn": pick((Fresh(), Fresh(), Fresh(), None, *TURNS)),
        **place(pick),
        "reason": pick(("again", "no")),
        "expected": expected(pick),
        "fence": proof(pick),
    }
    return Call(tenant(pick), "rewind", args)


def delete(pick: Pick) -> Call:
    return Call(tenant(pick), "delete", {"session": session(pick)})


def update(pick: Pick) -> Call:
    tags: Any = pick((None, {"user": "eve"}, {"user": None, "new": "1"}))
    title = pick((None, "two"))
    return Call(tenant(pick), "update", {"session": session(pick), "title": title, "tags": tags})


def hide(pick: Pick) -> Call:
    if pick((False, False, True)):
        return Call(tenant(pick), "vacuum", {"session": session(pick)})
    ids = pick(([node(pick)], [node(pick), node(pick)], list(NODES[:2]), []))
    return Call(tenant(pick), "tombstone", {"session": session(pick), "nodes": ids})


def lane(pick: Pick) -> Call:
    name = pick(("claim", "claim", "claim", "renew", "release", "release", "displace"))
    ttl_ms = pick((HOUR_MS, HOUR_MS, 0, 2 * HOUR_MS))
    args: dict[str, Any] = {}
    if name == "claim":
        args = {"session": session(pick), "owner": pick(OWNERS), "ttl_ms": ttl_ms}
    elif name == "displace":
        args = {"session": session(pick)}
    else:
        kinds = ("latest", "latest", "latest", "older", "forged")
        args = {"fence": Proof(pick(kinds)), "session": session(pick)}
        if name == "renew":
            args["ttl_ms"] = ttl_ms
    return Call(tenant(pick), name, args)


def read(pick: Pick) -> Call:
    """A read that the readings after each step do not make."""
    name = pick(("load", "load", "load", "node", "receipt", "diff", "diff", "list", "totals"))
    at = session(pick)
    args: dict[str, Any] = {"session": at}
    if name == "load":
        how: tuple[dict[str, Any], ...] = (
            {"leaf": node(pick)},
            {"revision": Step(-1)},
            {"revision": Step(1)},
            {"revision": 0, "tail": 2},
            {"before": node(pick), "tail": 2},
            {"tail": pick((1, 2, 3))},
            {"leaf": node(pick), "tail": 1},
        )
        args |= {**pick(how), "state": pick((True, True, False))}
    elif name == "node":
        args["node"] = node(pick)
    elif name == "receipt":
        args["turn"] = pick(TURNS)
    elif name == "diff":
        args = {"left": at, "right": session(pick)}
    elif name == "list":
        args = {"tags": pick(TAGS), "order": pick(("active", "created"))}
        args |= {"forked_from": pick((None, None, at))}
    elif name == "totals":
        groups = ("session", "source", "model", "day")
        by = pick((groups[:1], (), groups[1:3], groups, groups[3:]))
        args = {"session": pick((None, at)), "by": by, "until_day": pick((None, None, None, 0))}
    return Call(tenant(pick), name, args)


KINDS: dict[str, Callable[[Pick], Call]] = {
    "commit": commit,
    "again": again,
    "create": create,
    "fork": fork,
    "rewind": rewind,
    "delete": delete,
    "update": update,
    "hide": hide,
    "lane": lane,
    "read": read,
}
"""The rules of the machine: each makes calls of one kind."""

WEIGHTS = {
    "commit": 40,
    "again": 8,
    "create": 6,
    "fork": 9,
    "rewind": 6,
    "delete": 3,
    "update": 2,
    "hide": 6,
    "lane": 12,
    "read": 8,
}


def built(args: dict[str, Any]) -> Turn:
    """The turn of a commit, once the marks have been replaced."""
    return Turn(**args)
