-- Triggers that guard tables.

-- The audit and the anchors are append-only: nobody updates or deletes a row, not even the owner of the table. (An
-- owner can drop a trigger; docs/reference/audit.md says what detects that.)
--
-- The start of an audit may be deleted once an anchor names where it ended, and the first anchors once a later one
-- announces it: by the owner of the table, and through `ds_prune_audit_v1` and `ds_prune_anchors_v1` only.
CREATE FUNCTION ds_refuse_unless_pruned_v1() RETURNS trigger
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

CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION ds_refuse_unless_pruned_v1();

CREATE TRIGGER anchors_are_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON anchors
    FOR EACH STATEMENT EXECUTE FUNCTION ds_refuse_unless_pruned_v1();

CREATE TRIGGER anchor_leaves_are_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON anchor_leaves
    FOR EACH STATEMENT EXECUTE FUNCTION ds_refuse_unless_pruned_v1();

-- A process without keys cannot write plain payloads into a run that has a data key. Writer and maker of the data key
-- both hold the run's row, so that each sees what the other did.
CREATE FUNCTION ds_refuse_plain_v1() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM data_keys WHERE run = NEW.run) THEN
        RAISE EXCEPTION 'the run has a data key: nothing plain is added to it';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER boundaries_are_sealed BEFORE INSERT ON boundaries FOR EACH ROW
    WHEN (substr(NEW.ops, 1, 1) < '\x10' OR substr(NEW.events, 1, 1) < '\x10')
    EXECUTE FUNCTION ds_refuse_plain_v1();

CREATE TRIGGER calls_are_sealed BEFORE INSERT ON calls FOR EACH ROW
    WHEN (substr(NEW.arguments, 1, 1) < '\x10')
    EXECUTE FUNCTION ds_refuse_plain_v1();

CREATE TRIGGER results_are_sealed BEFORE UPDATE OF arguments, result ON calls FOR EACH ROW
    WHEN (substr(NEW.arguments, 1, 1) < '\x10' AND NEW.arguments IS DISTINCT FROM OLD.arguments
       OR substr(NEW.result, 1, 1) < '\x10' AND NEW.result IS DISTINCT FROM OLD.result)
    EXECUTE FUNCTION ds_refuse_plain_v1();

CREATE TRIGGER records_are_sealed BEFORE INSERT ON records FOR EACH ROW
    WHEN (substr(NEW.value, 1, 1) < '\x10')
    EXECUTE FUNCTION ds_refuse_plain_v1();
