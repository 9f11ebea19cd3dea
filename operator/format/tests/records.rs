//! Folding, hashing and decoding batches of records.
#![allow(clippy::unwrap_used, reason = "a helper of tests may fail the test")]

use dalsegno_format::header::sha256;
use dalsegno_format::record_pages::{PageBounds, after_prefix};
use dalsegno_format::records::{BatchEntry, Changes, link, parse_batch, payload};
use dalsegno_format::seal::{AadContext, PayloadCipher};
use dalsegno_model::RecordQuery;
use dalsegno_protocol::{Payload, RawValue, RecordOp, RecordOrder};

const CONTEXT: AadContext<'static> = AadContext::Record("s", "k", None);

fn plain() -> PayloadCipher {
    PayloadCipher::default()
}

fn json(text: &str) -> Payload {
    Payload::Json(RawValue::from_string(text.into()).unwrap())
}

/// A payload as JSON text.
fn text(payload: &Payload) -> String {
    serde_json::to_string(payload).unwrap()
}

/// A value as it is stored.
fn stored(value: Payload) -> Vec<u8> {
    let put = RecordOp::Put { space: "s".into(), key: "k".into(), value };
    Changes::of(&[put], &plain()).unwrap().changes.remove(0).value.unwrap()
}

/// `p1`: put 1 under k; `i`: putIfAbsent; `a`: append with that id; `d`: delete; `xk`: delete the prefix `k`.
fn operation(short: &str) -> RecordOp {
    let (space, key) = ("s".to_owned(), "k".to_owned());
    let value = json(if short.starts_with('x') { "0" } else { &short[1..] });
    match &short[..1] {
        "p" => RecordOp::Put { space, key, value },
        "i" => RecordOp::PutIfAbsent { space, key, value },
        "a" => RecordOp::Append { space, key, entry_id: short[1..].to_owned(), value },
        "x" => RecordOp::DeletePrefix { space, prefix: short[1..].to_owned() },
        _ => RecordOp::Delete { space, key },
    }
}

/// The operations in short form; the stored operations with their values.
type Folding = (&'static [&'static str], &'static [(&'static str, &'static str)]);

#[test]
fn a_batch_is_folded_per_key() {
    let cases: &[Folding] = &[
        (&[], &[]),
        (&["p1", "p2"], &[("put", "2")]),
        (&["a1", "p2", "a3"], &[("put", "2"), ("append", "3")]),
        (&["p1", "d1"], &[("delete", "")]),
        (&["a1", "a1", "a2"], &[("append", "1"), ("append", "2")]),
        (&["i1", "i2"], &[("putIfAbsent", "1")]),
        (&["p1", "i2"], &[("put", "1")]),
        (&["a1", "i2"], &[("append", "1")]),
        (&["d1", "i2"], &[("put", "2")]),
        (&["d1", "a1", "i2"], &[("delete", ""), ("append", "1")]),
        (&["i1", "a2", "d1", "a2"], &[("delete", ""), ("append", "2")]),
        (&["p1", "xk"], &[("deletePrefix", "")]),
        (&["p1", "xother"], &[("deletePrefix", ""), ("put", "1")]),
        (&["p1", "xk", "a2"], &[("deletePrefix", ""), ("append", "2")]),
        (&["a1", "xk", "i2", "a1"], &[("deletePrefix", ""), ("put", "2"), ("append", "1")]),
        (&["xother", "i1"], &[("deletePrefix", ""), ("putIfAbsent", "1")]),
        // One within another is done with it, in either order.
        (&["xk", "xk/1"], &[("deletePrefix", "")]),
        (&["xk/1", "xk"], &[("deletePrefix", "")]),
    ];
    for (batch, expected) in cases {
        let operations: Vec<_> = batch.iter().map(|short| operation(short)).collect();
        let folded: Vec<_> = Changes::of(&operations, &plain())
            .unwrap()
            .changes
            .into_iter()
            .map(|change| {
                (change.op, change.value.map(|value| text(&payload(&value, CONTEXT, &plain()).unwrap())))
            })
            .collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|(op, value)| (*op, (!value.is_empty()).then(|| format!("{{\"json\":{value}}}"))))
            .collect();
        assert_eq!(folded, expected, "{batch:?}");
    }
}

#[test]
fn a_batch_has_the_golden_digest_of_its_fields() {
    let framed = |fields: &[&[u8]]| {
        let mut bytes = Vec::new();
        for field in fields {
            bytes.extend((field.len() as u32).to_be_bytes());
            bytes.extend(*field);
        }
        bytes
    };
    let operations = [operation("a7"), operation("d0")];
    let value = sha256(br#"{"json":7}"#);
    let expected = framed(&[b"append", b"s", b"k", b"7", &value, b"delete", b"s", b"k", b"", b""]);
    let changes = Changes::of(&operations, &plain()).unwrap();
    assert_eq!((changes.digest, changes.batch), (Some(sha256(&expected)), expected.clone()));
    assert_eq!(Changes::of(&[], &plain()).unwrap().digest, None);
    assert_eq!(link(None, &[1; 32]), sha256(&framed(&[b"", &[1; 32]])));
    assert_eq!(link(Some([2; 32]), &[1; 32]), sha256(&framed(&[&[2; 32], &[1; 32]])));

    let change = |op: &str, entry_id: &str, value| BatchEntry {
        op: op.into(),
        space: "s".into(),
        key: "k".into(),
        entry_id: entry_id.into(),
        value,
    };
    let all = vec![change("append", "7", Some(value)), change("delete", "", None)];
    assert_eq!(parse_batch(&expected), Some(all));
    for cut in 1..expected.len() {
        assert!(parse_batch(&expected[..cut]).is_none_or(|all| all.len() == 1), "{cut}");
    }
}

#[test]
fn a_value_is_stored_as_received() {
    for value in ["12345678901234567890.10", r#"{"z":1,  "a":[ 1e400 ]}"#, r#""\ud800""#, "null"] {
        let kept = stored(json(value));
        assert!(
            matches!(payload(&kept, CONTEXT, &plain()).unwrap(), Payload::Json(back) if back.get() == value)
        );
    }
    let bytes = Payload::Bytes { media_type: "image/png".into(), base64: "iVBORw0KGgo=".into() };
    let back = payload(&stored(bytes), CONTEXT, &plain()).unwrap();
    assert!(matches!(back, Payload::Bytes { media_type, base64 }
        if (media_type.as_str(), base64.as_str()) == ("image/png", "iVBORw0KGgo=")));
}

/// What comes before it under its prefix is not written, however the spaces and keys are ordered.
#[test]
fn a_prefix_to_delete_is_of_one_space() {
    let put =
        |space: &str, key: &str| RecordOp::Put { space: space.into(), key: key.into(), value: json("1") };
    let delete = RecordOp::DeletePrefix { space: "s".into(), prefix: "a".into() };
    let operations = [put("a", "ab"), put("s", "ab"), put("s", "b"), put("t", "ab"), delete, put("s", "ac")];
    let changes = Changes::of(&operations, &plain()).unwrap().changes;
    let left: Vec<_> = changes.iter().map(|change| (change.op, &*change.space, &*change.key)).collect();
    assert_eq!(
        left,
        [
            ("deletePrefix", "s", "a"),
            ("put", "a", "ab"),
            ("put", "s", "ac"),
            ("put", "s", "b"),
            ("put", "t", "ab")
        ]
    );
}

#[test]
fn a_prefix_ends_before_the_next_text_of_its_length() {
    for (prefix, after) in
        [("a", "b"), ("thread/", "thread0"), ("\u{d7ff}", "\u{e000}"), ("a\u{10ffff}", "b")]
    {
        assert_eq!(after_prefix(prefix), after, "{prefix:?}");
    }
    let longest = "\u{10ffff}".repeat(128);
    for prefix in ["", "\u{10ffff}"] {
        assert!(after_prefix(prefix) > longest, "{prefix:?}: no key of 512 bytes is greater");
    }
}

#[test]
fn a_page_begins_after_the_one_before_and_stays_within_its_prefix() {
    let bounds = |order, after: Option<(&str, i64)>| {
        let after = after.map(|(key, seq)| (key.to_owned(), seq));
        let query = RecordQuery { prefix: "m".into(), order, after, ..RecordQuery::default() };
        let PageBounds { first, end, seq } = PageBounds::of(&query);
        (first, end, seq)
    };
    let of = |first: &str, end: &str, seq| (first.to_owned(), end.to_owned(), seq);
    for (order, after, expected) in [
        (RecordOrder::Asc, None, of("m", "n", 0)),
        (RecordOrder::Asc, Some(("mm", 3)), of("mm", "n", 3)),
        (RecordOrder::Asc, Some(("a", 3)), of("m", "n", 0)),
        (RecordOrder::Desc, None, of("m", "n", 0)),
        (RecordOrder::Desc, Some(("mm", 3)), of("m", "mm", 3)),
        (RecordOrder::Desc, Some(("z", 3)), of("m", "n", 0)),
    ] {
        assert_eq!(bounds(order, after), expected, "{order:?} {after:?}");
    }
    let PageBounds { first, end, seq } = PageBounds::of_key("k", 7);
    assert!(first == "k" && *"k" < *end && *end < *"k\u{1}" && seq == 7, "{end:?}");
}
