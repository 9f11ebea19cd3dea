-- The start of a run's audit may go once an anchor names where it ended. Only who owns the table may do that, and only by
-- the function below, which says so.
CREATE FUNCTION ds_refuse_v2() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('dalsegno.prunes', true) = 'yes'
        AND pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'MEMBER')
    THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION '% on % is refused: its rows are only ever added', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege';
END
$$;

DROP TRIGGER audit_is_append_only ON audit;
CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION ds_refuse_v2();

-- Names of calls of which a row tells how they began.
CREATE FUNCTION ds_told_calls_v1(_run uuid) RETURNS SETOF text
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT detail::jsonb ->> 'call' FROM audit
    WHERE run = _run AND kind = 'claimed' AND detail::jsonb ? 'key'
    UNION ALL
    SELECT call ->> 'call' FROM audit, jsonb_array_elements(detail::jsonb -> 'calls') AS call
    WHERE run = _run AND kind = 'planned' AND call ? 'key';
END
$$;

-- Calls of which none does: how many, and the digest of their names (audit.rs).
CREATE FUNCTION ds_earlier_calls_v1(_run uuid) RETURNS jsonb
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT jsonb_build_object('count', count(*), 'names', 'sha256:' || encode(sha256(
            ds_frame_v1('dalsegno/call-names/v1'::bytea)
            || coalesce(string_agg(ds_frame_v1(convert_to(id, 'UTF8')), ''::bytea ORDER BY id COLLATE "C"), '')
        ), 'hex'))
        FROM (SELECT id FROM calls WHERE run = _run EXCEPT SELECT ds_told_calls_v1(_run)) AS earlier
    );
END
$$;

-- `Store::prune_audit`. How many rows went; 0: the run has no such row. The row that tells of it says again what they said
-- of the run, and of boundaries that a rewind undid; and which calls no row is left to tell the beginning of. -1: these are
-- not the calls that the rows tell of.
CREATE FUNCTION ds_prune_audit_v1(_run uuid, _seq bigint, _hash bytea, _actor text, _reason text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    row_ runs;
    undone_ jsonb;
    told_ jsonb;
    earlier_ jsonb;
    gone_ bigint;
BEGIN
    SELECT * INTO row_ FROM runs WHERE id = _run FOR UPDATE;
    IF NOT EXISTS (SELECT FROM audit WHERE run = _run AND seq = _seq AND hash = _hash) THEN
        RETURN 0;
    END IF;
    SELECT detail::jsonb -> 'earlierCalls' INTO told_ FROM audit
    WHERE run = _run AND kind = 'pruned'
    ORDER BY seq DESC LIMIT 1;
    earlier_ := ds_earlier_calls_v1(_run);
    IF earlier_ <> coalesce(told_, earlier_) OR told_ IS NULL AND earlier_ ->> 'count' <> '0'
        OR EXISTS (SELECT ds_told_calls_v1(_run) EXCEPT SELECT id FROM calls WHERE run = _run)
    THEN
        RETURN -1;
    END IF;
    SELECT coalesce(jsonb_agg(place), '[]') INTO undone_
    FROM audit, jsonb_array_elements(detail::jsonb -> 'undone') AS place
    WHERE run = _run AND seq <= _seq AND kind IN ('rewound', 'pruned');
    PERFORM set_config('dalsegno.prunes', 'yes', true);
    DELETE FROM audit WHERE run = _run AND seq <= _seq;
    GET DIAGNOSTICS gone_ = ROW_COUNT;
    PERFORM set_config('dalsegno.prunes', '', true);
    PERFORM ds_audit_v1(_run, 'pruned', _actor, jsonb_build_object(
        'to', _seq, 'hash', 'sha256:' || encode(_hash, 'hex'), 'rows', gone_, 'reason', _reason,
        'tenant', row_.tenant, 'namespace', row_.namespace, 'name', row_.name, 'objectUID', row_.object_uid,
        'lifecycle', row_.lifecycle, 'outcome', row_.finish_outcome, 'undone', undone_,
        'earlierCalls', ds_earlier_calls_v1(_run)
    ), ds_now_v1());
    RETURN gone_;
END
$$;
