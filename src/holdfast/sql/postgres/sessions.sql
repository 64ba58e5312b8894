-- name: sessions.create
-- Adds the session unless its id is known; answers the catalog row it has afterwards.
-- mode: write
-- children: tags(name, value)
-- returns: created
-- explains: known, deleted
-- Differs by necessity: a rival's insert is met by ON CONFLICT, which waits for it.
-- step: guard
WITH made AS (
  INSERT INTO {schema}.session (tenant, session, title, created_at_ms, active_at_ms, active_minute,
    revision, leaf_depth, last_seq, node_count, lane_generation)
  SELECT :tenant, :session, :title, c.now, c.now, c.now / 60000, 0, 0, 0, 0, 0
  FROM (SELECT {schema}.now_ms() AS now) c
  ON CONFLICT (tenant, session) DO NOTHING
  RETURNING created_at_ms
), first AS (
  INSERT INTO {schema}.revision (tenant, session, revision, kind, leaf_depth, at_ms)
  SELECT :tenant, :session, 0, 'created', 0, m.created_at_ms FROM made m
), tagged AS (
  INSERT INTO {schema}.tag (tenant, session, name, value)
  SELECT :tenant, :session, x.name, x.value
  FROM made m CROSS JOIN unnest(:tags.name::text[], :tags.value::text[]) AS x(name, value)
)
SELECT 1 AS created FROM made
-- step: refused
SELECT true AS known, deleted_at_ms IS NOT NULL AS deleted FROM {schema}.session
WHERE tenant = :tenant AND session = :session

-- name: sessions.get
-- The catalog entry of one session that is not deleted.
-- mode: read
-- returns: session, title, created_at_ms, active_at_ms, revision, leaf, node_count, origin_session
-- returns: origin_revision, origin_leaf, tags
SELECT s.session, s.title, s.created_at_ms, s.active_at_ms, s.revision, s.leaf, s.node_count,
  s.origin_session, s.origin_revision, s.origin_leaf,
  (SELECT json_object_agg(t.name, t.value)::text FROM {schema}.tag t
    WHERE t.tenant = s.tenant AND t.session = s.session) AS tags
FROM {schema}.session s
WHERE s.tenant = :tenant AND s.session = :session AND s.deleted_at_ms IS NULL

-- name: sessions.list_active
-- A page of the catalog, most recently active minute first.
-- mode: read
-- children: tags(name, value)
-- returns: session, title, created_at_ms, active_at_ms, revision, leaf, node_count, origin_session
-- returns: origin_revision, origin_leaf, tags, place
SELECT s.session, s.title, s.created_at_ms, s.active_at_ms, s.revision, s.leaf, s.node_count,
  s.origin_session, s.origin_revision, s.origin_leaf,
  (SELECT json_object_agg(t.name, t.value)::text FROM {schema}.tag t
    WHERE t.tenant = s.tenant AND t.session = s.session) AS tags,
  s.active_minute AS place
FROM {schema}.session s
WHERE s.tenant = :tenant AND s.listed
  AND (s.active_minute, s.session) < (:place::bigint, :after::text)
  AND s.active_at_ms >= :active_since_ms::bigint
  AND s.active_minute >= :active_since_ms::bigint / 60000
  AND (:forked_from::text IS NULL OR s.origin_session = :forked_from::text)
  AND NOT EXISTS (SELECT FROM unnest(:tags.name::text[], :tags.value::text[]) AS x(name, value)
    WHERE NOT EXISTS (SELECT FROM {schema}.tag t WHERE t.tenant = s.tenant
      AND t.session = s.session AND t.name = x.name AND t.value = x.value))
ORDER BY s.active_minute DESC, s.session DESC LIMIT :limit

-- name: sessions.list_created
-- A page of the catalog, most recently created first.
-- mode: read
-- children: tags(name, value)
-- returns: session, title, created_at_ms, active_at_ms, revision, leaf, node_count, origin_session
-- returns: origin_revision, origin_leaf, tags, place
SELECT s.session, s.title, s.created_at_ms, s.active_at_ms, s.revision, s.leaf, s.node_count,
  s.origin_session, s.origin_revision, s.origin_leaf,
  (SELECT json_object_agg(t.name, t.value)::text FROM {schema}.tag t
    WHERE t.tenant = s.tenant AND t.session = s.session) AS tags,
  s.created_at_ms AS place
FROM {schema}.session s
WHERE s.tenant = :tenant AND s.listed
  AND s.created_at_ms <= :place::bigint
  AND (s.created_at_ms, s.session) < (:place::bigint, :after::text)
  AND s.active_at_ms >= :active_since_ms::bigint
  AND (:forked_from::text IS NULL OR s.origin_session = :forked_from::text)
  AND NOT EXISTS (SELECT FROM unnest(:tags.name::text[], :tags.value::text[]) AS x(name, value)
    WHERE NOT EXISTS (SELECT FROM {schema}.tag t WHERE t.tenant = s.tenant
      AND t.session = s.session AND t.name = x.name AND t.value = x.value))
ORDER BY s.created_at_ms DESC, s.session DESC LIMIT :limit

-- name: sessions.update
-- Renames and tags a session that is not deleted.
-- mode: write
-- children: tags(name, value)
-- returns: updated
-- explains: known, deleted, tag_count
-- step: plain
SELECT FROM {schema}.session WHERE tenant = :tenant AND session = :session FOR NO KEY UPDATE
-- step: guard
SELECT 1 AS updated FROM {schema}.session s
WHERE s.tenant = :tenant AND s.session = :session AND s.deleted_at_ms IS NULL
  AND :tag_limit::bigint >= (SELECT count(*) FROM {schema}.tag t WHERE t.tenant = :tenant
      AND t.session = :session AND t.name <> ALL (:tags.name::text[]))
    + (SELECT count(x.value) FROM unnest(:tags.value::text[]) AS x(value))
-- step: when renames
UPDATE {schema}.session SET title = :title WHERE tenant = :tenant AND session = :session
-- step: plain
DELETE FROM {schema}.tag
WHERE tenant = :tenant AND session = :session AND name = ANY (:tags.name::text[])
-- step: plain
INSERT INTO {schema}.tag (tenant, session, name, value)
SELECT :tenant, :session, x.name, x.value
FROM unnest(:tags.name::text[], :tags.value::text[]) AS x(name, value) WHERE x.value IS NOT NULL
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted,
  (SELECT count(*) FROM {schema}.tag t WHERE t.tenant = :tenant
      AND t.session = :session AND t.name <> ALL (:tags.name::text[]))
    + (SELECT count(x.value) FROM unnest(:tags.value::text[]) AS x(value)) AS tag_count
FROM (SELECT 1) one
LEFT JOIN {schema}.session s ON s.tenant = :tenant AND s.session = :session

-- name: sessions.delete
-- Removes what a session owns and no fork needs; its row stays as a tombstone. Of a deleted session
-- it reclaims what its last forks have left, and that is all it does when asked to `reclaim`.
-- mode: write
-- returns: was_live, nodes, kept_nodes, revisions, receipts, usage, blobs, work, grants
-- returns: subscriptions, orphaned, preserved, ancestors
-- explains: live, ancestors
-- Differs by necessity: the head is locked first, then the content the session may be the last to
-- name, then the sources of its subscriptions with what is reserved for them, then the processes it
-- was granted, so that the statements after them see every rival that got there before.
-- step: plain
SELECT FROM {schema}.session WHERE tenant = :tenant AND session = :session FOR UPDATE
-- step: plain
SELECT FROM {schema}.blob b WHERE b.tenant = :tenant AND b.digest IN (
  SELECT c.digest FROM {schema}.component c WHERE c.tenant = :tenant AND c.session = :session)
ORDER BY b.digest FOR UPDATE
-- step: plain
SELECT FROM {schema}.trigger_source t
WHERE t.tenant = :tenant AND (t.source_type, t.source_key) IN (
  SELECT s.source_type, s.source_key FROM {schema}.trigger_subscription s
  WHERE s.tenant = :tenant AND s.owner_session = :session)
ORDER BY t.source_type, t.source_key FOR NO KEY UPDATE
-- step: plain
SELECT FROM {schema}.trigger_delivery d
WHERE d.tenant = :tenant AND d.owner_session = :session AND d.state = 'reserved'
ORDER BY d.occurrence, d.owner_session, d.owner_frame, d.key, d.subscription FOR UPDATE
-- step: plain
SELECT FROM {schema}.process p WHERE p.tenant = :tenant AND p.process IN (
  SELECT g.process FROM {schema}.process_grant g
  WHERE g.tenant = :tenant AND g.session = :session)
ORDER BY p.process FOR NO KEY UPDATE
-- step: guard
WITH kept AS MATERIALIZED (
  SELECT coalesce(max(f.base_seq), 0) AS seq FROM {schema}.session f
  WHERE f.tenant = :tenant AND f.base_session = :session
    AND (f.deleted_at_ms IS NULL OR f.last_seq > 0)
), doomed AS MATERIALIZED (
  SELECT DISTINCT c.revision FROM {schema}.component c
  WHERE c.tenant = :tenant AND c.session = :session AND NOT EXISTS (
    SELECT FROM {schema}.revision r WHERE r.tenant = :tenant AND r.state_session = :session
    AND r.state_revision = c.revision AND r.session <> :session AND r.state_session <> r.session)
)
SELECT s.deleted_at_ms IS NULL AS was_live, k.seq AS kept_seq,
  json_build_array(s.base_session, s.origin_session)::text AS ancestors,
  (SELECT count(*) FROM {schema}.node n WHERE n.tenant = :tenant AND n.session = :session
    AND n.seq > k.seq) AS nodes,
  (SELECT count(*) FROM {schema}.node n WHERE n.tenant = :tenant AND n.session = :session
    AND n.seq <= k.seq) AS kept_nodes,
  (SELECT count(*) FROM {schema}.revision r
    WHERE r.tenant = :tenant AND r.session = :session) AS revisions,
  (SELECT count(*) FROM {schema}.receipt p
    WHERE p.tenant = :tenant AND p.session = :session) AS receipts,
  (SELECT count(*) FROM {schema}.usage_row u
    WHERE u.tenant = :tenant AND u.session = :session) AS usage,
  (SELECT count(*) FROM {schema}.work w
    WHERE w.tenant = :tenant AND w.session = :session AND w.state <> 'done') AS work,
  (SELECT count(*) FROM {schema}.process_grant g WHERE g.tenant = :tenant
    AND g.session = :session) AS grants,
  (SELECT count(*) FROM {schema}.trigger_subscription t WHERE t.tenant = :tenant
    AND t.owner_session = :session AND t.deleted_at_ms IS NULL) AS subscriptions,
  (SELECT coalesce(json_agg(x.process ORDER BY x.process), '[]')::text FROM (
    SELECT DISTINCT g.process FROM {schema}.process_grant g
    JOIN {schema}.process p
      ON p.tenant = :tenant AND p.process = g.process
    WHERE g.tenant = :tenant AND g.session = :session AND p.state = 'running'
      AND NOT EXISTS (SELECT FROM {schema}.process_grant o WHERE o.tenant = :tenant
        AND o.process = g.process AND o.session <> :session)) x) AS orphaned,
  (SELECT coalesce(json_agg(x.process ORDER BY x.process), '[]')::text FROM (
    SELECT DISTINCT g.process FROM {schema}.process_grant g
    JOIN {schema}.process p
      ON p.tenant = :tenant AND p.process = g.process
    WHERE g.tenant = :tenant AND g.session = :session AND p.state = 'running'
      AND EXISTS (SELECT FROM {schema}.process_grant o WHERE o.tenant = :tenant
        AND o.process = g.process AND o.session <> :session)) x) AS preserved,
  (SELECT count(DISTINCT c.digest) FROM {schema}.component c WHERE c.tenant = :tenant
    AND c.session = :session AND c.revision IN (SELECT revision FROM doomed)
    AND NOT EXISTS (SELECT FROM {schema}.component o WHERE o.tenant = :tenant
      AND o.digest = c.digest
      AND NOT (o.session = :session AND o.revision IN (SELECT revision FROM doomed)))) AS blobs,
  (SELECT coalesce(array_agg(revision), '{}') FROM doomed) AS doomed
FROM {schema}.session s CROSS JOIN kept k
WHERE s.tenant = :tenant AND s.session = :session
  AND CASE WHEN s.deleted_at_ms IS NULL THEN NOT :reclaim::boolean
      ELSE s.last_seq > k.seq OR EXISTS (SELECT FROM doomed) END
-- step: plain
DELETE FROM {schema}.blob WHERE tenant = :tenant AND digest IN (
  SELECT c.digest FROM {schema}.component c WHERE c.tenant = :tenant AND c.session = :session
    AND c.revision = ANY (:doomed::bigint[])
    AND NOT EXISTS (SELECT FROM {schema}.component o WHERE o.tenant = :tenant
      AND o.digest = c.digest
      AND NOT (o.session = :session AND o.revision = ANY (:doomed::bigint[]))))
-- step: plain
DELETE FROM {schema}.component
WHERE tenant = :tenant AND session = :session AND revision = ANY (:doomed::bigint[])
-- step: plain
DELETE FROM {schema}.node WHERE tenant = :tenant AND session = :session AND seq > :kept_seq
-- step: plain
DELETE FROM {schema}.run WHERE tenant = :tenant AND session = :session AND run > :kept_seq
-- step: plain
DELETE FROM {schema}.revision WHERE tenant = :tenant AND session = :session
-- step: plain
DELETE FROM {schema}.receipt WHERE tenant = :tenant AND session = :session
-- step: plain
DELETE FROM {schema}.usage_row WHERE tenant = :tenant AND session = :session
-- step: plain
DELETE FROM {schema}.usage_total WHERE tenant = :tenant AND session = :session
-- step: plain
DELETE FROM {schema}.tag WHERE tenant = :tenant AND session = :session
-- step: plain
DELETE FROM {schema}.work WHERE tenant = :tenant AND session = :session
-- step: plain
DELETE FROM {schema}.process_grant WHERE tenant = :tenant AND session = :session
-- step: plain
UPDATE {schema}.trigger_source SET version = version + 1
WHERE tenant = :tenant AND (source_type, source_key) IN (
  SELECT s.source_type, s.source_key FROM {schema}.trigger_subscription s
  WHERE s.tenant = :tenant AND s.owner_session = :session)
-- step: plain
DELETE FROM {schema}.trigger_delivery
WHERE tenant = :tenant AND owner_session = :session AND state = 'reserved'
-- step: plain
DELETE FROM {schema}.trigger_receipt WHERE tenant = :tenant AND owner_session = :session
-- step: plain
DELETE FROM {schema}.trigger_subscription WHERE tenant = :tenant AND owner_session = :session
-- step: plain
UPDATE {schema}.session SET title = '', leaf = NULL, leaf_session = NULL, leaf_run = NULL,
  leaf_seq = NULL, leaf_depth = 0, last_seq = :kept_seq, node_count = 0, state_session = NULL,
  state_revision = NULL, lane_owner = NULL, lane_token = NULL, lane_claimed_at_ms = NULL,
  lane_expires_at_ms = NULL, origin_leaf = NULL, due_at_ms = NULL,
  deleted_at_ms = coalesce(deleted_at_ms, {schema}.now_ms())
WHERE tenant = :tenant AND session = :session
-- step: refused
SELECT s.session IS NOT NULL AND s.deleted_at_ms IS NULL AS live,
  json_build_array(s.base_session, s.origin_session)::text AS ancestors
FROM (SELECT 1) one LEFT JOIN {schema}.session s ON s.tenant = :tenant AND s.session = :session

-- name: sessions.head
-- The head, from one row.
-- mode: read
-- returns: session, revision, leaf, leaf_session, leaf_run, leaf_seq, depth, node_count
-- returns: state_session, state_revision
SELECT session, revision, leaf, leaf_session, leaf_run, leaf_seq, leaf_depth AS depth, node_count,
  state_session, state_revision
FROM {schema}.session WHERE tenant = :tenant AND session = :session AND deleted_at_ms IS NULL

-- name: sessions.receipt
-- The receipt of a committed turn.
-- mode: read
-- returns: session, turn, revision, leaf, node_count, at_ms
SELECT session, turn, revision, leaf, node_count, at_ms FROM {schema}.receipt
WHERE tenant = :tenant AND session = :session AND turn = :turn

-- name: sessions.fork
-- Adds a session whose head stands where another one stands, or stood. Nothing is copied.
-- mode: write
-- children: tags(name, value)
-- returns: created
-- explains: known, deleted, place_ok, retained, target, target_deleted, origin_session
-- explains: origin_revision, origin_leaf, levels
-- Differs by necessity: the source and the owner of the place are locked against deletion first,
-- the newest revision by reading the head after the lock.
-- step: plain
SELECT FROM {schema}.session WHERE tenant = :tenant AND session IN (
  SELECT l.session FROM {schema}.lineage_v1(:tenant, :source) l)
ORDER BY session FOR KEY SHARE
-- step: guard
WITH place AS (
  SELECT s.revision, s.leaf, s.leaf_session, s.leaf_run, s.leaf_seq, s.leaf_depth, s.state_session,
    s.state_revision
  FROM {schema}.session s WHERE :revision::bigint IS NULL AND :node::text IS NULL
    AND s.tenant = :tenant AND s.session = :source
  UNION ALL
  SELECT r.revision, r.leaf, r.leaf_session, r.leaf_run, r.leaf_seq, r.leaf_depth, r.state_session,
    r.state_revision
  FROM {schema}.revision r
  WHERE r.tenant = :tenant AND r.session = :source AND r.revision = :revision::bigint
  UNION ALL
  SELECT v.revision, v.node, v.session, v.run, v.seq, v.depth, r.state_session, r.state_revision
  FROM {schema}.visible_v1(:tenant, :source, :node::text) v
  JOIN {schema}.revision r
    ON r.tenant = :tenant AND r.session = v.session AND r.revision = v.revision
), made AS (
  INSERT INTO {schema}.session (tenant, session, title, created_at_ms, active_at_ms, active_minute,
    revision, leaf, leaf_session, leaf_run, leaf_seq, leaf_depth, last_seq, node_count,
    state_session, state_revision, lane_generation, origin_session, origin_revision, origin_leaf,
    base_session, base_seq)
  SELECT :tenant, :session, :title, c.now, c.now, c.now / 60000, 0, p.leaf, p.leaf_session,
    p.leaf_run, p.leaf_seq, p.leaf_depth, 0, 0, p.state_session, p.state_revision, 0, :source,
    p.revision, p.leaf, p.leaf_session, p.leaf_seq
  FROM {schema}.session s CROSS JOIN place p CROSS JOIN (SELECT {schema}.now_ms() AS now) c
  WHERE s.tenant = :tenant AND s.session = :source AND s.deleted_at_ms IS NULL
    AND (SELECT max(l.level) FROM {schema}.lineage_v1(:tenant, :source) l) < 9999
  ON CONFLICT (tenant, session) DO NOTHING
  RETURNING *
), first AS (
  INSERT INTO {schema}.revision (tenant, session, revision, kind, leaf, leaf_session, leaf_run,
    leaf_seq, leaf_depth, state_session, state_revision, at_ms)
  SELECT :tenant, :session, 0, 'forked', m.leaf, m.leaf_session, m.leaf_run, m.leaf_seq,
    m.leaf_depth, m.state_session, m.state_revision, m.created_at_ms
  FROM made m
), tagged AS (
  INSERT INTO {schema}.tag (tenant, session, name, value)
  SELECT :tenant, :session, x.name, x.value
  FROM made m CROSS JOIN unnest(:tags.name::text[], :tags.value::text[]) AS x(name, value)
)
SELECT 1 AS created FROM made
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted,
  :node::text IS NULL OR EXISTS (
    SELECT FROM {schema}.visible_v1(:tenant, :source, :node::text)) AS place_ok,
  CASE WHEN :node::text IS NOT NULL THEN EXISTS (
      SELECT FROM {schema}.visible_v1(:tenant, :source, :node::text) v
      JOIN {schema}.revision r
        ON r.tenant = :tenant AND r.session = v.session AND r.revision = v.revision)
    WHEN :revision::bigint IS NOT NULL THEN EXISTS (SELECT FROM {schema}.revision r
      WHERE r.tenant = :tenant AND r.session = :source AND r.revision = :revision::bigint)
    ELSE true END AS retained,
  t.session IS NOT NULL AS target, t.deleted_at_ms IS NOT NULL AS target_deleted,
  t.origin_session, t.origin_revision, t.origin_leaf,
  (SELECT max(l.level) FROM {schema}.lineage_v1(:tenant, :source) l) AS levels
FROM (SELECT 1) one
LEFT JOIN {schema}.session s ON s.tenant = :tenant AND s.session = :source
LEFT JOIN {schema}.session t ON t.tenant = :tenant AND t.session = :session

-- name: sessions.revisions
-- A page of the retained revisions, newest first.
-- mode: read
-- returns: session, revision, kind, turn, reason, leaf, depth, state_session, state_revision, at_ms
SELECT session, revision, kind, turn, reason, leaf, leaf_depth AS depth, state_session,
  state_revision, at_ms
FROM {schema}.revision
WHERE tenant = :tenant AND session = :session AND revision < :before::bigint
ORDER BY revision DESC LIMIT :limit

-- name: sessions.components
-- The state of one revision: the name and digest of each component.
-- mode: read
-- returns: name, digest
SELECT name, digest FROM {schema}.component
WHERE tenant = :tenant AND session = :state_session AND revision = :state_revision ORDER BY name
