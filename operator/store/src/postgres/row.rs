//! How values stand in columns and answers.

use dalsegno_protocol::{Boundary, Head};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::db_error::{DbError, DbResult, redacted_json_error};
use crate::seal::is_sealed;
use crate::{Asked, Digest, Place, header};

/// A word, by the name that serde gives it.
pub(super) fn word(value: &impl Serialize) -> DbResult<String> {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => Ok(word),
        Ok(other) => Err(DbError::Corrupt(format!("{other} is not a word"))),
        Err(error) => Err(DbError::Corrupt(error.to_string())),
    }
}

/// What a word stands for.
pub(super) fn named<T: DeserializeOwned>(word: String) -> DbResult<T> {
    serde_json::from_value(serde_json::Value::String(word))
        .map_err(|error| DbError::Corrupt(redacted_json_error(&error)))
}

/// A text as the database takes it: it has no NUL, which a log's last lines may well have.
pub(super) fn text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// 32 bytes in a column.
pub(super) fn digest(row: &PgRow, column: &str) -> DbResult<Digest> {
    optional_digest(row, column)?.ok_or_else(|| DbError::Corrupt(format!("{column} is null")))
}

/// 32 bytes, or none, in a column.
pub(super) fn optional_digest(row: &PgRow, column: &str) -> DbResult<Option<Digest>> {
    row.try_get::<Option<&[u8]>, _>(column)?
        .map(|bytes| bytes.try_into().map_err(|_| DbError::Corrupt(format!("{column} is not 32 bytes"))))
        .transpose()
}

/// A boundary's number in a column.
pub(super) fn boundary(row: &PgRow, column: &str) -> DbResult<Option<Boundary>> {
    row.try_get::<Option<i16>, _>(column)?
        .map(|number| {
            header::boundary_of(number.into())
                .ok_or_else(|| DbError::Corrupt(format!("no boundary has the number {number}")))
        })
        .transpose()
}

/// The number of a boundary.
pub(super) fn number(boundary: Boundary) -> i16 {
    header::boundary_number(boundary).into()
}

/// What a person asks for, as commits and heartbeats answer it.
pub(super) fn asked(row: &PgRow) -> DbResult<Asked> {
    Ok(Asked {
        suspend: row.try_get("suspend")?,
        cancel: row.try_get("cancel")?,
        lease_ms: row.try_get("lease_ms")?,
    })
}

/// The head, as commits answer it.
pub(super) fn head(row: &PgRow) -> DbResult<Option<Head>> {
    let (Some(turn), Some(boundary)) = (row.try_get("turn")?, boundary(row, "boundary")?) else {
        return Ok(None);
    };
    Ok(Some(Head {
        turn,
        boundary,
        position: row.try_get("position")?,
        content_hash: header::render(&digest(row, "content_hash")?),
    }))
}

/// Whether any of the payloads in this column does.
pub(super) fn looks_sealed(rows: &[PgRow], column: &str) -> bool {
    let kept = rows.iter().filter_map(|row| row.try_get::<Option<&[u8]>, _>(column).ok()?);
    kept.into_iter().any(is_sealed)
}

/// Where a boundary stands.
pub(super) fn place(row: &PgRow) -> DbResult<Place> {
    Ok(Place { turn: row.try_get("turn")?, boundary: the_boundary(row)?, epoch: row.try_get("epoch")? })
}

/// Which boundary a row is of.
pub(super) fn the_boundary(row: &PgRow) -> DbResult<Boundary> {
    boundary(row, "boundary")?.ok_or_else(|| DbError::Corrupt("a boundary is neither plan nor result".into()))
}

#[cfg(test)]
mod tests {
    use dalsegno_protocol::Policy;

    use super::*;

    #[test]
    fn a_word_stands_for_what_it_names() {
        assert_eq!(word(&Policy::RetrySameKey).unwrap(), "retrySameKey");
        assert_eq!(named::<Policy>("readOnly".into()).unwrap(), Policy::ReadOnly);
        assert!(named::<Policy>("whatever".into()).is_err());
    }

    #[test]
    fn a_text_has_no_nul() {
        assert_eq!(text("a\0b"), "a\u{fffd}b");
    }
}
