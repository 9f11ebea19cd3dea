-- What is in the audit stays as it is. (Whoever can write the file can take a trigger away; docs/reference/audit.md says what finds
-- that.)
CREATE TRIGGER audit_is_not_edited BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'an UPDATE of audit is refused: its rows are only ever added'); END;

CREATE TRIGGER audit_is_not_deleted BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'a DELETE from audit is refused: its rows are only ever added'); END;

-- An INSERT that replaces deletes what stands there, and no trigger on DELETE sees it. SQLite's own number of a row is a key
-- of audit too; one that is not given shows here as -1.
CREATE TRIGGER audit_is_not_replaced BEFORE INSERT ON audit
WHEN EXISTS (SELECT 1 FROM audit WHERE run = NEW.run AND seq = NEW.seq)
    OR EXISTS (SELECT 1 FROM audit WHERE rowid = NEW.rowid)
BEGIN SELECT RAISE(ABORT, 'a row of audit is not replaced: its rows are only ever added'); END;
