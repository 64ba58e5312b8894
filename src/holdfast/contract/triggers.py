"""The records of triggers: what happens outside starts processes, each of them once.

A subscription is a rule, an occurrence is what happened, and a delivery says that this occurrence
starts that process. What a process is called is decided by the occurrence and the subscription, so
that a delivery can neither be lost nor be made twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from holdfast.contract.processes import EventType, NewGrant, Recovery, Scope, Selector
from holdfast.contract.records import Json, Payload, Record

DeliveryState = Literal["reserved", "started", "rejected"]

# --- subscriptions


class ProcessTemplate(Record, frozen=True, kw_only=True):
    """The process that a delivery starts. Its input is an object of what `inputs` take out of the
    payload, each under its name; without any it is the payload itself. Grants for sessions that
    are deleted when it starts are left out."""

    kind: str = "task"
    label: str = ""
    definition: str | None = None
    inputs: Mapping[str, Selector] = msgspec.field(default_factory=dict)
    events: Sequence[EventType] = ()
    recovery: Recovery = "rerunnable"
    wake: Scope | None = None
    grants: Sequence[NewGrant] = ()


class NewSubscription(Record, frozen=True, kw_only=True):
    """A subscription to be registered, under a key of its owner; without an owner it is the host's.

    It is for the occurrences of one source whose payload `schema` has nothing against. `enabled`
    is how it begins; a registration changes nothing of that later.
    """

    owner: Scope | None = None
    key: str
    source_type: str
    source_key: str
    process: ProcessTemplate = ProcessTemplate()
    name: str = ""
    schema: Json = None
    enabled: bool = True


class Subscription(Record, frozen=True, kw_only=True):
    """A subscription as it is stored. `revision` counts its changes. One that is registered again
    after it was deleted is the next `incarnation` under its key, with an id of its own, and the
    revisions go on."""

    subscription: str
    owner: Scope | None
    key: str
    incarnation: int
    revision: int
    enabled: bool
    name: str
    source_type: str
    source_key: str
    schema: Json
    process: ProcessTemplate
    created_at_ms: int
    updated_at_ms: int
    deleted_at_ms: int | None = None


class Subscribed(Record, frozen=True, kw_only=True):
    """The answer to a registration: whether there was none before, and whether anything changed."""

    created: bool
    changed: bool
    subscription: Subscription


class SubscriptionFilter(Record, frozen=True, kw_only=True):
    """Which subscriptions a listing holds: those to which all that is given applies. `session` is
    that of the owner, whatever the frame."""

    session: str | None = None
    name: str | None = None
    source_type: str | None = None
    source_key: str | None = None
    enabled: bool | None = None


# --- occurrences


class NewOccurrence(Record, frozen=True, kw_only=True):
    """Something that happened at a source. The same `key` is the same occurrence, whatever the
    source: of each there is one. The payload is JSON; `source` says more about where it is from."""

    source_type: str
    source_key: str
    key: str
    payload: Payload = None
    source: Json = None


class Occurrence(Record, frozen=True, kw_only=True):
    """What happened, as it is stored. `source` is JSON, or None when nothing was said."""

    occurrence: str
    source_type: str
    source_key: str
    key: str
    payload: bytes
    source: bytes | None
    at_ms: int

    def json(self) -> Json:
        """The payload, decoded as JSON."""
        return msgspec.json.decode(self.payload)


class Recorded(Record, frozen=True, kw_only=True):
    """The answer to a record: `recorded` is False when the occurrence was there already."""

    recorded: bool
    occurrence: Occurrence


class OccurrenceFilter(Record, frozen=True, kw_only=True):
    """Which occurrences a listing holds: those to which all that is given applies."""

    source_type: str | None = None
    source_key: str | None = None


# --- deliveries


class TriggerDelivery(Record, frozen=True, kw_only=True):
    """That an occurrence starts the process of a subscription. It is `reserved` until the process
    is registered, and `rejected` for a `reason`: what the schema has against the payload, a
    selector that points at nothing, or a subscription that is damaged."""

    occurrence: str
    subscription: str
    owner: Scope | None
    key: str
    process: str
    state: DeliveryState
    reason: str | None
    at_ms: int


class Ingested(Record, frozen=True, kw_only=True):
    """The answer to an ingest: all deliveries of the occurrence, in the order of owners and keys.
    `recorded` is False when it was there already, and then nothing was started."""

    recorded: bool
    occurrence: Occurrence
    deliveries: tuple[TriggerDelivery, ...]


class PrunedOccurrences(Record, frozen=True, kw_only=True):
    """What a prune removed; `more` says whether there is more to be pruned."""

    occurrences: tuple[str, ...]
    deliveries: int
    more: bool
