//! Shredding: a run whose data key was deleted cannot be read, and every reader gets the reason.

use dalsegno_model::read_transaction::BoundaryKey;
use dalsegno_model::{CallFilter, Error, PayloadLoss, Shredded, audit};
use dalsegno_proof::bundle;
use dalsegno_proof::verify;
use uuid::Uuid;

use crate::context::all_records;
use crate::{CANARY, Engine, TestContext, Worker, batch, check, on_both_databases, read_all, shred, worked};

on_both_databases! {
    a_shredded_run_cannot_be_read_and_the_audit_has_the_reason,
    a_live_or_unknown_run_is_not_shredded,
    a_shredded_run_is_reported_as_shredded_and_not_as_damage,
    a_bundle_of_a_shredded_run_proves_its_chains,
    a_data_key_deleted_without_an_audit_row_is_reported,
    a_reading_does_not_cache_a_shredded_key_for_its_process,
    a_bundle_begun_before_the_shredding_is_complete,
    plain_payloads_outlive_the_shredding,
    a_never_sealed_run_is_not_reported_as_shredded,
}

async fn finished(cx: &TestContext) -> Worker {
    let worker = worked(cx, 12).await;
    cx.finish(&worker.finish()).await.unwrap();
    worker
}

async fn shredded(engine: &Engine) -> (TestContext, Worker) {
    let cx = engine.sealed().await;
    let worker = finished(&cx).await;
    let answer = cx.shred(&shred(worker.run, "its user asked for it", "somebody")).await.unwrap();
    assert_eq!(answer, Shredded::Done);
    (cx, worker)
}

async fn a_shredded_run_cannot_be_read_and_the_audit_has_the_reason(engine: &Engine) {
    let (cx, worker) = shredded(engine).await;
    for cx in [&cx, &engine.sealed().await] {
        match read_all(cx, worker.run).await {
            Err(Error::Gone { detail, .. }) => assert!(detail.contains("shredded"), "{detail}"),
            other => panic!("{other:?}"),
        }
        let query = all_records();
        let records = cx.read_records(worker.run, &query).await;
        assert!(matches!(records, Err(Error::Gone { .. })), "{records:?}");
        let late = cx.write_records(&batch(&worker)).await;
        assert!(matches!(late, Err(Error::Gone { .. })), "{late:?}");
        let calls = cx.calls(worker.run, CallFilter::All).await.unwrap();
        assert!(calls.iter().all(|call| call.arguments.is_none() && call.result.is_none()));
        assert_eq!(calls.len(), 13, "names and keys stay");
    }
    assert_eq!(engine.ask("SELECT CAST(count(wrapped) AS text) FROM data_keys").await, "0");
    assert_eq!(cx.shred(&shred(worker.run, "again", "another")).await.unwrap(), Shredded::GoneBefore);
    let rows = cx.audit(worker.run).await.unwrap();
    let shreds: Vec<_> = rows.iter().filter(|row| row.kind == "shredded").collect();
    assert_eq!((shreds.len(), &*shreds[0].actor), (1, "somebody"));
    assert!(shreds[0].detail.contains("its user asked for it"));
    cx.assert_audit_is_valid(worker.run).await;
    assert_eq!(audit::first_needed(&rows), shreds[0].seq, "it is never pruned");
}

async fn a_live_or_unknown_run_is_not_shredded(engine: &Engine) {
    let cx = engine.sealed().await;
    let worker = worked(&cx, 2).await;
    assert_eq!(cx.shred(&shred(worker.run, "why", "who")).await.unwrap(), Shredded::Live);
    assert_eq!(cx.shred(&shred(Uuid::now_v7(), "why", "who")).await.unwrap(), Shredded::NotFound);
    read_all(&engine.sealed().await, worker.run).await.unwrap();
}

async fn a_shredded_run_is_reported_as_shredded_and_not_as_damage(engine: &Engine) {
    let (cx, worker) = shredded(engine).await;
    let found = verify::scan(&*cx.store, &cx.run_of(&worker).await).await.unwrap();
    assert_eq!((found.damage, found.shredded, found.last_good), (vec![], 12, None));
    let (summary, problems) = check(&engine.sealed().await).await;
    assert_eq!((problems, summary.shredded), (vec![], 1));
    engine.edit("UPDATE boundaries SET tokens_in = 7 WHERE turn = 5").await;
    assert_eq!(check(&cx).await.1.len(), 1, "its headers are still proved");
}

async fn a_bundle_of_a_shredded_run_proves_its_chains(engine: &Engine) {
    let (cx, worker) = shredded(engine).await;
    let bytes = crate::bundle(&cx, worker.run).await;
    let verified = bundle::verify(&*bytes, None).unwrap();
    assert_eq!((verified.problems, verified.boundaries, verified.shredded), (vec![], 12, true));
    assert!(!String::from_utf8(bytes.clone()).unwrap().contains(CANARY));
    let refused = bundle::state(&*bytes, 7).unwrap_err().to_string();
    assert!(refused.contains(&PayloadLoss::Shredded.to_string()), "{refused}");
}

async fn a_data_key_deleted_without_an_audit_row_is_reported(engine: &Engine) {
    finished(&engine.sealed().await).await;
    engine
        .edit("UPDATE data_keys SET wrapped = NULL, key_id = NULL, shredded_at = 1 WHERE key_id = 'k1'")
        .await;
    let (_, problems) = check(&engine.sealed().await).await;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].what.contains("does not say that they were shredded"), "{}", problems[0]);
}

async fn a_reading_does_not_cache_a_shredded_key_for_its_process(engine: &Engine) {
    let cx = engine.sealed().await;
    let worker = finished(&cx).await;
    let other = engine.sealed().await;
    let mut reading = other.begin_read().await.unwrap();
    assert_eq!(reading.runs(None).await.unwrap().len(), 1, "the reading has started");
    cx.shred(&shred(worker.run, "why", "who")).await.unwrap();
    let boundaries = reading.boundaries(BoundaryKey::before(worker.run), worker.run).await.unwrap();
    assert!(
        boundaries.iter().all(|it| it.decoded.row.ops.is_some()),
        "it reads the rows of its point in time"
    );
    let refused = read_all(&other, worker.run).await;
    assert!(matches!(refused, Err(Error::Gone { .. })), "{refused:?}");
}

async fn a_bundle_begun_before_the_shredding_is_complete(engine: &Engine) {
    let cx = engine.sealed().await;
    let worker = finished(&cx).await;
    let export = crate::export(&cx, worker.run).await.unwrap();
    cx.shred(&shred(worker.run, "why", "who")).await.unwrap();
    assert!(matches!(read_all(&cx, worker.run).await, Err(Error::Gone { .. })), "the process has noticed");
    let bytes = crate::written(export).await;
    let verified = bundle::verify(&*bytes, None).unwrap();
    assert_eq!((verified.problems, verified.boundaries, verified.shredded), (vec![], 12, false));
    assert!(String::from_utf8(bytes).unwrap().contains(CANARY));
}

async fn plain_payloads_outlive_the_shredding(engine: &Engine) {
    let plain = engine.plain().await;
    let worker = worked(&plain, 3).await;
    let cx = engine.sealed().await;
    crate::work(&cx, &worker, 4..=12).await;
    cx.finish(&worker.finish()).await.unwrap();
    // Three turns with a planned call and a record each, a claimed call, a wait, and a batch of one record.
    let (before, plain) = (cx.count_unsealed(worker.run).await.unwrap(), 3 + 3 + 3 + 1 + 1 + 1);
    cx.shred(&shred(worker.run, "why", "who")).await.unwrap();
    assert_eq!(
        (before, cx.count_unsealed(worker.run).await.unwrap()),
        (plain, plain),
        "the count stays available"
    );
    assert!(cx.state(worker.run, Some(3)).await.unwrap().is_some());
    assert!(matches!(cx.state(worker.run, Some(4)).await, Err(Error::Gone { .. })));
    let (summary, problems) = check(&cx).await;
    assert_eq!((problems, summary.shredded), (vec![], 1));
}

async fn a_never_sealed_run_is_not_reported_as_shredded(engine: &Engine) {
    let plain = engine.plain().await;
    let worker = finished(&plain).await;
    let cx = engine.sealed().await;
    let before = cx.audit(worker.run).await.unwrap().len();
    assert_eq!(cx.shred(&shred(worker.run, "why", "who")).await.unwrap(), Shredded::NeverSealed);
    assert_eq!(cx.audit(worker.run).await.unwrap().len(), before);
    assert_eq!(engine.ask("SELECT CAST(count(*) AS text) FROM data_keys").await, "0");
    // 12 turns, each with a planned call and a record; a claimed call, a wait, a batch of one record, and a snapshot.
    assert_eq!(cx.count_unsealed(worker.run).await.unwrap(), 3 * 12 + 4);
    read_all(&cx, worker.run).await.unwrap();
}
