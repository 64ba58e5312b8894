"""How the oracle reads the payload of an event: what a schema allows, and what a selector takes.

Written from the contract, and plainly: a schema is walked together with the value, a pointer is
followed step by step, and two values are the same when their JSON is.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from holdfast.contract.processes import (
    Const,
    Pointer,
    Present,
    Selector,
    Template,
    Whole,
)

_FIELD = re.compile(r"\{([^{}]*)\}")
_INDEX = re.compile(r"(0|[1-9][0-9]*)\Z")


class Unfit(Exception):
    """The value at this place is not what is asked for."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where


def encoded(value: Any) -> bytes:
    """A payload as it is stored: bytes as they are, anything else as compact JSON."""
    return value if isinstance(value, bytes) else msgspec.json.encode(value)


def text_of(value: Any) -> str:
    """The text of a value: a string itself, all else its JSON with the keys in order."""
    return value if isinstance(value, str) else _canonical(value)


def truthy(value: Any) -> bool:
    """Whether a condition holds: nothing and what is empty is false, and every number is true."""
    if value is None or value is False:
        return False
    return bool(value) if isinstance(value, str | list | dict) else True


def take(selector: Selector, payload: Any, where: str = "payload") -> Any:
    """What a selector takes of a payload; `Unfit` when a pointer points at nothing."""
    match selector:
        case Whole():
            return payload
        case Const(value=value):
            return value
        case Present(at=at):
            return _follow(payload, at)[0]
        case Pointer(at=at):
            there, value = _follow(payload, at)
            if not there:
                raise Unfit(where)
            return value
        case Template(text=text, fields=fields):
            taken = {name: text_of(take(one, payload, where)) for name, one in fields.items()}
            return _FIELD.sub(lambda found: taken.get(found[1], found[0]), text)


def _follow(value: Any, pointer: str) -> tuple[bool, Any]:
    for raw in pointer.split("/")[1:]:
        part = raw.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and _INDEX.match(part) and int(part) < len(value):
            value = value[int(part)]
        else:
            return False, None
    return True, value


def require_schema(schema: Any, value: Any, where: str = "payload") -> None:
    """Raise `Unfit` for the first place at which the value is not what the schema allows."""
    if schema is False:
        raise Unfit(where)
    if not isinstance(schema, dict):
        return
    ways = schema.get("anyOf", schema.get("oneOf"))
    if ways is not None:
        if not any(_fits(way, value) for way in ways):
            raise Unfit(where)
        return
    if "enum" in schema and not any(_same(one, value) for one in schema["enum"]):
        raise Unfit(where)
    types = schema.get("type")
    if types is not None and not any(
        _is_a(name, value) for name in ([types] if isinstance(types, str) else types)
    ):
        raise Unfit(where)
    _require_bounds(schema, value, where)
    if isinstance(value, list):
        for place, entry in enumerate(value):
            require_schema(schema.get("items"), entry, f"{where}[{place}]")
    if isinstance(value, dict):
        _require_entries(schema, value, where)


def _require_bounds(schema: dict[str, Any], value: Any, where: str) -> None:
    size: Any = None
    names = ("minimum", "maximum")
    if isinstance(value, int | float) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str):
        size, names = len(value), ("minLength", "maxLength")
    elif isinstance(value, list):
        size, names = len(value), ("minItems", "maxItems")
    if size is not None and not (schema.get(names[0], size) <= size <= schema.get(names[1], size)):
        raise Unfit(where)


def _require_entries(schema: dict[str, Any], value: dict[str, Any], where: str) -> None:
    declared = schema.get("properties")
    for name in schema.get("required", ()):
        if name not in value:
            raise Unfit(f"{where}.{name}")
    more = schema.get("additionalProperties", declared is None)
    for name in value:
        inner = (declared or {}).get(name, more)
        if inner is False:
            raise Unfit(f"{where}.{name}")
        require_schema(inner, value[name], f"{where}.{name}")


def _fits(schema: Any, value: Any) -> bool:
    try:
        require_schema(schema, value)
    except Unfit:
        return False
    return True


def _is_a(name: str, value: Any) -> bool:
    kinds: dict[str, Any] = {
        "null": type(None),
        "boolean": bool,
        "string": str,
        "array": list,
        "object": dict,
        "integer": int,
        "number": int | float,
    }
    if isinstance(value, bool):
        return name == "boolean" or name not in kinds
    return name not in kinds or isinstance(value, kinds[name])


def _same(one: Any, two: Any) -> bool:
    """Whether two values are the same JSON, in which true is not 1."""
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(_same, one, two))
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(_same(one[name], two[name]) for name in one)
    return isinstance(one, bool) == isinstance(two, bool) and bool(one == two)


def _canonical(value: Any) -> str:
    return msgspec.json.encode(value, order="sorted").decode()
