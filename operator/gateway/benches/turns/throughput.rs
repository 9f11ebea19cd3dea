//! Throughput with many workers: turns per second of one store, and CPU time per turn. As many bare inserts are
//! measured too, as a reference for the machine: workers, gateway and database share its cores and its disk.

use std::fs;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::context::BenchContext;
use crate::figures::times;
use crate::payload;
use crate::worker::Worker;

/// Number of concurrent workers.
const WORKERS: usize = 32;
/// Turns of each worker.
const TURNS: usize = 500;
/// Bytes of a state.
const STATE: usize = 4 << 10;

/// The row of the table.
pub fn of(ctx: &BenchContext<'_>) -> [String; 7] {
    let (one, cpu_of_one) = sustained(ctx, "alone", 1);
    let (many, cpu_of_many) = sustained(ctx, "many", WORKERS);
    let inserts = [1, WORKERS].map(|connections| inserted(ctx, connections));
    [
        ctx.name.to_owned(),
        format!("{one:.0}"),
        format!("{many:.0}"),
        times(many / one),
        times(inserts[1] / inserts[0]),
        format!("{cpu_of_one:.2} ms"),
        format!("{cpu_of_many:.2} ms"),
    ]
}

/// Turns per second of this many concurrent workers, and milliseconds of CPU time per turn.
fn sustained(ctx: &BenchContext<'_>, name: &str, workers: usize) -> (f64, f64) {
    let bodies: Vec<_> =
        (0..TURNS).map(|round| payload::commit(round, &payload::state(STATE, round))).collect();
    let connected: Vec<_> = (0..workers).map(|number| ctx.worker(&format!("{name}-{number}"))).collect();
    let start = Barrier::new(workers + 1);
    let (elapsed, cpu) = thread::scope(|scope| {
        let commit = |mut worker: Worker| {
            start.wait();
            for body in &bodies {
                assert_eq!(worker.commit(body).result(), "ok");
            }
        };
        let committing: Vec<_> =
            connected.into_iter().map(|worker| scope.spawn(move || commit(worker))).collect();
        start.wait();
        let (began, cpu) = (Instant::now(), cpu_time());
        committing.into_iter().for_each(|one| one.join().unwrap());
        (began.elapsed(), cpu_time() - cpu)
    });
    let turns = (workers * TURNS) as f64;
    (turns / elapsed.as_secs_f64(), cpu.as_secs_f64() * 1e3 / turns)
}

/// Bare inserts per second of this many concurrent connections, each into a database of its own.
fn inserted(ctx: &BenchContext<'_>, connections: usize) -> f64 {
    let payload = payload::kept(&payload::state(STATE, 0));
    let floors: Vec<_> = (0..connections).map(|_| ctx.floor()).collect();
    let began = Instant::now();
    ctx.runtime.block_on(async {
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

/// CPU time of this process in user and kernel mode. Linux reports it in hundredths of a second.
fn cpu_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    // The program's name may contain spaces and parentheses. After it comes the third field.
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(10 * ticks)
}
