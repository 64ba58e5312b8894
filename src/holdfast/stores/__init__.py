"""The facades users call: each method checks its arguments and runs one operation.

The blocking twins in `stores_blocking/` are generated from this room, file by file.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from holdfast.stores.history import HistoryNodes
from holdfast.stores.lanes import Lanes
from holdfast.stores.processes import Processes
from holdfast.stores.queue import Queue
from holdfast.stores.schedules import Schedules
from holdfast.stores.sessions import Sessions
from holdfast.stores.triggers import Triggers
from holdfast.stores.usage import UsageLedger
from holdfast.stores.view import View
from holdfast.stores.waits import Waits

__all__ = ["Store", "View"]


class Store:
    """One tenant's view of one database."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.sessions = Sessions(view)
        self.history = HistoryNodes(view)
        self.lanes = Lanes(view)
        self.usage = UsageLedger(view)
        self.queue = Queue(view)
        self.processes = Processes(view)
        self.triggers = Triggers(view)
        self.schedules = Schedules(view)
        self.waits = Waits(view)

    @property
    def tenant(self) -> str:
        """The tenant whose rows this handle sees, and no others."""
        return self._view.tenant

    def on(self, connection: Any) -> Store:
        """The same store inside the caller's own transaction, where the database allows it."""
        view = self._view
        inside = view.engine.on(connection)
        return Store(View(inside, view.tenant, view.limits, view.new_id))

    async def close(self) -> None:
        """Finish what is under way, then let go of the database. May be called twice."""
        await self._view.engine.close()

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
