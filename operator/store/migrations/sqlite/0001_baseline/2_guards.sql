-- Triggers that guard tables.

-- The audit and the anchors are append-only. (Whoever can write the file can drop a trigger; docs/reference/audit.md
-- says what detects that.) The start of an audit may be deleted up to the row that `audit_prunes` names.
CREATE TRIGGER audit_is_not_edited BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'an UPDATE of audit is refused: its rows are only ever added'); END;

CREATE TRIGGER audit_is_not_deleted BEFORE DELETE ON audit
WHEN OLD.seq > coalesce((SELECT to_seq FROM audit_prunes WHERE run = OLD.run), 0)
BEGIN SELECT RAISE(ABORT, 'a DELETE from audit is refused: its rows are only ever added'); END;

-- An INSERT OR REPLACE deletes the row that it replaces, and no trigger on DELETE sees that. SQLite's own row number is
-- a key of the audit too; if none is given it is -1 here.
CREATE TRIGGER audit_is_not_replaced BEFORE INSERT ON audit
WHEN EXISTS (SELECT 1 FROM audit WHERE run = NEW.run AND seq = NEW.seq)
    OR EXISTS (SELECT 1 FROM audit WHERE rowid = NEW.rowid)
BEGIN SELECT RAISE(ABORT, 'a row of audit is not replaced: its rows are only ever added'); END;

CREATE TRIGGER anchors_are_not_edited BEFORE UPDATE ON anchors
BEGIN SELECT RAISE(ABORT, 'an UPDATE of anchors is refused: its rows are only ever added'); END;

CREATE TRIGGER anchors_are_not_deleted BEFORE DELETE ON anchors
WHEN OLD.seq >= coalesce((SELECT max(below) FROM anchor_prunes), 0)
BEGIN SELECT RAISE(ABORT, 'a DELETE from anchors is refused: its rows are only ever added'); END;

CREATE TRIGGER anchors_are_not_replaced BEFORE INSERT ON anchors
WHEN EXISTS (SELECT 1 FROM anchors WHERE seq = NEW.seq)
BEGIN SELECT RAISE(ABORT, 'a row of anchors is not replaced: its rows are only ever added'); END;

CREATE TRIGGER anchor_leaves_are_not_edited BEFORE UPDATE ON anchor_leaves
BEGIN SELECT RAISE(ABORT, 'an UPDATE of anchor_leaves is refused: its rows are only ever added'); END;

CREATE TRIGGER anchor_leaves_are_not_deleted BEFORE DELETE ON anchor_leaves
WHEN OLD.anchor >= coalesce((SELECT max(below) FROM anchor_prunes), 0)
BEGIN SELECT RAISE(ABORT, 'a DELETE from anchor_leaves is refused: its rows are only ever added'); END;

CREATE TRIGGER anchor_leaves_are_not_replaced BEFORE INSERT ON anchor_leaves
WHEN EXISTS (SELECT 1 FROM anchor_leaves WHERE anchor = NEW.anchor AND run = NEW.run)
BEGIN SELECT RAISE(ABORT, 'a row of anchor_leaves is not replaced: its rows are only ever added'); END;

-- A process without keys cannot write plain payloads into a run that has a data key.
CREATE TRIGGER boundaries_are_sealed BEFORE INSERT ON boundaries
WHEN (substr(NEW.ops, 1, 1) < x'10' OR substr(NEW.events, 1, 1) < x'10') AND EXISTS (SELECT 1 FROM data_keys WHERE run = NEW.run)
BEGIN SELECT RAISE(ABORT, 'the run has a data key: nothing plain is added to it'); END;

CREATE TRIGGER calls_are_sealed BEFORE INSERT ON calls
WHEN (substr(NEW.arguments, 1, 1) < x'10') AND EXISTS (SELECT 1 FROM data_keys WHERE run = NEW.run)
BEGIN SELECT RAISE(ABORT, 'the run has a data key: nothing plain is added to it'); END;

CREATE TRIGGER results_are_sealed BEFORE UPDATE OF arguments, result ON calls
WHEN (substr(NEW.arguments, 1, 1) < x'10' AND NEW.arguments IS NOT OLD.arguments
   OR substr(NEW.result, 1, 1) < x'10' AND NEW.result IS NOT OLD.result) AND EXISTS (SELECT 1 FROM data_keys WHERE run = NEW.run)
BEGIN SELECT RAISE(ABORT, 'the run has a data key: nothing plain is added to it'); END;

CREATE TRIGGER records_are_sealed BEFORE INSERT ON records
WHEN (substr(NEW.value, 1, 1) < x'10') AND EXISTS (SELECT 1 FROM data_keys WHERE run = NEW.run)
BEGIN SELECT RAISE(ABORT, 'the run has a data key: nothing plain is added to it'); END;
