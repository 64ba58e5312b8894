-- name: processes.claim
-- Grants the lease of a process when it is free, lapsed, or held by the same owner; the first grant
-- of all is an event.
-- mode: write
-- returns: generation, claimed_at_ms, expires_at_ms, old_owner, old_generation, old_expires_at_ms
-- explains: known, pruned, state, recovery, started, owner, generation, expires_at_ms, last_event
-- explains: log_last
-- Differs by necessity: the process is locked before it is judged, and the clock is read after.
-- step: guard
WITH held AS MATERIALIZED (
  SELECT p.* FROM {schema}.process p WHERE p.tenant = :tenant AND p.process = :process
  FOR NO KEY UPDATE
), timed AS MATERIALIZED (
  SELECT h.*, {schema}.now_ms() AS now FROM held h
), verdict AS MATERIALIZED (
  SELECT t.* FROM timed t
  WHERE t.pruned_at_ms IS NULL AND t.state = 'running'
    AND t.recovery IN ('rerunnable', 'owner-bound')
    AND t.lease_generation BETWEEN 0 AND 9223372036854775806
    AND t.last_event BETWEEN 0 AND 9223372036854775806
    AND CASE WHEN t.lease_token IS NOT NULL AND t.lease_expires_at_ms > t.now
      THEN t.lease_owner = :owner -- guard: busy
      ELSE t.recovery <> 'owner-bound' OR t.started_at_ms IS NULL END -- guard: recovery
), taken AS (
  UPDATE {schema}.process p SET lease_owner = :owner, lease_token = :token,
    lease_generation = v.lease_generation + 1, lease_claimed_at_ms = v.now,
    lease_expires_at_ms = v.now + :ttl_ms::bigint,
    last_event = v.last_event + (v.started_at_ms IS NULL)::integer,
    updated_at_ms = CASE WHEN v.started_at_ms IS NULL THEN v.now ELSE v.updated_at_ms END,
    change = CASE WHEN v.started_at_ms IS NOT NULL THEN v.change END,
    started_at_ms = coalesce(v.started_at_ms, v.now),
    ready_at_ms = CASE WHEN v.started_at_ms IS NULL AND v.wait_type = 'process.started'
      AND v.wait_after <= v.last_event THEN least(v.ready_at_ms, v.now) ELSE v.ready_at_ms END
  FROM verdict v WHERE p.tenant = :tenant AND p.process = :process
  RETURNING p.lease_generation, v.now, p.lease_expires_at_ms
), started AS (
  INSERT INTO {schema}.process_event (tenant, process, seq, type, ordinal, payload, digest, at_ms)
  SELECT :tenant, v.process, v.last_event + 1, 'process.started', 1, :payload, :digest, v.now
  FROM verdict v WHERE v.started_at_ms IS NULL
)
SELECT t.lease_generation AS generation, t.now AS claimed_at_ms,
  t.lease_expires_at_ms AS expires_at_ms,
  CASE WHEN v.lease_expires_at_ms <= v.now THEN v.lease_owner END AS old_owner,
  v.lease_generation AS old_generation, v.lease_expires_at_ms AS old_expires_at_ms
FROM taken t CROSS JOIN verdict v
-- step: refused
SELECT p.process IS NOT NULL AS known, p.pruned_at_ms IS NOT NULL AS pruned, p.state, p.recovery,
  p.started_at_ms IS NOT NULL AS started,
  CASE WHEN p.lease_token IS NOT NULL AND p.lease_expires_at_ms > c.now THEN p.lease_owner END
    AS owner,
  p.lease_generation AS generation, p.lease_expires_at_ms AS expires_at_ms, p.last_event,
  (SELECT max(e.seq) FROM {schema}.process_event e
    WHERE e.tenant = :tenant AND e.process = :process) AS log_last
FROM (SELECT {schema}.now_ms() AS now) c
LEFT JOIN {schema}.process p ON p.tenant = :tenant AND p.process = :process

-- name: processes.renew
-- Moves the expiry of a lease that is still held.
-- mode: write
-- returns: claimed_at_ms, expires_at_ms
-- explains: known, pruned
-- Differs by necessity: the process is locked before the clock is read.
-- step: guard
WITH held AS MATERIALIZED (
  SELECT p.process, p.lease_expires_at_ms FROM {schema}.process p
  WHERE p.tenant = :tenant AND p.process = :process
    AND p.lease_owner = :lease_owner AND p.lease_token = :lease_token
    AND p.lease_generation = :lease_generation FOR NO KEY UPDATE -- guard: lease
), timed AS MATERIALIZED (
  SELECT h.*, {schema}.now_ms() AS now FROM held h
)
UPDATE {schema}.process p SET lease_expires_at_ms = t.now + :ttl_ms::bigint
FROM timed t
WHERE p.tenant = :tenant AND p.process = :process AND t.lease_expires_at_ms > t.now
RETURNING p.lease_claimed_at_ms AS claimed_at_ms, p.lease_expires_at_ms AS expires_at_ms
-- step: refused
SELECT p.process IS NOT NULL AS known, p.pruned_at_ms IS NOT NULL AS pruned
FROM (SELECT 1) one LEFT JOIN {schema}.process p ON p.tenant = :tenant AND p.process = :process

-- name: processes.release
-- Frees a lease that this proof holds, live or lapsed.
-- mode: write
-- returns: released
-- explains: known, pruned
-- step: guard
UPDATE {schema}.process p SET lease_owner = NULL, lease_token = NULL, lease_claimed_at_ms = NULL,
  lease_expires_at_ms = NULL,
  ready_at_ms = CASE WHEN p.wait_event IS NULL THEN {schema}.now_ms() ELSE p.ready_at_ms END
WHERE p.tenant = :tenant AND p.process = :process
  AND p.lease_owner = :lease_owner AND p.lease_token = :lease_token
  AND p.lease_generation = :lease_generation -- guard: lease
RETURNING 1 AS released
-- step: refused
SELECT p.process IS NOT NULL AS known, p.pruned_at_ms IS NOT NULL AS pruned
FROM (SELECT 1) one LEFT JOIN {schema}.process p ON p.tenant = :tenant AND p.process = :process

-- name: processes.lease
-- Who holds the lease of a process.
-- mode: read
-- returns: process, owner, generation, claimed_at_ms, expires_at_ms, live
SELECT process, lease_owner AS owner, lease_generation AS generation,
  lease_claimed_at_ms AS claimed_at_ms, lease_expires_at_ms AS expires_at_ms,
  lease_token IS NOT NULL AND lease_expires_at_ms > {schema}.now_ms() AS live
FROM {schema}.process WHERE tenant = :tenant AND process = :process AND pruned_at_ms IS NULL

-- name: processes.due
-- A page of the processes that somebody may take up, longest due first.
-- mode: read
-- returns: upper_ms, due_at_ms, lost
-- returns: process, registration, identity, created_at_ms, state, last_event, updated_at_ms
-- returns: end_type, end_key, end_payload, ends, output, end_wake, end_digest, authority, wait
-- returns: wait_digest, external, external_digest, started_at_ms, cancel_at_ms, wake_gone
-- returns: kind, definition, recovery, origin_session, parent, wake_session, wait_event
-- returns: external_event
SELECT c.upper_ms, p.due_at_ms,
  p.recovery = 'owner-bound' AND p.started_at_ms IS NOT NULL AS lost,
  p.process, p.registration, p.identity, p.created_at_ms, p.state, p.last_event, p.updated_at_ms,
  p.end_type, p.end_key, p.end_payload, p.ends, p.output, p.end_wake, p.end_digest, p.authority,
  p.wait, p.wait_digest, p.external, p.external_digest, p.started_at_ms, p.cancel_at_ms,
  p.wake_gone, p.kind, p.definition, p.recovery, p.origin_session, p.parent, p.wake_session,
  p.wait_event, p.external_event
FROM (SELECT coalesce(:upper_ms::bigint, {schema}.now_ms()) AS upper_ms OFFSET 0) c
CROSS JOIN LATERAL (SELECT q.* FROM {schema}.process_seen q
  WHERE q.tenant = :tenant AND q.due_at_ms <= c.upper_ms
    AND (q.due_at_ms, q.process) > (:after_ms::bigint, :after::text)
  ORDER BY q.due_at_ms, q.process LIMIT :limit) p

-- name: processes.grant
-- Lets a scope see a process; what it was called there before is replaced.
-- mode: write
-- returns: granted_at_ms
-- explains: known, pruned, deleted
-- Differs by necessity: the session and the process are locked against deletion and pruning first.
-- step: guard
WITH at AS MATERIALIZED (
  SELECT s.deleted_at_ms FROM {schema}.session s
  WHERE s.tenant = :tenant AND s.session = :session FOR KEY SHARE
), of AS MATERIALIZED (
  SELECT p.process, p.pruned_at_ms FROM {schema}.process p
  WHERE p.tenant = :tenant AND p.process = :process AND (SELECT count(*) FROM at) >= 0
  FOR NO KEY UPDATE
)
INSERT INTO {schema}.process_grant AS g (tenant, session, frame, process, kind, label,
  granted_at_ms)
SELECT :tenant, :session, :frame, o.process, :kind, :label, {schema}.now_ms() FROM of o
WHERE o.pruned_at_ms IS NULL AND (SELECT count(a.deleted_at_ms) FROM at a) = 0
ON CONFLICT (tenant, session, frame, process) DO UPDATE SET kind = excluded.kind,
  label = excluded.label, granted_at_ms = excluded.granted_at_ms
RETURNING g.granted_at_ms
-- step: refused
SELECT p.process IS NOT NULL AS known, p.pruned_at_ms IS NOT NULL AS pruned,
  s.deleted_at_ms IS NOT NULL AS deleted
FROM (SELECT 1) one LEFT JOIN {schema}.process p ON p.tenant = :tenant AND p.process = :process
LEFT JOIN {schema}.session s ON s.tenant = :tenant AND s.session = :session

-- name: processes.revoke
-- Takes a grant back.
-- mode: write
-- returns: revoked
WITH gone AS (
  DELETE FROM {schema}.process_grant WHERE tenant = :tenant AND session = :session
    AND frame = :frame AND process = :process RETURNING 1
)
SELECT count(*) AS revoked FROM gone

-- name: processes.transfer
-- Moves grants from one scope to another, all of them or none.
-- mode: write
-- children: processes(process)
-- returns: moved
-- explains: missing, deleted
-- Differs by necessity: the sessions, the processes and the grants are locked in their order first.
-- step: plain
SELECT FROM {schema}.session WHERE tenant = :tenant AND session IN (:session, :to_session)
ORDER BY session FOR KEY SHARE
-- step: plain
SELECT FROM {schema}.process
WHERE tenant = :tenant AND process = ANY (:processes.process::text[])
ORDER BY process FOR NO KEY UPDATE
-- step: plain
SELECT FROM {schema}.process_grant WHERE tenant = :tenant AND session = :session
  AND frame = :frame AND process = ANY (:processes.process::text[])
ORDER BY process FOR UPDATE -- guard: grant-lock
-- step: guard
SELECT count(*) AS moved FROM {schema}.process_grant g
WHERE g.tenant = :tenant AND g.session = :session AND g.frame = :frame
  AND g.process = ANY (:processes.process::text[])
  AND NOT EXISTS (SELECT FROM {schema}.session s WHERE s.tenant = :tenant
    AND s.session = :to_session AND s.deleted_at_ms IS NOT NULL)
HAVING count(*) = :processes.n::bigint -- guard: granted
-- step: plain
INSERT INTO {schema}.process_grant (tenant, session, frame, process, kind, label, granted_at_ms)
SELECT g.tenant, :to_session, :to_frame, g.process, g.kind, g.label, (SELECT {schema}.now_ms())
FROM {schema}.process_grant g
WHERE g.tenant = :tenant AND g.session = :session AND g.frame = :frame
  AND g.process = ANY (:processes.process::text[])
ORDER BY g.process
ON CONFLICT (tenant, session, frame, process) DO UPDATE SET kind = excluded.kind,
  label = excluded.label, granted_at_ms = excluded.granted_at_ms
-- step: plain
DELETE FROM {schema}.process_grant WHERE tenant = :tenant AND session = :session
  AND frame = :frame AND process = ANY (:processes.process::text[])
  AND (:session::text, :frame::text) <> (:to_session::text, :to_frame::text)
-- step: refused
SELECT (SELECT x.process FROM unnest(:processes.process::text[]) AS x(process) WHERE NOT EXISTS (
    SELECT FROM {schema}.process_grant g WHERE g.tenant = :tenant AND g.session = :session
    AND g.frame = :frame AND g.process = x.process) LIMIT 1) AS missing,
  EXISTS (SELECT FROM {schema}.session s WHERE s.tenant = :tenant AND s.session = :to_session
    AND s.deleted_at_ms IS NOT NULL) AS deleted

-- name: processes.granted
-- The grant of one scope for one process.
-- mode: read
-- returns: session, frame, process, kind, label, granted_at_ms
SELECT session, frame, process, kind, label, granted_at_ms FROM {schema}.process_grant
WHERE tenant = :tenant AND session = :session AND frame = :frame AND process = :process

-- name: processes.grants
-- A page of the grants of a scope with their processes, in the order of the ids.
-- mode: read
-- returns: session, frame, granted, grant_kind, label, granted_at_ms
-- returns: process, registration, identity, created_at_ms, state, last_event, updated_at_ms
-- returns: end_type, end_key, end_payload, ends, output, end_wake, end_digest, authority, wait
-- returns: wait_digest, external, external_digest, started_at_ms, cancel_at_ms, wake_gone
-- returns: kind, definition, recovery, origin_session, parent, wake_session, wait_event
-- returns: external_event
SELECT g.session, g.frame, g.process AS granted, g.kind AS grant_kind, g.label,
  g.granted_at_ms,
  p.process, p.registration, p.identity, p.created_at_ms, p.state, p.last_event, p.updated_at_ms,
  p.end_type, p.end_key, p.end_payload, p.ends, p.output, p.end_wake, p.end_digest, p.authority,
  p.wait, p.wait_digest, p.external, p.external_digest, p.started_at_ms, p.cancel_at_ms,
  p.wake_gone, p.kind, p.definition, p.recovery, p.origin_session, p.parent, p.wake_session,
  p.wait_event, p.external_event
FROM {schema}.process_grant g
JOIN {schema}.process_seen p ON p.tenant = :tenant AND p.process = g.process
WHERE g.tenant = :tenant AND g.session = :session AND g.frame = :frame AND g.process > :after
  AND (NOT :live::boolean OR p.state = 'running')
ORDER BY g.process LIMIT :limit

-- name: processes.grants_of
-- A page of the grants for a process, in the order of sessions and frames.
-- mode: read
-- returns: session, frame, process, kind, label, granted_at_ms
SELECT session, frame, process, kind, label, granted_at_ms FROM {schema}.process_grant
WHERE tenant = :tenant AND process = :process
  AND (session, frame) > (:after_session::text, :after_frame::text)
ORDER BY session, frame LIMIT :limit
