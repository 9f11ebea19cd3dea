-- What is in the audit stays as it is: nobody edits or deletes a row, the owner of the table included. (An owner can take
-- the trigger away; docs/reference/audit.md says what finds that.)
CREATE FUNCTION ds_refuse_v1() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% on % is refused: its rows are only ever added', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege';
END
$$;

CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION ds_refuse_v1();
