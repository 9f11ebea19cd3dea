-- One look at all runs. The first row is the store's; then one for each run that has a deadline that has run out, or
-- in which something changed.
--
-- A deadline counts only while the gateways beat, and each had its full length since the beats began. `greatest` passes
-- over nulls, so whether a clock runs at all is asked apart.
--
-- $1 since  $2 longest gap between beats  $3 $4 lengths of a cancel that was told, and one that was not
WITH clock AS MATERIALIZED (
    SELECT id, beat_since, now, abs(now - beat_last) <= $2 AS fresh
    FROM store, ds_now_v1() AS now
    LIMIT 1
),
live AS MATERIALIZED (
    SELECT namespace, name, object_uid, attempt, attempt_state, changed_at, head_at,
           CASE
               WHEN NOT fresh THEN NULL
               WHEN (cancel_told_at IS NOT NULL AND greatest(cancel_told_at, beat_since) + $3 < now)
                 OR (cancel_requested_at IS NOT NULL AND greatest(cancel_requested_at, beat_since) + $4 < now)
                   THEN 'cancel'
               WHEN attempt_state = 'attached' AND lease_renewed_at IS NOT NULL
                AND greatest(lease_renewed_at, beat_since) + greatest(lease_ms, heartbeat_ms) < now
                   THEN 'lease'
               WHEN attempt_state IN ('reserved', 'created') AND scheduled_at IS NOT NULL
                AND greatest(scheduled_at, beat_since) + start_ms < now
                   THEN 'start'
               WHEN attempt_state = 'attached'
                AND greatest(attached_at, CASE WHEN head_attempt = attempt THEN head_at END, beat_since)
                    + progress_ms < now
                   THEN 'progress'
           END AS deadline
    FROM runs, clock
    WHERE lifecycle = 'live'
),
-- Nothing happens to a run after its end.
finished AS (
    SELECT namespace, name, object_uid, attempt, changed_at, head_at
    FROM runs
    WHERE lifecycle = 'finished' AND finish_at >= $1
)
SELECT clock.now, clock.id AS store_id,
       (SELECT count(*) FROM live WHERE attempt_state = 'attached') AS active,
       run.namespace, run.name, run.object_uid, run.attempt, run.deadline, run.changed, run.transition,
       run.changed_at
FROM clock
LEFT JOIN (
    SELECT namespace, name, object_uid, attempt, deadline,
           changed_at >= $1 OR coalesce(head_at >= $1, false) AS changed, changed_at >= $1 AS transition,
           changed_at
    FROM live
    WHERE deadline IS NOT NULL OR changed_at >= $1 OR head_at >= $1
    UNION ALL
    SELECT namespace, name, object_uid, attempt, NULL, true, changed_at >= $1, changed_at
    FROM finished
    WHERE changed_at >= $1 OR head_at >= $1
) AS run ON true
ORDER BY run.namespace, run.name
