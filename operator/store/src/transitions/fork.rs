//! The steps of a fork. All of them change the fork's own rows only.

use std::sync::Arc;

use dalsegno_protocol::{Boundary, Usage};
use serde_json::json;
use uuid::Uuid;

use super::copied::{CopiedRecords, NewBase};
use super::end::past_attempt;
use super::{Change, Decision, Rows, Transition, text, with_attribution};
use crate::db_error::DbResult;
use crate::reads::{Assignment, AttemptRow, BoundaryColumn, Column as _, EnumText, Hash, HeadPoint, RunRow};
use dalsegno_format::header::{self, Header, NO_PARENT};
use dalsegno_format::records::{Changes, link};
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::read_transaction::RecordKey;
use dalsegno_model::{BoundaryId, Digest, ForkState, ForkedFrom, RequestedBy, RunId, RunRecord};

/// Number of the row that stands for the attempt of the parent which committed the boundary that is forked.
const PARENTS_ATTEMPT: i32 = 0;

/// The boundary of a parent that a fork begins after, and the attempt that committed it.
#[derive(Clone, Debug)]
pub(crate) struct ForkPoint {
    pub run: RunId,
    pub turn: i32,
    pub epoch: i64,
    pub content_hash: Digest,
    pub attempt: Option<AttemptRow>,
}

/// Accepts a fork: from now on its parent is fixed, and its records are copied.
#[derive(Clone, Debug)]
pub(crate) struct AcceptFork {
    pub point: ForkPoint,
    /// Calls of later turns of the parent that may have changed something. The request names all of them.
    pub accepted: Vec<String>,
    pub requested_by: RequestedBy,
}

impl Transition for AcceptFork {
    type Answer = RunRecord;
    const OPERATION: &'static str = "accepting a fork";

    fn decide(&self, rows: Rows) -> DbResult<Decision<RunRecord>> {
        let Self { point, accepted, requested_by } = self;
        let mut change = Change::of(rows);
        if !is_in(&change, ForkState::Pending) {
            return change.with_record();
        }
        let run = change.run();
        run.fork_state = Some(EnumText(ForkState::Copying));
        run.fork_parent = Some(point.run);
        run.fork_turn = Some(point.turn);
        run.fork_epoch = Some(point.epoch);
        run.fork_hash = Some(Hash(point.content_hash));
        let accepted: Vec<_> = accepted.iter().map(|id| text(id)).collect();
        let detail = json!({
            "run": point.run, "turn": point.turn, "contentHash": header::render(&point.content_hash),
            "acceptedEffects": accepted,
        });
        change.audit(kind::FORKED, actor::OPERATOR, with_attribution(requested_by, detail));
        // The version of the agent that wrote the state decides which version may go on from it.
        if let Some(parents) = &point.attempt {
            let own = past_attempt(change.row(), PARENTS_ATTEMPT);
            change.add_past_attempt(AttemptRow {
                turn_at_start: point.turn,
                revision: parents.revision.clone(),
                image_digest: parents.image_digest.clone(),
                image_in_registry: parents.image_in_registry,
                agent_version: parents.agent_version.clone(),
                verdict: parents.verdict,
                remark: parents.remark.clone(),
                ..own
            });
        }
        change.with_record()
    }
}

/// Stores one page of the parent's records.
#[derive(Clone, Debug)]
pub(crate) struct CopyRecords {
    /// The last record before the page.
    pub after: RecordKey,
    /// The last record of the page.
    pub last: RecordKey,
    pub changes: Arc<Changes>,
    pub data_key: Option<Arc<[u8]>>,
}

impl Transition for CopyRecords {
    type Answer = RunRecord;
    const OPERATION: &'static str = "copying records to a fork";

    fn decide(&self, rows: Rows) -> DbResult<Decision<RunRecord>> {
        let Self { after, last, changes, data_key } = self;
        let mut change = Change::of(rows);
        let is_next = is_in(&change, ForkState::Copying) && copied_to(change.row()) == *after;
        let (Some(digest), Some(turn)) = (changes.digest.filter(|_| is_next), change.row().fork_turn) else {
            return change.with_record();
        };
        let run = change.run();
        run.records_digest = Some(Hash(link(run.records_digest.map(|hash| hash.0), &digest)));
        run.fork_space = Some(last.space.clone());
        run.fork_key = Some(last.key.clone());
        run.fork_seq = Some(last.seq);
        let boundary = BoundaryId { turn, boundary: Boundary::Result, epoch: run.epoch };
        let (changes, data_key) = (Arc::clone(changes), data_key.clone());
        change.copy_records(CopiedRecords { boundary, changes, data_key });
        change.with_record()
    }
}

/// The last record that was copied.
pub(crate) fn copied_to(run: &RunRow) -> RecordKey {
    RecordKey {
        space: run.fork_space.clone().unwrap_or_default(),
        key: run.fork_key.clone().unwrap_or_default(),
        seq: run.fork_seq.unwrap_or_default(),
    }
}

/// Stores the state as the first boundary of the fork. The run can start then.
#[derive(Clone, Debug)]
pub(crate) struct EndFork {
    /// The last record of the parent: all of them were copied.
    pub after: RecordKey,
    pub base: Arc<EncodedBase>,
}

/// The state of a fork, encoded and sealed.
#[derive(Clone, Debug)]
pub(crate) struct EncodedBase {
    pub commit_id: Uuid,
    /// The stored digest of the operations, in place of a body.
    pub digest: Digest,
    pub ops: Vec<u8>,
    pub ops_digest: Digest,
    /// Size of the state in bytes.
    pub state_bytes: usize,
    /// The wrapped data key under which it is sealed.
    pub data_key: Option<Arc<[u8]>>,
}

impl Transition for EndFork {
    type Answer = RunRecord;
    const OPERATION: &'static str = "ending a fork";

    fn decide(&self, rows: Rows) -> DbResult<Decision<RunRecord>> {
        let Self { after, base } = self;
        let mut change = Change::of(rows);
        let is_next = is_in(&change, ForkState::Copying) && copied_to(change.row()) == *after;
        let Some(from) = forked_from(change.row()).filter(|_| is_next) else { return change.with_record() };
        let records_digest = change.run().records_digest.take();
        let header = Header {
            parent_hash: NO_PARENT,
            run: change.row().id,
            turn: from.turn,
            boundary: Boundary::Result,
            epoch: change.row().epoch,
            attempt: PARENTS_ATTEMPT,
            at: change.now(),
            position: 0,
            commit_id: base.commit_id,
            digest: base.digest,
            ops_digest: Some(base.ops_digest),
            full: true,
            events_digest: None,
            usage: Usage::default(),
            trigger: None,
            records_digest: records_digest.map(|hash| hash.0),
            forked_from: Some(from),
        };
        let hash = header.content_hash();
        change.insert_base(NewBase {
            columns: base_columns(&header, hash, &base.ops),
            data_key: base.data_key.clone(),
        });
        let run = change.run();
        run.fork_state = Some(EnumText(ForkState::Done));
        let head = HeadPoint {
            turn: from.turn,
            boundary: Boundary::Result,
            epoch: header.epoch,
            attempt: header.attempt,
            commit_id: header.commit_id,
            digest: header.digest,
            hash,
            at: header.at,
        };
        run.set_head(head, 0);
        (run.highest_turn, run.attempt_turn) = (from.turn, from.turn);
        run.stored_bytes += base.ops.len() as i64;
        (run.state_bytes, run.state_hash) = (i64::try_from(base.state_bytes).ok(), Some(Hash(hash)));
        change.attempt()?.turn_at_start = from.turn;
        change.notify();
        change.with_record()
    }
}

fn is_in(change: &Change, state: ForkState) -> bool {
    change.is_live() && change.row().fork_state == Some(EnumText(state))
}

fn forked_from(run: &RunRow) -> Option<ForkedFrom> {
    Some(ForkedFrom { run: run.fork_parent?, turn: run.fork_turn?, content_hash: run.fork_hash?.0 })
}

/// The columns of the first boundary's row.
fn base_columns(header: &Header<'_>, hash: Digest, ops: &[u8]) -> Vec<Assignment> {
    let Header { run, turn, boundary, epoch, attempt, at, position, commit_id, digest, .. } = *header;
    let Usage { tokens_in, tokens_out, tool_calls, cost_micro_usd } = header.usage;
    let from = header.forked_from;
    vec![
        ("run", run.value()),
        ("turn", turn.value()),
        ("boundary", BoundaryColumn(boundary).value()),
        ("epoch", epoch.value()),
        ("parent_hash", Hash(header.parent_hash).value()),
        ("content_hash", Hash(hash).value()),
        ("attempt", attempt.value()),
        ("position", position.value()),
        ("commit_id", commit_id.value()),
        ("digest", Hash(digest).value()),
        ("at", at.value()),
        ("ops", ops.to_vec().value()),
        ("ops_digest", header.ops_digest.map(Hash).value()),
        ("is_full", header.full.value()),
        ("records_digest", header.records_digest.map(Hash).value()),
        ("event_count", 0_i64.value()),
        ("tokens_in", tokens_in.value()),
        ("tokens_out", tokens_out.value()),
        ("tool_calls", tool_calls.value()),
        ("cost_micro_usd", cost_micro_usd.value()),
        ("finish", false.value()),
        ("undone", false.value()),
        ("forked_run", from.map(|from| from.run).value()),
        ("forked_turn", from.map(|from| from.turn).value()),
        ("forked_hash", from.map(|from| Hash(from.content_hash)).value()),
    ]
}
