-- What a call has used, and when that was added to the run's usage. NULL: the call has reported nothing.
ALTER TABLE calls ADD COLUMN spent_at INTEGER;
ALTER TABLE calls ADD COLUMN tokens_in INTEGER NOT NULL DEFAULT 0;
ALTER TABLE calls ADD COLUMN tokens_out INTEGER NOT NULL DEFAULT 0;
ALTER TABLE calls ADD COLUMN tool_calls INTEGER NOT NULL DEFAULT 0;
ALTER TABLE calls ADD COLUMN cost_micro_usd INTEGER NOT NULL DEFAULT 0;

-- What was spent after a boundary is found without the other calls.
CREATE INDEX calls_spent ON calls (run, spent_at) WHERE spent_at IS NOT NULL;
