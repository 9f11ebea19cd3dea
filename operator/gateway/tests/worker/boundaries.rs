//! `POST turns/{n}` and `POST turns/{n}/plan` by a plain client, which sends the full state as one JSON value.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dalsegno_model::Read as _;
use dalsegno_protocol::Usage;
use serde_json::json;
use uuid::Uuid;

use crate::context::*;

#[tokio::test]
async fn a_plain_client_commits_turns_and_finishes() {
    let ctx = TestContext::attached().await;
    let mut hashes = std::collections::BTreeSet::new();
    for turn in 1..=3 {
        let body = json!({
            "commitId": Uuid::from_u128(turn), "state": { "turn": turn },
            "events": [{ "said": "a" }, { "said": "b" }],
            "usage": { "tokensIn": 10, "tokensOut": 2, "costMicroUSD": 5 },
            "trigger": "TURN_END",
        });
        let answer = ctx.post(&format!("turns/{turn}"), body.to_string()).await.ok();
        assert_eq!(answer["result"], "ok");
        assert_eq!(answer["head"]["turn"], json!(turn));
        assert_eq!(answer["head"]["position"], json!(turn * 2));
        assert_eq!(answer["leaseSeconds"], 15);
        assert_eq!((&answer["suspend"], &answer["cancel"]), (&json!(false), &json!(false)));
        hashes.insert(answer["head"]["contentHash"].as_str().unwrap().to_owned());
    }
    assert_eq!(hashes.len(), 3);
    let last = json!({
        "commitId": Uuid::from_u128(4), "state": { "turn": 4 },
        "outcome": { "finish": { "outcome": "succeeded", "reason": "GoalReached", "output": { "sum": 6 } } },
    });
    assert_eq!(ctx.post("turns/4", last.to_string()).await.ok()["head"]["turn"], 4);
    let record = ctx.record().await;
    assert_eq!(record.usage, Usage { tokens_in: 30, tokens_out: 6, tool_calls: 0, cost_micro_usd: 15 });
    let finish = record.finish.unwrap();
    assert_eq!((finish.reason.as_str(), finish.output.as_deref()), ("GoalReached", Some(r#"{"sum":6}"#)));
    let rows = ctx.store.boundaries(ctx.run, 1, 4).await.unwrap();
    assert_eq!(rows[0].events[1].get(), r#"{"said":"b"}"#);
    assert_eq!(rows[0].trigger.as_deref(), Some("TURN_END"));
}

#[tokio::test]
async fn a_plan_comes_before_its_result() {
    let ctx = TestContext::attached().await;
    let call = json!({ "id": "pay", "policy": "retrySameKey", "key": "k-1", "arguments": { "cents": 5 } });
    let plan = json!({ "commitId": Uuid::from_u128(1), "state": { "at": "plan" }, "calls": [call] });
    let answer = ctx.post("turns/1/plan", plan.to_string()).await.ok();
    assert_eq!((&answer["head"]["turn"], &answer["head"]["boundary"]), (&json!(1), &json!("plan")));
    let answer = ctx.attach("pod-1", INSTANCE).await.ok();
    assert_eq!(answer["head"]["boundary"], "plan");
    assert_eq!(ctx.post("turns/2", commit(2, "2")).await.code(), "CONFLICT");
    assert_eq!(ctx.post("turns/1", commit(2, "1")).await.ok()["head"]["boundary"], "result");
    assert_eq!(ctx.post("turns/1/plan", commit(3, "1")).await.code(), "CONFLICT");
}

#[tokio::test]
async fn the_same_bytes_again_are_a_duplicate_and_add_no_usage() {
    let ctx = TestContext::attached().await;
    let body = json!({ "commitId": Uuid::from_u128(1), "state": 1, "usage": { "tokensIn": 7 } }).to_string();
    let first = ctx.post("turns/1", body.clone()).await.ok();
    let again = ctx.post("turns/1", body).await.ok();
    assert_eq!(again["result"], "duplicate");
    assert_eq!(again["head"], first["head"]);
    assert_eq!(ctx.record().await.usage.tokens_in, 7);
}

#[tokio::test]
async fn a_committed_turn_with_other_bytes_or_another_id_is_a_conflict() {
    let ctx = TestContext::attached().await;
    ctx.post("turns/1", commit(1, "1")).await.ok();
    for body in [commit(1, "2"), commit(1, "1 "), commit(2, "1")] {
        let answer = ctx.post("turns/1", body).await;
        assert_eq!((answer.status, answer.code().as_str()), (409, "CONFLICT"));
        assert!(answer.detail().contains("the next turn is 2"), "{}", answer.detail());
    }
}

#[tokio::test]
async fn a_turn_that_is_not_the_next_is_a_conflict() {
    let ctx = TestContext::attached().await;
    let answer = ctx.post("turns/2", commit(1, "1")).await;
    assert_eq!(answer.code(), "CONFLICT");
    assert!(answer.detail().contains("the next turn is 1"));
    ctx.post("turns/1", commit(1, "1")).await.ok();
    ctx.post("turns/2", commit(2, "1")).await.ok();
    for turn in [1, 4] {
        assert_eq!(ctx.post(&format!("turns/{turn}"), commit(3, "1")).await.code(), "CONFLICT");
    }
}

#[tokio::test]
async fn fenced_takes_precedence_over_duplicate_and_reports_committed() {
    let ctx = TestContext::attached().await;
    let body = commit(1, "1");
    ctx.post("turns/1", body.clone()).await.ok();
    ctx.lose_pod(1).await;
    let committed = ctx.post("turns/1", body).await;
    assert_eq!((committed.code().as_str(), &committed.json()["committed"]), ("FENCED", &json!(true)));
    let not_committed = ctx.post("turns/2", commit(2, "2")).await;
    assert_eq!(
        (not_committed.code().as_str(), &not_committed.json()["committed"]),
        ("FENCED", &json!(false))
    );
}

#[tokio::test]
async fn a_state_is_returned_byte_for_byte() {
    let ctx = TestContext::attached().await;
    let states = [
        r#"{"z":1,"a":123456789012345678901234567890,"big":1e999,"zero":-0.0,"deep":[[[]]]}"#,
        r#"{ "spaces" : [ 1 ,	2 ] , "again":{} }"#,
        r#"{"a":1,"a":2}"#,
        r#""\ud800 \u0000 \uD83D\uDE00 \/ é 😀""#,
        r#"0.1000"#,
        "null",
        "\"\"",
    ];
    for (turn, state) in (1..).zip(states) {
        ctx.post(&format!("turns/{turn}"), commit(turn, state)).await.ok();
        let inline = ctx.attach("pod-1", INSTANCE).await;
        let expected = format!(r#""state":{{"state":{{"value":{{"json":{state}}}}}}}"#);
        assert!(inline.text.contains(&expected), "{expected}\n{}", inline.text);
    }
    for (turn, state) in (1..).zip(states) {
        let then = ctx.get(&format!("state?turn={turn}")).await;
        assert_eq!(then.text, format!(r#"{{"state":{{"state":{{"value":{{"json":{state}}}}}}}}}"#));
    }
}

#[tokio::test]
async fn a_value_with_a_non_finite_number_is_returned_as_the_bytes_sent() {
    let ctx = TestContext::attached().await;
    let json5 = |text: &str| json!({ "bytes": { "mediaType": "application/json5", "base64": STANDARD.encode(text) } });
    let first = r#"{ "loss":[NaN , -Infinity], "a":1e999 }"#;
    let body = commit(1, first);
    assert_eq!(ctx.post("turns/1", body.clone()).await.ok()["result"], "ok");
    assert_eq!(ctx.post("turns/1", body.clone()).await.ok()["result"], "duplicate");
    let other = body.replacen("\"state\":", "\"state\" :", 1);
    assert_eq!(ctx.post("turns/1", other).await.code(), "CONFLICT", "the digest is of the bytes as sent");
    let channels = r#"{"set":{"best":{"json":Infinity}},"append":{"log":[{"json":1},{"json":NaN}]}}"#;
    let record = r#"{"put":{"space":"s","key":"k","value":{"json":[NaN]}}}"#;
    let id = Uuid::from_u128(2);
    let second = format!(r#"{{"commitId":"{id}","channels":{channels},"records":[{record}]}}"#);
    ctx.post("turns/2", second).await.ok();

    let inline = ctx.attach("pod-1", INSTANCE).await.ok();
    let log = json!({ "list": [{ "json": 1 }, json5("NaN")] });
    let expected =
        json!({ "state": { "value": json5(first) }, "best": { "value": json5("Infinity") }, "log": log });
    assert_eq!(inline["state"], expected);
    let record = json!({ "key": "k", "value": json5("[NaN]"), "turn": 2 });
    assert_eq!(ctx.get("records?space=s").await.ok(), json!({ "records": [record] }));
    ctx.post("turns/3", commit(3, "1")).await.ok();
    assert_eq!(
        ctx.get("state").await.text,
        r#"{"state":{"state":{"value":{"json":1}}}}"#,
        "turn 1 was a full state and was replaced"
    );
}

#[tokio::test]
async fn a_boundary_without_a_state_does_not_change_the_state() {
    let ctx = TestContext::attached().await;
    ctx.post("turns/1", commit(1, "[1]")).await.ok();
    ctx.post("turns/2", json!({ "commitId": Uuid::from_u128(2) }).to_string()).await.ok();
    assert_eq!(ctx.get("state").await.text, r#"{"state":{"state":{"value":{"json":[1]}}}}"#);
}

#[tokio::test]
async fn a_state_of_an_uncommitted_turn_is_not_found() {
    let ctx = TestContext::attached().await;
    let answer = ctx.get("state").await;
    assert_eq!((answer.status, answer.code().as_str()), (404, "NOT_FOUND"));
    ctx.post("turns/1", commit(1, "1")).await.ok();
    assert_eq!(ctx.get("state?turn=2").await.code(), "NOT_FOUND");
    for query in ["turn=0", "turn=-1", "turn=", "turn", "page=1", "turn=1&x=2"] {
        assert_eq!(ctx.get(&format!("state?{query}")).await.code(), "INVALID", "{query}");
    }
}

#[tokio::test]
async fn a_fenced_worker_reads_nothing() {
    let ctx = TestContext::attached().await;
    ctx.post("turns/1", commit(1, "1")).await.ok();
    ctx.lose_pod(1).await;
    assert_eq!(ctx.get("state").await.code(), "FENCED");
}

#[tokio::test]
async fn of_two_concurrent_identical_commits_one_is_ok_and_one_is_a_duplicate() {
    let ctx = TestContext::attached().await;
    for turn in 1..=100 {
        let (path, body) = (format!("turns/{turn}"), commit(turn, "1"));
        let (a, b) = tokio::join!(ctx.post(&path, body.clone()), ctx.post(&path, body.clone()));
        let mut results = [a.ok()["result"].to_string(), b.ok()["result"].to_string()];
        results.sort();
        assert_eq!(results, ["\"duplicate\"", "\"ok\""]);
    }
}
