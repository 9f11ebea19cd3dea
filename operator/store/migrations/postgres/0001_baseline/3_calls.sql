-- Tool calls: claimed before their effect, completed after it.
--
-- Each function locks the run's row by its primary key before it reads a call. It adds to the bytes of the open calls,
-- and refuses what would exceed `_most`. What takes bytes away, or adds none, is never too large. Parameters
-- `_…_digest` are digests for the audit.

-- The turn that is open: the head's turn after its `plan`, else the next one.
CREATE FUNCTION ds_open_turn_v1(_row runs) RETURNS integer
LANGUAGE sql IMMUTABLE
RETURN CASE (_row).head_boundary WHEN 1 THEN (_row).head_turn ELSE coalesce((_row).head_turn, 0) + 1 END;

-- Bytes that an open call counts. A result counts at least 1 KiB (`Limits::SMALL_RESULT_BYTES`), so that a small result
-- is always accepted.
CREATE FUNCTION ds_call_bytes_v1(_id text, _key text, _arguments_bytes bigint, _result_bytes bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE
RETURN octet_length(_id) + octet_length(_key) + _arguments_bytes + greatest(_result_bytes, 1024);

-- Bytes of the open calls of a run: all started calls, and the planned and ended calls of the open turn. An attach
-- returns all of them, hence the limit. VOLATILE: it sees what was written before the caller had the lock.
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

-- The same after these calls are planned for this turn, which is the open one. Null: they add nothing.
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

-- Notes the turn in which a call was last claimed or ended. The caller holds the lock of the run's row.
CREATE FUNCTION ds_touched_v1() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    SELECT CASE head_boundary WHEN 1 THEN head_turn ELSE coalesce(head_turn, 0) + 1 END INTO NEW.touched_turn
    FROM runs WHERE id = NEW.run;
    RETURN NEW;
END
$$;

CREATE TRIGGER calls_are_touched BEFORE UPDATE OF state, key_refused ON calls
FOR EACH ROW EXECUTE FUNCTION ds_touched_v1();

-- Counts one unsettled call of this policy less. The caller holds the lock.
CREATE FUNCTION ds_settled_v1(_run uuid, _policy text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE runs
    SET unsettled_retry_same_key = unsettled_retry_same_key - (_policy = 'retrySameKey')::integer,
        unsettled_probe = unsettled_probe - (_policy = 'probe')::integer,
        unsettled_ask = unsettled_ask - (_policy = 'ask')::integer,
        unsettled_read_only = unsettled_read_only - (_policy = 'readOnly')::integer
    WHERE id = _run;
END
$$;

-- How many calls with this policy count as `own_open_calls` while they are started: 1 or 0.
CREATE FUNCTION ds_needs_outcome_v1(_policy text) RETURNS bigint
LANGUAGE sql IMMUTABLE
RETURN (_policy IN ('probe', 'ask'))::integer;

-- How many of the calls that count as `own_open_calls` have these ids. VOLATILE: it sees what was written before the
-- caller had the lock.
CREATE FUNCTION ds_named_open_calls_v1(_run uuid, _ids text[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (
        SELECT count(*) FROM calls JOIN runs ON runs.id = calls.run
        WHERE calls.run = _run AND calls.id = ANY (_ids) AND calls.state = 'started' AND calls.attempt = runs.attempt
          AND calls.policy IN ('probe', 'ask')
    );
END
$$;

-- `Worker::claim`: the table of verdicts is at `Claimed` in operator/model. `call` is the call after the claim.
CREATE FUNCTION ds_claim_v1(
    _run uuid, _capability bytea, _id text, _claim_id uuid, _policy text, _key text, _arguments bytea,
    _arguments_bytes bigint, _most bigint, _key_digest text, _arguments_digest text, _has_keys boolean,
    OUT verdict text, OUT call calls
)
LANGUAGE plpgsql AS $$
DECLARE
    now_ bigint;
    row_ runs;
    turn_ integer;
    open_ bigint;
    counted_ bigint;
    counts_ bigint;
BEGIN
    SELECT * INTO row_ FROM runs WHERE id = _run FOR UPDATE;
    now_ := ds_now_v1();
    verdict := CASE
        WHEN row_.id IS NULL THEN 'not found'
        WHEN row_.capability IS DISTINCT FROM _capability THEN 'fenced'
        WHEN row_.lifecycle <> 'live' THEN 'finished'
    END;
    IF verdict IS NOT NULL THEN
        RETURN;
    END IF;
    -- No effect is begun by a process that could neither read the call nor keep what comes of it.
    IF NOT _has_keys AND EXISTS (SELECT FROM data_keys WHERE run = _run) THEN
        RAISE EXCEPTION 'the run has a data key: nothing plain is added to it';
    END IF;

    turn_ := ds_open_turn_v1(row_);
    open_ := ds_open_calls_v1(row_);
    SELECT * INTO call FROM calls WHERE run = _run AND id = _id;
    IF NOT FOUND THEN
        open_ := open_ + ds_call_bytes_v1(_id, _key, _arguments_bytes, 0);
        verdict := CASE WHEN _key IS NULL THEN 'no key' WHEN open_ > _most THEN 'too large' ELSE 'go' END;
        IF verdict = 'go' THEN
            INSERT INTO calls (
                run, id, turn, policy, key, state, arguments, arguments_bytes, attempt, claim_id, created_at, started_at
            )
            VALUES (
                _run, _id, turn_, _policy, _key, 'started', _arguments, _arguments_bytes, row_.attempt, _claim_id, now_, now_
            )
            RETURNING * INTO call;
            UPDATE runs
            SET open_calls_bytes = open_, open_calls_turn = turn_,
                own_open_calls = own_open_calls + ds_needs_outcome_v1(_policy)
            WHERE id = _run;
            PERFORM ds_audit_v1(_run, 'claimed', 'worker', jsonb_strip_nulls(jsonb_build_object(
                'call', _id, 'attempt', row_.attempt, 'turn', turn_, 'policy', _policy, 'key', _key_digest,
                'arguments', _arguments_digest
            )), now_);
        END IF;
        RETURN;
    END IF;

    -- Whoever may write is attached: a started call of another attempt is one of an attempt that is over.
    verdict := CASE
        WHEN _key <> call.key THEN 'other key'
        WHEN _policy <> call.policy THEN 'other policy'
        WHEN call.state IN ('completed', 'failed') THEN 'done'
        WHEN call.key_refused THEN 'uncertain'
        WHEN call.state = 'planned' THEN 'go'
        WHEN call.attempt = row_.attempt AND call.claim_id = _claim_id THEN 'go'
        WHEN call.attempt = row_.attempt THEN 'uncertain'
        WHEN call.policy IN ('retrySameKey', 'readOnly') THEN 'go'
        ELSE 'uncertain'
    END;
    IF verdict = 'go' AND (call.state = 'planned' OR call.attempt <> row_.attempt) THEN
        -- Equal arguments may be encoded differently. The caller compares them, and claims again without arguments.
        IF _arguments <> call.arguments THEN
            verdict := 'compare';
            RETURN;
        END IF;
        counted_ := CASE WHEN call.state = 'started' OR call.turn = turn_
            THEN ds_call_bytes_v1(_id, call.key, call.arguments_bytes, call.result_bytes) ELSE 0 END;
        IF call.arguments IS NOT NULL THEN
            _arguments_bytes := call.arguments_bytes;
            _arguments_digest := NULL;
        END IF;
        counts_ := ds_call_bytes_v1(_id, call.key, _arguments_bytes, call.result_bytes);
        IF counts_ > counted_ AND open_ + counts_ - counted_ > _most THEN
            verdict := 'too large';
            RETURN;
        END IF;
        IF call.state = 'started' THEN
            PERFORM ds_settled_v1(_run, call.policy);
        END IF;
        UPDATE calls
        SET state = 'started', attempt = row_.attempt, claim_id = _claim_id, started_at = now_,
            arguments = coalesce(arguments, _arguments), arguments_bytes = _arguments_bytes
        WHERE run = _run AND id = _id
        RETURNING * INTO call;
        -- Only `retrySameKey` and `readOnly` calls of an earlier attempt go on, so these are planned calls.
        UPDATE runs
        SET open_calls_bytes = open_ + counts_ - counted_, open_calls_turn = turn_,
            own_open_calls = own_open_calls + ds_needs_outcome_v1(call.policy)
        WHERE id = _run;
        PERFORM ds_audit_v1(_run, 'claimed', 'worker', jsonb_strip_nulls(jsonb_build_object(
            'call', _id, 'attempt', row_.attempt, 'turn', turn_, 'arguments', _arguments_digest
        )), now_);
    END IF;
END
$$;

-- Ends a call that the current attempt has started. The caller holds the lock and has checked that it may end.
CREATE FUNCTION ds_end_call_v1(
    _run uuid, _id text, _outcome text, _result bytea, _result_bytes bigint, _open bigint, _now bigint
)
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE calls
    SET state = _outcome, result = _result, result_bytes = _result_bytes, ended_at = _now
    WHERE run = _run AND id = _id;
    UPDATE runs r
    SET completed_calls = completed_calls + 1, open_calls_bytes = _open, open_calls_turn = ds_open_turn_v1(r),
        own_open_calls = own_open_calls
            - (SELECT ds_needs_outcome_v1(policy) FROM calls WHERE calls.run = _run AND calls.id = _id)
    WHERE id = _run;
END
$$;

-- Notes that the tool refused the key of a started call. The caller holds the lock and has checked that it may.
CREATE FUNCTION ds_refuse_key_v1(_run uuid, _id text, _result bytea, _result_bytes bigint, _open bigint, _now bigint)
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE calls SET key_refused = true, result = _result, result_bytes = _result_bytes WHERE run = _run AND id = _id;
    UPDATE runs r
    SET keys_refused = keys_refused + 1, open_calls_bytes = _open, open_calls_turn = ds_open_turn_v1(r), changed_at = _now
    WHERE id = _run;
END
$$;

-- `Worker::complete`. A call that has ended, or whose key was refused, is answered with `ended`, its state and whether
-- the run is live. The caller compares the bytes, since payloads are compressed.
CREATE FUNCTION ds_complete_v1(
    _run uuid, _capability bytea, _id text, _claim_id uuid, _outcome text, _result bytea,
    _result_bytes bigint, _most bigint, _result_digest text,
    OUT verdict text, OUT state text, OUT result bytea, OUT live boolean
)
LANGUAGE plpgsql AS $$
DECLARE
    now_ bigint;
    row_ runs;
    call_ calls;
    counted_ bigint;
    counts_ bigint;
    open_ bigint;
BEGIN
    SELECT * INTO row_ FROM runs WHERE id = _run FOR UPDATE;
    SELECT * INTO call_ FROM calls WHERE run = _run AND id = _id;
    state := CASE WHEN call_.key_refused THEN 'keyRefused' ELSE call_.state END;
    result := call_.result;
    live := row_.lifecycle = 'live';
    counted_ := ds_call_bytes_v1(_id, call_.key, call_.arguments_bytes, call_.result_bytes);
    -- A call of an earlier turn is open until it has ended.
    counts_ := CASE WHEN _outcome = 'keyRefused' OR call_.turn = ds_open_turn_v1(row_)
        THEN ds_call_bytes_v1(_id, call_.key, call_.arguments_bytes, _result_bytes) ELSE 0 END;
    open_ := ds_open_calls_v1(row_) + counts_ - counted_;
    verdict := CASE
        WHEN row_.id IS NULL THEN 'not found'
        WHEN row_.capability IS DISTINCT FROM _capability THEN 'fenced'
        WHEN state IN ('completed', 'failed', 'keyRefused') THEN 'ended'
        WHEN NOT live THEN 'finished'
        WHEN call_.id IS NULL THEN 'no such call'
        WHEN call_.state = 'planned' THEN 'not claimed'
        WHEN call_.claim_id <> _claim_id OR call_.attempt <> row_.attempt THEN 'other claim'
        WHEN counts_ > counted_ AND open_ > _most THEN 'too large'
        ELSE 'ok'
    END;
    IF verdict <> 'ok' THEN
        RETURN;
    END IF;
    now_ := ds_now_v1();
    IF _outcome = 'keyRefused' THEN
        PERFORM ds_refuse_key_v1(_run, _id, _result, _result_bytes, open_, now_);
    ELSE
        PERFORM ds_end_call_v1(_run, _id, _outcome, _result, _result_bytes, open_, now_);
    END IF;
    PERFORM ds_audit_v1(_run, CASE _outcome WHEN 'keyRefused' THEN 'key-refused' ELSE _outcome END, 'worker',
        jsonb_strip_nulls(jsonb_build_object(
            'call', _id, 'turn', ds_open_turn_v1(row_), 'result', _result_digest
        )), now_);
END
$$;
