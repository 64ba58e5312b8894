-- oldest reader: 1
-- Queued work: what waits for a session, and the claims on it.

-- `work_seq` counts the work of a session. `due_at_ms` is no later than the next moment at which
-- work of the session can be claimed by somebody who does not hold its lane; null: there is none.
-- Both stand beside the lane, so that one locked row says whether there is work, and for whom.
ALTER TABLE session ADD COLUMN work_seq INTEGER NOT NULL DEFAULT 0 CHECK (work_seq >= 0);
ALTER TABLE session ADD COLUMN due_at_ms INTEGER;
CREATE INDEX session_due ON session (tenant, due_at_ms, session) WHERE due_at_ms IS NOT NULL;

-- `seq` counts the work of a session, and is its order. Work with a key stays as 'done', without
-- its items, until `keep_until_ms`, so that the key is not taken twice. A claim is bound to the
-- generation of a lane, or without one to a time.
CREATE TABLE work (
  tenant TEXT NOT NULL,
  session TEXT NOT NULL,
  seq INTEGER NOT NULL,
  work TEXT NOT NULL,
  key TEXT,
  kind TEXT NOT NULL CHECK (kind IN ('turn', 'command')),
  delivery TEXT NOT NULL CHECK (delivery IN ('earliest', 'after-turn')),
  slot TEXT NOT NULL CHECK (slot IN ('join', 'exclusive')),
  merge_key TEXT,
  state TEXT NOT NULL CHECK (state IN ('ready', 'delayed', 'claimed', 'dead', 'done')),
  available_at_ms INTEGER NOT NULL,
  enqueued_at_ms INTEGER NOT NULL,
  items BLOB NOT NULL,
  digest BLOB NOT NULL,
  process TEXT,
  event INTEGER,
  attempts INTEGER NOT NULL CHECK (attempts >= 0),
  max_attempts INTEGER,
  last_error TEXT,
  claim TEXT,
  claim_token TEXT,
  claim_owner TEXT,
  claim_generation INTEGER,
  claimed_at_ms INTEGER,
  claim_expires_at_ms INTEGER,
  settled_turn TEXT,
  keep_ms INTEGER NOT NULL,
  keep_until_ms INTEGER,
  PRIMARY KEY (tenant, session, seq),
  CHECK ((claim IS NOT NULL) = (state = 'claimed'))
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX work_id ON work (tenant, session, work);
CREATE UNIQUE INDEX work_key ON work (tenant, session, key) WHERE key IS NOT NULL;
CREATE INDEX work_ready ON work (tenant, session, seq) WHERE state = 'ready';
CREATE INDEX work_delayed ON work (tenant, session, available_at_ms) WHERE state = 'delayed';
CREATE INDEX work_claim ON work (tenant, session, claim, seq) WHERE state = 'claimed';
CREATE INDEX work_generation ON work (tenant, session, claim_generation, seq)
  WHERE state = 'claimed' AND claim_generation IS NOT NULL;
CREATE INDEX work_lapse ON work (tenant, session, claim_expires_at_ms, seq)
  WHERE state = 'claimed' AND claim_generation IS NULL;
CREATE INDEX work_dead ON work (tenant, session, seq) WHERE state = 'dead';
CREATE INDEX work_last_try ON work (tenant, session, seq)
  WHERE state = 'claimed' AND attempts >= max_attempts;
CREATE INDEX work_kept ON work (tenant, keep_until_ms) WHERE state = 'done';

-- Work, until when its state holds, and what it is from then on: a claim ends with its lane, or
-- at its own time, and so does a delay. The next claim writes it down; whoever reads knows before.
CREATE VIEW work_seen AS
SELECT w.*, CASE WHEN w.state = 'delayed' THEN w.available_at_ms
  WHEN w.state <> 'claimed' THEN 9223372036854775807
  WHEN w.claim_generation IS NULL THEN w.claim_expires_at_ms
  WHEN w.claim_generation = s.lane_generation AND s.lane_token IS NOT NULL
  THEN s.lane_expires_at_ms ELSE 0 END AS until_ms,
  CASE WHEN w.state = 'claimed' AND w.attempts >= w.max_attempts THEN 'dead' ELSE 'ready' END
  AS then_state
FROM work w JOIN session s ON s.tenant = w.tenant AND s.session = w.session;
