-- name: triggers.change
-- Registers, enables, disables or deletes a subscription, and keeps the answer for an operation.
-- mode: write
-- returns: created, changed, owner_session, owner_frame, key, subscription, incarnation
-- returns: revision, enabled, name, source_type, source_key, definition, digest, created_at_ms
-- returns: updated_at_ms, deleted_at_ms
-- explains: gone, known, deleted, revision, intent
-- step: guard
SELECT * FROM {schema}.change_subscription_v1(:tenant, :verb, :owner_session, :owner_frame, :key,
  :expected, :operation, :intent, :subscription, :name, :source_type, :source_key, :enabled,
  :definition, :digest)
-- step: refused
SELECT o.deleted_at_ms IS NOT NULL AS gone, s.key IS NOT NULL AS known,
  s.deleted_at_ms IS NOT NULL AS deleted, s.revision, r.intent
FROM (SELECT 1) one
LEFT JOIN {schema}.session o ON o.tenant = :tenant AND o.session = :owner_session
LEFT JOIN {schema}.trigger_subscription s ON s.tenant = :tenant
  AND s.owner_session = :owner_session AND s.owner_frame = :owner_frame AND s.key = :key
LEFT JOIN {schema}.trigger_receipt r ON r.tenant = :tenant AND r.operation = :operation

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
FROM {schema}.trigger_subscription s
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
FROM {schema}.trigger_subscription s
WHERE s.tenant = :tenant AND s.deleted_at_ms IS NULL
  AND (:source_type::text IS NULL OR s.source_type = :source_type)
  AND (:source_key::text IS NULL OR s.source_key = :source_key)
  AND (:name::text IS NULL OR s.name = :name)
  AND (:enabled::boolean IS NULL OR s.enabled = :enabled)
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
FROM {schema}.trigger_subscription s
WHERE s.tenant = :tenant AND s.deleted_at_ms IS NULL
  AND s.owner_session = :session
  AND (:source_type::text IS NULL OR s.source_type = :source_type)
  AND (:source_key::text IS NULL OR s.source_key = :source_key)
  AND (:name::text IS NULL OR s.name = :name)
  AND (:enabled::boolean IS NULL OR s.enabled = :enabled)
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
FROM {schema}.trigger_subscription s
WHERE s.tenant = :tenant AND s.deleted_at_ms IS NULL
  AND s.source_type = :source_type AND s.source_key = :source_key
  AND (:session::text IS NULL OR s.owner_session = :session)
  AND (:name::text IS NULL OR s.name = :name)
  AND (:enabled::boolean IS NULL OR s.enabled = :enabled)
  AND (s.owner_session, s.owner_frame, s.key)
    > (:after_session, :after_frame, :after_key)
ORDER BY s.owner_session, s.owner_frame, s.key LIMIT :limit

-- name: triggers.record
-- Stores what happened, unless its key is there already.
-- mode: write
-- returns: at_ms
-- explains: occurrence, source_type, source_key, key, payload, source, digest, at_ms
-- step: guard
INSERT INTO {schema}.trigger_occurrence (tenant, occurrence, source_type, source_key, key, payload,
  source, digest, at_ms)
VALUES (:tenant, :occurrence, :source_type, :source_key, :key, :payload, :source, :digest,
  {schema}.now_ms())
ON CONFLICT DO NOTHING RETURNING at_ms
-- step: refused
SELECT
  o.occurrence, o.source_type, o.source_key, o.key, o.payload, o.source, o.digest, o.at_ms
FROM (SELECT 1) one LEFT JOIN {schema}.trigger_occurrence o ON o.tenant = :tenant
  AND o.occurrence = coalesce((SELECT k.occurrence FROM {schema}.trigger_occurrence k
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
FROM (SELECT 1) one
LEFT JOIN {schema}.trigger_source t ON t.tenant = :tenant AND t.source_type = :source_type
  AND t.source_key = :source_key
LEFT JOIN {schema}.trigger_occurrence o ON o.tenant = :tenant AND o.key = :occurrence_key
LEFT JOIN (
  SELECT s.owner_session, s.owner_frame, s.key, s.subscription, s.name, s.source_type, s.source_key,
    s.definition, s.digest
  FROM {schema}.trigger_subscription s
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
FROM {schema}.trigger_occurrence o
LEFT JOIN {schema}.trigger_source t ON t.tenant = :tenant AND t.source_type = o.source_type
  AND t.source_key = o.source_key
LEFT JOIN {schema}.trigger_subscription s
  ON s.tenant = :tenant AND s.source_type = o.source_type AND s.source_key = o.source_key
  AND s.deleted_at_ms IS NULL AND s.enabled AND NOT EXISTS (
    SELECT FROM {schema}.trigger_delivery d WHERE d.tenant = :tenant AND d.occurrence = :occurrence
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
FROM {schema}.trigger_occurrence o
LEFT JOIN {schema}.trigger_delivery d
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
-- step: guard
SELECT * FROM {schema}.deliver_v1(:tenant, 'ingest', :occurrence, :source_type, :source_key,
  :version, :key, :payload, :source,
  :digest, :deliveries.owner_session, :deliveries.owner_frame, :deliveries.key,
  :deliveries.subscription, :deliveries.process, :deliveries.state, :deliveries.reason,
  :deliveries.body, :deliveries.seal, :processes.process, :processes.kind, :processes.definition,
  :processes.recovery, :processes.origin_session, :processes.wake_session,
  :processes.registration, :processes.identity, :grants.session, :grants.frame, :grants.process,
  :grants.kind, :grants.label)
-- step: refused
SELECT coalesce((SELECT t.version FROM {schema}.trigger_source t WHERE t.tenant = :tenant
  AND t.source_type = :source_type AND t.source_key = :source_key), 0) AS version

-- name: triggers.reserve
-- Reserves deliveries of an occurrence, unless its source has changed since they were decided.
-- mode: write
-- children: deliveries(owner_session, owner_frame, key, subscription, process, state, reason,
-- children: body, seal, identity)
-- returns: occurred_at_ms, occurrence, owner_session, owner_frame, key, subscription, process
-- returns: state, reason, at_ms
-- explains: known
-- step: guard
SELECT * FROM {schema}.deliver_v1(:tenant, 'reserve', :occurrence, :source_type, :source_key,
  :version, NULL, NULL, NULL, NULL,
  :deliveries.owner_session, :deliveries.owner_frame, :deliveries.key, :deliveries.subscription,
  :deliveries.process, :deliveries.state, :deliveries.reason, :deliveries.body, :deliveries.seal,
  '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')
-- step: refused
SELECT EXISTS (SELECT FROM {schema}.trigger_occurrence o WHERE o.tenant = :tenant
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
SELECT * FROM {schema}.deliver_v1(:tenant, 'start', :occurrence, NULL, NULL, NULL, NULL, NULL,
  NULL, NULL,
  :deliveries.owner_session, :deliveries.owner_frame, :deliveries.key, :deliveries.subscription,
  :deliveries.process, :deliveries.state, :deliveries.reason, :deliveries.body, :deliveries.seal,
  :processes.process, :processes.kind, :processes.definition, :processes.recovery,
  :processes.origin_session, :processes.wake_session, :processes.registration,
  :processes.identity, :grants.session, :grants.frame, :grants.process, :grants.kind,
  :grants.label)

-- name: triggers.occurrence
-- An occurrence by its id.
-- mode: read
-- returns: occurrence, source_type, source_key, key, payload, source, digest, at_ms
SELECT o.occurrence, o.source_type, o.source_key, o.key, o.payload, o.source, o.digest, o.at_ms
FROM {schema}.trigger_occurrence o WHERE o.tenant = :tenant AND o.occurrence = :occurrence

-- name: triggers.occurrences
-- A page of the occurrences, oldest first.
-- mode: read
-- returns: occurrence, source_type, source_key, key, payload, source, digest, at_ms
SELECT o.occurrence, o.source_type, o.source_key, o.key, o.payload, o.source, o.digest, o.at_ms
FROM {schema}.trigger_occurrence o
WHERE o.tenant = :tenant
  AND (:source_type::text IS NULL OR o.source_type = :source_type)
  AND (:source_key::text IS NULL OR o.source_key = :source_key)
  AND (o.at_ms, o.occurrence) > (:after_ms::bigint, :after)
ORDER BY o.at_ms, o.occurrence LIMIT :limit

-- name: triggers.occurrences_of_source
-- A page of the occurrences of a source, oldest first.
-- mode: read
-- returns: occurrence, source_type, source_key, key, payload, source, digest, at_ms
SELECT o.occurrence, o.source_type, o.source_key, o.key, o.payload, o.source, o.digest, o.at_ms
FROM {schema}.trigger_occurrence o
WHERE o.tenant = :tenant
  AND o.source_type = :source_type AND o.source_key = :source_key
  AND (o.at_ms, o.occurrence) > (:after_ms::bigint, :after)
ORDER BY o.at_ms, o.occurrence LIMIT :limit

-- name: triggers.deliveries
-- A page of the deliveries of an occurrence, in the order of their owners and keys.
-- mode: read
-- returns: occurrence, owner_session, owner_frame, key, subscription, process, state, reason
-- returns: at_ms
SELECT d.occurrence, d.owner_session, d.owner_frame, d.key, d.subscription, d.process, d.state,
  d.reason, d.at_ms
FROM {schema}.trigger_delivery d
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
FROM {schema}.trigger_delivery d
WHERE d.tenant = :tenant AND d.state = 'reserved'
  AND (d.occurrence, d.owner_session, d.owner_frame, d.key, d.subscription)
    > (:after_occurrence, :after_session, :after_frame, :after_key, :after)
ORDER BY d.occurrence, d.owner_session, d.owner_frame, d.key, d.subscription LIMIT :limit

-- name: triggers.prune
-- Lets go of occurrences from before a time whose processes have all ended, oldest first.
-- mode: write
-- returns: occurrences, deliveries, more
-- explains: occurrences
-- Differs by necessity: the occurrences are locked first, and what was reserved of them meanwhile
-- is seen by the statements after that. OFFSET 0 has each occurrence looked at when its turn comes,
-- instead of all deliveries at once.
-- step: guard
SELECT coalesce(array_agg(x.occurrence ORDER BY x.at_ms, x.occurrence), '{}') AS held FROM (
  SELECT o.occurrence, o.at_ms FROM {schema}.trigger_occurrence o
  WHERE o.tenant = :tenant AND o.at_ms < :before_ms::bigint
    AND NOT EXISTS (SELECT FROM {schema}.trigger_delivery d
      LEFT JOIN {schema}.process p ON p.tenant = :tenant AND p.process = d.process
      WHERE d.tenant = :tenant AND d.occurrence = o.occurrence AND d.state <> 'rejected'
        AND (d.state = 'reserved' OR (p.state = 'running' AND p.pruned_at_ms IS NULL)) OFFSET 0)
  ORDER BY o.at_ms, o.occurrence LIMIT :limit::bigint + 1 FOR UPDATE OF o SKIP LOCKED) x
-- step: guard
SELECT coalesce(array_agg(o.occurrence ORDER BY o.n), '{}') AS doomed
FROM unnest((:held::text[])[1 : :limit::int]) WITH ORDINALITY AS o(occurrence, n)
WHERE NOT EXISTS (SELECT FROM {schema}.trigger_delivery d
      LEFT JOIN {schema}.process p ON p.tenant = :tenant AND p.process = d.process
      WHERE d.tenant = :tenant AND d.occurrence = o.occurrence AND d.state <> 'rejected'
        AND (d.state = 'reserved' OR (p.state = 'running' AND p.pruned_at_ms IS NULL)) OFFSET 0)
-- step: rows
SELECT to_json(:doomed::text[])::text AS occurrences,
  (SELECT count(*) FROM {schema}.trigger_delivery d
    WHERE d.tenant = :tenant AND d.occurrence = ANY (:doomed::text[])) AS deliveries,
  cardinality(:held::text[]) > :limit AS more
-- step: plain
DELETE FROM {schema}.trigger_delivery
WHERE tenant = :tenant AND occurrence = ANY (:doomed::text[])
-- step: plain
DELETE FROM {schema}.trigger_occurrence
WHERE tenant = :tenant AND occurrence = ANY (:doomed::text[])
-- step: refused
SELECT '[]' AS occurrences
