//! Checkpoints as documents: what they tell, and that their schema and every version ever written stay what they are.

use dalsegno_protocol::{Checkpoint, Policy, Usage};
use dalsegno_store::{Commit, checkpoint};
use serde_json::{Value, json};

use crate::faces::on_every_face;
use crate::world::*;

on_every_face! {
    a_checkpoint_tells_all_of_its_boundary,
    what_is_pending_is_told_of_the_head_alone,
    a_checkpoint_names_the_attempt_that_committed_it_however_long_ago,
}

const SCHEMA: &str = include_str!("../../../../docs/schemas/checkpoint-v1.schema.json");
const GOLDEN: &str = include_str!("../golden/checkpoint-v1.json");

/// A worker whose image has a digest as images have them.
async fn worker(world: &World) -> Worker {
    let run = world.run().await;
    let mut pod = pod(&run);
    let image_digest = format!("sha256:{}", "1".repeat(64));
    pod.identity = pod.identity.map(|identity| dalsegno_store::Identity { image_digest, ..identity });
    recorded(world.record_pod(run.id, 1, &pod).await.unwrap());
    let capability = random();
    attached(world.attach(run.id, &pod.uid, &capability).await.unwrap());
    Worker { run: run.id, object_uid: run.object_uid, attempt: 1, pod_uid: pod.uid, capability }
}

/// The document after a turn, once it is what the schema says.
async fn document(world: &World, worker: &Worker, turn: Option<i32>) -> Value {
    let document = checkpoint(&*world.store, &world.of(worker).await, turn).await.unwrap().unwrap();
    let document = serde_json::to_value(document).unwrap();
    assert_eq!(complaints(&document), [""; 0], "{document:#}");
    document
}

fn schema() -> Value {
    serde_json::from_str(SCHEMA).unwrap()
}

/// What the schema has against a document.
fn complaints(document: &Value) -> Vec<String> {
    let validator = jsonschema::options().should_validate_formats(true).build(&schema()).unwrap();
    validator.iter_errors(document).map(|error| error.to_string()).collect()
}

async fn a_checkpoint_tells_all_of_its_boundary(world: &World) {
    let worker = worker(world).await;
    assert!(checkpoint(&*world.store, &world.of(&worker).await, None).await.unwrap().is_none());
    world.turn(&worker, 1).await;
    let first = document(world, &worker, None).await;
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
    let standing = ok(world.commit(&second).await.unwrap());
    let run = world.of(&worker).await;
    let head = run.head.unwrap();
    assert_eq!(
        document(world, &worker, None).await,
        json!({
            "version": 1, "run": format!("{}/{}", run.namespace, run.name), "attempt": 1,
            "turn": 2, "boundary": "result", "position": 2,
            "agentVersion": "v1", "imageDigest": format!("sha256:{}", "1".repeat(64)),
            "parentHash": first["contentHash"], "contentHash": standing.head.unwrap().content_hash,
            "trigger": "TASK_END",
            "pendingProposal": null, "pendingStep": null, "pendingCalls": [],
            "memoryReferences": [{ "json": "ep-7" }],
            "usage": { "tokensIn": 900, "tokensOut": 40, "toolCalls": 1, "costMicroUSD": 1200 },
            "createdTime": head.at.to_string(),
        })
    );
    assert!(checkpoint(&*world.store, &world.of(&worker).await, Some(3)).await.unwrap().is_none());
}

async fn what_is_pending_is_told_of_the_head_alone(world: &World) {
    let worker = worker(world).await;
    let calls = vec![planned("pay", Policy::Probe), planned("tell", Policy::Ask)];
    ok(world.commit(&Commit { calls, ..worker.plan(1) }).await.unwrap());
    let claim = world.start_call(&worker, "pay", Policy::Probe).await;
    let head = document(world, &worker, None).await;
    assert_eq!(head["pendingStep"], json!({ "turn": 1, "boundary": "result" }));
    let arguments = json!({ "amount": 1 });
    assert_eq!(
        head["pendingCalls"],
        json!([
            { "id": "pay", "turn": 1, "policy": "probe", "key": "key-of-pay", "state": "started", "arguments": arguments },
            { "id": "tell", "turn": 1, "policy": "ask", "key": "key-of-tell", "state": "planned", "arguments": arguments },
        ])
    );
    world.complete(&worker.complete(&claim)).await.unwrap();
    let pending = &document(world, &worker, None).await["pendingCalls"];
    assert_eq!((pending.as_array().unwrap().len(), &pending[0]["id"]), (1, &json!("tell")));
    world.turn(&worker, 1).await;
    assert_eq!(document(world, &worker, None).await["pendingStep"], Value::Null);
    world.turn(&worker, 2).await;
    let earlier = document(world, &worker, Some(1)).await;
    assert_eq!((&earlier["pendingStep"], &earlier["pendingCalls"]), (&Value::Null, &json!([])));
}

async fn a_checkpoint_names_the_attempt_that_committed_it_however_long_ago(world: &World) {
    let first = worker(world).await;
    world.turn(&first, 1).await;
    let mut last = first.clone();
    for _ in 0..14 {
        last = world.next(&last).await;
    }
    let run = world.of(&last).await;
    assert!(run.past.iter().all(|attempt| attempt.number > 1), "the run's own record has forgotten it");
    let document = document(world, &last, Some(1)).await;
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
    assert_eq!(complaints(&serde_json::from_str(GOLDEN).unwrap()), [""; 0]);
}

#[test]
fn the_schema_of_a_checkpoint_names_its_fields_and_no_others() {
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
fn a_document_that_is_not_what_the_schema_says_is_complained_about() {
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
        let mut bent = golden.clone();
        bent[field] = value;
        assert!(!complaints(&bent).is_empty(), "{field}");
    }
}
