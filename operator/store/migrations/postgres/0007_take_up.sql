-- `Store::adopt_namespace`. Rows are locked in one order, so that no two of these wait for each other.
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
