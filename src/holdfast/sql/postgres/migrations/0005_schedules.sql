-- oldest reader: 1
-- Schedules: what is to happen again and again, up to where that is decided, and what was skipped.

-- One row per schedule. `digest` proves what was registered, from `timing` to `until_ms`. Every
-- instant up to `decided_ms` has fired or was skipped, and none after it: whoever decides the next
-- ones compares it. `next_at_ms` is the first of those; null: it is paused, or over.
CREATE TABLE {schema}.schedule (
  tenant text COLLATE "C" NOT NULL,
  schedule text COLLATE "C" NOT NULL,
  timing bytea NOT NULL,
  payload bytea NOT NULL,
  digest bytea NOT NULL,
  missed text COLLATE "C" NOT NULL CHECK (missed IN ('skip', 'one', 'all')),
  cap bigint NOT NULL,
  grace_ms bigint NOT NULL,
  start_ms bigint,
  until_ms bigint,
  revision bigint NOT NULL CHECK (revision >= 1),
  created_at_ms bigint NOT NULL,
  updated_at_ms bigint NOT NULL,
  decided_ms bigint NOT NULL,
  next_at_ms bigint,
  last_at_ms bigint,
  paused_at_ms bigint,
  fired bigint NOT NULL CHECK (fired >= 0),
  skipped bigint NOT NULL CHECK (skipped >= 0),
  ran bigint NOT NULL CHECK (ran >= 0),
  PRIMARY KEY (tenant, schedule),
  CHECK (paused_at_ms IS NULL OR next_at_ms IS NULL)
);
CREATE INDEX schedule_due ON {schema}.schedule (tenant, next_at_ms, schedule)
  WHERE next_at_ms IS NOT NULL;

-- A stretch of instants that did not fire: so many of them, one after the other, and why.
CREATE TABLE {schema}.schedule_skip (
  tenant text COLLATE "C" NOT NULL,
  schedule text COLLATE "C" NOT NULL,
  first_ms bigint NOT NULL,
  last_ms bigint NOT NULL,
  count bigint NOT NULL CHECK (count >= 1),
  reason text COLLATE "C" NOT NULL CHECK (reason IN ('missed', 'capped', 'paused', 'replaced')),
  at_ms bigint NOT NULL,
  PRIMARY KEY (tenant, schedule, first_ms)
);

-- Writes down what was decided of a schedule, or that it is run by hand, stores what happened by
-- that, and starts the processes of it; answers how much of it was not there already. No row when
-- the schedule is not as it was looked at, or its subscriptions have changed since. A tick does not
-- wait for a schedule that somebody holds. The schedule is locked first, then the sessions of the
-- grants, then the source; what is inserted is sorted.
CREATE FUNCTION {schema}.fire_schedule_v1(
  p_tenant text, p_schedule text, p_by_hand boolean, p_seen_digest bytea, p_seen_decided_ms bigint,
  p_version bigint, p_decided_ms bigint, p_next_at_ms bigint, p_last_at_ms bigint,
  p_fire_count bigint, p_skip_first_ms bigint, p_skip_last_ms bigint, p_skip_count bigint,
  p_skip_reason text, p_at_ms bigint,
  o_occurrence text[], o_key text[], o_payload bytea[], o_digest bytea[],
  d_occurrence text[], d_session text[], d_frame text[], d_key text[], d_subscription text[],
  d_process text[], d_state text[], d_reason text[],
  p_occurrence text[], p_process text[], p_kind text[], p_definition text[], p_recovery text[],
  p_origin_session text[], p_wake_session text[], p_registration bytea[], p_identity bytea[],
  g_session text[], g_frame text[], g_process text[], g_kind text[], g_label text[]
) RETURNS TABLE (stored bigint)
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan AS $fn$
DECLARE
  v_now bigint;
  v_version bigint;
  v_fresh text[] := '{}';
  v_born text[] := '{}';
  v_taken text[] := '{}';
BEGIN
  IF p_by_hand THEN
    PERFORM FROM {schema}.schedule s WHERE s.tenant = p_tenant AND s.schedule = p_schedule
      AND s.digest = p_seen_digest FOR NO KEY UPDATE; -- guard: definition by hand
  ELSE
    PERFORM FROM {schema}.schedule s WHERE s.tenant = p_tenant AND s.schedule = p_schedule
      AND s.digest = p_seen_digest -- guard: definition
      AND s.decided_ms = p_seen_decided_ms -- guard: decided
      AND s.paused_at_ms IS NULL -- guard: paused
    FOR NO KEY UPDATE SKIP LOCKED;
  END IF;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  IF cardinality(o_occurrence) > 0 THEN
    IF cardinality(g_session) > 0 THEN
      PERFORM FROM {schema}.session s WHERE s.tenant = p_tenant AND s.session = ANY (g_session)
      ORDER BY s.session FOR KEY SHARE;
    END IF;
    SELECT t.version INTO v_version FROM {schema}.trigger_source t WHERE t.tenant = p_tenant
      AND t.source_type = 'schedule' AND t.source_key = p_schedule FOR SHARE;
    IF coalesce(v_version, 0) <> p_version THEN -- guard: source
      RETURN;
    END IF;
    v_now := {schema}.now_ms();
    WITH fresh AS (
      INSERT INTO {schema}.trigger_occurrence AS o (tenant, occurrence, source_type, source_key,
        key, payload, digest, at_ms)
      SELECT p_tenant, x.occurrence, 'schedule', p_schedule, x.key, x.payload, x.digest, v_now
      FROM unnest(o_occurrence, o_key, o_payload, o_digest)
        AS x(occurrence, key, payload, digest)
      ORDER BY x.key
      ON CONFLICT DO NOTHING RETURNING o.occurrence
    )
    SELECT coalesce(array_agg(f.occurrence), '{}') INTO v_fresh FROM fresh f;
  END IF;
  UPDATE {schema}.schedule s SET
    decided_ms = CASE WHEN p_by_hand THEN s.decided_ms ELSE p_decided_ms END,
    next_at_ms = CASE WHEN p_by_hand THEN s.next_at_ms ELSE p_next_at_ms END,
    last_at_ms = coalesce(p_last_at_ms, s.last_at_ms), fired = s.fired + p_fire_count,
    skipped = s.skipped + p_skip_count,
    ran = s.ran + CASE WHEN p_by_hand THEN cardinality(v_fresh) ELSE 0 END
  WHERE s.tenant = p_tenant AND s.schedule = p_schedule;
  IF p_skip_count > 0 THEN
    INSERT INTO {schema}.schedule_skip (tenant, schedule, first_ms, last_ms, count, reason, at_ms)
    VALUES (p_tenant, p_schedule, p_skip_first_ms, p_skip_last_ms, p_skip_count, p_skip_reason,
      p_at_ms);
  END IF;
  IF cardinality(p_process) > 0 AND cardinality(v_fresh) > 0 THEN
    WITH born AS (
      INSERT INTO {schema}.process AS p (tenant, process, kind, definition, recovery,
        origin_session, wake_session, registration, identity, created_at_ms, state, last_event,
        updated_at_ms, ready_at_ms, lease_generation)
      SELECT p_tenant, x.process, x.kind, x.definition, x.recovery, x.origin_session,
        x.wake_session, x.registration, x.identity, v_now, 'running', 0, v_now,
        CASE WHEN x.recovery <> 'external' THEN v_now END, 0
      FROM unnest(p_occurrence, p_process, p_kind, p_definition, p_recovery, p_origin_session,
        p_wake_session, p_registration, p_identity) AS x(occurrence, process, kind, definition,
        recovery, origin_session, wake_session, registration, identity)
      WHERE x.occurrence = ANY (v_fresh)
      ORDER BY x.process
      ON CONFLICT (tenant, process) DO NOTHING
      RETURNING p.process
    )
    SELECT coalesce(array_agg(b.process), '{}') INTO v_born FROM born b;
    INSERT INTO {schema}.process_grant (tenant, session, frame, process, kind, label,
      granted_at_ms)
    SELECT p_tenant, x.session, x.frame, x.process, x.kind, x.label, v_now
    FROM unnest(g_session, g_frame, g_process, g_kind, g_label)
      AS x(session, frame, process, kind, label)
    WHERE x.process = ANY (v_born)
      AND NOT EXISTS (SELECT FROM {schema}.session s WHERE s.tenant = p_tenant
        AND s.session = x.session AND s.deleted_at_ms IS NOT NULL)
    ORDER BY x.session, x.frame, x.process;
    IF cardinality(v_born) < cardinality(p_process) THEN
      SELECT coalesce(array_agg(p.process), '{}') INTO v_taken
      FROM unnest(p_process, p_identity) AS x(process, identity)
      CROSS JOIN LATERAL (SELECT p.process FROM {schema}.process p WHERE p.tenant = p_tenant
        AND p.process = x.process AND p.identity <> x.identity AND p.pruned_at_ms IS NULL) p;
    END IF;
  END IF;
  INSERT INTO {schema}.trigger_delivery (tenant, occurrence, owner_session, owner_frame, key,
    subscription, process, state, reason, at_ms)
  SELECT p_tenant, x.occurrence, x.owner_session, x.owner_frame, x.key, x.subscription, x.process,
    CASE WHEN x.process = ANY (v_taken) THEN 'rejected' ELSE x.state END,
    CASE WHEN x.process = ANY (v_taken) THEN 'another process has its id' ELSE x.reason END, v_now
  FROM unnest(d_occurrence, d_session, d_frame, d_key, d_subscription, d_process, d_state, d_reason)
    AS x(occurrence, owner_session, owner_frame, key, subscription, process, state, reason)
  WHERE x.occurrence = ANY (v_fresh)
  ORDER BY x.occurrence, x.owner_session, x.owner_frame, x.key, x.subscription
  ON CONFLICT DO NOTHING;
  stored := cardinality(v_fresh);
  RETURN NEXT;
END
$fn$;
