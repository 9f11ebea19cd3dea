//! Boundaries and finishes.

use dalsegno_protocol::CallState;
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::boundary::{self, Prepared};
use super::call_row::payload;
use super::calls::next_ordinal;
use super::cancel::tell;
use super::change::{append_finish, close};
use super::columns::{Hash, Which, Word};
use super::fault::Work;
use super::judge::{self, Proposal, Ruling};
use super::records;
use super::row::RunRow;
use crate::audit::actor;
use crate::seal::{BodyDigest, Spot};
use crate::{Committed, Digest, FinishCall, NewFinish, RunId, Standing};

/// Judges a commit and, if it is the next boundary, writes it. `None`: it is the next, but as a patch it cannot stand on
/// this head.
pub(super) async fn commit(
    conn: &mut SqliteConnection,
    now: i64,
    commit: Prepared,
) -> Work<Option<Committed>> {
    let Some(row) = RunRow::load(conn, commit.run).await? else {
        return Ok(Some(Committed::NotFound));
    };
    match judge::commit(&row, &commit.capability, &commit.proposal) {
        Ruling::Accept
            if commit.ops.base.is_some_and(|base| row.head().is_none_or(|head| head.hash != base)) =>
        {
            Ok(None)
        }
        Ruling::Accept => write(conn, now, row, commit).await.map(Some),
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

async fn write(conn: &mut SqliteConnection, now: i64, mut row: RunRow, commit: Prepared) -> Work<Committed> {
    let Proposal { turn, boundary, .. } = commit.proposal;
    let parent = row.head().map(|head| head.hash);
    row.spend(&commit.usage);
    renew(&mut row, now);
    tell(&mut row, now);
    boundary::insert(conn, now, &mut row, &commit).await?;
    plan(conn, now, &commit).await?;
    records::apply(conn, now, &row, (turn, boundary), &commit.records.changes).await?;
    if let Some(finish) = &commit.finish {
        let by = (commit.proposal.commit_id, commit.proposal.digest.kept);
        end_run(conn, now, &mut row, finish, by).await?;
        row.save(conn).await?;
    }
    Ok(Committed::Ok(Standing { parent, ..standing(&row) }))
}

/// Judges a finish and, if it stands, closes the run.
pub(super) async fn finish(
    conn: &mut SqliteConnection,
    now: i64,
    call: FinishCall,
    digest: BodyDigest,
) -> Work<Committed> {
    let FinishCall { run, capability, commit_id, digest: _, finish } = call;
    let Some(mut row) = RunRow::load(conn, run).await? else {
        return Ok(Committed::NotFound);
    };
    match judge::finish(&row, &capability, commit_id, &digest) {
        Ruling::Accept => {}
        Ruling::Duplicate => return duplicate(conn, now, row).await,
        Ruling::Fenced => {
            return Ok(Committed::Fenced { committed: judge::is_finish(&row, commit_id, &digest) });
        }
        Ruling::Finished | Ruling::Conflict => return Ok(Committed::Finished),
        Ruling::UnsettledCalls => return Ok(Committed::UnsettledCalls),
    }
    renew(&mut row, now);
    tell(&mut row, now);
    end_run(conn, now, &mut row, &finish, (commit_id, digest.kept)).await?;
    row.save(conn).await?;
    Ok(Committed::Ok(standing(&row)))
}

/// Makes the turn's calls and their keys durable. A call that is there keeps its first key.
async fn plan(conn: &mut SqliteConnection, now: i64, commit: &Prepared) -> Work<()> {
    if commit.calls.is_empty() {
        return Ok(());
    }
    let mut ordinal = next_ordinal(conn, commit.run).await?;
    for call in &commit.calls {
        let planned = sqlx::query(
            "INSERT INTO calls (run, id, ordinal, turn, policy, key, state, arguments, created_at) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run, id) DO NOTHING",
        )
        .bind(commit.run)
        .bind(&call.id)
        .bind(ordinal)
        .bind(commit.proposal.turn)
        .bind(Word(call.policy))
        .bind(&call.key)
        .bind(Word(CallState::Planned))
        .bind(payload(call.arguments.as_deref(), Spot::Arguments(&call.id), &commit.sealing)?)
        .bind(now)
        .execute(&mut *conn)
        .await?;
        ordinal += planned.rows_affected() as i64;
    }
    Ok(())
}

/// A boundary shows that its worker lives; it renews a lease that a heartbeat has bound, and binds none.
fn renew(row: &mut RunRow, now: i64) {
    if row.lease_renewed_at.is_some() {
        row.lease_renewed_at = Some(now);
    }
}

async fn end_run(
    conn: &mut SqliteConnection,
    now: i64,
    row: &mut RunRow,
    finish: &NewFinish,
    by: (Uuid, Digest),
) -> Work<()> {
    close(row, now, finish, Some(by));
    row.changed_at = now;
    append_finish(conn, row, now, actor::WORKER, finish).await
}

/// What stands is told again; so is a cancel.
async fn duplicate(conn: &mut SqliteConnection, now: i64, mut row: RunRow) -> Work<Committed> {
    if tell(&mut row, now) {
        row.save(conn).await?;
    }
    Ok(Committed::Duplicate(standing(&row)))
}

fn standing(row: &RunRow) -> Standing {
    Standing { head: row.public_head(), parent: None, asked: row.asked() }
}

/// Whether this very commit stands on the live branch.
async fn stands(conn: &mut SqliteConnection, run: RunId, proposal: &Proposal) -> Work<bool> {
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
