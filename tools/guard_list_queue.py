"""The guards of queued work; the other half of `guard_list`."""

from __future__ import annotations

from tools.guard_list import COMMIT, POSTGRES, SQLITE, Guard, laws, race

MIGRATION = f"{POSTGRES}/migrations/0002_queue.sql"
ENQUEUE = "CREATE FUNCTION {schema}.enqueue_v1"
CLAIM = "CREATE FUNCTION {schema}.claim_work_v1"
TURNS = "CREATE FUNCTION {schema}.commit_turns_v2"


def _lite(
    name: str, without: str, inside: str, old: str, new: str, *chosen: str, every: bool = False
) -> Guard:
    file = "sessions_turn" if inside == COMMIT else "queue"
    block = inside if inside == COMMIT else f"-- name: queue.{inside}\n"
    tests = laws("SQLite", *chosen)
    path = f"{SQLITE}/{file}.sql"
    return Guard(f"work-{name}", "SQLite", without, path, block, old, new, tests, every)


def _post(
    name: str, without: str, inside: str, old: str, new: str, *chosen: str, every: bool = False
) -> Guard:
    made = inside.startswith("CREATE")
    path = MIGRATION if made else f"{POSTGRES}/queue.sql"
    block = inside if made else f"-- name: queue.{inside}\n"
    tests = race("postgres", chosen[0]) if len(chosen) == 1 else laws("PostgreSQL", *chosen)
    return Guard(f"work-{name}", "PostgreSQL", without, path, block, old, new, tests, every)


KEY = "a key is enqueued twice, or fails"
KEPT = "a key is free as soon as its work is done"
DELETED = "a deleted session takes work"
LANE_FREE = "work is claimed although somebody holds the lane"
OWNER, TOKEN = "the owner of a fence is not compared", "the token of a fence is not compared"
FENCED = "the generation of a fence is not compared"
EXPIRY = "a lapsed lane still claims work"
GENERATION = "a lane claims its own work again"
LAPSE = "a claim that lasts is taken from its holder"
ALONE = "exclusive work, and work without a merge key, is not claimed alone"
COMMAND = "commands are claimed together"
PREFIX = "work joins over what stands between"
JOIN = "exclusive work joins what stands before it"
DELIVERY = "work of another delivery joins"
MERGE = "work of another merge key joins"
TOGETHER = "what was claimed together is claimed apart"
EXACT = "other work is claimed than was asked for"
BOUNDARY = "work for the end of a turn is claimed within it"
KIND = "a command is claimed as turn work"
CLAIM_TOKEN = "a guessed claim is settled"
CLAIM_TIME = "a claim that has lapsed is settled"
CLAIM_LANE = "a claim is settled without its lane"
CLAIM_WHOLE = "a part of a claim is settled"
HELD = "work is given back by somebody who holds it no more"
BACK_TOKEN = "work is given back by who guessed its claim"
TRIED = "work that was tried too often is tried again"
UNHELD = "work is cancelled although somebody holds it"
RENEWED = "a part of a claim is renewed"
RENEW_TIME = "a claim that has lapsed is renewed"
RENEW_TOKEN = "a guessed claim is renewed"
DEAD = "work that is not dead is put back"

QUEUE_GUARDS = (
    _lite(
        "key", KEY, "enqueue",
        "AND (w.state <> 'done' OR w.keep_until_ms > :now) -- guard: dedupe", "AND 0",
        "queue", "084",
    ),
    _lite(
        "key-kept", KEPT, "enqueue",
        "AND (w.state <> 'done' OR w.keep_until_ms > :now) -- guard: dedupe",
        "AND w.state <> 'done'",
        "queue", "127",
    ),
    _lite(
        "deleted", DELETED, "enqueue", "AND s.deleted_at_ms IS NULL\n", "\n", "queue", "q01",
    ),
    _lite(
        "lane-free", LANE_FREE, "claim",
        "THEN s.lane_token IS NULL OR s.lane_expires_at_ms <= :now -- guard: lane-free", "THEN 1",
        "settling", "k01",
    ),
    _lite(
        "fence-owner", OWNER, "claim",
        "ELSE s.lane_owner = :fence_owner AND", "ELSE", "settling", "k01",
    ),
    _lite(
        "fence-token", TOKEN, "claim",
        "AND s.lane_token = :fence_token\n", "\n", "settling", "k01",
    ),
    _lite(
        "fence-generation", FENCED, "claim",
        "AND s.lane_generation = :fence_generation AND", "AND", "settling", "k01",
    ),
    _lite(
        "fence-expiry", EXPIRY, "claim",
        "AND s.lane_expires_at_ms > :now END -- guard: fence", "END", "settling", "k01",
    ),
    _lite(
        "generation", GENERATION, "claim",
        "AND w.claim_generation < coalesce(:generation, 9223372036854775807) -- guard: generation",
        "", "claims", "121",
    ),
    _lite(
        "lapse", LAPSE, "claim",
        "        AND w.claim_expires_at_ms <= :now) x)\n", ") x)\n", "claims", "112",
    ),
    _lite(
        "merge", ALONE, "claim",
        "h.slot = 'exclusive' OR h.merge_key IS NULL OR h.kind = 'command' -- guard: merge", "0",
        "claims", "107",
    ),
    _lite(
        "command", COMMAND, "claim", " OR h.kind = 'command' -- guard: merge", "", "claims", "107",
    ),
    _lite(
        "prefix", PREFIX, "claim",
        "OVER (ORDER BY x.seq) AS joins -- guard: prefix", "OVER (PARTITION BY x.seq) AS joins",
        "claims", "107",
    ),
    _lite("prefix-slot", JOIN, "claim", "AND x.slot = 'join' AND", "AND", "claims", "107"),
    _lite(
        "prefix-delivery", DELIVERY, "claim", "AND x.delivery = h.delivery\n", "\n",
        "claims", "107",
    ),
    _lite(
        "prefix-merge", MERGE, "claim", "AND coalesce(x.merge_key = h.merge_key, 0)", "",
        "claims", "107",
    ),
    _lite(
        "together", TOGETHER, "claim",
        "AND w.session = :at_session AND w.claim = h.claim AND w.state = 'claimed'\n",
        "AND w.session = :at_session AND w.seq = h.seq AND w.state = 'claimed'\n",
        "claims", "124",
    ),
    _lite("exact", EXACT, "claim", "WHEN :exact.n > 0 AND", "WHEN 0 AND", "claims", "093"),
    _lite(
        "boundary", BOUNDARY, "claim",
        "WHEN :boundary = 'checkpoint' AND h.delivery <> 'earliest' THEN 'boundary'\n", "\n",
        "claims", "096",
    ),
    _lite(
        "kind", KIND, "claim",
        "WHEN :kind = 'turn' AND h.kind <> 'turn' THEN 'command-at-head'\n", "\n",
        "claims", "123",
    ),
    _lite("claim-token", CLAIM_TOKEN, COMMIT, "AND w.claim_token = t.value", "", "claims", "108"),
    _lite(
        "claim-time", CLAIM_TIME, COMMIT,
        "THEN w.claim_expires_at_ms > :now", "THEN 1", "claims", "104",
    ),
    _lite(
        "claim-lane", CLAIM_LANE, COMMIT,
        "ELSE w.claim_generation = :fence_generation END))) -- guard: claim", "ELSE 1 END)))",
        "claims", "121",
    ),
    _lite(
        "claim-whole", CLAIM_WHOLE, COMMIT,
        "OR n.value <> (SELECT count(*) FROM work w INDEXED BY work_claim",
        "OR 0 AND n.value <> (SELECT count(*) FROM work w INDEXED BY work_claim",
        "settling", "k04",
    ),
    _lite(
        "held", HELD, "abandon",
        "    AND CASE WHEN w.claim_generation IS NULL THEN w.claim_expires_at_ms > :now\n"
        "      ELSE w.claim_generation = s.lane_generation AND s.lane_token IS NOT NULL\n"
        "        AND s.lane_expires_at_ms > :now END) -- guard: held",
        ")", "claims", "116",
    ),
    _lite(
        "held-token", BACK_TOKEN, "abandon",
        "AND w.claim_token = :claim_token", "", "claims", "116", every=True,
    ),
    _lite(
        "tried", TRIED, "abandon",
        " OR coalesce(attempts >= max_attempts, 0)", "", "attempts", "e04",
    ),
    _lite(
        "unheld", UNHELD, "cancel",
        "  AND (w.state <> 'claimed' OR w.until_ms <= :now)) -- guard: unheld", ")",
        "queue", "090",
    ),
    _lite(
        "renewed", RENEWED, "renew", "HAVING count(*) = :works.n AND", "HAVING", "claims", "115",
    ),
    _lite(
        "renewed-time", RENEW_TIME, "renew",
        "AND w.claim_expires_at_ms > :now\n", "\n", "claims", "115",
    ),
    _lite(
        "renewed-token", RENEW_TOKEN, "renew",
        "WHERE w.claim_token = :claim_token AND", "WHERE", "claims", "115",
    ),
    _lite(
        "dead", DEAD, "requeue",
        "  AND CASE WHEN w.until_ms > :now THEN w.state ELSE w.then_state END = 'dead'\n", "",
        "attempts", "e06",
    ),
    Guard(
        "work-digest", "both", "damaged work is handed out",
        "src/holdfast/core/queue.py", "def work_of",
        "work_digest(tenant, session, work, packed) != bytes(digest)", "False",
        ("tests/test_damage.py", "-k", "damaged_work and sqlite"),
    ),
    _post(
        "key", KEY, ENQUEUE,
        "AND w.key = p_key; -- guard: dedupe", "AND w.key = p_key AND false;", "queue", "084",
    ),
    _post(
        "key-kept", KEPT, ENQUEUE,
        "IF v_old.state <> 'done' OR v_old.keep_until_ms > v_now THEN",
        "IF v_old.state <> 'done' THEN", "queue", "127",
    ),
    _post("deleted", DELETED, ENQUEUE, " AND s.deleted_at_ms IS NULL\n", "\n", "queue", "q01"),
    _post(
        "enqueue-lock", "two works get one place", ENQUEUE,
        "  FOR NO KEY UPDATE;\n", "  ;\n", "enqueue",
    ),
    _post(
        "lane-free", LANE_FREE, CLAIM,
        "IF v_live THEN -- guard: lane-free", "IF false THEN", "settling", "k01",
    ),
    _post(
        "fence-owner", OWNER, CLAIM,
        "(v_live AND s.lane_owner = p_fence_owner AND", "(v_live AND", "settling", "k01",
    ),
    _post(
        "fence-token", TOKEN, CLAIM,
        "AND s.lane_token = p_fence_token\n", "\n", "settling", "k01",
    ),
    _post(
        "fence-generation", FENCED, CLAIM,
        "AND s.lane_generation = p_fence_generation) IS NOT TRUE THEN -- guard: fence",
        ") IS NOT TRUE THEN", "settling", "k01",
    ),
    _post(
        "fence-expiry", EXPIRY, CLAIM,
        "IF (v_live AND s.lane_owner", "IF (s.lane_owner", "settling", "k01",
    ),
    _post(
        "claim-lock", "two callers claim one work", CLAIM,
        "x.deleted_at_ms IS NULL FOR NO KEY UPDATE;", "x.deleted_at_ms IS NULL;", "take",
    ),
    _post(
        "next-lock", "two workers are given one session", CLAIM,
        "LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;", "LIMIT 1;", "next",
    ),
    _post(
        "generation", GENERATION, CLAIM,
        "AND w.claim_generation < v_before -- guard: generation\n", "\n", "claims", "121",
    ),
    _post(
        "lapse", LAPSE, CLAIM,
        "AND w.claim_expires_at_ms <= v_now ORDER BY w.claim_expires_at_ms OFFSET 0) x))",
        "ORDER BY w.claim_expires_at_ms OFFSET 0) x))",
        "settling", "k03",
    ),
    _post(
        "merge", ALONE, CLAIM,
        "f.slot = 'exclusive' OR f.merge_key IS NULL OR f.kind = 'command' THEN -- guard: merge",
        "false THEN", "claims", "107",
    ),
    _post(
        "command", COMMAND, CLAIM,
        " OR f.kind = 'command' THEN -- guard: merge", " THEN", "claims", "107",
    ),
    _post(
        "prefix", PREFIX, CLAIM,
        "OVER (ORDER BY x.seq) AS joins -- guard: prefix", "OVER (PARTITION BY x.seq) AS joins",
        "claims", "107",
    ),
    _post("prefix-slot", JOIN, CLAIM, "AND x.slot = 'join'\n", "\n", "claims", "107"),
    _post(
        "prefix-delivery", DELIVERY, CLAIM, "AND x.delivery = f.delivery AND", "AND",
        "claims", "107",
    ),
    _post(
        "prefix-merge", MERGE, CLAIM, "AND coalesce(x.merge_key = f.merge_key, false)", "",
        "claims", "107",
    ),
    _post(
        "together", TOGETHER, CLAIM,
        "AND w.session = s.session AND w.claim = f.claim AND",
        "AND w.session = s.session AND w.seq = f.seq AND", "claims", "124",
    ),
    _post(
        "exact", EXACT, CLAIM,
        "AND cardinality(p_exact) > 0 AND", "AND false AND", "claims", "093",
    ),
    _post(
        "boundary", BOUNDARY, CLAIM,
        "IF p_boundary = 'checkpoint' AND", "IF false AND", "claims", "096",
    ),
    _post(
        "kind", KIND, CLAIM, "ELSIF p_kind = 'turn' AND", "ELSIF false AND", "claims", "123",
    ),
    _post(
        "claim-token", CLAIM_TOKEN, TURNS,
        "WHERE w.claim_token = c.token\n        AND", "WHERE", "claims", "108",
    ),
    _post(
        "claim-time", CLAIM_TIME, TURNS,
        "THEN w.claim_expires_at_ms > v_now", "THEN true", "claims", "104",
    ),
    _post(
        "claim-lane", CLAIM_LANE, TURNS,
        "ELSE w.claim_generation = p_fence_generation[c.ord] END", "ELSE true END",
        "claims", "121",
    ),
    _post(
        "claim-whole", CLAIM_WHOLE, TURNS,
        "WHERE c.n <> k.held OR c.n <> k.ours", "WHERE c.n <> k.ours", "settling", "k04",
    ),
    Guard(
        "work-settle-lock", "PostgreSQL", "what is settled is judged before it is locked",
        MIGRATION, TURNS,
        "\n    ORDER BY s.session FOR NO KEY UPDATE;", ";",
        ("tests/test_races.py::test_a_claim_that_is_given_back_while_a_turn_waits_is_lost",),
    ),
    _post(
        "held", HELD, "abandon",
        "    AND CASE WHEN w.claim_generation IS NULL THEN w.claim_expires_at_ms > t.now\n"
        "      ELSE w.claim_generation = t.lane_generation AND t.lane_token IS NOT NULL\n"
        "        AND t.lane_expires_at_ms > t.now END -- guard: held\n",
        "", "claims", "116",
    ),
    _post(
        "held-token", BACK_TOKEN, "abandon",
        "AND w.claim_token = :claim_token", "AND :claim_token <> ''", "claims", "116",
    ),
    _post(
        "tried", TRIED, "abandon", " OR w.attempts >= w.max_attempts", "", "attempts", "e04",
    ),
    _post(
        "abandon-lock", "work is settled and given back at once", "abandon",
        " FOR NO KEY UPDATE\n", "\n", "settle-abandon",
    ),
    _post(
        "unheld", UNHELD, "cancel",
        "AND (w.state <> 'claimed' OR NOT coalesce(CASE", "AND (true OR NOT coalesce(CASE",
        "queue", "090",
    ),
    Guard(
        "work-cancel-lock", "PostgreSQL", "work is cancelled while somebody claims it",
        f"{POSTGRES}/queue.sql", "-- name: queue.cancel\n", " FOR NO KEY UPDATE\n", "\n",
        ("tests/test_races.py::test_work_that_is_claimed_while_a_cancel_waits_is_kept",),
    ),
    _post(
        "renewed", RENEWED, "renew",
        "ARRAY[(SELECT count(*) FROM held), (SELECT", "ARRAY[(SELECT", "claims", "115",
    ),
    _post(
        "renewed-time", RENEW_TIME, "renew",
        "WHERE c.claim_expires_at_ms > c.now AND", "WHERE", "claims", "115",
    ),
    _post(
        "renewed-token", RENEW_TOKEN, "renew",
        "AND c.claim_token = :claim_token\n", "AND :claim_token <> ''\n", "claims", "115",
    ),
    _post(
        "dead", DEAD, "requeue",
        "AND (w.state = 'dead' OR (w.state = 'claimed'", "AND (true OR (w.state = 'claimed'",
        "attempts", "e06",
    ),
)  # fmt: skip
"""In the order of the page."""
