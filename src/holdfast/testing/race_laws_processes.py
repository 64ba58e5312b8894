"""The laws of the races of processes: different calls that meet at one log, one lease, one grant or
one wake.

As with the other races, four callers ask at the same moment, and some order of their calls has to
explain what they were told and what is left. The processes are named by the round; `wake` of each
is a session of the round, so that what wakes it is found in its inbox.
"""

from __future__ import annotations

from typing import Any

from holdfast.contract.processes import (
    EventType,
    NewEvent,
    NewGrant,
    NewProcess,
    Scope,
    Wait,
    WakeRule,
)
from holdfast.testing.race_laws import HOUR_MS, create
from holdfast.testing.races import Ask, Race

DECLARED = (
    EventType(name="note"),
    EventType(name="tell", wakes=WakeRule()),
    EventType(name="done", ends="completed"),
    EventType(name="signal.go"),
)


def register(process: str, session: str | None = None, **how: Any) -> Ask:
    new = NewProcess(
        process=process,
        events=DECLARED,
        wake=None if session is None else Scope(session=session),
        **how,
    )
    return Ask("processes.register", {"process": new})


def to(name: str, process: str, **how: Any) -> Ask:
    return Ask(f"processes.{name}", {"process": process, **how})


def append(
    process: str,
    type: str,
    payload: Any = None,
    key: str | None = None,
    wake: Scope | None = None,
    **how: Any,
) -> Ask:
    event = NewEvent(type=type, payload=payload, key=key, wake=wake)
    return to("append", process, event=event, **how)


def plain(s: str) -> list[Ask]:
    """A process that wakes a session."""
    return [create(f"{s}-s"), register(f"{s}-p", f"{s}-s")]


def held(s: str) -> list[Ask]:
    return [*plain(s), to("claim", f"{s}-p", owner="ada", ttl_ms=HOUR_MS)]


def lapsed(s: str) -> list[Ask]:
    return [*plain(s), to("claim", f"{s}-p", owner="ada", ttl_ms=0)]


def lost(s: str) -> list[Ask]:
    """A process that was bound to an owner who went away."""
    bound = register(f"{s}-p", recovery="owner-bound")
    return [create(f"{s}-s"), bound, to("claim", f"{s}-p", owner="ada", ttl_ms=0)]


def family(s: str) -> list[Ask]:
    """A process with two children."""
    children = [register(f"{s}-{name}", f"{s}-s", parent=f"{s}-p") for name in ("c", "d")]
    return [*plain(s), *children]


def granted(s: str) -> list[Ask]:
    """A process that a session and a frame of it see."""
    grants = [NewGrant(scope=Scope(session=f"{s}-s", frame=frame)) for frame in (None, "f")]
    return [create(f"{s}-s"), create(f"{s}-t"), register(f"{s}-p", f"{s}-s", grants=grants)]


def _appends(s: str, held: list[Any]) -> list[Ask]:
    return [append(f"{s}-p", "tell" if n % 2 else "note", n) for n in range(4)]


def _ends(s: str, held: list[Any]) -> list[Ask]:
    (lease,) = held
    return [
        to("end", f"{s}-p", output="mine", lease=lease),
        to("end", f"{s}-p", state="cancelled", authority="operator"),
        append(f"{s}-p", "done", "said", "k", lease=lease),
        to("abandon", f"{s}-p", reason="gone", authority="operator"),
    ]


def _end_and_others(s: str, held: list[Any]) -> list[Ask]:
    (lease,) = held
    return [
        to("end", f"{s}-p", output="mine", lease=lease),
        append(f"{s}-p", "tell", "mine", lease=lease),
        to("request_cancel", f"{s}-p", reason="enough"),
        to("claim", f"{s}-p", owner="bob", ttl_ms=HOUR_MS),
    ]


def _suspend_and_others(s: str, held: list[Any]) -> list[Ask]:
    (lease,) = held
    return [
        to("suspend", f"{s}-p", wait=Wait(type="signal.go"), lease=lease),
        Ask("processes.signal", {"process": f"{s}-p", "name": "go", "payload": 1}),
        Ask("processes.renew", {"lease": lease, "ttl_ms": HOUR_MS}),
        to("claim", f"{s}-p", owner="ada", ttl_ms=HOUR_MS),
    ]


def _take_over(s: str, held: list[Any]) -> list[Ask]:
    (lease,) = held
    return [
        Ask("processes.renew", {"lease": lease, "ttl_ms": HOUR_MS}),
        Ask("processes.release", {"lease": lease}),
        to("claim", f"{s}-p", owner="bob", ttl_ms=HOUR_MS),
        to("end", f"{s}-p", output="late", lease=lease),
    ]


def _abandons(s: str, held: list[Any]) -> list[Ask]:
    return [
        to("abandon", f"{s}-p", reason="gone"),
        to("abandon", f"{s}-p", reason="gone"),
        to("abandon", f"{s}-p", reason="lost"),
        to("claim", f"{s}-p", owner="bob", ttl_ms=HOUR_MS),
    ]


def _children_end(s: str, held: list[Any]) -> list[Ask]:
    return [
        to("end", f"{s}-c", output=1, authority="operator"),
        to("end", f"{s}-d", output=2, authority="operator"),
        append(f"{s}-p", "tell", "parent"),
        to("end", f"{s}-p", authority="operator"),
    ]


def _wake_and_delete(s: str, held: list[Any]) -> list[Ask]:
    return [
        append(f"{s}-p", "tell", "hello"),
        Ask("delete", {"session": f"{s}-s"}),
        append(f"{s}-p", "tell", "there", wake=Scope(session=f"{s}-s", frame="f")),
        to("grant", f"{s}-p", scope=Scope(session=f"{s}-s")),
    ]


def _wake_and_claim(s: str, held: list[Any]) -> list[Ask]:
    return [
        append(f"{s}-p", "tell", "hello"),
        append(f"{s}-p", "tell", "hello", "k"),
        Ask("queue.claim", {"session": f"{s}-s", "owner": "ada"}),
        Ask("queue.claim", {"session": f"{s}-s", "owner": "bob"}),
    ]


def _transfers(s: str, held: list[Any]) -> list[Ask]:
    source, frame = (Scope(session=f"{s}-s", frame=frame) for frame in (None, "f"))
    moves = [(source, frame), (frame, source), (source, Scope(session=f"{s}-t"))]
    return [
        *(
            Ask("processes.transfer", {"source": a, "target": b, "processes": [f"{s}-p"]})
            for a, b in moves
        ),
        to("revoke", f"{s}-p", scope=source),
    ]


def _share_and_delete(s: str, held: list[Any]) -> list[Ask]:
    source, target = Scope(session=f"{s}-s"), Scope(session=f"{s}-t")
    return [
        Ask("processes.transfer", {"source": source, "target": target, "processes": [f"{s}-p"]}),
        Ask("delete", {"session": f"{s}-s"}),
        to("grant", f"{s}-p", scope=target, label="mine"),
        to("end", f"{s}-p", authority="operator"),
    ]


ONE = ("-p",)

PROCESS_RACES = (
    Race(
        "process-append",
        "Every event has a place of its own, and every wake is work.",
        plain, _appends, ("-s",), winners=(4,), processes=ONE,
    ),
    Race(
        "process-lost",
        "What was bound to an owner who went away is run by nobody, and ends once.",
        lost, _abandons, processes=ONE,
    ),
    Race(
        "process-end",
        "It ends once.",
        held, _ends, ("-s",), winners=(1,), processes=ONE,
    ),
    Race(
        "process-end-and-others",
        "What comes after the end has no lease.",
        held, _end_and_others, ("-s",), processes=ONE,
    ),
    Race(
        "process-suspend",
        "A signal is never missed by who waits for it.",
        held, _suspend_and_others, ("-s",), processes=ONE,
    ),
    Race(
        "process-take-over",
        "A lapsed lease ends nothing.",
        lapsed, _take_over, ("-s",), processes=ONE,
    ),
    Race(
        "process-children",
        "A parent is told of each child, also after its own end.",
        family, _children_end, ("-s",), processes=("-p", "-c", "-d"),
    ),
    Race(
        "process-wake-and-delete",
        "What wakes a session that is deleted is kept, and makes no work.",
        plain, _wake_and_delete, ("-s",), processes=ONE,
    ),
    Race(
        "process-wake-and-claim",
        "Work of a wake is claimed once, and whole.",
        plain, _wake_and_claim, ("-s",), processes=ONE,
    ),
    Race(
        "process-transfer",
        "A grant is never doubled, and never lost on its way.",
        granted, _transfers, processes=ONE,
    ),
    Race(
        "process-share-and-delete",
        "A delete takes the grants that are there, and none that were moved away.",
        granted, _share_and_delete, ("-s", "-t"), processes=ONE,
    ),
)  # fmt: skip
"""The races of processes, each with its law."""
