//! Many workers at once: what one store takes in a second, and what a turn costs the CPU. Beside it as many bare inserts, by
//! which the machine is known: workers, gateway and database share its cores and its disk.

use std::fs;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::figures::times;
use crate::payload;
use crate::worker::Worker;
use crate::world::World;

/// Workers at once.
const WORKERS: usize = 32;
/// Turns of each of them, and of the one that is alone.
const TURNS: usize = 500;
/// Bytes of a state.
const STATE: usize = 4 << 10;

/// The row of the table.
pub fn of(world: &World<'_>) -> [String; 7] {
    let (one, cpu_of_one) = sustained(world, "alone", 1);
    let (many, cpu_of_many) = sustained(world, "crowd", WORKERS);
    let inserts = [1, WORKERS].map(|connections| inserted(world, connections));
    [
        world.name.to_owned(),
        format!("{one:.0}"),
        format!("{many:.0}"),
        times(many / one),
        times(inserts[1] / inserts[0]),
        format!("{cpu_of_one:.2} ms"),
        format!("{cpu_of_many:.2} ms"),
    ]
}

/// Turns a second of so many workers that begin at once, and milliseconds of CPU for each.
fn sustained(world: &World<'_>, name: &str, workers: usize) -> (f64, f64) {
    let bodies: Vec<_> =
        (0..TURNS).map(|round| payload::commit(round, &payload::state(STATE, round))).collect();
    let crowd: Vec<_> = (0..workers).map(|number| world.worker(&format!("{name}-{number}"))).collect();
    let start = Barrier::new(workers + 1);
    let (elapsed, cpu) = thread::scope(|scope| {
        let commit = |mut worker: Worker| {
            start.wait();
            for body in &bodies {
                assert_eq!(worker.commit(body).result(), "ok");
            }
        };
        let committing: Vec<_> =
            crowd.into_iter().map(|worker| scope.spawn(move || commit(worker))).collect();
        start.wait();
        let (began, cpu) = (Instant::now(), cpu_time());
        committing.into_iter().for_each(|one| one.join().unwrap());
        (began.elapsed(), cpu_time() - cpu)
    });
    let turns = (workers * TURNS) as f64;
    (turns / elapsed.as_secs_f64(), cpu.as_secs_f64() * 1e3 / turns)
}

/// Bare inserts a second of so many connections at once, each into a database of its own.
fn inserted(world: &World<'_>, connections: usize) -> f64 {
    let payload = payload::kept(&payload::state(STATE, 0));
    let floors: Vec<_> = (0..connections).map(|_| world.floor()).collect();
    let began = Instant::now();
    world.runtime.block_on(async {
        let mut inserting = JoinSet::new();
        for mut floor in floors {
            let payload = payload.clone();
            inserting.spawn(async move {
                for _ in 0..TURNS {
                    floor.insert(&payload).await;
                }
            });
        }
        inserting.join_all().await;
    });
    (connections * TURNS) as f64 / began.elapsed().as_secs_f64()
}

/// What this process has used of the CPU, in user and kernel mode: hundredths of a second, as Linux tells them.
fn cpu_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    // The name of the program may hold anything; what follows it is the third field.
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(10 * ticks)
}
