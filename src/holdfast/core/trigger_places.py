"""What a listing of subscriptions, occurrences and deliveries asks for, and where it goes on."""

from __future__ import annotations

from typing import Any

from holdfast.contract.errors import Invalid
from holdfast.contract.limits import MAX_INT
from holdfast.contract.triggers import OccurrenceFilter, SubscriptionFilter
from holdfast.core.payloads import check_id, check_text


def check_filter(which: SubscriptionFilter | None) -> dict[str, Any]:
    """What a listing of subscriptions asks for, as parameters."""
    which = SubscriptionFilter() if which is None else which
    if which.enabled not in (None, True, False):
        raise Invalid(field="which.enabled", reason="it is True, False, or left out")
    named = {
        name: None if value is None else check_id(f"which.{name}", value)
        for name, value in (
            ("session", which.session),
            ("source_type", which.source_type),
            ("source_key", which.source_key),
        )
    }
    if which.name is not None:
        check_text("which.name", which.name, MAX_INT)
    return {**named, "name": which.name, "enabled": which.enabled}


def check_sources(which: OccurrenceFilter | None) -> dict[str, Any]:
    """What a listing of occurrences asks for, as parameters."""
    which = OccurrenceFilter() if which is None else which
    return {
        name: None if value is None else check_id(f"which.{name}", value)
        for name, value in (("source_type", which.source_type), ("source_key", which.source_key))
    }


def check_place(after: str | None, parts: int) -> tuple[str, ...]:
    """The cursor of a listing: ids, of which the owner's may be empty, with spaces between."""
    if after is None:
        return ("",) * parts
    found = tuple(after.split(" "))
    if len(found) != parts:
        raise Invalid(field="after", reason="this is not a cursor of this listing")
    for part in found:
        if part:
            check_id("after", part)
    return found


def place_of(*parts: str) -> str:
    """The cursor that goes on behind a row."""
    return " ".join(parts)


def check_moment(after: str | None) -> tuple[int, str]:
    """The cursor of a listing in the order of time."""
    if after is None:
        return -MAX_INT - 1, ""
    at_ms, dot, occurrence = after.partition(".")
    if not (dot and at_ms.isascii() and at_ms.isdigit() and int(at_ms) <= MAX_INT):
        raise Invalid(field="after", reason="this is not a cursor of this listing")
    return int(at_ms), check_id("after", occurrence)
