-- Times are milliseconds since 1970; hashes, digests and capabilities 32 bytes.
-- No foreign keys: every insert is made under the lock of its run's row, and joins it.

-- One row: which store this is, and when the gateways beat. Nobody has beaten yet: 0.
CREATE TABLE store (
    only_row   boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (only_row),
    id         uuid    NOT NULL DEFAULT gen_random_uuid(),
    created_at bigint  NOT NULL,
    beat_last  bigint  NOT NULL DEFAULT 0,
    beat_since bigint  NOT NULL DEFAULT 0,
    gap_from   bigint  NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

INSERT INTO store (created_at) VALUES (floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);

-- All that a write is judged by stands in the run's one row. Room is left in its page, and no column that a commit
-- or a heartbeat changes is indexed, so that they move it inside the page (HOT).
CREATE TABLE runs (
    id         uuid   NOT NULL PRIMARY KEY,
    tenant     text   NOT NULL,
    namespace  text   NOT NULL,
    name       text   NOT NULL,
    object_uid text   NOT NULL UNIQUE,
    created_at bigint NOT NULL,

    lifecycle       text   NOT NULL CHECK (lifecycle IN ('live', 'finished', 'deleted', 'abandoned')),
    epoch           bigint NOT NULL,
    -- Hash of the instance that may write; null: nobody may.
    capability      bytea,
    -- Whose cancel was acknowledged, for its retry.
    last_capability bytea,

    attempt           integer NOT NULL,
    attempt_state     text    NOT NULL CHECK (attempt_state IN ('reserved', 'created', 'attached', 'ended')),
    pod_uid           text,
    -- The highest turn, and the completed calls, when the attempt was reserved: what progress is measured from.
    attempt_turn      integer NOT NULL,
    attempt_completed bigint  NOT NULL,
    verdict           text CHECK (verdict IN ('accepted', 'allowed', 'refused')),
    remark            text,
    scheduled_at      bigint,
    attached_at       bigint,
    lease_renewed_at  bigint,
    -- What the lease was when it was renewed: one that was made shorter since then ends when it would have.
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

    highest_turn             integer NOT NULL,
    completed_calls          bigint  NOT NULL,
    -- Calls that an ended attempt had started and nobody has settled.
    unsettled_retry_same_key bigint  NOT NULL,
    unsettled_probe          bigint  NOT NULL,
    unsettled_ask            bigint  NOT NULL,
    unsettled_read_only      bigint  NOT NULL,
    -- Calls whose key the tool has refused, and that nobody has settled, of whatever attempt.
    keys_refused             bigint  NOT NULL DEFAULT 0,

    recovery_attempts            integer NOT NULL,
    recovery_attempts_base       integer NOT NULL,
    attempts_without_progress    integer NOT NULL,
    disruptions                  integer NOT NULL,
    disruptions_base             integer NOT NULL,
    disruptions_without_progress integer NOT NULL,
    observed_reset_generation    bigint  NOT NULL,
    reset_attempt                integer NOT NULL,

    -- Bytes of its boundaries' payloads, as they are kept.
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

    -- The last transition that the operator did not make itself and must see at once.
    changed_at bigint NOT NULL,
    audit_seq  bigint NOT NULL,
    audit_hash bytea  NOT NULL
) WITH (fillfactor = 80);

CREATE INDEX runs_by_name ON runs (namespace, name);
-- Of the runs of one name at most one is not closed.
CREATE UNIQUE INDEX runs_open_by_name ON runs (namespace, name) WHERE lifecycle IN ('live', 'finished');
-- What the pulse reads: both change only when a run ends.
CREATE INDEX runs_live ON runs (id) WHERE lifecycle = 'live';
CREATE INDEX runs_finished ON runs (finish_at) WHERE lifecycle = 'finished';

-- One row for each pod's life. The current one's lease stands in `runs` only, until the attempt ends.
CREATE TABLE attempts (
    run              uuid    NOT NULL,
    number           integer NOT NULL,
    state            text    NOT NULL CHECK (state IN ('reserved', 'created', 'attached', 'ended')),
    epoch            bigint  NOT NULL,
    pod_uid          text,
    pod_name         text,
    node             text,
    revision         text,
    -- Templates that the pod of a reserved attempt may be made of, the latest first.
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

-- Templates that made a pod, or may, by the hash of their bytes.
CREATE TABLE revisions (
    hash       text   NOT NULL PRIMARY KEY,
    document   text   NOT NULL,
    created_at bigint NOT NULL
);

-- One row for each transition of a run but its boundaries, linked by hashes.
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
