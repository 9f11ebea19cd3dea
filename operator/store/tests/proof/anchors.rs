//! Anchors: an external copy of them reveals what the rows alone hide.

use std::sync::Arc;

use dalsegno_format::audit;
use dalsegno_format::header::{self, NO_PARENT};
use dalsegno_model::{BoundaryId, BoundaryRow, RunId};
use dalsegno_proof::{Anchor, AnchoredHead, Anchors, HeadsToAnchor, RUNS_PER_ANCHOR, Signer, check_store};
use dalsegno_protocol::Boundary;
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::bundles::signer;
use crate::rows::Rows;
use crate::stores::used;
use crate::{Engine, on_both_databases};

on_both_databases! {
    each_changed_run_is_anchored_once,
    one_of_two_concurrent_anchors_is_stored,
    a_wholly_deleted_run_is_found_by_its_anchor,
}

const STORE: Uuid = Uuid::from_u128(7);

/// Anchors the rows in their current state. The returned lines are an external copy.
fn anchored(rows: &mut Rows, signer: &Signer) -> Vec<String> {
    let last = rows.anchors.last().map(|(_, line)| Anchor::parse(line).unwrap().unwrap());
    let head_of = |run: &dalsegno_model::read_transaction::RunHead| AnchoredHead {
        run: run.id,
        audit_seq: run.audit_seq,
        audit_hash: run.audit_hash,
        head: run.head.map(|head| (head.boundary, head.content_hash)),
    };
    let moved = HeadsToAnchor {
        last: last.map(|last| (last.seq(), last.hash())),
        heads: rows.runs.iter().map(head_of).collect(),
    };
    let anchor = Anchor::next(&moved, STORE, Timestamp::UNIX_EPOCH, signer);
    rows.anchors.push((anchor.seq(), anchor.line().unwrap()));
    rows.anchors.iter().map(|(_, line)| line.clone()).collect()
}

async fn problems(rows: &mut Rows, copy: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    let mut anchors = Anchors::default();
    for (number, line) in copy.iter().enumerate() {
        found.extend(anchors.take(&format!("line {}", number + 1), line).map(|it| it.to_string()));
    }
    check_store(rows, anchors, &mut |problem| found.push(problem.to_string())).await.unwrap();
    found
}

/// Rebuilds the audit of a run, so that its rows are valid again.
fn rebuild_audit(rows: &mut Rows, run: RunId) {
    let mut parent_hash = NO_PARENT;
    for (_, row) in rows.audit.iter_mut().filter(|(of, _)| *of == run) {
        row.actor = "somebody else".into();
        row.parent_hash = parent_hash;
        let (at, seq) = (row.at.as_millisecond(), row.seq);
        let (kind, actor, detail) = (&row.kind, &row.actor, &row.detail);
        row.hash = audit::AuditHeader { parent_hash: &parent_hash, run, seq, at, kind, actor, detail }.hash();
        parent_hash = row.hash;
    }
    rows.runs.iter_mut().find(|it| it.id == run).unwrap().audit_hash = parent_hash;
}

#[tokio::test]
async fn untouched_rows_match_their_anchors() {
    let (mut rows, signer) = (Rows::valid(), signer().await);
    anchored(&mut rows, &signer);
    let copy = anchored(&mut rows, &signer);
    assert_eq!(problems(&mut rows, &copy).await, [""; 0]);
    assert_eq!(problems(&mut rows, &copy[1..]).await, [""; 0], "a copy may start later");
    let log = [r#"{"level":"INFO"}"#.to_owned(), copy[1].clone(), copy[1].clone()];
    assert_eq!(problems(&mut rows, &log).await, [""; 0], "a copy may be a log");
}

#[tokio::test]
async fn an_anchor_is_found_behind_a_log_prefix_but_stored_without_one() {
    let (mut rows, signer) = (Rows::valid(), signer().await);
    let line = anchored(&mut rows, &signer).remove(0);
    for before in
        ["2027-01-31T12:00:00.123456789Z stdout F ", "[pod/dalsegno-0/dalsegno] 2027-01-31T12:00:00Z "]
    {
        let mut copy = Anchors::default();
        assert_eq!((copy.take("line 1", &format!("{before}{line}\r")), copy.count()), (None, 1));
        let edited = format!("{before}{}", line.replace(r#""auditSeq":8"#, r#""auditSeq":7"#));
        assert!(copy.take("line 2", &edited).unwrap().to_string().contains("it was edited"));
    }
    let quoted = serde_json::to_string(&json!({ "message": line })).unwrap();
    assert_eq!(Anchors::default().take("line 1", &quoted), None, "a quoted anchor does not count");

    rows.anchors[0].1.insert(0, ' ');
    let found = problems(&mut rows, &[line]).await;
    assert_eq!(found, ["anchor 1: the copy has it, and it is missing or different in the store"]);
}

#[tokio::test]
async fn an_anchor_of_the_maximum_number_of_runs_fits_into_one_log_line() {
    let boundary_id = BoundaryId { turn: i32::MAX, boundary: Boundary::Result, epoch: i64::MAX };
    let anchored = AnchoredHead {
        run: Uuid::max(),
        audit_seq: i64::MAX,
        audit_hash: [u8::MAX; 32],
        head: Some((boundary_id, [u8::MAX; 32])),
    };
    let moved = HeadsToAnchor {
        last: Some((i64::MAX - 1, NO_PARENT)),
        heads: vec![anchored; RUNS_PER_ANCHOR as usize],
    };
    let anchor = Anchor::next(&moved, Uuid::max(), Timestamp::MAX, &*signer().await);
    assert!(anchor.line().unwrap().len() < 16 << 10);
}

#[tokio::test]
async fn a_cut_tail_is_found_with_the_copy() {
    let (mut rows, signer) = (Rows::valid(), signer().await);
    let copy = anchored(&mut rows, &signer);
    let run = rows.runs[0].id;
    rows.audit.retain(|(of, row)| *of != run || row.seq < 8);
    let (_, last) = rows.audit.iter().rfind(|(of, _)| *of == run).unwrap().clone();
    (rows.runs[0].audit_seq, rows.runs[0].audit_hash) = (last.seq, last.hash);
    let cut = format!("run {run}, audit row 8: an anchor names it, and it is missing or different");
    assert_eq!(problems(&mut rows, &[]).await, [cut.as_str()]);
    rows.anchors.clear();
    assert_eq!(problems(&mut rows, &[]).await, [""; 0], "the rows alone hide it");
    let gone = "anchor 1: the copy has it, and it is missing or different in the store";
    assert_eq!(problems(&mut rows, &copy).await, [gone.to_owned(), cut]);
}

#[tokio::test]
async fn a_deleted_run_is_found_with_the_copy() {
    let (mut rows, signer) = (Rows::valid(), signer().await);
    let copy = anchored(&mut rows, &signer);
    let run = rows.runs.remove(1).id;
    rows.audit.retain(|(of, _)| *of != run);
    rows.boundaries.retain(|it| it.run != run);
    let gone = format!("run {run}, runs: anchors name the run, and it is missing");
    assert_eq!(problems(&mut rows, &copy).await, [gone]);
}

#[tokio::test]
async fn a_rebuilt_chain_is_found_even_if_it_was_anchored_again() {
    let (mut rows, signer) = (Rows::valid(), signer().await);
    anchored(&mut rows, &signer);
    let run = rows.runs[0].id;
    rebuild_audit(&mut rows, run);
    let copy = anchored(&mut rows, &signer);
    let other = format!("run {run}, audit row 8: an anchor names it, and it is missing or different");
    assert_eq!(problems(&mut rows, &copy).await, [other]);
}

#[tokio::test]
async fn a_rebuilt_chain_is_found_even_if_the_contradiction_was_pruned() {
    let (mut rows, signer) = (Rows::valid(), signer().await);
    let run = rows.runs[0].id;
    anchored(&mut rows, &signer);
    rebuild_audit(&mut rows, run);
    anchored(&mut rows, &signer);
    rows.append_audit(run, "reserved", &json!({}));
    let mut copy = anchored(&mut rows, &signer);
    for seq in [8, 9] {
        let last = rows.audit.iter().find(|(of, row)| *of == run && row.seq == seq).unwrap().1.hash;
        rows.audit.retain(|(of, row)| *of != run || row.seq > seq);
        let undone_rows = rows.boundaries.iter().filter(|it| it.run == run && it.undone);
        let undone: Vec<_> = undone_rows.map(|it| boundary_json(&it.decoded.row)).collect();
        let names = header::render(&audit::names_digest(["pay"].into_iter()));
        let earlier = json!({ "count": 1, "names": names });
        let detail = json!({
            "to": seq, "hash": header::render(&last), "undone": undone, "earlierCalls": earlier
        });
        rows.append_audit(run, "pruned", &detail);
        copy.extend(anchored(&mut rows, &signer));
        let found = problems(&mut rows, &copy).await;
        let other = format!("run {run}, audit row 8: an anchor names it, and it is missing or different");
        assert_eq!(found, [other], "pruned up to {seq}");
    }
}

/// A boundary as the audit describes it.
fn boundary_json(row: &BoundaryRow) -> Value {
    json!({ "turn": row.turn, "boundary": row.boundary, "hash": header::render(&row.content_hash) })
}

#[tokio::test]
async fn edited_anchors_are_found() {
    let (mut rows, signer) = (Rows::valid(), signer().await);
    for _ in 0..3 {
        anchored(&mut rows, &signer);
    }
    let valid = rows.anchors.clone();
    let copy: Vec<_> = valid.iter().map(|(_, line)| line.clone()).collect();
    rows.anchors.remove(1);
    let missing = "anchor 3: anchor 2 was expected: some are missing";
    let gone = "anchor 2: the copy has it, and it is missing or different in the store";
    assert_eq!(problems(&mut rows, &copy).await, [missing, gone]);

    rows.anchors = valid.clone();
    rows.anchors[1].1 = copy[1].replace(r#""auditSeq":8"#, r#""auditSeq":7"#);
    let edited = "anchor 2: it was edited: it does not have the hash it must have";
    assert!(problems(&mut rows, &[]).await.contains(&edited.to_owned()));

    let forged = Signer::load(&dalsegno_store::sqlite::Sqlite::memory().await.unwrap(), None).await.unwrap();
    let mut others = Rows::valid();
    let line = anchored(&mut others, &forged).remove(0);
    let mut anchors = Anchors::signed_by(vec![signer.public_key()]);
    let found = anchors.take("line 1", &line).unwrap().to_string();
    assert_eq!(found, "line 1: it names another public key than it must be signed by");
    assert_eq!(anchors.take("line 2", &copy[0]), None);
    let mut either = Anchors::signed_by(vec![forged.public_key(), signer.public_key()]);
    assert_eq!([either.take("line 1", &line), either.take("line 2", &copy[1])], [None, None]);
}

/// Anchors what has changed. Returns the runs in the anchor.
pub async fn anchor(engine: &Engine, signer: &Signer) -> Vec<RunId> {
    let store = &engine.cx.store;
    let moved = store.heads_to_anchor().await.unwrap();
    if moved.heads.is_empty() {
        return Vec::new();
    }
    let anchor = Anchor::next(&moved, store.id().await.unwrap(), Timestamp::UNIX_EPOCH, signer);
    assert!(store.put_anchor(&anchor.row().unwrap()).await.unwrap());
    moved.heads.iter().map(|it| it.run).collect()
}

async fn each_changed_run_is_anchored_once(engine: &Engine) {
    let signer = signer().await;
    let worker = used(engine).await;
    assert_eq!(anchor(engine, &signer).await.len(), 2);
    assert!(anchor(engine, &signer).await.is_empty());
    engine.cx.commit_turn(&worker, 5).await;
    assert_eq!(anchor(engine, &signer).await, [worker.run]);
    engine.cx.request_cancel(worker.run).await.unwrap();
    assert_eq!(anchor(engine, &signer).await, [worker.run]);
    let (summary, problems) = engine.check().await;
    assert_eq!((summary.anchors, problems), (3, vec![]));
}

async fn one_of_two_concurrent_anchors_is_stored(engine: &Engine) {
    let signer = signer().await;
    used(engine).await;
    let store = &engine.cx.store;
    let moved = store.heads_to_anchor().await.unwrap();
    let anchor = Anchor::next(&moved, STORE, Timestamp::UNIX_EPOCH, &signer);
    let row = anchor.row().unwrap();
    let both = tokio::join!(store.put_anchor(&row), store.put_anchor(&row));
    assert_eq!([both.0.unwrap(), both.1.unwrap()].iter().filter(|put| **put).count(), 1);
    assert_eq!(engine.check().await.0.anchors, 1);
}

async fn a_wholly_deleted_run_is_found_by_its_anchor(engine: &Engine) {
    let signer: Arc<Signer> = signer().await;
    used(engine).await;
    anchor(engine, &signer).await;
    engine.unlock().await;
    let alone = if engine.is_postgres() { "" } else { "PRAGMA foreign_keys = OFF;" };
    let delete = format!("{alone} DELETE FROM audit; DELETE FROM boundaries; DELETE FROM runs");
    engine.execute(&delete).await.unwrap();
    let (summary, problems) = engine.check().await;
    assert_eq!((summary.runs, problems.len()), (0, 2), "{problems:?}");
}
