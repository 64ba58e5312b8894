"""The oracle's processes that are registered: who runs them, and who may see them.

A lease that lapsed stays with its last holder until it is given back or taken by somebody; what is
due is found by looking at every process there is.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.contract.errors import (
    GrantUnknown,
    Invalid,
    LeaseBusy,
    LeaseLost,
    NotRecoverable,
    ProcessEnded,
    ProcessPruned,
    ProcessUnknown,
    SessionDeleted,
)
from holdfast.contract.processes import (
    Due,
    Event,
    Grant,
    Granted,
    Lease,
    LeaseStatus,
    Process,
    Scope,
)
from holdfast.contract.records import Holder, Page
from holdfast.testing.oracle_lanes import OracleLanes
from holdfast.testing.oracle_payloads import encoded
from holdfast.testing.oracle_process_rows import StoredLease, StoredProcess
from holdfast.testing.oracle_rows import page_of
from holdfast.testing.oracle_turns import require_id


class OracleLeases:
    """The processes of one tenant, with their leases and grants."""

    def __init__(self, lanes: OracleLanes) -> None:
        self._lanes = lanes
        self._processes: dict[str, StoredProcess] = {}
        self._grants: dict[tuple[str, str, str], Grant] = {}
        self._changes = 0

    # --- what there is

    def _now(self) -> int:
        return self._lanes._clock()

    def _there(self, process: str) -> StoredProcess:
        """A process whose log can be read and written, or the reason why there is none."""
        require_id("process", process)
        found = self._processes.get(process)
        if found is None:
            raise ProcessUnknown(process=process)
        if found.pruned:
            raise ProcessPruned(process=process)
        return found

    def _kept(self) -> list[StoredProcess]:
        """Every process that was not pruned, in the order of their ids."""
        return [found for _, found in sorted(self._processes.items()) if not found.pruned]

    def _gone(self, session: str) -> bool:
        found = self._lanes._sessions.get(session)
        return found is not None and found.deleted

    def _target(self, found: StoredProcess) -> Scope | None:
        """Whom its events wake, unless that session was deleted."""
        wake = found.new.wake
        return None if wake is None or self._gone(wake.session) else wake

    def _record(self, found: StoredProcess) -> Process:
        return found.record(self._target(found))

    def _change(self, found: StoredProcess) -> None:
        self._changes += 1
        found.changed = self._changes

    def _log(self, found: StoredProcess, type: str, payload: bytes) -> Event:
        """Append an event that is not one of those a type makes something of."""
        event = Event(
            process=found.id,
            sequence=len(found.log) + 1,
            type=type,
            payload=payload,
            key=None,
            at_ms=self._now(),
        )
        found.log.append(event)
        self._change(found)
        return event

    # --- leases

    def _live_lease(self, found: StoredProcess) -> StoredLease | None:
        lease = found.lease
        return lease if lease is not None and lease.expires_at_ms > self._now() else None

    def _current(self, found: StoredProcess, lease: Lease) -> bool:
        """Whether it is the last lease that was granted, and was not given back."""
        held = found.lease
        return held is not None and (held.owner, held.token, found.generation) == (
            lease.owner,
            lease.token,
            lease.generation,
        )

    def _require_lease(self, found: StoredProcess, lease: Lease | None) -> None:
        if lease is not None and not (
            self._current(found, lease) and self._live_lease(found) is not None
        ):
            raise LeaseLost(process=found.id)

    def _lost(self, found: StoredProcess) -> bool:
        """Whether it must not be run again, because nobody holds what has been started."""
        return (
            not found.ended
            and found.new.recovery == "owner-bound"
            and found.started
            and self._live_lease(found) is None
        )

    def claim(self, process: str, owner: str, *, ttl_ms: int = 30_000) -> Lease:
        token = self._lanes._new_id()
        found = self._there(process)
        if found.ended:
            raise _ended(found)
        recovery = found.new.recovery
        if recovery == "external":
            raise NotRecoverable(process=process, recovery=recovery, reason="it runs elsewhere")
        live, was, now = self._live_lease(found), found.lease, self._now()
        if live is not None and live.owner != owner:
            raise LeaseBusy(
                process=process,
                owner=live.owner,
                generation=found.generation,
                expires_at_ms=live.expires_at_ms,
            )
        if self._lost(found):
            raise NotRecoverable(process=process, recovery=recovery, reason="it has started")
        displaced = None
        if live is None and was is not None:
            displaced = Holder(
                owner=was.owner, generation=found.generation, expires_at_ms=was.expires_at_ms
            )
        found.generation += 1
        found.lease = StoredLease(owner, token, now, now + ttl_ms, displaced)
        if not found.started:
            self._log(found, "process.started", encoded({"owner": owner}))
        return self._granted_lease(found, found.lease)

    def _granted_lease(self, found: StoredProcess, lease: StoredLease) -> Lease:
        return Lease(
            process=found.id,
            owner=lease.owner,
            token=lease.token,
            generation=found.generation,
            claimed_at_ms=lease.claimed_at_ms,
            expires_at_ms=lease.expires_at_ms,
            displaced=lease.displaced,
        )

    def renew(self, lease: Lease, *, ttl_ms: int = 30_000) -> Lease:
        found = self._there(lease.process)
        self._require_lease(found, lease)
        assert found.lease is not None
        found.lease.expires_at_ms = self._now() + ttl_ms
        return self._granted_lease(found, found.lease)

    def release(self, lease: Lease) -> bool:
        found = self._there(lease.process)
        if not self._current(found, lease):
            return False
        found.lease = None
        return True

    def lease(self, process: str) -> LeaseStatus | None:
        found = self._processes.get(process)
        if found is None or found.pruned:
            return None
        held = found.lease
        return LeaseStatus(
            process=process,
            owner=None if held is None else held.owner,
            generation=found.generation,
            claimed_at_ms=None if held is None else held.claimed_at_ms,
            expires_at_ms=None if held is None else held.expires_at_ms,
            live=self._live_lease(found) is not None,
        )

    def due(self, *, after: str | None = None, limit: int = 100) -> Page[Due]:
        """When a process became due is not remembered: what there is to be done is what counts."""
        there = [
            Due(process=self._record(found), due_at_ms=0, lost=self._lost(found))
            for found in self._kept()
            if self._is_due(found)
        ]
        return page_of(there, after, limit)

    def _is_due(self, found: StoredProcess) -> bool:
        if found.ended or found.new.recovery == "external" or self._live_lease(found) is not None:
            return False
        wait = found.wait
        if wait is None or found.asked_to_end is not None:
            return True
        if wait.until_ms is not None and wait.until_ms <= self._now():
            return True
        return any(event.type == wait.type for event in found.log[wait.after :])

    # --- grants

    def grant(self, scope: Scope, process: str, *, kind: str = "", label: str = "") -> Grant:
        require_scope("scope", scope)
        self._there(process)
        if self._gone(scope.session):
            raise SessionDeleted(session=scope.session)
        made = Grant(
            scope=scope, process=process, kind=kind, label=label, granted_at_ms=self._now()
        )
        self._grants[place_of(scope, process)] = made
        return made

    def revoke(self, scope: Scope, process: str) -> bool:
        return self._grants.pop(place_of(scope, process), None) is not None

    def transfer(self, source: Scope, target: Scope, processes: Sequence[str]) -> int:
        if len(set(processes)) < len(processes):
            raise Invalid(field="processes", reason="twice")
        if processes and self._gone(target.session):
            raise SessionDeleted(session=target.session)
        for process in sorted(processes):
            if place_of(source, process) not in self._grants:
                raise GrantUnknown(scope=source.session, process=process)
        for process in processes:
            old = self._grants.pop(place_of(source, process))
            self._grants[place_of(target, process)] = Grant(
                scope=target,
                process=process,
                kind=old.kind,
                label=old.label,
                granted_at_ms=self._now(),
            )
        return len(processes)

    def granted(self, scope: Scope, process: str) -> Grant | None:
        return self._grants.get(place_of(scope, process))

    def grants(
        self, scope: Scope, *, live: bool = False, after: str | None = None, limit: int = 100
    ) -> Page[Granted]:
        there = [
            Granted(grant=self._grants[place_of(scope, found.id)], process=self._record(found))
            for found in self._kept()
            if place_of(scope, found.id) in self._grants and not (live and found.ended)
        ]
        return page_of(there, after, limit)

    def grants_of(self, process: str, *, after: str | None = None, limit: int = 100) -> Page[Grant]:
        self._there(process)
        return page_of(self._grants_for(process), after, limit)

    def _grants_for(self, process: str) -> list[Grant]:
        return [grant for _, grant in sorted(self._grants.items()) if grant.process == process]

    def forget_session(self, session: str) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
        """What deleting a session means to processes: nobody there sees or is woken by them any
        more, and those that run are told from each other by whether others see them. It is nothing
        that happens to a process, so no feed tells of it."""
        gone = [place for place in self._grants if place[0] == session]
        for place in gone:
            del self._grants[place]
        names = sorted({place[2] for place in gone if not self._processes[place[2]].ended})
        return (
            len(gone),
            tuple(name for name in names if not self._grants_for(name)),
            tuple(name for name in names if self._grants_for(name)),
        )


def place_of(scope: Scope, process: str) -> tuple[str, str, str]:
    """Where a grant is: the session as a whole is the frame without a name."""
    return scope.session, scope.frame or "", process


def require_scope(field: str, scope: Scope | None) -> None:
    """A scope is made of ids."""
    if scope is not None:
        require_id(f"{field}.session", scope.session)
        if scope.frame is not None:
            require_id(f"{field}.frame", scope.frame)


def _ended(found: StoredProcess) -> ProcessEnded:
    end = found.ending()
    return ProcessEnded(process=found.id, state="" if end is None else str(end.ends))
