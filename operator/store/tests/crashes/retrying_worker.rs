//! A worker that commits turn after turn and retries, and the record of its acknowledged turns.

use std::time::{Duration, Instant};

use dalsegno_model::{CommitReceipt, Committed, Error, Store};

use crate::context::Worker;

/// How a worker commits.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The pause between turns.
    pub pause: Duration,
    /// How long the worker waits for an answer before it sends the same bytes again.
    pub wait: Duration,
}

impl Pace {
    /// Waits for every answer up to the deadline of the turn.
    pub fn without_timeout(pause: Duration) -> Self {
        Self { pause, wait: TURN_DEADLINE }
    }
}

/// The deadline of one turn; after it the test fails.
const TURN_DEADLINE: Duration = Duration::from_secs(60);

/// The content hash of each acknowledged turn.
pub type Acknowledged = Vec<String>;

/// Counts of unanswered calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unanswered {
    /// Calls with an error, so with an unknown outcome.
    pub errors: usize,
    /// Turns that were already committed when they were sent again: only the answer was lost.
    pub duplicates: usize,
    /// Answers that the worker did not wait for: the call may still run when it is sent again.
    pub abandoned: usize,
}

/// Commits turns `1..=last` and sends each one again, unchanged, until it is answered. Returns the acknowledged turns,
/// and the unanswered calls.
pub async fn turns(store: &dyn Store, worker: &Worker, last: i32, pace: Pace) -> (Acknowledged, Unanswered) {
    let (mut acknowledged, mut unanswered) = (Acknowledged::new(), Unanswered::default());
    for turn in 1..=last {
        let commit = worker.result(turn);
        let began = Instant::now();
        let receipt = loop {
            let answer = tokio::time::timeout(pace.wait, store.commit(&commit)).await;
            match answer {
                Ok(Ok(Committed::Ok(receipt))) => break receipt,
                Ok(Ok(Committed::Duplicate(receipt))) => {
                    unanswered.duplicates += 1;
                    break receipt;
                }
                Ok(Err(Error::Unavailable { .. })) => unanswered.errors += 1,
                Err(_) => unanswered.abandoned += 1,
                Ok(other) => panic!("unexpected answer to turn {turn}: {other:?}"),
            }
            assert!(began.elapsed() < TURN_DEADLINE, "turn {turn}: {answer:?}");
            tokio::time::sleep(Duration::from_millis(30)).await;
        };
        acknowledged.push(hash(&receipt, turn));
        tokio::time::sleep(pace.pause).await;
    }
    (acknowledged, unanswered)
}

/// The content hash that a worker got for its turn.
pub fn hash(receipt: &CommitReceipt, turn: i32) -> String {
    let head = receipt.head.as_ref().expect("a head");
    assert_eq!(head.turn, turn, "the answer is for another turn");
    head.content_hash.clone()
}

/// Asserts that the live branch has exactly the acknowledged turns, each once, with the acknowledged hash.
pub async fn assert_acknowledged(store: &dyn Store, worker: &Worker, acknowledged: &[String]) {
    let rows = store.boundaries(worker.run, 1, i32::MAX).await.unwrap();
    let stored: Vec<String> =
        rows.iter().map(|row| dalsegno_format::header::render(&row.content_hash)).collect();
    assert_eq!(stored, acknowledged, "exactly the acknowledged turns are stored");
    assert!(rows.iter().zip(1..).all(|(row, turn)| row.turn == turn), "the turns have no gap");
}
