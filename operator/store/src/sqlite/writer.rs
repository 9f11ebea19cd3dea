//! The one task that writes to an embedded store.
//!
//! The task owns the only connection that writes. It takes all operations that wait, performs them in one transaction,
//! and replies after the commit, so many callers share one fsync. Boundaries of different runs are checked with one
//! read and stored with one write. Every other operation has its own savepoint.
//!
//! # Guarantees
//!
//! - An operation is on the disk before its caller gets the result. The exception is an operation that is
//!   [`Durability::Unsynced`], such as a heartbeat: a commit of these alone does not sync.
//! - An operation that fails does not affect the others of its transaction. If the transaction fails, all of them fail,
//!   and each caller gets the error.
//! - If a caller is cancelled before its operation begins, the operation is not performed, and its memory is freed.
//! - After an error of the operating system nothing more is written, and no caller gets a success ([`serving`](super::serving)).

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use sqlx::{Connection as _, SqliteConnection};
use tokio::sync::{mpsc, oneshot};

use super::active_reads::BoxFuture;
use super::boundary::PreparedCommit;
use super::clock::Clock;
use super::commit;
use super::disk_fault::DiskFault;
use super::serving::Serving;
use super::write_op::{ClosureOp, CommitOp, WriteOp};
use crate::db_error::{DbError, DbResult};
use dalsegno_model::Committed;

/// Operations in one transaction at most.
const BATCH: usize = 256;

/// Operations in the queue at most. Further callers wait until there is room.
const QUEUE: usize = 1024;

/// After this time without an operation the volume is looked at.
const IDLE: Duration = Duration::from_secs(1);

/// Whether a write must survive a power failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    /// It must: its commit waits for the disk.
    Synced,
    /// It need not: a commit of such writes alone does not sync.
    Unsynced,
}

/// A handle to the writer's task. Clones share the task.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    queue: mpsc::Sender<Message>,
}

/// An operation that waits. Its caller owns it: if the caller is cancelled, the operation is dropped and is not
/// performed.
type Pending = Mutex<Option<Box<dyn WriteOp>>>;

#[derive(Debug)]
enum Message {
    Perform(Durability, Weak<Pending>),
    /// Close the database, then notify the sender.
    Close(oneshot::Sender<()>),
}

impl Writer {
    /// Starts the task. It ends, and releases the lock, on [`Self::close`] or when the last handle is dropped. If the
    /// volume fails, it ends too, and keeps the lock until the process ends.
    pub fn start(conn: SqliteConnection, clock: Arc<Clock>, serving: Option<Serving>) -> Self {
        let (queue, messages) = mpsc::channel(QUEUE);
        tokio::spawn(run(conn, clock, messages, serving));
        Self { queue }
    }

    /// Performs an operation, in one transaction with all others that wait.
    pub async fn submit<T, F>(&self, durability: Durability, work: F) -> DbResult<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection, i64) -> BoxFuture<'c, DbResult<T>> + Send + 'static,
    {
        let (reply, result) = oneshot::channel();
        self.enqueue(durability, Box::new(ClosureOp { work: Some(work), result: None, reply }), result).await
    }

    /// Commits a boundary, in one transaction with all others that wait.
    pub async fn commit(&self, commit: PreparedCommit) -> DbResult<Option<Committed>> {
        let (reply, result) = oneshot::channel();
        let op = CommitOp { commit, result: None, reply };
        self.enqueue(Durability::Synced, Box::new(op), result).await
    }

    async fn enqueue<T>(
        &self,
        durability: Durability,
        op: Box<dyn WriteOp>,
        result: oneshot::Receiver<DbResult<T>>,
    ) -> DbResult<T> {
        let closed = || DbError::unavailable("the store is closed");
        let pending = Arc::new(Mutex::new(Some(op)));
        self.queue
            .send(Message::Perform(durability, Arc::downgrade(&pending)))
            .await
            .map_err(|_| closed())?;
        tokio::select! {
            // A result that has arrived comes first: the queue may close after it was sent.
            biased;
            result = result => result.map_err(|_| closed())?,
            // The task has ended, and nobody performs the operations that still wait.
            () = self.queue.closed() => Err(closed()),
        }
    }

    /// Waits until all submitted operations are performed and the database is closed.
    pub async fn close(&self) {
        let (closed, done) = oneshot::channel();
        if self.queue.send(Message::Close(closed)).await.is_ok() {
            // An error means that the task has ended, which is what we wait for.
            let _ = done.await;
        }
    }
}

async fn run(
    mut conn: SqliteConnection,
    clock: Arc<Clock>,
    mut queue: mpsc::Receiver<Message>,
    mut serving: Option<Serving>,
) {
    let mut messages = Vec::new();
    let mut close_requests = Vec::new();
    let mut sync = SyncMode(Durability::Synced);
    while close_requests.is_empty() {
        if let Ok(0) = tokio::time::timeout(IDLE, queue.recv_many(&mut messages, BATCH)).await {
            break;
        }
        let (mut batch, needs) = take_batch(&mut messages, &mut close_requests);
        let mut disk_error = None;
        if !batch.is_empty() {
            let transaction = match sync.set(&mut conn, needs).await {
                Ok(()) => transact(&mut conn, &clock, &mut batch).await,
                Err(fault) => Err(fault),
            };
            if let Err(fault) = &transaction {
                tracing::warn!(error = ?fault, operations = batch.len(), "a transaction of the embedded store failed");
            }
            let errors =
                transaction.as_ref().err().into_iter().chain(batch.iter().filter_map(|op| op.error()));
            disk_error = DiskFault::worst(errors);
            for op in batch {
                op.reply(transaction.clone());
            }
        }
        let Some(mut served) = serving.take() else { continue };
        match served.after_batch(&mut conn, disk_error).await {
            Ok(()) => serving = Some(served),
            Err(error) => return served.fail(conn, &error),
        }
    }
    if let Err(error) = conn.close().await {
        tracing::warn!(error = &error as &dyn std::error::Error, "the embedded store did not close cleanly");
    }
    drop(serving);
    for closed in close_requests {
        let _ = closed.send(());
    }
}

/// Takes the operations of the messages whose callers still wait, and what their commit needs.
fn take_batch(
    messages: &mut Vec<Message>,
    close_requests: &mut Vec<oneshot::Sender<()>>,
) -> (Vec<Box<dyn WriteOp>>, Durability) {
    let mut batch = Vec::with_capacity(messages.len());
    let mut needs = Durability::Unsynced;
    for message in messages.drain(..) {
        match message {
            Message::Perform(durability, pending) => {
                let Some(pending) = pending.upgrade() else { continue };
                batch.extend(pending.lock().unwrap_or_else(PoisonError::into_inner).take());
                if durability == Durability::Synced {
                    needs = Durability::Synced;
                }
            }
            Message::Close(closed) => close_requests.push(closed),
        }
    }
    (batch, needs)
}

/// Performs a batch in one transaction.
async fn transact(
    conn: &mut SqliteConnection,
    clock: &Clock,
    batch: &mut [Box<dyn WriteOp>],
) -> DbResult<()> {
    sqlx::query("BEGIN IMMEDIATE").execute(&mut *conn).await?;
    let outcome = match perform(conn, clock, batch).await {
        Ok(true) => match sqlx::query("COMMIT").execute(&mut *conn).await {
            Ok(_) => return Ok(()),
            Err(error) => Err(error.into()),
        },
        Ok(false) => Ok(()),
        Err(fault) => Err(fault),
    };
    roll_back(conn).await;
    outcome
}

/// Performs each operation, and undoes the writes of one that fails. Returns whether there is anything to commit. An
/// error means that the whole transaction is lost.
async fn perform(
    conn: &mut SqliteConnection,
    clock: &Clock,
    batch: &mut [Box<dyn WriteOp>],
) -> DbResult<bool> {
    if let [only] = batch {
        // One operation needs no savepoint besides the transaction.
        return Ok(only.perform(conn, clock.now()).await);
    }
    commit_boundaries(conn, clock, batch).await?;
    let rest: Vec<_> = batch.iter_mut().filter(|op| !op.is_performed()).collect();
    if !rest.is_empty() {
        sqlx::query("SAVEPOINT operation").execute(&mut *conn).await?;
    }
    for op in rest {
        let next = if op.perform(&mut *conn, clock.now()).await {
            "RELEASE operation; SAVEPOINT operation"
        } else {
            "ROLLBACK TO operation"
        };
        if let Some(fault) = op.error().filter(|error| DiskFault::of(error).is_some()) {
            // SQLite may have rolled back the whole transaction.
            return Err(fault.clone());
        }
        sqlx::query(next).execute(&mut *conn).await?;
    }
    Ok(true)
}

/// Stores the boundaries of a batch together, before the other operations of its transaction. The boundaries that
/// cannot be stored together are left, and each is then performed by itself.
async fn commit_boundaries(
    conn: &mut SqliteConnection,
    clock: &Clock,
    batch: &mut [Box<dyn WriteOp>],
) -> DbResult<()> {
    let mut runs = HashSet::new();
    let mut ops: Vec<_> = batch.iter_mut().filter_map(|op| op.as_batchable_commit()).collect();
    ops.retain(|op| runs.insert(op.commit.run));
    if ops.len() < 2 {
        return Ok(());
    }
    let commits: Vec<_> = ops.iter().map(|op| &op.commit).collect();
    match commit::commit_together(&mut *conn, clock.now(), &commits).await {
        Ok(mut committed) => {
            for op in ops {
                op.result = committed.remove(&op.commit.run).map(|committed| Ok(Some(committed)));
            }
        }
        Err(fault) if DiskFault::of(&fault) == Some(DiskFault::Failed) => return Err(fault),
        Err(fault) => {
            tracing::debug!(error = ?fault, boundaries = commits.len(), "committing boundaries one by one");
            roll_back(conn).await;
            sqlx::query("BEGIN IMMEDIATE").execute(conn).await?;
        }
    }
    Ok(())
}

async fn roll_back(conn: &mut SqliteConnection) {
    // This fails if SQLite has rolled back by itself, for example because the disk is full.
    let _ = sqlx::query("ROLLBACK").execute(conn).await;
}

/// The connection's present `PRAGMA synchronous`.
struct SyncMode(Durability);

impl SyncMode {
    async fn set(&mut self, conn: &mut SqliteConnection, needs: Durability) -> DbResult<()> {
        if self.0 != needs {
            let pragma = match needs {
                Durability::Synced => "PRAGMA synchronous = FULL",
                Durability::Unsynced => "PRAGMA synchronous = NORMAL",
            };
            sqlx::query(pragma).execute(conn).await?;
            self.0 = needs;
        }
        Ok(())
    }
}
