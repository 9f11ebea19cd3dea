-- Renews the leases of many workers, without waiting for the disk: a crash of the database loses at most renewals, and
-- the next heartbeat renews again.
--
-- A row that is locked is skipped, so that no worker waits for another worker's commit, and its current values are
-- returned. If its own worker holds the lock, that worker is alive; if another attempt is taking over the right to
-- write, the next heartbeat returns that.
--
-- Each worker's row is found by its key, one after the other: the cost grows with the number of heartbeats, whatever
-- number of them the planner expects. From its sixth execution on it plans for ten.
--
-- $1 runs  $2 the capability of each  $3 the gateway
WITH workers AS MATERIALIZED (
    SELECT worker.run, worker.capability, worker.idx,
           locked.id IS NOT NULL AS is_locked,
           coalesce(locked.lifecycle, skipped.lifecycle) AS lifecycle,
           coalesce(locked.capability, skipped.capability) AS current_capability,
           coalesce(locked.suspend, skipped.suspend) AS suspend,
           coalesce(locked.cancel_requested_at, skipped.cancel_requested_at) AS cancel_requested_at,
           coalesce(locked.inbox, skipped.inbox) AS inbox,
           coalesce(locked.heartbeat_ms, skipped.heartbeat_ms) AS heartbeat_ms,
           coalesce(locked.limit_reached_at, skipped.limit_reached_at) AS limit_reached_at,
           coalesce(locked.active_time_end, skipped.active_time_end) AS active_time_end,
           ds_now_v1() AS now
    FROM (SELECT set_config('synchronous_commit', 'off', true)) AS durability
    CROSS JOIN unnest($1, $2) WITH ORDINALITY AS worker (run, capability, idx)
    LEFT JOIN LATERAL (
        SELECT id, lifecycle, capability, suspend, cancel_requested_at, inbox, heartbeat_ms,
               limit_reached_at, attached_at + limit_active_ms - active_ms AS active_time_end
        FROM runs
        WHERE id = worker.run
        FOR UPDATE SKIP LOCKED
    ) AS locked ON true
    LEFT JOIN LATERAL (
        SELECT lifecycle, capability, suspend, cancel_requested_at, inbox, heartbeat_ms,
               limit_reached_at, attached_at + limit_active_ms - active_ms AS active_time_end
        FROM runs
        WHERE id = worker.run AND locked.id IS NULL
        OFFSET 0
    ) AS skipped ON true
),
renewed AS (
    UPDATE runs
    SET lease_renewed_at = workers.now,
        lease_ms = runs.heartbeat_ms,
        lease_gateway = $3,
        cancel_told_at = CASE
            WHEN runs.cancel_requested_at IS NOT NULL THEN coalesce(runs.cancel_told_at, workers.now)
        END,
        suspend_told_at = CASE WHEN runs.suspend THEN coalesce(runs.suspend_told_at, workers.now) END
    FROM workers
    WHERE runs.id = workers.run AND workers.is_locked AND workers.lifecycle = 'live'
      AND workers.current_capability = workers.capability
)
SELECT CASE
           WHEN current_capability IS DISTINCT FROM capability THEN 'fenced'
           WHEN lifecycle <> 'live' THEN 'finished'
           ELSE 'ok'
       END AS verdict,
       coalesce(suspend, false) AS suspend,
       cancel_requested_at IS NOT NULL AS cancel,
       limit_reached_at IS NOT NULL OR coalesce(active_time_end <= now, false) AS at_limit,
       coalesce(inbox, 0) AS inbox,
       coalesce(heartbeat_ms, 0) AS lease_ms
FROM workers
ORDER BY idx
