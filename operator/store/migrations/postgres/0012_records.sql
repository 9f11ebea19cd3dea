-- Records. Rust folds, digests and encodes (records.rs); here is what must be judged and written under the lock.

-- Nothing was ever written to the table that stood here. Spaces and keys are ordered by their bytes.
DROP TABLE records;

-- Each effective change is a row of its own, so that a rewind can hide it. `size`: bytes of the value before encoding.
-- `boundary`: 2 after the plan of its turn, else 1.
CREATE TABLE records (
    run      uuid    NOT NULL,
    space    text    NOT NULL COLLATE "C",
    key      text    NOT NULL COLLATE "C",
    seq      bigint  NOT NULL,
    op       text    NOT NULL CHECK (op IN ('put', 'putIfAbsent', 'append', 'delete')),
    entry_id text             COLLATE "C",
    value    bytea,
    size     bigint  NOT NULL,
    turn     integer NOT NULL,
    boundary smallint NOT NULL CHECK (boundary IN (1, 2)),
    epoch    bigint  NOT NULL,
    at       bigint  NOT NULL,
    undone   boolean NOT NULL DEFAULT false,
    PRIMARY KEY (run, space, key, seq)
);

ALTER TABLE records ALTER COLUMN value SET STORAGE EXTERNAL;

-- A key may hold a long list, and may have been put in each of many turns: what it holds, whether an entry is among it, and
-- what was written to it since the last boundary are found without walking it.
CREATE INDEX records_that_replace ON records (run, space, key, seq) WHERE op IN ('put', 'delete') AND NOT undone;
CREATE INDEX records_by_entry ON records (run, space, key, entry_id) WHERE entry_id IS NOT NULL AND NOT undone;
CREATE INDEX records_by_boundary ON records (run, turn, boundary, space, key) WHERE NOT undone;

-- What keys hold: the rows from a key's last `put` on, or after its last `delete`.
CREATE VIEW held_records AS
SELECT record.*
FROM records record
WHERE NOT undone AND op <> 'delete'
  AND seq >= coalesce((
      SELECT max(other.seq) FROM records other
      WHERE other.run = record.run AND other.space = record.space AND other.key = record.key
        AND other.op IN ('put', 'delete') AND NOT other.undone
  ), 0);

-- Whether a key holds anything: what came last says so, however much was there before.
CREATE FUNCTION ds_holds_v1(_run uuid, _space text, _key text) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
RETURN coalesce((
    SELECT op <> 'delete' FROM records
    WHERE run = _run AND space = _space AND key = _key AND NOT undone
    ORDER BY seq DESC LIMIT 1
), false);

-- Batches that came outside of a boundary, so that a retry is known. A rewind hides them with what they wrote.
CREATE TABLE record_batches (
    run            uuid    NOT NULL,
    id             uuid    NOT NULL,
    digest         bytea   NOT NULL,
    turn           integer NOT NULL,
    boundary       smallint NOT NULL CHECK (boundary IN (1, 2)),
    epoch          bigint  NOT NULL,
    at             bigint  NOT NULL,
    undone         boolean NOT NULL DEFAULT false,
    PRIMARY KEY (run, id, epoch)
);

-- What batches say, each value by its digest (records.rs), in the order in which they came; also those that a boundary brought.
-- `digest` is what stands in the boundary's hash.
CREATE TABLE record_changes (
    run      uuid    NOT NULL,
    seq      bigint  NOT NULL,
    turn     integer NOT NULL,
    boundary smallint NOT NULL CHECK (boundary IN (1, 2)),
    epoch    bigint  NOT NULL,
    undone   boolean NOT NULL DEFAULT false,
    digest   bytea   NOT NULL,
    batch    bytea   NOT NULL,
    PRIMARY KEY (run, seq)
);

-- The records digest of the batches since the head; null: none.
ALTER TABLE runs ADD COLUMN records_digest bytea;
ALTER TABLE boundaries ADD COLUMN records_digest bytea;

-- The records digest after a batch.
CREATE FUNCTION ds_records_link_v1(_before bytea, _batch bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN sha256(ds_frame_v1(coalesce(_before, '')) || ds_frame_v1(_batch));

-- Writes a batch, as it came and folded, and says how many rows of it took effect. The caller holds the lock of the run's row
-- and has judged. (VOLATILE: it sees what was written while the caller waited for the lock.)
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

-- `Store::write_records`.
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

-- Events are read by position.
CREATE INDEX boundaries_with_events ON boundaries (run, position) WHERE event_count > 0;
