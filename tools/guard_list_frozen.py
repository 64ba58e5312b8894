"""The guards that only time can test: whoever was frozen past what they held must not write."""

from __future__ import annotations

from tools import guard_list_processes as processes
from tools.guard_list import COMMIT, FUNCTION, MIGRATION, POSTGRES, SQLITE, Guard

FROZEN = "a worker that was frozen past its lane commits when it wakes"
TAKEN = "a worker that was frozen past its claim gives back what another has claimed"
RENEWED = "a worker that was frozen past its lane renews it"
APPENDED = "a worker that was frozen past its lease appends and ends when it wakes"
KEPT = "a worker that was frozen past its lease renews it"
FREED = "a worker that was frozen past its lease frees that of another"
LEASES = "processes_leases.sql"


def _frozen(database: str, holds: str = "workers") -> tuple[str, ...]:
    return (f"tests/test_frozen_{holds}.py", "-k", database)


FROZEN_GUARDS = (
    Guard(
        "frozen-fence", "SQLite", FROZEN, f"{SQLITE}/sessions_turn.sql", COMMIT,
        "ELSE s.lane_owner = :fence_owner AND s.lane_token = :fence_token\n"
        "        AND s.lane_generation = :fence_generation\n"
        "        AND s.lane_expires_at_ms > :now END -- guard: fence",
        "ELSE 1 END", _frozen("sqlite"),
    ),
    Guard(
        "frozen-fence", "PostgreSQL", FROZEN, MIGRATION, FUNCTION,
        "CONTINUE WHEN (v.lane_owner = p_fence_owner[v.ord]"
        " AND v.lane_token = p_fence_token[v.ord]\n"
        "        AND v.lane_generation = p_fence_generation[v.ord]\n"
        "        AND v.lane_expires_at_ms > v_now) IS NOT TRUE; -- guard: fence",
        "NULL;", _frozen("postgres"),
    ),
    Guard(
        "frozen-claim", "SQLite", TAKEN, f"{SQLITE}/queue.sql", "-- name: queue.abandon",
        "w.claim = :claim AND w.state = 'claimed'\n    AND w.claim_token = :claim_token\n",
        "w.state = 'claimed'\n", _frozen("sqlite"),
    ),
    Guard(
        "frozen-claim", "PostgreSQL", TAKEN, f"{POSTGRES}/queue.sql", "-- name: queue.abandon",
        "AND w.claim = :claim\n    AND w.state = 'claimed' AND w.claim_token = :claim_token\n",
        "AND w.state = 'claimed'\n", _frozen("postgres"),
    ),
    Guard(
        "frozen-renewal", "SQLite", RENEWED, f"{SQLITE}/lanes.sql", "-- name: lanes.renew",
        "AND s.lane_owner = :fence_owner AND s.lane_token = :fence_token\n"
        "  AND s.lane_generation = :fence_generation AND s.lane_expires_at_ms > :now",
        "", _frozen("sqlite"),
    ),
    Guard(
        "frozen-renewal", "PostgreSQL", RENEWED, f"{POSTGRES}/lanes.sql", "-- name: lanes.renew",
        "    AND s.lane_owner = :fence_owner AND s.lane_token = :fence_token\n"
        "    AND s.lane_generation = :fence_generation\n",
        "", _frozen("postgres"),
    ),
    Guard(
        "frozen-lease", "SQLite", APPENDED, f"{SQLITE}/processes.sql", processes.APPEND,
        "(:lease_token IS NULL OR coalesce(a.lease_ok, 0)) -- guard: lease", "1",
        _frozen("sqlite", "leases"),
    ),
    Guard(
        "frozen-lease", "PostgreSQL", APPENDED, f"{POSTGRES}/migrations/0003_processes.sql",
        processes.FUNCTION,
        "IF p_lease_token IS NOT NULL AND NOT v_lease THEN -- guard: lease", "IF false THEN",
        _frozen("postgres", "leases"),
    ),
    Guard(
        "frozen-lease-renewal", "SQLite", KEPT, f"{SQLITE}/{LEASES}", processes.RENEW,
        "\n  AND p.lease_owner = :lease_owner AND p.lease_token = :lease_token\n"
        "  AND p.lease_generation = :lease_generation AND p.lease_expires_at_ms > :now"
        " -- guard: lease",
        "", _frozen("sqlite", "leases"),
    ),
    Guard(
        "frozen-lease-renewal", "PostgreSQL", KEPT, f"{POSTGRES}/{LEASES}", processes.RENEW,
        "    AND p.lease_owner = :lease_owner AND p.lease_token = :lease_token\n"
        "    AND p.lease_generation = :lease_generation FOR",
        "    FOR", _frozen("postgres", "leases"),
    ),
    Guard(
        "frozen-lease-release", "SQLite", FREED, f"{SQLITE}/{LEASES}", processes.RELEASE,
        "\n  AND p.lease_owner = :lease_owner AND p.lease_token = :lease_token\n"
        "  AND p.lease_generation = :lease_generation -- guard: lease",
        "", _frozen("sqlite", "leases"),
    ),
    Guard(
        "frozen-lease-release", "PostgreSQL", FREED, f"{POSTGRES}/{LEASES}", processes.RELEASE,
        "\n  AND p.lease_owner = :lease_owner AND p.lease_token = :lease_token\n"
        "  AND p.lease_generation = :lease_generation -- guard: lease",
        "", _frozen("postgres", "leases"),
    ),
)  # fmt: skip
