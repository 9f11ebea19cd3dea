-- Reads all runs once. The first row carries the store's columns. There is one row for each run whose deadline has
-- expired, which has had a transition since $1, or whose head has moved since $3; if there is none, one row has the
-- store's columns alone.
--
-- A deadline counts only while the gateways send heartbeats, except for `wake`: that is the store's clock alone.
-- `{first_expired}`: the deadline rule (reads/deadlines.rs).
--
-- $1 since, for transitions  $2 longest gap between two gateway heartbeats, in milliseconds  $3 since, for heads
WITH clock AS MATERIALIZED (
    SELECT id, beat_since, now, abs(now - beat_last) <= $2 AS fresh
    FROM store, ds_now_v1() AS now
    LIMIT 1
),
live AS MATERIALIZED (
    SELECT namespace, name, object_uid, attempt, attempt_state, changed_at, head_at, wake_at,
           coalesce(CASE WHEN fresh THEN {first_expired} END, CASE WHEN wake_at <= now THEN 'wake' END) AS deadline
    FROM runs, clock
    WHERE lifecycle = 'live'
),
-- A run does not change after its end, so an older end need not be read.
finished AS (
    SELECT namespace, name, object_uid, attempt, changed_at, head_at
    FROM runs
    WHERE lifecycle = 'finished' AND finish_at >= $1
)
SELECT clock.now, clock.id AS store_id,
       (SELECT count(*) FROM live WHERE attempt_state = 'attached') AS active,
       run.namespace, run.name, run.object_uid, run.attempt, run.deadline, run.transition, run.head_moved,
       run.changed_at, run.wake_at
FROM clock
LEFT JOIN (
    SELECT namespace, name, object_uid, attempt, deadline, wake_at,
           changed_at >= $1 AS transition, coalesce(head_at >= $3, false) AS head_moved, changed_at
    FROM live
    WHERE deadline IS NOT NULL OR changed_at >= $1 OR head_at >= $3
    UNION ALL
    SELECT namespace, name, object_uid, attempt, NULL, NULL, changed_at >= $1, coalesce(head_at >= $3, false), changed_at
    FROM finished
    WHERE changed_at >= $1 OR head_at >= $3
) AS run ON true
ORDER BY run.namespace, run.name
