-- Since when a run is over that never was finished: no row of its audit that comes later moves it.
ALTER TABLE runs ADD COLUMN over_at bigint;

UPDATE runs r SET over_at = (
    SELECT coalesce(max(a.at) FILTER (WHERE a.kind IN ('deleted', 'abandoned')), max(a.at)) FROM audit a WHERE a.run = r.id)
WHERE lifecycle IN ('deleted', 'abandoned');
