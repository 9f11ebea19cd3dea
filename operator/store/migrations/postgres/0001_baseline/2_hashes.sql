-- The clock, the hashes and the audit.
--
-- Hot statements compute hashes where the lock is held. Their formats are those of operator/format (header.rs,
-- audit.rs, records.rs); tests compare both.

-- The store's clock. It is read when it is called, not when the transaction began.
CREATE FUNCTION ds_now_v1() RETURNS bigint
LANGUAGE sql VOLATILE
RETURN floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint;

-- A field with its length before it, so that no two sequences of fields have the same bytes.
CREATE FUNCTION ds_frame_v1(_field bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN int4send(octet_length(_field)) || _field;

-- The content hash of a boundary.
CREATE FUNCTION ds_content_hash_v1(
    _parent_hash bytea, _run uuid, _turn integer, _boundary smallint, _epoch bigint, _attempt integer, _at bigint,
    _position bigint, _commit_id uuid, _digest bytea, _ops_digest bytea, _full boolean, _events_digest bytea,
    _tokens_in bigint, _tokens_out bigint, _tool_calls bigint, _cost_micro_usd bigint, _trigger text,
    _records_digest bytea
) RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE
RETURN sha256(
    ds_frame_v1('dalsegno/boundary/v1'::bytea)
    || ds_frame_v1(_parent_hash)
    || ds_frame_v1(uuid_send(_run))
    || ds_frame_v1(int4send(_turn))
    || ds_frame_v1(CASE _boundary WHEN 1 THEN '\x01'::bytea ELSE '\x02'::bytea END)
    || ds_frame_v1(int8send(_epoch))
    || ds_frame_v1(int4send(_attempt))
    || ds_frame_v1(int8send(_at))
    || ds_frame_v1(int8send(_position))
    || ds_frame_v1(uuid_send(_commit_id))
    || ds_frame_v1(_digest)
    || ds_frame_v1(coalesce(_ops_digest, ''))
    || ds_frame_v1(CASE WHEN _full THEN '\x01'::bytea ELSE '\x00'::bytea END)
    || ds_frame_v1(coalesce(_events_digest, ''))
    || ds_frame_v1(int8send(_tokens_in))
    || ds_frame_v1(int8send(_tokens_out))
    || ds_frame_v1(int8send(_tool_calls))
    || ds_frame_v1(int8send(_cost_micro_usd))
    || ds_frame_v1(convert_to(coalesce(_trigger, ''), 'UTF8'))
    || ds_frame_v1(coalesce(_records_digest, ''))
);

-- The records digest after one more batch.
CREATE FUNCTION ds_records_link_v1(_before bytea, _batch bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN sha256(ds_frame_v1(coalesce(_before, '')) || ds_frame_v1(_batch));

-- The hash of a row of the audit.
CREATE FUNCTION ds_audit_hash_v1(
    _parent_hash bytea, _run uuid, _seq bigint, _at bigint, _kind text, _actor text, _detail text
) RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE
RETURN sha256(
    ds_frame_v1('dalsegno/audit/v1'::bytea)
    || ds_frame_v1(_parent_hash)
    || ds_frame_v1(uuid_send(_run))
    || ds_frame_v1(int8send(_seq))
    || ds_frame_v1(int8send(_at))
    || ds_frame_v1(convert_to(_kind, 'UTF8'))
    || ds_frame_v1(convert_to(_actor, 'UTF8'))
    || ds_frame_v1(convert_to(_detail, 'UTF8'))
);

-- Appends a row to the run's audit. The caller holds the lock of the run's row. PL/pgSQL, because it keeps its plans;
-- a function in SQL that is not inlined is planned at each call.
CREATE FUNCTION ds_audit_v1(_run uuid, _kind text, _actor text, _detail jsonb, _now bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH link AS (
        INSERT INTO audit (run, seq, at, kind, actor, detail, parent_hash, hash)
        SELECT id, audit_seq + 1, _now, _kind, _actor, _detail::text, audit_hash,
               ds_audit_hash_v1(audit_hash, id, audit_seq + 1, _now, _kind, _actor, _detail::text)
        FROM runs
        WHERE id = _run
        RETURNING run, seq, hash
    )
    UPDATE runs
    SET audit_seq = link.seq, audit_hash = link.hash
    FROM link
    WHERE runs.id = link.run;
END
$$;

-- A boundary as the audit names it.
CREATE FUNCTION ds_told_v1(_turn integer, _boundary smallint, _hash bytea) RETURNS jsonb
LANGUAGE sql IMMUTABLE
RETURN jsonb_build_object(
    'turn', _turn,
    'boundary', CASE _boundary WHEN 1 THEN 'plan' ELSE 'result' END,
    'hash', 'sha256:' || encode(_hash, 'hex')
);
