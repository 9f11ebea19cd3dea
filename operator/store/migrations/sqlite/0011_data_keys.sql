-- The data key of a run, wrapped by a key that the store never holds. A deleted one leaves its row, so that nobody makes
-- another: what is sealed under it can be read by nobody.
CREATE TABLE data_keys (
    run         BLOB NOT NULL PRIMARY KEY REFERENCES runs (id),
    key_id      TEXT,
    wrapped     BLOB,
    created_at  INTEGER NOT NULL,
    shredded_at INTEGER,
    CHECK ((key_id IS NULL) = (wrapped IS NULL) AND (wrapped IS NULL) = (shredded_at IS NOT NULL))
) STRICT;
