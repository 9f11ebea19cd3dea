//! The production store: PostgreSQL, shared by any number of gateways and operators.
//!
//! # Guarantees
//!
//! - Each call on the hot path is one statement, which is committed and flushed to disk before the call returns. Two
//!   exceptions: heartbeats are not flushed, and a fenced commit sends a second statement to learn whether the boundary
//!   is stored. The fence is in the statement, which locks the run's row and checks that row. Commits of many runs
//!   share statements ([`commit_batcher`]).
//! - Every other change of a run is a transition under the lock of its row ([`transitions`]).
//! - Every method returns or fails within its deadline.
//! - A process has no more backends on the server than its pools have connections, and one: also if calls are given up
//!   ([`abandoned`]).
//! - However long a run's row is locked, the calls of that run occupy few connections ([`crate::per_run_limiter`]). Heartbeats
//!   have connections of their own.
//!
//! # Assumptions
//!
//! - `fsync` and `synchronous_commit` are on, and the isolation level is read committed ([`server_settings`] checks
//!   them on every new connection).
//!
//! # Caveats
//!
//! - Through pgbouncer in transaction mode (`?pgbouncer=true`) a call takes four round trips. Migrations need a URL of
//!   the server itself.

mod abandoned;
mod anchors;
mod audit;
mod boundary_facts;
mod boundary_pages;
mod branch;
mod calls;
mod commit;
mod commit_batcher;
mod commit_statement;
mod compaction;
mod create;
mod data_keys;
mod deadline_poll;
mod events;
mod failure;
mod fork;
mod grants;
mod heartbeats;
mod messages;
mod outbox;
mod pool;
mod pool_settings;
mod pooled_connection;
mod purge;
mod query;
mod read;
mod read_transaction;
mod record_columns;
mod record_reads;
mod records;
mod retention;
mod row;
mod schema;
mod server_settings;
mod session;
mod snapshot;
mod sqlx_types;
mod store;
mod transaction;
mod transitions;
mod url;
mod waits;

use std::sync::Arc;

use sqlx::{Connection as _, Row as _};
use uuid::Uuid;

use crate::db_error::{DbError, DbResult};
use crate::keys::{KeyProvider, Keys};
use crate::options::ConnectionOptions;
use abandoned::AbandonedConnections;
use commit_batcher::CommitBatcher;
use dalsegno_model::Result;
use pool::Pool;
use pool_settings::PoolSettings;
use server_settings::Access;
use url::Target;

/// Connections for the gateway's own heartbeat and a batch of worker heartbeats, which must not wait for other calls.
const HEARTBEAT_CONNECTIONS: u16 = 2;

/// A store in PostgreSQL.
#[derive(Debug)]
pub struct Postgres {
    pool: Arc<Pool>,
    heartbeat_pool: Pool,
    read_pool: Pool,
    batcher: Arc<CommitBatcher>,
    keys: Arc<Keys>,
    /// Names this process in its heartbeats as a gateway.
    gateway: Uuid,
}

impl Postgres {
    /// Connects to a database. `url` is a libpq URL, with `pgbouncer=true` if it leads to pgbouncer in transaction
    /// mode.
    ///
    /// [`dalsegno_model::Error::Unusable`]: the database is not migrated, or the server has unsafe settings.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_with(url, &ConnectionOptions::default()).await
    }

    /// As [`Self::connect`], with these connections.
    pub async fn connect_with(url: &str, options: &ConnectionOptions) -> Result<Self> {
        Self::connect_for(url, Access::ReadWrite, options).await
    }

    /// Connects to a database for reading. The server may be a standby; it refuses each write.
    pub async fn connect_read_only(url: &str) -> Result<Self> {
        Self::connect_for(url, Access::ReadOnly, &ConnectionOptions::default()).await
    }

    async fn connect_for(url: &str, access: Access, options: &ConnectionOptions) -> Result<Self> {
        let target = Target::parse(url, access)?.with_session_settings(options.statement_timeout);
        Self::open(target, options).await.map_err(|fault| fault.with_context("opening the store"))
    }

    async fn open(target: Target, options: &ConnectionOptions) -> DbResult<Self> {
        let abandoned = AbandonedConnections::new(target.clone(), options.metrics.clone());
        let pool = |name, size| {
            let settings = PoolSettings::new(name, size, options);
            Pool::new(
                target.with_application_name(&settings.application_name),
                settings,
                Arc::clone(&abandoned),
            )
        };
        let heartbeat_pool = pool("heartbeats", HEARTBEAT_CONNECTIONS);
        let read_pool = pool("reads", options.max_read_connections);
        let pool = Arc::new(pool("statements", options.max_connections));
        let applied = match pool.optional(sqlx::query(schema::IS_MIGRATED)).await? {
            Some(_) => Some(pool.one(sqlx::query(schema::APPLIED)).await?),
            None => None,
        };
        schema::check(applied.as_ref())?;
        let batcher = CommitBatcher::new(Arc::clone(&pool), options.metrics.statement_boundaries());
        Ok(Self { pool, heartbeat_pool, read_pool, batcher, keys: Arc::default(), gateway: Uuid::new_v4() })
    }

    /// Read each time: this address may lead to another database by now.
    async fn do_id(&self) -> DbResult<Uuid> {
        Ok(self.pool.one(sqlx::query("SELECT id FROM store")).await?.try_get("id")?)
    }

    /// With keys, payloads are sealed from now on: those of each run with its own data key, which the provider wraps.
    pub fn sealed_by(self, keys: Option<Arc<dyn KeyProvider>>) -> Self {
        Self { keys: Arc::new(Keys::of(keys)), ..self }
    }

    /// Migrates the schema to the version of this binary, under an advisory lock. `url` must lead to the server itself.
    /// Does nothing if the schema is newer and this binary can use it.
    pub async fn migrate(url: &str) -> Result<()> {
        let target = Target::parse_direct(url)?;
        schema::migrate(&target).await.map_err(|fault| fault.with_context("migrating the store"))
    }

    /// Grants `role` the least rights that operator and gateway need, and revokes all others on the store's tables.
    /// `url` must lead to the server itself, with the role that migrated.
    pub async fn grant(url: &str, role: &str) -> Result<()> {
        let target = Target::parse_direct(url)?;
        let granted = async {
            let (mut conn, _) = target.connect().await?;
            grants::grant(&mut conn, role).await?;
            Ok(conn.close().await?)
        };
        granted.await.map_err(|fault: DbError| fault.with_context("granting rights"))
    }
}
