"""Occurrences: what happens outside, and the processes it starts, each of them once.

An occurrence has a key, and there is one of each key. For each rule that listens to its source it
has one delivery, which says that this occurrence starts that process; what the process is called
follows from the two, so that nothing can be started twice. To ingest is to do it all at once; the
steps may also be taken one by one: record, reserve, start.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.contract.errors import (
    Invalid,
    OccurrenceConflict,
    OccurrenceUnknown,
)
from holdfast.contract.processes import (
    NewGrant,
)
from holdfast.contract.triggers import (
    NewOccurrence,
    Occurrence,
    OccurrenceFilter,
    ProcessTemplate,
    TriggerDelivery,
)
from holdfast.testing.conformance.kit import Kit, all_pages
from holdfast.testing.conformance.kit_triggers import (
    HOUR_MS,
    NO_OCCURRENCE,
    delivered,
    denied,
    given,
    goes_on,
    here,
    mail,
    process_of,
    running,
    seen,
    states,
    stop,
    waiting,
)


async def test_law_205_a_delivery_is_reserved_once(kit: Kit) -> None:
    """Recording answers an occurrence with its id, source and key. Reserving answers a delivery for
    each rule that listens, with the id of the process it is to start; reserving again answers none,
    and nothing has started. (205)"""
    async with kit.open() as store, kit.open() as other:
        (subscription,) = await given(store, "k", owner=here("s", "f"))
        recorded = await store.triggers.record(mail("m", payload={"n": 1}, source={"by": "ada"}))
        happened = recorded.occurrence
        assert recorded.recorded is True
        assert happened == Occurrence(
            occurrence=happened.occurrence,
            source_type="mail",
            source_key="inbox",
            key="m",
            payload=b'{"n":1}',
            source=b'{"by":"ada"}',
            at_ms=happened.at_ms,
        )
        assert happened.occurrence.startswith("occurrence:")
        assert await other.triggers.occurrence(happened.occurrence) == happened
        assert await delivered(store, happened.occurrence) == ()
        (delivery,) = await store.triggers.reserve(happened.occurrence)
        assert delivery == TriggerDelivery(
            occurrence=happened.occurrence,
            subscription=subscription.subscription,
            owner=here("s", "f"),
            key="k",
            process=delivery.process,
            state="reserved",
            reason=None,
            at_ms=delivery.at_ms,
        )
        assert delivery.process.startswith("delivery:")
        for handle in (store, other):
            assert await handle.triggers.reserve(happened.occurrence) == ()
            assert await delivered(handle, happened.occurrence) == (delivery,)
        assert await store.processes.get(delivery.process) is None
        assert await running(store) == []


async def test_law_206_what_happened_once_happened_once(kit: Kit) -> None:
    """The same occurrence again is the one that is there, on any handle, with its id and its time,
    and reserves nothing anew. (206)"""
    async with kit.open() as store, kit.open() as other:
        await given(store, "k")
        happened = mail("m", payload={"b": 1, "a": [2]}, source="ada")
        first = await store.triggers.record(happened)
        assert len(await store.triggers.reserve(first.occurrence.occurrence)) == 1
        before = await seen(store)
        for handle in (store, other):
            again = await handle.triggers.record(happened)
            assert (again.recorded, again.occurrence) == (False, first.occurrence)
            assert await handle.triggers.reserve(first.occurrence.occurrence) == ()
        assert await seen(other) == before


async def test_law_208_triggers_are_there_for_every_handle(kit: Kit) -> None:
    """Rules, occurrences and deliveries are there for a handle that is opened later; what was
    reserved is not reserved again, and the rules go on. (208)"""
    async with kit.open() as store:
        await given(store, "k", "l")
        await store.triggers.disable("l")
        await store.triggers.ingest(mail("m1"))
        kept = (await store.triggers.record(mail("m2"))).occurrence.occurrence
        await store.triggers.reserve(kept)
        before = await seen(store)
    async with kit.open() as late:
        assert await seen(late) == before
        assert await late.triggers.reserve(kept) == ()
        assert (await late.triggers.ingest(mail("m1"))).recorded is False
        assert await seen(late) == before
        await goes_on(late)


BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "blank key": ("key", {"key": " "}),
    "no key": ("key", {"key": ""}),
    "long key": ("key", {"key": "x" * 201}),
    "blank source type": ("source_type", {"source_type": ""}),
    "blank source key": ("source_key", {"source_key": "  "}),
    "payload that is not JSON": ("payload.n", {"payload": {"n": float("nan")}}),
    "bytes that are not JSON": ("payload", {"payload": b"\x00raw"}),
    "source that is not JSON": ("source", {"source": {"n": float("inf")}}),
}


@pytest.mark.parametrize("case", list(BAD))
async def test_law_j15_an_ill_formed_occurrence_leaves_nothing(kit: Kit, case: str) -> None:
    """An occurrence with a blank or ill-formed key or source, or a payload that is not JSON, is
    Invalid, names the field, and neither is recorded nor starts anything. (j15)"""
    field, wrong = BAD[case]
    async with kit.open() as store:
        await given(store, "k")
        happened = mail(**{"key": "m", **wrong})
        for call in (store.triggers.record, store.triggers.ingest):
            async with denied(store, Invalid) as it:
                await call(happened)
            assert it.value.field.startswith(field), it.value.field
        await goes_on(store)


OTHER: dict[str, NewOccurrence] = {
    "source-type": mail("m", payload={"n": 1}, source="ada", source_type="call"),
    "source-key": mail("m", payload={"n": 1}, source="ada", source_key="outbox"),
    "payload": mail("m", payload={"n": 2}, source="ada"),
    "no-payload": mail("m", source="ada"),
    "source": mail("m", payload={"n": 1}, source="bob"),
    "no-source": mail("m", payload={"n": 1}),
}


@pytest.mark.parametrize("case", list(OTHER))
async def test_law_212_a_key_is_one_occurrence(kit: Kit, case: str) -> None:
    """An occurrence with a key that is taken and another source, payload or word about its origin
    is refused with OccurrenceConflict, which names the key; nothing is recorded or started. (212)
    """
    async with kit.open() as store:
        await given(store, "k")
        await given(store, "l", source_type="call")
        await store.triggers.ingest(mail("m", payload={"n": 1}, source="ada"))
        for call in (store.triggers.record, store.triggers.ingest):
            async with denied(store, OccurrenceConflict) as it:
                await call(OTHER[case])
            assert it.value.key == "m"
        await goes_on(store)


async def test_law_213_an_occurrence_starts_every_rule_of_its_source(kit: Kit) -> None:
    """An occurrence has a delivery for each rule that listens to its source, in the order of owners
    and keys, the host first, each with a process of its own; the rules of another type or key of
    source have none. (213)"""
    async with kit.open() as store:
        await given(store, "b", "a")
        await given(store, "a", owner=here("t"))
        await given(store, "z", owner=here("s", "f"))
        await given(store, "c", "b", owner=here("s"))
        await given(store, "x", source_key="outbox")
        await given(store, "y", source_type="call")
        await given(store, "w", enabled=False)
        answer = await store.triggers.ingest(mail("m"))
        expected = [
            (None, "a"),
            (None, "b"),
            (here("s"), "b"),
            (here("s"), "c"),
            (here("s", "f"), "z"),
            (here("t"), "a"),
        ]
        assert [(one.owner, one.key) for one in answer.deliveries] == expected
        assert await running(store) == sorted(one.process for one in answer.deliveries)
        assert len(await running(store)) == 6
        again = (await store.triggers.record(mail("n"))).occurrence.occurrence
        reserved = await store.triggers.reserve(again)
        assert [(one.owner, one.key) for one in reserved] == expected
        assert await delivered(store, again) == reserved
        assert len({one.process for one in (*answer.deliveries, *reserved)}) == 12


async def test_law_214_a_reservation_is_for_the_rules_of_its_time(kit: Kit) -> None:
    """Reserving goes by the rules that listen when it is asked: one that was registered after the
    occurrence is delivered, and one that came after a reservation is all that the next one answers.
    (214)"""
    async with kit.open() as store:
        happened = (await store.triggers.record(mail("m"))).occurrence.occurrence
        assert await store.triggers.reserve(happened) == ()
        await given(store, "b")
        assert states(await store.triggers.reserve(happened)) == [("b", "reserved")]
        await given(store, "a")
        await store.triggers.disable("b")
        assert states(await store.triggers.reserve(happened)) == [("a", "reserved")]
        assert await store.triggers.reserve(happened) == ()
        await store.triggers.enable("b")
        assert await store.triggers.reserve(happened) == ()
        assert [one.key for one in await delivered(store, happened)] == ["a", "b"]


async def test_law_215_concurrent_reservations_share_nothing(kit: Kit) -> None:
    """Of reservations of one occurrence at the same time, on different handles, each delivery is
    answered by exactly one. (215)"""
    async with kit.open() as one, kit.open() as two, kit.open() as three:
        await given(one, *"abcdefgh")
        happened = (await one.triggers.record(mail("m"))).occurrence.occurrence
        answers = await asyncio.gather(
            *(handle.triggers.reserve(happened) for handle in (one, two, three) for _ in range(2))
        )
        answered = [delivery for answer in answers for delivery in answer]
        assert sorted(delivery.key for delivery in answered) == list("abcdefgh")
        assert await delivered(two, happened) == tuple(sorted(answered, key=lambda d: d.key))


async def test_law_218_to_ingest_is_to_do_it_all(kit: Kit) -> None:
    """Ingesting records an occurrence, reserves a delivery for each rule that listens, and starts
    their processes, all at once. The same again answers the same deliveries as they are now, on any
    handle, and starts nothing, also when rules have come and gone and processes have ended. (218)
    """
    async with kit.open() as store, kit.open() as other:
        await given(store, "a", "b")
        first = await store.triggers.ingest(mail("m"))
        assert first.recorded is True
        assert states(first.deliveries) == [("a", "started"), ("b", "started")]
        assert await store.triggers.occurrence(first.occurrence.occurrence) == first.occurrence
        assert await delivered(other, first.occurrence.occurrence) == first.deliveries
        assert await running(other) == sorted(one.process for one in first.deliveries)
        assert await waiting(other) == []
        await stop(store, first.deliveries[0].process)
        await given(store, "c")
        await store.triggers.delete("b")
        before = await seen(store)
        for handle in (store, other):
            again = await handle.triggers.ingest(mail("m"))
            assert (again.recorded, again.occurrence) == (False, first.occurrence)
            assert again.deliveries == first.deliveries
        assert await seen(other) == before


async def test_law_219_an_occurrence_goes_when_what_it_started_is_over(kit: Kit) -> None:
    """Pruning takes an occurrence that is older than a time and has no deliveries, or only such
    whose processes have ended; as long as one runs, or is reserved and not started, it stays
    however old it is. (219)"""
    async with kit.open() as store:
        alone = await store.triggers.ingest(mail("m1"))
        await given(store, "a", "b")
        both = await store.triggers.ingest(mail("m2"))
        kept = (await store.triggers.record(mail("m3"))).occurrence.occurrence
        await store.triggers.reserve(kept)
        far = both.occurrence.at_ms + HOUR_MS
        assert (await store.triggers.prune(before_ms=alone.occurrence.at_ms)).occurrences == ()
        gone = await store.triggers.prune(before_ms=far)
        assert gone.occurrences == (alone.occurrence.occurrence,)
        assert (gone.deliveries, gone.more) == (0, False)
        assert await store.triggers.occurrence(alone.occurrence.occurrence) is None
        await stop(store, both.deliveries[0].process)
        assert (await store.triggers.prune(before_ms=far)).occurrences == ()
        await stop(store, both.deliveries[1].process)
        gone = await store.triggers.prune(before_ms=far)
        assert (gone.occurrences, gone.deliveries) == ((both.occurrence.occurrence,), 2)
        with pytest.raises(OccurrenceUnknown):
            await store.triggers.deliveries(both.occurrence.occurrence)
        for delivery in await store.triggers.start(kept):
            assert (await store.triggers.prune(before_ms=far)).occurrences == ()
            await stop(store, delivery.process)
        ended = far + HOUR_MS
        assert len((await store.processes.prune(ended_before_ms=ended)).processes) == 4
        assert (await store.triggers.prune(before_ms=far)).occurrences == (kept,)
        assert (await store.triggers.occurrences()).items == ()
        await goes_on(store, rules=2)


async def test_law_j23_of_concurrent_ingests_one_records(kit: Kit) -> None:
    """Of equal ingests on different handles at the same time one records, all answer the same
    deliveries, and each process is started once. (j23)"""
    async with kit.open() as one, kit.open() as two, kit.open() as three:
        await given(one, "a", "b", "c")
        answers = await asyncio.gather(
            *(handle.triggers.ingest(mail("m")) for handle in (one, two, three) for _ in range(2))
        )
        assert sorted(answer.recorded for answer in answers) == [False] * 5 + [True]
        assert len({answer.occurrence.at_ms for answer in answers}) == 1
        assert len({answer.deliveries for answer in answers}) == 1
        assert states(answers[0].deliveries) == [(key, "started") for key in "abc"]
        assert await running(one) == sorted(item.process for item in answers[0].deliveries)


async def test_law_j24_a_change_that_was_answered_holds(kit: Kit) -> None:
    """An ingest that begins after a rule was registered, disabled or deleted goes by it, however
    many others are under way on other handles. (j24)"""
    async with kit.open() as one, kit.open() as two, kit.open() as three:
        await given(one, "a")
        handles = (one, two, three)
        others = [
            asyncio.create_task(handle.triggers.ingest(mail(f"o{number}")))
            for number, handle in enumerate(handles * 4)
        ]
        for number in range(4):
            await one.triggers.disable("a")
            off = await asyncio.gather(
                *(h.triggers.ingest(mail(f"off-{number}-{n}")) for n, h in enumerate(handles))
            )
            assert [answer.deliveries for answer in off] == [()] * 3
            await one.triggers.enable("a")
            on = await asyncio.gather(
                *(h.triggers.ingest(mail(f"on-{number}-{n}")) for n, h in enumerate(handles))
            )
            assert [states(answer.deliveries) for answer in on] == [[("a", "started")]] * 3
        for answer in await asyncio.gather(*others):
            assert await delivered(two, answer.occurrence.occurrence) == answer.deliveries
        await one.triggers.delete("a")
        late = await asyncio.gather(
            *(h.triggers.ingest(mail(f"late-{n}")) for n, h in enumerate(handles))
        )
        assert [answer.deliveries for answer in late] == [()] * 3


async def test_law_j25_occurrences_are_listed_by_source(kit: Kit) -> None:
    """A listing of occurrences holds those of a type or key of source, or all of them, page after
    page, the latest last, and a listing of deliveries goes through all of one occurrence. (j25)"""
    async with kit.open() as store:
        for key in ("c", "a", "b"):
            await store.triggers.record(mail(key))
        await store.triggers.record(mail("d", source_type="call"))
        await store.triggers.record(mail("e", source_key="outbox"))

        async def listed(**which: Any) -> list[str]:
            chosen = OccurrenceFilter(**which)
            found = await all_pages(
                lambda a: store.triggers.occurrences(which=chosen, after=a, limit=2)
            )
            assert [one.at_ms for one in found] == sorted(one.at_ms for one in found)
            return sorted(one.key for one in found)

        assert await listed() == ["a", "b", "c", "d", "e"]
        assert await listed(source_type="mail") == ["a", "b", "c", "e"]
        assert await listed(source_key="inbox") == ["a", "b", "c", "d"]
        assert await listed(source_type="mail", source_key="outbox") == ["e"]
        assert await listed(source_type="note") == []
        assert await store.triggers.occurrence(NO_OCCURRENCE) is None


async def test_law_j26_pruning_takes_a_few_at_a_time(kit: Kit) -> None:
    """A prune removes as many occurrences as it is told, the oldest first, counts their deliveries,
    and says whether there is more. (j26)"""
    async with kit.open() as store:
        await given(store, "k")
        happened = [await store.triggers.ingest(mail(f"m{number}")) for number in range(3)]
        for answer in happened:
            await stop(store, answer.deliveries[0].process)
        far = happened[-1].occurrence.at_ms + HOUR_MS
        first = await store.triggers.prune(before_ms=far, limit=2)
        assert (len(first.occurrences), first.deliveries, first.more) == (2, 2, True)
        second = await store.triggers.prune(before_ms=far, limit=2)
        assert (len(second.occurrences), second.deliveries, second.more) == (1, 1, False)
        assert sorted((*first.occurrences, *second.occurrences)) == sorted(
            answer.occurrence.occurrence for answer in happened
        )
        nothing = await store.triggers.prune(before_ms=far)
        assert (nothing.occurrences, nothing.deliveries, nothing.more) == ((), 0, False)
        await goes_on(store)


async def test_law_j27_what_was_pruned_starts_nothing_twice(kit: Kit) -> None:
    """The key of an occurrence that was pruned is free again; what it started once is not started
    again, as long as its process is remembered: the same occurrence finds it, and another one under
    the key is rejected. (j27)"""
    async with kit.open() as store:
        await given(store, "k", process=ProcessTemplate(grants=[NewGrant(scope=here())]))
        first = await store.triggers.ingest(mail("m", payload=1))
        over = await stop(store, first.deliveries[0].process)
        await store.processes.revoke(here(), over.process)
        far = first.occurrence.at_ms + HOUR_MS
        for payload, state in ((1, "started"), (2, "rejected")):
            assert len((await store.triggers.prune(before_ms=far)).occurrences) == 1
            again = await store.triggers.ingest(mail("m", payload=payload))
            assert (again.recorded, states(again.deliveries)) == (True, [("k", state)])
            assert again.deliveries[0].process == over.process
            assert await process_of(store, again.deliveries[0]) == over
            assert (await store.processes.grants_of(over.process)).items == ()
        assert (await store.triggers.prune(before_ms=far)).deliveries == 1
        happened = (await store.triggers.record(mail("m", payload=1))).occurrence.occurrence
        await store.triggers.reserve(happened)
        (started,) = await store.triggers.start(happened)
        assert (started.process, started.state) == (over.process, "started")
        assert await process_of(store, started) == over
        assert (await store.processes.grants_of(over.process)).items == ()
        await goes_on(store)
