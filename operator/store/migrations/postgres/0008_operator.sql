-- What the operator asks. Each function locks the run's row by its primary key before it reads anything else, answers
-- the record as it stands after, and changes nothing in a run that is not live.

-- `Store::put_revision`. Whoever drops templates waits for the end of this transaction, and this one for theirs: what is
-- found here is named before anybody looks for what nobody names.
CREATE FUNCTION ds_put_revision_v1(
    _run uuid, _attempt integer, _hash text, _document text,
    OUT done boolean, OUT record jsonb
)
LANGUAGE plpgsql AS $$
DECLARE
    row_ runs;
BEGIN
    SELECT * INTO row_ FROM runs WHERE id = _run FOR UPDATE;
    done := row_.lifecycle = 'live' AND row_.attempt = _attempt AND row_.attempt_state = 'reserved';
    IF done THEN
        PERFORM pg_advisory_xact_lock_shared(hashtextextended('templates', 0));
        INSERT INTO revisions (hash, document, created_at) VALUES (_hash, _document, ds_now_v1())
        ON CONFLICT (hash) DO NOTHING;
        UPDATE attempts SET candidates = (ARRAY[_hash] || array_remove(candidates, _hash))[1:8]
        WHERE run = _run AND number = _attempt AND candidates[1] IS DISTINCT FROM _hash;
    END IF;
    record := ds_run_record_v1(_run);
END
$$;
