//! Boundaries and finishes.

use dalsegno_protocol::{CallState, PlannedCall, Usage};
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::call_row::payload;
use super::calls::next_ordinal;
use super::cancel::tell;
use super::change::{append_finish, close};
use super::columns::{Hash, Which, Word};
use super::fault::Work;
use super::judge::{self, Proposal, Ruling};
use super::records;
use super::row::{HeadPoint, RunRow};
use crate::audit::actor;
use crate::header::{Header, NO_PARENT};
use crate::packed::Packed;
use crate::records::{Changes, link};
use crate::seal::{BodyDigest, Sealing, Spot};
use crate::{Commit, Committed, Digest, FinishCall, NewFinish, Result, RunId, Standing, codec, header};

/// A commit with its payloads ready to be kept, so that the writer only compares and writes.
pub(super) struct Prepared {
    run: RunId,
    capability: Digest,
    proposal: Proposal,
    ops: Packed,
    ops_digest: Option<Digest>,
    full: bool,
    events: Option<Vec<u8>>,
    events_digest: Option<Digest>,
    event_count: i64,
    calls: Vec<PlannedCall>,
    records: Changes,
    usage: Usage,
    trigger: Option<String>,
    finish: Option<NewFinish>,
    sealing: Sealing,
}

impl Prepared {
    pub fn new(commit: &Commit, ops: Packed, sealing: Sealing) -> Result<Self> {
        let events = codec::encode_events(&commit.events);
        let Commit { turn, boundary, commit_id, .. } = *commit;
        let spot = Spot::Events(turn, boundary, commit_id);
        let digest_key = sealing.digest_key(turn, boundary, commit_id);
        let keyed = |plain: Digest| digest_key.map_or(plain, |key| key.digest(plain));
        Ok(Self {
            events: events.map(|events| sealing.seal(spot, events)).transpose()?,
            run: commit.run,
            capability: commit.capability,
            proposal: Proposal {
                turn: commit.turn,
                boundary: commit.boundary,
                commit_id: commit.commit_id,
                digest: sealing.body(commit.digest),
            },
            ops,
            ops_digest: header::ops_digest(commit.ops.as_deref()).map(keyed),
            full: commit.full,
            events_digest: header::events_digest(&commit.events).map(keyed),
            event_count: commit.events.len() as i64,
            calls: commit.calls.clone(),
            records: Changes::of(&commit.records, &sealing)?,
            usage: commit.usage,
            trigger: commit.trigger.clone(),
            finish: commit.finish.clone(),
            sealing,
        })
    }
}

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
    insert_boundary(conn, now, &mut row, &commit).await?;
    plan(conn, now, &commit).await?;
    records::apply(conn, now, &row, (turn, boundary), &commit.records.changes).await?;
    row.spend(&commit.usage);
    renew(&mut row, now);
    tell(&mut row, now);
    if let Some(finish) = &commit.finish {
        let by = (commit.proposal.commit_id, commit.proposal.digest.kept);
        end_run(conn, now, &mut row, finish, by).await?;
    }
    row.save(conn).await?;
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

async fn insert_boundary(
    conn: &mut SqliteConnection,
    now: i64,
    row: &mut RunRow,
    commit: &Prepared,
) -> Work<()> {
    let Proposal { turn, boundary, commit_id, digest: BodyDigest { kept: digest, .. } } = commit.proposal;
    let parent = row.head();
    let parent_hash = parent.map_or(NO_PARENT, |parent| parent.hash);
    let position = row.head_position + commit.event_count;
    // What stands in a boundary's hash is told.
    let told = row.records_digest.take().map(|hash| hash.0);
    let records_digest = commit.records.digest.map_or(told, |batch| Some(link(told, &batch)));
    let hash = Header {
        parent_hash,
        run: row.id,
        turn,
        boundary,
        epoch: row.epoch,
        attempt: row.attempt,
        at: now,
        position,
        commit_id,
        digest,
        ops_digest: commit.ops_digest,
        full: commit.full,
        events_digest: commit.events_digest,
        usage: commit.usage,
        trigger: commit.trigger.as_deref(),
        records_digest,
    }
    .content_hash();
    sqlx::query(
        "INSERT INTO boundaries (run, turn, boundary, epoch, parent_turn, parent_boundary, parent_epoch, parent_hash, \
         content_hash, attempt, position, commit_id, digest, at, ops, ops_digest, is_full, events, events_digest, \
         event_count, tokens_in, tokens_out, tool_calls, cost_micro_usd, trigger_word, finish, \
         records_digest, undone) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
    )
    .bind(row.id)
    .bind(turn)
    .bind(Which(boundary))
    .bind(row.epoch)
    .bind(parent.map(|parent| parent.turn))
    .bind(parent.map(|parent| Which(parent.boundary)))
    .bind(parent.map(|parent| parent.epoch))
    .bind(Hash(parent_hash))
    .bind(Hash(hash))
    .bind(row.attempt)
    .bind(position)
    .bind(commit_id)
    .bind(Hash(digest))
    .bind(now)
    .bind(commit.ops.ops.clone())
    .bind(commit.ops_digest.map(Hash))
    .bind(commit.full)
    .bind(commit.events.clone())
    .bind(commit.events_digest.map(Hash))
    .bind(commit.event_count)
    .bind(commit.usage.tokens_in)
    .bind(commit.usage.tokens_out)
    .bind(commit.usage.tool_calls)
    .bind(commit.usage.cost_micro_usd)
    .bind(commit.trigger.clone())
    .bind(commit.finish.is_some())
    .bind(records_digest.map(Hash))
    .execute(conn)
    .await?;
    let head = HeadPoint {
        turn,
        boundary,
        epoch: row.epoch,
        attempt: row.attempt,
        commit_id,
        digest,
        hash,
        at: now,
    };
    row.set_head(head, position);
    row.stored_bytes +=
        [&commit.ops.ops, &commit.events].into_iter().flatten().map(Vec::len).sum::<usize>() as i64;
    row.highest_turn = row.highest_turn.max(turn);
    Ok(())
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
