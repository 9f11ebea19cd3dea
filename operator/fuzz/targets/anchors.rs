//! The lines of a copy of the anchors, the input of `audit verify --anchors`. A line of seven numbers, `SEQ AT RUN
//! AUDIT_SEQ TURN BOUNDARY EPOCH`, is turned into an anchor that an attacker has signed: a signer can write any
//! content.

#![no_main]

use std::sync::LazyLock;

use dalsegno_model::anchor::{AnchoredHead, HeadsToAnchor};
use dalsegno_model::{BoundaryId, Read as _};
use dalsegno_proof::{check_store, Anchor, Anchors, Signer};
use dalsegno_protocol::Boundary;
use dalsegno_store::sqlite::Sqlite;
use jiff::Timestamp;
use libfuzzer_sys::fuzz_target;
use tokio::runtime::Runtime;
use uuid::Uuid;

struct Context {
    runtime: Runtime,
    store: Sqlite,
    signer: Signer,
}

static CONTEXT: LazyLock<Context> = LazyLock::new(|| {
    let runtime = Runtime::new().unwrap();
    let store = runtime.block_on(Sqlite::memory()).unwrap();
    let signer = runtime.block_on(Signer::load(&store, None)).unwrap();
    Context { runtime, store, signer }
});

fuzz_target!(|text: &str| {
    let Context { runtime, store, signer } = &*CONTEXT;
    let mut anchors = Anchors::default();
    let mut problems = 0;
    for line in text.lines() {
        let signed = signed(line, signer).map(|anchor| anchor.line().unwrap());
        if let Some(line) = &signed {
            assert_eq!(Anchor::parse(line).unwrap().unwrap().line().unwrap(), *line);
            let collected = format!("2027-01-31T12:00:00Z stdout F {line}");
            assert_eq!(Anchor::find(&collected).unwrap().unwrap().line().unwrap(), *line);
        }
        problems += u64::from(anchors.take("a line", signed.as_deref().unwrap_or(line)).is_some());
    }
    let copied = anchors.count() as u64;
    runtime.block_on(async {
        let mut reading = store.begin_read().await.unwrap();
        let summary = check_store(&mut *reading, anchors, &mut |_| ()).await.unwrap();
        assert!(copied == 0 || summary.problems > 0, "the store has none of them");
        assert!(problems <= text.lines().count() as u64);
    });
});

/// The signed anchor of a line of numbers.
fn signed(line: &str, signer: &Signer) -> Option<Anchor> {
    let numbers: Vec<i64> = line.split(' ').map_while(|number| number.parse().ok()).collect();
    let [seq, at, run, audit_seq, turn, boundary, epoch] = *numbers.as_slice() else { return None };
    let hash = [1; 32];
    let boundary = if boundary == 1 { Boundary::Plan } else { Boundary::Result };
    let head = i32::try_from(turn).ok().map(|turn| (BoundaryId { turn, boundary, epoch }, hash));
    let anchored =
        AnchoredHead { run: Uuid::from_u64_pair(0, run as u64), audit_seq, audit_hash: hash, head };
    let moved = HeadsToAnchor { last: Some((seq.checked_sub(1)?, hash)), heads: vec![anchored] };
    let at = Timestamp::from_millisecond(at).ok()?;
    Some(Anchor::next(&moved, Uuid::nil(), at, signer))
}
