"""What SQLite says becomes a typed error here, and says whose turn it is to act."""

from __future__ import annotations

import errno

import apsw

from holdfast.contract.errors import (
    Corrupt,
    ForeignDatabase,
    StoreBusy,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
)

# What the driver and the operating system raise; a text column may hold bytes that are no text.
DRIVER_ERRORS = (apsw.Error, OSError, MemoryError, UnicodeDecodeError)
NO_ROOM = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}


def overflowed(failure: apsw.Error) -> bool:
    """Whether a sum left the range of integers: as a float, a STRICT column refuses it."""
    datatype = getattr(failure, "extendedresult", 0) == apsw.SQLITE_CONSTRAINT_DATATYPE
    return datatype or "integer overflow" in str(failure)


def translate(failure: Exception, path: str, system_errno: int = 0) -> Exception:
    """The typed error for what the driver raised, when nothing was committed.

    What neither the driver nor the operating system raised is a defect, and stays what it is.
    """
    reason = f"{type(failure).__name__}: {failure}"
    if not isinstance(failure, DRIVER_ERRORS):
        return failure
    if isinstance(failure, UnicodeDecodeError):
        return Corrupt(table="database", key=path, reason="a text that is not UTF-8")
    if isinstance(failure, apsw.FullError):
        return StoreFull(reason=reason)
    if isinstance(failure, apsw.IOError):
        if system_errno in NO_ROOM:
            return StoreFull(reason=reason)
        return StoreUnreachable(reason=reason)
    if isinstance(failure, apsw.ReadOnlyError):
        return StoreReadOnly(reason=reason)
    if isinstance(failure, apsw.NotADBError):
        return ForeignDatabase(found="a file that is no database", expected="a holdfast store")
    if isinstance(failure, apsw.CorruptError):
        return Corrupt(table="database", key=path, reason=reason)
    if isinstance(failure, apsw.CantOpenError | apsw.PermissionsError | apsw.AuthError):
        return StoreUnreachable(reason=reason)
    if getattr(failure, "extendedresult", 0) == apsw.SQLITE_CONSTRAINT_CHECK:
        return Corrupt(table="database", key=path, reason=f"a number is out of range: {reason}")
    if isinstance(failure, apsw.ConstraintError):
        return Corrupt(table="database", key=path, reason=f"a guard missed a rival: {reason}")
    if isinstance(failure, apsw.SchemaChangeError):
        return StoreBusy(reason=reason)
    if isinstance(failure, apsw.BusyError | apsw.LockedError | apsw.InterruptError):
        return StoreBusy(reason=reason)
    if isinstance(failure, apsw.NoMemError | MemoryError):
        return StoreBusy(reason=reason)
    if isinstance(failure, apsw.SQLError):
        return Corrupt(table="database", key=path, reason=reason)
    return StoreUnreachable(reason=reason)
