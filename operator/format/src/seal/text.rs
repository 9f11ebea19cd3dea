//! Texts of a run that are sealed in a column of texts: keys of calls, the end of a run, and how its attempts ended.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dalsegno_model::Result;
use ring::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};
use ring::hmac;

use super::aad::AadContext;
use super::digests::sign;
use super::{CipherState, PayloadCipher, RunKey, corrupt, gone, unusable};
use crate::fields::Fields;

/// How a sealed text begins. The gateway refuses control characters in what a worker names, and [`PayloadCipher::seal_text`]
/// lets no other text begin with one.
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

impl PayloadCipher {
    /// The text as it is stored at this position: sealed, if the run's data key seals texts. The same text is sealed to
    /// the same bytes.
    ///
    /// # Errors
    ///
    /// [`dalsegno_model::Error::Gone`] if the run's key was deleted.
    pub fn seal_text(&self, context: AadContext<'_>, text: &str) -> Result<String> {
        let key = match &self.0 {
            CipherState::Shredded => return Err(gone()),
            CipherState::Sealed(key) => key,
            CipherState::Plain | CipherState::Unsealed => return Ok(unsealed(text)),
        };
        let Some(texts) = &key.texts else { return Ok(unsealed(text)) };
        let aad = aad(key, context);
        let mut input = Fields::default();
        input.field(&aad);
        input.field(text.as_bytes());
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&sign(&texts.nonces, &input.0)[..NONCE_LEN]);
        let mut body = text.as_bytes().to_vec();
        let nonce_of = Nonce::assume_unique_for_key(nonce);
        let sealed = texts.seal.seal_in_place_append_tag(nonce_of, Aad::from(aad), &mut body);
        sealed.map_err(|_| unusable("a text could not be sealed"))?;
        Ok(format!("{SEALED_TEXT}{}", STANDARD.encode([nonce.as_slice(), &body].concat())))
    }

    /// The text that is stored at this position; `None` if it was shredded. A text that is not sealed is returned
    /// unchanged.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn open_text(&self, context: AadContext<'_>, stored: &str) -> Result<Option<String>> {
        let Some(sealed) = stored.strip_prefix(SEALED_TEXT) else { return Ok(Some(stored.to_owned())) };
        let key = match &self.0 {
            CipherState::Plain => {
                return Err(unusable(
                    "a text is sealed, and there are no keys: name their folder with --encryption-keys",
                ));
            }
            CipherState::Unsealed => {
                return Err(corrupt("it is sealed, and the data key of its run is not there"));
            }
            CipherState::Shredded => return Ok(None),
            CipherState::Sealed(key) => key,
        };
        let open = || {
            let bytes = STANDARD.decode(sealed).ok()?;
            let (nonce, body) = bytes.split_first_chunk::<NONCE_LEN>()?;
            let (mut body, aad) = (body.to_vec(), Aad::from(aad(key, context)));
            let texts = &key.texts.as_ref()?.seal;
            let opened = texts.open_in_place(Nonce::assume_unique_for_key(*nonce), aad, &mut body).ok()?;
            String::from_utf8(opened.to_vec()).ok()
        };
        open().map(Some).ok_or_else(|| corrupt("it is not what was sealed there"))
    }

    /// Whether texts of the run are sealed.
    pub fn seals_texts(&self) -> bool {
        matches!(&self.0, CipherState::Sealed(key) if key.texts.is_some())
    }
}

/// A text that is stored as it is must not look sealed.
fn unsealed(text: &str) -> String {
    text.strip_prefix('\u{1}').map_or_else(|| text.to_owned(), |rest| format!("\u{fffd}{rest}"))
}

/// No payload of a text has a codec, so the codec byte is 0.
fn aad(key: &RunKey, context: AadContext<'_>) -> Vec<u8> {
    context.aad(key.run, 0)
}
