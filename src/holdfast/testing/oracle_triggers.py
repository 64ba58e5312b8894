"""The oracle's triggers: the rules by which what happens outside starts processes.

A rule is looked for among all there are, and an occurrence among all that happened; a delivery is
made by somebody who looks at every rule. Where the contract leaves a choice, the oracle takes the
one the stores took.

Which of the occurrences that may go were there first depends on when a store says they happened, so
the oracle is told which ones were pruned, and judges whether they could be.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import msgspec

from holdfast.contract.errors import (
    Invalid,
    OccurrenceConflict,
    OccurrenceUnknown,
    OperationConflict,
    ProcessConflict,
    ProcessPruned,
    SessionDeleted,
    SubscriptionMoved,
    SubscriptionUnknown,
)
from holdfast.contract.processes import NewProcess, Scope
from holdfast.contract.records import Page
from holdfast.contract.triggers import (
    DeliveryState,
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
from holdfast.testing.oracle_lanes import OracleLanes
from holdfast.testing.oracle_payloads import Unfit, encoded, require_schema, take
from holdfast.testing.oracle_process_leases import require_scope
from holdfast.testing.oracle_process_rows import require_events
from holdfast.testing.oracle_processes import OracleProcesses
from holdfast.testing.oracle_rows import page_of
from holdfast.testing.oracle_turns import require_id

T = TypeVar("T")
Place = tuple[str, str, str]


@dataclass(eq=False, slots=True)
class StoredSubscription:
    """A rule as it was registered last, and what was said of it since."""

    id: str
    new: NewSubscription
    incarnation: int
    revision: int
    enabled: bool
    created_at_ms: int
    updated_at_ms: int
    deleted_at_ms: int | None = None

    def record(self) -> Subscription:
        new = self.new
        return Subscription(
            subscription=self.id,
            owner=new.owner,
            key=new.key,
            incarnation=self.incarnation,
            revision=self.revision,
            enabled=self.enabled,
            name=new.name,
            source_type=new.source_type,
            source_key=new.source_key,
            schema=new.schema,
            process=new.process,
            created_at_ms=self.created_at_ms,
            updated_at_ms=self.updated_at_ms,
            deleted_at_ms=self.deleted_at_ms,
        )


@dataclass(eq=False, slots=True)
class StoredDelivery:
    """That an occurrence starts the process of a rule, and what has become of it."""

    subscription: str
    new: NewSubscription
    process: str
    at_ms: int
    state: DeliveryState = "reserved"
    reason: str | None = None


@dataclass(eq=False, slots=True)
class StoredOccurrence:
    """What happened, and whom it was delivered to."""

    record: Occurrence
    deliveries: dict[str, StoredDelivery] = field(default_factory=dict)

    def listed(self) -> list[StoredDelivery]:
        """In the order of owners and keys; of two incarnations, in that of their ids."""
        return [one for _, one in sorted(self.deliveries.items(), key=_place_of_delivery)]

    def record_of(self, one: StoredDelivery) -> TriggerDelivery:
        return TriggerDelivery(
            occurrence=self.record.occurrence,
            subscription=one.subscription,
            owner=one.new.owner,
            key=one.new.key,
            process=one.process,
            state=one.state,
            reason=one.reason,
            at_ms=one.at_ms,
        )


def _place_of_delivery(item: tuple[str, StoredDelivery]) -> tuple[Place, str]:
    return place_of(item[1].new.owner, item[1].new.key), item[0]


def place_of(owner: Scope | None, key: str) -> Place:
    """Where a rule is: the host is no session, and a session as a whole is a frame without a
    name."""
    if owner is None:
        return "", "", key
    return owner.session, owner.frame or "", key


class OracleTriggers:
    """The triggers of one tenant. The methods are those of the facade."""

    def __init__(self, lanes: OracleLanes, processes: OracleProcesses) -> None:
        self._lanes = lanes
        self._processes = processes
        self._rules: dict[Place, StoredSubscription] = {}
        self._occurrences: dict[str, StoredOccurrence] = {}
        self._receipts: dict[str, tuple[object, Any, str]] = {}
        self.told: tuple[str, ...] | None = None

    def _now(self) -> int:
        return self._lanes._clock()

    def _gone(self, session: str) -> bool:
        found = self._lanes._sessions.get(session)
        return found is not None and found.deleted

    # --- rules

    def register(
        self,
        subscription: NewSubscription,
        *,
        expected: int | None = None,
        operation: str | None = None,
    ) -> Subscribed:
        fresh = self._lanes._new_id()
        _require_rule(subscription)
        subscription = _kept(subscription)
        owner = subscription.owner
        if owner is not None and self._gone(owner.session):
            raise SessionDeleted(session=owner.session)
        intent = ("register", _meaning(subscription), subscription.enabled, expected)

        def done() -> Subscribed:
            place = place_of(owner, subscription.key)
            found, now = self._rules.get(place), self._now()
            actual = 0 if found is None else found.revision
            if found is not None and found.deleted_at_ms is None:
                if _meaning(found.new) == _meaning(subscription):
                    return Subscribed(created=False, changed=False, subscription=found.record())
                if expected != actual:
                    raise _moved(owner, subscription.key, expected, actual)
                found.new, found.updated_at_ms = subscription, now
                found.revision += 1
                return Subscribed(created=False, changed=True, subscription=found.record())
            if expected not in (None, actual):
                raise _moved(owner, subscription.key, expected, actual)
            made = StoredSubscription(
                id=fresh,
                new=subscription,
                incarnation=1 if found is None else found.incarnation + 1,
                revision=actual + 1,
                enabled=subscription.enabled,
                created_at_ms=now,
                updated_at_ms=now,
            )
            self._rules[place] = made
            return Subscribed(created=True, changed=True, subscription=made.record())

        return self._once(operation, owner, intent, done)

    def enable(
        self,
        key: str,
        *,
        owner: Scope | None = None,
        expected: int | None = None,
        operation: str | None = None,
    ) -> Subscription:
        return self._changed("enable", key, owner, expected, operation)

    def disable(
        self,
        key: str,
        *,
        owner: Scope | None = None,
        expected: int | None = None,
        operation: str | None = None,
    ) -> Subscription:
        return self._changed("disable", key, owner, expected, operation)

    def delete(
        self,
        key: str,
        *,
        owner: Scope | None = None,
        expected: int | None = None,
        operation: str | None = None,
    ) -> Subscription:
        return self._changed("delete", key, owner, expected, operation)

    def _changed(
        self,
        verb: str,
        key: str,
        owner: Scope | None,
        expected: int | None,
        operation: str | None,
    ) -> Subscription:
        def done() -> Subscription:
            found = self._rules.get(place_of(owner, key))
            if found is None or (found.deleted_at_ms is not None and verb != "delete"):
                raise SubscriptionUnknown(owner=_named(owner), key=key)
            if found.deleted_at_ms is not None:
                return found.record()
            if expected not in (None, found.revision):
                raise _moved(owner, key, expected, found.revision)
            if verb != "delete" and found.enabled == (verb == "enable"):
                return found.record()
            found.revision += 1
            found.updated_at_ms = self._now()
            if verb == "delete":
                found.deleted_at_ms = self._now()
            else:
                found.enabled = verb == "enable"
            return found.record()

        return self._once(operation, owner, (verb, place_of(owner, key), expected), done)

    def _once(
        self, operation: str | None, owner: Scope | None, intent: object, done: Callable[[], T]
    ) -> T:
        """The answer to an operation, which is done when it was not done before."""
        if operation is not None and operation in self._receipts:
            meant, answer, _ = self._receipts[operation]
            if meant != intent:
                raise OperationConflict(operation=operation)
            return cast(T, answer)
        answer = done()
        if operation is not None:
            self._receipts[operation] = (intent, answer, place_of(owner, "")[0])
        return answer

    def get(self, key: str, *, owner: Scope | None = None) -> Subscription | None:
        found = self._rules.get(place_of(owner, key))
        return None if found is None or found.deleted_at_ms is not None else found.record()

    def list(
        self, *, which: SubscriptionFilter | None = None, after: str | None = None, limit: int = 100
    ) -> Page[Subscription]:
        wanted = which or SubscriptionFilter()
        there = [found.record() for _, found in sorted(self._rules.items())]
        return page_of([one for one in there if _listed(one, wanted)], after, limit)

    # --- what happens

    def record(self, occurrence: NewOccurrence) -> Recorded:
        payload, source = _said(occurrence)
        for old in self._occurrences.values():
            there = old.record
            if there.key == occurrence.key:
                if (there.source_type, there.source_key, there.payload, there.source) != (
                    occurrence.source_type,
                    occurrence.source_key,
                    payload,
                    source,
                ):
                    raise OccurrenceConflict(key=occurrence.key)
                return Recorded(recorded=False, occurrence=there)
        made = Occurrence(
            occurrence=occurrence_name(occurrence),
            source_type=occurrence.source_type,
            source_key=occurrence.source_key,
            key=occurrence.key,
            payload=payload,
            source=source,
            at_ms=self._now(),
        )
        self._occurrences[made.occurrence] = StoredOccurrence(made)
        return Recorded(recorded=True, occurrence=made)

    def reserve(self, occurrence: str) -> tuple[TriggerDelivery, ...]:
        found = self._happened(occurrence)
        new = [
            StoredDelivery(rule.id, rule.new, delivery_name(occurrence, rule.id), self._now())
            for rule in self._rules.values()
            if rule.deleted_at_ms is None
            and rule.enabled
            and (rule.new.source_type, rule.new.source_key)
            == (found.record.source_type, found.record.source_key)
            and rule.id not in found.deliveries
        ]
        found.deliveries.update((delivery.subscription, delivery) for delivery in new)
        return tuple(found.record_of(one) for one in found.listed() if one in new)

    def start(self, occurrence: str) -> tuple[TriggerDelivery, ...]:
        found = self._happened(occurrence)
        begun = [one for one in found.listed() if one.state == "reserved"]
        for delivery in begun:
            delivery.reason = self._started(found.record, delivery)
            delivery.state = "started" if delivery.reason is None else "rejected"
        return tuple(found.record_of(one) for one in begun)

    def _started(self, happened: Occurrence, delivery: StoredDelivery) -> str | None:
        """Register the process of a delivery, or say why not."""
        new = delivery.new
        said = new.process
        value = msgspec.json.decode(happened.payload)
        try:
            if new.schema is not None:
                require_schema(new.schema, value)
            taken = {name: take(selector, value) for name, selector in said.inputs.items()}
        except Unfit as unfit:
            return unfit.where
        process = NewProcess(
            process=delivery.process,
            kind=said.kind,
            label=said.label,
            definition=said.definition,
            input=encoded(dict(sorted(taken.items()))) if said.inputs else happened.payload,
            events=said.events,
            recovery=said.recovery,
            origin=new.owner,
            cause=happened.occurrence,
            wake=said.wake,
            grants=[grant for grant in said.grants if not self._gone(grant.scope.session)],
        )
        try:
            self._processes.register(process)
        except ProcessPruned:
            return None
        except ProcessConflict:
            return "another process has its id"
        return None

    def ingest(self, occurrence: NewOccurrence) -> Ingested:
        recorded = self.record(occurrence)
        name = recorded.occurrence.occurrence
        if recorded.recorded:
            self.reserve(name)
            self.start(name)
        found = self._happened(name)
        return Ingested(
            recorded=recorded.recorded,
            occurrence=recorded.occurrence,
            deliveries=tuple(map(found.record_of, found.listed())),
        )

    # --- reading, and letting go

    def _happened(self, occurrence: str) -> StoredOccurrence:
        require_id("occurrence", occurrence)
        found = self._occurrences.get(occurrence)
        if found is None:
            raise OccurrenceUnknown(occurrence=occurrence)
        return found

    def occurrence(self, occurrence: str) -> Occurrence | None:
        found = self._occurrences.get(occurrence)
        return None if found is None else found.record

    def occurrences(
        self, *, which: OccurrenceFilter | None = None, after: str | None = None, limit: int = 100
    ) -> Page[Occurrence]:
        wanted = which or OccurrenceFilter()
        there = [
            found.record
            for found in self._occurrences.values()
            if wanted.source_type in (None, found.record.source_type)
            and wanted.source_key in (None, found.record.source_key)
        ]
        return page_of(sorted(there, key=lambda one: one.at_ms), after, limit)

    def deliveries(
        self, occurrence: str, *, after: str | None = None, limit: int = 100
    ) -> Page[TriggerDelivery]:
        found = self._happened(occurrence)
        return page_of([found.record_of(one) for one in found.listed()], after, limit)

    def reserved(self, *, after: str | None = None, limit: int = 100) -> Page[TriggerDelivery]:
        there = [
            found.record_of(one)
            for _, found in sorted(self._occurrences.items())
            for one in found.listed()
            if one.state == "reserved"
        ]
        return page_of(there, after, limit)

    def prune(self, *, before_ms: int, limit: int = 100) -> PrunedOccurrences:
        over = [
            found
            for found in self._occurrences.values()
            if found.record.at_ms < before_ms and not self._awaited(found)
        ]
        over.sort(key=lambda found: found.record.at_ms)
        chosen = over[:limit]
        told = [found for found in over if found.record.occurrence in (self.told or ())]
        if len(told) == len(chosen):
            chosen = told
        for found in chosen:
            del self._occurrences[found.record.occurrence]
        return PrunedOccurrences(
            occurrences=tuple(found.record.occurrence for found in chosen),
            deliveries=sum(len(found.deliveries) for found in chosen),
            more=len(over) > len(chosen),
        )

    def _awaited(self, found: StoredOccurrence) -> bool:
        """Whether something is still to come of an occurrence."""
        for delivery in found.deliveries.values():
            process = self._processes.get(delivery.process)
            runs = process is not None and not process.ended
            if delivery.state == "reserved" or (delivery.state == "started" and runs):
                return True
        return False

    def has_happened(self, key: str) -> bool:
        """Whether something has happened under this key, whatever it was."""
        return any(found.record.key == key for found in self._occurrences.values())

    def revision(self, key: str, owner: Scope | None) -> int:
        """The revision of a rule, also of one that was deleted."""
        found = self._rules.get(place_of(owner, key))
        return 0 if found is None else found.revision

    def rules(self, which: str) -> tuple[tuple[Scope | None, str], ...]:
        """The owners and keys of the rules that were not deleted, or of `any`."""
        return tuple(
            (found.new.owner, found.new.key)
            for found in self._rules.values()
            if which == "any"
            or (found.deleted_at_ms is None and which in ("live", f"enabled {found.enabled}"))
        )

    def happened(self, which: str) -> tuple[str, ...]:
        """The ids of the occurrences of which something is true, the latest last."""
        return tuple(
            name
            for name, found in self._occurrences.items()
            if which == "any"
            or (which == "reserved" and any(one.state == "reserved" for one in found.listed()))
            or (which == "bare" and not found.deliveries)
        )

    def forget_session(self, session: str) -> int:
        """What deleting a session means to triggers: its rules go, and what was reserved for them;
        what they have started goes on."""
        gone = [place for place in self._rules if place[0] == session]
        count = sum(self._rules[place].deleted_at_ms is None for place in gone)
        for place in gone:
            del self._rules[place]
        for found in self._occurrences.values():
            for name, one in [*found.deliveries.items()]:
                if one.state == "reserved" and place_of(one.new.owner, "")[0] == session:
                    del found.deliveries[name]
        for name in [n for n, (_, _, owner) in self._receipts.items() if owner == session]:
            del self._receipts[name]
        return count


def _require_rule(new: NewSubscription) -> None:
    """A rule names its place and its source, and a process that could be registered."""
    require_scope("owner", new.owner)
    for name in ("key", "source_type", "source_key"):
        require_id(name, getattr(new, name))
    try:
        require_events(new.process.events)
    except Invalid as wrong:
        raise Invalid(field=f"process.{wrong.field}", reason=wrong.reason) from None
    scopes = [grant.scope for grant in new.process.grants]
    for place, scope in enumerate(scopes):
        if scope in scopes[:place]:
            raise Invalid(field=f"process.grants[{place}].scope", reason="twice")


def _kept(new: NewSubscription) -> NewSubscription:
    """A rule as it is answered again, whatever kind of list it was given in."""
    said = new.process
    process = msgspec.structs.replace(said, events=tuple(said.events), grants=tuple(said.grants))
    return msgspec.structs.replace(new, process=process)


def _meaning(new: NewSubscription) -> str:
    """What makes a rule the same as another one: all of it but whether it begins enabled, with
    schemas that say the same in another order being the same."""
    said = {name: getattr(new, name) for name in new.__struct_fields__ if name != "enabled"}
    return msgspec.json.encode(said, order="sorted").decode()


def _named(owner: Scope | None) -> str | None:
    if owner is None:
        return None
    return owner.session if owner.frame is None else f"{owner.session}/{owner.frame}"


def _moved(owner: Scope | None, key: str, expected: int | None, actual: int) -> SubscriptionMoved:
    return SubscriptionMoved(owner=_named(owner), key=key, expected=expected, actual=actual)


def _said(new: NewOccurrence) -> tuple[bytes, bytes | None]:
    """The payload and the origin of an occurrence, as they are stored."""
    for name in ("source_type", "source_key", "key"):
        require_id(name, getattr(new, name))
    return encoded(new.payload), None if new.source is None else encoded(new.source)


def _listed(record: Subscription, wanted: SubscriptionFilter) -> bool:
    """Whether all that is asked for applies to a rule that was not deleted."""
    owner = None if record.owner is None else record.owner.session
    return (
        record.deleted_at_ms is None
        and wanted.session in (None, owner)
        and wanted.name in (None, record.name)
        and wanted.source_type in (None, record.source_type)
        and wanted.source_key in (None, record.source_key)
        and wanted.enabled in (None, record.enabled)
    )


def occurrence_name(new: NewOccurrence) -> str:
    """The name of what happened: the same wherever it is told."""
    return f"occurrence:{_digest(new.source_type, new.source_key, new.key)}"


def delivery_name(occurrence: str, subscription: str) -> str:
    """The name of the process that a delivery starts."""
    return f"delivery:{_digest(occurrence, subscription)}"


def _digest(*parts: str) -> str:
    return hashlib.blake2b(msgspec.msgpack.encode(parts), digest_size=16).hexdigest()
