"""The facade of triggers: subscriptions, what happens at their sources, and what it starts."""

from __future__ import annotations

from holdfast.contract.processes import Scope
from holdfast.contract.records import Page
from holdfast.contract.triggers import (
    Ingested,
    NewOccurrence,
    NewSubscription,
    Occurrence,
    OccurrenceFilter,
    PrunedOccurrences,
    Recorded,
    Subscribed,
    Subscription,
    SubscriptionFilter,
    TriggerDelivery,
)
from holdfast.core import topics
from holdfast.core.payloads import check_id, check_int
from holdfast.core.trigger_places import (
    check_filter,
    check_moment,
    check_place,
    check_sources,
)
from holdfast.core.triggers import (
    owner_row,
    plan_change,
    plan_occurrence,
    plan_subscription,
)
from holdfast.ops import triggers
from holdfast.stores.view import View


class Triggers:
    """Subscriptions, what happens at their sources, and the processes that it starts."""

    def __init__(self, view: View) -> None:
        self._view = view

    async def register(
        self,
        subscription: NewSubscription,
        *,
        expected: int | None = None,
        operation: str | None = None,
    ) -> Subscribed:
        """Make sure the subscription is registered. The same again changes nothing; to change what
        is registered, `expected` is its revision; a deleted one is revived. With an `operation` the
        answer is kept, and the same operation gets it again, whatever has happened since."""
        view = self._view
        plan = plan_subscription(
            subscription,
            tenant=view.tenant,
            fresh=view.new_id(),
            expected=expected,
            operation=operation,
            limits=view.limits,
        )
        return await view.engine.write(triggers.change, view.tenant, plan)

    async def enable(
        self,
        key: str,
        *,
        owner: Scope | None = None,
        expected: int | None = None,
        operation: str | None = None,
    ) -> Subscription:
        """Let a subscription be delivered to."""
        return await self._change("enable", owner, key, expected, operation)

    async def disable(
        self,
        key: str,
        *,
        owner: Scope | None = None,
        expected: int | None = None,
        operation: str | None = None,
    ) -> Subscription:
        """Let nothing be delivered to a subscription any more, once this has returned."""
        return await self._change("disable", owner, key, expected, operation)

    async def delete(
        self,
        key: str,
        *,
        owner: Scope | None = None,
        expected: int | None = None,
        operation: str | None = None,
    ) -> Subscription:
        """Delete a subscription; the same again is the same answer. What it has started goes on,
        and what is reserved for it is still to be started."""
        return await self._change("delete", owner, key, expected, operation)

    async def _change(
        self,
        verb: str,
        owner: Scope | None,
        key: str,
        expected: int | None,
        operation: str | None,
    ) -> Subscription:
        view = self._view
        plan = plan_change(
            verb, owner, key, tenant=view.tenant, expected=expected, operation=operation
        )
        done = await view.engine.write(triggers.change, view.tenant, plan)
        return done.subscription

    async def get(self, key: str, *, owner: Scope | None = None) -> Subscription | None:
        """A subscription by its owner and key; None when there is none, or none any more."""
        view = self._view
        place = owner_row(owner)
        check_id("key", key)
        return await view.engine.read(triggers.get, view.tenant, place, key)

    async def list(
        self, *, which: SubscriptionFilter | None = None, after: str | None = None, limit: int = 100
    ) -> Page[Subscription]:
        """A page of the subscriptions to which all of `which` applies, in the order of owners and
        keys, those of the host first."""
        view = self._view
        params = check_filter(which)
        place = check_place(after, 3)
        return await view.engine.read(
            triggers.list_page, view.tenant, params, place, view.page(limit)
        )

    async def record(self, occurrence: NewOccurrence) -> Recorded:
        """Keep what happened, and start nothing."""
        view = self._view
        plan = plan_occurrence(occurrence, tenant=view.tenant, limits=view.limits)
        return await view.engine.write(triggers.record, plan)

    async def reserve(self, occurrence: str) -> tuple[TriggerDelivery, ...]:
        """Reserve the deliveries of an occurrence to the enabled subscriptions of its source, as
        they are now; those that are new are answered, and no call answers them again."""
        view = self._view
        check_id("occurrence", occurrence)
        return await view.engine.write(triggers.reserve, view.tenant, occurrence, view.limits)

    async def start(self, occurrence: str) -> tuple[TriggerDelivery, ...]:
        """Register the processes of the reserved deliveries, and answer what became of them."""
        view = self._view
        check_id("occurrence", occurrence)
        done = await view.engine.write(triggers.start, view.tenant, occurrence, view.limits)
        self._told(done)
        return done

    async def reserved(
        self, *, after: str | None = None, limit: int = 100
    ) -> Page[TriggerDelivery]:
        """A page of the deliveries whose process was not registered yet: what `start` is for."""
        view = self._view
        place = check_place(after, 5)
        return await view.engine.read(triggers.reserved, view.tenant, place, view.page(limit))

    async def ingest(self, occurrence: NewOccurrence) -> Ingested:
        """Keep what happened, and start all it starts, at once or not at all. The same again
        starts nothing, and answers the same deliveries."""
        view = self._view
        plan = plan_occurrence(occurrence, tenant=view.tenant, limits=view.limits)
        done = await view.engine.write(triggers.ingest, plan, view.limits)
        if done.recorded:
            self._told(done.deliveries)
        return done

    def _told(self, deliveries: tuple[TriggerDelivery, ...]) -> None:
        """Tell who waits for something to do."""
        if any(delivery.state == "started" for delivery in deliveries):
            self._view.engine.publish((topics.processes(self._view.tenant),))

    async def occurrence(self, occurrence: str) -> Occurrence | None:
        """An occurrence by its id."""
        check_id("occurrence", occurrence)
        return await self._view.engine.read(triggers.get_occurrence, self._view.tenant, occurrence)

    async def occurrences(
        self, *, which: OccurrenceFilter | None = None, after: str | None = None, limit: int = 100
    ) -> Page[Occurrence]:
        """A page of the occurrences to which all of `which` applies, oldest first."""
        view = self._view
        params = check_sources(which)
        place = check_moment(after)
        return await view.engine.read(
            triggers.occurrences, view.tenant, params, place, view.page(limit)
        )

    async def deliveries(
        self, occurrence: str, *, after: str | None = None, limit: int = 100
    ) -> Page[TriggerDelivery]:
        """A page of the deliveries of an occurrence, in the order of owners and keys."""
        view = self._view
        check_id("occurrence", occurrence)
        place = check_place(after, 4)
        return await view.engine.read(
            triggers.deliveries, view.tenant, occurrence, place, view.page(limit)
        )

    async def prune(self, *, before_ms: int, limit: int = 100) -> PrunedOccurrences:
        """Let go of occurrences from before a time which start nothing any more: those without
        deliveries, and those whose processes have all ended."""
        view = self._view
        check_int("before_ms", before_ms)
        return await view.engine.write(triggers.prune, view.tenant, before_ms, view.page(limit))
