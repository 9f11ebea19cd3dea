//! A worker that never pauses: the operator waits for its run's row as long as those before it in the queue, and no longer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use dalsegno_model::{BoundaryId, Class, Completed, RecordBatch, Rewind, Rewound, Written};
use dalsegno_protocol::{Boundary, Payload, Policy, RecordOp};
use futures::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uuid::Uuid;

use crate::context::*;
use crate::{fresh, patient};

/// Each of a process of its own, so that nothing but the row's lock puts their calls in order.
const CONNECTIONS: usize = 16;

/// How often the operator comes with each of its calls.
const ROUNDS: usize = 10;

/// Calls of the worker that may end between the start of the operator's call and its answer: one of each connection is
/// before it in the queue, some overtake it when the row moves, and some end between its commit and its answer.
const QUEUE: u64 = 4 * CONNECTIONS as u64;

/// On a busy machine a single call may take this many times longer. A call that could only win by luck would wait for
/// thousands.
const OUTLIER: u64 = 8;

/// A busy machine does all that is waited for within this time.
const LIMIT: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_worker_that_never_pauses_does_not_keep_the_operator_from_its_run() {
    let (cx, url) = fresh().await;
    let operator = patient(&url).await;
    let processes = join_all((0..CONNECTIONS).map(|_| patient(&url))).await;
    let processes: Vec<_> = processes.into_iter().map(Arc::new).collect();
    let mut worker = cx.worker().await;
    for turn in 1..=2 {
        cx.commit_turn(&worker, turn).await;
    }
    let mut behind = Vec::new();
    for _ in 0..ROUNDS {
        for call in ["cancel", "rewind", "end"] {
            let crowd = Crowd::start(&processes, &worker).await;
            let before = crowd.done();
            let work = async {
                match call {
                    "cancel" => drop(operator.request_cancel(worker.run).await.unwrap()),
                    "rewind" => go_back(&operator, &worker).await,
                    _ => drop(operator.end_and_reserve(&worker, Class::Disruption).await),
                }
            };
            timeout(LIMIT, work).await.expect("the operator has its answer");
            behind.push((call, crowd.done() - before));
            crowd.stop().await;
            let run = cx.run_of(&worker).await;
            if call != "cancel" {
                worker = cx.start_worker(&run).await;
            }
            if call == "rewind" {
                cx.commit_turn(&worker, 2).await;
            }
        }
    }
    let late = behind.iter().filter(|(_, calls)| *calls > QUEUE).count();
    assert!(late <= behind.len() / 10, "{behind:?}");
    assert!(behind.iter().all(|(_, calls)| *calls <= OUTLIER * QUEUE), "{behind:?}");
    cx.assert_audit_is_valid(worker.run).await;
}

/// Rewinds the run to its first turn.
async fn go_back(operator: &TestContext, worker: &Worker) {
    let epoch = operator.run_of(worker).await.epoch;
    let to = BoundaryId { turn: 1, boundary: Boundary::Result, epoch: 1 };
    let rewind = Rewind { epoch, to, reason: "it went astray".into(), actor: "ada".into() };
    let rewound = operator.rewind(worker.run, &rewind).await.unwrap();
    assert!(matches!(rewound, Rewound::Done(_)), "{rewound:?}");
}

/// Processes that claim, complete and write records of one run.
struct Crowd {
    done: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Crowd {
    /// Returns once all of them are busy.
    async fn start(processes: &[Arc<TestContext>], worker: &Worker) -> Self {
        let (done, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let tasks = processes.iter().map(|process| {
            let (process, worker) = (Arc::clone(process), worker.clone());
            let (done, stop) = (Arc::clone(&done), Arc::clone(&stop));
            tokio::spawn(async move {
                while !stop.load(SeqCst) {
                    work(&process, &worker, &done).await;
                }
            })
        });
        let crowd = Self { tasks: tasks.collect(), done, stop };
        let busy = async {
            while crowd.done() < QUEUE {
                sleep_ms(5).await;
            }
        };
        timeout(LIMIT, busy).await.expect("the worker is busy");
        crowd
    }

    fn done(&self) -> u64 {
        self.done.load(SeqCst)
    }

    async fn stop(self) {
        self.stop.store(true, SeqCst);
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

/// Claims and completes one call, and writes a record. A fenced worker continues, as a hostile one does.
async fn work(cx: &TestContext, worker: &Worker, done: &AtomicU64) {
    let claim = worker.claim(&Uuid::new_v4().to_string(), Policy::ReadOnly);
    cx.claim(&claim).await.unwrap();
    done.fetch_add(1, SeqCst);
    let completed = cx.complete(&worker.complete(&claim)).await.unwrap();
    assert!(matches!(completed, Completed::Ok | Completed::Fenced), "{completed:?}");
    done.fetch_add(1, SeqCst);
    let (space, key) = ("s".into(), claim.id.clone());
    let batch = RecordBatch {
        run: worker.run,
        capability: worker.capability,
        batch_id: Uuid::new_v4(),
        digest: random_digest(),
        operations: vec![RecordOp::Put { space, key, value: Payload::Json(json("1")) }],
    };
    let written = cx.write_records(&batch).await.unwrap();
    assert!(matches!(written, Written::Ok | Written::Fenced), "{written:?}");
    done.fetch_add(1, SeqCst);
}
