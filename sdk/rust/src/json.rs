//! Reading and writing JSON, with errors that name the operation.

use dalsegno_protocol::RawValue;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::finite::Finite;
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
