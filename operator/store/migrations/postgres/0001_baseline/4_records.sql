-- Records. Rust folds, digests and encodes them (operator/format/src/records.rs). These functions judge and write under
-- the lock of the run's row.

-- Whether a key holds anything. Its last change decides that, however many there are.
CREATE FUNCTION ds_holds_v1(_run uuid, _space text, _key text) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
RETURN coalesce((
    SELECT op <> 'delete' FROM records
    WHERE run = _run AND space = _space AND key = _key AND NOT undone
    ORDER BY seq DESC LIMIT 1
), false);

-- Writes a batch, both as it came and folded. Returns how many rows took effect. The caller holds the lock of the run's
-- row and has judged the batch. VOLATILE: it sees what was written while the caller waited for the lock.
CREATE FUNCTION ds_apply_records_v1(
    _run uuid, _turn integer, _boundary smallint, _epoch bigint, _at bigint, _digest bytea,
    _ops text[], _spaces text[], _keys text[], _entries text[], _values bytea[], _sizes bigint[], _batch bytea
) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    written_ bigint;
BEGIN
    INSERT INTO record_changes (run, seq, turn, boundary, epoch, digest, batch)
    SELECT _run, coalesce((SELECT max(seq) FROM record_changes r WHERE r.run = _run), 0) + 1,
           _turn, _boundary, _epoch, _digest, _batch;

    -- What is replaced before the next boundary: no rewind can ask for it again.
    -- (Change by change: no plan begins with all records that there are.)
    DELETE FROM records WHERE ctid = ANY (ARRAY(
        SELECT replaced.ctid
        FROM unnest(_ops, _spaces, _keys) AS change (op, space, key), LATERAL (
            SELECT r.ctid FROM records r
            WHERE r.run = _run AND r.space = change.space AND r.key = change.key
              AND r.turn = _turn AND r.boundary = _boundary AND NOT r.undone
            OFFSET 0
        ) AS replaced
        WHERE change.op IN ('put', 'delete')
    ));

    INSERT INTO records (run, space, key, seq, op, entry_id, value, size, turn, boundary, epoch, at)
    SELECT _run, space, key,
           coalesce((SELECT max(seq) FROM records r WHERE r.run = _run AND r.space = c.space AND r.key = c.key), 0)
               + row_number() OVER (PARTITION BY space, key ORDER BY place),
           op, entry_id, value, size, _turn, _boundary, _epoch, _at
    FROM (
        SELECT change.*,
               bool_or(op IN ('put', 'delete')) OVER (PARTITION BY space, key) AS replaced
        FROM unnest(_ops, _spaces, _keys, _entries, _values, _sizes)
             WITH ORDINALITY AS change (op, space, key, entry_id, value, size, place)
    ) AS c
    WHERE CASE op
        WHEN 'put' THEN true
        -- A key that holds nothing needs no row that says so.
        WHEN 'delete' THEN ds_holds_v1(_run, space, key)
        WHEN 'putIfAbsent' THEN NOT ds_holds_v1(_run, space, key)
        ELSE replaced OR NOT EXISTS (
            SELECT FROM held_records h
            WHERE h.run = _run AND h.space = c.space AND h.key = c.key AND h.entry_id = c.entry_id)
    END;
    GET DIAGNOSTICS written_ = ROW_COUNT;
    RETURN written_;
END
$$;

-- `Worker::write_records`.
CREATE FUNCTION ds_write_records_v1(
    _run uuid, _capability bytea, _batch uuid, _digest bytea, _records_digest bytea,
    _ops text[], _spaces text[], _keys text[], _entries text[], _values bytea[], _sizes bigint[], _changes bytea
) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    now_ bigint;
    turn_ integer;
    boundary_ smallint;
    row_ runs;
    before_ bytea;
    verdict_ text;
BEGIN
    SELECT * INTO row_ FROM runs WHERE id = _run FOR UPDATE;
    SELECT digest INTO before_ FROM record_batches WHERE run = _run AND id = _batch AND NOT undone;
    verdict_ := CASE
        WHEN row_.id IS NULL THEN 'not found'
        WHEN row_.capability IS DISTINCT FROM _capability THEN 'fenced'
        WHEN before_ = _digest THEN 'duplicate'
        WHEN row_.lifecycle <> 'live' THEN 'finished'
        WHEN row_.unsettled_retry_same_key + row_.unsettled_probe + row_.unsettled_ask + row_.keys_refused > 0
            THEN 'unsettled'
        WHEN before_ IS NOT NULL THEN 'conflict'
        ELSE 'ok'
    END;
    IF verdict_ = 'ok' THEN
        now_ := ds_now_v1();
        turn_ := CASE row_.head_boundary WHEN 1 THEN row_.head_turn ELSE coalesce(row_.head_turn, 0) + 1 END;
        boundary_ := CASE row_.head_boundary WHEN 1 THEN 2 ELSE 1 END;
        INSERT INTO record_batches (run, id, digest, turn, boundary, epoch, at)
        VALUES (_run, _batch, _digest, turn_, boundary_, row_.epoch, now_);
        PERFORM ds_apply_records_v1(
            _run, turn_, boundary_, row_.epoch, now_, _records_digest,
            _ops, _spaces, _keys, _entries, _values, _sizes, _changes);
        UPDATE runs SET records_digest = ds_records_link_v1(records_digest, _records_digest) WHERE id = _run;
    END IF;
    RETURN verdict_;
END
$$;
