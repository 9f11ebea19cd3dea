-- An approval allows one call: a claim may name the approval that it uses.
CREATE TRIGGER approvals_are_used_once BEFORE UPDATE OF used_by ON waits
WHEN OLD.used_by IS NOT NULL AND NEW.used_by IS NOT OLD.used_by
BEGIN SELECT RAISE(ABORT, 'the approval was used by another call'); END;
