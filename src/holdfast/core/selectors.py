"""What is taken out of the payload of an event: selectors, and the text of what they take."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.contract.processes import Const, Pointer, Present, Selector, Template, Whole

# What a pointer escapes with a tilde is a tilde or a slash.
_WRONG = re.compile("~(?![01])")
_compact = msgspec.json.Encoder(order="deterministic").encode


class PointsAtNothing(Exception):
    """A pointer of a selector points at nothing in the payload."""

    def __init__(self, at: str) -> None:
        super().__init__(at)
        self.at = at


def select(payload: Any, selector: Selector) -> Any:
    """What a selector takes out of a payload; it raises `PointsAtNothing` when that is not there.
    The fields of a template are put in at once, so that what one of them says is not read again."""
    match selector:
        case Whole():
            return payload
        case Const(value=value):
            return value
        case Pointer(at=at):
            return _found(payload, at)
        case Present(at=at):
            try:
                _found(payload, at)
            except PointsAtNothing:
                return False
            return True
        case Template(text=text, fields=fields):
            taken = {name: text_of(select(payload, one)) for name, one in fields.items()}
            return _filled(text, taken.get)


def _filled(text: str, field: Callable[[str], str | None]) -> str:
    done: list[str] = []
    at = 0
    while (start := text.find("{", at)) >= 0 and (end := text.find("}", start)) >= 0:
        found = field(text[start + 1 : end])
        if found is None:
            done.append(text[at : start + 1])
            at = start + 1
        else:
            done += [text[at:start], found]
            at = end + 1
    return "".join([*done, text[at:]])


def pointer_parts(at: str) -> list[str] | None:
    """The steps of a JSON pointer; None when it is none."""
    if (at and not at.startswith("/")) or _WRONG.search(at):
        return None
    return [part.replace("~1", "/").replace("~0", "~") for part in at.split("/")[1:]]


def _found(payload: Any, at: str) -> Any:
    here = payload
    for part in pointer_parts(at) or ():
        if isinstance(here, dict) and part in here:
            here = here[part]
        elif isinstance(here, list) and _is_index(part) and int(part) < len(here):
            here = here[int(part)]
        else:
            raise PointsAtNothing(at)
    return here


def _is_index(part: str) -> bool:
    return part.isascii() and part.isdigit() and len(part) < 10 and (part == "0" or part[0] != "0")


def text_of(value: Any) -> str:
    """A text as it is, anything else as compact JSON."""
    return value if isinstance(value, str) else _compact(value).decode()


def is_true(value: Any) -> bool:
    """Whether a value counts as true: a number always does, emptiness never."""
    if value is None or isinstance(value, bool):
        return bool(value)
    return True if isinstance(value, int | float) else len(value) > 0
