//! The cost of many turns: boundaries at which a snapshot is due compared with others, a resume late in a run compared
//! with an early one, many workers compared with one, and the bytes stored of a growing state.
//!
//! Only ratios of measurements that alternate in the same run are reported. The CPU time includes the clients, which
//! run in this process, and excludes PostgreSQL.

#![allow(clippy::unwrap_used, reason = "a bench may fail")]

#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../boundary/context.rs"]
mod context;
#[path = "../figures.rs"]
mod figures;
#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../floor.rs"]
mod floor;
#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../boundary/langgraph.rs"]
mod langgraph;
#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../boundary/payload.rs"]
mod payload;
#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../boundary/worker.rs"]
mod worker;

#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../../../store/tests/support/pg.rs"]
mod pg;

mod growth;
mod throughput;

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use context::BenchContext;
use figures::{Samples, about, print_table, times};
use worker::Worker;

/// Bytes of the state of the resumed runs.
const STATE: usize = 64 << 10;
/// Turns of the short run and the long run.
const SHORT: usize = 10;
const LONG: usize = 1_000;
/// Turns of the run in which snapshots fall due.
const MANY: usize = 3_000;
/// Measured resumes of each run.
const RESUMES: usize = 300;
/// A requested snapshot is made within this time.
const TIME_FOR_A_SNAPSHOT: Duration = Duration::from_millis(500);

fn main() {
    context::log_as_installed();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = pg::Server::start(&[]);
    let contexts = [BenchContext::sqlite(&runtime), BenchContext::postgres(&runtime, &server)];

    let (mut due, mut resumed) = (Vec::new(), Vec::new());
    for ctx in &contexts {
        let mut many = ctx.worker("many");
        let took = commits(&mut many, 0..MANY);
        due.push(snapshots(ctx, &many, &took));
        let mut short = ctx.worker("short");
        let mut long = ctx.worker("long");
        commits(&mut short, 0..SHORT);
        commits(&mut long, 0..LONG);
        commit_until_snapshot(ctx, &mut short, SHORT);
        commit_until_snapshot(ctx, &mut long, LONG);
        resumed.push(resumes(ctx, &mut short, &mut long));
    }
    print_table(
        "Boundaries of 64 KiB at which a snapshot is due, and the one after each, against all others, p50 / p95",
        ["store", "boundaries", "with a snapshot", "others p50", "due ÷ others", "after ÷ others"],
        &due,
    );
    print_table(
        "Attach with a state of 64 KiB, a snapshot at its head, at turn 1,000 against turn 10",
        ["store", "turn 10 p50", "p50 ÷ p50", "p95 ÷ p95", "turn 1,000 ÷ LangGraph p50"],
        &resumed,
    );
    let rows: Vec<_> = contexts.iter().map(throughput::of).collect();
    print_table(
        "32 workers at once against one, boundaries of 4 KiB",
        [
            "store",
            "turns/s of one",
            "of 32",
            "32 ÷ 1",
            "bare inserts, 32 ÷ 1",
            "CPU per turn of one",
            "of 32",
        ],
        &rows,
    );
    let rows: Vec<_> = contexts
        .iter()
        .flat_map(|ctx| {
            let ours = growth::KINDS.map(|kind| growth::of(ctx, kind));
            ours.into_iter().chain(growth::of_langgraph(ctx))
        })
        .collect();
    print_table(
        "200 turns that grow a state to 1 MiB: bytes stored",
        ["store", "the worker sends", "sent", "boundaries", "snapshots", "chunks", "all ÷ the last state"],
        &rows,
    );
}

/// Commits turns with states that differ; returns the time that each took.
fn commits(worker: &mut Worker, rounds: Range<usize>) -> Vec<Duration> {
    let commit = |round| {
        let body = payload::commit(round, &payload::state(STATE, round));
        let began = Instant::now();
        assert_eq!(worker.commit(&body).result(), "ok");
        began.elapsed()
    };
    rounds.map(commit).collect()
}

/// Commits until the head has a snapshot, so that both compared runs resume from a snapshot.
fn commit_until_snapshot(ctx: &BenchContext<'_>, worker: &mut Worker, mut turn: usize) {
    loop {
        thread::sleep(TIME_FOR_A_SNAPSHOT);
        if ctx.turns_with_snapshot(worker).last() == Some(&(turn as i64)) {
            return;
        }
        commits(worker, turn..turn + 1);
        turn += 1;
    }
}

/// The boundary at which a snapshot is due is answered without waiting for the snapshot; the next boundary overlaps
/// with it.
fn snapshots(ctx: &BenchContext<'_>, worker: &Worker, took: &[Duration]) -> [String; 6] {
    let snapshots = ctx.turns_with_snapshot(worker);
    let (mut due, mut after, mut others) = (Samples::default(), Samples::default(), Samples::default());
    for (turn, took) in (1..).zip(took) {
        let samples = if snapshots.contains(&turn) {
            &mut due
        } else if snapshots.contains(&(turn - 1)) {
            &mut after
        } else {
            &mut others
        };
        samples.push(*took);
    }
    let over = |samples: &Samples| [0.5, 0.95].map(|q| times(samples.over(&others, q))).join(" / ");
    [
        ctx.name.to_owned(),
        took.len().to_string(),
        snapshots.len().to_string(),
        about(others.quantile(0.5)),
        over(&due),
        over(&after),
    ]
}

/// Attaches to both runs in turn, and lets LangGraph's saver load its checkpoint after as many steps as the long run
/// has turns.
fn resumes(ctx: &BenchContext<'_>, short: &mut Worker, long: &mut Worker) -> [String; 5] {
    let (mut early, mut late, mut loaded) = (Samples::default(), Samples::default(), Samples::default());
    let mut saver = ctx.saver();
    if let Some(saver) = &mut saver {
        for round in 0..LONG {
            saver.step(&payload::state(STATE, round));
        }
    }
    for round in 0..RESUMES {
        let attach = |worker: &mut Worker, name: &str, samples: &mut Samples| {
            let began = Instant::now();
            worker.attach(&context::pod_of(name));
            samples.push(began.elapsed());
        };
        if round % 2 == 0 {
            attach(short, "short", &mut early);
            attach(long, "long", &mut late);
        } else {
            attach(long, "long", &mut late);
            attach(short, "short", &mut early);
        }
        if let Some(saver) = &mut saver {
            loaded.push(saver.load());
        }
    }
    [
        ctx.name.to_owned(),
        about(early.quantile(0.5)),
        times(late.over(&early, 0.5)),
        times(late.over(&early, 0.95)),
        saver.map_or("—".to_owned(), |_| times(late.over(&loaded, 0.5))),
    ]
}
