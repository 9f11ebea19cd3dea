//! Connections, and the one way in which a call uses one: one statement, one round trip, one deadline.
//!
//! sqlx's own pool asks a connection whether it lives each time it is given back (and by default each time it is
//! taken): a second round trip for every commit. Here a connection that failed is dropped, and with it all that were
//! idle, since they are likely to have lost the same server. Where a server is silent nothing says that it is lost:
//! then those go that have been idle as long.

use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Connection as _, Either, PgConnection, Postgres};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::fitness;
use super::url::{Target, connect};
use crate::RunId;
use crate::db_error::{DbError, DbResult};
use crate::per_run_limiter::{PerRunLimiter, QueueGuard};

/// Longest time a statement may take on the server.
const STATEMENT_TIMEOUT: &str = "5s";

/// Where nothing is kept in a session each transaction says so itself. Of one whose client is gone nobody tells the server,
/// since the pooler lives: it ends while whoever waits for its locks still waits.
const BEGIN: &str =
    "BEGIN; SET LOCAL statement_timeout = '5s'; SET LOCAL idle_in_transaction_session_timeout = '3s'";

/// Its reader may take its time. Where it has vanished, the server keeps old rows for it no longer than this.
const BEGIN_READING: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = '5s'; \
                             SET LOCAL idle_in_transaction_session_timeout = '10min'";

/// Longest time a call may take: waiting for a connection, making one, and the statement.
pub(super) const DEADLINE: Duration = Duration::from_secs(8);

/// A call that has waited so long waits for a lock, or has lost its server. Connections that have been idle as long may be lost
/// as well; those that were used since are not. A caller waits longer than this, and the next one finds none that is lost.
const SILENCE: Duration = Duration::from_secs(2);

/// Statements of one run that have a connection, where they may wait for its row: one that has the row, and one that takes it
/// next. Whatever waits on a connection keeps it from other runs.
const OF_ONE_RUN: usize = 2;

/// An idle connection older than this is closed: something on the way may have forgotten it.
const IDLE: Duration = Duration::from_secs(300);

/// Connections to one database.
#[derive(Debug)]
pub(super) struct Pool {
    options: PgConnectOptions,
    /// Whether another pooler hands us another server connection for each transaction.
    transaction_pooling: bool,
    permits: Semaphore,
    lines: PerRunLimiter,
    idle: Mutex<Vec<Idle>>,
}

#[derive(Debug)]
struct Idle {
    conn: PgConnection,
    since: Instant,
}

impl Pool {
    /// With at most so many connections.
    pub fn new(target: Target, connections: usize) -> Self {
        let Target { options, transaction_pooling } = target;
        let options = if transaction_pooling {
            options.statement_cache_capacity(0).extra_float_digits(None)
        } else {
            // No statement here lives long enough to be worth compiling.
            options.options([("statement_timeout", STATEMENT_TIMEOUT), ("jit", "off")])
        };
        let permits = Semaphore::new(connections);
        let lines = PerRunLimiter::new(OF_ONE_RUN);
        Self { options, transaction_pooling, permits, lines, idle: Mutex::default() }
    }

    /// All rows of one statement, once it is committed. Without an answer in time its outcome is unknown.
    pub async fn all(&self, query: Query<'_, Postgres, PgArguments>) -> DbResult<Vec<PgRow>> {
        self.in_time(self.run(query)).await
    }

    /// The one row of a statement that has exactly one.
    pub async fn one(&self, query: Query<'_, Postgres, PgArguments>) -> DbResult<PgRow> {
        exactly_one(self.optional(query).await?)
    }

    /// The row of a statement that has at most one.
    pub async fn optional(&self, query: Query<'_, Postgres, PgArguments>) -> DbResult<Option<PgRow>> {
        Ok(self.all(query).await?.into_iter().next())
    }

    /// For statements that may wait for this run's row.
    pub fn of(&self, run: RunId) -> OfRun<'_> {
        OfRun { pool: self, run }
    }

    /// Whether another pooler hands us another server connection for each transaction.
    pub fn transaction_pooling(&self) -> bool {
        self.transaction_pooling
    }

    /// A connection of its own, in a transaction that sees what is committed now and nothing that comes after.
    pub async fn moment(&self) -> DbResult<PgConnection> {
        in_time(async {
            let mut conn = connect(&self.options).await?;
            sqlx::raw_sql(BEGIN_READING).execute(&mut conn).await?;
            Ok(conn)
        })
        .await
    }

    /// A place in the line of those that may wait for this run's row.
    pub fn join(&self, run: RunId) -> QueueGuard<'_> {
        self.lines.join(run)
    }

    /// Begins a transaction with these statements, all in one trip: what each of them answers. `sql` is sent as it is, and
    /// holds no value but ids of runs.
    pub async fn begin(&self, sql: &str) -> DbResult<(Transaction<'_>, Vec<Vec<PgRow>>)> {
        let permit = self.permits.acquire().await.map_err(DbError::unavailable)?;
        let conn = match self.take() {
            Some(conn) => conn,
            None => self.connect().await?,
        };
        let mut transaction = Transaction { pool: self, conn, _permit: permit };
        let begun = transaction.run_simple(format!("{BEGIN}; {sql}")).await;
        let mut answers = begun.map_err(|error| self.failed(error))?;
        // The transaction's own beginning.
        answers.drain(..BEGIN.split(';').count());
        Ok((transaction, answers))
    }

    /// What a call answers, within its deadline.
    pub async fn in_time<T>(&self, work: impl Future<Output = DbResult<T>>) -> DbResult<T> {
        let mut work = pin!(work);
        if let Ok(done) = timeout(SILENCE, &mut work).await {
            return done;
        }
        self.forget_idle(SILENCE);
        match timeout(DEADLINE - SILENCE, work).await {
            Ok(done) => done,
            Err(elapsed) => {
                self.forget_idle(Duration::ZERO);
                Err(DbError::unavailable(elapsed))
            }
        }
    }

    async fn run(&self, query: Query<'_, Postgres, PgArguments>) -> DbResult<Vec<PgRow>> {
        let _permit = self.permits.acquire().await.map_err(DbError::unavailable)?;
        let mut conn = match self.take() {
            Some(conn) => conn,
            None => self.connect().await?,
        };
        // A call that is given up drops its connection: what the server still sends on it belongs to nobody.
        match self.fetch(&mut conn, query).await {
            Ok(rows) => {
                self.give_back(conn);
                Ok(rows)
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Why a statement failed. Where the server or the way to it is lost, the idle connections go with it.
    fn failed(&self, error: sqlx::Error) -> DbError {
        let fault = error.into();
        if !is_the_statements(&fault) {
            self.forget_idle(Duration::ZERO);
        }
        fault
    }

    async fn fetch(
        &self,
        conn: &mut PgConnection,
        query: Query<'_, Postgres, PgArguments>,
    ) -> sqlx::Result<Vec<PgRow>> {
        if !self.transaction_pooling {
            return query.fetch_all(conn).await;
        }
        // A statement is prepared in one exchange and executed in the next: the transaction keeps both on one server
        // connection, and no name is left there for the next client to fall over.
        let mut transaction = conn.begin_with(BEGIN).await?;
        let rows = query.persistent(false).fetch_all(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(rows)
    }

    async fn connect(&self) -> DbResult<PgConnection> {
        let mut conn = connect(&self.options).await?;
        fitness::check_settings(&mut conn).await?;
        Ok(conn)
    }

    /// The connection that was used last, so that those beyond need grow old.
    fn take(&self) -> Option<PgConnection> {
        let mut idle = self.idle();
        idle.retain(|idle| idle.since.elapsed() < IDLE);
        idle.pop().map(|idle| idle.conn)
    }

    fn give_back(&self, conn: PgConnection) {
        let since = Instant::now();
        self.idle().push(Idle { conn, since });
    }

    /// Closes the connections that have been idle so long.
    fn forget_idle(&self, limit: Duration) {
        self.idle().retain(|idle| idle.since.elapsed() < limit);
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A transaction on a connection of its own, which holds the lock of a run's row. Dropped before its end it takes the
/// connection along, and the server rolls it back: no connection with an open transaction is ever used again.
#[derive(Debug)]
pub(super) struct Transaction<'a> {
    pool: &'a Pool,
    conn: PgConnection,
    _permit: SemaphorePermit<'a>,
}

impl Transaction<'_> {
    /// All rows of one statement.
    pub async fn all(&mut self, query: Query<'_, Postgres, PgArguments>) -> DbResult<Vec<PgRow>> {
        let query = query.persistent(!self.pool.transaction_pooling);
        query.fetch_all(&mut self.conn).await.map_err(|error| self.pool.failed(error))
    }

    /// Ends it: what was written stands.
    pub async fn commit(self) -> DbResult<()> {
        self.end("COMMIT").await
    }

    /// Ends it where nothing was written.
    pub async fn roll_back(self) -> DbResult<()> {
        self.end("ROLLBACK").await
    }

    async fn end(mut self, how: &str) -> DbResult<()> {
        self.run_simple(how.to_owned()).await.map_err(|error| self.pool.failed(error))?;
        let Self { pool, conn, _permit } = self;
        pool.give_back(conn);
        Ok(())
    }

    /// Several statements in one trip, and what each of them answers.
    async fn run_simple(&mut self, sql: String) -> sqlx::Result<Vec<Vec<PgRow>>> {
        let mut stream = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_many(&mut self.conn);
        let (mut answers, mut rows) = (Vec::new(), Vec::new());
        while let Some(next) = stream.try_next().await? {
            match next {
                Either::Right(row) => rows.push(row),
                Either::Left(_) => answers.push(std::mem::take(&mut rows)),
            }
        }
        Ok(answers)
    }
}

/// Asks as the pool does, and takes a connection when its turn has come.
pub(super) struct OfRun<'a> {
    pool: &'a Pool,
    run: RunId,
}

impl OfRun<'_> {
    /// The one row of a statement that has exactly one.
    pub async fn one(&self, query: Query<'_, Postgres, PgArguments>) -> DbResult<PgRow> {
        exactly_one(self.optional(query).await?)
    }

    /// The row of a statement that has at most one.
    pub async fn optional(&self, query: Query<'_, Postgres, PgArguments>) -> DbResult<Option<PgRow>> {
        let standing = self.pool.lines.join(self.run);
        let work = async {
            let _served = standing.acquire().await?;
            self.pool.run(query).await
        };
        Ok(self.pool.in_time(work).await?.into_iter().next())
    }
}

fn exactly_one(row: Option<PgRow>) -> DbResult<PgRow> {
    row.ok_or_else(|| DbError::Corrupt("the statement answered no row".into()))
}

/// What the database answers, within a call's deadline.
pub(super) async fn in_time<T>(work: impl Future<Output = DbResult<T>>) -> DbResult<T> {
    timeout(DEADLINE, work).await.unwrap_or_else(|elapsed| Err(DbError::unavailable(elapsed)))
}

/// Whether a statement failed, and not the server or the way to it: class 57P is the server's own end.
pub(super) fn is_the_statements(fault: &DbError) -> bool {
    matches!(fault, DbError::Unusable(_)) || fault.code().is_some_and(|code| !code.starts_with("57P"))
}
