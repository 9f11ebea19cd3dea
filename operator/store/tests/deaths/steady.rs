//! A worker that commits turn after turn, whatever happens to the store, and what it was told.

use std::time::{Duration, Instant};

use dalsegno_store::{Committed, Error, Standing, Store};

use crate::world::Worker;

/// How a worker commits.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Between turns.
    pub pause: Duration,
    /// How long it waits for an answer before it gives up and sends the same again.
    pub wait: Duration,
}

impl Pace {
    /// Gives up nothing.
    pub fn patient(pause: Duration) -> Self {
        Self { pause, wait: PATIENCE }
    }
}

/// How long a turn is tried before the test has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a worker was told of a turn: its content hash.
pub type Told = Vec<String>;

/// How often a worker was not answered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lost {
    /// Calls whose outcome it could not know.
    pub answers: usize,
    /// Turns that stood already when they were sent again: it was the answer alone that was lost.
    pub alone: usize,
    /// Answers that it did not wait for: the call may still be under way when it is sent again.
    pub given_up: usize,
}

/// Commits turns `1..=last`, each sent again unchanged until it is answered. Answers what each came to, and what was lost.
pub async fn turns(store: &dyn Store, worker: &Worker, last: i32, pace: Pace) -> (Told, Lost) {
    let (mut told, mut lost) = (Told::new(), Lost::default());
    for turn in 1..=last {
        let commit = worker.result(turn);
        let began = Instant::now();
        let standing = loop {
            let said = tokio::time::timeout(pace.wait, store.commit(&commit)).await;
            match said {
                Ok(Ok(Committed::Ok(standing))) => break standing,
                Ok(Ok(Committed::Duplicate(standing))) => {
                    lost.alone += 1;
                    break standing;
                }
                Ok(Err(Error::Unavailable { .. })) => lost.answers += 1,
                Err(_) => lost.given_up += 1,
                Ok(other) => panic!("turn {turn} came to {other:?}"),
            }
            assert!(began.elapsed() < PATIENCE, "turn {turn}: {said:?}");
            tokio::time::sleep(Duration::from_millis(30)).await;
        };
        told.push(hash(&standing, turn));
        tokio::time::sleep(pace.pause).await;
    }
    (told, lost)
}

/// The content hash that a worker was told of its turn.
pub fn hash(standing: &Standing, turn: i32) -> String {
    let head = standing.head.as_ref().expect("a head");
    assert_eq!(head.turn, turn, "the answer to a turn tells of another one");
    head.content_hash.clone()
}

/// Judges a run: these turns and no others are on its live branch, each once, as its worker was told.
pub async fn expect_as_told(store: &dyn Store, worker: &Worker, told: &[String]) {
    let rows = store.boundaries(worker.run, 1, i32::MAX).await.unwrap();
    let there: Vec<String> =
        rows.iter().map(|row| dalsegno_store::header::render(&row.content_hash)).collect();
    assert_eq!(there, told, "what is there is what was acknowledged");
    assert!(rows.iter().zip(1..).all(|(row, turn)| row.turn == turn), "the turns have no gap");
}
