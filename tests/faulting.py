"""What the fault tests share: an operation is failed everywhere, and what it left is looked at.

Each failure has a tenant of its own, prepared in the same way, so that its rows can be compared
with those of a tenant in which the same operation was disturbed by nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import pytest

import holdfast
from holdfast.contract.errors import OutcomeUnknown, StoreUnreachable, Unavailable
from holdfast.contract.stores import Store
from holdfast.stores import Store as AsyncStore
from holdfast.stores_blocking import BlockingStore
from holdfast.testing.async_over import AsyncOver
from holdfast.testing.faults import Place, Plan, wrap

if TYPE_CHECKING:
    from tests.conftest import Database, Rows

Kept = dict[str, Any]
Prepare = Callable[[Store, Kept], Awaitable[None]]
Act = Callable[[Store, Kept], Awaitable[Any]]

# What cannot be equal in two runs: times, secrets, and what is made of the tenant.
UNEQUAL = {
    "active_minute",
    "day",
    "decided_ms",
    "identity",
    "keep_until_ms",
    "lane_token",
    "tenant",
}
MADE = re.compile(r"made-\d+")


def comparable(rows: Rows) -> Rows:
    """The rows, less what cannot be equal in two runs, and less the views, which say nothing that
    their tables do not, but when."""
    return {
        table: sorted(
            ({name: masked(table, name, value) for name, value in row.items()} for row in found),
            key=repr,
        )
        for table, found in rows.items()
        if not table.endswith("_seen")
    }


def masked(table: str, name: str, value: Any) -> Any:
    """The value, less what cannot be equal; what is there stays told from what is not."""
    if value is None:
        return None
    if name == "intent" and table == "receipt":
        # Its seal covers the tenant, and every test of an operation has a tenant of its own.
        return bytes(value)[:32]
    sealed = name == "intent" or (name == "digest" and table not in ("blob", "component"))
    timed = name.endswith("_at_ms") or name == "at_ms"
    if sealed or timed or name in UNEQUAL:
        return "masked"
    return MADE.sub("made", value) if isinstance(value, str) else value


class Bench:
    """One handle, seen as many tenants, with a plan in between."""

    def __init__(self, store: AsyncStore | BlockingStore) -> None:
        self.plan = Plan()
        self._store = store

    def tenant(self, name: str, **view: Any) -> Store:
        """The handle as that of a tenant; `view` is what else is other about it."""
        if isinstance(self._store, AsyncStore):
            seen = dataclasses.replace(self._store._view, tenant=name, **view)
            return wrap(AsyncStore(seen), self.plan)
        blocking = dataclasses.replace(self._store._view, tenant=name, **view)
        return cast(Store, AsyncOver(wrap(BlockingStore(blocking), self.plan)))


@contextlib.asynccontextmanager
async def opened(database: Database, colour: str) -> AsyncIterator[Bench]:
    """A handle of a colour, to be disturbed."""
    if colour == "async":
        async with database.open() as store:
            yield Bench(store)
    else:
        blocking = await asyncio.to_thread(holdfast.open_sync, database.url)
        try:
            yield Bench(blocking)
        finally:
            await asyncio.to_thread(blocking.close)


def places_of(steps: list[str]) -> list[tuple[Place, int]]:
    """Every place where an operation of these steps can fail."""
    places: list[tuple[Place, int]] = [("answer", 0)]
    for step in range(1, len(steps) + 1):
        places += [("before", step), ("after", step)]
    return places


@dataclasses.dataclass(frozen=True, kw_only=True)
class Struck:
    """An operation that has failed: where, what was there, what it left, and what it should come
    to. `done` says that all of it was done nevertheless."""

    at: str
    store: Store
    kept: Kept
    before: Rows
    found: Rows
    undisturbed: Rows
    rows: Callable[[], Awaitable[Rows]]

    @property
    def done(self) -> bool:
        return self.found == self.undisturbed and self.found != self.before


class Ids:
    """Ids that are the same in every run while it is prepared; those made later show as such."""

    def __init__(self) -> None:
        self._number = itertools.count(1)
        self.prefix = "set"

    def __call__(self) -> str:
        return f"{self.prefix}-{next(self._number)}"


async def strike_everywhere(
    database: Database,
    colour: str,
    prepare: Prepare,
    act: Act,
    check: Callable[[Struck], Awaitable[None]],
    *,
    in_parts: bool = False,
) -> int:
    """Fail an operation at each of its places, see that all of it or nothing is left, and hand what
    is left to the check. On a server an operation `in_parts` leaves some of them, each of them
    whole. Returns how often it was failed."""
    async with opened(database, colour) as bench:

        async def prepared(tenant: str) -> tuple[Store, Kept, Rows]:
            ids, kept = Ids(), Kept()
            store = bench.tenant(tenant, new_id=ids)
            await prepare(store, kept)
            ids.prefix = "made"
            return store, kept, comparable(await database.rows(tenant))

        store, kept, _ = await prepared("clean")
        await act(store, kept)
        steps = list(bench.plan.steps)
        undisturbed = comparable(await database.rows("clean"))
        places = places_of(steps)
        names = [f"{place}{step}" for place, step in places]
        all_prepared = await asyncio.gather(*(prepared(name) for name in names))
        for (place, step), tenant, ready in zip(places, names, all_prepared, strict=True):
            at = f"{place} step {step} of {steps}"
            store, kept, before = ready
            bench.plan.arm(place, step=step)
            error: type[Unavailable] = StoreUnreachable if place == "before" else OutcomeUnknown
            with pytest.raises(error) as caught:
                await act(store, kept)
            assert type(caught.value) is error
            assert bench.plan.struck()
            found = comparable(await database.rows(tenant))
            if place == "answer":
                assert found == undisturbed, at
            elif database.kind == "sqlite" or (place, step) == ("before", 1):
                assert found == before, at
            elif not in_parts:
                assert found in (before, undisturbed), f"half stored: {at}"

            async def rows(tenant: str = tenant) -> Rows:
                return comparable(await database.rows(tenant))

            struck = Struck(
                at=at, store=store, kept=kept, before=before, found=found,
                undisturbed=undisturbed, rows=rows,
            )  # fmt: skip
            await check(struck)
        return len(places)
