//! A read of the whole database as it is at one moment: a transaction of a reader.

use std::sync::LazyLock;

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};
use uuid::Uuid;

use super::active_reads::{ActiveRead, BoxFuture};
use super::database::{QueryExecutor, Sqlite, with_timeout};
use super::row::RunRow;
use super::snapshot_store::SnapshotStore;
use super::writer::{Durability, Writer};
use super::{anchors, branch, message_statements};
use crate::compaction::is_dropped;
use crate::db_error::DbResult;
use crate::keys::Keys;
use crate::pages::UndecodedBoundary;
use crate::reads::{CallRow, MessageRow, encoded_boundary, stored_batch, stored_record, stored_wait};
use crate::statements::{
    PAGE_WAITS, STORED_WAITS, audit_columns, boundary_columns, record_change_columns, record_columns,
};
use crate::stored_rows::{PAGE_BYTES, PAGE_ROWS};
use crate::{pages, snapshot_writer};
use dalsegno_format::seal::PayloadCipher;
use dalsegno_model::anchor::{AnchorRow, AnchoredHead};
use dalsegno_model::read_transaction::{
    AuditKey, BoundaryKey, CallKey, LeafKey, RecordKey, RunHead, RunLeafKey, StoredBatch, StoredBoundary,
    StoredCall, StoredMessage, StoredRecord, StoredSnapshot, StoredWait, WaitKey,
};
use dalsegno_model::{AuditRow, Error, MessageQuery, ReadTransaction, Result, RunId};

static RUNS: LazyLock<String> = LazyLock::new(|| {
    let run = RunRow::columns_of("runs");
    format!("SELECT {run} FROM runs WHERE ?1 IS NULL OR id > ?1 ORDER BY id LIMIT ?2")
});

const AUDIT: &str = concat!(
    "SELECT * FROM ( \
         SELECT *, sum(length(detail)) \
             OVER (ORDER BY run, seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before \
         FROM (SELECT ",
    audit_columns!(),
    " FROM audit WHERE (run, seq) > (?, ?) AND run <= ? ORDER BY run, seq LIMIT ?) \
     ) \
     WHERE coalesce(before, 0) < ? ORDER BY run, seq"
);

const PURGES: &str =
    concat!("SELECT ", audit_columns!(), " FROM purges WHERE run > ? AND run <= ? ORDER BY run LIMIT ?");

const BOUNDARIES: &str = concat!(
    "WITH page AS ( \
         SELECT run, turn, boundary, epoch, \
                sum(coalesce(length(ops), 0) + coalesce(length(events), 0)) \
                    OVER (ORDER BY run, turn, boundary, epoch \
                          ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before \
         FROM (SELECT run, turn, boundary, epoch, ops, events FROM boundaries \
               WHERE (run, turn, boundary, epoch) > (?, ?, ?, ?) AND run <= ? \
               ORDER BY run, turn, boundary, epoch LIMIT ?) \
     ) \
     SELECT ",
    boundary_columns!("b"),
    ", true AS has_payloads, \
            ",
    is_dropped!(),
    " AS is_dropped, \
             NULL AS document, NULL AS snapshot_digest FROM page JOIN boundaries b USING (run, turn, boundary, epoch) \
     WHERE coalesce(page.before, 0) < ? ORDER BY run, turn, boundary, epoch"
);

/// Calls of the run `?1`, and a condition on where the page begins.
macro_rules! calls_page {
    ($after:literal) => {
        concat!(
            "WITH page AS ( \
                 SELECT run, id, \
                        sum(coalesce(length(arguments), 0) + coalesce(length(result), 0)) \
                            OVER (ORDER BY turn, ordinal, id \
                                  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before \
                 FROM (SELECT run, id, turn, ordinal, arguments, result FROM calls WHERE run = ?1 ",
            $after,
            " ORDER BY turn, ordinal, id LIMIT ?2) \
             ) \
             SELECT {calls} FROM page JOIN calls c USING (run, id) \
             WHERE coalesce(page.before, 0) < ?3 ORDER BY c.turn, c.ordinal, c.id"
        )
    };
}

static FIRST_CALLS: LazyLock<String> =
    LazyLock::new(|| calls_page!("").replace("{calls}", &CallRow::columns_of("c")));

static CALLS: LazyLock<String> = LazyLock::new(|| {
    calls_page!("AND (turn, ordinal, id) > (?4, ?5, ?6)").replace("{calls}", &CallRow::columns_of("c"))
});

const BATCHES: &str = concat!(
    "SELECT * FROM ( \
         SELECT *, sum(length(batch)) OVER (ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before \
         FROM (SELECT ",
    record_change_columns!(),
    " FROM record_changes WHERE run = ? AND seq > ? ORDER BY seq LIMIT ?) \
     ) \
     WHERE coalesce(before, 0) < ? ORDER BY seq"
);

const RECORDS: &str = concat!(
    "WITH page AS ( \
         SELECT space, key, seq, sum(length(value)) \
             OVER (ORDER BY space, key, seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before \
         FROM (SELECT space, key, seq, value FROM held_records \
               WHERE run = ?1 AND (space, key, seq) > (?2, ?3, ?4) ORDER BY space, key, seq LIMIT ?5) \
     ) \
     SELECT ",
    record_columns!(),
    " FROM page JOIN records r USING (space, key, seq) \
     WHERE r.run = ?1 AND coalesce(page.before, 0) < ?6 ORDER BY space, key, seq"
);

impl Sqlite {
    pub(super) async fn begin_read_transaction(&self) -> Result<Box<dyn ReadTransaction>> {
        let source = match (&self.readers, &self.writer) {
            (Some(readers), _) => {
                Source::Snapshot(with_timeout("beginning to read", readers.begin_long()).await?)
            }
            (None, Some(writer)) => Source::Shared(writer.clone()),
            (None, None) => return Err(Error::Unusable("it has no connection for reading".into())),
        };
        Ok(Box::new(SqliteReadTransaction { source, keys: self.keys.without_cache() }))
    }
}

struct SqliteReadTransaction {
    source: Source,
    keys: Keys,
}

enum Source {
    /// Its first read takes the snapshot that all reads see.
    Snapshot(ActiveRead),
    /// A database in memory has one connection, the writer's.
    Shared(Writer),
}

impl SqliteReadTransaction {
    fn snapshot_store(&self) -> SnapshotStore<'_, Self> {
        SnapshotStore { executor: self, keys: &self.keys }
    }

    /// Decodes rows of one run. `read` gets the cipher that their digests were made with.
    async fn decode<R: Send, T>(
        &self,
        run: RunId,
        rows: Vec<R>,
        read: impl Fn(&R, &PayloadCipher) -> DbResult<T>,
    ) -> DbResult<Vec<T>> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let cipher = self.keys.cipher_to_verify(&self.snapshot_store(), run).await?;
        rows.iter().map(|row| read(row, &cipher)).collect()
    }
}

impl QueryExecutor for SqliteReadTransaction {
    async fn read<T, F>(&self, operation: &'static str, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection, i64) -> BoxFuture<'c, DbResult<T>> + Send + 'static,
    {
        match &self.source {
            Source::Snapshot(read) => with_timeout(operation, read.run(|conn| work(conn, 0))).await,
            Source::Shared(writer) => {
                with_timeout(operation, writer.submit(Durability::Unsynced, work)).await
            }
        }
    }
}

#[async_trait]
impl ReadTransaction for SqliteReadTransaction {
    async fn renew(&mut self) -> Result<()> {
        match &self.source {
            Source::Snapshot(read) => with_timeout("beginning to read", read.renew()).await,
            // Each page is of a moment of its own.
            Source::Shared(_) => Ok(()),
        }
    }

    async fn runs(&mut self, after: Option<RunId>) -> Result<Vec<RunHead>> {
        self.read("reading the runs", move |conn, _| Box::pin(runs(conn, after))).await
    }

    async fn unwrap_data_key(&mut self, run: RunId) -> Result<()> {
        self.keys.cipher_to_read(&self.snapshot_store(), run, false).await.map(drop)
    }

    async fn audit(&mut self, after: AuditKey, to: RunId) -> Result<Vec<(RunId, AuditRow)>> {
        self.read("reading the audit", move |conn, _| Box::pin(audit(conn, after, to))).await
    }

    async fn boundaries(&mut self, after: BoundaryKey, to: RunId) -> Result<Vec<StoredBoundary>> {
        let page =
            self.read("reading the boundaries", move |conn, _| Box::pin(boundaries(conn, after, to))).await?;
        pages::decode(&self.snapshot_store(), page).await
    }

    async fn snapshots(&mut self, run: RunId) -> Result<Vec<StoredSnapshot>> {
        snapshot_writer::check_all(&self.snapshot_store(), run).await
    }

    async fn anchors(&mut self, after: i64) -> Result<Vec<AnchorRow>> {
        self.read("reading the anchors", move |conn, _| Box::pin(anchors::read(conn, after))).await
    }

    async fn leaves(&mut self, after: LeafKey) -> Result<Vec<(i64, AnchoredHead)>> {
        self.read("reading the leaves of anchors", move |conn, _| Box::pin(anchors::leaves(conn, after)))
            .await
    }

    async fn leaves_by_run(&mut self, after: RunLeafKey, to: RunId) -> Result<Vec<(i64, AnchoredHead)>> {
        let operation = "reading the leaves of anchors";
        self.read(operation, move |conn, _| Box::pin(anchors::leaves_by_run(conn, after, to))).await
    }

    async fn purges(&mut self, after: RunId, to: RunId) -> Result<Vec<(RunId, AuditRow)>> {
        self.read("reading the purge records", move |conn, _| Box::pin(purges(conn, after, to))).await
    }

    async fn calls(&mut self, run: RunId, after: Option<CallKey>) -> Result<Vec<StoredCall>> {
        let operation = "reading the calls";
        let rows = self.read(operation, move |conn, _| Box::pin(calls(conn, run, after))).await?;
        self.decode(run, rows, CallRow::stored).await.map_err(|fault| fault.with_context(operation))
    }

    async fn waits(&mut self, run: RunId, after: Option<WaitKey>) -> Result<Vec<StoredWait>> {
        let operation = "reading the waits";
        let rows = self.read(operation, move |conn, _| Box::pin(waits(conn, run, after))).await?;
        self.decode(run, rows, stored_wait).await.map_err(|fault| fault.with_context(operation))
    }

    async fn messages(&mut self, run: RunId, after: i64) -> Result<Vec<StoredMessage>> {
        let operation = "reading the messages";
        let (limit, bytes) = (PAGE_ROWS as u32, PAGE_BYTES as usize);
        let query = MessageQuery { after, unread_only: false, limit, bytes };
        let (rows, _) =
            self.read(operation, move |conn, _| Box::pin(message_statements::read(conn, run, query))).await?;
        self.decode(run, rows, MessageRow::stored).await.map_err(|fault| fault.with_context(operation))
    }

    async fn record_changes(&mut self, run: RunId, after: i64) -> Result<Vec<StoredBatch>> {
        let operation = "reading the batches of records";
        let rows = self.read(operation, move |conn, _| Box::pin(record_changes(conn, run, after))).await?;
        self.decode(run, rows, stored_batch).await.map_err(|fault| fault.with_context(operation))
    }

    async fn records(&mut self, run: RunId, after: &RecordKey) -> Result<Vec<StoredRecord>> {
        let (operation, after) = ("reading the records", after.clone());
        let rows = self.read(operation, move |conn, _| Box::pin(records(conn, run, after))).await?;
        self.decode(run, rows, stored_record).await.map_err(|fault| fault.with_context(operation))
    }
}

async fn runs(conn: &mut SqliteConnection, after: Option<RunId>) -> DbResult<Vec<RunHead>> {
    let rows = sqlx::query(AssertSqlSafe(RUNS.as_str())).bind(after).bind(PAGE_ROWS).fetch_all(conn).await?;
    rows.iter().map(|row| RunRow::read(row)?.run_head()).collect()
}

async fn audit(conn: &mut SqliteConnection, after: AuditKey, to: RunId) -> DbResult<Vec<(RunId, AuditRow)>> {
    let AuditKey { run, seq } = after;
    let query = sqlx::query(AUDIT).bind(run).bind(seq).bind(to).bind(PAGE_ROWS).bind(PAGE_BYTES);
    let rows = query.fetch_all(conn).await?;
    rows.iter().map(|row| Ok((row.try_get("run")?, branch::audit_row(row)?))).collect()
}

async fn purges(conn: &mut SqliteConnection, after: RunId, to: RunId) -> DbResult<Vec<(RunId, AuditRow)>> {
    let rows = sqlx::query(PURGES).bind(after).bind(to).bind(PAGE_ROWS).fetch_all(conn).await?;
    rows.iter().map(|row| Ok((row.try_get("run")?, branch::audit_row(row)?))).collect()
}

async fn boundaries(
    conn: &mut SqliteConnection,
    after: BoundaryKey,
    to: RunId,
) -> DbResult<Vec<UndecodedBoundary>> {
    let BoundaryKey { run, turn, boundary, epoch } = after;
    let query = sqlx::query(BOUNDARIES)
        .bind(run)
        .bind(turn)
        .bind(boundary)
        .bind(epoch)
        .bind(to)
        .bind(PAGE_ROWS)
        .bind(PAGE_BYTES);
    let rows = query.fetch_all(conn).await?;
    rows.iter().map(unread).collect()
}

fn unread(row: &SqliteRow) -> DbResult<UndecodedBoundary> {
    Ok(UndecodedBoundary {
        run: row.try_get::<Uuid, _>("run")?,
        undone: row.try_get("undone")?,
        encoded: encoded_boundary(row)?,
    })
}

async fn calls(conn: &mut SqliteConnection, run: RunId, after: Option<CallKey>) -> DbResult<Vec<CallRow>> {
    let query =
        sqlx::query(AssertSqlSafe(if after.is_some() { CALLS.as_str() } else { FIRST_CALLS.as_str() }));
    let query = query.bind(run).bind(PAGE_ROWS).bind(PAGE_BYTES);
    let query = match after {
        Some(CallKey { turn, ordinal, id }) => query.bind(turn).bind(ordinal).bind(id),
        None => query,
    };
    let rows = query.fetch_all(conn).await?;
    rows.iter().map(CallRow::read).collect()
}

async fn waits(conn: &mut SqliteConnection, run: RunId, after: Option<WaitKey>) -> DbResult<Vec<SqliteRow>> {
    let WaitKey { ordinal, id, epoch } =
        after.unwrap_or(WaitKey { ordinal: i64::MIN, id: String::new(), epoch: i64::MIN });
    let query =
        sqlx::query(AssertSqlSafe(STORED_WAITS.as_str())).bind(run).bind(ordinal).bind(id).bind(epoch);
    Ok(query.bind(PAGE_WAITS).fetch_all(conn).await?)
}

async fn record_changes(conn: &mut SqliteConnection, run: RunId, after: i64) -> DbResult<Vec<SqliteRow>> {
    let query = sqlx::query(BATCHES).bind(run).bind(after).bind(PAGE_ROWS).bind(PAGE_BYTES);
    Ok(query.fetch_all(conn).await?)
}

async fn records(conn: &mut SqliteConnection, run: RunId, after: RecordKey) -> DbResult<Vec<SqliteRow>> {
    let RecordKey { space, key, seq } = after;
    let query = sqlx::query(RECORDS).bind(run).bind(space).bind(key).bind(seq);
    Ok(query.bind(PAGE_ROWS).bind(PAGE_BYTES).fetch_all(conn).await?)
}

/// Returns the store's signing key. Stores `fresh` as the key if there is none.
pub(super) async fn signing_key(conn: &mut SqliteConnection, now: i64, fresh: Vec<u8>) -> DbResult<Vec<u8>> {
    sqlx::query("INSERT OR IGNORE INTO signing_key (only_row, pkcs8, created_at) VALUES (1, ?, ?)")
        .bind(fresh)
        .bind(now)
        .execute(&mut *conn)
        .await?;
    Ok(sqlx::query_scalar("SELECT pkcs8 FROM signing_key").fetch_one(conn).await?)
}
