//! How many bytes a run costs: in proportion to what its turns bring, not to how often they say it.
//!
//! Through the whole gateway, into a file; the words are pseudo-random from a fixed seed, so the figures stay as they are.

use std::path::Path;
use std::sync::Arc;

use dalsegno_store::Worker as _;
use dalsegno_store::sqlite::Sqlite;
use sqlx::{Connection, SqliteConnection};
use uuid::Uuid;

use crate::world::*;

/// Turns of the run.
const TURNS: u128 = 200;

/// Bytes that a turn adds to the state: one megabyte in all.
const TURN_BYTES: usize = (1 << 20) / TURNS as usize;

/// An agent that writes as models do: common words often, rare ones seldom.
struct Author {
    seed: u64,
}

impl Author {
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

    /// One of 4,096 words, the lower ones far more often.
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

/// Commits a transcript that grows by one message a turn, as these bodies bring it. Bytes that are kept.
async fn kept(body: impl Fn(&[String]) -> String) -> [i64; 3] {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("runs.db");
    Sqlite::migrate(&path).await.unwrap();
    let world =
        World::before(Arc::new(Sqlite::open(&path).await.unwrap()), dalsegno_gateway::Config::default())
            .await;
    world.record_pod(1, "pod-1", Some(accepted())).await;
    world.attach("pod-1", INSTANCE).await.ok();
    let mut author = Author { seed: 7 };
    let mut transcript = Vec::new();
    for turn in 1..=TURNS {
        transcript.push(author.message(turn));
        let body = format!(r#"{{"commitId":"{}",{}}}"#, Uuid::from_u128(turn), body(&transcript));
        world.post(&format!("turns/{turn}"), body).await.ok();
        if turn % 10 == 1 {
            // The gateway's own task comes to it sooner or later; here it is always on time.
            world.store.snapshot(world.run).await.unwrap();
        }
    }
    let state = world.get("state").await.text;
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
async fn two_hundred_turns_of_channel_deltas_cost_less_than_twice_the_state() {
    let sums = kept(|transcript| {
        format!(r#""channels":{{"append":{{"messages":[{{"json":{}}}]}}}}"#, transcript.last().unwrap())
    })
    .await;
    eprintln!("deltas: [boundaries, snapshots, chunks] = {sums:?}");
    assert!(sums.iter().sum::<i64>() <= 2_000_000, "{sums:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_turns_of_whole_states_cost_less_than_three_times_the_last() {
    let sums = kept(|transcript| format!(r#""state":{{"messages":[{}]}}"#, transcript.join(","))).await;
    eprintln!("whole states: [boundaries, snapshots, chunks] = {sums:?}");
    assert!(sums.iter().sum::<i64>() <= 3_000_000, "{sums:?}");
}
