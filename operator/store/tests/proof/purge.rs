//! Purging: runs that ended long ago are deleted. A check distinguishes them from runs that somebody removed.

use dalsegno_model::read_transaction::{EVERY_RUN, NO_RUN};
use dalsegno_model::{EndedRun, Error, NewRun, Purge, PurgeScope, PurgeStep, Retention, RunId, WaitAsks};
use jiff::Timestamp;

use crate::append_only::with_a_role;
use crate::context::{Worker, new_run};
use crate::prune::{anchor, problems};
use crate::stores::{id, used};
use crate::{Engine, on_both_databases, waits};

on_both_databases! {
    a_purge_leaves_one_row_and_every_step_of_it_verifies,
    a_purge_waits_for_the_anchor_that_names_it,
    runs_that_are_not_over_or_still_have_payloads_are_kept,
    three_hundred_runs_are_purged_in_pages_of_one_namespace,
    a_run_removed_by_hand_is_found,
    an_edited_or_removed_purge_record_is_found,
    a_purge_record_that_only_a_forged_anchor_names_is_found_with_the_copy,
    purge_records_go_with_the_anchors_that_name_them,
    purge_records_cannot_be_edited,
}

/// The tables with a row per run, and the column of its id.
const TABLES: [(&str, &str); 14] = [
    ("runs", "id"),
    ("attempts", "run"),
    ("audit", "run"),
    ("boundaries", "run"),
    ("calls", "run"),
    ("messages", "run"),
    ("waits", "run"),
    ("snapshots", "run"),
    ("chunks", "run"),
    ("records", "run"),
    ("record_batches", "run"),
    ("record_changes", "run"),
    ("data_keys", "run"),
    ("purges", "run"),
];

/// Later than the end of every run of a test.
const LATER: Timestamp = Timestamp::MAX;

fn purge(run: RunId) -> Purge {
    Purge { run, before: LATER, actor: "ada".into(), reason: "it is archived".into() }
}

/// A run that may be purged: it has finished, its AgentRun was deleted, and its payloads were dropped.
async fn over(engine: &Engine) -> Worker {
    let worker = used(engine).await;
    waits::open(engine, &worker, "news", WaitAsks::Message(None)).await;
    engine.cx.finish(&worker.finish()).await.unwrap();
    engine.cx.mark_deleted(&worker.object_uid).await.unwrap();
    expire(engine, worker.run).await;
    worker
}

async fn expire(engine: &Engine, run: RunId) {
    engine.cx.set_retention(run, &Retention { days: 0, ..Retention::default() }).await.unwrap();
    while engine.cx.drop_expired(500).await.unwrap().run.is_some() {}
}

async fn step(engine: &Engine, run: RunId) -> PurgeStep {
    engine.cx.purge(&purge(run), 3).await.unwrap()
}

/// Purges a run that may be purged, and anchors it.
async fn purged(engine: &Engine, copy: &mut Vec<String>) -> Worker {
    let worker = over(engine).await;
    assert_eq!(step(engine, worker.run).await, PurgeStep::Recorded);
    anchor(engine, copy).await;
    while !matches!(step(engine, worker.run).await, PurgeStep::Deleted { done: true, .. }) {}
    worker
}

async fn rows(engine: &Engine, run: RunId) -> Vec<(&'static str, i64)> {
    let mut rows = Vec::new();
    for (table, column) in TABLES {
        let sql = format!("SELECT count(*) FROM {table} WHERE {column} = {}", id(engine, run));
        rows.push((table, engine.count(&sql).await));
    }
    rows.retain(|(_, count)| *count > 0);
    rows
}

async fn a_purge_leaves_one_row_and_every_step_of_it_verifies(engine: &Engine) {
    let (worker, mut copy) = (over(engine).await, Vec::new());
    anchor(engine, &mut copy).await;
    assert_eq!(step(engine, worker.run).await, PurgeStep::Recorded);
    let record = engine.cx.audit(worker.run).await.unwrap().pop().unwrap();
    assert_eq!((record.kind.as_str(), record.actor.as_str()), ("purged", "ada"));
    for said in ["it is archived", "run-", "tenant-1", "Succeeded"] {
        assert!(record.detail.contains(said), "{}", record.detail);
    }
    anchor(engine, &mut copy).await;
    let mut steps = 0;
    loop {
        let PurgeStep::Deleted { rows, done } = step(engine, worker.run).await else { panic!("not deleted") };
        assert!((1..=4).contains(&rows), "{rows} rows at once");
        // A process may die here: the next one continues, and a check finds nothing wrong.
        for copy in [&copy[..], &copy[1..], &[]] {
            assert_eq!(problems(engine, copy).await, [""; 0], "after step {steps}");
        }
        assert_eq!(engine.check().await.0.purged, 1);
        steps += 1;
        if done {
            break;
        }
    }
    assert!(steps > 5, "{steps}");
    assert_eq!(rows(engine, worker.run).await, [("purges", 1)]);
    let kept = engine.cx.begin_read().await.unwrap().purges(NO_RUN, EVERY_RUN).await.unwrap();
    assert_eq!(kept, [(worker.run, record)]);
    assert_eq!(step(engine, worker.run).await, PurgeStep::Kept, "it is gone");
    let again = engine.cx.heads_to_anchor(RunId::nil()).await.unwrap().heads;
    assert!(again.iter().all(|head| head.run != worker.run), "a purged run is not anchored again");
    assert_eq!(engine.cx.find("agents", "run-").await.unwrap(), []);
    // The other run is as it was.
    assert_eq!(engine.check().await.0.runs, 1);
}

async fn a_purge_waits_for_the_anchor_that_names_it(engine: &Engine) {
    let (worker, mut copy) = (over(engine).await, Vec::new());
    anchor(engine, &mut copy).await;
    assert_eq!(step(engine, worker.run).await, PurgeStep::Recorded);
    let before = rows(engine, worker.run).await;
    assert_eq!(step(engine, worker.run).await, PurgeStep::NotAnchored);
    // Another row of the audit after the one that was anchored: the purge is recorded again.
    anchor(engine, &mut copy).await;
    engine.cx.adopt_namespace("tenant-1", "tenant-2").await.unwrap();
    assert_eq!(step(engine, worker.run).await, PurgeStep::Recorded);
    assert_eq!(step(engine, worker.run).await, PurgeStep::NotAnchored);
    let audit_rows = |rows: &[(&str, i64)]| rows.iter().find(|(table, _)| *table == "audit").unwrap().1;
    let after = rows(engine, worker.run).await;
    assert_eq!(audit_rows(&after), audit_rows(&before) + 2, "nothing was deleted");
    assert_eq!(problems(engine, &copy).await, [""; 0]);
}

async fn runs_that_are_not_over_or_still_have_payloads_are_kept(engine: &Engine) {
    let mut copy = Vec::new();
    let live = used(engine).await;
    let finished = used(engine).await;
    engine.cx.finish(&finished.finish()).await.unwrap();
    expire(engine, finished.run).await;
    let with_payloads = used(engine).await;
    engine.cx.finish(&with_payloads.finish()).await.unwrap();
    engine.cx.mark_deleted(&with_payloads.object_uid).await.unwrap();
    let later = over(engine).await;
    anchor(engine, &mut copy).await;
    let before = engine.check().await.0;
    let long_ago = Purge { before: Timestamp::UNIX_EPOCH, ..purge(later.run) };
    for _ in 0..2 {
        for run in [live.run, finished.run, with_payloads.run, RunId::max()] {
            assert_eq!(step(engine, run).await, PurgeStep::Kept, "{run}");
        }
        assert_eq!(engine.cx.purge(&long_ago, 3).await.unwrap(), PurgeStep::Kept);
    }
    assert_eq!(engine.check().await.0, before);
    let all = PurgeScope { before: LATER, namespace: None };
    let listed = engine.cx.runs_to_purge(&all, EndedRun::FIRST).await.unwrap();
    assert_eq!(listed.iter().map(|ended| ended.run).collect::<Vec<_>>(), [later.run]);
    let none = PurgeScope { before: Timestamp::UNIX_EPOCH, namespace: None };
    assert_eq!(engine.cx.runs_to_purge(&none, EndedRun::FIRST).await.unwrap(), []);
}

async fn three_hundred_runs_are_purged_in_pages_of_one_namespace(engine: &Engine) {
    let mut copy = Vec::new();
    for number in 0..300 {
        let namespace = if number % 3 == 0 { "other" } else { "agents" };
        let new = NewRun { namespace: namespace.into(), ..new_run() };
        engine.cx.create(&new).await;
        engine.cx.set_retention(new.id, &Retention { days: 0, ..Retention::default() }).await.unwrap();
        engine.cx.mark_deleted(&new.object_uid).await.unwrap();
        engine.cx.expire(new.id, 500).await.unwrap();
    }
    let scope = |namespace: &str| PurgeScope { before: LATER, namespace: Some(namespace.into()) };
    let pass = async |namespace: &str| {
        let (mut after, mut pages, mut steps) = (EndedRun::FIRST, 0, Vec::new());
        loop {
            let page = engine.cx.runs_to_purge(&scope(namespace), after).await.unwrap();
            let Some(last) = page.last() else { return (pages, steps) };
            assert!(page.is_sorted(), "the earliest end first");
            (after, pages) = (*last, pages + 1);
            for EndedRun { run, .. } in page {
                steps.push(engine.cx.purge(&purge(run), 500).await.unwrap());
            }
        }
    };
    assert_eq!(pass("agents").await, (1, vec![PurgeStep::Recorded; 200]));
    anchor(engine, &mut copy).await;
    let (_, steps) = pass("agents").await;
    assert!(steps.iter().all(|step| matches!(step, PurgeStep::Deleted { done: true, .. })), "{steps:?}");
    assert_eq!(pass("agents").await, (0, Vec::new()));
    assert_eq!(problems(engine, &copy).await, [""; 0]);
    let summary = engine.check().await.0;
    assert_eq!((summary.runs, summary.purged), (100, 200));
    assert_eq!(pass("other").await.1, vec![PurgeStep::Recorded; 100]);
}

const MISSING: &str = "anchors name the run, and it is missing";

/// Deletes all rows of a run, as somebody who owns the database can.
async fn remove(engine: &Engine, run: RunId) {
    engine.unlock().await;
    for (table, column) in TABLES.iter().rev() {
        let sql = format!("DELETE FROM {table} WHERE {column} = {}", id(engine, run));
        if *table != "purges" {
            engine.execute(&sql).await.unwrap();
        }
    }
}

async fn a_run_removed_by_hand_is_found(engine: &Engine) {
    let (worker, mut copy) = (over(engine).await, Vec::new());
    anchor(engine, &mut copy).await;
    // The purge is recorded, and removed before an anchor names it.
    assert_eq!(step(engine, worker.run).await, PurgeStep::Recorded);
    let keep = format!(
        "INSERT INTO purges SELECT * FROM audit WHERE kind = 'purged' AND run = {}",
        id(engine, worker.run)
    );
    engine.execute("CREATE TABLE kept AS SELECT * FROM audit").await.unwrap();
    remove(engine, worker.run).await;
    assert_eq!(problems(engine, &copy).await, [MISSING]);
    engine.execute(&keep.replace("FROM audit", "FROM kept")).await.unwrap();
    let unnamed = "the run is missing, and no anchor names this row";
    assert_eq!(problems(engine, &copy).await, [unnamed]);
    assert_eq!(problems(engine, &[]).await, [unnamed]);
}

async fn an_edited_or_removed_purge_record_is_found(engine: &Engine) {
    let mut copy = Vec::new();
    let worker = purged(engine, &mut copy).await;
    assert_eq!(problems(engine, &copy).await, [""; 0]);
    engine.unlock_purges().await;
    let run = id(engine, worker.run);
    engine.execute("CREATE TABLE kept_purges AS SELECT * FROM purges").await.unwrap();
    for set in ["actor = 'nobody'", "at = at + 1", "detail = '{}'", "kind = 'pod'", "seq = seq + 1"] {
        engine.execute(&format!("UPDATE purges SET {set} WHERE run = {run}")).await.unwrap();
        let found = problems(engine, &copy).await;
        assert_eq!(found, ["it was edited: it does not have the hash it must have"], "{set}");
        engine.execute("DELETE FROM purges; INSERT INTO purges SELECT * FROM kept_purges").await.unwrap();
    }
    engine.execute("DELETE FROM purges").await.unwrap();
    assert_eq!(problems(engine, &copy).await, [MISSING]);
}

async fn a_purge_record_that_only_a_forged_anchor_names_is_found_with_the_copy(engine: &Engine) {
    let mut copy = Vec::new();
    let live = used(engine).await;
    anchor(engine, &mut copy).await;
    let before = copy.clone();
    purged(engine, &mut copy).await;
    assert_eq!(problems(engine, &copy).await, [""; 0]);
    let found = problems(engine, &before).await;
    assert_eq!(found, ["the run is missing, and only the store's own anchors name this row"], "{}", live.run);
}

async fn purge_records_go_with_the_anchors_that_name_them(engine: &Engine) {
    let mut copy = Vec::new();
    let worker = purged(engine, &mut copy).await;
    let forget = async || engine.cx.forget_purges(RunId::nil()).await.unwrap();
    assert_eq!((forget().await.rows, forget().await.next), (0, Some(worker.run)), "an anchor names it");
    engine.cx.store.request_anchors_from(2).await.unwrap();
    anchor(engine, &mut copy).await;
    assert_eq!(engine.cx.prune_anchors(2).await.unwrap(), 1);
    assert_eq!(problems(engine, &copy).await, [""; 0], "its anchor is pruned, and it is still there");
    assert_eq!(forget().await.rows, 1);
    assert_eq!(forget().await.next, None);
    assert_eq!(rows(engine, worker.run).await, []);
    assert_eq!(problems(engine, &copy).await, [""; 0]);
}

async fn purge_records_cannot_be_edited(engine: &Engine) {
    purged(engine, &mut Vec::new()).await;
    for sql in ["UPDATE purges SET actor = 'nobody'", "DELETE FROM purges"] {
        let refused = engine.execute(sql).await.unwrap_err().to_string();
        assert!(refused.contains("refused"), "{sql}: {refused}");
    }
    assert_eq!(engine.check().await.1, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_role_of_operator_and_gateway_cannot_purge() {
    let engine = with_a_role("an app that purges").await;
    let worker = over(&engine).await;
    let before = engine.cx.audit(worker.run).await.unwrap();
    let refused = engine.cx.purge(&purge(worker.run), 3).await;
    assert!(matches!(&refused, Err(Error::Unusable(why)) if why.contains("owns its tables")), "{refused:?}");
    let refused = engine.execute("INSERT INTO purges SELECT * FROM audit").await.unwrap_err();
    assert_eq!(refused.as_database_error().unwrap().code().unwrap(), "42501");
    assert_eq!(engine.cx.audit(worker.run).await.unwrap(), before, "nothing is recorded either");
    assert_eq!(engine.check().await.1, []);
}
