"""A cursor is where a page begins: text that a store gave, read back here as if it were not."""

from __future__ import annotations

import re

from holdfast.contract.errors import Invalid
from holdfast.contract.limits import MAX_INT
from holdfast.core.payloads import check_id

# No more digits than a number of 64 bits has: what is longer is not even read as one.
_CURSOR = re.compile(r"([0-9]{1,19})(?:\.(.*))?\Z", re.S)


def _parts(field: str, text: object) -> tuple[int, str | None]:
    match = _CURSOR.match(text) if isinstance(text, str) else None
    if match is None or int(match[1]) > MAX_INT:
        raise _wrong(field)
    return int(match[1]), match[2]


def _wrong(field: str) -> Invalid:
    return Invalid(field=field, reason="this is not a cursor of this listing")


def cursor_number(field: str, text: str | None, first: int) -> int:
    """A cursor of one number, or where a listing begins."""
    if text is None:
        return first
    number, rest = _parts(field, text)
    if rest is not None:
        raise _wrong(field)
    return number


def cursor_pair(field: str, text: str | None, first: tuple[int, int]) -> tuple[int, int]:
    """A cursor of two numbers, or where a listing begins."""
    if text is None:
        return first
    number, rest = _parts(field, text)
    return number, cursor_number(field, rest or "", 0)


def cursor_named(field: str, text: str | None, first: tuple[int, str]) -> tuple[int, str]:
    """A cursor of a number and a name, or where a listing begins."""
    if text is None:
        return first
    number, rest = _parts(field, text)
    try:
        return number, check_id(field, rest)
    except Invalid:
        raise _wrong(field) from None
