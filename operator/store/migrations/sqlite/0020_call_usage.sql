-- What a call has used, and when that was added to the run's usage. NULL: the call has reported nothing.
ALTER TABLE calls ADD COLUMN spent_at INTEGER;
ALTER TABLE calls ADD COLUMN tokens_in INTEGER NOT NULL DEFAULT 0;
ALTER TABLE calls ADD COLUMN tokens_out INTEGER NOT NULL DEFAULT 0;
ALTER TABLE calls ADD COLUMN tool_calls INTEGER NOT NULL DEFAULT 0;
ALTER TABLE calls ADD COLUMN cost_micro_usd INTEGER NOT NULL DEFAULT 0;
