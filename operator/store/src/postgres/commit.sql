-- A boundary: judged and written by one statement, in one round trip.
--
-- What must hold: everything is judged by `head`, the run's row as it stands once its lock is ours. Whoever waited for
-- the lock sees there what the one before has written; a read of any other table would still see what was there when
-- this statement began, so there is none but in `ds_apply_records_v1`, whose statements begin when they are reached.
--
--  $1 run  $2 capability  $3 turn  $4 boundary  $5 commit id  $6 digest of the body
--  $7 ops  $8 their digest  $9 whether they are full  $10 events  $11 their digest  $12 how many
-- $13 tokens in  $14 tokens out  $15 tool calls  $16 cost  $17 trigger
-- $18 outcome of the finish, or null  $19 its reason  $20 message  $21 output
-- $22 ids of planned calls  $23 their policies  $24 keys  $25 arguments
-- $26 digest of the changes of records, or null  $27 their words  $28 spaces  $29 keys  $30 entry ids  $31 values
-- $32 sizes
-- $33 where the ops are a patch, the content hash of the boundary they patch
-- $34 digest that the body had before the run had a key, or null
WITH head AS MATERIALIZED (
    SELECT id, lifecycle, epoch, capability, attempt,
           head_turn, head_boundary, head_epoch, head_commit_id, head_digest, head_hash, head_position,
           unsettled_retry_same_key + unsettled_probe + unsettled_ask + keys_refused AS unsettled,
           cancel_requested_at, cancel_told_at, suspend, heartbeat_ms, audit_seq, audit_hash, records_digest AS records_before
    FROM runs
    WHERE id = $1
    FOR UPDATE
),
judged AS MATERIALIZED (
    SELECT head.*,
           ds_now_v1() AS now,
           coalesce(head_hash, decode(repeat('00', 32), 'hex')) AS parent_hash,
           CASE WHEN $26 IS NULL THEN records_before ELSE ds_records_link_v1(records_before, $26) END
               AS records_digest,
           CASE
               -- Nobody's capability is null.
               WHEN capability IS DISTINCT FROM $2 THEN 'fenced'
               WHEN (head_turn, head_boundary, head_commit_id) = ($3, $4, $5) AND (head_digest = $6 OR head_digest = $34)
                   THEN 'duplicate'
               WHEN lifecycle <> 'live' THEN 'finished'
               WHEN unsettled > 0 THEN 'unsettled'
               -- After a plan comes its result; after a result, or at the start, either boundary of the next turn.
               WHEN NOT CASE
                   WHEN head_boundary = 1 THEN $3 = head_turn AND $4 = 2
                   ELSE $3 = coalesce(head_turn, 0) + 1
               END THEN 'conflict'
               -- A patch stands on its base alone.
               WHEN $33 IS NOT NULL AND head_hash IS DISTINCT FROM $33 THEN 'other base'
               ELSE 'ok'
           END AS verdict
    FROM head
),
next AS MATERIALIZED (
    SELECT judged.*,
           ds_content_hash_v1(
               parent_hash, id, $3, $4, epoch, attempt, now, head_position + $12, $5, $6, $8, $9, $11,
               $13, $14, $15, $16, $17, records_digest
           ) AS content_hash
    FROM judged
    WHERE verdict = 'ok'
),
kept AS (
    INSERT INTO boundaries (
        run, turn, boundary, epoch, parent_turn, parent_boundary, parent_epoch, parent_hash, content_hash, attempt,
        position, commit_id, digest, at, ops, ops_digest, is_full, events, events_digest, event_count,
        tokens_in, tokens_out, tool_calls, cost_micro_usd, trigger_word, finish, records_digest
    )
    SELECT id, $3, $4, epoch, head_turn, head_boundary, head_epoch, parent_hash, content_hash, attempt,
           head_position + $12, $5, $6, now, $7, $8, $9, $10, $11, $12,
           $13, $14, $15, $16, $17, $18 IS NOT NULL, records_digest
    FROM next
),
planned AS (
    -- A call that is there keeps its first key.
    INSERT INTO calls (run, id, turn, policy, key, state, arguments, created_at)
    SELECT next.id, call.id, $3, call.policy, call.key, 'planned', call.arguments, next.now
    FROM next, unnest($22, $23, $24, $25) WITH ORDINALITY AS call (id, policy, key, arguments, place)
    ORDER BY call.place
    ON CONFLICT (run, id) DO NOTHING
),
recorded AS MATERIALIZED (
    SELECT id, ds_apply_records_v1(id, $3, $4, epoch, now, $27, $28, $29, $30, $31, $32) AS count
    FROM next
    WHERE $26 IS NOT NULL
),
audited AS (
    INSERT INTO audit (run, seq, at, kind, actor, detail, parent_hash, hash)
    SELECT id, audit_seq + 1, now, 'finished', 'worker', detail, audit_hash,
           ds_audit_hash_v1(audit_hash, id, audit_seq + 1, now, 'finished', 'worker', detail)
    FROM next, jsonb_build_object('attempt', attempt, 'outcome', $18, 'reason', $19) AS object,
         LATERAL (SELECT object::text AS detail) AS text
    WHERE $18 IS NOT NULL
    RETURNING run, seq, hash
),
moved AS (
    UPDATE runs
    SET head_turn = $3, head_boundary = $4, head_epoch = next.epoch, head_attempt = next.attempt,
        head_commit_id = $5, head_digest = $6, head_hash = next.content_hash,
        head_position = next.head_position + $12, head_at = next.now,
        highest_turn = greatest(runs.highest_turn, $3),
        -- What stands in a boundary's hash is told.
        records_digest = NULL,
        tokens_in = tokens_in + $13, tokens_out = tokens_out + $14, tool_calls = tool_calls + $15,
        cost_micro_usd = cost_micro_usd + $16,
        stored_bytes = stored_bytes + coalesce(octet_length($7), 0) + coalesce(octet_length($10), 0),
        -- A boundary renews a lease that a heartbeat has bound, and binds none.
        lease_renewed_at = CASE WHEN lease_renewed_at IS NOT NULL THEN next.now END,
        cancel_told_at = CASE WHEN next.cancel_requested_at IS NOT NULL THEN coalesce(next.cancel_told_at, next.now) END,
        lifecycle = CASE WHEN $18 IS NULL THEN 'live' ELSE 'finished' END,
        finish_outcome = $18, finish_reason = $19, finish_message = $20, finish_output = $21,
        finish_commit_id = CASE WHEN $18 IS NOT NULL THEN $5 END,
        finish_digest = CASE WHEN $18 IS NOT NULL THEN $6 END,
        finish_at = CASE WHEN $18 IS NOT NULL THEN next.now END,
        changed_at = CASE WHEN $18 IS NULL THEN changed_at ELSE next.now END,
        audit_seq = coalesce(audited.seq, runs.audit_seq), audit_hash = coalesce(audited.hash, runs.audit_hash)
    FROM next LEFT JOIN audited ON audited.run = next.id
    WHERE runs.id = next.id
),
told AS (
    -- What stands is told again; so is a cancel.
    UPDATE runs
    SET cancel_told_at = judged.now
    FROM judged
    WHERE runs.id = judged.id AND judged.verdict = 'duplicate'
      AND judged.cancel_requested_at IS NOT NULL AND judged.cancel_told_at IS NULL
)
SELECT judged.verdict,
       false AS committed,
       CASE WHEN next.id IS NULL THEN judged.head_turn ELSE $3 END AS turn,
       CASE WHEN next.id IS NULL THEN judged.head_boundary ELSE $4 END AS boundary,
       judged.head_position + CASE WHEN next.id IS NULL THEN 0 ELSE $12 END AS position,
       CASE WHEN next.id IS NULL THEN judged.head_hash ELSE next.content_hash END AS content_hash,
       CASE WHEN next.id IS NOT NULL THEN judged.head_hash END AS parent_hash,
       judged.suspend,
       judged.cancel_requested_at IS NOT NULL AS cancel,
       judged.heartbeat_ms AS lease_ms,
       -- Named, so that it is done.
       recorded.count AS recorded
FROM judged
LEFT JOIN next ON next.id = judged.id
LEFT JOIN recorded ON recorded.id = judged.id
