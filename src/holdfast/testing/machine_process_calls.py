"""What the state machine may ask of processes: calls, made from whatever makes the choices.

As with all calls, what depends on the moment is a mark in the call: a process that runs, the lease
that was given last, a time from now. The sessions are those of the other calls, so that what wakes
becomes work that is claimed and settled, and what is deleted had been granted something.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.contract.processes import (
    Const,
    EventType,
    ExternalRef,
    Pointer,
    Present,
    ProcessState,
    Template,
    WakeRule,
    Whole,
)
from holdfast.testing.machine_calls import BODIES, HOUR_MS, OWNERS, Call, Live, Pick, tenant

PROCESSES = ("p0", "p1", "p2", "p3")
NOWHERE = "nowhere"
FIRST = Live(0)


@dataclass(frozen=True)
class Proc:
    """A process that was registered, the latest being 0, of those of which `which` is true."""

    back: int = 0
    which: str = "running"


@dataclass(frozen=True)
class Near:
    """A scope: of a session that is there, or of one that is named."""

    session: Any = FIRST
    frame: str | None = None


@dataclass(frozen=True)
class Hold:
    """A lease of the process: the live one (none if there is none), the latest that was given, the
    one before it, or one that was never given."""

    kind: str = "proper"


@dataclass(frozen=True)
class Ahead:
    """A time, counted from now."""

    ms: int


@dataclass(frozen=True)
class Wake:
    """The sequence of an event that wakes, the last of the log being 0."""

    back: int


@dataclass(frozen=True)
class Again:
    """A registration that was sent before, the latest being 0, with one thing changed."""

    back: int
    change: str


@dataclass(frozen=True)
class Feed:
    """Where the last reading of the feed of changes ended; or before its beginning."""

    whole: bool = False


NOTE = EventType(name="note")
COUNT = EventType(
    name="count",
    schema={
        "type": "object",
        "required": ["items"],
        "properties": {
            "items": {
                "type": "array",
                "maxItems": 2,
                "items": {"type": "object", "required": ["id"], "additionalProperties": True},
            },
            "kind": {"enum": ["small", "large", None]},
        },
    },
)
TELL = EventType(name="tell", wakes=WakeRule())
TELL_IF = EventType(
    name="tell.if", wakes=WakeRule(input=Pointer(at="/text"), when=Pointer(at="/loud"))
)
TELL_ALL = EventType(
    name="tell.all",
    wakes=WakeRule(
        input=Template(
            text="{who} says {what}: {all}",
            fields={
                "who": Pointer(at="/who"),
                "what": Const(value={"b": 1, "a": 2}),
                "all": Whole(),
            },
        ),
        when=Present(at="/who"),
    ),
)
DONE = EventType(name="done", ends="completed", output=Pointer(at="/result"))
BROKE = EventType(name="broke", ends="failed", wakes=WakeRule(input=Pointer(at="/why")))
GO = EventType(name="signal.go")
COMPLETED = EventType(
    name="process.completed",
    ends="completed",
    schema={"anyOf": [{"type": "object"}, {"type": "null"}]},
    output=Template(text="came to {n}", fields={"n": Whole()}),
    wakes=WakeRule(input=Const(value="it is done")),
)
ALL = (NOTE, COUNT, TELL, TELL_IF, TELL_ALL, DONE, BROKE, GO)
DECLARED = (ALL, ALL, ALL, ALL, (*ALL, COMPLETED), (*ALL, COMPLETED), (NOTE, GO))
WRONG = (
    (NOTE, NOTE),
    (EventType(name="process.own"),),
    (EventType(name="process.failed", ends="completed"),),
    (EventType(name="not a name"),),
)

PLAIN: tuple[tuple[str, Any], ...] = (
    ("note", "x"),
    ("note", {"n": 1}),
    ("note", b"[1, 2]"),
    ("count", {"items": [{"id": 1}], "kind": "small"}),
    ("count", {"items": []}),
    ("tell", "wake up"),
    ("tell", "wake up"),
    ("tell", {"b": [1, None], "a": True}),
    ("tell.if", {"text": "hear", "loud": True}),
    ("tell.if", {"text": {"z": 1, "y": "é"}, "loud": 0}),
    ("tell.if", {"text": "hush", "loud": []}),
    ("tell.all", {"who": "ada"}),
    ("tell.all", {"nobody": 1}),
    ("signal.go", None),
)
REJECTED: tuple[tuple[str, Any], ...] = (
    ("count", {}),
    ("count", "none"),
    ("count", {"items": [{"id": 1}, {"no": 2}]}),
    ("count", {"items": [{"id": 1}] * 3}),
    ("count", {"items": [], "kind": "medium"}),
    ("count", {"items": [], "other": 1}),
    ("tell.if", {"loud": True}),
    ("tell.if", "flat"),
    ("undeclared", "x"),
    ("process.started", {"owner": "ada"}),
)
ENDING: tuple[tuple[str, Any], ...] = (
    ("done", {"result": {"b": 1}}),
    ("done", {"result": "ok"}),
    ("done", {"none": 1}),
    ("broke", {"why": "it rained"}),
)
OUTPUTS: tuple[Any, ...] = (None, None, {"n": 1}, {"n": 1}, "text", "text", b'{"n":2}')
HOLDS = (
    *[Hold()] * 8,
    None,
    *(Hold(kind) for kind in ("latest", "latest", "older", "forged")),
)


def running(pick: Pick) -> Any:
    """Mostly one that runs, of few, so that much happens to each."""
    return pick(
        (
            *[Proc(0)] * 8,
            *[Proc(1)] * 4,
            Proc(2),
            *[Proc(0, "ended")] * 2,
            Proc(1, "ended"),
            Proc(0, "pruned"),
            NOWHERE,
        )
    )


def any_process(pick: Pick) -> Any:
    return pick((*[Proc(0, "any")] * 3, *[Proc(1, "any")] * 2, Proc(3, "any"), NOWHERE))


def session(pick: Pick) -> Any:
    return pick((*[Live(0)] * 6, *[Live(1)] * 3, "s2", "s3", "s9"))


def scope(pick: Pick) -> Near:
    return Near(session(pick), pick((None, None, None, "f")))


def authority(pick: Pick) -> Any:
    return pick((None, None, None, "operator", "operator", "external", "external", "lapse"))


def first_process(tenant: int) -> Call:
    """The process that is there from the beginning: it declares everything, and wakes a session."""
    args = {"process": "first", "events": ALL, "wake": Near(), "grants": (Near(),)}
    return Call(tenant, "processes.register", args)


def register(pick: Pick) -> Call:
    if pick((False, False, False, False, True)):
        change = pick(("same", "same", "same", "order", "grants", "kind", "input"))
        again = Again(pick((0, 0, 0, 1, 2)), change)
        return Call(tenant(pick), "processes.register", {"again": again})
    args = {
        "process": pick((None, None, None, None, *PROCESSES)),
        "kind": pick(("task", "task", "tool")),
        "label": pick(("", "one")),
        "definition": pick((None, None, "d")),
        "input": pick(BODIES),
        "events": pick((*[pick(DECLARED)] * 14, pick(WRONG))),
        "recovery": pick(
            ("rerunnable", "rerunnable", "rerunnable", "owner-bound", "owner-bound", "external")
        ),
        "origin": pick((None, scope(pick))),
        "parent": pick((None, *[Proc(0)] * 4, Proc(1), Proc(0, "any"), NOWHERE)),
        "cause": pick((None, "c")),
        "wake": pick((None, Near(), Near(), Near(), Near(Live(1)), scope(pick), scope(pick))),
        "grants": pick(((), (), (Near(),), (Near(), Near(Live(1))), (scope(pick),))),
    }
    return Call(tenant(pick), "processes.register", args)


def append(pick: Pick) -> Call:
    if pick((*[False] * 9, True)):
        name = pick(("append", "append", "end", "request_cancel"))
        args: dict[str, Any] = {"repeat": True}
        if name != "request_cancel":
            args["lease"] = pick((None, None, *HOLDS))
        return Call(tenant(pick), f"processes.{name}", args)
    ends = pick((False, False, False, False, True))
    type_, payload = pick(ENDING) if ends else pick((*[pick(PLAIN)] * 5, pick(REJECTED)))
    keys = ("k0", "k1", "k2") if ends else (None, None, None, "k0", "k1", "k1")
    args = {
        "process": running(pick),
        "type": type_,
        "payload": payload,
        "key": pick((*keys, *keys, *keys, None, "process.k")),
        "wake": pick((*[None] * 8, scope(pick))),
        "lease": pick((None, pick(HOLDS))) if not ends else pick(HOLDS),
        "authority": authority(pick) if ends else None,
    }
    return Call(tenant(pick), "processes.append", args)


def steer(pick: Pick) -> Call:
    """What is said to a process from outside, or by itself."""
    name = pick(("signal", "request_cancel", "request_cancel", "set_external", "resume", "suspend"))
    name = pick((name, "suspend"))
    args: dict[str, Any] = {"process": running(pick)}
    if name == "signal":
        key = pick((None, "k0", "s0"))
        args |= {"name": pick(("go", "go", "stop")), "payload": pick((None, {"n": 1})), "key": key}
    elif name == "request_cancel":
        args["reason"] = pick((None, "enough", "enough", "late"))
    elif name == "set_external":
        refs = (
            ExternalRef(backend="k8s", id="1"),
            ExternalRef(backend="k8s", id="2", metadata=[1]),
        )
        args["ref"] = pick(refs)
    else:
        args["lease"] = pick((None, pick(HOLDS), Hold()))
    if name == "suspend":
        child = "process.child-ended"
        types = ("signal.go", "signal.go", "note", child, child, child, None, "undeclared")
        times = (None, None, Ahead(HOUR_MS), Ahead(HOUR_MS), 1)
        args |= {"type": pick(types), "after": pick((0, 0, 3, 50)), "until_ms": pick(times)}
    return Call(tenant(pick), f"processes.{name}", args)


def finish(pick: Pick) -> Call:
    if pick((True, True, True, False)):
        args = {
            "process": running(pick),
            "state": pick(("completed", "completed", "completed", "failed", "cancelled")),
            "output": pick(OUTPUTS),
            "lease": pick(HOLDS),
            "authority": authority(pick),
        }
        return Call(tenant(pick), "processes.end", args)
    lost = pick((Proc(0, "lost"), Proc(0, "lost"), Proc(0, "ended"), running(pick)))
    reason = pick(("gone", "gone", "broken"))
    args = {"process": lost, "reason": reason, "authority": pick((None, None, None, "operator"))}
    return Call(tenant(pick), "processes.abandon", args)


def run(pick: Pick) -> Call:
    """Somebody takes a process up, keeps it, or gives it back."""
    name = pick(("claim", "claim", "claim", "renew", "release"))
    args: dict[str, Any] = {"process": running(pick)}
    if name == "claim":
        args["owner"] = pick(OWNERS)
    else:
        args["process"] = pick((*[Proc(0, "leased")] * 2, Proc(1, "leased"), args["process"]))
        args["lease"] = Hold(pick(("latest", "latest", "latest", "older", "forged")))
    if name != "release":
        args["ttl_ms"] = pick((HOUR_MS, HOUR_MS, HOUR_MS, 0, 2 * HOUR_MS))
    return Call(tenant(pick), f"processes.{name}", args)


def share(pick: Pick) -> Call:
    """Grants are given, taken back and moved."""
    name = pick(("grant", "grant", "revoke", "transfer"))
    if name == "transfer":
        those = pick(((0,), (0,), (0, 1), (0, 0), ()))
        args: dict[str, Any] = {
            "source": Near(),
            "target": pick((Near(Live(1)), Near(frame="f"), scope(pick))),
            "processes": [Proc(back, "granted") for back in those],
        }
        if pick((False, False, False, False, True)):
            args["processes"] = [running(pick)]
        return Call(tenant(pick), "processes.transfer", args)
    args = {"scope": pick((Near(), scope(pick))), "process": running(pick)}
    if name == "grant":
        args |= {"kind": pick(("", "tool")), "label": pick(("", "one"))}
    return Call(tenant(pick), f"processes.{name}", args)


STATES: tuple[tuple[ProcessState, ...], ...] = (
    ("running",),
    ("completed", "failed"),
    ("cancelled", "abandoned"),
    (),
)


LOOKS = (
    *("changes", "list", "events", "recent", "count", "wakes", "ack", "due"),
    *("granted", "grants", "grants_of", "prune"),
)


def watch(pick: Pick) -> Call:
    """A look at processes that the readings after each step do not take, or what comes of one."""
    name = pick((*LOOKS, *LOOKS, "changes", "ack", "ack", "prune", "prune", "grants", "list"))
    args: dict[str, Any] = {}
    if name == "changes":
        args["after"] = Feed(pick((False, False, True)))
    elif name == "list":
        args = {
            "states": pick(STATES),
            "kind": pick((None, None, "tool")),
            "definition": pick((None, None, "d")),
            "waiting": pick((None, None, True, False)),
            "session": pick((None, None, Live(0))),
            "parent": pick((None, None, any_process(pick))),
        }
    elif name == "granted":
        args = {"scope": pick((Near(), scope(pick))), "process": any_process(pick)}
    elif name == "grants":
        args = {"scope": pick((Near(), scope(pick))), "live": pick((False, True))}
    elif name == "prune":
        before = pick((Ahead(-HOUR_MS), Ahead(HOUR_MS), Ahead(HOUR_MS), 0))
        args = {"ended_before_ms": before, "limit": pick((100, 100, 1))}
    elif name != "due":
        args["process"] = any_process(pick)
    if name in ("events", "wakes"):
        args["after"] = pick((0, 1, 3))
    if name in ("events", "count"):
        args["type"] = pick(("note", "tell", "process.started"))
    if name == "count":
        args["through"] = pick((2, 5, 2**63 - 1))
    elif name == "recent":
        args["limit"] = pick((1, 3, 100))
    elif name == "ack":
        args["sequence"] = pick((Wake(0), Wake(0), Wake(1), 1, 99))
    return Call(tenant(pick), f"processes.{name}", args)


KINDS = {
    "register": register,
    "append": append,
    "steer": steer,
    "finish": finish,
    "run": run,
    "share": share,
    "watch": watch,
}
"""The rules of the machine: each makes calls of one kind."""

WEIGHTS = {
    "register": 16,
    "append": 26,
    "steer": 12,
    "finish": 7,
    "run": 14,
    "share": 8,
    "watch": 16,
}
