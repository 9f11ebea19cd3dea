//! A read transaction: all its reads see the database as it was when it began. It has a connection of its own.

use std::sync::LazyLock;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Row as _};
use tokio::sync::Mutex;

use super::Postgres;
use super::anchors::{anchor_row, anchored_head};
use super::audit::audit_row;
use super::pool::with_timeout;
use super::pooled_connection::PooledConnection;
use super::query::QueryExecutor;
use super::snapshot::SnapshotStore;
use crate::compaction::is_dropped;
use crate::db_error::DbResult;
use crate::keys::Keys;
use crate::pages::UndecodedBoundary;
use crate::reads::{CallRow, RunRow, encoded_boundary, stored_batch, stored_record, stored_wait};
use crate::statements::{
    PAGE_WAITS, STORED_WAITS, anchor_columns, audit_columns, boundary_columns, leaf_columns,
    record_change_columns, record_columns,
};
use crate::stored_rows::{PAGE_BYTES, PAGE_ROWS};
use crate::{pages, snapshot_writer};
use dalsegno_format::seal::PayloadCipher;
use dalsegno_model::anchor::{AnchorRow, AnchoredHead};
use dalsegno_model::read_transaction::{
    AuditKey, BoundaryKey, CallKey, LeafKey, RecordKey, RunHead, RunLeafKey, StoredBatch, StoredBoundary,
    StoredCall, StoredRecord, StoredSnapshot, StoredWait, WaitKey,
};
use dalsegno_model::{AuditRow, ReadTransaction, Result, RunId};

const SELECT_KEY: &str = "SELECT pkcs8 FROM signing_key";

const INSERT_KEY: &str =
    "INSERT INTO signing_key (pkcs8, created_at) VALUES ($1, ds_now_v1()) ON CONFLICT DO NOTHING";

static RUNS: LazyLock<String> = LazyLock::new(|| {
    let run = RunRow::columns_of("runs");
    format!("SELECT {run} FROM runs WHERE $1::uuid IS NULL OR id > $1 ORDER BY id LIMIT $2")
});

const AUDIT: &str = concat!(
    "SELECT * FROM ( \
         SELECT *, sum(octet_length(detail)) \
             OVER (ORDER BY run, seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before \
         FROM (SELECT ",
    audit_columns!(),
    " FROM audit WHERE (run, seq) > ($1, $2) AND run <= $3 ORDER BY run, seq LIMIT $4) AS next \
     ) AS page \
     WHERE coalesce(before, 0) < $5 ORDER BY run, seq"
);

const PURGES: &str =
    concat!("SELECT ", audit_columns!(), " FROM purges WHERE run > $1 AND run <= $2 ORDER BY run LIMIT $3");

/// A page of boundaries. `octet_length` of a payload reads its size without the payload.
const BOUNDARIES: &str = concat!(
    "WITH page AS ( \
         SELECT run, turn, boundary, epoch, \
                sum(coalesce(octet_length(ops), 0) + coalesce(octet_length(events), 0)) \
                    OVER (ORDER BY run, turn, boundary, epoch \
                          ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before \
         FROM (SELECT run, turn, boundary, epoch, ops, events FROM boundaries \
               WHERE (run, turn, boundary, epoch) > ($1, $2, $3, $4) AND run <= $5 \
               ORDER BY run, turn, boundary, epoch LIMIT $6) AS next \
     ) \
     SELECT ",
    boundary_columns!("b"),
    ", true AS has_payloads, \
            ",
    is_dropped!(),
    " AS is_dropped, \
             NULL::bytea AS document, NULL::bytea AS snapshot_digest \
     FROM page JOIN boundaries b USING (run, turn, boundary, epoch) \
     WHERE coalesce(page.before, 0) < $7 ORDER BY run, turn, boundary, epoch"
);

const ANCHORS: &str =
    concat!("SELECT ", anchor_columns!(), " FROM anchors WHERE seq > $1 ORDER BY seq LIMIT $2");

const LEAVES: &str = concat!(
    "SELECT ",
    leaf_columns!(),
    " FROM anchor_leaves WHERE (anchor, run) > ($1, $2) ORDER BY anchor, run LIMIT $3"
);

const LEAVES_BY_RUN: &str = concat!(
    "SELECT ",
    leaf_columns!(),
    " FROM anchor_leaves WHERE (run, anchor) > ($1, $2) AND run <= $3 ORDER BY run, anchor LIMIT $4"
);

/// A page of calls of the run `$1`. `$after`: a condition that excludes the earlier pages.
macro_rules! calls_sql {
    ($after:literal) => {
        concat!(
            "WITH page AS ( \
                 SELECT run, id, turn, ordinal, \
                        sum(coalesce(octet_length(arguments), 0) + coalesce(octet_length(result), 0)) \
                            OVER (ORDER BY turn, ordinal, id \
                                  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before \
                 FROM (SELECT run, id, turn, ordinal, arguments, result FROM calls WHERE run = $1 ",
            $after,
            " ORDER BY turn, ordinal, id LIMIT $2) AS next \
             ) \
             SELECT {calls} FROM page JOIN calls c USING (run, id) \
             WHERE coalesce(page.before, 0) < $3 ORDER BY c.turn, c.ordinal, c.id"
        )
    };
}

static FIRST_CALLS: LazyLock<String> =
    LazyLock::new(|| calls_sql!("").replace("{calls}", &CallRow::columns_of("c")));

static CALLS: LazyLock<String> = LazyLock::new(|| {
    calls_sql!("AND (turn, ordinal, id) > ($4, $5, $6)").replace("{calls}", &CallRow::columns_of("c"))
});

const BATCHES: &str = concat!(
    "SELECT * FROM ( \
         SELECT *, sum(octet_length(batch)) \
             OVER (ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before \
         FROM (SELECT ",
    record_change_columns!(),
    " FROM record_changes WHERE run = $1 AND seq > $2 ORDER BY seq LIMIT $3) AS next \
     ) AS page \
     WHERE coalesce(before, 0) < $4 ORDER BY seq"
);

const RECORDS: &str = concat!(
    "WITH page AS ( \
         SELECT space, key, seq, sum(octet_length(value)) \
             OVER (ORDER BY space, key, seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before \
         FROM (SELECT space, key, seq, value FROM held_records \
               WHERE run = $1 AND (space, key, seq) > ($2, $3, $4) ORDER BY space, key, seq LIMIT $5) AS next \
     ) \
     SELECT ",
    record_columns!(),
    " FROM page JOIN records r USING (space, key, seq) \
     WHERE r.run = $1 AND coalesce(page.before, 0) < $6 ORDER BY space, key, seq"
);

impl Postgres {
    /// Writes nothing if there is a key. Two processes that insert a key at once both read the same one afterwards.
    pub(super) async fn do_signing_key(&self, fresh: &[u8]) -> DbResult<Vec<u8>> {
        if let Some(row) = self.pool.optional(sqlx::query(SELECT_KEY)).await? {
            return Ok(row.try_get("pkcs8")?);
        }
        self.pool.all(sqlx::query(INSERT_KEY).bind(fresh)).await?;
        Ok(self.pool.one(sqlx::query(SELECT_KEY)).await?.try_get("pkcs8")?)
    }

    pub(super) async fn do_begin_read(&self) -> DbResult<Box<dyn ReadTransaction>> {
        let conn = Mutex::new(self.read_pool.begin_read_only().await?);
        Ok(Box::new(PgReadTransaction {
            conn,
            renewal: self.read_pool.renewal(),
            deadline: self.read_pool.deadline(),
            persistent: !self.read_pool.transaction_pooling(),
            keys: self.keys.without_cache(),
        }))
    }
}

/// A transaction that sees what was committed when it began. It ends when its connection is dropped.
struct PgReadTransaction {
    conn: Mutex<PooledConnection>,
    /// Ends the transaction and begins the next.
    renewal: String,
    /// Longest time of a read.
    deadline: Duration,
    /// Whether prepared statements may stay on the connection.
    persistent: bool,
    keys: Keys,
}

impl QueryExecutor for PgReadTransaction {
    async fn all(&self, query: Query<'_, sqlx::Postgres, PgArguments>) -> DbResult<Vec<PgRow>> {
        let mut conn = self.conn.lock().await;
        let query = query.persistent(self.persistent);
        with_timeout(self.deadline, async { Ok(query.fetch_all(conn.get()?).await?) }).await
    }
}

impl PgReadTransaction {
    async fn list<T>(
        &self,
        query: Query<'_, sqlx::Postgres, PgArguments>,
        read: impl Fn(&PgRow) -> DbResult<T>,
    ) -> DbResult<Vec<T>> {
        self.all(query).await?.iter().map(read).collect()
    }

    /// Reads rows of one run. `read` gets the cipher that its digests were made with.
    async fn list_with_cipher<T>(
        &self,
        query: Query<'_, sqlx::Postgres, PgArguments>,
        run: RunId,
        read: impl Fn(&PgRow, &PayloadCipher) -> DbResult<T>,
    ) -> DbResult<Vec<T>> {
        let rows = self.all(query).await?;
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let cipher =
            self.keys.cipher_to_verify(&SnapshotStore { executor: self, keys: &self.keys }, run).await?;
        rows.iter().map(|row| read(row, &cipher)).collect()
    }
}

#[async_trait]
impl ReadTransaction for PgReadTransaction {
    async fn renew(&mut self) -> Result<()> {
        let (conn, sql) = (self.conn.get_mut(), AssertSqlSafe(self.renewal.clone()));
        let renewed = async { Ok(sqlx::raw_sql(sql).execute(conn.get()?).await?) };
        let renewed = with_timeout(self.deadline, renewed).await.map(drop);
        renewed.map_err(|fault| fault.with_context("beginning a read transaction"))
    }

    async fn runs(&mut self, after: Option<RunId>) -> Result<Vec<RunHead>> {
        let query = sqlx::query(AssertSqlSafe(RUNS.as_str())).bind(after).bind(PAGE_ROWS);
        self.list(query, |row| RunRow::read(row)?.run_head())
            .await
            .map_err(|fault| fault.with_context("reading the runs"))
    }

    async fn unwrap_data_key(&mut self, run: RunId) -> Result<()> {
        self.keys
            .cipher_to_read(&SnapshotStore { executor: &*self, keys: &self.keys }, run, false)
            .await
            .map(drop)
    }

    async fn audit(&mut self, after: AuditKey, to: RunId) -> Result<Vec<(RunId, AuditRow)>> {
        let query =
            sqlx::query(AUDIT).bind(after.run).bind(after.seq).bind(to).bind(PAGE_ROWS).bind(PAGE_BYTES);
        let read = |row: &PgRow| Ok((row.try_get("run")?, audit_row(row)?));
        self.list(query, read).await.map_err(|fault| fault.with_context("reading the audit"))
    }

    async fn boundaries(&mut self, after: BoundaryKey, to: RunId) -> Result<Vec<StoredBoundary>> {
        let BoundaryKey { run, turn, boundary, epoch } = after;
        let query = sqlx::query(BOUNDARIES)
            .bind(run)
            .bind(turn)
            .bind(boundary)
            .bind(epoch)
            .bind(to)
            .bind(PAGE_ROWS)
            .bind(PAGE_BYTES);
        let page = self.list(query, unread_boundary).await;
        pages::decode(
            &SnapshotStore { executor: &*self, keys: &self.keys },
            page.map_err(|fault| fault.with_context("reading the boundaries"))?,
        )
        .await
    }

    async fn snapshots(&mut self, run: RunId) -> Result<Vec<StoredSnapshot>> {
        snapshot_writer::check_all(&SnapshotStore { executor: &*self, keys: &self.keys }, run).await
    }

    async fn anchors(&mut self, after: i64) -> Result<Vec<AnchorRow>> {
        let query = sqlx::query(ANCHORS);
        self.list(query.bind(after).bind(PAGE_ROWS), anchor_row)
            .await
            .map_err(|fault| fault.with_context("reading the anchors"))
    }

    async fn leaves(&mut self, after: LeafKey) -> Result<Vec<(i64, AnchoredHead)>> {
        let query = sqlx::query(LEAVES).bind(after.anchor).bind(after.run).bind(PAGE_ROWS);
        self.list(query, leaf).await.map_err(|fault| fault.with_context("reading the leaves of anchors"))
    }

    async fn leaves_by_run(&mut self, after: RunLeafKey, to: RunId) -> Result<Vec<(i64, AnchoredHead)>> {
        let query = sqlx::query(LEAVES_BY_RUN).bind(after.run).bind(after.anchor).bind(to).bind(PAGE_ROWS);
        self.list(query, leaf).await.map_err(|fault| fault.with_context("reading the leaves of anchors"))
    }

    async fn purges(&mut self, after: RunId, to: RunId) -> Result<Vec<(RunId, AuditRow)>> {
        let query = sqlx::query(PURGES).bind(after).bind(to).bind(PAGE_ROWS);
        let read = |row: &PgRow| Ok((row.try_get("run")?, audit_row(row)?));
        self.list(query, read).await.map_err(|fault| fault.with_context("reading the purge records"))
    }

    async fn calls(&mut self, run: RunId, after: Option<CallKey>) -> Result<Vec<StoredCall>> {
        let query =
            sqlx::query(AssertSqlSafe(if after.is_some() { CALLS.as_str() } else { FIRST_CALLS.as_str() }));
        let query = query.bind(run).bind(PAGE_ROWS).bind(PAGE_BYTES);
        let query = match after {
            Some(CallKey { turn, ordinal, id }) => query.bind(turn).bind(ordinal).bind(id),
            None => query,
        };
        let read = |row: &_, cipher: &_| CallRow::read(row)?.stored(cipher);
        self.list_with_cipher(query, run, read).await.map_err(|fault| fault.with_context("reading the calls"))
    }

    async fn waits(&mut self, run: RunId, after: Option<WaitKey>) -> Result<Vec<StoredWait>> {
        let WaitKey { ordinal, id, epoch } =
            after.unwrap_or(WaitKey { ordinal: i64::MIN, id: String::new(), epoch: i64::MIN });
        let query =
            sqlx::query(AssertSqlSafe(STORED_WAITS.as_str())).bind(run).bind(ordinal).bind(id).bind(epoch);
        let page = self.list_with_cipher(query.bind(PAGE_WAITS), run, stored_wait).await;
        page.map_err(|fault| fault.with_context("reading the waits"))
    }

    async fn record_changes(&mut self, run: RunId, after: i64) -> Result<Vec<StoredBatch>> {
        let query = sqlx::query(BATCHES).bind(run).bind(after).bind(PAGE_ROWS).bind(PAGE_BYTES);
        let page = self.list_with_cipher(query, run, stored_batch).await;
        page.map_err(|fault| fault.with_context("reading the batches of records"))
    }

    async fn records(&mut self, run: RunId, after: &RecordKey) -> Result<Vec<StoredRecord>> {
        let RecordKey { space, key, seq } = after;
        let query = sqlx::query(RECORDS).bind(run).bind(space).bind(key).bind(seq);
        let page = self.list_with_cipher(query.bind(PAGE_ROWS).bind(PAGE_BYTES), run, stored_record).await;
        page.map_err(|fault| fault.with_context("reading the records"))
    }
}

fn leaf(row: &PgRow) -> DbResult<(i64, AnchoredHead)> {
    Ok((row.try_get("anchor")?, anchored_head(row)?))
}

fn unread_boundary(row: &PgRow) -> DbResult<UndecodedBoundary> {
    Ok(UndecodedBoundary {
        run: row.try_get("run")?,
        undone: row.try_get("undone")?,
        encoded: encoded_boundary(row)?,
    })
}
