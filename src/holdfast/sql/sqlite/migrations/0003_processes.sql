-- oldest reader: 1
-- Processes: what was registered, the log of events that makes the record, grants and leases.

-- One row per process. `registration` is what was registered and never changes; `identity` is its
-- hash. The columns from `state` to `wait_after` are the fold of its events: the pointers name the
-- event that said so last. `ready_at_ms` is when somebody may take it up, if nobody has its lease;
-- null: nobody has to. `change` is its place in the feed of changes; null: it has changed, and has
-- no place yet. Of a pruned process the row stays, so that its id is not used again.
CREATE TABLE process (
  tenant TEXT NOT NULL,
  process TEXT NOT NULL,
  kind TEXT NOT NULL,
  definition TEXT,
  recovery TEXT NOT NULL CHECK (recovery IN ('rerunnable', 'owner-bound', 'external')),
  origin_session TEXT,
  parent TEXT,
  wake_session TEXT,
  registration BLOB NOT NULL,
  identity BLOB NOT NULL,
  created_at_ms INTEGER NOT NULL,
  state TEXT NOT NULL
    CHECK (state IN ('running', 'completed', 'failed', 'cancelled', 'abandoned')),
  last_event INTEGER NOT NULL CHECK (last_event >= 0),
  updated_at_ms INTEGER NOT NULL,
  ended_event INTEGER,
  wait_event INTEGER,
  external_event INTEGER,
  started_at_ms INTEGER,
  cancel_at_ms INTEGER,
  wait_type TEXT,
  wait_after INTEGER,
  ready_at_ms INTEGER,
  lease_owner TEXT,
  lease_token TEXT,
  lease_generation INTEGER NOT NULL CHECK (lease_generation >= 0),
  lease_claimed_at_ms INTEGER,
  lease_expires_at_ms INTEGER,
  due_at_ms INTEGER GENERATED ALWAYS AS (CASE WHEN ready_at_ms IS NULL THEN NULL
    WHEN lease_token IS NULL THEN ready_at_ms
    ELSE max(ready_at_ms, lease_expires_at_ms) END) STORED,
  change INTEGER,
  pruned_at_ms INTEGER,
  PRIMARY KEY (tenant, process),
  CHECK ((ended_event IS NOT NULL) = (state <> 'running'))
) STRICT, WITHOUT ROWID;
CREATE INDEX process_state ON process (tenant, state, process) WHERE pruned_at_ms IS NULL;
CREATE INDEX process_ended ON process (tenant, updated_at_ms, process)
  WHERE pruned_at_ms IS NULL AND ended_event IS NOT NULL;
CREATE INDEX process_due ON process (tenant, due_at_ms, process) WHERE due_at_ms IS NOT NULL;
CREATE INDEX process_parent ON process (tenant, parent, process) WHERE parent IS NOT NULL;
CREATE INDEX process_origin ON process (tenant, origin_session, process)
  WHERE origin_session IS NOT NULL;
CREATE INDEX process_change ON process (tenant, change) WHERE change IS NOT NULL;
CREATE INDEX process_changed ON process (tenant, process) WHERE change IS NULL;

-- The last place in the feed of changes that was given.
CREATE TABLE process_clock (
  tenant TEXT NOT NULL,
  change INTEGER NOT NULL CHECK (change >= 0),
  PRIMARY KEY (tenant)
) STRICT, WITHOUT ROWID;

-- Entry `seq` of the log of a process, and number `ordinal` of its type. `ends`, `output` and
-- `wake` are what its type made of its payload, `work` is what woke `wake_session`; null: there was
-- no such session any more. `acked_at_ms` says that the wake was seen to.
CREATE TABLE process_event (
  tenant TEXT NOT NULL,
  process TEXT NOT NULL,
  seq INTEGER NOT NULL,
  type TEXT NOT NULL,
  ordinal INTEGER NOT NULL,
  key TEXT,
  payload BLOB NOT NULL,
  ends TEXT CHECK (ends IN ('completed', 'failed', 'cancelled', 'abandoned')),
  output BLOB,
  wake BLOB,
  digest BLOB NOT NULL,
  authority TEXT CHECK (authority IN ('lease', 'external', 'operator', 'lapse')),
  wake_session TEXT,
  wake_frame TEXT,
  work TEXT,
  at_ms INTEGER NOT NULL,
  acked_at_ms INTEGER,
  PRIMARY KEY (tenant, process, seq)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX process_event_key ON process_event (tenant, process, key)
  WHERE key IS NOT NULL;
CREATE INDEX process_event_type ON process_event (tenant, process, type, seq);
CREATE INDEX process_event_wake ON process_event (tenant, process, seq)
  WHERE wake IS NOT NULL AND acked_at_ms IS NULL;

-- A scope that may see a process; `frame` is empty for the session as a whole.
CREATE TABLE process_grant (
  tenant TEXT NOT NULL,
  session TEXT NOT NULL,
  frame TEXT NOT NULL,
  process TEXT NOT NULL,
  kind TEXT NOT NULL,
  label TEXT NOT NULL,
  granted_at_ms INTEGER NOT NULL,
  PRIMARY KEY (tenant, session, frame, process)
) STRICT, WITHOUT ROWID;
CREATE INDEX process_grant_process ON process_grant (tenant, process, session, frame);

-- A process with the events that made its record; `wake_gone` says that the session it wakes was
-- deleted.
CREATE VIEW process_seen AS
SELECT p.*, e.type AS end_type, e.key AS end_key, e.payload AS end_payload, e.ends, e.output,
  e.wake AS end_wake, e.digest AS end_digest, e.authority, w.payload AS wait,
  w.digest AS wait_digest, x.payload AS external, x.digest AS external_digest,
  s.deleted_at_ms IS NOT NULL AS wake_gone
FROM process p
LEFT JOIN process_event e
  ON e.tenant = p.tenant AND e.process = p.process AND e.seq = p.ended_event
LEFT JOIN process_event w
  ON w.tenant = p.tenant AND w.process = p.process AND w.seq = p.wait_event
LEFT JOIN process_event x
  ON x.tenant = p.tenant AND x.process = p.process AND x.seq = p.external_event
LEFT JOIN session s ON s.tenant = p.tenant AND s.session = p.wake_session
WHERE p.pruned_at_ms IS NULL;
