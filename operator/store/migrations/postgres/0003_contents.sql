-- States rebuilt ahead of a lookup, keyed by the boundary's content hash: its channels, each a value or a list of
-- chunks.
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

-- Pieces of list channels, by the hash of their bytes, so that snapshots share them.
CREATE TABLE chunks (
    run        uuid   NOT NULL,
    hash       bytea  NOT NULL,
    payload    bytea  NOT NULL,
    created_at bigint NOT NULL,
    PRIMARY KEY (run, hash)
);

-- A fenced keyed space for SDKs. Each write is a row of its own, so that a rewind can hide it.
CREATE TABLE records (
    run      uuid    NOT NULL,
    space    text    NOT NULL,
    key      text    NOT NULL,
    seq      bigint  NOT NULL,
    op       text    NOT NULL CHECK (op IN ('put', 'putIfAbsent', 'append', 'delete')),
    entry_id text,
    value    bytea,
    turn     integer NOT NULL,
    epoch    bigint  NOT NULL,
    at       bigint  NOT NULL,
    undone   boolean NOT NULL DEFAULT false,
    PRIMARY KEY (run, space, key, seq)
);

-- Decisions of people on proposals.
CREATE TABLE approvals (
    run           uuid    NOT NULL,
    turn          integer NOT NULL,
    epoch         bigint  NOT NULL,
    proposal_hash bytea   NOT NULL,
    proposal      bytea   NOT NULL,
    message       text    NOT NULL,
    timeout_ms    bigint,
    on_timeout    text,
    verdict       text,
    reason        text,
    decided_by    text,
    created_at    bigint  NOT NULL,
    decided_at    bigint,
    used_at       bigint,
    PRIMARY KEY (run, turn, epoch)
);

ALTER TABLE snapshots ALTER COLUMN document SET STORAGE EXTERNAL;
ALTER TABLE chunks ALTER COLUMN payload SET STORAGE EXTERNAL;
ALTER TABLE records ALTER COLUMN value SET STORAGE EXTERNAL;
ALTER TABLE approvals ALTER COLUMN proposal SET STORAGE EXTERNAL;
