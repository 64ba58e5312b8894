"""The waist: every operation is a generator of named steps, and this is the whole machinery.

An operation yields `Step`s and receives `Answer`s. It never sees a connection, a clock or a
dialect; the text of a step lives in `sql/`, and an engine runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from holdfast.contract.errors import StoreBusy

T = TypeVar("T")
R = TypeVar("R")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class Stmt(Generic[R, W]):
    """A name with a typed row, and for a guarded one the typed facts that explain a refusal."""

    name: str
    row: Callable[..., R]
    why: Callable[..., W] | None = None


class Answer(NamedTuple):
    """The rows of a step; when its guard refused, the rows of its `refused` part instead."""

    rows: Sequence[Sequence[Any]]
    refused: bool


class Step(NamedTuple):
    """One statement with its parameters: scalars by name, children as lists of tuples."""

    stmt: Stmt[Any, Any]
    params: Mapping[str, Any]


Op: TypeAlias = Generator[Step, Answer, T]

# A guard that refused without a reason saw a moment that has passed; it is asked again this often.
ASK_AGAIN = 12


def call(stmt: Stmt[R, W], **params: Any) -> Op[list[R]]:
    """Run a statement and type its rows."""
    answer = yield Step(stmt, params)
    return [stmt.row(*row) for row in answer.rows]


def one(stmt: Stmt[R, W], **params: Any) -> Op[R | None]:
    """Run a statement that answers at most one row."""
    rows = yield from call(stmt, **params)
    return rows[0] if rows else None


def guarded(
    stmt: Stmt[R, W], explain: Callable[[W], T | None], params: Mapping[str, Any]
) -> Op[R | T]:
    """Run a guarded statement of one row. When it refuses, `explain` raises, answers, or asks
    again (None)."""
    found = yield from guarded_rows(stmt, explain, params)
    return found[0] if isinstance(found, list) else found


def guarded_rows(
    stmt: Stmt[R, W], explain: Callable[[W], T | None], params: Mapping[str, Any]
) -> Op[list[R] | T]:
    """The same for a statement that answers several rows, as a list."""
    assert stmt.why is not None
    for _ in range(ASK_AGAIN):
        answer = yield Step(stmt, params)
        if not answer.refused:
            return [stmt.row(*row) for row in answer.rows]
        settled = explain(stmt.why(*answer.rows[0]))
        if settled is not None:
            return settled
    raise StoreBusy(reason=f"{stmt.name} met rivals {ASK_AGAIN} times in a row")
