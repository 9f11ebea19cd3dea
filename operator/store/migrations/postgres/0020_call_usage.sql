-- What a call has used, and when that was added to the run's usage. NULL: the call has reported nothing.
ALTER TABLE calls ADD COLUMN spent_at bigint;
ALTER TABLE calls ADD COLUMN tokens_in bigint NOT NULL DEFAULT 0;
ALTER TABLE calls ADD COLUMN tokens_out bigint NOT NULL DEFAULT 0;
ALTER TABLE calls ADD COLUMN tool_calls bigint NOT NULL DEFAULT 0;
ALTER TABLE calls ADD COLUMN cost_micro_usd bigint NOT NULL DEFAULT 0;

-- Adds what a call has used to the run's usage, and looks at the limits as a commit does. The caller holds the lock of
-- the run's row.
CREATE FUNCTION ds_add_usage_v1(
    _run uuid, _call text, _tokens_in bigint, _tokens_out bigint, _tool_calls bigint, _cost_micro_usd bigint, _now bigint
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    row_ runs;
    turns_ bigint;
    tokens_ bigint;
    near_ integer;
BEGIN
    UPDATE calls
    SET spent_at = _now, tokens_in = _tokens_in, tokens_out = _tokens_out, tool_calls = _tool_calls,
        cost_micro_usd = _cost_micro_usd
    WHERE run = _run AND id = _call;
    SELECT * INTO row_ FROM runs WHERE id = _run;
    row_.tokens_in := row_.tokens_in + _tokens_in;
    row_.tokens_out := row_.tokens_out + _tokens_out;
    row_.cost_micro_usd := row_.cost_micro_usd + _cost_micro_usd;
    -- A plan ends no turn. Of a fork only its own turns count.
    turns_ := coalesce(row_.head_turn::bigint - (row_.head_boundary = 1)::integer - coalesce(row_.fork_turn, 0), 0);
    tokens_ := row_.tokens_in + row_.tokens_out;
    -- The bits of the limits of which at least 80 % are used.
    near_ := CASE WHEN row_.limit_turns > 0 AND turns_ * 5 >= row_.limit_turns * 4 THEN 1 ELSE 0 END
        + CASE WHEN row_.limit_tokens > 0 AND tokens_ * 5 >= row_.limit_tokens * 4 THEN 2 ELSE 0 END
        + CASE WHEN row_.limit_cost > 0 AND row_.cost_micro_usd * 5 >= row_.limit_cost * 4 THEN 4 ELSE 0 END
        + CASE WHEN row_.limit_active_ms > 0
                AND (row_.active_ms + _now - row_.attached_at) * 5 >= row_.limit_active_ms * 4 THEN 8 ELSE 0 END;
    UPDATE runs
    SET tokens_in = row_.tokens_in, tokens_out = row_.tokens_out, cost_micro_usd = row_.cost_micro_usd,
        tool_calls = tool_calls + _tool_calls,
        limit_reached_at = CASE
            -- NULL is no limit.
            WHEN coalesce(turns_ >= limit_turns, false) OR coalesce(tokens_ >= limit_tokens, false)
                OR coalesce(row_.cost_micro_usd >= limit_cost, false)
            THEN coalesce(limit_reached_at, _now)
        END,
        limits_near = CASE
            WHEN near_ & ~limits_near = 0 THEN limits_near
            ELSE ds_announce_limits_v1(id, limits_near, near_, _now)
        END
    WHERE id = _run;
END
$$;

-- As `ds_complete_v1`, and adds what the call has used, once.
CREATE FUNCTION ds_complete_v2(
    _run uuid, _capability bytea, _id text, _claim_id uuid, _outcome text, _result bytea,
    _result_bytes bigint, _most bigint, _result_digest text,
    _tokens_in bigint, _tokens_out bigint, _tool_calls bigint, _cost_micro_usd bigint,
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
    usage_ jsonb;
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
    IF _tokens_in + _tokens_out + _tool_calls + _cost_micro_usd > 0 THEN
        PERFORM ds_add_usage_v1(_run, _id, _tokens_in, _tokens_out, _tool_calls, _cost_micro_usd, now_);
        usage_ := jsonb_build_object('tokensIn', _tokens_in, 'tokensOut', _tokens_out, 'toolCalls', _tool_calls,
            'costMicroUSD', _cost_micro_usd);
    END IF;
    PERFORM ds_audit_v1(_run, CASE _outcome WHEN 'keyRefused' THEN 'key-refused' ELSE _outcome END, 'worker',
        jsonb_strip_nulls(jsonb_build_object(
            'call', _id, 'turn', ds_open_turn_v1(row_), 'result', _result_digest, 'usage', usage_
        )), now_);
END
$$;
