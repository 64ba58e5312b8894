"""What every facade of one handle works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.contract.limits import Limits
from holdfast.core.payloads import check_int
from holdfast.engine.base import Engine


@dataclass(frozen=True, slots=True)
class View:
    """What every facade of one handle works with."""

    engine: Engine
    tenant: str
    limits: Limits
    new_id: Callable[[], str]

    def page(self, limit: int) -> int:
        """A checked page size."""
        return check_int("limit", limit, 1, self.limits.page)
