-- Renews the leases of many workers, without waiting for the disk: what a crash of the database takes back is a lease
-- that the next heartbeat renews.
--
-- A row that is locked is skipped, so that no worker waits for another's commit, and answered as it stands: while its
-- own worker holds the lock that worker is alive, and whoever takes its right to write shows with the next heartbeat.
--
-- $1 runs  $2 the capability of each
WITH asked AS MATERIALIZED (
    SELECT run, capability, place
    FROM unnest($1, $2) WITH ORDINALITY AS worker (run, capability, place)
),
locked AS MATERIALIZED (
    SELECT id, lifecycle, capability, suspend, cancel_requested_at, heartbeat_ms
    FROM runs
    WHERE id = ANY ($1)
    FOR UPDATE SKIP LOCKED
),
alive AS MATERIALIZED (
    SELECT id, ds_now_v1() AS now
    FROM locked
    WHERE lifecycle = 'live'
      AND EXISTS (SELECT FROM asked WHERE asked.run = locked.id AND asked.capability = locked.capability)
),
renewed AS (
    UPDATE runs
    SET lease_renewed_at = alive.now,
        lease_ms = heartbeat_ms,
        cancel_told_at = CASE WHEN cancel_requested_at IS NOT NULL THEN coalesce(cancel_told_at, alive.now) END
    FROM alive
    WHERE runs.id = alive.id
),
standing AS (
    SELECT * FROM locked
    UNION ALL
    SELECT id, lifecycle, capability, suspend, cancel_requested_at, heartbeat_ms
    FROM runs
    WHERE id = ANY ($1) AND NOT EXISTS (SELECT FROM locked WHERE locked.id = runs.id)
)
SELECT CASE
           WHEN standing.capability IS DISTINCT FROM asked.capability THEN 'fenced'
           WHEN standing.lifecycle <> 'live' THEN 'finished'
           ELSE 'ok'
       END AS verdict,
       coalesce(standing.suspend, false) AS suspend,
       standing.cancel_requested_at IS NOT NULL AS cancel,
       coalesce(standing.heartbeat_ms, 0) AS lease_ms
FROM (SELECT set_config('synchronous_commit', 'off', true)) AS durability
CROSS JOIN asked
LEFT JOIN standing ON standing.id = asked.run
ORDER BY asked.place
