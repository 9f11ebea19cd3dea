//! Connections whose caller has given up.
//!
//! A statement goes on after its caller has given up. `statement_timeout` ends it, with one exception: a commit that
//! waits for a synchronous standby waits for as long as the standby is away. If each such call freed its place in the
//! pool, the next call would open another connection, until the server has none left for anybody.
//!
//! # Guarantees
//!
//! - An abandoned connection keeps its permit until the server has answered its statement, or serves it no longer. So
//!   the pool has no more backends on the server than permits.
//! - A connection that is lost, so that no answer ever arrives, frees its permit as soon as the server says that its
//!   backend does nothing.
//!
//! # Caveats
//!
//! - The statement is not cancelled. A cancel request would end a commit's wait for the standby too: everybody would read
//!   a turn that a fail-over loses.
//! - Asking the server takes one connection of this process besides those of its pools.
//! - pgbouncer does not say which backend serves a connection: then a permit is kept for [`ABANDONED_LIMIT`] at most.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use sqlx::{Connection as _, PgConnection, Row as _};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedSemaphorePermit};
use tokio::time::{sleep, timeout};

use super::server_settings::Backend;
use super::session::Session;
use super::url::{Target, connect};
use crate::db_error::{DbError, DbResult};

/// Time until the server is asked for the first time, and then between two questions.
const FIRST_CHECK: Duration = Duration::from_millis(200);
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Longest time for one question, and for saying goodbye on a connection.
const CHECK_TIMEOUT: Duration = Duration::from_secs(3);

/// Through pgbouncer: longest time that an abandoned connection keeps its permit.
const ABANDONED_LIMIT: Duration = Duration::from_secs(30);

/// Whether a backend does anything but wait for its client. In an idle session it waits to read.
const IS_BUSY: &str = "SELECT EXISTS ( \
         SELECT FROM pg_stat_activity \
         WHERE pid = $1 AND backend_start::text = $2 AND wait_event_type IS DISTINCT FROM 'Client' \
     ) AS is_busy";

/// The abandoned connections of a process.
#[derive(Debug)]
pub(super) struct AbandonedConnections {
    target: Target,
    count: AtomicUsize,
    /// Asks the server. Open while there are abandoned connections.
    observer: Mutex<Option<PgConnection>>,
}

impl AbandonedConnections {
    pub fn new(target: Target) -> Arc<Self> {
        Arc::new(Self { target, count: AtomicUsize::new(0), observer: Mutex::default() })
    }

    /// Keeps the permit until the server has ended what it does for this connection, and closes the connection.
    pub fn keep(self: &Arc<Self>, session: Session, permit: OwnedSemaphorePermit) {
        // Without a runtime the process ends, and its connections with it.
        let Ok(runtime) = Handle::try_current() else { return };
        let this = Arc::clone(self);
        runtime.spawn(async move {
            this.count.fetch_add(1, SeqCst);
            this.wait_for_end(session).await;
            drop(permit);
            if this.count.fetch_sub(1, SeqCst) == 1 {
                this.observer.lock().await.take();
            }
        });
    }

    async fn wait_for_end(&self, session: Session) {
        let Session { mut conn, backend, .. } = session;
        let is_answered = tokio::select! {
            is_answered = read_answer(&mut conn) => is_answered,
            () = self.wait_until_idle(&backend) => false,
        };
        if is_answered {
            // An open transaction ends with the connection. If this fails, the connection is lost.
            let _ = timeout(CHECK_TIMEOUT, conn.close()).await;
        }
    }

    /// Returns once the backend does nothing for its client, or exists no longer.
    async fn wait_until_idle(&self, backend: &Backend) {
        if self.target.transaction_pooling {
            return sleep(ABANDONED_LIMIT).await;
        }
        sleep(FIRST_CHECK).await;
        // If the server cannot be asked, it serves no new connection either.
        while self.is_busy(backend).await.unwrap_or(true) {
            sleep(CHECK_INTERVAL).await;
        }
    }

    async fn is_busy(&self, backend: &Backend) -> DbResult<bool> {
        let mut observer = self.observer.lock().await;
        let ask = async {
            let mut conn = match observer.take() {
                Some(conn) => conn,
                None => connect(&self.target.options).await?,
            };
            let query = sqlx::query(IS_BUSY).bind(backend.pid).bind(&backend.started);
            let is_busy = query.fetch_one(&mut conn).await?.try_get("is_busy")?;
            Ok((conn, is_busy))
        };
        let (conn, is_busy) =
            timeout(CHECK_TIMEOUT, ask).await.unwrap_or_else(|it| Err(DbError::unavailable(it)))?;
        *observer = Some(conn);
        Ok(is_busy)
    }
}

/// Reads until the server is ready for the next statement. False: the connection is lost.
async fn read_answer(conn: &mut PgConnection) -> bool {
    loop {
        match conn.ping().await {
            Ok(()) => return true,
            // The answer to the abandoned statement is an error.
            Err(sqlx::Error::Database(_)) => {}
            Err(_) => return false,
        }
    }
}
