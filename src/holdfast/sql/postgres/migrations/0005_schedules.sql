-- oldest reader: 1
-- Schedules: what is to happen again and again, up to where that is decided, and what was skipped.

-- One row per schedule. `digest` proves what was registered, from `timing` to `until_ms`. Every
-- instant up to `decided_ms` has fired or was skipped, and none after it: whoever decides the next
-- ones compares it. `next_at_ms` is the first of those; null: it is paused, or over.
CREATE TABLE {schema}.schedule (
  tenant text COLLATE "C" NOT NULL,
  schedule text COLLATE "C" NOT NULL,
  timing bytea NOT NULL,
  payload bytea NOT NULL,
  digest bytea NOT NULL,
  missed text COLLATE "C" NOT NULL CHECK (missed IN ('skip', 'one', 'all')),
  cap bigint NOT NULL,
  grace_ms bigint NOT NULL,
  start_ms bigint,
  until_ms bigint,
  revision bigint NOT NULL CHECK (revision >= 1),
  created_at_ms bigint NOT NULL,
  updated_at_ms bigint NOT NULL,
  decided_ms bigint NOT NULL,
  next_at_ms bigint,
  last_at_ms bigint,
  paused_at_ms bigint,
  fired bigint NOT NULL CHECK (fired >= 0),
  skipped bigint NOT NULL CHECK (skipped >= 0),
  ran bigint NOT NULL CHECK (ran >= 0),
  PRIMARY KEY (tenant, schedule),
  CHECK (paused_at_ms IS NULL OR next_at_ms IS NULL)
);
CREATE INDEX schedule_due ON {schema}.schedule (tenant, next_at_ms, schedule)
  WHERE next_at_ms IS NOT NULL;

-- A stretch of instants that did not fire: so many of them, one after the other, and why.
CREATE TABLE {schema}.schedule_skip (
  tenant text COLLATE "C" NOT NULL,
  schedule text COLLATE "C" NOT NULL,
  first_ms bigint NOT NULL,
  last_ms bigint NOT NULL,
  count bigint NOT NULL CHECK (count >= 1),
  reason text COLLATE "C" NOT NULL CHECK (reason IN ('missed', 'capped', 'paused', 'replaced')),
  at_ms bigint NOT NULL,
  PRIMARY KEY (tenant, schedule, first_ms)
);
