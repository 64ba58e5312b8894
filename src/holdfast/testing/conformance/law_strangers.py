"""What is not there: processes that are unknown or somebody else's, and names that are none.

Every operation answers what it is asked about a process that does not exist in the same way, and
looks at what it is given before it looks at anything that is stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from holdfast.contract.errors import (
    HoldfastError,
    Invalid,
    ProcessUnknown,
)
from holdfast.contract.processes import (
    ExternalRef,
    NewEvent,
    NewGrant,
    Wait,
)
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import Kit
from holdfast.testing.conformance.kit_processes import (
    HOUR_MS,
    NEVER,
    begin,
    goes_on,
    here,
    listed,
    seen,
    step,
    stop,
)


async def test_law_x07_an_unknown_process_is_refused_by_name(kit: Kit) -> None:
    """Every write to a process that is not there, and every read of its log or its grants, is
    refused with ProcessUnknown, which names it, and creates nothing. (x07)"""
    async with kit.open() as store:
        await begin(store)
        lease = await store.processes.claim("p", "one")
        foreign = msgspec.structs.replace(lease, process=NEVER)
        await store.processes.grant(here(), "p")
        for name, call in calls_on(store, NEVER, foreign).items():
            with pytest.raises(HoldfastError) as it:
                await call()
            assert type(it.value) is ProcessUnknown, name
            assert it.value.process == NEVER
        assert await store.processes.get(NEVER) is None
        assert await listed(lambda a: store.processes.list(after=a)) == ["p"]
        await goes_on(store)


def calls_on(store: Store, name: str, lease: Any) -> dict[str, Callable[[], Awaitable[object]]]:
    """Every call that needs the process."""
    found = store.processes
    return {
        "append": lambda: found.append(name, NewEvent(type="step")),
        "append keyed": lambda: found.append(name, NewEvent(type="step", key="k")),
        "append leased": lambda: found.append(name, NewEvent(type="step"), lease=lease),
        "signal": lambda: found.signal(name, "go"),
        "request_cancel": lambda: found.request_cancel(name),
        "end": lambda: found.end(name, authority="operator"),
        "end leased": lambda: found.end(name, lease=lease),
        "abandon": lambda: found.abandon(name, reason="gone", authority="operator"),
        "suspend": lambda: found.suspend(name, Wait(until_ms=1)),
        "resume": lambda: found.resume(name),
        "set_external": lambda: found.set_external(name, ExternalRef(backend="b", id="1")),
        "events": lambda: found.events(name),
        "events typed": lambda: found.events(name, type="step"),
        "recent": lambda: found.recent(name),
        "count": lambda: found.count(name, "step"),
        "wakes": lambda: found.wakes(name),
        "ack": lambda: found.ack(name, 1),
        "claim": lambda: found.claim(name, "two"),
        "renew": lambda: found.renew(lease),
        "release": lambda: found.release(lease),
        "grant": lambda: found.grant(here(), name),
        "grants_of": lambda: found.grants_of(name),
    }


async def test_law_x08_another_tenants_process_is_not_there(kit: Kit) -> None:
    """A process of another tenant is answered as one that does not exist, by every operation, also
    with its live lease; the same id is free there, and nothing of the process changes. (x08)"""
    async with kit.open() as store, kit.open(kit.other_tenant()) as other:
        await begin(store, grants=[NewGrant(scope=here())])
        lease = await store.processes.claim("p", "one", ttl_ms=HOUR_MS)
        await step(store)
        before = await seen(store, "p")
        for name, call in calls_on(other, "p", lease).items():
            with pytest.raises(HoldfastError) as it:
                await call()
            assert type(it.value) is ProcessUnknown, name
        assert await other.processes.get("p") is None
        assert await other.processes.lease("p") is None
        assert await other.processes.granted(here(), "p") is None
        assert await other.processes.revoke(here(), "p") is False
        assert (await other.processes.list()).items == ()
        assert (await other.processes.due()).items == ()
        assert (await other.processes.grants(here())).items == ()
        assert (await other.processes.changes()).items == ()
        far = before.record.updated_at_ms + HOUR_MS if before.record else 0
        assert (await other.processes.prune(ended_before_ms=far)).processes == ()
        assert await seen(store, "p") == before
        await begin(other)
        await stop(other)
        assert (await other.sessions.delete("s")).grants == 0
        assert await seen(store, "p") == before
        assert (await store.processes.renew(lease)).generation == 1


async def test_law_x09_ill_formed_names_are_invalid(kit: Kit) -> None:
    """An operation that is given a blank or ill-formed id, session, owner, type or key, or a number
    out of range, is Invalid, names the argument, and changes nothing. (x09)"""
    async with kit.open() as store:
        await begin(store)
        lease = await store.processes.claim("p", "one")
        p = store.processes
        cases: list[tuple[str, Callable[[], Awaitable[object]]]] = [
            *(("process", call) for call in calls_on_blank(store)),
            ("event.type", lambda: p.append("p", NewEvent(type=""))),
            ("event.key", lambda: p.append("p", NewEvent(type="step", key=""))),
            ("event.key", lambda: p.append("p", NewEvent(type="step", key="process.mine"))),
            ("event.wake", lambda: p.append("p", NewEvent(type="ping", wake=here("")))),
            ("event.payload", lambda: p.append("p", NewEvent(type="step", payload=float("inf")))),
            ("event.type", lambda: p.append("p", NewEvent(type="process.started"))),
            ("event.type", lambda: p.append("p", NewEvent(type="process.completed", key="k"))),
            ("name", lambda: p.signal("p", "")),
            ("state", lambda: p.end("p", "abandoned", lease=lease)),  # type: ignore[arg-type]
            ("authority", lambda: p.end("p", authority="lapse")),
            ("authority", lambda: p.end("p", authority="lease")),
            ("authority", lambda: p.end("p", authority="king")),  # type: ignore[arg-type]
            ("reason", lambda: p.abandon("p", reason="", authority="operator")),
            ("wait", lambda: p.suspend("p", Wait())),
            ("wait", lambda: p.suspend("p", Wait(type="step", after=-1))),
            ("wait", lambda: p.suspend("p", Wait(until_ms=-1))),
            ("ref", lambda: p.set_external("p", ExternalRef(backend="", id="1"))),
            ("ref", lambda: p.set_external("p", ExternalRef(backend="b", id=""))),
            ("after", lambda: p.events("p", after=-1)),
            ("limit", lambda: p.events("p", limit=0)),
            ("type", lambda: p.events("p", type="")),
            ("limit", lambda: p.recent("p", limit=-1)),
            ("type", lambda: p.count("p", "")),
            ("through", lambda: p.count("p", "step", through=-1)),
            ("sequence", lambda: p.ack("p", -1)),
            ("owner", lambda: p.claim("p", "")),
            ("ttl_ms", lambda: p.claim("p", "one", ttl_ms=-1)),
            ("ttl_ms", lambda: p.claim("p", "one", ttl_ms=604_800_001)),
            ("ttl_ms", lambda: p.renew(lease, ttl_ms=604_800_001)),
            ("scope", lambda: p.grant(here(""), "p")),
            ("scope", lambda: p.granted(here("s", ""), "p")),
            ("scope", lambda: p.revoke(here(""), "p")),
            ("scope", lambda: p.grants(here(""))),
            ("source", lambda: p.transfer(here(""), here(), ["p"])),
            ("target", lambda: p.transfer(here(), here(""), ["p"])),
            ("processes", lambda: p.transfer(here(), here("t"), ["p", "p"])),
            ("after", lambda: p.changes(after="nonsense")),
            ("after", lambda: p.due(after="nonsense")),
            ("ended_before_ms", lambda: p.prune(ended_before_ms=-1)),
        ]
        before = await seen(store, "p")
        for number, (field, call) in enumerate(cases):
            with pytest.raises(Invalid) as it:
                await call()
            assert it.value.field.startswith(field), (number, field, it.value.field)
        assert await seen(store, "p") == before
        await goes_on(store)


def calls_on_blank(store: Store) -> list[Callable[[], Awaitable[object]]]:
    """Every call that names a process, with a blank name; a lease is named by its own field."""
    lease = None
    named = calls_on(store, " ", lease)
    left_out = {"renew", "release", "append leased", "end leased"}
    more: list[Callable[[], Awaitable[object]]] = [
        lambda: store.processes.get(" "),
        lambda: store.processes.lease(""),
        lambda: store.processes.granted(here(), ""),
        lambda: store.processes.revoke(here(), ""),
    ]
    return [call for name, call in named.items() if name not in left_out] + more
