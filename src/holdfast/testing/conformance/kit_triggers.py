"""What the laws of triggers share lives here: a plain rule, plain mail, and all there is of them.

A rule is a subscription; "mail" to "inbox" is what most of them listen to.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from holdfast.contract.errors import HoldfastError
from holdfast.contract.processes import Process, ProcessFilter, Scope
from holdfast.contract.stores import Store
from holdfast.contract.triggers import (
    NewOccurrence,
    NewSubscription,
    Occurrence,
    Subscription,
    SubscriptionFilter,
    TriggerDelivery,
)
from holdfast.testing.conformance.kit import all_pages

E = TypeVar("E", bound=HoldfastError)

HOUR_MS = 3_600_000
NO_OCCURRENCE = "occurrence:none"
EVERY_PROCESS = ProcessFilter(states=("running", "completed", "failed", "cancelled", "abandoned"))


@dataclass(frozen=True)
class TriggerPicture:
    """All that can be seen of the triggers of a tenant, and the processes."""

    subscriptions: tuple[Subscription, ...]
    occurrences: tuple[Occurrence, ...]
    deliveries: tuple[TriggerDelivery, ...]
    reserved: tuple[TriggerDelivery, ...]
    processes: tuple[Process, ...]


async def seen(store: Store) -> TriggerPicture:
    """What is to be seen now."""
    triggers = store.triggers
    occurrences = await all_pages(lambda a: triggers.occurrences(after=a))
    deliveries: list[TriggerDelivery] = []
    for occurrence in occurrences:
        deliveries += await delivered(store, occurrence.occurrence)
    return TriggerPicture(
        subscriptions=await all_pages(lambda a: triggers.list(after=a)),
        occurrences=occurrences,
        deliveries=tuple(deliveries),
        reserved=await all_pages(lambda a: triggers.reserved(after=a)),
        processes=await all_pages(lambda a: store.processes.list(which=EVERY_PROCESS, after=a)),
    )


@asynccontextmanager
async def denied(store: Store, error: type[E]) -> AsyncIterator[pytest.ExceptionInfo[E]]:
    """What is done inside is refused with exactly this error, and everything stays as it was."""
    before = await seen(store)
    with pytest.raises(error) as caught:
        yield caught
    assert type(caught.value) is error, caught.value
    assert await seen(store) == before


def here(session: str = "s", frame: str | None = None) -> Scope:
    """A scope, in short."""
    return Scope(session=session, frame=frame)


def rule(key: str = "k", **how: Any) -> NewSubscription:
    """A rule of the host for mail to the inbox, unless something else is said."""
    return NewSubscription(key=key, **{"source_type": "mail", "source_key": "inbox", **how})


def mail(key: str = "m", **how: Any) -> NewOccurrence:
    """Mail to the inbox."""
    return NewOccurrence(key=key, **{"source_type": "mail", "source_key": "inbox", **how})


async def given(store: Store, *keys: str, **how: Any) -> list[Subscription]:
    """Register a rule under each of these keys, all new."""
    made = []
    for key in keys:
        answer = await store.triggers.register(rule(key, **how))
        assert (answer.created, answer.changed) == (True, True)
        made.append(answer.subscription)
    return made


async def got(store: Store, key: str = "k", owner: Scope | None = None) -> Subscription:
    """A subscription that is there."""
    found = await store.triggers.get(key, owner=owner)
    assert found is not None
    return found


async def keys(store: Store, **which: Any) -> list[str]:
    """The keys of the subscriptions to which a filter applies, page after page."""
    chosen = SubscriptionFilter(**which)
    listed = await all_pages(lambda a: store.triggers.list(which=chosen, after=a, limit=2))
    return [subscription.key for subscription in listed]


async def delivered(store: Store, occurrence: str) -> tuple[TriggerDelivery, ...]:
    """The deliveries of an occurrence, page after page."""
    return await all_pages(lambda a: store.triggers.deliveries(occurrence, after=a, limit=2))


async def running(store: Store) -> list[str]:
    """The ids of the processes that run."""
    return [item.process for item in await all_pages(lambda a: store.processes.list(after=a))]


async def process_of(store: Store, delivery: TriggerDelivery) -> Process:
    """The process that a delivery started."""
    found = await store.processes.get(delivery.process)
    assert found is not None
    return found


async def stop(store: Store, process: str) -> Process:
    """End a process as an operator does."""
    return await store.processes.end(process, authority="operator")


async def goes_on(store: Store, key: str = "goes-on", *, rules: int = 1) -> None:
    """Mail that comes now starts a process for each of so many rules, whatever was refused
    before."""
    answer = await store.triggers.ingest(mail(key))
    assert answer.recorded is True
    assert [delivery.state for delivery in answer.deliveries] == ["started"] * rules
    for delivery in answer.deliveries:
        assert (await process_of(store, delivery)).cause == answer.occurrence.occurrence


def states(deliveries: tuple[TriggerDelivery, ...]) -> list[tuple[str, str]]:
    """The keys of the rules of some deliveries, and what has become of them."""
    return [(delivery.key, delivery.state) for delivery in deliveries]


async def waiting(store: Store) -> list[str]:
    """The keys of the rules of the deliveries that were reserved and not started."""
    found = await all_pages(lambda a: store.triggers.reserved(after=a, limit=1))
    assert {delivery.state for delivery in found} <= {"reserved"}
    return [delivery.key for delivery in found]
