-- name: lanes.claim
-- Grants the lane of a session when it is free, lapsed, or held by the same owner.
-- mode: write
-- returns: generation, claimed_at_ms, expires_at_ms, old_owner, old_generation
-- returns: old_expires_at_ms, lapsed
-- explains: known, deleted, owner, generation, expires_at_ms
-- step: guard
SELECT
  CASE WHEN s.lane_token IS NOT NULL AND s.lane_expires_at_ms > :now THEN s.lane_generation
       ELSE s.lane_generation + 1 END AS generation,
  CASE WHEN s.lane_token IS NOT NULL AND s.lane_expires_at_ms > :now THEN s.lane_claimed_at_ms
       ELSE :now END AS claimed_at_ms,
  :now + :ttl_ms AS expires_at_ms,
  s.lane_owner AS old_owner, s.lane_generation AS old_generation,
  s.lane_expires_at_ms AS old_expires_at_ms,
  s.lane_token IS NOT NULL AND s.lane_expires_at_ms <= :now AS lapsed
FROM session s WHERE s.tenant = :tenant AND s.session = :session AND s.deleted_at_ms IS NULL
  AND s.lane_generation BETWEEN 0 AND 9223372036854775806
  AND (s.lane_token IS NULL OR s.lane_expires_at_ms <= :now OR s.lane_owner = :owner)
-- step: plain
UPDATE session SET lane_owner = :owner, lane_token = :token, lane_generation = :generation,
  lane_claimed_at_ms = :claimed_at_ms, lane_expires_at_ms = :expires_at_ms,
  due_at_ms = min(due_at_ms, :expires_at_ms)
WHERE tenant = :tenant AND session = :session
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted,
  CASE WHEN s.lane_expires_at_ms > :now THEN s.lane_owner END AS owner,
  s.lane_generation AS generation, s.lane_expires_at_ms AS expires_at_ms
FROM (SELECT 1) LEFT JOIN session s ON s.tenant = :tenant AND s.session = :session

-- name: lanes.renew
-- Moves the expiry of a lane that is still held.
-- mode: write
-- returns: claimed_at_ms, expires_at_ms
-- explains: known, deleted
-- step: guard
SELECT s.lane_claimed_at_ms AS claimed_at_ms, :now + :ttl_ms AS expires_at_ms
FROM session s WHERE s.tenant = :tenant AND s.session = :session
  AND s.lane_owner = :fence_owner AND s.lane_token = :fence_token
  AND s.lane_generation = :fence_generation AND s.lane_expires_at_ms > :now
-- step: plain
UPDATE session SET lane_expires_at_ms = :expires_at_ms, due_at_ms = min(due_at_ms, :expires_at_ms)
WHERE tenant = :tenant AND session = :session
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted
FROM (SELECT 1) LEFT JOIN session s ON s.tenant = :tenant AND s.session = :session

-- name: lanes.release
-- Frees a lane that this fence holds, live or lapsed.
-- mode: write
-- returns: released
-- explains: known, deleted
-- step: guard
SELECT 1 AS released FROM session s WHERE s.tenant = :tenant AND s.session = :session
  AND s.lane_owner = :fence_owner AND s.lane_token = :fence_token
  AND s.lane_generation = :fence_generation
-- step: plain
UPDATE session SET lane_owner = NULL, lane_token = NULL, lane_claimed_at_ms = NULL,
  lane_expires_at_ms = NULL, due_at_ms = min(due_at_ms, :now)
WHERE tenant = :tenant AND session = :session
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted
FROM (SELECT 1) LEFT JOIN session s ON s.tenant = :tenant AND s.session = :session

-- name: lanes.read
-- Who holds the lane of a session.
-- mode: read
-- returns: session, owner, generation, claimed_at_ms, expires_at_ms, live
SELECT session, lane_owner AS owner, lane_generation AS generation,
  lane_claimed_at_ms AS claimed_at_ms, lane_expires_at_ms AS expires_at_ms,
  lane_token IS NOT NULL AND lane_expires_at_ms > :now AS live
FROM session WHERE tenant = :tenant AND session = :session AND deleted_at_ms IS NULL

-- name: lanes.displace
-- Takes the lane from its holder: the generation moves, the lane is free.
-- mode: write
-- returns: generation
-- explains: known, deleted, generation
-- step: guard
SELECT s.lane_generation + 1 AS generation FROM session s
WHERE s.tenant = :tenant AND s.session = :session AND s.deleted_at_ms IS NULL
  AND s.lane_generation BETWEEN 0 AND 9223372036854775806
-- step: plain
UPDATE session SET lane_owner = NULL, lane_token = NULL, lane_claimed_at_ms = NULL,
  lane_expires_at_ms = NULL, lane_generation = :generation, due_at_ms = min(due_at_ms, :now)
WHERE tenant = :tenant AND session = :session
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted,
  s.lane_generation AS generation
FROM (SELECT 1) LEFT JOIN session s ON s.tenant = :tenant AND s.session = :session
