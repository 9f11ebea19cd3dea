//! The one writer of an embedded store.
//!
//! A task owns the only connection that writes. It takes everything that waits, does it in one transaction, and answers
//! after the commit: many callers share one fsync. Boundaries of many runs are judged by one read and kept by one write;
//! every other piece is done under its own savepoint.
//!
//! # Guarantees
//!
//! - Nobody is answered before what they were told is on the disk; heartbeats and beats, which need not last, are the
//!   exception: where only such wait, the commit does not sync.
//! - A piece that fails takes nothing of the others with it; a transaction that fails takes all, and all are told.
//! - Whoever gives up before a piece is begun takes it along: no memory, and no later write, is left of it.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sqlx::{Connection as _, SqliteConnection};
use tokio::sync::{mpsc, oneshot};

use super::boundary::Prepared;
use super::clock::Clock;
use super::commit;
use super::lock::Lock;
use crate::Committed;
use crate::db_error::{DbError, DbResult};

/// A future of work on a connection.
pub(super) type Doing<'c, T> = Pin<Box<dyn Future<Output = DbResult<T>> + Send + 'c>>;

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

/// A piece that waits. Its caller holds it: one that is given up is gone at once, and is not done.
type Waiting = Mutex<Option<Box<dyn Piece>>>;

#[derive(Debug)]
enum Message {
    Work(Durability, Weak<Waiting>),
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
    pub async fn submit<T, F>(&self, durability: Durability, work: F) -> DbResult<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection, i64) -> Doing<'c, T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        self.hand_in(durability, Box::new(Job { work: Some(work), done: None, reply }), answer).await
    }

    /// Commits a boundary, together with whatever others wait.
    pub async fn commit(&self, commit: Prepared) -> DbResult<Option<Committed>> {
        let (reply, answer) = oneshot::channel();
        let piece = Committing { commit, done: None, reply };
        self.hand_in(Durability::Lasting, Box::new(piece), answer).await
    }

    async fn hand_in<T>(
        &self,
        durability: Durability,
        piece: Box<dyn Piece>,
        answer: oneshot::Receiver<DbResult<T>>,
    ) -> DbResult<T> {
        let gone = || DbError::unavailable("the store is closed");
        let waiting = Arc::new(Mutex::new(Some(piece)));
        self.queue.send(Message::Work(durability, Arc::downgrade(&waiting))).await.map_err(|_| gone())?;
        tokio::select! {
            biased;
            answer = answer => answer.map_err(|_| gone())?,
            // The writer has ended: what it answered is there already, and what waits here is done by nobody.
            () = self.queue.closed() => Err(gone()),
        }
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

    fn is_done(&self) -> bool;

    /// Answers: what was done, or why the transaction around it failed.
    fn answer(self: Box<Self>, transaction: DbResult<()>);

    /// Itself, where it is a boundary that may be kept together with others.
    fn as_boundary(&mut self) -> Option<&mut Committing> {
        None
    }
}

impl std::fmt::Debug for dyn Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Piece")
    }
}

struct Job<T, F> {
    work: Option<F>,
    done: Option<DbResult<T>>,
    reply: oneshot::Sender<DbResult<T>>,
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

    fn is_done(&self) -> bool {
        self.done.is_some()
    }

    fn answer(self: Box<Self>, transaction: DbResult<()>) {
        answer(self.reply, self.done, transaction);
    }
}

/// A commit.
struct Committing {
    commit: Prepared,
    done: Option<DbResult<Option<Committed>>>,
    reply: oneshot::Sender<DbResult<Option<Committed>>>,
}

impl Piece for Committing {
    fn perform<'c>(
        &'c mut self,
        conn: &'c mut SqliteConnection,
        now: i64,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'c>> {
        Box::pin(async move {
            let done = self.done.insert(commit::commit(conn, now, &self.commit).await);
            done.is_ok()
        })
    }

    fn is_done(&self) -> bool {
        self.done.is_some()
    }

    fn answer(self: Box<Self>, transaction: DbResult<()>) {
        answer(self.reply, self.done, transaction);
    }

    fn as_boundary(&mut self) -> Option<&mut Committing> {
        self.commit.goes_with_others().then_some(self)
    }
}

fn answer<T>(reply: oneshot::Sender<DbResult<T>>, done: Option<DbResult<T>>, transaction: DbResult<()>) {
    let answer = match (done, transaction) {
        (Some(Err(own)), _) => Err(own),
        (_, Err(shared)) => Err(shared),
        (Some(done), Ok(())) => done,
        (None, Ok(())) => Err(DbError::unavailable("the writer did not get to it")),
    };
    // Nobody listens any more if the caller gave up; then the outcome is unknown to it, as it must expect.
    let _ = reply.send(answer);
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
                Message::Work(durability, waiting) => {
                    let Some(waiting) = waiting.upgrade() else { continue };
                    batch.extend(waiting.lock().unwrap_or_else(PoisonError::into_inner).take());
                    if durability == Durability::Lasting {
                        needs = Durability::Lasting;
                    }
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
async fn transact(conn: &mut SqliteConnection, clock: &Clock, batch: &mut [Box<dyn Piece>]) -> DbResult<()> {
    sqlx::query("BEGIN IMMEDIATE").execute(&mut *conn).await?;
    let done = match perform(conn, clock, batch).await {
        Ok(true) => match sqlx::query("COMMIT").execute(&mut *conn).await {
            Ok(_) => return Ok(()),
            Err(error) => Err(error.into()),
        },
        Ok(false) => Ok(()),
        Err(fault) => Err(fault),
    };
    roll_back(conn).await;
    done
}

/// Does each piece; what a failed one wrote is undone. False: there is nothing to commit. An error: the whole transaction
/// is lost.
async fn perform(conn: &mut SqliteConnection, clock: &Clock, batch: &mut [Box<dyn Piece>]) -> DbResult<bool> {
    if let [only] = batch {
        // The transaction is its savepoint.
        return Ok(only.perform(conn, clock.now()).await);
    }
    keep_boundaries(conn, clock, batch).await?;
    let rest: Vec<_> = batch.iter_mut().filter(|piece| !piece.is_done()).collect();
    if !rest.is_empty() {
        sqlx::query("SAVEPOINT piece").execute(&mut *conn).await?;
    }
    for piece in rest {
        let next = if piece.perform(&mut *conn, clock.now()).await {
            "RELEASE piece; SAVEPOINT piece"
        } else {
            "ROLLBACK TO piece"
        };
        sqlx::query(next).execute(&mut *conn).await?;
    }
    Ok(true)
}

/// Keeps the boundaries of a batch together, as the first that is done in its transaction. Those that cannot be kept so,
/// whyever, are left to be done alone.
async fn keep_boundaries(
    conn: &mut SqliteConnection,
    clock: &Clock,
    batch: &mut [Box<dyn Piece>],
) -> DbResult<()> {
    let mut runs = HashSet::new();
    let mut boundaries: Vec<_> = batch.iter_mut().filter_map(|piece| piece.as_boundary()).collect();
    boundaries.retain(|boundary| runs.insert(boundary.commit.run));
    if boundaries.len() < 2 {
        return Ok(());
    }
    let commits: Vec<_> = boundaries.iter().map(|boundary| &boundary.commit).collect();
    match commit::commit_together(&mut *conn, clock.now(), &commits).await {
        Ok(mut kept) => {
            for boundary in boundaries {
                boundary.done = kept.remove(&boundary.commit.run).map(|committed| Ok(Some(committed)));
            }
        }
        Err(fault) => {
            tracing::debug!(error = ?fault, boundaries = commits.len(), "boundaries are kept one by one");
            roll_back(conn).await;
            sqlx::query("BEGIN IMMEDIATE").execute(conn).await?;
        }
    }
    Ok(())
}

async fn roll_back(conn: &mut SqliteConnection) {
    // SQLite may have rolled back by itself (a full disk); then there is nothing to roll back, and that is fine.
    let _ = sqlx::query("ROLLBACK").execute(conn).await;
}

/// How the connection syncs now.
struct Sync(Durability);

impl Sync {
    async fn set(&mut self, conn: &mut SqliteConnection, needs: Durability) -> DbResult<()> {
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
