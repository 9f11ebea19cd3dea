-- Rewinds that people request. `rewind_result`: JSON, what became of the last request.
ALTER TABLE runs ADD COLUMN observed_rewind_generation INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN rewind_result TEXT;

-- Forks: runs that begin with the state and the records of another run. Null: the run is not a fork. `fork_parent`,
-- `fork_turn`, `fork_epoch`, `fork_hash`: the boundary of the other run, a result. `fork_space`, `fork_key`,
-- `fork_seq`: the last record that was copied.
ALTER TABLE runs ADD COLUMN fork_state TEXT CHECK (fork_state IN ('pending', 'copying', 'done'));
ALTER TABLE runs ADD COLUMN fork_parent BLOB;
ALTER TABLE runs ADD COLUMN fork_turn INTEGER;
ALTER TABLE runs ADD COLUMN fork_epoch INTEGER;
ALTER TABLE runs ADD COLUMN fork_hash BLOB;
ALTER TABLE runs ADD COLUMN fork_space TEXT;
ALTER TABLE runs ADD COLUMN fork_key TEXT;
ALTER TABLE runs ADD COLUMN fork_seq INTEGER;

-- The boundary of another run after which a fork begins. Only the first boundary of a fork has it, and its hash covers
-- it.
ALTER TABLE boundaries ADD COLUMN forked_run BLOB;
ALTER TABLE boundaries ADD COLUMN forked_turn INTEGER;
ALTER TABLE boundaries ADD COLUMN forked_hash BLOB;
