"""Payloads: what may be stored, and that it comes back as it was.

A payload is bytes, which are kept as they are, or a JSON value, which is checked and encoded as
UTF-8 JSON at the door. What JSON would change, or another reader could not take back, is refused
with the path of the offender.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import hashlib
import re
import uuid
from typing import Any

import pytest

from holdfast.contract.errors import Invalid, TooLarge
from holdfast.contract.records import NewNode, StateRef, Turn
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import Kit, grow, refused, works

NAN, INFINITY = float("nan"), float("inf")


def shown(value: object) -> str:
    """A value in the name of a test, which is the same wherever the test runs."""
    return re.sub(r" at 0x[0-9a-f]+", "", ascii(value))[:40]


class Colour(enum.Enum):
    RED = "red"


def nested(levels: int, *, kind: str = "list") -> Any:
    value: Any = [] if kind == "list" else {}
    for _ in range(levels - 1):
        value = [value] if kind == "list" else {"a": value}
    return value


async def commit(store: Store, body: Any, *, turn: str = "t") -> None:
    await store.sessions.commit(
        Turn(session="s", turn=turn, nodes=[NewNode(id=f"{turn}-node", body=body)])
    )


JSON: tuple[tuple[Any, bytes], ...] = (
    (None, b"null"),
    (True, b"true"),
    (False, b"false"),
    (0, b"0"),
    (-1, b"-1"),
    (9_223_372_036_854_775_807, b"9223372036854775807"),
    (-9_223_372_036_854_775_808, b"-9223372036854775808"),
    (9_007_199_254_740_993, b"9007199254740993"),
    (0.0, b"0.0"),
    (-0.0, b"-0.0"),
    (1.0, b"1.0"),
    (0.1, b"0.1"),
    (1e16, b"1e16"),
    (1.7976931348623157e308, b"1.7976931348623157e308"),
    (-1.7976931348623157e308, b"-1.7976931348623157e308"),
    (5e-324, b"5e-324"),
    ("", b'""'),
    ("a\x00b", b'"a\\u0000b"'),
    ("\t\n\r\b\f\x1f\x7f", b'"\\t\\n\\r\\b\\f\\u001f\x7f"'),
    ('"\\/', b'"\\"\\\\/"'),
    ("Zürich 東京", '"Zürich 東京"'.encode()),
    ("😀 \U0010ffff", b'"\xf0\x9f\x98\x80 \xf4\x8f\xbf\xbf"'),
    ("\ufeff\u2028\ufffe", b'"\xef\xbb\xbf\xe2\x80\xa8\xef\xbf\xbe"'),
    ("é e\u0301", b'"\xc3\xa9 e\xcc\x81"'),
    ("'; drop table node; --", b'"\'; drop table node; --"'),
    ([], b"[]"),
    ({}, b"{}"),
    ([[], {}, [None]], b"[[],{},[null]]"),
    ((1, (2, ())), b"[1,[2,[]]]"),
    ({"b": 1, "a": 2}, b'{"b":1,"a":2}'),
    (
        {"a": 1, "A": 2, "a ": 3, "": 4, "é": 5, "e\u0301": 6, "a\x00": 7},
        b'{"a":1,"A":2,"a ":3,"":4,"\xc3\xa9":5,"e\xcc\x81":6,"a\\u0000":7}',
    ),
    ({"__class__": "x", "$ref": "y"}, b'{"__class__":"x","$ref":"y"}'),
)


@pytest.mark.parametrize(("value", "stored"), JSON, ids=shown)
async def test_law_p01_json_is_stored_as_written(kit: Kit, value: Any, stored: bytes) -> None:
    """A JSON value is stored as its shortest UTF-8 JSON: keys in their order, text unescaped where
    JSON allows, numbers as they are; and exactly these bytes are read back. (p01)"""
    async with kit.open() as store, kit.open() as other:
        await store.sessions.create("s")
        await commit(store, value)
        for handle in (store, other):
            node = await handle.history.node("s", "t-node")
            history = await handle.history.load("s")
            assert node is not None
            assert history is not None
            assert node.body == stored
            assert history.nodes[0].body == stored


@pytest.mark.parametrize("kind", ["list", "dict"])
async def test_law_p02_json_may_be_128_levels_deep(kit: Kit, kind: str) -> None:
    """A JSON value may have 128 levels of lists and objects; one more is Invalid, and so is a value
    that contains itself. (p02)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await commit(store, nested(128, kind=kind))
        node = await store.history.node("s", "t-node")
        assert node is not None
        if kind == "list":
            assert node.body == b"[" * 128 + b"]" * 128
        else:
            assert node.body == b'{"a":' * 127 + b"{}" + b"}" * 127
        loop: list[Any] = []
        loop.append(loop)
        for deep in (nested(129, kind=kind), nested(100_000, kind=kind), loop):
            async with refused(store, "s", Invalid, turn="u") as it:
                await commit(store, deep, turn="u")
            assert it.value.field.startswith("nodes[0].body")
        await works(store, "s")


RAW = (
    b"",
    b"\x00",
    bytes(range(256)),
    b"{not json",
    b'{"a": 1}  ',
    b"\xff\xfe",
    b"NaN",
    b"\x28\xb5\x2f\xfd",
)


@pytest.mark.parametrize("raw", RAW, ids=shown)
async def test_law_p03_bytes_are_stored_untouched(kit: Kit, raw: bytes) -> None:
    """Bytes are stored and read back untouched, whatever they hold, in nodes as in state. (p03)"""
    async with kit.open() as store, kit.open() as other:
        await store.sessions.create("s")
        await store.sessions.commit(
            Turn(session="s", turn="t", nodes=[NewNode(id="n", body=raw)], state={"k": raw})
        )
        history = await other.history.load("s")
        assert history is not None
        assert history.nodes[0].body == raw
        assert history.state == {"k": raw}
        assert history.refs == {"k": StateRef(digest=hashlib.sha256(raw).hexdigest())}


BAD: tuple[tuple[Any, str], ...] = (
    (NAN, ""),
    ([NAN], "[0]"),
    ({"a": [1, 2, INFINITY]}, ".a[2]"),
    ({"a": {"b": [0, -INFINITY]}}, ".a.b[1]"),
    ("\ud800", ""),
    ({"a": ["x", "a\udfff"]}, ".a[1]"),
    ("\ud83d\ude00", ""),
    (2**64, ""),
    (-(2**63) - 1, ""),
    ({"n": [10**30]}, ".n[0]"),
    ({"a": b"bytes"}, ".a"),
    ([bytearray(b"x")], "[0]"),
    ({"a": memoryview(b"x")}, ".a"),
    (object(), ""),
    ({"s": {1, 2}}, ".s"),
    ([frozenset()], "[0]"),
    ([1, 2j], "[1]"),
    ({"d": decimal.Decimal("1.5")}, ".d"),
    ({"t": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)}, ".t"),
    ([datetime.date(2026, 1, 1)], "[0]"),
    ({"u": uuid.UUID(int=0)}, ".u"),
    ({"e": Colour.RED}, ".e"),
    ({"r": NewNode(body="a record")}, ".r"),
    ([range(3)], "[0]"),
    ({"f": len}, ".f"),
    ({"x": (None for _ in ())}, ".x"),
)


@pytest.mark.parametrize(("value", "where"), BAD, ids=shown)
async def test_law_p04_what_is_not_json_is_refused(kit: Kit, value: Any, where: str) -> None:
    """What is not JSON is Invalid, and the refusal names its path: numbers that are not finite,
    lone surrogates, integers beyond 64 bits, bytes inside JSON, and every other type. Nothing is
    stored, not even the nodes before it. (p04)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        async with refused(store, "s", Invalid, turn="t") as it:
            await commit(store, value)
        assert (it.value.field, it.value.code) == (f"nodes[0].body{where}", "invalid")
        nodes = [NewNode(body="good"), NewNode(body=value)]
        async with refused(store, "s", Invalid, turn="t") as it:
            await store.sessions.commit(Turn(session="s", turn="t", nodes=nodes))
        assert it.value.field == f"nodes[1].body{where}"
        await works(store, "s")


@pytest.mark.parametrize("key", [1, None, True, 1.5, b"k", ("a",), Colour.RED, "\ud800"], ids=shown)
async def test_law_p05_keys_are_text(kit: Kit, key: Any) -> None:
    """A key of a JSON object is text: another key is Invalid, at the path of the object or of the
    key, and nothing is stored. (p05)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        async with refused(store, "s", Invalid, turn="t") as it:
            await commit(store, {"outer": [{key: "x"}]})
        assert it.value.field.startswith("nodes[0].body.outer[0]")
        await works(store, "s")


async def test_law_p06_large_payloads_come_back(kit: Kit) -> None:
    """A payload of up to 16 MiB is stored and read back; a larger one is refused with TooLarge,
    which names it, the limit and the size. (p06)"""
    limit = 16 * 1024 * 1024
    async with kit.open() as store:
        await grow(store, "s", "a")
        for turn, body in (("raw", b"\xab" * (limit - 65_536)), ("text", "é" * 4_000_000)):
            await commit(store, body, turn=turn)
            node = await store.history.node("s", f"{turn}-node")
            assert node is not None
            if isinstance(body, bytes):
                assert node.body == body
            else:
                assert node.body == b'"' + b"\xc3\xa9" * 4_000_000 + b'"'
        for large in (b"\xab" * (limit + 1), "a" * (limit - 1)):
            async with refused(store, "s", TooLarge, turn="t") as it:
                await commit(store, large)
            assert (it.value.field, it.value.actual) == ("nodes[0].body", limit + 1)
            assert (it.value.limit, it.value.code) == (limit, "too-large")
        async with refused(store, "s", TooLarge, turn="t") as it:
            await store.sessions.commit(
                Turn(session="s", turn="t", state={"agent": b"\xab" * (limit + 1)})
            )
        assert (it.value.field, it.value.actual) == ("state.agent", limit + 1)
        await works(store, "s")


async def test_law_p07_what_was_committed_is_kept_as_it_was(kit: Kit) -> None:
    """What a turn held when it was committed is what is kept: changing the value afterwards changes
    nothing that is stored. (p07)"""
    async with kit.open() as store:
        await store.sessions.create("s", tags=(tags := {"user": "ada"}))
        body: dict[str, Any] = {"list": [1]}
        state = {"agent": b"1"}
        await store.sessions.commit(
            Turn(session="s", turn="t", nodes=[NewNode(id="n", body=body)], state=state)
        )
        body["list"].append(2)
        state["agent"] = b"2"
        tags["user"] = "bob"
        history = await store.history.load("s")
        info = await store.sessions.get("s")
        assert history is not None
        assert info is not None
        assert history.nodes[0].body == b'{"list":[1]}'
        assert history.state == {"agent": b"1"}
        assert info.tags == {"user": "ada"}
        history.state["agent"] = b"3"
        info.tags["user"] = "eve"
        again = await store.history.load("s")
        found = await store.sessions.get("s")
        assert again is not None
        assert found is not None
        assert (again.state, found.tags) == ({"agent": b"1"}, {"user": "ada"})


async def test_law_p08_compressible_and_other_bytes_come_back(kit: Kit) -> None:
    """Content of any size and texture comes back byte for byte, around every size at which a store
    may change its ways. (p08)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        sizes = (1, 255, 256, 511, 512, 513, 1023, 1024, 4095, 4096, 65_535, 65_536, 200_000)
        noise = b"".join(hashlib.sha256(bytes([n])).digest() for n in range(256))
        state: dict[str, bytes] = {}
        for size in sizes:
            state[f"same-{size}"] = b"a" * size
            state[f"noise-{size}"] = (noise * (size // len(noise) + 1))[:size]
        nodes = [NewNode(id=name, body=data) for name, data in state.items()]
        await store.sessions.commit(Turn(session="s", turn="t", nodes=nodes, state=state))
        history = await store.history.load("s")
        assert history is not None
        assert history.state == state
        assert {node.id: node.body for node in history.nodes} == state
