-- Tool calls: claimed before their effect, completed after it, settled where nobody knows. Each function locks the
-- run's row by its primary key before it reads a call.

-- One call less of this policy is unsettled. The caller holds the lock.
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

-- `Store::claim`, by the table of `Claimed` in model.rs. `call` is the call as it stands after.
CREATE FUNCTION ds_claim_v1(
    _run uuid, _capability bytea, _id text, _claim_id uuid, _policy text, _key text, _arguments bytea,
    OUT verdict text, OUT call calls
)
LANGUAGE plpgsql AS $$
DECLARE
    now_ bigint;
    row_ runs;
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

    SELECT * INTO call FROM calls WHERE run = _run AND id = _id;
    IF NOT FOUND THEN
        IF _key IS NULL THEN
            verdict := 'no key';
            RETURN;
        END IF;
        INSERT INTO calls (run, id, turn, policy, key, state, arguments, attempt, claim_id, created_at, started_at)
        VALUES (
            _run, _id,
            CASE row_.head_boundary WHEN 1 THEN row_.head_turn ELSE coalesce(row_.head_turn, 0) + 1 END,
            _policy, _key, 'started', _arguments, row_.attempt, _claim_id, now_, now_
        )
        RETURNING * INTO call;
        verdict := 'go';
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
        IF call.state = 'started' THEN
            PERFORM ds_settled_v1(_run, call.policy);
        END IF;
        UPDATE calls
        SET state = 'started', attempt = row_.attempt, claim_id = _claim_id, started_at = now_,
            arguments = coalesce(arguments, _arguments)
        WHERE run = _run AND id = _id
        RETURNING * INTO call;
    END IF;
END
$$;

-- Ends a started call. The caller holds the lock and has judged.
CREATE FUNCTION ds_end_call_v1(_run uuid, _id text, _outcome text, _result bytea, _by text, _reason text, _now bigint)
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE calls
    SET state = _outcome, key_refused = false, result = _result, settled_by = _by, reason = _reason, ended_at = _now
    WHERE run = _run AND id = _id;
    UPDATE runs SET completed_calls = completed_calls + 1 WHERE id = _run;
END
$$;

-- The tool has refused the key of a started call: its outcome is a person's to tell. The caller holds the lock and has
-- judged.
CREATE FUNCTION ds_refuse_key_v1(_run uuid, _id text, _result bytea, _now bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE calls SET key_refused = true, result = _result WHERE run = _run AND id = _id;
    UPDATE runs SET keys_refused = keys_refused + 1, changed_at = _now WHERE id = _run;
    PERFORM ds_audit_v1(_run, 'key-refused', 'worker', jsonb_build_object('call', _id), _now);
END
$$;

-- `Store::complete`. A call that has ended is answered with `ended`, how it ended and whether the run is live, and so is
-- one whose key was refused: whether these are the same bytes is for the caller to see, since payloads are compressed.
CREATE FUNCTION ds_complete_v1(
    _run uuid, _capability bytea, _id text, _claim_id uuid, _outcome text, _result bytea,
    OUT verdict text, OUT state text, OUT result bytea, OUT live boolean
)
LANGUAGE plpgsql AS $$
DECLARE
    row_ runs;
    call_ calls;
BEGIN
    SELECT * INTO row_ FROM runs WHERE id = _run FOR UPDATE;
    SELECT * INTO call_ FROM calls WHERE run = _run AND id = _id;
    state := CASE WHEN call_.key_refused THEN 'keyRefused' ELSE call_.state END;
    result := call_.result;
    live := row_.lifecycle = 'live';
    verdict := CASE
        WHEN row_.id IS NULL THEN 'not found'
        WHEN row_.capability IS DISTINCT FROM _capability THEN 'fenced'
        WHEN state IN ('completed', 'failed', 'keyRefused') THEN 'ended'
        WHEN NOT live THEN 'finished'
        WHEN call_.id IS NULL THEN 'no such call'
        WHEN call_.state = 'planned' THEN 'not claimed'
        WHEN call_.claim_id <> _claim_id OR call_.attempt <> row_.attempt THEN 'other claim'
        ELSE 'ok'
    END;
    IF verdict = 'ok' AND _outcome = 'keyRefused' THEN
        PERFORM ds_refuse_key_v1(_run, _id, _result, ds_now_v1());
    ELSIF verdict = 'ok' THEN
        PERFORM ds_end_call_v1(_run, _id, _outcome, _result, NULL, NULL, ds_now_v1());
    END IF;
END
$$;

-- `Store::settle`. `_capability` null: it is a person's word, `_actor`'s. `ended` as in `ds_complete_v1`.
CREATE FUNCTION ds_settle_v1(
    _run uuid, _capability bytea, _actor text, _id text, _outcome text, _result bytea, _reason text,
    OUT verdict text, OUT state text, OUT result bytea, OUT live boolean
)
LANGUAGE plpgsql AS $$
DECLARE
    now_ bigint;
    row_ runs;
    call_ calls;
    unsettled_ boolean;
BEGIN
    SELECT * INTO row_ FROM runs WHERE id = _run FOR UPDATE;
    SELECT * INTO call_ FROM calls WHERE run = _run AND id = _id;
    now_ := ds_now_v1();
    state := call_.state;
    result := call_.result;
    live := row_.lifecycle = 'live';
    unsettled_ := call_.attempt <> row_.attempt OR row_.attempt_state = 'ended';
    verdict := CASE
        WHEN row_.id IS NULL THEN 'not found'
        WHEN _capability IS NOT NULL AND row_.capability IS DISTINCT FROM _capability THEN 'fenced'
        WHEN call_.state IN ('completed', 'failed') THEN 'ended'
        WHEN NOT live THEN 'finished'
        WHEN call_.id IS NULL THEN 'no such call'
        WHEN call_.state = 'planned' THEN 'not claimed'
        WHEN _capability IS NOT NULL AND (call_.policy = 'ask' OR call_.key_refused) THEN 'a person''s'
        WHEN _capability IS NULL AND NOT unsettled_ AND NOT call_.key_refused THEN 'the worker''s'
        ELSE 'ok'
    END;
    IF verdict = 'ok' THEN
        IF unsettled_ THEN
            PERFORM ds_settled_v1(_run, call_.policy);
        END IF;
        PERFORM ds_end_call_v1(_run, _id, _outcome, _result, _actor, _reason, now_);
        UPDATE runs
        SET changed_at = now_, keys_refused = keys_refused - call_.key_refused::integer
        WHERE id = _run;
        PERFORM ds_audit_v1(_run, 'settled', _actor,
            jsonb_build_object('call', _id, 'outcome', _outcome, 'reason', _reason), now_);
    END IF;
END
$$;
