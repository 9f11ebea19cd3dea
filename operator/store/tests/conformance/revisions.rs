//! Revisions (pod templates), and finding runs by name.

use dalsegno_model::{CANDIDATES, Class, NextStep, OnPrior, PodRecord, Recorded, Rewound, RunRecord};
use futures::future::join_all;

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_template_is_stored_by_its_hash,
    a_template_is_stored_only_for_a_reserved_attempt,
    a_template_is_kept_while_a_live_run_has_an_attempt_of_it,
    a_candidate_template_is_kept_while_its_attempt_is_reserved,
    a_reserved_attempt_keeps_its_latest_templates,
    templates_are_dropped_in_steps_limited_by_rows_and_bytes,
    no_template_of_a_pod_is_dropped_under_concurrent_changes,
    runs_are_found_by_their_name,
}

/// Stores a template under its own text as the hash, for the run's current attempt.
async fn put(cx: &TestContext, run: &RunRecord, text: &str) -> Recorded {
    cx.put_revision(run.id, run.attempt.number, &template(text, text)).await.unwrap()
}

/// Records a pod of this template for the current attempt, and attaches a worker.
async fn made_of(cx: &TestContext, run: &RunRecord, template: &str) -> Worker {
    let made = PodRecord { revision: template.into(), ..pod(run) };
    recorded(cx.record_pod(run.id, run.attempt.number, &made).await.unwrap());
    cx.start_worker(run).await
}

/// Drops the templates that no run needs. Returns those of the list that are left.
async fn left<'a>(cx: &TestContext, templates: &[&'a str]) -> Vec<&'a str> {
    while cx.delete_unused_revisions(500).await.unwrap() > 0 {}
    let mut left = Vec::new();
    for template in templates {
        left.extend(cx.get_revision(template).await.unwrap().map(|_| *template));
    }
    left
}

async fn a_template_is_stored_by_its_hash(cx: &TestContext) {
    assert_eq!(cx.get_revision("sha256:aa").await.unwrap(), None);
    let run = cx.run().await;
    let document = "{\"spec\":  {\"containers\": [\"\u{e9}\"]}}";
    for _ in 0..2 {
        recorded(cx.put_revision(run.id, 1, &template("sha256:aa", document)).await.unwrap());
    }
    recorded(cx.put_revision(run.id, 1, &template("sha256:bb", "{}")).await.unwrap());
    assert_eq!(cx.get_revision("sha256:aa").await.unwrap().as_deref(), Some(document));
    assert_eq!(cx.get_revision("sha256:bb").await.unwrap().as_deref(), Some("{}"));
}

async fn a_template_is_stored_only_for_a_reserved_attempt(cx: &TestContext) {
    let run = cx.run().await;
    assert_eq!(
        without_times(recorded(put(cx, &run, "reserved").await)),
        without_times(cx.run_by_uid(&run.object_uid).await)
    );
    cx.start_worker(&run).await;
    let now = refused(put(cx, &run, "it has a pod").await);
    assert_eq!(without_times(now), without_times(cx.run_by_uid(&run.object_uid).await));
    let next = cx.end_attempt(run.id, &ending(1, Class::Crash), &NextStep::Reserve).await.unwrap();
    refused(put(cx, &run, "of an earlier attempt").await);
    cx.mark_deleted(&run.object_uid).await.unwrap();
    refused(put(cx, &next, "of a run that is over").await);
    let all = ["reserved", "it has a pod", "of an earlier attempt", "of a run that is over"];
    let mut there = Vec::new();
    for template in all {
        there.extend(cx.get_revision(template).await.unwrap());
    }
    assert_eq!(there, ["reserved"]);
}

async fn a_template_is_kept_while_a_live_run_has_an_attempt_of_it(cx: &TestContext) {
    let all = ["both", "one", "unused"];
    let (one, other) = (cx.run().await, cx.run().await);
    for (run, template) in [(&one, "unused"), (&one, "both"), (&other, "both")] {
        recorded(put(cx, run, template).await);
    }
    let worker = made_of(cx, &one, "both").await;
    made_of(cx, &other, "both").await;
    for turn in 1..=2 {
        cx.commit_turn(&worker, turn).await;
    }
    assert_eq!(left(cx, &all).await, ["both"], "no pod can use the other template any more");
    let next = cx.end_and_reserve(&worker, Class::Crash).await;
    recorded(put(cx, &next, "one").await);
    let worker = made_of(cx, &next, "one").await;
    cx.commit_turn(&worker, 3).await;
    cx.mark_deleted(&other.object_uid).await.unwrap();
    assert_eq!(left(cx, &all).await, ["both", "one"], "a rewind may need the first attempt's template");
    let (epoch, to) = (cx.run_of(&worker).await.epoch, result_place(2));
    let rewind = rewind_to(epoch, to);
    let Rewound::Done(back) = cx.rewind(one.id, &rewind).await.unwrap() else {
        panic!("the rewind was refused")
    };
    let head = back.head.unwrap().revision.unwrap();
    assert_eq!(left(cx, &[&head]).await, ["both"]);
    let worker = cx.start_worker(&cx.run_of(&worker).await).await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    assert!(left(cx, &all).await.is_empty(), "a closed run never resumes");
}

async fn a_candidate_template_is_kept_while_its_attempt_is_reserved(cx: &TestContext) {
    let all = ["first", "second"];
    let run = cx.run().await;
    // The first template's pod was created, but its record is lost.
    for template in all {
        recorded(put(cx, &run, template).await);
        assert!(left(cx, &all).await.contains(&template));
    }
    let worker = made_of(cx, &run, "first").await;
    assert_eq!(left(cx, &all).await, ["first"]);
    let next = cx.end_and_reserve(&worker, Class::Crash).await;
    recorded(put(cx, &next, "second").await);
    assert_eq!(left(cx, &all).await, all);
    cx.end_attempt(run.id, &ending(2, Class::Neutral), &NextStep::Reserve).await.unwrap();
    assert_eq!(left(cx, &all).await, ["first"], "that attempt can have no pod any more");
}

async fn a_reserved_attempt_keeps_its_latest_templates(cx: &TestContext) {
    let run = cx.run().await;
    let all: Vec<_> = (0..=CANDIDATES).map(|n| format!("template {n}")).collect();
    let all: Vec<_> = all.iter().map(String::as_str).collect();
    for template in &all[..CANDIDATES] {
        recorded(put(cx, &run, template).await);
    }
    // Put again, so that another template is the oldest.
    recorded(put(cx, &run, all[0]).await);
    assert_eq!(left(cx, &all).await, all[..CANDIDATES]);
    recorded(put(cx, &run, all[CANDIDATES]).await);
    assert_eq!(left(cx, &all).await, [&all[..1], &all[2..]].concat());
}

async fn templates_are_dropped_in_steps_limited_by_rows_and_bytes(cx: &TestContext) {
    let document = "x".repeat(3 << 20);
    for n in 0..4 {
        let run = cx.run().await;
        recorded(cx.put_revision(run.id, 1, &template(&format!("large {n}"), &document)).await.unwrap());
        recorded(cx.put_revision(run.id, 1, &template(&format!("small {n}"), "{}")).await.unwrap());
        cx.mark_deleted(&run.object_uid).await.unwrap();
    }
    let mut steps = Vec::new();
    for rows in [500, 2, 500, 500] {
        steps.push(cx.delete_unused_revisions(rows).await.unwrap());
    }
    assert_eq!(steps, [3, 2, 3, 0]);
}

async fn no_template_of_a_pod_is_dropped_under_concurrent_changes(cx: &TestContext) {
    let lives = (0..4).map(async |_| {
        for _ in 0..25 {
            let run = cx.run().await;
            recorded(put(cx, &run, "shared").await);
            assert!(
                cx.get_revision("shared").await.unwrap().is_some(),
                "dropped before the pod was recorded"
            );
            made_of(cx, &run, "shared").await;
            assert!(cx.get_revision("shared").await.unwrap().is_some(), "dropped after");
            cx.mark_deleted(&run.object_uid).await.unwrap();
        }
    });
    let mut lives = Box::pin(join_all(lives));
    loop {
        tokio::select! {
            _ = &mut lives => break,
            dropped = cx.second_gateway.delete_unused_revisions(500) => drop(dropped.unwrap()),
        }
    }
}

async fn runs_are_found_by_their_name(cx: &TestContext) {
    let first = new_run();
    cx.create(&first).await;
    cx.mark_deleted(&first.object_uid).await.unwrap();
    sleep_ms(5).await;
    let second = namesake(&first, OnPrior::Hold);
    cx.create(&second).await;
    cx.run().await;
    let found = cx.find(&first.namespace, &first.name).await.unwrap();
    let ids: Vec<_> = found.iter().map(|run| run.id).collect();
    assert_eq!(ids, [second.id, first.id], "newest first, including deleted runs");
    assert_eq!(without_times(found[0].clone()), without_times(cx.run_by_uid(&second.object_uid).await));
    assert!(cx.find("elsewhere", &first.name).await.unwrap().is_empty());
    assert!(cx.find(&first.namespace, "nobody").await.unwrap().is_empty());
}
