-- Name of the tool that a call is of, as its first claim that named it said.
ALTER TABLE calls ADD COLUMN tool text;

-- As `ds_claim_v1`, with the name of the tool. The name that was stored first stays, and the audit row of the claim that
-- brought it has it.
CREATE FUNCTION ds_claim_call_v1(
    _run uuid, _capability bytea, _id text, _claim_id uuid, _policy text, _key text, _arguments bytea,
    _arguments_bytes bigint, _most bigint, _key_digest text, _arguments_digest text, _has_keys boolean, _tool text,
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
    new_tool_ text;
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
                run, id, turn, policy, key, state, arguments, arguments_bytes, attempt, claim_id, created_at, started_at,
                tool
            )
            VALUES (
                _run, _id, turn_, _policy, _key, 'started', _arguments, _arguments_bytes, row_.attempt, _claim_id, now_, now_,
                _tool
            )
            RETURNING * INTO call;
            UPDATE runs
            SET open_calls_bytes = open_, open_calls_turn = turn_,
                own_open_calls = own_open_calls + ds_needs_outcome_v1(_policy)
            WHERE id = _run;
            PERFORM ds_audit_v1(_run, 'claimed', 'worker', jsonb_strip_nulls(jsonb_build_object(
                'call', _id, 'attempt', row_.attempt, 'turn', turn_, 'policy', _policy, 'key', _key_digest,
                'arguments', _arguments_digest, 'tool', _tool
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
        new_tool_ := CASE WHEN call.tool IS NULL THEN _tool END;
        UPDATE calls
        SET state = 'started', attempt = row_.attempt, claim_id = _claim_id, started_at = now_,
            arguments = coalesce(arguments, _arguments), arguments_bytes = _arguments_bytes,
            tool = coalesce(tool, _tool)
        WHERE run = _run AND id = _id
        RETURNING * INTO call;
        -- Only `retrySameKey` and `readOnly` calls of an earlier attempt go on, so these are planned calls.
        UPDATE runs
        SET open_calls_bytes = open_ + counts_ - counted_, open_calls_turn = turn_,
            own_open_calls = own_open_calls + ds_needs_outcome_v1(call.policy)
        WHERE id = _run;
        PERFORM ds_audit_v1(_run, 'claimed', 'worker', jsonb_strip_nulls(jsonb_build_object(
            'call', _id, 'attempt', row_.attempt, 'turn', turn_, 'arguments', _arguments_digest,
            'tool', new_tool_
        )), now_);
    END IF;
END
$$;

-- As `ds_claim_v2`, with the name of the tool.
CREATE FUNCTION ds_claim_v3(
    _run uuid, _capability bytea, _id text, _claim_id uuid, _policy text, _key text, _arguments bytea,
    _arguments_bytes bigint, _most bigint, _key_digest text, _arguments_digest text, _has_keys boolean, _approval text,
    _tool text,
    OUT verdict text, OUT call calls
)
LANGUAGE plpgsql AS $$
DECLARE
    row_ runs;
    wait_ waits;
    claimed_ record;
BEGIN
    IF _approval IS NOT NULL THEN
        SELECT * INTO row_ FROM runs WHERE id = _run FOR UPDATE;
        -- Otherwise `ds_claim_call_v1` says why not.
        IF row_.capability = _capability AND row_.lifecycle = 'live' THEN
            SELECT * INTO wait_ FROM waits WHERE run = _run AND id = _approval AND NOT undone;
            verdict := CASE
                WHEN wait_.kind IS DISTINCT FROM 'approval' OR coalesce(wait_.outcome, '') NOT IN ('approved', 'changed')
                    THEN 'not granted'
                WHEN wait_.used_by <> _id THEN 'spent'
            END;
            IF verdict IS NOT NULL THEN
                RETURN;
            END IF;
        END IF;
    END IF;
    SELECT * INTO claimed_ FROM ds_claim_call_v1(
        _run, _capability, _id, _claim_id, _policy, _key, _arguments, _arguments_bytes, _most, _key_digest,
        _arguments_digest, _has_keys, _tool
    );
    verdict := claimed_.verdict;
    call := claimed_.call;
    IF verdict = 'go' AND wait_.id IS NOT NULL AND wait_.used_by IS NULL THEN
        UPDATE waits SET used_by = _id WHERE run = _run AND id = wait_.id AND epoch = wait_.epoch;
        PERFORM ds_audit_v1(_run, 'approvalUsed', 'worker',
            jsonb_build_object('wait', wait_.id, 'epoch', wait_.epoch, 'call', _id), ds_now_v1());
    END IF;
END
$$;
