-- Taking runs up, anew or over a prior run of the same name, and closing them for good.

-- `Store::create_run`. `prior`: another object's run stands in the way, and `record` is null.
CREATE FUNCTION ds_create_run_v1(
    _id uuid, _tenant text, _namespace text, _name text, _object_uid text, _reset_generation bigint,
    _heartbeat_ms bigint, _start_ms bigint, _progress_ms bigint, _on_prior text,
    OUT record jsonb, OUT prior jsonb
)
LANGUAGE plpgsql AS $$
DECLARE
    now_ bigint;
    row_ runs;
    epoch_ bigint;
BEGIN
    -- Two operators take one name up one after the other, until the end of this transaction.
    PERFORM pg_advisory_xact_lock(hashtextextended(_namespace || '/' || _name, 0));
    now_ := ds_now_v1();

    SELECT * INTO row_ FROM runs WHERE object_uid = _object_uid;
    IF FOUND THEN
        record := ds_run_record_v1(row_.id);
        RETURN;
    END IF;

    -- Prior runs: rows that bear the name and were not closed on purpose, the newest first.
    FOR row_ IN
        SELECT * FROM runs
        WHERE namespace = _namespace AND name = _name AND lifecycle IN ('live', 'finished')
        ORDER BY created_at DESC, id DESC
        FOR UPDATE
    LOOP
        IF _on_prior = 'ignore' THEN
            epoch_ := ds_cut_off_v1(row_.id, 'Abandoned', now_);
            UPDATE runs SET lifecycle = 'abandoned' WHERE id = row_.id;
            PERFORM ds_audit_v1(row_.id, 'abandoned', 'operator',
                jsonb_build_object('by', _object_uid, 'epoch', epoch_), now_);
        ELSIF _on_prior = 'adopt' AND row_.tenant = _tenant THEN
            PERFORM ds_adopt_v1(row_.id, _object_uid, _reset_generation, _heartbeat_ms, _start_ms, _progress_ms, now_);
            record := ds_run_record_v1(row_.id);
            RETURN;
        ELSE
            prior := jsonb_build_object('id', row_.id, 'object_uid', row_.object_uid,
                'tenant', row_.tenant, 'turn', coalesce(row_.head_turn, 0));
            RETURN;
        END IF;
    END LOOP;

    -- Attempt 0 is nobody's: the reserve below makes it 1.
    INSERT INTO runs (
        id, tenant, namespace, name, object_uid, created_at, lifecycle, epoch,
        attempt, attempt_state, attempt_turn, attempt_completed, spent, head_position, highest_turn, completed_calls,
        unsettled_retry_same_key, unsettled_probe, unsettled_ask, unsettled_read_only,
        recovery_attempts, recovery_attempts_base, attempts_without_progress,
        disruptions, disruptions_base, disruptions_without_progress, observed_reset_generation, reset_attempt,
        tokens_in, tokens_out, tool_calls, cost_micro_usd, suspend, heartbeat_ms, start_ms, progress_ms,
        changed_at, audit_seq, audit_hash
    ) VALUES (
        _id, _tenant, _namespace, _name, _object_uid, now_, 'live', 1,
        0, 'ended', 0, 0, false, 0, 0, 0,
        0, 0, 0, 0,
        0, 0, 0,
        0, 0, 0, _reset_generation, 0,
        0, 0, 0, 0, false, _heartbeat_ms, _start_ms, _progress_ms,
        now_, 0, decode(repeat('00', 32), 'hex')
    );
    PERFORM ds_audit_v1(_id, 'created', 'operator',
        jsonb_build_object('tenant', _tenant, 'namespace', _namespace, 'name', _name, 'objectUID', _object_uid), now_);
    PERFORM ds_reserve_v1(_id, now_);
    record := ds_run_record_v1(_id);
END
$$;

-- Gives a prior run's row to the new object, under a new epoch. A finished run stays finished.
CREATE FUNCTION ds_adopt_v1(
    _run uuid, _object_uid text, _reset_generation bigint, _heartbeat_ms bigint, _start_ms bigint,
    _progress_ms bigint, _now bigint
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    row_ runs;
BEGIN
    SELECT * INTO STRICT row_ FROM runs WHERE id = _run;
    PERFORM ds_audit_v1(_run, 'adopted', 'operator',
        jsonb_build_object('from', row_.object_uid, 'to', _object_uid), _now);
    UPDATE runs
    SET object_uid = _object_uid,
        observed_reset_generation = greatest(observed_reset_generation, _reset_generation),
        heartbeat_ms = _heartbeat_ms, start_ms = _start_ms, progress_ms = _progress_ms
    WHERE id = _run;
    IF row_.lifecycle = 'live' AND row_.attempt_state <> 'ended' THEN
        PERFORM ds_end_noted_v1(_run, 'Adopted', 'Neutral', NULL, '', _now);
    ELSE
        PERFORM ds_cut_off_v1(_run, 'Adopted', _now);
    END IF;
    IF row_.lifecycle = 'live' THEN
        PERFORM ds_reserve_v1(_run, _now);
    END IF;
END
$$;

-- `Store::mark_deleted`. An object's row may change hands (adoption) while its lock is waited for: then it is no
-- longer this object's.
CREATE FUNCTION ds_mark_deleted_v1(_object_uid text, _manager text, _reason text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    now_ bigint;
    row_ runs;
    epoch_ bigint;
BEGIN
    SELECT * INTO row_ FROM runs
    WHERE object_uid = _object_uid AND lifecycle IN ('live', 'finished')
    FOR UPDATE;
    IF FOUND THEN
        now_ := ds_now_v1();
        epoch_ := ds_cut_off_v1(row_.id, 'Deleted', now_);
        UPDATE runs SET lifecycle = 'deleted' WHERE id = row_.id;
        PERFORM ds_audit_v1(row_.id, 'deleted', 'operator',
            jsonb_build_object('epoch', epoch_) || ds_asked_v1(_manager, _reason), now_);
    END IF;
END
$$;

-- `Store::adopt_namespace`. Rows are locked in the order in which `ds_create_run_v1` locks them.
CREATE FUNCTION ds_adopt_namespace_v1(_old text, _new text, _actor text, _reason text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    now_ bigint;
    row_ runs;
    moved_ bigint := 0;
BEGIN
    IF _old = _new THEN
        RETURN 0;
    END IF;
    FOR row_ IN SELECT * FROM runs WHERE tenant = _old ORDER BY created_at DESC, id DESC FOR UPDATE LOOP
        now_ := ds_now_v1();
        UPDATE runs SET tenant = _new WHERE id = row_.id;
        PERFORM ds_audit_v1(row_.id, 'namespace-adopted', _actor,
            jsonb_build_object('from', _old, 'to', _new, 'reason', _reason), now_);
        moved_ := moved_ + 1;
    END LOOP;
    RETURN moved_;
END
$$;
