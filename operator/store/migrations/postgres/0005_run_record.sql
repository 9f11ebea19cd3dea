-- What a person or the operator sees of a run: the JSON of `RunRecord` in model.rs, field by field.

-- `Identity`; null while nothing is known.
CREATE FUNCTION ds_identity_v1(_a attempts) RETURNS jsonb
LANGUAGE sql STABLE
RETURN CASE WHEN _a.verdict IS NOT NULL THEN jsonb_build_object(
    'image_digest', _a.image_digest,
    'agent_version', _a.agent_version,
    'verdict', _a.verdict,
    'remark', coalesce(_a.remark, '')
) END;

-- `Attempt`. The lease of the current one stands in the run's row.
CREATE FUNCTION ds_attempt_v1(_a attempts, _lease_renewed_at bigint) RETURNS jsonb
LANGUAGE sql STABLE
RETURN jsonb_build_object(
    'number', _a.number,
    'state', _a.state,
    'epoch', _a.epoch,
    'pod_uid', _a.pod_uid,
    'pod_name', _a.pod_name,
    'node', _a.node,
    'revision', _a.revision,
    'identity', ds_identity_v1(_a),
    'spent', _a.spent,
    'turn_at_start', _a.turn_at_start,
    'turn_at_end', _a.turn_at_end,
    'reserved_at', _a.reserved_at,
    'created_at', _a.created_at,
    'scheduled_at', _a.scheduled_at,
    'attached_at', _a.attached_at,
    'lease_renewed_at', _lease_renewed_at,
    'ended_at', _a.ended_at,
    'end', CASE WHEN _a.cause IS NOT NULL THEN jsonb_build_object(
        'cause', _a.cause,
        'class', _a.class,
        'charged', _a.charged,
        'progress', _a.progress,
        'exit_code', _a.exit_code,
        'message', _a.message
    ) END
);

-- `RunRecord`; null if there is no such run. One query, so that all of it is of one moment.
CREATE FUNCTION ds_run_record_v1(_run uuid) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT jsonb_build_object(
        'id', r.id,
        'store_id', s.id,
        'now', ds_now_v1(),
        'tenant', r.tenant,
        'namespace', r.namespace,
        'name', r.name,
        'object_uid', r.object_uid,
        'lifecycle', r.lifecycle,
        'epoch', r.epoch,
        'attempt', ds_attempt_v1(a, r.lease_renewed_at),
        'past', (
            SELECT coalesce(jsonb_agg(ds_attempt_v1(p, p.lease_renewed_at) ORDER BY p.number DESC), '[]')
            FROM attempts p
            WHERE p.run = r.id AND p.number BETWEEN r.attempt - 11 AND r.attempt - 1
        ),
        'head', CASE WHEN r.head_turn IS NOT NULL THEN jsonb_build_object(
            'turn', r.head_turn,
            'boundary', CASE r.head_boundary WHEN 1 THEN 'plan' ELSE 'result' END,
            'epoch', r.head_epoch,
            'attempt', r.head_attempt,
            'position', r.head_position,
            'content_hash', 'sha256:' || encode(r.head_hash, 'hex'),
            'at', r.head_at,
            'revision', h.revision,
            'identity', ds_identity_v1(h)
        ) END,
        'highest_turn', r.highest_turn,
        'counters', jsonb_build_object(
            'recovery_attempts', r.recovery_attempts,
            'recovery_attempts_base', r.recovery_attempts_base,
            'attempts_without_progress', r.attempts_without_progress,
            'disruptions', r.disruptions,
            'disruptions_base', r.disruptions_base,
            'disruptions_without_progress', r.disruptions_without_progress
        ),
        'observed_reset_generation', r.observed_reset_generation,
        'reset_attempt', r.reset_attempt,
        'calls', jsonb_build_object(
            'completed', r.completed_calls,
            'keys_refused', r.keys_refused,
            'unsettled', jsonb_strip_nulls(jsonb_build_object(
                'retrySameKey', nullif(r.unsettled_retry_same_key, 0),
                'probe', nullif(r.unsettled_probe, 0),
                'ask', nullif(r.unsettled_ask, 0),
                'readOnly', nullif(r.unsettled_read_only, 0)
            ))
        ),
        'usage', jsonb_build_object(
            'tokensIn', r.tokens_in,
            'tokensOut', r.tokens_out,
            'toolCalls', r.tool_calls,
            'costMicroUSD', r.cost_micro_usd
        ),
        'cancel', CASE WHEN r.cancel_requested_at IS NOT NULL THEN jsonb_build_object(
            'requested_at', r.cancel_requested_at,
            'told_at', r.cancel_told_at
        ) END,
        'finish', CASE WHEN r.finish_outcome IS NOT NULL THEN jsonb_build_object(
            'outcome', r.finish_outcome,
            'reason', r.finish_reason,
            'message', r.finish_message,
            'output', r.finish_output,
            'at', r.finish_at
        ) END,
        'deadlines', jsonb_build_object(
            'heartbeat_ms', r.heartbeat_ms,
            'start_ms', r.start_ms,
            'progress_ms', r.progress_ms
        ),
        'lease_ms', r.lease_ms,
        'beat', jsonb_build_object('last', s.beat_last, 'since', s.beat_since, 'gap_from', s.gap_from),
        'created_at', r.created_at,
        'retention', jsonb_build_object('days', r.retention_days, 'keep_last', r.keep_last),
        'dropped_to', CASE WHEN r.dropped_turn IS NOT NULL THEN jsonb_build_object(
            'turn', r.dropped_turn,
            'boundary', CASE r.dropped_boundary WHEN 1 THEN 'plan' ELSE 'result' END,
            'epoch', r.dropped_epoch
        ) END
    )
    FROM runs r
    JOIN store s ON s.only_row
    JOIN attempts a ON a.run = r.id AND a.number = r.attempt
    LEFT JOIN attempts h ON h.run = r.id AND h.number = r.head_attempt
    WHERE r.id = _run);
END
$$;
