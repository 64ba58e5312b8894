-- oldest reader: 1
-- Triggers: subscriptions, what happened at their sources, and the processes that it starts.

-- A source that somebody has subscribed to. `version` moves with every change of a subscription to
-- it: it is the row that guards who is delivered to.
CREATE TABLE {schema}.trigger_source (
  tenant text COLLATE "C" NOT NULL,
  source_type text COLLATE "C" NOT NULL,
  source_key text COLLATE "C" NOT NULL,
  version bigint NOT NULL CHECK (version >= 0),
  PRIMARY KEY (tenant, source_type, source_key)
);

-- A rule of its owner, under its key; the owner is empty for the host, the frame for a session as a
-- whole. `definition` is what was registered, and `digest` proves it. `subscription` is the id of
-- this incarnation. Of a deleted one the row stays, so that its revisions go on.
CREATE TABLE {schema}.trigger_subscription (
  tenant text COLLATE "C" NOT NULL,
  owner_session text COLLATE "C" NOT NULL,
  owner_frame text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  subscription text COLLATE "C" NOT NULL,
  incarnation bigint NOT NULL CHECK (incarnation >= 1),
  revision bigint NOT NULL CHECK (revision >= 1),
  enabled boolean NOT NULL,
  name text COLLATE "C" NOT NULL,
  source_type text COLLATE "C" NOT NULL,
  source_key text COLLATE "C" NOT NULL,
  definition bytea NOT NULL,
  digest bytea NOT NULL,
  created_at_ms bigint NOT NULL,
  updated_at_ms bigint NOT NULL,
  deleted_at_ms bigint,
  PRIMARY KEY (tenant, owner_session, owner_frame, key)
);
CREATE INDEX trigger_subscription_source ON {schema}.trigger_subscription
  (tenant, source_type, source_key, owner_session, owner_frame, key) WHERE deleted_at_ms IS NULL;

-- The answer to a change that had an operation, as it was: it is given again to the same operation.
CREATE TABLE {schema}.trigger_receipt (
  tenant text COLLATE "C" NOT NULL,
  operation text COLLATE "C" NOT NULL,
  intent bytea NOT NULL,
  created boolean NOT NULL,
  changed boolean NOT NULL,
  owner_session text COLLATE "C" NOT NULL,
  owner_frame text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  subscription text COLLATE "C" NOT NULL,
  incarnation bigint NOT NULL,
  revision bigint NOT NULL,
  enabled boolean NOT NULL,
  name text COLLATE "C" NOT NULL,
  source_type text COLLATE "C" NOT NULL,
  source_key text COLLATE "C" NOT NULL,
  definition bytea NOT NULL,
  digest bytea NOT NULL,
  created_at_ms bigint NOT NULL,
  updated_at_ms bigint NOT NULL,
  deleted_at_ms bigint,
  PRIMARY KEY (tenant, operation)
);
CREATE INDEX trigger_receipt_owner ON {schema}.trigger_receipt (tenant, owner_session, operation);

-- What happened, once for each key. `digest` proves all of it.
CREATE TABLE {schema}.trigger_occurrence (
  tenant text COLLATE "C" NOT NULL,
  occurrence text COLLATE "C" NOT NULL,
  source_type text COLLATE "C" NOT NULL,
  source_key text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  payload bytea NOT NULL,
  source bytea,
  digest bytea NOT NULL,
  at_ms bigint NOT NULL,
  PRIMARY KEY (tenant, occurrence)
);
CREATE UNIQUE INDEX trigger_occurrence_key ON {schema}.trigger_occurrence (tenant, key);
CREATE INDEX trigger_occurrence_at ON {schema}.trigger_occurrence (tenant, at_ms, occurrence);
CREATE INDEX trigger_occurrence_source ON {schema}.trigger_occurrence
  (tenant, source_type, source_key, at_ms, occurrence);

-- That an occurrence starts the process of a subscription. While it is reserved it has what was
-- registered of the subscription then; afterwards that is in the process.
CREATE TABLE {schema}.trigger_delivery (
  tenant text COLLATE "C" NOT NULL,
  occurrence text COLLATE "C" NOT NULL,
  owner_session text COLLATE "C" NOT NULL,
  owner_frame text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  subscription text COLLATE "C" NOT NULL,
  process text COLLATE "C" NOT NULL,
  state text COLLATE "C" NOT NULL CHECK (state IN ('reserved', 'started', 'rejected')),
  reason text COLLATE "C",
  definition bytea,
  digest bytea,
  at_ms bigint NOT NULL,
  PRIMARY KEY (tenant, occurrence, owner_session, owner_frame, key, subscription),
  CHECK ((definition IS NOT NULL) = (state = 'reserved')),
  CHECK ((reason IS NOT NULL) = (state = 'rejected'))
);
CREATE INDEX trigger_delivery_reserved ON {schema}.trigger_delivery
  (tenant, occurrence, owner_session, owner_frame, key, subscription) WHERE state = 'reserved';
CREATE INDEX trigger_delivery_owner ON {schema}.trigger_delivery
  (tenant, owner_session, occurrence, owner_frame, key, subscription) WHERE state = 'reserved';

-- Changes a subscription, and keeps the answer when there is an operation; no row when the change
-- is refused, or its source was changed meanwhile. The session of the owner is locked first, then
-- the sources it leaves and comes to, in order, then the subscription.
CREATE FUNCTION {schema}.change_subscription_v1(
  p_tenant text, p_verb text, p_owner_session text, p_owner_frame text, p_key text,
  p_expected bigint, p_operation text, p_intent bytea, p_subscription text, p_name text,
  p_source_type text, p_source_key text, p_enabled boolean, p_definition bytea, p_digest bytea
) RETURNS TABLE (created boolean, changed boolean, owner_session text, owner_frame text, key text,
  subscription text, incarnation bigint, revision bigint, enabled boolean, name text,
  source_type text, source_key text, definition bytea, digest bytea, created_at_ms bigint,
  updated_at_ms bigint, deleted_at_ms bigint)
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan AS $fn$
#variable_conflict use_column
DECLARE
  v record;
  v_type text;
  v_key text;
  v_seen bigint;
  v_gone boolean;
  v_intent bytea;
  v_act text;
  v_now bigint;
BEGIN
  IF p_verb = 'register' THEN
    SELECT s.deleted_at_ms IS NOT NULL INTO v_gone FROM {schema}.session s
    WHERE s.tenant = p_tenant AND s.session = p_owner_session FOR KEY SHARE;
    IF v_gone THEN -- guard: owner
      RETURN;
    END IF;
  END IF;
  SELECT s.source_type, s.source_key, s.revision, s.deleted_at_ms IS NOT NULL
  INTO v_type, v_key, v_seen, v_gone FROM {schema}.trigger_subscription s
  WHERE s.tenant = p_tenant AND s.owner_session = p_owner_session
    AND s.owner_frame = p_owner_frame AND s.key = p_key;
  -- A source has a row from its first subscription on, and none for a request that is refused.
  IF p_verb = 'register' AND coalesce(v_seen, 0)
    = coalesce(p_expected, CASE WHEN coalesce(v_gone, true) THEN coalesce(v_seen, 0) END)
    AND NOT EXISTS (SELECT FROM {schema}.trigger_receipt r
      WHERE r.tenant = p_tenant AND r.operation = p_operation) THEN
    INSERT INTO {schema}.trigger_source (tenant, source_type, source_key, version)
    VALUES (p_tenant, p_source_type, p_source_key, 0) ON CONFLICT DO NOTHING;
  END IF;
  PERFORM FROM {schema}.trigger_source t
  WHERE t.tenant = p_tenant AND (t.source_type, t.source_key)
    IN ((p_source_type, p_source_key), (v_type, v_key))
  ORDER BY t.source_type, t.source_key FOR NO KEY UPDATE;
  SELECT s.* INTO v FROM {schema}.trigger_subscription s
  WHERE s.tenant = p_tenant AND s.owner_session = p_owner_session
    AND s.owner_frame = p_owner_frame AND s.key = p_key FOR UPDATE;
  IF v.key IS NOT NULL
    AND (v.source_type, v.source_key) IS DISTINCT FROM (v_type, v_key)
    AND (v.source_type, v.source_key) IS DISTINCT FROM (p_source_type, p_source_key) THEN
    RETURN;
  END IF;
  SELECT r.intent INTO v_intent FROM {schema}.trigger_receipt r
  WHERE r.tenant = p_tenant AND r.operation = p_operation;
  v_act := CASE
    WHEN v_intent IS NOT NULL THEN CASE WHEN v_intent = p_intent THEN 'replay' END
    WHEN p_verb = 'register' THEN CASE
      WHEN v.key IS NULL THEN CASE WHEN coalesce(p_expected, 0) = 0 THEN 'create' END
      WHEN v.deleted_at_ms IS NOT NULL
      THEN CASE WHEN coalesce(p_expected, v.revision) = v.revision THEN 'revive' END
      WHEN v.definition = p_definition THEN 'same'
      WHEN p_expected = v.revision THEN 'update' END -- guard: revision
    WHEN v.key IS NULL THEN NULL
    WHEN v.deleted_at_ms IS NOT NULL THEN CASE WHEN p_verb = 'delete' THEN 'same' END
    WHEN p_expected <> v.revision THEN NULL -- guard: expected
    WHEN p_verb = 'delete' THEN 'delete'
    WHEN v.enabled = (p_verb = 'enable') THEN 'same'
    ELSE p_verb END;
  IF v_act IS NULL OR (v_act IN ('create', 'update', 'revive') AND NOT EXISTS (
    SELECT FROM {schema}.trigger_source t WHERE t.tenant = p_tenant
      AND t.source_type = p_source_type AND t.source_key = p_source_key)) THEN
    RETURN;
  END IF;
  IF v_act = 'replay' THEN
    RETURN QUERY SELECT r.created, r.changed, r.owner_session, r.owner_frame, r.key, r.subscription,
      r.incarnation, r.revision, r.enabled, r.name, r.source_type, r.source_key, r.definition,
      r.digest, r.created_at_ms, r.updated_at_ms, r.deleted_at_ms
    FROM {schema}.trigger_receipt r WHERE r.tenant = p_tenant AND r.operation = p_operation;
    RETURN;
  END IF;
  v_now := {schema}.now_ms();
  IF v_act = 'create' THEN
    INSERT INTO {schema}.trigger_subscription (tenant, owner_session, owner_frame, key,
      subscription, incarnation, revision, enabled, name, source_type, source_key, definition,
      digest, created_at_ms, updated_at_ms)
    VALUES (p_tenant, p_owner_session, p_owner_frame, p_key, p_subscription, 1, 1, p_enabled,
      p_name, p_source_type, p_source_key, p_definition, p_digest, v_now, v_now)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
      RETURN;
    END IF;
  ELSIF v_act IN ('update', 'revive') THEN
    UPDATE {schema}.trigger_subscription s SET revision = s.revision + 1, name = p_name,
      source_type = p_source_type, source_key = p_source_key, definition = p_definition,
      digest = p_digest, updated_at_ms = v_now, deleted_at_ms = NULL,
      subscription = CASE WHEN v_act = 'revive' THEN p_subscription ELSE s.subscription END,
      incarnation = CASE WHEN v_act = 'revive' THEN s.incarnation + 1 ELSE s.incarnation END,
      enabled = CASE WHEN v_act = 'revive' THEN p_enabled ELSE s.enabled END,
      created_at_ms = CASE WHEN v_act = 'revive' THEN v_now ELSE s.created_at_ms END
    WHERE s.tenant = p_tenant AND s.owner_session = p_owner_session
      AND s.owner_frame = p_owner_frame AND s.key = p_key;
  ELSIF v_act <> 'same' THEN
    UPDATE {schema}.trigger_subscription s SET revision = s.revision + 1, updated_at_ms = v_now,
      enabled = CASE WHEN v_act = 'delete' THEN s.enabled ELSE v_act = 'enable' END,
      deleted_at_ms = CASE WHEN v_act = 'delete' THEN v_now END
    WHERE s.tenant = p_tenant AND s.owner_session = p_owner_session
      AND s.owner_frame = p_owner_frame AND s.key = p_key;
  END IF;
  IF v_act <> 'same' THEN
    UPDATE {schema}.trigger_source t SET version = t.version + 1
    WHERE t.tenant = p_tenant AND (t.source_type, t.source_key)
      IN ((p_source_type, p_source_key), (v.source_type, v.source_key));
  END IF;
  IF p_operation IS NOT NULL THEN
    INSERT INTO {schema}.trigger_receipt (tenant, operation, intent, created, changed,
      owner_session, owner_frame, key, subscription, incarnation, revision, enabled, name,
      source_type, source_key, definition, digest, created_at_ms, updated_at_ms, deleted_at_ms)
    SELECT p_tenant, p_operation, p_intent, v_act IN ('create', 'revive'), v_act <> 'same',
      s.owner_session, s.owner_frame, s.key, s.subscription, s.incarnation, s.revision, s.enabled,
      s.name, s.source_type, s.source_key, s.definition, s.digest, s.created_at_ms,
      s.updated_at_ms, s.deleted_at_ms
    FROM {schema}.trigger_subscription s
    WHERE s.tenant = p_tenant AND s.owner_session = p_owner_session
      AND s.owner_frame = p_owner_frame AND s.key = p_key;
  END IF;
  RETURN QUERY SELECT v_act IN ('create', 'revive'), v_act <> 'same', s.owner_session,
    s.owner_frame, s.key, s.subscription, s.incarnation, s.revision, s.enabled, s.name,
    s.source_type, s.source_key, s.definition, s.digest, s.created_at_ms, s.updated_at_ms,
    s.deleted_at_ms
  FROM {schema}.trigger_subscription s
  WHERE s.tenant = p_tenant AND s.owner_session = p_owner_session
    AND s.owner_frame = p_owner_frame AND s.key = p_key;
END
$fn$;

-- Delivers an occurrence, and answers the deliveries it wrote, behind the time of the occurrence;
-- without any, the time alone. To 'ingest' stores the occurrence and starts the processes, to
-- 'reserve' starts nothing yet, and to 'start' starts what is reserved still. No row when the
-- occurrence is there already, or is not, or when the source is not at the version at which the
-- deliveries were decided. The sessions of the grants are locked first, then the source, then the
-- occurrence; what is inserted is sorted.
CREATE FUNCTION {schema}.deliver_v1(
  p_tenant text, p_mode text, p_occurrence text, p_source_type text, p_source_key text,
  p_version bigint, p_key text, p_payload bytea, p_source bytea, p_digest bytea,
  d_session text[], d_frame text[], d_key text[], d_subscription text[], d_process text[],
  d_state text[], d_reason text[], d_definition bytea[], d_digest bytea[],
  p_process text[], p_kind text[], p_definition text[], p_recovery text[],
  p_origin_session text[], p_wake_session text[], p_registration bytea[], p_identity bytea[],
  g_session text[], g_frame text[], g_process text[], g_kind text[], g_label text[]
) RETURNS TABLE (occurred_at_ms bigint, occurrence text, owner_session text, owner_frame text,
  key text, subscription text, process text, state text, reason text, at_ms bigint)
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan AS $fn$
#variable_conflict use_column
DECLARE
  v_version bigint;
  v_now bigint;
  v_at bigint;
  v_wanted text[];
  v_born text[] := '{}';
  v_taken text[] := '{}';
BEGIN
  IF cardinality(g_session) > 0 THEN
    PERFORM FROM {schema}.session s WHERE s.tenant = p_tenant AND s.session = ANY (g_session)
    ORDER BY s.session FOR KEY SHARE;
  END IF;
  IF p_mode <> 'start' THEN
    SELECT t.version INTO v_version FROM {schema}.trigger_source t WHERE t.tenant = p_tenant
      AND t.source_type = p_source_type AND t.source_key = p_source_key FOR SHARE;
    IF coalesce(v_version, 0) <> p_version THEN -- guard: source
      RETURN;
    END IF;
  END IF;
  v_now := {schema}.now_ms();
  IF p_mode = 'ingest' THEN
    INSERT INTO {schema}.trigger_occurrence AS o (tenant, occurrence, source_type, source_key, key,
      payload, source, digest, at_ms)
    VALUES (p_tenant, p_occurrence, p_source_type, p_source_key, p_key, p_payload, p_source,
      p_digest, v_now)
    ON CONFLICT DO NOTHING RETURNING o.at_ms INTO v_at;
  ELSE
    SELECT o.at_ms INTO v_at FROM {schema}.trigger_occurrence o
    WHERE o.tenant = p_tenant AND o.occurrence = p_occurrence FOR NO KEY UPDATE;
  END IF;
  IF v_at IS NULL THEN -- guard: occurrence
    RETURN;
  END IF;
  IF p_mode = 'start' THEN
    SELECT coalesce(array_agg(x.process), '{}') INTO v_wanted FROM (
      SELECT d.process FROM {schema}.trigger_delivery d
      WHERE d.tenant = p_tenant AND d.occurrence = p_occurrence AND d.state = 'reserved'
        AND d.process = ANY (d_process)
      ORDER BY d.owner_session, d.owner_frame, d.key, d.subscription FOR NO KEY UPDATE) x;
    IF cardinality(v_wanted) = cardinality(d_process) THEN
      v_wanted := NULL;
    END IF;
  END IF;
  IF cardinality(p_process) > 0 THEN
    WITH born AS (
      INSERT INTO {schema}.process AS p (tenant, process, kind, definition, recovery,
        origin_session, wake_session, registration, identity, created_at_ms, state, last_event,
        updated_at_ms, ready_at_ms, lease_generation)
      SELECT p_tenant, x.process, x.kind, x.definition, x.recovery, x.origin_session,
        x.wake_session, x.registration, x.identity, v_now, 'running', 0, v_now,
        CASE WHEN x.recovery <> 'external' THEN v_now END, 0
      FROM unnest(p_process, p_kind, p_definition, p_recovery, p_origin_session, p_wake_session,
        p_registration, p_identity) AS x(process, kind, definition, recovery, origin_session,
        wake_session, registration, identity)
      WHERE v_wanted IS NULL OR x.process = ANY (v_wanted)
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
    WHERE (cardinality(v_born) = cardinality(p_process) OR x.process = ANY (v_born))
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
  IF p_mode = 'start' THEN
    RETURN QUERY UPDATE {schema}.trigger_delivery d SET definition = NULL, digest = NULL,
      state = CASE WHEN d.process = ANY (v_taken) THEN 'rejected' ELSE x.state END,
      reason = CASE WHEN d.process = ANY (v_taken) THEN 'another process has its id'
        ELSE x.reason END
    FROM unnest(d_session, d_frame, d_key, d_subscription, d_state, d_reason)
      AS x(owner_session, owner_frame, key, subscription, state, reason)
    WHERE d.tenant = p_tenant AND d.occurrence = p_occurrence
      AND d.owner_session = x.owner_session AND d.owner_frame = x.owner_frame AND d.key = x.key
      AND d.subscription = x.subscription AND d.state = 'reserved'
    RETURNING v_at, d.occurrence, d.owner_session, d.owner_frame, d.key, d.subscription, d.process,
      d.state, d.reason, d.at_ms;
    RETURN;
  END IF;
  RETURN QUERY WITH made AS (
    INSERT INTO {schema}.trigger_delivery AS d (tenant, occurrence, owner_session, owner_frame, key,
      subscription, process, state, reason, definition, digest, at_ms)
    SELECT p_tenant, p_occurrence, x.owner_session, x.owner_frame, x.key, x.subscription, x.process,
      CASE WHEN x.process = ANY (v_taken) THEN 'rejected' ELSE x.state END,
      CASE WHEN x.process = ANY (v_taken) THEN 'another process has its id' ELSE x.reason END,
      x.definition, x.digest, v_now
    FROM unnest(d_session, d_frame, d_key, d_subscription, d_process, d_state, d_reason,
      d_definition, d_digest) AS x(owner_session, owner_frame, key, subscription, process, state,
      reason, definition, digest)
    ORDER BY x.owner_session, x.owner_frame, x.key, x.subscription
    ON CONFLICT DO NOTHING
    RETURNING d.*
  )
  SELECT v_at, m.occurrence, m.owner_session, m.owner_frame, m.key, m.subscription, m.process,
    m.state, m.reason, m.at_ms
  FROM (SELECT 1) one LEFT JOIN made m ON true
  ORDER BY m.owner_session, m.owner_frame, m.key, m.subscription;
END
$fn$;
