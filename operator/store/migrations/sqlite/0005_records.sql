-- Records. Nothing was ever written to the table that stood here.
DROP TABLE records;

-- Each effective change is a row of its own, so that a rewind can hide it. `size`: bytes of the value before encoding.
-- `boundary`: 2 after the plan of its turn, else 1. The value stands last: to read a column behind it SQLite walks its pages.
CREATE TABLE records (
    run      BLOB NOT NULL REFERENCES runs (id),
    space    TEXT NOT NULL,
    key      TEXT NOT NULL,
    seq      INTEGER NOT NULL,
    op       TEXT NOT NULL CHECK (op IN ('put', 'putIfAbsent', 'append', 'delete')),
    entry_id TEXT,
    size     INTEGER NOT NULL,
    turn     INTEGER NOT NULL,
    boundary INTEGER NOT NULL CHECK (boundary IN (1, 2)),
    epoch    INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    undone   INTEGER NOT NULL DEFAULT 0,
    value    BLOB,
    PRIMARY KEY (run, space, key, seq)
) STRICT, WITHOUT ROWID;

-- A key may hold a long list, and may have been put in each of many turns: what it holds, whether an entry is among it, and
-- what was written to it since the last boundary are found without walking it.
CREATE INDEX records_that_replace ON records (run, space, key, seq) WHERE op IN ('put', 'delete') AND NOT undone;
CREATE INDEX records_by_entry ON records (run, space, key, entry_id) WHERE entry_id IS NOT NULL AND NOT undone;
CREATE INDEX records_by_boundary ON records (run, turn, boundary, space, key) WHERE NOT undone;

-- What keys hold: the rows from a key's last `put` on, or after its last `delete`.
CREATE VIEW held_records AS
SELECT record.*
FROM records record
WHERE NOT undone AND op <> 'delete'
  AND seq >= coalesce((
      SELECT max(other.seq) FROM records other INDEXED BY records_that_replace
      WHERE other.run = record.run AND other.space = record.space AND other.key = record.key
        AND other.op IN ('put', 'delete') AND NOT other.undone
  ), 0);

-- Batches that came outside of a boundary, so that a retry is known. A rewind hides them with what they wrote.
CREATE TABLE record_batches (
    run            BLOB NOT NULL REFERENCES runs (id),
    id             BLOB NOT NULL,
    digest         BLOB NOT NULL,
    turn           INTEGER NOT NULL,
    boundary       INTEGER NOT NULL CHECK (boundary IN (1, 2)),
    epoch          INTEGER NOT NULL,
    at             INTEGER NOT NULL,
    undone         INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run, id, epoch)
) STRICT;

-- The records digest of the batches since the head; null: none.
ALTER TABLE runs ADD COLUMN records_digest BLOB;
ALTER TABLE boundaries ADD COLUMN records_digest BLOB;

-- Events are read by position.
CREATE INDEX boundaries_with_events ON boundaries (run, position) WHERE event_count > 0;
