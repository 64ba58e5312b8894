"""What a holdfast store promises about background work, as Protocols beside those of sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.contract.limits import MAX_INT
from holdfast.contract.processes import (
    Appended,
    Authority,
    Changes,
    Due,
    EndState,
    Event,
    ExternalRef,
    Grant,
    Granted,
    Lease,
    LeaseStatus,
    NewEvent,
    NewProcess,
    Process,
    ProcessFilter,
    PrunedProcesses,
    Registered,
    Scope,
    Wait,
)
from holdfast.contract.records import Page, Payload
from holdfast.contract.schedules import (
    NewSchedule,
    RanNow,
    Schedule,
    Scheduled,
    Skipped,
    Ticked,
)
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


class ProcessStore(Protocol):
    """Processes: background work with a record, a log of events, grants and a lease."""

    async def register(self, process: NewProcess) -> Registered:
        """Make sure the process is registered. The same registration again is the same process."""
        ...

    async def get(self, process: str) -> Process | None:
        """The record of a process; None when there is none, or none any more."""
        ...

    async def list(
        self, *, which: ProcessFilter | None = None, after: str | None = None, limit: int = 100
    ) -> Page[Process]:
        """A page of the processes to which all of `which` applies, in the order of their ids; the
        running ones when nothing is said."""
        ...

    async def append(
        self,
        process: str,
        event: NewEvent,
        *,
        lease: Lease | None = None,
        authority: Authority | None = None,
    ) -> Appended:
        """Append an event of a declared type, with all that follows from it. With a lease only its
        holder may. A type that ends the process needs a key, and a lease or an authority."""
        ...

    async def signal(
        self, process: str, name: str, payload: Payload = None, *, key: str | None = None
    ) -> Appended:
        """Append an event of the declared type `signal.<name>`."""
        ...

    async def request_cancel(self, process: str, *, reason: str | None = None) -> Appended:
        """Ask a process to end itself. The same reason again asks nothing again."""
        ...

    async def end(
        self,
        process: str,
        state: EndState = "completed",
        output: Payload = None,
        *,
        lease: Lease | None = None,
        authority: Authority | None = None,
    ) -> Process:
        """End a process, and give its lease back. The same end again is the same end."""
        ...

    async def abandon(
        self, process: str, *, reason: str, authority: Authority | None = None
    ) -> Process:
        """End a process that nobody may run any more: one that is lost, or any when an operator
        says so."""
        ...

    async def suspend(self, process: str, wait: Wait, *, lease: Lease | None = None) -> Process:
        """Say what a process waits for. A lease that is presented is given back, unless the process
        is bound to its owner."""
        ...

    async def resume(self, process: str, *, lease: Lease | None = None) -> Process:
        """Say that a process waits no more. One that does not wait is left as it is."""
        ...

    async def set_external(self, process: str, ref: ExternalRef) -> Process:
        """Say where a process runs, once."""
        ...

    async def events(
        self, process: str, *, after: int = 0, type: str | None = None, limit: int = 100
    ) -> Page[Event]:
        """A page of the log, or of the events of one type, later than `after`, in order."""
        ...

    async def recent(self, process: str, *, limit: int = 10) -> tuple[Event, ...]:
        """The last events of the log, in order."""
        ...

    async def count(self, process: str, type: str, *, through: int = MAX_INT) -> int:
        """How many events of a type there are up to a sequence, and with it."""
        ...

    async def wakes(self, process: str, *, after: int = 0, limit: int = 100) -> Page[Event]:
        """A page of the events later than `after` that wake, and whose wake was not seen to."""
        ...

    async def ack(self, process: str, sequence: int) -> bool:
        """Say that the wake of an event was seen to. False when there is no such wake; the same
        again is the same answer."""
        ...

    async def claim(self, process: str, owner: str, *, ttl_ms: int = 30_000) -> Lease:
        """Take the lease, or raise `LeaseBusy`. The same owner gets it again with a new token."""
        ...

    async def renew(self, lease: Lease, *, ttl_ms: int = 30_000) -> Lease:
        """Move the expiry, or raise `LeaseLost`. An expired lease cannot be renewed."""
        ...

    async def release(self, lease: Lease) -> bool:
        """Give the lease back. False when it was not held any more."""
        ...

    async def lease(self, process: str) -> LeaseStatus | None:
        """Who holds the lease. Changes nothing."""
        ...

    async def due(self, *, after: str | None = None, limit: int = 100) -> Page[Due]:
        """A page of the processes that somebody may take up, longest due first. The pages of one
        scan hold what was due when it began; what came later is in the next scan."""
        ...

    async def grant(self, scope: Scope, process: str, *, kind: str = "", label: str = "") -> Grant:
        """Let a scope see a process; again, to call it something else there."""
        ...

    async def revoke(self, scope: Scope, process: str) -> bool:
        """Take a grant back. False when there was none."""
        ...

    async def transfer(self, source: Scope, target: Scope, processes: Sequence[str]) -> int:
        """Move grants from one scope to another, all of them or none."""
        ...

    async def granted(self, scope: Scope, process: str) -> Grant | None:
        """The grant of exactly this scope, or None."""
        ...

    async def grants(
        self, scope: Scope, *, live: bool = False, after: str | None = None, limit: int = 100
    ) -> Page[Granted]:
        """A page of the grants of exactly this scope with their processes, in the order of the ids;
        with `live` of those that run."""
        ...

    async def grants_of(
        self, process: str, *, after: str | None = None, limit: int = 100
    ) -> Page[Grant]:
        """A page of the grants for a process, in the order of sessions and frames."""
        ...

    async def changes(self, *, after: str | None = None, limit: int = 100) -> Changes:
        """A page of the feed of changes: each process that has changed since the cursor, once, in
        an order that no writer can slip behind."""
        ...

    async def prune(self, *, ended_before_ms: int, limit: int = 100) -> PrunedProcesses:
        """Let go of processes that ended before a time: their events, grants and content. Their ids
        are never used again."""
        ...


class TriggerStore(Protocol):
    """Subscriptions, what happens at their sources, and the processes that it starts."""

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
        ...

    async def enable(
        self,
        key: str,
        *,
        owner: Scope | None = None,
        expected: int | None = None,
        operation: str | None = None,
    ) -> Subscription:
        """Let a subscription be delivered to."""
        ...

    async def disable(
        self,
        key: str,
        *,
        owner: Scope | None = None,
        expected: int | None = None,
        operation: str | None = None,
    ) -> Subscription:
        """Let nothing be delivered to a subscription any more, once this has returned."""
        ...

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
        ...

    async def get(self, key: str, *, owner: Scope | None = None) -> Subscription | None:
        """A subscription by its owner and key; None when there is none, or none any more."""
        ...

    async def list(
        self, *, which: SubscriptionFilter | None = None, after: str | None = None, limit: int = 100
    ) -> Page[Subscription]:
        """A page of the subscriptions to which all of `which` applies, in the order of owners and
        keys, those of the host first."""
        ...

    async def record(self, occurrence: NewOccurrence) -> Recorded:
        """Keep what happened, and start nothing."""
        ...

    async def reserve(self, occurrence: str) -> tuple[TriggerDelivery, ...]:
        """Reserve the deliveries of an occurrence to the enabled subscriptions of its source, as
        they are now; those that are new are answered, and no call answers them again."""
        ...

    async def start(self, occurrence: str) -> tuple[TriggerDelivery, ...]:
        """Register the processes of the reserved deliveries, and answer what became of them."""
        ...

    async def reserved(
        self, *, after: str | None = None, limit: int = 100
    ) -> Page[TriggerDelivery]:
        """A page of the deliveries whose process was not registered yet: what `start` is for."""
        ...

    async def ingest(self, occurrence: NewOccurrence) -> Ingested:
        """Keep what happened, and start all it starts, at once or not at all. The same again
        starts nothing, and answers the same deliveries."""
        ...

    async def occurrence(self, occurrence: str) -> Occurrence | None:
        """An occurrence by its id."""
        ...

    async def occurrences(
        self, *, which: OccurrenceFilter | None = None, after: str | None = None, limit: int = 100
    ) -> Page[Occurrence]:
        """A page of the occurrences to which all of `which` applies, oldest first."""
        ...

    async def deliveries(
        self, occurrence: str, *, after: str | None = None, limit: int = 100
    ) -> Page[TriggerDelivery]:
        """A page of the deliveries of an occurrence, in the order of owners and keys."""
        ...

    async def prune(self, *, before_ms: int, limit: int = 100) -> PrunedOccurrences:
        """Let go of occurrences from before a time which start nothing any more: those without
        deliveries, and those whose processes have all ended."""


class ScheduleStore(Protocol):
    """Schedules: each instant fires once, or is skipped for a reason that is kept."""

    async def register(self, schedule: NewSchedule, *, expected: int | None = None) -> Scheduled:
        """Make sure the schedule is registered. The same definition again changes nothing; another
        one replaces it when `expected` is its revision, or raises `ScheduleMoved`."""
        ...

    async def get(self, schedule: str) -> Schedule | None:
        """A schedule; None when there is none."""
        ...

    async def list(self, *, after: str | None = None, limit: int = 100) -> Page[Schedule]:
        """A page of the schedules, in the order of their ids."""
        ...

    async def pause(self, schedule: str) -> Schedule:
        """Let nothing fire any more. One that is paused is left as it is."""
        ...

    async def resume(self, schedule: str) -> Schedule:
        """Let it go on from now: what had not fired is skipped. One that is not paused is left as
        it is."""
        ...

    async def run_now(self, schedule: str, request: str) -> RanNow:
        """Let it happen now, besides its instants and even when it is paused; once for each
        request."""
        ...

    async def delete(self, schedule: str) -> bool:
        """Remove a schedule with what was skipped of it; what has fired stays. False when there was
        none."""
        ...

    async def next(self, schedule: str, *, limit: int = 10) -> tuple[int, ...]:
        """The next instants that fire when somebody ticks in time; of a paused schedule, those that
        would if it were resumed now."""
        ...

    async def skipped(
        self, schedule: str, *, after: str | None = None, limit: int = 100
    ) -> Page[Skipped]:
        """A page of what was skipped of a schedule, in order."""
        ...

    async def tick(self, *, limit: int = 100) -> Ticked:
        """Decide what is due of all schedules, and start what is subscribed to it. At most `limit`
        instants fire, shared out among the schedules; any number of workers may tick at once."""
        ...
