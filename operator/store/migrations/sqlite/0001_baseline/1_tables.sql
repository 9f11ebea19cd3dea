-- The schema of the embedded store.
--
-- Times are milliseconds since 1970 by the store's clock. UUIDs have 16 bytes; hashes, digests and capabilities 32.
-- Payloads (ops, events, arguments, result, value) are a codec byte and bytes that are compressed already.

-- One row: the id of this store, and the heartbeats of the gateways. 0: no gateway has sent a heartbeat yet.
CREATE TABLE store (
    only_row   INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
    id         BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    beat_last  INTEGER NOT NULL,
    beat_since INTEGER NOT NULL,
    gap_from   INTEGER NOT NULL,
    -- The oldest version of the schema whose programs can use this one. A migration that an older program would not
    -- survive, or would damage, sets it to its own number.
    readable_since INTEGER NOT NULL DEFAULT 1
) STRICT;

-- A random UUID (version 4).
INSERT INTO store (only_row, id, created_at, beat_last, beat_since, gap_from)
SELECT 1,
       unhex(substr(h, 1, 12) || '4' || substr(h, 14, 3) || 'a' || substr(h, 18, 15)),
       CAST(unixepoch('subsec') * 1000 AS INTEGER),
       0, 0, 0
FROM (SELECT hex(randomblob(16)) AS h);

-- One row per run holds everything that a write is judged by.
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
    lease_gateway     BLOB,
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
    -- Records digest of the batches since the head. Null: there are none.
    records_digest BLOB,
    -- Upper bound of the size of the state after the boundary with the hash `state_hash`. It counts only if that is the
    -- head.
    state_bytes    INTEGER DEFAULT 0,
    state_hash     BLOB,

    highest_turn             INTEGER NOT NULL,
    completed_calls          INTEGER NOT NULL,
    unsettled_retry_same_key INTEGER NOT NULL,
    unsettled_probe          INTEGER NOT NULL,
    unsettled_ask            INTEGER NOT NULL,
    unsettled_read_only      INTEGER NOT NULL,
    -- Calls of any attempt whose key the tool refused and that are not settled.
    keys_refused             INTEGER NOT NULL,
    -- Bytes of the open calls in the turn `open_calls_turn`. In another turn they are counted anew.
    open_calls_bytes INTEGER,
    open_calls_turn  INTEGER,
    -- Calls with the policy `probe` or `ask` that the current attempt has started and that have no outcome.
    own_open_calls INTEGER NOT NULL DEFAULT 0,
    -- How often the run was rewound. Workers receive it as `branch`.
    rewinds INTEGER NOT NULL DEFAULT 0,

    recovery_attempts            INTEGER NOT NULL,
    recovery_attempts_base       INTEGER NOT NULL,
    attempts_without_progress    INTEGER NOT NULL,
    disruptions                  INTEGER NOT NULL,
    disruptions_base             INTEGER NOT NULL,
    disruptions_without_progress INTEGER NOT NULL,
    observed_reset_generation    INTEGER NOT NULL,
    reset_attempt                INTEGER NOT NULL,

    -- Stored bytes of the payloads of boundaries.
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
    -- Since when the run is deleted or abandoned without having finished.
    over_at          INTEGER,

    -- Retention. `keep_last` null: all boundaries keep their payloads. `expired_at`: since when payloads are deleted.
    -- `emptied`: none is left. `dropped_*`: the last boundary of the live branch whose payloads were deleted; those of
    -- earlier boundaries, and of boundaries undone before it was written, were deleted too.
    retention_days   INTEGER NOT NULL DEFAULT 30,
    keep_last        INTEGER CHECK (keep_last >= 1),
    expired_at       INTEGER,
    emptied          INTEGER NOT NULL DEFAULT 0,
    dropped_turn     INTEGER,
    dropped_boundary INTEGER,
    dropped_epoch    INTEGER,

    changed_at INTEGER NOT NULL,
    audit_seq  INTEGER NOT NULL,
    audit_hash BLOB NOT NULL
) STRICT;

CREATE INDEX runs_by_name ON runs (namespace, name);
-- At most one run of a name is open.
CREATE UNIQUE INDEX runs_open_by_name ON runs (namespace, name) WHERE lifecycle IN ('live', 'finished');
-- For retention: runs with payloads to delete, and runs that keep their last boundaries only. The first has all columns
-- of its query, because the query looks at each of these runs.
CREATE INDEX runs_to_empty ON runs (id, lifecycle, emptied, expired_at, finish_at, over_at, retention_days)
WHERE lifecycle <> 'live' AND NOT emptied;
CREATE INDEX runs_to_clear ON runs (id) WHERE keep_last IS NOT NULL AND expired_at IS NULL;

-- One row per attempt. The lease of the current attempt is in `runs` until the attempt ends.
CREATE TABLE attempts (
    run              BLOB NOT NULL REFERENCES runs (id),
    number           INTEGER NOT NULL,
    state            TEXT NOT NULL CHECK (state IN ('reserved', 'created', 'attached', 'ended')),
    epoch            INTEGER NOT NULL,
    pod_uid          TEXT,
    pod_name         TEXT,
    node             TEXT,
    revision         TEXT,
    -- Templates that the pod of a reserved attempt may be made from, the latest first, as a JSON array.
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

-- Pod templates that were used or may be used, by the hash of their bytes.
CREATE TABLE revisions (
    hash       TEXT NOT NULL PRIMARY KEY,
    document   TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

-- The audit: one row per transition of a run except its boundaries, linked by hashes. Append-only.
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

-- What runs commit. A rewind marks boundaries as undone.
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
    records_digest  BLOB,
    event_count     INTEGER NOT NULL,
    tokens_in       INTEGER NOT NULL,
    tokens_out      INTEGER NOT NULL,
    tool_calls      INTEGER NOT NULL,
    cost_micro_usd  INTEGER NOT NULL,
    trigger_word    TEXT,
    finish          INTEGER NOT NULL,
    undone          INTEGER NOT NULL,
    -- The payloads were deleted. The header stays, so that the chain still verifies.
    dropped         INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run, turn, boundary, epoch)
) STRICT;

-- Events are read by their position.
CREATE INDEX boundaries_with_events ON boundaries (run, position) WHERE event_count > 0;

-- Tool calls. `attempt` is the one that last claimed the call. `ordinal` is the order in which calls were first seen.
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
    -- Bytes before compression, counted towards the limit of open calls.
    arguments_bytes INTEGER NOT NULL DEFAULT 0,
    result_bytes    INTEGER NOT NULL DEFAULT 0,
    -- The tool refused the key of this started call. Only a person settles it; `result` holds the tool's answer.
    key_refused INTEGER NOT NULL DEFAULT 0,
    settled_by TEXT,
    reason     TEXT,
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    ended_at   INTEGER,
    -- Turn in which the call was last claimed or ended. Null: neither happened since it was planned.
    touched_turn INTEGER,
    PRIMARY KEY (run, id),
    UNIQUE (run, ordinal)
) STRICT;

-- An attach and a checkpoint find their calls without reading the others.
CREATE INDEX calls_by_turn ON calls (run, turn, ordinal);
CREATE INDEX calls_started ON calls (run, ordinal) WHERE state = 'started';

-- States that were rebuilt ahead of a lookup, by the content hash of their boundary. A document lists the channels,
-- each a value or a list of chunks.
CREATE TABLE snapshots (
    run          BLOB NOT NULL REFERENCES runs (id),
    content_hash BLOB NOT NULL,
    turn         INTEGER NOT NULL,
    boundary     INTEGER NOT NULL CHECK (boundary IN (1, 2)),
    epoch        INTEGER NOT NULL,
    document     BLOB NOT NULL,
    digest       BLOB NOT NULL,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (run, content_hash)
) STRICT;

-- Pieces of list channels, by the hash of their bytes, so that snapshots share them.
CREATE TABLE chunks (
    run        BLOB NOT NULL REFERENCES runs (id),
    hash       BLOB NOT NULL,
    payload    BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (run, hash)
) STRICT;

-- Records: a fenced keyed space for SDKs. Each effective change is a row of its own, so that a rewind can hide it.
-- `size`: bytes of the value before encoding. `boundary`: 2 after the plan of its turn, else 1. The value is the last
-- column: to read a column behind it, SQLite would walk its pages.
CREATE TABLE records (
    run      BLOB NOT NULL REFERENCES runs (id),
    space    TEXT NOT NULL,
    key      TEXT NOT NULL,
    seq      INTEGER NOT NULL,
    op       TEXT NOT NULL CHECK (op IN ('put', 'putIfAbsent', 'append', 'delete')),
    entry_id TEXT,
    size     INTEGER NOT NULL,
    turn     INTEGER NOT NULL,
    boundary INTEGER NOT NULL CHECK (boundary IN (1, 2)),
    epoch    INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    undone   INTEGER NOT NULL DEFAULT 0,
    value    BLOB,
    PRIMARY KEY (run, space, key, seq)
) STRICT, WITHOUT ROWID;

-- A key may hold a long list, and may be replaced in each of many turns. These indexes find what a key holds, whether
-- it holds an entry, and what was written since the last boundary, without a walk over the key.
CREATE INDEX records_that_replace ON records (run, space, key, seq) WHERE op IN ('put', 'delete') AND NOT undone;
CREATE INDEX records_by_entry ON records (run, space, key, entry_id) WHERE entry_id IS NOT NULL AND NOT undone;
CREATE INDEX records_by_boundary ON records (run, turn, boundary, space, key) WHERE NOT undone;

-- What keys hold now: the rows from a key's last `put` on, or after its last `delete`.
CREATE VIEW held_records AS
SELECT record.*
FROM records record
WHERE NOT undone AND op <> 'delete'
  AND seq >= coalesce((
      SELECT max(other.seq) FROM records other INDEXED BY records_that_replace
      WHERE other.run = record.run AND other.space = record.space AND other.key = record.key
        AND other.op IN ('put', 'delete') AND NOT other.undone
  ), 0);

-- Batches that came outside of a boundary, so that a retry is recognised. A rewind hides them with what they wrote.
CREATE TABLE record_batches (
    run            BLOB NOT NULL REFERENCES runs (id),
    id             BLOB NOT NULL,
    digest         BLOB NOT NULL,
    turn           INTEGER NOT NULL,
    boundary       INTEGER NOT NULL CHECK (boundary IN (1, 2)),
    epoch          INTEGER NOT NULL,
    at             INTEGER NOT NULL,
    undone         INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run, id, epoch)
) STRICT;

-- The content of all batches in the order in which they came, each value by its digest, including those that came with
-- a boundary. `digest` is part of the boundary's hash.
CREATE TABLE record_changes (
    run      BLOB NOT NULL REFERENCES runs (id),
    seq      INTEGER NOT NULL,
    turn     INTEGER NOT NULL,
    boundary INTEGER NOT NULL CHECK (boundary IN (1, 2)),
    epoch    INTEGER NOT NULL,
    undone   INTEGER NOT NULL DEFAULT 0,
    digest   BLOB NOT NULL,
    batch    BLOB NOT NULL,
    PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;

-- The store's own signing key, if none is given. Made once.
CREATE TABLE signing_key (
    only_row   INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
    pkcs8      BLOB    NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

-- The data key of a run, wrapped by a key that the store never holds. A deleted key leaves its row, so that no new key
-- is made: what was sealed under it can never be read again.
CREATE TABLE data_keys (
    run         BLOB NOT NULL PRIMARY KEY REFERENCES runs (id),
    key_id      TEXT,
    wrapped     BLOB,
    created_at  INTEGER NOT NULL,
    shredded_at INTEGER,
    CHECK ((key_id IS NULL) = (wrapped IS NULL) AND (wrapped IS NULL) = (shredded_at IS NOT NULL))
) STRICT;

-- Up to which row the audit of a run may be deleted. A row exists only while it is pruned.
CREATE TABLE audit_prunes (
    run    BLOB    NOT NULL PRIMARY KEY,
    to_seq INTEGER NOT NULL
) STRICT;

-- For the deadline poll, which runs once a second: it must not look at all runs that ever were. A commit changes none of
-- these columns.
CREATE INDEX runs_live ON runs (id) WHERE lifecycle = 'live';
CREATE INDEX runs_finished ON runs (changed_at) WHERE lifecycle = 'finished';
-- For the stored bytes of namespaces. The other runs have none.
CREATE INDEX runs_with_payloads ON runs (id) WHERE NOT emptied;

-- Anchors: signed and chained statements of where runs were. Append-only; `audit prune` deletes the first of them.
-- `line` is what is signed and kept outside of the store.
CREATE TABLE anchors (
    seq         INTEGER NOT NULL PRIMARY KEY,
    parent_hash BLOB    NOT NULL,
    root        BLOB    NOT NULL,
    leaves      INTEGER NOT NULL,
    public_key  BLOB    NOT NULL,
    line        TEXT    NOT NULL
) STRICT;

-- The leaves of each anchor: where the runs were that had moved. Append-only.
CREATE TABLE anchor_leaves (
    anchor        INTEGER NOT NULL,
    run           BLOB    NOT NULL,
    audit_seq     INTEGER NOT NULL,
    audit_hash    BLOB    NOT NULL,
    head_turn     INTEGER,
    head_boundary INTEGER,
    head_epoch    INTEGER,
    head_hash     BLOB,
    PRIMARY KEY (anchor, run)
) STRICT, WITHOUT ROWID;

CREATE INDEX anchor_leaves_by_run ON anchor_leaves (run, anchor);

-- The first anchor that the store shall keep, as `audit prune` requested it.
ALTER TABLE store ADD COLUMN anchors_from INTEGER NOT NULL DEFAULT 1;

-- Below which number anchors may be deleted. The row exists only while they are pruned.
CREATE TABLE anchor_prunes (
    below INTEGER NOT NULL PRIMARY KEY
) STRICT;

-- Whether a run has moved since an anchor named it. The trigger sets it, so no statement can forget it; putting the
-- anchor resets it. A statement that does not change it does not write its index.
ALTER TABLE runs ADD COLUMN has_moved INTEGER NOT NULL DEFAULT 1;

CREATE INDEX runs_to_anchor ON runs (id) WHERE has_moved = 1;

CREATE TRIGGER runs_move AFTER UPDATE OF audit_seq, head_hash ON runs
WHEN NEW.has_moved = 0 AND (NEW.audit_seq IS NOT OLD.audit_seq OR NEW.head_hash IS NOT OLD.head_hash)
BEGIN UPDATE runs SET has_moved = 1 WHERE id = NEW.id; END;

-- Periods in which no gateway sent its heartbeat: from the last heartbeat before it to the first one after it. Every
-- deadline pauses for so long.
CREATE TABLE gateway_outages (
    began_at INTEGER NOT NULL,
    ended_at INTEGER NOT NULL PRIMARY KEY
) STRICT;

-- The heartbeats of each gateway: the last one, the start of the period without an outage, and the start of the outage
-- before it. A gateway is one process.
CREATE TABLE gateways (
    id         BLOB NOT NULL PRIMARY KEY,
    beat_last  INTEGER NOT NULL,
    beat_since INTEGER NOT NULL,
    gap_from   INTEGER NOT NULL
) STRICT;
