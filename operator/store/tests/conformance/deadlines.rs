//! Deadlines run out by the store's clock, and only while the gateways beat.

use dalsegno_store::{Class, Deadline, Deadlines, NewRun, PodRecord, Pulse, Then};
use jiff::Timestamp;

use crate::faces::on_every_face;
use crate::world::*;

on_every_face! {
    no_deadline_is_trusted_before_a_gateway_has_beaten,
    a_lease_binds_from_the_first_heartbeat_on,
    heartbeats_and_commits_renew_the_lease,
    the_start_deadline_runs_from_scheduling_to_attach,
    the_progress_deadline_runs_from_the_last_boundary,
    a_boundary_of_an_earlier_attempt_is_no_progress_of_this_one,
    the_first_deadline_of_the_list_is_named,
    a_shorter_lease_leaves_the_promised_one_its_end,
    an_attempt_that_has_ended_has_no_deadlines,
    a_finished_run_has_no_deadlines,
    every_clock_starts_anew_after_a_silence_of_the_gateways,
    heartbeats_are_answered_one_by_one_in_order,
}

const SHORT: i64 = 200;

/// Longer than [`SHORT`] deadlines.
const WAIT: u64 = 290;

fn short(deadlines: Deadlines) -> NewRun {
    NewRun { deadlines, ..new_run() }
}

async fn pulse(world: &World) -> Pulse {
    world.pulse(Timestamp::now()).await.unwrap()
}

/// Which deadline of this worker's attempt has run out.
async fn expired(world: &World, object_uid: &str) -> Option<Deadline> {
    world.beat().await.unwrap();
    let pulse = pulse(world).await;
    let mine: Vec<_> = pulse.expired.iter().filter(|expired| expired.object.uid == object_uid).collect();
    assert!(mine.len() <= 1, "{mine:?}");
    let run = world.look(object_uid).await;
    if let Some(expired) = mine.first() {
        assert_eq!(expired.attempt, run.attempt.number);
        assert_eq!((&expired.object.namespace, &expired.object.name), (&run.namespace, &run.name));
    }
    mine.first().map(|expired| expired.deadline)
}

/// The deadline that runs out in a while, and no later than the longest of these tests would bear.
async fn runs_out(world: &World, object_uid: &str) -> Deadline {
    for _ in 0..200 {
        if let Some(deadline) = expired(world, object_uid).await {
            return deadline;
        }
        pause(25).await;
    }
    panic!("no deadline of {object_uid} ran out");
}

/// Nothing has run out within `length` of `from` by the store's clock. Where the machine was too slow to look within it,
/// there is nothing to be seen.
async fn not_yet(world: &World, object_uid: &str, from: Option<Timestamp>, length: i64) {
    let found = expired(world, object_uid).await;
    let waited = world.look(object_uid).await.now.duration_since(from.unwrap());
    assert!(found.is_none() || waited.as_millis() > length.into(), "{found:?} after {waited:?}");
}

async fn no_deadline_is_trusted_before_a_gateway_has_beaten(world: &World) {
    let run = world.take_up(&short(Deadlines { progress_ms: SHORT, ..LONG })).await;
    let worker = world.work_on(&run).await;
    pause(WAIT).await;
    assert!(pulse(world).await.expired.is_empty());
    world.beat().await.unwrap();
    let beat = world.of(&worker).await.beat;
    assert_eq!(beat.since, beat.last);
    not_yet(world, &worker.object_uid, Some(beat.since), SHORT).await;
    assert_eq!(runs_out(world, &worker.object_uid).await, Deadline::Progress);
}

async fn a_lease_binds_from_the_first_heartbeat_on(world: &World) {
    world.beat().await.unwrap();
    let run = world.take_up(&short(Deadlines { heartbeat_ms: SHORT, ..LONG })).await;
    let worker = world.work_on(&run).await;
    pause(WAIT).await;
    assert_eq!(expired(world, &worker.object_uid).await, None, "silent, and never bound");
    world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    let bound = world.of(&worker).await.attempt.lease_renewed_at;
    not_yet(world, &worker.object_uid, bound, SHORT).await;
    assert_eq!(runs_out(world, &worker.object_uid).await, Deadline::Lease);
    // An expired lease refuses nothing by itself.
    world.turn(&worker, 1).await;
    let renewed = world.of(&worker).await.attempt.lease_renewed_at;
    assert!(renewed > bound);
    not_yet(world, &worker.object_uid, renewed, SHORT).await;
}

async fn heartbeats_and_commits_renew_the_lease(world: &World) {
    world.beat().await.unwrap();
    let run = world.take_up(&short(Deadlines { heartbeat_ms: SHORT, ..LONG })).await;
    let worker = world.work_on(&run).await;
    world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    let mut last = world.of(&worker).await.attempt.lease_renewed_at;
    for turn in 1..=2 {
        for heartbeat in [false, true] {
            pause(WAIT / 2).await;
            if heartbeat {
                world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
            } else {
                world.turn(&worker, turn).await;
            }
            let renewed = world.of(&worker).await.attempt.lease_renewed_at;
            assert!(renewed > last, "turn {turn}, heartbeat {heartbeat}");
            not_yet(world, &worker.object_uid, renewed, SHORT).await;
            last = renewed;
        }
    }
}

async fn the_start_deadline_runs_from_scheduling_to_attach(world: &World) {
    world.beat().await.unwrap();
    let run = world.take_up(&short(Deadlines { start_ms: SHORT, ..LONG })).await;
    pause(WAIT).await;
    assert_eq!(expired(world, &run.object_uid).await, None, "nothing is scheduled");
    recorded(world.record_pod(run.id, 1, &PodRecord { identity: None, ..pod(&run) }).await.unwrap());
    pause(WAIT).await;
    assert_eq!(expired(world, &run.object_uid).await, None, "still nothing");
    let scheduled = recorded(world.record_scheduled(run.id, 1, "node-a").await.unwrap()).attempt.scheduled_at;
    not_yet(world, &run.object_uid, scheduled, SHORT).await;
    assert_eq!(runs_out(world, &run.object_uid).await, Deadline::Start);
    world.work_on(&run).await;
    assert_eq!(expired(world, &run.object_uid).await, None, "attached");
}

async fn the_progress_deadline_runs_from_the_last_boundary(world: &World) {
    world.beat().await.unwrap();
    let run = world.take_up(&short(Deadlines { progress_ms: SHORT, ..LONG })).await;
    let worker = world.work_on(&run).await;
    not_yet(world, &worker.object_uid, world.of(&worker).await.attempt.attached_at, SHORT).await;
    pause(WAIT).await;
    for commit in [worker.plan(1), worker.result(1)] {
        world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
        assert_eq!(
            runs_out(world, &worker.object_uid).await,
            Deadline::Progress,
            "a heartbeat is no progress"
        );
        ok(world.commit(&commit).await.unwrap());
        let at = world.of(&worker).await.head.map(|head| head.at);
        not_yet(world, &worker.object_uid, at, SHORT).await;
    }
}

async fn a_boundary_of_an_earlier_attempt_is_no_progress_of_this_one(world: &World) {
    world.beat().await.unwrap();
    let run = world.take_up(&short(Deadlines { progress_ms: SHORT, ..LONG })).await;
    let worker = world.work_on(&run).await;
    world.turn(&worker, 1).await;
    pause(WAIT).await;
    let next = world.next(&worker).await;
    // It counts from its own attach.
    not_yet(world, &next.object_uid, world.of(&next).await.attempt.attached_at, SHORT).await;
    assert_eq!(runs_out(world, &next.object_uid).await, Deadline::Progress);
}

async fn the_first_deadline_of_the_list_is_named(world: &World) {
    world.beat().await.unwrap();
    let both = Deadlines { heartbeat_ms: SHORT, progress_ms: SHORT, ..LONG };
    let worker = world.work_on(&world.take_up(&short(both)).await).await;
    pause(WAIT).await;
    world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    pause(WAIT).await;
    assert_eq!(runs_out(world, &worker.object_uid).await, Deadline::Lease);
    world.set_deadlines(worker.run, &Deadlines { heartbeat_ms: 60_000, ..both }).await.unwrap();
    assert_eq!(runs_out(world, &worker.object_uid).await, Deadline::Progress, "new lengths at once");
}

async fn a_shorter_lease_leaves_the_promised_one_its_end(world: &World) {
    world.beat().await.unwrap();
    let worker = world.work_on(&world.take_up(&short(LONG)).await).await;
    let shorter = Deadlines { heartbeat_ms: SHORT, ..LONG };
    let set = world.set_deadlines(worker.run, &shorter).await.unwrap();
    assert_eq!(set.attempt.lease_renewed_at, None, "no heartbeat has bound it");
    world.set_deadlines(worker.run, &LONG).await.unwrap();
    world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    let bound = world.of(&worker).await.attempt.lease_renewed_at.unwrap();
    // However often it is changed in between.
    for deadlines in [&shorter, &LONG, &shorter] {
        let set = world.set_deadlines(worker.run, deadlines).await.unwrap();
        assert_eq!((set.attempt.lease_renewed_at, set.lease_ms), (Some(bound), LONG.heartbeat_ms));
    }
    // The worker may wait for this answer longer than the shorter one lasts.
    world.turn(&worker, 1).await;
    assert_eq!(world.of(&worker).await.lease_ms, LONG.heartbeat_ms);
    pause(WAIT).await;
    assert_eq!(expired(world, &worker.object_uid).await, None, "the worker was told of nothing shorter");
    // Here it is.
    let told = world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    assert!(matches!(&told[..], [dalsegno_store::Beat::Ok(flags)] if flags.lease_ms == SHORT), "{told:?}");
    assert_eq!(world.of(&worker).await.lease_ms, SHORT);
    assert_eq!(runs_out(world, &worker.object_uid).await, Deadline::Lease);
    // A longer one holds at once, and with the next boundary for good.
    world.set_deadlines(worker.run, &LONG).await.unwrap();
    assert_eq!(expired(world, &worker.object_uid).await, None);
    world.turn(&worker, 2).await;
    assert_eq!(world.of(&worker).await.lease_ms, LONG.heartbeat_ms);
}

async fn an_attempt_that_has_ended_has_no_deadlines(world: &World) {
    world.beat().await.unwrap();
    let all = Deadlines { heartbeat_ms: 1, start_ms: 1, progress_ms: 1 };
    let worker = world.work_on(&world.take_up(&short(all)).await).await;
    recorded(world.record_scheduled(worker.run, 1, "node-a").await.unwrap());
    world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    world.end_attempt(worker.run, &ending(1, Class::Crash), &Then::Nothing).await.unwrap();
    pause(30).await;
    assert_eq!(expired(world, &worker.object_uid).await, None);
    world.end_attempt(worker.run, &ending(1, Class::Crash), &Then::Reserve).await.unwrap();
    pause(30).await;
    assert_eq!(expired(world, &worker.object_uid).await, None, "nor has one that is only reserved");
}

async fn a_finished_run_has_no_deadlines(world: &World) {
    world.beat().await.unwrap();
    let all = Deadlines { heartbeat_ms: 1, start_ms: 1, progress_ms: 1 };
    let worker = world.work_on(&world.take_up(&short(all)).await).await;
    world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    world.request_cancel(worker.run).await.unwrap();
    ok(world.finish(&worker.finish()).await.unwrap());
    pause(30).await;
    assert_eq!(expired(world, &worker.object_uid).await, None);
    world.mark_deleted(&worker.object_uid).await.unwrap();
    assert_eq!(expired(world, &worker.object_uid).await, None);
}

async fn every_clock_starts_anew_after_a_silence_of_the_gateways(world: &World) {
    world.beat().await.unwrap();
    let first = world.look(&world.run().await.object_uid).await.beat;
    let run = world.take_up(&short(Deadlines { heartbeat_ms: 300, progress_ms: 300, ..LONG })).await;
    let worker = world.work_on(&run).await;
    world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    pause(3_200).await;
    assert!(pulse(world).await.expired.is_empty(), "the last beat is stale: nothing is trusted");
    world.beat().await.unwrap();
    let beat = world.of(&worker).await.beat;
    assert_eq!(beat.gap_from, first.last, "the silence began with the last beat before it");
    assert!(beat.since > first.last && beat.last >= beat.since);
    // After the gap every clock starts anew.
    not_yet(world, &worker.object_uid, Some(beat.since), 300).await;
    assert_eq!(runs_out(world, &worker.object_uid).await, Deadline::Lease);
    assert_eq!(world.of(&worker).await.beat.since, beat.since, "beats without a gap move only the last");
}

async fn heartbeats_are_answered_one_by_one_in_order(world: &World) {
    use dalsegno_store::Beat;
    let (live, over, lost) = (world.worker().await, world.worker().await, world.worker().await);
    ok(world.finish(&over.finish()).await.unwrap());
    world.lose(&lost, Class::Disruption).await;
    let of = |worker: &Worker| (worker.run, worker.capability);
    let strangers = [(uuid::Uuid::now_v7(), live.capability), (live.run, random())];
    let workers = [of(&lost), of(&live), strangers[0], of(&over), strangers[1], of(&live)];
    let beats = world.heartbeats(&workers).await.unwrap();
    let kinds: Vec<_> = beats
        .iter()
        .map(|beat| match beat {
            Beat::Ok(_) => "ok",
            Beat::Finished => "finished",
            Beat::Fenced => "fenced",
        })
        .collect();
    assert_eq!(kinds, ["fenced", "ok", "fenced", "finished", "fenced", "ok"]);
    assert!(world.of(&live).await.attempt.lease_renewed_at.is_some());
    assert!(world.heartbeats(&[]).await.unwrap().is_empty());
}
