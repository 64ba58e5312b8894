"""The part of JSON Schema that a declared type of event may use, and what it says of a payload.

Keywords that are not listed in `KEYWORDS` are ignored, as JSON Schema has it; but where properties
are declared, a property that is not is refused, unless `additionalProperties` allows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.contract.errors import Invalid

KEYWORDS = (
    "anyOf", "oneOf", "enum", "type", "minimum", "maximum", "minLength", "maxLength", "minItems",
    "maxItems", "items", "required", "properties", "additionalProperties",
)  # fmt: skip
_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}
_BOUNDS = ("minimum", "maximum")
_SIZES = ("minLength", "maxLength", "minItems", "maxItems")
Offence = tuple[str, str]


def check_schema(field: str, schema: Any) -> None:
    """Refuse a schema whose known keywords have values that mean nothing."""
    if schema is None or isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise Invalid(field=field, reason=f"a schema is an object, not {type(schema).__name__}")
    _check_keywords(field, schema)
    for key in ("anyOf", "oneOf"):
        for at, inner in enumerate(schema.get(key, ())):
            check_schema(f"{field}.{key}[{at}]", inner)
    for key in ("items", "additionalProperties"):
        check_schema(f"{field}.{key}", schema.get(key))
    for name, inner in schema.get("properties", {}).items():
        check_schema(f"{field}.properties.{name}", inner)


def _check_keywords(field: str, schema: dict[str, Any]) -> None:
    kinds: dict[str, tuple[type, ...]] = {
        **dict.fromkeys(("anyOf", "oneOf", "enum", "required"), (list,)),
        **dict.fromkeys(_BOUNDS, (int, float)),
        **dict.fromkeys(_SIZES, (int,)),
        "type": (str, list),
        "properties": (dict,),
    }
    for key, kind in kinds.items():
        if key in schema and (
            not isinstance(schema[key], kind)
            or (isinstance(schema[key], bool) and bool not in kind)
        ):
            names = " or ".join(one.__name__ for one in kind)
            raise Invalid(field=f"{field}.{key}", reason=f"{names} is wanted")
    for key in ("required", "type"):
        if any(not isinstance(name, str) for name in schema.get(key, ())):
            raise Invalid(field=f"{field}.{key}", reason="it lists names")


def offence(path: str, schema: Any, value: Any) -> Offence | None:
    """The first thing a schema has against a value: the path of the offender, and what is wrong."""
    return next(_offences(path, schema, value), None)


def _offences(path: str, schema: Any, value: Any) -> Iterator[Offence]:
    if schema is None or schema is True:
        return
    if schema is False:
        yield path, "nothing is allowed here"
        return
    for key in ("anyOf", "oneOf"):
        if key in schema:
            if all(offence(path, inner, value) for inner in schema[key]):
                yield path, f"it is none of what {key} lists"
            return
    if "enum" in schema and not any(_equal(one, value) for one in schema["enum"]):
        yield path, "it is none of the values that are listed"
    names = schema.get("type")
    if names is not None:
        names = [names] if isinstance(names, str) else names
        if not any(_is_of(value, name) for name in names):
            yield path, f"{' or '.join(map(str, names))} is wanted"
    yield from _amounts(path, schema, value)
    if isinstance(value, list):
        for at, item in enumerate(value):
            yield from _offences(f"{path}[{at}]", schema.get("items"), item)
    elif isinstance(value, dict):
        yield from _properties(path, schema, value)


def _equal(one: Any, other: Any) -> bool:
    """JSON has no 1 that is True."""
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return bool(one == other)


def _is_of(value: Any, name: str) -> bool:
    kinds = _TYPES.get(name)
    if kinds is None:
        return True
    return isinstance(value, kinds) and (not isinstance(value, bool) or name == "boolean")


def _amounts(path: str, schema: dict[str, Any], value: Any) -> Iterator[Offence]:
    amount: int | float | None = None
    low, high = _BOUNDS
    if isinstance(value, int | float) and not isinstance(value, bool):
        amount = value
    elif isinstance(value, str):
        amount, low, high = len(value), "minLength", "maxLength"
    elif isinstance(value, list):
        amount, low, high = len(value), "minItems", "maxItems"
    if amount is None:
        return
    if low in schema and amount < schema[low]:
        yield path, f"{amount} is below {low} {schema[low]}"
    if high in schema and amount > schema[high]:
        yield path, f"{amount} is above {high} {schema[high]}"


def _properties(path: str, schema: dict[str, Any], value: dict[str, Any]) -> Iterator[Offence]:
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name}", "it is required"
    declared = schema.get("properties", {})
    others = schema.get("additionalProperties", "properties" not in schema)
    for name, inner in value.items():
        wanted = declared.get(name, others)
        if wanted is False and name not in declared:
            yield f"{path}.{name}", "no such property is declared"
        else:
            yield from _offences(f"{path}.{name}", wanted, inner)
