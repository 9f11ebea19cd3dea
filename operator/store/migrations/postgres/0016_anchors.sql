-- Anchors: where runs stood, chained and signed. Only ever added to.
CREATE TABLE anchors (
    seq  bigint NOT NULL PRIMARY KEY,
    hash bytea  NOT NULL,
    line text   NOT NULL
);

CREATE TRIGGER anchors_are_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON anchors
    FOR EACH STATEMENT EXECUTE FUNCTION ds_refuse_v1();

-- What the last anchor that names a run says of it: what differs now is due.
CREATE TABLE anchored (
    run       uuid   NOT NULL PRIMARY KEY,
    audit_seq bigint NOT NULL,
    head_hash bytea
);
