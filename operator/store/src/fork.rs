//! A fork is made in steps: it is accepted, its parent's records are copied page by page, and the state is copied last.
//!
//! # Guarantees
//!
//! - Each step is one transaction on the fork's own rows. The parent is only read.
//! - A step names the last record that was copied before it. So two operators, or one that died and went on, copy every
//!   record once.
//! - A step that reads the parent looks afterwards whether the boundary is still there and nothing was dropped. A
//!   boundary that was undone, and payloads that were dropped, never come back: if it is there after the read, it was
//!   during the read.

use std::collections::BTreeMap;
use std::sync::Arc;

use dalsegno_protocol::{Boundary, Channel, ChannelOps, Payload, RecordOp, State};
use uuid::Uuid;

use crate::db_error::DbResult;
use crate::keys::WriteCipher;
use crate::reads::{Column as _, Columns, RunRow};
use crate::transitions::{AcceptFork, CopyRecords, EncodedBase, EndFork, ForkPoint, Transition, copied_to};
use dalsegno_format::header::sha256;
use dalsegno_format::records::{Changes, payload};
use dalsegno_format::seal::{AadContext, DigestKeyExt as _, PayloadCipher};
use dalsegno_format::{codec, size};
use dalsegno_model::read_transaction::RecordKey;
use dalsegno_model::{
    AvailableTurns, Effects, Error, ForkRefusal, ForkRequest, ForkState, Forked, Lifecycle, LookUp, Operator,
    ParentRun, Read, Result, RunId, RunRecord,
};

/// Most records in one page, and most bytes after which a page ends.
pub(crate) const PAGE: (i64, i64) = (500, 1 << 20);

/// What an engine does for forks.
pub(crate) trait ForkStore: Read + Operator {
    /// A run's own row.
    fn run_row(&self, run: RunId) -> impl Future<Output = Result<Option<RunRow>>> + Send;

    /// The result of this turn on the live branch, if a fork can begin after it.
    fn fork_point(&self, run: RunId, turn: i32) -> impl Future<Output = Result<Option<ForkPoint>>> + Send;

    /// Calls that may have changed something in this turn or a later one.
    fn effects_since(&self, run: RunId, turn: i32) -> impl Future<Output = Result<Vec<String>>> + Send;

    /// A page of the records of a run after the result of a turn, decoded.
    fn records_at(&self, page: RecordsAt) -> impl Future<Output = Result<Vec<HeldRecord>>> + Send;

    /// The cipher for the fork's own payloads, if there is room for them.
    fn fork_cipher(&self, run: RunId) -> impl Future<Output = Result<WriteCipher>> + Send;

    /// Runs a transition of a run.
    fn decide<T: Transition>(&self, run: RunId, rule: T) -> impl Future<Output = Result<T::Answer>> + Send;
}

/// Which records to read.
#[derive(Clone, Debug)]
pub(crate) struct RecordsAt {
    pub run: RunId,
    pub turn: i32,
    /// The last record of the page before.
    pub after: RecordKey,
}

/// A record of a parent.
#[derive(Debug)]
pub(crate) struct HeldRecord {
    pub at: RecordKey,
    /// The operation that makes it, in a run that has copied the records before it.
    pub operation: RecordOp,
}

/// Does one step.
pub(crate) async fn step(store: &impl ForkStore, run: RunId, request: &ForkRequest) -> Result<Forked> {
    let row = store.run_row(run).await?.ok_or_else(|| corrupt(format!("there is no run {run}")))?;
    let state = row.fork_state.filter(|_| row.lifecycle.0 == Lifecycle::Live).map(|state| state.0);
    let stepped = match state {
        Some(ForkState::Pending) => accept(store, &row, request).await,
        Some(ForkState::Copying) => copy(store, &row).await,
        Some(ForkState::Done) | None => {
            let record =
                store.get_run(run).await?.ok_or_else(|| corrupt(format!("there is no run {run}")))?;
            return Ok(Forked::Step(Box::new(record)));
        }
    };
    match stepped {
        // The parent's payloads are damaged, or were shredded: another try does not help by itself.
        Err(Error::Corrupt { detail, .. } | Error::Gone { detail, .. }) => {
            Ok(Forked::Refused(ForkRefusal::Unreadable(detail)))
        }
        stepped => stepped,
    }
}

async fn accept(store: &impl ForkStore, row: &RunRow, request: &ForkRequest) -> Result<Forked> {
    let Some(parent) = find_parent(store, row, &request.parent).await? else {
        return Ok(Forked::Refused(ForkRefusal::NoSuchRun));
    };
    let turns = available_turns(&parent);
    let turn = request.turn.unwrap_or(turns.last);
    let Some(point) = store.fork_point(parent.id, turn).await? else {
        return Ok(Forked::Refused(ForkRefusal::TurnNotAvailable(turns)));
    };
    let effects = store.effects_since(parent.id, turn.saturating_add(1)).await?;
    if let Some(missing) = Effects::missing(&effects, &request.accept_effects) {
        return Ok(Forked::Refused(ForkRefusal::Effects(missing)));
    }
    let requested_by = request.requested_by.clone();
    let record = store.decide(row.id, AcceptFork { point, accepted: effects, requested_by }).await?;
    Ok(Forked::Step(Box::new(record)))
}

/// The parent, if it is a run of the same namespace. A namespace that was created again is another one.
async fn find_parent(store: &impl ForkStore, row: &RunRow, parent: &ParentRun) -> Result<Option<RunRecord>> {
    let is_own = |it: &RunRecord| it.tenant == row.tenant && it.id != row.id;
    Ok(match parent {
        ParentRun::Name(name) => {
            let is_open = |it: &RunRecord| matches!(it.lifecycle, Lifecycle::Live | Lifecycle::Finished);
            let found = store.find(&row.namespace, name).await?;
            found.into_iter().find(|it| is_own(it) && is_open(it))
        }
        ParentRun::ObjectUid(uid) => match store.find_by_object(uid).await? {
            LookUp::Found(found) => Some(*found).filter(is_own),
            LookUp::NotFound { .. } => None,
        },
    })
}

fn available_turns(run: &RunRecord) -> AvailableTurns {
    let last = run.head.as_ref().map_or(0, |head| match head.boundary {
        Boundary::Plan => head.turn - 1,
        Boundary::Result => head.turn,
    });
    let base = run.fork.as_ref().and_then(|fork| fork.turn);
    let first = run.dropped_to.map(|id| id.turn).or(base).unwrap_or(1);
    AvailableTurns { first, last }
}

async fn copy(store: &impl ForkStore, row: &RunRow) -> Result<Forked> {
    let (Some(parent), Some(turn)) = (row.fork_parent, row.fork_turn) else {
        return Err(corrupt(format!("run {} does not say what it was forked from", row.id)));
    };
    let after = copied_to(row);
    let cipher = store.fork_cipher(row.id).await?;
    let page = store.records_at(RecordsAt { run: parent, turn, after: after.clone() }).await?;
    let record = match page.last().map(|record| record.at.clone()) {
        Some(last) => {
            let operations: Vec<_> = page.into_iter().map(|record| record.operation).collect();
            let changes = Arc::new(Changes::of(&operations, &cipher)?);
            let rule = CopyRecords { after, last, changes, data_key: wrapped(&cipher) };
            if !is_there(store, row).await? {
                return refused(store, parent).await;
            }
            store.decide(row.id, rule).await?
        }
        None => {
            let Some(state) = store.state(parent, Some(turn)).await? else {
                return refused(store, parent).await;
            };
            let base = Arc::new(encode(state, turn, &cipher)?);
            if !is_there(store, row).await? {
                return refused(store, parent).await;
            }
            store.decide(row.id, EndFork { after, base }).await?
        }
    };
    Ok(Forked::Step(Box::new(record)))
}

/// Whether the parent still has the boundary that the fork begins after, with all that is copied.
async fn is_there(store: &impl ForkStore, row: &RunRow) -> Result<bool> {
    let (Some(parent), Some(turn)) = (row.fork_parent, row.fork_turn) else { return Ok(false) };
    let point = store.fork_point(parent, turn).await?;
    Ok(point.is_some_and(|point| {
        (Some(point.epoch), Some(point.content_hash)) == (row.fork_epoch, row.fork_hash.map(|hash| hash.0))
    }))
}

async fn refused(store: &impl ForkStore, parent: RunId) -> Result<Forked> {
    Ok(Forked::Refused(match store.get_run(parent).await? {
        Some(parent) => ForkRefusal::TurnNotAvailable(available_turns(&parent)),
        None => ForkRefusal::NoSuchRun,
    }))
}

/// The state as the operations of the fork's first boundary.
fn encode(state: State, turn: i32, cipher: &WriteCipher) -> Result<EncodedBase> {
    let (commit_id, state_bytes) = (Uuid::new_v4(), size::of_state(&state));
    let mut ops = ChannelOps { full: true, ..ChannelOps::default() };
    let (mut set, mut append) = (BTreeMap::new(), BTreeMap::new());
    for (name, channel) in state {
        match channel {
            Channel::Value(value) => drop(set.insert(name, value)),
            Channel::List(items) => drop(append.insert(name, items)),
        }
    }
    (ops.set, ops.append) = (set, append);
    let text = serde_json::to_vec(&ops).map_err(|error| corrupt(error.to_string()))?;
    let plain = sha256(&text);
    let digest_key = cipher.digest_key(turn, Boundary::Result, commit_id);
    Ok(EncodedBase {
        commit_id,
        digest: cipher.digest(plain),
        ops_digest: digest_key.map_or(plain, |key| key.digest(plain)),
        ops: cipher.seal(AadContext::Ops(turn, Boundary::Result, commit_id), codec::encode(&text))?,
        state_bytes,
        data_key: wrapped(cipher),
    })
}

fn wrapped(cipher: &WriteCipher) -> Option<Arc<[u8]>> {
    cipher.data_key().cloned()
}

fn corrupt(detail: String) -> Error {
    Error::Corrupt { operation: "forking a run", detail }
}

/// A record of a parent from its row.
pub(crate) fn held_record(row: &impl Columns, cipher: &PayloadCipher) -> DbResult<HeldRecord> {
    let at = RecordKey {
        space: String::read(row, "space")?,
        key: String::read(row, "key")?,
        seq: i64::read(row, "seq")?,
    };
    let entry_id: Option<String> = Option::read(row, "entry_id")?;
    let context = AadContext::Record(&at.space, &at.key, entry_id.as_deref());
    let value: Payload = payload(&Vec::read(row, "value")?, context, cipher)?;
    let (space, key) = (at.space.clone(), at.key.clone());
    let operation = match entry_id {
        Some(entry_id) => RecordOp::Append { space, key, entry_id, value },
        None => RecordOp::Put { space, key, value },
    };
    Ok(HeldRecord { at, operation })
}
