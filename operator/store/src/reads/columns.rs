//! Columns: how a value is read from a row of either database, and how it is bound to a statement of either.

use dalsegno_protocol::Boundary;
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::fault::{Fault, Work, redacted_json_error};
use crate::{Digest, header};

/// A row of either database, by the names of its columns. NULL is `None`.
pub(crate) trait Columns {
    /// An integer of any width.
    fn integer(&self, column: &str) -> Work<Option<i64>>;
    fn boolean(&self, column: &str) -> Work<Option<bool>>;
    fn text(&self, column: &str) -> Work<Option<String>>;
    fn bytes(&self, column: &str) -> Work<Option<Vec<u8>>>;
    fn uuid(&self, column: &str) -> Work<Option<Uuid>>;
    /// A list of texts: an array in PostgreSQL, a JSON array in SQLite.
    fn texts(&self, column: &str) -> Work<Option<Vec<String>>>;
}

/// The columns of one table in a row that joins several: each is named with a prefix.
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
    fn integer(&self, column: &str) -> Work<Option<i64>> {
        self.row.integer(&self.name(column))
    }

    fn boolean(&self, column: &str) -> Work<Option<bool>> {
        self.row.boolean(&self.name(column))
    }

    fn text(&self, column: &str) -> Work<Option<String>> {
        self.row.text(&self.name(column))
    }

    fn bytes(&self, column: &str) -> Work<Option<Vec<u8>>> {
        self.row.bytes(&self.name(column))
    }

    fn uuid(&self, column: &str) -> Work<Option<Uuid>> {
        self.row.uuid(&self.name(column))
    }

    fn texts(&self, column: &str) -> Work<Option<Vec<String>>> {
        self.row.texts(&self.name(column))
    }
}

/// A value to bind. A NULL has its type too, which PostgreSQL needs.
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

/// The type of a column that is not null.
pub(crate) trait NotNull: Sized {
    /// `None`: the column is null.
    fn read(row: &impl Columns, column: &str) -> Work<Option<Self>>;

    fn value(this: Option<&Self>) -> Value;
}

/// The type of a column: one that is not null, or an `Option` of one.
pub(crate) trait Column: Sized {
    fn read(row: &impl Columns, column: &str) -> Work<Self>;

    fn value(&self) -> Value;
}

impl<T: NotNull> Column for T {
    fn read(row: &impl Columns, column: &str) -> Work<Self> {
        T::read(row, column)?.ok_or_else(|| Fault::Corrupt(format!("column {column} is null")))
    }

    fn value(&self) -> Value {
        T::value(Some(self))
    }
}

impl<T: NotNull> Column for Option<T> {
    fn read(row: &impl Columns, column: &str) -> Work<Self> {
        T::read(row, column)
    }

    fn value(&self) -> Value {
        T::value(self.as_ref())
    }
}

impl NotNull for i64 {
    fn read(row: &impl Columns, column: &str) -> Work<Option<Self>> {
        row.integer(column)
    }

    fn value(this: Option<&Self>) -> Value {
        Value::Integer(this.copied())
    }
}

impl NotNull for i32 {
    fn read(row: &impl Columns, column: &str) -> Work<Option<Self>> {
        let narrow = |wide: i64| {
            wide.try_into().map_err(|_| Fault::Corrupt(format!("column {column}: {wide} is out of range")))
        };
        row.integer(column)?.map(narrow).transpose()
    }

    fn value(this: Option<&Self>) -> Value {
        Value::Integer(this.map(|value| i64::from(*value)))
    }
}

impl NotNull for bool {
    fn read(row: &impl Columns, column: &str) -> Work<Option<Self>> {
        row.boolean(column)
    }

    fn value(this: Option<&Self>) -> Value {
        Value::Boolean(this.copied())
    }
}

impl NotNull for String {
    fn read(row: &impl Columns, column: &str) -> Work<Option<Self>> {
        row.text(column)
    }

    fn value(this: Option<&Self>) -> Value {
        Value::Text(this.cloned())
    }
}

impl NotNull for Vec<u8> {
    fn read(row: &impl Columns, column: &str) -> Work<Option<Self>> {
        row.bytes(column)
    }

    fn value(this: Option<&Self>) -> Value {
        Value::Bytes(this.cloned())
    }
}

impl NotNull for Uuid {
    fn read(row: &impl Columns, column: &str) -> Work<Option<Self>> {
        row.uuid(column)
    }

    fn value(this: Option<&Self>) -> Value {
        Value::Uuid(this.copied())
    }
}

impl NotNull for Vec<String> {
    fn read(row: &impl Columns, column: &str) -> Work<Option<Self>> {
        row.texts(column)
    }

    fn value(this: Option<&Self>) -> Value {
        Value::Texts(this.cloned())
    }
}

/// A hash, a digest or a capability: 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hash(pub Digest);

impl NotNull for Hash {
    fn read(row: &impl Columns, column: &str) -> Work<Option<Self>> {
        let hash = |bytes: Vec<u8>| {
            let digest = bytes.try_into().map_err(|_| Fault::Corrupt(format!("{column} is not 32 bytes")))?;
            Ok(Self(digest))
        };
        row.bytes(column)?.map(hash).transpose()
    }

    fn value(this: Option<&Self>) -> Value {
        Value::Bytes(this.map(|hash| hash.0.to_vec()))
    }
}

/// An enum, by the name that serde gives its variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EnumText<T>(pub T);

impl<T: Serialize> EnumText<T> {
    /// The variant's name. Only enums without data are stored so: both databases refuse any other text.
    pub fn text(&self) -> String {
        match serde_json::to_value(&self.0) {
            Ok(serde_json::Value::String(text)) => text,
            other => format!("{other:?}"),
        }
    }
}

impl<T: Serialize + DeserializeOwned> NotNull for EnumText<T> {
    fn read(row: &impl Columns, column: &str) -> Work<Option<Self>> {
        let parse = |text| {
            let parsed = serde_json::from_value(serde_json::Value::String(text));
            parsed
                .map(Self)
                .map_err(|error| Fault::Corrupt(format!("column {column}: {}", redacted_json_error(&error))))
        };
        row.text(column)?.map(parse).transpose()
    }

    fn value(this: Option<&Self>) -> Value {
        Value::Text(this.map(Self::text))
    }
}

/// Which boundary of a turn, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BoundaryColumn(pub Boundary);

impl NotNull for BoundaryColumn {
    fn read(row: &impl Columns, column: &str) -> Work<Option<Self>> {
        let boundary = |number| {
            let known = header::boundary_of(number);
            known.map(Self).ok_or_else(|| Fault::Corrupt(format!("no boundary has the number {number}")))
        };
        row.integer(column)?.map(boundary).transpose()
    }

    fn value(this: Option<&Self>) -> Value {
        Value::Integer(this.map(|column| header::boundary_number(column.0).into()))
    }
}
