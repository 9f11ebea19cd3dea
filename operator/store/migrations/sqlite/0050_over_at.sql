-- Since when a run is over that never was finished: no row of its audit that comes later moves it.
ALTER TABLE runs ADD COLUMN over_at INTEGER;

UPDATE runs SET over_at = (
    SELECT coalesce(max(at) FILTER (WHERE kind IN ('deleted', 'abandoned')), max(at)) FROM audit WHERE run = runs.id)
WHERE lifecycle IN ('deleted', 'abandoned');
