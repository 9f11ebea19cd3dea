-- Since when a run is over that never was finished: no row of its audit that comes later moves it.
ALTER TABLE runs ADD COLUMN over_at bigint;

UPDATE runs r SET over_at = (
    SELECT coalesce(max(a.at) FILTER (WHERE a.kind IN ('deleted', 'abandoned')), max(a.at)) FROM audit a WHERE a.run = r.id)
WHERE lifecycle IN ('deleted', 'abandoned');

CREATE FUNCTION ds_over_v1() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    NEW.over_at := ds_now_v1();
    RETURN NEW;
END
$$;

CREATE TRIGGER runs_are_over BEFORE UPDATE OF lifecycle ON runs
FOR EACH ROW WHEN (NEW.lifecycle IN ('deleted', 'abandoned') AND NEW.over_at IS NULL)
EXECUTE FUNCTION ds_over_v1();
