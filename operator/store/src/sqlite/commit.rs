//! Boundaries and finishes.

use std::collections::HashMap;

use dalsegno_protocol::{CallState, PlannedCall};
use serde_json::{Value, json};
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::audit::append;
use super::boundary::{self, Next, Prepared, may_be_too_large};
use super::calls::next_ordinal;
use super::columns::{Hash, Which, Word};
use super::judge::{self, Proposal, Ruling};
use super::open_calls;
use super::records;
use super::row::RunRow;
use crate::audit::{actor, kind};
use crate::db_error::DbResult;
use crate::reads::encode_payload;
use crate::seal::{AadContext, CallDigestsExt as _, PayloadCipher};
use crate::transitions::{commit_receipt, finish_detail, renew_lease, report_cancel, set_finished};
use crate::{Committed, Digest, NewFinish, RunId, Standing, size};

/// Judges a commit and, if it is the next boundary, writes it. `None`: it is the next, but cannot stand on this head.
pub(super) async fn commit(
    conn: &mut SqliteConnection,
    now: i64,
    commit: &Prepared,
) -> DbResult<Option<Committed>> {
    let Some(row) = RunRow::load(conn, commit.run).await? else {
        return Ok(Some(Committed::NotFound));
    };
    match judge::commit(&row, &commit.capability, &commit.proposal) {
        Ruling::Accept if !fits(&row, commit) => Ok(None),
        Ruling::Accept if may_be_too_large(&row, commit) => Ok(Some(Committed::TooLarge)),
        Ruling::Accept => Ok(Some(write(conn, now, row, commit).await?.unwrap_or(Committed::CallsTooLarge))),
        Ruling::Duplicate => duplicate(conn, now, row).await.map(Some),
        Ruling::Fenced => {
            let committed = stands(conn, commit.run, &commit.proposal).await?;
            Ok(Some(Committed::Fenced { committed }))
        }
        Ruling::Finished => Ok(Some(Committed::Finished)),
        Ruling::UnsettledCalls => Ok(Some(Committed::UnsettledCalls)),
        Ruling::Conflict => {
            Ok(Some(Committed::Conflict { head: row.head().map(|head| (head.turn, head.boundary)) }))
        }
    }
}

/// Judges commits, each of another run, and writes those that are the next boundary and nothing else: all at once. The
/// answer to each of these; the others are for [`commit`].
pub(super) async fn commit_together(
    conn: &mut SqliteConnection,
    now: i64,
    commits: &[&Prepared],
) -> DbResult<HashMap<RunId, Committed>> {
    let commits: HashMap<_, _> = commits.iter().map(|&commit| (commit.run, commit)).collect();
    let runs: Vec<_> = commits.keys().copied().collect();
    let mut accepted = Vec::with_capacity(runs.len());
    for row in RunRow::load_all(conn, &runs).await? {
        let commit = commits[&row.id];
        let ruling = judge::commit(&row, &commit.capability, &commit.proposal);
        if ruling == Ruling::Accept && fits(&row, commit) && !may_be_too_large(&row, commit) {
            accepted.push(next(now, row, commit));
        }
    }
    boundary::keep(conn, &accepted).await?;
    Ok(accepted.iter().map(|next| (next.row.id, kept(next))).collect())
}

/// Whether it can stand on this head: a patch, and what was counted, stand on their base alone.
fn fits(row: &RunRow, commit: &Prepared) -> bool {
    commit.ops.base.is_none_or(|base| row.head().is_some_and(|head| head.hash == base))
}

fn next(now: i64, mut row: RunRow, commit: &Prepared) -> Next<'_> {
    renew_lease(&mut row, now);
    report_cancel(&mut row, now);
    Next::new(now, row, commit)
}

fn kept(next: &Next<'_>) -> Committed {
    Committed::Ok(Standing { parent: next.parent.map(|parent| parent.hash), ..commit_receipt(&next.row) })
}

/// `None`, and nothing is written: its calls are too large beside those that are open.
async fn write(
    conn: &mut SqliteConnection,
    now: i64,
    mut row: RunRow,
    commit: &Prepared,
) -> DbResult<Option<Committed>> {
    let Proposal { turn, boundary, .. } = commit.proposal;
    let added = open_calls::planned(conn, row.id, turn, &commit.calls).await?;
    if !commit.calls.is_empty() && !open_calls::grow(conn, &mut row, added).await? {
        return Ok(None);
    }
    let mut next = next(now, row, commit);
    boundary::keep(conn, std::slice::from_ref(&next)).await?;
    plan(conn, now, &mut next.row, commit).await?;
    records::apply(conn, now, &next.row, (turn, boundary), &commit.records).await?;
    if let Some(finish) = &commit.finish {
        let by = (commit.proposal.commit_id, commit.proposal.digest.kept);
        end_run(conn, now, &mut next.row, finish, by).await?;
    }
    if commit.finish.is_some() || !commit.calls.is_empty() {
        next.row.save(conn).await?;
    }
    Ok(Some(kept(&next)))
}

/// Makes the turn's calls and their keys durable. A call that is there keeps its first key; one that nobody has claimed is of
/// the turn that plans it anew.
async fn plan(conn: &mut SqliteConnection, now: i64, row: &mut RunRow, commit: &Prepared) -> DbResult<()> {
    if commit.calls.is_empty() {
        return Ok(());
    }
    let mut ordinal = next_ordinal(conn, commit.run).await?;
    let mut told = Vec::new();
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
        .bind(Word(call.policy))
        .bind(&call.key)
        .bind(Word(CallState::Planned))
        .bind(encode_payload(call.arguments.as_deref(), AadContext::Arguments(&call.id), &commit.cipher)?)
        .bind(size::of_json(call.arguments.as_deref()))
        .bind(now)
        .fetch_optional(&mut *conn)
        .await?;
        match planned {
            Some(planned) if planned == ordinal => {
                ordinal += 1;
                told.push(first_told(call, &commit.cipher));
            }
            Some(_) => told.push(json!({ "call": call.id })),
            None => {}
        }
    }
    if told.is_empty() {
        return Ok(());
    }
    let detail = json!({ "turn": commit.proposal.turn, "calls": told });
    append(conn, row, now, kind::PLANNED, actor::WORKER, detail).await
}

/// What the audit tells of a call that is planned for the first time.
fn first_told(call: &PlannedCall, cipher: &PayloadCipher) -> Value {
    let digests = cipher.call_digests(&call.id);
    let mut told = json!({ "call": call.id, "policy": call.policy, "key": digests.render(&call.key) });
    if let Some(arguments) = &call.arguments {
        told["arguments"] = digests.render(arguments.get()).into();
    }
    told
}

async fn end_run(
    conn: &mut SqliteConnection,
    now: i64,
    row: &mut RunRow,
    finish: &NewFinish,
    by: (Uuid, Digest),
) -> DbResult<()> {
    set_finished(row, now, finish, Some(by));
    row.changed_at = now;
    let detail = finish_detail(row, finish);
    append(conn, row, now, kind::FINISHED, actor::WORKER, detail).await
}

/// What stands is told again; so is a cancel.
async fn duplicate(conn: &mut SqliteConnection, now: i64, mut row: RunRow) -> DbResult<Committed> {
    if report_cancel(&mut row, now) {
        row.save(conn).await?;
    }
    Ok(Committed::Duplicate(commit_receipt(&row)))
}

/// Whether this very commit stands on the live branch.
async fn stands(conn: &mut SqliteConnection, run: RunId, proposal: &Proposal) -> DbResult<bool> {
    Ok(sqlx::query_scalar(
        "SELECT count(*) FROM boundaries \
         WHERE run = ? AND turn = ? AND boundary = ? AND commit_id = ? AND digest IN (?, ?) AND NOT undone",
    )
    .bind(run)
    .bind(proposal.turn)
    .bind(Which(proposal.boundary))
    .bind(proposal.commit_id)
    .bind(Hash(proposal.digest.kept))
    .bind(Hash(proposal.digest.plain))
    .fetch_one(conn)
    .await?)
}
