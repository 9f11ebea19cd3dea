-- Going back to an earlier boundary.

-- A boundary as the audit tells of it.
CREATE FUNCTION ds_told_v1(_turn integer, _boundary smallint, _hash bytea) RETURNS jsonb
LANGUAGE sql IMMUTABLE
RETURN jsonb_build_object(
    'turn', _turn,
    'boundary', CASE _boundary WHEN 1 THEN 'plan' ELSE 'result' END,
    'hash', 'sha256:' || encode(_hash, 'hex')
);

-- `Store::rewind`. `done` false: nothing was changed.
CREATE FUNCTION ds_rewind_v1(
    _run uuid, _if_epoch bigint, _turn integer, _boundary smallint, _epoch bigint, _reason text, _actor text,
    OUT done boolean, OUT record jsonb
)
LANGUAGE plpgsql AS $$
DECLARE
    now_ bigint;
    row_ runs;
    to_ boundaries;
    undone_ jsonb;
    epoch_ bigint;
BEGIN
    SELECT * INTO row_ FROM runs WHERE id = _run FOR UPDATE;
    now_ := ds_now_v1();
    SELECT * INTO to_ FROM boundaries
    WHERE run = _run AND turn = _turn AND boundary = _boundary AND epoch = _epoch AND NOT undone;
    done := FOUND AND (row_.head_turn, row_.head_boundary, row_.head_epoch, row_.head_hash)
        IS NOT DISTINCT FROM (to_.turn, to_.boundary, to_.epoch, to_.content_hash);
    IF done OR to_.run IS NULL OR row_.lifecycle <> 'live' OR row_.epoch <> _if_epoch
        OR (_turn, _boundary) > (row_.head_turn, row_.head_boundary)
        OR (_turn, _boundary) < (row_.dropped_turn, row_.dropped_boundary)
    THEN
        record := ds_run_record_v1(_run);
        RETURN;
    END IF;

    -- Also what stands in the target's place under another epoch.
    WITH undone AS (
        UPDATE boundaries
        SET undone = true
        WHERE run = _run AND NOT undone
          AND ((turn, boundary) > (_turn, _boundary)
               OR ((turn, boundary) = (_turn, _boundary) AND epoch <> _epoch))
        RETURNING turn, boundary, content_hash
    )
    SELECT coalesce(jsonb_agg(ds_told_v1(turn, boundary, content_hash) ORDER BY turn, boundary, content_hash), '[]')
    INTO undone_
    FROM undone;
    PERFORM ds_hide_records_v1(_run, _turn, _boundary);

    IF row_.attempt_state IN ('created', 'attached') THEN
        PERFORM ds_end_noted_v1(_run, 'Rewound', 'Neutral', NULL, '', now_);
    ELSE
        UPDATE runs SET epoch = epoch + 1, capability = NULL WHERE id = _run;
    END IF;
    -- Positions never go back: `head_position` stays.
    UPDATE runs
    SET head_turn = to_.turn, head_boundary = to_.boundary, head_epoch = to_.epoch, head_attempt = to_.attempt,
        head_commit_id = to_.commit_id, head_digest = to_.digest, head_hash = to_.content_hash, head_at = to_.at,
        changed_at = now_
    WHERE id = _run
    RETURNING epoch INTO epoch_;
    IF row_.attempt_state = 'reserved' THEN
        UPDATE attempts SET epoch = epoch_, turn_at_start = _turn WHERE run = _run AND number = row_.attempt;
    END IF;
    PERFORM ds_audit_v1(_run, 'rewound', _actor, jsonb_build_object(
        'from', CASE WHEN row_.head_turn IS NOT NULL
            THEN ds_told_v1(row_.head_turn, row_.head_boundary, row_.head_hash) END,
        'to', ds_told_v1(to_.turn, to_.boundary, to_.content_hash),
        'epoch', epoch_, 'reason', _reason, 'undone', undone_
    ), now_);
    IF row_.attempt_state IN ('created', 'attached') THEN
        PERFORM ds_reserve_v1(_run, now_);
    END IF;
    done := true;
    record := ds_run_record_v1(_run);
END
$$;
