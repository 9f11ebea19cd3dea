-- Anchors: where runs stood, chained and signed. Only ever added to.
CREATE TABLE anchors (
    seq  INTEGER NOT NULL PRIMARY KEY,
    hash BLOB    NOT NULL,
    line TEXT    NOT NULL
) STRICT;

CREATE TRIGGER anchors_are_not_edited BEFORE UPDATE ON anchors
BEGIN SELECT RAISE(ABORT, 'an UPDATE of anchors is refused: its rows are only ever added'); END;

CREATE TRIGGER anchors_are_not_deleted BEFORE DELETE ON anchors
BEGIN SELECT RAISE(ABORT, 'a DELETE from anchors is refused: its rows are only ever added'); END;

CREATE TRIGGER anchors_are_not_replaced BEFORE INSERT ON anchors
WHEN EXISTS (SELECT 1 FROM anchors WHERE seq = NEW.seq)
BEGIN SELECT RAISE(ABORT, 'a row of anchors is not replaced: its rows are only ever added'); END;

-- What the last anchor that names a run says of it: what differs now is due.
CREATE TABLE anchored (
    run       BLOB    NOT NULL PRIMARY KEY,
    audit_seq INTEGER NOT NULL,
    head_hash BLOB
) STRICT;
