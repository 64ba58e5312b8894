-- name: schedules.read
-- A schedule, and what time it is; one row, even when there is no such schedule.
-- mode: read
-- returns: now, schedule, timing, payload, digest, missed, cap, grace_ms, start_ms, until_ms
-- returns: revision, created_at_ms, updated_at_ms, decided_ms, next_at_ms, last_at_ms
-- returns: paused_at_ms, fired, skipped, ran
SELECT c.now, s.schedule, s.timing, s.payload, s.digest, s.missed, s.cap, s.grace_ms,
  s.start_ms, s.until_ms, s.revision, s.created_at_ms, s.updated_at_ms, s.decided_ms,
  s.next_at_ms, s.last_at_ms, s.paused_at_ms, s.fired, s.skipped, s.ran
FROM (SELECT {schema}.now_ms() AS now) c
LEFT JOIN {schema}.schedule s ON s.tenant = :tenant AND s.schedule = :schedule

-- name: schedules.list
-- A page of the schedules, in the order of their ids.
-- mode: read
-- returns: schedule, timing, payload, digest, missed, cap, grace_ms, start_ms, until_ms
-- returns: revision, created_at_ms, updated_at_ms, decided_ms, next_at_ms, last_at_ms
-- returns: paused_at_ms, fired, skipped, ran
SELECT s.schedule, s.timing, s.payload, s.digest, s.missed, s.cap, s.grace_ms, s.start_ms,
  s.until_ms, s.revision, s.created_at_ms, s.updated_at_ms, s.decided_ms, s.next_at_ms,
  s.last_at_ms, s.paused_at_ms, s.fired, s.skipped, s.ran
FROM {schema}.schedule s WHERE s.tenant = :tenant AND s.schedule > :after
ORDER BY s.schedule LIMIT :limit

-- name: schedules.skips
-- A page of what was skipped of a schedule, in order.
-- mode: read
-- returns: schedule, first_ms, last_ms, count, reason, at_ms
SELECT schedule, first_ms, last_ms, count, reason, at_ms FROM {schema}.schedule_skip
WHERE tenant = :tenant AND schedule = :schedule AND first_ms > :after::bigint
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
SELECT c.upper_ms,
  (SELECT l.next_at_ms FROM {schema}.schedule l
    WHERE l.tenant = :tenant AND l.next_at_ms > c.upper_ms
    ORDER BY l.next_at_ms LIMIT 1) AS later_ms,
  (SELECT t.version FROM {schema}.trigger_source t WHERE t.tenant = :tenant
    AND t.source_type = 'schedule' AND t.source_key = s.schedule) AS version,
  s.schedule, s.timing, s.payload, s.digest, s.missed, s.cap, s.grace_ms, s.start_ms, s.until_ms,
  s.revision, s.created_at_ms, s.updated_at_ms, s.decided_ms, s.next_at_ms, s.last_at_ms,
  s.paused_at_ms, s.fired, s.skipped, s.ran
FROM (SELECT coalesce(:upper_ms::bigint, {schema}.now_ms()) AS upper_ms OFFSET 0) c
LEFT JOIN LATERAL (
  SELECT d.* FROM {schema}.schedule d
  WHERE d.tenant = :tenant AND d.next_at_ms <= c.upper_ms
    AND (d.next_at_ms, d.schedule) > (:after_ms::bigint, :after::text)
  ORDER BY d.next_at_ms, d.schedule LIMIT :limit) s ON true
ORDER BY s.next_at_ms, s.schedule

-- name: schedules.register
-- Registers a schedule, unless its id is there already.
-- mode: write
-- returns: registered
-- explains: known
-- step: guard
INSERT INTO {schema}.schedule (tenant, schedule, timing, payload, digest, missed, cap, grace_ms,
  start_ms, until_ms, revision, created_at_ms, updated_at_ms, decided_ms, next_at_ms, fired,
  skipped, ran)
VALUES (:tenant, :schedule, :timing, :payload, :digest, :missed, :cap, :grace_ms, :start_ms,
  :until_ms, 1, :at_ms, :at_ms, :decided_ms, :next_at_ms, 0, 0, 0)
ON CONFLICT (tenant, schedule) DO NOTHING RETURNING 1 AS registered
-- step: refused
SELECT 1 AS known

-- name: schedules.change
-- Makes another one of a schedule, when it is the one that was looked at, and tells what of it is
-- skipped by that.
-- mode: write
-- returns: changed
-- explains: known
-- Differs by necessity: who waits for a rival compares what the row is then.
-- step: guard
WITH changed AS (
  UPDATE {schema}.schedule s SET timing = :timing, payload = :payload, digest = :digest,
    missed = :missed, cap = :cap, grace_ms = :grace_ms, start_ms = :start_ms,
    until_ms = :until_ms, revision = s.revision + 1, updated_at_ms = :at_ms,
    decided_ms = :decided_ms, next_at_ms = :next_at_ms, paused_at_ms = :paused_at_ms,
    skipped = s.skipped + :skip_count::bigint
  WHERE s.tenant = :tenant AND s.schedule = :schedule
    AND s.revision = :seen_revision AND s.decided_ms = :seen_decided_ms
    AND s.digest = :seen_digest -- guard: seen
  RETURNING s.schedule
), told AS (
  INSERT INTO {schema}.schedule_skip (tenant, schedule, first_ms, last_ms, count, reason, at_ms)
  SELECT :tenant, c.schedule, :skip_first_ms::bigint, :skip_last_ms::bigint, :skip_count,
    :skip_reason, :at_ms
  FROM changed c WHERE :skip_count > 0
)
SELECT 1 AS changed FROM changed
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
-- step: guard
SELECT f.stored FROM {schema}.fire_schedule_v1(:tenant, :schedule, :by_hand, :seen_digest,
  :seen_decided_ms, :version, :decided_ms, :next_at_ms, :last_at_ms, :fire_count, :skip_first_ms,
  :skip_last_ms, :skip_count, :skip_reason, :at_ms,
  :occurrences.occurrence, :occurrences.key, :occurrences.payload, :occurrences.digest,
  :deliveries.occurrence, :deliveries.owner_session, :deliveries.owner_frame, :deliveries.key,
  :deliveries.subscription, :deliveries.process, :deliveries.state, :deliveries.reason,
  :processes.occurrence, :processes.process, :processes.kind, :processes.definition,
  :processes.recovery, :processes.origin_session, :processes.wake_session,
  :processes.registration, :processes.identity,
  :grants.session, :grants.frame, :grants.process, :grants.kind, :grants.label) f
-- step: refused
SELECT EXISTS (SELECT FROM {schema}.schedule s WHERE s.tenant = :tenant AND s.schedule = :schedule
    AND s.digest = :seen_digest
    AND (:by_hand OR (s.decided_ms = :seen_decided_ms AND s.paused_at_ms IS NULL))) AS same,
  coalesce((SELECT t.version FROM {schema}.trigger_source t WHERE t.tenant = :tenant
    AND t.source_type = 'schedule' AND t.source_key = :schedule), 0) AS version

-- name: schedules.delete
-- Removes a schedule with what was skipped of it.
-- mode: write
-- returns: deleted
-- Differs by necessity: the schedule goes first, so that nobody tells anything of it afterwards.
-- step: rows
WITH gone AS (
  DELETE FROM {schema}.schedule WHERE tenant = :tenant AND schedule = :schedule RETURNING schedule
)
SELECT count(*) AS deleted FROM gone
-- step: plain
DELETE FROM {schema}.schedule_skip WHERE tenant = :tenant AND schedule = :schedule
