-- Messages of people to a run.

-- `position`: 1, 2, 3 … in each run. `taken_…`: the boundary of the live branch that has taken the message; NULL: it is
-- unread. `bytes`: of the value as JSON text. `value` is NULL once retention has deleted it.
CREATE TABLE messages (
    run            BLOB    NOT NULL REFERENCES runs (id),
    position       INTEGER NOT NULL,
    id             TEXT    NOT NULL,
    topic          TEXT,
    author         TEXT    NOT NULL,
    at             INTEGER NOT NULL,
    bytes          INTEGER NOT NULL,
    digest         BLOB    NOT NULL,
    taken_turn     INTEGER,
    taken_boundary INTEGER CHECK (taken_boundary IN (1, 2)),
    taken_epoch    INTEGER,
    value          BLOB,
    PRIMARY KEY (run, position),
    UNIQUE (run, id)
) STRICT;

CREATE INDEX unread_messages ON messages (run, position) WHERE taken_turn IS NULL;

-- The position of the latest message; how many are unread, and the bytes of their values.
ALTER TABLE runs ADD COLUMN inbox INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN unread INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN unread_bytes INTEGER NOT NULL DEFAULT 0;

CREATE TRIGGER messages_are_sealed BEFORE INSERT ON messages
WHEN (substr(NEW.value, 1, 1) < x'10') AND EXISTS (SELECT 1 FROM data_keys WHERE run = NEW.run)
BEGIN SELECT RAISE(ABORT, 'the run has a data key: nothing plain is added to it'); END;
