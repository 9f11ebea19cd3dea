//! Payloads of the rows that a [`dalsegno_model::ReadTransaction`] returns: how both databases decode them.

use dalsegno_protocol::Call;

use dalsegno_model::read_transaction::{RecordKey, StoredCall, StoredRecord};

use crate::db_error::{DbError, DbResult};
use dalsegno_format::records::stored_value;
use dalsegno_format::seal::{AadContext, PayloadCipher};
use dalsegno_model::Error;

/// A page ends after this many bytes of stored payloads. It always has its first row.
pub(crate) const PAGE_BYTES: i64 = 1 << 20;
/// Rows of a page.
pub(crate) const PAGE_ROWS: i64 = 500;

/// A record without the digest of its value.
pub(crate) trait ReadRecord: Sized {
    /// Adds the stored value and its digest, or the reason why it cannot be read.
    fn with(self, stored: &[u8], cipher: &PayloadCipher) -> DbResult<Self>;
}

impl ReadRecord for StoredRecord {
    fn with(self, stored: &[u8], cipher: &PayloadCipher) -> DbResult<Self> {
        let RecordKey { space, key, seq: _ } = &self.at;
        match stored_value(stored, AadContext::Record(space, key, self.entry_id.as_deref()), cipher) {
            Ok(Some((text, value))) => Ok(Self { value: Some(value), text: Some(text), ..self }),
            Ok(None) => Ok(self),
            Err(Error::Corrupt { detail, .. }) => Ok(Self { damage: Some(detail), ..self }),
            Err(error) => Err(error.into()),
        }
    }
}

/// A call without its payloads.
pub(crate) trait ReadCall: Sized {
    /// Adds the decoded call, or the reason why its payloads cannot be read.
    fn with(self, decoded: DbResult<Call>) -> DbResult<Self>;
}

impl ReadCall for StoredCall {
    fn with(self, decoded: DbResult<Call>) -> DbResult<Self> {
        match decoded {
            Ok(call) => Ok(Self { call, ..self }),
            Err(DbError::Corrupt(damage)) => Ok(Self { damage: Some(damage), ..self }),
            Err(error) => Err(error),
        }
    }
}
