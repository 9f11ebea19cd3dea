//! Records that are written during a rewind of their run. In either order, no undone record comes back.

use dalsegno_model::{
    BoundaryId, Commit, Committed, RecordBatch, RecordQuery, Rewind, Rewound, RunId, Written,
};
use dalsegno_protocol::{Boundary, Payload, RecordOp};
use futures::future::{join, join_all};
use uuid::Uuid;

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_record_written_during_a_rewind_never_comes_back,
}

/// Number of runs that are rewound at the same time, and how often each of them is: 1,000 rewinds on the four engines.
const RUNS: usize = 10;
const REWINDS: usize = 25;

async fn a_record_written_during_a_rewind_never_comes_back(cx: &TestContext) {
    let outcomes = join_all((0..RUNS).map(async |_| {
        let mut worker = cx.worker().await;
        ok(cx.commit(&with_record(&worker, 1, "kept")).await.unwrap());
        let mut written = 0;
        for number in 0..REWINDS {
            written += usize::from(write_during_rewind(cx, &worker, number).await);
            let run = cx.run_of(&worker).await;
            assert_eq!(keys(cx, run.id).await, ["kept"], "rewind {number}");
            worker = cx.start_worker(&run).await;
        }
        // The next boundary holds what was kept, and nothing of what was undone.
        ok(cx.commit(&with_record(&worker, 2, "later")).await.unwrap());
        assert_eq!(keys(cx, worker.run).await, ["kept", "later"]);
        cx.assert_audit_is_valid(worker.run).await;
        written
    }))
    .await;
    let written: usize = outcomes.iter().sum();
    assert!((1..RUNS * REWINDS).contains(&written), "{written} came before their rewind: no interleaving");
}

/// Writes a record while the run is rewound to its first turn. Returns true if the record was written before the
/// rewind; after it, the record is refused.
async fn write_during_rewind(cx: &TestContext, worker: &Worker, number: usize) -> bool {
    let key = format!("undone-{number}");
    let epoch = cx.run_of(worker).await.epoch;
    let to = BoundaryId { turn: 1, boundary: Boundary::Result, epoch: 1 };
    // A run whose head is the target is not rewound, so commit another turn first.
    cx.commit_turn(worker, 2).await;
    let rewind = Rewind { epoch, to, reason: "it went astray".into(), actor: "ada".into() };
    let rewinding = async {
        stagger(number % 3).await;
        cx.second_gateway.rewind(worker.run, &rewind).await.unwrap()
    };
    let writing = async {
        stagger(2 - number % 3).await;
        // Even numbers: the record is written alone. Odd numbers: together with a boundary.
        if number.is_multiple_of(2) {
            match cx.write_records(&batch(worker, &key)).await.unwrap() {
                Written::Ok => true,
                Written::Fenced => false,
                other => panic!("{other:?}"),
            }
        } else {
            match cx.commit(&with_record(worker, 3, &key)).await.unwrap() {
                Committed::Ok(_) => true,
                Committed::Fenced { committed: false } => false,
                other => panic!("{other:?}"),
            }
        }
    };
    let (rewound, written) = join(rewinding, writing).await;
    assert!(matches!(rewound, Rewound::Done(_)), "{rewound:?}");
    written
}

/// Lets others go first so many times.
async fn stagger(times: usize) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

fn put(key: &str) -> RecordOp {
    RecordOp::Put { space: "s".into(), key: key.into(), value: Payload::Json(json("1")) }
}

fn batch(worker: &Worker, key: &str) -> RecordBatch {
    RecordBatch {
        run: worker.run,
        capability: worker.capability,
        batch_id: Uuid::new_v4(),
        digest: random_digest(),
        operations: vec![put(key)],
    }
}

fn with_record(worker: &Worker, turn: i32, key: &str) -> Commit {
    Commit { records: vec![put(key)], ..worker.result(turn) }
}

async fn keys(cx: &TestContext, run: RunId) -> Vec<String> {
    let query = RecordQuery { space: "s".into(), limit: 100, bytes: 1 << 20, ..RecordQuery::default() };
    let page = cx.read_records(run, &query).await.unwrap();
    page.records.into_iter().map(|record| record.key).collect()
}
