-- Limits over all attempts of a run. NULL: no limit. `limit_active_ms`: in milliseconds.
ALTER TABLE runs ADD COLUMN limit_turns bigint;
ALTER TABLE runs ADD COLUMN limit_tokens bigint;
ALTER TABLE runs ADD COLUMN limit_cost bigint;
ALTER TABLE runs ADD COLUMN limit_active_ms bigint;
-- Since when a limit of turns, tokens or cost is reached.
ALTER TABLE runs ADD COLUMN limit_reached_at bigint;
-- Active time of the attempts that have ended, in milliseconds: from the attach to the end of each.
ALTER TABLE runs ADD COLUMN active_ms bigint NOT NULL DEFAULT 0;
