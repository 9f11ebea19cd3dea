//! Reading and writing JSON, with errors that name the operation.

use std::fmt::Display;

use dalsegno_protocol::RawValue;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde::ser::{self, Error as _, Serializer};

use crate::{Error, Result};

/// The JSON text of an agent's value. A NaN or an infinity is an error.
pub(crate) fn raw(operation: &'static str, value: &(impl Serialize + ?Sized)) -> Result<Box<RawValue>> {
    let text = value.serialize(Finite).and_then(|()| serde_json::value::to_raw_value(value));
    text.map_err(|source| Error::Json { operation, source })
}

/// The body of a request.
pub(crate) fn to_bytes(request: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(request).map_err(|source| Error::Json { operation: "write a request as JSON", source })
}

/// Reads a value from its JSON text.
pub(crate) fn from_text<T: DeserializeOwned>(operation: &'static str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|source| Error::Json { operation, source })
}

/// The same JSON with the members of each object in order and without white space. Equal values have equal texts.
pub(crate) fn canonical(text: &str) -> Result<String> {
    let mut value: serde_json::Value = from_text("read JSON", text)?;
    value.sort_all_objects();
    Ok(value.to_string())
}

/// A serializer that writes nothing and fails if a value contains a NaN or an infinity, which JSON does not have.
/// serde_json would write them as `null`, and the value would be lost.
#[derive(Clone, Copy)]
struct Finite;

/// Methods for values that contain no floating-point number.
macro_rules! accept {
    ($($method:ident($($of:ty),*);)*) => {
        $(fn $method(self, $(_: $of),*) -> serde_json::Result<()> { Ok(()) })*
    };
}

/// Methods that begin a compound value.
macro_rules! begin_compound {
    ($($method:ident($($of:ty),*);)*) => {
        $(fn $method(self, $(_: $of),*) -> serde_json::Result<Self> { Ok(self) })*
    };
}

impl Serializer for Finite {
    type Ok = ();
    type Error = serde_json::Error;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    fn serialize_f32(self, value: f32) -> serde_json::Result<()> {
        self.serialize_f64(value.into())
    }

    fn serialize_f64(self, value: f64) -> serde_json::Result<()> {
        if value.is_finite() {
            Ok(())
        } else {
            Err(serde_json::Error::custom(format!("{value} is not a JSON number")))
        }
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> serde_json::Result<()> {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> serde_json::Result<()> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> serde_json::Result<()> {
        value.serialize(self)
    }

    fn collect_str<T: Display + ?Sized>(self, _: &T) -> serde_json::Result<()> {
        Ok(())
    }

    accept! {
        serialize_bool(bool);
        serialize_i8(i8);
        serialize_i16(i16);
        serialize_i32(i32);
        serialize_i64(i64);
        serialize_i128(i128);
        serialize_u8(u8);
        serialize_u16(u16);
        serialize_u32(u32);
        serialize_u64(u64);
        serialize_u128(u128);
        serialize_char(char);
        serialize_str(&str);
        serialize_bytes(&[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(&'static str);
        serialize_unit_variant(&'static str, u32, &'static str);
    }

    begin_compound! {
        serialize_seq(Option<usize>);
        serialize_tuple(usize);
        serialize_tuple_struct(&'static str, usize);
        serialize_tuple_variant(&'static str, u32, &'static str, usize);
        serialize_map(Option<usize>);
        serialize_struct(&'static str, usize);
        serialize_struct_variant(&'static str, u32, &'static str, usize);
    }
}

macro_rules! compound {
    ($($compound:ident: $($method:ident($($name:ty)?)),*;)*) => {$(
        impl ser::$compound for Finite {
            type Ok = ();
            type Error = serde_json::Error;

            $(fn $method<T: Serialize + ?Sized>(&mut self, $(_: $name,)? part: &T) -> serde_json::Result<()> {
                part.serialize(*self)
            })*

            fn end(self) -> serde_json::Result<()> {
                Ok(())
            }
        }
    )*};
}

compound! {
    SerializeSeq: serialize_element();
    SerializeTuple: serialize_element();
    SerializeTupleStruct: serialize_field();
    SerializeTupleVariant: serialize_field();
    SerializeMap: serialize_key(), serialize_value();
    SerializeStruct: serialize_field(&'static str);
    SerializeStructVariant: serialize_field(&'static str);
}
