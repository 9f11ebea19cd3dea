-- After how many boundaries a snapshot of the run's state is due. Null: 10.
ALTER TABLE runs ADD COLUMN snapshot_every integer CHECK (snapshot_every BETWEEN 1 AND 50);
