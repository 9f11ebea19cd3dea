-- What was spent after a boundary is found without the other calls. It reads all calls once, so it is not in the migration
-- that locks the table for its columns: while it is made, workers read calls and wait to write them.
CREATE INDEX calls_spent ON calls (run, spent_at) WHERE spent_at IS NOT NULL;
