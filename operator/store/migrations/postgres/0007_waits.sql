-- Waits: what a run waits for, and what it is parked on.
CREATE TABLE waits (
    run        uuid     NOT NULL,
    id         text     NOT NULL,
    -- The epoch it was opened under. After a rewind the same id may be opened again.
    epoch      bigint   NOT NULL,
    ordinal    bigint   NOT NULL,
    -- The position on the branch at which it was opened, as records have it: a rewind to an earlier one undoes it.
    turn       integer  NOT NULL,
    boundary   smallint NOT NULL,
    undone     boolean  NOT NULL DEFAULT false,
    attempt    integer  NOT NULL,
    kind       text     NOT NULL CHECK (kind IN ('approval', 'until', 'message', 'rateLimit')),
    state      text     NOT NULL CHECK (state IN ('open', 'answered', 'withdrawn')),
    digest     bytea    NOT NULL,
    -- The request as it came, and for an approval the salt of its hash. Null: deleted by retention.
    request    bytea,
    bytes      bigint   NOT NULL,
    deadline_at bigint,
    on_timeout text     NOT NULL CHECK (on_timeout IN ('Answer', 'Hold', 'Fail')),
    -- When the deadline passed while the run was parked on it, if it stays open after that.
    timed_out_at bigint,
    wake_at    bigint,
    -- The end of the rate limit that `wake_at` was computed from.
    reset_at   bigint,
    provider   text,
    topic      text,
    proposal_hash bytea,
    opened_at  bigint   NOT NULL,
    answered_at bigint,
    outcome    text CHECK (outcome IN ('approved', 'denied', 'changed', 'elapsed', 'message', 'timedOut')),
    -- Position of the message that answered it.
    position   bigint,
    -- A person's words. Null: there are none, or they were deleted by retention.
    answer     bytea,
    -- The call that the approval was used for.
    used_by    text,
    PRIMARY KEY (run, id, epoch),
    UNIQUE (run, ordinal)
);

ALTER TABLE waits ALTER COLUMN request SET STORAGE EXTERNAL, ALTER COLUMN answer SET STORAGE EXTERNAL;

-- At most one wait of an id on the live branch.
CREATE UNIQUE INDEX waits_live ON waits (run, id) WHERE NOT undone;

-- The waits that answers and reads of a run need, however many it has had.
CREATE INDEX waits_open ON waits (run, ordinal) WHERE state = 'open' AND NOT undone;

-- Waits for the same rate limit.
CREATE INDEX waits_by_provider ON waits (provider) WHERE state = 'open' AND kind = 'rateLimit' AND NOT undone;

-- The number of the last wait, and the open ones of the live branch with the bytes of their requests.
ALTER TABLE runs ADD COLUMN last_wait bigint NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN open_waits bigint NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN open_wait_bytes bigint NOT NULL DEFAULT 0;
-- The ids of the waits that the run is parked on. Null: it is not parked on waits.
ALTER TABLE runs ADD COLUMN parked_on text[];
ALTER TABLE runs ADD COLUMN park_mode text;
ALTER TABLE runs ADD COLUMN parked_at bigint;
ALTER TABLE runs ADD COLUMN parks_without_progress integer NOT NULL DEFAULT 0;
-- When a wait of the run needs the store's clock next.
ALTER TABLE runs ADD COLUMN wake_at bigint;

-- A process without keys cannot write plain payloads into a run that has a data key.
CREATE TRIGGER waits_are_sealed BEFORE INSERT ON waits FOR EACH ROW
    WHEN (substr(NEW.request, 1, 1) < '\x10')
    EXECUTE FUNCTION ds_refuse_plain_v1();

CREATE TRIGGER answers_are_sealed BEFORE UPDATE OF answer ON waits FOR EACH ROW
    WHEN (substr(NEW.answer, 1, 1) < '\x10' AND NEW.answer IS DISTINCT FROM OLD.answer)
    EXECUTE FUNCTION ds_refuse_plain_v1();

-- Withdraws the open waits of a run that ends with a boundary, and appends that to its audit after the row `_seq`, whose
-- hash is `_parent`. VOLATILE: it sees the waits as they are once the run's row is locked. No row: none was open.
CREATE FUNCTION ds_withdraw_waits_v1(_run uuid, _now bigint, _seq bigint, _parent bytea)
RETURNS TABLE (seq bigint, hash bytea)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    detail_ text;
BEGIN
    SELECT jsonb_build_object('waits', jsonb_agg(
        jsonb_build_object('wait', w.id, 'epoch', w.epoch) ORDER BY w.ordinal))::text
    INTO detail_ FROM waits w
    WHERE w.run = _run AND w.state = 'open' AND NOT w.undone
    HAVING count(*) > 0;
    IF detail_ IS NULL THEN
        RETURN;
    END IF;
    UPDATE waits w SET state = 'withdrawn' WHERE w.run = _run AND w.state = 'open' AND NOT w.undone;
    RETURN QUERY
    INSERT INTO audit AS a (run, seq, at, kind, actor, detail, parent_hash, hash)
    VALUES (_run, _seq + 1, _now, 'waitWithdrawn', 'operator', detail_, _parent,
            ds_audit_hash_v1(_parent, _run, _seq + 1, _now, 'waitWithdrawn', 'operator', detail_))
    RETURNING a.seq, a.hash;
END
$$;

-- As `ds_expire_v1`, and before it the payloads of waits, in a step of their own.
CREATE FUNCTION ds_expire_v2(_run uuid, _limit bigint, _bytes bigint, OUT expired uuid, OUT touched bigint, OUT done boolean)
LANGUAGE plpgsql AS $$
DECLARE
    now_ bigint := ds_now_v1();
    row_ runs;
BEGIN
    touched := 0;
    done := false;
    SELECT * INTO row_ FROM runs r
    WHERE r.id = _run AND r.lifecycle <> 'live' AND NOT r.emptied
      AND (r.expired_at IS NOT NULL
           OR coalesce(r.finish_at, r.over_at) + r.retention_days * 86400000::bigint <= now_)
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF row_.expired_at IS NULL AND row_.last_wait > 0 THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('snapshot/' || _run, 0));
        UPDATE runs SET expired_at = now_ WHERE id = _run;
        PERFORM ds_audit_v1(_run, 'expired', 'operator',
            jsonb_build_object('retentionDays', row_.retention_days), now_);
    END IF;
    WITH found AS (
        SELECT ctid AS at, coalesce(octet_length(request), 0) + coalesce(octet_length(answer), 0) AS bytes
        FROM waits WHERE run = _run AND (request IS NOT NULL OR answer IS NOT NULL) LIMIT _limit
    ), weighed AS (
        SELECT at, sum(bytes) OVER (ORDER BY at ROWS UNBOUNDED PRECEDING) - bytes AS bytes_before FROM found
    )
    UPDATE waits SET request = NULL, answer = NULL
    WHERE ctid = ANY (ARRAY(SELECT at FROM weighed WHERE bytes_before < _bytes));
    GET DIAGNOSTICS touched = ROW_COUNT;
    IF touched > 0 THEN
        expired := _run;
        RETURN;
    END IF;
    SELECT step.expired, step.touched, step.done INTO expired, touched, done
    FROM ds_expire_v1(_run, _limit, _bytes) AS step;
END
$$;

-- As `ds_purge_v1`, and before it the rows of waits.
CREATE FUNCTION ds_purge_v2(_run uuid, _last bigint, _limit bigint, OUT done boolean, OUT touched bigint)
LANGUAGE plpgsql AS $$
DECLARE
    waits_ bigint;
BEGIN
    touched := 0;
    PERFORM FROM runs WHERE id = _run AND audit_seq = _last AND NOT has_moved FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    DELETE FROM waits WHERE ctid = ANY (ARRAY(SELECT ctid FROM waits WHERE run = _run LIMIT _limit));
    GET DIAGNOSTICS waits_ = ROW_COUNT;
    IF waits_ = _limit THEN
        touched := waits_;
        done := false;
        RETURN;
    END IF;
    SELECT step.done, step.touched + waits_ INTO done, touched FROM ds_purge_v1(_run, _last, _limit - waits_) AS step;
END
$$;
