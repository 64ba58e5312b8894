-- oldest reader: 1
-- Processes: what was registered, the log of events that makes the record, grants and leases.

-- One row per process. `registration` is what was registered and never changes; `identity` is its
-- hash. The columns from `state` to `wait_after` are the fold of its events: the pointers name the
-- event that said so last. `ready_at_ms` is when somebody may take it up, if nobody has its lease;
-- null: nobody has to. `change` is its place in the feed of changes; null: it has changed, and has
-- no place yet. Of a pruned process the row stays, so that its id is not used again.
CREATE TABLE {schema}.process (
  tenant text COLLATE "C" NOT NULL,
  process text COLLATE "C" NOT NULL,
  kind text COLLATE "C" NOT NULL,
  definition text COLLATE "C",
  recovery text COLLATE "C" NOT NULL CHECK (recovery IN ('rerunnable', 'owner-bound', 'external')),
  origin_session text COLLATE "C",
  parent text COLLATE "C",
  wake_session text COLLATE "C",
  registration bytea NOT NULL,
  identity bytea NOT NULL,
  created_at_ms bigint NOT NULL,
  state text COLLATE "C" NOT NULL
    CHECK (state IN ('running', 'completed', 'failed', 'cancelled', 'abandoned')),
  last_event bigint NOT NULL CHECK (last_event >= 0),
  updated_at_ms bigint NOT NULL,
  ended_event bigint,
  wait_event bigint,
  external_event bigint,
  started_at_ms bigint,
  cancel_at_ms bigint,
  wait_type text COLLATE "C",
  wait_after bigint,
  ready_at_ms bigint,
  lease_owner text COLLATE "C",
  lease_token text COLLATE "C",
  lease_generation bigint NOT NULL CHECK (lease_generation >= 0),
  lease_claimed_at_ms bigint,
  lease_expires_at_ms bigint,
  due_at_ms bigint GENERATED ALWAYS AS (CASE WHEN ready_at_ms IS NULL THEN NULL
    WHEN lease_token IS NULL THEN ready_at_ms
    ELSE greatest(ready_at_ms, lease_expires_at_ms) END) STORED,
  change bigint,
  pruned_at_ms bigint,
  PRIMARY KEY (tenant, process),
  CHECK ((ended_event IS NOT NULL) = (state <> 'running'))
);
CREATE INDEX process_state ON {schema}.process (tenant, state, process)
  WHERE pruned_at_ms IS NULL;
CREATE INDEX process_ended ON {schema}.process (tenant, updated_at_ms, process)
  WHERE pruned_at_ms IS NULL AND ended_event IS NOT NULL;
CREATE INDEX process_due ON {schema}.process (tenant, due_at_ms, process)
  WHERE due_at_ms IS NOT NULL;
CREATE INDEX process_parent ON {schema}.process (tenant, parent, process) WHERE parent IS NOT NULL;
CREATE INDEX process_origin ON {schema}.process (tenant, origin_session, process)
  WHERE origin_session IS NOT NULL;
CREATE INDEX process_change ON {schema}.process (tenant, change) WHERE change IS NOT NULL;
CREATE INDEX process_changed ON {schema}.process (tenant, process) WHERE change IS NULL;

-- The last place in the feed of changes that was given.
CREATE TABLE {schema}.process_clock (
  tenant text COLLATE "C" NOT NULL,
  change bigint NOT NULL CHECK (change >= 0),
  PRIMARY KEY (tenant)
);

-- Entry `seq` of the log of a process, and number `ordinal` of its type. `ends`, `output` and
-- `wake` are what its type made of its payload, `work` is what woke `wake_session`; null: there was
-- no such session any more. `acked_at_ms` says that the wake was seen to.
CREATE TABLE {schema}.process_event (
  tenant text COLLATE "C" NOT NULL,
  process text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,
  type text COLLATE "C" NOT NULL,
  ordinal bigint NOT NULL,
  key text COLLATE "C",
  payload bytea NOT NULL,
  ends text COLLATE "C" CHECK (ends IN ('completed', 'failed', 'cancelled', 'abandoned')),
  output bytea,
  wake bytea,
  digest bytea NOT NULL,
  authority text COLLATE "C" CHECK (authority IN ('lease', 'external', 'operator', 'lapse')),
  wake_session text COLLATE "C",
  wake_frame text COLLATE "C",
  work text COLLATE "C",
  at_ms bigint NOT NULL,
  acked_at_ms bigint,
  PRIMARY KEY (tenant, process, seq)
);
CREATE UNIQUE INDEX process_event_key ON {schema}.process_event (tenant, process, key)
  WHERE key IS NOT NULL;
CREATE INDEX process_event_type ON {schema}.process_event (tenant, process, type, seq);
CREATE INDEX process_event_wake ON {schema}.process_event (tenant, process, seq)
  WHERE wake IS NOT NULL AND acked_at_ms IS NULL;

-- A scope that may see a process; `frame` is empty for the session as a whole.
CREATE TABLE {schema}.process_grant (
  tenant text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  frame text COLLATE "C" NOT NULL,
  process text COLLATE "C" NOT NULL,
  kind text COLLATE "C" NOT NULL,
  label text COLLATE "C" NOT NULL,
  granted_at_ms bigint NOT NULL,
  PRIMARY KEY (tenant, session, frame, process)
);
CREATE INDEX process_grant_process ON {schema}.process_grant (tenant, process, session, frame);

-- A process with the events that made its record; `wake_gone` says that the session it wakes was
-- deleted.
CREATE VIEW {schema}.process_seen AS
SELECT p.*, e.type AS end_type, e.key AS end_key, e.payload AS end_payload, e.ends, e.output,
  e.wake AS end_wake, e.digest AS end_digest, e.authority, w.payload AS wait,
  w.digest AS wait_digest, x.payload AS external, x.digest AS external_digest,
  s.deleted_at_ms IS NOT NULL AS wake_gone
FROM {schema}.process p
LEFT JOIN {schema}.process_event e
  ON e.tenant = p.tenant AND e.process = p.process AND e.seq = p.ended_event
LEFT JOIN {schema}.process_event w
  ON w.tenant = p.tenant AND w.process = p.process AND w.seq = p.wait_event
LEFT JOIN {schema}.process_event x
  ON x.tenant = p.tenant AND x.process = p.process AND x.seq = p.external_event
LEFT JOIN {schema}.session s ON s.tenant = p.tenant AND s.session = p.wake_session
WHERE p.pruned_at_ms IS NULL;

-- How many events of a type a process has.
CREATE FUNCTION {schema}.events_of_type_v1(p_tenant text, p_process text, p_type text)
RETURNS bigint LANGUAGE sql STABLE AS $fn$
  SELECT coalesce((SELECT e.ordinal FROM {schema}.process_event e WHERE e.tenant = p_tenant
    AND e.process = p_process AND e.type = p_type ORDER BY e.seq DESC LIMIT 1), 0)
$fn$;

-- Appends an event to a process with all that follows from it; no row when the process is not there
-- or the event is refused, and a row without an event when there was nothing to append. The session
-- that is woken is locked first, then the process and its parent in the order of their ids.
CREATE FUNCTION {schema}.append_event_v1(
  p_tenant text, p_process text, p_identity bytea, p_type text, p_key text, p_payload bytea,
  p_means text, p_ends text, p_output bytea, p_wake bytea, p_digest bytea, p_authority text,
  p_lease_owner text, p_lease_token text, p_lease_generation bigint, p_wait_type text,
  p_wait_after bigint, p_wait_until_ms bigint, p_target text, p_target_frame text, p_named boolean,
  p_work text, p_items bytea, p_work_digest bytea, p_parent text, p_told bytea, p_told_key text,
  p_told_digest bytea
) RETURNS TABLE (appended boolean, process text, seq bigint, type text, ordinal bigint, key text,
  payload bytea, ends text, output bytea, wake bytea, digest bytea, authority text,
  wake_session text, wake_frame text, work text, at_ms bigint, acked_at_ms bigint)
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan AS $fn$
#variable_conflict use_column
DECLARE
  v record;
  v_parent bigint;
  v_now bigint;
  v_seq bigint;
  v_lease boolean;
  v_append boolean := true;
  v_work text;
  v_enqueued bigint;
BEGIN
  IF p_target IS NOT NULL THEN
    PERFORM FROM {schema}.session s WHERE s.tenant = p_tenant AND s.session = p_target
    FOR NO KEY UPDATE;
    -- A process whose target was deleted has none; an event that names one says so itself.
    IF NOT p_named AND EXISTS (SELECT FROM {schema}.session s WHERE s.tenant = p_tenant
      AND s.session = p_target AND s.deleted_at_ms IS NOT NULL) THEN
      p_target := NULL;
      p_target_frame := NULL;
    END IF;
  END IF;
  IF p_parent IS NOT NULL THEN
    PERFORM FROM {schema}.process p WHERE p.tenant = p_tenant
      AND p.process IN (p_process, p_parent)
    ORDER BY p.process FOR NO KEY UPDATE;
  END IF;
  SELECT * INTO v FROM {schema}.process p WHERE p.tenant = p_tenant AND p.process = p_process
    AND p.pruned_at_ms IS NULL AND p.identity = p_identity FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  v_now := {schema}.now_ms();
  v_lease := coalesce(v.lease_owner = p_lease_owner AND v.lease_token = p_lease_token
    AND v.lease_generation = p_lease_generation AND v.lease_expires_at_ms > v_now, false);
  IF p_key IS NOT NULL THEN
    SELECT e.seq, e.type = p_type AND e.payload = p_payload INTO v_seq, v_append
    FROM {schema}.process_event e
    WHERE e.tenant = p_tenant AND e.process = p_process AND e.key = p_key; -- guard: key
    IF FOUND THEN
      IF NOT v_append THEN
        RETURN;
      END IF;
      RETURN QUERY SELECT false, e.process, e.seq, e.type, e.ordinal, e.key, e.payload, e.ends,
        e.output, e.wake, e.digest, e.authority, e.wake_session, e.wake_frame, e.work, e.at_ms,
        e.acked_at_ms
      FROM {schema}.process_event e
      WHERE e.tenant = p_tenant AND e.process = p_process AND e.seq = v_seq;
      RETURN;
    END IF;
    v_append := true;
  ELSIF p_means = 'resumes' THEN
    v_append := v.wait_event IS NOT NULL;
  ELSIF p_means = 'waits' AND v.wait_event IS NOT NULL THEN
    v_append := NOT EXISTS (SELECT FROM {schema}.process_event e WHERE e.tenant = p_tenant
      AND e.process = p_process AND e.seq = v.wait_event AND e.payload = p_payload);
  END IF;
  IF v_append THEN
    IF p_lease_token IS NOT NULL AND NOT v_lease THEN -- guard: lease
      RETURN;
    END IF;
    IF v.state <> 'running' AND p_means IN ('ends', 'waits', 'cancels') THEN -- guard: ended
      RETURN;
    END IF;
    IF p_ends IS NOT NULL AND NOT coalesce(CASE p_authority WHEN 'lease' THEN true
      WHEN 'operator' THEN true WHEN 'external' THEN v.recovery = 'external'
      WHEN 'lapse' THEN v.recovery = 'owner-bound' AND v.started_at_ms IS NOT NULL
        AND (v.lease_token IS NULL OR v.lease_expires_at_ms <= v_now)
      END, false) THEN -- guard: authority
      RETURN;
    END IF;
    IF p_parent IS NOT NULL THEN
      SELECT p.last_event INTO v_parent FROM {schema}.process p
      WHERE p.tenant = p_tenant AND p.process = p_parent AND p.pruned_at_ms IS NULL;
    END IF;
    IF v.last_event NOT BETWEEN 0 AND 9223372036854775806
      OR coalesce(v_parent, 0) NOT BETWEEN 0 AND 9223372036854775806 THEN
      RETURN;
    END IF;
    v_seq := v.last_event + 1;
    IF p_target IS NOT NULL THEN
      SELECT p_work, q.enqueued_at_ms INTO v_work, v_enqueued
      FROM {schema}.enqueue_v1(p_tenant, p_target, p_work,
        'process:' || p_process || ':event:' || v_seq || ':wake', 'turn', 'earliest', 'exclusive',
        NULL, 0, 0, p_items, p_work_digest, NULL, 604800000, p_process, v_seq) q;
      -- An event and the work that it became happen at once.
      v_now := coalesce(v_enqueued, v_now);
    END IF;
    INSERT INTO {schema}.process_event (tenant, process, seq, type, ordinal, key, payload, ends,
      output, wake, digest, authority, wake_session, wake_frame, work, at_ms)
    VALUES (p_tenant, p_process, v_seq, p_type,
      {schema}.events_of_type_v1(p_tenant, p_process, p_type) + 1, p_key, p_payload, p_ends,
      p_output, p_wake, p_digest, p_authority, p_target, p_target_frame, v_work, v_now);
    UPDATE {schema}.process p SET last_event = v_seq, updated_at_ms = v_now, change = NULL,
      state = coalesce(p_ends, p.state),
      ended_event = CASE WHEN p_ends IS NULL THEN p.ended_event ELSE v_seq END,
      external_event = CASE WHEN p_means = 'external' THEN v_seq ELSE p.external_event END,
      cancel_at_ms = CASE WHEN p_means = 'cancels' THEN coalesce(p.cancel_at_ms, v_now)
        ELSE p.cancel_at_ms END,
      wait_event = CASE WHEN p_means = 'waits' THEN v_seq
        WHEN p_means IN ('ends', 'resumes') THEN NULL ELSE p.wait_event END,
      wait_type = CASE WHEN p_means = 'waits' THEN p_wait_type
        WHEN p_means IN ('ends', 'resumes') THEN NULL ELSE p.wait_type END,
      wait_after = CASE WHEN p_means = 'waits' THEN p_wait_after
        WHEN p_means IN ('ends', 'resumes') THEN NULL ELSE p.wait_after END,
      ready_at_ms = CASE WHEN p_ends IS NOT NULL OR p.recovery = 'external' THEN NULL
        WHEN p_means = 'waits' THEN CASE
          WHEN p.cancel_at_ms IS NOT NULL OR EXISTS (SELECT FROM {schema}.process_event e
            WHERE e.tenant = p_tenant AND e.process = p_process AND e.type = p_wait_type
            AND e.seq > p_wait_after) THEN v_now
          ELSE p_wait_until_ms END
        WHEN p_means = 'resumes' THEN v_now
        WHEN p.wait_event IS NOT NULL AND p.state = 'running' AND (p_means = 'cancels'
          OR (p.wait_type = p_type AND p.wait_after < v_seq))
        THEN least(p.ready_at_ms, v_now) ELSE p.ready_at_ms END
    WHERE p.tenant = p_tenant AND p.process = p_process;
    IF v_parent IS NOT NULL THEN
      INSERT INTO {schema}.process_event (tenant, process, seq, type, ordinal, key, payload, digest,
        at_ms)
      VALUES (p_tenant, p_parent, v_parent + 1, 'process.child-ended',
        {schema}.events_of_type_v1(p_tenant, p_parent, 'process.child-ended') + 1, p_told_key,
        p_told, p_told_digest, v_now);
      UPDATE {schema}.process p SET last_event = v_parent + 1, updated_at_ms = v_now, change = NULL,
        ready_at_ms = CASE WHEN p.wait_type = 'process.child-ended' AND p.wait_after <= v_parent
          AND p.recovery <> 'external' THEN least(p.ready_at_ms, v_now) ELSE p.ready_at_ms END
      WHERE p.tenant = p_tenant AND p.process = p_parent;
    END IF;
  ELSE
    v_seq := v.wait_event;
  END IF;
  IF v.lease_token IS NOT NULL AND ((v_append AND p_ends IS NOT NULL)
    OR (v_lease AND p_means = 'waits' AND v.recovery <> 'owner-bound')) THEN
    UPDATE {schema}.process p SET lease_owner = NULL, lease_token = NULL,
      lease_claimed_at_ms = NULL, lease_expires_at_ms = NULL
    WHERE p.tenant = p_tenant AND p.process = p_process;
  END IF;
  RETURN QUERY SELECT v_append, e.process, e.seq, e.type, e.ordinal, e.key, e.payload, e.ends,
    e.output, e.wake, e.digest, e.authority, e.wake_session, e.wake_frame, e.work, e.at_ms,
    e.acked_at_ms
  FROM (SELECT 1) one LEFT JOIN {schema}.process_event e
    ON e.tenant = p_tenant AND e.process = p_process AND e.seq = v_seq;
END
$fn$;

-- Gives a place in the feed to what has changed. Places are given here only, one caller after the
-- other, so that no writer can slip behind a cursor; what is being written now gets one later.
CREATE FUNCTION {schema}.place_changes_v1(p_tenant text, p_limit bigint)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $fn$
DECLARE
  v_change bigint;
  v_changed text[];
  v_placed bigint;
BEGIN
  IF NOT EXISTS (SELECT FROM {schema}.process p WHERE p.tenant = p_tenant AND p.change IS NULL) THEN
    RETURN 0;
  END IF;
  INSERT INTO {schema}.process_clock (tenant, change) VALUES (p_tenant, 0)
  ON CONFLICT (tenant) DO NOTHING;
  SELECT c.change INTO v_change FROM {schema}.process_clock c
  WHERE c.tenant = p_tenant FOR UPDATE; -- guard: clock
  SELECT array_agg(u.process ORDER BY u.process) INTO v_changed FROM (
    SELECT p.process FROM {schema}.process p WHERE p.tenant = p_tenant AND p.change IS NULL
    ORDER BY p.process LIMIT p_limit FOR NO KEY UPDATE SKIP LOCKED) u;
  UPDATE {schema}.process p SET change = v_change + n.place
  FROM unnest(v_changed) WITH ORDINALITY AS n(process, place)
  WHERE p.tenant = p_tenant AND p.process = n.process;
  GET DIAGNOSTICS v_placed = ROW_COUNT;
  UPDATE {schema}.process_clock c SET change = v_change + v_placed WHERE c.tenant = p_tenant;
  RETURN v_placed;
END
$fn$;
