-- name: sessions.commit
-- Moves each session by one revision with everything its turn brings.
-- mode: write
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
-- Differs by necessity: the write lock is held, so the guard is a plain read and cannot go stale.
-- step: guard
WITH RECURSIVE chain(session, upto, level) AS (
  SELECT session, last_seq, 0 FROM session WHERE tenant = :tenant AND session = :session
  UNION ALL
  SELECT p.base_session, p.base_seq, c.level + 1
  FROM chain c CROSS JOIN session p ON p.tenant = :tenant AND p.session = c.session
  WHERE p.base_session IS NOT NULL AND c.level < 10000
), at(node, session, run, seq, depth) AS (
  SELECT leaf, leaf_session, leaf_run, leaf_seq, leaf_depth FROM session
  WHERE :at_leaf AND tenant = :tenant AND session = :session
  UNION ALL
  SELECT NULL, NULL, NULL, NULL, 0 WHERE NOT :at_leaf AND :place IS NULL
  UNION ALL
  SELECT * FROM (
    SELECT n.node, n.session, n.run, n.seq, n.depth
    FROM chain c CROSS JOIN node n INDEXED BY node_id
      ON n.tenant = :tenant AND n.session = c.session AND n.node = :place
    WHERE NOT :at_leaf AND :place IS NOT NULL AND n.seq <= c.upto AND n.tombstoned_at_ms IS NULL
    ORDER BY c.level LIMIT 1)
)
SELECT s.revision + 1 AS revision,
  CASE WHEN :nodes.n > 0 THEN :leaf_node ELSE a.node END AS leaf,
  s.node_count + :nodes.n AS node_count,
  :now AS at_ms,
  CASE WHEN :nodes.n > 0 THEN :session ELSE a.session END AS new_leaf_session,
  CASE WHEN :nodes.n = 0 THEN a.run
       WHEN :leaf_run_pos = 1 AND a.session = :session AND a.seq = s.last_seq THEN a.run
       ELSE s.last_seq + :leaf_run_pos END AS new_leaf_run,
  CASE WHEN :nodes.n > 0 THEN s.last_seq + :leaf_pos ELSE a.seq END AS new_leaf_seq,
  CASE WHEN :nodes.n > 0 THEN a.depth + :leaf_off ELSE a.depth END AS new_leaf_depth,
  a.node AS at_node, a.session AS at_session, a.run AS at_run, a.seq AS at_seq, a.depth AS at_depth,
  coalesce(a.session = :session AND a.seq = s.last_seq, 0) AS goes_on,
  CASE WHEN a.session = :session AND a.seq = s.last_seq THEN a.run ELSE s.last_seq + 1 END
    AS main_run,
  s.last_seq AS seq_was, s.state_session AS state_session_was,
  s.state_revision AS state_revision_was,
  CASE WHEN :state.n > 0 THEN :session ELSE s.state_session END AS new_state_session,
  CASE WHEN :state.n > 0 THEN s.revision + 1 ELSE s.state_revision END AS new_state_revision
FROM session s CROSS JOIN at a
WHERE s.tenant = :tenant AND s.session = :session AND s.deleted_at_ms IS NULL
  AND (:expected IS NULL OR s.revision = :expected) -- guard: cas
  AND s.revision BETWEEN 0 AND 9223372036854775806
  AND s.last_seq >= 0 AND s.node_count >= 0
  AND CASE WHEN :fence_token IS NULL
      THEN s.lane_token IS NULL OR s.lane_expires_at_ms <= :now -- guard: lane-free
      ELSE s.lane_owner = :fence_owner AND s.lane_token = :fence_token
        AND s.lane_generation = :fence_generation
        AND s.lane_expires_at_ms > :now END -- guard: fence
  AND NOT EXISTS (SELECT 1 FROM receipt p WHERE p.tenant = :tenant
                  AND p.session = :session AND p.turn = :turn) -- guard: receipt
  AND :n_unheld = 0
  AND (:claims.n = 0 OR NOT EXISTS (SELECT 1 FROM json_each(:claims.claim) c
    CROSS JOIN json_each(:claims.token) t ON t.key = c.key
    CROSS JOIN json_each(:claims.size) n ON n.key = c.key
    WHERE n.value = 0
      OR n.value <> (SELECT count(*) FROM work w INDEXED BY work_claim WHERE w.tenant = :tenant
        AND w.session = :session AND w.claim = c.value AND w.state = 'claimed')
      OR n.value <> (SELECT count(*) FROM json_each(:work.work) x
        CROSS JOIN json_each(:work.claim) y ON y.key = x.key AND y.value = c.value
        CROSS JOIN work w INDEXED BY work_id
          ON w.tenant = :tenant AND w.session = :session AND w.work = x.value
        WHERE w.claim = c.value AND w.claim_token = t.value
          AND CASE WHEN w.claim_generation IS NULL THEN w.claim_expires_at_ms > :now
                   ELSE w.claim_generation = :fence_generation END))) -- guard: claim
  AND NOT EXISTS (SELECT 1 FROM chain c CROSS JOIN json_each(:nodes.node) x
    CROSS JOIN node n INDEXED BY node_id
      ON n.tenant = :tenant AND n.session = c.session AND n.node = x.value
    WHERE n.seq <= c.upto) -- guard: node-create-only
  AND (:refs.n = 0 OR NOT EXISTS (SELECT 1 FROM json_each(:refs.digest) x WHERE NOT EXISTS (
    SELECT 1 FROM blob b WHERE b.tenant = :tenant AND b.digest = unhex(x.value))))
-- step: plain
UPDATE session SET revision = :revision, leaf = :leaf, leaf_session = :new_leaf_session,
  leaf_run = :new_leaf_run, leaf_seq = :new_leaf_seq, leaf_depth = :new_leaf_depth,
  last_seq = :seq_was + :nodes.n, node_count = :node_count,
  state_session = :new_state_session, state_revision = :new_state_revision,
  active_at_ms = :now, active_minute = :now / 60000,
  lane_owner = CASE WHEN :release THEN NULL ELSE lane_owner END,
  lane_token = CASE WHEN :release THEN NULL ELSE lane_token END,
  lane_claimed_at_ms = CASE WHEN :release THEN NULL ELSE lane_claimed_at_ms END,
  lane_expires_at_ms = CASE WHEN :release THEN NULL ELSE lane_expires_at_ms END
WHERE tenant = :tenant AND session = :session
-- step: each nodes
INSERT INTO node (tenant, session, seq, node, run, depth, parent, revision, kind, body, digest,
  at_ms)
VALUES (:tenant, :session, :seq_was + :nodes.pos, :nodes.node,
  CASE WHEN :nodes.run_pos = 1 THEN :main_run ELSE :seq_was + :nodes.run_pos END,
  :at_depth + :nodes.off, coalesce(:nodes.parent, :at_node), :revision, :nodes.kind, :nodes.body,
  :nodes.digest, :now)
-- step: each nodes
INSERT INTO run (tenant, session, run, base_session, base_run, base_seq, base_depth)
SELECT :tenant, :session, :seq_was + :nodes.pos,
  CASE WHEN :nodes.base_pos = 0 THEN :at_session ELSE :session END,
  CASE WHEN :nodes.base_pos = 0 THEN :at_run WHEN :nodes.base_run_pos = 1 THEN :main_run
       ELSE :seq_was + :nodes.base_run_pos END,
  CASE WHEN :nodes.base_pos = 0 THEN :at_seq ELSE :seq_was + :nodes.base_pos END,
  :at_depth + :nodes.off - 1
WHERE :nodes.pos = :nodes.run_pos AND (:nodes.pos > 1 OR NOT :goes_on)
-- step: each blobs
INSERT INTO blob (tenant, digest, encoding, size, data)
VALUES (:tenant, :blobs.digest, :blobs.encoding, :blobs.size, :blobs.data)
ON CONFLICT (tenant, digest) DO NOTHING
-- step: when state
INSERT INTO component (tenant, session, revision, name, digest)
SELECT :tenant, :session, :revision, o.name, o.digest FROM component o
WHERE o.tenant = :tenant AND o.session = :state_session_was AND o.revision = :state_revision_was
  AND o.name NOT IN (SELECT value FROM json_each(:state.name))
-- step: each state
INSERT INTO component (tenant, session, revision, name, digest)
SELECT :tenant, :session, :revision, :state.name, :state.digest WHERE :state.digest IS NOT NULL
-- step: plain
INSERT INTO revision (tenant, session, revision, kind, turn, leaf, leaf_session, leaf_run, leaf_seq,
  leaf_depth, state_session, state_revision, at_ms)
VALUES (:tenant, :session, :revision, 'turn', :turn, :leaf, :new_leaf_session, :new_leaf_run,
  :new_leaf_seq, :new_leaf_depth, :new_state_session, :new_state_revision, :now)
-- step: each usage
INSERT INTO usage_row (tenant, session, revision, ordinal, turn, at_ms, source, model, input,
  output, cache_read, cache_write, reasoning, cost_micros, currency)
VALUES (:tenant, :session, :revision, :usage.ordinal, :turn, :now, :usage.source, :usage.model,
  :usage.input, :usage.output, :usage.cache_read, :usage.cache_write, :usage.reasoning,
  :usage.cost_micros, :usage.currency)
-- step: each usage
INSERT INTO usage_total (tenant, session, day, source, model, currency, entries, input, output,
  cache_read, cache_write, reasoning, cost_micros)
VALUES (:tenant, :session, :now / 86400000, :usage.source, :usage.model, :usage.currency, 1,
  :usage.input, :usage.output, :usage.cache_read, :usage.cache_write, :usage.reasoning,
  :usage.cost_micros)
ON CONFLICT (tenant, session, day, source, model, currency) DO UPDATE SET
  entries = entries + 1, input = input + excluded.input, output = output + excluded.output,
  cache_read = cache_read + excluded.cache_read, cache_write = cache_write + excluded.cache_write,
  reasoning = reasoning + excluded.reasoning, cost_micros = cost_micros + excluded.cost_micros
-- step: each work
DELETE FROM work INDEXED BY work_id
WHERE tenant = :tenant AND session = :session AND work = :work.work AND key IS NULL
-- step: each work
UPDATE work INDEXED BY work_id SET state = 'done', items = x'', claim = NULL, claim_token = NULL,
  claim_owner = NULL, claim_generation = NULL, claimed_at_ms = NULL, claim_expires_at_ms = NULL,
  settled_turn = :turn, keep_until_ms = :now + keep_ms
WHERE tenant = :tenant AND session = :session AND work = :work.work
-- step: when frees
UPDATE session SET due_at_ms = CASE
  WHEN EXISTS (SELECT 1 FROM work w INDEXED BY work_ready
    WHERE w.tenant = :tenant AND w.session = :session AND w.state = 'ready')
    OR EXISTS (SELECT 1 FROM work w INDEXED BY work_generation WHERE w.tenant = :tenant
      AND w.session = :session AND w.state = 'claimed' AND w.claim_generation IS NOT NULL)
  THEN max(:now, CASE WHEN lane_token IS NULL THEN 0 ELSE lane_expires_at_ms END)
  ELSE max((SELECT min(x.at) FROM (
      SELECT min(w.available_at_ms) AS at FROM work w INDEXED BY work_delayed
      WHERE w.tenant = :tenant AND w.session = :session AND w.state = 'delayed'
      UNION ALL
      SELECT min(w.claim_expires_at_ms) FROM work w INDEXED BY work_lapse
      WHERE w.tenant = :tenant AND w.session = :session AND w.state = 'claimed'
        AND w.claim_generation IS NULL) x),
    CASE WHEN lane_token IS NULL THEN 0 ELSE lane_expires_at_ms END) END
WHERE tenant = :tenant AND session = :session AND due_at_ms IS NOT NULL
-- step: plain
INSERT INTO receipt (tenant, session, turn, intent, revision, leaf, node_count, at_ms)
VALUES (:tenant, :session, :turn, :intent, :revision, :leaf, :node_count, :now)
-- step: refused
WITH RECURSIVE chain(session, upto, level) AS (
  SELECT session, last_seq, 0 FROM session WHERE tenant = :tenant AND session = :session
  UNION ALL
  SELECT p.base_session, p.base_seq, c.level + 1
  FROM chain c CROSS JOIN session p ON p.tenant = :tenant AND p.session = c.session
  WHERE p.base_session IS NOT NULL AND c.level < 10000
)
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted, s.revision,
  p.intent, p.revision AS receipt_revision, p.leaf AS receipt_leaf,
  p.node_count AS receipt_node_count, p.at_ms AS receipt_at_ms,
  coalesce(CASE WHEN :fence_token IS NULL THEN s.lane_token IS NULL OR s.lane_expires_at_ms <= :now
    ELSE s.lane_owner = :fence_owner AND s.lane_token = :fence_token
      AND s.lane_generation = :fence_generation AND s.lane_expires_at_ms > :now END, 0) AS lane_ok,
  s.lane_owner, s.lane_generation, s.lane_expires_at_ms,
  (SELECT c.value FROM json_each(:claims.claim) c
    CROSS JOIN json_each(:claims.token) t ON t.key = c.key
    CROSS JOIN json_each(:claims.size) n ON n.key = c.key
    WHERE n.value = 0
      OR n.value <> (SELECT count(*) FROM work w INDEXED BY work_claim WHERE w.tenant = :tenant
        AND w.session = :session AND w.claim = c.value AND w.state = 'claimed')
      OR n.value <> (SELECT count(*) FROM json_each(:work.work) x
        CROSS JOIN json_each(:work.claim) y ON y.key = x.key AND y.value = c.value
        CROSS JOIN work w INDEXED BY work_id
          ON w.tenant = :tenant AND w.session = :session AND w.work = x.value
        WHERE w.claim = c.value AND w.claim_token = t.value
          AND CASE WHEN w.claim_generation IS NULL THEN w.claim_expires_at_ms > :now
                   ELSE w.claim_generation = :fence_generation END)
    ORDER BY c.key LIMIT 1) AS lost,
  :place IS NULL OR EXISTS (SELECT 1 FROM chain c CROSS JOIN node n INDEXED BY node_id
    ON n.tenant = :tenant AND n.session = c.session AND n.node = :place
    WHERE n.seq <= c.upto AND n.tombstoned_at_ms IS NULL) AS place_ok,
  (SELECT n.node FROM chain c CROSS JOIN json_each(:nodes.node) x
    CROSS JOIN node n INDEXED BY node_id
      ON n.tenant = :tenant AND n.session = c.session AND n.node = x.value
    WHERE n.seq <= c.upto ORDER BY x.key LIMIT 1) AS clash,
  (SELECT lower(x.value) FROM json_each(:refs.digest) x WHERE NOT EXISTS (
    SELECT 1 FROM blob b WHERE b.tenant = :tenant AND b.digest = unhex(x.value))
    ORDER BY x.key LIMIT 1) AS missing,
  s.revision >= 0 AND s.last_seq >= 0 AND s.node_count >= 0 AS sound
FROM (SELECT 1)
LEFT JOIN session s ON s.tenant = :tenant AND s.session = :session
LEFT JOIN receipt p ON p.tenant = :tenant AND p.session = :session AND p.turn = :turn

-- name: sessions.rewind
-- Moves a session's own leaf and state to where it stood, as a new revision with a reason.
-- mode: write
-- returns: revision, leaf, node_count, at_ms
-- explains: known, deleted, revision, intent, receipt_revision, receipt_leaf, receipt_node_count
-- explains: receipt_at_ms, lane_ok, lane_owner, lane_generation, lane_expires_at_ms, place_ok
-- explains: retained, sound
-- step: guard
WITH RECURSIVE chain(session, upto, level) AS (
  SELECT session, last_seq, 0 FROM session WHERE tenant = :tenant AND session = :session
  UNION ALL
  SELECT p.base_session, p.base_seq, c.level + 1
  FROM chain c CROSS JOIN session p ON p.tenant = :tenant AND p.session = c.session
  WHERE p.base_session IS NOT NULL AND c.level < 10000
), place AS (
  SELECT r.leaf, r.leaf_session, r.leaf_run, r.leaf_seq, r.leaf_depth, r.state_session,
    r.state_revision
  FROM revision r WHERE r.tenant = :tenant AND r.session = :session AND r.revision = :to_revision
  UNION ALL
  SELECT * FROM (
    SELECT n.node, n.session, n.run, n.seq, n.depth, r.state_session, r.state_revision
    FROM chain c
    CROSS JOIN node n INDEXED BY node_id
      ON n.tenant = :tenant AND n.session = c.session AND n.node = :to_node
    CROSS JOIN revision r
      ON r.tenant = :tenant AND r.session = n.session AND r.revision = n.revision
    WHERE n.seq <= c.upto AND n.tombstoned_at_ms IS NULL ORDER BY c.level LIMIT 1)
)
SELECT s.revision + 1 AS revision, p.leaf, s.node_count, :now AS at_ms, p.leaf_session, p.leaf_run,
  p.leaf_seq, p.leaf_depth, p.state_session, p.state_revision
FROM session s CROSS JOIN place p
WHERE s.tenant = :tenant AND s.session = :session AND s.deleted_at_ms IS NULL
  AND (:expected IS NULL OR s.revision = :expected)
  AND s.revision BETWEEN 0 AND 9223372036854775806
  AND s.last_seq >= 0 AND s.node_count >= 0
  AND CASE WHEN :fence_token IS NULL
      THEN s.lane_token IS NULL OR s.lane_expires_at_ms <= :now
      ELSE s.lane_owner = :fence_owner AND s.lane_token = :fence_token
        AND s.lane_generation = :fence_generation AND s.lane_expires_at_ms > :now END
  AND NOT EXISTS (SELECT 1 FROM receipt p WHERE p.tenant = :tenant
                  AND p.session = :session AND p.turn = :turn)
-- step: plain
UPDATE session SET revision = :revision, leaf = :leaf, leaf_session = :leaf_session,
  leaf_run = :leaf_run, leaf_seq = :leaf_seq, leaf_depth = :leaf_depth,
  state_session = :state_session, state_revision = :state_revision, active_at_ms = :now,
  active_minute = :now / 60000
WHERE tenant = :tenant AND session = :session
-- step: plain
INSERT INTO revision (tenant, session, revision, kind, turn, reason, leaf, leaf_session, leaf_run,
  leaf_seq, leaf_depth, state_session, state_revision, at_ms)
VALUES (:tenant, :session, :revision, 'rewound', :turn, :reason, :leaf, :leaf_session, :leaf_run,
  :leaf_seq, :leaf_depth, :state_session, :state_revision, :now)
-- step: plain
INSERT INTO receipt (tenant, session, turn, intent, revision, leaf, node_count, at_ms)
VALUES (:tenant, :session, :turn, :intent, :revision, :leaf, :node_count, :now)
-- step: refused
WITH RECURSIVE chain(session, upto, level) AS (
  SELECT session, last_seq, 0 FROM session WHERE tenant = :tenant AND session = :session
  UNION ALL
  SELECT p.base_session, p.base_seq, c.level + 1
  FROM chain c CROSS JOIN session p ON p.tenant = :tenant AND p.session = c.session
  WHERE p.base_session IS NOT NULL AND c.level < 10000
)
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted, s.revision,
  p.intent, p.revision AS receipt_revision, p.leaf AS receipt_leaf,
  p.node_count AS receipt_node_count, p.at_ms AS receipt_at_ms,
  coalesce(CASE WHEN :fence_token IS NULL THEN s.lane_token IS NULL OR s.lane_expires_at_ms <= :now
    ELSE s.lane_owner = :fence_owner AND s.lane_token = :fence_token
      AND s.lane_generation = :fence_generation AND s.lane_expires_at_ms > :now END, 0) AS lane_ok,
  s.lane_owner, s.lane_generation, s.lane_expires_at_ms,
  :to_node IS NULL OR EXISTS (SELECT 1 FROM chain c CROSS JOIN node n INDEXED BY node_id
    ON n.tenant = :tenant AND n.session = c.session AND n.node = :to_node
    WHERE n.seq <= c.upto AND n.tombstoned_at_ms IS NULL) AS place_ok,
  CASE WHEN :to_node IS NOT NULL THEN EXISTS (
      SELECT 1 FROM chain c CROSS JOIN node n INDEXED BY node_id
      ON n.tenant = :tenant AND n.session = c.session AND n.node = :to_node
      CROSS JOIN revision r ON r.tenant = :tenant AND r.session = n.session
        AND r.revision = n.revision WHERE n.seq <= c.upto)
    ELSE EXISTS (SELECT 1 FROM revision r WHERE r.tenant = :tenant
      AND r.session = :session AND r.revision = :to_revision) END AS retained,
  s.revision >= 0 AND s.last_seq >= 0 AND s.node_count >= 0 AS sound
FROM (SELECT 1)
LEFT JOIN session s ON s.tenant = :tenant AND s.session = :session
LEFT JOIN receipt p ON p.tenant = :tenant AND p.session = :session AND p.turn = :turn
