-- name: lanes.claim
-- Grants the lane of a session when it is free, lapsed, or held by the same owner.
-- mode: write
-- returns: generation, claimed_at_ms, expires_at_ms, old_owner, old_generation
-- returns: old_expires_at_ms, lapsed
-- explains: known, deleted, owner, generation, expires_at_ms
-- Differs by necessity: the row is locked in one part of the statement and judged in the next, with
-- a clock that is read after the wait.
-- step: guard
WITH held AS MATERIALIZED (
  SELECT s.session, s.lane_owner, s.lane_token, s.lane_generation, s.lane_claimed_at_ms,
    s.lane_expires_at_ms
  FROM {schema}.session s
  WHERE s.tenant = :tenant AND s.session = :session AND s.deleted_at_ms IS NULL
  FOR NO KEY UPDATE OF s
), timed AS MATERIALIZED (
  SELECT h.*, {schema}.now_ms() AS now FROM held h
), verdict AS MATERIALIZED (
  SELECT t.*, t.lane_token IS NOT NULL AND t.lane_expires_at_ms > t.now AS live FROM timed t
  WHERE t.lane_generation BETWEEN 0 AND 9223372036854775806
    AND (t.lane_token IS NULL OR t.lane_expires_at_ms <= t.now OR t.lane_owner = :owner)
)
UPDATE {schema}.session s SET lane_owner = :owner, lane_token = :token,
  lane_generation = CASE WHEN v.live THEN v.lane_generation ELSE v.lane_generation + 1 END,
  lane_claimed_at_ms = CASE WHEN v.live THEN v.lane_claimed_at_ms ELSE v.now END,
  lane_expires_at_ms = v.now + :ttl_ms::bigint,
  due_at_ms = CASE WHEN s.due_at_ms > v.now + :ttl_ms::bigint THEN v.now + :ttl_ms::bigint
    ELSE s.due_at_ms END
FROM verdict v WHERE s.tenant = :tenant AND s.session = v.session
RETURNING s.lane_generation AS generation, s.lane_claimed_at_ms AS claimed_at_ms,
  s.lane_expires_at_ms AS expires_at_ms, v.lane_owner AS old_owner,
  v.lane_generation AS old_generation, v.lane_expires_at_ms AS old_expires_at_ms,
  v.lane_token IS NOT NULL AND NOT v.live AS lapsed
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted,
  CASE WHEN s.lane_expires_at_ms > c.now THEN s.lane_owner END AS owner,
  s.lane_generation AS generation, s.lane_expires_at_ms AS expires_at_ms
FROM (SELECT {schema}.now_ms() AS now) c
LEFT JOIN {schema}.session s ON s.tenant = :tenant AND s.session = :session

-- name: lanes.renew
-- Moves the expiry of a lane that is still held.
-- mode: write
-- returns: claimed_at_ms, expires_at_ms
-- explains: known, deleted
-- step: guard
WITH held AS MATERIALIZED (
  SELECT s.session, s.lane_expires_at_ms FROM {schema}.session s
  WHERE s.tenant = :tenant AND s.session = :session
    AND s.lane_owner = :fence_owner AND s.lane_token = :fence_token
    AND s.lane_generation = :fence_generation
  FOR NO KEY UPDATE OF s
), timed AS MATERIALIZED (
  SELECT h.*, {schema}.now_ms() AS now FROM held h
)
UPDATE {schema}.session s SET lane_expires_at_ms = t.now + :ttl_ms::bigint,
  due_at_ms = CASE WHEN s.due_at_ms > t.now + :ttl_ms::bigint THEN t.now + :ttl_ms::bigint
    ELSE s.due_at_ms END
FROM timed t WHERE s.tenant = :tenant AND s.session = t.session AND t.lane_expires_at_ms > t.now
RETURNING s.lane_claimed_at_ms AS claimed_at_ms, s.lane_expires_at_ms AS expires_at_ms
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted
FROM (SELECT 1) one LEFT JOIN {schema}.session s ON s.tenant = :tenant AND s.session = :session

-- name: lanes.release
-- Frees a lane that this fence holds, live or lapsed.
-- mode: write
-- returns: released
-- explains: known, deleted
-- step: guard
UPDATE {schema}.session SET lane_owner = NULL, lane_token = NULL, lane_claimed_at_ms = NULL,
  lane_expires_at_ms = NULL,
  due_at_ms = CASE WHEN due_at_ms IS NOT NULL THEN least(due_at_ms, {schema}.now_ms()) END
WHERE tenant = :tenant AND session = :session
  AND lane_owner = :fence_owner AND lane_token = :fence_token
  AND lane_generation = :fence_generation
RETURNING 1 AS released
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted
FROM (SELECT 1) one LEFT JOIN {schema}.session s ON s.tenant = :tenant AND s.session = :session

-- name: lanes.read
-- Who holds the lane of a session.
-- mode: read
-- returns: session, owner, generation, claimed_at_ms, expires_at_ms, live
SELECT session, lane_owner AS owner, lane_generation AS generation,
  lane_claimed_at_ms AS claimed_at_ms, lane_expires_at_ms AS expires_at_ms,
  lane_token IS NOT NULL AND lane_expires_at_ms > {schema}.now_ms() AS live
FROM {schema}.session WHERE tenant = :tenant AND session = :session AND deleted_at_ms IS NULL

-- name: lanes.displace
-- Takes the lane from its holder: the generation moves, the lane is free.
-- mode: write
-- returns: generation
-- explains: known, deleted, generation
-- step: guard
UPDATE {schema}.session SET lane_owner = NULL, lane_token = NULL, lane_claimed_at_ms = NULL,
  lane_expires_at_ms = NULL, lane_generation = lane_generation + 1,
  due_at_ms = CASE WHEN due_at_ms IS NOT NULL THEN least(due_at_ms, {schema}.now_ms()) END
WHERE tenant = :tenant AND session = :session AND deleted_at_ms IS NULL
  AND lane_generation BETWEEN 0 AND 9223372036854775806
RETURNING lane_generation AS generation
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted,
  s.lane_generation AS generation
FROM (SELECT 1) one LEFT JOIN {schema}.session s ON s.tenant = :tenant AND s.session = :session
