-- name: queue.enqueue
-- Puts work into the inbox of a session, unless its id or its key is there already.
-- mode: write
-- returns: enqueued, seq, enqueued_at_ms, available_at_ms
-- explains: known, deleted, work_seq
-- step: guard
SELECT enqueued, seq, enqueued_at_ms, available_at_ms FROM {schema}.enqueue_v1(:tenant, :session,
  :work, :key, :kind, :delivery, :slot, :merge, :delay_ms, :available_at_ms, :items, :digest,
  :max_attempts, :keep_ms, NULL, NULL)
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted, s.work_seq
FROM (SELECT 1) one LEFT JOIN {schema}.session s ON s.tenant = :tenant AND s.session = :session

-- name: queue.claim
-- Claims work of a session, or of the next session that has work and no holder, with its lane.
-- mode: write
-- children: exact(work)
-- returns: why_not, next_at_ms, generation, until_ms, old_owner, old_generation, old_expires_at_ms
-- returns: redelivered, claimed_at_ms, claim_expires_at_ms
-- returns: session, work, seq, key, kind, delivery, slot, merge_key, state, available_at_ms
-- returns: enqueued_at_ms, items, digest, attempts, max_attempts, last_error, claim_owner
-- returns: settled_turn, process, event
-- explains: known, deleted, lane_ok, lane_owner, lane_generation, lane_expires_at_ms
-- step: guard
SELECT c.* FROM {schema}.claim_work_v1(:tenant, :session, :owner, :fence_owner, :fence_token,
  :fence_generation, :lane_token, :lane_ttl_ms, :claim, :claim_token, :ttl_ms, :boundary, :kind,
  :limit, :exact.work) c
ORDER BY c.seq
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted,
  coalesce(CASE WHEN :fence_token::text IS NULL
    THEN s.lane_token IS NULL OR s.lane_expires_at_ms <= c.now
    ELSE s.lane_owner = :fence_owner AND s.lane_token = :fence_token
      AND s.lane_generation = :fence_generation AND s.lane_expires_at_ms > c.now END, false)
    AS lane_ok,
  s.lane_owner, s.lane_generation, s.lane_expires_at_ms
FROM (SELECT {schema}.now_ms() AS now) c
LEFT JOIN {schema}.session s ON s.tenant = :tenant AND s.session = :session::text

-- name: queue.renew
-- Moves the expiry of a claim that has no lane, when what it names is all it owns.
-- mode: write
-- children: works(work)
-- returns: claimed_at_ms, claim_expires_at_ms
-- explains: known, deleted
-- Differs by necessity: the session and the rows are locked before the rows are counted, and the
-- clock is read after that.
-- step: guard
WITH at AS MATERIALIZED (
  SELECT s.session FROM {schema}.session s WHERE s.tenant = :tenant AND s.session = :session
  FOR NO KEY UPDATE
), held AS MATERIALIZED (
  SELECT w.seq, w.work, w.claim_token, w.claim_expires_at_ms FROM at a JOIN {schema}.work w
    ON w.tenant = :tenant AND w.session = a.session
  WHERE w.claim = :claim AND w.state = 'claimed'
  ORDER BY w.seq FOR UPDATE OF w
), timed AS MATERIALIZED (
  SELECT c.seq, c.now FROM (SELECT h.*, {schema}.now_ms() AS now FROM held h OFFSET 0) c
  WHERE c.claim_expires_at_ms > c.now AND c.claim_token = :claim_token
    AND c.work = ANY (:works.work::text[])
), renewed AS (
  UPDATE {schema}.work w
  SET claim_expires_at_ms = greatest(w.claim_expires_at_ms, t.now + :ttl_ms::bigint)
  FROM timed t WHERE w.tenant = :tenant AND w.session = :session AND w.seq = t.seq
    AND :works.n::bigint = ALL (
      ARRAY[(SELECT count(*) FROM held), (SELECT count(*) FROM timed)]) -- guard: renewed
  RETURNING w.claimed_at_ms, w.claim_expires_at_ms
)
SELECT claimed_at_ms, claim_expires_at_ms FROM renewed LIMIT 1
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted
FROM (SELECT 1) one LEFT JOIN {schema}.session s ON s.tenant = :tenant AND s.session = :session

-- name: queue.abandon
-- Gives claimed work back, to be claimed again now or later; what was tried too often is dead.
-- mode: write
-- returns: returned
-- Differs by necessity: the session is locked first, because it says when somebody may claim.
WITH held AS MATERIALIZED (
  SELECT s.session, s.lane_token, s.lane_generation, s.lane_expires_at_ms
  FROM {schema}.session s WHERE s.tenant = :tenant AND s.session = :session FOR NO KEY UPDATE
), timed AS MATERIALIZED (
  SELECT c.*, c.now + :delay_ms::bigint AS at
  FROM (SELECT h.*, {schema}.now_ms() AS now FROM held h OFFSET 0) c
), back AS (
  UPDATE {schema}.work w SET
    state = CASE WHEN :dead::boolean OR w.attempts >= w.max_attempts THEN 'dead'
      WHEN t.at > t.now THEN 'delayed' ELSE 'ready' END,
    available_at_ms = t.at, last_error = coalesce(:error::text, w.last_error), claim = NULL,
    claim_token = NULL, claim_owner = NULL, claim_generation = NULL, claimed_at_ms = NULL,
    claim_expires_at_ms = NULL
  FROM timed t WHERE w.tenant = :tenant AND w.session = t.session AND w.claim = :claim
    AND w.state = 'claimed' AND w.claim_token = :claim_token
    AND CASE WHEN w.claim_generation IS NULL THEN w.claim_expires_at_ms > t.now
      ELSE w.claim_generation = t.lane_generation AND t.lane_token IS NOT NULL
        AND t.lane_expires_at_ms > t.now END -- guard: held
  RETURNING t.at
), due AS (
  UPDATE {schema}.session s SET due_at_ms = least(s.due_at_ms,
    CASE WHEN s.lane_token IS NOT NULL THEN greatest(b.at, s.lane_expires_at_ms) ELSE b.at END)
  FROM (SELECT max(at) AS at FROM back) b
  WHERE s.tenant = :tenant AND s.session = :session AND b.at IS NOT NULL
)
SELECT count(*) AS returned FROM back

-- name: queue.cancel
-- Removes work that is not done and that no live claim holds.
-- mode: write
-- returns: live, session, work, seq, key, kind, delivery, slot, merge_key, state, available_at_ms
-- returns: enqueued_at_ms, items, digest, attempts, max_attempts, last_error, claim_owner
-- returns: settled_turn, process, event
WITH held AS MATERIALIZED (
  SELECT s.session, s.lane_token, s.lane_generation, s.lane_expires_at_ms
  FROM {schema}.session s WHERE s.tenant = :tenant AND s.session = :session FOR NO KEY UPDATE
), timed AS MATERIALIZED (
  SELECT h.*, {schema}.now_ms() AS now FROM held h
)
DELETE FROM {schema}.work w USING timed s
WHERE w.tenant = :tenant AND w.session = s.session AND w.work = :work AND w.state <> 'done'
  AND (w.state <> 'claimed' OR NOT coalesce(CASE
    WHEN w.claim_generation IS NULL THEN w.claim_expires_at_ms > s.now
    ELSE w.claim_generation = s.lane_generation AND s.lane_token IS NOT NULL
      AND s.lane_expires_at_ms > s.now END, false)) -- guard: unheld
RETURNING w.state IN ('ready', 'dead') OR (w.state = 'delayed' AND w.available_at_ms > s.now)
    AS live,
  w.session, w.work, w.seq, w.key, w.kind, w.delivery, w.slot, w.merge_key, w.state,
  w.available_at_ms, w.enqueued_at_ms, w.items, w.digest, w.attempts, w.max_attempts, w.last_error,
  w.claim_owner, w.settled_turn, w.process, w.event

-- name: queue.requeue
-- Puts dead work back at its place, as if it had never been tried.
-- mode: write
-- returns: live, session, work, seq, key, kind, delivery, slot, merge_key, state, available_at_ms
-- returns: enqueued_at_ms, items, digest, attempts, max_attempts, last_error, claim_owner
-- returns: settled_turn, process, event
-- explains: known, deleted, state
-- step: guard
WITH held AS MATERIALIZED (
  SELECT s.session, s.lane_token, s.lane_generation, s.lane_expires_at_ms
  FROM {schema}.session s WHERE s.tenant = :tenant AND s.session = :session
    AND s.deleted_at_ms IS NULL FOR NO KEY UPDATE
), timed AS MATERIALIZED (
  SELECT c.*, c.now + :delay_ms::bigint AS at
  FROM (SELECT h.*, {schema}.now_ms() AS now FROM held h OFFSET 0) c
), back AS (
  UPDATE {schema}.work w SET state = CASE WHEN t.at > t.now THEN 'delayed' ELSE 'ready' END,
    available_at_ms = t.at, attempts = 0, claim = NULL, claim_token = NULL, claim_owner = NULL,
    claim_generation = NULL, claimed_at_ms = NULL, claim_expires_at_ms = NULL
  FROM timed t WHERE w.tenant = :tenant AND w.session = t.session AND w.work = :work
    AND (w.state = 'dead' OR (w.state = 'claimed' AND w.attempts >= w.max_attempts
      AND CASE WHEN w.claim_generation IS NULL THEN w.claim_expires_at_ms <= t.now
        ELSE w.claim_generation <> t.lane_generation OR t.lane_token IS NULL
          OR t.lane_expires_at_ms <= t.now END))
  RETURNING w.*, t.at
), due AS (
  UPDATE {schema}.session s SET due_at_ms = least(s.due_at_ms,
    CASE WHEN s.lane_token IS NOT NULL THEN greatest(b.at, s.lane_expires_at_ms) ELSE b.at END)
  FROM back b WHERE s.tenant = :tenant AND s.session = :session
)
SELECT true AS live, session, work, seq, key, kind, delivery, slot, merge_key, state,
  available_at_ms, enqueued_at_ms, items, digest, attempts, max_attempts, last_error, claim_owner,
  settled_turn, process, event
FROM back
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted,
  CASE WHEN w.until_ms > c.now THEN w.state ELSE w.then_state END AS state
FROM (SELECT {schema}.now_ms() AS now) c
LEFT JOIN {schema}.session s ON s.tenant = :tenant AND s.session = :session
LEFT JOIN {schema}.work_seen w ON w.tenant = :tenant AND w.session = :session AND w.work = :work

-- name: queue.why
-- What stands at the head of an inbox, and what else there is: why a claim finds nothing.
-- mode: read
-- returns: known, deleted, lane_live, lane_expires_at_ms, kind, delivery, any_claimed, next_at_ms
-- returns: lane_owner, lane_token, lane_generation, now_ms
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted,
  s.lane_token IS NOT NULL AND s.lane_expires_at_ms > c.now AS lane_live, s.lane_expires_at_ms,
  f.kind, f.delivery, f.any_claimed, f.next_at_ms,
  s.lane_owner, s.lane_token, s.lane_generation, c.now AS now_ms
FROM (SELECT {schema}.now_ms() AS now) c
LEFT JOIN {schema}.session s ON s.tenant = :tenant AND s.session = :session
CROSS JOIN LATERAL {schema}.inbox_v1(:tenant, :session,
  CASE WHEN s.lane_token IS NOT NULL AND s.lane_expires_at_ms > c.now THEN s.lane_generation END,
  c.now) f

-- name: queue.due
-- Whether work waits in a session that nobody holds, and when some may do so next.
-- mode: read
-- returns: ready, next_at_ms, now_ms
-- What a session says of when it is due is never too late, but may be too early: so its work is
-- looked at, in as many sessions as a look may cost. When none of these has any, somebody who
-- claims puts them right.
WITH c AS MATERIALIZED (SELECT {schema}.now_ms() AS now), due AS MATERIALIZED (
  SELECT x.session FROM c CROSS JOIN LATERAL (
    SELECT s.session FROM {schema}.session s
    WHERE s.tenant = :tenant AND s.due_at_ms <= c.now
      AND (s.lane_token IS NULL OR s.lane_expires_at_ms <= c.now)
    ORDER BY s.due_at_ms, s.session LIMIT 64) x
), verdict AS MATERIALIZED (
  SELECT c.now, (SELECT count(*) FROM due) = 64 OR EXISTS (
    SELECT FROM due d CROSS JOIN LATERAL (
      (SELECT FROM {schema}.work w WHERE w.tenant = :tenant AND w.session = d.session
        AND w.state = 'ready' ORDER BY w.seq LIMIT 1)
      UNION ALL
      (SELECT FROM {schema}.work w WHERE w.tenant = :tenant AND w.session = d.session
        AND w.state = 'delayed' AND w.available_at_ms <= c.now
        ORDER BY w.available_at_ms LIMIT 1)
      UNION ALL
      (SELECT FROM {schema}.work w WHERE w.tenant = :tenant AND w.session = d.session
        AND w.state = 'claimed' AND w.claim_generation IS NOT NULL
        AND coalesce(w.attempts < w.max_attempts, true)
        ORDER BY w.claim_generation, w.seq LIMIT 1)
      UNION ALL
      (SELECT FROM {schema}.work w WHERE w.tenant = :tenant AND w.session = d.session
        AND w.state = 'claimed' AND w.claim_generation IS NULL AND w.claim_expires_at_ms <= c.now
        AND coalesce(w.attempts < w.max_attempts, true)
        ORDER BY w.claim_expires_at_ms, w.seq LIMIT 1)) x LIMIT 1) AS ready
  FROM c
)
SELECT v.ready, CASE WHEN NOT v.ready THEN least(
    (SELECT s.due_at_ms FROM {schema}.session s WHERE s.tenant = :tenant
      AND s.due_at_ms > v.now ORDER BY s.due_at_ms LIMIT 1),
    (SELECT min(x.lane_expires_at_ms) FROM (
      SELECT s.lane_expires_at_ms FROM {schema}.session s
      WHERE s.tenant = :tenant AND s.due_at_ms <= v.now
      ORDER BY s.due_at_ms, s.session LIMIT 256) x WHERE x.lane_expires_at_ms > v.now)) END
    AS next_at_ms, v.now AS now_ms
FROM verdict v

-- name: queue.prune
-- Forgets keys of settled work whose time is over.
-- mode: write
-- returns: pruned
-- Materialized: a limited list that is joined to would be made anew for each row, and grow.
WITH lapsed AS MATERIALIZED (
  SELECT x.session, x.seq FROM (SELECT {schema}.now_ms() AS now OFFSET 0) c
  CROSS JOIN LATERAL (
    SELECT o.session, o.seq FROM {schema}.work o
    WHERE o.tenant = :tenant AND o.state = 'done' AND o.keep_until_ms <= c.now
    ORDER BY o.keep_until_ms LIMIT :limit FOR UPDATE SKIP LOCKED) x
), gone AS (
  DELETE FROM {schema}.work w USING lapsed x
  WHERE w.tenant = :tenant AND w.session = x.session AND w.seq = x.seq AND w.state = 'done'
  RETURNING 1
)
SELECT count(*) AS pruned FROM gone

-- name: queue.get
-- One work of a session.
-- mode: read
-- returns: live, session, work, seq, key, kind, delivery, slot, merge_key, state, available_at_ms
-- returns: enqueued_at_ms, items, digest, attempts, max_attempts, last_error, claim_owner
-- returns: settled_turn, process, event
SELECT w.until_ms > c.now AS live,
  w.session, w.work, w.seq, w.key, w.kind, w.delivery, w.slot, w.merge_key, w.state,
  w.available_at_ms, w.enqueued_at_ms, w.items, w.digest, w.attempts, w.max_attempts,
  w.last_error, w.claim_owner, w.settled_turn, w.process, w.event
FROM {schema}.work_seen w
CROSS JOIN (SELECT {schema}.now_ms() AS now) c
WHERE w.tenant = :tenant AND w.session = :session AND w.work = :work

-- name: queue.by_key
-- The work of a session that has a key.
-- mode: read
-- returns: live, session, work, seq, key, kind, delivery, slot, merge_key, state, available_at_ms
-- returns: enqueued_at_ms, items, digest, attempts, max_attempts, last_error, claim_owner
-- returns: settled_turn, process, event
SELECT w.until_ms > c.now AS live,
  w.session, w.work, w.seq, w.key, w.kind, w.delivery, w.slot, w.merge_key, w.state,
  w.available_at_ms, w.enqueued_at_ms, w.items, w.digest, w.attempts, w.max_attempts,
  w.last_error, w.claim_owner, w.settled_turn, w.process, w.event
FROM {schema}.work_seen w
CROSS JOIN (SELECT {schema}.now_ms() AS now) c
WHERE w.tenant = :tenant AND w.session = :session AND w.key = :key

-- name: queue.list
-- A page of the work of a session, in order, in the states that are asked for. A state that there
-- is not is shown to whoever reads, and is damage.
-- mode: read
-- children: states(state)
-- returns: live, session, work, seq, key, kind, delivery, slot, merge_key, state, available_at_ms
-- returns: enqueued_at_ms, items, digest, attempts, max_attempts, last_error, claim_owner
-- returns: settled_turn, process, event
SELECT w.until_ms > c.now AS live,
  w.session, w.work, w.seq, w.key, w.kind, w.delivery, w.slot, w.merge_key, w.state,
  w.available_at_ms, w.enqueued_at_ms, w.items, w.digest, w.attempts, w.max_attempts,
  w.last_error, w.claim_owner, w.settled_turn, w.process, w.event
FROM {schema}.work_seen w
CROSS JOIN (SELECT {schema}.now_ms() AS now) c
WHERE w.tenant = :tenant AND w.session = :session AND w.seq > :after::bigint
  AND (CASE WHEN w.until_ms > c.now THEN w.state ELSE w.then_state END
      = ANY (:states.state::text[])
    OR w.state NOT IN ('ready', 'delayed', 'claimed', 'dead', 'done'))
ORDER BY w.seq LIMIT :limit

-- name: queue.dead
-- A page of the dead work of all sessions.
-- mode: read
-- returns: live, session, work, seq, key, kind, delivery, slot, merge_key, state, available_at_ms
-- returns: enqueued_at_ms, items, digest, attempts, max_attempts, last_error, claim_owner
-- returns: settled_turn, process, event
SELECT live, session, work, seq, key, kind, delivery, slot, merge_key, state, available_at_ms,
  enqueued_at_ms, items, digest, attempts, max_attempts, last_error, claim_owner, settled_turn,
  process, event
FROM (
  SELECT true AS live, w.session, w.work, w.seq, w.key, w.kind, w.delivery, w.slot, w.merge_key,
    w.state, w.available_at_ms, w.enqueued_at_ms, w.items, w.digest, w.attempts, w.max_attempts,
    w.last_error, w.claim_owner, w.settled_turn, w.process, w.event
  FROM {schema}.work w
  WHERE w.tenant = :tenant AND w.state = 'dead'
    AND (w.session, w.seq) > (:after_session::text, :after::bigint)
  UNION ALL
  SELECT false AS live, w.session, w.work, w.seq, w.key, w.kind, w.delivery, w.slot, w.merge_key,
    w.state, w.available_at_ms, w.enqueued_at_ms, w.items, w.digest, w.attempts, w.max_attempts,
    w.last_error, w.claim_owner, w.settled_turn, w.process, w.event
  FROM {schema}.work_seen w CROSS JOIN (SELECT {schema}.now_ms() AS now) c
  WHERE w.tenant = :tenant AND w.state = 'claimed' AND w.attempts >= w.max_attempts
    AND w.until_ms <= c.now AND (w.session, w.seq) > (:after_session::text, :after::bigint)
) w
ORDER BY session, seq LIMIT :limit

-- name: queue.counts
-- How much work there is in each state, of a session.
-- mode: read
-- returns: state, number
SELECT CASE WHEN w.until_ms > c.now THEN w.state ELSE w.then_state END
  AS state, count(*) AS number
FROM {schema}.work_seen w
CROSS JOIN (SELECT {schema}.now_ms() AS now) c
WHERE w.tenant = :tenant AND w.session = :session
GROUP BY 1

-- name: queue.counts_of_all
-- How much work there is in each state, of all sessions.
-- mode: read
-- returns: state, number
SELECT CASE WHEN w.until_ms > c.now THEN w.state ELSE w.then_state END
  AS state, count(*) AS number
FROM {schema}.work_seen w
CROSS JOIN (SELECT {schema}.now_ms() AS now) c
WHERE w.tenant = :tenant
GROUP BY 1
