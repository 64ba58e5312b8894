"""The races of triggers: four callers with handles of their own start at the same moment.

`HOLDFAST_ROUNDS` is the number of rounds of each race on each database. Nothing is compared with a
model here: what may come out of a round is said by the race itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, count
from typing import Any

import pytest

import holdfast
from holdfast import (
    BlockingStore,
    Ingested,
    NewGrant,
    NewOccurrence,
    NewSubscription,
    OccurrenceUnknown,
    OperationConflict,
    ProcessFilter,
    ProcessTemplate,
    Scope,
    SessionDeleted,
    Subscribed,
    SubscriptionFilter,
    SubscriptionMoved,
    TriggerDelivery,
)
from holdfast.testing.postgres_server import PostgresServer
from tests.racing import CALLERS, Call, Callers, Check, Race, callers_on, troubles


def subscribe(source: str, key: str, **more: Any) -> NewSubscription:
    return NewSubscription(source_type="race", source_key=source, key=key, **more)


def happens(source: str, key: str) -> NewOccurrence:
    return NewOccurrence(source_type="race", source_key=source, key=f"{source}:{key}", payload=1)


def ingest(source: str, key: str) -> Call:
    return lambda store: store.triggers.ingest(happens(source, key))


def deliveries_of(store: BlockingStore, occurrence: str) -> tuple[TriggerDelivery, ...]:
    return store.triggers.deliveries(occurrence, limit=1000).items


def started_once(store: BlockingStore, deliveries: Sequence[TriggerDelivery]) -> None:
    """Every delivery has a process of its own, to which nothing has happened yet."""
    assert len({delivery.process for delivery in deliveries}) == len(deliveries)
    for delivery in deliveries:
        assert delivery.state == "started"
        process = store.processes.get(delivery.process)
        assert process is not None
        assert (process.sequence, process.cause) == (0, delivery.occurrence)


def nothing_reserved_of(store: BlockingStore, session: str) -> None:
    """Nothing of a deleted session is left to be delivered to."""
    assert not store.triggers.list(which=SubscriptionFilter(session=session)).items
    owners = [delivery.owner for delivery in store.triggers.reserved(limit=1000).items]
    assert Scope(session=session) not in owners


# --- the races: what is there before, the four calls, and what may come out


def one_ingest(store: BlockingStore, name: str) -> tuple[list[Call], Check]:
    for nth in range(5):
        store.triggers.register(subscribe(name, f"{name}-{nth}"))

    def check(store: BlockingStore, answers: Sequence[Ingested]) -> None:
        assert sorted(one.recorded for one in answers) == [False, False, False, True]
        assert len({one.deliveries for one in answers}) == 1
        assert len({one.occurrence for one in answers}) == 1
        assert len(answers[0].deliveries) == 5
        started_once(store, answers[0].deliveries)

    return [ingest(name, "same")] * CALLERS, check


def ingest_against_disable(store: BlockingStore, name: str) -> tuple[list[Call], Check]:
    for nth in range(3):
        store.triggers.register(subscribe(name, f"{name}-{nth}"))
    there: set[str] = set()

    def disable(store: BlockingStore) -> None:
        store.triggers.disable(f"{name}-1")
        # What is not there when it has returned came later.
        which = holdfast.OccurrenceFilter(source_type="race", source_key=name)
        there.update(one.occurrence for one in store.triggers.occurrences(which=which).items)

    def check(store: BlockingStore, answers: Sequence[Any]) -> None:
        for answer in answers[1:]:
            keys = [delivery.key for delivery in answer.deliveries]
            later = answer.occurrence.occurrence not in there
            without = [f"{name}-0", f"{name}-2"]
            assert keys == without or (not later and keys == [f"{name}-{n}" for n in range(3)])
            started_once(store, answer.deliveries)

    return [disable, *(ingest(name, str(nth)) for nth in range(3))], check


def one_reservation(store: BlockingStore, name: str) -> tuple[list[Call], Check]:
    for nth in range(6):
        store.triggers.register(subscribe(name, f"{name}-{nth}"))
    occurrence = store.triggers.record(happens(name, "recorded")).occurrence.occurrence

    def check(store: BlockingStore, answers: Sequence[tuple[TriggerDelivery, ...]]) -> None:
        told = sorted(delivery.key for delivery in chain(*answers))
        assert told == [f"{name}-{nth}" for nth in range(6)]
        assert len(deliveries_of(store, occurrence)) == 6
        store.triggers.start(occurrence)

    return [lambda store: store.triggers.reserve(occurrence)] * CALLERS, check


def one_start(store: BlockingStore, name: str) -> tuple[list[Call], Check]:
    scope = Scope(session=f"{name}-seeing")
    template = ProcessTemplate(grants=[NewGrant(scope=scope)])
    for nth in range(6):
        store.triggers.register(subscribe(name, f"{name}-{nth}", process=template))
    occurrence = store.triggers.record(happens(name, "recorded")).occurrence.occurrence
    store.triggers.reserve(occurrence)

    def check(store: BlockingStore, answers: Sequence[tuple[TriggerDelivery, ...]]) -> None:
        told = sorted(delivery.key for delivery in chain(*answers))
        assert told == [f"{name}-{nth}" for nth in range(6)]
        started_once(store, deliveries_of(store, occurrence))
        assert len(store.processes.grants(scope).items) == 6

    return [lambda store: store.triggers.start(occurrence)] * CALLERS, check


def one_registration(store: BlockingStore, name: str) -> tuple[list[Call], Check]:
    def check(store: BlockingStore, answers: Sequence[Subscribed]) -> None:
        assert sorted(one.created for one in answers) == [False, False, False, True]
        assert [one.subscription for one in answers] == [store.triggers.get(name)] * CALLERS
        assert answers[0].subscription.revision == 1

    return [lambda store: store.triggers.register(subscribe(name, name))] * CALLERS, check


def other_registrations(store: BlockingStore, name: str) -> tuple[list[Call], Check]:
    """The same key for different sources: one is first, and the others are told so."""

    def register(nth: int) -> Call:
        return lambda store: store.triggers.register(subscribe(f"{name}-{nth}", name))

    def check(store: BlockingStore, answers: Sequence[Any]) -> None:
        made = [one for one in answers if isinstance(one, Subscribed)]
        assert [one.subscription for one in made] == [store.triggers.get(name)]
        assert sum(isinstance(one, SubscriptionMoved) for one in answers) == CALLERS - 1

    return [register(nth) for nth in range(CALLERS)], check


def one_change(store: BlockingStore, name: str) -> tuple[list[Call], Check]:
    """All come from the first revision, and to the same source or another: one gets there."""
    store.triggers.register(subscribe(name, name))

    def change(nth: int) -> Call:
        new = subscribe(f"{name}-{nth % 2}", name, name=f"n{nth}")
        return lambda store: store.triggers.register(new, expected=1)

    def check(store: BlockingStore, answers: Sequence[Any]) -> None:
        made = [one for one in answers if isinstance(one, Subscribed)]
        assert [one.subscription for one in made] == [store.triggers.get(name)]
        assert made[0].subscription.revision == 2
        assert sum(isinstance(one, SubscriptionMoved) for one in answers) == CALLERS - 1

    return [change(nth) for nth in range(CALLERS)], check


def one_operation(store: BlockingStore, name: str) -> tuple[list[Call], Check]:
    """The same operation by two callers, and the same name for something else by two others."""
    store.triggers.register(subscribe(name, name))
    other = f"{name}-other"
    store.triggers.register(subscribe(other, other))

    def check(store: BlockingStore, answers: Sequence[Any]) -> None:
        refused = [isinstance(one, OperationConflict) for one in answers]
        assert refused in ([False, False, True, True], [True, True, False, False])
        told = [one for one in answers if not isinstance(one, OperationConflict)]
        assert told[0] == told[1]
        assert not told[0].enabled
        changed = [store.triggers.get(key) for key in (name, other)]
        assert sorted(one.revision for one in changed if one is not None) == [1, 2]

    def disable(key: str) -> Call:
        return lambda store: store.triggers.disable(key, operation=f"op-{name}")

    return [disable(name), disable(name), disable(other), disable(other)], check


def revival(store: BlockingStore, name: str) -> tuple[list[Call], Check]:
    """Nothing is delivered to the incarnation that was deleted."""
    store.triggers.register(subscribe(name, name))
    store.triggers.delete(name)
    there: set[str] = set()

    def revive(store: BlockingStore) -> Subscribed:
        done = store.triggers.register(subscribe(name, name))
        which = holdfast.OccurrenceFilter(source_type="race", source_key=name)
        there.update(one.occurrence for one in store.triggers.occurrences(which=which).items)
        return done

    def check(store: BlockingStore, answers: Sequence[Any]) -> None:
        assert answers[0].subscription.incarnation == 2
        for answer in answers[1:]:
            told = [delivery.subscription for delivery in answer.deliveries]
            earlier = answer.occurrence.occurrence in there
            assert told == [answers[0].subscription.subscription] or (earlier and not told)
            started_once(store, answer.deliveries)

    return [revive, *(ingest(name, str(nth)) for nth in range(3))], check


def deletion(store: BlockingStore, name: str) -> tuple[list[Call], Check]:
    """A session is deleted while something happens: what it started goes on, and later it starts
    nothing."""
    owner = Scope(session=name)
    store.sessions.create(name)
    template = ProcessTemplate(grants=[NewGrant(scope=owner)])
    store.triggers.register(subscribe(name, f"{name}-host", process=template))
    for nth in range(2):
        new = subscribe(name, f"own-{nth}", owner=owner, process=template)
        store.triggers.register(new, operation=f"{name}-{nth}")
    there: set[str] = set()

    def delete(store: BlockingStore) -> Any:
        done = store.sessions.delete(name)
        which = holdfast.OccurrenceFilter(source_type="race", source_key=name)
        there.update(one.occurrence for one in store.triggers.occurrences(which=which).items)
        return done

    def reserve(store: BlockingStore) -> Any:
        occurrence = store.triggers.record(happens(name, "recorded")).occurrence
        store.triggers.reserve(occurrence.occurrence)
        return occurrence.occurrence

    def several(key: str) -> Call:
        """One after the other, so that some come while the session is being deleted."""
        return lambda store: [ingest(name, f"{key}-{nth}")(store) for nth in range(4)]

    def check(store: BlockingStore, answers: Sequence[Any]) -> None:
        assert answers[0].subscriptions == 2
        for answer in chain(*answers[2:]):
            owners = [delivery.owner for delivery in answer.deliveries]
            later = answer.occurrence.occurrence not in there
            assert owners == [None] or (not later and owners == [None, owner, owner])
            started_once(store, answer.deliveries)
        assert [one.owner for one in deliveries_of(store, answers[1])] == [None]
        nothing_reserved_of(store, name)
        assert not store.processes.grants(owner).items
        store.triggers.start(answers[1])

    return [delete, reserve, several("1"), several("2")], check


def deletion_against_start(store: BlockingStore, name: str) -> tuple[list[Call], Check]:
    """What is reserved for a session that is deleted is started, or is gone."""
    owner = Scope(session=name)
    store.sessions.create(name)
    for nth in range(3):
        store.triggers.register(subscribe(name, f"own-{nth}", owner=owner))
    names = [
        store.triggers.record(happens(name, str(nth))).occurrence.occurrence for nth in range(2)
    ]
    for occurrence in names:
        store.triggers.reserve(occurrence)

    def check(store: BlockingStore, answers: Sequence[Any]) -> None:
        assert answers[0].subscriptions == 3
        told = sorted((one.occurrence, one.key) for one in chain(*answers[1:]))
        left = list(chain(*(deliveries_of(store, occurrence) for occurrence in names)))
        assert told == sorted((one.occurrence, one.key) for one in left)
        started_once(store, left)
        started = store.processes.list(which=ProcessFilter(session=name))
        assert len(started.items) == len(left)
        nothing_reserved_of(store, name)

    def start(occurrence: str) -> Call:
        return lambda store: store.triggers.start(occurrence)

    def delete(store: BlockingStore) -> Any:
        return store.sessions.delete(name)

    return [delete, start(names[0]), start(names[1]), start(names[0])], check


def deletion_against_registration(store: BlockingStore, name: str) -> tuple[list[Call], Check]:
    """What is registered for a session goes with it, or is refused."""
    owner = Scope(session=name)
    store.sessions.create(name)

    def register(nth: int) -> Call:
        def until_refused(store: BlockingStore) -> int:
            """One after the other, so that some come while the session is being deleted."""
            for more in count():
                new = subscribe(f"{name}-{nth}", f"own-{nth}-{more}", owner=owner)
                try:
                    store.triggers.register(new)
                except SessionDeleted:
                    return more
            raise AssertionError

        return until_refused

    def check(store: BlockingStore, answers: Sequence[Any]) -> None:
        assert answers[0].subscriptions == sum(answers[1:])
        nothing_reserved_of(store, name)

    def delete(store: BlockingStore) -> Any:
        return store.sessions.delete(name)

    return [delete, *(register(nth) for nth in range(3))], check


def moves(store: BlockingStore, name: str) -> tuple[list[Call], Check]:
    """Two subscriptions change places while something happens at both: nobody waits in a circle,
    and each is delivered to for the source it is registered for."""
    sources = [f"{name}-a", f"{name}-b"]
    for source in sources:
        store.triggers.register(subscribe(source, source))

    def move(key: str, source: str) -> Call:
        return lambda store: store.triggers.register(subscribe(source, key), expected=1)

    def check(store: BlockingStore, answers: Sequence[Any]) -> None:
        assert [one.subscription.revision for one in answers[:2]] == [2, 2]
        for answer in answers[2:]:
            started_once(store, answer.deliveries)
            assert {one.key for one in answer.deliveries} <= set(sources)
        after = [store.triggers.ingest(happens(source, "after")) for source in sources]
        assert [[one.key for one in done.deliveries] for done in after] == [
            [sources[1]],
            [sources[0]],
        ]

    calls = [move(sources[0], sources[1]), move(sources[1], sources[0])]
    return [*calls, ingest(sources[0], "1"), ingest(sources[1], "1")], check


def prune_against_reservation(store: BlockingStore, name: str) -> tuple[list[Call], Check]:
    """An occurrence that is pruned has no deliveries, and one that has some is not pruned."""
    while store.triggers.prune(before_ms=2**62, limit=1000).more:
        pass  # What other races have left is out of the way.
    store.triggers.register(subscribe(name, name))
    names = [
        store.triggers.record(happens(name, str(nth))).occurrence.occurrence for nth in range(12)
    ]

    def prune(store: BlockingStore) -> Any:
        return [store.triggers.prune(before_ms=2**62).occurrences for _ in range(3)]

    def reserve(order: list[str]) -> Call:
        def each(store: BlockingStore) -> list[str]:
            done = []
            for occurrence in order:
                with suppress(OccurrenceUnknown):
                    done += [one.occurrence for one in store.triggers.reserve(occurrence)]
            return done

        return each

    def check(store: BlockingStore, answers: Sequence[Any]) -> None:
        pruned = list(chain(*answers[0], *answers[1]))
        reserved = [*answers[2], *answers[3]]
        assert sorted([*pruned, *reserved]) == sorted(names)
        for occurrence in names:
            there = store.triggers.occurrence(occurrence) is not None
            assert there is (occurrence in reserved)
            if there:
                assert len(store.triggers.start(occurrence)) == 1
        assert not store.triggers.reserved().items

    return [prune, prune, reserve(names), reserve(names[::-1])], check


RACES = [
    one_ingest,
    ingest_against_disable,
    one_reservation,
    one_start,
    one_registration,
    other_registrations,
    one_change,
    one_operation,
    revival,
    deletion,
    deletion_against_start,
    deletion_against_registration,
    moves,
    prune_against_reservation,
]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def callers(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: PostgresServer,
) -> Iterator[Callers]:
    with callers_on(request.param, tmp_path_factory.mktemp("races"), postgres_server) as callers:
        yield callers


@pytest.mark.parametrize("race", RACES, ids=lambda race: race.__name__)
def test_race(callers: Callers, postgres_server: PostgresServer, race: Race) -> None:
    """One that may be first, and the right answer for each of the others."""
    before = troubles(postgres_server)
    callers.run(race)
    after = troubles(postgres_server)
    if race is one_operation:
        # Two operations of one name that are about different things meet at their receipt.
        assert after[0] == before[0]
    else:
        assert after == before
