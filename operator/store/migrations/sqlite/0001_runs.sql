-- Times are milliseconds since 1970; uuids are 16 bytes; hashes and digests 32.

-- One row: which store this is, and when the gateways beat. Nobody has beaten yet: 0.
CREATE TABLE store (
    only_row   INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
    id         BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    beat_last  INTEGER NOT NULL,
    beat_since INTEGER NOT NULL,
    gap_from   INTEGER NOT NULL
) STRICT;

-- A random UUID (version 4).
INSERT INTO store (only_row, id, created_at, beat_last, beat_since, gap_from)
SELECT 1,
       unhex(substr(h, 1, 12) || '4' || substr(h, 14, 3) || 'a' || substr(h, 18, 15)),
       CAST(unixepoch('subsec') * 1000 AS INTEGER),
       0, 0, 0
FROM (SELECT hex(randomblob(16)) AS h);

-- All that a write is judged by stands in the run's one row.
CREATE TABLE runs (
    id         BLOB NOT NULL PRIMARY KEY,
    tenant     TEXT NOT NULL,
    namespace  TEXT NOT NULL,
    name       TEXT NOT NULL,
    object_uid TEXT NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,

    lifecycle       TEXT NOT NULL CHECK (lifecycle IN ('live', 'finished', 'deleted', 'abandoned')),
    epoch           INTEGER NOT NULL,
    capability      BLOB,
    last_capability BLOB,

    attempt           INTEGER NOT NULL,
    attempt_state     TEXT NOT NULL CHECK (attempt_state IN ('reserved', 'created', 'attached', 'ended')),
    pod_uid           TEXT,
    attempt_turn      INTEGER NOT NULL,
    attempt_completed INTEGER NOT NULL,
    verdict           TEXT CHECK (verdict IN ('accepted', 'allowed', 'refused')),
    remark            TEXT,
    scheduled_at      INTEGER,
    attached_at       INTEGER,
    lease_renewed_at  INTEGER,
    lease_ms          INTEGER NOT NULL DEFAULT 0,
    spent             INTEGER NOT NULL,

    head_turn      INTEGER,
    head_boundary  INTEGER CHECK (head_boundary IN (1, 2)),
    head_epoch     INTEGER,
    head_attempt   INTEGER,
    head_commit_id BLOB,
    head_digest    BLOB,
    head_hash      BLOB,
    head_position  INTEGER NOT NULL,
    head_at        INTEGER,

    highest_turn             INTEGER NOT NULL,
    completed_calls          INTEGER NOT NULL,
    unsettled_retry_same_key INTEGER NOT NULL,
    unsettled_probe          INTEGER NOT NULL,
    unsettled_ask            INTEGER NOT NULL,
    unsettled_read_only      INTEGER NOT NULL,
    -- Calls whose key the tool has refused, and that nobody has settled, of whatever attempt.
    keys_refused             INTEGER NOT NULL,

    recovery_attempts            INTEGER NOT NULL,
    recovery_attempts_base       INTEGER NOT NULL,
    attempts_without_progress    INTEGER NOT NULL,
    disruptions                  INTEGER NOT NULL,
    disruptions_base             INTEGER NOT NULL,
    disruptions_without_progress INTEGER NOT NULL,
    observed_reset_generation    INTEGER NOT NULL,
    reset_attempt                INTEGER NOT NULL,

    -- Bytes of its boundaries' payloads, as they are kept.
    stored_bytes   INTEGER NOT NULL,
    tokens_in      INTEGER NOT NULL,
    tokens_out     INTEGER NOT NULL,
    tool_calls     INTEGER NOT NULL,
    cost_micro_usd INTEGER NOT NULL,

    cancel_requested_at INTEGER,
    cancel_told_at      INTEGER,
    suspend             INTEGER NOT NULL,
    heartbeat_ms        INTEGER NOT NULL,
    start_ms            INTEGER NOT NULL,
    progress_ms         INTEGER NOT NULL,

    finish_outcome   TEXT CHECK (finish_outcome IN ('Succeeded', 'Failed', 'Cancelled')),
    finish_reason    TEXT,
    finish_message   TEXT,
    finish_output    TEXT,
    finish_commit_id BLOB,
    finish_digest    BLOB,
    finish_at        INTEGER,

    changed_at INTEGER NOT NULL,
    audit_seq  INTEGER NOT NULL,
    audit_hash BLOB NOT NULL
) STRICT;

CREATE INDEX runs_by_name ON runs (namespace, name);
-- Of the runs of one name at most one is not closed.
CREATE UNIQUE INDEX runs_open_by_name ON runs (namespace, name) WHERE lifecycle IN ('live', 'finished');

CREATE TABLE attempts (
    run              BLOB NOT NULL REFERENCES runs (id),
    number           INTEGER NOT NULL,
    state            TEXT NOT NULL CHECK (state IN ('reserved', 'created', 'attached', 'ended')),
    epoch            INTEGER NOT NULL,
    pod_uid          TEXT,
    pod_name         TEXT,
    node             TEXT,
    revision         TEXT,
    -- Templates that the pod of a reserved attempt may be made of, the latest first; JSON.
    candidates       TEXT NOT NULL DEFAULT '[]',
    image_digest     TEXT,
    agent_version    TEXT,
    verdict          TEXT CHECK (verdict IN ('accepted', 'allowed', 'refused')),
    remark           TEXT,
    spent            INTEGER NOT NULL,
    turn_at_start    INTEGER NOT NULL,
    turn_at_end      INTEGER,
    reserved_at      INTEGER NOT NULL,
    created_at       INTEGER,
    scheduled_at     INTEGER,
    attached_at      INTEGER,
    lease_renewed_at INTEGER,
    ended_at         INTEGER,
    cause            TEXT,
    class            TEXT CHECK (class IN ('Crash', 'Disruption', 'Neutral')),
    charged          INTEGER,
    progress         INTEGER,
    exit_code        INTEGER,
    message          TEXT,
    PRIMARY KEY (run, number)
) STRICT;

-- Templates that made a pod, or may, by the hash of their bytes.
CREATE TABLE revisions (
    hash       TEXT NOT NULL PRIMARY KEY,
    document   TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE audit (
    run         BLOB NOT NULL REFERENCES runs (id),
    seq         INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    kind        TEXT NOT NULL,
    actor       TEXT NOT NULL,
    detail      TEXT NOT NULL,
    parent_hash BLOB NOT NULL,
    hash        BLOB NOT NULL,
    PRIMARY KEY (run, seq)
) STRICT;
