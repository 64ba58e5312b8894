-- name: schedules.read
-- A schedule, and what time it is; one row, even when there is no such schedule.
-- mode: read
-- returns: now, schedule, timing, payload, digest, missed, cap, grace_ms, start_ms, until_ms
-- returns: revision, created_at_ms, updated_at_ms, decided_ms, next_at_ms, last_at_ms
-- returns: paused_at_ms, fired, skipped, ran
SELECT :now AS now, s.schedule, s.timing, s.payload, s.digest, s.missed, s.cap, s.grace_ms,
  s.start_ms, s.until_ms, s.revision, s.created_at_ms, s.updated_at_ms, s.decided_ms,
  s.next_at_ms, s.last_at_ms, s.paused_at_ms, s.fired, s.skipped, s.ran
FROM (SELECT 1) LEFT JOIN schedule s ON s.tenant = :tenant AND s.schedule = :schedule

-- name: schedules.list
-- A page of the schedules, in the order of their ids.
-- mode: read
-- returns: schedule, timing, payload, digest, missed, cap, grace_ms, start_ms, until_ms
-- returns: revision, created_at_ms, updated_at_ms, decided_ms, next_at_ms, last_at_ms
-- returns: paused_at_ms, fired, skipped, ran
SELECT s.schedule, s.timing, s.payload, s.digest, s.missed, s.cap, s.grace_ms, s.start_ms,
  s.until_ms, s.revision, s.created_at_ms, s.updated_at_ms, s.decided_ms, s.next_at_ms,
  s.last_at_ms, s.paused_at_ms, s.fired, s.skipped, s.ran
FROM schedule s WHERE s.tenant = :tenant AND s.schedule > :after
ORDER BY s.schedule LIMIT :limit

-- name: schedules.skips
-- A page of what was skipped of a schedule, in order.
-- mode: read
-- returns: schedule, first_ms, last_ms, count, reason, at_ms
SELECT schedule, first_ms, last_ms, count, reason, at_ms FROM schedule_skip
WHERE tenant = :tenant AND schedule = :schedule AND first_ms > :after
ORDER BY first_ms LIMIT :limit

-- name: schedules.due
-- A page of the schedules that are due at a time, or now, longest due first; with the time, the
-- next one at which anything is due, and for each its version as a source, which is null when
-- nobody has ever subscribed to it. One row when there are none.
-- mode: read
-- returns: upper_ms, later_ms, version
-- returns: schedule, timing, payload, digest, missed, cap, grace_ms, start_ms, until_ms
-- returns: revision, created_at_ms, updated_at_ms, decided_ms, next_at_ms, last_at_ms
-- returns: paused_at_ms, fired, skipped, ran
SELECT coalesce(:upper_ms, :now) AS upper_ms,
  (SELECT l.next_at_ms FROM schedule l INDEXED BY schedule_due
    WHERE l.tenant = :tenant AND l.next_at_ms > coalesce(:upper_ms, :now)
    ORDER BY l.next_at_ms LIMIT 1) AS later_ms,
  (SELECT t.version FROM trigger_source t WHERE t.tenant = :tenant
    AND t.source_type = 'schedule' AND t.source_key = s.schedule) AS version,
  s.schedule, s.timing, s.payload, s.digest, s.missed, s.cap, s.grace_ms, s.start_ms, s.until_ms,
  s.revision, s.created_at_ms, s.updated_at_ms, s.decided_ms, s.next_at_ms, s.last_at_ms,
  s.paused_at_ms, s.fired, s.skipped, s.ran
FROM (SELECT 1) LEFT JOIN (
  SELECT d.* FROM schedule d INDEXED BY schedule_due
  WHERE d.tenant = :tenant AND d.next_at_ms <= coalesce(:upper_ms, :now)
    AND (d.next_at_ms, d.schedule) > (:after_ms, :after)
  ORDER BY d.next_at_ms, d.schedule LIMIT :limit) s ON 1
ORDER BY s.next_at_ms, s.schedule

-- name: schedules.register
-- Registers a schedule, unless its id is there already.
-- mode: write
-- returns: registered
-- explains: known
-- step: guard
SELECT 1 AS registered WHERE NOT EXISTS (
  SELECT 1 FROM schedule s WHERE s.tenant = :tenant AND s.schedule = :schedule)
-- step: plain
INSERT INTO schedule (tenant, schedule, timing, payload, digest, missed, cap, grace_ms, start_ms,
  until_ms, revision, created_at_ms, updated_at_ms, decided_ms, next_at_ms, fired, skipped, ran)
VALUES (:tenant, :schedule, :timing, :payload, :digest, :missed, :cap, :grace_ms, :start_ms,
  :until_ms, 1, :at_ms, :at_ms, :decided_ms, :next_at_ms, 0, 0, 0)
-- step: refused
SELECT 1 AS known

-- name: schedules.change
-- Makes another one of a schedule, when it is the one that was looked at, and tells what of it is
-- skipped by that.
-- mode: write
-- returns: changed
-- explains: known
-- step: guard
SELECT 1 AS changed FROM schedule s WHERE s.tenant = :tenant AND s.schedule = :schedule
  AND s.revision = :seen_revision AND s.decided_ms = :seen_decided_ms
  AND s.digest = :seen_digest -- guard: seen
-- step: plain
UPDATE schedule SET timing = :timing, payload = :payload, digest = :digest, missed = :missed,
  cap = :cap, grace_ms = :grace_ms, start_ms = :start_ms, until_ms = :until_ms,
  revision = revision + 1, updated_at_ms = :at_ms, decided_ms = :decided_ms,
  next_at_ms = :next_at_ms, paused_at_ms = :paused_at_ms, skipped = skipped + :skip_count
WHERE tenant = :tenant AND schedule = :schedule
-- step: when skip_count
INSERT INTO schedule_skip (tenant, schedule, first_ms, last_ms, count, reason, at_ms)
VALUES (:tenant, :schedule, :skip_first_ms, :skip_last_ms, :skip_count, :skip_reason, :at_ms)
-- step: refused
SELECT 1 AS known

-- name: schedules.fire
-- Writes down what was decided of a schedule, if it is as it was looked at, or that it is run by
-- hand; stores what happened by that, unless it is there already, and starts the processes of it.
-- mode: write
-- children: occurrences(occurrence, key, payload, digest)
-- children: deliveries(occurrence_key, occurrence, owner_session, owner_frame, key, subscription,
-- children: process, state, reason, identity)
-- children: processes(occurrence_key, occurrence, process, kind, definition, recovery,
-- children: origin_session, wake_session, registration, identity)
-- children: grants(occurrence_key, occurrence, session, frame, process, kind, label)
-- returns: stored
-- explains: same, version
-- Differs by necessity: a script instead of a function; the occurrences come last, so that until
-- then those that are found were there before.
-- step: guard
SELECT (SELECT count(*) FROM json_each(:occurrences.key) x WHERE NOT EXISTS (
    SELECT 1 FROM trigger_occurrence o WHERE o.tenant = :tenant AND o.key = x.value)) AS stored,
  NOT :by_hand AS decides
FROM schedule s WHERE s.tenant = :tenant AND s.schedule = :schedule
  AND s.digest = :seen_digest -- guard: definition
  AND (:by_hand OR (s.decided_ms = :seen_decided_ms -- guard: decided
    AND s.paused_at_ms IS NULL)) -- guard: paused
  AND (:occurrences.n = 0 OR :version = coalesce((SELECT t.version FROM trigger_source t
    WHERE t.tenant = :tenant AND t.source_type = 'schedule' AND t.source_key = :schedule), 0)
  ) -- guard: source
-- step: when decides
UPDATE schedule SET decided_ms = :decided_ms, next_at_ms = :next_at_ms,
  last_at_ms = coalesce(:last_at_ms, last_at_ms), fired = fired + :fire_count,
  skipped = skipped + :skip_count
WHERE tenant = :tenant AND schedule = :schedule
-- step: when by_hand
UPDATE schedule SET ran = ran + :stored WHERE tenant = :tenant AND schedule = :schedule
-- step: when skip_count
INSERT INTO schedule_skip (tenant, schedule, first_ms, last_ms, count, reason, at_ms)
VALUES (:tenant, :schedule, :skip_first_ms, :skip_last_ms, :skip_count, :skip_reason, :at_ms)
-- step: each grants
INSERT INTO process_grant (tenant, session, frame, process, kind, label, granted_at_ms)
SELECT :tenant, :grants.session, :grants.frame, :grants.process, :grants.kind, :grants.label, :now
WHERE NOT EXISTS (SELECT 1 FROM trigger_occurrence o
    WHERE o.tenant = :tenant AND o.key = :grants.occurrence_key)
  AND NOT EXISTS (
    SELECT 1 FROM process p WHERE p.tenant = :tenant AND p.process = :grants.process)
  AND NOT EXISTS (SELECT 1 FROM session s WHERE s.tenant = :tenant
    AND s.session = :grants.session AND s.deleted_at_ms IS NOT NULL)
-- step: each processes
INSERT INTO process (tenant, process, kind, definition, recovery, origin_session, wake_session,
  registration, identity, created_at_ms, state, last_event, updated_at_ms, ready_at_ms,
  lease_generation)
SELECT :tenant, :processes.process, :processes.kind, :processes.definition, :processes.recovery,
  :processes.origin_session, :processes.wake_session, :processes.registration,
  :processes.identity, :now, 'running', 0, :now,
  CASE WHEN :processes.recovery <> 'external' THEN :now END, 0
WHERE NOT EXISTS (SELECT 1 FROM trigger_occurrence o
  WHERE o.tenant = :tenant AND o.key = :processes.occurrence_key)
ON CONFLICT (tenant, process) DO NOTHING
-- step: each deliveries
INSERT INTO trigger_delivery (tenant, occurrence, owner_session, owner_frame, key, subscription,
  process, state, reason, at_ms)
SELECT :tenant, :deliveries.occurrence, :deliveries.owner_session, :deliveries.owner_frame,
  :deliveries.key, :deliveries.subscription, :deliveries.process,
  CASE WHEN taken.yes THEN 'rejected' ELSE :deliveries.state END,
  CASE WHEN taken.yes THEN 'another process has its id' ELSE :deliveries.reason END, :now
FROM (SELECT EXISTS (SELECT 1 FROM process p WHERE p.tenant = :tenant
  AND p.process = :deliveries.process AND p.identity <> :deliveries.identity
  AND p.pruned_at_ms IS NULL) AS yes) taken
WHERE NOT EXISTS (SELECT 1 FROM trigger_occurrence o
  WHERE o.tenant = :tenant AND o.key = :deliveries.occurrence_key)
-- step: each occurrences
INSERT INTO trigger_occurrence (tenant, occurrence, source_type, source_key, key, payload, digest,
  at_ms)
VALUES (:tenant, :occurrences.occurrence, 'schedule', :schedule, :occurrences.key,
  :occurrences.payload, :occurrences.digest, :now)
ON CONFLICT DO NOTHING
-- step: refused
SELECT EXISTS (SELECT 1 FROM schedule s WHERE s.tenant = :tenant AND s.schedule = :schedule
    AND s.digest = :seen_digest
    AND (:by_hand OR (s.decided_ms = :seen_decided_ms AND s.paused_at_ms IS NULL))) AS same,
  coalesce((SELECT t.version FROM trigger_source t WHERE t.tenant = :tenant
    AND t.source_type = 'schedule' AND t.source_key = :schedule), 0) AS version

-- name: schedules.delete
-- Removes a schedule with what was skipped of it.
-- mode: write
-- returns: deleted
-- step: rows
SELECT count(*) AS deleted FROM schedule WHERE tenant = :tenant AND schedule = :schedule
-- step: plain
DELETE FROM schedule_skip WHERE tenant = :tenant AND schedule = :schedule
-- step: plain
DELETE FROM schedule WHERE tenant = :tenant AND schedule = :schedule
