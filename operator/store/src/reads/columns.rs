//! Columns: how values are read from rows of both databases, and bound to statements of both.

use dalsegno_protocol::Boundary;
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::db_error::{DbError, DbResult, redacted_json_error};
use dalsegno_format::header;
use dalsegno_model::Digest;

/// A row of either database. Its columns are read by name; NULL is `None`.
pub(crate) trait Columns {
    /// An integer of any width.
    fn integer(&self, column: &str) -> DbResult<Option<i64>>;
    fn boolean(&self, column: &str) -> DbResult<Option<bool>>;
    fn text(&self, column: &str) -> DbResult<Option<String>>;
    fn bytes(&self, column: &str) -> DbResult<Option<Vec<u8>>>;
    fn uuid(&self, column: &str) -> DbResult<Option<Uuid>>;
    /// A list of texts: an array in PostgreSQL, a JSON array in SQLite.
    fn texts(&self, column: &str) -> DbResult<Option<Vec<String>>>;
}

/// The columns of one table in a joined row: their names have a prefix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefixed<'r, R> {
    pub row: &'r R,
    pub prefix: &'static str,
}

impl<R> Prefixed<'_, R> {
    fn name(&self, column: &str) -> String {
        format!("{}{column}", self.prefix)
    }
}

impl<R: Columns> Columns for Prefixed<'_, R> {
    fn integer(&self, column: &str) -> DbResult<Option<i64>> {
        self.row.integer(&self.name(column))
    }

    fn boolean(&self, column: &str) -> DbResult<Option<bool>> {
        self.row.boolean(&self.name(column))
    }

    fn text(&self, column: &str) -> DbResult<Option<String>> {
        self.row.text(&self.name(column))
    }

    fn bytes(&self, column: &str) -> DbResult<Option<Vec<u8>>> {
        self.row.bytes(&self.name(column))
    }

    fn uuid(&self, column: &str) -> DbResult<Option<Uuid>> {
        self.row.uuid(&self.name(column))
    }

    fn texts(&self, column: &str) -> DbResult<Option<Vec<String>>> {
        self.row.texts(&self.name(column))
    }
}

/// A value to bind. NULL has a type too, because PostgreSQL needs it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Integer(Option<i64>),
    Boolean(Option<bool>),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
    Uuid(Option<Uuid>),
    Texts(Option<Vec<String>>),
}

/// A column and the value that it is set to.
pub(crate) type Assignment = (&'static str, Value);

/// The type of a column that is not nullable.
pub(crate) trait NotNull: Sized {
    /// `None`: the column is null.
    fn read(row: &impl Columns, column: &str) -> DbResult<Option<Self>>;

    fn value(this: Option<&Self>) -> Value;
}

/// The type of a column: a [`NotNull`] type, or an `Option` of one.
pub(crate) trait Column: Sized {
    fn read(row: &impl Columns, column: &str) -> DbResult<Self>;

    fn value(&self) -> Value;
}

impl<T: NotNull> Column for T {
    fn read(row: &impl Columns, column: &str) -> DbResult<Self> {
        T::read(row, column)?.ok_or_else(|| DbError::Corrupt(format!("column {column} is null")))
    }

    fn value(&self) -> Value {
        T::value(Some(self))
    }
}

impl<T: NotNull> Column for Option<T> {
    fn read(row: &impl Columns, column: &str) -> DbResult<Self> {
        T::read(row, column)
    }

    fn value(&self) -> Value {
        T::value(self.as_ref())
    }
}

impl NotNull for i64 {
    fn read(row: &impl Columns, column: &str) -> DbResult<Option<Self>> {
        row.integer(column)
    }

    fn value(this: Option<&Self>) -> Value {
        Value::Integer(this.copied())
    }
}

impl NotNull for i32 {
    fn read(row: &impl Columns, column: &str) -> DbResult<Option<Self>> {
        let narrow = |wide: i64| {
            wide.try_into().map_err(|_| DbError::Corrupt(format!("column {column}: {wide} is out of range")))
        };
        row.integer(column)?.map(narrow).transpose()
    }

    fn value(this: Option<&Self>) -> Value {
        Value::Integer(this.map(|value| i64::from(*value)))
    }
}

impl NotNull for bool {
    fn read(row: &impl Columns, column: &str) -> DbResult<Option<Self>> {
        row.boolean(column)
    }

    fn value(this: Option<&Self>) -> Value {
        Value::Boolean(this.copied())
    }
}

impl NotNull for String {
    fn read(row: &impl Columns, column: &str) -> DbResult<Option<Self>> {
        row.text(column)
    }

    fn value(this: Option<&Self>) -> Value {
        Value::Text(this.cloned())
    }
}

impl NotNull for Vec<u8> {
    fn read(row: &impl Columns, column: &str) -> DbResult<Option<Self>> {
        row.bytes(column)
    }

    fn value(this: Option<&Self>) -> Value {
        Value::Bytes(this.cloned())
    }
}

impl NotNull for Uuid {
    fn read(row: &impl Columns, column: &str) -> DbResult<Option<Self>> {
        row.uuid(column)
    }

    fn value(this: Option<&Self>) -> Value {
        Value::Uuid(this.copied())
    }
}

impl NotNull for Vec<String> {
    fn read(row: &impl Columns, column: &str) -> DbResult<Option<Self>> {
        row.texts(column)
    }

    fn value(this: Option<&Self>) -> Value {
        Value::Texts(this.cloned())
    }
}

/// A column of 32 bytes: a hash, a digest or a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hash(pub Digest);

impl NotNull for Hash {
    fn read(row: &impl Columns, column: &str) -> DbResult<Option<Self>> {
        let hash = |bytes: Vec<u8>| {
            let digest =
                bytes.try_into().map_err(|_| DbError::Corrupt(format!("{column} is not 32 bytes")))?;
            Ok(Self(digest))
        };
        row.bytes(column)?.map(hash).transpose()
    }

    fn value(this: Option<&Self>) -> Value {
        Value::Bytes(this.map(|hash| hash.0.to_vec()))
    }
}

/// A column with an enum, stored as the name that serde gives its variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EnumText<T>(pub T);

impl<T: Serialize> EnumText<T> {
    /// The variant's name. Only for enums whose variants have no data: other texts violate a constraint of both
    /// databases.
    pub fn text(&self) -> String {
        match serde_json::to_value(&self.0) {
            Ok(serde_json::Value::String(text)) => text,
            other => format!("{other:?}"),
        }
    }
}

impl<T: Serialize + DeserializeOwned> NotNull for EnumText<T> {
    fn read(row: &impl Columns, column: &str) -> DbResult<Option<Self>> {
        let parse = |text| {
            let parsed = serde_json::from_value(serde_json::Value::String(text));
            parsed.map(Self).map_err(|error| {
                DbError::Corrupt(format!("column {column}: {}", redacted_json_error(&error)))
            })
        };
        row.text(column)?.map(parse).transpose()
    }

    fn value(this: Option<&Self>) -> Value {
        Value::Text(this.map(Self::text))
    }
}

/// A column with the number of a boundary within its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BoundaryColumn(pub Boundary);

impl NotNull for BoundaryColumn {
    fn read(row: &impl Columns, column: &str) -> DbResult<Option<Self>> {
        let boundary = |number| {
            let known = header::boundary_of(number);
            known.map(Self).ok_or_else(|| DbError::Corrupt(format!("no boundary has the number {number}")))
        };
        row.integer(column)?.map(boundary).transpose()
    }

    fn value(this: Option<&Self>) -> Value {
        Value::Integer(this.map(|column| header::boundary_number(column.0).into()))
    }
}
