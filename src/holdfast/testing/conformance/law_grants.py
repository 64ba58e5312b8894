"""Grants: who may see a process.

A scope is a session, or one frame of it, and a grant is for exactly one scope. Grants are beside
the process: they change nothing of it, and it lives on without any.
"""

from __future__ import annotations

import pytest

from holdfast.contract.errors import (
    GrantUnknown,
    Invalid,
    ProcessUnknown,
    SessionDeleted,
)
from holdfast.contract.processes import Grant, NewEvent, NewGrant, NewProcess, Scope
from holdfast.contract.queue import NewWork
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import Kit, all_pages
from holdfast.testing.conformance.kit_processes import (
    EVERYTHING,
    NEVER,
    begin,
    denied,
    goes_on,
    here,
    log,
    record,
    seen,
    stop,
)


async def granted(store: Store, scope: Scope, *, live: bool = False) -> list[str]:
    """The processes that a scope may see."""
    found = await all_pages(
        lambda after: store.processes.grants(scope, live=live, after=after, limit=2)
    )
    for entry in found:
        assert entry.grant.scope == scope
        assert entry.grant.process == entry.process.process
        assert entry.process == await record(store, entry.process.process)
    return [entry.process.process for entry in found]


async def scopes(store: Store, process: str) -> list[tuple[str, str | None]]:
    """Who may see a process."""
    found = await all_pages(lambda after: store.processes.grants_of(process, after=after, limit=2))
    return [(grant.scope.session, grant.scope.frame) for grant in found]


async def test_law_148_a_grant_is_given_and_taken_back(kit: Kit) -> None:
    """A scope has no grant, then has the one it is given, on any handle, and after it was taken
    back none; to take back what is not there answers False. (148)"""
    async with kit.open() as store, kit.open() as other:
        made = await begin(store)
        assert await store.processes.granted(here(), "p") is None
        grant = await store.processes.grant(here(), "p", kind="tool", label="Mine")
        assert grant == Grant(
            scope=here(),
            process="p",
            kind="tool",
            label="Mine",
            granted_at_ms=grant.granted_at_ms,
        )
        assert await other.processes.granted(here(), "p") == grant
        assert await granted(other, here()) == ["p"]
        assert (await other.processes.grants(here())).items[0].grant == grant
        assert (await other.processes.grants_of("p")).items == (grant,)
        assert await other.processes.revoke(here(), "p") is True
        assert await store.processes.revoke(here(), "p") is False
        assert await store.processes.granted(here(), "p") is None
        assert await granted(store, here()) == []
        assert await record(store) == made


async def test_law_149_a_frame_is_a_scope_of_its_own(kit: Kit) -> None:
    """The grants of a session and of each of its frames are independent. (149)"""
    async with kit.open() as store:
        await begin(store)
        for scope in (here("s"), here("s", "f"), here("s", "g")):
            await store.processes.grant(scope, "p")
        assert await store.processes.revoke(here("s", "f"), "p") is True
        assert await store.processes.granted(here("s", "f"), "p") is None
        assert await scopes(store, "p") == [("s", None), ("s", "g")]
        assert await store.processes.revoke(here("s"), "p") is True
        assert await scopes(store, "p") == [("s", "g")]
        assert (await granted(store, here("s")), await granted(store, here("s", "g"))) == (
            [],
            ["p"],
        )


async def test_law_150_granting_again_changes_the_name(kit: Kit) -> None:
    """To grant again replaces kind and label. A grant for an unknown process, or to a deleted
    session, is refused by name; an unknown session may be granted. (150)"""
    async with kit.open() as store:
        await store.sessions.create("gone")
        await store.sessions.delete("gone")
        await begin(store)
        await store.processes.grant(here(), "p", kind="tool", label="Mine")
        again = await store.processes.grant(here(), "p", label="Ours")
        assert (again.kind, again.label) == ("", "Ours")
        assert (await seen(store, "p")).grants == (again,)
        async with denied(store, ProcessUnknown, "p", NEVER) as unknown:
            await store.processes.grant(here(), NEVER)
        assert unknown.value.process == NEVER
        for scope in (here("gone"), here("gone", "f")):
            async with denied(store, SessionDeleted) as deleted:
                await store.processes.grant(scope, "p")
            assert deleted.value.session == "gone"
        await store.processes.grant(here("never-created"), "p")
        assert await store.sessions.get("never-created") is None
        assert await scopes(store, "p") == [("never-created", None), ("s", None)]


async def test_law_151_grants_are_moved_all_or_none(kit: Kit) -> None:
    """A transfer moves grants from one scope to another with what they are called, over those that
    are there, and appends no event. When one of them is not granted to the source, it is refused
    with GrantUnknown, and nothing moves. (151)"""
    async with kit.open() as store:
        for process in ("a", "b", "c"):
            await begin(store, process)
        source, target = here("s", "f"), here("t")
        for process in ("a", "b"):
            await store.processes.grant(source, process, kind="k", label=process)
        await store.processes.grant(target, "b", label="old")
        for wrong in (["a", "c"], ["a", NEVER], ["c"]):
            async with denied(store, GrantUnknown, "a", "b", "c") as it:
                await store.processes.transfer(source, target, wrong)
            assert it.value.process == wrong[-1]
        async with denied(store, Invalid, "a", "b") as twice:
            await store.processes.transfer(source, target, ["a", "b", "a"])
        assert twice.value.field.startswith("processes")
        assert await store.processes.transfer(source, target, ["b", "a"]) == 2
        assert (await granted(store, source), await granted(store, target)) == ([], ["a", "b"])
        for process in ("a", "b"):
            moved = await store.processes.granted(target, process)
            assert moved is not None
            assert (moved.kind, moved.label) == ("k", process)
            assert await log(store, process) == ()
        assert await store.processes.transfer(source, target, []) == 0
        async with denied(store, GrantUnknown, "a", "b"):
            await store.processes.transfer(source, target, ["a"])


async def test_law_152_many_scopes_may_see_a_process(kit: Kit) -> None:
    """A process may be granted to many scopes; they are listed in the order of their sessions, and
    of the frames in each, the session itself first. (152)"""
    async with kit.open() as store:
        await begin(store)
        for session in ("t", "s", "S"):
            for frame in ("b", None, "a"):
                await store.processes.grant(here(session, frame), "p")
        assert await scopes(store, "p") == [
            (session, frame) for session in ("S", "s", "t") for frame in (None, "a", "b")
        ]
        with pytest.raises(ProcessUnknown):
            await store.processes.grants_of(NEVER)


async def test_law_153_a_process_needs_no_grant(kit: Kit) -> None:
    """A process may be there without any grant, and goes on without. (153)"""
    async with kit.open() as store:
        await begin(store)
        assert (await seen(store, "p")).grants == ()
        await store.processes.grant(here(), "p")
        await store.processes.revoke(here(), "p")
        await goes_on(store)


async def test_law_154_the_grants_of_what_runs(kit: Kit) -> None:
    """The grants of a scope are listed with their processes in the order of their ids; with `live`
    those that have ended are left out. An unknown scope has none. (154)"""
    async with kit.open() as store:
        for process in ("d", "a", "c", "b", "B"):
            await begin(store, process, grants=[NewGrant(scope=here())])
        await stop(store, "c")
        await store.processes.abandon("a", reason="gone", authority="operator")
        assert await granted(store, here()) == ["B", "a", "b", "c", "d"]
        assert await granted(store, here(), live=True) == ["B", "b", "d"]
        assert await granted(store, here("never")) == []
        assert await granted(store, here("s", "f")) == []


async def deleted_with_grants(store: Store) -> None:
    """Processes "a" to "f" with grants of session "s" in many ways, and others'."""
    for session in ("s", "t"):
        await store.sessions.create(session)
    for process in ("a", "b", "c", "d", "e", "f"):
        await begin(store, process, wake=here("s", "f") if process in "ae" else None)
    for scope, process in (
        (here("s"), "b"),
        (here("s", "f"), "b"),
        (here("s", "f"), "a"),
        (here("s"), "c"),
        (here("t"), "c"),
        (here("s"), "d"),
        (here("t"), "e"),
        (here("s"), "f"),
        (here("t"), "f"),
    ):
        await store.processes.grant(scope, process)
    await stop(store, "d")
    await stop(store, "f")


async def test_law_156_a_deleted_session_leaves_its_processes(kit: Kit) -> None:
    """Deleting a session takes back the grants of all its scopes, and reports how many, which
    running processes have no grant left, and which have others. No process ends; those that woke
    the session wake nobody from then on, and the grants of others stay. (156)"""
    async with kit.open() as store:
        await deleted_with_grants(store)
        before = {process: await seen(store, process) for process in "abcdef"}
        ping = NewEvent(type="ping", payload="x")
        await store.processes.append("a", ping)
        await store.processes.ack("a", 1)
        await store.queue.enqueue(NewWork(session="s", payloads=["more"]))
        gone = await store.sessions.delete("s")
        assert (gone.deleted, gone.grants, gone.work) == (True, 6, 2)
        assert (gone.orphaned, gone.preserved) == (("a", "b"), ("c",))
        assert [await scopes(store, process) for process in "abcdef"] == [
            *([], [], [("t", None)]),
            *([], [("t", None)], [("t", None)]),
        ]
        for process in "bcdf":
            assert await record(store, process) == before[process].record
        for process in "ae":
            found = await record(store, process)
            assert (found.wake, found.state) == (None, "running")
            assert (await store.processes.append(process, ping)).wake == "no-target"
        assert (await log(store, "a"))[0].acked_at_ms is not None


async def test_law_157_a_second_delete_reports_nothing(kit: Kit) -> None:
    """A session that is deleted again, or was never there, reports no grants and no
    processes. (157)"""
    async with kit.open() as store:
        await deleted_with_grants(store)
        await store.sessions.delete("s")
        after = {process: await seen(store, process) for process in "abcdef"}
        again = await store.sessions.delete("s")
        assert (again.deleted, again.grants, again.orphaned, again.preserved) == (False, 0, (), ())
        never = await store.sessions.delete("never")
        assert (never.deleted, never.grants, never.orphaned, never.preserved) == (False, 0, (), ())
        assert {process: await seen(store, process) for process in "abcdef"} == after


async def test_law_y01_a_registration_is_the_same_after_its_target_is_gone(kit: Kit) -> None:
    """When the session that a process wakes is deleted, before or after it was registered, the
    same registration is still the same process, and wakes nobody. (y01)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        first = await begin(store, wake=here())
        await store.sessions.delete("s")
        again = await store.processes.register(
            NewProcess(process="p", events=EVERYTHING, wake=here())
        )
        found = await record(store)
        assert (again.created, again.process) == (False, found)
        assert (found.wake, found.identity) == (None, first.identity)
        assert (found.sequence, found.updated_at_ms) == (0, first.updated_at_ms)
        late = await begin(store, "late", wake=here("s", "f"))
        assert (late.wake, late) == (None, await record(store, "late"))


async def test_law_y02_grants_of_two_tenants_are_apart(kit: Kit) -> None:
    """The same scope and the same id in two tenants are two grants; taking one back, moving it, or
    deleting the session leaves the other. (y02)"""
    async with kit.open() as store, kit.open(kit.other_tenant()) as other:
        for handle in (store, other):
            await handle.sessions.create("s")
            await begin(handle, grants=[NewGrant(scope=here(), label=handle.tenant)])
        assert await other.processes.transfer(here(), here("t"), ["p"]) == 1
        assert await granted(store, here()) == ["p"]
        assert await other.processes.revoke(here("t"), "p") is True
        assert (await other.sessions.delete("s")).grants == 0
        kept = await store.processes.granted(here(), "p")
        assert kept is not None
        assert kept.label == store.tenant
        gone = await store.sessions.delete("s")
        assert (gone.grants, gone.orphaned) == (1, ("p",))
