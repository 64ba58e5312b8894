"""Operations on processes, failed before and after each of their steps and with their answer lost.

The law is that of the other fault tests: a failed operation leaves all of itself or nothing. Asked
again, it comes to where an undisturbed one ends; of the few for which that is not so it is said
here by hand what the second time comes to.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.contract.errors import GrantUnknown
from holdfast.contract.limits import MAX_INT
from holdfast.contract.processes import (
    Appended,
    EventType,
    ExternalRef,
    Lease,
    NewEvent,
    NewGrant,
    NewProcess,
    Process,
    Registered,
    Wait,
    WakeRule,
)
from holdfast.contract.records import Deleted
from holdfast.contract.stores import Store
from holdfast.contract.triggers import NewOccurrence, NewSubscription, ProcessTemplate
from holdfast.testing.conformance.kit_processes import here, inbox, log
from tests.faulting import Act, Kept, Struck, strike_everywhere

if TYPE_CHECKING:
    from tests.conftest import Database

HOUR_MS = 3_600_000
FAR_MS = 4_000_000_000_000
STEP = EventType(name="step")
CALL = EventType(name="call", wakes=WakeRule())
DONE = EventType(name="process.completed", ends="completed", wakes=WakeRule())
EVENTS = (STEP, CALL, DONE)
AT_S, AT_T = here("s"), here("t", "frame")


async def prepare(store: Store, kept: Kept) -> None:
    """Processes of every recovery: one with a parent and a lease, one that waits, some that have
    ended, with grants in two sessions, and a subscription of the session that is deleted."""
    for session in ("s", "t"):
        await store.sessions.create(session)
    both = [NewGrant(scope=AT_S, kind="k"), NewGrant(scope=AT_T, label="l")]
    registered: dict[str, dict[str, Any]] = {
        "parent": {"grants": both[:1]},
        "child": {"parent": "parent", "wake": AT_S, "grants": both, "origin": AT_S},
        "fresh": {"wake": here("nobody")},
        "waits": {"wake": AT_S},
        "bound": {"recovery": "owner-bound"},
        "away": {"recovery": "external"},
        "ended": {"grants": both},
        "gone": {},
    }
    for name, how in registered.items():
        await store.processes.register(NewProcess(process=name, events=EVENTS, **how))
        # The handle remembers from here on what it has declared, so that steps can be counted.
        await store.processes.resume(name)
    await store.processes.suspend("parent", Wait(type="process.child-ended"))
    kept["lease"] = await store.processes.claim("child", "me", ttl_ms=HOUR_MS)
    await store.processes.append("child", NewEvent(type="call", payload="first", key="first"))
    await store.processes.suspend("waits", Wait(type="step", until_ms=FAR_MS))
    await store.processes.claim("bound", "me", ttl_ms=0)
    for name in ("ended", "gone"):
        await store.processes.end(name, output=name, authority="operator")
    page = await store.processes.changes(limit=2)
    kept["after"] = page.next
    subscription = NewSubscription(
        owner=AT_S,
        key="k",
        source_type="x",
        source_key="y",
        process=ProcessTemplate(grants=both),
    )
    await store.triggers.register(subscription)
    happened = NewOccurrence(source_type="x", source_key="y", key="o", payload=1)
    found = await store.triggers.record(happened)
    await store.triggers.reserve(found.occurrence.occurrence)


def registration(process: str | None) -> NewProcess:
    grants = [NewGrant(scope=AT_S, kind="k"), NewGrant(scope=AT_T, label="l")]
    return NewProcess(process=process, input={"n": 1}, events=(STEP, CALL), grants=grants)


def wait(store: Store, kept: Kept) -> Awaitable[Process]:
    return store.processes.suspend(
        "child", Wait(type="call", after=9, until_ms=FAR_MS), lease=kept["lease"]
    )


def end(store: Store, kept: Kept) -> Awaitable[Process]:
    return store.processes.end("child", output={"done": 1}, lease=kept["lease"])


def append(process: str, type: str, key: str | None, payload: str = "new") -> Act:
    event = NewEvent(type=type, payload=payload, key=key)
    return lambda s, k: s.processes.append(process, event)


def append_with_lease(store: Store, kept: Kept) -> Awaitable[Appended]:
    event = NewEvent(type="call", payload="go", key="leased", wake=AT_T)
    return store.processes.append("child", event, lease=kept["lease"])


ACTS: dict[str, Act] = {
    "register": lambda s, k: s.processes.register(registration("new")),
    "register again": lambda s, k: s.processes.register(NewProcess(process="gone", events=EVENTS)),
    "append": append("child", "step", "new"),
    "append again": append("child", "call", "first", "first"),
    "append with a wake": append("child", "call", "new"),
    "append with a wake for another": append_with_lease,
    "append with a wake for nobody": append("fresh", "call", "new"),
    "append what is awaited": append("waits", "step", "new"),
    "request a cancel": lambda s, k: s.processes.request_cancel("waits", reason="why"),
    "end with a lease": end,
    "end as an operator": lambda s, k: s.processes.end("waits", "failed", 1, authority="operator"),
    "abandon": lambda s, k: s.processes.abandon("bound", reason="lost"),
    "suspend with a lease": wait,
    "suspend": lambda s, k: s.processes.suspend("fresh", Wait(until_ms=FAR_MS)),
    "resume": lambda s, k: s.processes.resume("waits"),
    "set external": lambda s, k: s.processes.set_external("away", ExternalRef(backend="b", id="1")),
    "ack": lambda s, k: s.processes.ack("child", 2),
    "first claim": lambda s, k: s.processes.claim("fresh", "me", ttl_ms=HOUR_MS),
    "renew": lambda s, k: s.processes.renew(k["lease"], ttl_ms=2 * HOUR_MS),
    "release": lambda s, k: s.processes.release(k["lease"]),
    "grant": lambda s, k: s.processes.grant(AT_T, "parent", kind="k", label="l"),
    "revoke": lambda s, k: s.processes.revoke(AT_S, "child"),
    "transfer": lambda s, k: s.processes.transfer(AT_S, AT_T, ["child", "ended", "parent"]),
    "changes": lambda s, k: s.processes.changes(after=k["after"]),
    "prune": lambda s, k: s.processes.prune(ended_before_ms=MAX_INT),
    "delete a session": lambda s, k: s.sessions.delete("s"),
}


async def check_again(name: str, struck: Struck) -> None:
    """The second time answers what is true then, and ends where an undisturbed one ends."""
    act, done = ACTS[name], struck.done
    if name == "transfer" and done:
        with pytest.raises(GrantUnknown):
            await act(struck.store, struck.kept)
    else:
        again = await act(struck.store, struck.kept)
        if isinstance(again, Registered):
            assert again.created is (name == "register" and not done)
        elif isinstance(again, Appended):
            assert again.replayed is (done or name == "append again")
        elif isinstance(again, Lease):
            assert again.generation == (2 if name == "first claim" and done else 1)
        elif isinstance(again, Deleted):
            assert again.deleted is not done
        elif name in ("release", "revoke"):
            assert again is not done
        elif name == "prune":
            assert again.processes == (() if done else ("ended", "gone"))
    found = await struck.rows()
    if name == "first claim" and done:
        # The same owner has it a second time; that it has started is said once.
        for row in found["process"]:
            row["lease_generation"] -= row["process"] == "fresh"
    assert found == struck.undisturbed, struck.at


# The two colours share the engine beneath; of the blocking one a few operations are enough.
BLOCKING = ("append with a wake", "end with a lease", "suspend with a lease", "delete a session")
CASES = [("async", name) for name in ACTS] + [("blocking", name) for name in BLOCKING]


@pytest.mark.parametrize(("colour", "name"), CASES)
async def test_a_failed_operation_on_a_process_is_never_half_stored(
    database: Database, colour: str, name: str
) -> None:
    async def check(struck: Struck) -> None:
        await check_again(name, struck)
        await consistent(struck.store)

    await strike_everywhere(database, colour, prepare, ACTS[name], check)


async def consistent(store: Store) -> None:
    """Logs are dense, and in the sessions that are there is the work of exactly the wakes that say
    so."""
    named: set[str | None] = set()
    enqueued: set[str | None] = set()
    for session in ("s", "t"):
        if await store.sessions.head(session) is not None:
            enqueued |= {work.work for work in await inbox(store, session)}
    page = await store.processes.changes(limit=100)
    for process in (change.record for change in page.items):
        if process is None:
            continue
        events = await log(store, process.process)
        assert [event.sequence for event in events] == list(range(1, process.sequence + 1))
        for event in events:
            if event.woken is not None and await store.sessions.head(event.woken.session):
                named.add(event.work)
    assert enqueued == named


# What is appended without a key cannot be told from another event of the same content, and what is
# registered without an id is another process each time.
UNNAMED: dict[str, tuple[Act, str]] = {
    "an append without a key": (append("child", "call", None), "process_event"),
    "a registration without an id": (
        lambda s, k: s.processes.register(registration(None)),
        "process",
    ),
}


@pytest.mark.parametrize("name", UNNAMED)
async def test_what_has_no_name_is_there_twice_when_it_is_asked_again(
    database: Database, name: str
) -> None:
    """Where it was not done it is there once, and never in part; the error says which one it is."""
    act, table = UNNAMED[name]

    async def check(struck: Struck) -> None:
        again = await act(struck.store, struck.kept)
        found, more = await struck.rows(), 2 if struck.done else 1
        assert len(found[table]) == len(struck.before[table]) + more, struck.at
        if isinstance(again, Appended):
            assert not again.replayed
            assert again.ordinal == (3 if struck.done else 2)
            work = await inbox(struck.store, "s")
            assert len(work) == (3 if struck.done else 2)
            assert len({found.work for found in work}) == len(work)
        else:
            assert again.created
        await consistent(struck.store)

    await strike_everywhere(database, "async", prepare, act, check)


async def test_a_lease_whose_answer_was_lost_comes_back(database: Database) -> None:
    """To others it is held until its time is over; its owner gets it again at once."""

    async def act(store: Store, kept: Kept) -> Lease:
        return await store.processes.claim("fresh", "me", ttl_ms=0)

    async def check(struck: Struck) -> None:
        lease = await struck.store.processes.claim("fresh", "other", ttl_ms=HOUR_MS)
        assert lease.generation == (2 if struck.done else 1)
        assert (lease.displaced is not None) is struck.done
        events = await log(struck.store, "fresh")
        assert [event.type for event in events] == ["process.started"]
        assert events[0].json() == {"owner": "me" if struck.done else "other"}

    await strike_everywhere(database, "async", prepare, act, check)
