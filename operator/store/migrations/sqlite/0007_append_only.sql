-- What is in the audit stays as it is. (Whoever can write the file can take a trigger away; docs/audit.md says what finds
-- that.)
CREATE TRIGGER audit_is_not_edited BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'an UPDATE of audit is refused: its rows are only ever added'); END;

CREATE TRIGGER audit_is_not_deleted BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'a DELETE from audit is refused: its rows are only ever added'); END;
