-- In which turn a call was claimed or ended last, which may be long after the turn that it was planned in; null: neither since
-- it was first seen.
ALTER TABLE calls ADD COLUMN touched_turn integer;

-- Whoever moves a call holds the lock of its run.
CREATE FUNCTION ds_touched_v1() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    SELECT CASE head_boundary WHEN 1 THEN head_turn ELSE coalesce(head_turn, 0) + 1 END INTO NEW.touched_turn
    FROM runs WHERE id = NEW.run;
    RETURN NEW;
END
$$;

CREATE TRIGGER calls_are_touched BEFORE UPDATE OF state, key_refused ON calls
FOR EACH ROW EXECUTE FUNCTION ds_touched_v1();
