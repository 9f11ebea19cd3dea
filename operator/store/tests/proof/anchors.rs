//! Anchors: an external copy of them reveals what the rows alone hide.

use dalsegno_format::audit;
use dalsegno_format::header::{self, NO_PARENT};
use dalsegno_model::{BoundaryId, BoundaryRow, LEAVES_PER_ANCHOR, RunId};
use dalsegno_proof::{Anchor, AnchorLine, AnchoredHead, Anchors, HeadsToAnchor, Signer, check_store};
use dalsegno_protocol::Boundary;
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::bundles::signer;
use crate::rows::Rows;

/// The id of the store that anchors name.
pub const STORE: Uuid = Uuid::from_u128(7);

/// Anchors the rows in their current state. The returned lines are an external copy.
fn anchored(rows: &mut Rows, signer: &Signer) -> Vec<String> {
    let head_of = |run: &dalsegno_model::read_transaction::RunHead| AnchoredHead {
        run: run.id,
        audit_seq: run.audit_seq,
        audit_hash: run.audit_hash,
        head: run.head.map(|head| (head.boundary, head.content_hash)),
    };
    let heads = rows.runs.iter().map(head_of).collect();
    let moved = HeadsToAnchor::new(rows.anchors.last().cloned(), 1, RunId::nil(), heads);
    let anchor = Anchor::next(&moved, STORE, Timestamp::UNIX_EPOCH, signer).unwrap();
    rows.anchors.push(anchor.stored().row.clone());
    rows.leaves.extend(moved.heads.iter().map(|leaf| (anchor.line().seq(), *leaf)));
    rows.anchors.iter().map(|row| row.line.clone()).collect()
}

async fn problems(rows: &mut Rows, copy: &[String]) -> Vec<String> {
    checked(rows, copy).await.1
}

/// The number of runs that are where the copy proves, and the problems.
async fn checked(rows: &mut Rows, copy: &[String]) -> (u64, Vec<String>) {
    let mut found = Vec::new();
    let mut anchors = Anchors::default();
    for (number, line) in copy.iter().enumerate() {
        found.extend(anchors.take(&format!("line {}", number + 1), line).map(|it| it.to_string()));
    }
    let summary = check_store(rows, anchors, &mut |problem| found.push(problem.to_string())).await.unwrap();
    (summary.proven, found)
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
    let signed_by = || Anchors::signed_by(vec![signer.public_key()]);
    for before in
        ["2027-01-31T12:00:00.123456789Z stdout F ", "[pod/dalsegno-0/dalsegno] 2027-01-31T12:00:00Z "]
    {
        let mut copy = signed_by();
        assert_eq!((copy.take("line 1", &format!("{before}{line}\r")), copy.count()), (None, 1));
        let unsigned = "it is not signed by the key that it must be signed by";
        for (from, to, why) in [
            (r#""at":0"#, r#""at":1"#, unsigned),
            (r#""seq":1"#, r#""seq":2"#, unsigned),
            (r#""first":1"#, r#""first":2"#, "anchor 1 cannot announce 2 as the first that the store keeps"),
        ] {
            let edited = format!("{before}{}", line.replace(from, to));
            assert!(edited.contains(to));
            let found = copy.take("line 2", &edited).unwrap().to_string();
            assert_eq!(found, format!("line 2: {why}"));
        }
    }
    let quoted = serde_json::to_string(&json!({ "message": line })).unwrap();
    assert_eq!(Anchors::default().take("line 1", &quoted), None, "a quoted anchor does not count");

    rows.anchors[0].line.insert(0, ' ');
    let found = problems(&mut rows, &[line]).await;
    let missing = "anchor 1: the copy has it, and it is missing or different in the store";
    assert_eq!(found, ["anchor 1: its line is no anchor", missing]);
}

#[tokio::test]
async fn a_line_is_short_whatever_it_names() {
    let boundary_id = BoundaryId { turn: i32::MAX, boundary: Boundary::Result, epoch: i64::MAX };
    let leaf = |number: u128| AnchoredHead {
        run: Uuid::from_u128(number),
        audit_seq: i64::MAX,
        audit_hash: [u8::MAX; 32],
        head: Some((boundary_id, [u8::MAX; 32])),
    };
    let signer = signer().await;
    let next = |moved: &HeadsToAnchor| Anchor::next(moved, Uuid::max(), Timestamp::MAX, &signer).unwrap();
    let mut last = next(&HeadsToAnchor::new(None, 1, RunId::nil(), Vec::new())).stored().row.clone();
    let highest = format!(r#""seq":{},"#, i64::MAX - 1);
    last.line = last
        .line
        .replace(r#""seq":1,"#, &highest)
        .replace(r#""first":1,"#, &format!(r#""first":{},"#, i64::MAX - 1));
    let heads = (0..u128::from(LEAVES_PER_ANCHOR)).map(leaf).collect();
    let line = next(&HeadsToAnchor::new(Some(last), 1, RunId::nil(), heads)).line().text().unwrap();
    assert_eq!(line.len(), AnchorLine::MAX_BYTES, "{line}");
}

#[tokio::test]
async fn one_line_proves_all_anchors_that_lead_to_it() {
    let (mut rows, signer) = (Rows::valid(), signer().await);
    anchored(&mut rows, &signer);
    let moved = rows.runs[0].id;
    rows.append_audit(moved, "reserved", &json!({}));
    let copy = anchored(&mut rows, &signer);
    assert_eq!(checked(&mut rows, &copy[1..]).await, (2, vec![]));
    assert_eq!(checked(&mut rows, &copy[..1]).await, (1, vec![]), "a run that has moved is not proven");
    // The leaf of a row that was never there, in an earlier anchor.
    rows.leaves[0].1.audit_seq = 2;
    let found = problems(&mut rows, &copy[1..]).await;
    let leaf = "anchor 1: its leaves are not those that were signed: some were edited, exchanged or removed";
    let row = format!("run {moved}, audit row 2: an anchor names it, and it is missing or different");
    assert_eq!(found, [leaf, &row]);
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
    rows.leaves.clear();
    assert_eq!(problems(&mut rows, &[]).await, [""; 0], "the rows alone hide it");
    let gone = "anchor 1: the copy has it, and it is missing or different in the store";
    assert_eq!(problems(&mut rows, &copy).await, [gone], "without its leaves no anchor names a row");
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
    assert_eq!(problems(&mut rows, &copy).await, [other.as_str()]);
    // Somebody also writes all anchors again, with the store's own key.
    let before = copy[0].clone();
    (rows.anchors, rows.leaves) = (Vec::new(), Vec::new());
    rows.append_audit(run, "reserved", &json!({}));
    let forged = anchored(&mut rows, &signer);
    assert_eq!(problems(&mut rows, &forged).await, [""; 0], "the store alone hides it");
    let missing = "anchor 1: the copy has it, and it is missing or different in the store";
    assert_eq!(checked(&mut rows, &[before]).await, (0, vec![missing.to_owned()]));
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
    let valid = rows.clone();
    let copy: Vec<_> = valid.anchors.iter().map(|row| row.line.clone()).collect();
    rows.anchors.remove(1);
    let missing = "anchor 3: anchor 2 was expected: some are missing";
    let leaves = "anchor 2: it is missing, and leaves of it exist";
    let gone = "anchor 2: the copy has it, and it is missing or different in the store";
    assert_eq!(problems(&mut rows, &copy).await, [leaves, missing, gone]);
    rows.leaves.retain(|(anchor, _)| *anchor != 2);
    assert_eq!(problems(&mut rows, &copy[2..]).await, [missing], "the copy has only the last one");

    rows = valid.clone();
    let (anchors, leaves) = (rows.anchors.split_off(1), std::mem::take(&mut rows.leaves));
    (rows.anchors, rows.leaves) = (anchors, leaves.into_iter().filter(|(anchor, _)| *anchor > 1).collect());
    let cut = "anchor 2: anchor 1 was expected: some are missing";
    assert_eq!(problems(&mut rows, &[]).await, [cut], "no anchor announces it");

    rows = valid.clone();
    rows.anchors[1].line = copy[1].replace(r#""at":0"#, r#""at":1"#);
    let edited = "anchor 2: it was edited: it does not have the hash it must have";
    assert_eq!(problems(&mut rows, &[]).await, [edited]);
    rows = valid.clone();
    rows.anchors[1].public_key = [7; 32];
    assert_eq!(problems(&mut rows, &[]).await, ["anchor 2: it is not signed by the key that it names"]);

    let forged = Signer::load(&dalsegno_store::sqlite::Sqlite::memory().await.unwrap(), None).await.unwrap();
    let mut others = Rows::valid();
    let line = anchored(&mut others, &forged).remove(0);
    let mut anchors = Anchors::signed_by(vec![signer.public_key()]);
    let found = anchors.take("line 1", &line).unwrap().to_string();
    assert_eq!(found, "line 1: it is not signed by the key that it must be signed by");
    assert_eq!(anchors.take("line 2", &copy[0]), None);
    let mut either = Anchors::signed_by(vec![forged.public_key(), signer.public_key()]);
    assert_eq!([either.take("line 1", &line), either.take("line 2", &copy[1])], [None, None]);
    let mut rows = valid.clone();
    let gone = "anchor 1: the copy has it, and it is missing or different in the store";
    assert_eq!(problems(&mut rows, &[line]).await, [gone], "a forged line without a public key");
}

#[tokio::test]
async fn a_line_with_numbers_that_no_anchor_has_is_no_valid_anchor() {
    let signer = signer().await;
    let line = anchored(&mut Rows::valid(), &signer).remove(0);
    for (number, impossible) in [("seq", 0), ("seq", i64::MIN), ("first", 0), ("first", 2)] {
        let line = line.replace(&format!(r#""{number}":1,"#), &format!(r#""{number}":{impossible},"#));
        let problem = Anchors::default().take("line 1", &line).unwrap().to_string();
        assert!(problem.contains("as the first that the store keeps"), "{number} {impossible}: {problem}");
    }
}

#[tokio::test]
async fn anchors_are_pruned_only_if_one_of_the_copy_announces_it() {
    let (mut rows, signer) = (Rows::valid(), signer().await);
    for _ in 0..3 {
        anchored(&mut rows, &signer);
    }
    let moved = HeadsToAnchor {
        keep_from: 3,
        ..HeadsToAnchor::new(rows.anchors.last().cloned(), 3, RunId::nil(), Vec::new())
    };
    assert!(Anchor::is_due(&moved).unwrap());
    let partial = HeadsToAnchor { is_complete: false, ..moved.clone() };
    assert!(!Anchor::is_due(&partial).unwrap(), "runs that are not yet listed may need the earlier anchors");
    let anchor = Anchor::next(&moved, STORE, Timestamp::UNIX_EPOCH, &signer).unwrap();
    assert_eq!(anchor.line().first(), 3);
    rows.anchors.push(anchor.stored().row.clone());
    let copy: Vec<_> = rows.anchors.iter().map(|row| row.line.clone()).collect();
    assert_eq!(checked(&mut rows, &copy).await, (2, vec![]), "nothing is deleted yet");

    rows.anchors.drain(..2);
    rows.leaves.retain(|(anchor, _)| *anchor > 2);
    for copy in [&copy[..], &copy[3..], &[]] {
        assert_eq!(checked(&mut rows, copy).await, (2, vec![]));
    }
    let cut = "anchor 3: anchor 1 was expected: some are missing";
    let gone = "anchor 1: the copy has it, and it is missing or different in the store (and 1 more)";
    assert_eq!(problems(&mut rows, &copy[..3]).await, [cut, gone]);
}
