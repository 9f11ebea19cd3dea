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

-- `Store::finish`. The head as it stands, and what a person asks for, as a commit answers them.
CREATE FUNCTION ds_finish_v1(
    _run uuid, _capability bytea, _commit_id uuid, _digest bytea,
    _outcome text, _reason text, _message text, _output text,
    OUT verdict text, OUT committed boolean,
    OUT turn integer, OUT boundary smallint, OUT "position" bigint, OUT content_hash bytea,
    OUT suspend boolean, OUT cancel boolean, OUT lease_ms bigint
)
LANGUAGE plpgsql AS $$
DECLARE
    now_ bigint;
    row_ runs;
BEGIN
    SELECT * INTO row_ FROM runs WHERE id = _run FOR UPDATE;
    now_ := ds_now_v1();
    committed := row_.finish_commit_id = _commit_id AND row_.finish_digest = _digest;
    verdict := CASE
        WHEN row_.id IS NULL THEN 'not found'
        WHEN row_.capability IS DISTINCT FROM _capability THEN 'fenced'
        WHEN committed THEN 'duplicate'
        WHEN row_.lifecycle <> 'live' THEN 'finished'
        WHEN row_.unsettled_retry_same_key + row_.unsettled_probe + row_.unsettled_ask + row_.keys_refused > 0
            THEN 'unsettled'
        ELSE 'ok'
    END;
    IF verdict = 'ok' THEN
        PERFORM ds_close_run_v1(_run, _outcome, _reason, _message, _output, _commit_id, _digest, now_);
        UPDATE runs
        SET changed_at = now_, lease_renewed_at = CASE WHEN lease_renewed_at IS NOT NULL THEN now_ END,
            lease_ms = CASE WHEN lease_renewed_at IS NULL THEN runs.lease_ms ELSE greatest(runs.lease_ms, heartbeat_ms) END
        WHERE id = _run;
        PERFORM ds_audit_v1(_run, 'finished', 'worker',
            jsonb_build_object('attempt', row_.attempt, 'outcome', _outcome, 'reason', _reason), now_);
    END IF;
    IF verdict IN ('ok', 'duplicate') THEN
        UPDATE runs SET cancel_told_at = now_
        WHERE id = _run AND cancel_requested_at IS NOT NULL AND cancel_told_at IS NULL;
    END IF;
    turn := row_.head_turn;
    boundary := row_.head_boundary;
    "position" := row_.head_position;
    content_hash := row_.head_hash;
    suspend := row_.suspend;
    cancel := row_.cancel_requested_at IS NOT NULL;
    lease_ms := row_.heartbeat_ms;
END
$$;
