-- Going back to an earlier boundary.

-- A boundary as the audit tells of it.
CREATE FUNCTION ds_told_v1(_turn integer, _boundary smallint, _hash bytea) RETURNS jsonb
LANGUAGE sql IMMUTABLE
RETURN jsonb_build_object(
    'turn', _turn,
    'boundary', CASE _boundary WHEN 1 THEN 'plan' ELSE 'result' END,
    'hash', 'sha256:' || encode(_hash, 'hex')
);
