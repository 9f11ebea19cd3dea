-- States rebuilt ahead of a lookup, keyed by the boundary's content hash: its channels, each a value or a list of chunks.
CREATE TABLE snapshots (
    run          BLOB NOT NULL REFERENCES runs (id),
    content_hash BLOB NOT NULL,
    turn         INTEGER NOT NULL,
    boundary     INTEGER NOT NULL CHECK (boundary IN (1, 2)),
    epoch        INTEGER NOT NULL,
    document     BLOB NOT NULL,
    digest       BLOB NOT NULL,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (run, content_hash)
) STRICT;

-- Pieces of list channels, by the hash of their bytes, so that snapshots share them.
CREATE TABLE chunks (
    run        BLOB NOT NULL REFERENCES runs (id),
    hash       BLOB NOT NULL,
    payload    BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (run, hash)
) STRICT;

-- A fenced keyed space for SDKs. Each write is a row of its own, so that a rewind can hide it.
CREATE TABLE records (
    run      BLOB NOT NULL REFERENCES runs (id),
    space    TEXT NOT NULL,
    key      TEXT NOT NULL,
    seq      INTEGER NOT NULL,
    op       TEXT NOT NULL CHECK (op IN ('put', 'putIfAbsent', 'append', 'delete')),
    entry_id TEXT,
    value    BLOB,
    turn     INTEGER NOT NULL,
    epoch    INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    undone   INTEGER NOT NULL,
    PRIMARY KEY (run, space, key, seq)
) STRICT;

-- Decisions of people on proposals.
CREATE TABLE approvals (
    run           BLOB NOT NULL REFERENCES runs (id),
    turn          INTEGER NOT NULL,
    epoch         INTEGER NOT NULL,
    proposal_hash BLOB NOT NULL,
    proposal      BLOB NOT NULL,
    message       TEXT NOT NULL,
    timeout_ms    INTEGER,
    on_timeout    TEXT,
    verdict       TEXT,
    reason        TEXT,
    decided_by    TEXT,
    created_at    INTEGER NOT NULL,
    decided_at    INTEGER,
    used_at       INTEGER,
    PRIMARY KEY (run, turn, epoch)
) STRICT;
