//! The bytes that a run takes in the store grow with what its turns change, not with the size of each commit.
//!
//! The whole gateway writes into a file. The text is pseudo-random from a fixed seed, so the figures do not vary.

use std::path::Path;
use std::sync::Arc;

use dalsegno_model::Worker as _;
use dalsegno_store::sqlite::Sqlite;
use sqlx::{Connection, SqliteConnection};
use uuid::Uuid;

use crate::context::*;

/// Number of turns.
const TURNS: u128 = 200;

/// Bytes that each turn adds to the state: 1 MiB in all.
const TURN_BYTES: usize = (1 << 20) / TURNS as usize;

/// Generates text with the word frequencies of a model's output: some words often, most rarely.
struct TextGenerator {
    seed: u64,
}

impl TextGenerator {
    /// One message of a transcript.
    fn message(&mut self, turn: u128) -> String {
        let mut text = String::new();
        while text.len() < TURN_BYTES - 120 {
            text.push_str(&self.word());
            text.push(' ');
        }
        let role = if turn.is_multiple_of(2) { "assistant" } else { "tool" };
        format!(r#"{{"id":"msg_{:016x}","role":"{role}","content":"{}"}}"#, self.next(), text.trim_end())
    }

    /// One of 4,096 words; words of low rank are far more frequent.
    fn word(&mut self) -> String {
        let rank = (self.next() % 4_096) * (self.next() % 4_096) / 4_096;
        let mut letters = rank.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let length = 2 + letters % 8;
        (0..length)
            .map(|_| {
                letters = letters.rotate_left(7).wrapping_mul(31);
                char::from(b'a' + (letters % 26) as u8)
            })
            .collect()
    }

    fn next(&mut self) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.seed >> 33
    }
}

/// Commits a transcript that grows by one message per turn, with the fields that `body` makes of it. Returns the bytes
/// stored in boundaries, snapshots and chunks.
async fn bytes_stored(body: impl Fn(&[String]) -> String) -> [i64; 3] {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("runs.db");
    Sqlite::migrate(&path).await.unwrap();
    let ctx = TestContext::with_store(
        Arc::new(Sqlite::open(&path).await.unwrap()),
        dalsegno_gateway::Config::default(),
    )
    .await;
    ctx.record_pod(1, "pod-1", Some(accepted())).await;
    ctx.attach("pod-1", INSTANCE).await.ok();
    let mut generator = TextGenerator { seed: 7 };
    let mut transcript = Vec::new();
    for turn in 1..=TURNS {
        transcript.push(generator.message(turn));
        let body = format!(r#"{{"commitId":"{}",{}}}"#, Uuid::from_u128(turn), body(&transcript));
        ctx.post(&format!("turns/{turn}"), body).await.ok();
        if turn % 10 == 1 {
            // The gateway's task makes snapshots at varying times. This one makes the figures repeatable.
            ctx.store.snapshot(ctx.run).await.unwrap();
        }
    }
    let state = ctx.get("state").await.text;
    assert!(state.len() > 1_000_000 && state.contains(transcript[0].as_str()), "{} bytes", state.len());
    bytes(&path).await
}

async fn bytes(path: &Path) -> [i64; 3] {
    let mut conn = SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap();
    let mut sums = [0; 3];
    for (sum, query) in sums.iter_mut().zip([
        "SELECT sum(length(ops)) FROM boundaries",
        "SELECT sum(length(document)) FROM snapshots",
        "SELECT sum(length(payload)) FROM chunks",
    ]) {
        *sum = sqlx::query_scalar(query).fetch_one(&mut conn).await.unwrap();
    }
    sums
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_turns_of_channel_deltas_take_less_than_twice_the_state() {
    let sums = bytes_stored(|transcript| {
        format!(r#""channels":{{"append":{{"messages":[{{"json":{}}}]}}}}"#, transcript.last().unwrap())
    })
    .await;
    eprintln!("deltas: [boundaries, snapshots, chunks] = {sums:?}");
    assert!(sums.iter().sum::<i64>() <= 2_000_000, "{sums:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_turns_of_full_states_take_less_than_three_times_the_last_one() {
    let sums =
        bytes_stored(|transcript| format!(r#""state":{{"messages":[{}]}}"#, transcript.join(","))).await;
    eprintln!("full states: [boundaries, snapshots, chunks] = {sums:?}");
    assert!(sums.iter().sum::<i64>() <= 3_000_000, "{sums:?}");
}
