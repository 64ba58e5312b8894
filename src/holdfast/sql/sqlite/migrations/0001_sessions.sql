-- oldest reader: 1
-- Sessions with their heads and lanes, nodes in runs, state by reference, receipts and usage.

CREATE TABLE migration (
  version INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  checksum TEXT NOT NULL,
  oldest_reader INTEGER NOT NULL,
  applied_at_ms INTEGER NOT NULL
) STRICT;

-- One row per session: catalog entry, head and lane. A deleted session keeps its row for ever.
CREATE TABLE session (
  tenant TEXT NOT NULL,
  session TEXT NOT NULL,
  title TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL,
  active_at_ms INTEGER NOT NULL,
  active_minute INTEGER NOT NULL,
  revision INTEGER NOT NULL CHECK (revision >= 0),
  leaf TEXT,
  leaf_session TEXT,
  leaf_run INTEGER,
  leaf_seq INTEGER,
  leaf_depth INTEGER NOT NULL,
  last_seq INTEGER NOT NULL CHECK (last_seq >= 0),
  node_count INTEGER NOT NULL CHECK (node_count >= 0),
  state_session TEXT,
  state_revision INTEGER,
  lane_owner TEXT,
  lane_token TEXT,
  lane_generation INTEGER NOT NULL CHECK (lane_generation >= 0),
  lane_claimed_at_ms INTEGER,
  lane_expires_at_ms INTEGER,
  origin_session TEXT,
  origin_revision INTEGER,
  origin_leaf TEXT,
  base_session TEXT,
  base_seq INTEGER,
  deleted_at_ms INTEGER,
  PRIMARY KEY (tenant, session)
) STRICT, WITHOUT ROWID;
CREATE INDEX session_active ON session (tenant, active_minute, session)
  WHERE deleted_at_ms IS NULL;
CREATE INDEX session_created ON session (tenant, created_at_ms, session)
  WHERE deleted_at_ms IS NULL;
CREATE INDEX session_base ON session (tenant, base_session) WHERE base_session IS NOT NULL;
CREATE INDEX session_origin ON session (tenant, origin_session) WHERE origin_session IS NOT NULL;

CREATE TABLE tag (
  tenant TEXT NOT NULL,
  session TEXT NOT NULL,
  name TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY (tenant, session, name),
  FOREIGN KEY (tenant, session) REFERENCES session (tenant, session)
) STRICT, WITHOUT ROWID;
CREATE INDEX tag_value ON tag (tenant, name, value, session);

-- `seq` counts the nodes of a session; a run is a stretch of consecutive ones, named by its first.
CREATE TABLE node (
  tenant TEXT NOT NULL,
  session TEXT NOT NULL,
  seq INTEGER NOT NULL,
  node TEXT NOT NULL,
  run INTEGER NOT NULL,
  depth INTEGER NOT NULL,
  parent TEXT,
  revision INTEGER NOT NULL,
  kind TEXT NOT NULL,
  body BLOB,
  digest BLOB NOT NULL,
  at_ms INTEGER NOT NULL,
  tombstoned_at_ms INTEGER,
  PRIMARY KEY (tenant, session, seq)
) STRICT;
CREATE UNIQUE INDEX node_id ON node (tenant, session, node);

CREATE TABLE run (
  tenant TEXT NOT NULL,
  session TEXT NOT NULL,
  run INTEGER NOT NULL,
  base_session TEXT,
  base_run INTEGER,
  base_seq INTEGER,
  base_depth INTEGER NOT NULL,
  PRIMARY KEY (tenant, session, run)
) STRICT, WITHOUT ROWID;

CREATE TABLE revision (
  tenant TEXT NOT NULL,
  session TEXT NOT NULL,
  revision INTEGER NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('created', 'forked', 'turn', 'rewound')),
  turn TEXT,
  reason TEXT,
  leaf TEXT,
  leaf_session TEXT,
  leaf_run INTEGER,
  leaf_seq INTEGER,
  leaf_depth INTEGER NOT NULL,
  state_session TEXT,
  state_revision INTEGER,
  at_ms INTEGER NOT NULL,
  PRIMARY KEY (tenant, session, revision)
) STRICT, WITHOUT ROWID;
CREATE INDEX revision_state ON revision (tenant, state_session, state_revision)
  WHERE state_session <> session;

-- The state made by one revision: one row per component, naming its content.
CREATE TABLE component (
  tenant TEXT NOT NULL,
  session TEXT NOT NULL,
  revision INTEGER NOT NULL,
  name TEXT NOT NULL,
  digest BLOB NOT NULL,
  PRIMARY KEY (tenant, session, revision, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX component_digest ON component (tenant, digest);

CREATE TABLE blob (
  tenant TEXT NOT NULL,
  digest BLOB NOT NULL,
  encoding INTEGER NOT NULL,
  size INTEGER NOT NULL,
  data BLOB NOT NULL,
  PRIMARY KEY (tenant, digest)
) STRICT;

CREATE TABLE receipt (
  tenant TEXT NOT NULL,
  session TEXT NOT NULL,
  turn TEXT NOT NULL,
  intent BLOB NOT NULL,
  revision INTEGER NOT NULL,
  leaf TEXT,
  node_count INTEGER NOT NULL,
  at_ms INTEGER NOT NULL,
  PRIMARY KEY (tenant, session, turn)
) STRICT, WITHOUT ROWID;

CREATE TABLE usage_row (
  tenant TEXT NOT NULL,
  session TEXT NOT NULL,
  revision INTEGER NOT NULL,
  ordinal INTEGER NOT NULL,
  turn TEXT NOT NULL,
  at_ms INTEGER NOT NULL,
  source TEXT NOT NULL,
  model TEXT NOT NULL,
  input INTEGER NOT NULL CHECK (input >= 0),
  output INTEGER NOT NULL CHECK (output >= 0),
  cache_read INTEGER NOT NULL CHECK (cache_read >= 0),
  cache_write INTEGER NOT NULL CHECK (cache_write >= 0),
  reasoning INTEGER NOT NULL CHECK (reasoning >= 0),
  cost_micros INTEGER NOT NULL CHECK (cost_micros >= 0),
  currency TEXT NOT NULL,
  PRIMARY KEY (tenant, session, revision, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE usage_total (
  tenant TEXT NOT NULL,
  session TEXT NOT NULL,
  day INTEGER NOT NULL,
  source TEXT NOT NULL,
  model TEXT NOT NULL,
  currency TEXT NOT NULL,
  entries INTEGER NOT NULL,
  input INTEGER NOT NULL,
  output INTEGER NOT NULL,
  cache_read INTEGER NOT NULL,
  cache_write INTEGER NOT NULL,
  reasoning INTEGER NOT NULL,
  cost_micros INTEGER NOT NULL,
  PRIMARY KEY (tenant, session, day, source, model, currency)
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_total_day ON usage_total (tenant, day);
