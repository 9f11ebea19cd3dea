-- How much the open calls of a run are: those that are started, and those of the open turn that are planned or have ended. A
-- lookup carries all of them, so that they are held to a limit as they are made, and nobody reads them for it.

ALTER TABLE calls ADD COLUMN arguments_bytes bigint NOT NULL DEFAULT 0, ADD COLUMN result_bytes bigint NOT NULL DEFAULT 0;

-- What was kept before counts as it is kept.
UPDATE calls
SET arguments_bytes = coalesce(octet_length(arguments), 0), result_bytes = coalesce(octet_length(result), 0);

-- In any other turn than the one beside it the number says nothing, and they are counted.
ALTER TABLE runs ADD COLUMN open_calls_bytes bigint, ADD COLUMN open_calls_turn integer;

-- Bytes that an open call counts. Those of a small result it counts from the beginning (`Limits::SMALL_RESULT_BYTES`): there is
-- room for one, whatever came meanwhile.
CREATE FUNCTION ds_call_bytes_v1(_id text, _key text, _arguments_bytes bigint, _result_bytes bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE
RETURN octet_length(_id) + octet_length(_key) + _arguments_bytes + greatest(_result_bytes, 1024);

-- The turn that is worked on: the head's while its boundary is `plan`, else one more.
CREATE FUNCTION ds_open_turn_v1(_row runs) RETURNS integer
LANGUAGE sql IMMUTABLE
RETURN CASE (_row).head_boundary WHEN 1 THEN (_row).head_turn ELSE coalesce((_row).head_turn, 0) + 1 END;

-- Bytes that the open calls of a run count. Volatile: it sees what was written before the caller had the lock.
CREATE FUNCTION ds_open_calls_v1(_row runs) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    turn_ integer := ds_open_turn_v1(_row);
BEGIN
    IF _row.open_calls_turn = turn_ THEN
        RETURN _row.open_calls_bytes;
    END IF;
    RETURN (
        SELECT coalesce(sum(ds_call_bytes_v1(id, key, arguments_bytes, result_bytes)), 0)
        FROM (
            SELECT id, key, arguments_bytes, result_bytes FROM calls WHERE run = _row.id AND state = 'started'
            UNION ALL
            SELECT id, key, arguments_bytes, result_bytes FROM calls
            WHERE run = _row.id AND turn = turn_ AND state <> 'started'
        ) AS open
    );
END
$$;

-- The same once these calls are planned for this turn, which is the open one; null: they add nothing.
CREATE FUNCTION ds_open_calls_planned_v1(_run uuid, _turn integer, _ids text[], _keys text[], _arguments_bytes bigint[])
RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    row_ runs;
    added_ bigint;
BEGIN
    SELECT sum(CASE WHEN there.id IS NULL
        THEN ds_call_bytes_v1(planned.id, planned.key, planned.arguments_bytes, 0)
        ELSE ds_call_bytes_v1(there.id, there.key, there.arguments_bytes, there.result_bytes)
    END)
    INTO added_
    FROM unnest(_ids, _keys, _arguments_bytes) AS planned (id, key, arguments_bytes)
    LEFT JOIN calls there ON there.run = _run AND there.id = planned.id
    WHERE there.id IS NULL OR (there.state = 'planned' AND there.turn <> _turn);
    SELECT * INTO row_ FROM runs WHERE id = _run;
    RETURN ds_open_calls_v1(row_) + added_;
END
$$;
