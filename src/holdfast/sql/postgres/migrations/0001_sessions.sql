-- oldest reader: 1
-- Sessions with their heads and lanes, nodes in runs, state by reference, receipts and usage.

CREATE TABLE {schema}.migration (
  version integer PRIMARY KEY,
  name text COLLATE "C" NOT NULL,
  checksum text COLLATE "C" NOT NULL,
  oldest_reader integer NOT NULL,
  applied_at_ms bigint NOT NULL
);

-- One row per session: catalog entry, head and lane. A deleted session keeps its row for ever.
CREATE TABLE {schema}.session (
  tenant text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  title text COLLATE "C" NOT NULL,
  created_at_ms bigint NOT NULL,
  active_at_ms bigint NOT NULL,
  active_minute bigint NOT NULL,
  revision bigint NOT NULL CHECK (revision >= 0),
  leaf text COLLATE "C",
  leaf_session text COLLATE "C",
  leaf_run bigint,
  leaf_seq bigint,
  leaf_depth bigint NOT NULL,
  last_seq bigint NOT NULL CHECK (last_seq >= 0),
  node_count bigint NOT NULL CHECK (node_count >= 0),
  state_session text COLLATE "C",
  state_revision bigint,
  lane_owner text COLLATE "C",
  lane_token text COLLATE "C",
  lane_generation bigint NOT NULL CHECK (lane_generation >= 0),
  lane_claimed_at_ms bigint,
  lane_expires_at_ms bigint,
  origin_session text COLLATE "C",
  origin_revision bigint,
  origin_leaf text COLLATE "C",
  base_session text COLLATE "C",
  base_seq bigint,
  deleted_at_ms bigint,
  -- What listings ask for. A query that names a session does not mention it, so that no plan for it
  -- can be made of a listing's index, which would read every session of the tenant.
  listed boolean NOT NULL GENERATED ALWAYS AS (deleted_at_ms IS NULL) STORED,
  PRIMARY KEY (tenant, session)
);
CREATE INDEX session_active ON {schema}.session (tenant, active_minute, session)
  WHERE listed;
CREATE INDEX session_created ON {schema}.session (tenant, created_at_ms, session)
  WHERE listed;
CREATE INDEX session_base ON {schema}.session (tenant, base_session) WHERE base_session IS NOT NULL;
CREATE INDEX session_origin ON {schema}.session (tenant, origin_session)
  WHERE origin_session IS NOT NULL;

CREATE TABLE {schema}.tag (
  tenant text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  value text COLLATE "C" NOT NULL,
  PRIMARY KEY (tenant, session, name),
  FOREIGN KEY (tenant, session) REFERENCES {schema}.session (tenant, session)
);
CREATE INDEX tag_value ON {schema}.tag (tenant, name, value, session);

-- `seq` counts the nodes of a session; a run is a stretch of consecutive ones, named by its first.
CREATE TABLE {schema}.node (
  tenant text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,
  node text COLLATE "C" NOT NULL,
  run bigint NOT NULL,
  depth bigint NOT NULL,
  parent text COLLATE "C",
  revision bigint NOT NULL,
  kind text COLLATE "C" NOT NULL,
  body bytea,
  digest bytea NOT NULL,
  at_ms bigint NOT NULL,
  tombstoned_at_ms bigint,
  PRIMARY KEY (tenant, session, seq)
);
CREATE UNIQUE INDEX node_id ON {schema}.node (tenant, session, node);

CREATE TABLE {schema}.run (
  tenant text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  run bigint NOT NULL,
  base_session text COLLATE "C",
  base_run bigint,
  base_seq bigint,
  base_depth bigint NOT NULL,
  PRIMARY KEY (tenant, session, run)
);

CREATE TABLE {schema}.revision (
  tenant text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  revision bigint NOT NULL,
  kind text COLLATE "C" NOT NULL CHECK (kind IN ('created', 'forked', 'turn', 'rewound')),
  turn text COLLATE "C",
  reason text COLLATE "C",
  leaf text COLLATE "C",
  leaf_session text COLLATE "C",
  leaf_run bigint,
  leaf_seq bigint,
  leaf_depth bigint NOT NULL,
  state_session text COLLATE "C",
  state_revision bigint,
  at_ms bigint NOT NULL,
  PRIMARY KEY (tenant, session, revision)
);
CREATE INDEX revision_state ON {schema}.revision (tenant, state_session, state_revision)
  WHERE state_session <> session;

-- The state made by one revision: one row per component, naming its content.
CREATE TABLE {schema}.component (
  tenant text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  revision bigint NOT NULL,
  name text COLLATE "C" NOT NULL,
  digest bytea NOT NULL,
  PRIMARY KEY (tenant, session, revision, name)
);
CREATE INDEX component_digest ON {schema}.component (tenant, digest);

CREATE TABLE {schema}.blob (
  tenant text COLLATE "C" NOT NULL,
  digest bytea NOT NULL,
  encoding bigint NOT NULL,
  size bigint NOT NULL,
  data bytea NOT NULL,
  PRIMARY KEY (tenant, digest)
);

CREATE TABLE {schema}.receipt (
  tenant text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  turn text COLLATE "C" NOT NULL,
  intent bytea NOT NULL,
  revision bigint NOT NULL,
  leaf text COLLATE "C",
  node_count bigint NOT NULL,
  at_ms bigint NOT NULL,
  PRIMARY KEY (tenant, session, turn)
);

CREATE TABLE {schema}.usage_row (
  tenant text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  revision bigint NOT NULL,
  ordinal bigint NOT NULL,
  turn text COLLATE "C" NOT NULL,
  at_ms bigint NOT NULL,
  source text COLLATE "C" NOT NULL,
  model text COLLATE "C" NOT NULL,
  input bigint NOT NULL CHECK (input >= 0),
  output bigint NOT NULL CHECK (output >= 0),
  cache_read bigint NOT NULL CHECK (cache_read >= 0),
  cache_write bigint NOT NULL CHECK (cache_write >= 0),
  reasoning bigint NOT NULL CHECK (reasoning >= 0),
  cost_micros bigint NOT NULL CHECK (cost_micros >= 0),
  currency text COLLATE "C" NOT NULL,
  PRIMARY KEY (tenant, session, revision, ordinal)
);

CREATE TABLE {schema}.usage_total (
  tenant text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  day bigint NOT NULL,
  source text COLLATE "C" NOT NULL,
  model text COLLATE "C" NOT NULL,
  currency text COLLATE "C" NOT NULL,
  entries bigint NOT NULL,
  input bigint NOT NULL,
  output bigint NOT NULL,
  cache_read bigint NOT NULL,
  cache_write bigint NOT NULL,
  reasoning bigint NOT NULL,
  cost_micros bigint NOT NULL,
  PRIMARY KEY (tenant, session, day, source, model, currency)
);
CREATE INDEX usage_total_day ON {schema}.usage_total (tenant, day);

-- The head is updated in place by every turn; room on the page keeps that update off the indexes.
ALTER TABLE {schema}.session SET (fillfactor = 70);
-- State is compressed before it comes here; bodies are left to the server.
ALTER TABLE {schema}.blob ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE FUNCTION {schema}.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $fn$
  SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint
$fn$;

-- The sessions whose nodes a session can see, and up to which seq: itself, then what it forked.
CREATE FUNCTION {schema}.lineage_v1(p_tenant text, p_session text)
RETURNS TABLE (session text, upto bigint, level bigint) LANGUAGE sql STABLE STRICT ROWS 2 AS $fn$
  WITH RECURSIVE chain(session, upto, level) AS (
    SELECT s.session, s.last_seq, 0::bigint FROM {schema}.session s
    WHERE s.tenant = p_tenant AND s.session = p_session
    UNION ALL
    SELECT p.base_session, p.base_seq, c.level + 1
    FROM chain c CROSS JOIN LATERAL (SELECT * FROM {schema}.session p
      WHERE p.tenant = p_tenant AND p.session = c.session LIMIT 1) p
    WHERE p.base_session IS NOT NULL AND c.level < 10000
  )
  SELECT c.session, c.upto, c.level FROM chain c
$fn$;

-- The place of a node that a session can see.
CREATE FUNCTION {schema}.visible_v1(p_tenant text, p_session text, p_node text)
RETURNS TABLE (node text, session text, run bigint, seq bigint, depth bigint, revision bigint)
LANGUAGE sql STABLE STRICT ROWS 1 AS $fn$
  SELECT n.node, n.session, n.run, n.seq, n.depth, n.revision
  FROM {schema}.lineage_v1(p_tenant, p_session) c
  CROSS JOIN LATERAL (
    SELECT * FROM {schema}.node n
    WHERE n.tenant = p_tenant AND n.session = c.session AND n.node = p_node
      AND n.seq <= c.upto AND n.tombstoned_at_ms IS NULL
    LIMIT 1) n
  ORDER BY c.level LIMIT 1
$fn$;

-- Commits turns, one per session: locks the heads in order, judges each turn by what the locked row
-- and younger snapshots say, then writes what was accepted. One row per accepted turn, none for a
-- refused one. Small statements cost less than one large one: their plans start quicker.
CREATE FUNCTION {schema}.commit_turns_v1(
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
  p_usage_currency text[]
) RETURNS TABLE (ord bigint, revision bigint, leaf text, node_count bigint, at_ms bigint)
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan AS $fn$
#variable_conflict use_column
DECLARE
  v record;
  v_now bigint;
  v_bad bigint[];
  v_forks bigint[];
  v_n integer := cardinality(p_session);
  v_ok boolean[] := array_fill(false, ARRAY[v_n]);
  v_revision bigint[] := array_fill(NULL::bigint, ARRAY[v_n]);
  v_was_session text[] := array_fill(NULL::text, ARRAY[v_n]);
  v_was_revision bigint[] := array_fill(NULL::bigint, ARRAY[v_n]);
  v_places boolean := false;
  v_runs boolean := false;
  v_first bigint;
  v_seq bigint[]; v_count bigint[]; v_goes_on boolean[]; v_main_run bigint[];
  v_at_node text[]; v_at_session text[]; v_at_run bigint[]; v_at_seq bigint[]; v_at_depth bigint[];
  v_leaf text[]; v_leaf_session text[]; v_leaf_run bigint[]; v_leaf_seq bigint[];
  v_leaf_depth bigint[];
  v_state_session text[]; v_state_revision bigint[];
BEGIN
  FOR v IN
    SELECT r.ord, s.* FROM unnest(p_session) WITH ORDINALITY AS r(name, ord)
    JOIN {schema}.session s ON s.tenant = p_tenant AND s.session = r.name
    ORDER BY s.session FOR NO KEY UPDATE OF s
  LOOP
    -- The clock is read after the wait for the lock, else a lane could seem live that is not.
    v_now := {schema}.now_ms();
    CONTINUE WHEN v.deleted_at_ms IS NOT NULL OR p_n_unheld[v.ord] > 0
      OR v.revision NOT BETWEEN 0 AND 9223372036854775806 OR v.last_seq < 0 OR v.node_count < 0;
    CONTINUE WHEN p_expected[v.ord] <> v.revision; -- guard: cas
    IF p_fence_token[v.ord] IS NULL THEN
      CONTINUE WHEN v.lane_token IS NOT NULL AND v.lane_expires_at_ms > v_now; -- guard: lane-free
    ELSE
      CONTINUE WHEN (v.lane_owner = p_fence_owner[v.ord] AND v.lane_token = p_fence_token[v.ord]
        AND v.lane_generation = p_fence_generation[v.ord]
        AND v.lane_expires_at_ms > v_now) IS NOT TRUE; -- guard: fence
    END IF;
    v_ok[v.ord] := true;
    v_revision[v.ord] := v.revision + 1;
    v_seq[v.ord] := v.last_seq;
    v_count[v.ord] := v.node_count + p_node_n[v.ord];
    v_was_session[v.ord] := v.state_session;
    v_was_revision[v.ord] := v.state_revision;
    IF p_at_leaf[v.ord] THEN
      v_at_node[v.ord] := v.leaf;
      v_at_session[v.ord] := v.leaf_session;
      v_at_run[v.ord] := v.leaf_run;
      v_at_seq[v.ord] := v.leaf_seq;
      v_at_depth[v.ord] := v.leaf_depth;
    ELSE
      v_at_depth[v.ord] := 0;
      v_places := v_places OR p_place[v.ord] IS NOT NULL;
    END IF;
    IF v.base_session IS NOT NULL THEN
      v_forks := v_forks || v.ord;
    END IF;
  END LOOP;

  -- From here on each statement's snapshot is younger than the locks.
  SELECT array_agg(x.ord) INTO v_bad FROM (
    SELECT r.ord FROM unnest(p_session, p_turn) WITH ORDINALITY AS r(name, turn, ord)
    CROSS JOIN LATERAL (SELECT FROM {schema}.receipt p WHERE p.tenant = p_tenant
      AND p.session = r.name AND p.turn = r.turn LIMIT 1) p -- guard: receipt
    UNION ALL
    SELECT r.ord FROM unnest(p_node_ord, p_node) AS r(ord, node)
    CROSS JOIN LATERAL (SELECT FROM {schema}.node n WHERE n.tenant = p_tenant
      AND n.session = p_session[r.ord] AND n.node = r.node LIMIT 1) n -- guard: node-create-only
  ) x;
  IF v_forks IS NOT NULL THEN
    SELECT v_bad || array_agg(r.ord) INTO v_bad
    FROM unnest(p_node_ord, p_node) AS r(ord, node)
    CROSS JOIN LATERAL (SELECT FROM {schema}.lineage_v1(p_tenant, p_session[r.ord]) l
      JOIN {schema}.node n ON n.tenant = p_tenant AND n.session = l.session AND n.node = r.node
      WHERE n.seq <= l.upto LIMIT 1) n
    WHERE r.ord = ANY (v_forks);
  END IF;
  IF cardinality(p_ref_digest) > 0 THEN
    -- A turn that names content without bringing it keeps it from being reclaimed meanwhile.
    PERFORM FROM {schema}.blob b WHERE b.tenant = p_tenant AND b.digest = ANY (p_ref_digest)
    ORDER BY b.digest FOR KEY SHARE;
    SELECT v_bad || array_agg(r.ord) INTO v_bad
    FROM unnest(p_ref_ord, p_ref_digest) AS r(ord, digest)
    WHERE NOT EXISTS (
      SELECT FROM {schema}.blob b WHERE b.tenant = p_tenant AND b.digest = r.digest);
  END IF;
  IF v_places THEN
    FOR v IN
      SELECT r.ord, n.* FROM unnest(p_session, p_place) WITH ORDINALITY AS r(name, place, ord)
      LEFT JOIN LATERAL {schema}.visible_v1(p_tenant, r.name, r.place) n ON true
      WHERE r.place IS NOT NULL
    LOOP
      IF v.node IS NULL THEN
        v_bad := v_bad || v.ord;
      ELSE
        v_at_node[v.ord] := v.node;
        v_at_session[v.ord] := v.session;
        v_at_run[v.ord] := v.run;
        v_at_seq[v.ord] := v.seq;
        v_at_depth[v.ord] := v.depth;
      END IF;
    END LOOP;
  END IF;

  FOR i IN 1 .. v_n LOOP
    IF i = ANY (v_bad) THEN
      v_ok[i] := false;
    END IF;
    CONTINUE WHEN NOT v_ok[i];
    v_goes_on[i] := coalesce(v_at_session[i] = p_session[i] AND v_at_seq[i] = v_seq[i], false);
    v_main_run[i] := CASE WHEN v_goes_on[i] THEN v_at_run[i] ELSE v_seq[i] + 1 END;
    v_runs := v_runs OR p_branches[i] OR (p_node_n[i] > 0 AND NOT v_goes_on[i]);
    IF p_node_n[i] > 0 THEN
      v_first := p_node_hi[i] - p_node_n[i] + p_leaf_pos[i];
      v_leaf[i] := p_node[v_first];
      v_leaf_session[i] := p_session[i];
      v_leaf_run[i] := CASE WHEN p_node_run_pos[v_first] = 1 THEN v_main_run[i]
                            ELSE v_seq[i] + p_node_run_pos[v_first] END;
      v_leaf_seq[i] := v_seq[i] + p_leaf_pos[i];
      v_leaf_depth[i] := v_at_depth[i] + p_node_off[v_first];
    ELSE
      v_leaf[i] := v_at_node[i];
      v_leaf_session[i] := v_at_session[i];
      v_leaf_run[i] := v_at_run[i];
      v_leaf_seq[i] := v_at_seq[i];
      v_leaf_depth[i] := v_at_depth[i];
    END IF;
    v_state_session[i] := CASE WHEN p_state_n[i] > 0 THEN p_session[i] ELSE v_was_session[i] END;
    v_state_revision[i] := CASE WHEN p_state_n[i] > 0 THEN v_revision[i] ELSE v_was_revision[i] END;
  END LOOP;
  IF true <> ALL (v_ok) THEN
    RETURN;
  END IF;

  INSERT INTO {schema}.node (tenant, session, seq, node, run, depth, parent, revision, kind, body,
    digest, at_ms)
  SELECT p_tenant, p_session[x.ord], v_seq[x.ord] + x.pos, x.node,
    CASE WHEN x.run_pos = 1 THEN v_main_run[x.ord] ELSE v_seq[x.ord] + x.run_pos END,
    v_at_depth[x.ord] + x.off, coalesce(x.parent, v_at_node[x.ord]), v_revision[x.ord], x.kind,
    x.body, x.digest, v_now
  FROM unnest(p_node_ord, p_node, p_node_kind, p_node_body, p_node_digest, p_node_parent,
    p_node_pos, p_node_run_pos, p_node_off)
    AS x(ord, node, kind, body, digest, parent, pos, run_pos, off)
  WHERE v_ok[x.ord];
  IF v_runs THEN
    INSERT INTO {schema}.run (tenant, session, run, base_session, base_run, base_seq, base_depth)
    SELECT p_tenant, p_session[x.ord], v_seq[x.ord] + x.pos,
      CASE WHEN x.base = 0 THEN v_at_session[x.ord] ELSE p_session[x.ord] END,
      CASE WHEN x.base = 0 THEN v_at_run[x.ord] WHEN x.base_run = 1 THEN v_main_run[x.ord]
           ELSE v_seq[x.ord] + x.base_run END,
      CASE WHEN x.base = 0 THEN v_at_seq[x.ord] ELSE v_seq[x.ord] + x.base END,
      v_at_depth[x.ord] + x.off - 1
    FROM unnest(p_node_ord, p_node_pos, p_node_run_pos, p_node_off, p_node_base_pos,
      p_node_base_run_pos) AS x(ord, pos, run_pos, off, base, base_run)
    WHERE x.pos = x.run_pos AND v_ok[x.ord] AND (x.pos > 1 OR NOT v_goes_on[x.ord]);
  END IF;
  IF cardinality(p_state_ord) > 0 THEN
    -- An update that changes nothing locks the row, so that a rival cannot reclaim it meanwhile.
    INSERT INTO {schema}.blob AS b (tenant, digest, encoding, size, data)
    SELECT DISTINCT ON (x.digest) p_tenant, x.digest, x.encoding, x.size, x.data
    FROM unnest(p_blob_ord, p_blob_digest, p_blob_encoding, p_blob_size, p_blob_data)
      AS x(ord, digest, encoding, size, data)
    WHERE v_ok[x.ord] ORDER BY x.digest
    ON CONFLICT (tenant, digest) DO UPDATE SET size = b.size WHERE false;
    INSERT INTO {schema}.component (tenant, session, revision, name, digest)
    SELECT p_tenant, p_session[x.ord], v_revision[x.ord], x.name, x.digest
    FROM unnest(p_state_ord, p_state_name, p_state_digest) AS x(ord, name, digest)
    WHERE v_ok[x.ord] AND x.digest IS NOT NULL
    UNION ALL
    SELECT p_tenant, r.name, v_revision[r.ord], o.name, o.digest
    FROM unnest(p_session, v_was_session, v_was_revision, p_state_n)
      WITH ORDINALITY AS r(name, was_session, was_revision, state_n, ord)
    CROSS JOIN LATERAL (
      SELECT c.name, c.digest FROM {schema}.component c WHERE c.tenant = p_tenant
        AND c.session = r.was_session AND c.revision = r.was_revision OFFSET 0) o
    WHERE r.state_n > 0 AND v_ok[r.ord] AND NOT EXISTS (
      SELECT FROM unnest(p_state_ord, p_state_name) AS y(ord, name)
      WHERE y.ord = r.ord AND y.name = o.name);
  END IF;
  IF cardinality(p_usage_ord) > 0 THEN
    INSERT INTO {schema}.usage_row (tenant, session, revision, ordinal, turn, at_ms, source, model,
      input, output, cache_read, cache_write, reasoning, cost_micros, currency)
    SELECT p_tenant, p_session[x.ord], v_revision[x.ord], x.ordinal, p_turn[x.ord], v_now, x.source,
      x.model, x.input, x.output, x.cache_read, x.cache_write, x.reasoning, x.cost_micros,
      x.currency
    FROM unnest(p_usage_ord, p_usage_ordinal, p_usage_source, p_usage_model, p_usage_input,
      p_usage_output, p_usage_cache_read, p_usage_cache_write, p_usage_reasoning,
      p_usage_cost_micros, p_usage_currency)
      AS x(ord, ordinal, source, model, input, output, cache_read, cache_write, reasoning,
        cost_micros, currency)
    WHERE v_ok[x.ord];
    INSERT INTO {schema}.usage_total AS t (tenant, session, day, source, model, currency, entries,
      input, output, cache_read, cache_write, reasoning, cost_micros)
    SELECT p_tenant, p_session[x.ord], v_now / 86400000, x.source, x.model, x.currency, count(*),
      sum(x.input)::bigint, sum(x.output)::bigint, sum(x.cache_read)::bigint,
      sum(x.cache_write)::bigint, sum(x.reasoning)::bigint, sum(x.cost_micros)::bigint
    FROM unnest(p_usage_ord, p_usage_source, p_usage_model, p_usage_input, p_usage_output,
      p_usage_cache_read, p_usage_cache_write, p_usage_reasoning, p_usage_cost_micros,
      p_usage_currency)
      AS x(ord, source, model, input, output, cache_read, cache_write, reasoning, cost_micros,
        currency)
    WHERE v_ok[x.ord]
    GROUP BY x.ord, x.source, x.model, x.currency
    ORDER BY p_session[x.ord], x.source, x.model, x.currency
    ON CONFLICT (tenant, session, day, source, model, currency) DO UPDATE SET
      entries = t.entries + excluded.entries, input = t.input + excluded.input,
      output = t.output + excluded.output, cache_read = t.cache_read + excluded.cache_read,
      cache_write = t.cache_write + excluded.cache_write,
      reasoning = t.reasoning + excluded.reasoning,
      cost_micros = t.cost_micros + excluded.cost_micros;
  END IF;
  INSERT INTO {schema}.revision (tenant, session, revision, kind, turn, leaf, leaf_session,
    leaf_run, leaf_seq, leaf_depth, state_session, state_revision, at_ms)
  SELECT p_tenant, p_session[x.ord], x.revision, 'turn', p_turn[x.ord], v_leaf[x.ord],
    v_leaf_session[x.ord], v_leaf_run[x.ord], v_leaf_seq[x.ord], v_leaf_depth[x.ord],
    v_state_session[x.ord], v_state_revision[x.ord], v_now
  FROM unnest(v_revision) WITH ORDINALITY AS x(revision, ord) WHERE v_ok[x.ord];
  INSERT INTO {schema}.receipt (tenant, session, turn, intent, revision, leaf, node_count, at_ms)
  SELECT p_tenant, p_session[x.ord], p_turn[x.ord], p_intent[x.ord], x.revision, v_leaf[x.ord],
    v_count[x.ord], v_now
  FROM unnest(v_revision) WITH ORDINALITY AS x(revision, ord) WHERE v_ok[x.ord];
  RETURN QUERY
  UPDATE {schema}.session s SET
    revision = x.revision, leaf = v_leaf[x.ord], leaf_session = v_leaf_session[x.ord],
    leaf_run = v_leaf_run[x.ord], leaf_seq = v_leaf_seq[x.ord], leaf_depth = v_leaf_depth[x.ord],
    last_seq = v_seq[x.ord] + p_node_n[x.ord], node_count = v_count[x.ord],
    state_session = v_state_session[x.ord], state_revision = v_state_revision[x.ord],
    active_at_ms = v_now, active_minute = v_now / 60000,
    lane_owner = CASE WHEN p_release[x.ord] THEN NULL ELSE s.lane_owner END,
    lane_token = CASE WHEN p_release[x.ord] THEN NULL ELSE s.lane_token END,
    lane_claimed_at_ms = CASE WHEN p_release[x.ord] THEN NULL ELSE s.lane_claimed_at_ms END,
    lane_expires_at_ms = CASE WHEN p_release[x.ord] THEN NULL ELSE s.lane_expires_at_ms END
  FROM unnest(p_session, v_revision) WITH ORDINALITY AS x(name, revision, ord)
  WHERE v_ok[x.ord] AND s.tenant = p_tenant AND s.session = x.name
  RETURNING x.ord, x.revision, v_leaf[x.ord], v_count[x.ord], v_now;
END
$fn$;
