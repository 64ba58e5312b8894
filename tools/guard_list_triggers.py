"""The guards of triggers that races and damage notice; a part of `guard_list`."""

from __future__ import annotations

from tools.guard_list import POSTGRES, Guard

MIGRATION = f"{POSTGRES}/migrations/0004_triggers.sql"
CHANGE = "CREATE FUNCTION {schema}.change_subscription_v1"
DELIVER = "CREATE FUNCTION {schema}.deliver_v1"
PRUNE = "-- name: triggers.prune"
DELETE = "-- name: sessions.delete"
CORE = "src/holdfast/core/triggers.py"


def _post(name: str, without: str, inside: str, old: str, new: str, race: str) -> Guard:
    files = {CHANGE: MIGRATION, DELIVER: MIGRATION, DELETE: f"{POSTGRES}/sessions.sql"}
    path = files.get(inside, f"{POSTGRES}/triggers.sql")
    tests = (f"tests/test_trigger_races.py::test_race[postgres-{race}]",)
    return Guard(f"trigger-{name}", "PostgreSQL", without, path, inside, old, new, tests)


def _core(name: str, without: str, inside: str, old: str, new: str, test: str) -> Guard:
    tests = ("tests/test_trigger_damage.py", "-k", test)
    return Guard(f"trigger-{name}", "both", without, CORE, inside, old, new, tests)


TRIGGER_GUARDS = (
    _post(
        "version", "what was disabled meanwhile is delivered to", DELIVER,
        "IF coalesce(v_version, 0) <> p_version THEN", "IF false THEN", "deletion",
    ),
    _post(
        "source-lock", "what is disabled while it is delivered to stays delivered to", DELIVER,
        "AND t.source_key = p_source_key FOR SHARE;", "AND t.source_key = p_source_key;",
        "deletion",
    ),
    _post(
        "source-order", "two that change places wait for each other", CHANGE,
        "  ORDER BY t.source_type, t.source_key FOR NO KEY UPDATE;",
        "  ORDER BY (t.source_type, t.source_key) = (p_source_type, p_source_key)"
        " FOR NO KEY UPDATE;",
        "moves",
    ),
    _post(
        "owner", "a session is deleted while it subscribes, and its subscription stays", CHANGE,
        "AND s.session = p_owner_session FOR KEY SHARE;", "AND s.session = p_owner_session;",
        "deletion_against_registration",
    ),
    _post(
        "receipt", "an operation is done twice", CHANGE,
        "WHEN v_intent IS NOT NULL THEN CASE WHEN v_intent = p_intent THEN 'replay' END", "",
        "one_operation",
    ),
    _post(
        "still-reserved", "a process starts whose delivery is gone", DELIVER,
        "    IF cardinality(v_wanted) = cardinality(d_process) THEN\n", "    IF true THEN\n",
        "deletion_against_start",
    ),
    _post(
        "reserved-lock", "a delivery goes while its process is started", DELIVER,
        "d.subscription FOR NO KEY UPDATE) x;", "d.subscription) x;", "deletion_against_start",
    ),
    _post(
        "occurrence-lock", "an occurrence goes while it is reserved", DELIVER,
        "o.occurrence = p_occurrence FOR NO KEY UPDATE;", "o.occurrence = p_occurrence;",
        "prune_against_reservation",
    ),
    _post(
        "prune-again", "an occurrence that was reserved meanwhile is pruned", PRUNE,
        "WITH ORDINALITY AS o(occurrence, n)\nWHERE ",
        "WITH ORDINALITY AS o(occurrence, n)\nWHERE true OR ", "prune_against_reservation",
    ),
    _post(
        "prune-lock", "an occurrence is reserved while it is pruned", PRUNE,
        " FOR UPDATE OF o SKIP LOCKED", "", "prune_against_reservation",
    ),
    _post(
        "deleted-session", "what a deleted session subscribed to is delivered to", DELETE,
        "UPDATE {schema}.trigger_source SET version = version + 1",
        "UPDATE {schema}.trigger_source SET version = version", "deletion",
    ),
    _core(
        "digest", "a damaged subscription is delivered to", "def _definition_of(",
        "if _seal(tenant, *own, definition) != digest:", "if False:", "damaged_subscription",
    ),
    _core(
        "columns", "a subscription is delivered to for what it is not for", "def _subscribed(",
        "if name is not None:", "if False:", "columns",
    ),
    _core(
        "occurrence-digest", "a damaged occurrence is delivered", "def occurrence_of(",
        "if _seal(tenant, *own, more) != bytes(digest):", "if False:", "occurrence",
    ),
)  # fmt: skip
