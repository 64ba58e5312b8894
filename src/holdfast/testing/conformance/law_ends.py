"""Ends: how a process comes to an end, who may say so, and who is told.

A process ends once, in one state, with what it came to. Who ends it holds its lease, or says by
what authority; its parent is told with the same stroke.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.contract.errors import (
    EndForbidden,
    Invalid,
    PayloadRejected,
    ProcessEnded,
)
from holdfast.contract.processes import (
    EventType,
    NewEvent,
    Pointer,
    Wait,
)
from holdfast.testing.conformance.kit import Kit
from holdfast.testing.conformance.kit_processes import (
    NEVER,
    REPORT,
    STEP,
    begin,
    denied,
    log,
    record,
    seen,
    stop,
)


async def test_law_176_what_ends_needs_a_key(kit: Kit) -> None:
    """An event of a type that ends its process needs a key. A cancel request brings its own: the
    same reason again asks nothing again, another reason is another event. (176)"""
    async with kit.open() as store:
        await begin(store)
        async with denied(store, Invalid) as it:
            await store.processes.append("p", NewEvent(type="report", payload={"summary": 1}))
        assert it.value.field == "event.key"
        asked = await store.processes.request_cancel("p", reason="late")
        assert asked.event.type == "process.cancel-requested"
        assert (asked.event.json(), asked.replayed) == ({"reason": "late"}, False)
        again = await store.processes.request_cancel("p", reason="late")
        assert (again.event, again.replayed) == (asked.event, True)
        none = await store.processes.request_cancel("p")
        assert (none.event.json(), none.event.sequence, none.ordinal) == ({"reason": None}, 2, 2)
        assert (await store.processes.request_cancel("p")).replayed is True
        found = await record(store)
        assert (found.cancel_requested_at_ms, found.state) == (asked.event.at_ms, "running")
        await stop(store)
        assert (await store.processes.request_cancel("p", reason="late")).replayed is True
        async with denied(store, ProcessEnded):
            await store.processes.request_cancel("p", reason="later")


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
async def test_law_177_an_end_is_in_the_record(kit: Kit, state: Any) -> None:
    """A process that is ended has that state, what it came to, and who said so; its event has them
    too, and it waits no more. (177)"""
    async with kit.open() as store, kit.open() as other:
        await begin(store)
        lease = await store.processes.claim("p", "one")
        await store.processes.suspend("p", Wait(type="step"))
        ended = await store.processes.end("p", state, {"a": [1, None]}, lease=lease)
        assert (ended.state, ended.ended, ended.output) == (state, True, b'{"a":[1,null]}')
        assert (ended.ended_by, ended.wait, ended.sequence) == ("lease", None, 3)
        assert await record(other) == ended
        event = (await log(other, "p"))[-1]
        assert (event.type, event.ends, event.output) == (f"process.{state}", state, ended.output)
        assert (event.authority, event.at_ms) == ("lease", ended.updated_at_ms)
        await begin(store, "q")
        bare = await store.processes.end("q", state, authority="operator")
        assert (bare.output, bare.ended_by) == (b"null", "operator")


async def test_law_178_the_first_end_is_the_end(kit: Kit) -> None:
    """The same end again is the same end, whoever says so; any other is refused with ProcessEnded,
    and what the process came to never changes. (178)"""
    async with kit.open() as store, kit.open() as other:
        await begin(store)
        lease = await store.processes.claim("p", "one")
        ended = await store.processes.end("p", "completed", {"a": 1}, lease=lease)
        before = await seen(store, "p")
        assert await other.processes.end("p", "completed", {"a": 1}, lease=lease) == ended
        assert await other.processes.end("p", output={"a": 1}, authority="operator") == ended
        assert await other.processes.end("p", output={"a": 1}) == ended
        wrong: list[tuple[Any, Any]] = [
            ("completed", {"a": 2}),
            ("completed", None),
            ("failed", {"a": 1}),
            ("cancelled", None),
        ]
        for state, output in wrong:
            async with denied(other, ProcessEnded) as it:
                await other.processes.end("p", state, output, authority="operator")
            assert (it.value.process, it.value.state) == ("p", "completed")
        report = NewEvent(type="report", payload={"summary": 1}, key="k")
        async with denied(other, ProcessEnded):
            await other.processes.append("p", report, authority="operator")
        async with denied(other, ProcessEnded):
            await other.processes.abandon("p", reason="gone", authority="operator")
        assert await seen(store, "p") == before


async def test_law_190_an_end_needs_an_authority(kit: Kit) -> None:
    """Without a lease a process is ended by an operator, or, when it runs somewhere else, by where
    it runs; anything else is refused with EndForbidden. Its event says which it was. (190)"""
    report = NewEvent(type="report", payload={"summary": 1}, key="k")
    async with kit.open() as store:
        for process, recovery in (("p", "rerunnable"), ("q", "owner-bound")):
            await begin(store, process, recovery=recovery)
            for how in ({}, {"authority": "external"}):
                async with denied(store, EndForbidden, process) as it:
                    await store.processes.end(process, **how)  # type: ignore[arg-type]
                assert (it.value.process, it.value.code) == (process, "end-forbidden")
                async with denied(store, EndForbidden, process):
                    await store.processes.append(process, report, **how)  # type: ignore[arg-type]
            assert (await stop(store, process)).ended_by == "operator"
        await begin(store, "x", recovery="external")
        async with denied(store, EndForbidden, "x"):
            await store.processes.end("x")
        ended = await store.processes.append("x", report, authority="external")
        assert (ended.event.authority, ended.event.ends) == ("external", "completed")
        assert (await record(store, "x")).ended_by == "external"
        await begin(store, "y", recovery="external")
        assert (await stop(store, "y")).ended_by == "operator"


async def test_law_x20_a_declared_type_may_end_a_process(kit: Kit) -> None:
    """A declared type that ends a process does so with what its selector takes of the payload, and
    gives the lease back; when the selector finds nothing the event is refused. (x20)"""
    quit_ = EventType(name="quit", ends="cancelled")
    async with kit.open() as store:
        await begin(store, events=(STEP, REPORT, quit_))
        lease = await store.processes.claim("p", "one")
        async with denied(store, PayloadRejected) as it:
            event = NewEvent(type="report", payload={"text": 1}, key="k")
            await store.processes.append("p", event, lease=lease)
        assert it.value.type == "report"
        event = NewEvent(type="report", payload={"summary": ["a"], "text": 1}, key="k")
        told = await store.processes.append("p", event, lease=lease)
        assert (told.event.ends, told.event.output) == ("completed", b'["a"]')
        found = await record(store)
        assert (found.state, found.output, found.ended_by) == ("completed", b'["a"]', "lease")
        lost = await store.processes.lease("p")
        assert lost is not None
        assert (lost.live, lost.owner, lost.generation) == (False, None, 1)
        again = await store.processes.append("p", event, lease=lease)
        assert (again.replayed, again.event) == (True, told.event)
        await begin(store, "q", events=(quit_,))
        whole = NewEvent(type="quit", payload={"a": 1}, key="k")
        await store.processes.append("q", whole, authority="operator")
        ended = await record(store, "q")
        assert (ended.state, ended.output) == ("cancelled", b'{"a":1}')


async def test_law_x21_a_declared_end_obeys_its_schema(kit: Kit) -> None:
    """When the type of an end is declared, its output must be what the schema wants, and what the
    process came to is what its selector takes. (x21)"""
    done = EventType(
        name="process.completed",
        ends="completed",
        schema={"type": "object", "required": ["value"]},
        output=Pointer(at="/value"),
    )
    async with kit.open() as store:
        await begin(store, events=(STEP, done))
        for output in (None, {"other": 1}):
            async with denied(store, PayloadRejected) as it:
                await store.processes.end("p", output=output, authority="operator")
            assert it.value.type == "process.completed"
        ended = await store.processes.end("p", output={"value": 7}, authority="operator")
        assert ended.output == b"7"
        again = await store.processes.end("p", output={"value": 7}, authority="operator")
        assert again == ended
        await begin(store, "q", events=(STEP, done))
        failed = await store.processes.end("q", "failed", authority="operator")
        assert (failed.state, failed.output) == ("failed", b"null")


async def test_law_x22_a_parent_is_told_of_an_end(kit: Kit) -> None:
    """When a process ends, its parent gets an event that names it, its state and its output, once,
    with the end, however it ended, and also when the parent has ended itself. (x22)"""
    async with kit.open() as store:
        await begin(store, "p")
        await begin(store, "a", parent="p")
        await begin(store, "b", parent="p")
        await begin(store, "c", parent="p")
        for _ in range(2):
            await store.processes.end("a", "completed", {"n": 1}, authority="operator")
        report = NewEvent(type="report", payload={"summary": "s"}, key="k")
        for _ in range(2):
            await store.processes.append("b", report, authority="operator")
        events = await log(store, "p")
        assert [event.type for event in events] == ["process.child-ended"] * 2
        assert [event.json() for event in events] == [
            {"process": "a", "state": "completed", "output": {"n": 1}},
            {"process": "b", "state": "completed", "output": "s"},
        ]
        assert (await record(store)).updated_at_ms == events[-1].at_ms
        await stop(store)
        await store.processes.abandon("c", reason="gone", authority="operator")
        last = (await log(store, "p"))[-1]
        assert (last.sequence, last.type) == (4, "process.child-ended")
        assert last.json() == {"process": "c", "state": "abandoned", "output": None}
        assert (await record(store)).state == "completed"


async def test_law_x23_a_parent_need_not_be_there(kit: Kit) -> None:
    """A parent that was never registered is told nothing, and the child ends all the same. (x23)"""
    async with kit.open() as store:
        await begin(store, "a", parent=NEVER)
        assert (await stop(store, "a")).state == "completed"
        assert await store.processes.get(NEVER) is None
        await begin(store, NEVER)
        await store.processes.end("a", authority="operator")
        assert await log(store, NEVER) == ()
