-- name: usage.totals
-- Sums over committed turns, grouped as asked.
-- mode: read
-- returns: session, source, model, day, currency, entries, input, output, cache_read, cache_write
-- returns: reasoning, cost_micros
SELECT g.session, g.source, g.model, g.day, g.currency, sum(g.entries)::bigint AS entries,
  sum(g.input)::bigint AS input, sum(g.output)::bigint AS output,
  sum(g.cache_read)::bigint AS cache_read, sum(g.cache_write)::bigint AS cache_write,
  sum(g.reasoning)::bigint AS reasoning, sum(g.cost_micros)::bigint AS cost_micros
FROM (
  SELECT CASE WHEN :by_session::boolean THEN t.session END AS session,
    CASE WHEN :by_source::boolean THEN t.source END AS source,
    CASE WHEN :by_model::boolean THEN t.model END AS model,
    CASE WHEN :by_day::boolean THEN t.day END AS day, t.currency, t.entries, t.input, t.output,
    t.cache_read, t.cache_write, t.reasoning, t.cost_micros
  FROM {schema}.usage_total t
  WHERE t.tenant = :tenant AND (:session::text IS NULL OR t.session = :session::text)
    AND t.day BETWEEN :since_day::bigint AND :until_day::bigint) g
GROUP BY g.session, g.source, g.model, g.day, g.currency
ORDER BY g.session NULLS FIRST, g.source NULLS FIRST, g.model NULLS FIRST, g.day NULLS FIRST,
  g.currency

-- name: usage.rows
-- The single entries of a session, in the order they were committed.
-- mode: read
-- returns: revision, ordinal, turn, at_ms, source, model, input, output, cache_read, cache_write
-- returns: reasoning, cost_micros, currency
SELECT revision, ordinal, turn, at_ms, source, model, input, output, cache_read, cache_write,
  reasoning, cost_micros, currency
FROM {schema}.usage_row WHERE tenant = :tenant AND session = :session
  AND (revision, ordinal) > (:revision::bigint, :ordinal::bigint)
ORDER BY revision, ordinal LIMIT :limit
