"""The operations on the leases and the grants of processes."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.contract.processes import (
    Due,
    Grant,
    Granted,
    Lease,
    LeaseStatus,
    Scope,
)
from holdfast.contract.records import Page
from holdfast.core import events, processes
from holdfast.ops.op import Op, Stmt, call, guarded, one
from holdfast.ops.processes import require

Row = tuple[Any, ...]


def _row(*row: Any) -> Row:
    return row


def _status(*row: Any) -> LeaseStatus:
    process, owner, generation, claimed_at_ms, expires_at_ms, live = row
    return LeaseStatus(
        process=process,
        owner=owner,
        generation=generation,
        claimed_at_ms=claimed_at_ms,
        expires_at_ms=expires_at_ms,
        live=bool(live),
    )


CLAIM = Stmt("processes.claim", _row, processes.LeaseFacts)
RENEW = Stmt("processes.renew", _row, processes.ProcessFacts)
RELEASE = Stmt("processes.release", bool, processes.ProcessFacts)
LEASE: Stmt[LeaseStatus, None] = Stmt("processes.lease", _status)
DUE: Stmt[Row, None] = Stmt("processes.due", _row)
GRANT = Stmt("processes.grant", int, processes.GrantFacts)
REVOKE: Stmt[int, None] = Stmt("processes.revoke", int)
TRANSFER = Stmt("processes.transfer", int, processes.TransferFacts)
GRANTED: Stmt[Row, None] = Stmt("processes.granted", _row)
GRANTS: Stmt[Row, None] = Stmt("processes.grants", _row)
GRANTS_OF: Stmt[Row, None] = Stmt("processes.grants_of", _row)


def claim(tenant: str, process: str, owner: str, token: str, ttl_ms: int) -> Op[Lease]:
    """Take the lease; the first grant of all is an event of the process."""
    payload, digest = events.started_event(tenant, process, owner)
    params = {
        "tenant": tenant,
        "process": process,
        "owner": owner,
        "token": token,
        "ttl_ms": ttl_ms,
        "payload": payload,
        "digest": digest,
    }
    row = yield from guarded(CLAIM, processes.explain_claim_lease(process, owner), params)
    assert row is not None
    return processes.granted_lease(process, owner, token, row)


def renew(tenant: str, lease: Lease, ttl_ms: int) -> Op[Lease]:
    """Move the expiry of a live lease."""
    params = {**_proof(tenant, lease), "ttl_ms": ttl_ms}
    row = yield from guarded(RENEW, processes.explain_renew_lease(lease.process), params)
    assert row is not None
    return msgspec.structs.replace(lease, claimed_at_ms=row[0], expires_at_ms=row[1])


def release(tenant: str, lease: Lease) -> Op[bool]:
    """Give the lease back; False when it was not held by this proof any more."""
    explain = processes.explain_missing(lease.process, False)
    return bool((yield from guarded(RELEASE, explain, _proof(tenant, lease))))


def _proof(tenant: str, lease: Lease) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "process": lease.process,
        "lease_owner": lease.owner,
        "lease_token": lease.token,
        "lease_generation": lease.generation,
    }


def read(tenant: str, process: str) -> Op[LeaseStatus | None]:
    """Who holds the lease."""
    return (yield from one(LEASE, tenant=tenant, process=process))


def due(tenant: str, place: tuple[int | None, int, str], limit: int) -> Op[Page[Due]]:
    """A page of what somebody may take up."""
    upper, after_ms, after = place
    rows = yield from call(
        DUE, tenant=tenant, upper_ms=upper, after_ms=after_ms, after=after, limit=limit + 1
    )
    shown = tuple(processes.due_of(tenant, row[1:]) for row in rows[:limit])
    more = None
    if len(rows) > limit:
        more = f"{rows[0][0]}.{shown[-1].due_at_ms}.{shown[-1].process.process}"
    return Page(items=shown, next=more)


def grant(tenant: str, scope: Scope, process: str, kind: str, label: str) -> Op[Grant]:
    """Let a scope see a process."""
    named = {"process": process, "kind": kind, "label": label}
    params = {**_place(tenant, scope), **named}
    at_ms = yield from guarded(GRANT, processes.explain_grant(process, scope.session), params)
    assert at_ms is not None
    return Grant(scope=scope, granted_at_ms=at_ms, **named)


def revoke(tenant: str, scope: Scope, process: str) -> Op[bool]:
    """Take a grant back."""
    return bool((yield from one(REVOKE, **_place(tenant, scope), process=process)))


def transfer(tenant: str, source: Scope, target: Scope, names: list[str]) -> Op[int]:
    """Move grants, all of them or none."""
    params = {
        **_place(tenant, source),
        "to_session": target.session,
        "to_frame": target.frame or "",
        "processes": [(name,) for name in names],
    }
    return (yield from guarded(TRANSFER, processes.explain_transfer(source, target), params)) or 0


def granted(tenant: str, scope: Scope, process: str) -> Op[Grant | None]:
    """The grant of exactly this scope."""
    row = yield from one(GRANTED, **_place(tenant, scope), process=process)
    return None if row is None else processes.grant_of(row)


def grants(tenant: str, scope: Scope, live: bool, after: str, limit: int) -> Op[Page[Granted]]:
    """A page of the grants of a scope with their processes."""
    rows = yield from call(GRANTS, **_place(tenant, scope), live=live, after=after, limit=limit + 1)
    shown = tuple(
        Granted(grant=processes.grant_of(row[:6]), process=processes.process_of(tenant, row[6:]))
        for row in rows[:limit]
    )
    return Page(items=shown, next=shown[-1].grant.process if len(rows) > limit else None)


def grants_of(tenant: str, process: str, after: tuple[str, str], limit: int) -> Op[Page[Grant]]:
    """A page of the grants for a process."""
    rows = yield from call(
        GRANTS_OF,
        tenant=tenant,
        process=process,
        after_session=after[0],
        after_frame=after[1],
        limit=limit + 1,
    )
    if not rows:
        yield from require(tenant, process)
    shown = tuple(processes.grant_of(row) for row in rows[:limit])
    more = f"{rows[limit - 1][0]} {rows[limit - 1][1]}" if len(rows) > limit else None
    return Page(items=shown, next=more)


def _place(tenant: str, scope: Scope) -> dict[str, Any]:
    return {"tenant": tenant, "session": scope.session, "frame": scope.frame or ""}
