"""Everything that turns a named block into texts with `$k` and lists of arguments lives here.

A block is compiled once per engine. An ordinary block binds scalars by name and columns of children
as lists. A merged block binds, over all requests of one call, the list of each scalar and one flat
list per column of children; only the tenant stays a scalar.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any

from holdfast.sql.catalog import Block, CatalogError, Part, placed

Params = Mapping[str, Any]
Getter = Callable[[Params], Any]
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
    """One statement: its text with `$k`, where its arguments come from, and how they merge."""

    kind: str
    subject: str
    sql: str
    getters: tuple[Getter, ...]
    merges: tuple[str, ...]

    def arguments(self, params: Params) -> list[Any]:
        """The arguments of one request."""
        return [get(params) for get in self.getters]

    def merged(self, requests: Sequence[list[Any]]) -> list[Any]:
        """The arguments of one call for many requests, from the arguments of each."""
        out: list[Any] = []
        for at, how in enumerate(self.merges):
            if how == "same":
                out.append(requests[0][at])
            elif how == "flat":
                out.append(list(chain.from_iterable(request[at] for request in requests)))
            elif how == "ends":
                out.append(list(accumulate(request[at] for request in requests)))
            else:
                out.append([request[at] for request in requests])
        return out


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
        if "n" in columns or "hi" in columns:
            raise CatalogError(f"{block.name}: {child}.n and {child}.hi are counts, not columns")
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
    getters: list[Getter] = []
    merges: list[str] = []
    for value in part.values:
        name, dot, column = value.partition(".")
        if not dot:
            getters.append(itemgetter(name))
            merges.append("same" if name == "tenant" else "list")
        elif name not in block.columns:
            raise CatalogError(f"{block.name}: {name} are no children of it")
        elif column in ("n", "hi"):
            getters.append(_count(name))
            merges.append("ends" if column == "hi" else "list")
        elif column in block.columns[name]:
            getters.append(_column(name, block.columns[name].index(column)))
            merges.append("flat")
        else:
            raise CatalogError(f"{block.name}: {name} have no column {column}")
    text = placed(part, place).replace("{schema}", schema)
    return Text(part.kind, part.subject, text, tuple(getters), tuple(merges))


def _count(child: str) -> Getter:
    return lambda params: len(params[child])


def _column(child: str, at: int) -> Getter:
    return lambda params: [row[at] for row in params[child]]


def weight(arguments: Sequence[Any]) -> int:
    """How many bytes of payload the arguments of one request carry."""
    total = 0
    for value in arguments:
        if isinstance(value, (bytes, bytearray, memoryview)):
            total += len(value)
        elif isinstance(value, list):
            total += sum(len(v) for v in value if isinstance(v, (bytes, bytearray, memoryview)))
    return total


def picked(records: Sequence[Any], columns: tuple[str, ...]) -> Rows:
    """The rows of an answer, in the order of the signature and without its other columns."""
    if not records:
        return []
    names = tuple(records[0].keys())
    if names == columns:
        return [tuple(record) for record in records]
    places = [names.index(column) for column in columns]
    return [tuple(record[at] for at in places) for record in records]
