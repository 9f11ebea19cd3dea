//! What is known of a boundary besides its own row.

use std::sync::LazyLock;

use dalsegno_protocol::Usage;

use super::{CallRow, Column as _, Columns};
use crate::db_error::{DbError, DbResult, timestamp};
use dalsegno_format::seal::PayloadCipher;
use dalsegno_model::{BoundaryFacts, LedBy, PastCall};

/// The boundary `$2`, `$3`, `$4` of the run `$1`.
///
/// What was used up to it is the run's sum without what later boundaries and later ends of calls used. So the head of a
/// run, however long, costs few rows. Epochs only grow, and turns grow within an epoch. A rewind makes turns smaller: then
/// all are read.
pub(crate) const BOUNDARY_FACTS: &str = "\
    SELECT b.undone, b.event_count, b.at, p.at AS parent_at, \
        (SELECT t.at FROM boundaries t \
         WHERE t.run = b.run AND t.turn = b.turn - 1 AND t.boundary = 2 AND t.epoch <= b.epoch \
         ORDER BY t.epoch DESC LIMIT 1) AS turn_began_at, \
        (SELECT count(*) FROM attempts a \
         WHERE a.run = b.run AND a.number < b.attempt AND a.charged) AS recovery_attempts, \
        (SELECT count(*) FROM attempts a \
         WHERE a.run = b.run AND a.number < b.attempt AND a.class = 'Disruption') AS disruptions, \
        (SELECT count(*) FROM calls c WHERE c.run = b.run AND c.turn <= b.turn) AS call_count, \
        r.tokens_in - later.tokens_in - spent.tokens_in AS tokens_in, r.tokens_out - later.tokens_out - spent.tokens_out AS tokens_out, \
        r.tool_calls - later.tool_calls - spent.tool_calls AS tool_calls, \
        r.cost_micro_usd - later.cost_micro_usd - spent.cost_micro_usd AS cost_micro_usd \
    FROM boundaries b JOIN runs r ON r.id = b.run \
    LEFT JOIN boundaries p ON p.run = b.run AND p.turn = b.parent_turn AND p.boundary = b.parent_boundary \
        AND p.epoch = b.parent_epoch \
    CROSS JOIN ( \
        SELECT CAST(coalesce(sum(tokens_in), 0) AS bigint) AS tokens_in, \
            CAST(coalesce(sum(tokens_out), 0) AS bigint) AS tokens_out, \
            CAST(coalesce(sum(tool_calls), 0) AS bigint) AS tool_calls, \
            CAST(coalesce(sum(cost_micro_usd), 0) AS bigint) AS cost_micro_usd \
        FROM boundaries \
        WHERE run = $1 AND turn >= (SELECT CASE rewinds WHEN 0 THEN $2 ELSE 0 END FROM runs WHERE id = $1) \
            AND (epoch, turn, boundary) > ($4, $2, $3) \
    ) AS later \
    CROSS JOIN ( \
        SELECT CAST(coalesce(sum(tokens_in), 0) AS bigint) AS tokens_in, \
            CAST(coalesce(sum(tokens_out), 0) AS bigint) AS tokens_out, \
            CAST(coalesce(sum(tool_calls), 0) AS bigint) AS tool_calls, \
            CAST(coalesce(sum(cost_micro_usd), 0) AS bigint) AS cost_micro_usd \
        FROM calls \
        WHERE run = $1 AND spent_at > ( \
            SELECT at FROM boundaries WHERE run = $1 AND turn = $2 AND boundary = $3 AND epoch = $4 \
        ) \
    ) AS spent \
    WHERE b.run = $1 AND b.turn = $2 AND b.boundary = $3 AND b.epoch = $4";

/// The latest calls of the run `$1` that were first seen up to the turn `$2`, in order, at most `$3`. The payloads of the
/// latest of them are read, of up to `$4` bytes together.
pub(crate) static PAST_CALLS_SQL: LazyLock<String> = LazyLock::new(|| {
    let columns = CallRow::COLUMNS.iter().map(|column| match *column {
        "arguments" | "result" => format!("CASE WHEN latest.spent <= $4 THEN calls.{column} END AS {column}"),
        column => format!("calls.{column}"),
    });
    let columns = columns.collect::<Vec<_>>().join(", ");
    format!(
        "SELECT {columns}, latest.spent > $4 AND calls.arguments_bytes + calls.result_bytes > 0 AS omitted \
         FROM ( \
             SELECT id, sum(bytes) OVER (ORDER BY turn DESC, ordinal DESC) AS spent \
             FROM ( \
                 SELECT id, turn, ordinal, arguments_bytes + result_bytes AS bytes FROM calls \
                 WHERE run = $1 AND turn <= $2 ORDER BY turn DESC, ordinal DESC LIMIT $3 \
             ) AS page \
         ) AS latest \
         JOIN calls ON calls.run = $1 AND calls.id = latest.id ORDER BY calls.turn, calls.ordinal"
    )
});

/// What led to the boundary `$2`, `$3`, `$4` of the run `$1`, which was committed at `$5`, and the boundary before it at
/// `$6`. The waits and messages of a run that was rewound are those of the live branch.
pub(crate) const LED_BY: &str = "\
    SELECT 'call' AS kind, id AS name, ordinal AS place FROM calls WHERE run = $1 AND turn = $2 AND ended_at <= $5 \
    UNION ALL \
    SELECT 'wait', id, ordinal FROM waits \
    WHERE run = $1 AND NOT undone AND answered_at >= $6 AND answered_at <= $5 \
    UNION ALL \
    SELECT 'message', '', position FROM messages \
    WHERE run = $1 AND taken_turn = $2 AND taken_boundary = $3 AND taken_epoch = $4 \
    ORDER BY kind, place";

/// The row of [`BOUNDARY_FACTS`].
#[derive(Clone, Debug)]
pub(crate) struct BoundaryFactsRow {
    /// The facts without the calls, and without what led to the boundary.
    facts: BoundaryFacts,
    pub at: i64,
    pub parent_at: Option<i64>,
}

impl BoundaryFactsRow {
    pub fn read(row: &impl Columns) -> DbResult<Self> {
        Ok(Self {
            facts: BoundaryFacts {
                undone: bool::read(row, "undone")?,
                events: i64::read(row, "event_count")?,
                turn_began_at: Option::read(row, "turn_began_at")?.map(timestamp).transpose()?,
                usage: Usage {
                    tokens_in: i64::read(row, "tokens_in")?,
                    tokens_out: i64::read(row, "tokens_out")?,
                    tool_calls: i64::read(row, "tool_calls")?,
                    cost_micro_usd: i64::read(row, "cost_micro_usd")?,
                },
                recovery_attempts: i64::read(row, "recovery_attempts")?,
                disruptions: i64::read(row, "disruptions")?,
                call_count: i64::read(row, "call_count")?,
                calls: Vec::new(),
                led_by: LedBy::default(),
            },
            at: i64::read(row, "at")?,
            parent_at: Option::read(row, "parent_at")?,
        })
    }

    /// All facts.
    pub fn with(
        self,
        calls: &[PastCallRow],
        led_by: LedBy,
        cipher: &PayloadCipher,
    ) -> DbResult<BoundaryFacts> {
        let calls = calls.iter().map(|row| row.decode(cipher)).collect::<DbResult<_>>()?;
        Ok(BoundaryFacts { calls, led_by, ..self.facts })
    }
}

/// A row of [`PAST_CALLS_SQL`].
#[derive(Clone, Debug)]
pub(crate) struct PastCallRow {
    pub call: CallRow,
    omitted: bool,
}

impl PastCallRow {
    pub fn read(row: &impl Columns) -> DbResult<Self> {
        Ok(Self { call: CallRow::read(row)?, omitted: bool::read(row, "omitted")? })
    }

    fn decode(&self, cipher: &PayloadCipher) -> DbResult<PastCall> {
        let stored = self.call.stored(cipher)?;
        Ok(PastCall {
            call: stored.call,
            attempt: stored.attempt,
            omitted: self.omitted,
            damaged: stored.damage.is_some(),
        })
    }
}

/// The rows of [`LED_BY`].
pub(crate) fn led_by(rows: &[impl Columns]) -> DbResult<LedBy> {
    let mut led_by = LedBy::default();
    for row in rows {
        let name = String::read(row, "name")?;
        match &*String::read(row, "kind")? {
            "call" => led_by.calls.push(name),
            "wait" => led_by.waits.push(name),
            "message" => led_by.messages.push(i64::read(row, "place")?),
            other => return Err(DbError::unknown_value("what led to a boundary", other)),
        }
    }
    Ok(led_by)
}
