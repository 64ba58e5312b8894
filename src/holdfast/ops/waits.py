"""The reads that waiters repeat. Each is cheap, and the same for all who wait for the same."""

from __future__ import annotations

from holdfast.contract.errors import ProcessEnded, StoreBusy
from holdfast.contract.processes import Event, Process
from holdfast.contract.records import Fence, Head
from holdfast.core import waits
from holdfast.core.waits import Outlook
from holdfast.ops import processes
from holdfast.ops.op import ASK_AGAIN, Op, Stmt, one
from holdfast.ops.queue import WHY
from holdfast.ops.sessions import head as read_head

DUE: Stmt[Outlook[bool], None] = Stmt(
    "queue.due",
    lambda ready, next_at_ms, now_ms: waits.work_anywhere(bool(ready), next_at_ms, now_ms),
)


def head(tenant: str, session: str) -> Op[Head]:
    """The head; that there is none is an error here, because none will come."""
    for _ in range(ASK_AGAIN):
        found = yield from read_head(tenant, session)
        if found is not None:
            return found
        facts = yield from one(WHY, tenant=tenant, session=session)
        assert facts is not None
        facts.require_live(session)
    raise StoreBusy(reason=f"the session came and went {ASK_AGAIN} times in a row")


def work_of_session(
    tenant: str, session: str, fence: Fence | None, boundary: str, kind: str
) -> Op[Outlook[bool]]:
    """Whether there is work to claim in a session, or when there may be."""
    found = yield from one(WHY, tenant=tenant, session=session)
    assert found is not None
    return waits.work_of_session(session, fence, boundary, kind, found)


def work_anywhere(tenant: str) -> Op[Outlook[bool]]:
    """Whether there is work to claim in any session, or when there may be."""
    found = yield from one(DUE, tenant=tenant)
    assert found is not None
    return found


def event(tenant: str, process: str, type: str | None, after: int) -> Op[Event | None]:
    """The first event later than `after`; that none will come any more is an error here."""
    found = yield from _first(tenant, process, type, after)
    if found is not None:
        return found
    record = yield from ended(tenant, process)
    if not record.ended:
        return None
    # Where each statement has a snapshot of its own, the last event may have come in between.
    found = yield from _first(tenant, process, type, after)
    if found is None:
        raise ProcessEnded(process=process, state=record.state)
    return found


def _first(tenant: str, process: str, type: str | None, after: int) -> Op[Event | None]:
    page = yield from processes.log(tenant, process, type, after, 1)
    return page.items[0] if page.items else None


def ended(tenant: str, process: str) -> Op[Process]:
    """The record of a process; that there is none is an error here."""
    for _ in range(ASK_AGAIN):
        found = yield from processes.get(tenant, process)
        if found is not None:
            return found
        yield from processes.require(tenant, process)
    raise StoreBusy(reason=f"the process came and went {ASK_AGAIN} times in a row")
