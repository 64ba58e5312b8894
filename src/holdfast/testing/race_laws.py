"""The laws of the races: one for every guarded statement, and for every pair of them that may meet.

In each round four callers ask at the same moment. `winners` says how many of them may change
something; a race without it is judged by the orders that explain it alone. Where a session is
deleted the content is the round's own, because what a delete frees depends on all others.
"""

from __future__ import annotations

import hashlib
from typing import Any

from holdfast.contract.records import Lane, NewNode, StateRef, Turn, Usage
from holdfast.testing.races import Ask, Race

HOUR_MS = 3_600_000
USED = (Usage(model="m", input=1),)


def create(session: str, **how: Any) -> Ask:
    return Ask("create", {"session": session, **how})


def turn(session: str, name: str, *nodes: str, **how: Any) -> Ask:
    made = [NewNode(id=node, body=node) for node in nodes]
    return Ask("commit", {"turn": Turn(session=session, turn=name, nodes=made, usage=USED, **how)})


def ref(content: str) -> StateRef:
    return StateRef(digest=hashlib.sha256(content.encode()).hexdigest())


def lane(session: str, owner: str = "ada", ttl_ms: int = HOUR_MS) -> Ask:
    return Ask("claim", {"session": session, "owner": owner, "ttl_ms": ttl_ms})


def on(name: str, session: str, **how: Any) -> Ask:
    return Ask(name, {"session": session, **how})


def one(s: str) -> list[Ask]:
    """A session with one turn."""
    return [create(s), turn(s, "t0", "a", "b", state={"agent": f"{s} 0".encode()})]


def two(s: str) -> list[Ask]:
    """A session of two turns."""
    return [*one(s), turn(s, "t00", "c", state={"agent": f"{s} 1".encode()})]


def held(s: str) -> list[Ask]:
    return [*one(s), lane(s)]


def lapsed(s: str) -> list[Ask]:
    return [*one(s), lane(s, ttl_ms=0)]


def hidden(s: str) -> list[Ask]:
    return [*two(s), on("tombstone", s, nodes=["a", "b"])]


def family(s: str) -> list[Ask]:
    """A session, a fork of it, and a fork of that."""
    return [
        *one(s),
        Ask("fork", {"source": s, "session": f"{s}-f"}),
        turn(f"{s}-f", "t1", "d", state={"tools": f"{s} f".encode()}),
        Ask("fork", {"source": f"{s}-f", "session": f"{s}-g"}),
        turn(f"{s}-g", "t2", "e"),
    ]


def _same_turn(s: str, lanes: list[Lane]) -> list[Ask]:
    return [turn(s, "t1", "x", "y", state={"agent": b"1"})] * 4


def _same_empty(s: str, lanes: list[Lane]) -> list[Ask]:
    return [turn(s, "t1")] * 4


def _one_revision(s: str, lanes: list[Lane]) -> list[Ask]:
    return [turn(s, f"t{n}", f"n{n}", expected=1) for n in range(1, 5)]


def _no_revision(s: str, lanes: list[Lane]) -> list[Ask]:
    return [turn(s, f"t{n}", f"n{n}", state={f"c{n}": b"v"}) for n in range(1, 5)]


def _displaced(s: str, lanes: list[Lane]) -> list[Ask]:
    fence = lanes[0].fence
    return [
        turn(s, "t1", "x", fence=fence),
        on("displace", s),
        turn(s, "t2", "y", fence=fence, release=True),
        lane(s, "bob"),
    ]


def _renewed(s: str, lanes: list[Lane]) -> list[Ask]:
    fence = lanes[0].fence
    return [
        turn(s, "t1", "x", fence=fence),
        Ask("renew", {"fence": fence}),
        Ask("release", {"fence": fence}),
        turn(s, "t2", "y", fence=fence),
    ]


def _deleted(s: str, lanes: list[Lane]) -> list[Ask]:
    commits = [turn(s, f"t{n}", f"n{n}", state={"agent": f"{s} x".encode()}) for n in (1, 2)]
    return [*commits, on("delete", s), on("delete", s)]


def _rewound(s: str, lanes: list[Lane]) -> list[Ask]:
    return [
        turn(s, "t1", "x"),
        on("rewind", s, turn="r1", revision=0, reason="again"),
        turn(s, "t2", "y", expected=1),
        on("rewind", s, turn="r2", node="a", reason="again", expected=1),
    ]


def _hidden_meanwhile(s: str, lanes: list[Lane]) -> list[Ask]:
    branch = [NewNode(id="x", body="x", parent="b"), NewNode(id="y", body="y")]
    return [
        Ask("commit", {"turn": Turn(session=s, turn="t1", nodes=branch)}),
        on("tombstone", s, nodes=["b"]),
        on("vacuum", s),
        Ask("commit", {"turn": Turn(session=s, turn="t2", leaf="b")}),
    ]


def _same_nodes(s: str, lanes: list[Lane]) -> list[Ask]:
    return [turn(s, f"t{n}", f"n{n}", "x") for n in range(1, 5)]


def _same_content(s: str, lanes: list[Lane]) -> list[Ask]:
    """Four sessions, each with the same content under other names."""
    content = [f"{s} {n}".encode() * 60 for n in range(4)]
    return [
        turn(f"{s}-{n}", "t1", state={f"c{m}": content[(m + n) % 4] for m in range(4)})
        for n in range(4)
    ]


def _last_owner(s: str, lanes: list[Lane]) -> list[Ask]:
    return [
        turn(f"{s}-1", "t1", state={"copy": ref(f"{s} 0")}),
        on("delete", s),
        turn(f"{s}-2", "t1", state={"copy": ref(f"{s} 0")}),
        turn(f"{s}-3", "t1", state={"copy": f"{s} 0".encode()}),
    ]


def _forked_meanwhile(s: str, lanes: list[Lane]) -> list[Ask]:
    return [
        Ask("fork", {"source": s, "session": f"{s}-f"}),
        on("delete", s),
        Ask("fork", {"source": s, "session": f"{s}-g", "node": "a"}),
        turn(s, "t1", "x", state={"agent": f"{s} x".encode()}),
    ]


def _both_sides(s: str, lanes: list[Lane]) -> list[Ask]:
    return [
        turn(s, "t1", "x"),
        turn(f"{s}-f", "t2", "x"),
        turn(s, "t3", "y"),
        turn(f"{s}-f", "t4", "y"),
    ]


def _updated(s: str, lanes: list[Lane]) -> list[Ask]:
    return [on("update", s, title=f"n{n}", tags={f"new{n}": "x"}) for n in range(4)]


def _family_gone(s: str, lanes: list[Lane]) -> list[Ask]:
    return [on("delete", s), on("delete", f"{s}-g"), on("delete", f"{s}-f"), on("delete", s)]


def _same_fork(s: str, lanes: list[Lane]) -> list[Ask]:
    return [Ask("fork", {"source": s, "session": f"{s}-f", "title": f"n{n}"}) for n in range(4)]


def _other_fork(s: str, lanes: list[Lane]) -> list[Ask]:
    places: list[dict[str, Any]] = [{"revision": 1}, {"revision": 2}, {"revision": 0}]
    forks = [Ask("fork", {"source": s, "session": f"{s}-f", **place}) for place in places]
    return [*forks, create(f"{s}-f")]


def _rewind_one(s: str, lanes: list[Lane]) -> list[Ask]:
    return [
        on("rewind", s, turn=f"r{n}", revision=n % 2, reason="again", expected=2) for n in range(4)
    ]


def _same_rewind(s: str, lanes: list[Lane]) -> list[Ask]:
    return [on("rewind", s, turn="r", revision=1, reason="again")] * 4


def _tombstoned(s: str, lanes: list[Lane]) -> list[Ask]:
    return [on("tombstone", s, nodes=nodes) for nodes in (["a", "b"], ["b", "c"], ["c"], ["a"])]


def _claimed(s: str, lanes: list[Lane]) -> list[Ask]:
    return [lane(s, f"o{n}") for n in range(4)]


def _rotated(s: str, lanes: list[Lane]) -> list[Ask]:
    fence = lanes[0].fence
    renew = Ask("renew", {"fence": fence})
    return [renew, lane(s), renew, on("displace", s)]


def _released(s: str, lanes: list[Lane]) -> list[Ask]:
    return [Ask("release", {"fence": lanes[0].fence})] * 4


def _handed_over(s: str, lanes: list[Lane]) -> list[Ask]:
    fence = lanes[0].fence
    return [
        Ask("release", {"fence": fence}),
        lane(s, "bob"),
        lane(s, "eve"),
        Ask("renew", {"fence": fence}),
    ]


def _all_displaced(s: str, lanes: list[Lane]) -> list[Ask]:
    return [on("displace", s)] * 4


OWN = ("",)
FORK = ("", "-f")
FAMILY = ("", "-f", "-g")
FOUR = ("", "-1", "-2", "-3")

RACES = (
    Race(
        "commit-same-turn",
        "Of four callers with the same turn one commits it, the others get its receipt.",
        one, _same_turn, OWN, (1,),
    ),
    Race(
        "commit-same-empty",
        "The same is true of a turn that stores no node, whose id would give it away.",
        one, _same_empty, OWN, (1,),
    ),
    Race(
        "commit-one-revision",
        "Of four turns that expect one revision one wins, the others are told HeadMoved.",
        one, _one_revision, OWN, (1,),
    ),
    Race(
        "commit-no-revision",
        "Four turns that expect nothing are all committed, one after the other.",
        one, _no_revision, OWN, (4,),
    ),
    Race(
        "commit-displaced",
        "A turn is committed before its holder is displaced, or is refused.",
        held, _displaced, OWN,
    ),
    Race(
        "commit-renewed",
        "A turn is committed before its lane is released, renewed or not, or is refused.",
        held, _renewed, OWN,
    ),
    Race(
        "commit-deleted",
        "A turn is committed before its session is deleted, or is refused.",
        one, _deleted, OWN,
    ),
    Race(
        "commit-rewound",
        "Turns and rewinds of one session take place one after the other.",
        one, _rewound, OWN,
    ),
    Race(
        "commit-hidden",
        "A turn extends a node before it is hidden, or is refused.",
        two, _hidden_meanwhile, OWN,
    ),
    Race(
        "commit-same-nodes",
        "Of four turns with a node of the same id one wins, the others collide.",
        one, _same_nodes, OWN, (1,),
    ),
    Race(
        "commit-same-content",
        "Four sessions store the same content at once, in any order of names.",
        lambda s: [create(f"{s}-{n}") for n in range(4)],
        _same_content, ("-0", "-1", "-2", "-3"), (4,),
    ),
    Race(
        "commit-last-owner",
        "Content is named before its last owner is deleted, or is refused, and is never missing.",
        lambda s: [*one(s), *(create(f"{s}-{n}") for n in (1, 2, 3))],
        _last_owner, FOUR,
    ),
    Race(
        "fork-deleted",
        "A fork begins before its source is deleted, and is whole, or is refused.",
        one, _forked_meanwhile, FAMILY,
    ),
    Race(
        "commit-both-sides",
        "A fork and its source take turns at once, with the same ids.",
        lambda s: family(s)[:3], _both_sides, FORK, (4,),
    ),
    Race(
        "create",
        "Of four callers that create a session one does.",
        lambda s: [], lambda s, lanes: [create(s, title=f"n{n}") for n in range(4)], OWN, (1,),
    ),
    Race(
        "create-deleted",
        "A session that is deleted is not created again.",
        one, lambda s, lanes: [create(s), on("delete", s)] * 2, OWN, (1,),
    ),
    Race(
        "update",
        "Four updates are all done, and keep each other's tags.",
        one, _updated, OWN, (4,),
    ),
    Race(
        "update-limit",
        "Where two tags are left, two of four updates that add one are done.",
        lambda s: [create(s, tags={f"t{n}": "x" for n in range(62)})], _updated, OWN, (2,),
    ),
    Race(
        "delete",
        "Of four callers that delete a session one does.",
        two, lambda s, lanes: [on("delete", s)] * 4, OWN, (1,),
    ),
    Race(
        "delete-family",
        "A session and its forks are deleted at once, and nothing is left.",
        family, _family_gone, FAMILY, (3,), ("nodes", "blobs"),
    ),
    Race(
        "fork",
        "Of four callers that make the same fork one does.",
        one, _same_fork, FORK, (1,),
    ),
    Race(
        "fork-elsewhere",
        "Of four callers that want an id for different sessions one gets it.",
        two, _other_fork, FORK, (1,),
    ),
    Race(
        "rewind-one-revision",
        "Of four rewinds that expect one revision one wins, the others are told HeadMoved.",
        two, _rewind_one, OWN, (1,),
    ),
    Race(
        "rewind-same-turn",
        "Of four callers with the same rewind one does it, the others get its receipt.",
        two, _same_rewind, OWN, (1,),
    ),
    Race(
        "tombstone",
        "Each node is hidden, and counted, once.",
        two, _tombstoned, OWN,
    ),
    Race(
        "vacuum",
        "Each hidden node is removed once.",
        hidden, lambda s, lanes: [on("vacuum", s)] * 4, OWN, (1,),
    ),
    Race(
        "claim",
        "Of four owners one is granted the lane, the others are told who has it.",
        one, _claimed, OWN, (1,),
    ),
    Race(
        "claim-lapsed",
        "Of four owners one takes a lapsed lane over.",
        lapsed, _claimed, OWN, (1,),
    ),
    Race(
        "renew",
        "A lane is renewed before its token is rotated or its holder displaced, or not at all.",
        held, _rotated, OWN,
    ),
    Race(
        "release",
        "A lane is released once.",
        held, _released, OWN, (1,),
    ),
    Race(
        "release-claimed",
        "A lane is given back before another owner gets it.",
        held, _handed_over, OWN,
    ),
    Race(
        "displace",
        "Each displacement is a generation of its own.",
        held, _all_displaced, OWN, (4,),
    ),
)  # fmt: skip
