//! The lines of a copy of the anchors, the input of `audit verify --anchors`. A line of seven numbers, `SEQ AT RUN
//! AUDIT_SEQ TURN BOUNDARY EPOCH`, is turned into an anchor that an attacker has signed: a signer can write any
//! content.

#![no_main]

use std::sync::LazyLock;

use dalsegno_model::anchor::{AnchorRow, AnchoredHead, HeadsToAnchor};
use dalsegno_model::{BoundaryId, Read as _};
use dalsegno_proof::{check_store, Anchor, AnchorLine, Anchors, Signer};
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
    /// Anchor 1, which names no run.
    first: AnchorRow,
}

static CONTEXT: LazyLock<Context> = LazyLock::new(|| {
    let runtime = Runtime::new().unwrap();
    let store = runtime.block_on(Sqlite::memory()).unwrap();
    let signer = runtime.block_on(Signer::load(&store, None)).unwrap();
    let none = HeadsToAnchor::new(None, 1, Uuid::nil(), Vec::new());
    let first = Anchor::next(&none, Uuid::nil(), Timestamp::UNIX_EPOCH, &signer).unwrap();
    Context { runtime, store, first: first.stored().row.clone(), signer }
});

fuzz_target!(|text: &str| {
    let context = &*CONTEXT;
    let mut anchors = Anchors::default();
    let mut problems = 0;
    for line in text.lines() {
        let signed = signed(line, context).map(|anchor| {
            let line = anchor.line().text().unwrap();
            assert!(line.len() <= AnchorLine::MAX_BYTES, "{line}");
            assert!(anchor.line().proves(&anchor.stored().row));
            assert!(anchor.line().is_signed_by(&context.signer.public_key()));
            assert_eq!(AnchorLine::parse(&line).unwrap().unwrap(), *anchor.line());
            let collected = format!("2027-01-31T12:00:00Z stdout F {line}");
            assert_eq!(AnchorLine::find(&collected).unwrap().unwrap(), *anchor.line());
            line
        });
        problems += u64::from(anchors.take("a line", signed.as_deref().unwrap_or(line)).is_some());
    }
    let copied = anchors.count() as u64;
    let announced = anchors.announced();
    context.runtime.block_on(async {
        let mut reading = context.store.begin_read().await.unwrap();
        let summary = check_store(&mut *reading, anchors, &mut |_| ()).await.unwrap();
        // The store has none of them. Only those that the copy says were to go may be missing.
        assert!(copied == 0 || summary.problems > 0 || announced > 1);
        assert_eq!(summary.proven, 0);
        assert!(problems <= text.lines().count() as u64);
    });
});

/// The signed anchor of a line of numbers.
fn signed(line: &str, context: &Context) -> Option<Anchor> {
    let numbers: Vec<i64> = line.split(' ').map_while(|number| number.parse().ok()).collect();
    let [seq, at, run, audit_seq, turn, boundary, epoch] = *numbers.as_slice() else { return None };
    let hash = [1; 32];
    let boundary = if boundary == 1 { Boundary::Plan } else { Boundary::Result };
    let head = i32::try_from(turn).ok().map(|turn| (BoundaryId { turn, boundary, epoch }, hash));
    let anchored =
        AnchoredHead { run: Uuid::from_u64_pair(0, run as u64), audit_seq, audit_hash: hash, head };
    let before = format!("\"seq\":{},", seq.checked_sub(1)?);
    let last = AnchorRow { line: context.first.line.replace("\"seq\":1,", &before), ..context.first.clone() };
    let moved = HeadsToAnchor::new(Some(last), 1, Uuid::nil(), vec![anchored]);
    let at = Timestamp::from_millisecond(at).ok()?;
    Anchor::next(&moved, Uuid::nil(), at, &context.signer).ok()
}
