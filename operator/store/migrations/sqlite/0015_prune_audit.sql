-- The start of a run's audit may go once an anchor names where it ended. Whose it may is named here, while it goes.
CREATE TABLE audit_prunes (
    run    BLOB    NOT NULL PRIMARY KEY,
    to_seq INTEGER NOT NULL
) STRICT;

DROP TRIGGER audit_is_not_deleted;
CREATE TRIGGER audit_is_not_deleted BEFORE DELETE ON audit
WHEN OLD.seq > coalesce((SELECT to_seq FROM audit_prunes WHERE run = OLD.run), 0)
BEGIN SELECT RAISE(ABORT, 'a DELETE from audit is refused: its rows are only ever added'); END;
