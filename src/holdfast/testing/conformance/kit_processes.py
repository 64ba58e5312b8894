"""What the laws of processes share lives here: what is to be seen of a process, and its fold.

The fold is written out by hand, so that what a store says of a process can be compared with what
its log says.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import pytest

from holdfast.contract.errors import HoldfastError
from holdfast.contract.processes import (
    Event,
    EventType,
    ExternalRef,
    Grant,
    LeaseStatus,
    NewEvent,
    NewProcess,
    Pointer,
    Process,
    Scope,
    Wait,
    WakeRule,
)
from holdfast.contract.queue import Work
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import all_pages

E = TypeVar("E", bound=HoldfastError)

HOUR_MS = 3_600_000
NEVER = "no-such-process"

STEP = EventType(name="step")
REPORT = EventType(name="report", ends="completed", output=Pointer(at="/summary"))
PING = EventType(name="ping", wakes=WakeRule())
GO = EventType(name="signal.go")
EVERYTHING = (STEP, REPORT, PING, GO)


@dataclass(frozen=True)
class ProcessPicture:
    """All that can be seen of one process."""

    record: Process | None
    events: tuple[Event, ...]
    lease: LeaseStatus | None
    grants: tuple[Grant, ...]


async def log(store: Store, process: str) -> tuple[Event, ...]:
    """The whole log of a process, page after page."""
    events: list[Event] = []
    after = 0
    for _ in range(1000):
        page = await store.processes.events(process, after=after, limit=100)
        events.extend(page.items)
        if page.next is None:
            return tuple(events)
        after = page.items[-1].sequence
    raise AssertionError("the log does not end")


async def types(store: Store, process: str) -> list[str]:
    """The types of the events of a process, in order."""
    return [event.type for event in await log(store, process)]


async def seen(store: Store, process: str) -> ProcessPicture:
    """What is to be seen of a process now; of one that is not there, that nothing is."""
    record = await store.processes.get(process)
    if record is None:
        assert await store.processes.lease(process) is None
        return ProcessPicture(None, (), None, ())
    return ProcessPicture(
        record=record,
        events=await log(store, process),
        lease=await store.processes.lease(process),
        grants=await all_pages(lambda a: store.processes.grants_of(process, after=a)),
    )


@asynccontextmanager
async def denied(
    store: Store, error: type[E], *processes: str
) -> AsyncIterator[pytest.ExceptionInfo[E]]:
    """What is done inside is refused with exactly this error, and of these processes ("p" when none
    is named) everything stays as it was."""
    names = processes or ("p",)
    before = [await seen(store, name) for name in names]
    with pytest.raises(error) as caught:
        yield caught
    assert type(caught.value) is error, caught.value
    assert [await seen(store, name) for name in names] == before


async def begin(store: Store, process: str = "p", **how: Any) -> Process:
    """Register a process that declares a type of each kind, unless others are given."""
    how.setdefault("events", EVERYTHING)
    registered = await store.processes.register(NewProcess(process=process, **how))
    assert registered.created is True
    return registered.process


async def record(store: Store, process: str = "p") -> Process:
    """The record of a process that is there."""
    found = await store.processes.get(process)
    assert found is not None
    return found


async def status(store: Store, process: str = "p") -> LeaseStatus:
    """Who holds the lease of a process that is there."""
    found = await store.processes.lease(process)
    assert found is not None
    return found


async def step(store: Store, process: str = "p", payload: Any = None, **how: Any) -> Event:
    """Append an event that does nothing but be there."""
    appended = await store.processes.append(process, NewEvent(type="step", payload=payload, **how))
    assert appended.replayed is False
    return appended.event


async def stop(store: Store, process: str = "p", output: Any = None) -> Process:
    """End a process as an operator does."""
    return await store.processes.end(process, "completed", output, authority="operator")


async def inbox(store: Store, session: str) -> tuple[Work, ...]:
    """All the work of a session, in order."""
    return await all_pages(lambda after: store.queue.list(session, after=after))


async def listed(read: Callable[[str | None], Awaitable[Any]]) -> list[str]:
    """The ids of a listing of processes, page after page."""
    return [item.process for item in await all_pages(read)]


async def goes_on(store: Store, process: str = "p") -> None:
    """The process takes an event of type "step", whatever was refused before."""
    before = await record(store, process)
    event = await step(store, process, "on")
    assert event.sequence == before.sequence + 1
    assert (await record(store, process)).sequence == event.sequence


def folded(registered: Process, events: Sequence[Event]) -> Process:
    """What the log makes of the record of a process as it was registered, written out by hand."""
    facts: dict[str, Any] = {
        "sequence": 0,
        "updated_at_ms": registered.created_at_ms,
        "state": "running",
        "output": None,
        "ended_by": None,
        "wait": None,
        "external": None,
        "started_at_ms": None,
        "cancel_requested_at_ms": None,
    }
    for event in events:
        facts["sequence"] += 1
        assert event.sequence == facts["sequence"]
        facts["updated_at_ms"] = event.at_ms
        if event.type == "process.started" and facts["started_at_ms"] is None:
            facts["started_at_ms"] = event.at_ms
        if event.type == "process.waiting":
            said = event.json()
            facts["wait"] = Wait(type=said["type"], after=said["after"], until_ms=said["until_ms"])
        if event.type == "process.resumed":
            facts["wait"] = None
        if event.type == "process.cancel-requested" and facts["cancel_requested_at_ms"] is None:
            facts["cancel_requested_at_ms"] = event.at_ms
        if event.type == "process.external" and facts["external"] is None:
            said = event.json()
            facts["external"] = ExternalRef(
                backend=said["backend"], id=said["id"], metadata=said["metadata"]
            )
        if event.ends is not None and facts["state"] == "running":
            facts["state"], facts["output"] = event.ends, event.output
            facts["ended_by"], facts["wait"] = event.authority, None
    return msgspec.structs.replace(registered, **facts)


def here(session: str = "s", frame: str | None = None) -> Scope:
    """A scope, in short."""
    return Scope(session=session, frame=frame)
