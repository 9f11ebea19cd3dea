-- Retention, compaction, shredding, pruning and namespaces: bulk statements with their own locks.

-- One step of deleting the payloads of a run that is past its retention. The audit records it before the first payload
-- is deleted. The data key is deleted with the last payload: it could only open copies that are stored elsewhere.
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

    -- Boundaries go first, and of them the last first: what is left can be decoded, since a patch needs the state
    -- before it, and the first that were not dropped before need the snapshot that stands for these.
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

-- Templates that a live run needs: those of all its attempts, since a rewind may go back to any of them, and those that
-- its reserved attempt may be made from.
CREATE FUNCTION ds_needed_revisions_v1() RETURNS SETOF text
LANGUAGE sql STABLE AS $$
    SELECT a.revision FROM runs r JOIN attempts a ON a.run = r.id WHERE r.lifecycle = 'live'
    UNION ALL
    SELECT unnest(a.candidates) FROM runs r JOIN attempts a ON a.run = r.id AND a.number = r.attempt
    WHERE r.lifecycle = 'live' AND r.attempt_state = 'reserved'
$$;

-- One step of deleting templates that no run needs. It looks for candidates first, which blocks nobody, and checks them
-- again once it holds the lock that whoever names a template takes.
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

-- The second half of a step of compaction: checks under the run's lock what the first half looked at, and empties the
-- boundaries up to this one. Returns how many were emptied; 0: the rows have changed meanwhile. `_snapshot`: digest of
-- the snapshot's row. `_text`: digest of the state that it holds.
CREATE FUNCTION ds_cut_v1(
    _run uuid, _turn integer, _boundary smallint, _epoch bigint, _hash bytea, _snapshot bytea, _text bytea,
    _chunks bytea[]
) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    row_ runs;
    emptied_ bigint;
    bytes_ bigint;
BEGIN
    SELECT * INTO row_ FROM runs WHERE id = _run FOR UPDATE;
    IF row_.keep_last IS NULL OR row_.expired_at IS NOT NULL
        OR (_turn, _boundary) <= (row_.dropped_turn, row_.dropped_boundary)
        OR NOT EXISTS (
            SELECT FROM boundaries
            WHERE run = _run AND turn = _turn AND boundary = _boundary AND epoch = _epoch AND content_hash = _hash
              AND NOT undone)
        OR (SELECT count(*) FROM boundaries
            WHERE run = _run AND (turn, boundary) > (_turn, _boundary) AND NOT undone) < row_.keep_last
        OR NOT EXISTS (SELECT FROM snapshots WHERE run = _run AND content_hash = _hash AND digest = _snapshot)
        OR (SELECT count(*) FROM chunks WHERE run = _run AND hash = ANY (_chunks)) <> cardinality(_chunks)
    THEN
        RETURN 0;
    END IF;
    PERFORM ds_audit_v1(_run, 'dropped', 'operator', jsonb_build_object(
        'keepLast', row_.keep_last, 'to', ds_told_v1(_turn, _boundary, _hash), 'epoch', _epoch,
        'snapshot', 'sha256:' || encode(_text, 'hex')
    ), ds_now_v1());
    WITH old AS (
        SELECT turn, boundary, epoch, coalesce(octet_length(ops), 0) + coalesce(octet_length(events), 0) AS bytes
        FROM boundaries
        WHERE run = _run AND NOT dropped AND (turn, boundary) <= (_turn, _boundary)
          AND (turn, boundary) > (coalesce(row_.dropped_turn, 0), coalesce(row_.dropped_boundary, 0))
    ), emptied AS (
        UPDATE boundaries b SET ops = NULL, events = NULL, dropped = true
        FROM old
        WHERE b.run = _run AND (b.turn, b.boundary, b.epoch) = (old.turn, old.boundary, old.epoch)
        RETURNING old.bytes
    )
    SELECT count(*), coalesce(sum(bytes), 0) INTO emptied_, bytes_ FROM emptied;
    UPDATE runs
    SET dropped_turn = _turn, dropped_boundary = _boundary, dropped_epoch = _epoch, stored_bytes = stored_bytes - bytes_
    WHERE id = _run;
    RETURN emptied_;
END
$$;

-- Deletes a snapshot that no state is rebuilt from any more, and the chunks that no other snapshot has. `_others`: the
-- other snapshots that were looked at. Returns the number of deleted rows.
CREATE FUNCTION ds_discard_v1(_run uuid, _hash bytea, _chunks bytea[], _others bytea[]) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    snapshots_ bigint;
    chunks_ bigint;
BEGIN
    PERFORM FROM runs WHERE id = _run FOR UPDATE;
    -- One that is just written is not among them. The run's row is locked: nobody waits here.
    IF NOT pg_try_advisory_xact_lock(hashtextextended('snapshot/' || _run, 0)) THEN
        RETURN 0;
    END IF;
    DELETE FROM snapshots s USING runs r
    WHERE r.id = _run AND s.run = _run AND s.content_hash = _hash
      AND ((s.turn, s.boundary) < (r.dropped_turn, r.dropped_boundary) OR s.epoch < r.dropped_epoch)
      AND NOT EXISTS (
          SELECT FROM snapshots o
          WHERE o.run = _run AND o.content_hash <> _hash AND o.content_hash <> ALL (_others));
    GET DIAGNOSTICS snapshots_ = ROW_COUNT;
    IF snapshots_ = 0 THEN
        RETURN 0;
    END IF;
    DELETE FROM chunks WHERE run = _run AND hash = ANY (_chunks);
    GET DIAGNOSTICS chunks_ = ROW_COUNT;
    RETURN snapshots_ + chunks_;
END
$$;

-- Whether a snapshot of this boundary may be stored. It may not if the chunks that it shares are deleted, or if the run
-- is past its retention, or if it is plain and the run has a data key. VOLATILE: it looks once it has the lock that
-- `ds_expire_v1` and `ds_discard_v1` hold alone, so that whichever comes first, nothing is left over and nothing is
-- missing.
CREATE FUNCTION ds_takes_snapshot_v1(
    _run uuid, _turn integer, _boundary smallint, _epoch bigint, _sealed boolean, _shared bytea[]
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('snapshot/' || _run, 0));
    RETURN EXISTS (
        SELECT FROM runs r
        WHERE r.id = _run AND r.expired_at IS NULL
          AND ((_turn, _boundary) < (r.dropped_turn, r.dropped_boundary) OR _epoch < r.dropped_epoch) IS NOT TRUE
          AND (_sealed OR NOT EXISTS (SELECT FROM data_keys WHERE run = _run))
          AND (SELECT count(*) FROM chunks WHERE run = _run AND hash = ANY (_shared)) = cardinality(_shared));
END
$$;

-- `Admin::shred`. Returns `shredded`, `gone before`, `never sealed`, `live` or `not found`. All but the first change
-- nothing.
CREATE FUNCTION ds_shred_v1(_run uuid, _reason text, _actor text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    now_ bigint;
    row_ runs;
BEGIN
    SELECT * INTO row_ FROM runs WHERE id = _run FOR UPDATE;
    now_ := ds_now_v1();
    IF row_.id IS NULL THEN
        RETURN 'not found';
    ELSIF row_.lifecycle = 'live' THEN
        RETURN 'live';
    ELSIF NOT EXISTS (SELECT FROM data_keys WHERE run = _run) THEN
        RETURN 'never sealed';
    END IF;
    UPDATE data_keys SET key_id = NULL, wrapped = NULL, shredded_at = now_ WHERE run = _run AND shredded_at IS NULL;
    IF NOT FOUND THEN
        RETURN 'gone before';
    END IF;
    PERFORM ds_audit_v1(_run, 'shredded', _actor, jsonb_build_object('reason', _reason), now_);
    RETURN 'shredded';
END
$$;

-- `Admin::adopt_namespace`. It locks rows in one order, so that two of these calls never wait for each other.
CREATE FUNCTION ds_adopt_namespace_v1(_old text, _new text, _actor text, _reason text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    now_ bigint;
    row_ runs;
    moved_ bigint := 0;
BEGIN
    IF _old = _new THEN
        RETURN 0;
    END IF;
    FOR row_ IN SELECT * FROM runs WHERE tenant = _old ORDER BY created_at DESC, id DESC FOR UPDATE LOOP
        now_ := ds_now_v1();
        UPDATE runs SET tenant = _new WHERE id = row_.id;
        PERFORM ds_audit_v1(row_.id, 'namespace-adopted', _actor,
            jsonb_build_object('from', _old, 'to', _new, 'reason', _reason), now_);
        moved_ := moved_ + 1;
    END LOOP;
    RETURN moved_;
END
$$;

-- Ids of the calls whose beginning is recorded in a row of the audit.
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

-- The number of calls whose beginning no row of the audit records, and the digest of their ids
-- (operator/format/src/audit.rs).
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

-- `Admin::prune_audit`. Returns how many rows were deleted; 0: the run has no such row; -1: the calls differ from those
-- that the rows record. The new row repeats what the deleted rows said of the run, of undone boundaries, and of calls
-- whose beginning is no longer recorded.
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

-- `Admin::prune_anchors`. Deletes some of the anchors below this number, the first of them first: whole anchors with
-- about 20,000 leaves, so that a call is short. Returns how many anchors were deleted.
CREATE FUNCTION ds_prune_anchors_v1(_below bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    last_ bigint;
    gone_ bigint;
BEGIN
    SELECT max(seq) INTO last_
    FROM (
        SELECT seq, sum(leaves) OVER (ORDER BY seq) - leaves AS before
        FROM (SELECT seq, leaves FROM anchors WHERE seq < _below ORDER BY seq LIMIT 1000) AS page
    ) AS counted
    WHERE before < 20000;
    PERFORM set_config('dalsegno.prunes', 'yes', true);
    DELETE FROM anchor_leaves WHERE anchor <= last_;
    DELETE FROM anchors WHERE seq <= last_;
    GET DIAGNOSTICS gone_ = ROW_COUNT;
    PERFORM set_config('dalsegno.prunes', '', true);
    RETURN gone_;
END
$$;
