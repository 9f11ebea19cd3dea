//! Records: fenced key-value spaces of a run, for SDKs.

use dalsegno_protocol::Record;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::Postgres;
use super::data_keys::with_known_key;
use super::record_columns::RecordColumns;
use super::row::{any_sealed, digest, without_nul};
use crate::db_error::{DbError, DbResult};
use crate::keys::WriteCipher;
use crate::statements::{first_of_key, held_records, last_replacement};
use dalsegno_format::records::{after_prefix, page, payload};
use dalsegno_format::seal::{AadContext, PayloadCipher};
use dalsegno_model::{Digest, RecordBatch, RecordPage, RecordQuery, RunId, Written};

const WRITE: &str = concat!(
    with_known_key!("$13"),
    "SELECT ds_write_records_v1(known.run, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) AS verdict FROM known"
);

const STORED_DIGEST: &str = "SELECT digest FROM record_batches WHERE run = $1 AND id = $2 AND NOT undone";

/// LATERAL and LIMIT keep the planner from reading all that a key ever held, whatever number of rows it expects.
const READ: &str = held_records!(
    "LATERAL ( \
         SELECT r.key, r.seq, r.size FROM records r \
         WHERE r.run = $1 AND r.space = $2 AND r.key = starts.key AND r.seq >= starts.first \
           AND r.op <> 'delete' AND NOT r.undone \
         ORDER BY r.seq LIMIT $6 \
     ) AS r",
    "LATERAL ( \
         SELECT r.key, r.seq, r.entry_id, r.value, r.turn FROM records r \
         WHERE r.run = $1 AND r.space = $2 AND r.key = weighed.key AND r.seq = weighed.seq LIMIT 1 \
     ) AS r WHERE true"
);

impl Postgres {
    pub(super) async fn do_write_records(&self, batch: &RecordBatch) -> DbResult<Written> {
        let cipher = self.cipher_to_write(batch.run).await?;
        let written = self.send_records(batch, &cipher).await?;
        match (&written, cipher.body(batch.digest).older()) {
            // The same batch was stored before the run had a key.
            (Written::Conflict | Written::Finished | Written::UnsettledCalls, older @ Some(_))
                if self.stored_digest_of_batch(batch).await? == older =>
            {
                Ok(Written::Duplicate)
            }
            (Written::Conflict | Written::Finished, None) => {
                self.ensure_comparable(batch.run).await.map(|()| written)
            }
            _ => Ok(written),
        }
    }

    async fn send_records(&self, batch: &RecordBatch, cipher: &WriteCipher) -> DbResult<Written> {
        let columns = RecordColumns::of(&batch.operations, cipher)?;
        let query = sqlx::query(WRITE)
            .bind(batch.run)
            .bind(batch.capability.as_slice())
            .bind(batch.batch_id)
            .bind(Vec::from(cipher.digest(batch.digest)))
            .bind(columns.digest.unwrap_or_default().to_vec());
        let query = columns.bind(query).bind(cipher.data_key().map(|key| &**key));
        let row = self.pool.for_run(batch.run).optional(query).await?.ok_or(DbError::OtherDataKey)?;
        Ok(match row.try_get("verdict")? {
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

    /// The digest of the batch that is stored under this id on the live branch.
    async fn stored_digest_of_batch(&self, batch: &RecordBatch) -> DbResult<Option<Digest>> {
        let query = sqlx::query(STORED_DIGEST).bind(batch.run).bind(batch.batch_id);
        self.pool.optional(query).await?.map(|row| digest(&row, "digest")).transpose()
    }

    pub(super) async fn do_read_records(&self, run: RunId, query: &RecordQuery) -> DbResult<RecordPage> {
        let (after_key, after_seq) = query.begin();
        let bytes = i64::try_from(query.bytes).unwrap_or(i64::MAX);
        // One entry more than the page holds, to know whether more entries follow.
        let rows = sqlx::query(READ)
            .bind(run)
            .bind(without_nul(&query.space))
            .bind(without_nul(after_key))
            .bind(after_seq)
            .bind(after_prefix(&query.prefix))
            .bind(i64::from(query.limit) + 1)
            .bind(bytes);
        let rows = self.pool.all(rows).await?;
        let found = rows.first().map_or(Ok(0), |row| row.try_get("found"))?;
        let cipher = self.cipher_to_read(run, any_sealed(&rows, "value")).await?;
        let entries = rows.iter().map(|row| entry(row, &query.space, &cipher));
        Ok(page(entries.collect::<DbResult<_>>()?, found, query))
    }
}

fn entry(row: &PgRow, space: &str, cipher: &PayloadCipher) -> DbResult<(Record, i64)> {
    let (key, entry_id): (String, Option<String>) = (row.try_get("key")?, row.try_get("entry_id")?);
    let aad = AadContext::Record(space, &key, entry_id.as_deref());
    let value = payload(row.try_get("value")?, aad, cipher)?;
    let record = Record { key, entry_id, value, turn: row.try_get("turn")? };
    Ok((record, row.try_get("seq")?))
}
