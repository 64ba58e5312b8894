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
    FROM chain c JOIN {schema}.session p ON p.tenant = p_tenant AND p.session = c.session
    WHERE p.base_session IS NOT NULL
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

-- Commits turns, one per session: locks the heads in order, then judges and writes in one statement
-- whose snapshot is younger than the locks. One row per accepted turn, none for a refused one.
CREATE FUNCTION {schema}.commit_turns_v1(
  p_tenant text, p_session text[], p_turn text[], p_intent bytea[], p_expected bigint[],
  p_fence_owner text[], p_fence_token text[], p_fence_generation bigint[], p_release boolean[],
  p_at_leaf boolean[], p_place text[],
  p_leaf_node text[], p_leaf_pos bigint[], p_leaf_run_pos bigint[], p_leaf_off bigint[],
  p_n_claims bigint[], p_n_attachments bigint[],
  p_node_n bigint[], p_node_hi bigint[], p_node text[], p_node_kind text[], p_node_body bytea[],
  p_node_digest bytea[], p_node_parent text[], p_node_run_pos bigint[], p_node_off bigint[],
  p_run_n bigint[], p_run_hi bigint[], p_run_pos bigint[], p_run_base_pos bigint[],
  p_run_base_run_pos bigint[], p_run_base_off bigint[],
  p_state_n bigint[], p_state_hi bigint[], p_state_name text[], p_state_digest bytea[],
  p_blob_n bigint[], p_blob_hi bigint[], p_blob_digest bytea[], p_blob_encoding bigint[],
  p_blob_size bigint[], p_blob_data bytea[],
  p_ref_n bigint[], p_ref_hi bigint[], p_ref_digest bytea[],
  p_usage_n bigint[], p_usage_hi bigint[], p_usage_ordinal bigint[], p_usage_source text[],
  p_usage_model text[], p_usage_input bigint[], p_usage_output bigint[],
  p_usage_cache_read bigint[], p_usage_cache_write bigint[], p_usage_reasoning bigint[],
  p_usage_cost_micros bigint[], p_usage_currency text[]
) RETURNS TABLE (ord bigint, revision bigint, leaf text, node_count bigint, at_ms bigint)
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan AS $fn$
#variable_conflict use_column
DECLARE
  v_at_node text[]; v_at_session text[]; v_at_run bigint[]; v_at_seq bigint[]; v_at_depth bigint[];
  v_forks text[]; v_clashed text[] := '{}'; v_place record;
BEGIN
  SELECT array_agg(l.session) FILTER (WHERE l.base_session IS NOT NULL) INTO v_forks FROM (
    SELECT s.session, s.base_session FROM {schema}.session s
    WHERE s.tenant = p_tenant AND s.session = ANY (p_session)
    ORDER BY s.session FOR NO KEY UPDATE) l;
  -- A turn that names content without bringing it must keep it from being reclaimed meanwhile.
  IF cardinality(p_ref_digest) > 0 THEN
    PERFORM FROM {schema}.blob b WHERE b.tenant = p_tenant AND b.digest = ANY (p_ref_digest)
    ORDER BY b.digest FOR KEY SHARE;
  END IF;
  -- Turns that extend another place than the leaf, and ids that a fork may have inherited, are rare
  -- enough to be looked at one by one: in the statement below they would cost every turn.
  IF cardinality(array_remove(p_place, NULL)) > 0 THEN
    FOR v_place IN SELECT r.ord, v.* FROM unnest(p_session, p_place) WITH ORDINALITY AS r(s, p, ord)
      CROSS JOIN LATERAL {schema}.visible_v1(p_tenant, r.s, r.p) v LOOP
      v_at_node[v_place.ord] := v_place.node;
      v_at_session[v_place.ord] := v_place.session;
      v_at_run[v_place.ord] := v_place.run;
      v_at_seq[v_place.ord] := v_place.seq;
      v_at_depth[v_place.ord] := v_place.depth;
    END LOOP;
  END IF;
  IF v_forks IS NOT NULL THEN
    SELECT coalesce(array_agg(r.s), '{}') INTO v_clashed
    FROM unnest(p_session, p_node_n, p_node_hi) AS r(s, n, hi)
    WHERE r.s = ANY (v_forks) AND EXISTS (
      SELECT FROM {schema}.lineage_v1(p_tenant, r.s) l
      CROSS JOIN unnest(p_node[r.hi - r.n + 1 : r.hi]) AS x(node)
      CROSS JOIN LATERAL (SELECT FROM {schema}.node n WHERE n.tenant = p_tenant
        AND n.session = l.session AND n.node = x.node AND n.seq <= l.upto LIMIT 1) n);
  END IF;
  RETURN QUERY
  WITH req AS MATERIALIZED (
    SELECT * FROM unnest(
      p_session, p_turn, p_intent, p_expected, p_fence_owner, p_fence_token, p_fence_generation,
      p_release, p_at_leaf, p_place, p_leaf_node, p_leaf_pos, p_leaf_run_pos, p_leaf_off,
      p_n_claims, p_n_attachments, p_node_n, p_node_hi, p_run_n, p_run_hi, p_state_n, p_state_hi,
      p_blob_n, p_blob_hi, p_ref_n, p_ref_hi, p_usage_n, p_usage_hi)
    WITH ORDINALITY AS r(
      session, turn, intent, expected, fence_owner, fence_token, fence_generation,
      release, at_leaf, place, leaf_node, leaf_pos, leaf_run_pos, leaf_off,
      n_claims, n_attachments, node_n, node_hi, run_n, run_hi, state_n, state_hi,
      blob_n, blob_hi, ref_n, ref_hi, usage_n, usage_hi, ord)
  ), clock AS MATERIALIZED (
    SELECT {schema}.now_ms() AS now
  ), held AS MATERIALIZED (
    SELECT r.*, c.now, s.revision + 1 AS new_revision, s.last_seq, s.node_count,
      s.state_session, s.state_revision,
      CASE WHEN r.at_leaf THEN s.leaf ELSE v_at_node[r.ord] END AS at_node,
      CASE WHEN r.at_leaf THEN s.leaf_session ELSE v_at_session[r.ord] END AS at_session,
      CASE WHEN r.at_leaf THEN s.leaf_run ELSE v_at_run[r.ord] END AS at_run,
      CASE WHEN r.at_leaf THEN s.leaf_seq ELSE v_at_seq[r.ord] END AS at_seq,
      CASE WHEN r.at_leaf THEN s.leaf_depth ELSE coalesce(v_at_depth[r.ord], 0) END AS at_depth
    FROM req r CROSS JOIN clock c
    JOIN {schema}.session s ON s.tenant = p_tenant AND s.session = r.session
    WHERE s.deleted_at_ms IS NULL
      AND (r.expected IS NULL OR r.expected = s.revision) -- guard: cas
      AND s.revision < 9223372036854775807
      AND CASE WHEN r.fence_token IS NULL
          THEN s.lane_token IS NULL OR s.lane_expires_at_ms <= c.now -- guard: lane-free
          ELSE s.lane_owner = r.fence_owner AND s.lane_token = r.fence_token
            AND s.lane_generation = r.fence_generation
            AND s.lane_expires_at_ms > c.now END -- guard: fence
      AND NOT EXISTS (SELECT FROM {schema}.receipt p WHERE p.tenant = p_tenant
                      AND p.session = r.session AND p.turn = r.turn) -- guard: receipt
      AND r.n_claims = 0 AND r.n_attachments = 0
      AND (r.place IS NULL OR v_at_node[r.ord] IS NOT NULL)
      AND NOT EXISTS (SELECT FROM unnest(p_node[r.node_hi - r.node_n + 1 : r.node_hi]) AS x(node)
        CROSS JOIN LATERAL (SELECT FROM {schema}.node n WHERE n.tenant = p_tenant
          AND n.session = r.session AND n.node = x.node LIMIT 1) n) -- guard: node-create-only
      AND r.session <> ALL (v_clashed)
      AND r.ref_n = (SELECT count(*)
        FROM unnest(p_ref_digest[r.ref_hi - r.ref_n + 1 : r.ref_hi]) AS x(digest)
        CROSS JOIN LATERAL (SELECT FROM {schema}.blob b WHERE b.tenant = p_tenant
          AND b.digest = x.digest LIMIT 1) b)
  ), verdict AS MATERIALIZED (
    SELECT h.*, h.at_session = h.session AND h.at_seq = h.last_seq AS goes_on,
      CASE WHEN h.at_session = h.session AND h.at_seq = h.last_seq THEN h.at_run
           ELSE h.last_seq + 1 END AS main_run,
      CASE WHEN h.node_n > 0 THEN h.leaf_node ELSE h.at_node END AS new_leaf,
      CASE WHEN h.node_n > 0 THEN h.session ELSE h.at_session END AS new_leaf_session,
      CASE WHEN h.node_n = 0 THEN h.at_run
           WHEN h.leaf_run_pos = 1 AND h.at_session = h.session AND h.at_seq = h.last_seq
           THEN h.at_run ELSE h.last_seq + h.leaf_run_pos END AS new_leaf_run,
      CASE WHEN h.node_n > 0 THEN h.last_seq + h.leaf_pos ELSE h.at_seq END AS new_leaf_seq,
      CASE WHEN h.node_n > 0 THEN h.at_depth + h.leaf_off ELSE h.at_depth END AS new_leaf_depth,
      CASE WHEN h.state_n > 0 THEN h.session ELSE h.state_session END AS new_state_session,
      CASE WHEN h.state_n > 0 THEN h.new_revision ELSE h.state_revision END AS new_state_revision
    FROM held h
  ), head AS (
    UPDATE {schema}.session s SET
      revision = v.new_revision, leaf = v.new_leaf, leaf_session = v.new_leaf_session,
      leaf_run = v.new_leaf_run, leaf_seq = v.new_leaf_seq, leaf_depth = v.new_leaf_depth,
      last_seq = v.last_seq + v.node_n, node_count = v.node_count + v.node_n,
      state_session = v.new_state_session, state_revision = v.new_state_revision,
      active_at_ms = v.now, active_minute = v.now / 60000,
      lane_owner = CASE WHEN v.release THEN NULL ELSE s.lane_owner END,
      lane_token = CASE WHEN v.release THEN NULL ELSE s.lane_token END,
      lane_claimed_at_ms = CASE WHEN v.release THEN NULL ELSE s.lane_claimed_at_ms END,
      lane_expires_at_ms = CASE WHEN v.release THEN NULL ELSE s.lane_expires_at_ms END
    FROM verdict v WHERE s.tenant = p_tenant AND s.session = v.session
  ), node_in AS (
    INSERT INTO {schema}.node (tenant, session, seq, node, run, depth, parent, revision, kind, body,
      digest, at_ms)
    SELECT p_tenant, v.session, v.last_seq + x.pos, x.node,
      CASE WHEN x.run_pos = 1 THEN v.main_run ELSE v.last_seq + x.run_pos END,
      v.at_depth + x.off, coalesce(x.parent, v.at_node), v.new_revision, x.kind, x.body, x.digest,
      v.now
    FROM verdict v CROSS JOIN LATERAL unnest(
      p_node[v.node_hi - v.node_n + 1 : v.node_hi],
      p_node_kind[v.node_hi - v.node_n + 1 : v.node_hi],
      p_node_body[v.node_hi - v.node_n + 1 : v.node_hi],
      p_node_digest[v.node_hi - v.node_n + 1 : v.node_hi],
      p_node_parent[v.node_hi - v.node_n + 1 : v.node_hi],
      p_node_run_pos[v.node_hi - v.node_n + 1 : v.node_hi],
      p_node_off[v.node_hi - v.node_n + 1 : v.node_hi])
      WITH ORDINALITY AS x(node, kind, body, digest, parent, run_pos, off, pos)
  ), run_in AS (
    INSERT INTO {schema}.run (tenant, session, run, base_session, base_run, base_seq, base_depth)
    SELECT p_tenant, v.session, v.last_seq + x.pos,
      CASE WHEN x.base_pos = 0 THEN v.at_session ELSE v.session END,
      CASE WHEN x.base_pos = 0 THEN v.at_run WHEN x.base_run_pos = 1 THEN v.main_run
           ELSE v.last_seq + x.base_run_pos END,
      CASE WHEN x.base_pos = 0 THEN v.at_seq ELSE v.last_seq + x.base_pos END,
      v.at_depth + x.base_off
    FROM verdict v CROSS JOIN LATERAL unnest(
      p_run_pos[v.run_hi - v.run_n + 1 : v.run_hi],
      p_run_base_pos[v.run_hi - v.run_n + 1 : v.run_hi],
      p_run_base_run_pos[v.run_hi - v.run_n + 1 : v.run_hi],
      p_run_base_off[v.run_hi - v.run_n + 1 : v.run_hi]) AS x(pos, base_pos, base_run_pos, base_off)
    WHERE x.pos > 1 OR v.goes_on IS NOT TRUE
  ), blob_in AS (
    -- An update that changes nothing locks the row, so that a rival cannot reclaim it meanwhile.
    INSERT INTO {schema}.blob AS b (tenant, digest, encoding, size, data)
    SELECT DISTINCT ON (x.digest) p_tenant, x.digest, x.encoding, x.size, x.data
    FROM verdict v CROSS JOIN LATERAL unnest(
      p_blob_digest[v.blob_hi - v.blob_n + 1 : v.blob_hi],
      p_blob_encoding[v.blob_hi - v.blob_n + 1 : v.blob_hi],
      p_blob_size[v.blob_hi - v.blob_n + 1 : v.blob_hi],
      p_blob_data[v.blob_hi - v.blob_n + 1 : v.blob_hi]) AS x(digest, encoding, size, data)
    ORDER BY x.digest
    ON CONFLICT (tenant, digest) DO UPDATE SET size = b.size WHERE false
  ), component_in AS (
    INSERT INTO {schema}.component (tenant, session, revision, name, digest)
    SELECT p_tenant, v.session, v.new_revision, x.name, x.digest
    FROM verdict v CROSS JOIN LATERAL (
      SELECT y.name, y.digest FROM unnest(
        p_state_name[v.state_hi - v.state_n + 1 : v.state_hi],
        p_state_digest[v.state_hi - v.state_n + 1 : v.state_hi]) AS y(name, digest)
      WHERE y.digest IS NOT NULL
      UNION ALL
      SELECT o.name, o.digest FROM {schema}.component o
      WHERE o.tenant = p_tenant AND o.session = v.state_session AND o.revision = v.state_revision
        AND o.name <> ALL (p_state_name[v.state_hi - v.state_n + 1 : v.state_hi])) x
    WHERE v.state_n > 0
  ), revision_in AS (
    INSERT INTO {schema}.revision (tenant, session, revision, kind, turn, leaf, leaf_session,
      leaf_run, leaf_seq, leaf_depth, state_session, state_revision, at_ms)
    SELECT p_tenant, v.session, v.new_revision, 'turn', v.turn, v.new_leaf, v.new_leaf_session,
      v.new_leaf_run, v.new_leaf_seq, v.new_leaf_depth, v.new_state_session, v.new_state_revision,
      v.now
    FROM verdict v
  ), used AS MATERIALIZED (
    SELECT v.session, v.turn, v.new_revision, v.now, x.*
    FROM verdict v CROSS JOIN LATERAL unnest(
      p_usage_ordinal[v.usage_hi - v.usage_n + 1 : v.usage_hi],
      p_usage_source[v.usage_hi - v.usage_n + 1 : v.usage_hi],
      p_usage_model[v.usage_hi - v.usage_n + 1 : v.usage_hi],
      p_usage_input[v.usage_hi - v.usage_n + 1 : v.usage_hi],
      p_usage_output[v.usage_hi - v.usage_n + 1 : v.usage_hi],
      p_usage_cache_read[v.usage_hi - v.usage_n + 1 : v.usage_hi],
      p_usage_cache_write[v.usage_hi - v.usage_n + 1 : v.usage_hi],
      p_usage_reasoning[v.usage_hi - v.usage_n + 1 : v.usage_hi],
      p_usage_cost_micros[v.usage_hi - v.usage_n + 1 : v.usage_hi],
      p_usage_currency[v.usage_hi - v.usage_n + 1 : v.usage_hi])
      AS x(ordinal, source, model, input, output, cache_read, cache_write, reasoning, cost_micros,
        currency)
  ), usage_in AS (
    INSERT INTO {schema}.usage_row (tenant, session, revision, ordinal, turn, at_ms, source, model,
      input, output, cache_read, cache_write, reasoning, cost_micros, currency)
    SELECT p_tenant, u.session, u.new_revision, u.ordinal, u.turn, u.now, u.source, u.model,
      u.input, u.output, u.cache_read, u.cache_write, u.reasoning, u.cost_micros, u.currency
    FROM used u
  ), total_in AS (
    INSERT INTO {schema}.usage_total AS t (tenant, session, day, source, model, currency, entries,
      input, output, cache_read, cache_write, reasoning, cost_micros)
    SELECT p_tenant, u.session, u.now / 86400000, u.source, u.model, u.currency, count(*),
      sum(u.input)::bigint, sum(u.output)::bigint, sum(u.cache_read)::bigint,
      sum(u.cache_write)::bigint, sum(u.reasoning)::bigint, sum(u.cost_micros)::bigint
    FROM used u GROUP BY u.session, u.now, u.source, u.model, u.currency
    ORDER BY u.session, u.source, u.model, u.currency
    ON CONFLICT (tenant, session, day, source, model, currency) DO UPDATE SET
      entries = t.entries + excluded.entries, input = t.input + excluded.input,
      output = t.output + excluded.output, cache_read = t.cache_read + excluded.cache_read,
      cache_write = t.cache_write + excluded.cache_write,
      reasoning = t.reasoning + excluded.reasoning,
      cost_micros = t.cost_micros + excluded.cost_micros
  ), receipt_in AS (
    INSERT INTO {schema}.receipt (tenant, session, turn, intent, revision, leaf, node_count, at_ms)
    SELECT p_tenant, v.session, v.turn, v.intent, v.new_revision, v.new_leaf,
      v.node_count + v.node_n, v.now
    FROM verdict v
  )
  SELECT v.ord, v.new_revision, v.new_leaf, v.node_count + v.node_n, v.now FROM verdict v;
END
$fn$;
