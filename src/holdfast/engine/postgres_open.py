"""Everything that is asked of a PostgreSQL server before a store on it is used lives here.

A server that loses what it acknowledged is refused, the schema is brought up to date, and whatever
goes wrong is told without the password.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

import asyncpg

from holdfast.contract.errors import (
    HoldfastError,
    Invalid,
    NotSupported,
    StoreBusy,
    StoreUnreachable,
)
from holdfast.engine import postgres_schema
from holdfast.engine.postgres_errors import Failed, Fault, fault_of, reason_of, translated

CONNECT_SECONDS = 10.0
OLDEST_SERVER = 140000
_DRIVER_FAILURES = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)

# The array types of arguments: their ids are fixed in every server, with those of their elements.
_ARRAYS = {
    "bool": (1000, 16),
    "bytea": (1001, 17),
    "int2": (1005, 21),
    "int4": (1007, 23),
    "text": (1009, 25),
    "int8": (1016, 20),
    "float8": (1022, 701),
}


async def know_types(connection: Any) -> None:
    """Tell a new connection what arrays are, so that the driver need not ask.

    Asking costs each connection three round trips, and it sets `jit` for a moment, which behind a
    pooler would happen to somebody else's connection. The way to say so is the driver's own and
    may go away in another version of it; then it asks.
    """
    with suppress(AttributeError, TypeError, KeyError):
        connection._protocol.get_settings().register_data_types(
            [
                {
                    "oid": array,
                    "ns": "pg_catalog",
                    "name": f"_{name}",
                    "kind": b"b",
                    "basetype": None,
                    "elemtype": element,
                    "elemdelim": ",",
                    "range_subtype": None,
                    "attrtypoids": None,
                    "attrnames": None,
                    "elemtype_name": name,
                }
                for name, (array, element) in _ARRAYS.items()
            ]
        )


async def prepare(url: str, schema: str | None, *, migrate: bool, allow_unsafe: bool) -> None:
    """Look at the server and at the schema, on a connection without a time limit."""
    try:
        connection = await asyncpg.connect(
            url,
            timeout=CONNECT_SECONDS,
            statement_cache_size=0,
            server_settings={"application_name": "holdfast"},
        )
    except Exception as failure:
        raise unopened(failure, url) from None
    try:
        standby = await _inspect(connection, allow_unsafe=allow_unsafe)
        if schema is not None and migrate and not standby:
            (await postgres_schema.apply(connection, schema)).require_usable(migrate=False)
        elif schema is not None:
            (await postgres_schema.status(connection, schema)).require_usable(migrate=False)
        await connection.close(timeout=CONNECT_SECONDS)
    except _DRIVER_FAILURES as failure:
        raise unopened(failure, url) from None
    finally:
        connection.terminate()


async def _inspect(connection: Any, *, allow_unsafe: bool) -> bool:
    """Refuse a server that loses what it acknowledged. Returns whether it is a standby."""
    row = await connection.fetchrow(
        "SELECT current_setting('server_version_num')::int AS version,"
        " current_setting('fsync') AS fsync,"
        " current_setting('synchronous_commit') AS synchronous_commit,"
        " pg_is_in_recovery() AS standby"
    )
    if row["version"] < OLDEST_SERVER:
        raise NotSupported(what="this server", reason="PostgreSQL 14 is the oldest one that works")
    if row["fsync"] == "off" and not allow_unsafe:
        raise NotSupported(
            what="fsync=off",
            reason="a power cut would destroy the store; allow_unsafe=True accepts that",
        )
    if row["synchronous_commit"] == "off" and not allow_unsafe:
        warnings.warn(
            "the server has synchronous_commit=off: the last commits are lost when it crashes",
            RuntimeWarning,
            stacklevel=4,
        )
    return bool(row["standby"])


def unopened(failure: Exception, url: str) -> Exception:
    """Why a store cannot be opened. Its text never holds the password, and it has no cause."""
    if isinstance(failure, HoldfastError):
        return failure
    if isinstance(failure, ValueError) and not isinstance(failure, OSError):
        return Invalid(field="url", reason="is not a URL of a PostgreSQL database")
    reason = reason_of(failure)
    try:
        password = urlsplit(url).password
    except ValueError:
        password = None
    for secret in (password, unquote(password or "")):
        if secret:
            reason = reason.replace(secret, "***")
    fault = fault_of(failure)
    if fault in (Fault.LOST, Fault.UNREACHABLE, Fault.DENIED):
        return StoreUnreachable(reason=reason)
    if fault is Fault.BUSY:
        return StoreBusy(reason=reason)
    return translated(Failed(fault, reason), "open", "")
