"""What triggers leave behind in the tables, on both databases.

What is refused leaves nothing, not even a source that nobody listens to; what goes with a session
or is pruned leaves no row that names it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    HoldfastError,
    NewOccurrence,
    NewSubscription,
    OccurrenceConflict,
    OccurrenceUnknown,
    OperationConflict,
    Scope,
    SessionDeleted,
    Store,
    SubscriptionMoved,
    SubscriptionUnknown,
)

if TYPE_CHECKING:
    from tests.conftest import Database

OWNER = Scope(session="s")


def rule(key: str, source: str = "in", **how: Any) -> NewSubscription:
    return NewSubscription(source_type="mail", source_key=source, key=key, **how)


def mail(key: str, **how: Any) -> NewOccurrence:
    return NewOccurrence(source_type="mail", source_key="in", key=key, **how)


def refusals(store: Store) -> list[tuple[type[HoldfastError], Callable[[], Awaitable[object]]]]:
    """Calls that are refused, most of which name a source that has no rule."""
    t = store.triggers
    gone = Scope(session="gone")
    return [
        (SubscriptionMoved, lambda: t.register(rule("k", "new"))),
        (SubscriptionMoved, lambda: t.register(rule("k", "new"), expected=7, operation="p")),
        (SubscriptionMoved, lambda: t.register(rule("l", "new"), expected=7)),
        (SubscriptionMoved, lambda: t.register(rule("old", "new"), expected=7)),
        (SessionDeleted, lambda: t.register(rule("k", "new", owner=gone), operation="p")),
        (OperationConflict, lambda: t.register(rule("l", "new"), operation="o")),
        (OperationConflict, lambda: t.register(rule("k", "new"), expected=1, operation="o")),
        (OperationConflict, lambda: t.disable("k", operation="o")),
        (SubscriptionMoved, lambda: t.disable("k", expected=7, operation="p")),
        (SubscriptionUnknown, lambda: t.delete("l", operation="p")),
        (SubscriptionUnknown, lambda: t.enable("old", operation="p")),
        (OccurrenceConflict, lambda: t.ingest(mail("m", payload="other"))),
        (OccurrenceConflict, lambda: t.record(mail("m", source="other"))),
        (OccurrenceUnknown, lambda: t.reserve("occurrence:none")),
        (OccurrenceUnknown, lambda: t.start("occurrence:none")),
    ]


async def test_what_is_refused_leaves_no_row(database: Database) -> None:
    """All rows of the tenant are what they were, after every refusal."""
    async with database.open() as store:
        await store.sessions.create("gone")
        await store.sessions.delete("gone")
        await store.triggers.register(rule("k"), operation="o")
        await store.triggers.register(rule("old"))
        await store.triggers.delete("old")
        await store.triggers.ingest(mail("m"))
        before = await database.rows("a")
        for number, (error, call) in enumerate(refusals(store)):
            with pytest.raises(HoldfastError) as it:
                await call()
            assert type(it.value) is error, number
            assert await database.rows("a") == before, number


async def test_what_is_pruned_leaves_no_row(database: Database) -> None:
    """An occurrence goes with all its deliveries."""
    async with database.open() as store:
        await store.triggers.register(rule("k"))
        before = await database.rows("a")
        answer = await store.triggers.ingest(mail("m"))
        process = answer.deliveries[0].process
        await store.processes.end(process, authority="operator")
        far = answer.occurrence.at_ms + 10**9
        assert (await store.triggers.prune(before_ms=far)).deliveries == 1
        after = await database.rows("a")
        for table in ("trigger_occurrence", "trigger_delivery"):
            assert table not in after
        for table in ("trigger_subscription", "trigger_source"):
            assert after[table] == before[table]


async def test_what_goes_with_a_session_leaves_no_row(database: Database) -> None:
    """Its rules, those that were deleted before too, their receipts and what was reserved for them
    are gone; the version of their source has moved on."""
    async with database.open() as store:
        await store.sessions.create("s")
        await store.triggers.register(rule("host"))
        await store.triggers.register(rule("k", owner=OWNER), operation="o")
        await store.triggers.register(rule("old", owner=OWNER))
        await store.triggers.delete("old", owner=OWNER, operation="p")
        name = (await store.triggers.record(mail("m"))).occurrence.occurrence
        assert len(await store.triggers.reserve(name)) == 2
        before = await database.rows("a")
        assert (await store.sessions.delete("s")).subscriptions == 1
        after = await database.rows("a")
        assert [row["key"] for row in after["trigger_subscription"]] == ["host"]
        assert [row["key"] for row in after["trigger_delivery"]] == ["host"]
        assert "trigger_receipt" not in after
        versions = [rows["trigger_source"][0]["version"] for rows in (before, after)]
        assert versions[1] > versions[0]
