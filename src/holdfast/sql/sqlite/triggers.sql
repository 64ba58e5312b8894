-- name: triggers.change
-- Registers, enables, disables or deletes a subscription, and keeps the answer for an operation.
-- mode: write
-- returns: created, changed, owner_session, owner_frame, key, subscription, incarnation
-- returns: revision, enabled, name, source_type, source_key, definition, digest, created_at_ms
-- returns: updated_at_ms, deleted_at_ms
-- explains: gone, known, deleted, revision, intent
-- Differs by necessity: a script instead of a function, with the same parts in the same order.
-- step: guard
SELECT a.act, a.act IN ('create', 'revive') AS created, a.act NOT IN ('same', 'replay') AS changes,
  a.act IN ('create', 'update', 'revive') AS defines, a.act IN ('enable', 'disable', 'delete')
  AS switches, a.act = 'replay' AS replays, a.act <> 'replay' AND :operation IS NOT NULL AS keeps,
  coalesce(a.source_type, :source_type) AS old_type, coalesce(a.source_key, :source_key) AS old_key,
  a.act = 'update' AND (a.source_type <> :source_type OR a.source_key <> :source_key)
    OR a.act = 'revive' AND (a.source_type <> :source_type OR a.source_key <> :source_key) AS moves
FROM (
  SELECT s.source_type, s.source_key, CASE
    WHEN r.intent IS NOT NULL THEN CASE WHEN r.intent = :intent THEN 'replay' END
    WHEN :verb = 'register' THEN CASE
      WHEN o.deleted_at_ms IS NOT NULL THEN NULL -- guard: owner
      WHEN s.key IS NULL THEN CASE WHEN coalesce(:expected, 0) = 0 THEN 'create' END
      WHEN s.deleted_at_ms IS NOT NULL
      THEN CASE WHEN coalesce(:expected, s.revision) = s.revision THEN 'revive' END
      WHEN s.definition = :definition THEN 'same'
      WHEN :expected = s.revision THEN 'update' END -- guard: revision
    WHEN s.key IS NULL THEN NULL
    WHEN s.deleted_at_ms IS NOT NULL THEN CASE WHEN :verb = 'delete' THEN 'same' END
    WHEN :expected <> s.revision THEN NULL -- guard: expected
    WHEN :verb = 'delete' THEN 'delete'
    WHEN s.enabled = (:verb = 'enable') THEN 'same'
    ELSE :verb END AS act
  FROM (SELECT 1)
  LEFT JOIN trigger_subscription s ON s.tenant = :tenant AND s.owner_session = :owner_session
    AND s.owner_frame = :owner_frame AND s.key = :key
  LEFT JOIN trigger_receipt r ON r.tenant = :tenant AND r.operation = :operation
  LEFT JOIN session o ON o.tenant = :tenant AND o.session = :owner_session) a
WHERE a.act IS NOT NULL
-- step: when defines
INSERT INTO trigger_subscription (tenant, owner_session, owner_frame, key, subscription,
  incarnation, revision, enabled, name, source_type, source_key, definition, digest,
  created_at_ms, updated_at_ms)
VALUES (:tenant, :owner_session, :owner_frame, :key, :subscription, 1, 1, :enabled, :name,
  :source_type, :source_key, :definition, :digest, :now, :now)
ON CONFLICT (tenant, owner_session, owner_frame, key) DO UPDATE SET revision = revision + 1,
  name = excluded.name, source_type = excluded.source_type, source_key = excluded.source_key,
  definition = excluded.definition, digest = excluded.digest, updated_at_ms = :now,
  deleted_at_ms = NULL,
  subscription = CASE WHEN :created THEN excluded.subscription ELSE subscription END,
  incarnation = CASE WHEN :created THEN incarnation + 1 ELSE incarnation END,
  enabled = CASE WHEN :created THEN excluded.enabled ELSE enabled END,
  created_at_ms = CASE WHEN :created THEN :now ELSE created_at_ms END
-- step: when switches
UPDATE trigger_subscription SET revision = revision + 1, updated_at_ms = :now,
  enabled = CASE WHEN :act = 'delete' THEN enabled ELSE :act = 'enable' END,
  deleted_at_ms = CASE WHEN :act = 'delete' THEN :now END
WHERE tenant = :tenant AND owner_session = :owner_session AND owner_frame = :owner_frame
  AND key = :key
-- step: when changes
INSERT INTO trigger_source (tenant, source_type, source_key, version)
VALUES (:tenant, :old_type, :old_key, 1)
ON CONFLICT (tenant, source_type, source_key) DO UPDATE SET version = version + 1
-- step: when moves
INSERT INTO trigger_source (tenant, source_type, source_key, version)
VALUES (:tenant, :source_type, :source_key, 1)
ON CONFLICT (tenant, source_type, source_key) DO UPDATE SET version = version + 1
-- step: when keeps
INSERT INTO trigger_receipt (tenant, operation, intent, created, changed,
  owner_session, owner_frame, key, subscription, incarnation, revision, enabled, name,
  source_type, source_key, definition, digest, created_at_ms, updated_at_ms, deleted_at_ms)
SELECT :tenant, :operation, :intent, :created, :changes,
  s.owner_session, s.owner_frame, s.key, s.subscription, s.incarnation, s.revision, s.enabled,
  s.name, s.source_type, s.source_key, s.definition, s.digest, s.created_at_ms, s.updated_at_ms,
  s.deleted_at_ms
FROM trigger_subscription s WHERE s.tenant = :tenant AND s.owner_session = :owner_session
  AND s.owner_frame = :owner_frame AND s.key = :key
-- step: rows
SELECT r.created, r.changed,
  r.owner_session, r.owner_frame, r.key, r.subscription, r.incarnation, r.revision, r.enabled,
  r.name, r.source_type, r.source_key, r.definition, r.digest, r.created_at_ms, r.updated_at_ms,
  r.deleted_at_ms
FROM trigger_receipt r WHERE :replays AND r.tenant = :tenant AND r.operation = :operation
UNION ALL
SELECT :created, :changes,
  s.owner_session, s.owner_frame, s.key, s.subscription, s.incarnation, s.revision, s.enabled,
  s.name, s.source_type, s.source_key, s.definition, s.digest, s.created_at_ms, s.updated_at_ms,
  s.deleted_at_ms
FROM trigger_subscription s WHERE NOT :replays AND s.tenant = :tenant
  AND s.owner_session = :owner_session AND s.owner_frame = :owner_frame AND s.key = :key
-- step: refused
SELECT coalesce(o.deleted_at_ms IS NOT NULL, 0) AS gone, s.key IS NOT NULL AS known,
  s.deleted_at_ms IS NOT NULL AS deleted, s.revision, r.intent
FROM (SELECT 1)
LEFT JOIN session o ON o.tenant = :tenant AND o.session = :owner_session
LEFT JOIN trigger_subscription s ON s.tenant = :tenant
  AND s.owner_session = :owner_session AND s.owner_frame = :owner_frame AND s.key = :key
LEFT JOIN trigger_receipt r ON r.tenant = :tenant AND r.operation = :operation

-- name: triggers.get
-- A subscription by its owner and key.
-- mode: read
-- returns: owner_session, owner_frame, key, subscription, incarnation, revision, enabled, name
-- returns: source_type, source_key, definition, digest, created_at_ms, updated_at_ms
-- returns: deleted_at_ms
SELECT
  s.owner_session, s.owner_frame, s.key, s.subscription, s.incarnation, s.revision, s.enabled,
  s.name, s.source_type, s.source_key, s.definition, s.digest, s.created_at_ms, s.updated_at_ms,
  s.deleted_at_ms
FROM trigger_subscription s
WHERE s.tenant = :tenant AND s.owner_session = :owner_session AND s.owner_frame = :owner_frame
  AND s.key = :key AND s.deleted_at_ms IS NULL

-- name: triggers.list
-- A page of the subscriptions, in the order of their owners and keys.
-- mode: read
-- returns: owner_session, owner_frame, key, subscription, incarnation, revision, enabled, name
-- returns: source_type, source_key, definition, digest, created_at_ms, updated_at_ms
-- returns: deleted_at_ms
SELECT
  s.owner_session, s.owner_frame, s.key, s.subscription, s.incarnation, s.revision, s.enabled,
  s.name, s.source_type, s.source_key, s.definition, s.digest, s.created_at_ms, s.updated_at_ms,
  s.deleted_at_ms
FROM trigger_subscription s
WHERE s.tenant = :tenant AND s.deleted_at_ms IS NULL
  AND (:source_type IS NULL OR s.source_type = :source_type)
  AND (:source_key IS NULL OR s.source_key = :source_key)
  AND (:name IS NULL OR s.name = :name) AND (:enabled IS NULL OR s.enabled = :enabled)
  AND (s.owner_session, s.owner_frame, s.key)
    > (:after_session, :after_frame, :after_key)
ORDER BY s.owner_session, s.owner_frame, s.key LIMIT :limit

-- name: triggers.list_of_session
-- A page of the subscriptions of a session, in the order of frames and keys.
-- mode: read
-- returns: owner_session, owner_frame, key, subscription, incarnation, revision, enabled, name
-- returns: source_type, source_key, definition, digest, created_at_ms, updated_at_ms
-- returns: deleted_at_ms
SELECT
  s.owner_session, s.owner_frame, s.key, s.subscription, s.incarnation, s.revision, s.enabled,
  s.name, s.source_type, s.source_key, s.definition, s.digest, s.created_at_ms, s.updated_at_ms,
  s.deleted_at_ms
FROM trigger_subscription s
WHERE s.tenant = :tenant AND s.deleted_at_ms IS NULL
  AND s.owner_session = :session
  AND (:source_type IS NULL OR s.source_type = :source_type)
  AND (:source_key IS NULL OR s.source_key = :source_key)
  AND (:name IS NULL OR s.name = :name) AND (:enabled IS NULL OR s.enabled = :enabled)
  AND (s.owner_session, s.owner_frame, s.key)
    > (:after_session, :after_frame, :after_key)
ORDER BY s.owner_session, s.owner_frame, s.key LIMIT :limit

-- name: triggers.list_of_source
-- A page of the subscriptions to a source, in the order of their owners and keys.
-- mode: read
-- returns: owner_session, owner_frame, key, subscription, incarnation, revision, enabled, name
-- returns: source_type, source_key, definition, digest, created_at_ms, updated_at_ms
-- returns: deleted_at_ms
SELECT
  s.owner_session, s.owner_frame, s.key, s.subscription, s.incarnation, s.revision, s.enabled,
  s.name, s.source_type, s.source_key, s.definition, s.digest, s.created_at_ms, s.updated_at_ms,
  s.deleted_at_ms
FROM trigger_subscription s
WHERE s.tenant = :tenant AND s.deleted_at_ms IS NULL
  AND s.source_type = :source_type AND s.source_key = :source_key
  AND (:session IS NULL OR s.owner_session = :session)
  AND (:name IS NULL OR s.name = :name) AND (:enabled IS NULL OR s.enabled = :enabled)
  AND (s.owner_session, s.owner_frame, s.key)
    > (:after_session, :after_frame, :after_key)
ORDER BY s.owner_session, s.owner_frame, s.key LIMIT :limit

-- name: triggers.record
-- Stores what happened, unless its key is there already.
-- mode: write
-- returns: at_ms
-- explains: occurrence, source_type, source_key, key, payload, source, digest, at_ms
-- step: guard
SELECT :now AS at_ms WHERE NOT EXISTS (
  SELECT 1 FROM trigger_occurrence o WHERE o.tenant = :tenant AND o.key = :key)
  AND NOT EXISTS (SELECT 1 FROM trigger_occurrence o WHERE o.tenant = :tenant
    AND o.occurrence = :occurrence)
-- step: plain
INSERT INTO trigger_occurrence (tenant, occurrence, source_type, source_key, key, payload, source,
  digest, at_ms)
VALUES (:tenant, :occurrence, :source_type, :source_key, :key, :payload, :source, :digest, :now)
-- step: refused
SELECT
  o.occurrence, o.source_type, o.source_key, o.key, o.payload, o.source, o.digest, o.at_ms
FROM (SELECT 1) LEFT JOIN trigger_occurrence o ON o.tenant = :tenant
  AND o.occurrence = coalesce((SELECT k.occurrence FROM trigger_occurrence k
    WHERE k.tenant = :tenant AND k.key = :key), :occurrence)

-- name: triggers.match
-- What an ingest is decided by: the occurrence if it is there already, else the version of its
-- source and the subscriptions it is delivered to.
-- mode: read
-- returns: version, occurrence, o_source_type, o_source_key, o_key, payload, source, o_digest
-- returns: at_ms, owner_session, owner_frame, key, subscription, name, source_type, source_key
-- returns: definition, digest
SELECT coalesce(t.version, 0) AS version,
  o.occurrence, o.source_type AS o_source_type, o.source_key AS o_source_key, o.key AS o_key,
  o.payload, o.source, o.digest AS o_digest, o.at_ms,
  s.owner_session, s.owner_frame, s.key, s.subscription, s.name, s.source_type, s.source_key,
  s.definition, s.digest
FROM (SELECT 1)
LEFT JOIN trigger_source t ON t.tenant = :tenant AND t.source_type = :source_type
  AND t.source_key = :source_key
LEFT JOIN trigger_occurrence o ON o.tenant = :tenant AND o.key = :occurrence_key
LEFT JOIN (
  SELECT s.owner_session, s.owner_frame, s.key, s.subscription, s.name, s.source_type, s.source_key,
    s.definition, s.digest
  FROM trigger_subscription s INDEXED BY trigger_subscription_source
  WHERE s.tenant = :tenant AND s.source_type = :source_type AND s.source_key = :source_key
    AND s.deleted_at_ms IS NULL AND s.enabled
  ORDER BY s.owner_session, s.owner_frame, s.key LIMIT :limit) s ON o.occurrence IS NULL
ORDER BY s.owner_session, s.owner_frame, s.key

-- name: triggers.unreserved
-- What a reservation is decided by: the occurrence, the version of its source, and the
-- subscriptions it is to be delivered to and is not.
-- mode: read
-- returns: version, occurrence, o_source_type, o_source_key, o_key, payload, source, o_digest
-- returns: at_ms, owner_session, owner_frame, key, subscription, name, source_type, source_key
-- returns: definition, digest
SELECT coalesce(t.version, 0) AS version,
  o.occurrence, o.source_type AS o_source_type, o.source_key AS o_source_key, o.key AS o_key,
  o.payload, o.source, o.digest AS o_digest, o.at_ms,
  s.owner_session, s.owner_frame, s.key, s.subscription, s.name, s.source_type, s.source_key,
  s.definition, s.digest
FROM trigger_occurrence o
LEFT JOIN trigger_source t ON t.tenant = :tenant AND t.source_type = o.source_type
  AND t.source_key = o.source_key
LEFT JOIN trigger_subscription s INDEXED BY trigger_subscription_source
  ON s.tenant = :tenant AND s.source_type = o.source_type AND s.source_key = o.source_key
  AND s.deleted_at_ms IS NULL AND s.enabled AND NOT EXISTS (
    SELECT 1 FROM trigger_delivery d WHERE d.tenant = :tenant AND d.occurrence = :occurrence
    AND d.owner_session = s.owner_session AND d.owner_frame = s.owner_frame AND d.key = s.key
    AND d.subscription = s.subscription)
WHERE o.tenant = :tenant AND o.occurrence = :occurrence
ORDER BY s.owner_session, s.owner_frame, s.key LIMIT :limit

-- name: triggers.unstarted
-- An occurrence with its deliveries that are reserved still.
-- mode: read
-- returns: occurrence, o_source_type, o_source_key, o_key, payload, source, o_digest, at_ms
-- returns: owner_session, owner_frame, key, subscription, process, definition, digest
SELECT
  o.occurrence, o.source_type AS o_source_type, o.source_key AS o_source_key, o.key AS o_key,
  o.payload, o.source, o.digest AS o_digest, o.at_ms,
  d.owner_session, d.owner_frame, d.key, d.subscription, d.process, d.definition, d.digest
FROM trigger_occurrence o
LEFT JOIN trigger_delivery d INDEXED BY trigger_delivery_reserved
  ON d.tenant = :tenant AND d.occurrence = o.occurrence AND d.state = 'reserved'
WHERE o.tenant = :tenant AND o.occurrence = :occurrence
ORDER BY d.owner_session, d.owner_frame, d.key, d.subscription LIMIT :limit

-- name: triggers.ingest
-- Stores what happened and starts the processes of its deliveries, unless it is there already or
-- its source has changed since they were decided.
-- mode: write
-- children: deliveries(owner_session, owner_frame, key, subscription, process, state, reason,
-- children: body, seal, identity)
-- children: processes(process, kind, definition, recovery, origin_session, wake_session,
-- children: registration, identity)
-- children: grants(session, frame, process, kind, label)
-- returns: occurred_at_ms, occurrence, owner_session, owner_frame, key, subscription, process
-- returns: state, reason, at_ms
-- explains: version
-- Differs by necessity: a script instead of a function, with the same parts in the same order.
-- step: guard
SELECT :now AS occurred_at_ms
WHERE NOT EXISTS (SELECT 1 FROM trigger_occurrence o WHERE o.tenant = :tenant AND o.key = :key)
  AND NOT EXISTS (SELECT 1 FROM trigger_occurrence o WHERE o.tenant = :tenant
    AND o.occurrence = :occurrence)
  AND coalesce((SELECT t.version FROM trigger_source t WHERE t.tenant = :tenant
    AND t.source_type = :source_type AND t.source_key = :source_key), 0) = :version
-- step: plain
INSERT INTO trigger_occurrence (tenant, occurrence, source_type, source_key, key, payload, source,
  digest, at_ms)
VALUES (:tenant, :occurrence, :source_type, :source_key, :key, :payload, :source, :digest, :now)
-- step: each grants
INSERT INTO process_grant (tenant, session, frame, process, kind, label, granted_at_ms)
SELECT :tenant, :grants.session, :grants.frame, :grants.process, :grants.kind, :grants.label, :now
WHERE NOT EXISTS (
    SELECT 1 FROM process p WHERE p.tenant = :tenant AND p.process = :grants.process)
  AND NOT EXISTS (SELECT 1 FROM session s WHERE s.tenant = :tenant
    AND s.session = :grants.session AND s.deleted_at_ms IS NOT NULL)
-- step: each processes
INSERT INTO process (tenant, process, kind, definition, recovery, origin_session, wake_session,
  registration, identity, created_at_ms, state, last_event, updated_at_ms, ready_at_ms,
  lease_generation)
VALUES (:tenant, :processes.process, :processes.kind, :processes.definition, :processes.recovery,
  :processes.origin_session, :processes.wake_session, :processes.registration,
  :processes.identity, :now, 'running', 0, :now,
  CASE WHEN :processes.recovery <> 'external' THEN :now END, 0)
ON CONFLICT (tenant, process) DO NOTHING
-- step: each deliveries
INSERT INTO trigger_delivery (tenant, occurrence, owner_session, owner_frame, key, subscription,
  process, state, reason, at_ms)
SELECT :tenant, :occurrence, :deliveries.owner_session, :deliveries.owner_frame, :deliveries.key,
  :deliveries.subscription, :deliveries.process,
  CASE WHEN taken.yes THEN 'rejected' ELSE :deliveries.state END,
  CASE WHEN taken.yes THEN 'another process has its id' ELSE :deliveries.reason END, :now
FROM (SELECT EXISTS (SELECT 1 FROM process p WHERE p.tenant = :tenant
  AND p.process = :deliveries.process AND p.identity <> :deliveries.identity
  AND p.pruned_at_ms IS NULL) AS yes) taken
-- step: rows
SELECT :occurred_at_ms AS occurred_at_ms,
  d.occurrence, d.owner_session, d.owner_frame, d.key, d.subscription, d.process, d.state,
  d.reason, d.at_ms
FROM (SELECT 1) LEFT JOIN trigger_delivery d ON d.tenant = :tenant AND d.occurrence = :occurrence
ORDER BY d.owner_session, d.owner_frame, d.key, d.subscription
-- step: refused
SELECT coalesce((SELECT t.version FROM trigger_source t WHERE t.tenant = :tenant
  AND t.source_type = :source_type AND t.source_key = :source_key), 0) AS version

-- name: triggers.reserve
-- Reserves deliveries of an occurrence, unless its source has changed since they were decided.
-- mode: write
-- children: deliveries(owner_session, owner_frame, key, subscription, process, state, reason,
-- children: body, seal, identity)
-- returns: occurred_at_ms, occurrence, owner_session, owner_frame, key, subscription, process
-- returns: state, reason, at_ms
-- explains: known
-- Differs by necessity: a script instead of a function, with the same parts in the same order.
-- step: guard
SELECT o.at_ms AS occurred_at_ms FROM trigger_occurrence o
WHERE o.tenant = :tenant AND o.occurrence = :occurrence
  AND coalesce((SELECT t.version FROM trigger_source t WHERE t.tenant = :tenant
    AND t.source_type = :source_type AND t.source_key = :source_key), 0) = :version
-- step: each deliveries
INSERT INTO trigger_delivery (tenant, occurrence, owner_session, owner_frame, key, subscription,
  process, state, reason, definition, digest, at_ms)
VALUES (:tenant, :occurrence, :deliveries.owner_session, :deliveries.owner_frame, :deliveries.key,
  :deliveries.subscription, :deliveries.process, :deliveries.state, :deliveries.reason,
  :deliveries.body, :deliveries.seal, :now)
-- step: rows
SELECT :occurred_at_ms AS occurred_at_ms,
  d.occurrence, d.owner_session, d.owner_frame, d.key, d.subscription, d.process, d.state,
  d.reason, d.at_ms
FROM trigger_delivery d
WHERE d.tenant = :tenant AND d.occurrence = :occurrence
  AND d.process IN (SELECT value FROM json_each(:deliveries.process))
-- step: refused
SELECT EXISTS (SELECT 1 FROM trigger_occurrence o WHERE o.tenant = :tenant
  AND o.occurrence = :occurrence) AS known

-- name: triggers.start
-- Starts the processes of deliveries that are reserved still.
-- mode: write
-- children: deliveries(owner_session, owner_frame, key, subscription, process, state, reason,
-- children: body, seal, identity)
-- children: processes(process, kind, definition, recovery, origin_session, wake_session,
-- children: registration, identity)
-- children: grants(session, frame, process, kind, label)
-- returns: occurred_at_ms, occurrence, owner_session, owner_frame, key, subscription, process
-- returns: state, reason, at_ms
-- Differs by necessity: a script instead of a function, with the same parts in the same order.
-- step: each grants
INSERT INTO process_grant (tenant, session, frame, process, kind, label, granted_at_ms)
SELECT :tenant, :grants.session, :grants.frame, :grants.process, :grants.kind, :grants.label, :now
WHERE NOT EXISTS (
    SELECT 1 FROM process p WHERE p.tenant = :tenant AND p.process = :grants.process)
  AND NOT EXISTS (SELECT 1 FROM session s WHERE s.tenant = :tenant
    AND s.session = :grants.session AND s.deleted_at_ms IS NOT NULL)
-- step: each processes
INSERT INTO process (tenant, process, kind, definition, recovery, origin_session, wake_session,
  registration, identity, created_at_ms, state, last_event, updated_at_ms, ready_at_ms,
  lease_generation)
VALUES (:tenant, :processes.process, :processes.kind, :processes.definition, :processes.recovery,
  :processes.origin_session, :processes.wake_session, :processes.registration,
  :processes.identity, :now, 'running', 0, :now,
  CASE WHEN :processes.recovery <> 'external' THEN :now END, 0)
ON CONFLICT (tenant, process) DO NOTHING
-- step: each deliveries
UPDATE trigger_delivery SET definition = NULL, digest = NULL,
  state = CASE WHEN taken.yes THEN 'rejected' ELSE :deliveries.state END,
  reason = CASE WHEN taken.yes THEN 'another process has its id' ELSE :deliveries.reason END
FROM (SELECT EXISTS (SELECT 1 FROM process p WHERE p.tenant = :tenant
  AND p.process = :deliveries.process AND p.identity <> :deliveries.identity
  AND p.pruned_at_ms IS NULL) AS yes) taken
WHERE tenant = :tenant AND occurrence = :occurrence
  AND owner_session = :deliveries.owner_session AND owner_frame = :deliveries.owner_frame
  AND key = :deliveries.key AND subscription = :deliveries.subscription AND state = 'reserved'
-- step: rows
SELECT o.at_ms AS occurred_at_ms,
  d.occurrence, d.owner_session, d.owner_frame, d.key, d.subscription, d.process, d.state,
  d.reason, d.at_ms
FROM trigger_occurrence o CROSS JOIN trigger_delivery d
  ON d.tenant = :tenant AND d.occurrence = :occurrence
WHERE o.tenant = :tenant AND o.occurrence = :occurrence
  AND d.process IN (SELECT value FROM json_each(:deliveries.process))

-- name: triggers.occurrence
-- An occurrence by its id.
-- mode: read
-- returns: occurrence, source_type, source_key, key, payload, source, digest, at_ms
SELECT o.occurrence, o.source_type, o.source_key, o.key, o.payload, o.source, o.digest, o.at_ms
FROM trigger_occurrence o WHERE o.tenant = :tenant AND o.occurrence = :occurrence

-- name: triggers.occurrences
-- A page of the occurrences, oldest first.
-- mode: read
-- returns: occurrence, source_type, source_key, key, payload, source, digest, at_ms
SELECT o.occurrence, o.source_type, o.source_key, o.key, o.payload, o.source, o.digest, o.at_ms
FROM trigger_occurrence o
WHERE o.tenant = :tenant
  AND (:source_type IS NULL OR o.source_type = :source_type)
  AND (:source_key IS NULL OR o.source_key = :source_key)
  AND (o.at_ms, o.occurrence) > (:after_ms, :after)
ORDER BY o.at_ms, o.occurrence LIMIT :limit

-- name: triggers.occurrences_of_source
-- A page of the occurrences of a source, oldest first.
-- mode: read
-- returns: occurrence, source_type, source_key, key, payload, source, digest, at_ms
SELECT o.occurrence, o.source_type, o.source_key, o.key, o.payload, o.source, o.digest, o.at_ms
FROM trigger_occurrence o
WHERE o.tenant = :tenant
  AND o.source_type = :source_type AND o.source_key = :source_key
  AND (o.at_ms, o.occurrence) > (:after_ms, :after)
ORDER BY o.at_ms, o.occurrence LIMIT :limit

-- name: triggers.deliveries
-- A page of the deliveries of an occurrence, in the order of their owners and keys.
-- mode: read
-- returns: occurrence, owner_session, owner_frame, key, subscription, process, state, reason
-- returns: at_ms
SELECT d.occurrence, d.owner_session, d.owner_frame, d.key, d.subscription, d.process, d.state,
  d.reason, d.at_ms
FROM trigger_delivery d
WHERE d.tenant = :tenant AND d.occurrence = :occurrence
  AND (d.owner_session, d.owner_frame, d.key, d.subscription)
    > (:after_session, :after_frame, :after_key, :after)
ORDER BY d.owner_session, d.owner_frame, d.key, d.subscription LIMIT :limit

-- name: triggers.reserved
-- A page of the deliveries that are reserved still, in the order of their occurrences.
-- mode: read
-- returns: occurrence, owner_session, owner_frame, key, subscription, process, state, reason
-- returns: at_ms
SELECT d.occurrence, d.owner_session, d.owner_frame, d.key, d.subscription, d.process, d.state,
  d.reason, d.at_ms
FROM trigger_delivery d INDEXED BY trigger_delivery_reserved
WHERE d.tenant = :tenant AND d.state = 'reserved'
  AND (d.occurrence, d.owner_session, d.owner_frame, d.key, d.subscription)
    > (:after_occurrence, :after_session, :after_frame, :after_key, :after)
ORDER BY d.occurrence, d.owner_session, d.owner_frame, d.key, d.subscription LIMIT :limit

-- name: triggers.prune
-- Lets go of occurrences from before a time whose processes have all ended, oldest first.
-- mode: write
-- returns: occurrences, deliveries, more
-- explains: occurrences
-- step: guard
WITH gone(occurrence) AS MATERIALIZED (
  SELECT o.occurrence FROM trigger_occurrence o INDEXED BY trigger_occurrence_at
  WHERE o.tenant = :tenant AND o.at_ms < :before_ms
    AND NOT EXISTS (SELECT 1 FROM trigger_delivery d
      LEFT JOIN process p ON p.tenant = :tenant AND p.process = d.process
      WHERE d.tenant = :tenant AND d.occurrence = o.occurrence AND d.state <> 'rejected'
        AND (d.state = 'reserved' OR (p.state = 'running' AND p.pruned_at_ms IS NULL)))
  ORDER BY o.at_ms, o.occurrence LIMIT :limit + 1
), taken(occurrence) AS MATERIALIZED (SELECT occurrence FROM gone LIMIT :limit)
SELECT (SELECT json_group_array(occurrence) FROM taken) AS occurrences,
  (SELECT count(*) FROM taken x CROSS JOIN trigger_delivery d
    ON d.tenant = :tenant AND d.occurrence = x.occurrence) AS deliveries,
  (SELECT count(*) FROM gone) > :limit AS more
-- step: plain
DELETE FROM trigger_delivery WHERE tenant = :tenant
  AND occurrence IN (SELECT value FROM json_each(:occurrences))
-- step: plain
DELETE FROM trigger_occurrence WHERE tenant = :tenant
  AND occurrence IN (SELECT value FROM json_each(:occurrences))
-- step: refused
SELECT '[]' AS occurrences
