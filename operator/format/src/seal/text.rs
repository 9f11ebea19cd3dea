//! Texts of a run that are sealed in a column of texts: keys of calls, the end of a run, and how its attempts ended.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};
use ring::hmac;

use super::digests::sign;
use crate::fields::Fields;

/// How a sealed text begins. The gateway refuses control characters in what a worker names, and [`unsealed`] lets no
/// other text begin with one.
const SEALED_TEXT: &str = "\u{1}1";

/// The keys of a run's texts.
pub(super) struct TextKey {
    pub seal: LessSafeKey,
    /// For the nonces. Equal texts at one position have equal nonces, so that the database can compare a call's key.
    pub nonces: hmac::Key,
}

/// Whether a stored text can only be read with the key of its run.
pub fn is_sealed_text(text: &str) -> bool {
    text.starts_with(SEALED_TEXT)
}

/// A text that is stored as it is must not look sealed.
pub(super) fn unsealed(text: &str) -> String {
    text.strip_prefix('\u{1}').map_or_else(|| text.to_owned(), |rest| format!("\u{fffd}{rest}"))
}

impl TextKey {
    /// The sealed text; `None`: it could not be sealed.
    pub fn seal(&self, aad: Vec<u8>, text: &str) -> Option<String> {
        let mut input = Fields::default();
        input.field(&aad);
        input.field(text.as_bytes());
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&sign(&self.nonces, &input.0)[..NONCE_LEN]);
        let mut body = text.as_bytes().to_vec();
        let unique = Nonce::assume_unique_for_key(nonce);
        self.seal.seal_in_place_append_tag(unique, Aad::from(aad), &mut body).ok()?;
        Some(format!("{SEALED_TEXT}{}", STANDARD.encode([nonce.as_slice(), &body].concat())))
    }

    /// The text that was sealed; `None`: it is not what was sealed with this AAD.
    pub fn open(&self, aad: Vec<u8>, stored: &str) -> Option<String> {
        let bytes = STANDARD.decode(stored.strip_prefix(SEALED_TEXT)?).ok()?;
        let (nonce, body) = bytes.split_first_chunk::<NONCE_LEN>()?;
        let mut body = body.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self.seal.open_in_place(nonce, Aad::from(aad), &mut body).ok()?;
        String::from_utf8(opened.to_vec()).ok()
    }
}
