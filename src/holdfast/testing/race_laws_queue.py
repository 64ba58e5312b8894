"""The laws of the races for work: one for every guarded statement of the queue, and for every pair
of them that may meet.

Who waits longest among several sessions is a store's own memory, so where the next session is asked
for there is nothing else in the tenant.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from holdfast.contract.queue import Claim, NewWork, Work
from holdfast.contract.records import Fence, Lane, NewNode, Turn
from holdfast.testing.race_laws import HOUR_MS, OWN, create, lane, on
from holdfast.testing.races import Ask, Race

R = TypeVar("R")
FOREVER_MS = 7 * 24 * HOUR_MS


def only(kind: type[R], given: list[Any], place: int = 0) -> R:
    """A record of this kind that was given, the first being 0."""
    return [record for record in given if isinstance(record, kind)][place]


def add(session: str, body: str = "w", **how: Any) -> Ask:
    return Ask("queue.enqueue", {"work": NewWork(session=session, payloads=[body], **how)})


def take(session: str, owner: str = "ada", ttl_ms: int = HOUR_MS, **how: Any) -> Ask:
    return Ask("queue.claim", {"session": session, "owner": owner, "ttl_ms": ttl_ms, **how})


def settle(session: str, name: str, *claims: Claim, **how: Any) -> Ask:
    """A turn that settles claims."""
    settled = [claim.settlement for claim in claims]
    nodes = [NewNode(id=f"n-{name}", body=name)]
    return Ask(
        "commit", {"turn": Turn(session=session, turn=name, nodes=nodes, claims=settled, **how)}
    )


def claimed(name: str, claim: Claim, **how: Any) -> Ask:
    """What is done with a claim: it is renewed, or given back."""
    return Ask(f"queue.{name}", {"claim": claim, **how})


def inbox(*bodies: str, **how: Any) -> Callable[[str], list[Ask]]:
    """A session with work that waits."""
    return lambda s: [create(s), *(add(s, body, **how) for body in bodies)]


def timed(s: str) -> list[Ask]:
    """Two works that share a claim without a lane, and one behind them."""
    return [*inbox("a", "b", merge="m")(s), take(s), add(s, "c", merge="m")]


def laned(s: str) -> list[Ask]:
    """The same under a lane."""

    def fence(given: list[Any]) -> Fence:
        return only(Lane, given).fence

    return [*inbox("a", "b", merge="m")(s), lane(s), take(s, fence=fence), add(s, "c", merge="m")]


def lapsed(s: str) -> list[Ask]:
    return [*inbox("a", "b", merge="m")(s), take(s, ttl_ms=0), add(s, "c", merge="m")]


def briefly(s: str) -> list[Ask]:
    """A claim that ends while the race is on, or just before."""
    return [*inbox("a")(s), take(s, ttl_ms=int(s.rpartition("-")[2]) % 8)]


def given_up(s: str) -> list[Ask]:
    """Dead work: one that was given back as such, and one whose holder went away."""
    dead = Ask("queue.abandon", {"claim": lambda given: only(Claim, given), "dead": True})
    return [*inbox("a", "b")(s), take(s), dead]


def spent(s: str) -> list[Ask]:
    return [*inbox("a", max_attempts=1)(s), take(s, ttl_ms=0)]


def keyed(*keys: str) -> Callable[[str], list[Ask]]:
    """Settled work whose keys are kept no longer."""

    def setting(s: str) -> list[Ask]:
        asks = [create(s)]
        for place, key in enumerate(keys):
            turn = partial(_settling, s, place)
            asks += [add(s, key, key=key, keep_ms=0), take(s), Ask("commit", {"turn": turn})]
        return asks

    return setting


def _settling(s: str, place: int, given: list[Any]) -> Turn:
    return Turn(session=s, turn=f"t{place}", claims=[only(Claim, given, place).settlement])


def sessions(*names: str, body: str | None = "w") -> Callable[[str], list[Ask]]:
    """Sessions, with work of their own."""
    return lambda s: [
        ask
        for name in names
        for ask in (create(f"{s}{name}"), *([add(f"{s}{name}", body)] if body else ()))
    ]


def next_one(owner: str = "ada", **how: Any) -> Ask:
    return Ask("queue.claim_next", {"owner": owner, **how})


def handed_out(s: str) -> list[Ask]:
    """A session that somebody was given, with work left in it."""
    return [*inbox("a", "b")(s), next_one(lane_ttl_ms=FOREVER_MS)]


def _same_key(s: str, given: list[Any]) -> list[Ask]:
    return [add(s, f"w{n}", key="k") for n in range(4)]


def _many(s: str, given: list[Any]) -> list[Ask]:
    return [add(s, f"w{n}", key=f"k{n // 2}{n}") for n in range(4)]


def _four_claims(s: str, given: list[Any]) -> list[Ask]:
    return [take(s, f"o{n}") for n in range(4)]


def _under_one_lane(s: str, given: list[Any]) -> list[Ask]:
    return [take(s, f"o{n}", fence=only(Lane, given).fence) for n in range(4)]


def _claims_and_enqueues(s: str, given: list[Any]) -> list[Ask]:
    return [take(s, "bob"), add(s, "b", merge="m", key="k"), take(s), add(s, "c", merge="m")]


def _exactly(s: str, given: list[Any]) -> list[Ask]:
    names = [work.work for work in given if isinstance(work, Work)]
    return [
        take(s, "bob", works=names),
        take(s, "eve", works=names[:1]),
        take(s, "ada", works=names[1:]),
        on("queue.cancel", s, work=names[0]),
    ]


def _settled(s: str, given: list[Any]) -> list[Ask]:
    claim = only(Claim, given)
    return [settle(s, f"t{n}", claim) for n in range(4)]


def _settled_once(s: str, given: list[Any]) -> list[Ask]:
    return [settle(s, "t", only(Claim, given))] * 4


def _settled_or_back(s: str, given: list[Any]) -> list[Ask]:
    claim = only(Claim, given)
    back = claimed("abandon", claim, error="it broke")
    return [settle(s, "t", claim), back, take(s, "bob"), claimed("abandon", claim, dead=True)]


def _settled_or_late(s: str, given: list[Any]) -> list[Ask]:
    """The holder has gone away, and somebody else begins."""
    claim = only(Claim, given)
    return [
        settle(s, "t", claim),
        take(s, "bob"),
        claimed("renew", claim),
        on("queue.cancel", s, work=claim.work[0].work),
    ]


def _settled_or_displaced(s: str, given: list[Any]) -> list[Ask]:
    claim, fence = only(Claim, given), only(Lane, given).fence
    return [
        settle(s, "t", claim, fence=fence, release=True),
        on("displace", s),
        take(s, "bob"),
        on("queue.cancel", s, work=claim.work[0].work),
    ]


def _lane_given_back(s: str, given: list[Any]) -> list[Ask]:
    claim, fence = only(Claim, given), only(Lane, given).fence
    return [
        Ask("release", {"fence": fence}),
        claimed("abandon", claim),
        lane(s, "bob"),
        take(s, "eve", fence=fence),
    ]


def _given_back_once(s: str, given: list[Any]) -> list[Ask]:
    return [claimed("abandon", only(Claim, given), error=f"{n}") for n in range(4)]


def _cancelled(s: str, given: list[Any]) -> list[Ask]:
    return [on("queue.cancel", s, work=only(Work, given).work)] * 4


def _cancelled_or_claimed(s: str, given: list[Any]) -> list[Ask]:
    name = only(Work, given).work
    return [
        on("queue.cancel", s, work=name),
        take(s, "bob"),
        add(s, "again", key="k"),
        take(s, "eve"),
    ]


def _put_back(s: str, given: list[Any]) -> list[Ask]:
    return [on("queue.requeue", s, work=only(Work, given).work)] * 4


def _put_back_or_cancelled(s: str, given: list[Any]) -> list[Ask]:
    name = only(Work, given).work
    back = on("queue.requeue", s, work=name)
    return [back, on("queue.cancel", s, work=name), take(s, "bob"), back]


def _renewed(s: str, given: list[Any]) -> list[Ask]:
    claim = only(Claim, given)
    return [
        claimed("renew", claim, ttl_ms=2 * HOUR_MS),
        take(s, "bob"),
        claimed("abandon", claim, dead=True),
        claimed("renew", claim),
    ]


def _renewed_or_lapsed(s: str, given: list[Any]) -> list[Ask]:
    claim = only(Claim, given)
    return [
        claimed("renew", claim),
        take(s, "bob"),
        settle(s, "t", claim),
        claimed("abandon", claim, error="late"),
    ]


def _pruned(s: str, given: list[Any]) -> list[Ask]:
    return [Ask("queue.prune", {"limit": 1})] * 4


def _pruned_or_enqueued(s: str, given: list[Any]) -> list[Ask]:
    return [Ask("queue.prune", {}), *(add(s, f"new{n}", key="k0") for n in range(3))]


def _deleted(s: str, given: list[Any]) -> list[Ask]:
    claim = only(Claim, given)
    return [
        on("delete", s),
        settle(s, "t", claim),
        take(s, "bob"),
        claimed("abandon", claim),
    ]


def _deleted_or_enqueued(s: str, given: list[Any]) -> list[Ask]:
    name = only(Work, given).work
    return [on("delete", s), add(s, "x", key="k"), on("queue.cancel", s, work=name), add(s, "y")]


def _next_ones(s: str, given: list[Any]) -> list[Ask]:
    return [next_one(f"o{n}") for n in range(4)]


def _next_or_named(s: str, given: list[Any]) -> list[Ask]:
    return [next_one("bob"), next_one("eve"), lane(f"{s}-1"), take(f"{s}-2", "ida")]


def _next_or_enqueued(s: str, given: list[Any]) -> list[Ask]:
    return [next_one("bob"), next_one("eve"), add(f"{s}-1"), add(f"{s}-2")]


def _next_or_deleted(s: str, given: list[Any]) -> list[Ask]:
    return [next_one("bob"), on("delete", f"{s}-1"), next_one("eve"), on("delete", f"{s}-2")]


def _next_or_cancelled(s: str, given: list[Any]) -> list[Ask]:
    cancel = on("queue.cancel", s, work=only(Work, given).work)
    return [next_one("bob"), cancel, next_one("eve"), cancel]


def _next_or_settled(s: str, given: list[Any]) -> list[Ask]:
    claim, fence = only(Claim, given), only(Lane, given).fence
    return [
        settle(s, "t", claim, fence=fence, release=True),
        next_one("bob"),
        add(s, "c"),
        next_one("eve"),
    ]


TWO = ("-1", "-2")

QUEUE_RACES = (
    Race(
        "enqueue-key",
        "Of four callers that enqueue under one key one does, the others are shown its work.",
        inbox(), _same_key, OWN, (1,),
    ),
    Race(
        "enqueue",
        "Work that comes at one moment gets a place each.",
        inbox(), _many, OWN, (4,),
    ),
    Race(
        "take",
        "Of four callers that claim one work one gets it.",
        inbox("a"), _four_claims, OWN, (1,),
    ),
    Race(
        "take-lane",
        "Under one lane four callers get a work each.",
        lambda s: [*inbox(*"abcd")(s), lane(s)], _under_one_lane, OWN, (4,),
    ),
    Race(
        "take-lapsed",
        "Of four callers one gets what a lapsed claim had, another what stands behind it.",
        lapsed, _four_claims, OWN, (2,),
    ),
    Race(
        "take-enqueue",
        "Work is claimed with what has come before the claim, and is never missed or shared.",
        inbox("a", merge="m"), _claims_and_enqueues, OWN,
    ),
    Race(
        "take-exactly",
        "Exactly these works are claimed, or none.",
        inbox("a", "b", merge="m"), _exactly, OWN,
    ),
    Race(
        "settle",
        "Of four turns that settle one claim one is committed.",
        timed, _settled, OWN, (1,),
    ),
    Race(
        "settle-same-turn",
        "Of four callers with the turn that settles a claim one commits it.",
        timed, _settled_once, OWN, (1,),
    ),
    Race(
        "settle-abandon",
        "A claim is settled, or given back, and never both.",
        timed, _settled_or_back, OWN,
    ),
    Race(
        "settle-lapsed",
        "A claim that has lapsed settles and renews nothing, whoever is there first.",
        lapsed, _settled_or_late, OWN,
    ),
    Race(
        "settle-displaced",
        "A claim under a lane is settled before its holder is displaced, or not at all.",
        laned, _settled_or_displaced, OWN,
    ),
    Race(
        "take-released",
        "A claim under a lane ends with it.",
        laned, _lane_given_back, OWN,
    ),
    Race(
        "abandon",
        "Of four callers that give a claim back one does.",
        timed, _given_back_once, OWN, (1,),
    ),
    Race(
        "cancel",
        "Of four callers that cancel a work one does.",
        inbox("a", "b"), _cancelled, OWN, (1,),
    ),
    Race(
        "cancel-take",
        "Work is cancelled, or claimed, and never both; its key is free when it is gone.",
        inbox("a", key="k"), _cancelled_or_claimed, OWN,
    ),
    Race(
        "requeue",
        "Of four callers that put dead work back one does.",
        given_up, _put_back, OWN, (1,),
    ),
    Race(
        "requeue-spent",
        "The same is true of work whose last holder went away.",
        spent, _put_back, OWN, (1,),
    ),
    Race(
        "requeue-cancel",
        "Dead work is put back before it is cancelled, or not at all.",
        given_up, _put_back_or_cancelled, OWN,
    ),
    Race(
        "renew-abandon",
        "A claim is renewed before it is given back, or not at all.",
        timed, _renewed, OWN,
    ),
    Race(
        "renew-lapse",
        "A claim is renewed in time, or its work is another's.",
        briefly, _renewed_or_lapsed, OWN, alone=True, lapses=True,
    ),
    Race(
        "prune",
        "Each key is forgotten once.",
        keyed("k0", "k1", "k2", "k3"), _pruned, OWN, (4,), alone=True,
    ),
    Race(
        "prune-enqueue",
        "A key that is forgotten while it is used again is one key.",
        keyed("k0", "k1"), _pruned_or_enqueued, OWN, alone=True,
    ),
    Race(
        "delete-settle",
        "What is deleted with its session is settled, claimed or given back before, or not.",
        timed, _deleted, OWN,
    ),
    Race(
        "delete-enqueue",
        "Nothing is enqueued into a session that is deleted.",
        inbox("a"), _deleted_or_enqueued, OWN,
    ),
    Race(
        "next",
        "Two sessions are given to two of four workers.",
        sessions("-1", "-2"), _next_ones, TWO, (1, 2), alone=True,
    ),
    Race(
        "next-named",
        "A session is given to who asks for any, or to who names it, and never to both.",
        sessions("-1", "-2"), _next_or_named, TWO, alone=True,
    ),
    Race(
        "next-enqueue",
        "Work that comes while somebody asks for the next session is found, or waits.",
        sessions("-1", "-2", body=None), _next_or_enqueued, TWO, alone=True,
    ),
    Race(
        "next-deleted",
        "A session that is deleted is given to nobody.",
        sessions("-1", "-2"), _next_or_deleted, TWO, alone=True,
    ),
    Race(
        "next-cancel",
        "Work is cancelled before its session is given to somebody, or not at all.",
        inbox("a"), _next_or_cancelled, OWN, (1,), alone=True,
    ),
    Race(
        "next-settle",
        "A session is given to the next when its turn has given it back.",
        handed_out, _next_or_settled, OWN, alone=True,
    ),
)  # fmt: skip
