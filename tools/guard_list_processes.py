"""The guards of processes: where each stands, what is put in its place, and who should notice."""

from __future__ import annotations

from tools.guard_list import LAWS, POSTGRES, SQLITE, Guard

APPEND = "-- name: processes.append"
FUNCTION = "CREATE FUNCTION {schema}.append_event_v1"
PLACES = "CREATE FUNCTION {schema}.place_changes_v1"
CLAIM, RENEW, RELEASE = (f"-- name: processes.{verb}" for verb in ("claim", "renew", "release"))
GRANT, TRANSFER = "-- name: processes.grant\n", "-- name: processes.transfer"


def _laws(dialect: str, *places: str) -> tuple[str, ...]:
    """The laws that should notice, each as its chapter and its number."""
    mode = "sqlite-blocking" if dialect == "SQLite" else "postgres-async"
    files = dict.fromkeys(place.split()[0] for place in places)
    chosen = " or ".join(f"law_{place.split()[1]}_" for place in places)
    paths = (f"{LAWS}/law_{file}.py" for file in files)
    return (*paths, f"--holdfast-mode={mode}", "-k", chosen)


def _lite(name: str, without: str, inside: str, old: str, new: str, *laws: str) -> Guard:
    tests = _laws("SQLite", *laws)
    return Guard(
        f"process-{name}", "SQLite", without, _file(SQLITE, inside), inside, old, new, tests
    )


def _file(folder: str, inside: str) -> str:
    leases = inside in (CLAIM, RENEW, RELEASE, GRANT, TRANSFER)
    return f"{folder}/processes_leases.sql" if leases else f"{folder}/processes.sql"


def _path(inside: str) -> str:
    made = inside in (FUNCTION, PLACES)
    return f"{POSTGRES}/migrations/0003_processes.sql" if made else _file(POSTGRES, inside)


def _post(name: str, without: str, inside: str, old: str, new: str, *laws: str) -> Guard:
    tests = _laws("PostgreSQL", *laws)
    return Guard(f"process-{name}", "PostgreSQL", without, _path(inside), inside, old, new, tests)


def _raced(name: str, without: str, inside: str, old: str, new: str, *races: str) -> Guard:
    """A guard that a race should notice, or a test beside the races."""
    names = (f"test_race_on_postgres[{race}]" if "test_" not in race else race for race in races)
    tests = tuple(f"tests/test_process_races.py::{test}" for test in names)
    return Guard(f"process-{name}", "PostgreSQL", without, _path(inside), inside, old, new, tests)


KEY = "an event that is sent again is appended again, or fails"
LEASE = "what is sent with a lease is taken without it"
OWNER, TOKEN = "the owner of a lease is not compared", "the token of a lease is not compared"
GENERATION = "the generation of a lease is not compared"
EXPIRY = "a lapsed lease still writes"
ENDED = "a process ends again"
NOBODY = "a process is ended by nobody in particular"
ELSEWHERE = "any process is ended from elsewhere"
HELD = "a process whose holder is alive is abandoned"
BUSY = "a live lease is taken from its holder"
BOUND = "a process that is bound to its owner runs again"
OUTSIDE = "a process that runs elsewhere is claimed"
OVER = "a process that has ended is claimed"
RENEWED = "a lapsed lease is renewed"
STALE = "an old token frees the lease"
SOURCE = "a grant is moved from where it is not"
GONE = "a wake goes into the inbox of a deleted session"
CHANGED = "an event is not in the feed of changes"
BACK = "the lease outlives the process"
SOON = "what has ended just now is pruned"
TENANT = "a process is read across tenants"
LOST = "a signal that was there before the wait wakes nobody"

PROCESS_GUARDS = (
    _lite(
        "key", KEY, APPEND,
        "AND o.process = :process AND o.key = :key -- guard: key",
        "AND o.process = :process AND o.key = :key AND 0",
        "events 171", "ends 178",
    ),
    _lite(
        "lease", LEASE, APPEND,
        "(:lease_token IS NULL OR coalesce(a.lease_ok, 0)) -- guard: lease", "1",
        "ends 191", "leases 191", "events x24",
    ),
    _lite("lease-owner", OWNER, APPEND, "p.lease_owner = :lease_owner AND p.lease_token",
          "p.lease_token", "leases 196"),
    _lite("lease-token", TOKEN, APPEND, "AND p.lease_token = :lease_token\n", "\n", "leases 196"),
    _lite("lease-generation", GENERATION, APPEND,
          "AND p.lease_generation = :lease_generation AND", "AND", "leases 196"),
    _lite("lease-expiry", EXPIRY, APPEND,
          "AND p.lease_expires_at_ms > :now AS lease_ok", "AS lease_ok", "leases 191"),
    _lite(
        "ended", ENDED, APPEND,
        "AND (a.state = 'running' OR :means NOT IN ('ends', 'waits', 'cancels')) -- guard: ended",
        "", "ends 178",
    ),
    _lite("authority", NOBODY, APPEND, "ELSE 0 END -- guard: authority", "ELSE 1 END", "ends 190"),
    _lite("authority-external", ELSEWHERE, APPEND,
          "THEN a.recovery = 'external'\n", "THEN 1\n", "ends 190"),
    _lite(
        "authority-lapse", HELD, APPEND,
        "a.started_at_ms IS NOT NULL\n"
        "        AND (a.lease_token IS NULL OR a.lease_expires_at_ms <= :now)",
        "a.started_at_ms IS NOT NULL", "leases x56",
    ),
    _lite("hand-back", BACK, APPEND, "OR (:appended AND :ends IS NOT NULL))", ")", "leases 191"),
    _lite("wake-deleted", GONE, APPEND,
          "AND t.session = :target AND t.deleted_at_ms IS NULL", "AND t.session = :target",
          "wakes x40"),
    _lite("change", CHANGED, APPEND,
          "SET last_event = :seq, updated_at_ms = :now, change = NULL,",
          "SET last_event = :seq, updated_at_ms = :now,", "feed 193"),
    _lite("lost-wake", LOST, APPEND, "AND o.seq > :wait_after) THEN :now", "AND 0) THEN :now",
          "leases x54"),
    _lite("claim", BUSY, CLAIM, "THEN p.lease_owner = :owner -- guard: busy", "THEN 1",
          "leases 194"),
    _lite("claim-bound", BOUND, CLAIM,
          "ELSE p.recovery <> 'owner-bound' OR p.started_at_ms IS NULL END -- guard: recovery",
          "ELSE 1 END", "leases 201"),
    _lite("claim-external", OUTSIDE, CLAIM, "AND p.recovery IN ('rerunnable', 'owner-bound')\n",
          "\n", "leases 201"),
    _lite("claim-ended", OVER, CLAIM, "AND p.state = 'running' AND", "AND", "leases 200"),
    _lite("renew-expiry", RENEWED, RENEW, "AND p.lease_expires_at_ms > :now -- guard: lease", "",
          "leases 197"),
    _lite("release-token", STALE, RELEASE, "AND p.lease_token = :lease_token\n", "\n",
          "leases 199"),
    _lite("transfer-source", SOURCE, TRANSFER,
          "HAVING count(*) = :processes.n -- guard: granted", "", "grants 151"),
    _lite("prune-time", SOON, "-- name: processes.prune",
          "AND p.updated_at_ms < :before_ms\n  ORDER BY", "\n  ORDER BY", "feed 192"),
    _lite("tenant", TENANT, "-- name: processes.get",
          "WHERE p.tenant = :tenant AND p.process", "WHERE p.process", "strangers x08"),
    _post("key", KEY, FUNCTION, "AND e.key = p_key; -- guard: key", "AND false;", "events 171"),
    _post("lease", LEASE, FUNCTION,
          "IF p_lease_token IS NOT NULL AND NOT v_lease THEN -- guard: lease", "IF false THEN",
          "leases 191"),
    _post("lease-owner", OWNER, FUNCTION,
          "coalesce(v.lease_owner = p_lease_owner AND", "coalesce(", "leases 196"),
    _post("lease-token", TOKEN, FUNCTION,
          "AND v.lease_token = p_lease_token\n", "\n", "leases 196"),
    _post("lease-generation", GENERATION, FUNCTION,
          "AND v.lease_generation = p_lease_generation AND", "AND", "leases 196"),
    _post("lease-expiry", EXPIRY, FUNCTION,
          "AND v.lease_expires_at_ms > v_now, false);", ", false);", "leases 191"),
    _post("ended", ENDED, FUNCTION,
          "IF v.state <> 'running' AND p_means IN ('ends', 'waits', 'cancels') THEN "
          "-- guard: ended",
          "IF false THEN", "ends 178"),
    _post("authority", NOBODY, FUNCTION, "END, false) THEN -- guard: authority", "END, true) THEN",
          "ends 190"),
    _post("authority-external", ELSEWHERE, FUNCTION,
          "WHEN 'external' THEN v.recovery = 'external'", "WHEN 'external' THEN true", "ends 190"),
    _post(
        "authority-lapse", HELD, FUNCTION,
        "v.started_at_ms IS NOT NULL\n"
        "        AND (v.lease_token IS NULL OR v.lease_expires_at_ms <= v_now)",
        "v.started_at_ms IS NOT NULL", "leases x56",
    ),
    _post("hand-back", BACK, FUNCTION, "((v_append AND p_ends IS NOT NULL)\n    OR (",
          "((", "leases 191"),
    _post("change", CHANGED, FUNCTION,
          "SET last_event = v_seq, updated_at_ms = v_now, change = NULL,",
          "SET last_event = v_seq, updated_at_ms = v_now,", "feed 193"),
    _post("lost-wake", LOST, FUNCTION, "AND e.seq > p_wait_after) THEN v_now",
          "AND false) THEN v_now", "leases x54"),
    _post("claim", BUSY, CLAIM, "THEN t.lease_owner = :owner -- guard: busy", "THEN true",
          "leases 194"),
    _post("claim-bound", BOUND, CLAIM,
          "ELSE t.recovery <> 'owner-bound' OR t.started_at_ms IS NULL END -- guard: recovery",
          "ELSE true END", "leases 201"),
    _post("claim-external", OUTSIDE, CLAIM, "AND t.recovery IN ('rerunnable', 'owner-bound')\n",
          "\n", "leases 201"),
    _post("claim-ended", OVER, CLAIM, "AND t.state = 'running'\n", "\n", "leases 200"),
    _post("renew-expiry", RENEWED, RENEW, "AND t.lease_expires_at_ms > t.now", "", "leases 197"),
    _post("release-token", STALE, RELEASE, "AND p.lease_token = :lease_token\n", "\n",
          "leases 199"),
    _post("transfer-source", SOURCE, TRANSFER,
          "HAVING count(*) = :processes.n::bigint -- guard: granted", "", "grants 151"),
    _post("tenant", TENANT, "-- name: processes.get",
          "WHERE p.tenant = :tenant AND p.process", "WHERE :tenant <> '' AND p.process",
          "strangers x08"),
    _raced("lock", "two events get one place", FUNCTION,
           "AND p.identity = p_identity FOR NO KEY UPDATE;", "AND p.identity = p_identity;",
           "append_plain"),
    _raced("parent-lock", "two children get one place in the log of their parent", FUNCTION,
           "    ORDER BY p.process FOR NO KEY UPDATE;", "    ORDER BY p.process;", "children"),
    _raced("parent-lock-order", "a process and its parent are locked in the order of the call",
           FUNCTION, "ORDER BY p.process FOR NO KEY UPDATE;",
           "ORDER BY p.process <> p_process FOR NO KEY UPDATE;",
           "test_processes_are_locked_in_one_order[end]"),
    _raced("target-lock", "a session is deleted between an event and its wake", FUNCTION,
           "AND s.session = p_target\n    FOR NO KEY UPDATE;", "AND s.session = p_target;",
           "wake_delete"),
    _raced("claim-lock", "two owners are granted one lease", CLAIM,
           "WHERE p.tenant = :tenant AND p.process = :process\n  FOR NO KEY UPDATE",
           "WHERE p.tenant = :tenant AND p.process = :process", "claim_claim", "claim_end"),
    _raced("renew-lock", "a lease is renewed that somebody has taken over", RENEW,
           "AND p.lease_generation = :lease_generation FOR NO KEY UPDATE -- guard: lease",
           "AND p.lease_generation = :lease_generation",
           "test_who_waited_is_judged_by_the_time_after[renew]"),
    _raced("grant-session-lock", "a deleted session is granted a process", GRANT,
           "AND s.session = :session FOR KEY SHARE", "AND s.session = :session", "grant_delete"),
    _raced("grant-lock", "a pruned process is granted", GRANT,
           "(SELECT count(*) FROM at) >= 0\n  FOR NO KEY UPDATE", "(SELECT count(*) FROM at) >= 0",
           "prune_append"),
    _raced("register-lock", "a process is registered for a deleted session",
           "-- name: processes.register", "ORDER BY s.session FOR KEY SHARE", "ORDER BY s.session",
           "grant_delete"),
    _raced("transfer-lock", "a grant is moved and taken back", TRANSFER,
           "ORDER BY process FOR UPDATE -- guard: grant-lock", "ORDER BY process",
           "transfer_transfer"),
    _raced("transfer-lock-order", "two transfers lock the same processes in their own orders",
           TRANSFER, "ORDER BY process FOR NO KEY UPDATE",
           "ORDER BY process DESC FOR NO KEY UPDATE",
           "test_processes_are_locked_in_one_order[transfer]"),
    _raced("prune-lock", "an event is left behind by a prune", "-- name: processes.prune",
           "LIMIT :limit FOR UPDATE SKIP LOCKED) x", "LIMIT :limit) x", "prune_append"),
    _raced("clock-lock", "two readers of the feed give the same places", PLACES,
           "WHERE c.tenant = p_tenant FOR UPDATE; -- guard: clock", "WHERE c.tenant = p_tenant;",
           "test_readers_give_different_places"),
    Guard(
        "process-delete-lock", "PostgreSQL", "a delete does not see that another one leaves nobody",
        f"{POSTGRES}/sessions.sql", "-- name: sessions.delete",
        "ORDER BY p.process FOR NO KEY UPDATE", "ORDER BY p.process",
        ("tests/test_process_races.py::test_race_on_postgres[delete_delete]",),
    ),
    Guard(
        "process-clock", "PostgreSQL", "a lease that lapsed during the wait still writes",
        f"{POSTGRES}/migrations/0003_processes.sql", FUNCTION,
        "v_now := {schema}.now_ms();",
        "v_now := (extract(epoch FROM statement_timestamp()) * 1000)::bigint;",
        ("tests/test_process_races.py", "-k", "judged_by_the_time_after"),
    ),
    Guard(
        "process-digest", "both", "a damaged event is handed out",
        "src/holdfast/core/events.py", "def check_digest",
        "if event_digest(tenant, process, *parts) != bytes(digest):", "if False:",
        ("tests/test_guards.py", "-k", "damage"),
    ),
    Guard(
        "process-identity", "both", "a damaged registration is handed out",
        "src/holdfast/core/processes.py", "def registration_of",
        "if process_identity(tenant, process, kept) != identity:", "if False:",
        ("tests/test_guards.py", "-k", "damage"),
    ),
)  # fmt: skip
"""In the order of the page."""
