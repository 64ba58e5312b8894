"""The guards: where each stands, what is put in its place, and which tests should notice."""

from __future__ import annotations

from dataclasses import dataclass

SQLITE = "src/holdfast/sql/sqlite"
POSTGRES = "src/holdfast/sql/postgres"
MIGRATION = f"{POSTGRES}/migrations/0001_sessions.sql"
COMMIT = "-- name: sessions.commit"
REWIND = "-- name: sessions.rewind"
FUNCTION = "CREATE FUNCTION {schema}.commit_turns_v1"
LAWS = "src/holdfast/testing/conformance"


@dataclass(frozen=True)
class Guard:
    """One guard. `inside` is where the block or function that holds the text begins; with
    `every` the text is replaced wherever it is."""

    name: str
    dialect: str
    without: str
    file: str
    inside: str
    old: str
    new: str
    tests: tuple[str, ...]
    every: bool = False

    @property
    def key(self) -> str:
        return f"{self.dialect}:{self.name}"


def laws(dialect: str, module: str, *numbers: str) -> tuple[str, ...]:
    """Laws of a chapter, on a database."""
    mode = "sqlite-blocking" if dialect == "SQLite" else "postgres-async"
    chosen = " or ".join(f"law_{number}_" for number in numbers)
    return (f"{LAWS}/law_{module}.py", f"--holdfast-mode={mode}", "-k", chosen)


def race(dialect: str, name: str) -> tuple[str, ...]:
    """A race, on a database."""
    return (f"tests/test_races.py::test_race_on_{dialect.lower()}[{name}]",)


def _home(inside: str, file: str) -> str:
    """The file of a block: what a turn does is in one of its own."""
    return "sessions_turn" if inside in (COMMIT, REWIND) and file == "sessions" else file


def _lite(
    name: str, without: str, inside: str, old: str, new: str, *chosen: str, file: str = "sessions"
) -> Guard:
    path = f"{SQLITE}/{_home(inside, file)}.sql"
    return Guard(name, "SQLite", without, path, inside, old, new, laws("SQLite", *chosen))


def _post(
    name: str, without: str, inside: str, old: str, new: str, *chosen: str, file: str = "sessions"
) -> Guard:
    path = MIGRATION if inside == FUNCTION else f"{POSTGRES}/{_home(inside, file)}.sql"
    tests = race("postgres", chosen[0]) if len(chosen) == 1 else laws("PostgreSQL", *chosen)
    return Guard(name, "PostgreSQL", without, path, inside, old, new, tests)


CAS = "a turn is committed on any revision"
LANE_FREE = "a turn without a fence ignores who holds the lane"
FENCE = "any fence will do"
OWNER, TOKEN = "the owner of a fence is not compared", "the token of a fence is not compared"
GENERATION = "the generation of a fence is not compared"
EXPIRY = "a lapsed lane still commits"
RECEIPT = "a turn sent again is committed again, or fails"
NODE = "a node may be stored under an id that is taken"
REF = "a turn may name content that is not there"
DELETED = "a deleted session takes turns"

GUARDS = (
    _lite(
        "cas", CAS, COMMIT,
        "AND (:expected IS NULL OR s.revision = :expected) -- guard: cas",
        "AND (:expected IS NULL OR 1)",
        "commit", "023", "024",
    ),
    _lite(
        "lane-free", LANE_FREE, COMMIT,
        "THEN s.lane_token IS NULL OR s.lane_expires_at_ms <= :now -- guard: lane-free",
        "THEN 1",
        "lanes", "073",
    ),
    _lite(
        "fence-owner", OWNER, COMMIT,
        "ELSE s.lane_owner = :fence_owner AND", "ELSE", "lanes", "067",
    ),
    _lite(
        "fence-token", TOKEN, COMMIT,
        "AND s.lane_token = :fence_token\n", "\n", "lanes", "067",
    ),
    _lite(
        "fence-generation", GENERATION, COMMIT,
        "AND s.lane_generation = :fence_generation\n", "\n", "lanes", "067",
    ),
    _lite(
        "fence-expiry", EXPIRY, COMMIT,
        "AND s.lane_expires_at_ms > :now END -- guard: fence", "END", "lanes", "072",
    ),
    _lite(
        "receipt", RECEIPT, COMMIT,
        "AND NOT EXISTS (SELECT 1 FROM receipt p WHERE p.tenant = :tenant\n"
        "                  AND p.session = :session AND p.turn = :turn) -- guard: receipt",
        "", "commit", "c04",
    ),
    _lite(
        "node-create-only", NODE, COMMIT,
        "WHERE n.seq <= c.upto) -- guard: node-create-only", "WHERE 0)", "nodes", "043",
    ),
    _lite(
        "node-create-only-inherited", "a fork may store a node it inherited", COMMIT,
        "ON n.tenant = :tenant AND n.session = c.session AND n.node = x.value\n"
        "    WHERE n.seq <= c.upto) -- guard: node-create-only",
        "ON n.tenant = :tenant AND n.session = :session AND n.node = x.value\n"
        "    WHERE n.seq <= c.upto)",
        "forks", "f09",
    ),
    _lite(
        "content", REF, COMMIT,
        "AND (:refs.n = 0 OR NOT EXISTS", "AND (1 OR NOT EXISTS", "state", "051",
    ),
    _lite(
        "deleted", DELETED, COMMIT,
        "WHERE s.tenant = :tenant AND s.session = :session AND s.deleted_at_ms IS NULL\n",
        "WHERE s.tenant = :tenant AND s.session = :session\n", "sessions", "012",
    ),
    Guard(
        "tenant-commit", "SQLite", "a turn finds the session of another tenant",
        f"{SQLITE}/sessions_turn.sql", COMMIT,
        "WHERE s.tenant = :tenant AND s.session = :session AND s.deleted_at_ms IS NULL\n",
        "WHERE s.session = :session AND s.deleted_at_ms IS NULL\n",
        ("tests/test_machine.py", "-k", "same_rows"),
    ),
    _lite(
        "tenant-get", "a catalog entry is read across tenants", "-- name: sessions.get",
        "WHERE s.tenant = :tenant AND s.session", "WHERE s.session", "tenants", "t01", "t02", "t04",
    ),
    _lite(
        "claim", "a live lane is taken from its holder", "-- name: lanes.claim",
        "AND (s.lane_token IS NULL OR s.lane_expires_at_ms <= :now OR s.lane_owner = :owner)",
        "", "lanes", "064", file="lanes",
    ),
    _lite(
        "renew-expiry", "a lapsed lane is renewed", "-- name: lanes.renew",
        "AND s.lane_expires_at_ms > :now", "", "lanes", "072", file="lanes",
    ),
    _lite(
        "release-token", "an old token frees the lane", "-- name: lanes.release",
        "AND s.lane_token = :fence_token", "", "lanes", "068", file="lanes",
    ),
    _lite(
        "tag-limit", "a session gets too many tags", "-- name: sessions.update",
        "AND :tag_limit >=", "AND 1000 >=", "catalog", "g09",
    ),
    _lite(
        "rewind-cas", "a rewind takes place on any revision", REWIND,
        "AND (:expected IS NULL OR s.revision = :expected)", "", "rewinds", "r08",
    ),
    _lite(
        "fork-keeps", "a delete takes the nodes that forks see", "-- name: sessions.delete",
        "SELECT coalesce(max(f.base_seq), 0) FROM", "SELECT 0 FROM", "forks", "f11",
    ),
    Guard(
        "write-lock", "SQLite", "the guard reads before the write lock is held",
        "src/holdfast/engine/sqlite_writer.py", "", '"BEGIN IMMEDIATE"', '"BEGIN"',
        race("sqlite", "commit-one-revision"), every=True,
    ),
    Guard(
        "group-fallback", "SQLite", "what a failed operation had written is committed",
        "src/holdfast/engine/sqlite_writer.py", "def _run_plain",
        "raise _Redo from unexpected",
        "job.value = Failed(translate(unexpected, self._path, self._errno()))",
        ("tests/test_sqlite_writer.py", "tests/test_sqlite_faults.py", "-k", "not structure"),
    ),
    Guard(
        "group-refusal", "SQLite", "what a refused operation had written is committed",
        "src/holdfast/engine/sqlite_writer.py", "def _run_plain",
        "if self.connection.total_changes() != before:", "if False:",
        laws("SQLite", "usage", "053"),
    ),
    Guard(
        "digest-node", "both", "a damaged node is handed out",
        "src/holdfast/core/history.py", "def proved_node",
        "node_digest(tenant, session, node, kind, bytes(body)) != bytes(digest)", "False",
        ("tests/test_guards.py", "-k", "damage"),
    ),
    Guard(
        "digest-content", "both", "damaged content is handed out",
        "src/holdfast/core/payloads.py", "def unpack",
        "or content_digest(opened) != digest", "",
        ("tests/test_guards.py", "-k", "damage"),
    ),
    _post(
        "cas", CAS, FUNCTION,
        "CONTINUE WHEN p_expected[v.ord] <> v.revision; -- guard: cas", "", "commit", "023", "024",
    ),
    _post(
        "lane-free", LANE_FREE, FUNCTION,
        "CONTINUE WHEN v.lane_token IS NOT NULL AND v.lane_expires_at_ms > v_now; "
        "-- guard: lane-free",
        "", "lanes", "073",
    ),
    _post(
        "fence-owner", OWNER, FUNCTION,
        "(v.lane_owner = p_fence_owner[v.ord] AND", "(", "lanes", "067",
    ),
    _post(
        "fence-token", TOKEN, FUNCTION,
        "AND v.lane_token = p_fence_token[v.ord]\n", "\n", "lanes", "067",
    ),
    _post(
        "fence-generation", GENERATION, FUNCTION,
        "AND v.lane_generation = p_fence_generation[v.ord]\n", "\n", "lanes", "067",
    ),
    _post(
        "fence-expiry", EXPIRY, FUNCTION,
        "AND v.lane_expires_at_ms > v_now) IS NOT TRUE; -- guard: fence", ") IS NOT TRUE;",
        "lanes", "072",
    ),
    _post(
        "receipt", RECEIPT, FUNCTION,
        "AND p.turn = r.turn LIMIT 1) p -- guard: receipt", "AND false LIMIT 1) p",
        "commit-same-empty",
    ),
    _post(
        "node-create-only", NODE, FUNCTION,
        "AND n.node = r.node LIMIT 1) n -- guard: node-create-only", "AND false LIMIT 1) n",
        "commit-same-nodes",
    ),
    _post(
        "node-create-only-inherited", "a fork may store a node it inherited", FUNCTION,
        "WHERE n.seq <= l.upto LIMIT 1) n", "WHERE false LIMIT 1) n", "forks", "f09",
    ),
    _post(
        "content", REF, FUNCTION,
        "FROM unnest(p_ref_ord, p_ref_digest) AS r(ord, digest)\n    WHERE NOT EXISTS (",
        "FROM unnest(p_ref_ord, p_ref_digest) AS r(ord, digest)\n    WHERE false AND NOT EXISTS (",
        "state", "051",
    ),
    _post(
        "deleted", DELETED, FUNCTION,
        "CONTINUE WHEN v.deleted_at_ms IS NOT NULL OR", "CONTINUE WHEN", "sessions", "012",
    ),
    Guard(
        "tenant-commit", "PostgreSQL", "a turn finds the session of another tenant",
        MIGRATION, FUNCTION,
        "JOIN {schema}.session s ON s.tenant = p_tenant AND s.session = r.name\n",
        "JOIN {schema}.session s ON s.session = r.name\n",
        ("tests/test_machine.py", "-k", "same_rows"),
    ),
    _post(
        "tenant-get", "a catalog entry is read across tenants", "-- name: sessions.get",
        "WHERE s.tenant = :tenant AND s.session", "WHERE :tenant <> '' AND s.session",
        "tenants", "t01", "t02", "t04",
    ),
    _post(
        "lock", "rivals judge the same head at the same time", FUNCTION,
        "ORDER BY s.session FOR NO KEY UPDATE OF s", "ORDER BY s.session", "commit-one-revision",
    ),
    Guard(
        "lock-order", "PostgreSQL", "two calls lock the same sessions in their own orders",
        MIGRATION, FUNCTION,
        "ORDER BY s.session FOR NO KEY UPDATE OF s", "ORDER BY r.ord FOR NO KEY UPDATE OF s",
        ("tests/test_races.py::test_merged_turns_of_many_sessions_never_deadlock",),
    ),
    Guard(
        "clock-after-lock", "PostgreSQL", "a lane that lapsed during the wait still commits",
        MIGRATION, FUNCTION,
        "v_now := {schema}.now_ms();",
        "v_now := (extract(epoch FROM statement_timestamp()) * 1000)::bigint;",
        ("tests/test_races.py::test_a_lane_that_lapses_while_a_turn_waits_is_lost",),
    ),
    Guard(
        "content-lock", "PostgreSQL", "content is reclaimed while a turn names it",
        MIGRATION, FUNCTION,
        "    PERFORM FROM {schema}.blob b WHERE b.tenant = p_tenant AND b.digest = "
        "ANY (p_ref_digest)\n    ORDER BY b.digest FOR KEY SHARE;\n",
        "",
        ("tests/test_races.py::test_content_that_a_turn_names_waits_for_the_turn",),
    ),
    _post(
        "claim", "a live lane is taken from its holder", "-- name: lanes.claim",
        "AND (t.lane_token IS NULL OR t.lane_expires_at_ms <= t.now OR t.lane_owner = :owner)",
        "", "lanes", "064", file="lanes",
    ),
    _post(
        "claim-lock", "two owners are granted one lane", "-- name: lanes.claim",
        "  FOR NO KEY UPDATE OF s\n", "", "claim", file="lanes",
    ),
    _post(
        "renew-expiry", "a lapsed lane is renewed", "-- name: lanes.renew",
        "AND t.lane_expires_at_ms > t.now", "", "lanes", "072", file="lanes",
    ),
    _post(
        "update-lock", "two updates pass the limit together", "-- name: sessions.update",
        "session = :session FOR NO KEY UPDATE", "session = :session", "update-limit",
    ),
    _post(
        "rewind-lock", "two rewinds take place on one revision", REWIND,
        "session = :session FOR NO KEY UPDATE", "session = :session", "rewind-one-revision",
    ),
    _post(
        "tombstone-lock", "a node is counted twice", "-- name: history.tombstone",
        "session = :session FOR NO KEY UPDATE", "session = :session", "tombstone", file="history",
    ),
    _post(
        "delete-lock", "a turn is committed into a deleted session", "-- name: sessions.delete",
        "session = :session FOR UPDATE", "session = :session", "commit-deleted",
    ),
    _post(
        "fork-lock", "a fork begins in what is being deleted", "-- name: sessions.fork",
        "ORDER BY session FOR KEY SHARE", "ORDER BY session", "fork-deleted",
    ),
    _post(
        "fork-keeps", "a delete takes the nodes that forks see", "-- name: sessions.delete",
        "SELECT coalesce(max(f.base_seq), 0) AS seq FROM", "SELECT 0::bigint AS seq FROM",
        "forks", "f11",
    ),
)  # fmt: skip
"""In the order of the page. A guard may be taken away in parts, when each part matters."""
