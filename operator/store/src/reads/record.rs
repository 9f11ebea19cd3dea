//! The rows of one run, without its payloads, and the [`RunRecord`] that they make.

use std::collections::BTreeMap;

use dalsegno_protocol::Policy;
use uuid::Uuid;

use super::{AttemptRow, Column, Columns, Hash, OpenWaitsSql, Prefixed, RunRow, WaitRow};
use crate::db_error::{DbError, DbResult, timestamp};
use dalsegno_format::header;
use dalsegno_model::{
    Attempt, CallCounts, Deadlines, FinishRow, ForkRow, GatewayHeartbeat, HeadRow, InboxRow, LookUp, Outage,
    ParkedOn, RewindResult, RunRecord, SignalRow, redacted_json_error,
};

/// Attempts in a record: the current one and those before it.
const ATTEMPTS: i32 = 12;

/// The outages of the gateways since a run was created, as `from-to,from-to`. Only the row of the current attempt has
/// them.
const OUTAGES: &str = "CASE WHEN a.number = r.attempt THEN ( \
         SELECT string_agg(outage.began_at || '-' || outage.ended_at, ',') \
         FROM gateway_outages AS outage WHERE outage.ended_at > r.created_at) END AS outages";

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

    pub fn read(row: &impl Columns) -> DbResult<Self> {
        Ok(Self {
            id: Column::read(row, "id")?,
            created_at: Column::read(row, "created_at")?,
            beat_last: Column::read(row, "beat_last")?,
            beat_since: Column::read(row, "beat_since")?,
            gap_from: Column::read(row, "gap_from")?,
        })
    }

    /// The latest time in the row.
    pub fn latest(&self) -> i64 {
        self.created_at.max(self.beat_last).max(self.beat_since).max(self.gap_from)
    }
}

/// SQL that finds runs with their attempts, as [`FoundRuns`]: one statement, the same for both databases. `which`: a
/// condition on the row `r` of the run. `now`: the store's clock in SQL. If no run is found, there is one row, with the
/// store's columns only.
pub(crate) fn record_sql(which: &str, now: &str, waits: OpenWaitsSql) -> String {
    let waits = waits.text();
    let columns = [("s", StoreRow::COLUMNS), ("r", RunRow::COLUMNS), ("a", AttemptRow::COLUMNS)]
        .into_iter()
        .flat_map(|(table, columns)| columns.iter().map(move |it| format!("{table}.{it} AS {table}_{it}")))
        .collect::<Vec<_>>()
        .join(", ");
    format!(
        "SELECT {now} AS now, {OUTAGES}, {waits}, {columns}, \
         g.beat_last AS g_beat_last, g.beat_since AS g_beat_since, g.gap_from AS g_gap_from \
         FROM store s LEFT JOIN runs r ON {which} LEFT JOIN gateways g ON g.id = r.lease_gateway \
         LEFT JOIN attempts a ON a.run = r.id AND (a.number > r.attempt - {ATTEMPTS} OR a.number = r.head_attempt) \
         ORDER BY r.created_at DESC, r.id DESC, a.number DESC"
    )
}

/// The result of [`record_sql`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FoundRuns {
    /// The store's clock.
    pub now: i64,
    pub store: StoreRow,
    /// In the order of the statement.
    pub runs: Vec<RunRows>,
}

impl FoundRuns {
    /// `now`: the store's clock, if the statement does not return it.
    pub fn read<R: Columns>(rows: &[R], now: Option<i64>) -> DbResult<Self> {
        let first =
            rows.first().ok_or_else(|| DbError::Corrupt("the store has no row in its own table".into()))?;
        let now = now.map_or_else(|| Column::read(first, "now"), Ok)?;
        let store = StoreRow::read(&Prefixed { row: first, prefix: "s_" })?;
        let mut runs: Vec<RunRows> = Vec::new();
        for row in rows {
            let (of_run, of_attempt) = (Prefixed { row, prefix: "r_" }, Prefixed { row, prefix: "a_" });
            let Some(id) = of_run.uuid("id")? else { continue };
            if runs.last().is_none_or(|last| last.run.id != id) {
                let (run, outages, attempts) = (RunRow::read(&of_run)?, Vec::new(), Vec::new());
                let lease_gateway = gateway_heartbeat(&Prefixed { row, prefix: "g_" })?;
                runs.push(RunRows { now, store, lease_gateway, outages, run, attempts, waits: Vec::new() });
            }
            if let (Some(last), Some(_)) = (runs.last_mut(), of_attempt.integer("number")?) {
                last.attempts.push(AttemptRow::read(&of_attempt)?);
                if let Some(text) = row.text("outages")? {
                    last.outages = outages(&text)?;
                }
                if let Some(text) = row.text("waits")? {
                    last.waits = WaitRow::read_list(&text)?;
                }
            }
        }
        Ok(Self { now, store, runs })
    }

    /// The answer, if at most one run can be found.
    pub fn look_up(&self) -> DbResult<LookUp> {
        match self.runs.first() {
            Some(rows) => Ok(LookUp::Found(Box::new(rows.record()?))),
            None => Ok(LookUp::NotFound { store_id: self.store.id, now: timestamp(self.now)? }),
        }
    }
}

/// The rows of one run, without its payloads, from one snapshot of the database.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RunRows {
    /// The store's clock.
    pub now: i64,
    pub store: StoreRow,
    /// The heartbeats of the gateway that last renewed the lease.
    pub lease_gateway: Option<GatewayHeartbeat>,
    /// The outages of the gateways since the run was created.
    pub outages: Vec<Outage>,
    pub run: RunRow,
    /// The latest first: the current attempt, the past ones that a record shows, and the one that committed the head.
    pub attempts: Vec<AttemptRow>,
    /// The open waits of the live branch, in the order of their opening. While a transition decides: also those that it
    /// has answered.
    pub waits: Vec<WaitRow>,
}

impl RunRows {
    /// The attempt with this number, if it was read.
    pub fn attempt(&self, number: i32) -> Option<&AttemptRow> {
        self.attempts.iter().find(|attempt| attempt.number == number)
    }

    /// The run's record.
    pub fn record(&self) -> DbResult<RunRecord> {
        let Self { now, store, lease_gateway, outages, run, attempts, waits } = self;
        // Attempt 0 of a fork stands for the attempt of another run.
        // Of an agent with checkpoints of its own the last one that may have written was read too, however long ago it was.
        let first = if run.external { 1 } else { (run.attempt - ATTEMPTS + 1).max(1) };
        let shown = |attempt: &&AttemptRow| (first..run.attempt).contains(&attempt.number);
        let past = attempts.iter().filter(shown).map(AttemptRow::record).collect::<DbResult<_>>()?;
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
            rewinds: run.rewinds,
            observed_rewind_generation: run.observed_rewind_generation,
            rewind: rewind_result(run)?,
            fork: fork(run),
            is_external: run.external,
            counters: run.counters(),
            observed_reset_generation: run.observed_reset_generation,
            reset_attempt: run.reset_attempt,
            calls: call_counts(run),
            usage: run.usage(),
            limits: run.limits(),
            limit_reached_at: optional(run.limit_reached_at)?,
            active_ms: run.active_ms,
            announced: run.announced.clone(),
            cancel: signal(run.cancel_requested_at, run.cancel_told_at)?,
            suspend: signal(run.suspend_requested_at, run.suspend_told_at)?,
            inbox: InboxRow { position: run.inbox, unread: run.unread },
            finish: finish(run)?,
            deadlines: Deadlines {
                heartbeat_ms: run.heartbeat_ms,
                start_ms: run.start_ms,
                progress_ms: run.progress_ms,
                suspend_ms: run.suspend_ms,
            },
            lease_ms: run.lease_ms,
            beat: GatewayHeartbeat {
                last: timestamp(store.beat_last)?,
                since: timestamp(store.beat_since)?,
                gap_from: timestamp(store.gap_from)?,
            },
            lease_gateway: *lease_gateway,
            outages: outages.clone(),
            created_at: timestamp(run.created_at)?,
            retention: run.retention(),
            dropped_to: run.dropped_to(),
            waits: waits
                .iter()
                .filter(|wait| wait.is_open())
                .map(WaitRow::open_wait)
                .collect::<DbResult<_>>()?,
            park: parked(run)?,
            parks_without_progress: run.parks_without_progress,
            wake_at: optional(run.wake_at)?,
        })
    }

    /// The current attempt. Its lease is in the run's row, because heartbeats write only that row.
    fn current(&self) -> DbResult<Attempt> {
        let Self { run, .. } = self;
        let missing = || DbError::Corrupt(format!("run {} has no attempt {}", run.id, run.attempt));
        let attempt = self.attempt(run.attempt).ok_or_else(missing)?;
        Ok(Attempt { lease_renewed_at: optional(run.lease_renewed_at)?, ..attempt.record()? })
    }

    /// The head, with the identity of the attempt that committed it.
    fn head(&self) -> DbResult<Option<HeadRow>> {
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

/// Counts of calls. Policies without unsettled calls are left out.
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

fn signal(requested_at: Option<i64>, told_at: Option<i64>) -> DbResult<Option<SignalRow>> {
    let Some(requested_at) = requested_at else { return Ok(None) };
    Ok(Some(SignalRow { requested_at: timestamp(requested_at)?, told_at: optional(told_at)? }))
}

fn rewind_result(run: &RunRow) -> DbResult<Option<RewindResult>> {
    let parse = |text: &String| {
        serde_json::from_str(text).map_err(|error| DbError::Corrupt(redacted_json_error(&error)))
    };
    run.rewind_result.as_ref().map(parse).transpose()
}

fn fork(run: &RunRow) -> Option<ForkRow> {
    Some(ForkRow {
        state: run.fork_state?.0,
        parent: run.fork_parent,
        turn: run.fork_turn,
        content_hash: run.fork_hash.map(|Hash(hash)| header::render(&hash)),
    })
}

fn parked(run: &RunRow) -> DbResult<Option<ParkedOn>> {
    let (Some(on), Some(mode), Some(at)) = (&run.parked_on, run.park_mode, run.parked_at) else {
        return Ok(None);
    };
    Ok(Some(ParkedOn { on: on.clone(), mode: mode.0, at: timestamp(at)? }))
}

fn finish(run: &RunRow) -> DbResult<Option<FinishRow>> {
    let (Some(outcome), Some(at)) = (run.finish_outcome, run.finish_at) else { return Ok(None) };
    Ok(Some(FinishRow {
        outcome: outcome.0,
        reason: run.finish_reason.clone().unwrap_or_default(),
        message: run.finish_message.clone().unwrap_or_default(),
        output: run.finish_output.clone(),
        at: timestamp(at)?,
    }))
}

/// The heartbeats of one gateway, if the row has any.
fn gateway_heartbeat(row: &impl Columns) -> DbResult<Option<GatewayHeartbeat>> {
    let Some(last) = row.integer("beat_last")? else { return Ok(None) };
    Ok(Some(GatewayHeartbeat {
        last: timestamp(last)?,
        since: timestamp(Column::read(row, "beat_since")?)?,
        gap_from: timestamp(Column::read(row, "gap_from")?)?,
    }))
}

/// The outages in the text of [`OUTAGES`].
fn outages(text: &str) -> DbResult<Vec<Outage>> {
    let outage = |text: &str| {
        let invalid = || DbError::Corrupt(format!("{text} is no outage of the gateways"));
        let (from, to) = text.split_once('-').ok_or_else(invalid)?;
        let millis = |text: &str| text.parse().map_err(|_| invalid()).and_then(timestamp);
        Ok(Outage { from: millis(from)?, to: millis(to)? })
    };
    text.split(',').map(outage).collect()
}

fn optional(at: Option<i64>) -> DbResult<Option<jiff::Timestamp>> {
    at.map(timestamp).transpose()
}
