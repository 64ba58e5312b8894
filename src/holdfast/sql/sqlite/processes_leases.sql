-- name: processes.claim
-- Grants the lease of a process when it is free, lapsed, or held by the same owner; the first grant
-- of all is an event.
-- mode: write
-- returns: generation, claimed_at_ms, expires_at_ms, old_owner, old_generation, old_expires_at_ms
-- explains: known, pruned, state, recovery, started, owner, generation, expires_at_ms, last_event
-- explains: log_last
-- step: guard
SELECT p.lease_generation + 1 AS generation, :now AS claimed_at_ms, :now + :ttl_ms AS expires_at_ms,
  CASE WHEN p.lease_expires_at_ms <= :now THEN p.lease_owner END AS old_owner,
  p.lease_generation AS old_generation, p.lease_expires_at_ms AS old_expires_at_ms,
  p.started_at_ms IS NULL AS starts, p.last_event + 1 AS seq
FROM process p WHERE p.tenant = :tenant AND p.process = :process AND p.pruned_at_ms IS NULL
  AND p.state = 'running' AND p.recovery IN ('rerunnable', 'owner-bound')
  AND p.lease_generation BETWEEN 0 AND 9223372036854775806
  AND p.last_event BETWEEN 0 AND 9223372036854775806
  AND CASE WHEN p.lease_token IS NOT NULL AND p.lease_expires_at_ms > :now
    THEN p.lease_owner = :owner -- guard: busy
    ELSE p.recovery <> 'owner-bound' OR p.started_at_ms IS NULL END -- guard: recovery
-- step: plain
UPDATE process SET lease_owner = :owner, lease_token = :token, lease_generation = :generation,
  lease_claimed_at_ms = :now, lease_expires_at_ms = :expires_at_ms
WHERE tenant = :tenant AND process = :process
-- step: when starts
INSERT INTO process_event (tenant, process, seq, type, ordinal, payload, digest, at_ms)
VALUES (:tenant, :process, :seq, 'process.started', 1, :payload, :digest, :now)
-- step: when starts
UPDATE process SET last_event = :seq, updated_at_ms = :now, change = NULL, started_at_ms = :now,
  ready_at_ms = CASE WHEN wait_type = 'process.started' AND wait_after < :seq
    THEN min(coalesce(ready_at_ms, :now), :now) ELSE ready_at_ms END
WHERE tenant = :tenant AND process = :process
-- step: refused
SELECT p.process IS NOT NULL AS known, p.pruned_at_ms IS NOT NULL AS pruned, p.state, p.recovery,
  p.started_at_ms IS NOT NULL AS started,
  CASE WHEN p.lease_token IS NOT NULL AND p.lease_expires_at_ms > :now THEN p.lease_owner END
    AS owner,
  p.lease_generation AS generation, p.lease_expires_at_ms AS expires_at_ms, p.last_event,
  (SELECT max(e.seq) FROM process_event e WHERE e.tenant = :tenant AND e.process = :process)
    AS log_last
FROM (SELECT 1) LEFT JOIN process p ON p.tenant = :tenant AND p.process = :process

-- name: processes.renew
-- Moves the expiry of a lease that is still held.
-- mode: write
-- returns: claimed_at_ms, expires_at_ms
-- explains: known, pruned
-- step: guard
SELECT p.lease_claimed_at_ms AS claimed_at_ms, :now + :ttl_ms AS expires_at_ms
FROM process p WHERE p.tenant = :tenant AND p.process = :process
  AND p.lease_owner = :lease_owner AND p.lease_token = :lease_token
  AND p.lease_generation = :lease_generation AND p.lease_expires_at_ms > :now -- guard: lease
-- step: plain
UPDATE process SET lease_expires_at_ms = :expires_at_ms
WHERE tenant = :tenant AND process = :process
-- step: refused
SELECT p.process IS NOT NULL AS known, p.pruned_at_ms IS NOT NULL AS pruned
FROM (SELECT 1) LEFT JOIN process p ON p.tenant = :tenant AND p.process = :process

-- name: processes.release
-- Frees a lease that this proof holds, live or lapsed.
-- mode: write
-- returns: released
-- explains: known, pruned
-- step: guard
SELECT 1 AS released FROM process p WHERE p.tenant = :tenant AND p.process = :process
  AND p.lease_owner = :lease_owner AND p.lease_token = :lease_token
  AND p.lease_generation = :lease_generation -- guard: lease
-- step: plain
UPDATE process SET lease_owner = NULL, lease_token = NULL, lease_claimed_at_ms = NULL,
  lease_expires_at_ms = NULL, ready_at_ms = CASE WHEN wait_event IS NULL THEN :now
    ELSE ready_at_ms END
WHERE tenant = :tenant AND process = :process
-- step: refused
SELECT p.process IS NOT NULL AS known, p.pruned_at_ms IS NOT NULL AS pruned
FROM (SELECT 1) LEFT JOIN process p ON p.tenant = :tenant AND p.process = :process

-- name: processes.lease
-- Who holds the lease of a process.
-- mode: read
-- returns: process, owner, generation, claimed_at_ms, expires_at_ms, live
SELECT process, lease_owner AS owner, lease_generation AS generation,
  lease_claimed_at_ms AS claimed_at_ms, lease_expires_at_ms AS expires_at_ms,
  lease_token IS NOT NULL AND lease_expires_at_ms > :now AS live
FROM process WHERE tenant = :tenant AND process = :process AND pruned_at_ms IS NULL

-- name: processes.due
-- A page of the processes that somebody may take up, longest due first.
-- mode: read
-- returns: upper_ms, due_at_ms, lost
-- returns: process, registration, identity, created_at_ms, state, last_event, updated_at_ms
-- returns: end_type, end_key, end_payload, ends, output, end_wake, end_digest, authority, wait
-- returns: wait_digest, external, external_digest, started_at_ms, cancel_at_ms, wake_gone
-- returns: kind, definition, recovery, origin_session, parent, wake_session, wait_event
-- returns: external_event
SELECT coalesce(:upper_ms, :now) AS upper_ms, p.due_at_ms,
  p.recovery = 'owner-bound' AND p.started_at_ms IS NOT NULL AS lost,
  p.process, p.registration, p.identity, p.created_at_ms, p.state, p.last_event, p.updated_at_ms,
  p.end_type, p.end_key, p.end_payload, p.ends, p.output, p.end_wake, p.end_digest, p.authority,
  p.wait, p.wait_digest, p.external, p.external_digest, p.started_at_ms, p.cancel_at_ms,
  p.wake_gone, p.kind, p.definition, p.recovery, p.origin_session, p.parent, p.wake_session,
  p.wait_event, p.external_event
FROM process_seen p
WHERE p.tenant = :tenant AND p.due_at_ms <= coalesce(:upper_ms, :now)
  AND (p.due_at_ms, p.process) > (:after_ms, :after)
ORDER BY p.due_at_ms, p.process LIMIT :limit

-- name: processes.grant
-- Lets a scope see a process; what it was called there before is replaced.
-- mode: write
-- returns: granted_at_ms
-- explains: known, pruned, deleted
-- step: guard
SELECT :now AS granted_at_ms FROM process p
LEFT JOIN session s ON s.tenant = :tenant AND s.session = :session
WHERE p.tenant = :tenant AND p.process = :process AND p.pruned_at_ms IS NULL
  AND s.deleted_at_ms IS NULL
-- step: plain
INSERT INTO process_grant (tenant, session, frame, process, kind, label, granted_at_ms)
VALUES (:tenant, :session, :frame, :process, :kind, :label, :now)
ON CONFLICT (tenant, session, frame, process) DO UPDATE SET kind = excluded.kind,
  label = excluded.label, granted_at_ms = excluded.granted_at_ms
-- step: refused
SELECT p.process IS NOT NULL AS known, p.pruned_at_ms IS NOT NULL AS pruned,
  s.deleted_at_ms IS NOT NULL AS deleted
FROM (SELECT 1) LEFT JOIN process p ON p.tenant = :tenant AND p.process = :process
LEFT JOIN session s ON s.tenant = :tenant AND s.session = :session

-- name: processes.revoke
-- Takes a grant back.
-- mode: write
-- returns: revoked
-- step: rows
SELECT count(*) AS revoked FROM process_grant WHERE tenant = :tenant AND session = :session
  AND frame = :frame AND process = :process
-- step: plain
DELETE FROM process_grant WHERE tenant = :tenant AND session = :session AND frame = :frame
  AND process = :process

-- name: processes.transfer
-- Moves grants from one scope to another, all of them or none.
-- mode: write
-- children: processes(process)
-- returns: moved
-- explains: missing, deleted
-- step: guard
SELECT count(*) AS moved FROM json_each(:processes.process) x CROSS JOIN process_grant g
  ON g.tenant = :tenant AND g.session = :session AND g.frame = :frame AND g.process = x.value
WHERE NOT EXISTS (SELECT 1 FROM session s WHERE s.tenant = :tenant AND s.session = :to_session
  AND s.deleted_at_ms IS NOT NULL)
HAVING count(*) = :processes.n -- guard: granted
-- step: each processes
INSERT INTO process_grant (tenant, session, frame, process, kind, label, granted_at_ms)
SELECT g.tenant, :to_session, :to_frame, g.process, g.kind, g.label, :now FROM process_grant g
WHERE g.tenant = :tenant AND g.session = :session AND g.frame = :frame
  AND g.process = :processes.process
ON CONFLICT (tenant, session, frame, process) DO UPDATE SET kind = excluded.kind,
  label = excluded.label, granted_at_ms = excluded.granted_at_ms
-- step: each processes
DELETE FROM process_grant WHERE tenant = :tenant AND session = :session AND frame = :frame
  AND process = :processes.process AND (:session, :frame) <> (:to_session, :to_frame)
-- step: refused
SELECT (SELECT x.value FROM json_each(:processes.process) x WHERE NOT EXISTS (
    SELECT 1 FROM process_grant g WHERE g.tenant = :tenant AND g.session = :session
    AND g.frame = :frame AND g.process = x.value) LIMIT 1) AS missing,
  EXISTS (SELECT 1 FROM session s WHERE s.tenant = :tenant AND s.session = :to_session
    AND s.deleted_at_ms IS NOT NULL) AS deleted

-- name: processes.granted
-- The grant of one scope for one process.
-- mode: read
-- returns: session, frame, process, kind, label, granted_at_ms
SELECT session, frame, process, kind, label, granted_at_ms FROM process_grant
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
FROM process_grant g
CROSS JOIN process_seen p ON p.tenant = g.tenant AND p.process = g.process
WHERE g.tenant = :tenant AND g.session = :session AND g.frame = :frame AND g.process > :after
  AND (NOT :live OR p.state = 'running')
ORDER BY g.process LIMIT :limit

-- name: processes.grants_of
-- A page of the grants for a process, in the order of sessions and frames.
-- mode: read
-- returns: session, frame, process, kind, label, granted_at_ms
SELECT session, frame, process, kind, label, granted_at_ms
FROM process_grant INDEXED BY process_grant_process
WHERE tenant = :tenant AND process = :process AND (session, frame) > (:after_session, :after_frame)
ORDER BY session, frame LIMIT :limit
