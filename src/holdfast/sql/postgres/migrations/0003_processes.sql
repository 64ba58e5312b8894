-- oldest reader: 1
-- Processes: what was registered, the log of events that makes the record, grants and leases.

-- One row per process. `registration` is what was registered and never changes; `identity` is its
-- hash. The columns from `state` to `wake_frame` are the fold of its events: the pointers name the
-- event that said so last. `due_at_ms` is when somebody may take it up; null: nobody has to.
-- `change` is its place in the feed of changes; null: it has changed, and has no place yet. Of a
-- pruned process the row stays as a tombstone, so that its id is not used again.
CREATE TABLE {schema}.process (
  tenant text COLLATE "C" NOT NULL,
  process text COLLATE "C" NOT NULL,
  kind text COLLATE "C" NOT NULL,
  definition text COLLATE "C",
  recovery text COLLATE "C" NOT NULL CHECK (recovery IN ('rerunnable', 'owner-bound', 'external')),
  origin_session text COLLATE "C",
  parent text COLLATE "C",
  registration bytea NOT NULL,
  identity bytea NOT NULL,
  created_at_ms bigint NOT NULL,
  state text COLLATE "C" NOT NULL
    CHECK (state IN ('running', 'completed', 'failed', 'cancelled', 'abandoned')),
  last_event bigint NOT NULL CHECK (last_event >= 0),
  updated_at_ms bigint NOT NULL,
  ended_event bigint,
  wait_event bigint,
  external_event bigint,
  started_at_ms bigint,
  cancel_at_ms bigint,
  wake_session text COLLATE "C",
  wake_frame text COLLATE "C",
  wait_type text COLLATE "C",
  lease_owner text COLLATE "C",
  lease_token text COLLATE "C",
  lease_generation bigint NOT NULL CHECK (lease_generation >= 0),
  lease_claimed_at_ms bigint,
  lease_expires_at_ms bigint,
  due_at_ms bigint,
  change bigint,
  pruned_at_ms bigint,
  PRIMARY KEY (tenant, process),
  CHECK ((ended_event IS NOT NULL) = (state <> 'running'))
);
CREATE INDEX process_state ON {schema}.process (tenant, state, process)
  WHERE pruned_at_ms IS NULL;
CREATE INDEX process_ended ON {schema}.process (tenant, updated_at_ms, process)
  WHERE pruned_at_ms IS NULL AND ended_event IS NOT NULL;
CREATE INDEX process_due ON {schema}.process (tenant, due_at_ms, process)
  WHERE due_at_ms IS NOT NULL;
CREATE INDEX process_parent ON {schema}.process (tenant, parent, process) WHERE parent IS NOT NULL;
CREATE INDEX process_origin ON {schema}.process (tenant, origin_session, process)
  WHERE origin_session IS NOT NULL;
CREATE INDEX process_wake ON {schema}.process (tenant, wake_session, process)
  WHERE wake_session IS NOT NULL;
CREATE INDEX process_change ON {schema}.process (tenant, change) WHERE change IS NOT NULL;
CREATE INDEX process_changed ON {schema}.process (tenant, process) WHERE change IS NULL;

-- The last place in the feed of changes that was given.
CREATE TABLE {schema}.process_clock (
  tenant text COLLATE "C" PRIMARY KEY,
  change bigint NOT NULL CHECK (change >= 0)
);

-- Entry `seq` of the log of a process. `ends`, `output` and `wake` are what its type made of its
-- payload, `work` is what woke `wake_session`, and `acked_at_ms` says that the wake was seen to.
CREATE TABLE {schema}.process_event (
  tenant text COLLATE "C" NOT NULL,
  process text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,
  type text COLLATE "C" NOT NULL,
  key text COLLATE "C",
  payload bytea NOT NULL,
  ends text COLLATE "C" CHECK (ends IN ('completed', 'failed', 'cancelled', 'abandoned')),
  output bytea,
  wake text COLLATE "C",
  digest bytea NOT NULL,
  authority text COLLATE "C" CHECK (authority IN ('lease', 'external', 'operator')),
  wake_session text COLLATE "C",
  wake_frame text COLLATE "C",
  work text COLLATE "C",
  at_ms bigint NOT NULL,
  acked_at_ms bigint,
  PRIMARY KEY (tenant, process, seq)
);
CREATE UNIQUE INDEX process_event_key ON {schema}.process_event (tenant, process, key)
  WHERE key IS NOT NULL;
CREATE INDEX process_event_type ON {schema}.process_event (tenant, process, type, seq);
CREATE INDEX process_event_wake ON {schema}.process_event (tenant, process, seq)
  WHERE wake IS NOT NULL AND acked_at_ms IS NULL;

-- A scope that may see a process; `frame` is empty for the session as a whole.
CREATE TABLE {schema}.process_grant (
  tenant text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  frame text COLLATE "C" NOT NULL,
  process text COLLATE "C" NOT NULL,
  kind text COLLATE "C" NOT NULL,
  label text COLLATE "C" NOT NULL,
  granted_at_ms bigint NOT NULL,
  PRIMARY KEY (tenant, session, frame, process)
);
CREATE INDEX process_grant_process ON {schema}.process_grant (tenant, process, session, frame);
