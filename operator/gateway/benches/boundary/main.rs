//! The cost of a boundary: a commit through the gateway over HTTP, compared with an insert of one row with the same
//! bytes by the same driver on the same disk, with LangGraph's PostgreSQL saver, and with encryption. Also the answers
//! to two identical commits sent at once.
//!
//! Each round measures every variant once, so that other load on the machine affects all of them alike. Only ratios are
//! reported. `DALSEGNO_BENCH_PYTHON` names a Python with `langgraph-checkpoint-postgres`; without it that column is
//! empty.

#![allow(clippy::unwrap_used, reason = "a bench may fail")]

#[allow(dead_code, reason = "other benches use the rest")]
mod context;
#[path = "../figures.rs"]
mod figures;
#[path = "../floor.rs"]
mod floor;
mod langgraph;
mod payload;
mod twins;
mod worker;

#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../../../store/tests/support/pg.rs"]
mod pg;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use context::BenchContext;
use figures::{Samples, about, print_table, times};
use worker::Worker;

/// Sizes of the full state that each turn sends, in bytes.
const SIZES: [usize; 3] = [1 << 10, 16 << 10, 64 << 10];
/// Measured rounds.
const ROUNDS: usize = 500;
/// Rounds before the measurement, to fill caches and prepare statements.
const WARM_UP: usize = 50;
/// Pairs of identical commits.
const TWINS: i32 = 1_000;

fn main() -> ExitCode {
    context::log_as_installed();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = pg::Server::start(&[]);
    let contexts = [BenchContext::sqlite(&runtime), BenchContext::postgres(&runtime, &server)];

    let mut rows = Vec::new();
    for ctx in &contexts {
        for size in SIZES {
            rows.push(boundaries(ctx, size));
        }
    }
    print_table(
        "Boundary commit over HTTP, all of the state in one channel; ratios at p50 / p95 / p99",
        [
            "store",
            "state",
            "stored",
            "floor p50",
            "ours ÷ floor",
            "LangGraph ÷ floor",
            "ours ÷ LangGraph p50",
            "encrypted ÷ ours",
        ],
        &rows,
    );

    let (rows, as_expected): (Vec<_>, Vec<_>) = contexts.iter().map(|ctx| twins::pairs(ctx, TWINS)).unzip();
    print_table(
        "Pairs of identical commits sent at once",
        ["store", "pairs", "one ok and one duplicate", "conflicts", "anything else"],
        &rows,
    );
    if as_expected.contains(&false) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Measures one size on one store; returns the row of the table.
fn boundaries(ctx: &BenchContext<'_>, size: usize) -> [String; 8] {
    let mut worker = ctx.worker(&format!("boundaries-{size}"));
    let mut encrypted_worker = ctx.encrypted_worker(&format!("encrypted-{size}"));
    let mut floor = ctx.floor();
    let mut saver = ctx.saver();
    let [mut ours, mut bare, mut theirs, mut encrypted_samples] = <[Samples; 4]>::default();
    let mut stored = 0;
    for round in 0..WARM_UP + ROUNDS {
        let state = payload::state(size, round);
        let (kept, body) = (payload::kept(&state), payload::commit(round, &state));
        stored += kept.len();

        // The saver's writes slow down whatever runs next, so the order alternates.
        let (inserted, committed, encrypted) = if round % 2 == 0 {
            let inserted = timed(|| ctx.runtime.block_on(floor.insert(&kept)));
            let committed = timed(|| commit(&mut worker, &body));
            (inserted, committed, timed(|| commit(&mut encrypted_worker, &body)))
        } else {
            let encrypted = timed(|| commit(&mut encrypted_worker, &body));
            let committed = timed(|| commit(&mut worker, &body));
            (timed(|| ctx.runtime.block_on(floor.insert(&kept))), committed, encrypted)
        };
        let put = saver.as_mut().map(|saver| saver.step(&state));
        if round >= WARM_UP {
            bare.push(inserted);
            ours.push(committed);
            encrypted_samples.push(encrypted);
            put.into_iter().for_each(|put| theirs.push(put));
        }
    }
    let (floor_keeps, run_keeps) = (ctx.runtime.block_on(floor.kept()), ctx.kept(&worker));
    assert_eq!((floor_keeps, run_keeps), (stored, stored), "both store the same bytes");
    let rounds = WARM_UP + ROUNDS;
    assert_eq!(
        ctx.kept_encrypted(&encrypted_worker),
        stored + 28 * rounds,
        "plus a nonce and a tag for each"
    );
    let spread = |samples: &Samples, floor| {
        [0.5, 0.95, 0.99].map(|share| times(samples.over(floor, share))).join(" / ")
    };
    let none = || "—".to_owned();
    [
        ctx.name.to_owned(),
        format!("{} KiB", size >> 10),
        format!("{} B", stored / rounds),
        about(bare.quantile(0.5)),
        spread(&ours, &bare),
        saver.as_ref().map_or_else(none, |_| spread(&theirs, &bare)),
        saver.as_ref().map_or_else(none, |_| times(ours.over(&theirs, 0.5))),
        spread(&encrypted_samples, &ours),
    ]
}

fn timed(action: impl FnOnce()) -> Duration {
    let began = Instant::now();
    action();
    began.elapsed()
}

fn commit(worker: &mut Worker, body: &[u8]) {
    let answer = worker.commit(body);
    assert_eq!(answer.result(), "ok", "{answer:?}");
}
