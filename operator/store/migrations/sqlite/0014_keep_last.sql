-- How many of its last boundaries keep their payloads, in a run that lives as well.

-- `keep_last` null: all. `dropped_*`: the last boundary of the live branch whose payloads are gone. So are those of every
-- boundary before that place, and of every one that was undone before this one was written.
ALTER TABLE runs ADD COLUMN keep_last INTEGER CHECK (keep_last >= 1);
ALTER TABLE runs ADD COLUMN dropped_turn INTEGER;
ALTER TABLE runs ADD COLUMN dropped_boundary INTEGER;
ALTER TABLE runs ADD COLUMN dropped_epoch INTEGER;

CREATE INDEX runs_to_clear ON runs (id) WHERE keep_last IS NOT NULL AND expired_at IS NULL;
