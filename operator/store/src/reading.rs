//! The whole store as it stood at one moment: how the rows of both databases become those of [`crate::Reading`].

use dalsegno_protocol::Call;

pub use dalsegno_model::read_transaction::*;

use crate::Error;
use crate::fault::{Fault, Work};
use crate::records::kept_digest;
use crate::seal::{AadContext, PayloadCipher};

/// Bytes of kept payloads after which a page ends; its first row always comes.
pub(crate) const PAGE_BYTES: i64 = 1 << 20;
/// Rows of a page.
pub(crate) const PAGE_ROWS: i64 = 500;

/// A record whose value was not read yet.
pub(crate) trait ReadRecord: Sized {
    /// The same with the digest of its value, as far as that can be read.
    fn with(self, kept: &[u8], sealing: &PayloadCipher) -> Work<Self>;
}

impl ReadRecord for StoredRecord {
    fn with(self, kept: &[u8], sealing: &PayloadCipher) -> Work<Self> {
        let RecordKey { space, key, seq: _ } = &self.at;
        match kept_digest(kept, AadContext::Record(space, key, self.entry_id.as_deref()), sealing) {
            Ok(value) => Ok(Self { value, ..self }),
            Err(Error::Corrupt { detail, .. }) => Ok(Self { damage: Some(detail), ..self }),
            Err(error) => Err(error.into()),
        }
    }
}

/// A call whose payloads were not read yet.
pub(crate) trait ReadCall: Sized {
    /// The same with its payloads, as far as these can be read.
    fn with(self, read: Work<Call>) -> Work<Self>;
}

impl ReadCall for StoredCall {
    fn with(self, read: Work<Call>) -> Work<Self> {
        match read {
            Ok(call) => Ok(Self { call, ..self }),
            Err(Fault::Corrupt(damage)) => Ok(Self { damage: Some(damage), ..self }),
            Err(fault) => Err(fault),
        }
    }
}
