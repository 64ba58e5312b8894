-- name: processes.register
-- Registers a process with its first grants, unless its id is there already.
-- mode: write
-- children: grants(session, frame, kind, label)
-- returns: created_at_ms, wake_gone
-- explains: known, pruned, identity, deleted
-- step: guard
SELECT :now AS created_at_ms, EXISTS (SELECT 1 FROM session w WHERE w.tenant = :tenant
  AND w.session = :wake_session AND w.deleted_at_ms IS NOT NULL) AS wake_gone
WHERE NOT EXISTS (SELECT 1 FROM process p WHERE p.tenant = :tenant AND p.process = :process)
  AND NOT EXISTS (SELECT 1 FROM json_each(:grants.session) x CROSS JOIN session s
    ON s.tenant = :tenant AND s.session = x.value WHERE s.deleted_at_ms IS NOT NULL)
-- step: plain
INSERT INTO process (tenant, process, kind, definition, recovery, origin_session, parent,
  wake_session, registration, identity, created_at_ms, state, last_event, updated_at_ms,
  ready_at_ms, lease_generation)
VALUES (:tenant, :process, :kind, :definition, :recovery, :origin_session, :parent, :wake_session,
  :registration, :identity, :now, 'running', 0, :now,
  CASE WHEN :recovery <> 'external' THEN :now END, 0)
-- step: each grants
INSERT INTO process_grant (tenant, session, frame, process, kind, label, granted_at_ms)
VALUES (:tenant, :grants.session, :grants.frame, :process, :grants.kind, :grants.label, :now)
-- step: refused
SELECT p.process IS NOT NULL AS known, p.pruned_at_ms IS NOT NULL AS pruned, p.identity,
  (SELECT s.session FROM json_each(:grants.session) x CROSS JOIN session s
    ON s.tenant = :tenant AND s.session = x.value WHERE s.deleted_at_ms IS NOT NULL LIMIT 1)
    AS deleted
FROM (SELECT 1) LEFT JOIN process p ON p.tenant = :tenant AND p.process = :process

-- name: processes.declared
-- What a process was registered as.
-- mode: read
-- returns: identity, registration, pruned
SELECT identity, registration, pruned_at_ms IS NOT NULL AS pruned FROM process
WHERE tenant = :tenant AND process = :process

-- name: processes.get
-- The record of a process.
-- mode: read
-- returns: process, registration, identity, created_at_ms, state, last_event, updated_at_ms
-- returns: end_type, end_key, end_payload, ends, output, end_wake, end_digest, authority, wait
-- returns: wait_digest, external, external_digest, started_at_ms, cancel_at_ms, wake_gone
-- returns: kind, definition, recovery, origin_session, parent, wake_session, wait_event
-- returns: external_event
SELECT
  p.process, p.registration, p.identity, p.created_at_ms, p.state, p.last_event, p.updated_at_ms,
  p.end_type, p.end_key, p.end_payload, p.ends, p.output, p.end_wake, p.end_digest, p.authority,
  p.wait, p.wait_digest, p.external, p.external_digest, p.started_at_ms, p.cancel_at_ms,
  p.wake_gone, p.kind, p.definition, p.recovery, p.origin_session, p.parent, p.wake_session,
  p.wait_event, p.external_event
FROM process_seen p WHERE p.tenant = :tenant AND p.process = :process

-- name: processes.list_in_state
-- A page of the processes in one state, in the order of their ids.
-- mode: read
-- returns: process, registration, identity, created_at_ms, state, last_event, updated_at_ms
-- returns: end_type, end_key, end_payload, ends, output, end_wake, end_digest, authority, wait
-- returns: wait_digest, external, external_digest, started_at_ms, cancel_at_ms, wake_gone
-- returns: kind, definition, recovery, origin_session, parent, wake_session, wait_event
-- returns: external_event
SELECT
  p.process, p.registration, p.identity, p.created_at_ms, p.state, p.last_event, p.updated_at_ms,
  p.end_type, p.end_key, p.end_payload, p.ends, p.output, p.end_wake, p.end_digest, p.authority,
  p.wait, p.wait_digest, p.external, p.external_digest, p.started_at_ms, p.cancel_at_ms,
  p.wake_gone, p.kind, p.definition, p.recovery, p.origin_session, p.parent, p.wake_session,
  p.wait_event, p.external_event
FROM process_seen p
WHERE p.tenant = :tenant AND p.state = :state AND p.process > :after
  AND (:kind IS NULL OR p.kind = :kind) AND (:definition IS NULL OR p.definition = :definition)
  AND (:waiting IS NULL OR (p.wait_event IS NOT NULL) = :waiting)
ORDER BY p.process LIMIT :limit

-- name: processes.list
-- A page of the processes in some states, in the order of their ids.
-- mode: read
-- children: states(state)
-- returns: process, registration, identity, created_at_ms, state, last_event, updated_at_ms
-- returns: end_type, end_key, end_payload, ends, output, end_wake, end_digest, authority, wait
-- returns: wait_digest, external, external_digest, started_at_ms, cancel_at_ms, wake_gone
-- returns: kind, definition, recovery, origin_session, parent, wake_session, wait_event
-- returns: external_event
SELECT
  p.process, p.registration, p.identity, p.created_at_ms, p.state, p.last_event, p.updated_at_ms,
  p.end_type, p.end_key, p.end_payload, p.ends, p.output, p.end_wake, p.end_digest, p.authority,
  p.wait, p.wait_digest, p.external, p.external_digest, p.started_at_ms, p.cancel_at_ms,
  p.wake_gone, p.kind, p.definition, p.recovery, p.origin_session, p.parent, p.wake_session,
  p.wait_event, p.external_event
FROM process_seen p
WHERE p.tenant = :tenant AND p.process > :after
  AND p.state IN (SELECT value FROM json_each(:states.state))
  AND (:kind IS NULL OR p.kind = :kind) AND (:definition IS NULL OR p.definition = :definition)
  AND (:waiting IS NULL OR (p.wait_event IS NOT NULL) = :waiting)
ORDER BY p.process LIMIT :limit

-- name: processes.list_of_origin
-- A page of the processes that a session has started, in the order of their ids.
-- mode: read
-- children: states(state)
-- returns: process, registration, identity, created_at_ms, state, last_event, updated_at_ms
-- returns: end_type, end_key, end_payload, ends, output, end_wake, end_digest, authority, wait
-- returns: wait_digest, external, external_digest, started_at_ms, cancel_at_ms, wake_gone
-- returns: kind, definition, recovery, origin_session, parent, wake_session, wait_event
-- returns: external_event
SELECT
  p.process, p.registration, p.identity, p.created_at_ms, p.state, p.last_event, p.updated_at_ms,
  p.end_type, p.end_key, p.end_payload, p.ends, p.output, p.end_wake, p.end_digest, p.authority,
  p.wait, p.wait_digest, p.external, p.external_digest, p.started_at_ms, p.cancel_at_ms,
  p.wake_gone, p.kind, p.definition, p.recovery, p.origin_session, p.parent, p.wake_session,
  p.wait_event, p.external_event
FROM process_seen p
WHERE p.tenant = :tenant AND p.origin_session = :session AND p.process > :after
  AND p.state IN (SELECT value FROM json_each(:states.state))
  AND (:kind IS NULL OR p.kind = :kind) AND (:definition IS NULL OR p.definition = :definition)
  AND (:waiting IS NULL OR (p.wait_event IS NOT NULL) = :waiting)
  AND (:parent IS NULL OR p.parent = :parent)
ORDER BY p.process LIMIT :limit

-- name: processes.list_of_parent
-- A page of the children of a process, in the order of their ids.
-- mode: read
-- children: states(state)
-- returns: process, registration, identity, created_at_ms, state, last_event, updated_at_ms
-- returns: end_type, end_key, end_payload, ends, output, end_wake, end_digest, authority, wait
-- returns: wait_digest, external, external_digest, started_at_ms, cancel_at_ms, wake_gone
-- returns: kind, definition, recovery, origin_session, parent, wake_session, wait_event
-- returns: external_event
SELECT
  p.process, p.registration, p.identity, p.created_at_ms, p.state, p.last_event, p.updated_at_ms,
  p.end_type, p.end_key, p.end_payload, p.ends, p.output, p.end_wake, p.end_digest, p.authority,
  p.wait, p.wait_digest, p.external, p.external_digest, p.started_at_ms, p.cancel_at_ms,
  p.wake_gone, p.kind, p.definition, p.recovery, p.origin_session, p.parent, p.wake_session,
  p.wait_event, p.external_event
FROM process_seen p
WHERE p.tenant = :tenant AND p.parent = :parent AND p.process > :after
  AND p.state IN (SELECT value FROM json_each(:states.state))
  AND (:kind IS NULL OR p.kind = :kind) AND (:definition IS NULL OR p.definition = :definition)
  AND (:waiting IS NULL OR (p.wait_event IS NOT NULL) = :waiting)
ORDER BY p.process LIMIT :limit

-- name: processes.append
-- Appends an event with all that follows from it: the end of the process, the news to its parent,
-- the wake as work. An event that is there already, or that says nothing new, changes nothing.
-- mode: write
-- returns: appended
-- returns: process, seq, type, ordinal, key, payload, ends, output, wake, digest, authority
-- returns: wake_session, wake_frame, work, at_ms, acked_at_ms
-- explains: known, pruned, identity_ok, same, clash, state, recovery, lease_ok, lost, last_event
-- explains: parent_last, log_last, old_type, old_payload, old_ends, old_output, old_wake
-- explains: old_digest
-- Differs by necessity: a script instead of a function, with the same parts in the same order.
-- step: guard
SELECT a.appended, CASE WHEN a.appended THEN a.last_event + 1 ELSE a.old END AS seq,
  a.appended AND :wake IS NOT NULL AND t.session IS NOT NULL AS wakes,
  a.appended AND n.process IS NOT NULL AS tells,
  CASE WHEN a.appended AND t.session IS NOT NULL THEN t.work_seq + 1 END AS work_seq,
  n.last_event + 1 AS told_seq,
  CASE WHEN :named OR NOT EXISTS (SELECT 1 FROM session d WHERE d.tenant = :tenant
    AND d.session = :target AND d.deleted_at_ms IS NOT NULL) THEN :target END AS aimed,
  a.lease_ok AND :lease_token IS NOT NULL AND :means = 'waits' AND a.recovery <> 'owner-bound'
    AS hands_back,
  coalesce((SELECT o.ordinal FROM process_event o INDEXED BY process_event_type
    WHERE o.tenant = :tenant AND o.process = :process AND o.type = :type
    ORDER BY o.seq DESC LIMIT 1), 0) + 1 AS ordinal,
  coalesce((SELECT o.ordinal FROM process_event o INDEXED BY process_event_type
    WHERE o.tenant = :tenant AND o.process = :parent AND o.type = 'process.child-ended'
    ORDER BY o.seq DESC LIMIT 1), 0) + 1 AS told_ordinal
FROM (
  SELECT p.*, coalesce(o.seq, CASE WHEN s.still THEN p.wait_event END) AS old,
    o.seq IS NULL AND NOT s.still AS appended, o.type AS old_type, o.payload AS old_payload,
    p.lease_owner = :lease_owner AND p.lease_token = :lease_token
      AND p.lease_generation = :lease_generation AND p.lease_expires_at_ms > :now AS lease_ok
  FROM process p
  LEFT JOIN process_event o INDEXED BY process_event_key
    ON o.tenant = :tenant AND o.process = :process AND o.key = :key -- guard: key
  JOIN (SELECT q.process, coalesce((:means = 'resumes' AND q.wait_event IS NULL)
      OR (:means = 'waits' AND w.payload = :payload), 0) AS still
    FROM process q LEFT JOIN process_event w
      ON w.tenant = :tenant AND w.process = :process AND w.seq = q.wait_event
    WHERE q.tenant = :tenant AND q.process = :process) s
  WHERE p.tenant = :tenant AND p.process = :process AND p.pruned_at_ms IS NULL
    AND p.identity = :identity) a
LEFT JOIN session t ON t.tenant = :tenant AND t.session = :target AND t.deleted_at_ms IS NULL
LEFT JOIN process n ON n.tenant = :tenant AND n.process = :parent AND n.pruned_at_ms IS NULL
WHERE CASE WHEN a.old_type IS NOT NULL THEN a.old_type = :type AND a.old_payload = :payload
  WHEN NOT a.appended THEN 1
  ELSE (:lease_token IS NULL OR coalesce(a.lease_ok, 0)) -- guard: lease
    AND (a.state = 'running' OR :means NOT IN ('ends', 'waits', 'cancels')) -- guard: ended
    AND CASE WHEN :ends IS NULL OR :authority IN ('lease', 'operator') THEN 1
      WHEN :authority = 'external' THEN a.recovery = 'external'
      WHEN :authority = 'lapse' THEN a.recovery = 'owner-bound' AND a.started_at_ms IS NOT NULL
        AND (a.lease_token IS NULL OR a.lease_expires_at_ms <= :now)
      ELSE 0 END -- guard: authority
    AND a.last_event BETWEEN 0 AND 9223372036854775806
    AND coalesce(n.last_event BETWEEN 0 AND 9223372036854775806, 1) END
-- step: when wakes
UPDATE session SET work_seq = :work_seq, due_at_ms = min(coalesce(due_at_ms, 9223372036854775807),
  max(:now, CASE WHEN lane_token IS NULL THEN 0 ELSE lane_expires_at_ms END))
WHERE tenant = :tenant AND session = :target
-- step: when wakes
INSERT INTO work (tenant, session, seq, work, key, kind, delivery, slot, state, available_at_ms,
  enqueued_at_ms, items, digest, process, event, attempts, keep_ms)
VALUES (:tenant, :target, :work_seq, :work, 'process:' || :process || ':event:' || :seq || ':wake',
  'turn', 'earliest', 'exclusive', 'ready', :now, :now, :items, :work_digest, :process, :seq, 0,
  604800000)
-- step: when appended
INSERT INTO process_event (tenant, process, seq, type, ordinal, key, payload, ends, output, wake,
  digest, authority, wake_session, wake_frame, work, at_ms)
VALUES (:tenant, :process, :seq, :type, :ordinal, :key, :payload, :ends, :output, :wake, :digest,
  :authority, :aimed, CASE WHEN :aimed IS NOT NULL THEN :target_frame END,
  CASE WHEN :wakes THEN :work END, :now)
-- step: when appended
UPDATE process SET last_event = :seq, updated_at_ms = :now, change = NULL,
  state = coalesce(:ends, state),
  ended_event = CASE WHEN :ends IS NULL THEN ended_event ELSE :seq END,
  external_event = CASE WHEN :means = 'external' THEN :seq ELSE external_event END,
  cancel_at_ms = CASE WHEN :means = 'cancels' THEN coalesce(cancel_at_ms, :now)
    ELSE cancel_at_ms END,
  wait_event = CASE WHEN :means = 'waits' THEN :seq WHEN :means IN ('ends', 'resumes') THEN NULL
    ELSE wait_event END,
  wait_type = CASE WHEN :means = 'waits' THEN :wait_type WHEN :means IN ('ends', 'resumes')
    THEN NULL ELSE wait_type END,
  wait_after = CASE WHEN :means = 'waits' THEN :wait_after WHEN :means IN ('ends', 'resumes')
    THEN NULL ELSE wait_after END,
  ready_at_ms = CASE WHEN :ends IS NOT NULL OR recovery = 'external' THEN NULL
    WHEN :means = 'waits' THEN CASE
      WHEN cancel_at_ms IS NOT NULL OR EXISTS (
        SELECT 1 FROM process_event o INDEXED BY process_event_type WHERE o.tenant = :tenant
        AND o.process = :process AND o.type = :wait_type AND o.seq > :wait_after) THEN :now
      ELSE :wait_until_ms END
    WHEN :means = 'resumes' THEN :now
    WHEN wait_event IS NOT NULL AND state = 'running'
      AND (:means = 'cancels' OR (wait_type = :type AND wait_after < :seq))
    THEN min(coalesce(ready_at_ms, :now), :now) ELSE ready_at_ms END
WHERE tenant = :tenant AND process = :process
-- step: plain
UPDATE process SET lease_owner = NULL, lease_token = NULL, lease_claimed_at_ms = NULL,
  lease_expires_at_ms = NULL
WHERE tenant = :tenant AND process = :process AND lease_token IS NOT NULL
  AND (:hands_back OR (:appended AND :ends IS NOT NULL))
-- step: when tells
INSERT INTO process_event (tenant, process, seq, type, ordinal, key, payload, digest, at_ms)
VALUES (:tenant, :parent, :told_seq, 'process.child-ended', :told_ordinal, :told_key, :told,
  :told_digest, :now)
-- step: when tells
UPDATE process SET last_event = :told_seq, updated_at_ms = :now, change = NULL,
  ready_at_ms = CASE WHEN wait_type = 'process.child-ended' AND wait_after < :told_seq
    AND recovery <> 'external' THEN min(coalesce(ready_at_ms, :now), :now) ELSE ready_at_ms END
WHERE tenant = :tenant AND process = :parent
-- step: rows
SELECT :appended AS appended,
  e.process, e.seq, e.type, e.ordinal, e.key, e.payload, e.ends, e.output, e.wake, e.digest,
  e.authority, e.wake_session, e.wake_frame, e.work, e.at_ms, e.acked_at_ms
FROM (SELECT 1) LEFT JOIN process_event e
  ON e.tenant = :tenant AND e.process = :process AND e.seq = :seq
-- step: refused
SELECT p.process IS NOT NULL AS known, p.pruned_at_ms IS NOT NULL AS pruned,
  coalesce(p.identity = :identity, 0) AS identity_ok,
  coalesce(o.type = :type AND o.payload = :payload, 0) AS same,
  coalesce(o.type <> :type OR o.payload <> :payload, 0) AS clash, p.state, p.recovery,
  coalesce(p.lease_owner = :lease_owner AND p.lease_token = :lease_token
    AND p.lease_generation = :lease_generation AND p.lease_expires_at_ms > :now, 0) AS lease_ok,
  coalesce(p.recovery = 'owner-bound' AND p.started_at_ms IS NOT NULL
    AND (p.lease_token IS NULL OR p.lease_expires_at_ms <= :now), 0) AS lost, p.last_event,
  n.last_event AS parent_last, (SELECT max(e.seq) FROM process_event e
    WHERE e.tenant = :tenant AND e.process = :process) AS log_last, o.type AS old_type,
  o.payload AS old_payload, o.ends AS old_ends, o.output AS old_output, o.wake AS old_wake,
  o.digest AS old_digest
FROM (SELECT 1)
LEFT JOIN process p ON p.tenant = :tenant AND p.process = :process
LEFT JOIN process_event o INDEXED BY process_event_key
  ON o.tenant = :tenant AND o.process = :process AND o.key = :key
LEFT JOIN process n ON n.tenant = :tenant AND n.process = :parent AND n.pruned_at_ms IS NULL

-- name: processes.log
-- A page of the log of a process, or of its events of one type, in order.
-- mode: read
-- returns: process, seq, type, ordinal, key, payload, ends, output, wake, digest, authority
-- returns: wake_session, wake_frame, work, at_ms, acked_at_ms
SELECT
  e.process, e.seq, e.type, e.ordinal, e.key, e.payload, e.ends, e.output, e.wake, e.digest,
  e.authority, e.wake_session, e.wake_frame, e.work, e.at_ms, e.acked_at_ms
FROM process_event e
WHERE e.tenant = :tenant AND e.process = :process AND e.seq > :after
ORDER BY e.seq LIMIT :limit

-- name: processes.log_of_type
-- A page of the events of one type of a process, in order.
-- mode: read
-- returns: process, seq, type, ordinal, key, payload, ends, output, wake, digest, authority
-- returns: wake_session, wake_frame, work, at_ms, acked_at_ms
SELECT
  e.process, e.seq, e.type, e.ordinal, e.key, e.payload, e.ends, e.output, e.wake, e.digest,
  e.authority, e.wake_session, e.wake_frame, e.work, e.at_ms, e.acked_at_ms
FROM process_event e INDEXED BY process_event_type
WHERE e.tenant = :tenant AND e.process = :process AND e.type = :type AND e.seq > :after
ORDER BY e.seq LIMIT :limit

-- name: processes.recent
-- The last events of a process, newest first.
-- mode: read
-- returns: process, seq, type, ordinal, key, payload, ends, output, wake, digest, authority
-- returns: wake_session, wake_frame, work, at_ms, acked_at_ms
SELECT
  e.process, e.seq, e.type, e.ordinal, e.key, e.payload, e.ends, e.output, e.wake, e.digest,
  e.authority, e.wake_session, e.wake_frame, e.work, e.at_ms, e.acked_at_ms
FROM process_event e
WHERE e.tenant = :tenant AND e.process = :process
ORDER BY e.seq DESC LIMIT :limit

-- name: processes.count
-- How many events of a type a process has up to a sequence; whether it is there, and pruned.
-- mode: read
-- returns: pruned, number
SELECT p.pruned_at_ms IS NOT NULL AS pruned,
  coalesce((SELECT e.ordinal FROM process_event e INDEXED BY process_event_type
    WHERE e.tenant = :tenant AND e.process = :process AND e.type = :type AND e.seq <= :through
    ORDER BY e.seq DESC LIMIT 1), 0) AS number
FROM process p WHERE p.tenant = :tenant AND p.process = :process

-- name: processes.wakes
-- A page of the events of a process whose wakes were not seen to, in order.
-- mode: read
-- returns: process, seq, type, ordinal, key, payload, ends, output, wake, digest, authority
-- returns: wake_session, wake_frame, work, at_ms, acked_at_ms
SELECT
  e.process, e.seq, e.type, e.ordinal, e.key, e.payload, e.ends, e.output, e.wake, e.digest,
  e.authority, e.wake_session, e.wake_frame, e.work, e.at_ms, e.acked_at_ms
FROM process_event e INDEXED BY process_event_wake
WHERE e.tenant = :tenant AND e.process = :process AND e.seq > :after
  AND e.wake IS NOT NULL AND e.acked_at_ms IS NULL
ORDER BY e.seq LIMIT :limit

-- name: processes.ack
-- Says that the wake of an event was seen to; the first time stays.
-- mode: write
-- returns: acked
-- explains: known, pruned
-- step: guard
SELECT e.wake IS NOT NULL AS acked FROM process p
LEFT JOIN process_event e ON e.tenant = :tenant AND e.process = :process AND e.seq = :seq
WHERE p.tenant = :tenant AND p.process = :process AND p.pruned_at_ms IS NULL
-- step: when acked
UPDATE process_event SET acked_at_ms = :now
WHERE tenant = :tenant AND process = :process AND seq = :seq AND acked_at_ms IS NULL
-- step: refused
SELECT p.process IS NOT NULL AS known, p.pruned_at_ms IS NOT NULL AS pruned
FROM (SELECT 1) LEFT JOIN process p ON p.tenant = :tenant AND p.process = :process

-- name: processes.changes
-- Gives a place in the feed to what has changed, and reads the feed from a place on. Places are
-- given here only, one caller after the other, so that no writer can slip behind a cursor.
-- mode: write
-- returns: place, id, pruned
-- returns: process, registration, identity, created_at_ms, state, last_event, updated_at_ms
-- returns: end_type, end_key, end_payload, ends, output, end_wake, end_digest, authority, wait
-- returns: wait_digest, external, external_digest, started_at_ms, cancel_at_ms, wake_gone
-- returns: kind, definition, recovery, origin_session, parent, wake_session, wait_event
-- returns: external_event
-- step: plain
INSERT INTO process_clock (tenant, change) VALUES (:tenant, 0) ON CONFLICT (tenant) DO NOTHING
-- step: plain
UPDATE process SET change = n.place FROM (
  SELECT q.process, (SELECT c.change FROM process_clock c WHERE c.tenant = :tenant)
    + row_number() OVER (ORDER BY q.process) AS place
  FROM (SELECT process FROM process INDEXED BY process_changed
    WHERE tenant = :tenant AND change IS NULL ORDER BY process LIMIT :limit) q) n
WHERE process.tenant = :tenant AND process.process = n.process
-- step: plain
UPDATE process_clock SET change = (SELECT max(p.change) FROM process p INDEXED BY process_change
  WHERE p.tenant = :tenant AND p.change IS NOT NULL)
WHERE tenant = :tenant AND change < (SELECT max(p.change) FROM process p INDEXED BY process_change
  WHERE p.tenant = :tenant AND p.change IS NOT NULL)
-- step: rows
SELECT c.change AS place, c.process AS id, c.pruned_at_ms IS NOT NULL AS pruned,
  p.process, p.registration, p.identity, p.created_at_ms, p.state, p.last_event, p.updated_at_ms,
  p.end_type, p.end_key, p.end_payload, p.ends, p.output, p.end_wake, p.end_digest, p.authority,
  p.wait, p.wait_digest, p.external, p.external_digest, p.started_at_ms, p.cancel_at_ms,
  p.wake_gone, p.kind, p.definition, p.recovery, p.origin_session, p.parent, p.wake_session,
  p.wait_event, p.external_event
FROM (SELECT change, process, pruned_at_ms FROM process INDEXED BY process_change
  WHERE tenant = :tenant AND change > :after ORDER BY change LIMIT :limit) c
LEFT JOIN process_seen p ON p.tenant = :tenant AND p.process = c.process
ORDER BY c.change

-- name: processes.prune
-- Lets go of processes that ended before a time, oldest first; their ids stay.
-- mode: write
-- returns: processes, events, grants, more
-- explains: processes
-- step: guard
WITH gone(process) AS (
  SELECT p.process FROM process p INDEXED BY process_ended
  WHERE p.tenant = :tenant AND p.pruned_at_ms IS NULL AND p.ended_event IS NOT NULL
    AND p.updated_at_ms < :before_ms
  ORDER BY p.updated_at_ms, p.process LIMIT :limit
)
SELECT (SELECT json_group_array(process) FROM gone) AS processes,
  (SELECT count(*) FROM gone g CROSS JOIN process_event e
    ON e.tenant = :tenant AND e.process = g.process) AS events,
  (SELECT count(*) FROM gone x CROSS JOIN process_grant g INDEXED BY process_grant_process
    ON g.tenant = :tenant AND g.process = x.process) AS grants,
  EXISTS (SELECT 1 FROM process p INDEXED BY process_ended WHERE p.tenant = :tenant
    AND p.pruned_at_ms IS NULL AND p.ended_event IS NOT NULL AND p.updated_at_ms < :before_ms
    AND p.process NOT IN (SELECT process FROM gone)) AS more
-- step: plain
DELETE FROM process_event WHERE tenant = :tenant
  AND process IN (SELECT value FROM json_each(:processes))
-- step: plain
DELETE FROM process_grant INDEXED BY process_grant_process WHERE tenant = :tenant
  AND process IN (SELECT value FROM json_each(:processes))
-- step: plain
UPDATE process SET kind = '', definition = NULL, origin_session = NULL, parent = NULL,
  wake_session = NULL, registration = x'', identity = x'', external_event = NULL,
  change = NULL, pruned_at_ms = :now
WHERE tenant = :tenant AND process IN (SELECT value FROM json_each(:processes))
-- step: refused
SELECT '[]' AS processes
