//! The connection pool: one statement, one round trip and one deadline for each call.
//!
//! sqlx's own pool pings a connection each time it is returned, and by default each time it is taken: a second round
//! trip for every commit. This pool never pings. When a connection fails, it is dropped together with all idle
//! connections, which have probably lost the same server. A server that does not respond at all causes no error: after
//! [`SUSPECT_AFTER`] the connections that have been idle for that long are dropped as well.
//!
//! A permit stands for a backend on the server. It is kept while a connection is opened, while a statement runs, and
//! after its caller has given up until the server has ended the statement ([`super::abandoned`]).

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Postgres};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::abandoned::AbandonedConnections;
use super::failure::Failure;
use super::pool_settings::PoolSettings;
use super::pooled_connection::PooledConnection;
use super::session::Session;
use super::url::Target;
use crate::db_error::{DbError, DbResult};
use crate::per_run_limiter::{PerRunLimiter, QueueGuard};
use dalsegno_model::RunId;

/// A call that takes longer than this waits for a lock, or its server is lost. Connections that have been idle for as
/// long may be lost too and are dropped; connections that were used since then are kept. Shorter than a call's
/// deadline, so that the next call finds no lost connection.
const SUSPECT_AFTER: Duration = Duration::from_secs(2);

/// Connections for statements of one run that may wait for the lock of its row: one for the statement that holds the
/// lock, and one for the next. A statement that waits keeps its connection from other runs.
const CONNECTIONS_PER_RUN: usize = 2;

/// A connection that has been idle for longer is closed: a NAT or firewall in between may have dropped it.
const MAX_IDLE: Duration = Duration::from_secs(300);

/// Connections to one database.
#[derive(Debug)]
pub(super) struct Pool {
    target: Target,
    settings: Arc<PoolSettings>,
    permits: Arc<Semaphore>,
    per_run: PerRunLimiter,
    idle: Mutex<Vec<Session>>,
    abandoned: Arc<AbandonedConnections>,
}

impl Pool {
    /// A pool with these settings.
    pub fn new(target: Target, settings: PoolSettings, abandoned: Arc<AbandonedConnections>) -> Self {
        let permits = Arc::new(Semaphore::new(settings.max_connections));
        let per_run = PerRunLimiter::new(CONNECTIONS_PER_RUN);
        Self { target, settings: Arc::new(settings), permits, per_run, idle: Mutex::default(), abandoned }
    }

    /// Longest time that a call may take.
    pub fn deadline(&self) -> Duration {
        self.settings.deadline
    }

    /// All rows of one statement, after it is committed. If the call fails or times out, its outcome is unknown.
    pub async fn all(&self, query: Query<'_, Postgres, PgArguments>) -> DbResult<Vec<PgRow>> {
        self.with_timeout(self.run(query)).await
    }

    /// The one row of a statement that has exactly one.
    pub async fn one(&self, query: Query<'_, Postgres, PgArguments>) -> DbResult<PgRow> {
        exactly_one(self.optional(query).await?)
    }

    /// The row of a statement that has at most one.
    pub async fn optional(&self, query: Query<'_, Postgres, PgArguments>) -> DbResult<Option<PgRow>> {
        Ok(self.all(query).await?.into_iter().next())
    }

    /// For statements that may wait for the lock of this run's row.
    pub fn for_run(&self, run: RunId) -> RunExecutor<'_> {
        RunExecutor { pool: self, run }
    }

    /// Whether the server is a pooler that may use another connection for each transaction.
    pub fn transaction_pooling(&self) -> bool {
        self.target.transaction_pooling
    }

    /// A connection in a transaction that sees what is committed now and nothing later. It is closed after use.
    pub async fn begin_read_only(&self) -> DbResult<PooledConnection> {
        self.with_timeout(async {
            let mut conn = self.acquire().await?;
            let sql = AssertSqlSafe(self.settings.begin_read_only.clone());
            sqlx::raw_sql(sql).execute(conn.get()?).await.map_err(|error| self.to_fault(error))?;
            Ok(conn)
        })
        .await
    }

    /// Ends the transaction of [`Self::begin_read_only`] and begins another, which sees what is committed now.
    pub fn renewal(&self) -> String {
        format!("COMMIT; {}", self.settings.begin_read_only)
    }

    /// Joins the queue of the calls that may wait for the lock of this run's row.
    pub fn join(&self, run: RunId) -> QueueGuard<'_> {
        self.per_run.join(run)
    }

    /// The statements that begin a transaction.
    pub fn begin_statements(&self) -> &str {
        &self.settings.begin
    }

    /// Runs a call with its deadline.
    pub async fn with_timeout<T>(&self, work: impl Future<Output = DbResult<T>>) -> DbResult<T> {
        let mut work = pin!(work);
        if let Ok(done) = timeout(SUSPECT_AFTER, &mut work).await {
            return done;
        }
        self.close_idle(SUSPECT_AFTER);
        match timeout(self.deadline().saturating_sub(SUSPECT_AFTER), work).await {
            Ok(done) => done,
            Err(elapsed) => {
                self.close_idle(Duration::ZERO);
                Err(DbError::unavailable(elapsed))
            }
        }
    }

    async fn run(&self, query: Query<'_, Postgres, PgArguments>) -> DbResult<Vec<PgRow>> {
        let mut conn = self.acquire().await?;
        let rows = self.fetch(conn.get()?, query).await.map_err(|error| self.to_fault(error))?;
        self.give_back(conn);
        Ok(rows)
    }

    /// Waits for a permit, and takes the most recently used idle connection or opens one.
    pub(super) async fn acquire(&self) -> DbResult<PooledConnection> {
        let asked = Instant::now();
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(DbError::unavailable)?;
        self.settings.metrics.waited(asked.elapsed());
        if let Some(session) = self.take() {
            return Ok(PooledConnection::new(session, permit, Arc::clone(&self.abandoned)));
        }
        // On a task of its own: if the caller gives up, the permit stays with the connection that is being opened.
        let (target, settings) = (self.target.clone(), Arc::clone(&self.settings));
        let abandoned = Arc::clone(&self.abandoned);
        let opening = tokio::spawn(async move {
            let opened = Session::open(&target, settings.connection_lifetime, &settings.metrics);
            let session = with_timeout(settings.deadline, opened).await?;
            Ok(PooledConnection::new(session, permit, abandoned))
        });
        opening.await.unwrap_or_else(|error| Err(DbError::unavailable(error)))
    }

    /// Why a statement failed. If its connection is lost, the idle connections are closed too.
    pub(super) fn to_fault(&self, error: sqlx::Error) -> DbError {
        let fault = error.into();
        match Failure::of(&fault) {
            Failure::Connection => self.close_idle(Duration::ZERO),
            Failure::Statement | Failure::Server => {}
        }
        fault
    }

    async fn fetch(
        &self,
        conn: &mut PgConnection,
        query: Query<'_, Postgres, PgArguments>,
    ) -> sqlx::Result<Vec<PgRow>> {
        if !self.transaction_pooling() {
            return query.fetch_all(conn).await;
        }
        // A statement is prepared in one round trip and executed in the next. The transaction keeps both on one server
        // connection, and an unnamed statement cannot conflict with one of the next client.
        let mut transaction = conn.begin_with(AssertSqlSafe(self.settings.begin.clone())).await?;
        let rows = query.persistent(false).fetch_all(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(rows)
    }

    /// The most recently used idle connection, so that surplus connections reach [`MAX_IDLE`].
    fn take(&self) -> Option<Session> {
        let mut idle = self.idle();
        idle.retain(|session| session.idle_since.elapsed() < MAX_IDLE && !session.is_expired());
        idle.pop()
    }

    pub(super) fn give_back(&self, conn: PooledConnection) {
        if let Some((mut session, permit)) = conn.end() {
            if !session.is_expired() {
                session.idle_since = Instant::now();
                self.idle().push(session);
            }
            drop(permit);
        }
    }

    /// Closes the connections that have been idle for at least this long.
    fn close_idle(&self, limit: Duration) {
        self.idle().retain(|session| session.idle_since.elapsed() < limit);
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Session>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs statements of one run: each waits in the run's queue before it takes a connection.
pub(super) struct RunExecutor<'a> {
    pool: &'a Pool,
    run: RunId,
}

impl RunExecutor<'_> {
    /// The one row of a statement that has exactly one.
    pub async fn one(&self, query: Query<'_, Postgres, PgArguments>) -> DbResult<PgRow> {
        exactly_one(self.optional(query).await?)
    }

    /// The row of a statement that has at most one.
    pub async fn optional(&self, query: Query<'_, Postgres, PgArguments>) -> DbResult<Option<PgRow>> {
        let queued = self.pool.per_run.join(self.run);
        let work = async {
            let _served = queued.acquire().await?;
            self.pool.run(query).await
        };
        Ok(self.pool.with_timeout(work).await?.into_iter().next())
    }
}

fn exactly_one(row: Option<PgRow>) -> DbResult<PgRow> {
    row.ok_or_else(|| DbError::Corrupt("the statement returned no row".into()))
}

/// Runs a future with the deadline of a call.
pub(super) async fn with_timeout<T>(
    deadline: Duration,
    work: impl Future<Output = DbResult<T>>,
) -> DbResult<T> {
    timeout(deadline, work).await.unwrap_or_else(|elapsed| Err(DbError::unavailable(elapsed)))
}
