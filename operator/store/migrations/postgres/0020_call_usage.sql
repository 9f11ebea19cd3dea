-- What a call has used, and when that was added to the run's usage. NULL: the call has reported nothing.
ALTER TABLE calls ADD COLUMN spent_at bigint;
ALTER TABLE calls ADD COLUMN tokens_in bigint NOT NULL DEFAULT 0;
ALTER TABLE calls ADD COLUMN tokens_out bigint NOT NULL DEFAULT 0;
ALTER TABLE calls ADD COLUMN tool_calls bigint NOT NULL DEFAULT 0;
ALTER TABLE calls ADD COLUMN cost_micro_usd bigint NOT NULL DEFAULT 0;

-- Whether at least 80 % of a limit are used. NULL is no limit, and the limit 0 is reached from the start.
CREATE FUNCTION ds_is_near_limit_v1(_used bigint, _limit bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN coalesce(_limit > 0 AND _used >= _limit - _limit / 5, false);

-- The bits of the limits that are near.
CREATE FUNCTION ds_limits_near_v1(
    _turns bigint, _limit_turns bigint, _tokens bigint, _limit_tokens bigint, _cost bigint, _limit_cost bigint,
    _active_ms bigint, _limit_active_ms bigint
) RETURNS integer
LANGUAGE sql IMMUTABLE
RETURN ds_is_near_limit_v1(_turns, _limit_turns)::integer
    + 2 * ds_is_near_limit_v1(_tokens, _limit_tokens)::integer
    + 4 * ds_is_near_limit_v1(_cost, _limit_cost)::integer
    + 8 * ds_is_near_limit_v1(_active_ms, _limit_active_ms)::integer;

-- Whether a limit of turns, tokens or cost is reached. NULL is no limit.
CREATE FUNCTION ds_is_limit_reached_v1(
    _turns bigint, _limit_turns bigint, _tokens bigint, _limit_tokens bigint, _cost bigint, _limit_cost bigint
) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN coalesce(_turns >= _limit_turns, false) OR coalesce(_tokens >= _limit_tokens, false)
    OR coalesce(_cost >= _limit_cost, false);

-- The turns that a run has ended at a boundary, for its limit. A plan ends no turn. Of a fork only its own turns count.
CREATE FUNCTION ds_own_turns_v1(_turn integer, _boundary smallint, _fork_turn integer) RETURNS bigint
LANGUAGE sql IMMUTABLE
RETURN coalesce(_turn::bigint - (_boundary = 1)::integer - coalesce(_fork_turn, 0), 0);

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
    cost_ bigint;
    near_ integer;
BEGIN
    UPDATE calls
    SET spent_at = _now, tokens_in = _tokens_in, tokens_out = _tokens_out, tool_calls = _tool_calls,
        cost_micro_usd = _cost_micro_usd
    WHERE run = _run AND id = _call;
    SELECT * INTO row_ FROM runs WHERE id = _run;
    cost_ := row_.cost_micro_usd + _cost_micro_usd;
    turns_ := ds_own_turns_v1(row_.head_turn, row_.head_boundary, row_.fork_turn);
    tokens_ := row_.tokens_in + _tokens_in + row_.tokens_out + _tokens_out;
    near_ := ds_limits_near_v1(
        turns_, row_.limit_turns, tokens_, row_.limit_tokens, cost_, row_.limit_cost,
        row_.active_ms + _now - row_.attached_at, row_.limit_active_ms
    );
    UPDATE runs
    SET tokens_in = tokens_in + _tokens_in, tokens_out = tokens_out + _tokens_out,
        tool_calls = tool_calls + _tool_calls, cost_micro_usd = cost_,
        limit_reached_at = CASE
            WHEN ds_is_limit_reached_v1(turns_, limit_turns, tokens_, limit_tokens, cost_, limit_cost)
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
