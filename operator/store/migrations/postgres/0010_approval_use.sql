-- An approval allows one call: a claim may name the approval that it uses.
CREATE FUNCTION ds_approval_is_used_once_v1() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'approval % was used by another call', OLD.id;
END
$$;

CREATE TRIGGER approvals_are_used_once BEFORE UPDATE OF used_by ON waits FOR EACH ROW
    WHEN (OLD.used_by IS DISTINCT FROM NEW.used_by AND OLD.used_by IS NOT NULL)
    EXECUTE FUNCTION ds_approval_is_used_once_v1();

-- As `ds_claim_v1`, and if the claim names an approval, it must be granted, and unused or used by this call.
CREATE FUNCTION ds_claim_v2(
    _run uuid, _capability bytea, _id text, _claim_id uuid, _policy text, _key text, _arguments bytea,
    _arguments_bytes bigint, _most bigint, _key_digest text, _arguments_digest text, _has_keys boolean, _approval text,
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
        -- Otherwise `ds_claim_v1` says why not.
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
    SELECT * INTO claimed_ FROM ds_claim_v1(
        _run, _capability, _id, _claim_id, _policy, _key, _arguments, _arguments_bytes, _most, _key_digest,
        _arguments_digest, _has_keys
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
