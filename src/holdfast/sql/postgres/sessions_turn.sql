-- name: sessions.commit
-- Moves each session by one revision with everything its turn brings.
-- mode: write
-- merged by: session
-- children: nodes(node, kind, body, digest, parent, pos, run_pos, off, base_pos,
-- children: base_run_pos)
-- children: state(name, digest), blobs(digest, encoding, size, data), refs(name, digest)
-- children: usage(ordinal, source, model, input, output, cache_read, cache_write,
-- children: reasoning, cost_micros, currency)
-- children: claims(claim, token, size), work(work, claim)
-- returns: revision, leaf, node_count, at_ms
-- explains: known, deleted, revision, intent, receipt_revision, receipt_leaf, receipt_node_count
-- explains: receipt_at_ms, lane_ok, lane_owner, lane_generation, lane_expires_at_ms
-- explains: lost, place_ok, clash, missing, sound
-- Differs by necessity: the body is a function, so that what it judges by is younger than the locks
-- it took, and so that a pooler that forgets statements does not cost their plans.
-- step: guard
SELECT ord, revision, leaf, node_count, at_ms FROM {schema}.commit_turns_v2(
  :tenant, :session, :turn, :intent, :expected, :fence_owner, :fence_token, :fence_generation,
  :release, :at_leaf, :place, :leaf_pos, :branches, :n_unheld,
  :nodes.n, :nodes.hi, :nodes.ord, :nodes.node, :nodes.kind, :nodes.body, :nodes.digest,
  :nodes.parent, :nodes.pos, :nodes.run_pos, :nodes.off, :nodes.base_pos, :nodes.base_run_pos,
  :state.n, :state.ord, :state.name, :state.digest,
  :blobs.ord, :blobs.digest, :blobs.encoding, :blobs.size, :blobs.data, :refs.ord, :refs.digest,
  :usage.ord, :usage.ordinal, :usage.source, :usage.model, :usage.input, :usage.output,
  :usage.cache_read, :usage.cache_write, :usage.reasoning, :usage.cost_micros, :usage.currency,
  :claims.ord, :claims.claim, :claims.token, :claims.size, :work.ord, :work.work, :work.claim)
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted, s.revision,
  p.intent, p.revision AS receipt_revision, p.leaf AS receipt_leaf,
  p.node_count AS receipt_node_count, p.at_ms AS receipt_at_ms,
  coalesce(CASE WHEN :fence_token::text IS NULL
    THEN s.lane_token IS NULL OR s.lane_expires_at_ms <= c.now
    ELSE s.lane_owner = :fence_owner AND s.lane_token = :fence_token
      AND s.lane_generation = :fence_generation AND s.lane_expires_at_ms > c.now END, false)
    AS lane_ok,
  s.lane_owner, s.lane_generation, s.lane_expires_at_ms,
  (SELECT x.claim FROM unnest(:claims.claim::text[], :claims.token::text[], :claims.size::bigint[])
      WITH ORDINALITY AS x(claim, token, size, pos)
    CROSS JOIN LATERAL (
      SELECT count(*) AS held, count(*) FILTER (WHERE w.claim_token = x.token
        AND CASE WHEN w.claim_generation IS NULL THEN w.claim_expires_at_ms > c.now
                 ELSE w.claim_generation = :fence_generation::bigint END
        AND EXISTS (SELECT FROM unnest(:work.work::text[], :work.claim::text[]) AS y(work, claim)
          WHERE y.claim = x.claim AND y.work = w.work)) AS ours
      FROM {schema}.work w WHERE w.tenant = :tenant AND w.session = :session
        AND w.claim = x.claim AND w.state = 'claimed') k
    WHERE x.size <> k.held OR x.size <> k.ours OR x.size = 0
    ORDER BY x.pos LIMIT 1) AS lost,
  :place::text IS NULL OR EXISTS (
    SELECT FROM {schema}.visible_v1(:tenant, :session, :place::text)) AS place_ok,
  (SELECT n.node FROM {schema}.lineage_v1(:tenant, :session) l
    CROSS JOIN unnest(:nodes.node::text[]) WITH ORDINALITY AS x(node, pos)
    JOIN {schema}.node n ON n.tenant = :tenant AND n.session = l.session AND n.node = x.node
      AND n.seq <= l.upto
    ORDER BY x.pos LIMIT 1) AS clash,
  (SELECT encode(x.digest, 'hex')
    FROM unnest(:refs.digest::bytea[]) WITH ORDINALITY AS x(digest, pos)
    WHERE NOT EXISTS (SELECT FROM {schema}.blob b WHERE b.tenant = :tenant AND b.digest = x.digest)
    ORDER BY x.pos LIMIT 1) AS missing,
  s.revision >= 0 AND s.last_seq >= 0 AND s.node_count >= 0 AS sound
FROM (SELECT {schema}.now_ms() AS now) c
LEFT JOIN {schema}.session s ON s.tenant = :tenant AND s.session = :session
LEFT JOIN {schema}.receipt p ON p.tenant = :tenant AND p.session = :session AND p.turn = :turn

-- name: sessions.rewind
-- Moves a session's own leaf and state to where it stood, as a new revision with a reason.
-- mode: write
-- returns: revision, leaf, node_count, at_ms
-- explains: known, deleted, revision, intent, receipt_revision, receipt_leaf, receipt_node_count
-- explains: receipt_at_ms, lane_ok, lane_owner, lane_generation, lane_expires_at_ms, place_ok
-- explains: retained, sound
-- step: plain
SELECT FROM {schema}.session WHERE tenant = :tenant AND session = :session FOR NO KEY UPDATE
-- step: guard
WITH place AS (
  SELECT r.leaf, r.leaf_session, r.leaf_run, r.leaf_seq, r.leaf_depth, r.state_session,
    r.state_revision
  FROM {schema}.revision r
  WHERE r.tenant = :tenant AND r.session = :session AND r.revision = :to_revision::bigint
  UNION ALL
  SELECT v.node, v.session, v.run, v.seq, v.depth, r.state_session, r.state_revision
  FROM {schema}.visible_v1(:tenant, :session, :to_node::text) v
  JOIN {schema}.revision r
    ON r.tenant = :tenant AND r.session = v.session AND r.revision = v.revision
)
SELECT s.revision + 1 AS revision, p.leaf, s.node_count, c.now AS at_ms, p.leaf_session, p.leaf_run,
  p.leaf_seq, p.leaf_depth, p.state_session, p.state_revision
FROM {schema}.session s CROSS JOIN place p CROSS JOIN (SELECT {schema}.now_ms() AS now) c
WHERE s.tenant = :tenant AND s.session = :session AND s.deleted_at_ms IS NULL
  AND (:expected::bigint IS NULL OR s.revision = :expected::bigint)
  AND s.revision BETWEEN 0 AND 9223372036854775806
  AND s.last_seq >= 0 AND s.node_count >= 0
  AND CASE WHEN :fence_token::text IS NULL
      THEN s.lane_token IS NULL OR s.lane_expires_at_ms <= c.now
      ELSE s.lane_owner = :fence_owner AND s.lane_token = :fence_token
        AND s.lane_generation = :fence_generation AND s.lane_expires_at_ms > c.now END
  AND NOT EXISTS (SELECT FROM {schema}.receipt p WHERE p.tenant = :tenant
                  AND p.session = :session AND p.turn = :turn)
-- step: plain
UPDATE {schema}.session SET revision = :revision, leaf = :leaf, leaf_session = :leaf_session,
  leaf_run = :leaf_run, leaf_seq = :leaf_seq, leaf_depth = :leaf_depth,
  state_session = :state_session, state_revision = :state_revision, active_at_ms = :at_ms::bigint,
  active_minute = :at_ms::bigint / 60000
WHERE tenant = :tenant AND session = :session
-- step: plain
INSERT INTO {schema}.revision (tenant, session, revision, kind, turn, reason, leaf, leaf_session,
  leaf_run, leaf_seq, leaf_depth, state_session, state_revision, at_ms)
VALUES (:tenant, :session, :revision, 'rewound', :turn, :reason, :leaf, :leaf_session, :leaf_run,
  :leaf_seq, :leaf_depth, :state_session, :state_revision, :at_ms)
-- step: plain
INSERT INTO {schema}.receipt (tenant, session, turn, intent, revision, leaf, node_count, at_ms)
VALUES (:tenant, :session, :turn, :intent, :revision, :leaf, :node_count, :at_ms)
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted, s.revision,
  p.intent, p.revision AS receipt_revision, p.leaf AS receipt_leaf,
  p.node_count AS receipt_node_count, p.at_ms AS receipt_at_ms,
  coalesce(CASE WHEN :fence_token::text IS NULL
    THEN s.lane_token IS NULL OR s.lane_expires_at_ms <= c.now
    ELSE s.lane_owner = :fence_owner AND s.lane_token = :fence_token
      AND s.lane_generation = :fence_generation AND s.lane_expires_at_ms > c.now END, false)
    AS lane_ok,
  s.lane_owner, s.lane_generation, s.lane_expires_at_ms,
  :to_node::text IS NULL OR EXISTS (
    SELECT FROM {schema}.visible_v1(:tenant, :session, :to_node::text)) AS place_ok,
  CASE WHEN :to_node::text IS NOT NULL THEN EXISTS (
      SELECT FROM {schema}.visible_v1(:tenant, :session, :to_node::text) v
      JOIN {schema}.revision r
        ON r.tenant = :tenant AND r.session = v.session AND r.revision = v.revision)
    ELSE EXISTS (SELECT FROM {schema}.revision r WHERE r.tenant = :tenant
      AND r.session = :session AND r.revision = :to_revision::bigint) END AS retained,
  s.revision >= 0 AND s.last_seq >= 0 AND s.node_count >= 0 AS sound
FROM (SELECT {schema}.now_ms() AS now) c
LEFT JOIN {schema}.session s ON s.tenant = :tenant AND s.session = :session
LEFT JOIN {schema}.receipt p ON p.tenant = :tenant AND p.session = :session AND p.turn = :turn
