-- name: sessions.create
-- Adds the session unless its id is known; answers the catalog row it has afterwards.
-- mode: write
-- children: tags(name, value)
-- returns: created
-- explains: known, deleted
-- step: guard
SELECT 1 AS created WHERE NOT EXISTS (
  SELECT 1 FROM session WHERE tenant = :tenant AND session = :session)
-- step: plain
INSERT INTO session (tenant, session, title, created_at_ms, active_at_ms, active_minute, revision,
  leaf_depth, last_seq, node_count, lane_generation)
VALUES (:tenant, :session, :title, :now, :now, :now / 60000, 0, 0, 0, 0, 0)
-- step: plain
INSERT INTO revision (tenant, session, revision, kind, leaf_depth, at_ms)
VALUES (:tenant, :session, 0, 'created', 0, :now)
-- step: each tags
INSERT INTO tag (tenant, session, name, value) VALUES (:tenant, :session, :tags.name, :tags.value)
-- step: refused
SELECT 1 AS known, deleted_at_ms IS NOT NULL AS deleted FROM session
WHERE tenant = :tenant AND session = :session

-- name: sessions.get
-- The catalog entry of one session that is not deleted.
-- mode: read
-- returns: session, title, created_at_ms, active_at_ms, revision, leaf, node_count, origin_session
-- returns: origin_revision, origin_leaf, tags
SELECT s.session, s.title, s.created_at_ms, s.active_at_ms, s.revision, s.leaf, s.node_count,
  s.origin_session, s.origin_revision, s.origin_leaf,
  (SELECT json_group_object(t.name, t.value) FROM tag t
    WHERE t.tenant = s.tenant AND t.session = s.session) AS tags
FROM session s WHERE s.tenant = :tenant AND s.session = :session AND s.deleted_at_ms IS NULL

-- name: sessions.list_active
-- A page of the catalog, most recently active minute first.
-- mode: read
-- children: tags(name, value)
-- returns: session, title, created_at_ms, active_at_ms, revision, leaf, node_count, origin_session
-- returns: origin_revision, origin_leaf, tags, place
SELECT s.session, s.title, s.created_at_ms, s.active_at_ms, s.revision, s.leaf, s.node_count,
  s.origin_session, s.origin_revision, s.origin_leaf,
  (SELECT json_group_object(t.name, t.value) FROM tag t
    WHERE t.tenant = s.tenant AND t.session = s.session) AS tags,
  s.active_minute AS place
FROM session s INDEXED BY session_active
WHERE s.tenant = :tenant AND s.deleted_at_ms IS NULL
  AND (s.active_minute, s.session) < (:place, :after)
  AND s.active_at_ms >= :active_since_ms
  AND s.active_minute >= :active_since_ms / 60000
  AND (:forked_from IS NULL OR s.origin_session = :forked_from)
  AND NOT EXISTS (SELECT 1 FROM json_each(:tags.name) k
    CROSS JOIN json_each(:tags.value) v ON v.key = k.key WHERE NOT EXISTS (
      SELECT 1 FROM tag t WHERE t.tenant = s.tenant AND t.session = s.session
      AND t.name = k.value AND t.value = v.value))
ORDER BY s.active_minute DESC, s.session DESC LIMIT :limit

-- name: sessions.list_created
-- A page of the catalog, most recently created first.
-- mode: read
-- children: tags(name, value)
-- returns: session, title, created_at_ms, active_at_ms, revision, leaf, node_count, origin_session
-- returns: origin_revision, origin_leaf, tags, place
SELECT s.session, s.title, s.created_at_ms, s.active_at_ms, s.revision, s.leaf, s.node_count,
  s.origin_session, s.origin_revision, s.origin_leaf,
  (SELECT json_group_object(t.name, t.value) FROM tag t
    WHERE t.tenant = s.tenant AND t.session = s.session) AS tags,
  s.created_at_ms AS place
FROM session s INDEXED BY session_created
WHERE s.tenant = :tenant AND s.deleted_at_ms IS NULL
  AND (s.created_at_ms, s.session) < (:place, :after)
  AND s.active_at_ms >= :active_since_ms
  AND (:forked_from IS NULL OR s.origin_session = :forked_from)
  AND NOT EXISTS (SELECT 1 FROM json_each(:tags.name) k
    CROSS JOIN json_each(:tags.value) v ON v.key = k.key WHERE NOT EXISTS (
      SELECT 1 FROM tag t WHERE t.tenant = s.tenant AND t.session = s.session
      AND t.name = k.value AND t.value = v.value))
ORDER BY s.created_at_ms DESC, s.session DESC LIMIT :limit

-- name: sessions.update
-- Renames and tags a session that is not deleted.
-- mode: write
-- children: tags(name, value)
-- returns: updated
-- explains: known, deleted, tag_count
-- step: guard
SELECT 1 AS updated FROM session s
WHERE s.tenant = :tenant AND s.session = :session AND s.deleted_at_ms IS NULL
  AND :tag_limit >= (SELECT count(*) FROM tag t WHERE t.tenant = :tenant AND t.session = :session
      AND t.name NOT IN (SELECT value FROM json_each(:tags.name)))
    + (SELECT count(*) FROM json_each(:tags.value) WHERE value IS NOT NULL)
-- step: when renames
UPDATE session SET title = :title WHERE tenant = :tenant AND session = :session
-- step: each tags
DELETE FROM tag WHERE tenant = :tenant AND session = :session AND name = :tags.name
-- step: each tags
INSERT INTO tag (tenant, session, name, value)
SELECT :tenant, :session, :tags.name, :tags.value WHERE :tags.value IS NOT NULL
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted,
  (SELECT count(*) FROM tag t WHERE t.tenant = :tenant AND t.session = :session
      AND t.name NOT IN (SELECT value FROM json_each(:tags.name)))
    + (SELECT count(*) FROM json_each(:tags.value) WHERE value IS NOT NULL) AS tag_count
FROM (SELECT 1) LEFT JOIN session s ON s.tenant = :tenant AND s.session = :session

-- name: sessions.delete
-- Removes what a session owns and no fork needs; its row stays as a tombstone. Of a deleted session
-- it reclaims what its last forks have left, and that is all it does when asked to `reclaim`.
-- mode: write
-- returns: was_live, nodes, kept_nodes, revisions, receipts, usage, blobs, work, grants
-- returns: subscriptions, orphaned, preserved, ancestors
-- explains: live, ancestors
-- step: guard
WITH kept(seq) AS (
  SELECT coalesce(max(f.base_seq), 0) FROM session f INDEXED BY session_base
  WHERE f.tenant = :tenant AND f.base_session = :session
    AND (f.deleted_at_ms IS NULL OR f.last_seq > 0)
), doomed(revision) AS (
  SELECT DISTINCT c.revision FROM component c
  WHERE c.tenant = :tenant AND c.session = :session AND NOT EXISTS (
    SELECT 1 FROM revision r INDEXED BY revision_state WHERE r.tenant = :tenant
    AND r.state_session = :session AND r.state_revision = c.revision AND r.session <> :session
    AND r.state_session <> r.session)
)
SELECT s.deleted_at_ms IS NULL AS was_live, k.seq AS kept_seq,
  json_array(s.base_session, s.origin_session) AS ancestors,
  (SELECT count(*) FROM node n WHERE n.tenant = :tenant AND n.session = :session
    AND n.seq > k.seq) AS nodes,
  (SELECT count(*) FROM node n WHERE n.tenant = :tenant AND n.session = :session
    AND n.seq <= k.seq) AS kept_nodes,
  (SELECT count(*) FROM revision r WHERE r.tenant = :tenant AND r.session = :session) AS revisions,
  (SELECT count(*) FROM receipt p WHERE p.tenant = :tenant AND p.session = :session) AS receipts,
  (SELECT count(*) FROM usage_row u WHERE u.tenant = :tenant AND u.session = :session) AS usage,
  (SELECT count(*) FROM work w WHERE w.tenant = :tenant AND w.session = :session
    AND w.state <> 'done') AS work,
  (SELECT count(*) FROM process_grant g WHERE g.tenant = :tenant
    AND g.session = :session) AS grants,
  (SELECT count(*) FROM trigger_subscription t WHERE t.tenant = :tenant
    AND t.owner_session = :session AND t.deleted_at_ms IS NULL) AS subscriptions,
  (SELECT json_group_array(x.process) FROM (
    SELECT DISTINCT g.process FROM process_grant g
    CROSS JOIN process p
      ON p.tenant = :tenant AND p.process = g.process
    WHERE g.tenant = :tenant AND g.session = :session AND p.state = 'running'
      AND NOT EXISTS (SELECT 1 FROM process_grant o WHERE o.tenant = :tenant
        AND o.process = g.process AND o.session <> :session) ORDER BY g.process) x) AS orphaned,
  (SELECT json_group_array(x.process) FROM (
    SELECT DISTINCT g.process FROM process_grant g
    CROSS JOIN process p
      ON p.tenant = :tenant AND p.process = g.process
    WHERE g.tenant = :tenant AND g.session = :session AND p.state = 'running'
      AND EXISTS (SELECT 1 FROM process_grant o WHERE o.tenant = :tenant
        AND o.process = g.process AND o.session <> :session) ORDER BY g.process) x) AS preserved,
  (SELECT count(DISTINCT c.digest) FROM component c WHERE c.tenant = :tenant
    AND c.session = :session AND c.revision IN (SELECT revision FROM doomed)
    AND NOT EXISTS (SELECT 1 FROM component o INDEXED BY component_digest WHERE o.tenant = :tenant
      AND o.digest = c.digest
      AND NOT (o.session = :session AND o.revision IN (SELECT revision FROM doomed)))) AS blobs,
  (SELECT json_group_array(revision) FROM doomed) AS doomed
FROM session s CROSS JOIN kept k WHERE s.tenant = :tenant AND s.session = :session
  AND CASE WHEN s.deleted_at_ms IS NULL THEN NOT :reclaim
      ELSE s.last_seq > k.seq OR EXISTS (SELECT 1 FROM doomed) END
-- step: plain
DELETE FROM blob WHERE tenant = :tenant AND digest IN (
  SELECT c.digest FROM component c WHERE c.tenant = :tenant AND c.session = :session
    AND c.revision IN (SELECT value FROM json_each(:doomed))
    AND NOT EXISTS (SELECT 1 FROM component o INDEXED BY component_digest WHERE o.tenant = :tenant
      AND o.digest = c.digest
      AND NOT (o.session = :session AND o.revision IN (SELECT value FROM json_each(:doomed)))))
-- step: plain
DELETE FROM component WHERE tenant = :tenant AND session = :session
  AND revision IN (SELECT value FROM json_each(:doomed))
-- step: plain
DELETE FROM node WHERE tenant = :tenant AND session = :session AND seq > :kept_seq
-- step: plain
DELETE FROM run WHERE tenant = :tenant AND session = :session AND run > :kept_seq
-- step: plain
DELETE FROM revision WHERE tenant = :tenant AND session = :session
-- step: plain
DELETE FROM receipt WHERE tenant = :tenant AND session = :session
-- step: plain
DELETE FROM usage_row WHERE tenant = :tenant AND session = :session
-- step: plain
DELETE FROM usage_total WHERE tenant = :tenant AND session = :session
-- step: plain
DELETE FROM tag WHERE tenant = :tenant AND session = :session
-- step: plain
DELETE FROM work WHERE tenant = :tenant AND session = :session
-- step: plain
DELETE FROM process_grant WHERE tenant = :tenant AND session = :session
-- step: plain
UPDATE trigger_source SET version = version + 1
WHERE tenant = :tenant AND (source_type, source_key) IN (
  SELECT s.source_type, s.source_key FROM trigger_subscription s
  WHERE s.tenant = :tenant AND s.owner_session = :session)
-- step: plain
DELETE FROM trigger_delivery
WHERE tenant = :tenant AND owner_session = :session AND state = 'reserved'
-- step: plain
DELETE FROM trigger_receipt WHERE tenant = :tenant AND owner_session = :session
-- step: plain
DELETE FROM trigger_subscription WHERE tenant = :tenant AND owner_session = :session
-- step: plain
UPDATE session SET title = '', leaf = NULL, leaf_session = NULL, leaf_run = NULL, leaf_seq = NULL,
  leaf_depth = 0, last_seq = :kept_seq, node_count = 0, state_session = NULL, state_revision = NULL,
  lane_owner = NULL, lane_token = NULL, lane_claimed_at_ms = NULL, lane_expires_at_ms = NULL,
  origin_leaf = NULL, due_at_ms = NULL, deleted_at_ms = coalesce(deleted_at_ms, :now)
WHERE tenant = :tenant AND session = :session
-- step: refused
SELECT s.session IS NOT NULL AND s.deleted_at_ms IS NULL AS live,
  json_array(s.base_session, s.origin_session) AS ancestors
FROM (SELECT 1) LEFT JOIN session s ON s.tenant = :tenant AND s.session = :session

-- name: sessions.head
-- The head, from one row.
-- mode: read
-- returns: session, revision, leaf, leaf_session, leaf_run, leaf_seq, depth, node_count
-- returns: state_session, state_revision
SELECT session, revision, leaf, leaf_session, leaf_run, leaf_seq, leaf_depth AS depth, node_count,
  state_session, state_revision
FROM session WHERE tenant = :tenant AND session = :session AND deleted_at_ms IS NULL

-- name: sessions.receipt
-- The receipt of a committed turn.
-- mode: read
-- returns: session, turn, revision, leaf, node_count, at_ms
SELECT session, turn, revision, leaf, node_count, at_ms FROM receipt
WHERE tenant = :tenant AND session = :session AND turn = :turn

-- name: sessions.fork
-- Adds a session whose head stands where another one stands, or stood. Nothing is copied.
-- mode: write
-- children: tags(name, value)
-- returns: created
-- explains: known, deleted, place_ok, retained, target, target_deleted, origin_session
-- explains: origin_revision, origin_leaf, levels
-- step: guard
WITH RECURSIVE chain(session, upto, level) AS (
  SELECT session, last_seq, 0 FROM session WHERE tenant = :tenant AND session = :source
  UNION ALL
  SELECT p.base_session, p.base_seq, c.level + 1
  FROM chain c CROSS JOIN session p ON p.tenant = :tenant AND p.session = c.session
  WHERE p.base_session IS NOT NULL AND c.level < 10000
), place AS (
  SELECT s.revision, s.leaf, s.leaf_session, s.leaf_run, s.leaf_seq, s.leaf_depth, s.state_session,
    s.state_revision
  FROM session s WHERE :revision IS NULL AND :node IS NULL
    AND s.tenant = :tenant AND s.session = :source
  UNION ALL
  SELECT r.revision, r.leaf, r.leaf_session, r.leaf_run, r.leaf_seq, r.leaf_depth, r.state_session,
    r.state_revision
  FROM revision r WHERE r.tenant = :tenant AND r.session = :source AND r.revision = :revision
  UNION ALL
  SELECT * FROM (
    SELECT n.revision, n.node, n.session, n.run, n.seq, n.depth, r.state_session, r.state_revision
    FROM chain c
    CROSS JOIN node n INDEXED BY node_id
      ON n.tenant = :tenant AND n.session = c.session AND n.node = :node
    CROSS JOIN revision r
      ON r.tenant = :tenant AND r.session = n.session AND r.revision = n.revision
    WHERE n.seq <= c.upto AND n.tombstoned_at_ms IS NULL ORDER BY c.level LIMIT 1)
)
SELECT 1 AS created, p.revision AS at_revision, p.leaf, p.leaf_session, p.leaf_run, p.leaf_seq,
  p.leaf_depth, p.state_session, p.state_revision
FROM session s CROSS JOIN place p
WHERE s.tenant = :tenant AND s.session = :source AND s.deleted_at_ms IS NULL
  AND NOT EXISTS (SELECT 1 FROM session t WHERE t.tenant = :tenant AND t.session = :session)
  AND (SELECT max(level) FROM chain) < 9999
-- step: plain
INSERT INTO session (tenant, session, title, created_at_ms, active_at_ms, active_minute, revision,
  leaf, leaf_session, leaf_run, leaf_seq, leaf_depth, last_seq, node_count, state_session,
  state_revision, lane_generation, origin_session, origin_revision, origin_leaf, base_session,
  base_seq)
VALUES (:tenant, :session, :title, :now, :now, :now / 60000, 0, :leaf, :leaf_session, :leaf_run,
  :leaf_seq, :leaf_depth, 0, 0, :state_session, :state_revision, 0, :source, :at_revision, :leaf,
  :leaf_session, :leaf_seq)
-- step: plain
INSERT INTO revision (tenant, session, revision, kind, leaf, leaf_session, leaf_run, leaf_seq,
  leaf_depth, state_session, state_revision, at_ms)
VALUES (:tenant, :session, 0, 'forked', :leaf, :leaf_session, :leaf_run, :leaf_seq, :leaf_depth,
  :state_session, :state_revision, :now)
-- step: each tags
INSERT INTO tag (tenant, session, name, value) VALUES (:tenant, :session, :tags.name, :tags.value)
-- step: refused
WITH RECURSIVE chain(session, upto, level) AS (
  SELECT session, last_seq, 0 FROM session WHERE tenant = :tenant AND session = :source
  UNION ALL
  SELECT p.base_session, p.base_seq, c.level + 1
  FROM chain c CROSS JOIN session p ON p.tenant = :tenant AND p.session = c.session
  WHERE p.base_session IS NOT NULL AND c.level < 10000
)
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted,
  :node IS NULL OR EXISTS (SELECT 1 FROM chain c CROSS JOIN node n INDEXED BY node_id
    ON n.tenant = :tenant AND n.session = c.session AND n.node = :node
    WHERE n.seq <= c.upto AND n.tombstoned_at_ms IS NULL) AS place_ok,
  CASE WHEN :node IS NOT NULL THEN EXISTS (
      SELECT 1 FROM chain c CROSS JOIN node n INDEXED BY node_id
      ON n.tenant = :tenant AND n.session = c.session AND n.node = :node
      CROSS JOIN revision r ON r.tenant = :tenant AND r.session = n.session
        AND r.revision = n.revision WHERE n.seq <= c.upto)
    WHEN :revision IS NOT NULL THEN EXISTS (SELECT 1 FROM revision r WHERE r.tenant = :tenant
      AND r.session = :source AND r.revision = :revision)
    ELSE 1 END AS retained,
  t.session IS NOT NULL AS target, t.deleted_at_ms IS NOT NULL AS target_deleted,
  t.origin_session, t.origin_revision, t.origin_leaf, (SELECT max(level) FROM chain) AS levels
FROM (SELECT 1)
LEFT JOIN session s ON s.tenant = :tenant AND s.session = :source
LEFT JOIN session t ON t.tenant = :tenant AND t.session = :session

-- name: sessions.revisions
-- A page of the retained revisions, newest first.
-- mode: read
-- returns: session, revision, kind, turn, reason, leaf, depth, state_session, state_revision, at_ms
SELECT session, revision, kind, turn, reason, leaf, leaf_depth AS depth, state_session,
  state_revision, at_ms
FROM revision WHERE tenant = :tenant AND session = :session AND revision < :before
ORDER BY revision DESC LIMIT :limit

-- name: sessions.components
-- The state of one revision: the name and digest of each component.
-- mode: read
-- returns: name, digest
SELECT name, digest FROM component
WHERE tenant = :tenant AND session = :state_session AND revision = :state_revision ORDER BY name
