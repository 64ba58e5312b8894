-- name: usage.totals
-- Sums over committed turns, grouped as asked.
-- mode: read
-- returns: session, source, model, day, currency, entries, input, output, cache_read, cache_write
-- returns: reasoning, cost_micros
SELECT CASE WHEN :by_session THEN session END AS session,
  CASE WHEN :by_source THEN source END AS source, CASE WHEN :by_model THEN model END AS model,
  CASE WHEN :by_day THEN day END AS day, currency, sum(entries) AS entries, sum(input) AS input,
  sum(output) AS output, sum(cache_read) AS cache_read, sum(cache_write) AS cache_write,
  sum(reasoning) AS reasoning, sum(cost_micros) AS cost_micros
FROM usage_total
WHERE tenant = :tenant AND (:session IS NULL OR session = :session)
  AND day BETWEEN :since_day AND :until_day
GROUP BY 1, 2, 3, 4, currency ORDER BY 1, 2, 3, 4, currency

-- name: usage.rows
-- The single entries of a session, in the order they were committed.
-- mode: read
-- returns: revision, ordinal, turn, at_ms, source, model, input, output, cache_read, cache_write
-- returns: reasoning, cost_micros, currency
SELECT revision, ordinal, turn, at_ms, source, model, input, output, cache_read, cache_write,
  reasoning, cost_micros, currency
FROM usage_row WHERE tenant = :tenant AND session = :session
  AND (revision, ordinal) > (:revision, :ordinal)
ORDER BY revision, ordinal LIMIT :limit
