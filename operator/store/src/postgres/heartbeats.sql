-- Renews the leases of many workers, without waiting for the disk: a crash of the database loses at most renewals, and
-- the next heartbeat renews again.
--
-- A row that is locked is skipped, so that no worker waits for another worker's commit, and its current values are
-- returned. If its own worker holds the lock, that worker is alive; if another attempt is taking over the right to
-- write, the next heartbeat returns that.
--
-- $1 runs  $2 the capability of each  $3 the gateway
WITH workers AS MATERIALIZED (
    SELECT run, capability, idx
    FROM unnest($1, $2) WITH ORDINALITY AS worker (run, capability, idx)
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
      AND EXISTS (SELECT FROM workers WHERE workers.run = locked.id AND workers.capability = locked.capability)
),
renewed AS (
    UPDATE runs
    SET lease_renewed_at = alive.now,
        lease_ms = heartbeat_ms,
        lease_gateway = $3,
        cancel_told_at = CASE WHEN cancel_requested_at IS NOT NULL THEN coalesce(cancel_told_at, alive.now) END
    FROM alive
    WHERE runs.id = alive.id
),
latest AS (
    SELECT * FROM locked
    UNION ALL
    SELECT id, lifecycle, capability, suspend, cancel_requested_at, heartbeat_ms
    FROM runs
    WHERE id = ANY ($1) AND NOT EXISTS (SELECT FROM locked WHERE locked.id = runs.id)
)
SELECT CASE
           WHEN latest.capability IS DISTINCT FROM workers.capability THEN 'fenced'
           WHEN latest.lifecycle <> 'live' THEN 'finished'
           ELSE 'ok'
       END AS verdict,
       coalesce(latest.suspend, false) AS suspend,
       latest.cancel_requested_at IS NOT NULL AS cancel,
       coalesce(latest.heartbeat_ms, 0) AS lease_ms
FROM (SELECT set_config('synchronous_commit', 'off', true)) AS durability
CROSS JOIN workers
LEFT JOIN latest ON latest.id = workers.run
ORDER BY workers.idx
