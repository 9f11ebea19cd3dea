-- Notifications of people that wait to be sent. A row is stored in the same step as its fact, and deleted when it is
-- delivered or given up. `detail`: JSON with ids and times only.
CREATE TABLE outbox (
    id          BLOB NOT NULL PRIMARY KEY,
    run         BLOB NOT NULL,
    kind        TEXT NOT NULL,
    detail      TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    next_try_at INTEGER NOT NULL,
    tries       INTEGER NOT NULL
) STRICT;
CREATE INDEX outbox_due ON outbox (next_try_at);

-- The bits of the limits that were announced as near since their value changed: turns 1, tokens 2, cost 4, active time 8.
ALTER TABLE runs ADD COLUMN limits_near INTEGER NOT NULL DEFAULT 0;
-- The key of the last hold that was announced.
ALTER TABLE runs ADD COLUMN announced TEXT;
