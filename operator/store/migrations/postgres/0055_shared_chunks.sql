-- A snapshot shares chunks with the one it was made of, which may be dropped meanwhile.

-- As `ds_takes_snapshot_v1`, and whether the chunks that it does not bring are there: it looks once it has the lock.
CREATE FUNCTION ds_takes_snapshot_v2(
    _run uuid, _turn integer, _boundary smallint, _epoch bigint, _sealed boolean, _shared bytea[]
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF NOT ds_takes_snapshot_v1(_run, _turn, _boundary, _epoch, _sealed) THEN
        RETURN false;
    END IF;
    RETURN (SELECT count(*) FROM chunks WHERE run = _run AND hash = ANY (_shared)) = cardinality(_shared);
END
$$;

-- As before, and not while a snapshot is being written: that one is not among those that were looked at.
CREATE OR REPLACE FUNCTION ds_discard_v1(_run uuid, _hash bytea, _chunks bytea[], _others bytea[]) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    snapshots_ bigint;
    chunks_ bigint;
BEGIN
    PERFORM FROM runs WHERE id = _run FOR UPDATE;
    -- The run's row is locked: nobody waits here.
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
