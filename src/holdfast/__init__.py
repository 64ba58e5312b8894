"""Holdfast keeps the durable half of an LLM agent in one SQLite file or one PostgreSQL.

Every public name is here, and importing the package loads the contract only: the facades, the
engines and their drivers come with the first store that is opened.
"""

from typing import TYPE_CHECKING, Any

from holdfast.contract.errors import (
    AttachmentUnknown,
    ClaimLost,
    ComponentMissing,
    Corrupt,
    CounterOverflow,
    ForeignDatabase,
    HandleClosed,
    HeadMoved,
    HoldfastError,
    Invalid,
    LaneBusy,
    LaneLost,
    NodeCollision,
    NodeUnknown,
    NotRetained,
    NotSupported,
    OutcomeUnknown,
    Refused,
    SchemaDrift,
    SchemaNewer,
    SchemaOlder,
    SessionDeleted,
    SessionExists,
    SessionUnknown,
    StoreBusy,
    StoreFull,
    StoreMoved,
    StoreReadOnly,
    StoreUnreachable,
    Superseded,
    TooLarge,
    TurnConflict,
    Unavailable,
    WorkNotDead,
    WorkUnknown,
    WrongLoop,
    WrongProcess,
)
from holdfast.contract.limits import Limits
from holdfast.contract.queue import (
    Boundary,
    Claim,
    Claimed,
    ClaimedNext,
    Delivery,
    Enqueued,
    NewWork,
    Slot,
    WakeOrigin,
    Wanted,
    WhyNot,
    Work,
    WorkCounts,
    WorkItem,
    WorkKind,
    WorkState,
)
from holdfast.contract.records import (
    Created,
    Deleted,
    Diff,
    Fence,
    Head,
    History,
    Holder,
    Lane,
    LaneStatus,
    NewNode,
    Node,
    Origin,
    Page,
    Receipt,
    Revision,
    SessionInfo,
    StateRef,
    Turn,
    Usage,
    UsageRow,
    UsageTotal,
    Vacuumed,
    WorkClaim,
)

if TYPE_CHECKING:
    from holdfast.backend import open, open_sync
    from holdfast.stores import Store
    from holdfast.stores_blocking import BlockingStore

    __version__: str

__all__ = [
    "AttachmentUnknown",
    "BlockingStore",
    "Boundary",
    "Claim",
    "ClaimLost",
    "Claimed",
    "ClaimedNext",
    "ComponentMissing",
    "Corrupt",
    "CounterOverflow",
    "Created",
    "Deleted",
    "Delivery",
    "Diff",
    "Enqueued",
    "Fence",
    "ForeignDatabase",
    "HandleClosed",
    "Head",
    "HeadMoved",
    "History",
    "Holder",
    "HoldfastError",
    "Invalid",
    "Lane",
    "LaneBusy",
    "LaneLost",
    "LaneStatus",
    "Limits",
    "NewNode",
    "NewWork",
    "Node",
    "NodeCollision",
    "NodeUnknown",
    "NotRetained",
    "NotSupported",
    "Origin",
    "OutcomeUnknown",
    "Page",
    "Receipt",
    "Refused",
    "Revision",
    "SchemaDrift",
    "SchemaNewer",
    "SchemaOlder",
    "SessionDeleted",
    "SessionExists",
    "SessionInfo",
    "SessionUnknown",
    "Slot",
    "StateRef",
    "Store",
    "StoreBusy",
    "StoreFull",
    "StoreMoved",
    "StoreReadOnly",
    "StoreUnreachable",
    "Superseded",
    "TooLarge",
    "Turn",
    "TurnConflict",
    "Unavailable",
    "Usage",
    "UsageRow",
    "UsageTotal",
    "Vacuumed",
    "WakeOrigin",
    "Wanted",
    "WhyNot",
    "Work",
    "WorkClaim",
    "WorkCounts",
    "WorkItem",
    "WorkKind",
    "WorkNotDead",
    "WorkState",
    "WorkUnknown",
    "WrongLoop",
    "WrongProcess",
    "__version__",
    "open",
    "open_sync",
]

# What comes with the first store that is opened, by the module it lives in.
_LATER = {
    "open": "holdfast.backend",
    "open_sync": "holdfast.backend",
    "Store": "holdfast.stores",
    "BlockingStore": "holdfast.stores_blocking",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        import importlib

        value = getattr(importlib.import_module(_LATER[name]), name)
    elif name == "__version__":
        from importlib.metadata import version

        value = version("holdfast")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
