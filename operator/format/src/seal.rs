//! Payloads sealed under the data key of their run, each to its place.
//!
//! # Format, version 1
//!
//! ```text
//! sealed payload = codec byte + 16, nonce (12 random bytes), AES-256-GCM of what follows the codec byte, tag (16 bytes)
//! AAD            = f("dalsegno/sealed/v1") f(codec byte) f(run id) f(kind) and f of each part of the place
//! keys           = HKDF-SHA256 of the data key (32 bytes): "dalsegno/seal/v1" to seal, "dalsegno/digest/v1" for
//!                  digests, "dalsegno/boundary-digests/v1" and "dalsegno/call-digests/v1" for the digest keys of
//!                  boundaries and calls
//! digest key     = HMAC-SHA256(key of boundaries, f(turn, i32) f(boundary, 1 byte) f(commit id)), of one boundary;
//!                  HMAC-SHA256(key of calls, f(call id, UTF-8)), of one call
//! digest         = HMAC-SHA256(key for digests, or the digest key of a boundary or a call; SHA-256 as without encryption)
//! ```
//!
//! with `f` and integers as in [`crate::header`]. A payload that stands elsewhere than where it was written, in another
//! run, another column or another row, or of which anything was changed or cut, cannot be opened. A digest of what is
//! sealed needs a key too, so that nobody can try out what the payload may be. The payloads of a boundary, and a call, have a
//! digest key of their own, so that a bundle can tell it, and with it nothing of what the bundle does not hold.

mod digests;
mod spot;

use std::borrow::Cow;
use std::sync::Arc;

use dalsegno_model::{Digest, Error, Result, RunId, boundary_number};
use dalsegno_protocol::Boundary;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::{hkdf, hmac};
use uuid::Uuid;

pub use dalsegno_model::{CallDigests, DigestKey, SHREDDED};
use digests::sign;
pub use digests::{BodyDigest, CallDigestsExt, DigestKeyExt};
pub use spot::Spot;
use spot::name;

use crate::fields::Fields;

/// What a codec byte has more where the payload is sealed.
pub const SEALED: u8 = 0x10;

/// The secret of one run: 32 random bytes.
pub type DataKey = [u8; 32];

/// How the payloads of one run are kept.
#[derive(Clone, Default)]
pub struct Sealing(Kind);

#[derive(Clone, Default)]
enum Kind {
    /// There are no keys.
    #[default]
    Plain,
    /// There are keys, and nothing of this run was sealed yet.
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
}

impl Sealing {
    /// Payloads are sealed under this data key.
    pub fn under(run: RunId, data_key: &DataKey) -> Result<Self> {
        let prk = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(data_key);
        let derive = |label: &'static [u8]| {
            let mut key = [0; 32];
            let derived = prk.expand(&[label], hkdf::HKDF_SHA256).and_then(|okm| okm.fill(&mut key));
            derived.map(|()| key).map_err(|_| unfit("a key could not be derived"))
        };
        let seal = UnboundKey::new(&AES_256_GCM, &derive(b"dalsegno/seal/v1")?);
        let seal = LessSafeKey::new(seal.map_err(|_| unfit("a key could not be made"))?);
        let digest = hmac::Key::new(hmac::HMAC_SHA256, &derive(b"dalsegno/digest/v1")?);
        let boundaries = hmac::Key::new(hmac::HMAC_SHA256, &derive(b"dalsegno/boundary-digests/v1")?);
        let calls = hmac::Key::new(hmac::HMAC_SHA256, &derive(b"dalsegno/call-digests/v1")?);
        Ok(Self(Kind::Sealed(Arc::new(RunKey { run, seal, digest, boundaries, calls }))))
    }

    /// There are keys, and the run has none yet: nothing of it was sealed.
    pub fn unsealed() -> Self {
        Self(Kind::Unsealed)
    }

    /// The data key was deleted: what is sealed can be read by nobody.
    pub fn shredded() -> Self {
        Self(Kind::Shredded)
    }

    /// Whether the process has keys, whatever became of this run's.
    pub fn has_keys(&self) -> bool {
        !matches!(self.0, Kind::Plain)
    }

    /// Whether the data key was deleted.
    pub fn is_shredded(&self) -> bool {
        matches!(self.0, Kind::Shredded)
    }

    /// An encoded payload as it is kept there.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] where the run's key was deleted: nothing is written for a run that was shredded.
    pub fn seal(&self, spot: Spot<'_>, payload: Vec<u8>) -> Result<Vec<u8>> {
        let key = match &self.0 {
            Kind::Plain | Kind::Unsealed => return Ok(payload),
            Kind::Shredded => return Err(gone()),
            Kind::Sealed(key) => key,
        };
        let Some((codec, bytes)) = payload.split_first() else {
            return Err(corrupt("it has no codec byte"));
        };
        let nonce: [u8; NONCE_LEN] = random()?;
        let mut body = bytes.to_vec();
        let aad = Aad::from(spot.aad(key.run, *codec));
        let sealed = key.seal.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut body);
        sealed.map_err(|_| unfit("a payload could not be sealed"))?;
        Ok([&[*codec | SEALED], nonce.as_slice(), &body].concat())
    }

    /// The encoded payload that is kept there. One that is not sealed is as it is: it was written before the run had a key.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] where it was changed, cut, or written for another place, or the run's key was deleted;
    /// [`Error::Unfit`] where it is sealed and there are no keys.
    pub fn open<'p>(&self, spot: Spot<'_>, payload: &'p [u8]) -> Result<Cow<'p, [u8]>> {
        if !is_sealed(payload) {
            return Ok(Cow::Borrowed(payload));
        }
        let key = match &self.0 {
            Kind::Plain => {
                return Err(unfit(
                    "a payload is sealed, and there are no keys: name their folder with --encryption-keys",
                ));
            }
            Kind::Unsealed => return Err(corrupt("it is sealed, and the data key of its run is not there")),
            Kind::Shredded => return Err(corrupt(SHREDDED)),
            Kind::Sealed(key) => key,
        };
        let open = || {
            let (codec, rest) = payload.split_first()?;
            let (nonce, body) = rest.split_first_chunk::<NONCE_LEN>()?;
            let codec = codec & !SEALED;
            let mut body = body.to_vec();
            let aad = Aad::from(spot.aad(key.run, codec));
            let opened = key.seal.open_in_place(Nonce::assume_unique_for_key(*nonce), aad, &mut body).ok()?;
            Some([&[codec], &*opened].concat())
        };
        open().map(Cow::Owned).ok_or_else(|| corrupt("it is not what was sealed there"))
    }

    /// As [`Self::open`]; `None`: it was shredded.
    pub fn open_if_kept<'p>(&self, spot: Spot<'_>, payload: &'p [u8]) -> Result<Option<Cow<'p, [u8]>>> {
        if is_sealed(payload) && self.is_shredded() {
            return Ok(None);
        }
        self.open(spot, payload).map(Some)
    }

    /// The digest that stands for what has this SHA-256: of a body, a batch of records, a state or a chunk of it.
    pub fn digest(&self, plain: Digest) -> Digest {
        match &self.0 {
            Kind::Sealed(key) => sign(&key.digest, &plain),
            Kind::Plain | Kind::Unsealed | Kind::Shredded => plain,
        }
    }

    /// The digest of a body with this SHA-256.
    pub fn body(&self, plain: Digest) -> BodyDigest {
        BodyDigest { kept: self.digest(plain), plain }
    }

    /// What the digests of a boundary's payloads are made with, where these are sealed; `None`: they are plain.
    pub fn digest_key(&self, turn: i32, boundary: Boundary, commit_id: Uuid) -> Option<DigestKey> {
        let Kind::Sealed(key) = &self.0 else { return None };
        let mut place = Fields::default();
        place.field(&turn.to_be_bytes());
        place.field(&[boundary_number(boundary)]);
        place.field(commit_id.as_bytes());
        Some(DigestKey(sign(&key.boundaries, &place.0)))
    }

    /// How the digests of the call of this name are made.
    pub fn call_digests(&self, id: &str) -> CallDigests {
        match &self.0 {
            Kind::Plain | Kind::Unsealed => CallDigests::Plain,
            Kind::Shredded => CallDigests::Lost,
            Kind::Sealed(key) => {
                let mut place = Fields::default();
                place.field(name(id).as_bytes());
                CallDigests::Keyed(DigestKey(sign(&key.calls, &place.0)))
            }
        }
    }
}

impl std::fmt::Debug for Sealing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Kind::Plain => "Plain",
            Kind::Unsealed => "Unsealed",
            Kind::Sealed(_) => "Sealed",
            Kind::Shredded => "Shredded",
        })
    }
}

/// Whether a kept payload can only be read with the key of its run.
pub fn is_sealed(payload: &[u8]) -> bool {
    payload.first().is_some_and(|codec| codec & SEALED != 0)
}

/// Random bytes of the operating system.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| unfit("the operating system has no random bytes"))?;
    Ok(bytes)
}

fn corrupt(detail: &str) -> Error {
    Error::Corrupt { doing: "opening a payload", detail: detail.into() }
}

fn gone() -> Error {
    Error::Gone { doing: "sealing a payload", detail: SHREDDED.into() }
}

fn unfit(why: &str) -> Error {
    Error::Unfit(why.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;

    const RUN: RunId = RunId::from_u128(7);
    const ID: Uuid = Uuid::from_u128(9);

    fn spots() -> Vec<Spot<'static>> {
        vec![
            Spot::Ops(3, Boundary::Result, ID),
            Spot::Ops(4, Boundary::Result, ID),
            Spot::Ops(3, Boundary::Plan, ID),
            Spot::Ops(3, Boundary::Result, Uuid::from_u128(8)),
            Spot::Events(3, Boundary::Result, ID),
            Spot::Arguments("call"),
            Spot::Result("call"),
            Spot::Result("other"),
            Spot::Record("space", "key", None),
            Spot::Record("spacek", "ey", None),
            Spot::Record("space", "key", Some("entry")),
            Spot::Snapshot(&[1; 32]),
            Spot::Chunk(&[1; 32]),
            Spot::Chunk(&[2; 32]),
        ]
    }

    #[test]
    fn what_is_sealed_in_one_place_is_opened_there_and_nowhere_else() {
        let sealing = Sealing::under(RUN, &[5; 32]).unwrap();
        for (number, spot) in spots().into_iter().enumerate() {
            let payload = codec::encode(b"a payload");
            let sealed = sealing.seal(spot, payload.clone()).unwrap();
            assert!(is_sealed(&sealed) && !is_sealed(&payload));
            assert!(!sealed.windows(9).any(|bytes| bytes == b"a payload"));
            assert_eq!(sealed.len(), payload.len() + 28);
            for (other, place) in spots().into_iter().enumerate() {
                let opened = sealing.open(place, &sealed);
                assert_eq!(opened.is_ok(), number == other, "{spot:?} opened as {place:?}");
            }
            let again = sealing.seal(spot, payload).unwrap();
            assert_ne!(again, sealed, "no two nonces are the same");
        }
    }

    #[test]
    fn not_a_bit_of_a_sealed_payload_can_be_changed_and_not_a_byte_be_cut() {
        let sealing = Sealing::under(RUN, &[5; 32]).unwrap();
        let spot = Spot::Result("call");
        let sealed = sealing.seal(spot, codec::encode(b"a payload")).unwrap();
        for at in 0..sealed.len() * 8 {
            let mut bent = sealed.clone();
            bent[at / 8] ^= 1 << (at % 8);
            // Without its mark it passes as a payload that was never sealed; no digest fits it.
            if is_sealed(&bent) {
                assert!(matches!(sealing.open(spot, &bent), Err(Error::Corrupt { .. })), "bit {at}");
            }
        }
        for length in 1..sealed.len() {
            assert!(sealing.open(spot, &sealed[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn another_run_another_key_or_none_opens_nothing() {
        let spot = Spot::Arguments("call");
        let sealed = Sealing::under(RUN, &[5; 32]).unwrap().seal(spot, codec::encode(b"secret")).unwrap();
        let other_run = Sealing::under(RunId::from_u128(8), &[5; 32]).unwrap();
        let other_key = Sealing::under(RUN, &[6; 32]).unwrap();
        for other in [other_run, other_key, Sealing::shredded()] {
            assert!(matches!(other.open(spot, &sealed), Err(Error::Corrupt { .. })), "{other:?}");
        }
        assert!(matches!(Sealing::default().open(spot, &sealed), Err(Error::Unfit(_))), "no damage: no keys");
        assert!(matches!(Sealing::unsealed().open(spot, &sealed), Err(Error::Corrupt { .. })));
        assert_eq!(*Sealing::shredded().open(spot, b"\0plain").unwrap(), *b"\0plain");
    }

    #[test]
    fn a_digest_needs_the_key() {
        let sealing = Sealing::under(RUN, &[5; 32]).unwrap();
        assert_ne!(sealing.digest([1; 32]), [1; 32]);
        assert_ne!(sealing.digest([1; 32]), Sealing::under(RUN, &[6; 32]).unwrap().digest([1; 32]));
        assert_eq!(Sealing::default().digest([1; 32]), [1; 32]);
    }

    #[test]
    fn the_digest_key_of_one_boundary_is_that_of_no_other() {
        let sealing = Sealing::under(RUN, &[5; 32]).unwrap();
        let places = [
            (3, Boundary::Result, ID),
            (4, Boundary::Result, ID),
            (3, Boundary::Plan, ID),
            (3, Boundary::Result, Uuid::from_u128(8)),
        ];
        let digests: std::collections::BTreeSet<_> = places
            .iter()
            .map(|(turn, boundary, id)| sealing.digest_key(*turn, *boundary, *id).unwrap().digest([1; 32]))
            .chain([sealing.digest([1; 32]), [1; 32]])
            .collect();
        assert_eq!(digests.len(), places.len() + 2);
        assert_eq!(Sealing::unsealed().digest_key(3, Boundary::Result, ID), None);
    }

    #[test]
    fn the_digests_of_one_call_are_those_of_no_other() {
        let sealing = Sealing::under(RUN, &[5; 32]).unwrap();
        let (pay, ship, plain) = (
            sealing.call_digests("pay"),
            sealing.call_digests("ship"),
            Sealing::default().call_digests("pay"),
        );
        let digests: std::collections::BTreeSet<_> = [pay, ship, plain]
            .map(|it| it.of("text"))
            .into_iter()
            .chain([sealing.digest(plain.of("text"))])
            .collect();
        assert_eq!(digests.len(), 4);
        assert_ne!(pay.of("text"), pay.of("other"));
        assert_eq!(Sealing::shredded().call_digests("pay"), CallDigests::Lost);
    }
}
