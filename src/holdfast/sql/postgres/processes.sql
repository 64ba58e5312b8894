-- name: processes.register
-- Registers a process with its first grants, unless its id is there already.
-- mode: write
-- children: grants(session, frame, kind, label)
-- returns: created_at_ms, wake_gone
-- explains: known, pruned, identity, deleted
-- Differs by necessity: the sessions of the grants are locked against deletion first.
-- step: guard
WITH granting AS MATERIALIZED (
  SELECT s.session, s.deleted_at_ms FROM {schema}.session s
  WHERE s.tenant = :tenant AND s.session = ANY (:grants.session::text[])
  ORDER BY s.session FOR KEY SHARE
), made AS (
  INSERT INTO {schema}.process (tenant, process, kind, definition, recovery, origin_session, parent,
    wake_session, registration, identity, created_at_ms, state, last_event, updated_at_ms,
    ready_at_ms, lease_generation)
  SELECT :tenant, :process, :kind, :definition, :recovery, :origin_session, :parent, :wake_session,
    :registration, :identity, c.now, 'running', 0, c.now,
    CASE WHEN :recovery::text <> 'external' THEN c.now END, 0
  FROM (SELECT {schema}.now_ms() AS now) c
  WHERE (SELECT count(g.deleted_at_ms) FROM granting g) = 0
  ON CONFLICT (tenant, process) DO NOTHING
  RETURNING process, created_at_ms
), given AS (
  INSERT INTO {schema}.process_grant (tenant, session, frame, process, kind, label, granted_at_ms)
  SELECT :tenant, x.session, x.frame, m.process, x.kind, x.label, m.created_at_ms
  FROM made m CROSS JOIN unnest(:grants.session::text[], :grants.frame::text[],
    :grants.kind::text[], :grants.label::text[]) AS x(session, frame, kind, label)
)
SELECT m.created_at_ms, EXISTS (SELECT FROM {schema}.session w WHERE w.tenant = :tenant
  AND w.session = :wake_session AND w.deleted_at_ms IS NOT NULL) AS wake_gone
FROM made m
-- step: refused
SELECT p.process IS NOT NULL AS known, p.pruned_at_ms IS NOT NULL AS pruned, p.identity,
  (SELECT s.session FROM {schema}.session s WHERE s.tenant = :tenant
    AND s.session = ANY (:grants.session::text[]) AND s.deleted_at_ms IS NOT NULL
    LIMIT 1) AS deleted
FROM (SELECT 1) one LEFT JOIN {schema}.process p ON p.tenant = :tenant AND p.process = :process

-- name: processes.declared
-- What a process was registered as.
-- mode: read
-- returns: identity, registration, pruned
SELECT identity, registration, pruned_at_ms IS NOT NULL AS pruned FROM {schema}.process
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
FROM {schema}.process_seen p WHERE p.tenant = :tenant AND p.process = :process

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
FROM {schema}.process_seen p
WHERE p.tenant = :tenant AND p.state = :state AND p.process > :after
  AND (:kind::text IS NULL OR p.kind = :kind)
  AND (:definition::text IS NULL OR p.definition = :definition)
  AND (:waiting::boolean IS NULL OR (p.wait_event IS NOT NULL) = :waiting)
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
FROM {schema}.process_seen p
WHERE p.tenant = :tenant AND p.process > :after AND p.state = ANY (:states.state::text[])
  AND (:kind::text IS NULL OR p.kind = :kind)
  AND (:definition::text IS NULL OR p.definition = :definition)
  AND (:waiting::boolean IS NULL OR (p.wait_event IS NOT NULL) = :waiting)
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
FROM {schema}.process_seen p
WHERE p.tenant = :tenant AND p.origin_session = :session AND p.process > :after
  AND p.state = ANY (:states.state::text[])
  AND (:kind::text IS NULL OR p.kind = :kind)
  AND (:definition::text IS NULL OR p.definition = :definition)
  AND (:waiting::boolean IS NULL OR (p.wait_event IS NOT NULL) = :waiting)
  AND (:parent::text IS NULL OR p.parent = :parent)
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
FROM {schema}.process_seen p
WHERE p.tenant = :tenant AND p.parent = :parent AND p.process > :after
  AND p.state = ANY (:states.state::text[])
  AND (:kind::text IS NULL OR p.kind = :kind)
  AND (:definition::text IS NULL OR p.definition = :definition)
  AND (:waiting::boolean IS NULL OR (p.wait_event IS NOT NULL) = :waiting)
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
-- step: guard
SELECT a.* FROM {schema}.append_event_v1(:tenant, :process, :identity, :type, :key, :payload,
  :means, :ends, :output, :wake, :digest, :authority, :lease_owner, :lease_token,
  :lease_generation, :wait_type, :wait_after, :wait_until_ms, :target, :target_frame, :named,
  :work, :items, :work_digest, :parent, :told, :told_key, :told_digest) a
-- step: refused
SELECT p.process IS NOT NULL AS known, p.pruned_at_ms IS NOT NULL AS pruned,
  coalesce(p.identity = :identity, false) AS identity_ok,
  coalesce(o.type = :type AND o.payload = :payload, false) AS same,
  coalesce(o.type <> :type OR o.payload <> :payload, false) AS clash, p.state, p.recovery,
  coalesce(p.lease_owner = :lease_owner AND p.lease_token = :lease_token
    AND p.lease_generation = :lease_generation AND p.lease_expires_at_ms > c.now, false)
    AS lease_ok,
  coalesce(p.recovery = 'owner-bound' AND p.started_at_ms IS NOT NULL
    AND (p.lease_token IS NULL OR p.lease_expires_at_ms <= c.now), false) AS lost, p.last_event,
  n.last_event AS parent_last, (SELECT max(e.seq) FROM {schema}.process_event e
    WHERE e.tenant = :tenant AND e.process = :process) AS log_last, o.type AS old_type,
  o.payload AS old_payload, o.ends AS old_ends, o.output AS old_output, o.wake AS old_wake,
  o.digest AS old_digest
FROM (SELECT {schema}.now_ms() AS now) c
LEFT JOIN {schema}.process p ON p.tenant = :tenant AND p.process = :process
LEFT JOIN {schema}.process_event o
  ON o.tenant = :tenant AND o.process = :process AND o.key = :key
LEFT JOIN {schema}.process n
  ON n.tenant = :tenant AND n.process = :parent AND n.pruned_at_ms IS NULL

-- name: processes.log
-- A page of the log of a process, or of its events of one type, in order.
-- mode: read
-- returns: process, seq, type, ordinal, key, payload, ends, output, wake, digest, authority
-- returns: wake_session, wake_frame, work, at_ms, acked_at_ms
SELECT
  e.process, e.seq, e.type, e.ordinal, e.key, e.payload, e.ends, e.output, e.wake, e.digest,
  e.authority, e.wake_session, e.wake_frame, e.work, e.at_ms, e.acked_at_ms
FROM {schema}.process_event e
WHERE e.tenant = :tenant AND e.process = :process AND e.seq > :after::bigint
ORDER BY e.seq LIMIT :limit

-- name: processes.log_of_type
-- A page of the events of one type of a process, in order.
-- mode: read
-- returns: process, seq, type, ordinal, key, payload, ends, output, wake, digest, authority
-- returns: wake_session, wake_frame, work, at_ms, acked_at_ms
SELECT
  e.process, e.seq, e.type, e.ordinal, e.key, e.payload, e.ends, e.output, e.wake, e.digest,
  e.authority, e.wake_session, e.wake_frame, e.work, e.at_ms, e.acked_at_ms
FROM {schema}.process_event e
WHERE e.tenant = :tenant AND e.process = :process AND e.type = :type AND e.seq > :after::bigint
ORDER BY e.type, e.seq LIMIT :limit

-- name: processes.recent
-- The last events of a process, newest first.
-- mode: read
-- returns: process, seq, type, ordinal, key, payload, ends, output, wake, digest, authority
-- returns: wake_session, wake_frame, work, at_ms, acked_at_ms
SELECT
  e.process, e.seq, e.type, e.ordinal, e.key, e.payload, e.ends, e.output, e.wake, e.digest,
  e.authority, e.wake_session, e.wake_frame, e.work, e.at_ms, e.acked_at_ms
FROM {schema}.process_event e
WHERE e.tenant = :tenant AND e.process = :process
ORDER BY e.seq DESC LIMIT :limit

-- name: processes.count
-- How many events of a type a process has up to a sequence; whether it is there, and pruned.
-- mode: read
-- returns: pruned, number
SELECT p.pruned_at_ms IS NOT NULL AS pruned,
  coalesce((SELECT e.ordinal FROM {schema}.process_event e
    WHERE e.tenant = :tenant AND e.process = :process AND e.type = :type
      AND e.seq <= :through::bigint
    ORDER BY e.seq DESC LIMIT 1), 0) AS number
FROM {schema}.process p WHERE p.tenant = :tenant AND p.process = :process

-- name: processes.wakes
-- A page of the events of a process whose wakes were not seen to, in order.
-- mode: read
-- returns: process, seq, type, ordinal, key, payload, ends, output, wake, digest, authority
-- returns: wake_session, wake_frame, work, at_ms, acked_at_ms
SELECT
  e.process, e.seq, e.type, e.ordinal, e.key, e.payload, e.ends, e.output, e.wake, e.digest,
  e.authority, e.wake_session, e.wake_frame, e.work, e.at_ms, e.acked_at_ms
FROM {schema}.process_event e
WHERE e.tenant = :tenant AND e.process = :process AND e.seq > :after::bigint
  AND e.wake IS NOT NULL AND e.acked_at_ms IS NULL
ORDER BY e.seq LIMIT :limit

-- name: processes.ack
-- Says that the wake of an event was seen to; the first time stays.
-- mode: write
-- returns: acked
-- explains: known, pruned
-- step: guard
WITH acking AS (
  UPDATE {schema}.process_event e SET acked_at_ms = coalesce(e.acked_at_ms, {schema}.now_ms())
  WHERE e.tenant = :tenant AND e.process = :process AND e.seq = :seq AND e.wake IS NOT NULL
  RETURNING 1
)
SELECT EXISTS (SELECT FROM acking) AS acked FROM {schema}.process p
WHERE p.tenant = :tenant AND p.process = :process AND p.pruned_at_ms IS NULL
-- step: refused
SELECT p.process IS NOT NULL AS known, p.pruned_at_ms IS NOT NULL AS pruned
FROM (SELECT 1) one LEFT JOIN {schema}.process p ON p.tenant = :tenant AND p.process = :process

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
SELECT {schema}.place_changes_v1(:tenant, :limit)
-- step: rows
SELECT c.change AS place, c.process AS id, c.pruned_at_ms IS NOT NULL AS pruned,
  p.process, p.registration, p.identity, p.created_at_ms, p.state, p.last_event, p.updated_at_ms,
  p.end_type, p.end_key, p.end_payload, p.ends, p.output, p.end_wake, p.end_digest, p.authority,
  p.wait, p.wait_digest, p.external, p.external_digest, p.started_at_ms, p.cancel_at_ms,
  p.wake_gone, p.kind, p.definition, p.recovery, p.origin_session, p.parent, p.wake_session,
  p.wait_event, p.external_event
FROM (SELECT f.change, f.process, f.pruned_at_ms FROM {schema}.process f
  WHERE f.tenant = :tenant AND f.change > :after::bigint ORDER BY f.change LIMIT :limit) c
LEFT JOIN LATERAL (SELECT q.* FROM {schema}.process_seen q
  WHERE q.tenant = :tenant AND q.process = c.process LIMIT 1) p ON true
ORDER BY c.change

-- name: processes.prune
-- Lets go of processes that ended before a time, oldest first; their ids stay.
-- mode: write
-- returns: processes, events, grants, more
-- explains: processes
-- Differs by necessity: the processes are locked first, so that what is appended to them meanwhile
-- is seen by the statements after that.
-- step: guard
SELECT coalesce(array_agg(x.process ORDER BY x.process), '{}') AS processes FROM (
  SELECT p.process FROM {schema}.process p
  WHERE p.tenant = :tenant AND p.pruned_at_ms IS NULL AND p.ended_event IS NOT NULL
    AND p.updated_at_ms < :before_ms::bigint
  ORDER BY p.updated_at_ms, p.process LIMIT :limit FOR UPDATE SKIP LOCKED) x
-- step: rows
SELECT to_json(:processes::text[])::text AS processes,
  (SELECT count(*) FROM {schema}.process_event e
    WHERE e.tenant = :tenant AND e.process = ANY (:processes::text[])) AS events,
  (SELECT count(*) FROM {schema}.process_grant g
    WHERE g.tenant = :tenant AND g.process = ANY (:processes::text[])) AS grants,
  EXISTS (SELECT FROM {schema}.process p WHERE p.tenant = :tenant AND p.pruned_at_ms IS NULL
    AND p.ended_event IS NOT NULL AND p.updated_at_ms < :before_ms::bigint
    AND p.process <> ALL (:processes::text[])) AS more
-- step: plain
DELETE FROM {schema}.process_event WHERE tenant = :tenant AND process = ANY (:processes::text[])
-- step: plain
DELETE FROM {schema}.process_grant WHERE tenant = :tenant AND process = ANY (:processes::text[])
-- step: plain
UPDATE {schema}.process SET kind = '', definition = NULL, origin_session = NULL, parent = NULL,
  wake_session = NULL, registration = '', identity = '', external_event = NULL, change = NULL,
  pruned_at_ms = {schema}.now_ms()
WHERE tenant = :tenant AND process = ANY (:processes::text[])
-- step: refused
SELECT '[]' AS processes
