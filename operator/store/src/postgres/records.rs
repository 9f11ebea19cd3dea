//! Records: a fenced keyed space for SDKs.

use dalsegno_protocol::{Record, RecordOp};
use sqlx::Row as _;
use sqlx::postgres::{PgArguments, PgRow, Postgres as Database};
use sqlx::query::Query;

use super::Postgres;
use super::row::{digest, looks_sealed, text};
use crate::db_error::{DbError, DbResult};
use crate::records::{Changes, after_prefix, page, payload};
use crate::seal::{AadContext, PayloadCipher};
use crate::{Digest, RecordBatch, RecordPage, RecordQuery, RunId, Written};

const WRITE: &str =
    "SELECT ds_write_records_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) AS verdict";

const STANDS: &str = "SELECT digest FROM record_batches WHERE run = $1 AND id = $2 AND NOT undone";

/// One entry more than the page has room for is looked for, so that it is known whether there is more.
const READ: &str = "SELECT * FROM ( \
         SELECT key, seq, entry_id, value, turn, count(*) OVER () AS found, \
                sum(size) OVER (ORDER BY key, seq) - size AS before \
         FROM ( \
             SELECT key, seq, entry_id, value, size, turn FROM held_records \
             WHERE run = $1 AND space = $2 AND (key, seq) > ($3, $4) AND ($5::text IS NULL OR key < $5) \
             ORDER BY key, seq LIMIT $6 \
         ) AS page \
     ) AS page WHERE before < $7 ORDER BY key, seq";

impl Postgres {
    pub(super) async fn do_write_records(&self, batch: &RecordBatch) -> DbResult<Written> {
        let cipher = self.cipher_to_write(batch.run).await?;
        let written = self.send_records(batch, &cipher).await?;
        match (&written, cipher.body(batch.digest).older()) {
            // It stands from before the run had a key.
            (Written::Conflict | Written::Finished | Written::UnsettledCalls, older @ Some(_))
                if self.standing_batch(batch).await? == older =>
            {
                Ok(Written::Duplicate)
            }
            (Written::Conflict | Written::Finished, None) => {
                self.ensure_comparable(batch.run).await.map(|()| written)
            }
            _ => Ok(written),
        }
    }

    async fn send_records(&self, batch: &RecordBatch, cipher: &PayloadCipher) -> DbResult<Written> {
        let columns = Columns::of(&batch.operations, cipher)?;
        let query = sqlx::query(WRITE)
            .bind(batch.run)
            .bind(batch.capability.as_slice())
            .bind(batch.batch_id)
            .bind(Vec::from(cipher.digest(batch.digest)))
            .bind(columns.digest.unwrap_or_default().to_vec());
        Ok(match self.pool.of(batch.run).one(columns.bind(query)).await?.try_get("verdict")? {
            "ok" => Written::Ok,
            "duplicate" => Written::Duplicate,
            "conflict" => Written::Conflict,
            "fenced" => Written::Fenced,
            "finished" => Written::Finished,
            "unsettled" => Written::UnsettledCalls,
            "not found" => Written::NotFound,
            other => return Err(DbError::unknown_value("verdict on records", other)),
        })
    }

    /// The digest of what stands under its id.
    async fn standing_batch(&self, batch: &RecordBatch) -> DbResult<Option<Digest>> {
        let query = sqlx::query(STANDS).bind(batch.run).bind(batch.batch_id);
        self.pool.optional(query).await?.map(|row| digest(&row, "digest")).transpose()
    }

    pub(super) async fn do_read_records(&self, run: RunId, query: &RecordQuery) -> DbResult<RecordPage> {
        let (after_key, after_seq) = query.begin();
        let bytes = i64::try_from(query.bytes).unwrap_or(i64::MAX);
        let rows = sqlx::query(READ)
            .bind(run)
            .bind(text(&query.space))
            .bind(text(after_key))
            .bind(after_seq)
            .bind(after_prefix(&query.prefix))
            .bind(i64::from(query.limit) + 1)
            .bind(bytes);
        let rows = self.pool.all(rows).await?;
        let found = rows.first().map_or(Ok(0), |row| row.try_get("found"))?;
        let cipher = self.cipher_to_read(run, looks_sealed(&rows, "value")).await?;
        let entries = rows.iter().map(|row| entry(row, &query.space, &cipher));
        Ok(page(entries.collect::<DbResult<_>>()?, found, query))
    }
}

fn entry(row: &PgRow, space: &str, cipher: &PayloadCipher) -> DbResult<(Record, i64)> {
    let (key, entry_id): (String, Option<String>) = (row.try_get("key")?, row.try_get("entry_id")?);
    let spot = AadContext::Record(space, &key, entry_id.as_deref());
    let value = payload(row.try_get("value")?, spot, cipher)?;
    let record = Record { key, entry_id, value, turn: row.try_get("turn")? };
    Ok((record, row.try_get("seq")?))
}

/// A folded batch, column by column.
#[derive(Default)]
pub(super) struct Columns {
    /// Digest of the batch; `None` where nothing changes.
    pub digest: Option<Digest>,
    ops: Vec<&'static str>,
    spaces: Vec<String>,
    keys: Vec<String>,
    entries: Vec<Option<String>>,
    values: Vec<Option<Vec<u8>>>,
    sizes: Vec<i64>,
    batch: Vec<u8>,
}

impl Columns {
    pub fn of(operations: &[RecordOp], cipher: &PayloadCipher) -> DbResult<Self> {
        let Changes { changes, batch, digest } = Changes::of(operations, cipher)?;
        let mut columns = Self { digest, batch, ..Self::default() };
        for change in changes {
            columns.ops.push(change.op);
            columns.spaces.push(text(&change.space));
            columns.keys.push(text(&change.key));
            columns.entries.push(change.entry_id.as_deref().map(text));
            columns.values.push(change.value);
            columns.sizes.push(change.size);
        }
        Ok(columns)
    }

    /// As seven parameters.
    pub fn bind<'q>(self, query: Query<'q, Database, PgArguments>) -> Query<'q, Database, PgArguments> {
        query
            .bind(self.ops)
            .bind(self.spaces)
            .bind(self.keys)
            .bind(self.entries)
            .bind(self.values)
            .bind(self.sizes)
            .bind(self.batch)
    }
}
