-- A prefix of records is deleted at once.

-- The keys with a prefix that hold something, at most `_most` of them. It goes from key to key, and of each reads the
-- last change. VOLATILE: it sees what was written before.
CREATE FUNCTION ds_held_keys_v1(_run uuid, _space text, _prefix text, _most bigint) RETURNS text[]
LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        WITH RECURSIVE keys (key) AS (
            SELECT key FROM (
                SELECT r.key FROM records r
                WHERE r.run = _run AND r.space = _space AND r.key >= _prefix ORDER BY r.key LIMIT 1
            ) AS first
            UNION ALL
            SELECT (
                SELECT r.key FROM records r
                WHERE r.run = _run AND r.space = _space AND r.key > keys.key ORDER BY r.key LIMIT 1
            )
            FROM keys WHERE starts_with(keys.key, _prefix)
        )
        SELECT keys.key FROM keys
        WHERE starts_with(keys.key, _prefix) AND ds_holds_v1(_run, _space, keys.key)
        LIMIT _most
    );
END
$$;

-- How many keys the operations `deletePrefix`, which come first, would empty. Counts no further than one above `_most`.
-- None of the prefixes starts with another one of its space. The caller holds the lock of the run's row.
CREATE FUNCTION ds_keys_to_empty_v1(
    _run uuid, _ops text[], _spaces text[], _prefixes text[], _most bigint
) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    count_ bigint := 0;
    next_ integer := 1;
BEGIN
    WHILE _ops[next_] = 'deletePrefix' AND count_ <= _most LOOP
        count_ := count_
            + cardinality(ds_held_keys_v1(_run, _spaces[next_], _prefixes[next_], _most + 1 - count_));
        next_ := next_ + 1;
    END LOOP;
    RETURN count_;
END
$$;

-- Deletes what the keys with a prefix hold. Returns how many keys that were. The caller holds the lock of the run's row,
-- and has counted the keys.
CREATE FUNCTION ds_delete_prefix_v1(
    _run uuid, _turn integer, _boundary smallint, _epoch bigint, _at bigint, _space text, _prefix text
) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    held_ text[] := ds_held_keys_v1(_run, _space, _prefix, NULL);
BEGIN
    -- What is replaced before the next boundary: no rewind can ask for it again. (Key by key: no plan begins with all
    -- records that there are.)
    DELETE FROM records WHERE ctid = ANY (ARRAY(
        SELECT replaced.ctid
        FROM unnest(held_) AS held (key), LATERAL (
            SELECT r.ctid FROM records r
            WHERE r.run = _run AND r.space = _space AND r.key = held.key
              AND r.turn = _turn AND r.boundary = _boundary AND NOT r.undone
            OFFSET 0
        ) AS replaced
    ));

    -- Each key that still holds something gets a row that a rewind can hide.
    INSERT INTO records (run, space, key, seq, op, size, turn, boundary, epoch, at)
    SELECT _run, _space, held.key,
           (SELECT max(r.seq) FROM records r WHERE r.run = _run AND r.space = _space AND r.key = held.key) + 1,
           'delete', 0, _turn, _boundary, _epoch, _at
    FROM unnest(held_) AS held (key)
    WHERE ds_holds_v1(_run, _space, held.key);
    RETURN cardinality(held_);
END
$$;

-- As `ds_apply_records_v1`. Operations `deletePrefix` come first, each with the prefix in place of a key.
CREATE FUNCTION ds_apply_records_v2(
    _run uuid, _turn integer, _boundary smallint, _epoch bigint, _at bigint, _digest bytea,
    _ops text[], _spaces text[], _keys text[], _entries text[], _values bytea[], _sizes bigint[], _batch bytea
) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    written_ bigint := 0;
    next_ integer := 1;
BEGIN
    WHILE _ops[next_] = 'deletePrefix' LOOP
        written_ := written_
            + ds_delete_prefix_v1(_run, _turn, _boundary, _epoch, _at, _spaces[next_], _keys[next_]);
        next_ := next_ + 1;
    END LOOP;
    IF next_ = 1 THEN
        RETURN ds_apply_records_v1(
            _run, _turn, _boundary, _epoch, _at, _digest,
            _ops, _spaces, _keys, _entries, _values, _sizes, _batch);
    END IF;
    RETURN written_ + ds_apply_records_v1(
        _run, _turn, _boundary, _epoch, _at, _digest,
        _ops[next_:], _spaces[next_:], _keys[next_:], _entries[next_:], _values[next_:], _sizes[next_:], _batch);
END
$$;

-- As `ds_write_records_v1`, with `ds_apply_records_v2`. A batch whose operations `deletePrefix` would empty more than
-- `_most_keys` keys is refused.
CREATE FUNCTION ds_write_records_v2(
    _run uuid, _capability bytea, _batch uuid, _digest bytea, _records_digest bytea,
    _ops text[], _spaces text[], _keys text[], _entries text[], _values bytea[], _sizes bigint[], _changes bytea,
    _most_keys bigint
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
        WHEN ds_keys_to_empty_v1(_run, _ops, _spaces, _keys, _most_keys) > _most_keys THEN 'too many keys'
        ELSE 'ok'
    END;
    IF verdict_ = 'ok' THEN
        now_ := ds_now_v1();
        turn_ := CASE row_.head_boundary WHEN 1 THEN row_.head_turn ELSE coalesce(row_.head_turn, 0) + 1 END;
        boundary_ := CASE row_.head_boundary WHEN 1 THEN 2 ELSE 1 END;
        INSERT INTO record_batches (run, id, digest, turn, boundary, epoch, at)
        VALUES (_run, _batch, _digest, turn_, boundary_, row_.epoch, now_);
        PERFORM ds_apply_records_v2(
            _run, turn_, boundary_, row_.epoch, now_, _records_digest,
            _ops, _spaces, _keys, _entries, _values, _sizes, _changes);
        UPDATE runs SET records_digest = ds_records_link_v1(records_digest, _records_digest) WHERE id = _run;
    END IF;
    RETURN verdict_;
END
$$;

-- As `ds_cut_v1`, which deletes at most 20,000 replaced rows: no later cut looks at those that it leaves. A `delete` goes
-- with the rows that it has replaced: a key without rows holds nothing either, and costs no read anything.
CREATE FUNCTION ds_cut_v2(
    _run uuid, _turn integer, _boundary smallint, _epoch bigint, _hash bytea, _snapshot bytea, _text bytea,
    _chunks bytea[]
) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    row_ runs;
    emptied_ bigint;
BEGIN
    SELECT * INTO row_ FROM runs WHERE id = _run FOR UPDATE;
    emptied_ := ds_cut_v1(_run, _turn, _boundary, _epoch, _hash, _snapshot, _text, _chunks);
    IF emptied_ > 0 THEN
        DELETE FROM records WHERE ctid = ANY (ARRAY(
            SELECT old.ctid
            FROM (
                SELECT r.space, r.key, max(r.seq) AS seq FROM records r
                WHERE r.run = _run AND r.op IN ('put', 'delete') AND NOT r.undone
                  AND (r.turn, r.boundary) <= (_turn, _boundary)
                  AND (r.turn, r.boundary) > (coalesce(row_.dropped_turn, 0), coalesce(row_.dropped_boundary, 0))
                GROUP BY r.space, r.key
            ) AS last JOIN records old
              ON old.run = _run AND old.space = last.space AND old.key = last.key AND old.seq < last.seq
        ));
        DELETE FROM records WHERE ctid = ANY (ARRAY(
            SELECT r.ctid FROM records r
            WHERE r.run = _run AND r.op = 'delete' AND NOT r.undone
              AND (r.turn, r.boundary) <= (_turn, _boundary)
              AND (r.turn, r.boundary) > (coalesce(row_.dropped_turn, 0), coalesce(row_.dropped_boundary, 0))
              AND NOT EXISTS (
                  SELECT FROM records old
                  WHERE old.run = _run AND old.space = r.space AND old.key = r.key AND old.seq < r.seq)
        ));
    END IF;
    RETURN emptied_;
END
$$;
