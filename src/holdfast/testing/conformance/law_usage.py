"""Usage: what the turns of a store have cost.

Usage is committed with the turn that caused it, entry by entry, so it is counted once however often
the turn is tried. The five token classes are disjoint; cost is in millionths of a currency.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast.contract.errors import CounterOverflow, HeadMoved, Invalid, TurnConflict
from holdfast.contract.records import Page, Turn, Usage, UsageRow, UsageTotal
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import Kit, all_pages, grow, picture, refused, works

DAY_MS = 86_400_000
LARGEST = 9_007_199_254_740_991  # 2**53 - 1
FULL = 9_223_372_036_854_775_807  # 2**63 - 1


async def spend(store: Store, session: str, turn: str, *usage: Usage) -> None:
    await store.sessions.create(session)
    await store.sessions.commit(Turn(session=session, turn=turn, usage=usage))


def by_key(totals: tuple[UsageTotal, ...]) -> dict[tuple[str, str], tuple[int, int, int]]:
    """Entries, input and output of each source and model."""
    return {
        (total.usage.source, total.usage.model): (
            total.entries,
            total.usage.input,
            total.usage.output,
        )
        for total in totals
    }


async def test_law_020_usage_is_read_back_entry_by_entry(kit: Kit) -> None:
    """Each usage entry of a turn is read back as it was committed, with its turn, its position and
    its time, in the order of commit; the totals are the sums by source and model. (20)"""
    async with kit.open() as store, kit.open() as other:
        big = Usage(
            model="large",
            source="turn",
            input=1,
            output=2,
            cache_read=3,
            cache_write=4,
            reasoning=5,
            cost_micros=6,
            currency="EUR",
        )
        small = Usage(model="small", source="tool", input=10, output=20)
        await spend(store, "s", "t1", big, small)
        await spend(store, "s", "t2", small)
        for handle in (store, other):
            page = await handle.usage.rows("s")
            assert page.next is None
            rows = [(row.session, row.turn, row.ordinal, row.usage) for row in page.items]
            assert rows == [("s", "t1", 0, big), ("s", "t1", 1, small), ("s", "t2", 0, small)]
            assert page.items[0].at_ms == page.items[1].at_ms <= page.items[2].at_ms
            totals = await handle.usage.totals()
            assert by_key(totals) == {("turn", "large"): (1, 1, 2), ("tool", "small"): (2, 20, 40)}
            (large,) = [total for total in totals if total.usage.model == "large"]
            assert large.usage == big
            assert (large.session, large.day) == (None, None)


async def test_law_053_every_class_of_usage_is_kept(kit: Kit) -> None:
    """An entry that has cached tokens only, or reasoning only, or cost only, is kept and counted. A
    total that would leave the range of 64 bits is refused with CounterOverflow, never wrapped, and
    nothing changes. (53)"""
    async with kit.open() as store:
        await spend(store, "s", "t1", Usage(model="a", cache_read=7))
        await spend(store, "s", "t2", Usage(model="b", cache_write=7))
        await spend(store, "s", "t3", Usage(model="c", reasoning=7))
        await spend(store, "s", "t4", Usage(model="d", cost_micros=7))
        assert len((await store.usage.rows("s")).items) == 4
        totals = {total.usage.model: total.usage for total in await store.usage.totals()}
        assert totals == {
            "a": Usage(model="a", cache_read=7),
            "b": Usage(model="b", cache_write=7),
            "c": Usage(model="c", reasoning=7),
            "d": Usage(model="d", cost_micros=7),
        }
        largest = Usage(model="m", input=LARGEST)
        await spend(store, "full", "t1", *[largest] * 1024)
        async with refused(store, "full", CounterOverflow, turn="t2") as it:
            await spend(store, "full", "t2", Usage(model="m", output=1), largest)
        assert it.value.code == "counter-overflow"
        assert "full" in it.value.key
        async with refused(store, "full", CounterOverflow, turn="t2"):
            await spend(store, "full", "t2", Usage(model="m", input=1024))
        await spend(store, "full", "t2", Usage(model="m", input=1023))
        (total,) = await store.usage.totals(session="full")
        assert (total.usage.input, total.usage.output, total.entries) == (FULL, 0, 1025)
        await works(store, "full")


async def test_law_054_a_retry_never_counts_twice(kit: Kit) -> None:
    """A turn sent again adds no usage: entries are unique by session, turn and position. Equal
    entries within a turn, and in different turns, are counted each. (54)"""
    async with kit.open() as store, kit.open() as other:
        used = Usage(model="m", input=5, output=1)
        for handle in (store, other, store):
            await spend(handle, "s", "t1", used, used)
        await spend(store, "s", "t2", used)
        rows = (await store.usage.rows("s")).items
        assert [(row.turn, row.ordinal) for row in rows] == [("t1", 0), ("t1", 1), ("t2", 0)]
        assert by_key(await store.usage.totals()) == {("turn", "m"): (3, 15, 3)}
        async with refused(store, "s", TurnConflict, turn="t1"):
            await spend(store, "s", "t1", used)
        async with refused(store, "s", HeadMoved, turn="t3"):
            await store.sessions.commit(Turn(session="s", turn="t3", usage=[used], expected=0))
        assert by_key(await store.usage.totals()) == {("turn", "m"): (3, 15, 3)}


async def test_law_u01_totals_are_grouped_as_asked(kit: Kit) -> None:
    """Totals are sums grouped by any of session, source, model and day; the fields grouped by are
    filled, session and day are None otherwise. (u01)"""
    async with kit.open() as store:
        await spend(store, "one", "t1", Usage(model="m", input=1), Usage(model="n", input=2))
        await spend(store, "one", "t2", Usage(model="m", source="tool", input=4))
        await spend(store, "two", "t1", Usage(model="m", input=8, output=3))
        row = (await store.usage.rows("two")).items[0]
        (all_in_one,) = await store.usage.totals(by=())
        assert (all_in_one.entries, all_in_one.usage.input) == (4, 15)
        assert all_in_one.usage.output == 3
        assert (all_in_one.session, all_in_one.day) == (None, None)
        by_session = await store.usage.totals(by=("session",))
        seen = {total.session: (total.entries, total.usage.input) for total in by_session}
        assert seen == {"one": (3, 7), "two": (1, 8)}
        by_model = await store.usage.totals(by=("model",))
        models = {total.usage.model: total.usage.input for total in by_model}
        assert models == {"m": 13, "n": 2}
        by_source = await store.usage.totals(by=("source",))
        sources = {total.usage.source: total.usage.input for total in by_source}
        assert sources == {"turn": 11, "tool": 4}
        both = await store.usage.totals(by=("session", "model"))
        pairs = {(total.session, total.usage.model): total.usage.input for total in both}
        assert pairs == {("one", "m"): 5, ("one", "n"): 2, ("two", "m"): 8}
        (today,) = await store.usage.totals(session="two", by=("day",))
        assert (today.day, today.session, today.usage.input) == (row.at_ms // DAY_MS, None, 8)


async def test_law_u02_totals_are_narrowed_as_asked(kit: Kit) -> None:
    """Totals may be narrowed to one session and to a range of days; what nobody has spent is an
    empty answer. (u02)"""
    async with kit.open() as store:
        assert await store.usage.totals() == ()
        await spend(store, "one", "t1", Usage(model="m", input=1))
        await spend(store, "two", "t1", Usage(model="m", input=2))
        day = (await store.usage.rows("two")).items[0].at_ms // DAY_MS

        async def total(**narrow: Any) -> list[int]:
            return [found.usage.input for found in await store.usage.totals(**narrow)]

        assert await total(session="one") == [1]
        assert await total(session="two") == [2]
        assert await total(session="ghost") == []
        assert await total(session="two", since_day=day, until_day=day + 1) == [2]
        assert await total(session="two", since_day=day) == [2]
        assert await total(session="two", since_day=day + 1) == []
        assert await total(session="two", until_day=day - 1) == []


async def test_law_u03_currencies_are_never_added(kit: Kit) -> None:
    """Amounts of different currencies are never added to each other: each currency has a total of
    its own, however it is grouped. (u03)"""
    async with kit.open() as store:
        euro = Usage(model="m", input=1, cost_micros=100, currency="EUR")
        dollar = Usage(model="m", input=2, cost_micros=30, currency="USD")
        await spend(store, "s", "t1", euro, dollar, dollar)
        groups: tuple[Any, ...] = ((), ("model",), ("source", "model"), ("session",), ("day",))
        for group in groups:
            totals = await store.usage.totals(by=group)
            costs = {total.usage.currency: total.usage.cost_micros for total in totals}
            assert costs == {"EUR": 100, "USD": 60}, group
            assert sorted(total.usage.input for total in totals) == [1, 4]


async def test_law_u04_usage_is_paged(kit: Kit) -> None:
    """The entries of a session are paged in the order they were committed, within a turn and across
    turns, each once. (u04)"""
    async with kit.open() as store:
        for turn in ("t1", "t2", "t3"):
            entries = [Usage(model="m", input=number) for number in range(3)]
            await spend(store, "s", turn, *entries)
        wanted = [(turn, n, n) for turn in ("t1", "t2", "t3") for n in range(3)]
        for limit in (1, 2, 4, 9, 10):
            rows = await all_pages(partial(_page, store, limit))
            assert [(row.turn, row.ordinal, row.usage.input) for row in rows] == wanted
        first = await store.usage.rows("s", limit=4)
        assert len(first.items) == 4


async def _page(store: Store, limit: int, after: str | None) -> Page[UsageRow]:
    page = await store.usage.rows("s", after=after, limit=limit)
    assert len(page.items) <= limit
    return page


@pytest.mark.parametrize(
    "amount", ["input", "output", "cache_read", "cache_write", "reasoning", "cost_micros"]
)
async def test_law_u05_amounts_have_a_range(kit: Kit, amount: str) -> None:
    """An amount is a whole number from 0 to 2**53 - 1; another one is Invalid, which names the
    entry and the amount, and nothing changes. (u05)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        plain = Usage(model="m")
        wrong: tuple[Any, ...] = (-1, LARGEST + 1, 2**63, 2**64, 1.5, "1", None)
        for value in wrong:
            entry = msgspec.structs.replace(plain, **{amount: value})
            async with refused(store, "s", Invalid, turn="t") as it:
                await spend(store, "s", "t", plain, entry)
            assert it.value.field == f"usage[1].{amount}"
        for turn, value in (("t", LARGEST), ("u", 0)):
            await spend(store, "s", turn, msgspec.structs.replace(plain, **{amount: value}))
        rows = (await store.usage.rows("s")).items
        assert [getattr(row.usage, amount) for row in rows] == [LARGEST, 0]


async def test_law_u06_ill_formed_usage_is_refused(kit: Kit) -> None:
    """An ill-formed model or source is Invalid, which names it; so are groups that do not
    exist. (u06)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        for bad in ("", "a b", "\ud800"):
            async with refused(store, "s", Invalid, turn="t") as it:
                await spend(store, "s", "t", Usage(model=bad))
            assert it.value.field == "usage[0].model"
            async with refused(store, "s", Invalid, turn="t") as it:
                await spend(store, "s", "t", Usage(model="m"), Usage(model="m", source=bad))
            assert it.value.field == "usage[1].source"
        async with refused(store, "s", Invalid, turn="t") as it:
            await spend(store, "s", "t", Usage(model="m", currency="\x00"))
        assert it.value.field == "usage[0].currency"
        wrong: Any = ("colour",)
        async with refused(store, "s", Invalid) as it:
            await store.usage.totals(by=wrong)
        assert it.value.field.startswith("by")
        await works(store, "s")


async def test_law_u07_usage_goes_with_its_session(kit: Kit) -> None:
    """The usage of a deleted session is gone from rows and totals; that of others stays. (u07)"""
    async with kit.open() as store:
        await spend(store, "gone", "t1", Usage(model="m", input=1), Usage(model="m", input=1))
        await spend(store, "kept", "t1", Usage(model="m", input=4))
        before = await picture(store, "kept", turn="t1")
        assert (await store.sessions.delete("gone")).usage == 2
        assert by_key(await store.usage.totals()) == {("turn", "m"): (1, 4, 0)}
        assert await store.usage.totals(session="gone") == ()
        assert (await store.usage.rows("gone")).items == ()
        assert await picture(store, "kept", turn="t1") == before


async def test_law_u08_a_sum_over_sessions_does_not_wrap(kit: Kit) -> None:
    """Totals that fit for each session and not for all together are refused with CounterOverflow
    when all are asked for; each session alone is still answered. (u08)"""
    async with kit.open() as store:
        largest = Usage(model="m", output=LARGEST)
        for session in ("one", "two"):
            await spend(store, session, "t1", *[largest] * 1024)
        with pytest.raises(CounterOverflow) as it:
            await store.usage.totals()
        assert it.value.code == "counter-overflow"
        for session in ("one", "two"):
            (total,) = await store.usage.totals(session=session)
            assert total.usage.output == 9_223_372_036_854_774_784
        assert len(await store.usage.totals(by=("session",))) == 2
        await works(store, "one")
