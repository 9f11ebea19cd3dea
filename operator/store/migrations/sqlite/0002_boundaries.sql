-- What runs commit. Payloads (ops, events, arguments, result) are a codec byte and bytes.

CREATE TABLE boundaries (
    run             BLOB NOT NULL REFERENCES runs (id),
    turn            INTEGER NOT NULL,
    boundary        INTEGER NOT NULL CHECK (boundary IN (1, 2)),
    epoch           INTEGER NOT NULL,
    parent_turn     INTEGER,
    parent_boundary INTEGER,
    parent_epoch    INTEGER,
    parent_hash     BLOB NOT NULL,
    content_hash    BLOB NOT NULL,
    attempt         INTEGER NOT NULL,
    position        INTEGER NOT NULL,
    commit_id       BLOB NOT NULL,
    digest          BLOB NOT NULL,
    at              INTEGER NOT NULL,
    ops             BLOB,
    ops_digest      BLOB,
    is_full         INTEGER NOT NULL,
    events          BLOB,
    events_digest   BLOB,
    event_count     INTEGER NOT NULL,
    tokens_in       INTEGER NOT NULL,
    tokens_out      INTEGER NOT NULL,
    tool_calls      INTEGER NOT NULL,
    cost_micro_usd  INTEGER NOT NULL,
    trigger_word    TEXT,
    finish          INTEGER NOT NULL,
    undone          INTEGER NOT NULL,
    PRIMARY KEY (run, turn, boundary, epoch)
) STRICT;

CREATE TABLE calls (
    run        BLOB NOT NULL REFERENCES runs (id),
    id         TEXT NOT NULL,
    ordinal    INTEGER NOT NULL,
    turn       INTEGER NOT NULL,
    policy     TEXT NOT NULL CHECK (policy IN ('retrySameKey', 'probe', 'ask', 'readOnly')),
    key        TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('planned', 'started', 'completed', 'failed')),
    arguments  BLOB,
    attempt    INTEGER,
    claim_id   BLOB,
    result     BLOB,
    -- Of a call that is started: its outcome is a person's to tell, and `result` is what the tool said.
    key_refused INTEGER NOT NULL DEFAULT 0,
    settled_by TEXT,
    reason     TEXT,
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    ended_at   INTEGER,
    PRIMARY KEY (run, id),
    UNIQUE (run, ordinal)
) STRICT;

CREATE INDEX calls_started ON calls (run) WHERE state = 'started';
