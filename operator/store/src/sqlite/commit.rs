//! The commit of a boundary, with its calls, its records and the run's finish.

use std::collections::HashMap;

use dalsegno_protocol::{CallState, PlannedCall};
use serde_json::{Value, json};
use sqlx::SqliteConnection;

use super::admission::{self, Admission, OpenCalls, Proposal};
use super::audit::append;
use super::boundary::{self, AcceptedBoundary, PreparedCommit, may_be_too_large};
use super::calls::next_ordinal;
use super::message_statements::{self, Taken};
use super::open_calls;
use super::records::{self, RecordsAt};
use super::row::RunRow;
use super::sqlx_types::{BoundaryColumn, EnumText, Hash, insert};
use super::transact::transact;
use super::waits;
use crate::db_error::DbResult;
use crate::reads::encode_payload;
use crate::transitions::{
    AuditEvent, OutboxEntry, ParkWithBoundary, commit_receipt, finish_detail, parked, renew_lease,
    report_signals, set_finished,
};
use dalsegno_format::seal::{AadContext, CallDigestsExt as _, PayloadCipher};
use dalsegno_format::size;
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{BoundaryId, CommitReceipt, Committed, RunId, RunOutcome};

/// Checks whether a commit is admitted and, if it is the next boundary, writes it. Returns `None` if it is the next
/// boundary but was encoded for another head.
pub(super) async fn commit(
    conn: &mut SqliteConnection,
    now: i64,
    commit: &PreparedCommit,
) -> DbResult<Option<Committed>> {
    let Some(row) = RunRow::load(conn, commit.run).await? else {
        return Ok(Some(Committed::NotFound));
    };
    let ends_attempt = commit.finish.is_some() || commit.park.is_some();
    let named: &[String] = if ends_attempt { &[] } else { &commit.open_calls };
    let open_calls =
        if open_calls::are_named(conn, &row, named).await? { OpenCalls::Allowed } else { OpenCalls::Refused };
    match admission::admit_commit(&row, &commit.capability, &commit.proposal, open_calls) {
        Admission::Accept if !matches_base(&row, commit) => Ok(None),
        Admission::Accept if may_be_too_large(&row, commit) => Ok(Some(Committed::TooLarge)),
        Admission::Accept => {
            // The end of a run is accepted on a full volume too: it lets retention delete the run's data.
            if commit.finish.is_none() {
                commit.room.check()?;
            }
            if let Some(position) = message_statements::first_missing(conn, row.id, &commit.inbox).await? {
                return Ok(Some(Committed::NoSuchMessage { position }));
            }
            if let Some(ParkWithBoundary(park)) = &commit.park
                && let Some(id) = waits::first_unknown(conn, commit.run, &park.on).await?
            {
                return Ok(Some(Committed::NoSuchWait(id)));
            }
            if records::empties_too_many_keys(conn, commit.run, &commit.records).await? {
                return Ok(Some(Committed::TooManyKeys));
            }
            let committed = write(conn, now, row, commit).await?.unwrap_or(Committed::CallsTooLarge);
            match (committed, &commit.park) {
                (Committed::Ok(receipt), Some(park)) => {
                    let answer = transact(conn, now, commit.run, park.clone()).await?;
                    Ok(Some(parked(answer, receipt)))
                }
                (committed, _) => Ok(Some(committed)),
            }
        }
        Admission::Duplicate => duplicate(conn, now, row).await.map(Some),
        Admission::Fenced => {
            let committed = is_on_live_branch(conn, commit.run, &commit.proposal).await?;
            Ok(Some(Committed::Fenced { committed }))
        }
        Admission::Finished => Ok(Some(Committed::Finished)),
        Admission::UnsettledCalls => Ok(Some(Committed::UnsettledCalls)),
        Admission::OpenCalls => Ok(Some(Committed::OpenCalls)),
        Admission::Conflict => {
            Ok(Some(Committed::Conflict { head: row.head().map(|head| (head.turn, head.boundary)) }))
        }
    }
}

/// Writes those of these commits that are the next boundary of their run, all at once, and returns a result for each of
/// them. The others are left for [`commit`]. Each commit is of another run, and has a boundary only.
pub(super) async fn commit_together(
    conn: &mut SqliteConnection,
    now: i64,
    commits: &[&PreparedCommit],
) -> DbResult<HashMap<RunId, Committed>> {
    let commits: HashMap<_, _> = commits.iter().map(|&commit| (commit.run, commit)).collect();
    let runs: Vec<_> = commits.keys().copied().collect();
    let mut accepted = Vec::with_capacity(runs.len());
    for row in RunRow::load_all(conn, &runs).await? {
        let commit = commits[&row.id];
        let open_calls = if row.own_open_calls == 0 { OpenCalls::Allowed } else { OpenCalls::Refused };
        let admitted = admission::admit_commit(&row, &commit.capability, &commit.proposal, open_calls);
        let can_join = matches_base(&row, commit) && !may_be_too_large(&row, commit) && commit.room.exists();
        if admitted == Admission::Accept && can_join {
            accepted.push(accept(now, row, commit));
        }
    }
    boundary::insert(conn, &accepted).await?;
    Ok(accepted.iter().map(|boundary| (boundary.row.id, receipt(now, boundary))).collect())
}

/// Returns whether a commit was encoded for this head. A delta, and a counted size, are valid for one head only.
fn matches_base(row: &RunRow, commit: &PreparedCommit) -> bool {
    commit.ops.base.is_none_or(|base| row.head().is_some_and(|head| head.hash == base))
}

/// Makes an admitted commit the head of its run. It is also a heartbeat, and reports a cancel request.
fn accept(now: i64, mut row: RunRow, commit: &PreparedCommit) -> AcceptedBoundary<'_> {
    renew_lease(&mut row, now);
    report_signals(&mut row, now);
    AcceptedBoundary::new(now, row, commit)
}

fn receipt(now: i64, boundary: &AcceptedBoundary<'_>) -> Committed {
    Committed::Ok(CommitReceipt {
        parent: boundary.parent.map(|parent| parent.hash),
        ..commit_receipt(&boundary.row, now)
    })
}

/// Writes an admitted commit. Returns `None`, and writes nothing, if the open calls would be too large with its calls.
async fn write(
    conn: &mut SqliteConnection,
    now: i64,
    mut row: RunRow,
    commit: &PreparedCommit,
) -> DbResult<Option<Committed>> {
    let Proposal { turn, boundary, .. } = commit.proposal;
    let added = open_calls::planned_bytes(conn, turn, commit).await?;
    if !commit.calls.is_empty() && !open_calls::add(conn, &mut row, added).await? {
        return Ok(None);
    }
    let mut accepted = accept(now, row, commit);
    boundary::insert(conn, std::slice::from_ref(&accepted)).await?;
    plan_calls(conn, now, &mut accepted.row, commit).await?;
    let at = BoundaryId { turn, boundary, epoch: accepted.row.epoch };
    records::apply(conn, RecordsAt { run: commit.run, boundary: at, now }, &commit.records).await?;
    end_run(conn, now, &mut accepted.row, commit).await?;
    message_statements::take(conn, &mut accepted.row, Taken { positions: &commit.inbox, by: at, now })
        .await?;
    if commit.finish.is_some() || !commit.calls.is_empty() || !commit.inbox.is_empty() {
        accepted.row.save(conn).await?;
    }
    Ok(Some(receipt(now, &accepted)))
}

/// Inserts the turn's planned calls with their keys. A call that exists keeps its first key. If it is not claimed yet,
/// it moves to the turn that plans it again.
async fn plan_calls(
    conn: &mut SqliteConnection,
    now: i64,
    row: &mut RunRow,
    commit: &PreparedCommit,
) -> DbResult<()> {
    if commit.calls.is_empty() {
        return Ok(());
    }
    let mut ordinal = next_ordinal(conn, commit.run).await?;
    let mut entries = Vec::new();
    for call in &commit.calls {
        let planned: Option<i64> = sqlx::query_scalar(
            "INSERT INTO calls (run, id, ordinal, turn, policy, key, state, arguments, arguments_bytes, created_at) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run, id) DO UPDATE SET turn = excluded.turn \
             WHERE calls.state = 'planned' AND calls.turn <> excluded.turn RETURNING ordinal",
        )
        .bind(commit.run)
        .bind(&call.id)
        .bind(ordinal)
        .bind(commit.proposal.turn)
        .bind(EnumText(call.policy))
        .bind(commit.cipher.seal_text(AadContext::CallKey(&call.id), &call.key)?)
        .bind(EnumText(CallState::Planned))
        .bind(encode_payload(call.arguments.as_deref(), AadContext::Arguments(&call.id), &commit.cipher)?)
        .bind(size::of_json(call.arguments.as_deref()))
        .bind(now)
        .fetch_optional(&mut *conn)
        .await?;
        match planned {
            Some(planned) if planned == ordinal => {
                ordinal += 1;
                entries.push(planned_entry(call, &commit.cipher));
            }
            Some(_) => entries.push(json!({ "call": call.id })),
            None => {}
        }
    }
    if entries.is_empty() {
        return Ok(());
    }
    let detail = json!({ "turn": commit.proposal.turn, "calls": entries });
    append(conn, row, now, AuditEvent { kind: kind::PLANNED, actor: actor::WORKER, detail }).await
}

/// Returns the audit's entry of a call that is planned for the first time.
fn planned_entry(call: &PlannedCall, cipher: &PayloadCipher) -> Value {
    let digests = cipher.call_digests(&call.id);
    let mut entry = json!({ "call": call.id, "policy": call.policy, "key": digests.render(&call.key) });
    if let Some(arguments) = &call.arguments {
        entry["arguments"] = digests.render(arguments.get()).into();
    }
    entry
}

/// Finishes the run if the commit says so.
async fn end_run(
    conn: &mut SqliteConnection,
    now: i64,
    row: &mut RunRow,
    commit: &PreparedCommit,
) -> DbResult<()> {
    let Some(finish) = &commit.finish else { return Ok(()) };
    let by = (commit.proposal.commit_id, commit.proposal.digest.stored);
    set_finished(row, now, finish, Some(by));
    row.changed_at = now;
    let detail = finish_detail(row, finish);
    append(conn, row, now, AuditEvent { kind: kind::FINISHED, actor: actor::WORKER, detail }).await?;
    if finish.outcome == RunOutcome::Failed {
        let entry = OutboxEntry::failed(row, now);
        insert(conn, OutboxEntry::TABLE, entry.assignments(row.id)).await?;
    }
    waits::withdraw(conn, now, row).await
}

/// Returns the receipt of the stored head again, and reports a cancel request.
async fn duplicate(conn: &mut SqliteConnection, now: i64, mut row: RunRow) -> DbResult<Committed> {
    if report_signals(&mut row, now) {
        row.save(conn).await?;
    }
    Ok(Committed::Duplicate(commit_receipt(&row, now)))
}

/// Returns whether this very commit is on the live branch.
async fn is_on_live_branch(conn: &mut SqliteConnection, run: RunId, proposal: &Proposal) -> DbResult<bool> {
    Ok(sqlx::query_scalar(
        "SELECT count(*) FROM boundaries \
         WHERE run = ? AND turn = ? AND boundary = ? AND commit_id = ? AND digest IN (?, ?) AND NOT undone",
    )
    .bind(run)
    .bind(proposal.turn)
    .bind(BoundaryColumn(proposal.boundary))
    .bind(proposal.commit_id)
    .bind(Hash(proposal.digest.stored))
    .bind(Hash(proposal.digest.plain))
    .fetch_one(conn)
    .await?)
}
