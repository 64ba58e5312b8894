"""Everything that turns a named block into texts with `$k` and lists of arguments lives here.

A block is compiled once per engine. An ordinary block binds scalars by name and columns of children
as lists. A merged block binds, over all requests of one call, the list of each scalar and one flat
list per column of children; only the tenant stays a scalar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

from holdfast.sql.catalog import Block, CatalogError, Part, placed

Params = Mapping[str, Any]
# What a merged block may name beside the columns of children: how many rows a request has, where
# they end among all, and for each row the request it belongs to.
COUNTS = {"n", "hi", "ord"}
Rows = list[tuple[Any, ...]]

# The names under which a failed or unknown operation is reported. Tokens are never among them.
_IDS = (
    "session",
    "turn",
    "node",
    "process",
    "work",
    "claim",
    "subscription",
    "occurrence",
    "effect",
    "attachment",
    "artifact",
    "key",
)


@dataclass(frozen=True, slots=True)
class Text:
    """One statement: its text with `$k`, and where its arguments come from."""

    kind: str
    subject: str
    sql: str
    values: tuple[tuple[str, str, int], ...]  # a name, how it is bound, and which column of it
    children: tuple[tuple[str, int], ...]  # whose rows are bound, and how many columns they have

    def arguments(self, params: Params) -> list[Any]:
        """The arguments of one request."""
        columns = {child: _columns(params[child], width) for child, width in self.children}
        out: list[Any] = []
        for name, how, at in self.values:
            if how == "column":
                out.append(columns[name][at])
            elif how == "n":
                out.append(len(params[name]))
            else:
                out.append(params[name])
        return out

    def merged(self, requests: Sequence[Params]) -> list[Any]:
        """The arguments of one call for many requests."""
        columns: dict[str, Sequence[Sequence[Any]]] = {}
        counts: dict[str, list[int]] = {}
        for child, width in self.children:
            rows = [request[child] for request in requests]
            counts[child] = [len(part) for part in rows]
            columns[child] = _columns(list(chain.from_iterable(rows)), width)
        out: list[Any] = []
        for name, how, at in self.values:
            if how == "column":
                out.append(columns[name][at])
            elif how == "list":
                out.append([request[name] for request in requests])
            elif how == "same":
                out.append(requests[0][name])
            elif how == "n":
                out.append(counts[name])
            elif how == "hi":
                out.append(list(accumulate(counts[name])))
            else:
                out.append([at for at, n in enumerate(counts[name], 1) for _ in range(n)])
        return out


def _columns(rows: Sequence[Sequence[Any]], width: int) -> Sequence[Sequence[Any]]:
    return list(zip(*rows, strict=True)) if rows else [()] * width


@dataclass(frozen=True, slots=True)
class Call:
    """A block that is ready to run. `single` is one statement, which needs no transaction."""

    name: str
    writes: bool
    merged_by: str
    parts: tuple[Text, ...]
    refused: Text | None
    returns: tuple[str, ...]
    explains: tuple[str, ...]

    @property
    def single(self) -> bool:
        return len(self.parts) == 1

    def ids(self, params: Params) -> str:
        """The ids of a request, for errors."""
        return " ".join(f"{name}={params[name]}" for name in _IDS if name in params)

    def operation(self, params: Params) -> str:
        """The block and the ids of a request, for errors."""
        return f"{self.name} {self.ids(params)}".strip()


def compiled(block: Block, schema: str) -> Call:
    """Compile a block for a quoted schema name, or say what is wrong with it."""
    for child, columns in block.columns.items():
        if COUNTS & set(columns):
            raise CatalogError(f"{block.name}: {child} has a column named like a count")
    for part in block.parts:
        if part.kind == "each":
            raise CatalogError(f"{block.name}: a step 'each' has no meaning on this database")
    if block.merged_by and [part.kind for part in block.parts] != ["guard"]:
        raise CatalogError(f"{block.name}: a merged block is one guard")
    return Call(
        name=block.name,
        writes=block.writes,
        merged_by=block.merged_by,
        parts=tuple(_text(block, part, schema) for part in block.parts),
        refused=_text(block, block.refused, schema) if block.refused else None,
        returns=block.signature.returns,
        explains=block.signature.explains,
    )


def _text(block: Block, part: Part, schema: str) -> Text:
    place = {value: f"${at}" for at, value in enumerate(part.values, 1)}
    values: list[tuple[str, str, int]] = []
    children: dict[str, int] = {}
    for value in part.values:
        name, dot, column = value.partition(".")
        if not dot:
            values.append((name, "same" if name == "tenant" else "list", 0))
            continue
        if name not in block.columns:
            raise CatalogError(f"{block.name}: {name} are no children of it")
        children[name] = len(block.columns[name])
        if column in COUNTS:
            values.append((name, column, 0))
        elif column in block.columns[name]:
            values.append((name, "column", block.columns[name].index(column)))
        else:
            raise CatalogError(f"{block.name}: {name} have no column {column}")
    text = placed(part, place).replace("{schema}", schema)
    return Text(part.kind, part.subject, text, tuple(values), tuple(children.items()))


def weight(params: Params) -> int:
    """How many bytes of payload a request carries; an operation says so, or it is small."""
    size: int = params.get("payload_bytes", 0)
    return size


def picked(records: Sequence[Any], columns: tuple[str, ...]) -> Rows:
    """The rows of an answer, in the order of the signature and without its other columns."""
    if not records:
        return []
    names = tuple(records[0].keys())
    if names == columns:
        return [tuple(record) for record in records]
    places = [names.index(column) for column in columns]
    return [tuple(record[at] for at in places) for record in records]
