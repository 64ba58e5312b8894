"""The facade of processes: background work with a record, a log of events, grants and a lease."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.contract.errors import Invalid
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
from holdfast.core import events, topics
from holdfast.core.payloads import check_id, check_int, check_text
from holdfast.core.processes import (
    Declared,
    change_place,
    check_filter,
    check_place,
    check_scope_place,
    due_place,
    scope_row,
)
from holdfast.core.registrations import plan_register
from holdfast.core.sessions import check_ttl
from holdfast.ops import leases, processes
from holdfast.stores.view import View


class Processes:
    """Processes: background work with a record, a log of events, grants and a lease."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._known: dict[str, Declared] = {}

    async def register(self, process: NewProcess) -> Registered:
        """Make sure the process is registered. The same registration again is the same process."""
        view = self._view
        plan = plan_register(process, tenant=view.tenant, fresh=view.new_id(), limits=view.limits)
        answer = await view.engine.write(processes.register, plan)
        if answer.created:
            self._changed(answer.process.process)
        return answer

    async def get(self, process: str) -> Process | None:
        """The record of a process; None when there is none, or none any more."""
        check_id("process", process)
        return await self._view.engine.read(processes.get, self._view.tenant, process)

    async def list(
        self, *, which: ProcessFilter | None = None, after: str | None = None, limit: int = 100
    ) -> Page[Process]:
        """A page of the processes to which all of `which` applies, in the order of their ids; the
        running ones when nothing is said."""
        view = self._view
        params = check_filter(which)
        place = check_place(after)
        return await view.engine.read(
            processes.list_page, view.tenant, params, place, view.page(limit)
        )

    # --- the log

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
        check_id("process", process)
        limits = self._view.limits

        def plan(known: Declared) -> events.EventPlan:
            return events.plan_event(
                process,
                known.types,
                known.wake,
                event,
                lease=lease,
                authority=authority,
                limits=limits,
            )

        return await self._event(process, plan)

    async def signal(
        self, process: str, name: str, payload: Payload = None, *, key: str | None = None
    ) -> Appended:
        """Append an event of the declared type `signal.<name>`."""
        check_id("name", name)
        return await self.append(process, NewEvent(type=f"signal.{name}", payload=payload, key=key))

    async def request_cancel(self, process: str, *, reason: str | None = None) -> Appended:
        """Ask a process to end itself. The same reason again asks nothing again."""
        check_id("process", process)
        plan = events.plan_cancel(process, reason, self._view.limits)
        return await self._event(process, lambda known: plan)

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
        check_id("process", process)
        limits = self._view.limits

        def plan(known: Declared) -> events.EventPlan:
            return events.plan_end(
                process,
                known.types,
                known.wake,
                state,
                output,
                lease=lease,
                authority=authority,
                limits=limits,
            )

        return await self._record(process, plan)

    async def abandon(
        self, process: str, *, reason: str, authority: Authority | None = None
    ) -> Process:
        """End a process that nobody may run any more: one that is lost, or any when an operator
        says so."""
        check_id("process", process)
        plan = events.plan_abandon(process, reason, authority, self._view.limits)
        return await self._record(process, lambda known: plan)

    async def suspend(self, process: str, wait: Wait, *, lease: Lease | None = None) -> Process:
        """Say what a process waits for. A lease that is presented is given back, unless the process
        is bound to its owner."""
        check_id("process", process)

        def plan(known: Declared) -> events.EventPlan:
            return events.plan_wait(process, known.types, wait, lease)

        return await self._record(process, plan)

    async def resume(self, process: str, *, lease: Lease | None = None) -> Process:
        """Say that a process waits no more. One that does not wait is left as it is."""
        check_id("process", process)
        plan = events.plan_resume(process, lease)
        return await self._record(process, lambda known: plan)

    async def set_external(self, process: str, ref: ExternalRef) -> Process:
        """Say where a process runs, once."""
        check_id("process", process)
        plan = events.plan_external(process, ref, self._view.limits)
        return await self._record(process, lambda known: plan)

    async def _event(self, process: str, plan: processes.Plan) -> Appended:
        view = self._view
        work = view.new_id()
        answer = await view.engine.write(
            processes.append_event, view.tenant, process, self._known, plan, work
        )
        if not answer.replayed:
            self._told(process, ended=answer.event.ends is not None, woken=answer.event.woken)
        return answer

    async def _record(self, process: str, plan: processes.Plan) -> Process:
        view = self._view
        work = view.new_id()
        record = await view.engine.write(
            processes.append_record, view.tenant, process, self._known, plan, work
        )
        # The record does not say whether the event was there before; to tell again does no harm.
        self._told(process, ended=record.ended, woken=record.wake)
        return record

    def _changed(self, *names: str) -> None:
        """Tell who waits for one of these processes, or for any."""
        tenant = self._view.tenant
        each = [topics.process(tenant, name) for name in names]
        self._view.engine.publish([*each, topics.processes(tenant)])

    def _told(self, process: str, *, ended: bool, woken: Scope | None) -> None:
        """Tell of an event, and of what it may have brought: work for whom it woke, and at the end
        an event in the log of the parent."""
        known = self._known.get(process)
        parent = known.parent if known is not None and ended else None
        self._changed(process, *([parent] if parent is not None else []))
        if woken is not None:
            self._view.engine.publish(topics.inbox(self._view.tenant, woken.session))

    async def events(
        self, process: str, *, after: int = 0, type: str | None = None, limit: int = 100
    ) -> Page[Event]:
        """A page of the log, or of the events of one type, later than `after`, in order."""
        view = self._view
        check_id("process", process)
        check_int("after", after)
        if type is not None:
            check_id("type", type)
        size = view.page(limit)
        return await view.engine.read(processes.log, view.tenant, process, type, after, size)

    async def recent(self, process: str, *, limit: int = 10) -> tuple[Event, ...]:
        """The last events of the log, in order."""
        check_id("process", process)
        view = self._view
        return await view.engine.read(processes.recent, view.tenant, process, view.page(limit))

    async def count(self, process: str, type: str, *, through: int = MAX_INT) -> int:
        """How many events of a type there are up to a sequence, and with it."""
        check_id("process", process)
        check_id("type", type)
        check_int("through", through)
        view = self._view
        return await view.engine.read(processes.count, view.tenant, process, type, through)

    async def wakes(self, process: str, *, after: int = 0, limit: int = 100) -> Page[Event]:
        """A page of the events later than `after` that wake, and whose wake was not seen to."""
        view = self._view
        check_id("process", process)
        check_int("after", after)
        size = view.page(limit)
        return await view.engine.read(processes.wakes, view.tenant, process, after, size)

    async def ack(self, process: str, sequence: int) -> bool:
        """Say that the wake of an event was seen to. False when there is no such wake; the same
        again is the same answer."""
        check_id("process", process)
        check_int("sequence", sequence)
        return await self._view.engine.write(processes.ack, self._view.tenant, process, sequence)

    # --- leases

    async def claim(self, process: str, owner: str, *, ttl_ms: int = 30_000) -> Lease:
        """Take the lease, or raise `LeaseBusy`. The same owner gets it again with a new token."""
        view = self._view
        check_id("process", process)
        check_id("owner", owner)
        check_ttl(ttl_ms)
        return await view.engine.write(
            leases.claim, view.tenant, process, owner, view.new_id(), ttl_ms
        )

    async def renew(self, lease: Lease, *, ttl_ms: int = 30_000) -> Lease:
        """Move the expiry, or raise `LeaseLost`. An expired lease cannot be renewed."""
        events.check_lease(lease)
        check_ttl(ttl_ms)
        return await self._view.engine.write(leases.renew, self._view.tenant, lease, ttl_ms)

    async def release(self, lease: Lease) -> bool:
        """Give the lease back. False when it was not held any more."""
        events.check_lease(lease)
        released = await self._view.engine.write(leases.release, self._view.tenant, lease)
        if released:
            self._changed(lease.process)
        return released

    async def lease(self, process: str) -> LeaseStatus | None:
        """Who holds the lease. Changes nothing."""
        check_id("process", process)
        return await self._view.engine.read(leases.read, self._view.tenant, process)

    async def due(self, *, after: str | None = None, limit: int = 100) -> Page[Due]:
        """A page of the processes that somebody may take up, longest due first. The pages of one
        scan hold what was due when it began; what came later is in the next scan."""
        view = self._view
        place = due_place(after)
        return await view.engine.read(leases.due, view.tenant, place, view.page(limit))

    # --- grants

    async def grant(self, scope: Scope, process: str, *, kind: str = "", label: str = "") -> Grant:
        """Let a scope see a process; again, to call it something else there."""
        view = self._view
        scope_row("scope", scope)
        check_id("process", process)
        check_text("kind", kind, view.limits.text_chars)
        check_text("label", label, view.limits.text_chars)
        return await view.engine.write(leases.grant, view.tenant, scope, process, kind, label)

    async def revoke(self, scope: Scope, process: str) -> bool:
        """Take a grant back. False when there was none."""
        scope_row("scope", scope)
        check_id("process", process)
        return await self._view.engine.write(leases.revoke, self._view.tenant, scope, process)

    async def transfer(self, source: Scope, target: Scope, processes: Sequence[str]) -> int:
        """Move grants from one scope to another, all of them or none."""
        view = self._view
        scope_row("source", source)
        scope_row("target", target)
        names = [check_id(f"processes[{at}]", name) for at, name in enumerate(processes)]
        if len(set(names)) != len(names):
            raise Invalid(field="processes", reason="each process is named once")
        check_int("processes", len(names), 0, view.limits.page)
        if not names:
            return 0
        return await view.engine.write(leases.transfer, view.tenant, source, target, sorted(names))

    async def granted(self, scope: Scope, process: str) -> Grant | None:
        """The grant of exactly this scope, or None."""
        scope_row("scope", scope)
        check_id("process", process)
        return await self._view.engine.read(leases.granted, self._view.tenant, scope, process)

    async def grants(
        self, scope: Scope, *, live: bool = False, after: str | None = None, limit: int = 100
    ) -> Page[Granted]:
        """A page of the grants of exactly this scope with their processes, in the order of the ids;
        with `live` of those that run."""
        view = self._view
        scope_row("scope", scope)
        place = check_place(after)
        size = view.page(limit)
        return await view.engine.read(leases.grants, view.tenant, scope, live, place, size)

    async def grants_of(
        self, process: str, *, after: str | None = None, limit: int = 100
    ) -> Page[Grant]:
        """A page of the grants for a process, in the order of sessions and frames."""
        view = self._view
        check_id("process", process)
        place = check_scope_place(after)
        size = view.page(limit)
        return await view.engine.read(leases.grants_of, view.tenant, process, place, size)

    # --- the feed, and letting go

    async def changes(self, *, after: str | None = None, limit: int = 100) -> Changes:
        """A page of the feed of changes: each process that has changed since the cursor, once, in
        an order that no writer can slip behind."""
        view = self._view
        place = change_place(after)
        return await view.engine.write(processes.changes, view.tenant, place, view.page(limit))

    async def prune(self, *, ended_before_ms: int, limit: int = 100) -> PrunedProcesses:
        """Let go of processes that ended before a time: their events, grants and content. Their ids
        are never used again."""
        check_int("ended_before_ms", ended_before_ms)
        view = self._view
        gone = await view.engine.write(
            processes.prune, view.tenant, ended_before_ms, view.page(limit)
        )
        if gone.processes:
            self._changed(*gone.processes)
        return gone
