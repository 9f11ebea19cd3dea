//! Property: a worker works while a person suspends, resumes and cancels its run and the operator ends its attempt, at
//! random moments. After the worker's acknowledgement nothing of that worker is accepted, and no committed turn is lost.

mod messages;
mod round;

use std::cell::RefCell;
use std::collections::BTreeSet;

use futures::stream::{self, StreamExt as _};
use uuid::Uuid;

use crate::context::*;
use round::Round;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_acknowledgement_nothing_is_accepted_and_no_turn_is_lost_in_sqlite() {
    play_rounds(&crate::engines::memory().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_acknowledgement_nothing_is_accepted_and_no_turn_is_lost_in_postgres() {
    play_rounds(&crate::engines::postgres().await).await;
}

/// The number of rounds in each database, each with a run of its own.
const ROUNDS: u64 = 250;

/// How many rounds are played at the same time.
const AT_ONCE: usize = 12;

/// What must happen at least once in all rounds.
const OUTCOMES: [&str; 12] = [
    "parked",
    "parked, and the run is cancelled",
    "cancelled",
    "ready",
    "not requested",
    "an open call",
    "ended by the operator",
    "lifted while the worker parked",
    "a late commit was accepted",
    "a late commit was refused",
    "a late call was accepted",
    "a late call was refused",
];

/// The outcomes seen so far.
type Seen = RefCell<BTreeSet<&'static str>>;

/// Set `DALSEGNO_SEED` to send the same requests again. Which of two requests at the same time is first may differ.
async fn play_rounds(cx: &TestContext) {
    let random = || Uuid::new_v4().as_u64_pair().0;
    let seed = std::env::var("DALSEGNO_SEED").map_or_else(|_| random(), |seed| seed.parse().unwrap());
    println!("DALSEGNO_SEED={seed}");
    let seen = Seen::default();
    let rounds = stream::iter(0..ROUNDS).map(|number| Round::play(cx, &seen, seed.wrapping_add(number)));
    rounds.buffer_unordered(AT_ONCE).collect::<()>().await;
    assert_eq!(seen.into_inner(), BTreeSet::from(OUTCOMES));
}

/// Random numbers, from a seed.
pub struct Numbers(pub u64);

impl Numbers {
    /// SplitMix64.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}
