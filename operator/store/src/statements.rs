//! Statements that both databases share, and the columns that they read.
//!
//! A statement names its columns: a `*` over a table would change the result of a prepared statement when a migration
//! adds a column, and PostgreSQL then refuses the statement on every connection that had prepared it.

use std::sync::LazyLock;

use crate::reads::StoredWait;

/// SQL: these columns of the table with this name or alias.
macro_rules! columns_of {
    ($table:literal: $first:ident $($column:ident)*) => {
        concat!($table, ".", stringify!($first) $(, ", ", $table, ".", stringify!($column))*)
    };
}

/// SQL: the columns of the boundary with this name or alias.
macro_rules! boundary_columns {
    ($table:literal) => {
        $crate::statements::columns_of!($table:
            run turn boundary epoch parent_turn parent_boundary parent_epoch parent_hash content_hash attempt position
            commit_id digest at ops ops_digest is_full events events_digest records_digest event_count tokens_in
            tokens_out tool_calls cost_micro_usd trigger_word undone dropped forked_run forked_turn forked_hash
        )
    };
}

/// SQL: the columns of an audit row or of a purge record.
macro_rules! audit_columns {
    () => {
        "run, seq, at, kind, actor, detail, parent_hash, hash"
    };
}

/// SQL: the columns of an anchor.
macro_rules! anchor_columns {
    () => {
        "seq, parent_hash, root, leaves, public_key, line"
    };
}

/// SQL: the columns of a leaf of an anchor.
macro_rules! leaf_columns {
    () => {
        "anchor, run, audit_seq, audit_hash, head_turn, head_boundary, head_epoch, head_hash"
    };
}

/// SQL: the columns of a batch of changes of records.
macro_rules! record_change_columns {
    () => {
        "run, seq, turn, boundary, epoch, undone, digest, batch"
    };
}

/// SQL: the columns of the record `r`.
macro_rules! record_columns {
    () => {
        "r.space, r.key, r.seq, r.entry_id, r.value, r.turn, r.boundary, r.epoch"
    };
}
pub(crate) use {
    anchor_columns, audit_columns, boundary_columns, columns_of, leaf_columns, record_change_columns,
    record_columns,
};

/// For [`dalsegno_model::Operator::namespace_usage`]: bytes of the `$1` largest namespaces, and the sum of all others
/// under NULL. The argument says which runs are read.
macro_rules! namespace_usage {
    ($runs:literal) => {
        concat!(
            "WITH sums AS ( \
                 SELECT namespace, CAST(sum(stored_bytes) AS bigint) AS bytes FROM ",
            $runs,
            " GROUP BY namespace \
             ), ranked AS ( \
                 SELECT namespace, bytes, row_number() OVER (ORDER BY bytes DESC, namespace) AS boundary_id FROM sums \
             ), listed AS ( \
                 SELECT CASE WHEN boundary_id <= $1 THEN namespace END AS namespace, bytes FROM ranked \
             ) \
             SELECT namespace, CAST(sum(bytes) AS bigint) AS bytes FROM listed GROUP BY namespace ORDER BY namespace"
        )
    };
}
pub(crate) use namespace_usage;

/// The position of the first event of a turn: of the first boundary of the turn on the live branch, even if that
/// boundary carries no events.
pub(crate) const FIRST_POSITION: &str = "SELECT position - event_count + 1 AS first FROM boundaries \
     WHERE run = $1 AND turn = $2 AND NOT undone ORDER BY boundary LIMIT 1";

/// The number of plain payloads of the run `$1`. A sealed payload begins with the byte `$2` or a higher one.
pub(crate) const COUNT_UNSEALED: &str = "SELECT \
     (SELECT count(*) FROM boundaries WHERE run = $1 AND (substr(ops, 1, 1) < $2 OR substr(events, 1, 1) < $2)) \
     + (SELECT count(*) FROM calls WHERE run = $1 AND (substr(arguments, 1, 1) < $2 OR substr(result, 1, 1) < $2)) \
     + (SELECT count(*) FROM waits WHERE run = $1 AND (substr(request, 1, 1) < $2 OR substr(answer, 1, 1) < $2)) \
     + (SELECT count(*) FROM records WHERE run = $1 AND substr(value, 1, 1) < $2) \
     + (SELECT count(*) FROM messages WHERE run = $1 AND substr(value, 1, 1) < $2) \
     + (SELECT count(*) FROM snapshots WHERE run = $1 AND substr(document, 1, 1) < $2)";

/// Ids of the calls of the run `$1` that only a person can settle, in order, at most `$2`. Reads no payload.
pub(crate) const CALLS_TO_SETTLE: &str = "SELECT calls.id FROM calls JOIN runs ON runs.id = calls.run \
     WHERE calls.run = $1 AND calls.state = 'started' \
       AND (calls.key_refused \
         OR calls.policy = 'ask' AND (calls.attempt <> runs.attempt OR runs.attempt_state = 'ended')) \
     ORDER BY calls.ordinal LIMIT $2";

/// Ids of the calls of the run `$1` that may have changed something in the turn `$2` or a later one, in order: not
/// `readOnly`, and completed or of unknown outcome. Calls have no branch: those of undone turns are among them.
pub(crate) const EFFECTS_SINCE: &str = "SELECT id FROM calls WHERE run = $1 AND policy <> 'readOnly' \
     AND state IN ('started', 'completed') AND (turn >= $2 OR touched_turn >= $2) ORDER BY ordinal";

/// The hash of the boundary `$2`, `$3`, `$4` of the run `$1`, and whether a rewind undid it.
pub(crate) const BOUNDARY_HASH: &str = "SELECT content_hash, undone FROM boundaries \
     WHERE run = $1 AND turn = $2 AND boundary = $3 AND epoch = $4";

/// Whether a boundary with the content hash `$2` is on the live branch of the run `$1`.
pub(crate) const IS_LIVE: &str = "SELECT EXISTS ( \
         SELECT 1 FROM boundaries WHERE run = $1 AND content_hash = $2 AND NOT undone \
     ) AS is_live";

/// The result of the turn `$2` on the live branch of the run `$1`, if the state after it and the records of that time
/// are in the store.
pub(crate) const FORK_POINT: &str = "SELECT b.epoch, b.attempt, b.content_hash FROM boundaries b JOIN runs r ON r.id = b.run \
     WHERE b.run = $1 AND b.turn = $2 AND b.boundary = 2 AND NOT b.undone \
       AND r.expired_at IS NULL AND NOT r.emptied \
       AND (r.dropped_turn IS NULL OR (b.turn, b.boundary) >= (r.dropped_turn, r.dropped_boundary))";

/// A page of what the keys of the run `$1` held after the result of the turn `$2`: after the record `$3` `$4` `$5`, at
/// most `$6` records, or one record more than `$7` bytes.
pub(crate) const RECORDS_AT: &str = "WITH page AS ( \
         SELECT space, key, seq, sum(size) \
             OVER (ORDER BY space, key, seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before \
         FROM ( \
             SELECT space, key, seq, size FROM records h \
             WHERE h.run = $1 AND NOT h.undone AND h.op <> 'delete' AND (h.turn, h.boundary) <= ($2, 2) \
               AND (h.space, h.key, h.seq) > ($3, $4, $5) \
               AND h.seq >= coalesce(( \
                   SELECT max(o.seq) FROM records o \
                   WHERE o.run = h.run AND o.space = h.space AND o.key = h.key AND o.op IN ('put', 'delete') \
                     AND NOT o.undone AND (o.turn, o.boundary) <= ($2, 2) \
               ), 0) \
             ORDER BY space, key, seq LIMIT $6 \
         ) AS next \
     ) \
     SELECT r.space, r.key, r.seq, r.entry_id, r.value FROM page JOIN records r USING (space, key, seq) \
     WHERE r.run = $1 AND coalesce(page.before, 0) < $7 ORDER BY r.space, r.key, r.seq";

/// SQL: a wait of the live branch with its answer. The parameters are the run and the id.
pub(crate) static WAITS: LazyLock<String> = LazyLock::new(|| {
    format!("SELECT {} FROM waits WHERE run = $1 AND id = $2 AND NOT undone", StoredWait::columns_of("waits"))
});

/// SQL: the wait of the live branch that a worker polls, as columns that are null if there is none. No row: the capability
/// is not the current epoch's. The parameters are the run, the capability and the id.
pub(crate) static WAIT_STATE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT {} FROM runs LEFT JOIN waits ON waits.run = runs.id AND waits.id = $3 AND NOT waits.undone \
         WHERE runs.id = $1 AND runs.capability = $2",
        StoredWait::columns_of("waits")
    )
});

/// SQL: the open waits of a run's live branch, and those that were answered since its head.
///
/// Two reads of one index each, so that the waits of a long life cost nothing.
pub(crate) static WAITS_OF_RUN: LazyLock<String> = LazyLock::new(|| {
    let columns = StoredWait::columns_of("waits");
    format!(
        "SELECT {columns} FROM waits WHERE waits.run = $1 AND waits.state = 'open' AND NOT waits.undone \
         UNION ALL \
         SELECT {columns} FROM waits JOIN runs ON runs.id = waits.run \
         WHERE waits.run = $1 AND NOT waits.undone AND waits.answered_at >= coalesce(runs.head_at, 0) \
         ORDER BY ordinal"
    )
});

/// SQL: a wait of any branch with its answer and its request. The parameters are the run, the id and the opening epoch.
pub(crate) static PROPOSAL: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT {}, waits.request FROM waits WHERE run = $1 AND id = $2 AND epoch = $3",
        StoredWait::columns_of("waits")
    )
});

/// SQL: how many other runs of a namespace wait for a provider's rate limit, how many of them try within some time after
/// its end, and whether a wait of the run for it has elapsed since a time. The parameters are the run, the tenant, the
/// provider, that time, and the milliseconds after the end.
pub(crate) const RATE_LIMIT_QUEUE: &str = "SELECT others, first, EXISTS ( \
         SELECT 1 FROM waits WHERE run = $1 AND NOT undone AND answered_at >= $4 AND kind = 'rateLimit' \
           AND provider = $3 AND outcome = 'elapsed' \
     ) AS is_probe \
     FROM (SELECT count(*) AS others, count(*) FILTER (WHERE other.wake_at - other.reset_at < $5) AS first \
           FROM waits AS other JOIN runs ON runs.id = other.run \
           WHERE other.provider = $3 AND other.kind = 'rateLimit' AND other.state = 'open' AND NOT other.undone \
             AND other.run <> $1 AND runs.tenant = $2) AS queue";

/// Waits in one page: each may have a large request.
pub(crate) const PAGE_WAITS: i64 = 8;

/// SQL: a page of waits of a run with their payloads. The parameters are the run, the position after which the page begins,
/// and the number of waits.
pub(crate) static STORED_WAITS: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT {}, waits.request FROM waits WHERE run = $1 AND (ordinal, id, epoch) > ($2, $3, $4) \
         ORDER BY ordinal, id, epoch LIMIT $5",
        StoredWait::columns_of("waits")
    )
});

/// The position of the first message that no boundary has taken and that has answered no wait. The parameters are the run
/// and the topic, or null for any topic.
pub(crate) const UNREAD_MESSAGE: &str = "SELECT min(position) FROM messages \
     WHERE run = $1 AND taken_turn IS NULL AND (CAST($2 AS text) IS NULL OR topic = $2) \
       AND NOT EXISTS (SELECT 1 FROM waits WHERE waits.run = $1 AND NOT waits.undone \
         AND waits.position = messages.position)";
