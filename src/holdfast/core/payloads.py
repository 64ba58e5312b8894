"""What may be stored, and how it becomes bytes: one data-only codec, checked at the door.

A JSON value is checked before it is encoded, because an encoder that is handed NaN or a lone
surrogate does something silently. The path of the offender is part of the refusal.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
import threading
from typing import Any, Final

import msgspec

from holdfast.contract.errors import Corrupt, Invalid, TooLarge
from holdfast.contract.limits import MAX_DEPTH, MAX_ID_CHARS, MAX_INT

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

RAW, ZSTD = 0, 1
COMPRESS_FROM_BYTES = 512
# Compression must save an eighth, or reading pays for nothing.
WORTH = 7 / 8

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+=~-]*\Z")
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_PLAIN = (str, int, float, bool, type(None))
_encoder = msgspec.json.Encoder()
_WHOLE: Final = zstd.ZstdCompressor.FLUSH_FRAME


class _Compressors(threading.local):
    """One for each thread: making one costs as much as compressing a small payload."""

    def __init__(self) -> None:
        self.mine = zstd.ZstdCompressor(level=1)


_compressors = _Compressors()


def check_id(field: str, value: object) -> str:
    """An id: a short ASCII string without surprises."""
    if type(value) is str and len(value) <= MAX_ID_CHARS and _ID.match(value):
        return value
    if not isinstance(value, str):
        raise Invalid(field=field, reason=f"an id is a string, not {type(value).__name__}")
    if not value or len(value) > MAX_ID_CHARS:
        raise Invalid(field=field, reason=f"an id has 1 to {MAX_ID_CHARS} characters")
    if not _ID.match(value):
        raise Invalid(
            field=field,
            reason="an id starts with a letter or digit and goes on with those and ._:@/+=~-",
        )
    return value


def check_text(field: str, value: object, limit: int) -> str:
    """A short text for people: no control characters, no lone surrogates, bounded."""
    if not isinstance(value, str):
        raise Invalid(field=field, reason=f"a text is a string, not {type(value).__name__}")
    if len(value) > limit:
        raise TooLarge(field=field, actual=len(value), limit=limit)
    if _CONTROL.search(value) or _SURROGATE.search(value):
        raise Invalid(field=field, reason="a text has no control characters and no surrogates")
    return value


def check_int(field: str, value: object, low: int = 0, high: int = MAX_INT) -> int:
    """An integer in a range."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise Invalid(field=field, reason=f"an integer is wanted, not {type(value).__name__}")
    if not low <= value <= high:
        raise Invalid(field=field, reason=f"{value} is not between {low} and {high}")
    return value


def encode(field: str, value: Any, limit: int) -> bytes:
    """The bytes to store for a payload: bytes as they are, anything else as JSON."""
    if isinstance(value, bytes):
        data = value
    else:
        _check_json(field, value)
        data = _encoder.encode(value)
    if len(data) > limit:
        raise TooLarge(field=field, actual=len(data), limit=limit)
    return data


def _check_json(field: str, value: Any) -> None:
    """Walk the value without recursion and refuse what JSON, or the other database, would change.

    An entry of the stack is (value, parent path entry, own key, depth); the path is put together
    only for a refusal.
    """
    stack: list[tuple[Any, Any, Any, int]] = [(value, None, None, 0)]
    while stack:
        entry = stack.pop()
        item, _, _, depth = entry
        kind = type(item)
        if kind is str:
            if not item.isascii() and _SURROGATE.search(item):
                raise Invalid(field=_path(field, entry), reason="a lone surrogate is not text")
        elif kind is int:
            if not -MAX_INT - 1 <= item <= MAX_INT:
                raise Invalid(field=_path(field, entry), reason="an integer beyond 64 bits")
        elif kind is float:
            if not math.isfinite(item):
                raise Invalid(field=_path(field, entry), reason=f"{item} is not JSON")
        elif kind is dict:
            if depth >= MAX_DEPTH:
                raise Invalid(field=_path(field, entry), reason=f"more than {MAX_DEPTH} levels")
            for key, inner in item.items():
                if type(key) is not str:
                    raise Invalid(
                        field=_path(field, entry),
                        reason=f"a key is a string, not {type(key).__name__}",
                    )
                if not key.isascii() and _SURROGATE.search(key):
                    raise Invalid(field=_path(field, entry), reason="a lone surrogate in a key")
                stack.append((inner, entry, key, depth + 1))
        elif kind is list or kind is tuple:
            if depth >= MAX_DEPTH:
                raise Invalid(field=_path(field, entry), reason=f"more than {MAX_DEPTH} levels")
            stack.extend((inner, entry, index, depth + 1) for index, inner in enumerate(item))
        elif kind is not bool and item is not None:
            raise Invalid(field=_path(field, entry), reason=f"{kind.__name__} is not JSON")


def _path(field: str, entry: tuple[Any, Any, Any, int]) -> str:
    steps: list[str] = []
    while entry[1] is not None:
        key = entry[2]
        if isinstance(key, int):
            steps.append(f"[{key}]")
        else:
            shown = key.encode("ascii", "backslashreplace").decode()
            steps.append(f".{shown}")
        entry = entry[1]
    return field + "".join(reversed(steps))


def node_digest(tenant: str, session: str, node: str, kind: str, body: bytes) -> bytes:
    """What proves a node's row: its identity and its body."""
    seal = hashlib.blake2b(f"{tenant}\0{session}\0{node}\0{kind}\0".encode(), digest_size=16)
    seal.update(body)
    return seal.digest()


def content_digest(data: bytes) -> bytes:
    """The name of content."""
    return hashlib.sha256(data).digest()


def pack(data: bytes) -> tuple[int, bytes]:
    """The encoding and the bytes to store: compressed when it is worth it."""
    if len(data) >= COMPRESS_FROM_BYTES:
        packed = _compressors.mine.compress(data, _WHOLE)
        if len(packed) < len(data) * WORTH:
            return ZSTD, packed
    return RAW, data


def unpack(digest: bytes, encoding: int, size: int, data: bytes) -> bytes:
    """The content of a stored blob, proved by its name. A bomb is stopped at the stated size."""
    key = digest.hex()
    opened: bytes
    if size < 0:
        raise Corrupt(table="blob", key=key, reason="its size is negative")
    if encoding == ZSTD:
        try:
            opened = zstd.ZstdDecompressor().decompress(data, max_length=size + 1)
        except zstd.ZstdError as broken:
            raise Corrupt(table="blob", key=key, reason="it cannot be decompressed") from broken
    else:
        opened = data
    if len(opened) != size or content_digest(opened) != digest:
        raise Corrupt(table="blob", key=key, reason="the content does not match its digest")
    return opened
