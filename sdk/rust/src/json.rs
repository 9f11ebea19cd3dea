//! JSON, with errors that say what was being written or read.

use dalsegno_protocol::RawValue;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::finite::Finite;
use crate::{Error, Result};

/// The JSON text of a value of the agent's; an error where it holds a NaN or an infinity.
pub(crate) fn raw(doing: &'static str, value: &(impl Serialize + ?Sized)) -> Result<Box<RawValue>> {
    let text = value.serialize(Finite).and_then(|()| serde_json::value::to_raw_value(value));
    text.map_err(|source| Error::Json { doing, source })
}

/// The body of a request.
pub(crate) fn to_bytes(request: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(request).map_err(|source| Error::Json { doing: "write a request as JSON", source })
}

/// A value from its JSON text.
pub(crate) fn from_text<T: DeserializeOwned>(doing: &'static str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|source| Error::Json { doing, source })
}
