-- name: history.load
-- A stretch of a path with the head and the state it belongs to, from one snapshot: one row of
-- part 0 (where the path ends), then nodes from the end (part 1), then components (part 2).
-- mode: read
-- returns: part, node, parent, kind, body, digest, depth, session, revision, at_ms, flag
WITH RECURSIVE chain(session, upto, level) AS (
  SELECT session, last_seq, 0 FROM session WHERE tenant = :tenant AND session = :session
  UNION ALL
  SELECT p.base_session, p.base_seq, c.level + 1
  FROM chain c CROSS JOIN session p ON p.tenant = :tenant AND p.session = c.session
  WHERE p.base_session IS NOT NULL AND c.level < 10000
), head AS MATERIALIZED (
  SELECT * FROM session WHERE tenant = :tenant AND session = :session AND deleted_at_ms IS NULL
), place AS MATERIALIZED (
  SELECT leaf, leaf_session AS session, leaf_run AS run, leaf_seq AS seq, leaf_depth AS depth,
    state_session, state_revision
  FROM head WHERE :leaf IS NULL AND :revision IS NULL
  UNION ALL
  SELECT r.leaf, r.leaf_session, r.leaf_run, r.leaf_seq, r.leaf_depth, r.state_session,
    r.state_revision
  FROM head h CROSS JOIN revision r
    ON r.tenant = :tenant AND r.session = :session AND r.revision = :revision
  UNION ALL
  SELECT * FROM (
    SELECT n.node, n.session, n.run, n.seq, n.depth - :above, h.state_session, h.state_revision
    FROM head h CROSS JOIN chain c CROSS JOIN node n INDEXED BY node_id
      ON n.tenant = :tenant AND n.session = c.session AND n.node = :leaf
    WHERE n.seq <= c.upto ORDER BY c.level LIMIT 1)
), seg(session, lo, hi, base_session, base_run, base_seq, base_depth) AS (
  SELECT r.session, r.run, p.seq, r.base_session, r.base_run, r.base_seq, r.base_depth
  FROM place p CROSS JOIN run r ON r.tenant = :tenant AND r.session = p.session AND r.run = p.run
  UNION ALL
  SELECT r.session, r.run, g.base_seq, r.base_session, r.base_run, r.base_seq, r.base_depth
  FROM seg g CROSS JOIN run r
    ON r.tenant = :tenant AND r.session = g.base_session AND r.run = g.base_run
  WHERE r.base_depth < g.base_depth AND g.base_depth > (SELECT depth FROM place) - :tail
)
SELECT 0 AS part, p.leaf AS node, NULL AS parent, NULL AS kind, NULL AS body, NULL AS digest,
  p.depth, p.session, h.revision, h.node_count AS at_ms, p.depth IS NOT NULL AS flag
FROM head h LEFT JOIN place p ON 1
UNION ALL
SELECT * FROM (
  SELECT 1, n.node, n.parent, n.kind, n.body, n.digest, n.depth, n.session, n.revision, n.at_ms,
    n.tombstoned_at_ms IS NOT NULL
  FROM place p CROSS JOIN seg g CROSS JOIN node n
    ON n.tenant = :tenant AND n.session = g.session
    AND n.seq BETWEEN max(g.lo, g.lo + p.depth - :tail - g.base_depth)
                  AND min(g.hi, g.lo + p.depth - g.base_depth - 1)
  ORDER BY n.depth DESC)
UNION ALL
SELECT 2, c.name, NULL, NULL, b.data, c.digest, b.encoding, NULL, b.size, NULL, b.digest IS NOT NULL
FROM (SELECT state_session, state_revision FROM place UNION ALL
  SELECT h.state_session, h.state_revision FROM head h
  WHERE :revision IS NULL AND NOT EXISTS (SELECT 1 FROM place)) p
CROSS JOIN component c
  ON c.tenant = :tenant AND c.session = p.state_session AND c.revision = p.state_revision
LEFT JOIN blob b ON b.tenant = :tenant AND b.digest = c.digest
WHERE :state

-- name: history.node
-- One node a session can see.
-- mode: read
-- returns: node, parent, kind, body, digest, depth, session, revision, at_ms
WITH RECURSIVE chain(session, upto, level) AS (
  SELECT session, last_seq, 0 FROM session
  WHERE tenant = :tenant AND session = :session AND deleted_at_ms IS NULL
  UNION ALL
  SELECT p.base_session, p.base_seq, c.level + 1
  FROM chain c CROSS JOIN session p ON p.tenant = :tenant AND p.session = c.session
  WHERE p.base_session IS NOT NULL AND c.level < 10000
)
SELECT n.node, n.parent, n.kind, n.body, n.digest, n.depth, n.session, n.revision, n.at_ms
FROM chain c CROSS JOIN node n INDEXED BY node_id
  ON n.tenant = :tenant AND n.session = c.session AND n.node = :node
WHERE n.seq <= c.upto AND n.tombstoned_at_ms IS NULL ORDER BY c.level LIMIT 1

-- name: history.lineage
-- The sessions whose nodes a session can see, and up to which seq: itself, then what it forked.
-- mode: read
-- returns: session, upto, level
WITH RECURSIVE chain(session, upto, level) AS (
  SELECT session, last_seq, 0 FROM session
  WHERE tenant = :tenant AND session = :session AND deleted_at_ms IS NULL
  UNION ALL
  SELECT p.base_session, p.base_seq, c.level + 1
  FROM chain c CROSS JOIN session p ON p.tenant = :tenant AND p.session = c.session
  WHERE p.base_session IS NOT NULL AND c.level < 10000
)
SELECT session, upto, level FROM chain ORDER BY level

-- name: history.stretch
-- The nodes one session stored, in that order, between two positions.
-- mode: read
-- returns: seq, node, parent, kind, body, digest, depth, session, revision, at_ms
SELECT seq, node, parent, kind, body, digest, depth, session, revision, at_ms FROM node
WHERE tenant = :tenant AND session = :owner AND seq > :after AND seq <= :upto
  AND tombstoned_at_ms IS NULL
ORDER BY seq LIMIT :limit

-- name: history.segments
-- The stretches a path is made of, from its leaf to its root.
-- mode: read
-- returns: session, lo, hi, base_depth
WITH RECURSIVE seg(session, lo, hi, base_session, base_run, base_seq, base_depth, nth) AS (
  SELECT r.session, r.run, :seq, r.base_session, r.base_run, r.base_seq, r.base_depth, 0
  FROM run r WHERE r.tenant = :tenant AND r.session = :owner AND r.run = :run
  UNION ALL
  SELECT r.session, r.run, g.base_seq, r.base_session, r.base_run, r.base_seq, r.base_depth,
    g.nth + 1
  FROM seg g CROSS JOIN run r
    ON r.tenant = :tenant AND r.session = g.base_session AND r.run = g.base_run
  WHERE r.base_depth < g.base_depth
)
SELECT session, lo, hi, base_depth FROM seg ORDER BY nth

-- name: history.ids
-- The ids of the nodes between two positions of one session.
-- mode: read
-- returns: node
SELECT node FROM node
WHERE tenant = :tenant AND session = :owner AND seq BETWEEN :lo AND :hi
  AND tombstoned_at_ms IS NULL
ORDER BY seq

-- name: history.tombstone
-- Hides nodes of a session from every read.
-- mode: write
-- children: ids(node)
-- returns: hidden
-- explains: known, deleted
-- step: guard
SELECT (SELECT count(*) FROM node n INDEXED BY node_id WHERE n.tenant = :tenant
  AND n.session = :session AND n.tombstoned_at_ms IS NULL
  AND n.node IN (SELECT value FROM json_each(:ids.node))) AS hidden
FROM session s WHERE s.tenant = :tenant AND s.session = :session AND s.deleted_at_ms IS NULL
-- step: plain
UPDATE node INDEXED BY node_id SET tombstoned_at_ms = :now
WHERE tenant = :tenant AND session = :session AND tombstoned_at_ms IS NULL
  AND node IN (SELECT value FROM json_each(:ids.node))
-- step: plain
UPDATE session SET node_count = node_count - :hidden WHERE tenant = :tenant AND session = :session
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted
FROM (SELECT 1) LEFT JOIN session s ON s.tenant = :tenant AND s.session = :session

-- name: history.vacuum
-- Removes the bodies of a session's tombstoned nodes; their ids stay taken.
-- mode: write
-- returns: nodes
-- explains: known, deleted
-- step: guard
SELECT (SELECT count(*) FROM node n WHERE n.tenant = :tenant AND n.session = :session
  AND n.tombstoned_at_ms IS NOT NULL AND n.body IS NOT NULL) AS nodes
FROM session s WHERE s.tenant = :tenant AND s.session = :session AND s.deleted_at_ms IS NULL
-- step: when nodes
UPDATE node SET body = NULL WHERE tenant = :tenant AND session = :session
  AND tombstoned_at_ms IS NOT NULL AND body IS NOT NULL
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted
FROM (SELECT 1) LEFT JOIN session s ON s.tenant = :tenant AND s.session = :session
