-- Tables and indexes.
--
-- Times are milliseconds since 1970 by the database's clock. Hashes, digests and capabilities have 32 bytes. Payloads
-- (ops, events, arguments, result, value) are a codec byte and bytes that are compressed already: PostgreSQL does not
-- compress them again. There are no foreign keys: every insert happens under the lock of its run's row.

-- One row: the id of this store, and the heartbeats of the gateways. 0: no gateway has sent a heartbeat yet.
CREATE TABLE store (
    only_row   boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (only_row),
    id         uuid    NOT NULL DEFAULT gen_random_uuid(),
    created_at bigint  NOT NULL,
    beat_last  bigint  NOT NULL DEFAULT 0,
    beat_since bigint  NOT NULL DEFAULT 0,
    gap_from   bigint  NOT NULL DEFAULT 0,
    -- The oldest version of the schema whose programs can use this one. A migration that an older program would not
    -- survive, or would damage, sets it to its own number.
    readable_since bigint NOT NULL DEFAULT 1
) WITH (fillfactor = 50);

INSERT INTO store (created_at) VALUES (floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);

-- One row per run holds everything that a write is judged by. The page keeps free room, and no column that a commit or
-- a heartbeat changes is indexed, so that an update stays inside its page (HOT).
CREATE TABLE runs (
    id         uuid   NOT NULL PRIMARY KEY,
    tenant     text   NOT NULL,
    namespace  text   NOT NULL,
    name       text   NOT NULL,
    object_uid text   NOT NULL UNIQUE,
    created_at bigint NOT NULL,

    lifecycle       text   NOT NULL CHECK (lifecycle IN ('live', 'finished', 'deleted', 'abandoned')),
    epoch           bigint NOT NULL,
    -- Hash of the instance that may write. Null: nobody may write.
    capability      bytea,
    -- The capability that acknowledged a cancel, so that its retry gets the same answer.
    last_capability bytea,

    attempt           integer NOT NULL,
    attempt_state     text    NOT NULL CHECK (attempt_state IN ('reserved', 'created', 'attached', 'ended')),
    pod_uid           text,
    -- Highest turn and completed calls when the attempt was reserved. Progress is measured from them.
    attempt_turn      integer NOT NULL,
    attempt_completed bigint  NOT NULL,
    verdict           text CHECK (verdict IN ('accepted', 'allowed', 'refused')),
    remark            text,
    scheduled_at      bigint,
    attached_at       bigint,
    lease_renewed_at  bigint,
    lease_gateway     uuid,
    -- Length of the lease when it was renewed. A lease that was shortened since then keeps this length until it is
    -- renewed.
    lease_ms          bigint  NOT NULL DEFAULT 0,
    spent             boolean NOT NULL,

    head_turn      integer,
    head_boundary  smallint CHECK (head_boundary IN (1, 2)),
    head_epoch     bigint,
    head_attempt   integer,
    head_commit_id uuid,
    head_digest    bytea,
    head_hash      bytea,
    head_position  bigint NOT NULL,
    head_at        bigint,
    -- Records digest of the batches since the head. Null: there are none.
    records_digest bytea,
    -- Upper bound of the size of the state after the boundary with the hash `state_hash`. It counts only if that is the
    -- head.
    state_bytes    bigint DEFAULT 0,
    state_hash     bytea,

    highest_turn             integer NOT NULL,
    completed_calls          bigint  NOT NULL,
    -- Calls that an ended attempt started and that are not settled, by policy.
    unsettled_retry_same_key bigint  NOT NULL,
    unsettled_probe          bigint  NOT NULL,
    unsettled_ask            bigint  NOT NULL,
    unsettled_read_only      bigint  NOT NULL,
    -- Calls of any attempt whose key the tool refused and that are not settled.
    keys_refused             bigint  NOT NULL DEFAULT 0,
    -- Bytes of the open calls in the turn `open_calls_turn`. In another turn they are counted anew.
    open_calls_bytes bigint,
    open_calls_turn  integer,
    -- Calls with the policy `probe` or `ask` that the current attempt has started and that have no outcome.
    own_open_calls bigint NOT NULL DEFAULT 0,
    -- How often the run was rewound. Workers receive it as `branch`.
    rewinds integer NOT NULL DEFAULT 0,

    recovery_attempts            integer NOT NULL,
    recovery_attempts_base       integer NOT NULL,
    attempts_without_progress    integer NOT NULL,
    disruptions                  integer NOT NULL,
    disruptions_base             integer NOT NULL,
    disruptions_without_progress integer NOT NULL,
    observed_reset_generation    bigint  NOT NULL,
    reset_attempt                integer NOT NULL,

    -- Stored bytes of the payloads of boundaries.
    stored_bytes   bigint NOT NULL DEFAULT 0,
    tokens_in      bigint NOT NULL,
    tokens_out     bigint NOT NULL,
    tool_calls     bigint NOT NULL,
    cost_micro_usd bigint NOT NULL,

    cancel_requested_at bigint,
    cancel_told_at      bigint,
    suspend             boolean NOT NULL,
    heartbeat_ms        bigint  NOT NULL,
    start_ms            bigint  NOT NULL,
    progress_ms         bigint  NOT NULL,

    finish_outcome   text CHECK (finish_outcome IN ('Succeeded', 'Failed', 'Cancelled')),
    finish_reason    text,
    finish_message   text,
    finish_output    text,
    finish_commit_id uuid,
    finish_digest    bytea,
    finish_at        bigint,
    -- Since when the run is deleted or abandoned without having finished.
    over_at          bigint,

    -- Retention. `keep_last` null: all boundaries keep their payloads. `expired_at`: since when payloads are deleted.
    -- `emptied`: none is left. `dropped_*`: the last boundary of the live branch whose payloads were deleted; those of
    -- earlier boundaries, and of boundaries undone before it was written, were deleted too.
    retention_days   integer NOT NULL DEFAULT 30,
    keep_last        integer CHECK (keep_last >= 1),
    expired_at       bigint,
    emptied          boolean NOT NULL DEFAULT false,
    dropped_turn     integer,
    dropped_boundary smallint,
    dropped_epoch    bigint,

    -- Time of the last transition that the operator did not make itself and must see at once.
    changed_at bigint NOT NULL,
    audit_seq  bigint NOT NULL,
    audit_hash bytea  NOT NULL
) WITH (fillfactor = 80);

CREATE INDEX runs_by_name ON runs (namespace, name);
-- At most one run of a name is open.
CREATE UNIQUE INDEX runs_open_by_name ON runs (namespace, name) WHERE lifecycle IN ('live', 'finished');
-- For the deadline poll. Both change only when a run ends.
CREATE INDEX runs_live ON runs (id) WHERE lifecycle = 'live';
CREATE INDEX runs_finished ON runs (finish_at) WHERE lifecycle = 'finished';
-- For retention: runs with payloads to delete, and runs that keep their last boundaries only.
CREATE INDEX runs_to_empty ON runs (id) WHERE lifecycle <> 'live' AND NOT emptied;
CREATE INDEX runs_to_clear ON runs (id) WHERE keep_last IS NOT NULL AND expired_at IS NULL;

-- One row per attempt. The lease of the current attempt is in `runs` until the attempt ends.
CREATE TABLE attempts (
    run              uuid    NOT NULL,
    number           integer NOT NULL,
    state            text    NOT NULL CHECK (state IN ('reserved', 'created', 'attached', 'ended')),
    epoch            bigint  NOT NULL,
    pod_uid          text,
    pod_name         text,
    node             text,
    revision         text,
    -- Templates that the pod of a reserved attempt may be made from, the latest first.
    candidates       text[]  NOT NULL DEFAULT '{}',
    image_digest     text,
    agent_version    text,
    verdict          text CHECK (verdict IN ('accepted', 'allowed', 'refused')),
    remark           text,
    spent            boolean NOT NULL DEFAULT false,
    turn_at_start    integer NOT NULL,
    turn_at_end      integer,
    reserved_at      bigint  NOT NULL,
    created_at       bigint,
    scheduled_at     bigint,
    attached_at      bigint,
    lease_renewed_at bigint,
    ended_at         bigint,
    cause            text,
    class            text CHECK (class IN ('Crash', 'Disruption', 'Neutral')),
    charged          boolean,
    progress         boolean,
    exit_code        integer,
    message          text,
    PRIMARY KEY (run, number)
) WITH (fillfactor = 80);

-- Pod templates that were used or may be used, by the hash of their bytes.
CREATE TABLE revisions (
    hash       text   NOT NULL PRIMARY KEY,
    document   text   NOT NULL,
    created_at bigint NOT NULL
);

-- The audit: one row per transition of a run except its boundaries, linked by hashes. Append-only.
CREATE TABLE audit (
    run         uuid   NOT NULL,
    seq         bigint NOT NULL,
    at          bigint NOT NULL,
    kind        text   NOT NULL,
    actor       text   NOT NULL,
    detail      text   NOT NULL,
    parent_hash bytea  NOT NULL,
    hash        bytea  NOT NULL,
    PRIMARY KEY (run, seq)
);

-- What runs commit. A rewind marks boundaries as undone.
CREATE TABLE boundaries (
    run             uuid     NOT NULL,
    turn            integer  NOT NULL,
    boundary        smallint NOT NULL CHECK (boundary IN (1, 2)),
    epoch           bigint   NOT NULL,
    parent_turn     integer,
    parent_boundary smallint,
    parent_epoch    bigint,
    parent_hash     bytea    NOT NULL,
    content_hash    bytea    NOT NULL,
    attempt         integer  NOT NULL,
    position        bigint   NOT NULL,
    commit_id       uuid     NOT NULL,
    digest          bytea    NOT NULL,
    at              bigint   NOT NULL,
    ops             bytea,
    ops_digest      bytea,
    is_full         boolean  NOT NULL,
    events          bytea,
    events_digest   bytea,
    records_digest  bytea,
    event_count     integer  NOT NULL,
    tokens_in       bigint   NOT NULL,
    tokens_out      bigint   NOT NULL,
    tool_calls      bigint   NOT NULL,
    cost_micro_usd  bigint   NOT NULL,
    trigger_word    text,
    finish          boolean  NOT NULL,
    undone          boolean  NOT NULL DEFAULT false,
    -- The payloads were deleted. The header stays, so that the chain still verifies.
    dropped         boolean  NOT NULL DEFAULT false,
    PRIMARY KEY (run, turn, boundary, epoch)
);

ALTER TABLE boundaries
    ALTER COLUMN ops SET STORAGE EXTERNAL,
    ALTER COLUMN events SET STORAGE EXTERNAL;

-- Events are read by their position.
CREATE INDEX boundaries_with_events ON boundaries (run, position) WHERE event_count > 0;

-- Tool calls. `attempt` is the one that last claimed the call. `ordinal` is the order in which calls were first seen.
CREATE TABLE calls (
    run        uuid    NOT NULL,
    id         text    NOT NULL,
    ordinal    bigint  NOT NULL GENERATED ALWAYS AS IDENTITY,
    turn       integer NOT NULL,
    policy     text    NOT NULL CHECK (policy IN ('retrySameKey', 'probe', 'ask', 'readOnly')),
    key        text    NOT NULL,
    state      text    NOT NULL CHECK (state IN ('planned', 'started', 'completed', 'failed')),
    arguments  bytea,
    attempt    integer,
    claim_id   uuid,
    result     bytea,
    -- Bytes before compression, counted towards the limit of open calls.
    arguments_bytes bigint NOT NULL DEFAULT 0,
    result_bytes    bigint NOT NULL DEFAULT 0,
    -- The tool refused the key of this started call. Only a person settles it; `result` holds the tool's answer.
    key_refused boolean NOT NULL DEFAULT false,
    settled_by text,
    reason     text,
    created_at bigint  NOT NULL,
    started_at bigint,
    ended_at   bigint,
    -- Turn in which the call was last claimed or ended. Null: neither happened since it was planned.
    touched_turn integer,
    PRIMARY KEY (run, id)
);

ALTER TABLE calls
    ALTER COLUMN arguments SET STORAGE EXTERNAL,
    ALTER COLUMN result SET STORAGE EXTERNAL;

CREATE INDEX calls_by_turn ON calls (run, turn, ordinal);
CREATE INDEX calls_started ON calls (run) WHERE state = 'started';

-- States that were rebuilt ahead of a lookup, by the content hash of their boundary. A document lists the channels,
-- each a value or a list of chunks.
CREATE TABLE snapshots (
    run          uuid     NOT NULL,
    content_hash bytea    NOT NULL,
    turn         integer  NOT NULL,
    boundary     smallint NOT NULL CHECK (boundary IN (1, 2)),
    epoch        bigint   NOT NULL,
    document     bytea    NOT NULL,
    digest       bytea    NOT NULL,
    created_at   bigint   NOT NULL,
    PRIMARY KEY (run, content_hash)
);

ALTER TABLE snapshots ALTER COLUMN document SET STORAGE EXTERNAL;

-- Pieces of list channels, by the hash of their bytes, so that snapshots share them.
CREATE TABLE chunks (
    run        uuid   NOT NULL,
    hash       bytea  NOT NULL,
    payload    bytea  NOT NULL,
    created_at bigint NOT NULL,
    PRIMARY KEY (run, hash)
);

ALTER TABLE chunks ALTER COLUMN payload SET STORAGE EXTERNAL;

-- Records: a fenced keyed space for SDKs, ordered by bytes. Each effective change is a row of its own, so that a rewind
-- can hide it. `size`: bytes of the value before encoding. `boundary`: 2 after the plan of its turn, else 1.
CREATE TABLE records (
    run      uuid    NOT NULL,
    space    text    NOT NULL COLLATE "C",
    key      text    NOT NULL COLLATE "C",
    seq      bigint  NOT NULL,
    op       text    NOT NULL CHECK (op IN ('put', 'putIfAbsent', 'append', 'delete')),
    entry_id text             COLLATE "C",
    value    bytea,
    size     bigint  NOT NULL,
    turn     integer NOT NULL,
    boundary smallint NOT NULL CHECK (boundary IN (1, 2)),
    epoch    bigint  NOT NULL,
    at       bigint  NOT NULL,
    undone   boolean NOT NULL DEFAULT false,
    PRIMARY KEY (run, space, key, seq)
);

ALTER TABLE records ALTER COLUMN value SET STORAGE EXTERNAL;

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
      SELECT max(other.seq) FROM records other
      WHERE other.run = record.run AND other.space = record.space AND other.key = record.key
        AND other.op IN ('put', 'delete') AND NOT other.undone
  ), 0);

-- Batches that came outside of a boundary, so that a retry is recognised. A rewind hides them with what they wrote.
CREATE TABLE record_batches (
    run            uuid    NOT NULL,
    id             uuid    NOT NULL,
    digest         bytea   NOT NULL,
    turn           integer NOT NULL,
    boundary       smallint NOT NULL CHECK (boundary IN (1, 2)),
    epoch          bigint  NOT NULL,
    at             bigint  NOT NULL,
    undone         boolean NOT NULL DEFAULT false,
    PRIMARY KEY (run, id, epoch)
);

-- The content of all batches in the order in which they came, each value by its digest, including those that came with
-- a boundary. `digest` is part of the boundary's hash.
CREATE TABLE record_changes (
    run      uuid    NOT NULL,
    seq      bigint  NOT NULL,
    turn     integer NOT NULL,
    boundary smallint NOT NULL CHECK (boundary IN (1, 2)),
    epoch    bigint  NOT NULL,
    undone   boolean NOT NULL DEFAULT false,
    digest   bytea   NOT NULL,
    batch    bytea   NOT NULL,
    PRIMARY KEY (run, seq)
);

-- The store's own signing key, if none is given. Made once.
CREATE TABLE signing_key (
    only_row   boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (only_row),
    pkcs8      bytea   NOT NULL,
    created_at bigint  NOT NULL
);

-- The data key of a run, wrapped by a key that the store never holds. A deleted key leaves its row, so that no new key
-- is made: what was sealed under it can never be read again.
CREATE TABLE data_keys (
    run         uuid   NOT NULL PRIMARY KEY,
    key_id      text,
    wrapped     bytea,
    created_at  bigint NOT NULL,
    shredded_at bigint,
    CHECK ((key_id IS NULL) = (wrapped IS NULL) AND (wrapped IS NULL) = (shredded_at IS NOT NULL))
);

ALTER TABLE data_keys ALTER COLUMN wrapped SET STORAGE EXTERNAL;

-- Anchors: signed and chained statements of where runs were. Append-only; `audit prune` deletes the first of them.
-- `line` is what is signed and kept outside of the store.
CREATE TABLE anchors (
    seq         bigint  NOT NULL PRIMARY KEY,
    parent_hash bytea   NOT NULL,
    root        bytea   NOT NULL,
    leaves      integer NOT NULL,
    public_key  bytea   NOT NULL,
    line        text    NOT NULL
);

-- The leaves of each anchor: where the runs were that had moved. Append-only.
CREATE TABLE anchor_leaves (
    anchor        bigint NOT NULL,
    run           uuid   NOT NULL,
    audit_seq     bigint NOT NULL,
    audit_hash    bytea  NOT NULL,
    head_turn     integer,
    head_boundary smallint,
    head_epoch    bigint,
    head_hash     bytea,
    PRIMARY KEY (anchor, run)
);

CREATE INDEX anchor_leaves_by_run ON anchor_leaves (run, anchor);

-- The first anchor that the store shall keep, as `audit prune` requested it.
ALTER TABLE store ADD COLUMN anchors_from bigint NOT NULL DEFAULT 1;

-- What the last anchor that names a run says of it, and whether the run has moved since. The column is computed, so no
-- statement can forget it. It changes once between two anchors, so that the other updates of the row stay HOT.
ALTER TABLE runs
    ADD COLUMN anchored_audit_seq bigint,
    ADD COLUMN anchored_head_hash bytea,
    ADD COLUMN has_moved boolean NOT NULL GENERATED ALWAYS AS (
        anchored_audit_seq IS DISTINCT FROM audit_seq OR anchored_head_hash IS DISTINCT FROM head_hash
    ) STORED;

CREATE INDEX runs_to_anchor ON runs (id) WHERE has_moved;

-- Periods in which no gateway sent its heartbeat: from the last heartbeat before it to the first one after it. Every
-- deadline pauses for so long.
CREATE TABLE gateway_outages (
    began_at bigint NOT NULL,
    ended_at bigint NOT NULL PRIMARY KEY
);

-- The heartbeats of each gateway: the last one, the start of the period without an outage, and the start of the outage
-- before it. A gateway is one process.
CREATE TABLE gateways (
    id         uuid NOT NULL PRIMARY KEY,
    beat_last  bigint NOT NULL,
    beat_since bigint NOT NULL,
    gap_from   bigint NOT NULL
);
