"""Processes: background work with a record, and how it is registered and found.

A process is registered once under its id; the same registration again is the same process. Its
record is what was registered, and what the events of its log have made of it, and nothing else.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.contract.errors import (
    EventConflict,
    Invalid,
    ProcessConflict,
    ProcessUnknown,
    TooLarge,
)
from holdfast.contract.processes import (
    Const,
    EventType,
    ExternalRef,
    NewEvent,
    NewGrant,
    NewProcess,
    Pointer,
    Present,
    Process,
    ProcessFilter,
    Scope,
    Template,
    Wait,
    WakeRule,
)
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import Kit
from holdfast.testing.conformance.kit_processes import (
    NEVER,
    STEP,
    begin,
    denied,
    goes_on,
    here,
    listed,
    record,
    seen,
    step,
    stop,
    types,
)

FULL = NewProcess(
    process="p",
    kind="research",
    label="Find it",
    definition="research@2",
    input={"question": "why"},
    events=(
        STEP,
        EventType(name="note", schema={"type": "object", "required": ["text"]}),
        EventType(name="done", ends="completed", output=Pointer(at="/value")),
        EventType(
            name="tell",
            wakes=WakeRule(
                input=Template(text="{who}!", fields={"who": Const(value="you")}),
                when=Present(at="/loud"),
            ),
        ),
    ),
    recovery="owner-bound",
    origin=Scope(session="o", frame="f"),
    parent="parent",
    cause="turn-7",
    wake=Scope(session="w"),
    grants=(NewGrant(scope=Scope(session="o"), kind="tool", label="mine"),),
)
DIFFERENT: dict[str, Any] = {
    "kind": "other",
    "label": "Find that",
    "definition": "research@3",
    "input": {"question": "how"},
    "events": FULL.events[:3],
    "recovery": "rerunnable",
    "origin": Scope(session="o"),
    "parent": None,
    "cause": "turn-8",
    "wake": Scope(session="w", frame="f"),
}


async def all_states(store: Store) -> None:
    """Processes "a" to "g", one of each kind that a listing tells apart."""
    await begin(store, "a")
    await begin(store, "b", kind="tool", definition="tool@1")
    await begin(store, "c", definition="tool@1")
    await begin(store, "d", origin=here("s"), parent="a")
    await begin(store, "e", origin=here("s", "f"))
    await begin(store, "f", parent="a")
    await begin(store, "g")
    await store.processes.suspend("b", Wait(type="step"))
    await store.processes.suspend("e", Wait(until_ms=1))
    await store.processes.end("c", "completed", authority="operator")
    await store.processes.end("d", "failed", "no", authority="operator")
    await store.processes.end("f", "cancelled", authority="operator")
    await store.processes.abandon("g", reason="gone", authority="operator")


async def found(store: Store, **which: Any) -> list[str]:
    """The ids of the processes to which a filter applies."""
    chosen = ProcessFilter(**which)
    return await listed(lambda a: store.processes.list(which=chosen, after=a, limit=2))


async def test_law_143_a_process_is_registered_once(kit: Kit) -> None:
    """The same registration again answers the process that is there, with the same identity, on any
    handle; another one under the same id is refused with ProcessConflict. (143)"""
    async with kit.open() as store, kit.open() as other:
        first = await store.processes.register(FULL)
        assert first.created is True
        for handle in (store, other):
            again = await handle.processes.register(FULL)
            assert (again.created, again.process) == (False, first.process)
        assert len(first.process.identity) >= 32
        for name, value in DIFFERENT.items():
            async with denied(other, ProcessConflict) as it:
                changed = msgspec.structs.replace(FULL, **{name: value})
                await other.processes.register(changed)
            assert (it.value.process, it.value.code) == ("p", "process-conflict"), name
        twin = await store.processes.register(msgspec.structs.replace(FULL, process="q"))
        assert twin.created is True
        assert twin.process.identity != first.process.identity
        await goes_on(store)


async def test_law_144_a_registration_does_not_begin_again(kit: Kit) -> None:
    """A registration that is repeated answers the record as it is now, also when the process has
    ended, and changes nothing. (144)"""
    async with kit.open() as store:
        await store.processes.register(FULL)
        await step(store)
        running = await seen(store, "p")
        again = await store.processes.register(FULL)
        assert (again.created, again.process.sequence) == (False, 1)
        assert await seen(store, "p") == running
        ended = await store.processes.end("p", "failed", "no", authority="operator")
        again = await store.processes.register(FULL)
        assert (again.created, again.process) == (False, ended)
        assert (again.process.state, again.process.output) == ("failed", b'"no"')
        async with denied(store, ProcessConflict):
            await store.processes.register(msgspec.structs.replace(FULL, kind="other"))


BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "no id": ("process", {"process": ""}),
    "blank id": ("process", {"process": "  "}),
    "long id": ("process", {"process": "x" * 201}),
    "blank kind": ("kind", {"kind": ""}),
    "label with a control character": ("label", {"label": "a\x00b"}),
    "blank definition": ("definition", {"definition": ""}),
    "input that is no JSON": ("input.n", {"input": {"n": float("nan")}}),
    "unknown recovery": ("recovery", {"recovery": "sometimes"}),
    "blank origin": ("origin.session", {"origin": Scope(session="")}),
    "blank frame": ("origin.frame", {"origin": Scope(session="s", frame="")}),
    "blank parent": ("parent", {"parent": ""}),
    "blank wake": ("wake.session", {"wake": Scope(session=" ")}),
    "blank grant": ("grants[0].scope.session", {"grants": [NewGrant(scope=Scope(session=""))]}),
    "blank type": ("events[1].name", {"events": [STEP, EventType(name="")]}),
    "ill-formed type": ("events[0].name", {"events": [EventType(name="a b")]}),
    "type twice": ("events[1].name", {"events": [STEP, EventType(name="step")]}),
    "reserved type": ("events[0].name", {"events": [EventType(name="process.mine")]}),
    "core type": ("events[0].name", {"events": [EventType(name="process.waiting")]}),
    "unknown end": (
        "events[0].ends",
        {"events": [EventType(name="x", ends="over")]},  # type: ignore[arg-type]
    ),
    "abandoned by an event": (
        "events[0].ends",
        {"events": [EventType(name="x", ends="abandoned")]},  # type: ignore[arg-type]
    ),
    "core type that ends otherwise": (
        "events[0].ends",
        {"events": [EventType(name="process.failed", ends="completed")]},
    ),
    "types that are none": ("events", {"events": "step"}),
    "type that is none": ("events[1]", {"events": [STEP, {"name": "x"}]}),
    "wake rule that is none": (
        "events[0].wakes",
        {"events": [EventType(name="x", wakes=True)]},  # type: ignore[arg-type]
    ),
    "selector that is none": (
        "events[0].output",
        {"events": [EventType(name="x", output="/a")]},  # type: ignore[arg-type]
    ),
    "constant that is no JSON": (
        "events[0].output.value",
        {"events": [EventType(name="x", output=Const(value=b"raw"))]},
    ),
    "template that is no text": (
        "events[0].output.text",
        {"events": [EventType(name="x", output=Template(text=5))]},  # type: ignore[arg-type]
    ),
    "template in a template": (
        "events[0].output.fields.a",
        {
            "events": [
                EventType(
                    name="x",
                    output=Template(
                        text="{a}",
                        fields={"a": Present(at="/a")},  # type: ignore[dict-item]
                    ),
                )
            ]
        },
    ),
    "grants that are none": ("grants", {"grants": None}),
    "grant that is none": ("grants[0]", {"grants": [Scope(session="s")]}),
    "core type that does not end": (
        "events[0].ends",
        {"events": [EventType(name="process.completed")]},
    ),
}


@pytest.mark.parametrize("case", list(BAD))
async def test_law_145_an_ill_formed_registration_leaves_nothing(kit: Kit, case: str) -> None:
    """A registration with a blank or ill-formed id, a name that is blank, ill-formed, reserved or
    there twice, or an end that a type cannot have, is Invalid, names the field, and registers
    nothing. (145)"""
    field, wrong = BAD[case]
    async with kit.open() as store:
        fields: dict[str, Any] = {"process": "p", **wrong}
        with pytest.raises(Invalid) as it:
            await store.processes.register(NewProcess(**fields))
        assert it.value.field == field
        assert (await store.processes.list()).items == ()
        assert (await store.processes.changes()).items == ()
        await begin(store)
        await goes_on(store)


async def test_law_146_core_types_are_always_there(kit: Kit) -> None:
    """The types that begin with `process.` need no declaration and are not shown as declared; those
    of the ends may be declared, to give them a schema, an output or a wake. (146)"""
    async with kit.open() as store:
        bare = await begin(store, events=())
        assert bare.events == ()
        await store.processes.claim("p", "one")
        await store.processes.suspend("p", Wait(until_ms=1))
        await store.processes.resume("p")
        await store.processes.set_external("p", ExternalRef(backend="b", id="1"))
        await store.processes.request_cancel("p")
        await stop(store)
        assert await types(store, "p") == [
            "process.started",
            "process.waiting",
            "process.resumed",
            "process.external",
            "process.cancel-requested",
            "process.completed",
        ]
        declared = EventType(name="process.completed", ends="completed", output=Pointer(at="/v"))
        assert (await begin(store, "q", events=(declared,))).events == (declared,)
        ended = await stop(store, "q", {"v": [1]})
        assert ended.output == b"[1]"
        assert (await store.processes.register(NewProcess(process="p"))).created is False


async def test_law_147_where_a_process_runs_is_said_once(kit: Kit) -> None:
    """Where a process runs is said once, as an event, in any state: the same again changes nothing,
    another place is refused with EventConflict, and an unknown process is refused by name. (147)"""
    place = ExternalRef(backend="batch", id="job-1", metadata={"zone": ["a", 1]})
    async with kit.open() as store:
        async with denied(store, ProcessUnknown, NEVER) as unknown:
            await store.processes.set_external(NEVER, place)
        assert unknown.value.process == NEVER
        await begin(store, recovery="external")
        said = await store.processes.set_external("p", place)
        assert (said.external, said.sequence) == (place, 1)
        assert await types(store, "p") == ["process.external"]
        before = await seen(store, "p")
        assert await store.processes.set_external("p", place) == said
        assert await seen(store, "p") == before
        async with denied(store, EventConflict) as conflict:
            await store.processes.set_external("p", ExternalRef(backend="batch", id="job-2"))
        assert (conflict.value.process, conflict.value.key) == ("p", "process.external")
        await begin(store, "q")
        await stop(store, "q")
        late = await store.processes.set_external("q", place)
        assert (late.external, late.state, late.sequence) == (place, "completed", 2)
        assert await store.processes.set_external("q", place) == late
        await goes_on(store)


async def test_law_155_a_listing_holds_the_running_ones(kit: Kit) -> None:
    """When nothing else is said, a listing holds the running processes, waiting ones with them, in
    the order of their ids. (155)"""
    async with kit.open() as store:
        for process in ("c", "a", "B", "b", "a-1"):
            await begin(store, process)
        assert await listed(lambda a: store.processes.list(after=a, limit=2)) == [
            "B",
            "a",
            "a-1",
            "b",
            "c",
        ]
        await stop(store, "a")
        await store.processes.suspend("b", Wait(until_ms=1))
        assert await listed(lambda a: store.processes.list(after=a)) == ["B", "a-1", "b", "c"]
        page = await store.processes.list(limit=2)
        assert page.items == (await record(store, "B"), await record(store, "a-1"))


async def test_law_158_a_filter_tells_processes_apart(kit: Kit) -> None:
    """A filter asks for states, kind, definition, waiting, the session of the origin and the
    parent; all that is given must apply. (158)"""
    every = ("running", "completed", "failed", "cancelled", "abandoned")
    async with kit.open() as store:
        await all_states(store)
        assert await found(store, states=every) == ["a", "b", "c", "d", "e", "f", "g"]
        assert await found(store) == ["a", "b", "e"]
        for state, expected in zip(every[1:], "cdfg", strict=True):
            assert await found(store, states=[state]) == [expected]
        assert await found(store, states=["failed", "running"]) == ["a", "b", "d", "e"]
        assert await found(store, waiting=True) == ["b", "e"]
        assert await found(store, waiting=False) == ["a"]
        assert await found(store, states=every, waiting=True) == ["b", "e"]
        assert await found(store, states=every, kind="tool") == ["b"]
        assert await found(store, states=every, definition="tool@1") == ["b", "c"]
        assert await found(store, definition="tool@1") == ["b"]
        assert await found(store, definition="tool") == []
        assert await found(store, states=every, session="s") == ["d", "e"]
        assert await found(store, session="s") == ["e"]
        assert await found(store, states=every, parent="a") == ["d", "f"]
        assert await found(store, states=["failed"], parent="a", session="s") == ["d"]
        assert await found(store, states=every, parent="a", kind="tool") == []


async def test_law_159_an_ill_formed_filter_is_refused(kit: Kit) -> None:
    """A filter with an unknown state, no state, or an ill-formed name is Invalid, as is a limit out
    of range or a cursor that is none. (159)"""
    wrong: dict[str, dict[str, Any]] = {
        "unknown state": {"which": ProcessFilter(states=["any"])},  # type: ignore[list-item]
        "no state": {"which": ProcessFilter(states=())},
        "waiting": {"which": ProcessFilter(waiting="yes")},  # type: ignore[arg-type]
        "kind": {"which": ProcessFilter(kind="")},
        "session": {"which": ProcessFilter(session=" ")},
        "parent": {"which": ProcessFilter(parent="")},
        "limit": {"limit": 0},
        "great limit": {"limit": 1001},
        "cursor": {"after": "not a cursor \x00"},
    }
    async with kit.open() as store:
        await begin(store)
        for name, how in wrong.items():
            with pytest.raises(Invalid) as it:
                await store.processes.list(**how)
            assert it.value.field, name
        assert await listed(lambda a: store.processes.list(after=a)) == ["p"]


async def test_law_160_a_process_is_there_for_every_handle(kit: Kit) -> None:
    """The record, the grants and the log are there for a handle that is opened later, and an event
    that is sent again there is the one that was appended before. (160)"""
    async with kit.open() as store:
        await store.processes.register(FULL)
        first = await store.processes.append("p", NewEvent(type="step", payload=[1], key="k"))
        before = await seen(store, "p")
    async with kit.open() as late:
        assert await seen(late, "p") == before
        assert [grant.label for grant in before.grants] == ["mine"]
        again = await late.processes.append("p", NewEvent(type="step", payload=[1], key="k"))
        assert (again.replayed, again.event) == (True, first.event)
        assert await seen(late, "p") == before
        await goes_on(late)


async def test_law_162_what_is_not_there_is_none(kit: Kit) -> None:
    """Of an unknown process the record, the lease and the grant are None. (162)"""
    async with kit.open() as store:
        await begin(store)
        assert await store.processes.get(NEVER) is None
        assert await store.processes.lease(NEVER) is None
        assert await store.processes.granted(here(), NEVER) is None
        assert await store.processes.revoke(here(), NEVER) is False


async def test_law_x01_the_record_is_what_was_registered(kit: Kit) -> None:
    """The record of a new process is what was registered, running, with no event; the input comes
    back as the bytes it was stored as. (x01)"""
    async with kit.open() as store:
        made = (await store.processes.register(FULL)).process
        assert made == Process(
            process="p",
            kind="research",
            label="Find it",
            definition="research@2",
            input=b'{"question":"why"}',
            events=tuple(FULL.events),
            recovery="owner-bound",
            origin=Scope(session="o", frame="f"),
            parent="parent",
            cause="turn-7",
            wake=Scope(session="w"),
            identity=made.identity,
            created_at_ms=made.created_at_ms,
            updated_at_ms=made.created_at_ms,
        )
        assert made.ended is False
        assert await record(store) == made
        raw = await begin(store, "raw", input=b"\x00\xff")
        assert raw.input == b"\x00\xff"
        plain = (await store.processes.register(NewProcess(process="plain"))).process
        assert (plain.kind, plain.recovery, plain.input) == ("task", "rerunnable", b"null")
        assert (plain.label, plain.definition, plain.origin, plain.wake) == ("", None, None, None)


async def test_law_x02_a_process_without_an_id_gets_one(kit: Kit) -> None:
    """A registration without an id is a new process each time. (x02)"""
    async with kit.open() as store:
        made = [(await store.processes.register(NewProcess())).process.process for _ in range(3)]
        assert len(set(made)) == 3
        assert await listed(lambda a: store.processes.list(after=a)) == sorted(made)


async def test_law_x03_identity_is_what_is_meant(kit: Kit) -> None:
    """The order of the keys of a schema, and the grants, are no part of the identity of a
    registration; the order of the types is not free. (x03)"""
    one = EventType(name="a", schema={"type": "object", "required": ["x"]})
    other = EventType(name="a", schema={"required": ["x"], "type": "object"})
    async with kit.open() as store:
        first = await begin(store, events=(one, STEP), grants=[NewGrant(scope=here("s"))])
        again = await store.processes.register(
            NewProcess(process="p", events=(other, STEP), grants=[NewGrant(scope=here("t"))])
        )
        assert (again.created, again.process) == (False, first)
        assert await store.processes.granted(here("t"), "p") is None
        assert await store.processes.granted(here("s"), "p") is not None


async def test_law_x04_a_registration_gives_its_grants(kit: Kit) -> None:
    """The grants of a registration are given with it, all in one: the process is there with all of
    them, or not at all. (x04)"""
    scopes = [here("s"), here("s", "f"), here("t")]
    async with kit.open() as store:
        await store.sessions.create("gone")
        await store.sessions.delete("gone")
        grants = [NewGrant(scope=scope, kind="k", label=f"l{n}") for n, scope in enumerate(scopes)]
        made = await begin(store, grants=grants)
        given = (await seen(store, "p")).grants
        assert [(grant.scope, grant.kind, grant.label) for grant in given] == [
            (here("s"), "k", "l0"),
            (here("s", "f"), "k", "l1"),
            (here("t"), "k", "l2"),
        ]
        assert {grant.granted_at_ms for grant in given} == {made.created_at_ms}
        bad = [NewGrant(scope=here("s")), NewGrant(scope=here(""))]
        async with denied(store, Invalid, "q"):
            await store.processes.register(NewProcess(process="q", grants=bad))


async def test_law_x05_a_registration_has_limits(kit: Kit) -> None:
    """A process declares up to 256 types of events and is given up to 256 grants with its
    registration; more is TooLarge, and registers nothing. (x05)"""
    types_257 = [EventType(name=f"t{n}") for n in range(257)]
    grants_257 = [NewGrant(scope=here(f"s{n}")) for n in range(257)]
    async with kit.open() as store:
        wrong: dict[str, dict[str, Any]] = {
            "events": {"events": types_257},
            "grants": {"grants": grants_257},
        }
        for field, how in wrong.items():
            async with denied(store, TooLarge) as it:
                await store.processes.register(NewProcess(process="p", **how))
            assert (it.value.field, it.value.actual, it.value.limit) == (field, 257, 256)
        made = await begin(store, events=types_257[:256], grants=grants_257[:256])
        assert len(made.events) == 256
        assert len((await seen(store, "p")).grants) == 256
        big = NewProcess(process="q", input=b"x" * (16 * 1024 * 1024 + 1))
        async with denied(store, TooLarge, "q") as it:
            await store.processes.register(big)
        assert it.value.limit == 16 * 1024 * 1024


async def test_law_x06_of_concurrent_registrations_one_creates(kit: Kit) -> None:
    """Of equal registrations on different handles at the same time one creates the process, and all
    answer it. (x06)"""
    async with kit.open() as one, kit.open() as two, kit.open() as three:
        answers = await asyncio.gather(
            *(handle.processes.register(FULL) for handle in (one, two, three) for _ in range(2))
        )
        assert sorted(answer.created for answer in answers) == [False] * 5 + [True]
        assert len({answer.process.identity for answer in answers}) == 1
        assert [answer.process for answer in answers] == [await record(one)] * 6
