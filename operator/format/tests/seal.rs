//! Sealed payloads: which position, run and key opens them, and which digests they have.

use dalsegno_format::codec;
use dalsegno_format::seal::{
    AadContext, CallDigestsExt as _, DataKey, DigestKeyExt as _, PayloadCipher, is_sealed, is_sealed_text,
};
use dalsegno_model::{CallDigests, Error, RunId};
use dalsegno_protocol::Boundary;
use uuid::Uuid;

const RUN: RunId = RunId::from_u128(7);
const ID: Uuid = Uuid::from_u128(9);

fn key(byte: u8) -> DataKey {
    DataKey { bytes: [byte; 32], seals_texts: true }
}

fn contexts() -> Vec<AadContext<'static>> {
    vec![
        AadContext::Ops(3, Boundary::Result, ID),
        AadContext::Ops(4, Boundary::Result, ID),
        AadContext::Ops(3, Boundary::Plan, ID),
        AadContext::Ops(3, Boundary::Result, Uuid::from_u128(8)),
        AadContext::Events(3, Boundary::Result, ID),
        AadContext::Arguments("call"),
        AadContext::Result("call"),
        AadContext::Result("other"),
        AadContext::Record("space", "key", None),
        AadContext::Record("spacek", "ey", None),
        AadContext::Record("space", "key", Some("entry")),
        AadContext::Snapshot(&[1; 32]),
        AadContext::Chunk(&[1; 32]),
        AadContext::Chunk(&[2; 32]),
    ]
}

#[test]
fn a_payload_can_be_opened_only_at_the_position_it_was_sealed_for() {
    let cipher = PayloadCipher::under(RUN, &key(5)).unwrap();
    for (number, context) in contexts().into_iter().enumerate() {
        let payload = codec::encode(b"a payload");
        let sealed = cipher.seal(context, payload.clone()).unwrap();
        assert!(is_sealed(&sealed) && !is_sealed(&payload));
        assert!(!sealed.windows(9).any(|bytes| bytes == b"a payload"));
        assert_eq!(sealed.len(), payload.len() + 28);
        for (other, boundary_id) in contexts().into_iter().enumerate() {
            let opened = cipher.open(boundary_id, &sealed);
            assert_eq!(opened.is_ok(), number == other, "{context:?} opened as {boundary_id:?}");
        }
        let again = cipher.seal(context, payload).unwrap();
        assert_ne!(again, sealed, "no two nonces are the same");
    }
}

#[test]
fn any_changed_bit_or_missing_byte_is_detected() {
    let cipher = PayloadCipher::under(RUN, &key(5)).unwrap();
    let context = AadContext::Result("call");
    let sealed = cipher.seal(context, codec::encode(b"a payload")).unwrap();
    for at in 0..sealed.len() * 8 {
        let mut bent = sealed.clone();
        bent[at / 8] ^= 1 << (at % 8);
        // Without the seal bit it looks like a payload that was never sealed; its digest does not match.
        if is_sealed(&bent) {
            assert!(matches!(cipher.open(context, &bent), Err(Error::Corrupt { .. })), "bit {at}");
        }
    }
    for length in 1..sealed.len() {
        assert!(cipher.open(context, &sealed[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn a_payload_cannot_be_opened_with_another_run_another_key_or_no_key() {
    let context = AadContext::Arguments("call");
    let sealed = PayloadCipher::under(RUN, &key(5)).unwrap().seal(context, codec::encode(b"secret")).unwrap();
    let other_run = PayloadCipher::under(RunId::from_u128(8), &key(5)).unwrap();
    let other_key = PayloadCipher::under(RUN, &key(6)).unwrap();
    for other in [other_run, other_key, PayloadCipher::shredded()] {
        assert!(matches!(other.open(context, &sealed), Err(Error::Corrupt { .. })), "{other:?}");
    }
    assert!(
        matches!(PayloadCipher::default().open(context, &sealed), Err(Error::Unusable(_))),
        "no damage: no keys"
    );
    assert!(matches!(PayloadCipher::unsealed().open(context, &sealed), Err(Error::Corrupt { .. })));
    assert_eq!(*PayloadCipher::shredded().open(context, b"\0plain").unwrap(), *b"\0plain");
}

#[test]
fn a_digest_needs_the_key() {
    let cipher = PayloadCipher::under(RUN, &key(5)).unwrap();
    assert_ne!(cipher.digest([1; 32]), [1; 32]);
    assert_ne!(cipher.digest([1; 32]), PayloadCipher::under(RUN, &key(6)).unwrap().digest([1; 32]));
    assert_eq!(PayloadCipher::default().digest([1; 32]), [1; 32]);
}

#[test]
fn every_boundary_has_its_own_digest_key() {
    let cipher = PayloadCipher::under(RUN, &key(5)).unwrap();
    let places = [
        (3, Boundary::Result, ID),
        (4, Boundary::Result, ID),
        (3, Boundary::Plan, ID),
        (3, Boundary::Result, Uuid::from_u128(8)),
    ];
    let digests: std::collections::BTreeSet<_> = places
        .iter()
        .map(|(turn, boundary, id)| cipher.digest_key(*turn, *boundary, *id).unwrap().digest([1; 32]))
        .chain([cipher.digest([1; 32]), [1; 32]])
        .collect();
    assert_eq!(digests.len(), places.len() + 2);
    assert_eq!(PayloadCipher::unsealed().digest_key(3, Boundary::Result, ID), None);
}

#[test]
fn every_call_has_its_own_digests() {
    let cipher = PayloadCipher::under(RUN, &key(5)).unwrap();
    let (pay, ship, plain) = (
        cipher.call_digests("pay"),
        cipher.call_digests("ship"),
        PayloadCipher::default().call_digests("pay"),
    );
    let digests: std::collections::BTreeSet<_> = [pay, ship, plain]
        .map(|it| it.of("text"))
        .into_iter()
        .chain([cipher.digest(plain.of("text"))])
        .collect();
    assert_eq!(digests.len(), 4);
    assert_ne!(pay.of("text"), pay.of("other"));
    assert_eq!(PayloadCipher::shredded().call_digests("pay"), CallDigests::Lost);
}

#[test]
fn a_text_can_be_opened_only_at_its_position_and_is_sealed_to_the_same_bytes_again() {
    let cipher = PayloadCipher::under(RUN, &key(5)).unwrap();
    let contexts = [
        AadContext::CallKey("pay"),
        AadContext::CallKey("ship"),
        AadContext::FinishMessage,
        AadContext::FinishOutput,
        AadContext::EndMessage(1),
        AadContext::EndMessage(2),
    ];
    for (number, context) in contexts.into_iter().enumerate() {
        let sealed = cipher.seal_text(context, "a text, é").unwrap();
        assert!(is_sealed_text(&sealed) && !sealed.contains("text"));
        assert_eq!(cipher.seal_text(context, "a text, é").unwrap(), sealed, "the database compares them");
        for (other, at) in contexts.into_iter().enumerate() {
            let opened = cipher.open_text(at, &sealed).ok().flatten();
            assert_eq!(opened.as_deref(), (number == other).then_some("a text, é"), "{context:?} at {at:?}");
        }
        for other in [PayloadCipher::under(RunId::from_u128(8), &key(5)), PayloadCipher::under(RUN, &key(6))]
        {
            assert_ne!(other.as_ref().unwrap().seal_text(context, "a text, é").unwrap(), sealed);
            assert!(other.unwrap().open_text(context, &sealed).is_err());
        }
        assert!(cipher.open_text(context, &sealed[..sealed.len() - 4]).is_err());
        assert_eq!(PayloadCipher::shredded().open_text(context, &sealed).unwrap(), None);
        assert!(matches!(PayloadCipher::default().open_text(context, &sealed), Err(Error::Unusable(_))));
        assert!(matches!(PayloadCipher::unsealed().open_text(context, &sealed), Err(Error::Corrupt { .. })));
    }
    assert!(matches!(PayloadCipher::shredded().seal_text(contexts[0], "a"), Err(Error::Gone { .. })));
}

#[test]
fn a_text_is_stored_plain_without_a_key_that_seals_texts_and_never_looks_sealed() {
    let before = DataKey { seals_texts: false, ..key(5) };
    let ciphers =
        [PayloadCipher::default(), PayloadCipher::unsealed(), PayloadCipher::under(RUN, &before).unwrap()];
    let sealed =
        PayloadCipher::under(RUN, &key(5)).unwrap().seal_text(AadContext::FinishMessage, "a").unwrap();
    for cipher in ciphers {
        assert!(!cipher.seals_texts());
        for text in ["", "a text", "\u{1}1not sealed", &sealed] {
            let stored = cipher.seal_text(AadContext::FinishMessage, text).unwrap();
            assert!(!is_sealed_text(&stored), "{text:?}");
            assert_eq!(cipher.open_text(AadContext::FinishMessage, &stored).unwrap(), Some(stored.clone()));
            assert_eq!(stored == text, !text.starts_with('\u{1}'), "{text:?}");
        }
    }
}

/// A sealed text of this version stays readable, and a changed key stays noticed.
#[test]
fn the_format_of_a_sealed_text_does_not_change() {
    let cipher = PayloadCipher::under(RUN, &key(5)).unwrap();
    let golden = "\u{1}1RO0dys1XFKgMnrJJT2G2/26OSBrfQ9EgUmWhhya5e02HUR8=";
    assert_eq!(cipher.seal_text(AadContext::CallKey("pay"), "run:pay").unwrap(), golden);
    assert_eq!(cipher.open_text(AadContext::CallKey("pay"), golden).unwrap().as_deref(), Some("run:pay"));
}
