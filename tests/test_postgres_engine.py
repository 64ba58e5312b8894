"""The PostgreSQL engine: round trips, merging and what it is handed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from holdfast.contract.errors import (
    CounterOverflow,
    Invalid,
)
from holdfast.engine.postgres_calls import compiled
from holdfast.ops.op import Op, Step, Stmt
from holdfast.sql.catalog import CatalogError, _block
from holdfast.testing.wire import WireProxy
from tests.postgres_blocks import Opened, add, one, run, step, until

# --- round trips


def test_one_statement_is_one_round_trip_and_a_refusal_two(postgres_url: str) -> None:
    async def main() -> None:
        async with (
            WireProxy(postgres_url) as wire,
            Opened(wire.url, direct=postgres_url, pool_size=1) as store,
        ):
            await store.counters("c", "full", value=0)
            await store.sql.execute("UPDATE holdfast.counter SET value=100 WHERE name='full'")

            async def trips(op: Callable[..., Op[Any]], *args: Any) -> int:
                # The first run on a connection also parses the statement.
                await store.engine.write(op, *args)
                before = wire.round_trips
                await store.engine.write(op, *args)
                return wire.round_trips - before

            assert await trips(lambda: step("t.read", name="c")) == 1
            assert await trips(one, "c") == 1
            assert await trips(add, "c") == 1
            assert await trips(one, "full") == 2
            assert await trips(add, "nobody") == 2
            # BEGIN, the guard, the rows, COMMIT; nothing for the part that has no children.
            assert await trips(lambda: step("t.script", name="c", entries=[])) == 4

    run(main())


def test_the_driver_asks_for_no_types(postgres_url: str) -> None:
    async def main() -> None:
        async with (
            WireProxy(postgres_url) as wire,
            Opened(wire.url, direct=postgres_url, pooler=True, listen_url=wire.url) as store,
        ):
            await store.counters("c")
            await store.engine.write(add, "c", 1, [("e", b"x", 1)])
            store.engine.signals.attend()
            await store.engine.signals.listening.wait()
            store.engine.signals.publish(["t"])
            await until(lambda: asyncio.sleep(0, wire.texts[-1]), lambda t: "pg_notify" in t)
        assert not [text for text in wire.texts if "typeinfo" in text or "set_config" in text]
        assert not [text for text in wire.texts if text.upper().startswith("SET")]

    run(main())


def test_answers_are_in_the_order_of_the_signature(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store:
            await store.counters("c")
            assert await store.engine.write(add, "c", 3) == (False, [(3, "c")])
            assert await store.engine.write(add, "x", 3) == (True, [(False, None)])
            assert await store.engine.write(add, "c", 0) == (True, [(True, 3)])
            assert await store.engine.read(lambda: step("t.read", name="c")) == (False, [("c", 3)])
            assert await store.engine.read(lambda: step("t.read", name="x")) == (False, [])

    run(main())


def test_a_script_is_one_transaction(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store:
            await store.counters("c")

            def script(name: str, *ids: str) -> Op[Any]:
                return step("t.script", name=name, entries=[(i, b"x") for i in ids])

            assert await store.engine.write(script, "c", "1", "2") == (False, [(2,)])
            assert await store.engine.write(script, "c") == (False, [(2,)])
            assert await store.engine.write(script, "nobody", "3") == (True, [(0,)])
            # A unique violation undoes the whole, and the refused part explains.
            assert await store.engine.write(script, "c", "2") == (True, [(1,)])
            assert await store.value("c") == 2
            # The column of the guard fed the later part.
            assert await store.sql.fetchval("SELECT small FROM holdfast.entry WHERE id='1'") == 1
            store.whole()

    run(main())


def test_a_missing_parameter_is_a_defect_of_the_caller_alone(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store:
            await store.counters("c")
            for name in ("t.add", "t.one"):
                with pytest.raises(KeyError):
                    await store.engine.write(lambda n=name: step(n, name="c"))
            with pytest.raises(CatalogError):
                await store.engine.write(lambda: step("t.unknown"))
            store.whole()

    run(main())


# --- merging


def test_waiting_requests_share_calls_and_keep_their_answers(postgres_url: str) -> None:
    async def main() -> None:
        async with (
            WireProxy(postgres_url) as wire,
            Opened(wire.url, direct=postgres_url) as store,
        ):
            names = [f"c{n:02}" for n in range(40)]
            await store.counters(*names)
            await asyncio.gather(*(store.engine.write(add, name) for name in names[:2]))
            before = wire.syncs
            answers = await asyncio.gather(
                *(
                    store.engine.write(
                        add, name, n + 1, [(f"{name}-{i}", b"%d" % i, i) for i in range(n % 4)]
                    )
                    for n, name in enumerate(names)
                )
            )
            assert wire.syncs - before <= 8
            for n, (name, answer) in enumerate(zip(names, answers, strict=True)):
                assert answer == (False, [(n + 1 + (n < 2), name)])
                assert await store.entries(name) == n % 4

    run(main())


def test_one_key_is_never_in_flight_twice(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store:
            await store.counters("c", "d")
            answers = await asyncio.gather(*(store.engine.write(add, "c") for _ in range(30)))
            assert sorted(rows[0][0] for _, rows in answers) == list(range(1, 31))
            merger = store.engine._mergers["t.add"]
            assert not merger._taken
            assert not merger._ready
            await until(lambda: asyncio.sleep(0, merger._calls), lambda calls: calls == 0)

    run(main())


def test_batches_are_bounded_by_number_and_by_bytes(postgres_url: str) -> None:
    async def main() -> None:
        async with (
            WireProxy(postgres_url) as wire,
            Opened(wire.url, direct=postgres_url, max_group=5, max_group_bytes=1000) as store,
        ):
            names = [f"c{n:02}" for n in range(22)]
            await store.counters(*names)
            await asyncio.gather(*(store.engine.write(add, name) for name in names[:2]))
            before = wire.syncs
            await asyncio.gather(*(store.engine.write(add, name) for name in names))
            assert 6 <= wire.syncs - before <= 8
            before = wire.syncs
            big = [(name, 1, [(name, b"x" * 600, 1)]) for name in names[:6]]
            await asyncio.gather(*(store.engine.write(add, *args) for args in big))
            assert wire.syncs - before == 6

    run(main())


def test_tenants_never_share_a_call(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store:
            await store.sql.execute(
                "INSERT INTO holdfast.counter SELECT t, n::text, ascii(t)"
                " FROM unnest('{a,b,c}'::text[]) t, generate_series(1, 9) n"
            )

            def of(tenant: str, name: str) -> Op[Any]:
                answer = yield Step(
                    Stmt("t.add", tuple), {"tenant": tenant, "name": name, "by": 1, "entries": []}
                )
                return answer.rows[0][0]

            asked = [(t, str(n)) for n in range(1, 10) for t in "abc"]
            values = await asyncio.gather(*(store.engine.write(of, t, n) for t, n in asked))
            assert values == [ord(t) + 1 for t, _ in asked]

    run(main())


def test_the_data_error_of_one_member_is_its_own(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store:
            names = [f"c{n}" for n in range(8)]
            await store.counters(*names)
            await store.sql.execute(
                "UPDATE holdfast.counter SET value = 2147483647 WHERE name = 'c3';"
                "INSERT INTO holdfast.entry(tenant, id) VALUES ('a', 'taken')"
            )
            asked: list[tuple[Any, ...]] = [(name, 1, [(name, b"x", 1)]) for name in names]
            asked[4] = ("c4", 1, [("taken", b"x", 1)])
            asked[5] = ("c5", 1, [("five", b"x", 2**40)])
            asked[6] = ("c6", 1, [("six", "not bytes", 1)])
            answers = await asyncio.gather(
                *(store.engine.write(add, *args) for args in asked), return_exceptions=True
            )
            for n in (0, 1, 2, 7):
                assert answers[n] == (False, [(1, f"c{n}")])
            assert isinstance(answers[3], CounterOverflow)
            assert answers[4] == (True, [(True, 0)])
            assert isinstance(answers[5], CounterOverflow)
            assert isinstance(answers[6], Invalid)
            assert [await store.entries(name) for name in names] == [1, 1, 1, 0, 0, 0, 0, 1]
            store.whole()

    run(main())


def test_a_waiting_call_lends_its_slot(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store, asyncio.timeout(5):
            await store.counters("held", "free", "stuck")
            other = await asyncpg.connect(postgres_url)
            async with other.transaction():
                await other.execute(
                    "SELECT FROM holdfast.counter WHERE name IN ('held', 'stuck') FOR UPDATE"
                )
                blocked = [
                    asyncio.ensure_future(store.engine.write(add, name))
                    for name in ("held", "stuck")
                ]
                await store.waiting(2)
                assert await store.engine.write(add, "free") == (False, [(1, "free")])
                assert not any(task.done() for task in blocked)
            assert [(await task)[0] for task in blocked] == [False, False]
            other.terminate()

    run(main())


# --- compiling


def test_what_has_no_meaning_here_is_found_at_open() -> None:
    @dataclass
    class Case:
        text: str
        said: str

    head = "t.x\n-- Does something.\n-- mode: write\n-- children: nodes(node, n)\n"
    plain = "t.x\n-- Does something.\n-- mode: write\n-- children: nodes(node)\n"
    refused = "\n-- step: refused\nSELECT 1\n"
    for case in (
        Case(head + "SELECT 1\n", "named like a count"),
        Case(plain + "-- step: each nodes\nSELECT :nodes.node\n", "each"),
        Case(plain + "SELECT :nodes.kind\n", "no column"),
        Case(plain + "SELECT :edges.node\n", "no children"),
        Case(
            plain + "-- merged by: a\n-- step: guard\nSELECT 1\n-- step: plain\nSELECT 2" + refused,
            "one guard",
        ),
    ):
        with pytest.raises(CatalogError, match=case.said):
            compiled(_block(case.text), '"holdfast"')
