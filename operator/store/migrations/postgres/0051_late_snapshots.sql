-- A snapshot that was begun before its run's payloads were dropped, or its data key was made, and comes after.

-- Whether a snapshot of this boundary is taken; not, where the chunks that it shares with the one it was made of are gone.
-- Volatile: it looks once it has the lock, which `ds_expire_v1` and `ds_discard_v1` hold alone; so whichever comes first,
-- nothing is left, and nothing is missing. One that comes as its boundary is dropped is spent, and goes as such.
CREATE FUNCTION ds_takes_snapshot_v1(
    _run uuid, _turn integer, _boundary smallint, _epoch bigint, _sealed boolean, _shared bytea[]
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('snapshot/' || _run, 0));
    RETURN EXISTS (
        SELECT FROM runs r
        WHERE r.id = _run AND r.expired_at IS NULL
          AND ((_turn, _boundary) < (r.dropped_turn, r.dropped_boundary) OR _epoch < r.dropped_epoch) IS NOT TRUE
          AND (_sealed OR NOT EXISTS (SELECT FROM data_keys WHERE run = _run))
          AND (SELECT count(*) FROM chunks WHERE run = _run AND hash = ANY (_shared)) = cardinality(_shared));
END
$$;
