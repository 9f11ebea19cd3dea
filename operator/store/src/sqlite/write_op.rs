//! The operations of the writer.

use sqlx::SqliteConnection;
use tokio::sync::oneshot;

use super::active_reads::BoxFuture;
use super::boundary::PreparedCommit;
use super::commit;
use crate::db_error::{DbError, DbResult};
use dalsegno_model::Committed;

/// An operation of the writer, whatever the type of its result.
pub(super) trait WriteOp: Send {
    /// Performs the operation. Returns whether it succeeded: only then may its writes be committed.
    fn perform<'c>(&'c mut self, conn: &'c mut SqliteConnection, now: i64) -> BoxFuture<'c, bool>;

    fn is_performed(&self) -> bool;

    /// The operation's own error, once it is performed.
    fn error(&self) -> Option<&DbError>;

    /// Sends the result to the caller: the operation's own, or the error of the transaction around it.
    fn reply(self: Box<Self>, transaction: DbResult<()>);

    /// Returns this operation as a commit that may be stored together with others, if it is one.
    fn as_batchable_commit(&mut self) -> Option<&mut CommitOp> {
        None
    }
}

impl std::fmt::Debug for dyn WriteOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WriteOp")
    }
}

/// Any write, as a closure.
pub(super) struct ClosureOp<T, F> {
    pub work: Option<F>,
    pub result: Option<DbResult<T>>,
    pub reply: oneshot::Sender<DbResult<T>>,
}

impl<T, F> WriteOp for ClosureOp<T, F>
where
    T: Send,
    F: for<'c> FnOnce(&'c mut SqliteConnection, i64) -> BoxFuture<'c, DbResult<T>> + Send,
{
    fn perform<'c>(&'c mut self, conn: &'c mut SqliteConnection, now: i64) -> BoxFuture<'c, bool> {
        Box::pin(async move {
            if let Some(work) = self.work.take() {
                self.result = Some(work(conn, now).await);
            }
            matches!(self.result, Some(Ok(_)))
        })
    }

    fn is_performed(&self) -> bool {
        self.result.is_some()
    }

    fn error(&self) -> Option<&DbError> {
        self.result.as_ref()?.as_ref().err()
    }

    fn reply(self: Box<Self>, transaction: DbResult<()>) {
        send_result(self.reply, self.result, transaction);
    }
}

/// A commit of a boundary.
pub(super) struct CommitOp {
    pub commit: PreparedCommit,
    pub result: Option<DbResult<Option<Committed>>>,
    pub reply: oneshot::Sender<DbResult<Option<Committed>>>,
}

impl WriteOp for CommitOp {
    fn perform<'c>(&'c mut self, conn: &'c mut SqliteConnection, now: i64) -> BoxFuture<'c, bool> {
        Box::pin(async move {
            let result = self.result.insert(commit::commit(conn, now, &self.commit).await);
            result.is_ok()
        })
    }

    fn is_performed(&self) -> bool {
        self.result.is_some()
    }

    fn error(&self) -> Option<&DbError> {
        self.result.as_ref()?.as_ref().err()
    }

    fn reply(self: Box<Self>, transaction: DbResult<()>) {
        send_result(self.reply, self.result, transaction);
    }

    fn as_batchable_commit(&mut self) -> Option<&mut CommitOp> {
        self.commit.is_batchable().then_some(self)
    }
}

fn send_result<T>(
    reply: oneshot::Sender<DbResult<T>>,
    result: Option<DbResult<T>>,
    transaction: DbResult<()>,
) {
    let result = match (result, transaction) {
        (Some(Err(own)), _) => Err(own),
        (_, Err(shared)) => Err(shared),
        (Some(result), Ok(())) => result,
        (None, Ok(())) => Err(DbError::unavailable("the writer did not perform the operation")),
    };
    // If the caller was cancelled, nobody receives the result. Such a caller does not know the outcome.
    let _ = reply.send(result);
}
