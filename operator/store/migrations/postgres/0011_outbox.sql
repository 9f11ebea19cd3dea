-- Notifications of people that wait to be sent. A row is stored in the same step as its fact, and deleted when it is
-- delivered or given up. `detail`: JSON with ids and times only.
CREATE TABLE outbox (
    id          uuid PRIMARY KEY,
    run         uuid NOT NULL,
    kind        text NOT NULL,
    detail      text NOT NULL,
    created_at  bigint NOT NULL,
    next_try_at bigint NOT NULL,
    tries       integer NOT NULL
);
CREATE INDEX outbox_due ON outbox (next_try_at);

-- The bits of the limits that were announced as near since their value changed: turns 1, tokens 2, cost 4, active time 8.
ALTER TABLE runs ADD COLUMN limits_near integer NOT NULL DEFAULT 0;
-- The key of the last hold that was announced.
ALTER TABLE runs ADD COLUMN announced text;

-- Announces the limits in `_near` that are not in `_before`. Returns the bits of both.
CREATE FUNCTION ds_announce_limits_v1(_run uuid, _before integer, _near integer, _now bigint) RETURNS integer
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO outbox (id, run, kind, detail, created_at, next_try_at, tries)
    SELECT gen_random_uuid(), _run, 'LimitNear', jsonb_build_object('limit', limits.name)::text, _now, _now, 0
    FROM (VALUES (1, 'turns'), (2, 'tokens'), (4, 'costMicroUSD'), (8, 'activeSeconds')) AS limits (bit, name)
    WHERE _near & ~_before & limits.bit <> 0;
    RETURN _before | _near;
END
$$;
