//! The production store: PostgreSQL, shared by any number of gateways and operators.
//!
//! # Guarantees
//!
//! - Hot calls are one statement each, committed and flushed before it answers; only heartbeats are not flushed, and only
//!   a fenced commit asks once more, whether it stands. The fence is in the statement: it locks the run's row and
//!   judges by that row. Commits of many runs share statements ([`gather`]).
//! - Every other change of a run is a transition under the lock of its row ([`transitions`]).
//! - Every method answers within its deadline, or fails.
//! - However long a run's row is locked, its calls take few connections ([`crate::per_run_limiter`]); beats and heartbeats have their own.
//!
//! # Assumptions
//!
//! - `fsync` and `synchronous_commit` are on, transactions are read committed: checked on every new connection.
//!
//! # Caveats
//!
//! - Through pgbouncer in transaction mode (`?pgbouncer=true`) a call takes four round trips, and migrations need a URL that
//!   leads to the server.

mod anchors;
mod answers;
mod branch;
mod calls;
mod columns;
mod commit;
mod create;
mod data_keys;
mod events;
mod fitness;
mod gather;
mod grants;
mod links;
mod old;
mod pool;
mod prune;
mod pulse;
mod read;
mod reading;
mod records;
mod retention;

mod row;
mod schema;
mod snapshot;
mod store;
mod transitions;
mod url;
mod worker;

use std::sync::Arc;

use sqlx::{Connection as _, Row as _};
use uuid::Uuid;

use crate::Result;
use crate::db_error::{DbError, DbResult};
use crate::keys::{KeyProvider, Keys};
use gather::Gather;
use pool::Pool;
use url::{Target, connect};

/// Connections of one process.
const CONNECTIONS: usize = 16;

/// And those that are kept for its beat and a batch of heartbeats, which must not wait behind any other call.
const BEATS: usize = 2;

/// A store in PostgreSQL.
#[derive(Debug)]
pub struct Postgres {
    pool: Arc<Pool>,
    beats: Pool,
    gather: Arc<Gather>,
    keys: Arc<Keys>,
}

impl Postgres {
    /// Connects to a database that is migrated and may be trusted ([`crate::Error::Unfit`] otherwise). `url` as libpq
    /// reads it; with `pgbouncer=true` where it leads to pgbouncer in transaction mode.
    pub async fn connect(url: &str) -> Result<Self> {
        let target = Target::parse(url)?;
        Self::open(target).await.map_err(|fault| fault.with_context("opening the store"))
    }

    async fn open(target: Target) -> DbResult<Self> {
        let beats = Pool::new(target.clone(), BEATS);
        let pool = Arc::new(Pool::new(target, CONNECTIONS));
        let version = match pool.optional(sqlx::query(schema::IS_MIGRATED)).await? {
            Some(_) => pool.one(sqlx::query(schema::VERSION)).await?.try_get("version")?,
            None => 0,
        };
        schema::check(version)?;
        let gather = Gather::new(Arc::clone(&pool));
        Ok(Self { pool, beats, gather, keys: Arc::default() })
    }

    /// Asked anew each time: another database may stand at this address by now.
    async fn do_id(&self) -> DbResult<Uuid> {
        Ok(self.pool.one(sqlx::query("SELECT id FROM store")).await?.try_get("id")?)
    }

    /// With keys: payloads are sealed from now on, each run's under a data key that these wrap.
    pub fn sealed_by(self, keys: Option<Arc<dyn KeyProvider>>) -> Self {
        Self { keys: Arc::new(Keys::of(keys)), ..self }
    }

    /// Brings the database's schema up to this binary's, under an advisory lock. `url` must lead to the server itself.
    pub async fn migrate(url: &str) -> Result<()> {
        let options = Target::parse_direct(url)?;
        let work = async {
            let mut conn = connect(&options).await?;
            fitness::check_settings(&mut conn).await?;
            let done = schema::migrate(&mut conn).await;
            // Closing it lets the lock go, whatever happened.
            let closed = conn.close().await;
            done?;
            Ok(closed?)
        };
        work.await.map_err(|fault: DbError| fault.with_context("migrating the store"))
    }

    /// Gives `role` the least rights that operator and gateway need, and takes all others on these tables from it.
    /// `url` must lead to the server itself, as the role that migrated.
    pub async fn grant(url: &str, role: &str) -> Result<()> {
        let options = Target::parse_direct(url)?;
        let work = async {
            let mut conn = connect(&options).await?;
            grants::grant(&mut conn, role).await?;
            Ok(conn.close().await?)
        };
        work.await.map_err(|fault: DbError| fault.with_context("granting rights"))
    }
}
