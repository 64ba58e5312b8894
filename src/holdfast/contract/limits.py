"""Every limit of the store is written down here, once, with its default.

A limit is checked before a transaction begins; what is over it is a `TooLarge` that names the
field, the limit and the size found.
"""

from __future__ import annotations

import msgspec

MAX_INT = 2**63 - 1
MAX_DEPTH = 128
MAX_ID_CHARS = 200
# Forks of forks: how many sessions a path may go through.
MAX_LINEAGE = 10_000
MAX_LANE_TTL_MS = 7 * 24 * 3600 * 1000
# How far ahead work may be put off, and how long its key may be kept.
MAX_DELAY_MS = 3660 * 24 * 3600 * 1000
# The year 9999, in which calendars end.
MAX_TIME_MS = 253_370_764_800_000
MIN_INTERVAL_MS = 1000
MAX_CRON_CHARS = 200
# The key of an occurrence has room for the id of its schedule and an instant.
MAX_SCHEDULE_CHARS = 160
# How many missed instants of a schedule may be made up for at once.
MAX_CATCH_UP = 10_000


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one store handle accepts."""

    commit_bytes: int = 16 * 1024 * 1024
    commit_rows: int = 4096
    payload_bytes: int = 16 * 1024 * 1024
    components: int = 1024
    tags: int = 64
    text_chars: int = 2000
    page: int = 1000
    window: int = 100_000
    claim: int = 256
    declared: int = 256
