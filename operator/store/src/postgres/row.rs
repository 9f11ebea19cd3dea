//! How single values are stored in columns, and the values that several statements return.

use dalsegno_protocol::{Boundary, Head};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::db_error::{DbError, DbResult, redacted_json_error};
use dalsegno_format::header;
use dalsegno_format::seal::{AadContext, PayloadCipher, is_sealed};
use dalsegno_model::{Digest, WorkerSignals};

/// An enum as it is stored: by the name that serde gives its variant.
pub(super) fn enum_str(value: &impl Serialize) -> DbResult<String> {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => Ok(name),
        Ok(other) => Err(DbError::Corrupt(format!("{other} is not a string"))),
        Err(error) => Err(DbError::Corrupt(error.to_string())),
    }
}

/// The variant with this name.
pub(super) fn parse_enum<T: DeserializeOwned>(name: String) -> DbResult<T> {
    serde_json::from_value(serde_json::Value::String(name))
        .map_err(|error| DbError::Corrupt(redacted_json_error(&error)))
}

/// A text that PostgreSQL accepts: each NUL becomes U+FFFD. The last lines of a log may contain NULs.
pub(super) fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// The 32 bytes in a column that is not null.
pub(super) fn digest(row: &PgRow, column: &str) -> DbResult<Digest> {
    optional_digest(row, column)?.ok_or_else(|| DbError::Corrupt(format!("{column} is null")))
}

/// The 32 bytes in a column that may be null.
pub(super) fn optional_digest(row: &PgRow, column: &str) -> DbResult<Option<Digest>> {
    row.try_get::<Option<&[u8]>, _>(column)?
        .map(|bytes| bytes.try_into().map_err(|_| DbError::Corrupt(format!("{column} is not 32 bytes"))))
        .transpose()
}

/// The boundary whose number is in a column that may be null.
pub(super) fn optional_boundary(row: &PgRow, column: &str) -> DbResult<Option<Boundary>> {
    row.try_get::<Option<i16>, _>(column)?
        .map(|number| {
            header::boundary_of(number.into())
                .ok_or_else(|| DbError::Corrupt(format!("no boundary has the number {number}")))
        })
        .transpose()
}

/// The boundary in the column `boundary`.
pub(super) fn boundary(row: &PgRow) -> DbResult<Boundary> {
    optional_boundary(row, "boundary")?
        .ok_or_else(|| DbError::Corrupt("a boundary is neither plan nor result".into()))
}

/// The number of a boundary in its columns.
pub(super) fn boundary_number(boundary: Boundary) -> i16 {
    header::boundary_number(boundary).into()
}

/// The requests for a worker that commits and heartbeats return.
pub(super) fn worker_signals(row: &PgRow) -> DbResult<WorkerSignals> {
    Ok(WorkerSignals {
        suspend: row.try_get("suspend")?,
        cancel: row.try_get("cancel")?,
        limit: row.try_get("at_limit")?,
        inbox: row.try_get("inbox")?,
        lease_ms: row.try_get("lease_ms")?,
    })
}

/// The head that commits return.
pub(super) fn head(row: &PgRow) -> DbResult<Option<Head>> {
    let (Some(turn), Some(boundary)) = (row.try_get("turn")?, optional_boundary(row, "boundary")?) else {
        return Ok(None);
    };
    Ok(Some(Head {
        turn,
        boundary,
        position: row.try_get("position")?,
        content_hash: header::render(&digest(row, "content_hash")?),
    }))
}

/// Whether any payload in this column looks sealed.
pub(super) fn any_sealed(rows: &[PgRow], column: &str) -> bool {
    rows.iter().filter_map(|row| row.try_get::<Option<&[u8]>, _>(column).ok()?).any(is_sealed)
}

/// The key of a call as it is stored.
pub(super) fn sealed_key(id: &str, key: &str, cipher: &PayloadCipher) -> dalsegno_model::Result<String> {
    cipher.seal_text(AadContext::CallKey(id), &without_nul(key))
}

#[cfg(test)]
mod tests {
    use dalsegno_protocol::Policy;

    use super::*;

    #[test]
    fn an_enum_is_stored_by_its_name() {
        assert_eq!(enum_str(&Policy::RetrySameKey).unwrap(), "retrySameKey");
        assert_eq!(parse_enum::<Policy>("readOnly".into()).unwrap(), Policy::ReadOnly);
        assert!(parse_enum::<Policy>("whatever".into()).is_err());
    }

    #[test]
    fn a_stored_text_has_no_nul() {
        assert_eq!(without_nul("a\0b"), "a\u{fffd}b");
    }
}
