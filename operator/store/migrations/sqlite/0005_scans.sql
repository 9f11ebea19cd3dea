-- Indexes for what the operator looks for every minute: it reads no run in which there is nothing to do.

-- The `keep_last` under which an ended run had nothing more to drop. A run whose `keep_last` is changed later is looked
-- at again.
ALTER TABLE runs ADD COLUMN compacted_keep_last INTEGER;

-- Runs that keep their last boundaries only, without the ended ones that have nothing more to drop. It replaces
-- `runs_to_clear`.
CREATE INDEX runs_to_compact ON runs (id)
WHERE keep_last IS NOT NULL AND expired_at IS NULL AND compacted_keep_last IS DISTINCT FROM keep_last;
DROP INDEX runs_to_clear;

-- Ended runs with payloads, by the time from which these are deleted; 0: that has begun. It replaces `runs_to_empty`,
-- which stays, because the statements of the version before name it.
CREATE INDEX runs_to_expire ON runs (
    CASE WHEN expired_at IS NULL THEN coalesce(finish_at, over_at) + retention_days * 86400000 ELSE 0 END,
    id
) WHERE lifecycle <> 'live' AND NOT emptied;
