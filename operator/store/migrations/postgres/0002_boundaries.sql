-- What runs commit. Payloads (ops, events, arguments, result) are a codec byte and bytes, compressed already.

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
    event_count     integer  NOT NULL,
    tokens_in       bigint   NOT NULL,
    tokens_out      bigint   NOT NULL,
    tool_calls      bigint   NOT NULL,
    cost_micro_usd  bigint   NOT NULL,
    trigger_word    text,
    finish          boolean  NOT NULL,
    undone          boolean  NOT NULL DEFAULT false,
    PRIMARY KEY (run, turn, boundary, epoch)
);

ALTER TABLE boundaries
    ALTER COLUMN ops SET STORAGE EXTERNAL,
    ALTER COLUMN events SET STORAGE EXTERNAL;

-- Tool calls. `attempt` is the one under which a call was last claimed; `ordinal` orders them as they were first seen.
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
    -- Of a call that is started: its outcome is a person's to tell, and `result` is what the tool said.
    key_refused boolean NOT NULL DEFAULT false,
    settled_by text,
    reason     text,
    created_at bigint  NOT NULL,
    started_at bigint,
    ended_at   bigint,
    PRIMARY KEY (run, id)
);

ALTER TABLE calls
    ALTER COLUMN arguments SET STORAGE EXTERNAL,
    ALTER COLUMN result SET STORAGE EXTERNAL;

CREATE INDEX calls_by_turn ON calls (run, turn, ordinal);
CREATE INDEX calls_started ON calls (run) WHERE state = 'started';
