"""The guards of triggers that laws notice; those that races and damage notice are elsewhere."""

from __future__ import annotations

from tools.guard_list import LAWS, POSTGRES, SQLITE, Guard

CHANGE, RECORD = "-- name: triggers.change", "-- name: triggers.record\n"
MATCH, UNRESERVED = "-- name: triggers.match", "-- name: triggers.unreserved"
INGEST = "-- name: triggers.ingest"
GET, PRUNE = "-- name: triggers.get", "-- name: triggers.prune"
DELETE = "-- name: sessions.delete"
KEY = "CREATE UNIQUE INDEX trigger_occurrence_key"
CHANGED = "CREATE FUNCTION {schema}.change_subscription_v1"
DELIVERED = "CREATE FUNCTION {schema}.deliver_v1"


def _guard(
    dialect: str, name: str, without: str, inside: str, old: str, new: str, laws: tuple[str, ...]
) -> Guard:
    """A guard, with the laws that should notice, each as its chapter and its number."""
    mode, folder = "postgres-async", POSTGRES
    if dialect == "SQLite":
        mode, folder = "sqlite-blocking", SQLITE
    files = {
        KEY: "migrations/0004_triggers.sql",
        CHANGED: "migrations/0004_triggers.sql",
        DELIVERED: "migrations/0004_triggers.sql",
        DELETE: "sessions.sql",
    }
    chapters = dict.fromkeys(f"{LAWS}/law_{law.split()[0]}.py" for law in laws)
    chosen = " or ".join(f"law_{law.split()[1]}_" for law in laws)
    tests = (*chapters, f"--holdfast-mode={mode}", "-k", chosen)
    path = f"{folder}/{files.get(inside, 'triggers.sql')}"
    return Guard(f"trigger-{name}", dialect, without, path, inside, old, new, tests)


def _lite(name: str, without: str, inside: str, old: str, new: str, *laws: str) -> Guard:
    return _guard("SQLite", name, without, inside, old, new, laws)


def _post(name: str, without: str, inside: str, old: str, new: str, *laws: str) -> Guard:
    return _guard("PostgreSQL", name, without, inside, old, new, laws)


RECORDED = "what happened is recorded again, or fails"
REPLAYED = "what was ingested is ingested again, or fails"
DELIVERY = "a delivery is reserved again, or fails"
DISABLED = "a disabled rule is delivered to"
AGAIN = "an operation is done twice"
MEANT = "an operation is answered with what another one came to"
UNSEEN = "a rule is replaced by somebody who has not seen it"
MOVED = "a rule is changed by somebody who has not seen it"
GONE = "a rule is registered for a deleted session"
TAKEN = "a delivery is told that it has started the process of another"
GRANT = "a deleted session is granted a process"
RESERVED = "what is reserved is pruned"
RUNNING = "what still runs is pruned"
TENANT = "a rule is read across tenants"
LEFT = "what was reserved for a deleted session is started"
KEPT = "the rules of a deleted session stay"

TRIGGER_LAW_GUARDS = (
    _lite(
        "occurrence-key", RECORDED, RECORD,
        "WHERE o.tenant = :tenant AND o.key = :key)", "WHERE 0)", "occurrences 212",
    ),
    _lite("ingest-key", REPLAYED, MATCH, "AND o.key = :occurrence_key", "AND 0",
          "occurrences 218"),
    _lite("delivery", DELIVERY, UNRESERVED, "AND d.subscription = s.subscription)",
          "AND d.subscription = s.subscription AND 0)", "occurrences 205"),
    _lite("enabled", DISABLED, MATCH, "AND s.deleted_at_ms IS NULL AND s.enabled",
          "AND s.deleted_at_ms IS NULL", "triggers 207"),
    _lite("enabled-reserve", DISABLED, UNRESERVED, "AND s.deleted_at_ms IS NULL AND s.enabled",
          "AND s.deleted_at_ms IS NULL", "triggers 207"),
    _lite(
        "receipt", AGAIN, CHANGE,
        "WHEN r.intent IS NOT NULL THEN CASE WHEN r.intent = :intent THEN 'replay' END\n", "",
        "receipts j07",
    ),
    _lite("receipt-intent", MEANT, CHANGE, "WHEN r.intent = :intent THEN", "WHEN 1 THEN",
          "receipts j08"),
    _lite("revision", UNSEEN, CHANGE, "WHEN :expected = s.revision THEN 'update' END",
          "ELSE 'update' END", "triggers j02"),
    _lite("expected", MOVED, CHANGE, "WHEN :expected <> s.revision THEN NULL -- guard: expected",
          "", "triggers j04"),
    _lite("owner-deleted", GONE, CHANGE,
          "WHEN o.deleted_at_ms IS NOT NULL THEN NULL -- guard: owner", "", "triggers j09"),
    _lite("taken", TAKEN, INGEST, "p.identity <> :deliveries.identity", "0", "occurrences j27"),
    _lite("grant-deleted", GRANT, INGEST,
          "AND s.session = :grants.session AND s.deleted_at_ms IS NOT NULL", "AND 0",
          "deliveries j21"),
    _lite("prune-reserved", RESERVED, PRUNE, "d.state = 'reserved' OR (", "(", "occurrences 219"),
    _lite("prune-running", RUNNING, PRUNE,
          " OR (p.state = 'running' AND p.pruned_at_ms IS NULL)", "", "occurrences 219"),
    _lite("tenant-get", TENANT, GET, "WHERE s.tenant = :tenant AND s.owner_session",
          "WHERE s.owner_session", "receipts j13"),
    _lite("deleted-reserved", LEFT, DELETE,
          "AND owner_session = :session AND state = 'reserved'", "AND 0", "deliveries j22"),
    _lite("deleted-rules", KEPT, DELETE,
          "trigger_subscription WHERE tenant = :tenant AND owner_session = :session\n",
          "trigger_subscription WHERE 0\n", "triggers 216"),
    _post("occurrence-key", RECORDED, KEY, "CREATE UNIQUE INDEX", "CREATE INDEX",
          "occurrences 212"),
    _post("ingest-key", REPLAYED, MATCH, "AND o.key = :occurrence_key", "AND false",
          "occurrences 218"),
    _post("enabled", DISABLED, MATCH, "AND s.deleted_at_ms IS NULL AND s.enabled",
          "AND s.deleted_at_ms IS NULL", "triggers 207"),
    _post("enabled-reserve", DISABLED, UNRESERVED, "AND s.deleted_at_ms IS NULL AND s.enabled",
          "AND s.deleted_at_ms IS NULL", "triggers 207"),
    _post("receipt-intent", MEANT, CHANGED, "WHEN v_intent = p_intent THEN", "WHEN true THEN",
          "receipts j08"),
    _post("revision", UNSEEN, CHANGED, "WHEN p_expected = v.revision THEN 'update' END",
          "ELSE 'update' END", "triggers j02"),
    _post("expected", MOVED, CHANGED, "WHEN p_expected <> v.revision THEN NULL -- guard: expected",
          "", "triggers j04"),
    _post("owner-deleted", GONE, CHANGED, "IF v_gone THEN -- guard: owner", "IF false THEN",
          "triggers j09"),
    _post("taken", TAKEN, DELIVERED, "AND p.identity <> x.identity", "AND false",
          "occurrences j27"),
    _post("grant-deleted", GRANT, DELIVERED,
          "AND s.session = x.session AND s.deleted_at_ms IS NOT NULL", "AND false",
          "deliveries j21"),
    Guard(
        "trigger-delivery", "PostgreSQL", DELIVERY, f"{POSTGRES}/migrations/0004_triggers.sql",
        DELIVERED, "    ON CONFLICT DO NOTHING\n    RETURNING d.*", "    RETURNING d.*",
        ("tests/test_trigger_races.py::test_race[postgres-one_reservation]",),
    ),
    _post("deleted-reserved", LEFT, DELETE,
          "AND owner_session = :session AND state = 'reserved'", "AND false", "deliveries j22"),
    _post("deleted-rules", KEPT, DELETE,
          "trigger_subscription WHERE tenant = :tenant AND owner_session = :session\n",
          "trigger_subscription WHERE false\n", "triggers 216"),
    _post("tenant-get", TENANT, GET, "WHERE s.tenant = :tenant AND s.owner_session",
          "WHERE s.owner_session", "receipts j13"),
)  # fmt: skip
