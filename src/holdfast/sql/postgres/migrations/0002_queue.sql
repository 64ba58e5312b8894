-- oldest reader: 1
-- Queued work: what waits for a session, and the claims on it.

-- `work_seq` counts the work of a session. `due_at_ms` is no later than the next moment at which
-- work of the session can be claimed by somebody who does not hold its lane; null: there is none.
-- Both stand beside the lane, so that one locked row says whether there is work, and for whom.
ALTER TABLE {schema}.session
  ADD COLUMN work_seq bigint NOT NULL DEFAULT 0 CHECK (work_seq >= 0),
  ADD COLUMN due_at_ms bigint;
CREATE INDEX session_due ON {schema}.session (tenant, due_at_ms, session)
  WHERE due_at_ms IS NOT NULL;

-- `seq` counts the work of a session, and is its order. Work with a key stays as 'done', without
-- its items, until `keep_until_ms`, so that the key is not taken twice. A claim is bound to the
-- generation of a lane, or without one to a time.
CREATE TABLE {schema}.work (
  tenant text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,
  work text COLLATE "C" NOT NULL,
  key text COLLATE "C",
  kind text COLLATE "C" NOT NULL CHECK (kind IN ('turn', 'command')),
  delivery text COLLATE "C" NOT NULL CHECK (delivery IN ('earliest', 'after-turn')),
  slot text COLLATE "C" NOT NULL CHECK (slot IN ('join', 'exclusive')),
  merge_key text COLLATE "C",
  state text COLLATE "C" NOT NULL
    CHECK (state IN ('ready', 'delayed', 'claimed', 'dead', 'done')),
  available_at_ms bigint NOT NULL,
  enqueued_at_ms bigint NOT NULL,
  items bytea NOT NULL,
  digest bytea NOT NULL,
  process text COLLATE "C",
  event bigint,
  attempts bigint NOT NULL CHECK (attempts >= 0),
  max_attempts bigint,
  last_error text COLLATE "C",
  claim text COLLATE "C",
  claim_token text COLLATE "C",
  claim_owner text COLLATE "C",
  claim_generation bigint,
  claimed_at_ms bigint,
  claim_expires_at_ms bigint,
  settled_turn text COLLATE "C",
  keep_ms bigint NOT NULL,
  keep_until_ms bigint,
  PRIMARY KEY (tenant, session, seq),
  CHECK ((claim IS NOT NULL) = (state = 'claimed'))
);
CREATE UNIQUE INDEX work_id ON {schema}.work (tenant, session, work);
CREATE UNIQUE INDEX work_key ON {schema}.work (tenant, session, key) WHERE key IS NOT NULL;
CREATE INDEX work_ready ON {schema}.work (tenant, session, seq) WHERE state = 'ready';
CREATE INDEX work_delayed ON {schema}.work (tenant, session, available_at_ms)
  WHERE state = 'delayed';
CREATE INDEX work_claim ON {schema}.work (tenant, session, claim, seq) WHERE state = 'claimed';
CREATE INDEX work_generation ON {schema}.work (tenant, session, claim_generation, seq)
  WHERE state = 'claimed' AND claim_generation IS NOT NULL;
CREATE INDEX work_lapse ON {schema}.work (tenant, session, claim_expires_at_ms, seq)
  WHERE state = 'claimed' AND claim_generation IS NULL;
CREATE INDEX work_dead ON {schema}.work (tenant, session, seq) WHERE state = 'dead';
CREATE INDEX work_last_try ON {schema}.work (tenant, session, seq)
  WHERE state = 'claimed' AND attempts >= max_attempts;
CREATE INDEX work_kept ON {schema}.work (tenant, keep_until_ms) WHERE state = 'done';

-- Work, until when its state holds, and what it is from then on: a claim ends with its lane, or
-- at its own time, and so does a delay. The next claim writes it down; whoever reads knows before.
CREATE VIEW {schema}.work_seen AS
SELECT w.*, CASE WHEN w.state = 'delayed' THEN w.available_at_ms
  WHEN w.state <> 'claimed' THEN 9223372036854775807
  WHEN w.claim_generation IS NULL THEN w.claim_expires_at_ms
  WHEN w.claim_generation = s.lane_generation AND s.lane_token IS NOT NULL
  THEN s.lane_expires_at_ms ELSE 0 END AS until_ms,
  CASE WHEN w.state = 'claimed' AND w.attempts >= w.max_attempts THEN 'dead' ELSE 'ready' END
  AS then_state
FROM {schema}.work w JOIN {schema}.session s ON s.tenant = w.tenant AND s.session = w.session;

-- Puts work into the inbox of a session; no row when the session is not there. The locked session
-- gives the work its place, and says when somebody may take it.
CREATE FUNCTION {schema}.enqueue_v1(
  p_tenant text, p_session text, p_work text, p_key text, p_kind text, p_delivery text,
  p_slot text, p_merge text, p_delay_ms bigint, p_available_at_ms bigint, p_items bytea,
  p_digest bytea, p_max_attempts bigint, p_keep_ms bigint, p_process text, p_event bigint
) RETURNS TABLE (enqueued boolean, seq bigint, enqueued_at_ms bigint, available_at_ms bigint)
LANGUAGE plpgsql VOLATILE AS $fn$
#variable_conflict use_column
DECLARE
  v_session record;
  v_old record;
  v_now bigint;
  v_at bigint;
BEGIN
  SELECT s.work_seq, s.lane_token, s.lane_expires_at_ms INTO v_session FROM {schema}.session s
  WHERE s.tenant = p_tenant AND s.session = p_session AND s.deleted_at_ms IS NULL
  FOR NO KEY UPDATE;
  IF NOT FOUND OR v_session.work_seq NOT BETWEEN 0 AND 9223372036854775806 THEN
    RETURN;
  END IF;
  v_now := {schema}.now_ms();
  SELECT w.seq, w.state, w.keep_until_ms INTO v_old FROM {schema}.work w
  WHERE w.tenant = p_tenant AND w.session = p_session AND w.work = p_work;
  IF NOT FOUND AND p_key IS NOT NULL THEN
    SELECT w.seq, w.state, w.keep_until_ms INTO v_old FROM {schema}.work w
    WHERE w.tenant = p_tenant AND w.session = p_session AND w.key = p_key; -- guard: dedupe
  END IF;
  IF v_old.seq IS NOT NULL THEN
    IF v_old.state <> 'done' OR v_old.keep_until_ms > v_now THEN
      RETURN QUERY SELECT false, v_old.seq, v_now, v_now;
      RETURN;
    END IF;
    DELETE FROM {schema}.work w
    WHERE w.tenant = p_tenant AND w.session = p_session AND w.seq = v_old.seq;
  END IF;
  v_at := greatest(p_available_at_ms, v_now + p_delay_ms);
  UPDATE {schema}.session s SET work_seq = s.work_seq + 1,
    due_at_ms = least(s.due_at_ms, CASE WHEN s.lane_token IS NOT NULL
      THEN greatest(v_at, s.lane_expires_at_ms) ELSE v_at END)
  WHERE s.tenant = p_tenant AND s.session = p_session;
  INSERT INTO {schema}.work (tenant, session, seq, work, key, kind, delivery, slot, merge_key,
    state, available_at_ms, enqueued_at_ms, items, digest, process, event, attempts, max_attempts,
    keep_ms)
  VALUES (p_tenant, p_session, v_session.work_seq + 1, p_work, p_key, p_kind, p_delivery, p_slot,
    p_merge, CASE WHEN v_at > v_now THEN 'delayed' ELSE 'ready' END, v_at, v_now, p_items,
    p_digest, p_process, p_event, 0, p_max_attempts, p_keep_ms);
  RETURN QUERY SELECT true, v_session.work_seq + 1, v_now, v_at;
END
$fn$;

-- When time alone makes more work of a session claimable; null: it does not.
CREATE FUNCTION {schema}.work_later_v1(p_tenant text, p_session text)
RETURNS bigint LANGUAGE sql STABLE AS $fn$
  SELECT least(
    (SELECT w.available_at_ms FROM {schema}.work w WHERE w.tenant = p_tenant
      AND w.session = p_session AND w.state = 'delayed' ORDER BY w.available_at_ms LIMIT 1),
    (SELECT w.claim_expires_at_ms FROM {schema}.work w WHERE w.tenant = p_tenant
      AND w.session = p_session AND w.state = 'claimed' AND w.claim_generation IS NULL
      ORDER BY w.claim_expires_at_ms LIMIT 1))
$fn$;

-- When work of a session can next be claimed, if nobody holds its lane; null: there is none.
CREATE FUNCTION {schema}.work_due_v1(p_tenant text, p_session text, p_now bigint)
RETURNS bigint LANGUAGE sql STABLE AS $fn$
  SELECT CASE
    WHEN EXISTS (SELECT FROM {schema}.work w
      WHERE w.tenant = p_tenant AND w.session = p_session AND w.state = 'ready') THEN p_now
    WHEN EXISTS (SELECT FROM {schema}.work w WHERE w.tenant = p_tenant AND w.session = p_session
      AND w.state = 'claimed' AND w.claim_generation IS NOT NULL) THEN p_now
    ELSE {schema}.work_later_v1(p_tenant, p_session) END
$fn$;

-- The head of an inbox, for whoever may claim it while the lane of generation p_live is live;
-- whether somebody has claimed work, and when time alone makes more of it claimable.
-- What one inbox holds is no part of the statistics, and an empty one is the rule: a plan that
-- reads an inbox to sort it, or all of a table, looks cheap until there is a backlog. So no such
-- plan is allowed here or in a claim, and an order that only one index has says which one is meant.
CREATE FUNCTION {schema}.inbox_v1(p_tenant text, p_session text, p_live bigint, p_now bigint)
RETURNS TABLE (kind text, delivery text, any_claimed boolean, next_at_ms bigint)
LANGUAGE sql STABLE ROWS 1 SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_sort = off AS $fn$
  SELECT f.kind, f.delivery, coalesce(c.last_generation = p_live, false)
      OR coalesce(c.last_expires_at_ms > p_now, false),
    least(c.available_at_ms, c.expires_at_ms)
  FROM (SELECT
    least(
      (SELECT w.seq FROM {schema}.work w WHERE w.tenant = p_tenant AND w.session = p_session
        AND w.state = 'ready' ORDER BY w.seq LIMIT 1),
      (SELECT min(x.seq) FROM (SELECT w.seq FROM {schema}.work w WHERE w.tenant = p_tenant
        AND w.session = p_session AND w.state = 'delayed' AND w.available_at_ms <= p_now
        ORDER BY w.available_at_ms OFFSET 0) x),
      (SELECT min(x.seq) FROM (SELECT w.seq FROM {schema}.work w WHERE w.tenant = p_tenant
        AND w.session = p_session AND w.state = 'claimed' AND w.claim_generation IS NOT NULL
        AND w.claim_generation < coalesce(p_live, 9223372036854775807)
        AND coalesce(w.attempts < w.max_attempts, true) ORDER BY w.claim_generation OFFSET 0) x),
      (SELECT min(x.seq) FROM (SELECT w.seq FROM {schema}.work w WHERE w.tenant = p_tenant
        AND w.session = p_session AND w.state = 'claimed' AND w.claim_generation IS NULL
        AND w.claim_expires_at_ms <= p_now AND coalesce(w.attempts < w.max_attempts, true)
        ORDER BY w.claim_expires_at_ms OFFSET 0) x)) AS head,
    (SELECT w.claim_generation FROM {schema}.work w WHERE w.tenant = p_tenant
      AND w.session = p_session AND w.state = 'claimed' AND w.claim_generation IS NOT NULL
      ORDER BY w.claim_generation DESC LIMIT 1) AS last_generation,
    (SELECT w.claim_expires_at_ms FROM {schema}.work w WHERE w.tenant = p_tenant
      AND w.session = p_session AND w.state = 'claimed' AND w.claim_generation IS NULL
      ORDER BY w.claim_expires_at_ms DESC LIMIT 1) AS last_expires_at_ms,
    (SELECT w.available_at_ms FROM {schema}.work w WHERE w.tenant = p_tenant
      AND w.session = p_session AND w.state = 'delayed' ORDER BY w.available_at_ms LIMIT 1)
      AS available_at_ms,
    (SELECT w.claim_expires_at_ms FROM {schema}.work w WHERE w.tenant = p_tenant
      AND w.session = p_session AND w.state = 'claimed' AND w.claim_generation IS NULL
      AND w.claim_expires_at_ms > p_now ORDER BY w.claim_expires_at_ms LIMIT 1)
      AS expires_at_ms) c
  LEFT JOIN LATERAL (SELECT w.kind, w.delivery FROM {schema}.work w WHERE w.tenant = p_tenant
    AND w.session = p_session AND w.seq >= c.head ORDER BY w.seq LIMIT 1) f ON true
$fn$;

-- Claims work of a session, under its lane or without one; or of the next session that has work and
-- no holder, with its lane. One row per work, or one that says why there is none; no row when the
-- session is not there or the lane is somebody else's.
-- Rows that were chosen are found again by their place, which stays as long as their session is
-- held; a plan that looks for their numbers may read all of the inbox.
CREATE FUNCTION {schema}.claim_work_v1(
  p_tenant text, p_session text, p_owner text, p_fence_owner text, p_fence_token text,
  p_fence_generation bigint, p_lane_token text, p_lane_ttl_ms bigint, p_claim text,
  p_claim_token text, p_ttl_ms bigint, p_boundary text, p_kind text, p_limit bigint, p_exact text[]
) RETURNS TABLE (why_not text, next_at_ms bigint, generation bigint, until_ms bigint,
  old_owner text, old_generation bigint, old_expires_at_ms bigint, redelivered boolean,
  claimed_at_ms bigint, claim_expires_at_ms bigint, session text, work text, seq bigint, key text,
  kind text, delivery text, slot text, merge_key text, state text, available_at_ms bigint,
  enqueued_at_ms bigint, items bytea, digest bytea, attempts bigint, max_attempts bigint,
  last_error text, claim_owner text, settled_turn text, process text, event bigint)
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_sort = off AS $fn$
#variable_conflict use_column
DECLARE
  s record;
  f record;
  v_now bigint := {schema}.now_ms();
  v_live boolean;
  v_generation bigint;
  v_until bigint;
  v_before bigint;
  v_ready bigint;
  v_stale bigint;
  v_rows tid[];
  v_works text[];
  v_why text;
  v_next bigint;
BEGIN
  FOR v_try IN 1 .. 64 LOOP
    IF p_session IS NOT NULL THEN
      -- Where nothing can be claimed, one read says so: nothing is locked, and nothing is written.
      SELECT x.*, i.idle,
        CASE WHEN i.idle THEN EXISTS (SELECT FROM {schema}.work w WHERE w.tenant = p_tenant
          AND w.session = p_session AND w.state = 'claimed') END AS any_claimed,
        CASE WHEN i.idle THEN {schema}.work_later_v1(p_tenant, p_session) END AS later
      INTO s FROM {schema}.session x CROSS JOIN LATERAL (
        SELECT x.due_at_ms IS NULL OR NOT (
          EXISTS (SELECT FROM {schema}.work w
            WHERE w.tenant = p_tenant AND w.session = p_session AND w.state = 'ready')
          OR EXISTS (SELECT FROM {schema}.work w WHERE w.tenant = p_tenant
            AND w.session = p_session AND w.state = 'delayed' AND w.available_at_ms <= v_now)
          OR EXISTS (SELECT FROM {schema}.work w WHERE w.tenant = p_tenant
            AND w.session = p_session AND w.state = 'claimed' AND w.claim_generation IS NOT NULL
            AND w.claim_generation < CASE WHEN p_fence_token IS NULL THEN 9223372036854775807
              ELSE x.lane_generation END)
          OR EXISTS (SELECT FROM {schema}.work w WHERE w.tenant = p_tenant
            AND w.session = p_session AND w.state = 'claimed' AND w.claim_generation IS NULL
            AND w.claim_expires_at_ms <= v_now)) AS idle) i
      WHERE x.tenant = p_tenant AND x.session = p_session AND x.deleted_at_ms IS NULL;
      IF NOT s.idle THEN
        SELECT x.*, false AS idle, NULL::boolean AS any_claimed, NULL::bigint AS later
        INTO s FROM {schema}.session x WHERE x.tenant = p_tenant
          AND x.session = p_session AND x.deleted_at_ms IS NULL FOR NO KEY UPDATE;
      END IF;
    ELSE
      SELECT x.*, false AS idle INTO s FROM {schema}.session x
      WHERE x.tenant = p_tenant AND x.due_at_ms <= v_now
        AND x.lane_generation BETWEEN 0 AND 9223372036854775806
      ORDER BY x.due_at_ms, x.session LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
      IF s.session IS NULL THEN
        SELECT x.due_at_ms INTO v_next FROM {schema}.session x
        WHERE x.tenant = p_tenant AND x.due_at_ms IS NOT NULL
        ORDER BY x.due_at_ms, x.session LIMIT 1;
        v_why := CASE WHEN v_next IS NULL THEN 'empty' WHEN v_next <= v_now THEN 'contended'
                      ELSE 'not-yet-available' END;
        EXIT;
      END IF;
    END IF;
    IF s.session IS NULL THEN
      RETURN;
    END IF;
    v_now := {schema}.now_ms();
    v_live := s.lane_token IS NOT NULL AND s.lane_expires_at_ms > v_now;
    IF p_session IS NULL THEN
      IF v_live THEN
        -- Somebody works on it: it is due again when the lane ends.
        UPDATE {schema}.session x SET due_at_ms = s.lane_expires_at_ms
        WHERE x.tenant = p_tenant AND x.session = s.session;
        CONTINUE;
      END IF;
      v_generation := s.lane_generation + 1;
      v_until := v_now + p_lane_ttl_ms;
    ELSIF p_fence_token IS NOT NULL THEN
      IF (v_live AND s.lane_owner = p_fence_owner AND s.lane_token = p_fence_token
          AND s.lane_generation = p_fence_generation) IS NOT TRUE THEN -- guard: fence
        RETURN;
      END IF;
      v_generation := s.lane_generation;
      v_until := s.lane_expires_at_ms;
    ELSE
      IF v_live THEN -- guard: lane-free
        RETURN;
      END IF;
      v_generation := NULL;
      v_until := NULL;
    END IF;
    IF s.idle THEN
      v_next := s.later;
      v_why := CASE WHEN s.any_claimed THEN 'claimed' WHEN v_next IS NULL THEN 'empty'
                    ELSE 'not-yet-available' END;
      EXIT;
    END IF;

    v_before := coalesce(v_generation, 9223372036854775807);
    UPDATE {schema}.work w SET state = 'dead', claim = NULL, claim_token = NULL,
      claim_owner = NULL, claim_generation = NULL, claimed_at_ms = NULL,
      claim_expires_at_ms = NULL,
      last_error = coalesce(w.last_error, 'whoever had claimed it went away')
    WHERE w.tenant = p_tenant AND w.session = s.session AND w.state = 'claimed'
      AND w.attempts >= w.max_attempts
      AND CASE WHEN w.claim_generation IS NULL THEN w.claim_expires_at_ms <= v_now
               ELSE w.claim_generation < v_before END;
    UPDATE {schema}.work w SET state = 'ready'
    WHERE w.tenant = p_tenant AND w.session = s.session AND w.state = 'delayed'
      AND w.available_at_ms <= v_now;
    SELECT w.seq INTO v_ready FROM {schema}.work w
    WHERE w.tenant = p_tenant AND w.session = s.session AND w.state = 'ready'
    ORDER BY w.seq LIMIT 1;
    SELECT least(
      (SELECT min(x.seq) FROM (SELECT w.seq FROM {schema}.work w WHERE w.tenant = p_tenant
        AND w.session = s.session AND w.state = 'claimed' AND w.claim_generation IS NOT NULL
        AND w.claim_generation < v_before -- guard: generation
        ORDER BY w.claim_generation OFFSET 0) x),
      (SELECT min(x.seq) FROM (SELECT w.seq FROM {schema}.work w WHERE w.tenant = p_tenant
        AND w.session = s.session AND w.state = 'claimed' AND w.claim_generation IS NULL
        AND w.claim_expires_at_ms <= v_now ORDER BY w.claim_expires_at_ms OFFSET 0) x))
      INTO v_stale;
    v_why := NULL;
    v_rows := NULL;
    IF v_ready IS NULL AND v_stale IS NULL THEN
      v_next := {schema}.work_later_v1(p_tenant, s.session);
      IF p_session IS NULL THEN
        UPDATE {schema}.session x SET due_at_ms = v_next
        WHERE x.tenant = p_tenant AND x.session = s.session;
        CONTINUE;
      END IF;
      v_why := CASE WHEN EXISTS (SELECT FROM {schema}.work w WHERE w.tenant = p_tenant
          AND w.session = s.session AND w.state = 'claimed') THEN 'claimed'
        WHEN v_next IS NULL THEN 'empty' ELSE 'not-yet-available' END;
      EXIT;
    END IF;
    SELECT w.*, w.ctid AS place INTO f FROM {schema}.work w
    WHERE w.tenant = p_tenant AND w.session = s.session
      AND w.seq >= least(v_ready, v_stale) ORDER BY w.seq LIMIT 1;
    IF p_boundary = 'checkpoint' AND f.delivery <> 'earliest' THEN
      v_why := 'boundary';
    ELSIF p_kind = 'turn' AND f.kind <> 'turn' THEN
      v_why := 'command-at-head';
    ELSIF p_kind = 'command' AND f.kind <> 'command' THEN
      v_why := 'turn-at-head';
    ELSIF f.seq = v_stale THEN
      -- What was claimed together is claimed together again, whatever has come since.
      SELECT array_agg(x.place), array_agg(x.work) INTO v_rows, v_works FROM (
        SELECT w.ctid AS place, w.work FROM {schema}.work w WHERE w.tenant = p_tenant
          AND w.session = s.session AND w.claim = f.claim AND w.state = 'claimed'
        ORDER BY w.seq) x;
    ELSIF f.slot = 'exclusive' OR f.merge_key IS NULL OR f.kind = 'command' THEN -- guard: merge
      v_rows := ARRAY[f.place];
      v_works := ARRAY[f.work];
    ELSE
      SELECT array_agg(y.place), array_agg(y.work) INTO v_rows, v_works FROM (
        SELECT x.place, x.work, bool_and(x.kind = f.kind AND x.slot = 'join'
            AND x.delivery = f.delivery AND coalesce(x.merge_key = f.merge_key, false))
          OVER (ORDER BY x.seq) AS joins -- guard: prefix
        FROM (SELECT w.*, w.ctid AS place FROM {schema}.work w WHERE w.tenant = p_tenant
          AND w.session = s.session AND w.state = 'ready' ORDER BY w.seq LIMIT p_limit) x
        WHERE x.seq < coalesce(v_stale, 9223372036854775807)) y WHERE y.joins;
    END IF;
    IF v_why IS NULL AND cardinality(p_exact) > 0 AND p_exact <> v_works THEN
      v_why := 'not-at-head';
    END IF;
    EXIT WHEN v_why IS NOT NULL;

    RETURN QUERY WITH took AS (
      UPDATE {schema}.work w SET state = 'claimed', claim = p_claim, claim_token = p_claim_token,
        claim_owner = p_owner, claim_generation = v_generation, claimed_at_ms = v_now,
        claim_expires_at_ms = CASE WHEN v_generation IS NULL THEN v_now + p_ttl_ms END,
        attempts = w.attempts + 1
      WHERE w.ctid = ANY (v_rows) RETURNING w.*
    )
    SELECT NULL::text, NULL::bigint, v_generation, v_until, s.lane_owner,
      s.lane_generation, s.lane_expires_at_ms, f.seq = v_stale, w.claimed_at_ms,
      w.claim_expires_at_ms, w.session, w.work, w.seq, w.key, w.kind, w.delivery, w.slot,
      w.merge_key, w.state, w.available_at_ms, w.enqueued_at_ms, w.items, w.digest, w.attempts,
      w.max_attempts, w.last_error, w.claim_owner, w.settled_turn, w.process, w.event
    FROM took w;
    UPDATE {schema}.session x SET
      due_at_ms = coalesce(v_until, {schema}.work_due_v1(p_tenant, s.session, v_now)),
      lane_owner = CASE WHEN p_session IS NULL THEN p_owner ELSE x.lane_owner END,
      lane_token = CASE WHEN p_session IS NULL THEN p_lane_token ELSE x.lane_token END,
      lane_generation = coalesce(v_generation, x.lane_generation),
      lane_claimed_at_ms = CASE WHEN p_session IS NULL THEN v_now ELSE x.lane_claimed_at_ms END,
      lane_expires_at_ms = CASE WHEN p_session IS NULL THEN v_until ELSE x.lane_expires_at_ms END
    WHERE x.tenant = p_tenant AND x.session = s.session;
    RETURN;
  END LOOP;
  RETURN QUERY SELECT coalesce(v_why, 'contended'), v_next, x.* FROM
    (SELECT NULL::bigint, NULL::bigint, NULL::text, NULL::bigint, NULL::bigint, false,
      NULL::bigint, NULL::bigint, NULL::text, NULL::text, NULL::bigint, NULL::text, NULL::text,
      NULL::text, NULL::text, NULL::text, NULL::text, NULL::bigint, NULL::bigint, NULL::bytea,
      NULL::bytea, NULL::bigint, NULL::bigint, NULL::text, NULL::text, NULL::text, NULL::text,
      NULL::bigint) x;
END
$fn$;

-- Commits turns as `commit_turns_v1` does, and settles the work they claimed: a turn whose claims
-- own other work than it names is refused.
CREATE FUNCTION {schema}.commit_turns_v2(
  p_tenant text, p_session text[], p_turn text[], p_intent bytea[], p_expected bigint[],
  p_fence_owner text[], p_fence_token text[], p_fence_generation bigint[], p_release boolean[],
  p_at_leaf boolean[], p_place text[], p_leaf_pos bigint[], p_branches boolean[],
  p_n_unheld bigint[],
  p_node_n bigint[], p_node_hi bigint[], p_node_ord bigint[], p_node text[], p_node_kind text[],
  p_node_body bytea[], p_node_digest bytea[], p_node_parent text[], p_node_pos bigint[],
  p_node_run_pos bigint[], p_node_off bigint[], p_node_base_pos bigint[],
  p_node_base_run_pos bigint[],
  p_state_n bigint[], p_state_ord bigint[], p_state_name text[], p_state_digest bytea[],
  p_blob_ord bigint[], p_blob_digest bytea[], p_blob_encoding bigint[], p_blob_size bigint[],
  p_blob_data bytea[], p_ref_ord bigint[], p_ref_digest bytea[],
  p_usage_ord bigint[], p_usage_ordinal bigint[], p_usage_source text[], p_usage_model text[],
  p_usage_input bigint[], p_usage_output bigint[], p_usage_cache_read bigint[],
  p_usage_cache_write bigint[], p_usage_reasoning bigint[], p_usage_cost_micros bigint[],
  p_usage_currency text[],
  p_claim_ord bigint[], p_claim text[], p_claim_token text[], p_claim_n bigint[],
  p_work_ord bigint[], p_work text[], p_work_claim text[]
) RETURNS TABLE (ord bigint, revision bigint, leaf text, node_count bigint, at_ms bigint)
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_bitmapscan = off AS $fn$
#variable_conflict use_column
DECLARE
  v record;
  v_bad bigint[];
  v_done bigint[] := '{}';
  v_rows tid[];
  v_now bigint;
BEGIN
  IF cardinality(p_claim) > 0 THEN
    -- Sessions before work: whoever claims, settles or gives back work holds its session.
    PERFORM FROM {schema}.session s WHERE s.tenant = p_tenant AND s.session = ANY (p_session)
    ORDER BY s.session FOR NO KEY UPDATE;
    v_now := {schema}.now_ms();
    SELECT array_agg(c.ord) INTO v_bad
    FROM unnest(p_claim_ord, p_claim, p_claim_token, p_claim_n) AS c(ord, claim, token, n)
    CROSS JOIN LATERAL (
      SELECT count(*) AS held, count(*) FILTER (WHERE w.claim_token = c.token
        AND CASE WHEN w.claim_generation IS NULL THEN w.claim_expires_at_ms > v_now
                 ELSE w.claim_generation = p_fence_generation[c.ord] END
        AND EXISTS (SELECT FROM unnest(p_work_ord, p_work, p_work_claim) AS x(ord, work, claim)
          WHERE x.ord = c.ord AND x.claim = c.claim AND x.work = w.work)) AS ours
      FROM {schema}.work w WHERE w.tenant = p_tenant AND w.session = p_session[c.ord]
        AND w.claim = c.claim AND w.state = 'claimed') k
    WHERE c.n <> k.held OR c.n <> k.ours OR c.n = 0; -- guard: claim
  END IF;
  FOR v IN
    SELECT * FROM {schema}.commit_turns_v1(
      p_tenant, p_session, p_turn, p_intent, p_expected, p_fence_owner, p_fence_token,
      p_fence_generation, p_release, p_at_leaf, p_place, p_leaf_pos, p_branches,
      CASE WHEN v_bad IS NULL THEN p_n_unheld ELSE ARRAY(
        SELECT u.n + (u.at = ANY (v_bad))::integer
        FROM unnest(p_n_unheld) WITH ORDINALITY AS u(n, at) ORDER BY u.at) END,
      p_node_n, p_node_hi, p_node_ord, p_node, p_node_kind, p_node_body, p_node_digest,
      p_node_parent, p_node_pos, p_node_run_pos, p_node_off, p_node_base_pos,
      p_node_base_run_pos, p_state_n, p_state_ord, p_state_name, p_state_digest, p_blob_ord,
      p_blob_digest, p_blob_encoding, p_blob_size, p_blob_data, p_ref_ord, p_ref_digest,
      p_usage_ord, p_usage_ordinal, p_usage_source, p_usage_model, p_usage_input,
      p_usage_output, p_usage_cache_read, p_usage_cache_write, p_usage_reasoning,
      p_usage_cost_micros, p_usage_currency)
  LOOP
    ord := v.ord;
    revision := v.revision;
    leaf := v.leaf;
    node_count := v.node_count;
    at_ms := v.at_ms;
    IF p_release[v.ord] OR v.ord = ANY (p_claim_ord) THEN
      v_done := v_done || v.ord;
    END IF;
    RETURN NEXT;
  END LOOP;
  IF v_done = '{}' THEN
    RETURN;
  END IF;
  IF cardinality(p_claim) > 0 THEN
    -- What a turn settles is all that its claims hold.
    SELECT array_agg(w.place) INTO v_rows FROM unnest(p_claim_ord, p_claim) AS c(ord, claim)
    CROSS JOIN LATERAL (SELECT w.ctid AS place FROM {schema}.work w WHERE w.tenant = p_tenant
      AND w.session = p_session[c.ord] AND w.claim = c.claim AND w.state = 'claimed' OFFSET 0) w
    WHERE c.ord = ANY (v_done);
    DELETE FROM {schema}.work w WHERE w.ctid = ANY (v_rows) AND w.key IS NULL;
    UPDATE {schema}.work w SET state = 'done', items = '', claim = NULL, claim_token = NULL,
      claim_owner = NULL, claim_generation = NULL, claimed_at_ms = NULL,
      claim_expires_at_ms = NULL, settled_turn = p_turn[array_position(p_session, w.session)],
      keep_until_ms = v_now + w.keep_ms
    WHERE w.ctid = ANY (v_rows);
  END IF;
  v_now := {schema}.now_ms();
  UPDATE {schema}.session s SET due_at_ms = CASE
    WHEN d.due IS NOT NULL AND s.lane_token IS NOT NULL THEN greatest(d.due, s.lane_expires_at_ms)
    ELSE d.due END
  FROM unnest(v_done) AS x(ord)
  CROSS JOIN LATERAL {schema}.work_due_v1(p_tenant, p_session[x.ord], v_now) AS d(due)
  WHERE s.tenant = p_tenant AND s.session = p_session[x.ord] AND s.due_at_ms IS NOT NULL;
END
$fn$;
