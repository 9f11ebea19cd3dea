//! Checkpoint documents: their content, their schema, and that version 1 is read and written unchanged.

use dalsegno_model::Commit;
use dalsegno_protocol::{Checkpoint, Policy, Usage};
use dalsegno_store::checkpoint;
use serde_json::{Value, json};

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_checkpoint_describes_its_boundary,
    only_the_heads_checkpoint_lists_pending_work,
    a_checkpoint_names_its_attempt_however_old,
}

const SCHEMA: &str = include_str!("../../../../docs/schemas/checkpoint-v1.schema.json");
const GOLDEN: &str = include_str!("../golden/checkpoint-v1.json");

/// A worker whose image digest has the real length.
async fn worker(cx: &TestContext) -> Worker {
    let run = cx.run().await;
    let mut pod = pod(&run);
    let image_digest = format!("sha256:{}", "1".repeat(64));
    pod.identity = pod.identity.map(|identity| dalsegno_model::Identity { image_digest, ..identity });
    recorded(cx.record_pod(run.id, 1, &pod).await.unwrap());
    let capability = random_digest();
    attached(cx.attach(run.id, &pod.uid, &capability).await.unwrap());
    Worker { run: run.id, object_uid: run.object_uid, attempt: 1, pod_uid: pod.uid, capability }
}

/// The checkpoint document after a turn. Checks it against the schema.
async fn document(cx: &TestContext, worker: &Worker, turn: Option<i32>) -> Value {
    let document = checkpoint(&*cx.store, &cx.run_of(worker).await, turn).await.unwrap().unwrap();
    let document = serde_json::to_value(document).unwrap();
    assert_eq!(schema_errors(&document), [""; 0], "{document:#}");
    document
}

fn schema() -> Value {
    serde_json::from_str(SCHEMA).unwrap()
}

/// The schema's validation errors for a document.
fn schema_errors(document: &Value) -> Vec<String> {
    let validator = jsonschema::options().should_validate_formats(true).build(&schema()).unwrap();
    validator.iter_errors(document).map(|error| error.to_string()).collect()
}

async fn a_checkpoint_describes_its_boundary(cx: &TestContext) {
    let worker = worker(cx).await;
    assert!(checkpoint(&*cx.store, &cx.run_of(&worker).await, None).await.unwrap().is_none());
    cx.commit_turn(&worker, 1).await;
    let first = document(cx, &worker, None).await;
    assert_eq!(first["parentHash"], format!("sha256:{}", "0".repeat(64)));
    let operations =
        r#"{"full":true,"set":{"state":{"json":2}},"append":{"memoryReferences":[{"json":"ep-7"}]}}"#;
    let usage = Usage { tokens_in: 900, tokens_out: 40, tool_calls: 1, cost_micro_usd: 1_200 };
    let second = Commit {
        ops: Some(operations.into()),
        events: vec![json("1"), json("2")],
        trigger: Some("TASK_END".into()),
        usage,
        ..worker.result(2)
    };
    let receipt = ok(cx.commit(&second).await.unwrap());
    let run = cx.run_of(&worker).await;
    let head = run.head.unwrap();
    assert_eq!(
        document(cx, &worker, None).await,
        json!({
            "version": 1, "run": format!("{}/{}", run.namespace, run.name), "attempt": 1,
            "turn": 2, "boundary": "result", "position": 2,
            "agentVersion": "v1", "imageDigest": format!("sha256:{}", "1".repeat(64)),
            "parentHash": first["contentHash"], "contentHash": receipt.head.unwrap().content_hash,
            "trigger": "TASK_END",
            "pendingProposal": null, "pendingStep": null, "pendingCalls": [],
            "memoryReferences": [{ "json": "ep-7" }],
            "usage": { "tokensIn": 900, "tokensOut": 40, "toolCalls": 1, "costMicroUSD": 1200 },
            "createdTime": head.at.to_string(),
        })
    );
    assert!(checkpoint(&*cx.store, &cx.run_of(&worker).await, Some(3)).await.unwrap().is_none());
}

async fn only_the_heads_checkpoint_lists_pending_work(cx: &TestContext) {
    let worker = worker(cx).await;
    let calls = vec![planned("pay", Policy::Probe), planned("tell", Policy::Ask)];
    ok(cx.commit(&Commit { calls, ..worker.plan(1) }).await.unwrap());
    let claim = cx.start_call(&worker, "pay", Policy::Probe).await;
    let head = document(cx, &worker, None).await;
    assert_eq!(head["pendingStep"], json!({ "turn": 1, "boundary": "result" }));
    let arguments = json!({ "amount": 1 });
    assert_eq!(
        head["pendingCalls"],
        json!([
            { "id": "pay", "turn": 1, "policy": "probe", "key": "key-of-pay", "state": "started", "arguments": arguments },
            { "id": "tell", "turn": 1, "policy": "ask", "key": "key-of-tell", "state": "planned", "arguments": arguments },
        ])
    );
    cx.complete(&worker.complete(&claim)).await.unwrap();
    let pending = &document(cx, &worker, None).await["pendingCalls"];
    assert_eq!((pending.as_array().unwrap().len(), &pending[0]["id"]), (1, &json!("tell")));
    cx.commit_turn(&worker, 1).await;
    assert_eq!(document(cx, &worker, None).await["pendingStep"], Value::Null);
    cx.commit_turn(&worker, 2).await;
    let earlier = document(cx, &worker, Some(1)).await;
    assert_eq!((&earlier["pendingStep"], &earlier["pendingCalls"]), (&Value::Null, &json!([])));
}

async fn a_checkpoint_names_its_attempt_however_old(cx: &TestContext) {
    let first = worker(cx).await;
    cx.commit_turn(&first, 1).await;
    let mut last = first.clone();
    for _ in 0..14 {
        last = cx.next_worker(&last).await;
    }
    let run = cx.run_of(&last).await;
    assert!(run.past.iter().all(|attempt| attempt.number > 1), "the run's record no longer lists it");
    let document = document(cx, &last, Some(1)).await;
    assert_eq!((&document["attempt"], &document["agentVersion"]), (&json!(1), &json!("v1")));
}

#[test]
fn the_golden_checkpoint_of_version_1_is_read_and_written_as_it_was() {
    let golden: Checkpoint = serde_json::from_str(GOLDEN).unwrap();
    assert_eq!((golden.version, golden.pending_calls.len(), golden.memory_references.len()), (1, 2, 2));
    assert_eq!(
        serde_json::to_string(&golden).unwrap(),
        GOLDEN,
        "the format has changed: that needs a new version"
    );
    assert_eq!(schema_errors(&serde_json::from_str(GOLDEN).unwrap()), [""; 0]);
}

#[test]
fn the_schema_lists_exactly_the_fields_of_a_checkpoint() {
    let schema = schema();
    let written: Value = serde_json::from_str(GOLDEN).unwrap();
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let mut required: Vec<_> =
        schema["required"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect();
    required.sort();
    assert_eq!(names(&schema["properties"]), names(&written));
    assert_eq!(required, names(&written));
}

#[test]
fn the_schema_refuses_invalid_documents() {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let cases = [
        ("turn", json!(0)),
        ("boundary", json!("middle")),
        ("contentHash", json!("sha256:12")),
        ("createdTime", json!("yesterday")),
        ("pendingStep", json!({ "turn": 1 })),
        ("pendingCalls", json!([{ "id": "pay" }])),
        ("usage", json!({})),
        ("nextStep", Value::Null),
        ("version", json!(2)),
    ];
    for (field, value) in cases {
        let mut edited = golden.clone();
        edited[field] = value;
        assert!(!schema_errors(&edited).is_empty(), "{field}");
    }
}
