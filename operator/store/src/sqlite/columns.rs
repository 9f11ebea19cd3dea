//! Rows as structs: how values stand in columns, and the statements that move a whole row.

use dalsegno_protocol::Boundary;
use serde::{Serialize, de::DeserializeOwned};
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::sqlite::{SqliteArgumentsBuffer, SqliteTypeInfo, SqliteValueRef};
use sqlx::{Decode, Encode, Sqlite, Type};

use crate::{Digest, header};

/// A hash, a digest or a capability: 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hash(pub Digest);

impl Type<Sqlite> for Hash {
    fn type_info() -> SqliteTypeInfo {
        <[u8] as Type<Sqlite>>::type_info()
    }
}

impl Encode<'_, Sqlite> for Hash {
    fn encode_by_ref(&self, args: &mut SqliteArgumentsBuffer) -> Result<IsNull, BoxDynError> {
        Encode::<Sqlite>::encode(self.0.to_vec(), args)
    }
}

impl<'r> Decode<'r, Sqlite> for Hash {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        Ok(Self(<&[u8] as Decode<Sqlite>>::decode(value)?.try_into()?))
    }
}

/// A word, by the name that serde gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word<T>(pub T);

impl<T> Type<Sqlite> for Word<T> {
    fn type_info() -> SqliteTypeInfo {
        <str as Type<Sqlite>>::type_info()
    }
}

impl<T: Serialize> Encode<'_, Sqlite> for Word<T> {
    fn encode_by_ref(&self, args: &mut SqliteArgumentsBuffer) -> Result<IsNull, BoxDynError> {
        match serde_json::to_value(&self.0)? {
            serde_json::Value::String(word) => Encode::<Sqlite>::encode(word, args),
            other => Err(format!("{other} is not a word").into()),
        }
    }
}

impl<'r, T: DeserializeOwned> Decode<'r, Sqlite> for Word<T> {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        let word = <String as Decode<Sqlite>>::decode(value)?;
        Ok(Self(serde_json::from_value(serde_json::Value::String(word))?))
    }
}

/// Which boundary of a turn, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Which(pub Boundary);

impl Type<Sqlite> for Which {
    fn type_info() -> SqliteTypeInfo {
        <i64 as Type<Sqlite>>::type_info()
    }
}

impl Encode<'_, Sqlite> for Which {
    fn encode_by_ref(&self, args: &mut SqliteArgumentsBuffer) -> Result<IsNull, BoxDynError> {
        Encode::<Sqlite>::encode(i64::from(header::boundary_number(self.0)), args)
    }
}

impl<'r> Decode<'r, Sqlite> for Which {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        let number = <i64 as Decode<Sqlite>>::decode(value)?;
        Ok(Self(header::boundary_of(number).ok_or_else(|| format!("no boundary has the number {number}"))?))
    }
}

/// A table's row: the struct, and how it is read, inserted and saved. `fixed` columns are written once.
macro_rules! table {
    (
        $(#[$doc:meta])*
        $name:ident in $table:literal
        fixed { $($fixed:ident: $fixed_type:ty,)+ }
        moving { $first:ident: $first_type:ty, $($moving:ident: $moving_type:ty,)* }
        where $key:literal { $($key_column:ident),+ }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub(super) struct $name {
            $(pub $fixed: $fixed_type,)+
            pub $first: $first_type,
            $(pub $moving: $moving_type,)*
        }

        impl $name {
            /// The row, all columns of it.
            pub fn read(row: &::sqlx::sqlite::SqliteRow) -> ::sqlx::Result<Self> {
                use ::sqlx::Row as _;
                Ok(Self {
                    $($fixed: row.try_get(stringify!($fixed))?,)+
                    $first: row.try_get(stringify!($first))?,
                    $($moving: row.try_get(stringify!($moving))?,)*
                })
            }

            /// Writes a row that was not there.
            pub async fn insert(&self, conn: &mut ::sqlx::SqliteConnection) -> ::sqlx::Result<()> {
                ::sqlx::query(concat!(
                    "INSERT INTO ", $table, " (",
                    stringify!($first), $(", ", stringify!($moving),)* $(", ", stringify!($fixed),)+
                    ") VALUES (",
                    "?", $($crate::sqlite::columns::table!(@mark $moving),)* $($crate::sqlite::columns::table!(@mark $fixed),)+
                    ")"
                ))
                .bind(self.$first.clone())
                $(.bind(self.$moving.clone()))*
                $(.bind(self.$fixed.clone()))+
                .execute(conn)
                .await?;
                Ok(())
            }

            /// Writes the moving columns of a row that is there.
            pub async fn save(&self, conn: &mut ::sqlx::SqliteConnection) -> ::sqlx::Result<()> {
                ::sqlx::query(concat!(
                    "UPDATE ", $table, " SET (",
                    stringify!($first), $(", ", stringify!($moving),)*
                    ") = (",
                    "?", $($crate::sqlite::columns::table!(@mark $moving),)*
                    ") WHERE ", $key
                ))
                .bind(self.$first.clone())
                $(.bind(self.$moving.clone()))*
                $(.bind(self.$key_column.clone()))+
                .execute(conn)
                .await?;
                Ok(())
            }
        }
    };
    (@mark $column:ident) => { ", ?" };
}
pub(super) use table;
