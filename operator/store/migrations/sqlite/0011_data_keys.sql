-- The data key of a run, wrapped by a key that the store never holds. A deleted one leaves its row, so that nobody makes
-- another: what is sealed under it can be read by nobody.
CREATE TABLE data_keys (
    run         BLOB NOT NULL PRIMARY KEY REFERENCES runs (id),
    key_id      TEXT,
    wrapped     BLOB,
    created_at  INTEGER NOT NULL,
    shredded_at INTEGER,
    CHECK ((key_id IS NULL) = (wrapped IS NULL) AND (wrapped IS NULL) = (shredded_at IS NOT NULL))
) STRICT;

-- Nothing plain is put beside what is sealed: a process without keys is refused where it would.
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
