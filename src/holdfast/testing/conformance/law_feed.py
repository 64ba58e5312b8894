"""The feed of changes, and letting go: how somebody follows all processes, and what is pruned.

The feed holds each process once, where it changed last. A reader keeps a cursor and asks for what
came after it; however many write at the same time, no change slips behind a cursor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.contract.errors import HoldfastError, Invalid, ProcessPruned
from holdfast.contract.processes import (
    Change,
    ExternalRef,
    NewEvent,
    NewGrant,
    NewProcess,
    Process,
    ProcessFilter,
    Wait,
)
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import Kit
from holdfast.testing.conformance.kit_processes import (
    HOUR_MS,
    begin,
    denied,
    here,
    listed,
    log,
    record,
    seen,
    step,
    stop,
    types,
)


class Reader:
    """Somebody who follows the feed, a few changes at a time."""

    def __init__(self, store: Store, *, limit: int = 2) -> None:
        self._store = store
        self._limit = limit
        self._cursor: str | None = None
        self.known: dict[str, Process | None] = {}

    async def read(self) -> list[str]:
        """All that is there after the cursor; each change is what the process has become."""
        found: list[str] = []
        for _ in range(1000):
            page = await self._store.processes.changes(after=self._cursor, limit=self._limit)
            self._cursor = page.next
            for change in page.items:
                self._note(change)
                found.append(change.process)
            if not page.more:
                return found
        raise AssertionError("the feed does not end")

    def _note(self, change: Change) -> None:
        before = self.known.get(change.process)
        if before is not None and change.record is not None:
            assert change.record.sequence >= before.sequence
        self.known[change.process] = change.record


async def far(store: Store, process: str) -> int:
    """A time by which the process has ended for long."""
    return (await record(store, process)).updated_at_ms + HOUR_MS


async def test_law_193_the_feed_holds_each_process_where_it_changed_last(kit: Kit) -> None:
    """The feed has each process once, as it is now, where it changed last; after a cursor it has
    what has changed since, and the cursor of an empty page goes on from there. (193)"""
    async with kit.open() as store, kit.open() as other:
        reader = Reader(other)
        assert await reader.read() == []
        for process in ("c", "a", "b"):
            await begin(store, process)
        await begin(store, "d")
        assert sorted(await reader.read()) == ["a", "b", "c", "d"]
        assert await reader.read() == []
        await step(store, "a")
        await step(store, "c")
        await step(store, "a")
        assert sorted(await reader.read()) == ["a", "c"]
        assert reader.known == {process: await record(store, process) for process in "abcd"}
        assert await reader.read() == []
        ended = await stop(store, "b")
        assert await reader.read() == ["b"]
        assert reader.known["b"] == ended
        late = Reader(store, limit=100)
        found = await late.read()
        assert (sorted(found[1:3]), found[0], found[-1]) == (["a", "c"], "d", "b")
        page = await store.processes.changes(limit=2)
        assert (len(page.items), page.more) == (2, True)
        again = await store.processes.changes(after=page.next, limit=2)
        assert (len(again.items), again.more) == (2, False)
        with pytest.raises(Invalid):
            await store.processes.changes(after="no cursor")


async def test_law_y10_every_event_is_a_change(kit: Kit) -> None:
    """All that changes the record of a process is in the feed; what is refused, sent again, or
    beside the record is not. (y10)"""
    async with kit.open() as store:
        reader = Reader(store)
        await begin(store)
        assert await reader.read() == ["p"]
        p = store.processes
        changing = (
            lambda: p.append("p", NewEvent(type="step", key="k")),
            lambda: p.claim("p", "one", ttl_ms=0),
            lambda: p.suspend("p", Wait(until_ms=1)),
            lambda: p.resume("p"),
            lambda: p.set_external("p", ExternalRef(backend="b", id="1")),
            lambda: p.request_cancel("p"),
            lambda: p.end("p", authority="operator"),
        )
        for change in changing:
            await change()
            assert await reader.read() == ["p"]
            assert reader.known["p"] == await record(store)
        await p.append("p", NewEvent(type="step", key="k"))
        await p.end("p", authority="operator")
        await p.grant(here(), "p")
        await begin(store, "q", parent="p")
        with pytest.raises(HoldfastError):
            await p.append("p", NewEvent(type="undeclared"))
        assert await reader.read() == ["q"]
        await stop(store, "q")
        assert sorted(await reader.read()) == ["p", "q"]
        assert reader.known["p"] == await record(store)


async def test_law_y11_no_writer_slips_behind_a_cursor(kit: Kit) -> None:
    """While many handles write at the same time, a reader that goes on from its cursor learns of
    every change: in the end it knows of each process what its record is. (y11)"""
    async with kit.open() as one, kit.open() as two, kit.open() as three, kit.open() as fourth:
        names = [f"p{number}" for number in range(6)]
        for name in names[:3]:
            await begin(one, name)

        async def write(store: Store, place: int) -> None:
            for number in range(8):
                mine = names[(number + place) % 3]
                await step(store, mine, [place, number])
                if number == 4:
                    await begin(store, names[3 + place])
                await step(store, names[3 + place] if number > 4 else mine)

        writers = [
            asyncio.create_task(write(store, place))
            for place, store in enumerate((one, two, three))
        ]
        readers = [Reader(fourth, limit=1), Reader(fourth, limit=3)]
        while not all(writer.done() for writer in writers):
            for reader in readers:
                await reader.read()
        for writer in writers:
            await writer
        for reader in readers:
            await reader.read()
            assert reader.known == {name: await record(one, name) for name in names}
            assert await reader.read() == []
        assert sum([len(await log(one, name)) for name in names]) == 48


async def test_law_y12_a_feed_is_of_one_tenant(kit: Kit) -> None:
    """The feed holds the processes of one tenant; what others write is not in it. (y12)"""
    async with kit.open() as store, kit.open(kit.other_tenant()) as other:
        await begin(store)
        reader, stranger = Reader(store), Reader(other)
        await begin(other, "theirs")
        assert (await reader.read(), await stranger.read()) == (["p"], ["theirs"])
        await step(other, "theirs")
        assert await reader.read() == []


async def test_law_192_what_has_ended_is_let_go_of(kit: Kit) -> None:
    """A prune removes processes that ended before a time, with their events and grants, and reports
    them; it removes nothing that runs, and nothing that ended later. The feed says that they are
    gone. (192)"""
    async with kit.open() as store:
        reader = Reader(store)
        for process in ("a", "b", "c"):
            await begin(store, process, grants=[NewGrant(scope=here())])
        await step(store, "a")
        ended = await stop(store, "a")
        await store.processes.grant(here("s", "f"), "a")
        await reader.read()
        nothing = await store.processes.prune(ended_before_ms=ended.updated_at_ms)
        assert (nothing.processes, nothing.events, nothing.grants, nothing.more) == (
            (),
            0,
            0,
            False,
        )
        pruned = await store.processes.prune(ended_before_ms=ended.updated_at_ms + 1)
        assert (pruned.processes, pruned.events, pruned.grants) == (("a",), 2, 2)
        assert pruned.more is False
        assert await reader.read() == ["a"]
        assert reader.known["a"] is None
        assert await store.processes.get("a") is None
        assert await store.processes.lease("a") is None
        assert await store.processes.granted(here(), "a") is None
        granted = await store.processes.grants(here())
        assert [entry.process.process for entry in granted.items] == ["b", "c"]
        every = ProcessFilter(states=["running", "completed"])
        assert await listed(lambda a: store.processes.list(which=every, after=a)) == ["b", "c"]
        again = await store.processes.prune(ended_before_ms=ended.updated_at_ms + HOUR_MS)
        assert again.processes == ()
        assert (await record(store, "b")).state == "running"


async def test_law_y13_a_pruned_id_is_never_used_again(kit: Kit) -> None:
    """What is asked of a pruned process is refused with ProcessPruned, which names it; so is a
    registration, the same or another. (y13)"""
    async with kit.open() as store:
        await begin(store)
        lease = await store.processes.claim("p", "one")
        await stop(store)
        await store.processes.prune(ended_before_ms=await far(store, "p"))
        p = store.processes
        calls: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: p.append("p", NewEvent(type="step")),
            lambda: p.append("p", NewEvent(type="step"), lease=lease),
            lambda: p.signal("p", "go"),
            lambda: p.request_cancel("p"),
            lambda: p.end("p", authority="operator"),
            lambda: p.abandon("p", reason="gone", authority="operator"),
            lambda: p.suspend("p", Wait(until_ms=1)),
            lambda: p.resume("p"),
            lambda: p.set_external("p", ExternalRef(backend="b", id="1")),
            lambda: p.events("p"),
            lambda: p.recent("p"),
            lambda: p.count("p", "step"),
            lambda: p.wakes("p"),
            lambda: p.ack("p", 1),
            lambda: p.claim("p", "two"),
            lambda: p.renew(lease),
            lambda: p.grant(here(), "p"),
            lambda: p.register(NewProcess(process="p")),
            lambda: p.register(NewProcess(process="p", kind="other")),
        )
        for number, call in enumerate(calls):
            with pytest.raises(HoldfastError) as it:
                await call()
            assert type(it.value) is ProcessPruned, number
            assert it.value.process == "p"
            assert (it.value.code, it.value.retryable) == ("process-pruned", False)
        assert await p.get("p") is None
        assert await p.revoke(here(), "p") is False
        assert (await p.due()).items == ()
        async with denied(store, ProcessPruned):
            await begin(store)


async def test_law_y14_a_prune_goes_step_by_step(kit: Kit) -> None:
    """A prune takes so many at a time, those that ended first, and says whether there are
    more. (y14)"""
    async with kit.open() as store:
        for number in range(5):
            process = f"p{number}"
            await begin(store, process)
            before = (await stop(store, process)).updated_at_ms
            for _ in range(1000):
                # The next one ends at a later time.
                probe = await store.processes.append("p0", NewEvent(type="step"))
                if number == 0 or probe.event.at_ms > before:
                    break
        prune = store.processes.prune
        until = await far(store, "p4")
        first = await prune(ended_before_ms=until, limit=2)
        assert (len(first.processes), first.more) == (2, True)
        second = await prune(ended_before_ms=until, limit=2)
        third = await prune(ended_before_ms=until, limit=2)
        assert (len(second.processes), second.more) == (2, True)
        assert (len(third.processes), third.more) == (1, False)
        order = [*first.processes, *second.processes, *third.processes]
        assert sorted(order) == [f"p{number}" for number in range(5)]
        assert [name for name in order if name != "p0"] == ["p1", "p2", "p3", "p4"]


async def test_law_y15_a_prune_leaves_the_others_as_they_are(kit: Kit) -> None:
    """A parent, a child, and the work of a wake stay when a process is pruned; a child that ends
    later tells nobody. (y15)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await begin(store, "parent")
        await begin(store, "p", parent="parent", wake=here())
        await begin(store, "child", parent="p")
        told = await store.processes.append("p", NewEvent(type="ping", payload="x"))
        await stop(store, "p")
        before = [await seen(store, "parent"), await seen(store, "child")]
        work = await store.queue.get("s", str(told.event.work))
        await store.processes.prune(ended_before_ms=await far(store, "p"))
        assert [await seen(store, "parent"), await seen(store, "child")] == before
        assert await store.queue.get("s", str(told.event.work)) == work
        assert (await stop(store, "child")).state == "completed"
        assert await types(store, "parent") == ["process.child-ended"]
        assert await store.processes.get("p") is None


async def test_law_y16_a_prune_is_of_one_tenant(kit: Kit) -> None:
    """A prune lets go of processes of its own tenant only. (y16)"""
    async with kit.open() as store, kit.open(kit.other_tenant()) as other:
        for handle in (store, other):
            await begin(handle)
            await stop(handle)
        until = await far(store, "p")
        assert (await other.processes.prune(ended_before_ms=until)).processes == ("p",)
        assert (await record(store)).state == "completed"
        assert await types(store, "p") == ["process.completed"]
