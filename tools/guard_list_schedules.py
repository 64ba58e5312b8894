"""The guards of schedules that rivals, faults and damage notice; a part of `guard_list`."""

from __future__ import annotations

from tools.guard_list import POSTGRES, SQLITE, Guard

MIGRATION = f"{POSTGRES}/migrations/0005_schedules.sql"
FUNCTION = "CREATE FUNCTION {schema}.fire_schedule_v1"
FIRE = "-- name: schedules.fire"
CHANGE = "-- name: schedules.change"
CORE = "src/holdfast/core"
OPS = "src/holdfast/ops/schedules.py"
LOOKED = "who_looked_before_a_rival_came_writes_nothing"
CHANGED = "who_looked_before_a_rival_came_changes_nothing"
# Tests of what only a server can do.
ONLY_THERE = ("a_run_says", "who_subscribes_between", "somebody_holds", "is_fired_by_is_held")
LAWS = "src/holdfast/testing/conformance"


def _tests(kind: str, name: str, file: str = "schedules") -> tuple[str, ...]:
    if name.startswith("law_"):
        mode = "postgres-async" if kind == "postgres" else "sqlite-blocking"
        files = (f"{LAWS}/law_schedules.py", f"{LAWS}/law_schedule_firing.py")
        return (*files, f"--holdfast-mode={mode}", "-k", name)
    return (f"tests/test_{file}.py", "-k", f"{name} and {kind}" if kind else name)


def _lite(
    name: str, without: str, inside: str, old: str, new: str, test: str, file: str = "schedules"
) -> Guard:
    path, tests = f"{SQLITE}/schedules.sql", _tests("sqlite", test, file)
    return Guard(f"schedule-{name}", "SQLite", without, path, inside, old, new, tests)


def _post(
    name: str, without: str, inside: str, old: str, new: str, test: str, file: str = "schedules"
) -> Guard:
    path = MIGRATION if inside == FUNCTION else f"{POSTGRES}/schedules.sql"
    tests = _tests("" if test in ONLY_THERE else "postgres", test, file)
    return Guard(f"schedule-{name}", "PostgreSQL", without, path, inside, old, new, tests)


def _code(name: str, without: str, path: str, inside: str, old: str, new: str, test: str) -> Guard:
    tests = _tests("", test)
    return Guard(f"schedule-{name}", "both", without, path, inside, old, new, tests)


DECIDED = "an instant fires twice"
DEFINITION = "what fires is of a schedule that is another one now"
PAUSED = "a schedule fires that was paused meanwhile"
SOURCE = "what was disabled meanwhile is started"
TAKEN = "an instant that has fired starts something again"
SEEN = "a change undoes another one"

SCHEDULE_GUARDS = (
    _lite("decided", DECIDED, FIRE, "s.decided_ms = :seen_decided_ms -- guard: decided",
        "1", LOOKED),
    _lite("definition", DEFINITION, FIRE, "  AND s.digest = :seen_digest -- guard: definition\n",
        "", LOOKED),
    _lite("paused", PAUSED, FIRE, "    AND s.paused_at_ms IS NULL)) -- guard: paused\n",
        "    ))\n", LOOKED),
    _lite("taken-process", TAKEN, FIRE,
        "WHERE NOT EXISTS (SELECT 1 FROM trigger_occurrence o\n"
        "  WHERE o.tenant = :tenant AND o.key = :processes.occurrence_key)", "WHERE 1",
        "law_m23"),
    _lite("taken-delivery", TAKEN, FIRE,
        "WHERE NOT EXISTS (SELECT 1 FROM trigger_occurrence o\n"
        "  WHERE o.tenant = :tenant AND o.key = :deliveries.occurrence_key)", "WHERE 1",
        "law_m23"),
    _lite("change-revision", SEEN, CHANGE, "s.revision = :seen_revision AND ", "", CHANGED),
    _lite("change-decided", SEEN, CHANGE, " AND s.decided_ms = :seen_decided_ms", "", CHANGED),
    _lite("change-definition", SEEN, CHANGE, "  AND s.digest = :seen_digest -- guard: seen\n",
        "", CHANGED),
    _post("decided", DECIDED, FUNCTION, "      AND s.decided_ms = p_seen_decided_ms -- guard:"
        " decided\n", "", LOOKED),
    _post("definition", DEFINITION, FUNCTION,
        "      AND s.digest = p_seen_digest -- guard: definition\n", "", LOOKED),
    _post("paused", PAUSED, FUNCTION, "      AND s.paused_at_ms IS NULL -- guard: paused\n", "",
        LOOKED),
    _post("definition-by-hand", DEFINITION, FUNCTION,
        "      AND s.digest = p_seen_digest FOR NO KEY UPDATE; -- guard: definition by hand",
        "      FOR NO KEY UPDATE;", "a_run_says", "schedule_firing"),
    _post("source", SOURCE, FUNCTION, "IF coalesce(v_version, 0) <> p_version THEN",
        "IF false THEN", "who_subscribes_between", "schedule_firing"),
    _post("source-lock", "what is disabled while it is started stays started", FUNCTION,
        "AND t.source_key = p_schedule FOR SHARE;", "AND t.source_key = p_schedule;",
        "is_fired_by_is_held", "schedule_firing"),
    _post("grant-lock", "a session is deleted while it is granted something", FUNCTION,
        "      ORDER BY s.session FOR KEY SHARE;", "      ORDER BY s.session;",
        "is_fired_by_is_held", "schedule_firing"),
    _post("not-waited-for", "a tick waits for whoever has a schedule", FUNCTION,
        "FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE", "somebody_holds",
        "schedule_firing"),
    _post("taken-delivery", TAKEN, FUNCTION,
        "  WHERE x.occurrence = ANY (v_fresh)\n  ORDER BY x.occurrence", "  ORDER BY x.occurrence",
        "law_m23"),
    _post("taken-process", TAKEN, FUNCTION,
        "      WHERE x.occurrence = ANY (v_fresh)\n", "", "law_m23"),
    _post("grant-of-another", "a grant is given for a process that somebody else registered",
        FUNCTION, "    WHERE x.process = ANY (v_born)\n      AND NOT", "    WHERE NOT",
        "has_the_id_is_left_alone", "schedule_firing"),
    _post("grant-deleted", "a deleted session may see a process", FUNCTION,
        "AND s.session = x.session AND s.deleted_at_ms IS NOT NULL", "AND false",
        "grants_of_deleted", "schedule_firing"),
    _post("change-revision", SEEN, CHANGE, "s.revision = :seen_revision AND ", "", CHANGED),
    _post("change-decided", SEEN, CHANGE, " AND s.decided_ms = :seen_decided_ms", "", CHANGED),
    _post("change-definition", SEEN, CHANGE, "    AND s.digest = :seen_digest -- guard: seen\n",
        "", CHANGED),
    _code("digest", "a damaged schedule is decided", f"{CORE}/schedules.py", "def schedule_of(",
        "if schedule_digest(tenant, schedule, kept, rules, said) != bytes(digest):", "if False:",
        "each_part_of_a_definition"),
    _code("stuck", "one damaged schedule stops the ticks of all", OPS, "def _decide(",
        "    except STUCK as wrong:", "    except ZeroDivisionError as wrong:",
        "damaged_schedule_is_stuck"),
    _code("stepped-over", "damaged schedules hide the ones behind them", OPS, "def tick(",
        "        full = len(rows) > size", "        full = False", "damaged_schedule_is_stuck"),
    _code("share", "one that is far behind makes the others late", OPS, "def tick(",
        "share = max(1, found.left // (len(rows) - at))", "share = found.left",
        "law_m08"),
)  # fmt: skip
