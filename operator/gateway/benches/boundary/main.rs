//! What a boundary costs: a commit through the gateway over HTTP, against a bare one-row insert of the same bytes by the
//! same driver on the same disk, against LangGraph's PostgreSQL saver, and with encryption; and what twins of a commit are answered.
//!
//! One round does each once, one after the other, so that whatever else the machine does meets all of them alike. Only
//! ratios are told. `DALSEGNO_BENCH_PYTHON` names a Python that has `langgraph-checkpoint-postgres`; unset, that column
//! stays empty.

#![allow(clippy::unwrap_used, reason = "a bench may fail")]

#[path = "../figures.rs"]
mod figures;
#[path = "../floor.rs"]
mod floor;
mod langgraph;
mod payload;
mod twins;
mod worker;
#[allow(dead_code, reason = "its other users need the rest")]
mod world;

#[allow(dead_code, reason = "its other users need the rest")]
#[path = "../../../store/tests/support/pg.rs"]
mod pg;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use figures::{Samples, about, print_table, times};
use worker::Worker;
use world::World;

/// Sizes of the whole state that each turn sends.
const SIZES: [usize; 3] = [1 << 10, 16 << 10, 64 << 10];
/// Rounds that count.
const ROUNDS: usize = 500;
/// Rounds before them: caches fill, statements are prepared.
const WARM_UP: usize = 50;
/// Pairs of twins.
const TWINS: i32 = 1_000;

fn main() -> ExitCode {
    world::log_as_installed();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = pg::Server::start(&[]);
    let worlds = [World::sqlite(&runtime), World::postgres(&runtime, &server)];

    let mut rows = Vec::new();
    for world in &worlds {
        for size in SIZES {
            rows.push(boundaries(world, size));
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

    let (rows, fine): (Vec<_>, Vec<_>) = worlds.iter().map(|world| twins::pairs(world, TWINS)).unzip();
    print_table(
        "Pairs of identical commits sent at once",
        ["store", "pairs", "one ok and one duplicate", "conflicts", "anything else"],
        &rows,
    );
    if fine.contains(&false) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Measures one size on one store, and returns its row of the table.
fn boundaries(world: &World<'_>, size: usize) -> [String; 8] {
    let mut worker = world.worker(&format!("boundaries-{size}"));
    let mut sealed_worker = world.sealed_worker(&format!("sealed-{size}"));
    let mut floor = world.floor();
    let mut saver = world.saver();
    let [mut ours, mut bare, mut theirs, mut sealed] = <[Samples; 4]>::default();
    let mut stored = 0;
    for round in 0..WARM_UP + ROUNDS {
        let state = payload::state(size, round);
        let (kept, body) = (payload::kept(&state), payload::commit(round, &state));
        stored += kept.len();

        // Who goes first finds the disk as the saver left it, so they take turns.
        let (inserted, committed, encrypted) = if round % 2 == 0 {
            let inserted = timed(|| world.runtime.block_on(floor.insert(&kept)));
            let committed = timed(|| commit(&mut worker, &body));
            (inserted, committed, timed(|| commit(&mut sealed_worker, &body)))
        } else {
            let encrypted = timed(|| commit(&mut sealed_worker, &body));
            let committed = timed(|| commit(&mut worker, &body));
            (timed(|| world.runtime.block_on(floor.insert(&kept))), committed, encrypted)
        };
        let put = saver.as_mut().map(|saver| saver.step(&state));
        if round >= WARM_UP {
            bare.push(inserted);
            ours.push(committed);
            sealed.push(encrypted);
            put.into_iter().for_each(|put| theirs.push(put));
        }
    }
    let (floor_keeps, run_keeps) = (world.runtime.block_on(floor.kept()), world.kept(&worker));
    assert_eq!((floor_keeps, run_keeps), (stored, stored), "both keep the same bytes");
    let rounds = WARM_UP + ROUNDS;
    assert_eq!(world.kept_sealed(&sealed_worker), stored + 28 * rounds, "nonces and tags beside them");
    let spread = |samples: &Samples, floor| {
        [0.5, 0.95, 0.99].map(|share| times(samples.over(floor, share))).join(" / ")
    };
    let none = || "—".to_owned();
    [
        world.name.to_owned(),
        format!("{} KiB", size >> 10),
        format!("{} B", stored / rounds),
        about(bare.quantile(0.5)),
        spread(&ours, &bare),
        saver.as_ref().map_or_else(none, |_| spread(&theirs, &bare)),
        saver.as_ref().map_or_else(none, |_| times(ours.over(&theirs, 0.5))),
        spread(&sealed, &ours),
    ]
}

fn timed(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

fn commit(worker: &mut Worker, body: &[u8]) {
    let answer = worker.commit(body);
    assert_eq!(answer.result(), "ok", "{answer:?}");
}
