-- Purging: runs that ended long ago are deleted, in batches. What is left of a run is one row here.

-- Purge records: of each purged run the row of its audit that recorded the purge, which anchors name. Append-only;
-- `audit prune` deletes those that no anchor names any more.
CREATE TABLE purges (
    run         BLOB    NOT NULL PRIMARY KEY,
    seq         INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    kind        TEXT    NOT NULL,
    actor       TEXT    NOT NULL,
    detail      TEXT    NOT NULL,
    parent_hash BLOB    NOT NULL,
    hash        BLOB    NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER purges_are_not_edited BEFORE UPDATE ON purges
BEGIN SELECT RAISE(ABORT, 'an UPDATE of purges is refused: its rows are only ever added'); END;

CREATE TRIGGER purges_are_not_deleted BEFORE DELETE ON purges
WHEN EXISTS (SELECT 1 FROM anchor_leaves WHERE run = OLD.run)
BEGIN SELECT RAISE(ABORT, 'a DELETE from purges is refused: anchors name the run'); END;

CREATE TRIGGER purges_are_not_replaced BEFORE INSERT ON purges
WHEN EXISTS (SELECT 1 FROM purges WHERE run = NEW.run)
BEGIN SELECT RAISE(ABORT, 'a row of purges is not replaced: its rows are only ever added'); END;

-- Runs that may be purged, by their end. No statement of a live run changes these columns.
CREATE INDEX runs_to_purge ON runs (coalesce(finish_at, over_at), id)
    WHERE lifecycle IN ('deleted', 'abandoned') AND emptied;
