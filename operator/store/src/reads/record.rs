//! Everything about one run but its payloads: the rows that it is made of, and [`RunRecord`] from these rows.

use std::collections::BTreeMap;

use dalsegno_protocol::{Policy, Usage};
use uuid::Uuid;

use super::{AttemptRow, Column, Columns, Prefixed, RunRow};
use crate::fault::{Fault, Work, timestamp};
use crate::{
    Attempt, BeatRow, CallCounts, CancelRow, Deadlines, FinishRow, HeadRow, LookUp, Retention, RunRecord,
    header,
};

/// Attempts in a record: the current one and those before it.
const ATTEMPTS: i32 = 12;

/// The store's own row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreRow {
    pub id: Uuid,
    pub created_at: i64,
    pub beat_last: i64,
    pub beat_since: i64,
    pub gap_from: i64,
}

impl StoreRow {
    pub const COLUMNS: &'static [&'static str] = &["id", "created_at", "beat_last", "beat_since", "gap_from"];

    pub fn read(row: &impl Columns) -> Work<Self> {
        Ok(Self {
            id: Column::read(row, "id")?,
            created_at: Column::read(row, "created_at")?,
            beat_last: Column::read(row, "beat_last")?,
            beat_since: Column::read(row, "beat_since")?,
            gap_from: Column::read(row, "gap_from")?,
        })
    }

    /// The latest time that it knows.
    pub fn latest(&self) -> i64 {
        self.created_at.max(self.beat_last).max(self.beat_since).max(self.gap_from)
    }
}

/// What finds runs as [`RunRows`], each with its attempts: one statement, the same on both databases. `which`: a
/// condition on the row `r` of the run. `now`: the store's clock in SQL. Where no run is found, one row holds the
/// store's columns alone.
pub(crate) fn record_sql(which: &str, now: &str) -> String {
    let columns = [("s", StoreRow::COLUMNS), ("r", RunRow::COLUMNS), ("a", AttemptRow::COLUMNS)]
        .into_iter()
        .flat_map(|(table, columns)| columns.iter().map(move |it| format!("{table}.{it} AS {table}_{it}")))
        .collect::<Vec<_>>()
        .join(", ");
    format!(
        "SELECT {now} AS now, {columns} FROM store s LEFT JOIN runs r ON {which} \
         LEFT JOIN attempts a ON a.run = r.id AND (a.number > r.attempt - {ATTEMPTS} OR a.number = r.head_attempt) \
         ORDER BY r.created_at DESC, r.id DESC, a.number DESC"
    )
}

/// What [`record_sql`] has found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    /// The store's clock.
    pub now: i64,
    pub store: StoreRow,
    /// In the order of the statement.
    pub runs: Vec<RunRows>,
}

impl Found {
    /// `now`: the store's clock, where the database does not tell it.
    pub fn read<R: Columns>(rows: &[R], now: Option<i64>) -> Work<Self> {
        let first = rows.first().ok_or_else(|| Fault::Corrupt("the store's row is not there".into()))?;
        let now = now.map_or_else(|| Column::read(first, "now"), Ok)?;
        let store = StoreRow::read(&Prefixed { row: first, prefix: "s_" })?;
        let mut runs: Vec<RunRows> = Vec::new();
        for row in rows {
            let (of_run, of_attempt) = (Prefixed { row, prefix: "r_" }, Prefixed { row, prefix: "a_" });
            let Some(id) = of_run.uuid("id")? else { continue };
            if runs.last().is_none_or(|last| last.run.id != id) {
                runs.push(RunRows { now, store, run: RunRow::read(&of_run)?, attempts: Vec::new() });
            }
            if let (Some(last), Some(_)) = (runs.last_mut(), of_attempt.integer("number")?) {
                last.attempts.push(AttemptRow::read(&of_attempt)?);
            }
        }
        Ok(Self { now, store, runs })
    }

    /// The only run that may have been found, or none.
    pub fn look_up(&self) -> Work<LookUp> {
        match self.runs.first() {
            Some(rows) => Ok(LookUp::Found(Box::new(rows.record()?))),
            None => Ok(LookUp::NotFound { store_id: self.store.id, now: timestamp(self.now)? }),
        }
    }
}

/// The rows that tell everything about one run but its payloads, as they stand at one moment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RunRows {
    /// The store's clock.
    pub now: i64,
    pub store: StoreRow,
    pub run: RunRow,
    /// The current attempt, those that a record shows before it, and the one that committed the head; the latest first.
    pub attempts: Vec<AttemptRow>,
}

impl RunRows {
    /// The attempt of this number, if it is among them.
    pub fn attempt(&self, number: i32) -> Option<&AttemptRow> {
        self.attempts.iter().find(|attempt| attempt.number == number)
    }

    /// The run's record.
    pub fn record(&self) -> Work<RunRecord> {
        let Self { now, store, run, attempts } = self;
        let shown =
            |attempt: &&AttemptRow| (run.attempt - ATTEMPTS + 1..run.attempt).contains(&attempt.number);
        let past = attempts.iter().filter(shown).map(AttemptRow::record).collect::<Work<_>>()?;
        Ok(RunRecord {
            id: run.id,
            store_id: store.id,
            now: timestamp(*now)?,
            tenant: run.tenant.clone(),
            namespace: run.namespace.clone(),
            name: run.name.clone(),
            object_uid: run.object_uid.clone(),
            lifecycle: run.lifecycle.0,
            epoch: run.epoch,
            attempt: self.current()?,
            past,
            head: self.head()?,
            highest_turn: run.highest_turn,
            counters: run.counters(),
            observed_reset_generation: run.observed_reset_generation,
            reset_attempt: run.reset_attempt,
            calls: call_counts(run),
            usage: Usage {
                tokens_in: run.tokens_in,
                tokens_out: run.tokens_out,
                tool_calls: run.tool_calls,
                cost_micro_usd: run.cost_micro_usd,
            },
            cancel: cancel(run)?,
            finish: finish(run)?,
            deadlines: Deadlines {
                heartbeat_ms: run.heartbeat_ms,
                start_ms: run.start_ms,
                progress_ms: run.progress_ms,
            },
            lease_ms: run.lease_ms,
            beat: BeatRow {
                last: timestamp(store.beat_last)?,
                since: timestamp(store.beat_since)?,
                gap_from: timestamp(store.gap_from)?,
            },
            created_at: timestamp(run.created_at)?,
            retention: Retention { days: run.retention_days, keep_last: run.keep_last },
            dropped_to: run.dropped_to(),
        })
    }

    /// Heartbeats touch the run's row alone: the current attempt's lease is there.
    fn current(&self) -> Work<Attempt> {
        let Self { run, .. } = self;
        let missing = || Fault::Corrupt(format!("run {} has no attempt {}", run.id, run.attempt));
        let attempt = self.attempt(run.attempt).ok_or_else(missing)?;
        Ok(Attempt { lease_renewed_at: optional(run.lease_renewed_at)?, ..attempt.record()? })
    }

    /// The head, with the identity of the attempt that committed it, however long ago that was.
    fn head(&self) -> Work<Option<HeadRow>> {
        let Some(head) = self.run.head() else { return Ok(None) };
        let committer = self.attempt(head.attempt);
        Ok(Some(HeadRow {
            turn: head.turn,
            boundary: head.boundary,
            epoch: head.epoch,
            attempt: head.attempt,
            position: self.run.head_position,
            content_hash: header::render(&head.hash),
            at: timestamp(head.at)?,
            revision: committer.and_then(|attempt| attempt.revision.clone()),
            identity: committer.and_then(AttemptRow::identity),
        }))
    }
}

/// Policies without an unsettled call are not listed.
fn call_counts(run: &RunRow) -> CallCounts {
    let unsettled: BTreeMap<_, _> = [
        (Policy::RetrySameKey, run.unsettled_retry_same_key),
        (Policy::Probe, run.unsettled_probe),
        (Policy::Ask, run.unsettled_ask),
        (Policy::ReadOnly, run.unsettled_read_only),
    ]
    .into_iter()
    .filter(|(_, count)| *count > 0)
    .collect();
    CallCounts { completed: run.completed_calls, keys_refused: run.keys_refused, unsettled }
}

fn cancel(run: &RunRow) -> Work<Option<CancelRow>> {
    let Some(requested_at) = run.cancel_requested_at else { return Ok(None) };
    let told_at = optional(run.cancel_told_at)?;
    Ok(Some(CancelRow { requested_at: timestamp(requested_at)?, told_at }))
}

fn finish(run: &RunRow) -> Work<Option<FinishRow>> {
    let (Some(outcome), Some(at)) = (run.finish_outcome, run.finish_at) else { return Ok(None) };
    Ok(Some(FinishRow {
        outcome: outcome.0,
        reason: run.finish_reason.clone().unwrap_or_default(),
        message: run.finish_message.clone().unwrap_or_default(),
        output: run.finish_output.clone(),
        at: timestamp(at)?,
    }))
}

fn optional(at: Option<i64>) -> Work<Option<jiff::Timestamp>> {
    at.map(timestamp).transpose()
}
