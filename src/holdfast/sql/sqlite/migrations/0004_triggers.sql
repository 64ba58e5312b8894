-- oldest reader: 1
-- Triggers: subscriptions, what happened at their sources, and the processes that it starts.

-- A source that somebody has subscribed to. `version` moves with every change of a subscription to
-- it: it is the row that guards who is delivered to.
CREATE TABLE trigger_source (
  tenant TEXT NOT NULL,
  source_type TEXT NOT NULL,
  source_key TEXT NOT NULL,
  version INTEGER NOT NULL CHECK (version >= 0),
  PRIMARY KEY (tenant, source_type, source_key)
) STRICT, WITHOUT ROWID;

-- A rule of its owner, under its key; the owner is empty for the host, the frame for a session as a
-- whole. `definition` is what was registered, and `digest` proves it. `subscription` is the id of
-- this incarnation. Of a deleted one the row stays, so that its revisions go on.
CREATE TABLE trigger_subscription (
  tenant TEXT NOT NULL,
  owner_session TEXT NOT NULL,
  owner_frame TEXT NOT NULL,
  key TEXT NOT NULL,
  subscription TEXT NOT NULL,
  incarnation INTEGER NOT NULL CHECK (incarnation >= 1),
  revision INTEGER NOT NULL CHECK (revision >= 1),
  enabled INTEGER NOT NULL CHECK (enabled IN (0, 1)),
  name TEXT NOT NULL,
  source_type TEXT NOT NULL,
  source_key TEXT NOT NULL,
  definition BLOB NOT NULL,
  digest BLOB NOT NULL,
  created_at_ms INTEGER NOT NULL,
  updated_at_ms INTEGER NOT NULL,
  deleted_at_ms INTEGER,
  PRIMARY KEY (tenant, owner_session, owner_frame, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX trigger_subscription_source ON trigger_subscription
  (tenant, source_type, source_key, owner_session, owner_frame, key) WHERE deleted_at_ms IS NULL;

-- The answer to a change that had an operation, as it was: it is given again to the same operation.
CREATE TABLE trigger_receipt (
  tenant TEXT NOT NULL,
  operation TEXT NOT NULL,
  intent BLOB NOT NULL,
  created INTEGER NOT NULL,
  changed INTEGER NOT NULL,
  owner_session TEXT NOT NULL,
  owner_frame TEXT NOT NULL,
  key TEXT NOT NULL,
  subscription TEXT NOT NULL,
  incarnation INTEGER NOT NULL,
  revision INTEGER NOT NULL,
  enabled INTEGER NOT NULL CHECK (enabled IN (0, 1)),
  name TEXT NOT NULL,
  source_type TEXT NOT NULL,
  source_key TEXT NOT NULL,
  definition BLOB NOT NULL,
  digest BLOB NOT NULL,
  created_at_ms INTEGER NOT NULL,
  updated_at_ms INTEGER NOT NULL,
  deleted_at_ms INTEGER,
  PRIMARY KEY (tenant, operation)
) STRICT, WITHOUT ROWID;
CREATE INDEX trigger_receipt_owner ON trigger_receipt (tenant, owner_session, operation);

-- What happened, once for each key. `digest` proves all of it.
CREATE TABLE trigger_occurrence (
  tenant TEXT NOT NULL,
  occurrence TEXT NOT NULL,
  source_type TEXT NOT NULL,
  source_key TEXT NOT NULL,
  key TEXT NOT NULL,
  payload BLOB NOT NULL,
  source BLOB,
  digest BLOB NOT NULL,
  at_ms INTEGER NOT NULL,
  PRIMARY KEY (tenant, occurrence)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX trigger_occurrence_key ON trigger_occurrence (tenant, key);
CREATE INDEX trigger_occurrence_at ON trigger_occurrence (tenant, at_ms, occurrence);
CREATE INDEX trigger_occurrence_source ON trigger_occurrence
  (tenant, source_type, source_key, at_ms, occurrence);

-- That an occurrence starts the process of a subscription. While it is reserved it has what was
-- registered of the subscription then; afterwards that is in the process.
CREATE TABLE trigger_delivery (
  tenant TEXT NOT NULL,
  occurrence TEXT NOT NULL,
  owner_session TEXT NOT NULL,
  owner_frame TEXT NOT NULL,
  key TEXT NOT NULL,
  subscription TEXT NOT NULL,
  process TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('reserved', 'started', 'rejected')),
  reason TEXT,
  definition BLOB,
  digest BLOB,
  at_ms INTEGER NOT NULL,
  PRIMARY KEY (tenant, occurrence, owner_session, owner_frame, key, subscription),
  CHECK ((definition IS NOT NULL) = (state = 'reserved')),
  CHECK ((reason IS NOT NULL) = (state = 'rejected'))
) STRICT, WITHOUT ROWID;
CREATE INDEX trigger_delivery_reserved ON trigger_delivery
  (tenant, occurrence, owner_session, owner_frame, key, subscription) WHERE state = 'reserved';
CREATE INDEX trigger_delivery_owner ON trigger_delivery
  (tenant, owner_session, occurrence, owner_frame, key, subscription) WHERE state = 'reserved';
