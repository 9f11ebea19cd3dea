//! Templates, and runs by their name.

use dalsegno_protocol::Boundary;
use dalsegno_store::{
    CANDIDATES, Class, OnPrior, Place, PodRecord, Recorded, Rewind, Rewound, RunRecord, Then,
};
use futures::future::join_all;

use crate::faces::on_every_face;
use crate::world::*;

on_every_face! {
    a_template_is_kept_by_its_hash,
    a_template_is_kept_for_a_reserved_attempt_alone,
    a_template_stays_as_long_as_a_run_that_lives_has_an_attempt_of_it,
    a_template_that_a_pod_may_be_made_of_stays_while_its_attempt_is_reserved,
    of_the_templates_of_a_reserved_attempt_the_last_ones_stay,
    templates_are_dropped_in_steps_of_so_many_rows_and_bytes,
    no_template_of_a_pod_is_dropped_however_many_come_and_go_at_once,
    runs_are_found_by_their_name,
}

/// Keeps a template, its own hash, for the run's current attempt.
async fn put(world: &World, run: &RunRecord, template: &str) -> Recorded {
    world.put_revision(run.id, run.attempt.number, template, template).await.unwrap()
}

/// The current attempt's pod, made of this template, is recorded.
async fn made_of(world: &World, run: &RunRecord, template: &str) -> Worker {
    let made = PodRecord { revision: template.into(), ..pod(run) };
    recorded(world.record_pod(run.id, run.attempt.number, &made).await.unwrap());
    world.work_on(run).await
}

/// Drops whatever no run needs. Which of these are there then.
async fn left<'a>(world: &World, templates: &[&'a str]) -> Vec<&'a str> {
    while world.drop_revisions(500).await.unwrap() > 0 {}
    let mut left = Vec::new();
    for template in templates {
        left.extend(world.get_revision(template).await.unwrap().map(|_| *template));
    }
    left
}

async fn a_template_is_kept_by_its_hash(world: &World) {
    assert_eq!(world.get_revision("sha256:aa").await.unwrap(), None);
    let run = world.run().await;
    let document = "{\"spec\":  {\"containers\": [\"\u{e9}\"]}}";
    for _ in 0..2 {
        recorded(world.put_revision(run.id, 1, "sha256:aa", document).await.unwrap());
    }
    recorded(world.put_revision(run.id, 1, "sha256:bb", "{}").await.unwrap());
    assert_eq!(world.get_revision("sha256:aa").await.unwrap().as_deref(), Some(document));
    assert_eq!(world.get_revision("sha256:bb").await.unwrap().as_deref(), Some("{}"));
}

async fn a_template_is_kept_for_a_reserved_attempt_alone(world: &World) {
    let run = world.run().await;
    assert_eq!(still(recorded(put(world, &run, "reserved").await)), still(world.look(&run.object_uid).await));
    world.work_on(&run).await;
    let now = refused(put(world, &run, "it has a pod").await);
    assert_eq!(still(now), still(world.look(&run.object_uid).await));
    let next = world.end_attempt(run.id, &ending(1, Class::Crash), &Then::Reserve).await.unwrap();
    refused(put(world, &run, "of an earlier attempt").await);
    world.mark_deleted(&run.object_uid).await.unwrap();
    refused(put(world, &next, "of a run that is over").await);
    let all = ["reserved", "it has a pod", "of an earlier attempt", "of a run that is over"];
    let mut there = Vec::new();
    for template in all {
        there.extend(world.get_revision(template).await.unwrap());
    }
    assert_eq!(there, ["reserved"]);
}

async fn a_template_stays_as_long_as_a_run_that_lives_has_an_attempt_of_it(world: &World) {
    let all = ["both", "one", "nobody"];
    let (one, other) = (world.run().await, world.run().await);
    for (run, template) in [(&one, "nobody"), (&one, "both"), (&other, "both")] {
        recorded(put(world, run, template).await);
    }
    let worker = made_of(world, &one, "both").await;
    made_of(world, &other, "both").await;
    for turn in 1..=2 {
        world.turn(&worker, turn).await;
    }
    assert_eq!(left(world, &all).await, ["both"], "no pod can be made of the other any more");
    let next = world.lose(&worker, Class::Crash).await;
    recorded(put(world, &next, "one").await);
    let worker = made_of(world, &next, "one").await;
    world.turn(&worker, 3).await;
    world.mark_deleted(&other.object_uid).await.unwrap();
    assert_eq!(left(world, &all).await, ["both", "one"], "it may go back to a turn of its first attempt");
    let (epoch, to) =
        (world.of(&worker).await.epoch, Place { turn: 2, boundary: Boundary::Result, epoch: 1 });
    let rewind = Rewind { epoch, to, reason: "it went astray".into(), actor: "ada".into() };
    let Rewound::Done(back) = world.rewind(one.id, &rewind).await.unwrap() else { panic!("no way back") };
    let head = back.head.unwrap().revision.unwrap();
    assert_eq!(left(world, &[&head]).await, ["both"]);
    let worker = world.work_on(&world.of(&worker).await).await;
    ok(world.finish(&worker.finish()).await.unwrap());
    assert!(left(world, &all).await.is_empty(), "a run that is over resumes from nothing");
}

async fn a_template_that_a_pod_may_be_made_of_stays_while_its_attempt_is_reserved(world: &World) {
    let all = ["first", "second"];
    let run = world.run().await;
    // The pod of the first one is made, and no answer tells of it.
    for template in all {
        recorded(put(world, &run, template).await);
        assert!(left(world, &all).await.contains(&template));
    }
    let worker = made_of(world, &run, "first").await;
    assert_eq!(left(world, &all).await, ["first"]);
    let next = world.lose(&worker, Class::Crash).await;
    recorded(put(world, &next, "second").await);
    assert_eq!(left(world, &all).await, all);
    world.end_attempt(run.id, &ending(2, Class::Neutral), &Then::Reserve).await.unwrap();
    assert_eq!(left(world, &all).await, ["first"], "no pod of that attempt counts any more");
}

async fn of_the_templates_of_a_reserved_attempt_the_last_ones_stay(world: &World) {
    let run = world.run().await;
    let all: Vec<_> = (0..=CANDIDATES).map(|n| format!("template {n}")).collect();
    let all: Vec<_> = all.iter().map(String::as_str).collect();
    for template in &all[..CANDIDATES] {
        recorded(put(world, &run, template).await);
    }
    // Again, so that it is no longer the first that was put.
    recorded(put(world, &run, all[0]).await);
    assert_eq!(left(world, &all).await, all[..CANDIDATES]);
    recorded(put(world, &run, all[CANDIDATES]).await);
    assert_eq!(left(world, &all).await, [&all[..1], &all[2..]].concat());
}

async fn templates_are_dropped_in_steps_of_so_many_rows_and_bytes(world: &World) {
    let document = "x".repeat(3 << 20);
    for n in 0..4 {
        let run = world.run().await;
        recorded(world.put_revision(run.id, 1, &format!("large {n}"), &document).await.unwrap());
        recorded(world.put_revision(run.id, 1, &format!("small {n}"), "{}").await.unwrap());
        world.mark_deleted(&run.object_uid).await.unwrap();
    }
    let mut steps = Vec::new();
    for rows in [500, 2, 500, 500] {
        steps.push(world.drop_revisions(rows).await.unwrap());
    }
    assert_eq!(steps, [3, 2, 3, 0]);
}

async fn no_template_of_a_pod_is_dropped_however_many_come_and_go_at_once(world: &World) {
    let lives = (0..4).map(async |_| {
        for _ in 0..25 {
            let run = world.run().await;
            recorded(put(world, &run, "shared").await);
            assert!(
                world.get_revision("shared").await.unwrap().is_some(),
                "dropped before the pod was recorded"
            );
            made_of(world, &run, "shared").await;
            assert!(world.get_revision("shared").await.unwrap().is_some(), "dropped after");
            world.mark_deleted(&run.object_uid).await.unwrap();
        }
    });
    let mut lives = Box::pin(join_all(lives));
    loop {
        tokio::select! {
            _ = &mut lives => break,
            dropped = world.other.drop_revisions(500) => drop(dropped.unwrap()),
        }
    }
}

async fn runs_are_found_by_their_name(world: &World) {
    let first = new_run();
    world.take_up(&first).await;
    world.mark_deleted(&first.object_uid).await.unwrap();
    pause(5).await;
    let second = namesake(&first, OnPrior::Hold);
    world.take_up(&second).await;
    world.run().await;
    let found = world.find(&first.namespace, &first.name).await.unwrap();
    let ids: Vec<_> = found.iter().map(|run| run.id).collect();
    assert_eq!(ids, [second.id, first.id], "the newest first, deleted ones too");
    assert_eq!(still(found[0].clone()), still(world.look(&second.object_uid).await));
    assert!(world.find("elsewhere", &first.name).await.unwrap().is_empty());
    assert!(world.find(&first.namespace, "nobody").await.unwrap().is_empty());
}
