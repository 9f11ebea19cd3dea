-- Limits over all attempts of a run. NULL: no limit. `limit_active_ms`: in milliseconds.
ALTER TABLE runs ADD COLUMN limit_turns INTEGER;
ALTER TABLE runs ADD COLUMN limit_tokens INTEGER;
ALTER TABLE runs ADD COLUMN limit_cost INTEGER;
ALTER TABLE runs ADD COLUMN limit_active_ms INTEGER;
-- Since when a limit of turns, tokens or cost is reached.
ALTER TABLE runs ADD COLUMN limit_reached_at INTEGER;
-- Active time of the attempts that have ended, in milliseconds: from the attach to the end of each.
ALTER TABLE runs ADD COLUMN active_ms INTEGER NOT NULL DEFAULT 0;
