-- What batches of records say, each value by its digest (records.rs), in the order in which they came; also those that a boundary
-- brought. `digest` is what stands in the boundary's hash.
CREATE TABLE record_changes (
    run      BLOB NOT NULL REFERENCES runs (id),
    seq      INTEGER NOT NULL,
    turn     INTEGER NOT NULL,
    boundary INTEGER NOT NULL CHECK (boundary IN (1, 2)),
    epoch    INTEGER NOT NULL,
    undone   INTEGER NOT NULL DEFAULT 0,
    digest   BLOB NOT NULL,
    batch    BLOB NOT NULL,
    PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;
