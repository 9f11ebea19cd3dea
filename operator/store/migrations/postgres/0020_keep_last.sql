-- How many of its last boundaries keep their payloads, in a run that lives as well.

-- `keep_last` null: all. `dropped_*`: the last boundary of the live branch whose payloads are gone. So are those of every
-- boundary before that place, and of every one that was undone before this one was written.
ALTER TABLE runs
    ADD COLUMN keep_last integer CHECK (keep_last >= 1),
    ADD COLUMN dropped_turn integer,
    ADD COLUMN dropped_boundary smallint,
    ADD COLUMN dropped_epoch bigint;

CREATE INDEX runs_to_clear ON runs (id) WHERE keep_last IS NOT NULL AND expired_at IS NULL;

-- The second half of a step of `Store::drop_old`: what was looked at is judged under the run's lock. How many boundaries
-- were emptied; 0: it is not as it was looked at. `_snapshot`: the digest of the snapshot's row; `_text`: of what it holds.
CREATE FUNCTION ds_cut_v1(
    _run uuid, _turn integer, _boundary smallint, _epoch bigint, _hash bytea, _snapshot bytea, _text bytea,
    _chunks bytea[]
) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    row_ runs;
    emptied_ bigint;
    bytes_ bigint;
BEGIN
    SELECT * INTO row_ FROM runs WHERE id = _run FOR UPDATE;
    IF row_.keep_last IS NULL OR row_.expired_at IS NOT NULL
        OR (_turn, _boundary) <= (row_.dropped_turn, row_.dropped_boundary)
        OR NOT EXISTS (
            SELECT FROM boundaries
            WHERE run = _run AND turn = _turn AND boundary = _boundary AND epoch = _epoch AND content_hash = _hash
              AND NOT undone)
        OR (SELECT count(*) FROM boundaries
            WHERE run = _run AND (turn, boundary) > (_turn, _boundary) AND NOT undone) < row_.keep_last
        OR NOT EXISTS (SELECT FROM snapshots WHERE run = _run AND content_hash = _hash AND digest = _snapshot)
        OR (SELECT count(*) FROM chunks WHERE run = _run AND hash = ANY (_chunks)) <> cardinality(_chunks)
    THEN
        RETURN 0;
    END IF;
    PERFORM ds_audit_v1(_run, 'dropped', 'operator', jsonb_build_object(
        'keepLast', row_.keep_last, 'to', ds_told_v1(_turn, _boundary, _hash), 'epoch', _epoch,
        'snapshot', 'sha256:' || encode(_text, 'hex')
    ), ds_now_v1());
    WITH old AS (
        SELECT turn, boundary, epoch, coalesce(octet_length(ops), 0) + coalesce(octet_length(events), 0) AS bytes
        FROM boundaries
        WHERE run = _run AND NOT dropped AND (turn, boundary) <= (_turn, _boundary)
          AND (turn, boundary) > (coalesce(row_.dropped_turn, 0), coalesce(row_.dropped_boundary, 0))
    ), emptied AS (
        UPDATE boundaries b SET ops = NULL, events = NULL, dropped = true
        FROM old
        WHERE b.run = _run AND (b.turn, b.boundary, b.epoch) = (old.turn, old.boundary, old.epoch)
        RETURNING old.bytes
    )
    SELECT count(*), coalesce(sum(bytes), 0) INTO emptied_, bytes_ FROM emptied;
    UPDATE runs
    SET dropped_turn = _turn, dropped_boundary = _boundary, dropped_epoch = _epoch, stored_bytes = stored_bytes - bytes_
    WHERE id = _run;
    RETURN emptied_;
END
$$;

-- A snapshot that nothing is rebuilt with any more, and chunks that no other has. `_others`: those that were looked at.
CREATE FUNCTION ds_discard_v1(_run uuid, _hash bytea, _chunks bytea[], _others bytea[]) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    snapshots_ bigint;
    chunks_ bigint;
BEGIN
    PERFORM FROM runs WHERE id = _run FOR UPDATE;
    -- One that is just written is not among them. The run's row is locked: nobody waits here.
    IF NOT pg_try_advisory_xact_lock(hashtextextended('snapshot/' || _run, 0)) THEN
        RETURN 0;
    END IF;
    DELETE FROM snapshots s USING runs r
    WHERE r.id = _run AND s.run = _run AND s.content_hash = _hash
      AND ((s.turn, s.boundary) < (r.dropped_turn, r.dropped_boundary) OR s.epoch < r.dropped_epoch)
      AND NOT EXISTS (
          SELECT FROM snapshots o
          WHERE o.run = _run AND o.content_hash <> _hash AND o.content_hash <> ALL (_others));
    GET DIAGNOSTICS snapshots_ = ROW_COUNT;
    IF snapshots_ = 0 THEN
        RETURN 0;
    END IF;
    DELETE FROM chunks WHERE run = _run AND hash = ANY (_chunks);
    GET DIAGNOSTICS chunks_ = ROW_COUNT;
    RETURN snapshots_ + chunks_;
END
$$;
