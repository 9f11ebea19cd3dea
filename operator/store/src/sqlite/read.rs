//! Everything about one run but its payloads.

use std::collections::BTreeMap;

use dalsegno_protocol::{Policy, Usage};
use sqlx::{Row as _, SqliteConnection};
use uuid::Uuid;

use super::attempt_row::AttemptRow;
use super::change::counters;
use super::open_calls;
use super::row::RunRow;
use crate::fault::{Fault, Work, timestamp};
use crate::statements::CAPACITY;
use crate::{
    Attempt, BeatRow, CallCounts, CancelRow, Deadlines, Digest, FinishRow, HeadRow, Held, LookUp, Retention,
    RunId, RunRecord, SNAPSHOT_DUE, Sizes, header,
};

/// Attempts in a record: the current one and those before it.
const ATTEMPTS: i64 = 12;

/// The store's own row.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreRow {
    pub id: Uuid,
    created_at: i64,
    pub beat_last: i64,
    pub beat_since: i64,
    pub gap_from: i64,
}

impl StoreRow {
    /// The latest time that it knows.
    pub fn latest(&self) -> i64 {
        self.created_at.max(self.beat_last).max(self.beat_since).max(self.gap_from)
    }
}

pub(super) async fn store_row(conn: &mut SqliteConnection) -> Work<StoreRow> {
    let row = sqlx::query("SELECT id, created_at, beat_last, beat_since, gap_from FROM store")
        .fetch_one(conn)
        .await?;
    Ok(StoreRow {
        id: row.try_get("id")?,
        created_at: row.try_get("created_at")?,
        beat_last: row.try_get("beat_last")?,
        beat_since: row.try_get("beat_since")?,
        gap_from: row.try_get("gap_from")?,
    })
}

/// The run's record. In a transaction that writes, the row must be saved before.
pub(super) async fn record(conn: &mut SqliteConnection, now: i64, row: RunRow) -> Work<RunRecord> {
    let store = store_row(conn).await?;
    let rows = sqlx::query("SELECT * FROM attempts WHERE run = ? ORDER BY number DESC LIMIT ?")
        .bind(row.id)
        .bind(ATTEMPTS)
        .fetch_all(&mut *conn)
        .await?;
    let attempts = rows.iter().map(AttemptRow::read).collect::<sqlx::Result<Vec<_>>>()?;
    let head = head(conn, &row, &attempts).await?;
    let mut past = attempts.iter().map(AttemptRow::record).collect::<Work<Vec<_>>>()?.into_iter();
    let mut attempt =
        past.next().ok_or_else(|| Fault::Corrupt(format!("run {} has no attempt at all", row.id)))?;
    // Heartbeats touch the run's row alone.
    attempt.lease_renewed_at = optional(row.lease_renewed_at)?;
    Ok(RunRecord {
        id: row.id,
        store_id: store.id,
        now: timestamp(now)?,
        attempt,
        past: past.collect(),
        head,
        highest_turn: row.highest_turn,
        counters: counters(&row),
        calls: call_counts(&row),
        usage: Usage {
            tokens_in: row.tokens_in,
            tokens_out: row.tokens_out,
            tool_calls: row.tool_calls,
            cost_micro_usd: row.cost_micro_usd,
        },
        cancel: cancel(&row)?,
        finish: finish(&row)?,
        deadlines: Deadlines {
            heartbeat_ms: row.heartbeat_ms,
            start_ms: row.start_ms,
            progress_ms: row.progress_ms,
        },
        lease_ms: row.lease_ms,
        beat: BeatRow {
            last: timestamp(store.beat_last)?,
            since: timestamp(store.beat_since)?,
            gap_from: timestamp(store.gap_from)?,
        },
        created_at: timestamp(row.created_at)?,
        retention: Retention { days: row.retention_days, keep_last: row.keep_last },
        dropped_to: row.dropped_to(),
        lifecycle: row.lifecycle.0,
        epoch: row.epoch,
        observed_reset_generation: row.observed_reset_generation,
        reset_attempt: row.reset_attempt,
        tenant: row.tenant,
        namespace: row.namespace,
        name: row.name,
        object_uid: row.object_uid,
    })
}

/// The head, with the identity of the attempt that committed it, however long ago that was.
async fn head(conn: &mut SqliteConnection, row: &RunRow, attempts: &[AttemptRow]) -> Work<Option<HeadRow>> {
    let Some(head) = row.head() else { return Ok(None) };
    let committer = match attempts.iter().find(|attempt| attempt.number == head.attempt) {
        Some(attempt) => Some(attempt.clone()),
        None => AttemptRow::load(conn, row.id, head.attempt).await?,
    };
    Ok(Some(HeadRow {
        turn: head.turn,
        boundary: head.boundary,
        epoch: head.epoch,
        attempt: head.attempt,
        position: row.head_position,
        content_hash: header::render(&head.hash),
        at: timestamp(head.at)?,
        revision: committer.as_ref().and_then(|attempt| attempt.revision.clone()),
        identity: committer.as_ref().and_then(AttemptRow::identity),
    }))
}

/// Policies without an unsettled call are not listed.
fn call_counts(row: &RunRow) -> CallCounts {
    let unsettled: BTreeMap<_, _> = [
        (Policy::RetrySameKey, row.unsettled_retry_same_key),
        (Policy::Probe, row.unsettled_probe),
        (Policy::Ask, row.unsettled_ask),
        (Policy::ReadOnly, row.unsettled_read_only),
    ]
    .into_iter()
    .filter(|(_, count)| *count > 0)
    .collect();
    CallCounts { completed: row.completed_calls, keys_refused: row.keys_refused, unsettled }
}

fn cancel(row: &RunRow) -> Work<Option<CancelRow>> {
    row.cancel_requested_at
        .map(|at| Ok(CancelRow { requested_at: timestamp(at)?, told_at: optional(row.cancel_told_at)? }))
        .transpose()
}

fn finish(row: &RunRow) -> Work<Option<FinishRow>> {
    let (Some(outcome), Some(at)) = (row.finish_outcome, row.finish_at) else {
        return Ok(None);
    };
    Ok(Some(FinishRow {
        outcome: outcome.0,
        reason: row.finish_reason.clone().unwrap_or_default(),
        message: row.finish_message.clone().unwrap_or_default(),
        output: row.finish_output.clone(),
        at: timestamp(at)?,
    }))
}

fn optional(at: Option<i64>) -> Work<Option<jiff::Timestamp>> {
    at.map(timestamp).transpose()
}

/// The run of an object.
pub(super) async fn look_up(conn: &mut SqliteConnection, now: i64, object_uid: String) -> Work<LookUp> {
    let found = sqlx::query("SELECT * FROM runs WHERE object_uid = ?")
        .bind(object_uid)
        .fetch_optional(&mut *conn)
        .await?;
    match found.as_ref().map(RunRow::read).transpose()? {
        Some(row) => Ok(LookUp::Found(Box::new(record(conn, now, row).await?))),
        None => Ok(LookUp::NotFound { store_id: store_row(conn).await?.id, now: timestamp(now)? }),
    }
}

/// The run with this id.
pub(super) async fn get_run(conn: &mut SqliteConnection, now: i64, run: RunId) -> Work<Option<RunRecord>> {
    match RunRow::load(conn, run).await? {
        Some(row) => Ok(Some(record(conn, now, row).await?)),
        None => Ok(None),
    }
}

/// Which namespaces hold most.
pub(super) async fn capacity(conn: &mut SqliteConnection, namespaces: u32) -> Work<Vec<Held>> {
    let rows = sqlx::query_as(CAPACITY).bind(namespaces).fetch_all(conn).await?;
    Ok(rows.into_iter().map(|(namespace, bytes)| Held { namespace, bytes }).collect())
}

/// One of its attempts.
pub(super) async fn attempt(conn: &mut SqliteConnection, run: RunId, number: i32) -> Work<Option<Attempt>> {
    AttemptRow::load(conn, run, number).await?.map(|row| row.record()).transpose()
}

/// Every run that ever bore the name, the newest first.
pub(super) async fn find(
    conn: &mut SqliteConnection,
    now: i64,
    namespace: String,
    name: String,
) -> Work<Vec<RunRecord>> {
    let rows =
        sqlx::query("SELECT * FROM runs WHERE namespace = ? AND name = ? ORDER BY created_at DESC, id DESC")
            .bind(namespace)
            .bind(name)
            .fetch_all(&mut *conn)
            .await?;
    let mut records = Vec::with_capacity(rows.len());
    for row in &rows {
        records.push(record(conn, now, RunRow::read(row)?).await?);
    }
    Ok(records)
}

/// Whether this capability is the current epoch's.
pub(super) async fn is_current(conn: &mut SqliteConnection, run: RunId, capability: Digest) -> Work<bool> {
    Ok(sqlx::query_scalar("SELECT count(*) FROM runs WHERE id = ? AND capability = ?")
        .bind(run)
        .bind(super::columns::Hash(capability))
        .fetch_one(conn)
        .await?)
}

/// How much a lookup of the head reads.
pub(super) async fn sizes(conn: &mut SqliteConnection, run: RunId) -> Work<Sizes> {
    let Some(row) = RunRow::load(conn, run).await? else { return Ok(Sizes::default()) };
    let tail = sqlx::query_scalar(
        "SELECT coalesce(sum(bytes), 0) FROM ( \
             SELECT coalesce(length(ops), 0) + coalesce(length(events), 0) AS bytes FROM boundaries \
             WHERE run = ?1 AND turn <= ?2 AND NOT undone \
             ORDER BY turn DESC, boundary DESC LIMIT ?3 \
         )",
    );
    Ok(Sizes {
        state: row.known_state_bytes(),
        tail: tail.bind(run).bind(row.head_turn).bind(SNAPSHOT_DUE * 2).fetch_one(&mut *conn).await?,
        calls: open_calls::bytes(conn, &row).await?,
    })
}
