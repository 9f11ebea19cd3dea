//! The statement that stores a boundary, and its preparation.

use std::sync::LazyLock;

use dalsegno_protocol::{Limits, PlannedCall, Usage};
use sqlx::SqliteConnection;
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite as Database, SqliteArguments};

use super::admission::Proposal;
use super::batch_statements::{BatchStatements, batches};
use super::disk::Room;
use super::row::{HeadPoint, RunRow};
use super::sqlx_types::{self, BoundaryColumn, Hash};
use crate::db_error::DbResult;
use crate::encoded_ops::{EncodedOps, MAX_BATCHED_BYTES};
use crate::texts::sealed_finish;
use crate::transitions::{OutboxEntry, ParkWithBoundary};
use dalsegno_format::codec;
use dalsegno_format::header::{self, Header, NO_PARENT};
use dalsegno_format::records::{Changes, link};
use dalsegno_format::seal::{AadContext, BodyDigest, DigestKeyExt as _, PayloadCipher};
use dalsegno_model::{Commit, Digest, NewFinish, Result, RunId};

/// A commit whose payloads are encoded, so that the writer only compares and writes.
pub(super) struct PreparedCommit {
    pub run: RunId,
    pub capability: Digest,
    pub proposal: Proposal,
    pub ops: EncodedOps,
    pub ops_digest: Option<Digest>,
    pub full: bool,
    pub events: Option<Vec<u8>>,
    pub events_digest: Option<Digest>,
    pub event_count: i64,
    pub calls: Vec<PlannedCall>,
    /// Calls that may stay without an outcome.
    pub open_calls: Vec<String>,
    pub records: Changes,
    /// Positions of the messages that it takes.
    pub inbox: Vec<i64>,
    pub usage: Usage,
    pub trigger: Option<String>,
    pub finish: Option<NewFinish>,
    pub park: Option<ParkWithBoundary>,
    pub cipher: PayloadCipher,
    pub room: Room,
}

impl PreparedCommit {
    pub fn new(commit: &Commit, ops: EncodedOps, cipher: PayloadCipher) -> Result<Self> {
        let events = codec::encode_events(&commit.events);
        let Commit { turn, boundary, commit_id, .. } = *commit;
        let context = AadContext::Events(turn, boundary, commit_id);
        let digest_key = cipher.digest_key(turn, boundary, commit_id);
        let keyed = |plain: Digest| digest_key.map_or(plain, |key| key.digest(plain));
        Ok(Self {
            events: events.map(|events| cipher.seal(context, events)).transpose()?,
            run: commit.run,
            capability: commit.capability,
            proposal: Proposal {
                turn: commit.turn,
                boundary: commit.boundary,
                commit_id: commit.commit_id,
                digest: cipher.body(commit.digest),
            },
            ops,
            ops_digest: header::ops_digest(commit.ops.as_deref()).map(keyed),
            full: commit.full,
            events_digest: header::events_digest(&commit.events).map(keyed),
            event_count: commit.events.len() as i64,
            calls: commit.calls.clone(),
            open_calls: commit.open_calls.clone(),
            records: Changes::of(&commit.records, &cipher)?,
            inbox: commit.inbox.clone(),
            usage: commit.usage,
            trigger: commit.trigger.clone(),
            finish: commit.finish.as_ref().map(|finish| sealed_finish(finish, Some(&cipher))),
            park: ParkWithBoundary::of(commit),
            cipher,
            room: Room::default(),
        })
    }

    /// Returns whether one statement may store it together with others: it is small, and has a boundary only.
    pub fn is_batchable(&self) -> bool {
        let has_more = !self.calls.is_empty()
            || !self.open_calls.is_empty()
            || self.records.digest.is_some()
            || !self.inbox.is_empty()
            || self.finish.is_some()
            || self.park.is_some();
        !has_more && self.size() <= MAX_BATCHED_BYTES
    }

    /// Bytes of its encoded payloads.
    fn size(&self) -> usize {
        [&self.ops.ops, &self.events].into_iter().flatten().map(Vec::len).sum()
    }
}

/// Returns an upper bound for the bytes of the state after this boundary; `None` if the size is unknown.
fn state_bytes(row: &RunRow, commit: &PreparedCommit) -> Option<i64> {
    let EncodedOps { base, size, .. } = commit.ops;
    if commit.full || base.is_some() { Some(size) } else { Some(row.known_state_bytes()? + size) }
}

/// Returns whether the state after this boundary may exceed the limit. A boundary that adds nothing to the state never
/// does.
pub(super) fn may_be_too_large(row: &RunRow, commit: &PreparedCommit) -> bool {
    commit.ops.size > 0 && state_bytes(row, commit).is_none_or(|bytes| bytes > Limits::STATE_BYTES as i64)
}

/// An admitted boundary, ready to be stored.
pub(super) struct AcceptedBoundary<'a> {
    commit: &'a PreparedCommit,
    /// The run with this boundary as its head.
    pub row: RunRow,
    pub parent: Option<HeadPoint>,
    records_digest: Option<Digest>,
    /// Limits that the boundary has brought near. Rarely any.
    outbox: Vec<OutboxEntry>,
}

impl<'a> AcceptedBoundary<'a> {
    pub fn new(now: i64, mut row: RunRow, commit: &'a PreparedCommit) -> Self {
        let Proposal { turn, boundary, commit_id, digest: BodyDigest { stored: digest, .. } } =
            commit.proposal;
        let parent = row.head();
        let position = row.head_position + commit.event_count;
        // The boundary's hash covers the batches of records since the last boundary.
        let pending = row.records_digest.take().map(|hash| hash.0);
        let records_digest = commit.records.digest.map_or(pending, |batch| Some(link(pending, &batch)));
        let hash = Header {
            parent_hash: parent_hash(parent),
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
            forked_from: None,
        }
        .content_hash();
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
        row.state_bytes = state_bytes(&row, commit);
        row.state_hash = Some(Hash(hash));
        row.set_head(head, position);
        row.spend(&commit.usage);
        row.stored_bytes += commit.size() as i64;
        row.highest_turn = row.highest_turn.max(turn);
        row.check_usage_limits(now);
        let outbox = OutboxEntry::near_limits(&mut row, now);
        Self { commit, row, parent, records_digest, outbox }
    }

    /// Binds the next parameters of [`INSERT`].
    fn bind<'q>(&self, query: Query<'q, Database, SqliteArguments>) -> Query<'q, Database, SqliteArguments> {
        let Self { commit, row, parent, records_digest, outbox: _ } = self;
        let Proposal { turn, boundary, commit_id, digest: BodyDigest { stored: digest, .. } } =
            commit.proposal;
        query
            .bind(row.id)
            .bind(turn)
            .bind(BoundaryColumn(boundary))
            .bind(row.epoch)
            .bind(parent.map(|parent| parent.turn))
            .bind(parent.map(|parent| BoundaryColumn(parent.boundary)))
            .bind(parent.map(|parent| parent.epoch))
            .bind(Hash(parent_hash(*parent)))
            .bind(row.head_hash)
            .bind(row.attempt)
            .bind(row.head_position)
            .bind(commit_id)
            .bind(Hash(digest))
            .bind(row.head_at)
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
            .bind(turn)
            .bind(BoundaryColumn(boundary))
            .bind(row.epoch)
            .bind(row.attempt)
            .bind(commit_id)
            .bind(Hash(digest))
            .bind(row.head_hash)
            .bind(row.head_position)
            .bind(row.head_at)
            .bind(row.highest_turn)
            .bind(row.stored_bytes)
            .bind(row.tokens_in)
            .bind(row.tokens_out)
            .bind(row.tool_calls)
            .bind(row.cost_micro_usd)
            .bind(row.lease_renewed_at)
            .bind(row.lease_ms)
            .bind(row.cancel_told_at)
            .bind(row.suspend_told_at)
            .bind(row.limit_reached_at)
            .bind(row.limits_near)
            .bind(row.state_bytes)
            .bind(row.state_hash)
            .bind(row.id)
    }
}

fn parent_hash(parent: Option<HeadPoint>) -> Digest {
    parent.map_or(NO_PARENT, |parent| parent.hash)
}

/// Inserts boundaries, and makes each the head of its run.
static INSERT: LazyLock<BatchStatements> = LazyLock::new(|| {
    BatchStatements::new(|boundaries| {
        "INSERT INTO boundaries (run, turn, boundary, epoch, parent_turn, parent_boundary, parent_epoch, parent_hash, \
         content_hash, attempt, position, commit_id, digest, at, ops, ops_digest, is_full, events, events_digest, \
         event_count, tokens_in, tokens_out, tool_calls, cost_micro_usd, trigger_word, finish, \
         records_digest, undone) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0); \
         UPDATE runs SET (head_turn, head_boundary, head_epoch, head_attempt, head_commit_id, head_digest, head_hash, \
         head_position, head_at, highest_turn, stored_bytes, tokens_in, tokens_out, tool_calls, cost_micro_usd, \
         lease_renewed_at, lease_ms, cancel_told_at, suspend_told_at, limit_reached_at, limits_near, state_bytes, state_hash, \
         records_digest) \
         = (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL) WHERE id = ?;"
            .repeat(boundaries)
    })
});

/// Inserts boundaries, each of another run. A statement handles many, because each statement switches to the
/// connection's thread.
pub(super) async fn insert(conn: &mut SqliteConnection, all: &[AcceptedBoundary<'_>]) -> DbResult<()> {
    for some in batches(all) {
        let query = sqlx::query(INSERT.text(some.len()));
        some.iter().fold(query, |query, boundary| boundary.bind(query)).execute(&mut *conn).await?;
    }
    for boundary in all {
        for entry in boundary.outbox.clone() {
            sqlx_types::insert(&mut *conn, OutboxEntry::TABLE, entry.assignments(boundary.row.id)).await?;
        }
    }
    Ok(())
}
