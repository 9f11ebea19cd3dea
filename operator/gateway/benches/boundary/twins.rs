//! The same commit sent twice at once, as when a retry overtakes the first try.

use std::sync::Barrier;
use std::thread;

use crate::context::BenchContext;
use crate::payload;
use crate::worker::Worker;

/// Bytes of a state. The size does not matter here.
const SIZE: usize = 1 << 10;

/// Commits this many turns, each twice at once. Returns the row of the table, and whether every pair was one `ok` and
/// one `duplicate`.
pub fn pairs(ctx: &BenchContext<'_>, turns: i32) -> ([String; 5], bool) {
    let start = Barrier::new(2);
    let [first, second] = ctx.twins("twins");
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| results(first, turns, &start));
        let second = scope.spawn(|| results(second, turns, &start));
        (first.join().unwrap(), second.join().unwrap())
    });
    let (mut as_expected, mut conflicts, mut other) = (0, 0, 0);
    for mut pair in first.into_iter().zip(second).map(|(first, second)| [first, second]) {
        pair.sort_unstable();
        match pair.each_ref().map(String::as_str) {
            ["duplicate", "ok"] => as_expected += 1,
            results if results.contains(&"CONFLICT") => conflicts += 1,
            _ => other += 1,
        }
    }
    let counts = [turns, as_expected, conflicts, other].map(|count| count.to_string());
    let [pairs, matching, conflicting, different] = counts;
    ([ctx.name.to_owned(), pairs, matching, conflicting, different], as_expected == turns)
}

fn results(mut worker: Worker, turns: i32, start: &Barrier) -> Vec<String> {
    let commit = |round| payload::commit(round, &payload::state(SIZE, round));
    let bodies = (0..turns as usize).map(commit).collect::<Vec<_>>();
    let send = |body: &Vec<u8>| {
        start.wait();
        worker.commit(body).result()
    };
    bodies.iter().map(send).collect()
}
