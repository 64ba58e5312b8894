-- name: history.load
-- A stretch of a path with the head and the state it belongs to, from one snapshot: one row of
-- part 0 (where the path ends), then nodes from the end (part 1), then components (part 2).
-- mode: read
-- returns: part, node, parent, kind, body, digest, depth, session, revision, at_ms, flag
WITH RECURSIVE head AS MATERIALIZED (
  SELECT * FROM {schema}.session
  WHERE tenant = :tenant AND session = :session AND deleted_at_ms IS NULL
), place AS MATERIALIZED (
  SELECT leaf, leaf_session AS session, leaf_run AS run, leaf_seq AS seq, leaf_depth AS depth,
    state_session, state_revision
  FROM head WHERE :leaf::text IS NULL AND :revision::bigint IS NULL
  UNION ALL
  SELECT r.leaf, r.leaf_session, r.leaf_run, r.leaf_seq, r.leaf_depth, r.state_session,
    r.state_revision
  FROM head h JOIN {schema}.revision r
    ON r.tenant = :tenant AND r.session = :session AND r.revision = :revision::bigint
  UNION ALL
  SELECT n.node, n.session, n.run, n.seq, n.depth - :above::bigint, h.state_session,
    h.state_revision
  FROM head h CROSS JOIN LATERAL (
    SELECT n.* FROM {schema}.lineage_v1(:tenant, :session) c
    CROSS JOIN LATERAL (SELECT * FROM {schema}.node n WHERE n.tenant = :tenant
      AND n.session = c.session AND n.node = :leaf::text AND n.seq <= c.upto LIMIT 1) n
    WHERE :leaf::text IS NOT NULL
    ORDER BY c.level LIMIT 1) n
), seg(session, lo, hi, base_session, base_run, base_seq, base_depth) AS (
  SELECT r.session, r.run, p.seq, r.base_session, r.base_run, r.base_seq, r.base_depth
  FROM place p JOIN {schema}.run r
    ON r.tenant = :tenant AND r.session = p.session AND r.run = p.run
  UNION ALL
  SELECT r.session, r.run, g.base_seq, r.base_session, r.base_run, r.base_seq, r.base_depth
  FROM seg g CROSS JOIN LATERAL (SELECT * FROM {schema}.run r
    WHERE r.tenant = :tenant AND r.session = g.base_session AND r.run = g.base_run LIMIT 1) r
  WHERE r.base_depth < g.base_depth AND g.base_depth > (SELECT depth FROM place) - :tail::bigint
)
SELECT 0 AS part, p.leaf AS node, NULL::text AS parent, NULL::text AS kind, NULL::bytea AS body,
  NULL::bytea AS digest, p.depth, p.session, h.revision, h.node_count AS at_ms,
  p.depth IS NOT NULL AS flag
FROM head h LEFT JOIN place p ON true
UNION ALL
SELECT * FROM (
  SELECT 1, n.node, n.parent, n.kind, n.body, n.digest, n.depth, n.session, n.revision, n.at_ms,
    n.tombstoned_at_ms IS NOT NULL
  FROM place p CROSS JOIN seg g CROSS JOIN LATERAL (
    SELECT * FROM {schema}.node n
    WHERE n.tenant = :tenant AND n.session = g.session
      AND n.seq BETWEEN greatest(g.lo, g.lo + p.depth - :tail::bigint - g.base_depth)
                    AND least(g.hi, g.lo + p.depth - g.base_depth - 1)
    OFFSET 0) n
  ORDER BY n.depth DESC) path
UNION ALL
SELECT 2, c.name, NULL, NULL, b.data, c.digest, b.encoding, NULL, b.size, NULL, b.digest IS NOT NULL
FROM (SELECT state_session, state_revision FROM place UNION ALL
  SELECT h.state_session, h.state_revision FROM head h
  WHERE :revision::bigint IS NULL AND NOT EXISTS (SELECT FROM place)) p
JOIN {schema}.component c
  ON c.tenant = :tenant AND c.session = p.state_session AND c.revision = p.state_revision
LEFT JOIN LATERAL (SELECT * FROM {schema}.blob b
  WHERE b.tenant = :tenant AND b.digest = c.digest LIMIT 1) b ON true
WHERE :state::boolean

-- name: history.node
-- One node a session can see.
-- mode: read
-- returns: node, parent, kind, body, digest, depth, session, revision, at_ms
SELECT n.node, n.parent, n.kind, n.body, n.digest, n.depth, n.session, n.revision, n.at_ms
FROM {schema}.session s
CROSS JOIN LATERAL {schema}.visible_v1(s.tenant, s.session, :node::text) v
JOIN {schema}.node n ON n.tenant = s.tenant AND n.session = v.session AND n.seq = v.seq
WHERE s.tenant = :tenant AND s.session = :session AND s.deleted_at_ms IS NULL

-- name: history.lineage
-- The sessions whose nodes a session can see, and up to which seq: itself, then what it forked.
-- mode: read
-- returns: session, upto, level
SELECT l.session, l.upto, l.level
FROM {schema}.session s CROSS JOIN LATERAL {schema}.lineage_v1(s.tenant, s.session) l
WHERE s.tenant = :tenant AND s.session = :session AND s.deleted_at_ms IS NULL
ORDER BY l.level

-- name: history.stretch
-- The nodes one session stored, in that order, between two positions.
-- mode: read
-- returns: seq, node, parent, kind, body, digest, depth, session, revision, at_ms
SELECT seq, node, parent, kind, body, digest, depth, session, revision, at_ms FROM {schema}.node
WHERE tenant = :tenant AND session = :owner AND seq > :after AND seq <= :upto
  AND tombstoned_at_ms IS NULL
ORDER BY seq LIMIT :limit

-- name: history.segments
-- The stretches a path is made of, from its leaf to its root.
-- mode: read
-- returns: session, lo, hi, base_depth
WITH RECURSIVE seg(session, lo, hi, base_session, base_run, base_seq, base_depth, nth) AS (
  SELECT r.session, r.run, :seq::bigint, r.base_session, r.base_run, r.base_seq, r.base_depth, 0
  FROM {schema}.run r WHERE r.tenant = :tenant AND r.session = :owner AND r.run = :run
  UNION ALL
  SELECT r.session, r.run, g.base_seq, r.base_session, r.base_run, r.base_seq, r.base_depth,
    g.nth + 1
  FROM seg g CROSS JOIN LATERAL (SELECT * FROM {schema}.run r
    WHERE r.tenant = :tenant AND r.session = g.base_session AND r.run = g.base_run LIMIT 1) r
  WHERE r.base_depth < g.base_depth
)
SELECT session, lo, hi, base_depth FROM seg ORDER BY nth

-- name: history.ids
-- The ids of the nodes between two positions of one session.
-- mode: read
-- returns: node
SELECT node FROM {schema}.node
WHERE tenant = :tenant AND session = :owner AND seq BETWEEN :lo AND :hi
  AND tombstoned_at_ms IS NULL
ORDER BY seq

-- name: history.tombstone
-- Hides nodes of a session from every read.
-- mode: write
-- children: ids(node)
-- returns: hidden
-- explains: known, deleted
-- step: plain
SELECT FROM {schema}.session WHERE tenant = :tenant AND session = :session FOR NO KEY UPDATE
-- step: guard
SELECT (SELECT count(*) FROM {schema}.node n WHERE n.tenant = :tenant
  AND n.session = :session AND n.tombstoned_at_ms IS NULL
  AND n.node = ANY (:ids.node::text[])) AS hidden
FROM {schema}.session s
WHERE s.tenant = :tenant AND s.session = :session AND s.deleted_at_ms IS NULL
-- step: plain
UPDATE {schema}.node SET tombstoned_at_ms = {schema}.now_ms()
WHERE tenant = :tenant AND session = :session AND tombstoned_at_ms IS NULL
  AND node = ANY (:ids.node::text[])
-- step: plain
UPDATE {schema}.session SET node_count = node_count - :hidden::bigint
WHERE tenant = :tenant AND session = :session
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted
FROM (SELECT 1) one LEFT JOIN {schema}.session s ON s.tenant = :tenant AND s.session = :session

-- name: history.vacuum
-- Removes the bodies of a session's tombstoned nodes; their ids stay taken.
-- mode: write
-- returns: nodes
-- explains: known, deleted
-- step: plain
SELECT FROM {schema}.session WHERE tenant = :tenant AND session = :session FOR NO KEY UPDATE
-- step: guard
SELECT (SELECT count(*) FROM {schema}.node n WHERE n.tenant = :tenant AND n.session = :session
  AND n.tombstoned_at_ms IS NOT NULL AND n.body IS NOT NULL) AS nodes
FROM {schema}.session s
WHERE s.tenant = :tenant AND s.session = :session AND s.deleted_at_ms IS NULL
-- step: when nodes
UPDATE {schema}.node SET body = NULL WHERE tenant = :tenant AND session = :session
  AND tombstoned_at_ms IS NOT NULL AND body IS NOT NULL
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted
FROM (SELECT 1) one LEFT JOIN {schema}.session s ON s.tenant = :tenant AND s.session = :session
