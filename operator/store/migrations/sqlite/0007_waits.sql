-- Waits: what a run waits for, and what it is parked on.
CREATE TABLE waits (
    run        BLOB    NOT NULL REFERENCES runs (id),
    id         TEXT    NOT NULL,
    -- The epoch it was opened under. After a rewind the same id may be opened again.
    epoch      INTEGER NOT NULL,
    ordinal    INTEGER NOT NULL,
    -- The position on the branch at which it was opened, as records have it: a rewind to an earlier one undoes it.
    turn       INTEGER NOT NULL,
    boundary   INTEGER NOT NULL,
    undone     INTEGER NOT NULL DEFAULT 0,
    attempt    INTEGER NOT NULL,
    kind       TEXT    NOT NULL CHECK (kind IN ('approval', 'until', 'message', 'rateLimit')),
    state      TEXT    NOT NULL CHECK (state IN ('open', 'answered', 'withdrawn')),
    digest     BLOB    NOT NULL,
    -- The request as it came, and for an approval the salt of its hash. Null: deleted by retention.
    request    BLOB,
    bytes      INTEGER NOT NULL,
    deadline_at INTEGER,
    on_timeout TEXT    NOT NULL CHECK (on_timeout IN ('Answer', 'Hold', 'Fail')),
    -- When the deadline passed while the run was parked on it, if it stays open after that.
    timed_out_at INTEGER,
    wake_at    INTEGER,
    -- The end of the rate limit that `wake_at` was computed from.
    reset_at   INTEGER,
    provider   TEXT,
    topic      TEXT,
    proposal_hash BLOB,
    opened_at  INTEGER NOT NULL,
    answered_at INTEGER,
    outcome    TEXT CHECK (outcome IN ('approved', 'denied', 'changed', 'elapsed', 'message', 'timedOut')),
    -- Position of the message that answered it.
    position   INTEGER,
    -- A person's words. Null: there are none, or they were deleted by retention.
    answer     BLOB,
    -- The call that the approval was used for.
    used_by    TEXT,
    PRIMARY KEY (run, id, epoch),
    UNIQUE (run, ordinal)
) STRICT;

-- At most one wait of an id on the live branch.
CREATE UNIQUE INDEX waits_live ON waits (run, id) WHERE NOT undone;

-- The waits that answers and reads of a run need, however many it has had.
CREATE INDEX waits_open ON waits (run, ordinal) WHERE state = 'open' AND NOT undone;

-- Waits for the same rate limit.
CREATE INDEX waits_by_provider ON waits (provider) WHERE state = 'open' AND kind = 'rateLimit' AND NOT undone;

-- The number of the last wait, and the open ones of the live branch with the bytes of their requests.
ALTER TABLE runs ADD COLUMN last_wait INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN open_waits INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN open_wait_bytes INTEGER NOT NULL DEFAULT 0;
-- The ids of the waits that the run is parked on. Null: it is not parked on waits.
ALTER TABLE runs ADD COLUMN parked_on TEXT;
ALTER TABLE runs ADD COLUMN park_mode TEXT;
ALTER TABLE runs ADD COLUMN parked_at INTEGER;
ALTER TABLE runs ADD COLUMN parks_without_progress INTEGER NOT NULL DEFAULT 0;
-- When a wait of the run needs the store's clock next.
ALTER TABLE runs ADD COLUMN wake_at INTEGER;

-- A process without keys cannot write plain payloads into a run that has a data key.
CREATE TRIGGER waits_are_sealed BEFORE INSERT ON waits
WHEN (substr(NEW.request, 1, 1) < x'10') AND EXISTS (SELECT 1 FROM data_keys WHERE run = NEW.run)
BEGIN SELECT RAISE(ABORT, 'the run has a data key: nothing plain is added to it'); END;

CREATE TRIGGER answers_are_sealed BEFORE UPDATE OF answer ON waits
WHEN (substr(NEW.answer, 1, 1) < x'10' AND NEW.answer IS NOT OLD.answer)
    AND EXISTS (SELECT 1 FROM data_keys WHERE run = NEW.run)
BEGIN SELECT RAISE(ABORT, 'the run has a data key: nothing plain is added to it'); END;
