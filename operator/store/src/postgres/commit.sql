-- Boundaries, each of another run: judged and written by one statement, in one round trip.
--
-- What must hold: everything is judged by `head`, the runs' rows as they stand once their locks are ours. Whoever waited
-- for a lock sees there what the one before has written; a read of any other table would still see what was there when
-- this statement began, so there is none but in `ds_apply_records_v1`, whose statements begin when they are reached.
--
-- Arrays, with one entry for each boundary (`commit.rs` makes a text of this whose parameters are those of one):
--  $1 run  $2 capability  $3 turn  $4 boundary  $5 commit id  $6 digest of the body
--  $7 ops  $8 their digest  $9 whether they are full  $10 events  $11 their digest  $12 how many
-- $13 tokens in  $14 tokens out  $15 tool calls  $16 cost  $17 trigger
-- $18 where the ops are a patch, or their state was counted, the content hash of the boundary they stand on
-- $19 digest that the body had before the run had a key, or null
-- $20 bytes of the state after it, where it is full or stands on a base; else what it adds to it at most
-- For a boundary that comes alone, and may bring more. Where none can, what stands between `more {` and `}` is left out:
-- $21 outcome of the finish, or null  $22 its reason  $23 message  $24 output
-- $25 ids of planned calls  $26 their policies  $27 keys  $28 arguments
-- $29 digest of the changes of records, or null  $30 their words  $31 spaces  $32 keys  $33 entry ids  $34 values
-- $35 sizes  $36 the changes as they came, without values  $37 bytes of the planned calls' arguments
-- $38 digests of their keys, as the audit tells of them  $39 of their arguments
WITH head AS MATERIALIZED (
    SELECT id, array_position($1, id) AS place, lifecycle, epoch, capability, attempt,
           head_turn, head_boundary, head_epoch, head_commit_id, head_digest, head_hash, head_position,
           unsettled_retry_same_key + unsettled_probe + unsettled_ask + keys_refused AS unsettled,
           cancel_requested_at, cancel_told_at, suspend, heartbeat_ms, audit_seq, audit_hash, records_digest AS records_before,
           -- What moves the head otherwise leaves it behind: then nobody knows.
           CASE WHEN state_hash IS NOT DISTINCT FROM head_hash THEN state_bytes END AS bytes_before
    FROM runs
    WHERE id = ANY ($1)
    FOR UPDATE
),
proposed AS (
    SELECT head.*,
           $2[place] AS proposed_capability, $3[place] AS turn, $4[place] AS boundary, $5[place] AS commit_id,
           $6[place] AS digest, $8[place] AS ops_digest, $9[place] AS is_full, $11[place] AS events_digest,
           $12[place] AS event_count, $13[place] AS tokens_in, $14[place] AS tokens_out, $15[place] AS tool_calls,
           $16[place] AS cost_micro_usd, $17[place] AS trigger_word, $18[place] AS base, $19[place] AS older_digest,
           $20[place] AS size,
           CASE WHEN $9[place] OR $18[place] IS NOT NULL THEN $20[place] ELSE bytes_before + $20[place] END AS state_bytes,
           ds_now_v1() AS now,
           coalesce(head_hash, decode(repeat('00', 32), 'hex')) AS parent_hash,
           head_position + $12[place] AS position,
           -- more {
           CASE WHEN cardinality($25) > 0 THEN ds_open_calls_planned_v1(id, $3[place], $25, $27, $37) END AS open_calls,
           -- }
           CASE WHEN $29 IS NULL THEN records_before ELSE ds_records_link_v1(records_before, $29) END
               AS records_digest
    FROM head
),
judged AS MATERIALIZED (
    SELECT proposed.*,
           ds_content_hash_v1(
               parent_hash, id, turn, boundary, epoch, attempt, now, position, commit_id, digest,
               ops_digest, is_full, events_digest, tokens_in, tokens_out, tool_calls, cost_micro_usd, trigger_word,
               records_digest
           ) AS content_hash,
           CASE
               -- Nobody's capability is null.
               WHEN capability IS DISTINCT FROM proposed_capability THEN 'fenced'
               WHEN (head_turn, head_boundary, head_commit_id) = (turn, boundary, commit_id)
                AND (head_digest = digest OR head_digest = older_digest)
                   THEN 'duplicate'
               WHEN lifecycle <> 'live' THEN 'finished'
               WHEN unsettled > 0 THEN 'unsettled'
               -- After a plan comes its result; after a result, or at the start, either boundary of the next turn.
               WHEN NOT CASE
                   WHEN head_boundary = 1 THEN turn = head_turn AND boundary = 2
                   ELSE turn = coalesce(head_turn, 0) + 1
               END THEN 'conflict'
               -- A patch, and what was counted, stand on their base alone.
               WHEN base IS NOT NULL AND head_hash IS DISTINCT FROM base THEN 'other base'
               -- What adds nothing is never refused.
               WHEN size > 0 AND coalesce(state_bytes > {state_bytes}, true) THEN 'too large'
               -- more {
               WHEN open_calls > {open_calls_bytes} THEN 'calls too large'
               -- }
               ELSE 'ok'
           END AS verdict
    FROM proposed
),
next AS NOT MATERIALIZED (
    SELECT * FROM judged WHERE verdict = 'ok'
),
kept AS (
    INSERT INTO boundaries (
        run, turn, boundary, epoch, parent_turn, parent_boundary, parent_epoch, parent_hash, content_hash, attempt,
        position, commit_id, digest, at, ops, ops_digest, is_full, events, events_digest, event_count,
        tokens_in, tokens_out, tool_calls, cost_micro_usd, trigger_word, finish, records_digest
    )
    SELECT id, turn, boundary, epoch, head_turn, head_boundary, head_epoch, parent_hash, content_hash, attempt,
           position, commit_id, digest, now, $7[place], ops_digest, is_full, $10[place], events_digest, event_count,
           tokens_in, tokens_out, tool_calls, cost_micro_usd, trigger_word, $21 IS NOT NULL, records_digest
    FROM next
),
-- more {
planned AS (
    -- A call that is there keeps its first key; one that nobody has claimed is of the turn that plans it anew.
    INSERT INTO calls (run, id, turn, policy, key, state, arguments, arguments_bytes, created_at)
    SELECT next.id, call.id, next.turn, call.policy, call.key, 'planned', call.arguments, call.bytes, next.now
    FROM next, unnest($25, $26, $27, $28, $37) WITH ORDINALITY AS call (id, policy, key, arguments, bytes, place)
    ORDER BY call.place
    ON CONFLICT (run, id) DO UPDATE SET turn = excluded.turn
    WHERE calls.state = 'planned' AND calls.turn <> excluded.turn
    -- A row that was there is locked before it is updated.
    RETURNING run, id, xmax = 0 AS is_new
),
audited_plan AS (
    INSERT INTO audit (run, seq, at, kind, actor, detail, parent_hash, hash)
    SELECT next.id, audit_seq + 1, now, 'planned', 'worker', detail, audit_hash,
           ds_audit_hash_v1(audit_hash, next.id, audit_seq + 1, now, 'planned', 'worker', detail)
    FROM next, LATERAL (
        SELECT jsonb_build_object('turn', next.turn, 'calls', jsonb_agg(
            CASE WHEN planned.is_new
                THEN jsonb_strip_nulls(jsonb_build_object(
                    'call', call.id, 'policy', call.policy, 'key', call.key, 'arguments', call.arguments))
                ELSE jsonb_build_object('call', call.id)
            END
            ORDER BY call.place))::text AS detail
        FROM planned JOIN unnest($25, $26, $38, $39) WITH ORDINALITY AS call (id, policy, key, arguments, place)
          ON call.id = planned.id
        HAVING count(*) > 0
    ) AS text
    WHERE cardinality($25) > 0
    RETURNING run, seq, hash
),
recorded AS MATERIALIZED (
    SELECT id, ds_apply_records_v1(id, turn, boundary, epoch, now, $29, $30, $31, $32, $33, $34, $35, $36) AS count
    FROM next
    WHERE $29 IS NOT NULL
),
audited AS (
    INSERT INTO audit (run, seq, at, kind, actor, detail, parent_hash, hash)
    SELECT id, last.seq + 1, now, 'finished', 'worker', detail, last.hash,
           ds_audit_hash_v1(last.hash, id, last.seq + 1, now, 'finished', 'worker', detail)
    FROM next
    LEFT JOIN audited_plan ON audited_plan.run = next.id,
    LATERAL (SELECT coalesce(audited_plan.seq, audit_seq) AS seq, coalesce(audited_plan.hash, audit_hash) AS hash) AS last,
    LATERAL (SELECT jsonb_build_object('attempt', attempt, 'outcome', $21, 'reason', $22)::text AS detail) AS text
    WHERE $21 IS NOT NULL
    RETURNING run, seq, hash
),
-- }
moved AS (
    UPDATE runs
    SET head_turn = next.turn, head_boundary = next.boundary, head_epoch = next.epoch, head_attempt = next.attempt,
        head_commit_id = next.commit_id, head_digest = next.digest, head_hash = next.content_hash,
        head_position = next.position, head_at = next.now,
        highest_turn = greatest(runs.highest_turn, next.turn),
        -- What stands in a boundary's hash is told.
        records_digest = NULL,
        state_bytes = next.state_bytes, state_hash = next.content_hash,
        tokens_in = runs.tokens_in + next.tokens_in, tokens_out = runs.tokens_out + next.tokens_out,
        tool_calls = runs.tool_calls + next.tool_calls, cost_micro_usd = runs.cost_micro_usd + next.cost_micro_usd,
        stored_bytes = stored_bytes + coalesce(octet_length($7[place]), 0) + coalesce(octet_length($10[place]), 0),
        -- more {
        open_calls_bytes = coalesce(next.open_calls, open_calls_bytes),
        open_calls_turn = CASE WHEN next.open_calls IS NULL THEN open_calls_turn ELSE next.turn END,
        lifecycle = CASE WHEN $21 IS NULL THEN 'live' ELSE 'finished' END,
        finish_outcome = $21, finish_reason = $22, finish_message = $23, finish_output = $24,
        finish_commit_id = CASE WHEN $21 IS NOT NULL THEN next.commit_id END,
        finish_digest = CASE WHEN $21 IS NOT NULL THEN next.digest END,
        finish_at = CASE WHEN $21 IS NOT NULL THEN next.now END,
        changed_at = CASE WHEN $21 IS NULL THEN changed_at ELSE next.now END,
        audit_seq = coalesce(audited.seq, audited_plan.seq, runs.audit_seq),
        audit_hash = coalesce(audited.hash, audited_plan.hash, runs.audit_hash),
        -- }
        -- A boundary renews a lease that a heartbeat has bound, and binds none. It makes none shorter: its worker may wait
        -- for the answer that would tell of it longer than the shorter one lasts.
        lease_renewed_at = CASE WHEN lease_renewed_at IS NOT NULL THEN next.now END,
        lease_ms = CASE WHEN lease_renewed_at IS NULL THEN runs.lease_ms ELSE greatest(runs.lease_ms, runs.heartbeat_ms) END,
        cancel_told_at = CASE WHEN next.cancel_requested_at IS NOT NULL THEN coalesce(next.cancel_told_at, next.now) END
    FROM next
    -- more {
    LEFT JOIN audited_plan ON audited_plan.run = next.id
    LEFT JOIN audited ON audited.run = next.id
    -- }
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
SELECT judged.id AS run,
       verdict,
       false AS committed,
       CASE verdict WHEN 'ok' THEN turn ELSE head_turn END AS turn,
       CASE verdict WHEN 'ok' THEN boundary ELSE head_boundary END AS boundary,
       CASE verdict WHEN 'ok' THEN position ELSE head_position END AS position,
       CASE verdict WHEN 'ok' THEN content_hash ELSE head_hash END AS content_hash,
       CASE verdict WHEN 'ok' THEN head_hash END AS parent_hash,
       suspend,
       cancel_requested_at IS NOT NULL AS cancel,
       -- more {
       -- Named, so that it is done.
       recorded.count AS recorded,
       -- }
       heartbeat_ms AS lease_ms
FROM judged
-- more {
LEFT JOIN recorded ON recorded.id = judged.id
-- }
