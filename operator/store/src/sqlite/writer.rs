//! The one writer of an embedded store.
//!
//! A task owns the only connection that writes. It takes everything that waits, does it in one transaction, each piece
//! under its own savepoint, and answers after the commit: many callers share one fsync.
//!
//! # Guarantees
//!
//! - Nobody is answered before what they were told is on the disk; heartbeats and beats, which need not last, are the
//!   exception: where only such wait, the commit does not sync.
//! - A piece that fails takes nothing of the others with it; a transaction that fails takes all, and all are told.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use sqlx::{Connection as _, SqliteConnection};
use tokio::sync::{mpsc, oneshot};

use super::clock::Clock;
use super::fault::{Fault, Work};
use super::lock::Lock;

/// A future of work on a connection.
pub(super) type Doing<'c, T> = Pin<Box<dyn Future<Output = Work<T>> + Send + 'c>>;

/// Pieces of work in one transaction.
const BATCH: usize = 256;

/// Pieces of work that wait before callers do.
const QUEUE: usize = 1024;

/// Whether an answer must outlive a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    Lasting,
    Passing,
}

/// Where work is handed in.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    queue: mpsc::Sender<Message>,
}

#[derive(Debug)]
enum Message {
    Work(Durability, Box<dyn Piece>),
    /// Close the database, then say so.
    Close(oneshot::Sender<()>),
}

impl Writer {
    /// Starts the writer. It ends, and lets the lock go, when told to close or when nobody can hand in work any more.
    pub fn start(conn: SqliteConnection, clock: Arc<Clock>, lock: Option<Lock>) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE);
        tokio::spawn(run(conn, clock, waiting, lock));
        Self { queue }
    }

    /// Does a piece of work, in a transaction with whatever else waits.
    pub async fn submit<T, F>(&self, durability: Durability, work: F) -> Work<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection, i64) -> Doing<'c, T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let piece = Job { work: Some(work), done: None, reply };
        let gone = || Fault::unavailable("the store is closed");
        self.queue.send(Message::Work(durability, Box::new(piece))).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// Waits until all that was handed in is done and the database is closed.
    pub async fn close(&self) {
        let (closed, done) = oneshot::channel();
        if self.queue.send(Message::Close(closed)).await.is_ok() {
            // An error means that the writer has ended, which is what we wait for.
            let _ = done.await;
        }
    }
}

/// A piece of work, whatever its answer is.
trait Piece: Send {
    /// Does it. True: it succeeded, and may be committed.
    fn perform<'c>(
        &'c mut self,
        conn: &'c mut SqliteConnection,
        now: i64,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'c>>;

    /// Answers: what was done, or why the transaction around it failed.
    fn answer(self: Box<Self>, transaction: Work<()>);
}

impl std::fmt::Debug for dyn Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Piece")
    }
}

struct Job<T, F> {
    work: Option<F>,
    done: Option<Work<T>>,
    reply: oneshot::Sender<Work<T>>,
}

impl<T, F> Piece for Job<T, F>
where
    T: Send,
    F: for<'c> FnOnce(&'c mut SqliteConnection, i64) -> Doing<'c, T> + Send,
{
    fn perform<'c>(
        &'c mut self,
        conn: &'c mut SqliteConnection,
        now: i64,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'c>> {
        Box::pin(async move {
            if let Some(work) = self.work.take() {
                self.done = Some(work(conn, now).await);
            }
            matches!(self.done, Some(Ok(_)))
        })
    }

    fn answer(self: Box<Self>, transaction: Work<()>) {
        let answer = match (self.done, transaction) {
            (Some(Err(own)), _) => Err(own),
            (_, Err(shared)) => Err(shared),
            (Some(done), Ok(())) => done,
            (None, Ok(())) => Err(Fault::unavailable("the writer did not get to it")),
        };
        // Nobody listens any more if the caller gave up; then the outcome is unknown to it, as it must expect.
        let _ = self.reply.send(answer);
    }
}

async fn run(
    mut conn: SqliteConnection,
    clock: Arc<Clock>,
    mut waiting: mpsc::Receiver<Message>,
    lock: Option<Lock>,
) {
    let mut messages = Vec::new();
    let mut closers = Vec::new();
    let mut sync = Sync(Durability::Lasting);
    while closers.is_empty() && waiting.recv_many(&mut messages, BATCH).await > 0 {
        let mut batch = Vec::with_capacity(messages.len());
        let mut needs = Durability::Passing;
        for message in messages.drain(..) {
            match message {
                Message::Work(durability, piece) => {
                    if durability == Durability::Lasting {
                        needs = Durability::Lasting;
                    }
                    batch.push(piece);
                }
                Message::Close(closed) => closers.push(closed),
            }
        }
        if batch.is_empty() {
            continue;
        }
        let transaction = match sync.set(&mut conn, needs).await {
            Ok(()) => transact(&mut conn, &clock, &mut batch).await,
            Err(fault) => Err(fault),
        };
        if let Err(fault) = &transaction {
            tracing::warn!(error = ?fault, pieces = batch.len(), "a transaction of the embedded store failed");
        }
        for piece in batch {
            piece.answer(transaction.clone());
        }
    }
    if let Err(error) = conn.close().await {
        tracing::warn!(error = &error as &dyn std::error::Error, "the embedded store did not close cleanly");
    }
    drop(lock);
    for closed in closers {
        let _ = closed.send(());
    }
}

/// Does a batch in one transaction.
async fn transact(conn: &mut SqliteConnection, clock: &Clock, batch: &mut [Box<dyn Piece>]) -> Work<()> {
    sqlx::query("BEGIN IMMEDIATE").execute(&mut *conn).await?;
    let done = match perform(conn, clock, batch).await {
        Ok(true) => match sqlx::query("COMMIT").execute(&mut *conn).await {
            Ok(_) => return Ok(()),
            Err(error) => Err(error.into()),
        },
        Ok(false) => Ok(()),
        Err(fault) => Err(fault),
    };
    // SQLite may have rolled back by itself (a full disk); then there is nothing to roll back, and that is fine.
    let _ = sqlx::query("ROLLBACK").execute(&mut *conn).await;
    done
}

/// Does each piece; what a failed one wrote is undone. False: there is nothing to commit. An error: the whole transaction
/// is lost.
async fn perform(conn: &mut SqliteConnection, clock: &Clock, batch: &mut [Box<dyn Piece>]) -> Work<bool> {
    if let [only] = batch {
        // The transaction is its savepoint.
        return Ok(only.perform(conn, clock.now()).await);
    }
    sqlx::query("SAVEPOINT piece").execute(&mut *conn).await?;
    for piece in batch {
        let next = if piece.perform(&mut *conn, clock.now()).await {
            "RELEASE piece; SAVEPOINT piece"
        } else {
            "ROLLBACK TO piece"
        };
        sqlx::query(next).execute(&mut *conn).await?;
    }
    Ok(true)
}

/// How the connection syncs now.
struct Sync(Durability);

impl Sync {
    async fn set(&mut self, conn: &mut SqliteConnection, needs: Durability) -> Work<()> {
        if self.0 != needs {
            let pragma = match needs {
                Durability::Lasting => "PRAGMA synchronous = FULL",
                Durability::Passing => "PRAGMA synchronous = NORMAL",
            };
            sqlx::query(pragma).execute(conn).await?;
            self.0 = needs;
        }
        Ok(())
    }
}
