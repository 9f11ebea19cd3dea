-- Purging: runs that ended long ago are deleted, in batches. What is left of a run is one row here.

-- Purge records: of each purged run the row of its audit that recorded the purge, which anchors name. Append-only;
-- `audit prune` deletes those that no anchor names any more.
CREATE TABLE purges (
    run         uuid   NOT NULL PRIMARY KEY,
    seq         bigint NOT NULL,
    at          bigint NOT NULL,
    kind        text   NOT NULL,
    actor       text   NOT NULL,
    detail      text   NOT NULL,
    parent_hash bytea  NOT NULL,
    hash        bytea  NOT NULL
);

CREATE TRIGGER purges_are_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON purges
    FOR EACH STATEMENT EXECUTE FUNCTION ds_refuse_unless_pruned_v1();

-- Runs that may be purged, by their end. No statement of a live run changes these columns.
CREATE INDEX runs_to_purge ON runs (coalesce(finish_at, over_at), id)
    WHERE lifecycle IN ('deleted', 'abandoned') AND emptied;

-- Deletes at most `_limit` rows of a run, those of the audit from the first on. `_last`: the last row of its audit, which
-- records the purge and which an anchor names. The last step moves it to `purges`, and `done` is true. `done` is null if
-- the run has changed meanwhile; then nothing is deleted.
CREATE FUNCTION ds_purge_v1(_run uuid, _last bigint, _limit bigint, OUT done boolean, OUT touched bigint)
LANGUAGE plpgsql AS $$
DECLARE
    table_ text;
    gone_ bigint;
BEGIN
    touched := 0;
    PERFORM FROM runs WHERE id = _run AND audit_seq = _last AND NOT has_moved FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    done := false;
    PERFORM set_config('dalsegno.prunes', 'yes', true);
    FOREACH table_ IN ARRAY ARRAY['boundaries', 'calls', 'attempts'] LOOP
        EXECUTE format(
            'DELETE FROM %1$I WHERE ctid = ANY (ARRAY(SELECT ctid FROM %1$I WHERE run = $1 LIMIT $2))', table_
        ) USING _run, _limit - touched;
        GET DIAGNOSTICS gone_ = ROW_COUNT;
        touched := touched + gone_;
    END LOOP;
    DELETE FROM audit
    WHERE run = _run AND seq = ANY (ARRAY(
        SELECT seq FROM audit WHERE run = _run AND seq < _last ORDER BY seq LIMIT _limit - touched));
    GET DIAGNOSTICS gone_ = ROW_COUNT;
    touched := touched + gone_;
    IF touched < _limit THEN
        INSERT INTO purges (run, seq, at, kind, actor, detail, parent_hash, hash)
        SELECT run, seq, at, kind, actor, detail, parent_hash, hash FROM audit WHERE run = _run;
        DELETE FROM audit WHERE run = _run;
        -- Retention has deleted these already.
        DELETE FROM records WHERE run = _run;
        DELETE FROM record_batches WHERE run = _run;
        DELETE FROM record_changes WHERE run = _run;
        DELETE FROM snapshots WHERE run = _run;
        DELETE FROM chunks WHERE run = _run;
        DELETE FROM data_keys WHERE run = _run;
        DELETE FROM runs WHERE id = _run;
        touched := touched + 1;
        done := true;
    END IF;
    PERFORM set_config('dalsegno.prunes', '', true);
END
$$;

-- `Admin::forget_purges`. Looks at the purge records of `_limit` runs after `_after`, and deletes those that no anchor
-- names. `next`: the last run that was looked at.
CREATE FUNCTION ds_forget_purges_v1(_after uuid, _limit bigint, OUT next uuid, OUT touched bigint)
LANGUAGE plpgsql AS $$
DECLARE
    page_ uuid[];
BEGIN
    page_ := ARRAY(SELECT run FROM purges WHERE run > _after ORDER BY run LIMIT _limit);
    next := page_[cardinality(page_)];
    PERFORM set_config('dalsegno.prunes', 'yes', true);
    DELETE FROM purges
    WHERE run = ANY (page_) AND NOT EXISTS (SELECT FROM anchor_leaves WHERE anchor_leaves.run = purges.run);
    GET DIAGNOSTICS touched = ROW_COUNT;
    PERFORM set_config('dalsegno.prunes', '', true);
END
$$;

-- One page of `Admin::adopt_namespace`: at most `_limit` runs before `_before`, the last id first. Ids are ordered by
-- time, and so rows are locked in the order in which the creation of a run locks them. `next`: the last run that was
-- moved; null if there was none.
CREATE FUNCTION ds_adopt_namespace_v2(
    _old text, _new text, _actor text, _reason text, _before uuid, _limit bigint, OUT next uuid, OUT moved bigint
)
LANGUAGE plpgsql AS $$
DECLARE
    row_ runs;
BEGIN
    moved := 0;
    FOR row_ IN
        SELECT * FROM runs WHERE tenant = _old AND id < _before ORDER BY id DESC LIMIT _limit FOR UPDATE
    LOOP
        UPDATE runs SET tenant = _new WHERE id = row_.id;
        PERFORM ds_audit_v1(row_.id, 'namespace-adopted', _actor,
            jsonb_build_object('from', _old, 'to', _new, 'reason', _reason), ds_now_v1());
        moved := moved + 1;
        next := row_.id;
    END LOOP;
END
$$;
