//! Decompression bombs: small stored bytes that would decode to a large value are refused with little memory and CPU time.
#![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

#[path = "support/child_process.rs"]
mod child_process;
#[allow(dead_code)]
#[path = "conformance/context.rs"]
mod context;

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use child_process::within;
use context::{TestContext, json};
use dalsegno_format::codec::{LIMIT, decode, decode_after, decode_events, encode};
use dalsegno_format::manifest::Manifest;
use dalsegno_model::{Claim, Claimed, Commit, Committed};
use dalsegno_proof::verify::{Checkpoint, checkpoint};
use dalsegno_protocol::Policy;
use dalsegno_store::sqlite::Sqlite;
use sha2::{Digest as _, Sha256};

/// The limits of the whole process.
const MEMORY: u64 = 64 << 20;
const TIME: Duration = Duration::from_secs(1);

/// A zstd frame that decodes to 1 GiB from 32 KiB: this header, then blocks that repeat one byte 128 Ki times.
fn gibibyte(codec: u8, header: &[u8]) -> Vec<u8> {
    let mut frame = [&[codec, 0x28, 0xb5, 0x2f, 0xfd], header].concat();
    for block in 0..8_192_u32 {
        let head = u32::from(block == 8_191) | 1 << 1 | (128 << 10) << 3;
        frame.extend(&head.to_le_bytes()[..3]);
        frame.push(b'{');
    }
    frame
}

/// Headers of such a frame, and the reason of the refusal: one with the true length, one without a length and with a
/// window of 32 MiB, and one that claims the longest allowed length.
const HEADERS: [(&[u8], &str); 3] = [
    (&[0xa0, 0, 0, 0, 0x40], "larger than 33554432 bytes"),
    (&[0, 15 << 3], "does not say how long it is"),
    (&[0xa0, 0, 0, 0, 0x02], "zstd"),
];

#[test]
fn a_payload_that_decodes_to_a_gibibyte_is_refused_within_64_mib() {
    within(MEMORY, TIME, "a_payload_that_decodes_to_a_gibibyte_is_refused_within_64_mib", || {
        for (header, why) in HEADERS {
            let refused = decode(&gibibyte(1, header), LIMIT).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
    });
}

#[test]
fn a_patch_that_decodes_to_a_gibibyte_is_refused_within_64_mib() {
    within(MEMORY, TIME, "a_patch_that_decodes_to_a_gibibyte_is_refused_within_64_mib", || {
        for (header, why) in HEADERS {
            let refused = decode_after(b"{}", &gibibyte(2, header), LIMIT).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
    });
}

/// This many thousands of stored one-byte events. They are never in memory at the same time.
fn thousands_of_events(count: usize) -> Vec<u8> {
    let events = b"\0\0\0\x011".repeat(1_000);
    let mut frame = zstd::stream::write::Encoder::new(vec![1], 1).unwrap();
    frame.set_pledged_src_size(Some((count * events.len()) as u64)).unwrap();
    for _ in 0..count {
        frame.write_all(&events).unwrap();
    }
    frame.finish().unwrap()
}

#[test]
fn seven_million_events_in_three_kilobytes_are_refused_within_64_mib() {
    within(MEMORY, TIME, "seven_million_events_in_three_kilobytes_are_refused_within_64_mib", || {
        let payload = thousands_of_events(LIMIT / 5_000);
        assert!(payload.len() < 4_096, "{} bytes", payload.len());
        let refused = decode_events(Some(&payload), LIMIT).unwrap_err().to_string();
        assert!(refused.contains("more than 1000 events"), "{refused}");
    });
}

#[test]
fn a_snapshot_that_repeats_one_chunk_to_two_gibibytes_is_refused_within_64_mib() {
    within(
        MEMORY,
        TIME,
        "a_snapshot_that_repeats_one_chunk_to_two_gibibytes_is_refused_within_64_mib",
        || {
            let chunk = vec![b'x'; 64 << 10];
            let hash: [u8; 32] = Sha256::digest(&chunk).into();
            let (length, chunks) = (2_u64 << 30, vec![hash; 32_768]);
            let document = Manifest { length, digest: [0; 32], chunks }.document();
            assert!(document.len() <= (1 << 20) + 64, "{} bytes", document.len());
            let kept = encode(&chunk);
            let manifest = Manifest::parse(&document).unwrap();
            let refused = manifest.assemble(&|digest| digest, |_| Some(kept.as_slice())).unwrap_err();
            assert!(refused.to_string().contains("longer than a state may be"), "{refused}");
        },
    );
}

/// A store in a new folder.
async fn store() -> (tempfile::TempDir, TestContext) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("runs.db");
    Sqlite::migrate(&file).await.unwrap();
    let cx = TestContext::new(Arc::new(Sqlite::open(&file).await.unwrap()), ());
    (folder, cx)
}

#[test]
fn a_walk_over_large_compressible_states_stays_within_64_mib() {
    const STATES: i32 = 24;
    let work = async {
        let (_folder, cx) = store().await;
        let worker = cx.worker().await;
        let letters = "x".repeat(4 << 20);
        for turn in 1..=STATES {
            let ops = Some(format!(r#"{{"set":{{"page":{{"json":"{turn}{letters}"}}}}}}"#).into_bytes());
            let commit = Commit { ops, full: false, ..worker.result(turn) };
            assert!(matches!(cx.commit(&commit).await.unwrap(), Committed::Ok(_)));
        }
        assert!(cx.state(worker.run, None).await.unwrap().is_some());
    };
    let test = "a_walk_over_large_compressible_states_stays_within_64_mib";
    within(MEMORY, 20 * TIME, test, || tokio::runtime::Runtime::new().unwrap().block_on(work));
}

#[test]
fn a_state_is_freed_before_the_open_calls_are_read() {
    const MIB: usize = 1 << 20;
    let work = async {
        let (_folder, cx) = store().await;
        let worker = cx.worker().await;
        let page = format!("\"{}\"", "x".repeat(4 * MIB));
        for turn in 1..=6 {
            let ops = Some(format!(r#"{{"set":{{"page{turn}":{{"json":{page}}}}}}}"#).into_bytes());
            let commit = Commit { ops, full: false, ..worker.result(turn) };
            assert!(matches!(cx.commit(&commit).await.unwrap(), Committed::Ok(_)));
        }
        for call in 1..=14 {
            let claim = Claim {
                approval: None,
                arguments: Some(json(&page)),
                ..worker.claim(&format!("call-{call}"), Policy::Probe)
            };
            assert!(matches!(cx.claim(&claim).await.unwrap(), Claimed::Go(_)));
        }
        let run = cx.run_of(&worker).await;
        assert_eq!(checkpoint(&*cx.store, &run).await.unwrap(), Checkpoint::Valid);
    };
    let test = "a_state_is_freed_before_the_open_calls_are_read";
    within(100 << 20, 20 * TIME, test, || tokio::runtime::Runtime::new().unwrap().block_on(work));
}
