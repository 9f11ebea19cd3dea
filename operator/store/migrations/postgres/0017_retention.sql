-- How long a run's payloads stay after its end.

-- `expired_at`: since when they are being dropped. `emptied`: none is left.
ALTER TABLE runs
    ADD COLUMN retention_days integer NOT NULL DEFAULT 30,
    ADD COLUMN expired_at bigint,
    ADD COLUMN emptied boolean NOT NULL DEFAULT false;

-- Its payloads are past their retention. The header stays, and the chain with it.
ALTER TABLE boundaries ADD COLUMN dropped boolean NOT NULL DEFAULT false;

CREATE INDEX runs_to_empty ON runs (id) WHERE lifecycle <> 'live' AND NOT emptied;

-- `Store::drop_expired`. That payloads are being dropped stands in the audit before the first of them is. With the last of
-- them goes the data key, which only opens copies of them that are kept elsewhere.
CREATE FUNCTION ds_expire_v1(_run uuid, _limit bigint, _bytes bigint, OUT expired uuid, OUT touched bigint, OUT done boolean)
LANGUAGE plpgsql AS $$
DECLARE
    now_ bigint := ds_now_v1();
    row_ runs;
BEGIN
    touched := 0;
    done := false;
    SELECT * INTO row_ FROM runs r
    WHERE r.id = _run AND r.lifecycle <> 'live' AND NOT r.emptied
      AND (r.expired_at IS NOT NULL
           OR coalesce(r.finish_at, r.over_at) + r.retention_days * 86400000::bigint <= now_)
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    expired := _run;
    IF row_.expired_at IS NULL THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('snapshot/' || _run, 0));
        UPDATE runs SET expired_at = now_ WHERE id = _run;
        PERFORM ds_audit_v1(_run, 'expired', 'operator',
            jsonb_build_object('retentionDays', row_.retention_days), now_);
    END IF;

    -- Boundaries go first, and of them the last first: what is left can be decoded, since a patch needs the state before it,
    -- and the first that were not dropped before need the snapshot that stands for these.
    WITH found AS (
        (SELECT 1 AS kind, -2 * turn::bigint - boundary AS nth, ctid AS at,
                coalesce(octet_length(ops), 0) + coalesce(octet_length(events), 0) AS bytes
         FROM boundaries WHERE run = _run AND NOT dropped ORDER BY turn DESC, boundary DESC LIMIT _limit)
        UNION ALL
        (SELECT 2, 0, ctid, coalesce(octet_length(value), 0) FROM records WHERE run = _run LIMIT _limit)
        UNION ALL
        (SELECT 3, 0, ctid, 0 FROM record_batches WHERE run = _run LIMIT _limit)
        UNION ALL
        (SELECT 7, 0, ctid, octet_length(batch) FROM record_changes WHERE run = _run LIMIT _limit)
        UNION ALL
        (SELECT 4, 0, ctid, octet_length(document) FROM snapshots WHERE run = _run LIMIT _limit)
        UNION ALL
        (SELECT 5, 0, ctid, octet_length(payload) FROM chunks WHERE run = _run LIMIT _limit)
        UNION ALL
        (SELECT 6, 0, ctid, coalesce(octet_length(arguments), 0) + coalesce(octet_length(result), 0)
         FROM calls WHERE run = _run AND (arguments IS NOT NULL OR result IS NOT NULL) LIMIT _limit)
    ), weighed AS (
        SELECT kind, at, row_number() OVER so_far AS nth, sum(bytes) OVER so_far - bytes AS bytes_before
        FROM found
        WINDOW so_far AS (ORDER BY kind, nth ROWS UNBOUNDED PRECEDING)
    ), going AS (
        SELECT kind, at FROM weighed WHERE nth <= _limit AND bytes_before < _bytes
    ), records_ AS (
        DELETE FROM records WHERE ctid = ANY (ARRAY(SELECT at FROM going WHERE kind = 2))
    ), batches_ AS (
        DELETE FROM record_batches WHERE ctid = ANY (ARRAY(SELECT at FROM going WHERE kind = 3))
    ), changes_ AS (
        DELETE FROM record_changes WHERE ctid = ANY (ARRAY(SELECT at FROM going WHERE kind = 7))
    ), snapshots_ AS (
        DELETE FROM snapshots WHERE ctid = ANY (ARRAY(SELECT at FROM going WHERE kind = 4))
    ), chunks_ AS (
        DELETE FROM chunks WHERE ctid = ANY (ARRAY(SELECT at FROM going WHERE kind = 5))
    ), calls_ AS (
        UPDATE calls SET arguments = NULL, result = NULL
        WHERE ctid = ANY (ARRAY(SELECT at FROM going WHERE kind = 6))
    ), boundaries_ AS (
        UPDATE boundaries SET ops = NULL, events = NULL, dropped = true
        WHERE ctid = ANY (ARRAY(SELECT at FROM going WHERE kind = 1))
    )
    SELECT count(*), count(*) < _limit AND count(*) = (SELECT count(*) FROM found) INTO touched, done FROM going;

    IF done THEN
        UPDATE runs SET emptied = true, stored_bytes = 0 WHERE id = _run;
        UPDATE data_keys SET key_id = NULL, wrapped = NULL, shredded_at = now_
        WHERE run = _run AND wrapped IS NOT NULL;
    END IF;
END
$$;

-- Templates that an attempt of a run that lives was made of: a rewind may go back to any of them; and those that its reserved
-- attempt may be made of.
CREATE FUNCTION ds_needed_revisions_v1() RETURNS SETOF text
LANGUAGE sql STABLE AS $$
    SELECT a.revision FROM runs r JOIN attempts a ON a.run = r.id WHERE r.lifecycle = 'live'
    UNION ALL
    SELECT unnest(a.candidates) FROM runs r JOIN attempts a ON a.run = r.id AND a.number = r.attempt
    WHERE r.lifecycle = 'live' AND r.attempt_state = 'reserved'
$$;

-- `Store::drop_revisions`. What nobody names is looked for first, which keeps nobody waiting, and again once nobody is naming one.
CREATE FUNCTION ds_drop_revisions_v1(_limit bigint, _bytes bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    going_ text[];
    gone_ bigint;
BEGIN
    SELECT array_agg(hash) INTO going_ FROM (
        SELECT hash, sum(bytes) OVER (ORDER BY hash ROWS UNBOUNDED PRECEDING) - bytes AS bytes_before
        FROM (
            SELECT hash, octet_length(document) AS bytes FROM revisions
            WHERE NOT EXISTS (SELECT FROM ds_needed_revisions_v1() AS needed (by) WHERE needed.by = hash)
            ORDER BY hash LIMIT _limit
        ) found
    ) weighed
    WHERE bytes_before < _bytes;
    IF going_ IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('templates', 0));
    DELETE FROM revisions
    WHERE hash = ANY (going_)
      AND NOT EXISTS (SELECT FROM ds_needed_revisions_v1() AS needed (by) WHERE needed.by = hash);
    GET DIAGNOSTICS gone_ = ROW_COUNT;
    RETURN gone_;
END
$$;
