//! Records: fenced key-value spaces of a run, for SDKs.

use dalsegno_protocol::Limits;
use sqlx::Row as _;

use super::Postgres;
use super::data_keys::with_known_key;
use super::record_columns::RecordColumns;
use super::row::digest;
use crate::db_error::{DbError, DbResult};
use crate::keys::WriteCipher;
use dalsegno_model::{Digest, RecordBatch, Written};

const WRITE: &str = concat!(
    with_known_key!("$13"),
    "SELECT ds_write_records_v2(known.run, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $14) AS verdict FROM known"
);

const STORED_DIGEST: &str = "SELECT digest FROM record_batches WHERE run = $1 AND id = $2 AND NOT undone";

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
        let query = columns.bind(query).bind(cipher.data_key().map(|key| &**key)).bind(Limits::PREFIX_KEYS);
        let row = self.pool.for_run(batch.run).optional(query).await?.ok_or(DbError::OtherDataKey)?;
        Ok(match row.try_get("verdict")? {
            "ok" => Written::Ok,
            "duplicate" => Written::Duplicate,
            "conflict" => Written::Conflict,
            "fenced" => Written::Fenced,
            "finished" => Written::Finished,
            "unsettled" => Written::UnsettledCalls,
            "too many keys" => Written::TooManyKeys,
            "not found" => Written::NotFound,
            other => return Err(DbError::unknown_value("verdict on records", other)),
        })
    }

    /// The digest of the batch that is stored under this id on the live branch.
    async fn stored_digest_of_batch(&self, batch: &RecordBatch) -> DbResult<Option<Digest>> {
        let query = sqlx::query(STORED_DIGEST).bind(batch.run).bind(batch.batch_id);
        self.pool.optional(query).await?.map(|row| digest(&row, "digest")).transpose()
    }
}
