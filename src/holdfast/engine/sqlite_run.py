"""Blocks become scripts of prepared texts with binders here, and a connection runs them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import apsw
import msgspec

from holdfast.contract.errors import CounterOverflow
from holdfast.engine.sqlite_errors import overflowed
from holdfast.ops.op import Answer, Step
from holdfast.sql.catalog import Block, Part, catalog, placed

Bind = Callable[[Mapping[str, Any]], tuple[Any, ...]]
Derived = tuple[str, Callable[[Mapping[str, Any]], Any]]
_json = msgspec.json.Encoder()
NOTHING: tuple[Any, ...] = ()


def _column(child: str, index: int) -> Callable[[Mapping[str, Any]], str]:
    """A whole column of children, as the JSON array that json_each reads; bytes are hex."""

    def read(params: Mapping[str, Any]) -> str:
        rows = params[child]
        if not rows:
            return "[]"
        values = [row[index] for row in rows]
        plain = [value.hex() if isinstance(value, bytes) else value for value in values]
        return _json.encode(plain).decode()

    return read


def _count(child: str) -> Callable[[Mapping[str, Any]], int]:
    def read(params: Mapping[str, Any]) -> int:
        return len(params[child])

    return read


class CompiledPart:
    """One part of a script: its text, how its values are bound, and its column names."""

    __slots__ = (
        "_order",
        "bind",
        "child",
        "child_bind",
        "kind",
        "names",
        "subject",
        "text",
        "values",
    )

    def __init__(self, block: Block, part: Part) -> None:
        self.kind = part.kind
        self.subject = part.subject
        self.child = part.subject if part.kind == "each" else ""
        self.names: tuple[str, ...] = ()
        self._order: dict[tuple[str, ...], Callable[[Sequence[Any]], tuple[Any, ...]]] = {}
        base: list[str] = []
        own: list[int] = []
        for value in part.values:
            child, _, column = value.partition(".")
            if self.child and child == self.child and column != "n":
                own.append(block.columns[child].index(column))
            else:
                base.append(value)
        place: dict[str, str] = {}
        for number, value in enumerate(base, 1):
            place[value] = f"?{number}"
        for number, index in enumerate(own, len(base) + 1):
            place[f"{self.child}.{block.columns[self.child][index]}"] = f"?{number}"
        self.text = placed(part, place)
        self.values = base
        self.bind = _binder(base)
        self.child_bind = _picker(own)

    def pick(self, wanted: tuple[str, ...], row: Sequence[Any]) -> tuple[Any, ...]:
        """The wanted columns of a row, in their order."""
        order = self._order.get(wanted)
        if order is None:
            order = _picker([self.names.index(name) for name in wanted])
            self._order[wanted] = order
        return order(row)


def _picker(indexes: list[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    if not indexes:
        return lambda row: NOTHING
    if len(indexes) == 1:
        only = indexes[0]
        return lambda row: (row[only],)
    return operator.itemgetter(*indexes)


def _binder(values: list[str]) -> Bind:
    if not values:
        return lambda params: NOTHING
    if len(values) == 1:
        only = values[0]
        return lambda params: (params[only],)
    return operator.itemgetter(*values)


def _derived(block: Block, parts: Sequence[CompiledPart]) -> list[Derived]:
    """What parts bind that is no parameter itself: the counts and whole columns of children."""
    found: list[Derived] = []
    for value in sorted({value for part in parts for value in part.values if "." in value}):
        child, _, column = value.partition(".")
        if column == "n":
            found.append((value, _count(child)))
        else:
            found.append((value, _column(child, block.columns[child].index(column))))
    return found


class Script:
    """A block, ready to run."""

    __slots__ = (
        "answering",
        "derived",
        "explains",
        "name",
        "parts",
        "refused",
        "returns",
        "why_derived",
    )

    def __init__(self, block: Block) -> None:
        self.name = block.name
        self.parts = [CompiledPart(block, part) for part in block.parts]
        self.refused = CompiledPart(block, block.refused) if block.refused else None
        reading = [part for part in self.parts if part.kind in ("guard", "rows")]
        rows = [part for part in reading if part.kind == "rows"]
        # The rows of a block are its answer, and without any those of its last guard.
        self.answering = (rows or reading)[-1] if reading else None
        self.derived = _derived(block, self.parts)
        self.why_derived = _derived(block, [self.refused] if self.refused else [])
        self.returns = block.signature.returns
        self.explains = block.signature.explains


def scripts() -> dict[str, Script]:
    """All scripts of the dialect by name."""
    return {name: Script(block) for name, block in catalog("sqlite").items()}


def _rows(connection: apsw.Connection, part: CompiledPart, params: Mapping[str, Any]) -> list[Any]:
    cursor = connection.execute(part.text, part.bind(params))
    if not part.names:
        try:
            part.names = tuple(column[0] for column in cursor.get_description())
        except apsw.ExecutionCompleteError:
            return []
    return cursor.fetchall()


def run_step(
    connection: apsw.Connection, book: Mapping[str, Script], step: Step, now: int
) -> Answer:
    """Run one step on a connection that is in a transaction."""
    try:
        return _run_script(connection, book, step, now)
    except apsw.Error as failure:
        if overflowed(failure):
            key = str(step.params.get("session") or step.params["tenant"])
            raise CounterOverflow(counter=step.stmt.name, key=key) from failure
        raise


def _run_script(
    connection: apsw.Connection, book: Mapping[str, Script], step: Step, now: int
) -> Answer:
    script = book[step.stmt.name]
    params: dict[str, Any] = {**step.params, "now": now}
    for value, read in script.derived:
        params[value] = read(params)
    rows: list[Any] = []
    for part in script.parts:
        kind = part.kind
        if kind == "each":
            children = params[part.child]
            if children:
                base = part.bind(params)
                bind = part.child_bind
                if len(children) == 1:
                    connection.execute(part.text, base + bind(children[0]))
                else:
                    connection.executemany(part.text, [base + bind(row) for row in children])
        elif kind == "plain":
            connection.execute(part.text, part.bind(params))
        elif kind == "when":
            if params[part.subject]:
                connection.execute(part.text, part.bind(params))
        else:
            found = _rows(connection, part, params)
            if kind == "guard":
                if not found:
                    why = script.refused
                    assert why is not None
                    for value, read in script.why_derived:
                        params[value] = read(params)
                    facts = _rows(connection, why, params)
                    return Answer([why.pick(script.explains, row) for row in facts], True)
                params.update(zip(part.names, found[0], strict=True))
            if part is not script.answering:
                continue
            if part.names == script.returns:
                rows = found
            else:
                rows = [part.pick(script.returns, row) for row in found]
    return Answer(rows, False)
