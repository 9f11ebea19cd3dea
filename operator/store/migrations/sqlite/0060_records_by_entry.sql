-- A key may hold a long list: what it holds, and whether an entry is among it, is found without walking it. The value stands
-- last, since to read a column behind it SQLite walks the value's pages.
DROP VIEW held_records;
ALTER TABLE records RENAME TO records_before;

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

INSERT INTO records (run, space, key, seq, op, entry_id, size, turn, boundary, epoch, at, undone, value)
SELECT run, space, key, seq, op, entry_id, size, turn, boundary, epoch, at, undone, value FROM records_before;

DROP TABLE records_before;

CREATE INDEX records_that_replace ON records (run, space, key, seq) WHERE op IN ('put', 'delete') AND NOT undone;
CREATE INDEX records_by_entry ON records (run, space, key, entry_id) WHERE entry_id IS NOT NULL AND NOT undone;

-- What keys hold: the rows from a key's last `put` on, or after its last `delete`.
CREATE VIEW held_records AS
SELECT record.*
FROM records record
WHERE NOT undone AND op <> 'delete'
  AND NOT EXISTS (
      SELECT 1 FROM records later INDEXED BY records_that_replace
      WHERE later.run = record.run AND later.space = record.space AND later.key = record.key
        AND later.seq > record.seq AND later.op IN ('put', 'delete') AND NOT later.undone
  );
