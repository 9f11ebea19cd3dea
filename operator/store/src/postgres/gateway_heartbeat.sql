-- Records that a gateway serves. The first heartbeat after an outage stores the outage and deletes old ones.
--
-- $1 longest gap between two heartbeats that is no outage, in milliseconds  $2 how long outages are kept
-- $3 how many are kept  $4 the gateway  $5 how long a gateway without heartbeats is kept, in milliseconds
-- $6 the version of the contract that the gateway serves  $7 how long a gateway may be silent and still serve, in
-- milliseconds
--
-- Returns the lowest version among the gateways that serve.
WITH own AS (
    INSERT INTO gateways (id, beat_last, beat_since, gap_from, contract)
    SELECT $4, now, now, now, $6
    FROM (SELECT ds_now_v1() AS now OFFSET 0) AS clock
    ON CONFLICT (id) DO UPDATE
    SET gap_from = CASE
            WHEN excluded.beat_last - gateways.beat_last > $1 THEN gateways.beat_last
            ELSE gateways.gap_from
        END,
        beat_since = CASE
            WHEN excluded.beat_last - gateways.beat_last > $1 THEN excluded.beat_last
            ELSE gateways.beat_since
        END,
        beat_last = excluded.beat_last,
        contract = excluded.contract
),
stopped AS (
    DELETE FROM gateways WHERE beat_last < ds_now_v1() - $5 AND id <> $4
),
beat AS (
    UPDATE store
    SET gap_from = CASE WHEN abs(now - beat_last) > $1 THEN least(beat_last, now) ELSE gap_from END,
        beat_since = CASE WHEN abs(now - beat_last) > $1 THEN now ELSE beat_since END,
        beat_last = CASE WHEN abs(now - beat_last) > $1 THEN now ELSE greatest(beat_last, now) END
    FROM (SELECT ds_now_v1() AS now OFFSET 0) AS clock
    WHERE only_row
    RETURNING gap_from, beat_since, beat_last
),
outage AS (
    INSERT INTO gateway_outages (began_at, ended_at)
    SELECT gap_from, beat_since
    FROM beat
    WHERE beat_last = beat_since AND gap_from < beat_since
    ON CONFLICT DO NOTHING
    RETURNING ended_at
),
forgotten AS (
    DELETE FROM gateway_outages AS old
    USING outage
    WHERE old.ended_at < outage.ended_at - $2
       OR old.ended_at <= (SELECT ended_at FROM gateway_outages ORDER BY ended_at DESC LIMIT 1 OFFSET $3)
)
SELECT least($6, min(contract)) AS contract FROM gateways WHERE beat_last > ds_now_v1() - $7
