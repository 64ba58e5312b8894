"""The oracle's processes: what is registered, what their logs say, and what follows from it.

Whatever follows from an event follows at once: work in the inbox of whom it wakes, and an event of
the parent when a process ends. Where the contract leaves a choice, the oracle takes the one the
stores took: what a request says is judged before the process is looked at for a rival, so that a
key is found to be taken only by an event that might have been appended.

In which order a feed tells of changes depends on when it was read, so the oracle's own is the order
in which they happened, and whoever compares compares what is told.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.contract.errors import (
    EndForbidden,
    EventConflict,
    EventUndeclared,
    Invalid,
    PayloadRejected,
    ProcessConflict,
    ProcessPruned,
    SessionDeleted,
)
from holdfast.contract.limits import MAX_INT
from holdfast.contract.processes import (
    Appended,
    Authority,
    Change,
    Changes,
    EndState,
    Event,
    EventType,
    ExternalRef,
    Lease,
    NewEvent,
    NewProcess,
    Process,
    ProcessFilter,
    ProcessState,
    PrunedProcesses,
    Registered,
    Scope,
    Wait,
    WakeOutcome,
)
from holdfast.contract.queue import NewWork, WakeOrigin
from holdfast.contract.records import Page, Payload
from holdfast.testing.oracle_lanes import OracleLanes
from holdfast.testing.oracle_payloads import Unfit, encoded, require_schema, take, text_of, truthy
from holdfast.testing.oracle_process_leases import OracleLeases, _ended, require_scope
from holdfast.testing.oracle_process_rows import (
    CORE,
    StoredProcess,
    meaning,
    require_events,
)
from holdfast.testing.oracle_queue import OracleQueue
from holdfast.testing.oracle_rows import page_of
from holdfast.testing.oracle_turns import require_id


class OracleProcesses(OracleLeases):
    """The processes of one tenant. The methods are those of the facade. `told` names what a store
    pruned, because which of those that ended in the same moment is the oldest is its own choice."""

    def __init__(self, lanes: OracleLanes, queue: OracleQueue) -> None:
        super().__init__(lanes)
        self._queue = queue
        self.told: tuple[str, ...] | None = None

    # --- registration

    def register(self, process: NewProcess) -> Registered:
        name = process.process if process.process is not None else self._lanes._new_id()
        require_id("process", name)
        require_events(process.events)
        for field, scope in (("origin", process.origin), ("wake", process.wake)):
            require_scope(field, scope)
        if process.parent == name:
            raise Invalid(field="parent", reason="itself")
        for place, grant in enumerate(process.grants):
            if grant.scope in [other.scope for other in process.grants[:place]]:
                raise Invalid(field=f"grants[{place}].scope", reason="twice")
        new = msgspec.structs.replace(process, process=name, events=tuple(process.events))
        found = self._processes.get(name)
        payload = encoded(process.input)
        if found is not None:
            if found.pruned:
                raise ProcessPruned(process=name)
            if found.identity != meaning(new, payload):
                raise ProcessConflict(process=name)
            return Registered(created=False, process=self._record(found))
        for grant in process.grants:
            if self._gone(grant.scope.session):
                raise SessionDeleted(session=grant.scope.session)
        made = StoredProcess(name, new, payload, meaning(new, payload), self._now())
        self._processes[name] = made
        self._change(made)
        for grant in process.grants:
            self.grant(grant.scope, name, kind=grant.kind, label=grant.label)
        return Registered(created=True, process=self._record(made))

    # --- events

    def append(
        self,
        process: str,
        event: NewEvent,
        *,
        lease: Lease | None = None,
        authority: Authority | None = None,
    ) -> Appended:
        require_id("process", process)
        found = self._there(process)
        require_id("event.type", event.type)
        if event.type in CORE:
            raise Invalid(field="event.type", reason="reserved")
        kind = found.declared(event.type)
        if kind is None:
            raise EventUndeclared(process=process, type=event.type)
        if event.key is not None and event.key.startswith("process."):
            raise Invalid(field="event.key", reason="reserved")
        if kind.ends is not None and event.key is None:
            raise Invalid(field="event.key", reason="a type that ends needs one")
        made = self._read(found, kind, encoded(event.payload))
        _require_proof(process, lease, authority)
        old = found.keyed(event.key)
        if old is not None and (old.type, old.payload) == (event.type, made.payload):
            return self._replayed(found, old)
        if kind.ends is not None and found.ended:
            raise _ended(found)
        if old is not None:
            raise EventConflict(process=process, key=old.key or "")
        self._require_lease(found, lease)
        by = self._authority(found, lease, authority) if kind.ends is not None else None
        made = msgspec.structs.replace(made, key=event.key, authority=by)
        return self._stored(found, made, event.wake)

    def _read(
        self, found: StoredProcess, kind: EventType, payload: bytes, where: str = "payload"
    ) -> Event:
        """The event, with what its type makes of the payload."""
        output = wake = None
        if kind.schema is not None or kind.ends is not None or kind.wakes is not None:
            try:
                value = msgspec.json.decode(payload)
                require_schema(kind.schema, value, where)
                if kind.ends is not None:
                    output = encoded(take(kind.output, value, where))
                rule = kind.wakes
                if rule is not None and (
                    rule.when is None or truthy(take(rule.when, value, where))
                ):
                    wake = text_of(take(rule.input, value, where))
            except Unfit as unfit:
                raise PayloadRejected(field=unfit.where, type=kind.name, reason="unfit") from None
        return Event(
            process=found.id,
            sequence=len(found.log) + 1,
            type=kind.name,
            payload=payload,
            key=None,
            at_ms=self._now(),
            ends=kind.ends,
            output=output,
            wake=wake,
        )

    def _authority(
        self, found: StoredProcess, lease: Lease | None, authority: Authority | None
    ) -> Authority:
        """Whose word the end of a process is taken on."""
        if lease is not None:
            return "lease"
        if authority == "operator" or (
            authority == "external" and found.new.recovery == "external"
        ):
            return authority
        raise EndForbidden(process=found.id)

    def _stored(self, found: StoredProcess, event: Event, target: Scope | None) -> Appended:
        """Append an event, with all that follows from it."""
        if event.wake is not None:
            event, outcome = self._woken(found, event, target or self._target(found))
            found.outcomes[event.sequence] = outcome
        found.log.append(event)
        self._change(found)
        if event.ends is not None:
            found.lease = None
            self._tell_parent(found, event)
        return msgspec.structs.replace(self._replayed(found, event), replayed=False)

    def _woken(
        self, found: StoredProcess, event: Event, target: Scope | None
    ) -> tuple[Event, WakeOutcome]:
        if target is None:
            return event, "no-target"
        if self._lanes._seen(target.session) is None:
            return event, "target-gone"
        body = {
            "type": "process.wake",
            "process": found.id,
            "event": event.type,
            "frame": target.frame,
            "input": event.wake,
        }
        work = NewWork(
            session=target.session,
            payloads=[body],
            key=f"process:{found.id}:event:{event.sequence}:wake",
            slot="exclusive",
        )
        origin = WakeOrigin(process=found.id, sequence=event.sequence)
        made = self._queue.enqueue(work, wake=origin)
        return msgspec.structs.replace(event, woken=target, work=made.work.work), "enqueued"

    def _tell_parent(self, found: StoredProcess, event: Event) -> None:
        parent = self._processes.get(found.new.parent or "")
        if parent is None or parent.pruned:
            return
        told = {
            "process": found.id,
            "state": event.ends,
            "output": None if event.output is None else msgspec.Raw(event.output),
        }
        self._log(parent, "process.child-ended", encoded(told))

    def _replayed(self, found: StoredProcess, event: Event) -> Appended:
        return Appended(
            event=event,
            replayed=True,
            ordinal=self.count(found.id, event.type, through=event.sequence),
            wake=found.outcomes.get(event.sequence),
        )

    def signal(
        self, process: str, name: str, payload: Payload = None, *, key: str | None = None
    ) -> Appended:
        return self.append(process, NewEvent(type=f"signal.{name}", payload=payload, key=key))

    def request_cancel(self, process: str, *, reason: str | None = None) -> Appended:
        found = self._there(process)
        payload = encoded({"reason": reason})
        for old in found.log:
            if (old.type, old.payload) == ("process.cancel-requested", payload):
                return self._replayed(found, old)
        if found.ended:
            raise _ended(found)
        event = self._log(found, "process.cancel-requested", payload)
        return msgspec.structs.replace(self._replayed(found, event), replayed=False)

    # --- the end of it

    def end(
        self,
        process: str,
        state: EndState = "completed",
        output: Payload = None,
        *,
        lease: Lease | None = None,
        authority: Authority | None = None,
    ) -> Process:
        found = self._there(process)
        name = f"process.{state}"
        kind = found.declared(name) or EventType(name=name, ends=state)
        made = self._read(found, kind, encoded(output), "output")
        _require_proof(process, lease, authority)
        end = found.ending()
        if end is not None:
            if (end.type, end.payload) == (made.type, made.payload):
                return self._record(found)
            raise _ended(found)
        self._require_lease(found, lease)
        by = self._authority(found, lease, authority)
        self._stored(found, msgspec.structs.replace(made, authority=by), None)
        return self._record(found)

    def abandon(self, process: str, *, reason: str, authority: Authority | None = None) -> Process:
        if authority not in (None, "operator"):
            raise Invalid(field="authority", reason="an operator's, or none")
        found = self._there(process)
        payload = encoded({"reason": reason})
        end = found.ending()
        if end is not None:
            if (end.type, end.payload) == ("process.abandoned", payload):
                return self._record(found)
            raise _ended(found)
        by: Authority = "operator"
        if authority != "operator":
            if not self._lost(found):
                raise EndForbidden(process=process)
            by = "lapse"
        event = Event(
            process=process,
            sequence=len(found.log) + 1,
            type="process.abandoned",
            payload=payload,
            key=None,
            at_ms=self._now(),
            ends="abandoned",
            output=b"null",
            authority=by,
        )
        self._stored(found, event, None)
        return self._record(found)

    # --- waiting, and running elsewhere

    def suspend(self, process: str, wait: Wait, *, lease: Lease | None = None) -> Process:
        found = self._there(process)
        if wait.type is None and wait.until_ms is None:
            raise Invalid(field="wait", reason="for a type or a time")
        if wait.type is not None and wait.type not in CORE and not found.declared(wait.type):
            raise EventUndeclared(process=process, type=wait.type)
        _require_proof(process, lease, None)
        held = lease is not None and self._current(found, lease)
        held = held and self._live_lease(found) is not None
        if found.wait != wait:
            self._require_lease(found, lease)
            if found.ended:
                raise _ended(found)
            self._log(found, "process.waiting", msgspec.json.encode(wait))
        if held and found.new.recovery != "owner-bound":
            found.lease = None
        return self._record(found)

    def resume(self, process: str, *, lease: Lease | None = None) -> Process:
        _require_proof(process, lease, None)
        found = self._there(process)
        if found.wait is not None:
            self._require_lease(found, lease)
            self._log(found, "process.resumed", b"null")
        return self._record(found)

    def set_external(self, process: str, ref: ExternalRef) -> Process:
        found = self._there(process)
        payload = msgspec.json.encode(ref)
        said = found.last("process.external")
        if said is not None and said.payload != payload:
            raise EventConflict(process=process, key="process.external")
        if said is None:
            self._log(found, "process.external", payload)
        return self._record(found)

    # --- reading

    def get(self, process: str) -> Process | None:
        found = self._processes.get(process)
        return None if found is None or found.pruned else self._record(found)

    def list(
        self, *, which: ProcessFilter | None = None, after: str | None = None, limit: int = 100
    ) -> Page[Process]:
        wanted = which or ProcessFilter()
        if not wanted.states:
            raise Invalid(field="which.states", reason="none")
        shown = [self._record(found) for found in self._kept()]
        return page_of([one for one in shown if _listed(one, wanted)], after, limit)

    def events(
        self, process: str, *, after: int = 0, type: str | None = None, limit: int = 100
    ) -> Page[Event]:
        found = self._there(process)
        shown = [event for event in found.log[after:] if type in (None, event.type)]
        return _page_of_log(shown, limit)

    def recent(self, process: str, *, limit: int = 10) -> tuple[Event, ...]:
        return tuple(self._there(process).log[-limit:])

    def count(self, process: str, type: str, *, through: int = MAX_INT) -> int:
        return sum(event.type == type for event in self._there(process).log[:through])

    def wakes(self, process: str, *, after: int = 0, limit: int = 100) -> Page[Event]:
        shown = [
            event
            for event in self._there(process).log[after:]
            if event.wake is not None and event.acked_at_ms is None
        ]
        return _page_of_log(shown, limit)

    def ack(self, process: str, sequence: int) -> bool:
        found = self._there(process)
        if not 0 < sequence <= len(found.log) or found.log[sequence - 1].wake is None:
            return False
        event = found.log[sequence - 1]
        if event.acked_at_ms is None:
            found.log[sequence - 1] = msgspec.structs.replace(event, acked_at_ms=self._now())
        return True

    def named(self, which: str) -> tuple[str, ...]:
        """The ids of the processes of which something is true, in the order of registration."""
        granted = {place[2] for place in self._grants}
        return tuple(
            found.id
            for found in self._processes.values()
            if which == "any"
            or (which == "pruned" and found.pruned)
            or (which == "kept" and not found.pruned)
            or (which == "ended" and not found.pruned and found.ended)
            or (which == "running" and not found.pruned and not found.ended)
            or (which == "lost" and self._lost(found))
            or (which == "leased" and self._live_lease(found) is not None)
            or (which == "granted" and found.id in granted)
            or (which == "delivered" and found.id.startswith("delivery:") and not found.ended)
        )

    # --- what has changed, and letting go

    def changes(self, *, after: str | None = None, limit: int = 100) -> Changes:
        since = int(after or 0)
        changed = sorted(
            (found for found in self._processes.values() if found.changed > since),
            key=lambda found: found.changed,
        )
        shown = changed[:limit]
        return Changes(
            items=tuple(Change(process=found.id, record=self.get(found.id)) for found in shown),
            next=str(shown[-1].changed if shown else since),
            more=len(changed) > limit,
        )

    def prune(self, *, ended_before_ms: int, limit: int = 100) -> PrunedProcesses:
        over = [
            found
            for found in self._kept()
            if found.ended and self._record(found).updated_at_ms < ended_before_ms
        ]
        over.sort(key=lambda found: self._record(found).updated_at_ms)
        chosen = over[:limit]
        told = [found for found in over if self.told is not None and found.id in self.told]
        if len(told) == len(chosen):
            chosen = told
        events = sum(len(found.log) for found in chosen)
        grants = [grant for found in chosen for grant in self._grants_for(found.id)]
        for grant in grants:
            self.revoke(grant.scope, grant.process)
        for found in chosen:
            found.log, found.lease, found.pruned = [], None, True
            self._change(found)
        return PrunedProcesses(
            processes=tuple(found.id for found in chosen),
            events=events,
            grants=len(grants),
            more=len(over) > len(chosen),
        )


def _page_of_log(events: Sequence[Event], limit: int) -> Page[Event]:
    """A page of a log goes on after the sequence of its last event."""
    shown = tuple(events[:limit])
    return Page(items=shown, next=str(shown[-1].sequence) if len(events) > limit else None)


def _listed(record: Process, wanted: ProcessFilter) -> bool:
    """Whether all that is asked for applies to a process."""
    states: Sequence[ProcessState] = wanted.states
    origin = None if record.origin is None else record.origin.session
    return (
        record.state in states
        and wanted.kind in (None, record.kind)
        and wanted.definition in (None, record.definition)
        and wanted.waiting in (None, record.wait is not None)
        and wanted.session in (None, origin)
        and wanted.parent in (None, record.parent)
    )


def _require_proof(process: str, lease: Lease | None, authority: Authority | None) -> None:
    """What is presented is for this process, and may be named by a caller."""
    if lease is not None and lease.process != process:
        raise Invalid(field="lease.process", reason="another process")
    if authority in ("lease", "lapse"):
        raise Invalid(field="authority", reason="not to be named")
