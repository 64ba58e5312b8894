"""Everything that knows what a PostgreSQL driver error means lives here.

An error is sorted by one question: is it known that nothing was done? A `Fault` is the answer, and
whoever ran the statement adds whether it could have been done all the same (`ambiguous`). What is
not known is treated like a lost connection, because the driver raises bare exceptions without a
code when a server goes away, also at COMMIT.
"""

from __future__ import annotations

from enum import Enum

import asyncpg
from asyncpg.exceptions._base import DataError as EncodeError

from holdfast.contract.errors import (
    Corrupt,
    CounterOverflow,
    ForeignDatabase,
    Invalid,
    NotSupported,
    StoreBusy,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
)
from holdfast.sql.catalog import CatalogError


class Fault(Enum):
    """What a failed statement means."""

    CONFLICT = "rivals collided: nothing was done, run it again"
    LOCKED = "a lock was not given in time: nothing was done, run it again"
    LOST = "the connection is of no use any more"
    UNREACHABLE = "no connection could be made"
    DUPLICATE = "a unique guard refused it"
    OVERFLOW = "a number left its range"
    DATA = "a value does not fit"
    BUSY = "the server has no room for it now"
    FULL = "the disk is full"
    READ_ONLY = "the server does not accept writes"
    DENIED = "the role may not do it"
    FOREIGN = "the tables are not the ones of a store"
    CORRUPT = "stored data is damaged"
    DEFECT = "the statement itself is wrong"


AGAIN = frozenset({Fault.CONFLICT, Fault.LOCKED, Fault.LOST, Fault.UNREACHABLE})
SINGLE_OUT = frozenset({Fault.DUPLICATE, Fault.OVERFLOW, Fault.DATA, Fault.LOCKED})
DISCARD = frozenset({Fault.LOST, Fault.READ_ONLY})

_BY_STATE = {
    "40001": Fault.CONFLICT,
    "40P01": Fault.CONFLICT,
    "55P03": Fault.LOCKED,
    "23505": Fault.DUPLICATE,
    "22003": Fault.OVERFLOW,
    "25006": Fault.READ_ONLY,
    "53100": Fault.FULL,
    "57014": Fault.BUSY,
    "42501": Fault.DENIED,
    "42P01": Fault.FOREIGN,
    "42703": Fault.FOREIGN,
    "42883": Fault.FOREIGN,
    "3F000": Fault.FOREIGN,
    "3D000": Fault.UNREACHABLE,
    "57P03": Fault.UNREACHABLE,
    "XX001": Fault.CORRUPT,
    "XX002": Fault.CORRUPT,
}
_BY_CLASS = {
    "08": Fault.LOST,
    "0A": Fault.DEFECT,
    "21": Fault.DATA,
    "22": Fault.DATA,
    "23": Fault.DATA,
    "28": Fault.UNREACHABLE,
    "42": Fault.DEFECT,
    "53": Fault.BUSY,
    "54": Fault.DATA,
    "P0": Fault.DEFECT,
}


class Failed(Exception):
    """A statement failed. `ambiguous` means that it may have been done nevertheless"""

    def __init__(self, fault: Fault, reason: str, *, ambiguous: bool = False) -> None:
        super().__init__(fault, reason)
        self.fault = fault
        self.reason = reason
        self.ambiguous = ambiguous
        self.operation = ""

    def copy(self) -> Failed:
        """The same failure, for another waiting caller."""
        return Failed(self.fault, self.reason, ambiguous=self.ambiguous)


def fault_of(failure: BaseException) -> Fault:
    """Sort an exception of the driver or of the operating system."""
    if isinstance(failure, (asyncpg.DataError, EncodeError)) and "out of int" in str(failure):
        # Raised by the driver while it encodes; the server has a code of its own for this.
        return Fault.OVERFLOW
    if isinstance(failure, asyncpg.InvalidCachedStatementError):
        return Fault.CONFLICT
    state = getattr(failure, "sqlstate", None)
    if isinstance(state, str):
        # The driver's own errors carry no code; they fall through to what is not known.
        return _BY_STATE.get(state) or _BY_CLASS.get(state[:2], Fault.LOST)
    if isinstance(failure, EncodeError):
        return Fault.DATA
    return Fault.LOST


def reason_of(failure: BaseException) -> str:
    """A short text for people, with no value of a connection string in it."""
    state = getattr(failure, "sqlstate", None)
    if isinstance(state, str):
        return f"{state}: {getattr(failure, 'message', None) or str(failure)[:200]}"
    if isinstance(failure, TimeoutError):
        return "no answer in time"
    if isinstance(failure, EncodeError):
        return str(failure)[:200]
    if isinstance(failure, OSError) and failure.strerror:
        return failure.strerror
    return type(failure).__name__


def translated(failed: Failed, block: str, key: str) -> Exception:
    """What the caller is told, when nothing more can be tried."""
    reason = failed.reason
    match failed.fault:
        case Fault.LOST | Fault.UNREACHABLE:
            return StoreUnreachable(reason=reason)
        case Fault.CONFLICT | Fault.LOCKED | Fault.BUSY:
            return StoreBusy(reason=reason)
        case Fault.FULL:
            return StoreFull(reason=reason)
        case Fault.READ_ONLY:
            return StoreReadOnly(reason=reason)
        case Fault.OVERFLOW:
            return CounterOverflow(counter=block, key=key)
        case Fault.DENIED:
            return NotSupported(what=block, reason=reason)
        case Fault.FOREIGN:
            return ForeignDatabase(found=reason, expected="the tables of a holdfast store")
        case Fault.CORRUPT:
            return Corrupt(table=block, key=key, reason=reason)
        case Fault.DEFECT:
            return CatalogError(f"{block}: {reason}")
        case Fault.DATA | Fault.DUPLICATE:
            return Invalid(field=block, reason=reason)
