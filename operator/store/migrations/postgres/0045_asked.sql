-- What is known of who asked for a transition, and why, stands in its row of the audit.

CREATE FUNCTION ds_asked_v1(_manager text, _reason text) RETURNS jsonb
LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_strip_nulls(jsonb_build_object('manager', _manager, 'reason', _reason))
$$;

-- `Store::request_cancel`.
CREATE FUNCTION ds_request_cancel_v2(_run uuid, _manager text, _reason text) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    now_ bigint;
    row_ runs;
BEGIN
    SELECT * INTO row_ FROM runs WHERE id = _run FOR UPDATE;
    now_ := ds_now_v1();
    IF row_.lifecycle = 'live' AND row_.cancel_requested_at IS NULL THEN
        UPDATE runs SET cancel_requested_at = now_ WHERE id = _run;
        PERFORM ds_audit_v1(_run, 'cancel-requested', 'operator',
            jsonb_build_object('attempt', row_.attempt) || ds_asked_v1(_manager, _reason), now_);
    END IF;
    RETURN ds_run_record_v1(_run);
END
$$;

-- `Store::reset_budget`, by compare and set.
CREATE FUNCTION ds_reset_budget_v2(_run uuid, _observed bigint, _to bigint, _manager text, _reason text) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    row_ runs;
BEGIN
    SELECT * INTO row_ FROM runs WHERE id = _run FOR UPDATE;
    IF row_.lifecycle = 'live' AND row_.observed_reset_generation = _observed AND _to > _observed THEN
        UPDATE runs
        -- What is forgiven has happened: how the current attempt will end counts again.
        SET observed_reset_generation = _to,
            reset_attempt = CASE WHEN attempt_state = 'ended' THEN attempt ELSE attempt - 1 END,
            attempts_without_progress = 0, disruptions_without_progress = 0,
            recovery_attempts_base = recovery_attempts, disruptions_base = disruptions
        WHERE id = _run;
        PERFORM ds_audit_v1(_run, 'reset', 'operator',
            jsonb_build_object('from', _observed, 'to', _to, 'attempt', row_.attempt)
                || ds_asked_v1(_manager, _reason),
            ds_now_v1());
    END IF;
    RETURN ds_run_record_v1(_run);
END
$$;

-- `Store::mark_deleted`. An object's row may change hands (adoption) while its lock is waited for: then it is no
-- longer this object's.
CREATE FUNCTION ds_mark_deleted_v2(_object_uid text, _manager text, _reason text) RETURNS void
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
CREATE FUNCTION ds_adopt_namespace_v2(_old text, _new text, _actor text, _reason text) RETURNS bigint
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

-- `Store::prune_audit`. How many rows went; 0: the run has no such row.
CREATE FUNCTION ds_prune_audit_v2(_run uuid, _seq bigint, _hash bytea, _actor text, _reason text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    gone_ bigint;
BEGIN
    PERFORM FROM runs WHERE id = _run FOR UPDATE;
    IF NOT EXISTS (SELECT FROM audit WHERE run = _run AND seq = _seq AND hash = _hash) THEN
        RETURN 0;
    END IF;
    PERFORM set_config('dalsegno.prunes', 'yes', true);
    DELETE FROM audit WHERE run = _run AND seq <= _seq;
    GET DIAGNOSTICS gone_ = ROW_COUNT;
    PERFORM set_config('dalsegno.prunes', '', true);
    PERFORM ds_audit_v1(_run, 'pruned', _actor, jsonb_build_object(
        'to', _seq, 'hash', 'sha256:' || encode(_hash, 'hex'), 'rows', gone_, 'reason', _reason
    ), ds_now_v1());
    RETURN gone_;
END
$$;
