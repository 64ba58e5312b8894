-- oldest reader: 1
-- Queued work: what waits for a session, and the claims on it.

-- `work_seq` counts the work of a session. `due_at_ms` is no later than the next moment at which
-- work of the session can be claimed by somebody who does not hold its lane; null: there is none.
-- Both stand beside the lane, so that one locked row says whether there is work, and for whom.
ALTER TABLE {schema}.session
  ADD COLUMN work_seq bigint NOT NULL DEFAULT 0 CHECK (work_seq >= 0),
  ADD COLUMN due_at_ms bigint;
CREATE INDEX session_due ON {schema}.session (tenant, due_at_ms, session)
  WHERE due_at_ms IS NOT NULL;

-- `seq` counts the work of a session, and is its order. Work with a key stays as 'done', without
-- its items, until `keep_until_ms`, so that the key is not taken twice. A claim is bound to the
-- generation of a lane, or without one to a time.
CREATE TABLE {schema}.work (
  tenant text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,
  work text COLLATE "C" NOT NULL,
  key text COLLATE "C",
  kind text COLLATE "C" NOT NULL CHECK (kind IN ('turn', 'command')),
  delivery text COLLATE "C" NOT NULL CHECK (delivery IN ('earliest', 'after-turn')),
  slot text COLLATE "C" NOT NULL CHECK (slot IN ('join', 'exclusive')),
  merge_key text COLLATE "C",
  state text COLLATE "C" NOT NULL
    CHECK (state IN ('ready', 'delayed', 'claimed', 'dead', 'done')),
  available_at_ms bigint NOT NULL,
  enqueued_at_ms bigint NOT NULL,
  items bytea NOT NULL,
  digest bytea NOT NULL,
  process text COLLATE "C",
  event bigint,
  attempts bigint NOT NULL CHECK (attempts >= 0),
  max_attempts bigint,
  last_error text COLLATE "C",
  claim text COLLATE "C",
  claim_token text COLLATE "C",
  claim_owner text COLLATE "C",
  claim_generation bigint,
  claimed_at_ms bigint,
  claim_expires_at_ms bigint,
  settled_turn text COLLATE "C",
  keep_ms bigint NOT NULL,
  keep_until_ms bigint,
  PRIMARY KEY (tenant, session, seq),
  CHECK ((claim IS NOT NULL) = (state = 'claimed'))
);
CREATE UNIQUE INDEX work_id ON {schema}.work (tenant, session, work);
CREATE UNIQUE INDEX work_key ON {schema}.work (tenant, session, key) WHERE key IS NOT NULL;
CREATE INDEX work_ready ON {schema}.work (tenant, session, seq) WHERE state = 'ready';
CREATE INDEX work_delayed ON {schema}.work (tenant, session, available_at_ms)
  WHERE state = 'delayed';
CREATE INDEX work_claim ON {schema}.work (tenant, session, claim, seq) WHERE state = 'claimed';
CREATE INDEX work_generation ON {schema}.work (tenant, session, claim_generation, seq)
  WHERE state = 'claimed' AND claim_generation IS NOT NULL;
CREATE INDEX work_lapse ON {schema}.work (tenant, session, claim_expires_at_ms, seq)
  WHERE state = 'claimed' AND claim_generation IS NULL;
CREATE INDEX work_dead ON {schema}.work (tenant, session, seq) WHERE state = 'dead';
CREATE INDEX work_kept ON {schema}.work (tenant, keep_until_ms) WHERE state = 'done';

-- Puts work into the inbox of a session; no row when the session is not there. The locked session
-- gives the work its place, and says when somebody may take it.
CREATE FUNCTION {schema}.enqueue_v1(
  p_tenant text, p_session text, p_work text, p_key text, p_kind text, p_delivery text,
  p_slot text, p_merge text, p_delay_ms bigint, p_available_at_ms bigint, p_items bytea,
  p_digest bytea, p_max_attempts bigint, p_keep_ms bigint, p_process text, p_event bigint
) RETURNS TABLE (enqueued boolean, seq bigint) LANGUAGE plpgsql VOLATILE AS $fn$
#variable_conflict use_column
DECLARE
  v_session record;
  v_old record;
  v_now bigint;
  v_at bigint;
BEGIN
  SELECT s.work_seq, s.lane_token, s.lane_expires_at_ms INTO v_session FROM {schema}.session s
  WHERE s.tenant = p_tenant AND s.session = p_session AND s.deleted_at_ms IS NULL
  FOR NO KEY UPDATE;
  IF NOT FOUND OR v_session.work_seq NOT BETWEEN 0 AND 9223372036854775806 THEN
    RETURN;
  END IF;
  v_now := {schema}.now_ms();
  SELECT w.seq, w.state, w.keep_until_ms INTO v_old FROM {schema}.work w
  WHERE w.tenant = p_tenant AND w.session = p_session AND w.work = p_work;
  IF NOT FOUND AND p_key IS NOT NULL THEN
    SELECT w.seq, w.state, w.keep_until_ms INTO v_old FROM {schema}.work w
    WHERE w.tenant = p_tenant AND w.session = p_session AND w.key = p_key; -- guard: dedupe
  END IF;
  IF v_old.seq IS NOT NULL THEN
    IF v_old.state <> 'done' OR v_old.keep_until_ms > v_now THEN
      RETURN QUERY SELECT false, v_old.seq;
      RETURN;
    END IF;
    DELETE FROM {schema}.work w
    WHERE w.tenant = p_tenant AND w.session = p_session AND w.seq = v_old.seq;
  END IF;
  v_at := greatest(p_available_at_ms, v_now + p_delay_ms);
  UPDATE {schema}.session s SET work_seq = s.work_seq + 1,
    due_at_ms = least(s.due_at_ms, CASE WHEN s.lane_token IS NOT NULL
      THEN greatest(v_at, s.lane_expires_at_ms) ELSE v_at END)
  WHERE s.tenant = p_tenant AND s.session = p_session;
  INSERT INTO {schema}.work (tenant, session, seq, work, key, kind, delivery, slot, merge_key,
    state, available_at_ms, enqueued_at_ms, items, digest, process, event, attempts, max_attempts,
    keep_ms)
  VALUES (p_tenant, p_session, v_session.work_seq + 1, p_work, p_key, p_kind, p_delivery, p_slot,
    p_merge, CASE WHEN v_at > v_now THEN 'delayed' ELSE 'ready' END, v_at, v_now, p_items,
    p_digest, p_process, p_event, 0, p_max_attempts, p_keep_ms);
  RETURN QUERY SELECT true, v_session.work_seq + 1;
END
$fn$;
