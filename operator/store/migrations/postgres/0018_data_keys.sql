-- The data key of a run, wrapped by a key that the store never holds. A deleted one leaves its row, so that nobody makes
-- another: what is sealed under it can be read by nobody.
CREATE TABLE data_keys (
    run         uuid   NOT NULL PRIMARY KEY,
    key_id      text,
    wrapped     bytea,
    created_at  bigint NOT NULL,
    shredded_at bigint,
    CHECK ((key_id IS NULL) = (wrapped IS NULL) AND (wrapped IS NULL) = (shredded_at IS NOT NULL))
);

ALTER TABLE data_keys ALTER COLUMN wrapped SET STORAGE EXTERNAL;

-- `Store::shred`. Answers `shredded`, `gone before`, `never sealed`, `live`, or `not found`; all but the first change
-- nothing. A run without a data key has nothing that could be shredded.
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

-- Nothing plain is put beside what is sealed: a process without keys is refused where it would. It has the run's row, as
-- whoever makes the data key has, so that each sees what the other has done.
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
