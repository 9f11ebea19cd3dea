//! Bodies that are made to take more memory than they have bytes, or more than anybody has: refused, within 64 MiB and one
//! second of a processor for the whole process.

use std::sync::atomic::Ordering;
use std::time::Duration;

use dalsegno_gateway::Config;
use dalsegno_protocol::Limits;

use crate::alone::within;
use crate::bodies::endless;
use crate::world::*;

const ID: &str = r#""commitId":"00000000-0000-0000-0000-000000000001""#;

/// Runs a case in a process of its own, and its gateway with it.
fn at_little_cost(test: &str, case: impl Future<Output = ()>) {
    let work = || tokio::runtime::Runtime::new().unwrap().block_on(case);
    within(64 << 20, Duration::from_secs(1), &format!("bombs::{test}"), work);
}

#[test]
fn a_body_of_a_gibibyte_is_given_up_long_before_its_end_and_never_held() {
    at_little_cost("a_body_of_a_gibibyte_is_given_up_long_before_its_end_and_never_held", flood());
}

async fn flood() {
    let world = World::attached().await.with(Config { max_request_bytes: Limits::BODY_BYTES, ..quick() });
    let (body, read) = endless(1 << 30);
    let answer = world.post("turns/1", body).await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "TOO_LARGE"));
    assert!(answer.detail().contains("16777216"), "{}", answer.detail());
    assert!(read.load(Ordering::SeqCst) <= 6 * Limits::BODY_BYTES);
}

#[test]
fn an_encoded_body_is_refused_before_a_byte_of_it_is_read() {
    at_little_cost("an_encoded_body_is_refused_before_a_byte_of_it_is_read", encoded());
}

async fn encoded() {
    let world = World::attached().await;
    for encoding in ["gzip", "deflate", "br", "zstd", "gzip, identity"] {
        let (bomb, read) = endless(1 << 30);
        let request = world
            .request("POST", "turns/1")
            .header("authorization", format!("Bearer {INSTANCE}"))
            .header("content-encoding", encoding);
        let answer = world.send(request, bomb).await;
        assert!(answer.code() == "INVALID" && answer.detail().contains("Content-Encoding"), "{encoding}");
        assert_eq!(read.load(Ordering::SeqCst), 0, "{encoding}");
    }
    // The same bytes without the header are no JSON; nothing here unpacks them.
    let frame = zstd_of_a_gibibyte();
    assert!(frame.len() < 1 << 20);
    assert_eq!(world.post("turns/1", frame).await.code(), "INVALID");
}

#[test]
fn a_nesting_of_a_million_levels_is_refused_at_once() {
    at_little_cost("a_nesting_of_a_million_levels_is_refused_at_once", nested());
}

async fn nested() {
    let world = World::attached().await;
    let deep = "[".repeat(1_000_000);
    let bodies =
        [deep.clone(), commit(1, &deep), format!("{{{ID},\"channels\":{}", r#"{"a":"#.repeat(1_000_000))];
    for body in bodies {
        assert_eq!(world.post("turns/1", body).await.code(), "INVALID");
    }
}

#[test]
fn a_list_of_millions_is_given_up_at_its_limit() {
    let events = wide(8 << 20, r#""events":["#, "1,");
    at_little_cost("a_list_of_millions_is_given_up_at_its_limit", events);
}

#[test]
fn items_of_a_channel_by_the_million_are_given_up_at_their_limit() {
    let items = wide(8 << 20, r#""channels":{"append":{"l":["#, r#"{"json":1},"#);
    at_little_cost("items_of_a_channel_by_the_million_are_given_up_at_their_limit", items);
}

/// What holds a number of JSON5 is looked through before it is parsed.
#[test]
fn operations_by_the_million_that_hold_a_number_of_json5_are_given_up_at_their_limit() {
    let records = wide(4 << 20, r#""state":NaN,"records":["#, r#"{"":{}},"#);
    at_little_cost(
        "operations_by_the_million_that_hold_a_number_of_json5_are_given_up_at_their_limit",
        records,
    );
}

/// A boundary of so many bytes, which begins so and repeats this.
async fn wide(bytes: usize, begins: &str, item: &str) {
    let world = World::attached().await.with(Config::default());
    let begins = format!("{{{ID},{begins}");
    let mut body = item.repeat(bytes / item.len());
    body.insert_str(0, &begins);
    let answer = world.post("turns/1", body).await;
    assert_eq!((answer.status, answer.code().as_str()), (400, "INVALID"));
}

/// One zstd frame: a header that promises a gibibyte, then blocks that repeat one byte 128 KiB times.
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
