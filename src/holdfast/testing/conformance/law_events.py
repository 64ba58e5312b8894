"""Events: the log of a process, from which its record is made.

Events are appended and never change. They are numbered from 1 without gaps, in each process. The
type of an event is declared with the process; it says what a payload must be, and what follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from holdfast.contract.background import ProcessStore
from holdfast.contract.errors import (
    EventConflict,
    EventUndeclared,
    Invalid,
    LeaseLost,
    PayloadRejected,
    ProcessEnded,
    ProcessUnknown,
    Refused,
)
from holdfast.contract.limits import MAX_INT
from holdfast.contract.processes import (
    EventType,
    ExternalRef,
    NewEvent,
    NewProcess,
    Process,
    Wait,
    WakeRule,
)
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import Kit
from holdfast.testing.conformance.kit_processes import (
    HOUR_MS,
    NEVER,
    REPORT,
    STEP,
    begin,
    denied,
    folded,
    goes_on,
    here,
    log,
    record,
    seen,
    step,
    stop,
    types,
)

NOTE = EventType(
    name="note",
    schema={
        "type": "object",
        "required": ["text"],
        "properties": {
            "text": {"type": "string"},
            "items": {"type": "array", "items": {"properties": {"id": {"type": "integer"}}}},
        },
    },
)


async def test_law_165_events_are_numbered_without_gaps(kit: Kit) -> None:
    """The first event of a process has the sequence 1, and each one the next, whatever was refused
    in between, and in each process by itself. (165)"""
    async with kit.open() as store:
        await begin(store, "p")
        await begin(store, "q")
        assert (await step(store, "p")).sequence == 1
        assert (await step(store, "q")).sequence == 1
        assert (await step(store, "p", {"n": 2}, key="k")).sequence == 2
        async with denied(store, EventUndeclared):
            await store.processes.append("p", NewEvent(type="other"))
        async with denied(store, EventConflict):
            await store.processes.append("p", NewEvent(type="step", key="k"))
        third = await store.processes.append("p", NewEvent(type="signal.go"))
        assert (third.event.sequence, third.ordinal, third.replayed) == (3, 1, False)
        assert [event.sequence for event in await log(store, "p")] == [1, 2, 3]
        assert (await record(store, "p")).sequence == 3
        assert (await record(store, "q")).sequence == 1


async def test_law_166_events_are_read_in_order(kit: Kit) -> None:
    """A page of the log holds the events later than a sequence, in order, also those of one type
    only; at the end it is empty. (166)"""
    async with kit.open() as store:
        await begin(store)
        made = [await step(store, payload=n) for n in range(4)]
        go = (await store.processes.signal("p", "go", 4)).event
        read = store.processes.events
        assert (await read("p")).items == (*made, go)
        assert (await read("p", after=2)).items == (*made[2:], go)
        assert (await read("p", after=5)).items == ()
        assert (await read("p", after=MAX_INT)).items == ()
        page = await read("p", limit=2)
        assert (page.items, page.next is not None) == (tuple(made[:2]), True)
        assert (await read("p", after=2, limit=3)).next is None
        assert (await read("p", type="signal.go")).items == (go,)
        assert (await read("p", type="step", after=1, limit=2)).items == tuple(made[1:3])
        assert (await read("p", type="other")).items == ()
        assert [event.json() for event in made] == [0, 1, 2, 3]


async def test_law_167_an_undeclared_event_is_refused(kit: Kit) -> None:
    """An event of a type that was not declared, or with a payload that its schema does not allow,
    is refused by name, and nothing is appended. (167)"""
    async with kit.open() as store:
        await begin(store, events=(STEP, NOTE))
        async with denied(store, EventUndeclared) as undeclared:
            await store.processes.append("p", NewEvent(type="other"))
        assert (undeclared.value.process, undeclared.value.type) == ("p", "other")
        async with denied(store, EventUndeclared) as unknown_signal:
            await store.processes.signal("p", "go")
        assert unknown_signal.value.type == "signal.go"
        for payload, field in (
            (None, "payload"),
            ({}, "payload"),
            ({"text": 1}, "payload.text"),
            ({"text": "a", "items": [{"id": 1}, {"id": "2"}]}, "payload.items[1].id"),
            ({"text": "a", "more": 1}, "payload"),
        ):
            async with denied(store, PayloadRejected) as it:
                await store.processes.append("p", NewEvent(type="note", payload=payload))
            assert it.value.type == "note"
            assert it.value.field.startswith(field), payload
        taken = await store.processes.append("p", NewEvent(type="note", payload={"text": "a"}))
        assert taken.event.sequence == 1
        await goes_on(store)


async def test_law_171_a_key_appends_once(kit: Kit) -> None:
    """An event that is sent again under its key is the one that is there, `replayed`, on any
    handle and whenever; nothing is appended, and nothing else is asked of it. (171)"""
    async with kit.open() as store, kit.open() as other:
        await store.sessions.create("s")
        await begin(store, wake=here())
        lease = await store.processes.claim("p", "one", ttl_ms=HOUR_MS)
        event = NewEvent(type="ping", payload={"a": 1}, key="k")
        first = await store.processes.append("p", event, lease=lease)
        assert (first.event.sequence, first.replayed, first.wake) == (2, False, "enqueued")
        await step(store)
        await store.processes.end("p", lease=lease)
        before = await seen(store, "p")
        for handle in (store, other):
            for how in ({}, {"lease": lease}, {"authority": "external"}):
                again = await handle.processes.append("p", event, **how)
                assert again == msgspec.structs.replace(first, replayed=True)
        assert await seen(store, "p") == before


async def test_law_172_a_key_is_for_one_event(kit: Kit) -> None:
    """Another payload or another type under a key that is taken is refused with EventConflict,
    which names the key, also when the process has ended; another process has other keys. (172)"""
    async with kit.open() as store, kit.open() as other:
        await begin(store)
        await begin(store, "q")
        await step(store, payload={"a": 1}, key="k")
        wrong = (
            NewEvent(type="step", payload={"a": 2}, key="k"),
            NewEvent(type="step", key="k"),
            NewEvent(type="signal.go", payload={"a": 1}, key="k"),
        )
        for event in wrong:
            async with denied(other, EventConflict) as it:
                await other.processes.append("p", event)
            assert (it.value.process, it.value.key) == ("p", "k")
            assert (it.value.code, it.value.retryable) == ("event-conflict", False)
        await step(store, "q", {"a": 2}, key="k")
        await stop(store)
        async with denied(store, EventConflict):
            await store.processes.append("p", wrong[0])
        await goes_on(store)


async def test_law_179_an_ended_process_still_takes_events(kit: Kit) -> None:
    """Events that do not end it may still be appended to a process that has ended: its log grows,
    its state and its output stay. (179)"""
    async with kit.open() as store:
        await begin(store)
        ended = await stop(store, output=[1])
        event = await step(store, payload="late")
        assert event.sequence == 2
        expected = msgspec.structs.replace(ended, sequence=2, updated_at_ms=event.at_ms)
        assert await record(store) == expected
        assert (await store.processes.signal("p", "go")).event.sequence == 3
        assert (await record(store)).state == "completed"


async def test_law_181_what_was_waited_for_is_found(kit: Kit) -> None:
    """Whoever waits for an event of a type later than a sequence finds it as soon as it is
    appended, on any handle, and never an older one. (181)"""
    async with kit.open() as store, kit.open() as other:
        await begin(store)
        old = (await store.processes.signal("p", "go")).event
        await step(store)
        found = await other.processes.events("p", type="signal.go", after=old.sequence, limit=1)
        assert found.items == ()
        new = (await store.processes.signal("p", "go", "new")).event
        found = await other.processes.events("p", type="signal.go", after=old.sequence, limit=1)
        assert found.items == (new,)


async def test_law_182_a_wait_is_in_the_record(kit: Kit) -> None:
    """What a process waits for is in its record, from the event that says so until it is resumed or
    ends. The same wait again, and resuming what does not wait, append nothing. (182)"""
    wait = Wait(type="signal.go", after=3, until_ms=9_000_000_000_000)
    async with kit.open() as store:
        await begin(store)
        waiting = await store.processes.suspend("p", wait)
        assert (waiting.wait, waiting.sequence, waiting.state) == (wait, 1, "running")
        assert await store.processes.suspend("p", wait) == waiting
        event = (await log(store, "p"))[0]
        assert (event.type, event.json()) == (
            "process.waiting",
            {"type": "signal.go", "after": 3, "until_ms": 9_000_000_000_000},
        )
        other = await store.processes.suspend("p", Wait(until_ms=5))
        assert (other.wait, other.sequence) == (Wait(until_ms=5), 2)
        resumed = await store.processes.resume("p")
        assert (resumed.wait, resumed.sequence) == (None, 3)
        assert await store.processes.resume("p") == resumed
        again = await store.processes.suspend("p", wait)
        assert (again.wait, again.sequence) == (wait, 4)
        async with denied(store, EventUndeclared) as undeclared:
            await store.processes.suspend("p", Wait(type="other"))
        assert undeclared.value.type == "other"
        core = await store.processes.suspend("p", Wait(type="process.child-ended"))
        assert core.sequence == 5
        assert (await stop(store)).wait is None
        async with denied(store, ProcessEnded) as ended:
            await store.processes.suspend("p", wait)
        assert (ended.value.process, ended.value.state) == ("p", "completed")
        left = await record(store)
        assert await store.processes.resume("p") == left
        assert await types(store, "p") == [
            *["process.waiting"] * 2,
            "process.resumed",
            *["process.waiting"] * 2,
            "process.completed",
        ]


async def test_law_183_events_are_counted(kit: Kit) -> None:
    """The count of a type is that of its events up to a sequence and with it, 0 for a type that is
    not there; an append answers the count up to its event. (183)"""
    async with kit.open() as store:
        await begin(store)
        ordinals: list[int] = []
        for name in ("step", "signal.go", "step", "step", "signal.go"):
            ordinals.append((await store.processes.append("p", NewEvent(type=name))).ordinal)
        assert ordinals == [1, 1, 2, 3, 2]
        count = store.processes.count
        assert [await count("p", "step", through=n) for n in range(7)] == [0, 1, 1, 2, 3, 3, 3]
        assert await count("p", "signal.go", through=2) == 1
        assert await count("p", "step", through=MAX_INT) == 3
        assert await count("p", "step") == 3
        assert await count("p", "other") == 0
        with pytest.raises(ProcessUnknown):
            await count(NEVER, "step")


async def test_law_184_the_last_events_are_the_end_of_the_log(kit: Kit) -> None:
    """The last k events are the end of the whole log, in order; all of it for a greater k. (184)"""
    async with kit.open() as store:
        await begin(store)
        assert await store.processes.recent("p") == ()
        for number in range(12):
            await step(store, payload=number)
        whole = await log(store, "p")
        assert len(whole) == 12
        assert await store.processes.recent("p", limit=3) == whole[9:]
        assert await store.processes.recent("p") == whole[2:]
        assert await store.processes.recent("p", limit=12) == whole
        assert await store.processes.recent("p", limit=13) == whole
        with pytest.raises(ProcessUnknown):
            await store.processes.recent(NEVER)


async def test_law_185_concurrent_appends_are_all_there(kit: Kit) -> None:
    """Events that are appended on several handles at the same time have different sequences without
    gaps, and none is lost. (185)"""
    async with kit.open() as one, kit.open() as two, kit.open() as three:
        await begin(one)
        answers = await asyncio.gather(
            *(
                handle.processes.append("p", NewEvent(type="step", payload=[place, number]))
                for number in range(5)
                for place, handle in enumerate((one, two, three))
            )
        )
        assert sorted(answer.event.sequence for answer in answers) == list(range(1, 16))
        assert sorted(answer.ordinal for answer in answers) == list(range(1, 16))
        by_sequence = sorted(answers, key=lambda answer: answer.event.sequence)
        assert await log(one, "p") == tuple(answer.event for answer in by_sequence)
        assert (await record(two)).sequence == 15


async def test_law_186_of_concurrent_events_with_a_key_one_is_there(kit: Kit) -> None:
    """Of equal events that are appended at the same time under one key one is there, and all
    callers are told of it; of different ones under one key all but one are refused. (186)"""
    async with kit.open() as one, kit.open() as two, kit.open() as three:
        await begin(one)
        event = NewEvent(type="step", payload=1, key="k")
        answers = await asyncio.gather(
            *(handle.processes.append("p", event) for handle in (one, two, three, one))
        )
        assert sorted(answer.replayed for answer in answers) == [False, True, True, True]
        assert {answer.event.sequence for answer in answers} == {1}
        told = await asyncio.gather(
            *(
                handle.processes.append("p", NewEvent(type="step", payload=place, key="other"))
                for place, handle in enumerate((one, two, three))
            ),
            return_exceptions=True,
        )
        assert sum(isinstance(answer, EventConflict) for answer in told) == 2
        assert len(await log(one, "p")) == 2


async def refusals(store: Store, lease: Any) -> None:
    """What must change nothing of process "p"."""
    p = store.processes
    for call in (
        lambda: p.append("p", NewEvent(type="other")),
        lambda: p.append("p", NewEvent(type="note", payload=1)),
        lambda: p.append("p", NewEvent(type="report", payload={}, key="r"), authority="operator"),
        lambda: p.append("p", NewEvent(type="step", payload=9, key="k")),
        lambda: p.append("p", NewEvent(type="report", payload={"summary": 1}, key="r")),
        lambda: p.end("p"),
        lambda: p.abandon("p", reason="no"),
        lambda: p.set_external("p", ExternalRef(backend="b", id="2")),
    ):
        with pytest.raises(Refused):
            await call()
    with pytest.raises(LeaseLost):
        await p.append("p", NewEvent(type="step"), lease=lease)


async def matches(store: Store, registered: Process) -> None:
    """The record is the fold of its log, field by field."""
    found, expected = await record(store), folded(registered, await log(store, "p"))
    for field in Process.__struct_fields__:
        assert getattr(found, field) == getattr(expected, field), field


async def test_law_187_the_record_is_the_fold_of_the_log(kit: Kit) -> None:
    """After any operation, sent again or refused, the record is what the events of its log make of
    what was registered, field by field. (187)"""
    async with kit.open() as store, kit.open() as other:
        await store.sessions.create("s")
        ping = EventType(name="ping", wakes=WakeRule())
        events = (STEP, NOTE, REPORT, ping, EventType(name="signal.go"))
        registered = await begin(store, events=events, wake=here())
        await matches(store, registered)
        stale = await store.processes.claim("p", "one", ttl_ms=0)
        place = ExternalRef(backend="b", id="1", metadata={"z": 1})
        cycle: list[Callable[[ProcessStore, int], Awaitable[object]]] = [
            lambda p, n: p.append("p", NewEvent(type="step", payload=n)),
            lambda p, n: p.append("p", NewEvent(type="step", payload="kept", key="k")),
            lambda p, n: p.append("p", NewEvent(type="note", payload={"text": str(n)})),
            lambda p, n: p.append("p", NewEvent(type="ping", payload=n)),
            lambda p, n: p.ack("p", n),
            lambda p, n: p.suspend("p", Wait(type="signal.go", after=n)),
            lambda p, n: p.suspend("p", Wait(type="signal.go", after=n)),
            lambda p, n: p.signal("p", "go", n),
            lambda p, n: p.request_cancel("p", reason=f"r{n % 2}"),
            lambda p, n: p.set_external("p", place),
            lambda p, n: p.claim("p", f"o{n}", ttl_ms=0),
            lambda p, n: p.grant(here("s", f"f{n}"), "p"),
            lambda p, n: p.resume("p"),
            lambda p, n: p.resume("p"),
            lambda p, n: p.revoke(here("s", f"f{n}"), "p"),
            lambda p, n: p.suspend("p", Wait(until_ms=n)),
        ]
        for number in range(3):
            for place_in, call in enumerate(cycle):
                await call((store, other)[place_in % 2].processes, number)
                await matches(store, registered)
            await refusals(other, stale)
            await matches(store, registered)
        report = NewEvent(type="report", payload={"summary": {"n": 1}}, key="r")
        for _ in range(2):
            await other.processes.append("p", report, authority="operator")
            await matches(store, registered)
        found = await record(store)
        assert (found.state, found.output, found.ended_by) == ("completed", b'{"n":1}', "operator")
        await step(store, payload="late")
        await refusals_at_the_end(store)
        await matches(store, registered)
        again = await store.processes.register(NewProcess(process="p", events=events, wake=here()))
        assert again.process == await record(store)
        await matches(other, registered)


async def refusals_at_the_end(store: Store) -> None:
    """What must change nothing of an ended process "p"."""
    p = store.processes
    for call in (
        lambda: p.end("p", "failed", authority="operator"),
        lambda: p.suspend("p", Wait(until_ms=1)),
        lambda: p.claim("p", "one"),
        lambda: p.abandon("p", reason="no", authority="operator"),
        lambda: p.request_cancel("p", reason="new"),
    ):
        with pytest.raises(ProcessEnded):
            await call()


async def test_law_x24_an_event_is_refused_without_its_lease(kit: Kit) -> None:
    """An event that is sent with a lease is refused with LeaseLost when that lease is not live,
    whatever its type, and appended when it is. (x24)"""
    async with kit.open() as store:
        await begin(store)
        stale = await store.processes.claim("p", "one", ttl_ms=0)
        report = NewEvent(type="report", payload={"summary": 1}, key="k")
        for event in (NewEvent(type="step"), NewEvent(type="step", key="s"), report):
            async with denied(store, LeaseLost) as it:
                await store.processes.append("p", event, lease=stale)
            assert (it.value.process, it.value.code) == ("p", "lease-lost")
        live = await store.processes.claim("p", "two")
        async with denied(store, LeaseLost):
            await store.processes.append("p", NewEvent(type="step"), lease=stale)
        told = await store.processes.append("p", NewEvent(type="step"), lease=live)
        assert told.event.sequence == 2
        await goes_on(store)


async def test_law_x25_a_payload_comes_back_as_it_was_stored(kit: Kit) -> None:
    """The payload of an event, and what a process came to, are the JSON that was sent; a payload
    that is no JSON value is Invalid, with the path of the offender. (x25)"""
    payload = {"ü": ["a", 1, 1.5, None, True, {"b": ""}], "big": MAX_INT, "low": -MAX_INT - 1}
    async with kit.open() as store:
        await begin(store)
        event = await step(store, payload=payload)
        assert event.json() == payload
        assert event.payload.decode().startswith('{"ü":["a",1,1.5,null,true,{"b":""}]')
        sent = await step(store, payload=b'{"spaced": [1, 2]}')
        assert sent.payload == b'{"spaced": [1, 2]}'
        ended = await stop(store, output=payload)
        assert ended.output == event.payload
        for wrong, field in (({"a": [1, float("nan")]}, "a[1]"), ({"a": {"b": 2**63}}, "a.b")):
            async with denied(store, Invalid) as it:
                await store.processes.append("p", NewEvent(type="step", payload=wrong))
            assert it.value.field.endswith(field)
