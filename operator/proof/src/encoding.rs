//! Text encodings of bytes.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use dalsegno_format::header;
use dalsegno_model::Digest;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A hash in its text form: `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, Debug)]
pub struct Hash(pub Digest);

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&header::render(&self.0))
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let parsed =
            text.strip_prefix("sha256:").filter(|hex| hex.len() == 64 && hex.is_ascii()).and_then(|hex| {
                let mut digest = [0; 32];
                for (byte, at) in digest.iter_mut().zip((0..64).step_by(2)) {
                    *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
                }
                Some(digest)
            });
        parsed.map(Self).ok_or_else(|| de::Error::custom(format!("{text:?} is not a SHA-256")))
    }
}

/// Bytes in base64.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<const N: usize>(pub [u8; N]);

impl<const N: usize> Serialize for Bytes<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(self.0))
    }
}

impl<'de, const N: usize> Deserialize<'de> for Bytes<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = STANDARD.decode(String::deserialize(deserializer)?).map_err(de::Error::custom)?;
        let bytes = bytes.try_into().map_err(|_| de::Error::custom(format!("it is not {N} bytes long")))?;
        Ok(Self(bytes))
    }
}

/// Any number of bytes in base64.
#[derive(Clone, Debug)]
pub struct Base64(pub Vec<u8>);

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        STANDARD.decode(String::deserialize(deserializer)?).map(Self).map_err(de::Error::custom)
    }
}

/// Bytes in base64 without padding, for lines that must be short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpadded<const N: usize>(pub [u8; N]);

impl<const N: usize> Serialize for Unpadded<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD_NO_PAD.encode(self.0))
    }
}

impl<'de, const N: usize> Deserialize<'de> for Unpadded<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = STANDARD_NO_PAD.decode(String::deserialize(deserializer)?).map_err(de::Error::custom)?;
        let bytes = bytes.try_into().map_err(|_| de::Error::custom(format!("it is not {N} bytes long")))?;
        Ok(Self(bytes))
    }
}
