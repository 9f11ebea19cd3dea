//! Timestamps as milliseconds since 1970, the form in which both databases store them.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serializer, de::Error};

/// Writes milliseconds.
pub fn serialize<S: Serializer>(at: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_i64(at.as_millisecond())
}

/// Reads milliseconds.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
    Timestamp::from_millisecond(i64::deserialize(from)?).map_err(D::Error::custom)
}

/// The same for an optional timestamp.
pub mod option {
    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes milliseconds or null.
    pub fn serialize<S: Serializer>(at: &Option<Timestamp>, to: S) -> Result<S::Ok, S::Error> {
        match at {
            Some(at) => to.serialize_i64(at.as_millisecond()),
            None => to.serialize_none(),
        }
    }

    /// Reads milliseconds or null.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
        Option::<i64>::deserialize(from)?
            .map(|ms| Timestamp::from_millisecond(ms).map_err(D::Error::custom))
            .transpose()
    }
}
