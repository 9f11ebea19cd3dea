//! The changes of one batch of records as the parameters of its statement: one array for each column.

use dalsegno_protocol::RecordOp;
use sqlx::postgres::{PgArguments, Postgres};
use sqlx::query::Query;

use super::row::without_nul;
use crate::db_error::DbResult;
use dalsegno_format::records::Changes;
use dalsegno_format::seal::PayloadCipher;
use dalsegno_model::Digest;

/// The net changes of a batch, column by column.
#[derive(Default)]
pub(super) struct RecordColumns {
    /// Digest of the batch; `None` where nothing changes.
    pub digest: Option<Digest>,
    ops: Vec<&'static str>,
    spaces: Vec<String>,
    keys: Vec<String>,
    entry_ids: Vec<Option<String>>,
    values: Vec<Option<Vec<u8>>>,
    sizes: Vec<i64>,
    batch: Vec<u8>,
}

impl RecordColumns {
    pub fn of(operations: &[RecordOp], cipher: &PayloadCipher) -> DbResult<Self> {
        Ok(Changes::of(operations, cipher)?.into())
    }

    /// Adds seven parameters: everything but the digest.
    pub fn bind<'q>(self, query: Query<'q, Postgres, PgArguments>) -> Query<'q, Postgres, PgArguments> {
        query
            .bind(self.ops)
            .bind(self.spaces)
            .bind(self.keys)
            .bind(self.entry_ids)
            .bind(self.values)
            .bind(self.sizes)
            .bind(self.batch)
    }
}

impl From<Changes> for RecordColumns {
    fn from(Changes { changes, batch, digest }: Changes) -> Self {
        let mut columns = Self { digest, batch, ..Self::default() };
        for change in changes {
            columns.ops.push(change.op);
            columns.spaces.push(without_nul(&change.space));
            columns.keys.push(without_nul(&change.key));
            columns.entry_ids.push(change.entry_id.as_deref().map(without_nul));
            columns.values.push(change.value);
            columns.sizes.push(change.size);
        }
        columns
    }
}
