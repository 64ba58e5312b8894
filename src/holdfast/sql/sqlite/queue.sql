-- name: queue.enqueue
-- Puts work into the inbox of a session, unless its id or its key is there already.
-- mode: write
-- returns: enqueued, seq, enqueued_at_ms, available_at_ms
-- explains: known, deleted, work_seq
-- step: guard
SELECT d.seq IS NULL AS enqueued, coalesce(d.seq, s.work_seq + 1) AS seq,
  :now AS enqueued_at_ms, max(:available_at_ms, :now + :delay_ms) AS available_at_ms,
  max(:available_at_ms, :now + :delay_ms) AS available,
  (SELECT w.seq FROM work w INDEXED BY work_key WHERE w.tenant = :tenant
    AND w.session = :session AND w.key = :key AND w.state = 'done') AS forgotten
FROM session s
LEFT JOIN (
  SELECT w.seq FROM work w INDEXED BY work_id
  WHERE w.tenant = :tenant AND w.session = :session AND w.work = :work
  UNION ALL
  SELECT w.seq FROM work w INDEXED BY work_key
  WHERE w.tenant = :tenant AND w.session = :session AND w.key = :key
    AND (w.state <> 'done' OR w.keep_until_ms > :now) -- guard: dedupe
  LIMIT 1) d
WHERE s.tenant = :tenant AND s.session = :session AND s.deleted_at_ms IS NULL
  AND s.work_seq BETWEEN 0 AND 9223372036854775806
-- step: when enqueued
DELETE FROM work WHERE tenant = :tenant AND session = :session AND seq = :forgotten
-- step: when enqueued
UPDATE session SET work_seq = :seq, due_at_ms = min(coalesce(due_at_ms, 9223372036854775807),
  max(:available, CASE WHEN lane_token IS NULL THEN 0 ELSE lane_expires_at_ms END))
WHERE tenant = :tenant AND session = :session
-- step: when enqueued
INSERT INTO work (tenant, session, seq, work, key, kind, delivery, slot, merge_key, state,
  available_at_ms, enqueued_at_ms, items, digest, attempts, max_attempts, keep_ms)
VALUES (:tenant, :session, :seq, :work, :key, :kind, :delivery, :slot, :merge,
  CASE WHEN :available > :now THEN 'delayed' ELSE 'ready' END, :available, :now, :items, :digest, 0,
  :max_attempts, :keep_ms)
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted, s.work_seq
FROM (SELECT 1) LEFT JOIN session s ON s.tenant = :tenant AND s.session = :session

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
-- Differs by necessity: a script instead of a function, with the same parts in the same order.
-- step: guard
SELECT s.session AS at_session, coalesce(s.due_at_ms IS NOT NULL, 0) AS waits,
  coalesce(s.due_at_ms, :now + 1) AS before_ms, coalesce(s.session, '') AS before_session,
  CASE WHEN :next THEN s.lane_generation + 1
       WHEN :fence_token IS NOT NULL THEN s.lane_generation END AS generation,
  CASE WHEN :next THEN :now + :lane_ttl_ms
       WHEN :fence_token IS NOT NULL THEN s.lane_expires_at_ms END AS until_ms,
  s.lane_owner AS old_owner, s.lane_generation AS old_generation,
  s.lane_expires_at_ms AS old_expires_at_ms
FROM (SELECT CASE WHEN NOT :next THEN :session ELSE (
    SELECT d.session FROM session d INDEXED BY session_due
    WHERE d.tenant = :tenant AND d.due_at_ms <= :now
      AND (d.lane_token IS NULL OR d.lane_expires_at_ms <= :now)
      AND d.lane_generation BETWEEN 0 AND 9223372036854775806
    ORDER BY d.due_at_ms, d.session LIMIT 1) END AS session) t
LEFT JOIN session s ON s.tenant = :tenant AND s.session = t.session
WHERE :next OR s.session IS NOT NULL AND s.deleted_at_ms IS NULL
  AND CASE WHEN :fence_token IS NULL
    THEN s.lane_token IS NULL OR s.lane_expires_at_ms <= :now -- guard: lane-free
    ELSE s.lane_owner = :fence_owner AND s.lane_token = :fence_token
      AND s.lane_generation = :fence_generation AND s.lane_expires_at_ms > :now END -- guard: fence
-- step: when next
UPDATE session INDEXED BY session_due SET due_at_ms = lane_expires_at_ms
WHERE tenant = :tenant AND due_at_ms IS NOT NULL
  AND (due_at_ms, session) < (:before_ms, :before_session)
  AND lane_token IS NOT NULL AND lane_expires_at_ms > :now
-- step: when waits
UPDATE work INDEXED BY work_last_try SET state = 'dead', claim = NULL, claim_token = NULL,
  claim_owner = NULL, claim_generation = NULL, claimed_at_ms = NULL, claim_expires_at_ms = NULL,
  last_error = coalesce(last_error, 'whoever had claimed it went away')
WHERE tenant = :tenant AND session = :at_session AND state = 'claimed'
  AND attempts >= max_attempts
  AND CASE WHEN claim_generation IS NULL THEN claim_expires_at_ms <= :now
           ELSE claim_generation < coalesce(:generation, 9223372036854775807) END
-- step: when waits
UPDATE work INDEXED BY work_delayed SET state = 'ready'
WHERE tenant = :tenant AND session = :at_session AND state = 'delayed' AND available_at_ms <= :now
-- step: guard
WITH first(ready, stale) AS (
  SELECT (SELECT w.seq FROM work w INDEXED BY work_ready
      WHERE w.tenant = :tenant AND w.session = :at_session AND w.state = 'ready'
      ORDER BY w.seq LIMIT 1),
    (SELECT min(x.seq) FROM (
      SELECT w.seq FROM work w INDEXED BY work_generation WHERE w.tenant = :tenant
        AND w.session = :at_session AND w.state = 'claimed' AND w.claim_generation IS NOT NULL
        AND w.claim_generation < coalesce(:generation, 9223372036854775807) -- guard: generation
      UNION ALL
      SELECT w.seq FROM work w INDEXED BY work_lapse WHERE w.tenant = :tenant
        AND w.session = :at_session AND w.state = 'claimed' AND w.claim_generation IS NULL
        AND w.claim_expires_at_ms <= :now) x)
), later(at) AS (
  SELECT min(x.at) FROM (
    SELECT min(w.available_at_ms) AS at FROM work w INDEXED BY work_delayed
    WHERE w.tenant = :tenant AND w.session = :at_session AND w.state = 'delayed'
    UNION ALL
    SELECT min(w.claim_expires_at_ms) FROM work w INDEXED BY work_lapse
    WHERE w.tenant = :tenant AND w.session = :at_session AND w.state = 'claimed'
      AND w.claim_generation IS NULL) x
), held(any) AS (
  SELECT EXISTS (SELECT 1 FROM work w INDEXED BY work_generation WHERE w.tenant = :tenant
    AND w.session = :at_session AND w.state = 'claimed' AND w.claim_generation IS NOT NULL)
), chosen(why, again, seqs) AS (
  SELECT
    CASE WHEN h.seq IS NULL THEN CASE
        WHEN EXISTS (SELECT 1 FROM work w INDEXED BY work_claim WHERE w.tenant = :tenant
          AND w.session = :at_session AND w.state = 'claimed') THEN 'claimed'
        WHEN (SELECT at FROM later) IS NULL THEN 'empty' ELSE 'not-yet-available' END
      WHEN :boundary = 'checkpoint' AND h.delivery <> 'earliest' THEN 'boundary'
      WHEN :kind = 'turn' AND h.kind <> 'turn' THEN 'command-at-head'
      WHEN :kind = 'command' AND h.kind <> 'command' THEN 'turn-at-head' END,
    coalesce(h.seq = f.stale, 0),
    CASE WHEN h.seq = f.stale THEN (SELECT json_group_array(x.seq) FROM (
        SELECT w.seq FROM work w INDEXED BY work_claim WHERE w.tenant = :tenant
          AND w.session = :at_session AND w.claim = h.claim AND w.state = 'claimed'
        ORDER BY w.seq) x)
      WHEN h.slot = 'exclusive' OR h.merge_key IS NULL OR h.kind = 'command' -- guard: merge
      THEN json_array(h.seq)
      ELSE (SELECT json_group_array(y.seq) FROM (
        SELECT x.seq, min(x.kind = h.kind AND x.slot = 'join' AND x.delivery = h.delivery
            AND coalesce(x.merge_key = h.merge_key, 0))
          OVER (ORDER BY x.seq) AS joins -- guard: prefix
        FROM (SELECT * FROM work w INDEXED BY work_ready WHERE w.tenant = :tenant
          AND w.session = :at_session AND w.state = 'ready' ORDER BY w.seq LIMIT :limit) x
        WHERE x.seq < coalesce(f.stale, 9223372036854775807)) y WHERE y.joins) END
  FROM first f LEFT JOIN work h ON h.tenant = :tenant AND h.session = :at_session
    AND h.seq = min(coalesce(f.ready, f.stale), coalesce(f.stale, f.ready))
), verdict(why, again, seqs) AS (
  SELECT coalesce(c.why, CASE WHEN :exact.n > 0 AND :exact.work <> (
      SELECT json_group_array(x.work) FROM (SELECT w.work FROM json_each(c.seqs) j
        CROSS JOIN work w ON w.tenant = :tenant AND w.session = :at_session AND w.seq = j.value
        ORDER BY w.seq) x) THEN 'not-at-head' END), c.again, c.seqs
  FROM chosen c
)
SELECT v.why IS NULL AS taken, v.seqs, v.why IS NULL AND v.again AS redelivered,
  v.why IS NULL AND :next AS granted,
  :next AND v.why IN ('empty', 'claimed', 'not-yet-available') AS idle,
  CASE WHEN v.why IS NULL THEN NULL WHEN NOT :next THEN v.why
    WHEN :at_session IS NOT NULL THEN 'again'
    WHEN n.at IS NULL THEN 'empty' ELSE 'not-yet-available' END AS why_not,
  CASE WHEN :next THEN n.at
    WHEN v.why IN ('claimed', 'not-yet-available') THEN (SELECT at FROM later) END AS next_at_ms,
  (SELECT CASE WHEN any THEN :now ELSE (SELECT at FROM later) END FROM held) AS later_ms
FROM verdict v LEFT JOIN (SELECT d.due_at_ms AS at FROM session d INDEXED BY session_due
  WHERE d.tenant = :tenant AND d.due_at_ms IS NOT NULL
  ORDER BY d.due_at_ms, d.session LIMIT 1) n ON :next
-- step: when taken
UPDATE work SET state = 'claimed', claim = :claim, claim_token = :claim_token,
  claim_owner = :owner, claim_generation = :generation, claimed_at_ms = :now,
  claim_expires_at_ms = CASE WHEN :generation IS NULL THEN :now + :ttl_ms END,
  attempts = attempts + 1
WHERE tenant = :tenant AND session = :at_session AND seq IN (SELECT value FROM json_each(:seqs))
-- step: when granted
UPDATE session SET lane_owner = :owner, lane_token = :lane_token, lane_generation = :generation,
  lane_claimed_at_ms = :now, lane_expires_at_ms = :until_ms
WHERE tenant = :tenant AND session = :at_session
-- step: when taken
UPDATE session SET due_at_ms = coalesce(:until_ms,
  CASE WHEN EXISTS (SELECT 1 FROM work w INDEXED BY work_ready
    WHERE w.tenant = :tenant AND w.session = :at_session AND w.state = 'ready') THEN :now
  ELSE min(:now + :ttl_ms, coalesce(:later_ms, 9223372036854775807)) END)
WHERE tenant = :tenant AND session = :at_session
-- step: when idle
UPDATE session SET due_at_ms = max(:later_ms, CASE WHEN lane_token IS NULL THEN 0
  ELSE lane_expires_at_ms END)
WHERE tenant = :tenant AND session = :at_session AND due_at_ms IS NOT NULL
-- step: rows
SELECT :why_not AS why_not, :next_at_ms AS next_at_ms, :generation AS generation,
  :until_ms AS until_ms, :old_owner AS old_owner, :old_generation AS old_generation,
  :old_expires_at_ms AS old_expires_at_ms, :redelivered AS redelivered, w.claimed_at_ms,
  w.claim_expires_at_ms,
  w.session, w.work, w.seq, w.key, w.kind, w.delivery, w.slot, w.merge_key, w.state,
  w.available_at_ms, w.enqueued_at_ms, w.items, w.digest, w.attempts, w.max_attempts,
  w.last_error, w.claim_owner, w.settled_turn, w.process, w.event
FROM (SELECT 1) LEFT JOIN work w ON :taken AND w.tenant = :tenant AND w.session = :at_session
  AND w.seq IN (SELECT value FROM json_each(:seqs))
ORDER BY w.seq
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted,
  coalesce(CASE WHEN :fence_token IS NULL THEN s.lane_token IS NULL OR s.lane_expires_at_ms <= :now
    ELSE s.lane_owner = :fence_owner AND s.lane_token = :fence_token
      AND s.lane_generation = :fence_generation AND s.lane_expires_at_ms > :now END, 0) AS lane_ok,
  s.lane_owner, s.lane_generation, s.lane_expires_at_ms
FROM (SELECT 1) LEFT JOIN session s ON s.tenant = :tenant AND s.session = :session

-- name: queue.renew
-- Moves the expiry of a claim that has no lane, when what it names is all it owns.
-- mode: write
-- children: works(work)
-- returns: claimed_at_ms, claim_expires_at_ms
-- explains: known, deleted
-- step: guard
SELECT w.claimed_at_ms, max(max(w.claim_expires_at_ms), :now + :ttl_ms) AS claim_expires_at_ms
FROM work w INDEXED BY work_claim
WHERE w.tenant = :tenant AND w.session = :session AND w.claim = :claim AND w.state = 'claimed'
HAVING count(*) = :works.n AND :works.n = count(*) FILTER (
  WHERE w.claim_token = :claim_token AND w.claim_expires_at_ms > :now
    AND w.work IN (SELECT value FROM json_each(:works.work))) -- guard: renewed
-- step: each works
UPDATE work INDEXED BY work_id SET claim_expires_at_ms = :claim_expires_at_ms
WHERE tenant = :tenant AND session = :session AND work = :works.work
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted
FROM (SELECT 1) LEFT JOIN session s ON s.tenant = :tenant AND s.session = :session

-- name: queue.abandon
-- Gives claimed work back, to be claimed again now or later; what was tried too often is dead.
-- mode: write
-- returns: returned
-- step: rows
SELECT count(*) AS returned FROM session s CROSS JOIN work w INDEXED BY work_claim
  ON w.tenant = s.tenant AND w.session = s.session
WHERE s.tenant = :tenant AND s.session = :session AND w.claim = :claim AND w.state = 'claimed'
  AND w.claim_token = :claim_token
  AND CASE WHEN w.claim_generation IS NULL THEN w.claim_expires_at_ms > :now
    ELSE w.claim_generation = s.lane_generation AND s.lane_token IS NOT NULL
      AND s.lane_expires_at_ms > :now END
-- step: plain
UPDATE session SET due_at_ms = min(due_at_ms, max(:now + :delay_ms,
  CASE WHEN lane_token IS NULL THEN 0 ELSE lane_expires_at_ms END))
WHERE tenant = :tenant AND session = :session AND EXISTS (
  SELECT 1 FROM work w INDEXED BY work_claim WHERE w.tenant = :tenant AND w.session = :session
  AND w.claim = :claim AND w.state = 'claimed' AND w.claim_token = :claim_token
  AND CASE WHEN w.claim_generation IS NULL THEN w.claim_expires_at_ms > :now
    ELSE w.claim_generation = session.lane_generation AND session.lane_token IS NOT NULL
      AND session.lane_expires_at_ms > :now END)
-- step: plain
UPDATE work SET
  state = CASE WHEN :dead OR coalesce(attempts >= max_attempts, 0) THEN 'dead'
    WHEN :delay_ms > 0 THEN 'delayed' ELSE 'ready' END,
  available_at_ms = :now + :delay_ms, last_error = coalesce(:error, last_error), claim = NULL,
  claim_token = NULL, claim_owner = NULL, claim_generation = NULL, claimed_at_ms = NULL,
  claim_expires_at_ms = NULL
WHERE tenant = :tenant AND session = :session AND seq IN (
  SELECT w.seq FROM session s CROSS JOIN work w INDEXED BY work_claim
    ON w.tenant = s.tenant AND w.session = s.session
  WHERE s.tenant = :tenant AND s.session = :session AND w.claim = :claim AND w.state = 'claimed'
    AND w.claim_token = :claim_token
    AND CASE WHEN w.claim_generation IS NULL THEN w.claim_expires_at_ms > :now
      ELSE w.claim_generation = s.lane_generation AND s.lane_token IS NOT NULL
        AND s.lane_expires_at_ms > :now END) -- guard: held

-- name: queue.cancel
-- Removes work that is not done and that no live claim holds.
-- mode: write
-- returns: live, session, work, seq, key, kind, delivery, slot, merge_key, state, available_at_ms
-- returns: enqueued_at_ms, items, digest, attempts, max_attempts, last_error, claim_owner
-- returns: settled_turn, process, event
-- step: rows
SELECT w.until_ms > :now AS live,
  w.session, w.work, w.seq, w.key, w.kind, w.delivery, w.slot, w.merge_key, w.state,
  w.available_at_ms, w.enqueued_at_ms, w.items, w.digest, w.attempts, w.max_attempts,
  w.last_error, w.claim_owner, w.settled_turn, w.process, w.event
FROM work_seen w WHERE w.tenant = :tenant AND w.session = :session AND w.work = :work
  AND w.state <> 'done' AND (w.state <> 'claimed' OR w.until_ms <= :now)
-- step: plain
DELETE FROM work WHERE tenant = :tenant AND session = :session AND seq = (
  SELECT w.seq FROM work_seen w WHERE w.tenant = :tenant AND w.session = :session
  AND w.work = :work AND w.state <> 'done'
  AND (w.state <> 'claimed' OR w.until_ms <= :now)) -- guard: unheld

-- name: queue.requeue
-- Puts dead work back at its place, as if it had never been tried.
-- mode: write
-- returns: live, session, work, seq, key, kind, delivery, slot, merge_key, state, available_at_ms
-- returns: enqueued_at_ms, items, digest, attempts, max_attempts, last_error, claim_owner
-- returns: settled_turn, process, event
-- explains: known, deleted, state
-- step: guard
SELECT w.seq FROM work_seen w
WHERE w.tenant = :tenant AND w.session = :session AND w.work = :work
  AND CASE WHEN w.until_ms > :now THEN w.state ELSE w.then_state END = 'dead'
-- step: plain
UPDATE work SET state = CASE WHEN :delay_ms > 0 THEN 'delayed' ELSE 'ready' END,
  available_at_ms = :now + :delay_ms, attempts = 0, claim = NULL, claim_token = NULL,
  claim_owner = NULL, claim_generation = NULL, claimed_at_ms = NULL, claim_expires_at_ms = NULL
WHERE tenant = :tenant AND session = :session AND seq = :seq
-- step: plain
UPDATE session SET due_at_ms = min(coalesce(due_at_ms, 9223372036854775807), max(:now + :delay_ms,
  CASE WHEN lane_token IS NULL THEN 0 ELSE lane_expires_at_ms END))
WHERE tenant = :tenant AND session = :session
-- step: rows
SELECT 1 AS live,
  w.session, w.work, w.seq, w.key, w.kind, w.delivery, w.slot, w.merge_key, w.state,
  w.available_at_ms, w.enqueued_at_ms, w.items, w.digest, w.attempts, w.max_attempts,
  w.last_error, w.claim_owner, w.settled_turn, w.process, w.event
FROM work w WHERE w.tenant = :tenant AND w.session = :session AND w.seq = :seq
-- step: refused
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted,
  CASE WHEN w.until_ms > :now THEN w.state ELSE w.then_state END AS state
FROM (SELECT 1)
LEFT JOIN session s ON s.tenant = :tenant AND s.session = :session
LEFT JOIN work_seen w ON w.tenant = :tenant AND w.session = :session AND w.work = :work

-- name: queue.why
-- What stands at the head of an inbox, and what else there is: why a claim finds nothing.
-- mode: read
-- returns: known, deleted, lane_live, lane_expires_at_ms, kind, delivery, any_claimed, next_at_ms
-- returns: lane_owner, lane_token, lane_generation, now_ms
SELECT s.session IS NOT NULL AS known, s.deleted_at_ms IS NOT NULL AS deleted,
  coalesce(s.lane_token IS NOT NULL AND s.lane_expires_at_ms > :now, 0) AS lane_live,
  s.lane_expires_at_ms, f.kind, f.delivery,
  EXISTS (SELECT 1 FROM work w INDEXED BY work_generation WHERE w.tenant = :tenant
    AND w.session = :session AND w.state = 'claimed' AND w.claim_generation = s.lane_generation
    AND s.lane_token IS NOT NULL AND s.lane_expires_at_ms > :now)
  OR EXISTS (SELECT 1 FROM work w INDEXED BY work_lapse WHERE w.tenant = :tenant
    AND w.session = :session AND w.state = 'claimed' AND w.claim_generation IS NULL
    AND w.claim_expires_at_ms > :now) AS any_claimed,
  (SELECT min(x.at) FROM (
    SELECT min(w.available_at_ms) AS at FROM work w INDEXED BY work_delayed
    WHERE w.tenant = :tenant AND w.session = :session AND w.state = 'delayed'
    UNION ALL
    SELECT min(w.claim_expires_at_ms) FROM work w INDEXED BY work_lapse
    WHERE w.tenant = :tenant AND w.session = :session AND w.state = 'claimed'
      AND w.claim_generation IS NULL AND w.claim_expires_at_ms > :now) x) AS next_at_ms,
  s.lane_owner, s.lane_token, s.lane_generation, :now AS now_ms
FROM (SELECT 1)
LEFT JOIN session s ON s.tenant = :tenant AND s.session = :session
LEFT JOIN work f ON f.tenant = :tenant AND f.session = :session AND f.seq = (
  SELECT min(x.seq) FROM (
    SELECT min(w.seq) AS seq FROM work w INDEXED BY work_ready
    WHERE w.tenant = :tenant AND w.session = :session AND w.state = 'ready'
    UNION ALL
    SELECT min(w.seq) FROM work w INDEXED BY work_delayed WHERE w.tenant = :tenant
      AND w.session = :session AND w.state = 'delayed' AND w.available_at_ms <= :now
    UNION ALL
    SELECT min(w.seq) FROM work w INDEXED BY work_generation WHERE w.tenant = :tenant
      AND w.session = :session AND w.state = 'claimed' AND w.claim_generation IS NOT NULL
      AND w.claim_generation < CASE WHEN s.lane_token IS NOT NULL AND s.lane_expires_at_ms > :now
        THEN s.lane_generation ELSE 9223372036854775807 END
      AND coalesce(w.attempts < w.max_attempts, 1)
    UNION ALL
    SELECT min(w.seq) FROM work w INDEXED BY work_lapse WHERE w.tenant = :tenant
      AND w.session = :session AND w.state = 'claimed' AND w.claim_generation IS NULL
      AND w.claim_expires_at_ms <= :now AND coalesce(w.attempts < w.max_attempts, 1)) x)

-- name: queue.due
-- Whether work waits in a session that nobody holds, and when some may do so next.
-- mode: read
-- returns: ready, next_at_ms, now_ms
-- What a session says of when it is due is never too late, but may be too early: so its work is
-- looked at, in as many sessions as a look may cost. When none of these has any, somebody who
-- claims puts them right.
WITH due(session) AS MATERIALIZED (
  SELECT s.session FROM session s INDEXED BY session_due
  WHERE s.tenant = :tenant AND s.due_at_ms <= :now
    AND (s.lane_token IS NULL OR s.lane_expires_at_ms <= :now)
  ORDER BY s.due_at_ms, s.session LIMIT 64
), verdict(ready) AS MATERIALIZED (
  SELECT (SELECT count(*) FROM due) = 64 OR EXISTS (SELECT 1 FROM due d WHERE
    EXISTS (SELECT 1 FROM work w INDEXED BY work_ready
      WHERE w.tenant = :tenant AND w.session = d.session AND w.state = 'ready')
    OR EXISTS (SELECT 1 FROM work w INDEXED BY work_delayed
      WHERE w.tenant = :tenant AND w.session = d.session AND w.state = 'delayed'
        AND w.available_at_ms <= :now)
    OR EXISTS (SELECT 1 FROM work w INDEXED BY work_generation
      WHERE w.tenant = :tenant AND w.session = d.session AND w.state = 'claimed'
        AND w.claim_generation IS NOT NULL AND coalesce(w.attempts < w.max_attempts, 1))
    OR EXISTS (SELECT 1 FROM work w INDEXED BY work_lapse
      WHERE w.tenant = :tenant AND w.session = d.session AND w.state = 'claimed'
        AND w.claim_generation IS NULL AND w.claim_expires_at_ms <= :now
        AND coalesce(w.attempts < w.max_attempts, 1)))
)
SELECT v.ready, CASE WHEN NOT v.ready THEN (SELECT min(x.at) FROM (
    SELECT min(s.due_at_ms) AS at FROM session s INDEXED BY session_due
    WHERE s.tenant = :tenant AND s.due_at_ms > :now
    UNION ALL
    SELECT min(y.lane_expires_at_ms) FROM (
      SELECT s.lane_expires_at_ms FROM session s INDEXED BY session_due
      WHERE s.tenant = :tenant AND s.due_at_ms <= :now
      ORDER BY s.due_at_ms, s.session LIMIT 256) y WHERE y.lane_expires_at_ms > :now) x) END
  AS next_at_ms, :now AS now_ms
FROM verdict v

-- name: queue.prune
-- Forgets keys of settled work whose time is over.
-- mode: write
-- returns: pruned
-- step: rows
SELECT count(*) AS pruned FROM (SELECT w.seq FROM work w INDEXED BY work_kept
  WHERE w.tenant = :tenant AND w.state = 'done' AND w.keep_until_ms <= :now LIMIT :limit)
-- step: plain
DELETE FROM work WHERE (tenant, session, seq) IN (
  SELECT w.tenant, w.session, w.seq FROM work w INDEXED BY work_kept
  WHERE w.tenant = :tenant AND w.state = 'done' AND w.keep_until_ms <= :now LIMIT :limit)

-- name: queue.get
-- One work of a session.
-- mode: read
-- returns: live, session, work, seq, key, kind, delivery, slot, merge_key, state, available_at_ms
-- returns: enqueued_at_ms, items, digest, attempts, max_attempts, last_error, claim_owner
-- returns: settled_turn, process, event
SELECT w.until_ms > :now AS live,
  w.session, w.work, w.seq, w.key, w.kind, w.delivery, w.slot, w.merge_key, w.state,
  w.available_at_ms, w.enqueued_at_ms, w.items, w.digest, w.attempts, w.max_attempts,
  w.last_error, w.claim_owner, w.settled_turn, w.process, w.event
FROM work_seen w
WHERE w.tenant = :tenant AND w.session = :session AND w.work = :work

-- name: queue.by_key
-- The work of a session that has a key.
-- mode: read
-- returns: live, session, work, seq, key, kind, delivery, slot, merge_key, state, available_at_ms
-- returns: enqueued_at_ms, items, digest, attempts, max_attempts, last_error, claim_owner
-- returns: settled_turn, process, event
SELECT w.until_ms > :now AS live,
  w.session, w.work, w.seq, w.key, w.kind, w.delivery, w.slot, w.merge_key, w.state,
  w.available_at_ms, w.enqueued_at_ms, w.items, w.digest, w.attempts, w.max_attempts,
  w.last_error, w.claim_owner, w.settled_turn, w.process, w.event
FROM work_seen w
WHERE w.tenant = :tenant AND w.session = :session AND w.key = :key

-- name: queue.list
-- A page of the work of a session, in order, in the states that are asked for. A state that there
-- is not is shown to whoever reads, and is damage.
-- mode: read
-- children: states(state)
-- returns: live, session, work, seq, key, kind, delivery, slot, merge_key, state, available_at_ms
-- returns: enqueued_at_ms, items, digest, attempts, max_attempts, last_error, claim_owner
-- returns: settled_turn, process, event
SELECT w.until_ms > :now AS live,
  w.session, w.work, w.seq, w.key, w.kind, w.delivery, w.slot, w.merge_key, w.state,
  w.available_at_ms, w.enqueued_at_ms, w.items, w.digest, w.attempts, w.max_attempts,
  w.last_error, w.claim_owner, w.settled_turn, w.process, w.event
FROM work_seen w
WHERE w.tenant = :tenant AND w.session = :session AND w.seq > :after
  AND (CASE WHEN w.until_ms > :now THEN w.state ELSE w.then_state END
      IN (SELECT value FROM json_each(:states.state))
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
  SELECT 1 AS live, w.session, w.work, w.seq, w.key, w.kind, w.delivery, w.slot, w.merge_key,
    w.state, w.available_at_ms, w.enqueued_at_ms, w.items, w.digest, w.attempts, w.max_attempts,
    w.last_error, w.claim_owner, w.settled_turn, w.process, w.event
  FROM work w INDEXED BY work_dead
  WHERE w.tenant = :tenant AND w.state = 'dead' AND (w.session, w.seq) > (:after_session, :after)
  UNION ALL
  SELECT 0 AS live, w.session, w.work, w.seq, w.key, w.kind, w.delivery, w.slot, w.merge_key,
    w.state, w.available_at_ms, w.enqueued_at_ms, w.items, w.digest, w.attempts, w.max_attempts,
    w.last_error, w.claim_owner, w.settled_turn, w.process, w.event
  FROM work w INDEXED BY work_last_try
  CROSS JOIN session s ON s.tenant = w.tenant AND s.session = w.session
  WHERE w.tenant = :tenant AND w.state = 'claimed' AND w.attempts >= w.max_attempts
    AND (w.session, w.seq) > (:after_session, :after)
    AND CASE WHEN w.claim_generation IS NULL THEN w.claim_expires_at_ms <= :now
      ELSE w.claim_generation <> s.lane_generation OR s.lane_token IS NULL
        OR s.lane_expires_at_ms <= :now END)
ORDER BY session, seq LIMIT :limit

-- name: queue.counts
-- How much work there is in each state, of a session.
-- mode: read
-- returns: state, number
SELECT CASE WHEN w.until_ms > :now THEN w.state ELSE w.then_state END
  AS state, count(*) AS number
FROM work_seen w
WHERE w.tenant = :tenant AND w.session = :session
GROUP BY 1

-- name: queue.counts_of_all
-- How much work there is in each state, of all sessions.
-- mode: read
-- returns: state, number
SELECT CASE WHEN w.until_ms > :now THEN w.state ELSE w.then_state END
  AS state, count(*) AS number
FROM work_seen w
WHERE w.tenant = :tenant
GROUP BY 1
