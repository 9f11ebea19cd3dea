-- Messages of people to a run.

-- `position`: 1, 2, 3 … in each run. `taken_…`: the boundary of the live branch that has taken the message; null: it is
-- unread. `bytes`: of the value as JSON text. `value` is null once retention has deleted it.
CREATE TABLE messages (
    run            uuid     NOT NULL,
    position       bigint   NOT NULL,
    id             text     NOT NULL COLLATE "C",
    topic          text,
    author         text     NOT NULL,
    at             bigint   NOT NULL,
    bytes          bigint   NOT NULL,
    digest         bytea    NOT NULL,
    taken_turn     integer,
    taken_boundary smallint CHECK (taken_boundary IN (1, 2)),
    taken_epoch    bigint,
    value          bytea,
    PRIMARY KEY (run, position),
    UNIQUE (run, id)
);

ALTER TABLE messages ALTER COLUMN value SET STORAGE EXTERNAL;

CREATE INDEX unread_messages ON messages (run, position) WHERE taken_turn IS NULL;

-- The position of the latest message; how many are unread, and the bytes of their values.
ALTER TABLE runs ADD COLUMN inbox bigint NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN unread bigint NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN unread_bytes bigint NOT NULL DEFAULT 0;

CREATE TRIGGER messages_are_sealed BEFORE INSERT ON messages FOR EACH ROW
    WHEN (substr(NEW.value, 1, 1) < '\x10')
    EXECUTE FUNCTION ds_refuse_plain_v1();

-- Takes messages with the boundary that was just committed, in the transaction that holds the lock of the run's row.
-- Returns the first position that is no unread message; then the caller rolls back.
CREATE FUNCTION ds_take_messages_v1(_run uuid, _turn integer, _boundary smallint, _positions bigint[]) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    taken_ bigint[];
    missing_ bigint;
BEGIN
    WITH taken AS (
        UPDATE messages SET taken_turn = _turn, taken_boundary = _boundary, taken_epoch = runs.epoch
        FROM runs
        WHERE runs.id = _run AND messages.run = _run AND position = ANY (_positions) AND taken_turn IS NULL
        RETURNING position, bytes
    ), counted AS (
        UPDATE runs SET unread = unread - counts.messages, unread_bytes = unread_bytes - counts.bytes
        FROM (SELECT count(*) AS messages, coalesce(sum(bytes), 0) AS bytes FROM taken) AS counts
        WHERE id = _run
    )
    SELECT coalesce(array_agg(position ORDER BY position), '{}') INTO taken_ FROM taken;
    SELECT min(position) INTO missing_ FROM unnest(_positions) AS position WHERE position <> ALL (taken_);
    IF missing_ IS NULL THEN
        PERFORM ds_audit_v1(_run, 'messages-taken', 'worker', jsonb_build_object(
            'turn', _turn, 'boundary', CASE _boundary WHEN 1 THEN 'plan' ELSE 'result' END, 'positions', to_jsonb(taken_)
        ), ds_now_v1());
    END IF;
    RETURN missing_;
END
$$;

-- One step of retention: as `ds_expire_v2`, and then the values of messages.
CREATE FUNCTION ds_expire_v3(_run uuid, _limit bigint, _bytes bigint, OUT expired uuid, OUT touched bigint, OUT done boolean)
LANGUAGE plpgsql AS $$
DECLARE
    gone_ bigint;
BEGIN
    SELECT v2.expired, v2.touched, v2.done INTO expired, touched, done FROM ds_expire_v2(_run, _limit, _bytes) AS v2;
    IF NOT done THEN
        RETURN;
    END IF;
    WITH found AS (
        SELECT position, sum(octet_length(value)) OVER (ORDER BY position) - octet_length(value) AS before
        FROM (
            SELECT position, value FROM messages WHERE run = _run AND value IS NOT NULL
            ORDER BY position LIMIT _limit - touched
        ) AS page
    )
    UPDATE messages SET value = NULL
    FROM found
    WHERE messages.run = _run AND messages.position = found.position AND found.before < _bytes;
    GET DIAGNOSTICS gone_ = ROW_COUNT;
    touched := touched + gone_;
    done := NOT EXISTS (SELECT FROM messages WHERE run = _run AND value IS NOT NULL);
    IF NOT done THEN
        UPDATE runs SET emptied = false WHERE id = _run;
    END IF;
END
$$;

-- Deletes messages, and then the rest of the run as `ds_purge_v2` does.
CREATE FUNCTION ds_purge_v3(_run uuid, _last bigint, _limit bigint, OUT done boolean, OUT touched bigint)
LANGUAGE plpgsql AS $$
DECLARE
    gone_ bigint;
BEGIN
    touched := 0;
    PERFORM FROM runs WHERE id = _run AND audit_seq = _last AND NOT has_moved FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    DELETE FROM messages
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM messages WHERE run = _run LIMIT _limit));
    GET DIAGNOSTICS gone_ = ROW_COUNT;
    IF gone_ >= _limit THEN
        done := false;
        touched := gone_;
        RETURN;
    END IF;
    SELECT v2.done, gone_ + v2.touched INTO done, touched FROM ds_purge_v2(_run, _last, _limit - gone_) AS v2;
END
$$;
