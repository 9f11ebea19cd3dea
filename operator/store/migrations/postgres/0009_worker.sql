-- What workers ask, but for the commit and the heartbeat, which are statements of their own. Each function locks the
-- run's row by its primary key before it reads anything else and judges by that row.

-- `Store::attach`. `detail`: why the image is refused.
CREATE FUNCTION ds_attach_v1(
    _run uuid, _pod_uid text, _instance bytea,
    OUT verdict text, OUT detail text, OUT record jsonb
)
LANGUAGE plpgsql AS $$
DECLARE
    now_ bigint;
    row_ runs;
BEGIN
    SELECT * INTO row_ FROM runs WHERE id = _run FOR UPDATE;
    now_ := ds_now_v1();
    verdict := CASE
        WHEN row_.id IS NULL THEN 'not found'
        WHEN row_.pod_uid IS DISTINCT FROM _pod_uid AND row_.attempt_state = 'reserved' THEN 'not recorded'
        WHEN row_.pod_uid IS DISTINCT FROM _pod_uid THEN 'fenced'
        WHEN row_.lifecycle = 'finished' THEN 'finished'
        WHEN row_.lifecycle <> 'live' OR row_.attempt_state = 'ended' THEN 'fenced'
        WHEN row_.verdict IS NULL THEN 'version pending'
        WHEN row_.verdict = 'refused' THEN 'version incompatible'
        WHEN row_.capability <> _instance THEN 'spent'
        ELSE 'ok'
    END;
    detail := row_.remark;

    IF verdict = 'spent' AND NOT row_.spent THEN
        UPDATE runs SET spent = true, changed_at = now_ WHERE id = _run;
        UPDATE attempts SET spent = true WHERE run = _run AND number = row_.attempt;
        PERFORM ds_audit_v1(_run, 'spent', 'worker', jsonb_build_object('attempt', row_.attempt), now_);
    ELSIF verdict = 'ok' THEN
        IF row_.capability IS NULL THEN
            UPDATE runs
            SET attempt_state = 'attached', attached_at = now_, capability = _instance, changed_at = now_
            WHERE id = _run;
            UPDATE attempts SET state = 'attached', attached_at = now_ WHERE run = _run AND number = row_.attempt;
            PERFORM ds_audit_v1(_run, 'attached', 'worker',
                jsonb_build_object('attempt', row_.attempt, 'podUID', _pod_uid), now_);
        END IF;
        UPDATE runs SET cancel_told_at = now_
        WHERE id = _run AND cancel_requested_at IS NOT NULL AND cancel_told_at IS NULL;
        record := ds_run_record_v1(_run);
    END IF;
END
$$;
