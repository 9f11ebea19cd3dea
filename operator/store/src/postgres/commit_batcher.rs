//! Commits of many runs, combined into few statements.
//!
//! The cost of a statement hardly depends on how many boundaries it commits. A commit that arrives while a slot is free
//! is sent at once. Commits that arrive while all slots are taken are sent together as soon as one is free.
//!
//! # Guarantees
//!
//! - Each boundary of a statement is of another run. A run whose row is locked is skipped, and its commit is sent
//!   alone, outside the slots: no commit waits for the lock of another run.
//! - If the database refuses a statement, each of its boundaries is sent alone. If the server or the connection fails,
//!   each of its callers gets the error.
//! - A caller that gives up cancels no commit but its own.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use prometheus_client::metrics::histogram::Histogram;
use sqlx::Row as _;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::commit_statement::{Extras, Proposed, commit_batch, commit_one, parse_committed};
use super::failure::Failure;
use super::pool::Pool;
use crate::db_error::{DbError, DbResult};
use dalsegno_model::{Committed, RunId};

/// Statements that run at the same time.
const SLOTS: usize = 2;

/// Most boundaries in one statement.
const BATCH_SIZE: usize = 32;

/// Combines commits of small boundaries without calls, records and finish.
#[derive(Debug)]
pub(super) struct CommitBatcher {
    pool: Arc<Pool>,
    slots: Arc<Semaphore>,
    pending: Mutex<VecDeque<PendingCommit>>,
    /// Counts the boundaries of each statement.
    sizes: Histogram,
}

struct PendingCommit {
    proposed: Proposed,
    reply: oneshot::Sender<Reply>,
}

/// What a pending commit's caller receives.
enum Reply {
    Done(DbResult<Option<Committed>>),
    /// The caller must send the commit alone.
    SendAlone(Box<Proposed>),
}

impl fmt::Debug for PendingCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PendingCommit")
    }
}

impl PendingCommit {
    fn reply(self, result: DbResult<Option<Committed>>) {
        // A caller that has given up needs no reply.
        let _ = self.reply.send(Reply::Done(result));
    }

    /// Frees the slot for others. If the caller has given up, the commit is not sent at all.
    fn send_alone(self) {
        let _ = self.reply.send(Reply::SendAlone(Box::new(self.proposed)));
    }
}

impl CommitBatcher {
    pub fn new(pool: Arc<Pool>, sizes: Histogram) -> Arc<Self> {
        Arc::new(Self { pool, slots: Arc::new(Semaphore::new(SLOTS)), pending: Mutex::default(), sizes })
    }

    /// `None`: the turn is the next one, but the ops were encoded against another head.
    pub async fn commit(self: &Arc<Self>, proposed: Proposed) -> DbResult<Option<Committed>> {
        let result = async {
            match self.acquire_or_enqueue(proposed) {
                Ok((slot, proposed)) => self.commit_now(slot, &proposed).await,
                Err(reply) => match reply.await.map_err(DbError::unavailable)? {
                    Reply::Done(result) => result,
                    Reply::SendAlone(proposed) => self.commit_alone(&proposed).await,
                },
            }
        };
        tokio::time::timeout(self.pool.deadline(), result)
            .await
            .unwrap_or_else(|elapsed| Err(DbError::unavailable(elapsed)))
    }

    /// A free slot; or, if there is none, the receiver of the reply.
    fn acquire_or_enqueue(
        self: &Arc<Self>,
        proposed: Proposed,
    ) -> Result<(Slot, Proposed), oneshot::Receiver<Reply>> {
        let mut pending = self.pending();
        if let Ok(permit) = Arc::clone(&self.slots).try_acquire_owned() {
            return Ok((Slot { batcher: Arc::clone(self), permit: Some(permit) }, proposed));
        }
        let (reply, receiver) = oneshot::channel();
        pending.push_back(PendingCommit { proposed, reply });
        Err(receiver)
    }

    /// Sends a commit on the caller's own task: nothing is pending, and no other task must wake up for it.
    async fn commit_now(&self, slot: Slot, proposed: &Proposed) -> DbResult<Option<Committed>> {
        self.sizes.observe(1.0);
        let result = self.pool.optional(commit_batch(&[proposed])).await;
        drop(slot);
        match result {
            Ok(Some(row)) => parse_committed(&row),
            Ok(None) => self.commit_alone(proposed).await,
            Err(fault) if Failure::of(&fault) == Failure::Statement => self.commit_alone(proposed).await,
            Err(fault) => Err(fault),
        }
    }

    async fn send_batch(&self, batch: Vec<PendingCommit>) {
        let proposed: Vec<_> = batch.iter().map(|one| &one.proposed).collect();
        self.sizes.observe(proposed.len() as f64);
        match self.pool.all(commit_batch(&proposed)).await {
            Ok(rows) => {
                for one in batch {
                    let run = one.proposed.run;
                    match rows.iter().find(|row| row.try_get::<RunId, _>("run").is_ok_and(|id| id == run)) {
                        Some(row) => one.reply(parse_committed(row)),
                        None => one.send_alone(),
                    }
                }
            }
            Err(fault) if Failure::of(&fault) == Failure::Statement => {
                tracing::debug!(
                    boundaries = batch.len(),
                    "the database refused a batch of commits: each is sent alone"
                );
                batch.into_iter().for_each(PendingCommit::send_alone);
            }
            Err(fault) => batch.into_iter().for_each(|one| one.reply(Err(fault.clone()))),
        }
    }

    async fn commit_alone(&self, proposed: &Proposed) -> DbResult<Option<Committed>> {
        let query = commit_one(proposed, Extras::default());
        let row = self.pool.for_run(proposed.run).optional(query).await?;
        row.as_ref().map_or(Ok(Some(Committed::NotFound)), parse_committed)
    }

    fn pending(&self) -> MutexGuard<'_, VecDeque<PendingCommit>> {
        self.pending.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The right to run one statement. Dropped, it is handed on to the pending commits.
struct Slot {
    batcher: Arc<CommitBatcher>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let batch = {
            let mut pending = self.batcher.pending();
            let batch = next_batch(&mut pending);
            if batch.is_empty() {
                // Free the slot while `pending` is locked: a commit that finds no free slot and enqueues itself could
                // otherwise wait forever.
                self.permit = None;
                return;
            }
            batch
        };
        // Without a runtime nobody waits for a reply any more.
        let Ok(runtime) = Handle::try_current() else { return };
        let slot = Self { batcher: Arc::clone(&self.batcher), permit: self.permit.take() };
        runtime.spawn(async move {
            slot.batcher.send_batch(batch).await;
            drop(slot);
        });
    }
}

/// The commits that have waited longest, each of another run. Commits whose caller has given up are dropped.
fn next_batch(pending: &mut VecDeque<PendingCommit>) -> Vec<PendingCommit> {
    let (mut batch, mut later) = (Vec::new(), Vec::new());
    let mut runs = HashSet::new();
    while batch.len() < BATCH_SIZE
        && let Some(one) = pending.pop_front()
    {
        if one.reply.is_closed() {
            continue;
        }
        if runs.insert(one.proposed.run) { batch.push(one) } else { later.push(one) }
    }
    later.into_iter().rev().for_each(|one| pending.push_front(one));
    batch
}
