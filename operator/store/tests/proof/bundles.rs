//! Bundles: written ones can be verified anywhere, tampering is found, and older versions stay readable.

use std::path::PathBuf;
use std::sync::Arc;

use dalsegno_model::{AuditRow, Claim, Claimed, Complete, ReadTransaction, RunId};
use dalsegno_proof::bundle::{Export, ExportOf, Verified, state, verify};
use dalsegno_proof::{
    Anchor, Anchors, AuditChain, BoundaryChain, HeadsToAnchor, PublicKey, Signer, check_store,
};
use dalsegno_protocol::{Boundary, RecordOp, Usage};
use jiff::Timestamp;
use proptest::prelude::Rng as _;
use proptest::test_runner::{RngAlgorithm, TestRng};
use serde_json::Value;
use uuid::Uuid;

use crate::rows::{NewBoundary, Rows};
use crate::stores::used;
use crate::tamperings;
use crate::{Engine, on_both_databases};

on_both_databases! {
    a_run_is_exported_and_verified_without_the_store,
    every_state_is_rebuilt_from_the_bundle_alone,
    random_tamperings_of_a_bundle_are_all_found,
    the_stores_own_key_is_created_once,
}

/// A file in the tests' directory or in the repository's docs.
fn file(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A signing key for tests.
pub async fn signer() -> Arc<Signer> {
    let store = dalsegno_store::sqlite::Sqlite::memory().await.unwrap();
    Arc::new(Signer::load(&store, Some(&file("tests/golden/test-key.pem"))).await.unwrap())
}

pub async fn bundle(reading: Box<dyn ReadTransaction>, run: RunId, signer: Arc<Signer>) -> Vec<u8> {
    let of = ExportOf { store: Uuid::from_u128(7), run, at: Timestamp::UNIX_EPOCH };
    let mut export = Export::begin(reading, of, signer).await.unwrap().unwrap();
    let mut bytes = Vec::new();
    while let Some(lines) = export.next().await.unwrap() {
        bytes.extend(lines);
    }
    bytes
}

/// The bundle of a hand-made run.
async fn by_hand() -> (Vec<u8>, PublicKey) {
    let (mut rows, signer) = (Rows::valid(), signer().await);
    let (run, key) = (rows.runs[0].id, signer.public_key());
    rows.wait(run);
    rows.message(run);
    (bundle(Box::new(rows), run, signer).await, key)
}

fn checked(bytes: &[u8], key: Option<PublicKey>) -> Verified {
    verify(bytes, key).unwrap()
}

#[tokio::test]
async fn the_golden_bundle_of_version_3_is_reproduced_and_all_golden_bundles_verify() {
    let (bytes, key) = by_hand().await;
    assert!(bytes == golden("v3"), "the format has changed: that needs a new version");
    for (name, counts) in [
        ("v1", (14, 14, 1, 8)),
        ("v2", (14, 14, 1, 8)),
        ("v2-sealed", (7, 7, 4, 27)),
        ("v3", (14, 14, 1, 12)),
    ] {
        let verified = checked(&golden(name), Some(key));
        assert_eq!(verified.problems, [], "{name}");
        assert_eq!((verified.boundaries, verified.events, verified.calls, verified.audit), counts, "{name}");
    }
}

/// The golden sealed bundle: its run began without encryption. The digest keys of its later parts are random, so this
/// bundle cannot be generated again.
#[test]
fn the_golden_bundle_of_a_sealed_run_has_digest_keys_and_every_state() {
    let bytes = golden("v2-sealed");
    let text = std::str::from_utf8(&bytes).unwrap();
    let keyed = |kind: &str| {
        let lines = text.lines().filter(|line| line.starts_with(&format!(r#"{{"{kind}":"#)));
        lines.filter(|line| line.contains(r#""digestKey":""#)).count()
    };
    assert_eq!((keyed("boundary"), keyed("call")), (6, 4));
    for (turn, lines) in [(1, 1), (2, 3), (3, 4), (4, 6)] {
        let state = serde_json::to_string(&state(&*bytes, turn).unwrap()).unwrap();
        assert_eq!(state.matches("a line of turn").count(), lines, "turn {turn}: {state}");
    }
}

/// The golden bundle of this version. `v2-sealed` is version 2, of a run with a data key.
fn golden(name: &str) -> Vec<u8> {
    std::fs::read(file(&format!("tests/golden/bundle-{name}.jsonl"))).unwrap()
}

async fn random_tamperings_of_a_bundle_are_all_found(engine: &Engine) {
    let worker = used(engine).await;
    let valid = bundle(engine.cx.store.begin_read().await.unwrap(), worker.run, signer().await).await;
    assert_eq!(checked(&valid, None).problems, []);
    let lines: Vec<&[u8]> = valid.split_inclusive(|byte| *byte == b'\n').collect();
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut below = |end: usize| (random.next_u64() % end as u64) as usize;
    for number in 0..tamperings() {
        let (edited, how) = match below(5) {
            0 | 1 => {
                let mut bytes = valid.clone();
                let at = below(bytes.len());
                bytes[at] ^= 1 << below(8);
                (bytes, format!("a bit of byte {at}"))
            }
            2 => {
                let mut lines = lines.clone();
                let at = below(lines.len());
                lines.remove(at);
                (lines.concat(), format!("line {at} removed"))
            }
            3 => {
                let mut lines = lines.clone();
                let (at, by) = (below(lines.len()), 1 + below(lines.len() - 1));
                let other = (at + by) % lines.len();
                lines.swap(at, other);
                (lines.concat(), format!("lines {at} and {other} swapped"))
            }
            _ => {
                let length = below(valid.len());
                (valid[..length].to_vec(), format!("cut after {length} bytes"))
            }
        };
        assert!(!checked(&edited, None).problems.is_empty(), "tampering {number} was not found: {how}");
    }
}

async fn every_state_is_rebuilt_from_the_bundle_alone(engine: &Engine) {
    let worker = used(engine).await;
    let store = &engine.cx.store;
    let bytes = bundle(store.begin_read().await.unwrap(), worker.run, signer().await).await;
    let shown = |state: &Option<dalsegno_protocol::State>| serde_json::to_string(state).unwrap();
    for turn in 1..=4 {
        let kept = store.state(worker.run, Some(turn)).await.unwrap();
        assert!(kept.is_some());
        assert_eq!(shown(&state(&bytes[..], turn).unwrap()), shown(&kept), "turn {turn}");
    }
    assert_eq!(shown(&state(&bytes[..], 5).unwrap()), "null");
}

#[tokio::test]
async fn only_the_live_branch_of_a_rewound_run_is_rebuilt() {
    let (bytes, _) = by_hand().await;
    let last = state(&bytes[..], 6).unwrap();
    assert_eq!(serde_json::to_string(&last).unwrap(), r#"{"state":{"value":{"json":{"turn":6,"of":2}}}}"#);
}

#[tokio::test]
async fn a_bundle_signed_by_another_key_is_found_if_the_key_is_known() {
    let (_, key) = by_hand().await;
    let store = dalsegno_store::sqlite::Sqlite::memory().await.unwrap();
    let another = Arc::new(Signer::load(&store, None).await.unwrap());
    let rows = Rows::valid();
    let run = rows.runs[0].id;
    let forged = bundle(Box::new(rows), run, another).await;
    assert_eq!(checked(&forged, None).problems, [], "it is valid by itself");
    assert_eq!(checked(&forged, Some(key)).problems.len(), 2);
}

#[tokio::test]
async fn an_edited_row_is_found_even_if_it_was_signed() {
    let mut rows = Rows::valid();
    rows.boundaries[2].decoded.row.usage.tokens_in += 1;
    let run = rows.runs[0].id;
    let bytes = bundle(Box::new(rows), run, signer().await).await;
    let problems = checked(&bytes, None).problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].to_string().contains("turn 2 (plan): it does not have the hash"), "{problems:?}");
}

#[tokio::test]
async fn an_unrecorded_rewind_or_a_wrong_name_is_found_even_if_it_was_signed() {
    let run = Rows::valid().runs[0].id;
    let (mut back, mut other) = (Rows::valid(), Rows::valid());
    back.rewind_silently(run, 3);
    (other.runs[0].namespace, other.runs[0].name) = ("other".into(), "payroll".into());
    let unrecorded =
        "turn 4 (plan): it is marked as undone, and the audit does not say that a rewind undid it";
    let mismatch = |column: &str| format!("runs: its {column} is not what the audit says");
    for (rows, whys) in
        [(back, vec![unrecorded.to_owned()]), (other, vec![mismatch("namespace"), mismatch("name")])]
    {
        let bytes = bundle(Box::new(rows), run, signer().await).await;
        let whys: Vec<_> = whys.iter().map(|why| format!("run {run}, {why}")).collect();
        let found: Vec<_> = checked(&bytes, None).problems.iter().map(ToString::to_string).collect();
        assert_eq!(found, whys);
    }
}

#[tokio::test]
async fn the_largest_numbers_have_no_successor_and_do_not_overflow() {
    let (run, row) = Rows::valid().audit[0].clone();
    let last = AuditRow { seq: i64::MAX, ..row };
    let mut chain = AuditChain::new(run);
    chain.push(&last);
    assert!(chain.push(&last).unwrap().what.contains("no row can follow"));
    let mut rows = Rows::default();
    let result =
        |turn, parent| NewBoundary { turn, boundary: Boundary::Result, epoch: 1, parent, undone: false };
    let last = rows.boundary(run, result(i32::MAX, None));
    rows.boundary(run, result(i32::MIN, Some(last)));
    let problem = BoundaryChain::new(run, None).push(&rows.boundaries[1]).unwrap();
    assert!(problem.what.contains("names a parent that is not the boundary before it"), "{problem}");
    let signer = signer().await;
    let mut moved = HeadsToAnchor::new(None, 1, RunId::nil(), Vec::new());
    let line = |moved: &HeadsToAnchor| Anchor::next(moved, Uuid::nil(), Timestamp::UNIX_EPOCH, &signer);
    let mut last = line(&moved).unwrap().stored().row.clone();
    last.line = last.line.replace(r#""seq":1"#, &format!(r#""seq":{}"#, i64::MAX - 1));
    moved.last = Some(last.clone());
    let anchor = line(&moved).unwrap();
    assert_eq!(anchor.line().seq(), i64::MAX);
    moved.last = Some(anchor.stored().row.clone());
    assert!(line(&moved).is_err(), "no number follows");
    let line = anchor.line().text().unwrap();
    let mut copy = Anchors::default();
    assert_eq!(copy.take("line 1", &line), None);
    let summary = check_store(&mut Rows::default(), copy, &mut |_| ()).await.unwrap();
    assert_eq!(summary.problems, 1, "the store does not have the anchor");
}

fn schema(version: u32) -> Value {
    let schema = file(&format!("../../docs/schemas/bundle-v{version}.schema.json"));
    serde_json::from_slice(&std::fs::read(schema).unwrap()).unwrap()
}

/// The schema's validation errors for the lines of a bundle.
fn schema_errors(version: u32, bundle: &str) -> Vec<String> {
    let validator = jsonschema::validator_for(&schema(version)).unwrap();
    let lines = bundle.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let all =
        lines.map(|line| validator.iter_errors(&line).map(|error| format!("{error}: {line}")).collect());
    all.collect::<Vec<Vec<_>>>().concat()
}

#[test]
fn every_line_of_the_golden_bundles_matches_the_schema() {
    for (version, name) in [(1, "v1"), (2, "v2"), (2, "v2-sealed"), (3, "v3")] {
        lines_are_what_the_schema_says(version, &golden(name));
    }
}

fn lines_are_what_the_schema_says(version: u32, golden: &[u8]) {
    let schema = schema(version);
    let golden = std::str::from_utf8(golden).unwrap();
    assert_eq!(schema_errors(version, golden), [""; 0]);
    for line in golden.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let (kind, fields) = line.as_object().unwrap().iter().next().unwrap();
        let described = &schema["properties"][kind];
        // Fields that only some boundaries and calls have.
        let some = ["digestKey", "dropped", "shredded", "forkedFrom", "keyed"];
        let some_calls: &[&str] = if kind == "call" { &["tool", "usage"] } else { &[] };
        let is_of_all =
            |name: &String| !some.contains(&name.as_str()) && !some_calls.contains(&name.as_str());
        let names = |value: &Value| {
            let names = value.as_object().unwrap().keys().cloned();
            names.filter(is_of_all).collect::<Vec<_>>()
        };
        assert_eq!(names(fields), names(&described["properties"]), "{kind}");
        let mut required: Vec<_> = described["required"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it.as_str().unwrap().to_owned())
            .collect();
        required.sort();
        assert_eq!(names(fields), required, "{kind}");
    }
}

async fn a_run_is_exported_and_verified_without_the_store(engine: &Engine) {
    let worker = used(engine).await;
    let tool = Some("bank.pay".to_owned());
    let claim = Claim { tool, ..worker.claim("pay", dalsegno_protocol::Policy::Probe) };
    assert!(matches!(engine.cx.claim(&claim).await.unwrap(), Claimed::Go(_)));
    let usage = Usage { tokens_in: 5, ..Usage::default() };
    engine.cx.complete(&Complete { usage, ..worker.complete(&claim) }).await.unwrap();
    let delete = RecordOp::DeletePrefix { space: "s".into(), prefix: "k".into() };
    engine.cx.write_records(&worker.record_batch(vec![delete])).await.unwrap();
    let claim = engine.cx.start_call(&worker, "ship", dalsegno_protocol::Policy::RetrySameKey).await;
    let outcome = dalsegno_protocol::CompleteOutcome::KeyRefused;
    engine.cx.complete(&Complete { outcome, ..worker.complete(&claim) }).await.unwrap();
    let signer = Arc::new(Signer::load(&*engine.cx.store, None).await.unwrap());
    let key = signer.public_key();
    let bytes = bundle(engine.cx.begin_read().await.unwrap(), worker.run, signer).await;
    let verified = checked(&bytes, Some(key));
    assert_eq!(verified.problems, []);
    assert_eq!((verified.boundaries, verified.events, verified.calls, verified.messages), (7, 6, 2, 2));
    let rows = engine.cx.audit(worker.run).await.unwrap();
    assert_eq!(verified.audit, rows.len() as i64);
    let text = String::from_utf8(bytes).unwrap();
    assert_eq!(schema_errors(3, &text), [""; 0], "a new bundle matches the schema");
    assert!(text.contains(r#"{\"event\":  2}"#), "events are exported byte for byte");
    assert!(text.contains(r#""tool":"bank.pay","usage":{"tokensIn":5,"#), "{text}");
    let reading = engine.cx.begin_read().await.unwrap();
    let signer = Arc::new(Signer::load(&*engine.cx.store, None).await.unwrap());
    let of = ExportOf { store: Uuid::nil(), run: Uuid::max(), at: Timestamp::UNIX_EPOCH };
    let nobody = Export::begin(reading, of, signer).await.unwrap();
    assert!(nobody.is_none());
}

async fn the_stores_own_key_is_created_once(engine: &Engine) {
    let store = &*engine.cx.store;
    let key = Signer::load(store, None).await.unwrap().public_key();
    assert_eq!(Signer::load(store, None).await.unwrap().public_key(), key);
    assert!(Signer::load(store, Some(&file("Cargo.toml"))).await.is_err());
}
