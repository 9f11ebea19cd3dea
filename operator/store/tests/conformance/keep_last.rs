//! A run that keeps no more than its last boundaries: what is older is dropped, and nothing that anybody goes on from.

mod damaged;

use dalsegno_protocol::Boundary;
use dalsegno_store::proof::{Anchors, check_store};
use dalsegno_store::verify::{self, Checkpoint};
use dalsegno_store::{Commit, Dropped, Error, EventQuery, Place, Retention, Rewind, Rewound, RunId};

use crate::faces::on_every_face;
use crate::patches;
use crate::world::*;

on_every_face! {
    the_last_boundaries_keep_their_payloads_and_the_others_their_headers,
    a_run_that_lives_goes_on_while_it_is_cleared,
    nothing_is_dropped_of_a_run_that_keeps_all,
    it_is_dropped_in_steps_of_so_many_boundaries,
    no_step_reads_more_than_so_many_bytes,
    what_was_undone_counts_among_the_bytes_of_a_step,
    a_run_goes_back_as_far_as_it_is_kept_and_no_further,
    what_was_undone_before_is_dropped_with_the_rest,
    patches_are_decoded_after_the_snapshot,
    two_operators_clear_a_run_at_once,
}

/// Turns with an event each, appended to the list `log`.
async fn grow(world: &World, worker: &Worker, turns: std::ops::RangeInclusive<i32>) {
    for turn in turns {
        let text = format!(r#"{{"append":{{"log":[{{"json":{turn}}}]}}}}"#);
        let commit = Commit {
            ops: Some(text.into()),
            full: false,
            events: vec![json(&turn.to_string())],
            ..worker.result(turn)
        };
        ok(world.commit(&commit).await.unwrap());
    }
}

async fn keep_last(world: &World, run: RunId, boundaries: i32) {
    let retention = Retention { keep_last: Some(boundaries), ..Retention::default() };
    assert_eq!(world.set_retention(run, &retention).await.unwrap().retention, retention);
}

/// Until there is nothing left to drop; how many rows.
async fn clear(world: &World, run: RunId) -> u64 {
    let mut rows = 0;
    loop {
        let dropped = world.drop_old(run, 500).await.unwrap();
        if dropped.run.is_none() {
            return rows;
        }
        rows += dropped.rows;
    }
}

/// A run of so many turns that lives, and keeps its last five.
async fn cleared(world: &World, turns: i32) -> Worker {
    let worker = world.worker().await;
    grow(world, &worker, 1..=turns).await;
    keep_last(world, worker.run, 5).await;
    clear(world, worker.run).await;
    worker
}

async fn state(world: &World, run: RunId, turn: Option<i32>) -> String {
    serde_json::to_string(&world.state(run, turn).await.unwrap().unwrap()).unwrap()
}

fn grown(turns: i32) -> String {
    let items: Vec<_> = (1..=turns).map(|turn| format!(r#"{{"json":{turn}}}"#)).collect();
    format!(r#"{{"log":{{"list":[{}]}}}}"#, items.join(","))
}

/// Nothing is damaged, and everything that is gone is told of.
async fn assert_whole(world: &World, worker: &Worker) {
    let run = world.of(worker).await;
    assert_eq!(verify::checkpoint(&*world.store, &run).await.unwrap(), Checkpoint::Sound);
    let found = verify::survey(&*world.store, &run).await.unwrap();
    assert_eq!(found.damage, []);
    let head = run.head.unwrap();
    let last = Place { turn: head.turn, boundary: head.boundary, epoch: head.epoch };
    assert_eq!(found.last_good, Some(last));
    world.proves_itself(run.id).await;
    assert_eq!(problems(world).await, [""; 0]);
}

async fn problems(world: &World) -> Vec<String> {
    let mut told = Vec::new();
    let mut reading = world.reading().await.unwrap();
    let summary =
        check_store(&mut *reading, Anchors::default(), &mut |problem| told.push(problem.to_string())).await;
    summary.unwrap();
    told
}

fn back_to(epoch: i64, turn: i32, of_epoch: i64) -> Rewind {
    let to = Place { turn, boundary: Boundary::Result, epoch: of_epoch };
    Rewind { epoch, to, reason: "it went astray".into(), actor: "ada".into() }
}

async fn the_last_boundaries_keep_their_payloads_and_the_others_their_headers(world: &World) {
    let worker = world.worker().await;
    grow(world, &worker, 1..=12).await;
    ok(world.finish(&worker.finish()).await.unwrap());
    keep_last(world, worker.run, 5).await;
    assert_eq!(world.keepers(RunId::nil()).await.unwrap(), [worker.run]);
    let held = world.capacity(1).await.unwrap()[0].bytes;
    assert_eq!(clear(world, worker.run).await, 7, "exactly so many, once it is over");
    let left = world.capacity(1).await.unwrap()[0].bytes;
    assert!(left > 0 && left < held / 2, "{left} of {held} bytes");

    let rows = world.boundaries(worker.run, 1, 12).await.unwrap();
    let kept: Vec<_> = rows.iter().filter(|row| row.ops.is_some()).map(|row| row.turn).collect();
    assert_eq!((rows.len(), kept), (12, vec![8, 9, 10, 11, 12]));
    for turn in 7..=12 {
        assert_eq!(state(world, worker.run, Some(turn)).await, grown(turn), "the snapshot stands for turn 7");
    }
    for turn in 1..=6 {
        let gone = world.state(worker.run, Some(turn)).await;
        assert!(matches!(gone, Err(Error::Gone { .. })), "turn {turn}: {gone:?}");
    }
    assert!(world.state(worker.run, Some(13)).await.unwrap().is_none());
    let events = world.events(worker.run, EventQuery { from: 1, limit: 99, bytes: 999 }).await.unwrap();
    let positions: Vec<_> = events.events.iter().map(|event| event.position).collect();
    assert_eq!(positions, [8, 9, 10, 11, 12]);
    let told = world.audit(worker.run).await.unwrap().pop().unwrap();
    assert_eq!((told.kind.as_str(), told.actor.as_str()), ("dropped", "operator"));
    assert!(told.detail.contains(r#""turn": 7"#) || told.detail.contains(r#""turn":7"#), "{}", told.detail);
    let run = world.of(&worker).await;
    assert_eq!(run.dropped_to.map(|place| place.turn), Some(7));
    assert_eq!(verify::survey(&*world.store, &run).await.unwrap().dropped, 7);
    assert_whole(world, &worker).await;
}

async fn a_run_that_lives_goes_on_while_it_is_cleared(world: &World) {
    let mut worker = world.worker().await;
    keep_last(world, worker.run, 5).await;
    for turn in 1..=60 {
        grow(world, &worker, turn..=turn).await;
        clear(world, worker.run).await;
        let kept = world.boundaries(worker.run, 1, turn).await.unwrap();
        let kept = kept.iter().filter(|row| row.ops.is_some()).count() as i32;
        assert!(kept >= turn.min(5) && kept <= 14, "turn {turn}: {kept}");
        assert_eq!(state(world, worker.run, None).await, grown(turn));
        if turn % 20 == 0 {
            assert_whole(world, &worker).await;
            worker = world.next(&worker).await;
        }
        if turn % 7 == 0 {
            world.snapshot(worker.run).await.unwrap();
        }
    }
}

async fn nothing_is_dropped_of_a_run_that_keeps_all(world: &World) {
    let worker = world.worker().await;
    grow(world, &worker, 1..=30).await;
    assert!(world.keepers(RunId::nil()).await.unwrap().is_empty());
    assert_eq!(world.drop_old(worker.run, 500).await.unwrap(), Dropped::default());
    keep_last(world, worker.run, 25).await;
    assert_eq!(clear(world, worker.run).await, 0, "up to nine more, while it lives");
}

async fn it_is_dropped_in_steps_of_so_many_boundaries(world: &World) {
    let worker = world.worker().await;
    grow(world, &worker, 1..=30).await;
    ok(world.finish(&worker.finish()).await.unwrap());
    keep_last(world, worker.run, 3).await;
    let mut cuts = Vec::new();
    while let Some(cut) = step(world, worker.run, 10).await {
        assert_eq!(state(world, worker.run, None).await, grown(30), "after each step");
        assert_whole(world, &worker).await;
        cuts.push(cut);
    }
    cuts.dedup();
    assert_eq!(cuts, [10, 20, 27]);
}

/// One step: up to which turn all is dropped after it, if there was anything to do.
async fn step(world: &World, run: RunId, rows: u32) -> Option<i32> {
    let run = world.drop_old(run, rows).await.unwrap().run?;
    Some(world.get_run(run).await.unwrap().unwrap().dropped_to.unwrap().turn)
}

async fn no_step_reads_more_than_so_many_bytes(world: &World) {
    let worker = world.worker().await;
    for turn in 1..=7 {
        world.heavy_turn(&worker, turn, 3 << 20).await;
    }
    ok(world.finish(&worker.finish()).await.unwrap());
    keep_last(world, worker.run, 1).await;
    assert!(world.capacity(1).await.unwrap()[0].bytes > 10 << 20);
    let first = step(world, worker.run, 500).await.unwrap();
    assert!((2..6).contains(&first), "up to turn {first}");
    clear(world, worker.run).await;
    assert_eq!(world.of(&worker).await.dropped_to.unwrap().turn, 6);
}

async fn what_was_undone_counts_among_the_bytes_of_a_step(world: &World) {
    let worker = world.worker().await;
    for turn in 1..=4 {
        world.heavy_turn(&worker, turn, 3 << 20).await;
    }
    let epoch = world.of(&worker).await.epoch;
    assert!(matches!(world.rewind(worker.run, &back_to(epoch, 1, 1)).await.unwrap(), Rewound::Done(_)));
    let worker = world.work_on(&world.of(&worker).await).await;
    for turn in 2..=6 {
        world.heavy_turn(&worker, turn, 3 << 20).await;
    }
    ok(world.finish(&worker.finish()).await.unwrap());
    keep_last(world, worker.run, 1).await;
    assert_eq!(step(world, worker.run, 500).await, Some(3), "five boundaries of 1.5 MiB");
    clear(world, worker.run).await;
    assert_eq!(world.of(&worker).await.dropped_to.unwrap().turn, 5);
    assert_whole(world, &worker).await;
}

async fn a_run_goes_back_as_far_as_it_is_kept_and_no_further(world: &World) {
    let worker = cleared(world, 20).await;
    let epoch = world.of(&worker).await.epoch;
    for turn in [1, 14] {
        let refused = world.rewind(worker.run, &back_to(epoch, turn, 1)).await.unwrap();
        let Rewound::Refused(run) = refused else { panic!("turn {turn}: {refused:?}") };
        assert_eq!(run.dropped_to.unwrap().turn, 15, "and it says why");
    }
    let done = world.rewind(worker.run, &back_to(epoch, 15, 1)).await.unwrap();
    assert!(matches!(done, Rewound::Done(_)), "a snapshot stands for turn 15: {done:?}");
    assert_eq!(state(world, worker.run, None).await, grown(15));
    let worker = world.work_on(&world.of(&worker).await).await;
    grow(world, &worker, 16..=40).await;
    clear(world, worker.run).await;
    assert_eq!(state(world, worker.run, None).await, grown(40));
    assert_whole(world, &worker).await;
}

async fn what_was_undone_before_is_dropped_with_the_rest(world: &World) {
    let worker = world.worker().await;
    grow(world, &worker, 1..=30).await;
    let epoch = world.of(&worker).await.epoch;
    assert!(matches!(world.rewind(worker.run, &back_to(epoch, 4, 1)).await.unwrap(), Rewound::Done(_)));
    let worker = world.work_on(&world.of(&worker).await).await;
    grow(world, &worker, 5..=20).await;
    keep_last(world, worker.run, 5).await;
    clear(world, worker.run).await;
    assert_whole(world, &worker).await;
    // Undone turns after the cut come from before it: their states are gone as well.
    grow(world, &worker, 21..=60).await;
    clear(world, worker.run).await;
    assert_whole(world, &worker).await;
}

async fn patches_are_decoded_after_the_snapshot(world: &World) {
    let worker = world.worker().await;
    let mut base = None;
    let filling = "much the same in each turn ".repeat(40);
    for turn in 1..=30 {
        let ops = format!(r#"{{"full":true,"set":{{"a":{{"json":"{filling}{turn}"}}}}}}"#);
        let commit = Commit { ops: Some(ops.clone().into()), base, ..worker.result(turn) };
        let head = ok(world.commit(&commit).await.unwrap()).head.unwrap();
        base = Some(patches::base(&head.content_hash, &ops));
    }
    keep_last(world, worker.run, 5).await;
    clear(world, worker.run).await;
    let rows = world.boundaries(worker.run, 1, 30).await.unwrap();
    assert_eq!(
        rows.iter().filter(|row| row.ops.is_some()).count(),
        5,
        "also where dropped ones are asked for"
    );
    assert!(state(world, worker.run, Some(27)).await.contains(&format!("{filling}27")));
    assert_whole(world, &worker).await;
}

async fn two_operators_clear_a_run_at_once(world: &World) {
    let worker = world.worker().await;
    for round in 0..4 {
        grow(world, &worker, round * 25 + 1..=round * 25 + 25).await;
        keep_last(world, worker.run, 5).await;
        let operator = async || {
            for _ in 0..8 {
                let _: Dropped = world.drop_old(worker.run, 7).await.unwrap();
            }
        };
        tokio::join!(operator(), operator());
        clear(world, worker.run).await;
        assert_eq!(state(world, worker.run, None).await, grown(round * 25 + 25));
        assert_whole(world, &worker).await;
    }
}
