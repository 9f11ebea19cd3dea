//! Sealed payloads: which position, run and key opens them, and which digests they have.

use dalsegno_format::codec;
use dalsegno_format::seal::{AadContext, CallDigestsExt as _, DigestKeyExt as _, PayloadCipher, is_sealed};
use dalsegno_model::{CallDigests, Error, RunId};
use dalsegno_protocol::Boundary;
use uuid::Uuid;

const RUN: RunId = RunId::from_u128(7);
const ID: Uuid = Uuid::from_u128(9);

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
    let cipher = PayloadCipher::under(RUN, &[5; 32]).unwrap();
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
    let cipher = PayloadCipher::under(RUN, &[5; 32]).unwrap();
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
    let sealed =
        PayloadCipher::under(RUN, &[5; 32]).unwrap().seal(context, codec::encode(b"secret")).unwrap();
    let other_run = PayloadCipher::under(RunId::from_u128(8), &[5; 32]).unwrap();
    let other_key = PayloadCipher::under(RUN, &[6; 32]).unwrap();
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
    let cipher = PayloadCipher::under(RUN, &[5; 32]).unwrap();
    assert_ne!(cipher.digest([1; 32]), [1; 32]);
    assert_ne!(cipher.digest([1; 32]), PayloadCipher::under(RUN, &[6; 32]).unwrap().digest([1; 32]));
    assert_eq!(PayloadCipher::default().digest([1; 32]), [1; 32]);
}

#[test]
fn every_boundary_has_its_own_digest_key() {
    let cipher = PayloadCipher::under(RUN, &[5; 32]).unwrap();
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
    let cipher = PayloadCipher::under(RUN, &[5; 32]).unwrap();
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
