-- How long a run's payloads stay after its end.

-- `expired_at`: since when they are being dropped. `emptied`: none is left.
ALTER TABLE runs
    ADD COLUMN retention_days integer NOT NULL DEFAULT 30,
    ADD COLUMN expired_at bigint,
    ADD COLUMN emptied boolean NOT NULL DEFAULT false;

-- Its payloads are past their retention. The header stays, and the chain with it.
ALTER TABLE boundaries ADD COLUMN dropped boolean NOT NULL DEFAULT false;

CREATE INDEX runs_to_empty ON runs (id) WHERE lifecycle <> 'live' AND NOT emptied;

-- `Store::set_retention`.
CREATE FUNCTION ds_set_retention_v1(_run uuid, _days integer) RETURNS jsonb
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE runs SET retention_days = _days WHERE id = _run AND retention_days <> _days;
    RETURN ds_run_record_v1(_run);
END
$$;

-- `Store::drop_expired`. That payloads are being dropped stands in the audit before the first of them is. With the last of
-- them goes the data key, which only opens copies of them that are kept elsewhere.
CREATE FUNCTION ds_expire_v1(_limit bigint, OUT expired uuid, OUT touched bigint, OUT done boolean)
LANGUAGE plpgsql AS $$
DECLARE
    now_ bigint := ds_now_v1();
    left_ bigint := _limit;
    row_ runs;
    count_ bigint;
BEGIN
    touched := 0;
    done := false;
    SELECT * INTO row_ FROM runs r
    WHERE r.lifecycle <> 'live' AND NOT r.emptied
      AND (r.expired_at IS NOT NULL
           OR coalesce(r.finish_at, r.over_at) + r.retention_days * 86400000::bigint <= now_)
    ORDER BY r.id
    LIMIT 1
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    expired := row_.id;
    IF row_.expired_at IS NULL THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('snapshot/' || row_.id, 0));
        UPDATE runs SET expired_at = now_ WHERE id = row_.id;
        PERFORM ds_audit_v1(row_.id, 'expired', 'operator',
            jsonb_build_object('retentionDays', row_.retention_days), now_);
    END IF;

    DELETE FROM records WHERE ctid = ANY (ARRAY(SELECT ctid FROM records WHERE run = row_.id LIMIT left_));
    GET DIAGNOSTICS count_ = ROW_COUNT;
    left_ := left_ - count_;
    DELETE FROM record_batches
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM record_batches WHERE run = row_.id LIMIT left_));
    GET DIAGNOSTICS count_ = ROW_COUNT;
    left_ := left_ - count_;
    DELETE FROM snapshots WHERE ctid = ANY (ARRAY(SELECT ctid FROM snapshots WHERE run = row_.id LIMIT left_));
    GET DIAGNOSTICS count_ = ROW_COUNT;
    left_ := left_ - count_;
    DELETE FROM chunks WHERE ctid = ANY (ARRAY(SELECT ctid FROM chunks WHERE run = row_.id LIMIT left_));
    GET DIAGNOSTICS count_ = ROW_COUNT;
    left_ := left_ - count_;
    UPDATE calls SET arguments = NULL, result = NULL
    WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM calls
        WHERE run = row_.id AND (arguments IS NOT NULL OR result IS NOT NULL) LIMIT left_));
    GET DIAGNOSTICS count_ = ROW_COUNT;
    left_ := left_ - count_;
    -- The last first: what is left can be decoded, since a patch needs the state before it.
    UPDATE boundaries SET ops = NULL, events = NULL, dropped = true
    WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM boundaries WHERE run = row_.id AND NOT dropped
        ORDER BY turn DESC, boundary DESC LIMIT left_));
    GET DIAGNOSTICS count_ = ROW_COUNT;
    left_ := left_ - count_;

    touched := _limit - left_;
    done := left_ > 0;
    IF done THEN
        UPDATE runs SET emptied = true, stored_bytes = 0 WHERE id = row_.id;
        UPDATE data_keys SET key_id = NULL, wrapped = NULL, shredded_at = now_
        WHERE run = row_.id AND wrapped IS NOT NULL;
    END IF;
END
$$;
