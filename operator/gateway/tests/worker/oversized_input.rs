//! Bodies that are made to take much memory or time. They are refused, and the whole process takes at most 64 MiB and
//! one second of CPU time.

use std::sync::atomic::Ordering;
use std::time::Duration;

use dalsegno_gateway::Config;
use dalsegno_protocol::Limits;

use crate::alone::within;
use crate::bodies::large_body;
use crate::context::*;

const ID: &str = r#""commitId":"00000000-0000-0000-0000-000000000001""#;

/// Runs a case with its gateway in a process of its own and limits what it may use.
fn with_bounded_cost(test: &str, case: impl Future<Output = ()>) {
    let work = || tokio::runtime::Runtime::new().unwrap().block_on(case);
    within(64 << 20, Duration::from_secs(1), &format!("oversized_input::{test}"), work);
}

#[test]
fn reading_a_body_of_one_gibibyte_stops_early_and_the_body_is_not_kept() {
    with_bounded_cost("reading_a_body_of_one_gibibyte_stops_early_and_the_body_is_not_kept", send_gibibyte());
}

async fn send_gibibyte() {
    let ctx = TestContext::attached()
        .await
        .with_config(Config { max_request_bytes: Limits::BODY_BYTES, ..test_config() });
    let (body, read) = large_body(1 << 30);
    let answer = ctx.post("turns/1", body).await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "TOO_LARGE"));
    assert!(answer.detail().contains("16777216"), "{}", answer.detail());
    assert!(read.load(Ordering::SeqCst) <= 6 * Limits::BODY_BYTES);
}

#[test]
fn a_compressed_body_is_refused_before_it_is_read() {
    with_bounded_cost("a_compressed_body_is_refused_before_it_is_read", send_compressed());
}

async fn send_compressed() {
    let ctx = TestContext::attached().await;
    for encoding in ["gzip", "deflate", "br", "zstd", "gzip, identity"] {
        let (body, read) = large_body(1 << 30);
        let request = ctx
            .request("POST", "turns/1")
            .header("authorization", format!("Bearer {INSTANCE}"))
            .header("content-encoding", encoding);
        let answer = ctx.send(request, body).await;
        assert!(answer.code() == "INVALID" && answer.detail().contains("Content-Encoding"), "{encoding}");
        assert_eq!(read.load(Ordering::SeqCst), 0, "{encoding}");
    }
    // Without the header the same bytes are not JSON: the gateway never decompresses.
    let frame = zstd_of_a_gibibyte();
    assert!(frame.len() < 1 << 20);
    assert_eq!(ctx.post("turns/1", frame).await.code(), "INVALID");
}

#[test]
fn a_nesting_of_a_million_levels_is_refused() {
    with_bounded_cost("a_nesting_of_a_million_levels_is_refused", send_nested());
}

async fn send_nested() {
    let ctx = TestContext::attached().await;
    let deep = "[".repeat(1_000_000);
    let bodies =
        [deep.clone(), commit(1, &deep), format!("{{{ID},\"channels\":{}", r#"{"a":"#.repeat(1_000_000))];
    for body in bodies {
        assert_eq!(ctx.post("turns/1", body).await.code(), "INVALID");
    }
}

#[test]
fn parsing_a_list_of_millions_stops_at_its_limit() {
    let events = send_repeated(8 << 20, r#""events":["#, "1,");
    with_bounded_cost("parsing_a_list_of_millions_stops_at_its_limit", events);
}

#[test]
fn parsing_millions_of_channel_items_stops_at_the_limit() {
    let items = send_repeated(8 << 20, r#""channels":{"append":{"l":["#, r#"{"json":1},"#);
    with_bounded_cost("parsing_millions_of_channel_items_stops_at_the_limit", items);
}

/// A body with a non-finite number is scanned before it is parsed.
#[test]
fn parsing_millions_of_record_operations_with_non_finite_numbers_stops_at_the_limit() {
    let records = send_repeated(4 << 20, r#""state":NaN,"records":["#, r#"{"":{}},"#);
    with_bounded_cost(
        "parsing_millions_of_record_operations_with_non_finite_numbers_stops_at_the_limit",
        records,
    );
}

/// Sends a boundary of this many bytes: `prefix`, then `item` repeated.
async fn send_repeated(bytes: usize, prefix: &str, item: &str) {
    let ctx = TestContext::attached().await.with_config(Config::default());
    let prefix = format!("{{{ID},{prefix}");
    let mut body = item.repeat(bytes / item.len());
    body.insert_str(0, &prefix);
    let answer = ctx.post("turns/1", body).await;
    assert_eq!((answer.status, answer.code().as_str()), (400, "INVALID"));
}

/// One zstd frame: a header that announces one gibibyte, then blocks that each repeat one byte 128 Ki times.
fn zstd_of_a_gibibyte() -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
    frame.extend((1_u32 << 30).to_le_bytes());
    for block in 0..8_192_u32 {
        let head = u32::from(block == 8_191) | 1 << 1 | (128 << 10) << 3;
        frame.extend(&head.to_le_bytes()[..3]);
        frame.push(b'{');
    }
    frame
}
