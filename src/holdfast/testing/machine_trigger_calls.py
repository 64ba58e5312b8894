"""What the state machine may ask of triggers: calls, made from whatever makes the choices.

As with all calls, what depends on the moment is a mark in the call: an occurrence that has
deliveries to be started, the revision of a rule. Few sources are listened to by few rules, so that
what happens starts several processes at once, which the calls about processes then go on with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.contract.processes import Const, Pointer, Present, Selector, Template, Whole
from holdfast.testing.machine_calls import HOUR_MS, Call, Fresh, Live, Pick, tenant
from holdfast.testing.machine_process_calls import ALL, GO, NOTE, WRONG, Ahead, Near, Proc

KEYS = ("r0", "r1")
OPERATIONS = ("o0", "o1", "o2")
SOURCES = (*[("mail", "in")] * 8, ("mail", "out"), ("call", "in"))
UNHEARD = "occurrence:none"


@dataclass(frozen=True)
class Happened:
    """What happened, the latest being 0, of the occurrences of which `which` is true."""

    back: int = 0
    which: str = "any"


@dataclass(frozen=True)
class Rule:
    """A rule that is there, the latest being 0, of those of which `which` is true."""

    back: int
    which: str = "live"


@dataclass(frozen=True)
class Rev:
    """A revision, counted from the current one of the rule."""

    by: int = 0


@dataclass(frozen=True)
class Resaid:
    """What was said last in a call of this name, with some of it said otherwise."""

    change: dict[str, Any]


PERSON: dict[str, Any] = {
    "type": "object",
    "required": ["who"],
    "properties": {"who": {"type": "string"}, "n": {"type": "integer"}},
}
SCHEMAS: tuple[Any, ...] = (None, None, PERSON)
INPUTS: tuple[dict[str, Selector], ...] = (
    {},
    {},
    {"who": Pointer(at="/who"), "all": Whole()},
    {
        "there": Present(at="/who"),
        "text": Template(text="{a} of {b}", fields={"a": Whole(), "b": Const(value=[1])}),
    },
)
PAYLOADS: tuple[Any, ...] = (
    {"who": "ada"},
    {"who": "ada"},
    {"who": "ada", "n": 1},
    {"n": 1},
    {"n": 1},
    "text",
    b'{"who": "bob"}',
)


def owner(pick: Pick) -> Any:
    """The host, a session that is there, a frame of it, or sessions that may not be there."""
    near = (Near(), Near(), Near(Live(0), "f"), Near(Live(1)), Near("s3"), Near("s9"))
    return pick((None, None, None, None, *near))


def operation(pick: Pick) -> str | None:
    return pick((*[None] * 12, *OPERATIONS))


def source(pick: Pick) -> dict[str, str]:
    type_, key = pick(SOURCES)
    return {"source_type": type_, "source_key": key}


def first_rule(tenant: int) -> Call:
    """The rule that is there from the beginning."""
    args: dict[str, Any] = {
        "owner": None,
        "key": "r0",
        "source_type": "mail",
        "source_key": "in",
        "events": (NOTE, GO),
        "kind": "task",
        "inputs": {},
        "recovery": "rerunnable",
        "wake": Near(),
        "grants": (Near(),),
        "expected": None,
        "operation": None,
    }
    return Call(tenant, "triggers.register", args)


def subscribe(pick: Pick) -> Call:
    """A rule is registered: a new one, the same again, or another one in its place."""
    expected = pick((None, None, Rev(), Rev(), Rev(), Rev(-1), 0))
    if pick((False, False, False, True)):
        changes: tuple[dict[str, Any], ...] = (
            {},
            {},
            {"enabled": False},
            {"name": "changed"},
            {"source_key": "out"},
            {"schema": {"type": "object"}},
            {"kind": "changed"},
        )
        args: dict[str, Any] = {"again": Resaid(pick(changes))}
    else:
        args = {
            "owner": owner(pick),
            "key": pick(KEYS),
            **source(pick),
            "name": pick(("", "", "one")),
            "schema": pick(SCHEMAS),
            "enabled": pick((True, True, True, True, False)),
            "kind": pick(("task", "tool")),
            "inputs": pick(INPUTS),
            "events": pick((*[ALL] * 6, *[(NOTE, GO)] * 6, pick(WRONG))),
            "recovery": pick(("rerunnable", "rerunnable", "owner-bound", "external")),
            "wake": pick((None, Near(), Near(Live(1)), Near("s2"))),
            "grants": pick(((), (Near(),), (Near(), Near("s2")))),
        }
    args |= {"expected": expected, "operation": operation(pick)}
    return Call(tenant(pick), "triggers.register", args)


def govern(pick: Pick) -> Call:
    """A rule is enabled, disabled or deleted; or the last that was is sent again."""
    name = pick(("enable", "enable", "disable", "disable", "delete"))
    args: dict[str, Any] = {"again": Resaid({})}
    if pick((*[True] * 5, False)):
        states = {"enable": "enabled False", "disable": "enabled True"}
        wanted = pick((*[states.get(name, "live")] * 3, "live", "any", None))
        place = {"key": pick(KEYS), "owner": owner(pick)}
        args = {
            **(place if wanted is None else {"rule": Rule(pick((0, 0, 1, 2)), wanted)}),
            "expected": pick((None, None, None, Rev(), Rev(), Rev(-1), 0)),
            "operation": operation(pick),
        }
    return Call(tenant(pick), f"triggers.{name}", args)


def happen(pick: Pick) -> Call:
    """Something happens, once or again, or with a key that was used for something else."""
    name = pick(("ingest", "ingest", "record"))
    if pick((False, False, False, True)):
        changes: tuple[dict[str, Any], ...] = (
            {},
            {},
            {"payload": "other"},
            {"source": "other"},
            {"source_key": "out"},
        )
        return Call(tenant(pick), f"triggers.{name}", {"again": Resaid(pick(changes))})
    args = {
        "key": pick((Fresh(), Fresh(), Fresh(), Fresh(), "e0", "e1")),
        **source(pick),
        "payload": pick(PAYLOADS),
        "source": pick((None, None, {"by": "ada"})),
    }
    return Call(tenant(pick), f"triggers.{name}", args)


DELIVERIES = (
    *("reserve", "reserve", "reserve", "start", "start", "start", "deliveries", "occurrence"),
    *("list", "occurrences", "reserved", "prune", "prune", "end", "end", "end"),
)


def deliver(pick: Pick) -> Call:
    """What happened is delivered step by step, is looked at, or is let go."""
    name = pick(DELIVERIES)
    args: dict[str, Any] = {}
    if name == "end":
        args = {"process": Proc(pick((0, 0, 1)), "delivered"), "authority": "operator"}
        return Call(tenant(pick), "processes.end", args)
    if name in ("reserve", "start", "deliveries", "occurrence"):
        recent = (Happened(), Happened(), Happened(1))
        kinds = {
            "reserve": (*recent, *[Happened(0, "bare")] * 3),
            "start": (*recent, *[Happened(0, "reserved")] * 9),
        }
        args["occurrence"] = pick((*kinds.get(name, recent), UNHEARD))
    elif name == "list":
        args = {
            "session": pick((None, Live(0))),
            "name": pick((None, None, "one")),
            "source_type": pick((None, "mail")),
            "source_key": pick((None, "in")),
            "enabled": pick((None, True, False)),
        }
    elif name == "occurrences":
        args = {"source_type": pick((None, "mail")), "source_key": pick((None, "in"))}
    elif name == "prune":
        before = pick((Ahead(HOUR_MS), Ahead(HOUR_MS), Ahead(-HOUR_MS), 0))
        args = {"before_ms": before, "limit": pick((100, 100, 1))}
    return Call(tenant(pick), f"triggers.{name}", args)


KINDS = {"subscribe": subscribe, "govern": govern, "happen": happen, "deliver": deliver}
"""The rules of the machine: each makes calls of one kind."""

WEIGHTS = {"subscribe": 5, "govern": 4, "happen": 6, "deliver": 7}
