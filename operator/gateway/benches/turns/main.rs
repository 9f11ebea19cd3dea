//! What many turns cost: a boundary at which a snapshot is due against the others, a resume late in a run against one at
//! its beginning, many workers against one, and the bytes of a state that grows.
//!
//! Ratios only, of things that were measured in turns in the same run. The clients are in this process, and their time is
//! in the CPU's; the database of PostgreSQL is not.

#![allow(clippy::unwrap_used, reason = "a bench may fail")]

#[path = "../figures.rs"]
mod figures;
#[allow(dead_code, reason = "its other users need the rest")]
#[path = "../floor.rs"]
mod floor;
#[allow(dead_code, reason = "its other users need the rest")]
#[path = "../boundary/langgraph.rs"]
mod langgraph;
#[allow(dead_code, reason = "its other users need the rest")]
#[path = "../boundary/payload.rs"]
mod payload;
#[allow(dead_code, reason = "its other users need the rest")]
#[path = "../boundary/worker.rs"]
mod worker;
#[allow(dead_code, reason = "its other users need the rest")]
#[path = "../boundary/world.rs"]
mod world;

#[allow(dead_code, reason = "its other users need the rest")]
#[path = "../../../store/tests/support/pg.rs"]
mod pg;

mod crowd;
mod growth;

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use figures::{Samples, about, print_table, times};
use worker::Worker;
use world::World;

/// Bytes of the state of the runs that are resumed.
const STATE: usize = 64 << 10;
/// Turns of the short run and of the long one.
const SHORT: usize = 10;
const LONG: usize = 1_000;
/// Turns among which snapshots fall due.
const MANY: usize = 3_000;
/// Resumes of each.
const RESUMES: usize = 300;
/// Within this a snapshot that was asked for is made.
const TIME_FOR_A_SNAPSHOT: Duration = Duration::from_millis(500);

fn main() {
    world::log_as_installed();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = pg::Server::start(&[]);
    let worlds = [World::sqlite(&runtime), World::postgres(&runtime, &server)];

    let (mut due, mut resumed) = (Vec::new(), Vec::new());
    for world in &worlds {
        let mut many = world.worker("many");
        let took = commits(&mut many, 0..MANY);
        due.push(snapshots(world, &many, &took));
        let mut short = world.worker("short");
        let mut long = world.worker("long");
        commits(&mut short, 0..SHORT);
        commits(&mut long, 0..LONG);
        to_a_snapshot(world, &mut short, SHORT);
        to_a_snapshot(world, &mut long, LONG);
        resumed.push(resumes(world, &mut short, &mut long));
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
    let rows: Vec<_> = worlds.iter().map(crowd::of).collect();
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
    let rows: Vec<_> = worlds
        .iter()
        .flat_map(|world| {
            let ours = growth::KINDS.map(|kind| growth::of(world, kind));
            ours.into_iter().chain(growth::of_langgraph(world))
        })
        .collect();
    print_table(
        "200 turns that grow a state to 1 MiB: bytes that are kept",
        ["store", "the worker sends", "sent", "boundaries", "snapshots", "chunks", "all ÷ the last state"],
        &rows,
    );
}

/// Commits turns of unlike states; how long each took.
fn commits(worker: &mut Worker, rounds: Range<usize>) -> Vec<Duration> {
    let commit = |round| {
        let body = payload::commit(round, &payload::state(STATE, round));
        let began = Instant::now();
        assert_eq!(worker.commit(&body).result(), "ok");
        began.elapsed()
    };
    rounds.map(commit).collect()
}

/// Commits until the head has a snapshot: two runs are compared that are as far past one.
fn to_a_snapshot(world: &World<'_>, worker: &mut Worker, mut turn: usize) {
    loop {
        thread::sleep(TIME_FOR_A_SNAPSHOT);
        if world.turns_with_snapshot(worker).last() == Some(&(turn as i64)) {
            return;
        }
        commits(worker, turn..turn + 1);
        turn += 1;
    }
}

/// The answer to the boundary at which a snapshot is due waits for none; the next one meets its making.
fn snapshots(world: &World<'_>, worker: &Worker, took: &[Duration]) -> [String; 6] {
    let snapshots = world.turns_with_snapshot(worker);
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
        world.name.to_owned(),
        took.len().to_string(),
        snapshots.len().to_string(),
        about(others.quantile(0.5)),
        over(&due),
        over(&after),
    ]
}

/// Attaches to both again and again, in turns, beside a saver that loads its checkpoint after as many steps as the long one.
fn resumes(world: &World<'_>, short: &mut Worker, long: &mut Worker) -> [String; 5] {
    let (mut early, mut late, mut loaded) = (Samples::default(), Samples::default(), Samples::default());
    let mut saver = world.saver();
    if let Some(saver) = &mut saver {
        for round in 0..LONG {
            saver.step(&payload::state(STATE, round));
        }
    }
    for round in 0..RESUMES {
        let attach = |worker: &mut Worker, name: &str, samples: &mut Samples| {
            let began = Instant::now();
            worker.attach(&world::pod_of(name));
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
        world.name.to_owned(),
        about(early.quantile(0.5)),
        times(late.over(&early, 0.5)),
        times(late.over(&early, 0.95)),
        saver.map_or("—".to_owned(), |_| times(late.over(&loaded, 0.5))),
    ]
}
