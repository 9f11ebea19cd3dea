-- How long a run's payloads stay after its end.

-- `expired_at`: since when they are being dropped. `emptied`: none is left.
ALTER TABLE runs ADD COLUMN retention_days INTEGER NOT NULL DEFAULT 30;
ALTER TABLE runs ADD COLUMN expired_at INTEGER;
ALTER TABLE runs ADD COLUMN emptied INTEGER NOT NULL DEFAULT 0;

-- Its payloads are past their retention. The header stays, and the chain with it.
ALTER TABLE boundaries ADD COLUMN dropped INTEGER NOT NULL DEFAULT 0;

CREATE INDEX runs_to_empty ON runs (id) WHERE lifecycle <> 'live' AND NOT emptied;
