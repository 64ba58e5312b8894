"""Deliveries: what an occurrence starts, by what its rules say.

A delivery is reserved until its process is registered. What a rule says about payloads is judged
then: a payload that does not fit starts nothing, says why, and keeps nothing from other rules.
"""

from __future__ import annotations

import msgspec

from holdfast.contract.processes import (
    Const,
    EventType,
    NewEvent,
    NewGrant,
    Pointer,
    Present,
    Selector,
    Template,
    WakeRule,
    Whole,
)
from holdfast.contract.stores import Store
from holdfast.contract.triggers import (
    ProcessTemplate,
)
from holdfast.testing.conformance.kit import Kit
from holdfast.testing.conformance.kit_triggers import (
    delivered,
    given,
    goes_on,
    here,
    mail,
    process_of,
    running,
    seen,
    states,
    waiting,
)

SAYS = EventType(name="says", wakes=WakeRule())


async def test_law_j16_a_delivery_starts_what_its_rule_says(kit: Kit) -> None:
    """The process of a delivery is what its rule says: its kind, label, definition, types of
    events, recovery, wake and grants. Its origin is the owner of the rule, its cause the
    occurrence, and its input the payload. (j16)"""
    grants = (NewGrant(scope=here("o", "f"), kind="tool", label="mine"),)
    template = ProcessTemplate(
        kind="research",
        label="Answer it",
        definition="research@2",
        events=(SAYS,),
        recovery="owner-bound",
        wake=here("w"),
        grants=grants,
    )
    async with kit.open() as store:
        await store.sessions.create("w")
        await given(store, "k", owner=here("s", "f"), process=template)
        await given(store, "plain")
        answer = await store.triggers.ingest(mail("m", payload={"b": 1, "a": [None]}))
        plain, full = [await process_of(store, one) for one in answer.deliveries]
        assert (full.kind, full.label, full.definition) == ("research", "Answer it", "research@2")
        assert (full.recovery, full.events) == ("owner-bound", (SAYS,))
        assert (full.origin, full.wake, full.parent) == (here("s", "f"), here("w"), None)
        assert (full.state, full.sequence) == ("running", 0)
        given_to = (await store.processes.grants_of(full.process)).items
        assert [(one.scope, one.kind, one.label) for one in given_to] == [
            (here("o", "f"), "tool", "mine")
        ]
        assert (plain.kind, plain.label, plain.definition) == ("task", "", None)
        assert (plain.recovery, plain.events, plain.origin) == ("rerunnable", (), None)
        for process in (plain, full):
            assert process.cause == answer.occurrence.occurrence
            assert process.input == answer.occurrence.payload == b'{"b":1,"a":[null]}'
        told = await store.processes.append(full.process, NewEvent(type="says", payload="hello"))
        assert told.wake == "enqueued"
        assert len((await store.queue.list("w")).items) == 1


async def test_law_j17_inputs_are_taken_out_of_the_payload(kit: Kit) -> None:
    """When a rule names inputs, the input of its process is an object of what each selector takes
    out of the payload. (j17)"""
    inputs: dict[str, Selector] = {
        "all": Whole(),
        "who": Pointer(at="/from/0"),
        "how": Const(value={"kindly": True}),
        "loud": Present(at="/loud"),
        "text": Template(text="{who}: {what}", fields={"who": Pointer(at="/from/0")}),
    }
    async with kit.open() as store:
        await given(store, "k", process=ProcessTemplate(inputs=inputs))
        answer = await store.triggers.ingest(mail("m", payload={"from": ["ada", "bob"]}))
        process = await process_of(store, answer.deliveries[0])
        assert msgspec.json.decode(process.input) == {
            "all": {"from": ["ada", "bob"]},
            "who": "ada",
            "how": {"kindly": True},
            "loud": False,
            "text": "ada: {what}",
        }


async def picky(store: Store) -> None:
    """Rules of which mail that is empty fits only the first and the last."""
    schema = {"type": "object", "required": ["from"], "properties": {"from": {"type": "string"}}}
    inputs: dict[str, Selector] = {"who": Pointer(at="/from")}
    await given(store, "a", "d")
    await given(store, "b", schema=schema)
    await given(store, "c", process=ProcessTemplate(inputs=inputs))


async def test_law_j18_a_rejected_delivery_says_why(kit: Kit) -> None:
    """A delivery whose payload is against the schema of the rule, or in which an input points at
    nothing, is rejected: it starts nothing, says why by naming the place, and stays so. The other
    deliveries of the occurrence are started. (j18)"""
    expected = [("a", "started"), ("b", "rejected"), ("c", "rejected"), ("d", "started")]
    async with kit.open() as store:
        await picky(store)
        answer = await store.triggers.ingest(mail("m1", payload={}))
        assert states(answer.deliveries) == expected
        reasons = [delivery.reason or "" for delivery in answer.deliveries]
        assert (reasons[0], reasons[3]) == ("", "")
        assert "payload.from" in reasons[1]
        assert "/from" in reasons[2]
        assert len(await running(store)) == 2
        for delivery in answer.deliveries[1:3]:
            assert await store.processes.get(delivery.process) is None
        wrong = await store.triggers.ingest(mail("m2", payload={"from": 3}))
        assert states(wrong.deliveries)[1:3] == [("b", "rejected"), ("c", "started")]
        assert "payload.from" in (wrong.deliveries[1].reason or "")
        assert (await store.triggers.ingest(mail("m1", payload={}))).deliveries == answer.deliveries
        assert await delivered(store, answer.occurrence.occurrence) == answer.deliveries
        assert await waiting(store) == []
        fits = await store.triggers.ingest(mail("m3", payload={"from": "ada"}))
        assert [delivery.state for delivery in fits.deliveries] == ["started"] * 4


async def test_law_j19_what_was_reserved_is_started_later(kit: Kit) -> None:
    """Starting registers the processes of the deliveries that were reserved, on any handle, and
    rejects those that cannot be; what was started or rejected stays as it is, and starting again
    changes nothing. (j19)"""
    async with kit.open() as store, kit.open() as other:
        await picky(store)
        happened = (await store.triggers.record(mail("m", payload={}))).occurrence.occurrence
        assert await store.triggers.start(happened) == ()
        assert states(await store.triggers.reserve(happened)) == [
            (key, "reserved") for key in "abcd"
        ]
        assert await waiting(other) == ["a", "b", "c", "d"]
        started = await other.triggers.start(happened)
        expected = [("a", "started"), ("b", "rejected"), ("c", "rejected"), ("d", "started")]
        assert states(started) == expected
        assert await delivered(store, happened) == started
        assert await running(store) == sorted(
            one.process for one in started if one.state == "started"
        )
        assert await waiting(store) == []
        before = await seen(store)
        for handle in (store, other):
            await handle.triggers.start(happened)
            answer = await handle.triggers.ingest(mail("m", payload={}))
            assert (answer.recorded, answer.deliveries) == (False, started)
        assert await seen(store) == before


async def test_law_j20_started_by_hand_is_started_as_a_whole(kit: Kit) -> None:
    """Recording, reserving and starting one by one comes to what ingesting comes to: the same
    occurrence, deliveries and processes. (j20)"""
    template = ProcessTemplate(kind="tool", inputs={"n": Pointer(at="/n")})
    async with kit.open() as store, kit.open(kit.other_tenant()) as other:
        for handle in (store, other):
            await given(handle, "a", process=template, owner=here())
        whole = await store.triggers.ingest(mail("m", payload={"n": 1}))
        parts = (await other.triggers.record(mail("m", payload={"n": 1}))).occurrence
        assert parts.occurrence == whole.occurrence.occurrence
        await other.triggers.reserve(parts.occurrence)
        (started,) = await other.triggers.start(parts.occurrence)
        one, two = await process_of(store, whole.deliveries[0]), await process_of(other, started)
        for field in ("kind", "input", "origin", "cause", "recovery", "state", "sequence"):
            assert getattr(one, field) == getattr(two, field), field


async def test_law_j21_a_deleted_session_is_left_out_of_the_grants(kit: Kit) -> None:
    """Grants for sessions that were deleted since are left out, and the delivery is started with
    the others. (j21)"""
    grants = [NewGrant(scope=here(name)) for name in ("gone", "there", "later")]
    async with kit.open() as store:
        for name in ("gone", "there"):
            await store.sessions.create(name)
        await given(store, "k", process=ProcessTemplate(grants=grants, wake=here("gone")))
        await store.sessions.delete("gone")
        (delivery,) = (await store.triggers.ingest(mail("m"))).deliveries
        assert delivery.state == "started"
        kept = (await store.processes.grants_of(delivery.process)).items
        assert [grant.scope for grant in kept] == [here("later"), here("there")]
        assert (await process_of(store, delivery)).wake is None


async def test_law_j22_a_deleted_session_starts_nothing_more(kit: Kit) -> None:
    """Deleting a session takes with its rules their deliveries that were not started; those that
    were stay, and so do their processes. (j22)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await given(store, "a")
        await given(store, "b", owner=here("s"))
        started = await store.triggers.ingest(mail("m1"))
        happened = (await store.triggers.record(mail("m2"))).occurrence.occurrence
        assert len(await store.triggers.reserve(happened)) == 2
        assert (await store.sessions.delete("s")).subscriptions == 1
        assert await delivered(store, started.occurrence.occurrence) == started.deliveries
        assert await running(store) == sorted(one.process for one in started.deliveries)
        assert await waiting(store) == ["a"]
        assert states(await delivered(store, happened)) == [("a", "reserved")]
        assert states(await store.triggers.start(happened)) == [("a", "started")]
        assert len(await running(store)) == 3
        await goes_on(store)
