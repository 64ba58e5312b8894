"""Holdfast keeps the durable half of an LLM agent in one SQLite file or one PostgreSQL."""

from holdfast.backend import open, open_sync
from holdfast.contract import errors
from holdfast.contract.errors import *  # noqa: F403
from holdfast.contract.limits import Limits
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
