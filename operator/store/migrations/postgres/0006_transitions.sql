-- The steps that transitions are made of. Their callers hold the lock of the run's row.

-- Ends the current attempt, which is not ended yet: counts it by the table of `Class` in model.rs, takes its right to
-- write and moves the epoch. What it had started and not completed is unsettled from now on.
-- Answers what it was counted as.
CREATE FUNCTION ds_close_attempt_v1(_run uuid, _cause text, _class text, _exit_code integer, _message text, _now bigint)
RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    row_ runs;
    progress_ boolean;
    class_ text;
BEGIN
    SELECT * INTO STRICT row_ FROM runs WHERE id = _run;
    progress_ := row_.highest_turn > row_.attempt_turn OR row_.completed_calls > row_.attempt_completed;
    class_ := CASE
        WHEN _class <> 'CrashWithoutProgress' THEN _class
        WHEN progress_ THEN 'Disruption'
        ELSE 'Crash'
    END;

    UPDATE attempts
    SET state = 'ended', ended_at = _now, lease_renewed_at = row_.lease_renewed_at,
        turn_at_end = coalesce(row_.head_turn, 0),
        cause = _cause, class = class_, charged = class_ = 'Crash', progress = progress_,
        exit_code = _exit_code, message = _message
    WHERE run = _run AND number = row_.attempt;

    UPDATE runs
    SET epoch = epoch + 1, capability = NULL, attempt_state = 'ended',
        recovery_attempts = recovery_attempts + (class_ = 'Crash')::integer,
        attempts_without_progress =
            CASE WHEN progress_ THEN 0 ELSE attempts_without_progress + (class_ = 'Crash')::integer END,
        disruptions = disruptions + (class_ = 'Disruption')::integer,
        disruptions_without_progress =
            CASE WHEN progress_ THEN 0 ELSE disruptions_without_progress + (class_ = 'Disruption')::integer END,
        unsettled_retry_same_key = started.retry_same_key,
        unsettled_probe = started.probe,
        unsettled_ask = started.ask,
        unsettled_read_only = started.read_only
    FROM (
        -- Every call that is started now is one of an attempt that is over.
        SELECT count(*) FILTER (WHERE policy = 'retrySameKey') AS retry_same_key,
               count(*) FILTER (WHERE policy = 'probe') AS probe,
               count(*) FILTER (WHERE policy = 'ask') AS ask,
               count(*) FILTER (WHERE policy = 'readOnly') AS read_only
        FROM calls
        WHERE run = _run AND state = 'started'
    ) AS started
    WHERE id = _run;
    RETURN class_;
END
$$;

-- The same, noted in the audit; nothing if the attempt is ended already.
CREATE FUNCTION ds_end_noted_v1(_run uuid, _cause text, _class text, _exit_code integer, _message text, _now bigint)
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    row_ runs;
    class_ text;
BEGIN
    SELECT * INTO STRICT row_ FROM runs WHERE id = _run;
    IF row_.attempt_state = 'ended' THEN
        RETURN;
    END IF;
    class_ := ds_close_attempt_v1(_run, _cause, _class, _exit_code, _message, _now);
    PERFORM ds_audit_v1(_run, 'ended', 'operator', jsonb_build_object(
        'attempt', row_.attempt, 'cause', _cause, 'class', class_, 'epoch', row_.epoch + 1,
        'exitCode', _exit_code, 'message', _message
    ), _now);
END
$$;

-- Ends the current attempt for a reason that has nothing to do with it, and fences the run in any case.
-- Answers the epoch after.
CREATE FUNCTION ds_cut_off_v1(_run uuid, _cause text, _now bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    row_ runs;
BEGIN
    SELECT * INTO STRICT row_ FROM runs WHERE id = _run;
    IF row_.attempt_state = 'ended' THEN
        UPDATE runs SET epoch = epoch + 1, capability = NULL WHERE id = _run;
    ELSE
        PERFORM ds_close_attempt_v1(_run, _cause, 'Neutral', NULL, '', _now);
    END IF;
    RETURN row_.epoch + 1;
END
$$;

-- Reserves the attempt after the current one, under the epoch that the current one's end has left.
CREATE FUNCTION ds_reserve_v1(_run uuid, _now bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    row_ runs;
BEGIN
    UPDATE runs
    SET attempt = attempt + 1, attempt_state = 'reserved', pod_uid = NULL,
        attempt_turn = highest_turn, attempt_completed = completed_calls,
        verdict = NULL, remark = NULL, scheduled_at = NULL, attached_at = NULL, lease_renewed_at = NULL,
        spent = false
    WHERE id = _run
    RETURNING * INTO STRICT row_;
    INSERT INTO attempts (run, number, state, epoch, turn_at_start, reserved_at)
    VALUES (_run, row_.attempt, 'reserved', row_.epoch, coalesce(row_.head_turn, 0), _now);
    PERFORM ds_audit_v1(_run, 'reserved', 'operator',
        jsonb_build_object('attempt', row_.attempt, 'epoch', row_.epoch), _now);
END
$$;

-- Closes the run; epoch and capability stay, so that a retry of the worker's word is known. `_commit_id` and
-- `_digest`: of that word, null where it is the operator's.
CREATE FUNCTION ds_close_run_v1(
    _run uuid, _outcome text, _reason text, _message text, _output text, _commit_id uuid, _digest bytea, _now bigint
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE runs
    SET lifecycle = 'finished',
        finish_outcome = _outcome, finish_reason = _reason, finish_message = _message, finish_output = _output,
        finish_commit_id = _commit_id, finish_digest = _digest, finish_at = _now
    WHERE id = _run;
END
$$;
