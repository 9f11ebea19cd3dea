-- Rewinds that people request. `rewind_result`: JSON, what became of the last request.
ALTER TABLE runs ADD COLUMN observed_rewind_generation bigint NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN rewind_result text;

-- Forks: runs that begin with the state and the records of another run. Null: the run is not a fork. `fork_parent`,
-- `fork_turn`, `fork_epoch`, `fork_hash`: the boundary of the other run, a result. `fork_space`, `fork_key`,
-- `fork_seq`: the last record that was copied.
ALTER TABLE runs ADD COLUMN fork_state text CHECK (fork_state IN ('pending', 'copying', 'done'));
ALTER TABLE runs ADD COLUMN fork_parent uuid;
ALTER TABLE runs ADD COLUMN fork_turn integer;
ALTER TABLE runs ADD COLUMN fork_epoch bigint;
ALTER TABLE runs ADD COLUMN fork_hash bytea;
ALTER TABLE runs ADD COLUMN fork_space text;
ALTER TABLE runs ADD COLUMN fork_key text;
ALTER TABLE runs ADD COLUMN fork_seq bigint;

-- The boundary of another run after which a fork begins. Only the first boundary of a fork has it, and its hash covers
-- it.
ALTER TABLE boundaries ADD COLUMN forked_run uuid;
ALTER TABLE boundaries ADD COLUMN forked_turn integer;
ALTER TABLE boundaries ADD COLUMN forked_hash bytea;
