-- oldest reader: 1
-- Schedules: what is to happen again and again, up to where that is decided, and what was skipped.

-- One row per schedule. `digest` proves what was registered, from `timing` to `until_ms`. Every
-- instant up to `decided_ms` has fired or was skipped, and none after it: whoever decides the next
-- ones compares it. `next_at_ms` is the first of those; null: it is paused, or over.
CREATE TABLE schedule (
  tenant TEXT NOT NULL,
  schedule TEXT NOT NULL,
  timing BLOB NOT NULL,
  payload BLOB NOT NULL,
  digest BLOB NOT NULL,
  missed TEXT NOT NULL CHECK (missed IN ('skip', 'one', 'all')),
  cap INTEGER NOT NULL,
  grace_ms INTEGER NOT NULL,
  start_ms INTEGER,
  until_ms INTEGER,
  revision INTEGER NOT NULL CHECK (revision >= 1),
  created_at_ms INTEGER NOT NULL,
  updated_at_ms INTEGER NOT NULL,
  decided_ms INTEGER NOT NULL,
  next_at_ms INTEGER,
  last_at_ms INTEGER,
  paused_at_ms INTEGER,
  fired INTEGER NOT NULL CHECK (fired >= 0),
  skipped INTEGER NOT NULL CHECK (skipped >= 0),
  ran INTEGER NOT NULL CHECK (ran >= 0),
  PRIMARY KEY (tenant, schedule),
  CHECK (paused_at_ms IS NULL OR next_at_ms IS NULL)
) STRICT, WITHOUT ROWID;
CREATE INDEX schedule_due ON schedule (tenant, next_at_ms, schedule) WHERE next_at_ms IS NOT NULL;

-- A stretch of instants that did not fire: so many of them, one after the other, and why.
CREATE TABLE schedule_skip (
  tenant TEXT NOT NULL,
  schedule TEXT NOT NULL,
  first_ms INTEGER NOT NULL,
  last_ms INTEGER NOT NULL,
  count INTEGER NOT NULL CHECK (count >= 1),
  reason TEXT NOT NULL CHECK (reason IN ('missed', 'capped', 'paused', 'replaced')),
  at_ms INTEGER NOT NULL,
  PRIMARY KEY (tenant, schedule, first_ms)
) STRICT, WITHOUT ROWID;
