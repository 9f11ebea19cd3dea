//! Checkpoint documents: their content, their schema, and that each version stays readable.

use dalsegno_model::{
    Answered, BoundaryId, BoundaryQuery, Class, Commit, Rewound, RunRecord, WaitAnswer, WaitDecision,
};
use dalsegno_protocol::{Boundary, Checkpoint, Policy, Usage, WaitOutcome};
use dalsegno_store::checkpoint;
use serde_json::{Value, json};

use super::messages::{message, send};
use super::waits::{approval, open, request};
use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_checkpoint_describes_its_boundary,
    a_checkpoint_has_the_history_of_calls_with_the_payloads_of_the_latest,
    a_checkpoint_counts_the_recoveries_and_the_usage_up_to_it,
    a_checkpoint_names_what_led_to_it,
    every_checkpoint_is_found_by_its_id_also_a_plan_and_an_undone_one,
    only_the_heads_checkpoint_lists_pending_work,
    a_checkpoint_names_its_attempt_however_old,
}

const SCHEMAS: [&str; 2] = [
    include_str!("../../../../docs/schemas/checkpoint-v1.schema.json"),
    include_str!("../../../../docs/schemas/checkpoint-v2.schema.json"),
];
/// One document of each version.
const GOLDEN: [&str; 2] =
    [include_str!("../golden/checkpoint-v1.json"), include_str!("../golden/checkpoint-v2.json")];

/// A worker whose image digest has the real length.
async fn worker(cx: &TestContext) -> Worker {
    start(cx, &cx.run().await).await
}

/// Attaches a worker in the run's current attempt.
async fn start(cx: &TestContext, run: &RunRecord) -> Worker {
    let mut pod = pod(run);
    let image_digest = format!("sha256:{}", "1".repeat(64));
    pod.identity = pod.identity.map(|identity| dalsegno_model::Identity { image_digest, ..identity });
    let (attempt, capability) = (run.attempt.number, random_digest());
    recorded(cx.record_pod(run.id, attempt, &pod).await.unwrap());
    attached(cx.attach(run.id, &pod.uid, &capability).await.unwrap());
    Worker { run: run.id, object_uid: run.object_uid.clone(), attempt, pod_uid: pod.uid, capability }
}

/// The checkpoint document after a turn. Checks it against the schema.
async fn document(cx: &TestContext, worker: &Worker, turn: Option<i32>) -> Value {
    document_of(cx, worker, turn.map(BoundaryQuery::Turn)).await.unwrap()
}

/// The checkpoint document of a boundary. Checks it against the schema.
async fn document_of(cx: &TestContext, worker: &Worker, which: Option<BoundaryQuery>) -> Option<Value> {
    let document = checkpoint(&*cx.store, &cx.run_of(worker).await, which).await.unwrap()?;
    let document = serde_json::to_value(document).unwrap();
    assert_eq!(schema_errors(&document), [""; 0], "{document:#}");
    Some(document)
}

fn schema(version: usize) -> Value {
    serde_json::from_str(SCHEMAS[version - 1]).unwrap()
}

/// The validation errors for a document of the latest version.
fn schema_errors(document: &Value) -> Vec<String> {
    errors_of(&schema(SCHEMAS.len()), document)
}

fn errors_of(schema: &Value, document: &Value) -> Vec<String> {
    let validator = jsonschema::options().should_validate_formats(true).build(schema).unwrap();
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
    let head = run.head.clone().unwrap();
    let first_at: jiff::Timestamp = first["createdTime"].as_str().unwrap().parse().unwrap();
    assert_eq!(
        document(cx, &worker, None).await,
        json!({
            "version": 2, "id": format!("2.2.{}", run.epoch), "runId": run.id,
            "run": format!("{}/{}", run.namespace, run.name), "status": "live",
            "attempt": 1, "recoveryAttempts": 0, "disruptions": 0,
            "turn": 2, "boundary": "result", "position": 2,
            "agentVersion": "v1", "imageDigest": format!("sha256:{}", "1".repeat(64)),
            "parentHash": first["contentHash"], "contentHash": receipt.head.unwrap().content_hash,
            "trigger": "TASK_END",
            "triggeredBy": { "event": 1, "calls": [], "waits": [], "messages": [] },
            "pendingProposal": null, "pendingStep": null, "pendingCalls": [],
            "callCount": 0, "calls": [],
            "workingMemory": {
                "memoryReferences": { "list": [{ "json": "ep-7" }] }, "state": { "value": { "json": 2 } },
            },
            "memoryDelta": {
                "version": 2,
                "added": { "memoryReferences": { "bytes": 6, "items": 1 }, "state": { "bytes": 1, "items": 1 } },
                "updated": {}, "removed": {},
                "items": {
                    "added": [
                        { "channel": "memoryReferences", "index": 0, "bytes": 6 },
                        { "channel": "state", "bytes": 1 },
                    ],
                    "updated": [], "removed": [],
                },
            },
            "memoryReferences": [{ "json": "ep-7" }],
            "usage": { "tokensIn": 900, "tokensOut": 40, "toolCalls": 1, "costMicroUSD": 1200 },
            "totalUsage": run.usage,
            "elapsed": {
                "runMs": head.at.as_millisecond() - run.created_at.as_millisecond(),
                "turnMs": head.at.as_millisecond() - first_at.as_millisecond(),
            },
            "createdTime": head.at.to_string(),
        })
    );
    assert!(document_of(cx, &worker, Some(BoundaryQuery::Turn(3))).await.is_none());
}

async fn a_checkpoint_has_the_history_of_calls_with_the_payloads_of_the_latest(cx: &TestContext) {
    let worker = worker(cx).await;
    for (turn, id) in [(1, "first"), (2, "second")] {
        let claim = cx.start_call(&worker, id, Policy::Probe).await;
        cx.complete(&worker.complete(&claim)).await.unwrap();
        cx.commit_turn(&worker, turn).await;
    }
    let earlier = document(cx, &worker, Some(1)).await;
    assert_eq!((&earlier["callCount"], earlier["calls"].as_array().unwrap().len()), (&json!(1), 1));
    let history = document(cx, &worker, None).await;
    assert_eq!(history["callCount"], 2);
    let first = &history["calls"][0];
    assert_eq!(
        (&first["id"], &first["state"], &first["attempt"], &first["key"]),
        (&json!("first"), &json!("completed"), &json!(1), &json!("key-of-first"))
    );
    assert!(first["arguments"].is_object() && first.get("omitted").is_none(), "{first}");

    // A result that takes all the room.
    let claim = cx.start_call(&worker, "third", Policy::Probe).await;
    let result = format!("\"{}\"", "x".repeat(dalsegno_protocol::Limits::CHECKPOINT_CALLS_BYTES - 20));
    let complete = dalsegno_model::Complete { result: Some(json(&result)), ..worker.complete(&claim) };
    cx.complete(&complete).await.unwrap();
    cx.commit_turn(&worker, 3).await;
    let history = document(cx, &worker, None).await;
    let omitted: Vec<_> =
        history["calls"].as_array().unwrap().iter().map(|call| call.get("omitted").is_some()).collect();
    assert_eq!(omitted, [true, true, false]);
    assert!(history["calls"][0].get("arguments").is_none());
    assert_eq!(history["calls"][2]["result"].as_str().unwrap().len(), result.len() - 2);
}

async fn a_checkpoint_counts_the_recoveries_and_the_usage_up_to_it(cx: &TestContext) {
    let first = worker(cx).await;
    let usage = |tokens_in| Usage { tokens_in, tokens_out: 1, tool_calls: 1, cost_micro_usd: 10 };
    ok(cx.commit(&Commit { usage: usage(100), ..first.result(1) }).await.unwrap());
    let second = start(cx, &cx.end_and_reserve(&first, Class::Crash).await).await;
    ok(cx.commit(&Commit { usage: usage(20), ..second.result(2) }).await.unwrap());
    let third = start(cx, &cx.end_and_reserve(&second, Class::Disruption).await).await;
    ok(cx.commit(&Commit { usage: usage(3), ..third.result(3) }).await.unwrap());
    let counters = |document: &Value| {
        let total = &document["totalUsage"];
        [&document["recoveryAttempts"], &document["disruptions"], &total["tokensIn"], &total["costMicroUSD"]]
            .map(|it| it.as_i64().unwrap())
    };
    for (turn, expected) in [(1, [0, 0, 100, 10]), (2, [1, 0, 120, 20]), (3, [1, 1, 123, 30])] {
        assert_eq!(counters(&document(cx, &third, Some(turn)).await), expected, "turn {turn}");
    }

    let again = rewound(cx, &third, result_place(1)).await;
    let of_first = document(cx, &again, None).await;
    assert_eq!(
        (counters(&of_first)[2], &of_first["status"]),
        (100, &json!("live")),
        "what came later is not in it"
    );
    ok(cx.commit(&Commit { usage: usage(4), ..again.result(2) }).await.unwrap());
    assert_eq!(counters(&document(cx, &again, None).await)[2], 127, "what was undone was spent");
    assert_eq!(counters(&document(cx, &again, Some(1)).await)[2], 100);
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

/// Rewinds the run, and attaches a worker in the next attempt.
async fn rewound(cx: &TestContext, worker: &Worker, to: BoundaryId) -> Worker {
    let run = cx.end_and_reserve(worker, Class::Neutral).await;
    match cx.rewind(run.id, &rewind_to(run.epoch, to)).await.unwrap() {
        Rewound::Done(run) => start(cx, &run).await,
        Rewound::Refused(run) => panic!("refused, with {:?}", run.head),
    }
}

async fn a_checkpoint_names_what_led_to_it(cx: &TestContext) {
    let worker = worker(cx).await;
    cx.commit_turn(&worker, 1).await;
    let first = document(cx, &worker, None).await;
    assert_eq!(
        first["triggeredBy"],
        json!({ "event": null, "calls": [], "waits": [], "messages": [] }),
        "nothing has come"
    );
    // Waits are found by their time.
    sleep_ms(5).await;
    let epoch = open(cx, &request(&worker, "ask-ann", approval())).await.facts.epoch;
    let decision = WaitDecision { by: "ada".into(), reason: None, changes: None };
    let (id, outcome) = ("ask-ann".into(), WaitOutcome::Approved);
    let answered = cx.answer_wait(worker.run, &WaitAnswer { id, epoch, outcome, decision }).await.unwrap();
    assert!(matches!(answered, Answered::Ok(_)));
    for id in ["a", "b", "c"] {
        send(cx, &message(worker.run, id)).await;
    }
    for (id, ends) in [("pay", true), ("look", false)] {
        let claim = cx.start_call(&worker, id, Policy::ReadOnly).await;
        if ends {
            cx.complete(&worker.complete(&claim)).await.unwrap();
        }
    }
    let events = vec![json("1"), json("2")];
    ok(cx.commit(&Commit { inbox: vec![1, 3], events, ..worker.plan(2) }).await.unwrap());
    sleep_ms(5).await;
    ok(cx.commit(&Commit { inbox: vec![2], events: vec![json("3")], ..worker.result(2) }).await.unwrap());
    let result = document(cx, &worker, None).await;
    assert_eq!(result["triggeredBy"], json!({ "event": 3, "calls": ["pay"], "waits": [], "messages": [2] }),);
    let plan = BoundaryQuery::Id(BoundaryId { boundary: Boundary::Plan, ..result_place(2) });
    assert_eq!(
        document_of(cx, &worker, Some(plan)).await.unwrap()["triggeredBy"],
        json!({ "event": 1, "calls": ["pay"], "waits": ["ask-ann"], "messages": [1, 3] }),
    );
}

async fn every_checkpoint_is_found_by_its_id_also_a_plan_and_an_undone_one(cx: &TestContext) {
    let worker = worker(cx).await;
    cx.commit_turn(&worker, 1).await;
    let set = |value: &str| format!(r#"{{"set":{{"a":{{"json":{value}}}}}}}"#);
    ok(cx.commit(&Commit { ops: Some(set("1").into()), full: false, ..worker.plan(2) }).await.unwrap());
    ok(cx.commit(&Commit { ops: Some(set("2").into()), full: false, ..worker.result(2) }).await.unwrap());
    let again = rewound(cx, &worker, result_place(1)).await;
    ok(cx.commit(&Commit { ops: Some(set("3").into()), full: false, ..again.result(2) }).await.unwrap());
    let head = cx.run_of(&again).await.head.unwrap().epoch;
    let found = [
        (result_place(1), "superseded", json!(null)),
        (BoundaryId { boundary: Boundary::Plan, ..result_place(2) }, "undone", json!(1)),
        (result_place(2), "undone", json!(2)),
        (BoundaryId { epoch: head, ..result_place(2) }, "live", json!(3)),
    ];
    for (id, status, a) in found {
        let text = id.checkpoint_id();
        assert_eq!(BoundaryId::parse(&text), Some(id));
        let document = document_of(cx, &again, Some(BoundaryQuery::Id(id))).await.unwrap();
        assert_eq!((&document["id"], &document["status"]), (&json!(text), &json!(status)));
        assert_eq!(document["workingMemory"].pointer("/a/value/json").unwrap_or(&Value::Null), &a, "{text}");
    }
    for id in [BoundaryId { epoch: head + 9, ..result_place(2) }, result_place(3)] {
        assert!(document_of(cx, &again, Some(BoundaryQuery::Id(id))).await.is_none(), "{id}");
    }
}

#[test]
fn an_id_of_a_checkpoint_is_a_turn_a_boundary_and_an_epoch() {
    for text in ["", "7", "7.2", "7.3.1", "7.result.1", "7.2.1.1", "x.2.1"] {
        assert_eq!(BoundaryId::parse(text), None, "{text}");
    }
}

#[test]
fn the_golden_checkpoint_of_each_version_is_read_and_the_latest_is_written_as_it_was() {
    for (version, golden) in (1..).zip(GOLDEN) {
        let document: Checkpoint = serde_json::from_str(golden).unwrap();
        assert_eq!(document.version as usize, version);
        assert_eq!((document.pending_calls.len(), document.memory_references.len()), (2, 2));
        assert_eq!(errors_of(&schema(version), &serde_json::from_str(golden).unwrap()), [""; 0]);
        if version == GOLDEN.len() {
            let written = serde_json::to_string(&document).unwrap();
            assert_eq!(written, golden, "the format has changed: that needs a new version");
        }
    }
}

#[test]
fn the_schema_lists_exactly_the_fields_of_a_checkpoint() {
    let schema = schema(SCHEMAS.len());
    let written: Value = serde_json::from_str(GOLDEN[SCHEMAS.len() - 1]).unwrap();
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let mut required: Vec<_> =
        schema["required"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect();
    required.sort();
    assert_eq!(names(&schema["properties"]), names(&written));
    assert_eq!(required, names(&written));
}

#[test]
fn the_schema_refuses_invalid_documents() {
    let golden: Value = serde_json::from_str(GOLDEN[SCHEMAS.len() - 1]).unwrap();
    let cases = [
        ("turn", json!(0)),
        ("boundary", json!("middle")),
        ("contentHash", json!("sha256:12")),
        ("createdTime", json!("yesterday")),
        ("pendingStep", json!({ "turn": 1 })),
        ("pendingCalls", json!([{ "id": "pay" }])),
        ("usage", json!({})),
        ("nextStep", Value::Null),
        ("version", json!(1)),
        ("id", json!("3.plan.4")),
        ("runId", json!("nightly")),
        ("status", json!("paused")),
        ("triggeredBy", json!({ "event": 0, "calls": [], "waits": [], "messages": [] })),
        ("calls", json!([{ "id": "pay" }])),
        ("workingMemory", json!({ "goal": 1 })),
        ("memoryDelta", json!({})),
        ("elapsed", json!({ "runMs": -1, "turnMs": 0 })),
    ];
    for (field, value) in cases {
        let mut edited = golden.clone();
        edited[field] = value;
        assert!(!schema_errors(&edited).is_empty(), "{field}");
    }
}
