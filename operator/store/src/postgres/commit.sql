-- Commits boundaries, each of another run, in one statement and one round trip.
--
-- Invariant: every check uses `head`, the rows of the runs as they are once this statement holds their locks. A
-- transaction that waited for a lock sees there what the one before it wrote. A read of any other table would see the
-- data as of the start of this statement, so there is none except in functions, whose own statements begin when they are
-- reached, and that of the data key: what it misses is a key that was stored meanwhile, and then nothing
-- is written.
--
-- Parameters $1 to $21 are arrays with one entry for each boundary (`commit_statement.rs` derives the text for one
-- boundary, where they are values):
--  $1 run  $2 capability  $3 turn  $4 boundary  $5 commit id  $6 digest of the body
--  $7 ops  $8 their digest  $9 whether they are full  $10 events  $11 their digest  $12 how many events
-- $13 tokens in  $14 tokens out  $15 tool calls  $16 cost in micro USD  $17 trigger
-- $18 content hash of the boundary that the ops are a delta of, or whose state was measured; null if there is none
-- $19 digest of the body from before the run had a key, or null
-- $20 bytes of the state after the boundary if it is full or has a base ($18); otherwise the most that it adds to it
-- $21 the wrapped data key under which its payloads are sealed, or null
-- The others are for a boundary that is alone in its statement. The text for boundaries without these extras leaves out
-- everything between `extras {` and `}`:
-- $22 outcome of the finish, or null  $23 its reason  $24 message  $25 output
-- $26 ids of planned calls  $27 their policies  $28 keys  $29 arguments
-- $30 digest of the changes of records, or null  $31 their operations  $32 spaces  $33 keys  $34 entry ids  $35 values
-- $36 sizes  $37 the changes as they came, without values  $38 bytes of the planned calls' arguments
-- $39 digests of their keys, as the audit records them  $40 of their arguments
-- $41 ids of calls that may stay without an outcome
WITH head AS MATERIALIZED (
    SELECT id, array_position($1, id) AS idx, lifecycle, epoch, capability, attempt,
           head_turn, head_boundary, head_epoch, head_commit_id, head_digest, head_hash, head_position,
           unsettled_retry_same_key + unsettled_probe + unsettled_ask + keys_refused AS unsettled,
           own_open_calls, open_waits,
           cancel_requested_at, cancel_told_at, suspend, suspend_told_at, inbox, heartbeat_ms, audit_seq, audit_hash,
           tokens_in + tokens_out AS tokens_before, cost_micro_usd AS cost_before,
           limit_turns, limit_tokens, limit_cost, limit_active_ms, limit_reached_at, active_ms, attached_at,
           limits_near, fork_turn,
           records_digest AS records_before,
           -- Whatever else moves the head does not update state_hash: then the size is unknown.
           CASE WHEN state_hash IS NOT DISTINCT FROM head_hash THEN state_bytes END AS bytes_before
    FROM runs
    WHERE id = ANY ($1)
    FOR UPDATE
),
proposed AS (
    SELECT head.*,
           $2[idx] AS proposed_capability, $3[idx] AS turn, $4[idx] AS boundary, $5[idx] AS commit_id,
           $6[idx] AS digest, $8[idx] AS ops_digest, $9[idx] AS is_full, $11[idx] AS events_digest,
           $12[idx] AS event_count, $13[idx] AS tokens_in, $14[idx] AS tokens_out, $15[idx] AS tool_calls,
           $16[idx] AS cost_micro_usd, $17[idx] AS trigger_word, $18[idx] AS base, $19[idx] AS unkeyed_digest,
           $20[idx] AS size, $21[idx] AS data_key,
           CASE WHEN $9[idx] OR $18[idx] IS NOT NULL THEN $20[idx] ELSE bytes_before + $20[idx] END AS state_bytes,
           ds_now_v1() AS now,
           coalesce(head_hash, decode(repeat('00', 32), 'hex')) AS parent_hash,
           head_position + $12[idx] AS position,
           ds_is_limit_reached_v1(turns, limit_turns, tokens, limit_tokens, cost, limit_cost) AS reaches_limit,
           ds_limits_near_v1(
               turns, limit_turns, tokens, limit_tokens, cost, limit_cost,
               active_ms + ds_now_v1() - attached_at, limit_active_ms
           ) AS near,
           own_open_calls
               -- extras {
               - CASE WHEN $22 IS NULL AND own_open_calls > 0 THEN ds_named_open_calls_v1(id, $41) ELSE 0 END
               -- }
               AS unnamed_calls,
           -- extras {
           CASE WHEN cardinality($26) > 0 THEN ds_open_calls_planned_v1(id, $3[idx], $26, $28, $38) END AS open_calls,
           -- }
           CASE WHEN $30 IS NULL THEN records_before ELSE ds_records_link_v1(records_before, $30) END
               AS records_digest
    FROM head, LATERAL (
        SELECT ds_own_turns_v1($3[idx], $4[idx], fork_turn) AS turns,
               tokens_before + $13[idx] + $14[idx] AS tokens, cost_before + $16[idx] AS cost
    ) AS used
),
checked AS MATERIALIZED (
    SELECT proposed.*,
           ds_content_hash_v1(
               parent_hash, id, turn, boundary, epoch, attempt, now, position, commit_id, digest,
               ops_digest, is_full, events_digest, tokens_in, tokens_out, tool_calls, cost_micro_usd, trigger_word,
               records_digest
           ) AS content_hash,
           CASE
               -- A proposed capability is never null.
               WHEN capability IS DISTINCT FROM proposed_capability THEN 'fenced'
               -- A failover may have lost a key that the process has cached.
               WHEN data_key IS NOT NULL AND lifecycle = 'live'
                AND NOT EXISTS (SELECT FROM data_keys WHERE run = proposed.id AND wrapped = proposed.data_key)
                   THEN 'other data key'
               WHEN (head_turn, head_boundary, head_commit_id) = (turn, boundary, commit_id)
                AND (head_digest = digest OR head_digest = unkeyed_digest)
                   THEN 'duplicate'
               WHEN lifecycle <> 'live' THEN 'finished'
               WHEN unsettled > 0 THEN 'unsettled'
               WHEN unnamed_calls > 0 THEN 'open calls'
               -- After a plan comes its result; after a result, or at the start, either boundary of the next turn.
               WHEN NOT CASE
                   WHEN head_boundary = 1 THEN turn = head_turn AND boundary = 2
                   ELSE turn = coalesce(head_turn, 0) + 1
               END THEN 'conflict'
               -- A delta, and a measured size, are valid only for their base.
               WHEN base IS NOT NULL AND head_hash IS DISTINCT FROM base THEN 'other base'
               -- A boundary that adds nothing is never refused.
               WHEN size > 0 AND coalesce(state_bytes > {state_bytes}, true) THEN 'too large'
               -- extras {
               WHEN open_calls > {open_calls_bytes} THEN 'calls too large'
               WHEN $30 IS NOT NULL
                AND ds_keys_to_empty_v1(id, $31, $32, $33, {prefix_keys}) > {prefix_keys}
                   THEN 'too many keys'
               -- }
               ELSE 'ok'
           END AS verdict
    FROM proposed
),
accepted AS NOT MATERIALIZED (
    SELECT * FROM checked WHERE verdict = 'ok'
),
inserted_boundaries AS (
    INSERT INTO boundaries (
        run, turn, boundary, epoch, parent_turn, parent_boundary, parent_epoch, parent_hash, content_hash, attempt,
        position, commit_id, digest, at, ops, ops_digest, is_full, events, events_digest, event_count,
        tokens_in, tokens_out, tool_calls, cost_micro_usd, trigger_word, finish, records_digest
    )
    SELECT id, turn, boundary, epoch, head_turn, head_boundary, head_epoch, parent_hash, content_hash, attempt,
           position, commit_id, digest, now, $7[idx], ops_digest, is_full, $10[idx], events_digest, event_count,
           tokens_in, tokens_out, tool_calls, cost_micro_usd, trigger_word, $22 IS NOT NULL, records_digest
    FROM accepted
),
-- extras {
planned AS (
    -- An existing call keeps its first key. If it is not claimed yet, it moves to the turn that plans it again.
    INSERT INTO calls (run, id, turn, policy, key, state, arguments, arguments_bytes, created_at)
    SELECT accepted.id, call.id, accepted.turn, call.policy, call.key, 'planned', call.arguments, call.bytes,
           accepted.now
    FROM accepted, unnest($26, $27, $28, $29, $38) WITH ORDINALITY AS call (id, policy, key, arguments, bytes, idx)
    ORDER BY call.idx
    ON CONFLICT (run, id) DO UPDATE SET turn = excluded.turn
    WHERE calls.state = 'planned' AND calls.turn <> excluded.turn
    -- xmax is 0 only for an inserted row: an existing one is locked before it is updated.
    RETURNING run, id, xmax = 0 AS is_new
),
audited_plan AS (
    INSERT INTO audit (run, seq, at, kind, actor, detail, parent_hash, hash)
    SELECT accepted.id, audit_seq + 1, now, 'planned', 'worker', detail, audit_hash,
           ds_audit_hash_v1(audit_hash, accepted.id, audit_seq + 1, now, 'planned', 'worker', detail)
    FROM accepted, LATERAL (
        SELECT jsonb_build_object('turn', accepted.turn, 'calls', jsonb_agg(
            CASE WHEN planned.is_new
                THEN jsonb_strip_nulls(jsonb_build_object(
                    'call', call.id, 'policy', call.policy, 'key', call.key, 'arguments', call.arguments))
                ELSE jsonb_build_object('call', call.id)
            END
            ORDER BY call.idx))::text AS detail
        FROM planned JOIN unnest($26, $27, $39, $40) WITH ORDINALITY AS call (id, policy, key, arguments, idx)
          ON call.id = planned.id
        HAVING count(*) > 0
    ) AS text
    WHERE cardinality($26) > 0
    RETURNING run, seq, hash
),
recorded AS MATERIALIZED (
    SELECT id, ds_apply_records_v2(id, turn, boundary, epoch, now, $30, $31, $32, $33, $34, $35, $36, $37) AS count
    FROM accepted
    WHERE $30 IS NOT NULL
),
audited AS (
    INSERT INTO audit (run, seq, at, kind, actor, detail, parent_hash, hash)
    SELECT id, last.seq + 1, now, 'finished', 'worker', detail, last.hash,
           ds_audit_hash_v1(last.hash, id, last.seq + 1, now, 'finished', 'worker', detail)
    FROM accepted
    LEFT JOIN audited_plan ON audited_plan.run = accepted.id,
    LATERAL (
        SELECT coalesce(audited_plan.seq, audit_seq) AS seq, coalesce(audited_plan.hash, audit_hash) AS hash
    ) AS last,
    LATERAL (SELECT jsonb_build_object('attempt', attempt, 'outcome', $22, 'reason', $23)::text AS detail) AS text
    WHERE $22 IS NOT NULL
    RETURNING run, seq, hash
),
withdrawn AS MATERIALIZED (
    SELECT accepted.id AS run, last.seq, last.hash
    FROM accepted
    JOIN audited ON audited.run = accepted.id,
    LATERAL ds_withdraw_waits_v1(accepted.id, accepted.now, audited.seq, audited.hash) AS last
    WHERE accepted.open_waits > 0
),
notified AS (
    INSERT INTO outbox (id, run, kind, detail, created_at, next_try_at, tries)
    SELECT gen_random_uuid(), id, 'RunFailed', jsonb_build_object('attempt', attempt)::text, now, now, 0
    FROM accepted
    WHERE $22 = 'Failed'
),
-- }
updated_runs AS (
    UPDATE runs
    SET head_turn = accepted.turn, head_boundary = accepted.boundary, head_epoch = accepted.epoch,
        head_attempt = accepted.attempt,
        head_commit_id = accepted.commit_id, head_digest = accepted.digest, head_hash = accepted.content_hash,
        head_position = accepted.position, head_at = accepted.now,
        highest_turn = greatest(runs.highest_turn, accepted.turn),
        -- The boundary's content hash covers these records from now on.
        records_digest = NULL,
        state_bytes = accepted.state_bytes, state_hash = accepted.content_hash,
        tokens_in = runs.tokens_in + accepted.tokens_in, tokens_out = runs.tokens_out + accepted.tokens_out,
        tool_calls = runs.tool_calls + accepted.tool_calls,
        cost_micro_usd = runs.cost_micro_usd + accepted.cost_micro_usd,
        stored_bytes = stored_bytes + coalesce(octet_length($7[idx]), 0) + coalesce(octet_length($10[idx]), 0),
        -- extras {
        open_calls_bytes = coalesce(accepted.open_calls, open_calls_bytes),
        open_calls_turn = CASE WHEN accepted.open_calls IS NULL THEN open_calls_turn ELSE accepted.turn END,
        lifecycle = CASE WHEN $22 IS NULL THEN 'live' ELSE 'finished' END,
        finish_outcome = $22, finish_reason = $23, finish_message = $24, finish_output = $25,
        finish_commit_id = CASE WHEN $22 IS NOT NULL THEN accepted.commit_id END,
        finish_digest = CASE WHEN $22 IS NOT NULL THEN accepted.digest END,
        finish_at = CASE WHEN $22 IS NOT NULL THEN accepted.now END,
        changed_at = CASE WHEN $22 IS NULL THEN changed_at ELSE accepted.now END,
        open_waits = CASE WHEN $22 IS NULL THEN runs.open_waits ELSE 0 END,
        open_wait_bytes = CASE WHEN $22 IS NULL THEN runs.open_wait_bytes ELSE 0 END,
        wake_at = CASE WHEN $22 IS NULL THEN runs.wake_at END,
        audit_seq = coalesce(withdrawn.seq, audited.seq, audited_plan.seq, runs.audit_seq),
        audit_hash = coalesce(withdrawn.hash, audited.hash, audited_plan.hash, runs.audit_hash),
        -- }
        -- A boundary renews a lease that a heartbeat began; it begins none. It never shortens one: the worker would
        -- learn of the shorter lease only from the response, which may arrive after that lease has expired.
        lease_renewed_at = CASE WHEN lease_renewed_at IS NOT NULL THEN accepted.now END,
        lease_ms = CASE
            WHEN lease_renewed_at IS NULL THEN runs.lease_ms
            ELSE greatest(runs.lease_ms, runs.heartbeat_ms)
        END,
        cancel_told_at = CASE
            WHEN accepted.cancel_requested_at IS NOT NULL THEN coalesce(accepted.cancel_told_at, accepted.now)
        END,
        suspend_told_at = CASE WHEN accepted.suspend THEN coalesce(accepted.suspend_told_at, accepted.now) END,
        -- The function is called only for a limit that was not near before.
        limits_near = CASE
            WHEN accepted.near & ~accepted.limits_near = 0 THEN accepted.limits_near
            ELSE ds_announce_limits_v1(accepted.id, accepted.limits_near, accepted.near, accepted.now)
        END,
        limit_reached_at = CASE WHEN accepted.reaches_limit THEN coalesce(accepted.limit_reached_at, accepted.now) END
    FROM accepted
    -- extras {
    LEFT JOIN audited_plan ON audited_plan.run = accepted.id
    LEFT JOIN audited ON audited.run = accepted.id
    LEFT JOIN withdrawn ON withdrawn.run = accepted.id
    -- }
    WHERE runs.id = accepted.id
),
reported_signals AS (
    -- The response to a duplicate reports a cancel and a suspend too.
    UPDATE runs
    SET cancel_told_at = CASE
            WHEN checked.cancel_requested_at IS NOT NULL THEN coalesce(checked.cancel_told_at, checked.now)
        END,
        suspend_told_at = CASE WHEN checked.suspend THEN coalesce(checked.suspend_told_at, checked.now) END
    FROM checked
    WHERE runs.id = checked.id AND checked.verdict = 'duplicate'
      AND (checked.cancel_requested_at IS NOT NULL AND checked.cancel_told_at IS NULL
        OR checked.suspend AND checked.suspend_told_at IS NULL)
)
SELECT checked.id AS run,
       verdict,
       false AS committed,
       CASE verdict WHEN 'ok' THEN turn ELSE head_turn END AS turn,
       CASE verdict WHEN 'ok' THEN boundary ELSE head_boundary END AS boundary,
       CASE verdict WHEN 'ok' THEN position ELSE head_position END AS position,
       CASE verdict WHEN 'ok' THEN content_hash ELSE head_hash END AS content_hash,
       CASE verdict WHEN 'ok' THEN head_hash END AS parent_hash,
       suspend,
       cancel_requested_at IS NOT NULL AS cancel,
       CASE verdict WHEN 'ok' THEN reaches_limit ELSE limit_reached_at IS NOT NULL END
           OR coalesce(active_ms + now - attached_at >= limit_active_ms, false) AS at_limit,
       inbox,
       -- extras {
       -- Selected, so that the function is called.
       recorded.count AS recorded,
       -- }
       heartbeat_ms AS lease_ms
FROM checked
-- extras {
LEFT JOIN recorded ON recorded.id = checked.id
-- }
