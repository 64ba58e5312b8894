"""Schemas and selectors: what the payload of an event must be, and what is taken out of it.

A schema is a part of JSON Schema. What it does not know it ignores; a declared type without a
schema takes any payload. A selector takes a value out of a payload.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.contract.errors import Invalid, PayloadRejected, TooLarge
from holdfast.contract.processes import (
    Const,
    EventType,
    NewEvent,
    NewProcess,
    Pointer,
    Present,
    Selector,
    Template,
    WakeRule,
    Whole,
)
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import Kit
from holdfast.testing.conformance.kit_processes import begin, denied, log

NAMED = {"name": {"type": "string"}}
# The schema, what it takes, and what it refuses.
SCHEMAS: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "nothing": ({}, [None, True, 0, 1.5, "", [], {}, {"a": [1]}], []),
    "unknown-keywords": (
        {"pattern": "^a$", "const": 1, "minProperties": 3, "format": "date"},
        ["b", 2, {}],
        [],
    ),
    "unknown-type": ({"type": "date"}, ["today", 1, None], []),
    "null": ({"type": "null"}, [None], [False, 0, "", [], {}]),
    "boolean": ({"type": "boolean"}, [True, False], [0, 1, "true", None]),
    "integer": (
        {"type": "integer"},
        [0, -5, 2**63 - 1, -(2**63)],
        [True, 1.5, "1", None, [1]],
    ),
    "number": ({"type": "number"}, [0, -1.5, 2**40], [True, "1", None]),
    "string": ({"type": "string"}, ["", "a", "ü"], [1, None, ["a"]]),
    "array": ({"type": "array"}, [[], [1, "a"]], [{}, "[]", None]),
    "object": ({"type": "object"}, [{}, {"a": 1}], [[], "{}", None]),
    "types": ({"type": ["string", "null"]}, ["a", None], [1, False, []]),
    "enum": ({"enum": [1, "a", None, {"k": [1]}]}, [1, "a", None, {"k": [1]}], [True, 2, "b", {}]),
    "enum-and-type": ({"enum": [1, "a"], "type": "string"}, ["a"], [1, "b"]),
    "minimum": ({"minimum": 2}, [2, 2.5, "0", None], [1, 1.99, -3]),
    "maximum": ({"maximum": 2}, [2, 1.5, -9, "9"], [3, 2.01]),
    "min-length": ({"minLength": 2}, ["üü", "abc", 1, []], ["", "ü"]),
    "max-length": ({"maxLength": 2}, ["", "üü", "\U0001f600\U0001f600", 123], ["abc"]),
    "min-items": ({"minItems": 1}, [[None], "", {}], [[]]),
    "max-items": ({"maxItems": 1}, [[], [[1, 2]], "ab"], [[1, 2]]),
    "items": ({"items": {"type": "integer"}}, [[], [1, 2], "a"], [[1, "2"], [None]]),
    "required": ({"required": ["a", "b"]}, [{"a": 1, "b": None, "c": 2}, [], 1], [{}, {"a": 1}]),
    "properties": (
        {"properties": NAMED},
        [{}, {"name": "a"}, "a", None],
        [{"name": 1}, {"name": "a", "more": 1}, {"more": 1}],
    ),
    "open": (
        {"properties": NAMED, "additionalProperties": True},
        [{"name": "a", "more": 1}, {"more": 1}],
        [{"name": 1}],
    ),
    "closed": (
        {"properties": NAMED, "additionalProperties": False},
        [{}, {"name": "a"}],
        [{"more": 1}],
    ),
    "additional": (
        {"properties": NAMED, "additionalProperties": {"type": "integer"}},
        [{"name": "a", "more": 1}, {"more": 2, "most": 3}],
        [{"more": "1"}, {"name": 1}],
    ),
    "no-properties-declared": ({"type": "object", "required": ["a"]}, [{"a": 1, "b": 2}], [{}]),
    "any-of": (
        {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 5}]},
        ["a", 5],
        [4, None, 5.5],
    ),
    "any-of-and-nothing-else": (
        {"anyOf": [{"type": "string"}, {"type": "array"}], "maxLength": 1, "maxItems": 0},
        ["long", [1, 2]],
        [1],
    ),
    "one-of-is-any-of": (
        {"oneOf": [{"type": "string"}, {"enum": ["ab", 1]}], "maxLength": 1},
        ["ab", "abc", 1],
        [2, None],
    ),
    "nested": (
        {
            "type": "object",
            "properties": {
                "list": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["id"],
                        "properties": {"id": {"type": "integer"}, "tag": {"enum": ["x", "y"]}},
                    },
                }
            },
        },
        [{"list": [{"id": 1}, {"id": 2, "tag": "x"}]}, {}],
        [{"list": [{"id": 1}, {}]}, {"list": [{"id": "1"}]}, {"list": [{"id": 1, "tag": "z"}]}],
    ),
}
# What is refused, and where it says the fault is.
FAULTS: list[tuple[Any, Any, str]] = [
    ({"type": "integer"}, "a", "payload"),
    ({"properties": NAMED}, {"name": 1}, "payload.name"),
    ({"items": {"type": "integer"}}, [1, 2, "3"], "payload[2]"),
    (
        {"properties": {"items": {"items": {"properties": {"id": {"maximum": 5}}}}}},
        {"items": [{"id": 6}]},
        "payload.items[0].id",
    ),
]


def typed(schema: Any) -> EventType:
    return EventType(name="note", schema=schema)


async def test_law_x26_a_schema_takes_and_refuses(kit: Kit) -> None:
    """A payload is what its schema wants by these keywords: `anyOf` and `oneOf` (one must hold, and
    nothing else is asked), `enum`, `type`, `minimum`, `maximum`, `minLength`, `maxLength` in
    characters, `minItems`, `maxItems`, `items`, `required`, `properties`, which refuses keys that
    are not among them, unless `additionalProperties` is true or a schema that they obey. (x26)"""
    async with kit.open() as store:
        for name, (schema, takes, refuses) in SCHEMAS.items():
            process = f"p-{name}"
            await begin(store, process, events=(typed(schema),))
            for payload in takes:
                event = NewEvent(type="note", payload=payload)
                told = await store.processes.append(process, event)
                assert told.event.json() == payload, name
            for payload in refuses:
                with pytest.raises(PayloadRejected):
                    await store.processes.append(process, NewEvent(type="note", payload=payload))
            assert len(await log(store, process)) == len(takes), name


async def test_law_x27_a_refused_payload_says_where(kit: Kit) -> None:
    """A payload that its schema refuses is a PayloadRejected that names the type of the event and
    the path of the offender. (x27)"""
    async with kit.open() as store:
        for number, (schema, payload, field) in enumerate(FAULTS):
            process = f"p{number}"
            await begin(store, process, events=(typed(schema),))
            async with denied(store, PayloadRejected, process) as it:
                await store.processes.append(process, NewEvent(type="note", payload=payload))
            assert (it.value.field, it.value.type) == (field, "note")
            assert (it.value.code, it.value.retryable) == ("payload-rejected", False)
            assert it.value.reason


@pytest.mark.parametrize(
    "schema",
    [
        5,
        [],
        "string",
        {"type": 5},
        {"type": [{}]},
        {"type": ["string", None]},
        {"enum": 1},
        {"minimum": "1"},
        {"maxLength": True},
        {"minItems": 1.5},
        {"required": "a"},
        {"required": [1]},
        {"properties": []},
        {"properties": {"a": 5}},
        {"additionalProperties": "no"},
        {"items": 5},
        {"anyOf": {}},
        {"oneOf": [5]},
    ],
    ids=repr,
)
async def test_law_x30_an_ill_formed_schema_is_refused(kit: Kit, schema: Any) -> None:
    """A schema whose keywords have values that mean nothing is Invalid when the process is
    registered, and nothing is registered. (x30)"""
    async with kit.open() as store:
        async with denied(store, Invalid) as it:
            await store.processes.register(NewProcess(process="p", events=[typed(schema)]))
        assert it.value.field.startswith("events[0].schema")


PAYLOAD = {
    "name": "Ada",
    "n": 7,
    "none": None,
    "list": ["a", {"b": True}],
    "a/b": {"m~n": "escaped", "": "empty"},
    "deep": {"z": 1, "a": [1.5, "ü"]},
}
TEXTS: list[tuple[Selector, str]] = [
    (Pointer(at="/name"), "Ada"),
    (Pointer(at="/n"), "7"),
    (Pointer(at="/none"), "null"),
    (Pointer(at="/list"), '["a",{"b":true}]'),
    (Pointer(at="/list/0"), "a"),
    (Pointer(at="/list/1/b"), "true"),
    (Pointer(at="/a~1b/m~0n"), "escaped"),
    (Pointer(at="/a~1b/"), "empty"),
    (Pointer(at="/deep"), '{"a":[1.5,"ü"],"z":1}'),
    (Const(value="go"), "go"),
    (Const(value={"b": 1, "a": None}), '{"a":null,"b":1}'),
    (Present(at="/none"), "true"),
    (Present(at="/nothing"), "false"),
    (Present(at="/list/2"), "false"),
    (
        Template(
            text="{who} has {what} of {what}, {nobody} knows",
            fields={"who": Pointer(at="/name"), "what": Pointer(at="/list/1")},
        ),
        'Ada has {"b":true} of {"b":true}, {nobody} knows',
    ),
    (Template(text="no fields"), "no fields"),
    (Const(value="a\x00b\uffff\U0001f600"), "a\x00b\uffff\U0001f600"),
    (
        Template(text="{all}", fields={"all": Const(value=3)}),
        "3",
    ),
]


async def wake_text(store: Store, process: str, rule: WakeRule, payload: Any) -> str | None:
    """The wake of an event of a new process whose only type has this rule."""
    await begin(store, process, events=(EventType(name="ping", wakes=rule),))
    told = await store.processes.append(process, NewEvent(type="ping", payload=payload))
    assert (told.wake is None) == (told.event.wake is None)
    return told.event.wake


async def test_law_168_a_wake_is_taken_from_the_payload(kit: Kit) -> None:
    """The text of a wake is what its selector takes of the payload: a string as it is, anything
    else as compact JSON with its keys in order. Without a true `when` there is no wake, and the
    event is there; numbers are true, and all that is not empty. (168)"""
    async with kit.open() as store:
        for number, (selector, text) in enumerate(TEXTS):
            rule = WakeRule(input=selector)
            assert await wake_text(store, f"t{number}", rule, PAYLOAD) == text
        assert await wake_text(store, "whole", WakeRule(), {"b": 1, "a": 2}) == '{"a":2,"b":1}'
        assert await wake_text(store, "string", WakeRule(input=Whole()), "as it is") == "as it is"
        rule = WakeRule(input=Const(value="x"), when=Pointer(at="/when"))
        falses: list[Any] = [None, False, "", [], {}]
        trues: list[Any] = [True, 0, 0.0, -1, "0", "false", [None], {"a": None}]
        for number, value in enumerate(falses):
            assert await wake_text(store, f"f{number}", rule, {"when": value}) is None, value
            assert len(await log(store, f"f{number}")) == 1
        for number, value in enumerate(trues):
            assert await wake_text(store, f"w{number}", rule, {"when": value}) == "x", value
        for number, (at, wanted) in enumerate((("/a", "x"), ("/b", None))):
            shown = WakeRule(input=Const(value="x"), when=Present(at=at))
            assert await wake_text(store, f"p{number}", shown, {"a": None}) == wanted
        asleep = WakeRule(input=Pointer(at="/text"), when=Pointer(at="/when"))
        assert await wake_text(store, "asleep", asleep, {"when": False}) is None


async def test_law_x28_a_pointer_must_point_at_something(kit: Kit) -> None:
    """An event in which a pointer of its type points at nothing is refused with PayloadRejected,
    and nothing is appended, whatever the pointer was for. (x28)"""
    rules = [
        WakeRule(input=Pointer(at="/text")),
        WakeRule(input=Const(value="x"), when=Pointer(at="/text")),
        WakeRule(input=Template(text="{a}", fields={"a": Pointer(at="/text")})),
        WakeRule(input=Pointer(at="/list/1")),
        WakeRule(input=Pointer(at="/list/-")),
        WakeRule(input=Pointer(at="/list/00")),
        WakeRule(input=Pointer(at="/list/x")),
        WakeRule(input=Pointer(at="/string/0")),
    ]
    payload = {"list": ["a"], "string": "s"}
    async with kit.open() as store:
        for number, rule in enumerate(rules):
            process = f"p{number}"
            await begin(store, process, events=(EventType(name="ping", wakes=rule),))
            async with denied(store, PayloadRejected, process) as it:
                await store.processes.append(process, NewEvent(type="ping", payload=payload))
            assert it.value.type == "ping"
        ends = EventType(name="done", ends="failed", output=Pointer(at="/why"))
        await begin(store, "q", events=(ends,))
        async with denied(store, PayloadRejected, "q"):
            event = NewEvent(type="done", payload={}, key="k")
            await store.processes.append("q", event, authority="operator")
        told = await store.processes.append(
            "q", NewEvent(type="done", payload={"why": None}, key="k"), authority="operator"
        )
        assert told.event.output == b"null"


async def test_law_x31_what_is_made_of_a_payload_has_a_limit(kit: Kit) -> None:
    """A wake, or an output, that a template makes of a payload is TooLarge beyond the limit of a
    payload, and nothing is appended. (x31)"""
    thrice = Template(text="{a}{a}{a}", fields={"a": Pointer(at="/a")})
    payload = {"a": "x" * (6 * 1024 * 1024)}
    async with kit.open() as store:
        wakes = EventType(name="ping", wakes=WakeRule(input=thrice))
        ends = EventType(name="done", ends="completed", output=thrice)
        await begin(store, events=(wakes, ends))
        for event, field in (
            (NewEvent(type="ping", payload=payload), "wake"),
            (NewEvent(type="done", payload=payload, key="k"), "output"),
        ):
            async with denied(store, TooLarge) as it:
                await store.processes.append("p", event, authority="operator")
            assert (it.value.field, it.value.limit) == (field, 16 * 1024 * 1024)
        assert await log(store, "p") == ()


async def test_law_x29_an_ill_formed_pointer_is_refused(kit: Kit) -> None:
    """A pointer that is none is Invalid when the process is registered, wherever it stands; the
    empty one points at the whole payload. (x29)"""
    bad = Pointer(at="name")
    wrong = [
        EventType(name="a", ends="completed", output=bad),
        EventType(name="a", wakes=WakeRule(input=bad)),
        EventType(name="a", wakes=WakeRule(when=Present(at="a/b"))),
        EventType(name="a", wakes=WakeRule(input=Template(text="{x}", fields={"x": bad}))),
        EventType(name="a", wakes=WakeRule(input=Pointer(at="/a~2"))),
    ]
    async with kit.open() as store:
        for event_type in wrong:
            async with denied(store, Invalid) as it:
                await store.processes.register(NewProcess(process="p", events=[event_type]))
            assert it.value.field.startswith("events[0].")
        rule = WakeRule(input=Pointer(at=""))
        assert await wake_text(store, "p", rule, "all of it") == "all of it"
