//! Payloads sealed with the data key of their run, each bound to its position.
//!
//! # Format, version 1
//!
//! ```text
//! sealed payload = codec byte + 16, nonce (12 random bytes), AES-256-GCM of the bytes after it, tag (16 bytes)
//! AAD            = f("dalsegno/sealed/v1") f(codec byte) f(run id) f(kind), then f of each part of the position
//! sealed text    = U+0001, "1", base64 of: nonce (12 bytes), AES-256-GCM of the text (UTF-8), tag (16 bytes)
//!                  AAD as above, with codec 0; nonce = HMAC-SHA256(key of nonces, f(AAD) f(text)), cut to 12 bytes
//! keys           = HKDF-SHA256 of the data key (32 bytes): "dalsegno/seal/v1" to seal, "dalsegno/digest/v1" for
//!                  digests, "dalsegno/boundary-digests/v1", "dalsegno/call-digests/v1" and
//!                  "dalsegno/message-digests/v1" for the digest keys of boundaries, calls and messages,
//!                  "dalsegno/text/v1" to seal texts, "dalsegno/text-nonce/v1" for their nonces
//! digest key     = HMAC-SHA256(key of boundaries, f(turn, i32) f(boundary, 1 byte) f(commit id)), of one boundary;
//!                  HMAC-SHA256(key of calls, f(call id, UTF-8)), of one call;
//!                  HMAC-SHA256(key of messages, f(message id, UTF-8)), of one message
//! digest         = HMAC-SHA256(key for digests, or the digest key of a boundary, a call or a message; the SHA-256 of
//!                  the data)
//! ```
//!
//! with `f` and integers as in [`crate::header`]. A payload cannot be opened if it was moved to another run, column
//! or row, or if any part of it was changed or cut. Digests of sealed data are keyed too, so that nobody can test
//! guesses of the payload. The payloads of each boundary, each call and each message have their own digest key. So a bundle can
//! contain these keys without revealing anything about data outside of the bundle.

mod aad;
mod digests;
mod text;

use std::borrow::Cow;
use std::sync::Arc;

use dalsegno_model::{Digest, Error, Result, RunId, boundary_number};
use dalsegno_protocol::Boundary;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::{hkdf, hmac};
use uuid::Uuid;

pub use aad::AadContext;
use aad::name;
pub use dalsegno_model::{CallDigests, DigestKey, SHREDDED};
use digests::sign;
pub use digests::{BodyDigest, CallDigestsExt, DigestKeyExt};
pub use text::is_sealed_text;
use text::{TextKey, unsealed};

use crate::fields::Fields;

/// This bit is set in the codec byte of a sealed payload.
pub const SEALED: u8 = 0x10;

/// The data key of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DataKey {
    /// 32 random bytes.
    pub bytes: [u8; 32],
    /// Whether texts of the run are sealed too ([`PayloadCipher::seal_text`]). An earlier version made keys that seal
    /// payloads only, and cannot read a run whose texts are sealed.
    pub seals_texts: bool,
}

impl DataKey {
    /// A new key, which seals payloads and texts.
    pub fn random() -> Result<Self> {
        Ok(Self { bytes: random()?, seals_texts: true })
    }
}

impl std::fmt::Debug for DataKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataKey").field("seals_texts", &self.seals_texts).finish_non_exhaustive()
    }
}

/// Seals and opens the payloads of one run.
#[derive(Clone, Default)]
pub struct PayloadCipher(CipherState);

#[derive(Clone, Default)]
enum CipherState {
    /// No keys are mounted.
    #[default]
    Plain,
    /// Keys are mounted, and nothing of this run has been sealed yet.
    Unsealed,
    Sealed(Arc<RunKey>),
    Shredded,
}

struct RunKey {
    run: RunId,
    seal: LessSafeKey,
    digest: hmac::Key,
    boundaries: hmac::Key,
    calls: hmac::Key,
    messages: hmac::Key,
    /// `None`: texts are not sealed.
    texts: Option<TextKey>,
}

impl PayloadCipher {
    /// Seals payloads with this data key, and texts if the key does.
    pub fn under(run: RunId, data_key: &DataKey) -> Result<Self> {
        let prk = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&data_key.bytes);
        let derive = |label: &'static [u8]| {
            let mut key = [0; 32];
            let derived = prk.expand(&[label], hkdf::HKDF_SHA256).and_then(|okm| okm.fill(&mut key));
            derived.map(|()| key).map_err(|_| unusable("a key could not be derived"))
        };
        let aes = |key: [u8; 32]| {
            let key = UnboundKey::new(&AES_256_GCM, &key);
            key.map(LessSafeKey::new).map_err(|_| unusable("a key could not be made"))
        };
        let seal = aes(derive(b"dalsegno/seal/v1")?)?;
        let digest = hmac::Key::new(hmac::HMAC_SHA256, &derive(b"dalsegno/digest/v1")?);
        let boundaries = hmac::Key::new(hmac::HMAC_SHA256, &derive(b"dalsegno/boundary-digests/v1")?);
        let calls = hmac::Key::new(hmac::HMAC_SHA256, &derive(b"dalsegno/call-digests/v1")?);
        let messages = hmac::Key::new(hmac::HMAC_SHA256, &derive(b"dalsegno/message-digests/v1")?);
        let texts = if data_key.seals_texts {
            let nonces = hmac::Key::new(hmac::HMAC_SHA256, &derive(b"dalsegno/text-nonce/v1")?);
            Some(TextKey { seal: aes(derive(b"dalsegno/text/v1")?)?, nonces })
        } else {
            None
        };
        let key = RunKey { run, seal, digest, boundaries, calls, messages, texts };
        Ok(Self(CipherState::Sealed(Arc::new(key))))
    }

    /// Keys are mounted, and the run has no data key yet: nothing of it is sealed.
    pub fn unsealed() -> Self {
        Self(CipherState::Unsealed)
    }

    /// The data key was deleted: nobody can read what is sealed.
    pub fn shredded() -> Self {
        Self(CipherState::Shredded)
    }

    /// Whether the process has keys, regardless of this run's data key.
    pub fn has_keys(&self) -> bool {
        !matches!(self.0, CipherState::Plain)
    }

    /// Whether the data key was deleted.
    pub fn is_shredded(&self) -> bool {
        matches!(self.0, CipherState::Shredded)
    }

    /// Seals an encoded payload for this position.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] if the run's key was deleted: nothing is written for a shredded run.
    pub fn seal(&self, context: AadContext<'_>, payload: Vec<u8>) -> Result<Vec<u8>> {
        let key = match &self.0 {
            CipherState::Plain | CipherState::Unsealed => return Ok(payload),
            CipherState::Shredded => return Err(gone()),
            CipherState::Sealed(key) => key,
        };
        let Some((codec, bytes)) = payload.split_first() else {
            return Err(corrupt("it has no codec byte"));
        };
        let nonce: [u8; NONCE_LEN] = random()?;
        let mut body = bytes.to_vec();
        let aad = Aad::from(context.aad(key.run, *codec));
        let sealed = key.seal.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut body);
        sealed.map_err(|_| unusable("a payload could not be sealed"))?;
        Ok([&[*codec | SEALED], nonce.as_slice(), &body].concat())
    }

    /// Opens the encoded payload at this position. A payload that is not sealed is returned unchanged: it was written
    /// before the run had a key.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if it was changed, cut, or written for another position, or if the run's key was deleted;
    /// [`Error::Unusable`] if it is sealed and no keys are mounted.
    pub fn open<'p>(&self, context: AadContext<'_>, payload: &'p [u8]) -> Result<Cow<'p, [u8]>> {
        if !is_sealed(payload) {
            return Ok(Cow::Borrowed(payload));
        }
        let key = match &self.0 {
            CipherState::Plain => {
                return Err(unusable(
                    "a payload is sealed, and there are no keys: name their folder with --encryption-keys",
                ));
            }
            CipherState::Unsealed => {
                return Err(corrupt("it is sealed, and the data key of its run is not there"));
            }
            CipherState::Shredded => return Err(corrupt(SHREDDED)),
            CipherState::Sealed(key) => key,
        };
        let open = || {
            let (codec, rest) = payload.split_first()?;
            let (nonce, body) = rest.split_first_chunk::<NONCE_LEN>()?;
            let codec = codec & !SEALED;
            let mut body = body.to_vec();
            let aad = Aad::from(context.aad(key.run, codec));
            let opened = key.seal.open_in_place(Nonce::assume_unique_for_key(*nonce), aad, &mut body).ok()?;
            Some([&[codec], &*opened].concat())
        };
        open().map(Cow::Owned).ok_or_else(|| corrupt("it is not what was sealed there"))
    }

    /// As [`Self::open`]; `None` if the payload was shredded.
    pub fn open_unless_shredded<'p>(
        &self,
        context: AadContext<'_>,
        payload: &'p [u8],
    ) -> Result<Option<Cow<'p, [u8]>>> {
        if is_sealed(payload) && self.is_shredded() {
            return Ok(None);
        }
        self.open(context, payload).map(Some)
    }

    /// The text as it is stored at this position: sealed, if the run's data key seals texts. The same text is sealed to
    /// the same bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] if the run's key was deleted.
    pub fn seal_text(&self, context: AadContext<'_>, text: &str) -> Result<String> {
        let key = match &self.0 {
            CipherState::Plain | CipherState::Unsealed => return Ok(unsealed(text)),
            CipherState::Shredded => return Err(gone()),
            CipherState::Sealed(key) => key,
        };
        let Some(texts) = &key.texts else { return Ok(unsealed(text)) };
        // A text has no codec.
        texts.seal(context.aad(key.run, 0), text).ok_or_else(|| unusable("a text could not be sealed"))
    }

    /// The text that is stored at this position; `None` if it was shredded. A text that is not sealed is returned
    /// unchanged.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn open_text(&self, context: AadContext<'_>, stored: &str) -> Result<Option<String>> {
        if !is_sealed_text(stored) {
            return Ok(Some(stored.to_owned()));
        }
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
        let opened = key.texts.as_ref().and_then(|texts| texts.open(context.aad(key.run, 0), stored));
        opened.map(Some).ok_or_else(|| corrupt("it is not what was sealed there"))
    }

    /// Whether texts of the run are sealed.
    pub fn seals_texts(&self) -> bool {
        matches!(&self.0, CipherState::Sealed(key) if key.texts.is_some())
    }

    /// The stored digest for data with this SHA-256: a body, a batch of records, a state or a chunk of it.
    pub fn digest(&self, plain: Digest) -> Digest {
        match &self.0 {
            CipherState::Sealed(key) => sign(&key.digest, &plain),
            CipherState::Plain | CipherState::Unsealed | CipherState::Shredded => plain,
        }
    }

    /// The digest of a body with this SHA-256.
    pub fn body(&self, plain: Digest) -> BodyDigest {
        BodyDigest { stored: self.digest(plain), plain }
    }

    /// The key of the digests of a boundary's payloads, if these are sealed; `None` if the digests are plain.
    pub fn digest_key(&self, turn: i32, boundary: Boundary, commit_id: Uuid) -> Option<DigestKey> {
        let CipherState::Sealed(key) = &self.0 else { return None };
        let mut boundary_id = Fields::default();
        boundary_id.field(&turn.to_be_bytes());
        boundary_id.field(&[boundary_number(boundary)]);
        boundary_id.field(commit_id.as_bytes());
        Some(DigestKey(sign(&key.boundaries, &boundary_id.0)))
    }

    /// How the digests of the request and the answer of a wait are computed. `epoch`: the one it was opened under.
    pub fn wait_digests(&self, id: &str, epoch: i64) -> CallDigests {
        // No call has an id with a slash, so that no call has this key.
        self.call_digests(&format!("wait/{id}/{epoch}"))
    }

    /// How the digests of the call with this id are computed.
    pub fn call_digests(&self, id: &str) -> CallDigests {
        self.digests_of(id, |key| &key.calls)
    }

    /// How the digest of the message with this id is computed.
    pub fn message_digests(&self, id: &str) -> CallDigests {
        self.digests_of(id, |key| &key.messages)
    }

    fn digests_of(&self, id: &str, key_of: impl Fn(&RunKey) -> &hmac::Key) -> CallDigests {
        match &self.0 {
            CipherState::Plain | CipherState::Unsealed => CallDigests::Plain,
            CipherState::Shredded => CallDigests::Lost,
            CipherState::Sealed(key) => {
                let mut named = Fields::default();
                named.field(name(id).as_bytes());
                CallDigests::Keyed(DigestKey(sign(key_of(key), &named.0)))
            }
        }
    }
}

impl std::fmt::Debug for PayloadCipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            CipherState::Plain => "Plain",
            CipherState::Unsealed => "Unsealed",
            CipherState::Sealed(_) => "Sealed",
            CipherState::Shredded => "Shredded",
        })
    }
}

/// Whether a stored payload can only be read with the key of its run.
pub fn is_sealed(payload: &[u8]) -> bool {
    payload.first().is_some_and(|codec| codec & SEALED != 0)
}

/// Random bytes from the operating system.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| unusable("the operating system has no random bytes"))?;
    Ok(bytes)
}

fn corrupt(detail: &str) -> Error {
    Error::Corrupt { operation: "opening a payload", detail: detail.into() }
}

fn gone() -> Error {
    Error::Gone { operation: "sealing a payload", detail: SHREDDED.into() }
}

fn unusable(why: &str) -> Error {
    Error::Unusable(why.into())
}
