//! `POST turns/{n}` and `POST turns/{n}/plan` by a plain client: the whole state as one JSON value.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dalsegno_protocol::Usage;
use dalsegno_store::Read as _;
use serde_json::json;
use uuid::Uuid;

use crate::world::*;

#[tokio::test]
async fn a_plain_client_commits_turn_after_turn_and_finishes() {
    let world = World::attached().await;
    let mut hashes = std::collections::BTreeSet::new();
    for turn in 1..=3 {
        let body = json!({
            "commitId": Uuid::from_u128(turn), "state": { "turn": turn },
            "events": [{ "said": "a" }, { "said": "b" }],
            "usage": { "tokensIn": 10, "tokensOut": 2, "costMicroUSD": 5 },
            "trigger": "TURN_END",
        });
        let answer = world.post(&format!("turns/{turn}"), body.to_string()).await.ok();
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
    assert_eq!(world.post("turns/4", last.to_string()).await.ok()["head"]["turn"], 4);
    let record = world.record().await;
    assert_eq!(record.usage, Usage { tokens_in: 30, tokens_out: 6, tool_calls: 0, cost_micro_usd: 15 });
    let finish = record.finish.unwrap();
    assert_eq!((finish.reason.as_str(), finish.output.as_deref()), ("GoalReached", Some(r#"{"sum":6}"#)));
    let rows = world.store.boundaries(world.run, 1, 4).await.unwrap();
    assert_eq!(rows[0].events[1].get(), r#"{"said":"b"}"#);
    assert_eq!(rows[0].trigger.as_deref(), Some("TURN_END"));
}

#[tokio::test]
async fn a_plan_comes_before_its_result() {
    let world = World::attached().await;
    let call = json!({ "id": "pay", "policy": "retrySameKey", "key": "k-1", "arguments": { "cents": 5 } });
    let plan = json!({ "commitId": Uuid::from_u128(1), "state": { "at": "plan" }, "calls": [call] });
    let answer = world.post("turns/1/plan", plan.to_string()).await.ok();
    assert_eq!((&answer["head"]["turn"], &answer["head"]["boundary"]), (&json!(1), &json!("plan")));
    let answer = world.attach("pod-1", INSTANCE).await.ok();
    assert_eq!(answer["head"]["boundary"], "plan");
    assert_eq!(world.post("turns/2", commit(2, "2")).await.code(), "CONFLICT");
    assert_eq!(world.post("turns/1", commit(2, "1")).await.ok()["head"]["boundary"], "result");
    assert_eq!(world.post("turns/1/plan", commit(3, "1")).await.code(), "CONFLICT");
}

#[tokio::test]
async fn the_same_bytes_again_are_a_duplicate_and_spend_nothing() {
    let world = World::attached().await;
    let body = json!({ "commitId": Uuid::from_u128(1), "state": 1, "usage": { "tokensIn": 7 } }).to_string();
    let first = world.post("turns/1", body.clone()).await.ok();
    let again = world.post("turns/1", body).await.ok();
    assert_eq!(again["result"], "duplicate");
    assert_eq!(again["head"], first["head"]);
    assert_eq!(world.record().await.usage.tokens_in, 7);
}

#[tokio::test]
async fn a_turn_that_is_there_with_other_bytes_or_another_id_is_a_conflict() {
    let world = World::attached().await;
    world.post("turns/1", commit(1, "1")).await.ok();
    for body in [commit(1, "2"), commit(1, "1 "), commit(2, "1")] {
        let answer = world.post("turns/1", body).await;
        assert_eq!((answer.status, answer.code().as_str()), (409, "CONFLICT"));
        assert!(answer.detail().contains("the next turn is 2"), "{}", answer.detail());
    }
}

#[tokio::test]
async fn a_turn_that_is_not_the_next_is_a_conflict() {
    let world = World::attached().await;
    let answer = world.post("turns/2", commit(1, "1")).await;
    assert_eq!(answer.code(), "CONFLICT");
    assert!(answer.detail().contains("the next turn is 1"));
    world.post("turns/1", commit(1, "1")).await.ok();
    world.post("turns/2", commit(2, "1")).await.ok();
    for turn in [1, 4] {
        assert_eq!(world.post(&format!("turns/{turn}"), commit(3, "1")).await.code(), "CONFLICT");
    }
}

#[tokio::test]
async fn fenced_comes_before_duplicate_and_tells_whether_the_commit_stands() {
    let world = World::attached().await;
    let body = commit(1, "1");
    world.post("turns/1", body.clone()).await.ok();
    world.lose_pod(1).await;
    let stands = world.post("turns/1", body).await;
    assert_eq!((stands.code().as_str(), &stands.json()["committed"]), ("FENCED", &json!(true)));
    let does_not = world.post("turns/2", commit(2, "2")).await;
    assert_eq!((does_not.code().as_str(), &does_not.json()["committed"]), ("FENCED", &json!(false)));
}

#[tokio::test]
async fn a_state_comes_back_byte_for_byte() {
    let world = World::attached().await;
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
        world.post(&format!("turns/{turn}"), commit(turn, state)).await.ok();
        let inline = world.attach("pod-1", INSTANCE).await;
        let expected = format!(r#""state":{{"state":{{"value":{{"json":{state}}}}}}}"#);
        assert!(inline.text.contains(&expected), "{expected}\n{}", inline.text);
    }
    for (turn, state) in (1..).zip(states) {
        let then = world.get(&format!("state?turn={turn}")).await;
        assert_eq!(then.text, format!(r#"{{"state":{{"state":{{"value":{{"json":{state}}}}}}}}}"#));
    }
}

#[tokio::test]
async fn what_holds_numbers_that_json_has_not_comes_back_as_the_bytes_that_came() {
    let world = World::attached().await;
    let json5 = |text: &str| json!({ "bytes": { "mediaType": "application/json5", "base64": STANDARD.encode(text) } });
    let first = r#"{ "loss":[NaN , -Infinity], "a":1e999 }"#;
    let body = commit(1, first);
    assert_eq!(world.post("turns/1", body.clone()).await.ok()["result"], "ok");
    assert_eq!(world.post("turns/1", body.clone()).await.ok()["result"], "duplicate");
    let other = body.replacen("\"state\":", "\"state\" :", 1);
    assert_eq!(world.post("turns/1", other).await.code(), "CONFLICT", "judged by the bytes that came");
    let channels = r#"{"set":{"best":{"json":Infinity}},"append":{"log":[{"json":1},{"json":NaN}]}}"#;
    let record = r#"{"put":{"space":"s","key":"k","value":{"json":[NaN]}}}"#;
    let id = Uuid::from_u128(2);
    let second = format!(r#"{{"commitId":"{id}","channels":{channels},"records":[{record}]}}"#);
    world.post("turns/2", second).await.ok();

    let inline = world.attach("pod-1", INSTANCE).await.ok();
    let log = json!({ "list": [{ "json": 1 }, json5("NaN")] });
    let whole =
        json!({ "state": { "value": json5(first) }, "best": { "value": json5("Infinity") }, "log": log });
    assert_eq!(inline["state"], whole);
    let record = json!({ "key": "k", "value": json5("[NaN]"), "turn": 2 });
    assert_eq!(world.get("records?space=s").await.ok(), json!({ "records": [record] }));
    world.post("turns/3", commit(3, "1")).await.ok();
    assert_eq!(
        world.get("state").await.text,
        r#"{"state":{"state":{"value":{"json":1}}}}"#,
        "it was a whole state"
    );
}

#[tokio::test]
async fn a_boundary_without_state_leaves_it_as_it_was() {
    let world = World::attached().await;
    world.post("turns/1", commit(1, "[1]")).await.ok();
    world.post("turns/2", json!({ "commitId": Uuid::from_u128(2) }).to_string()).await.ok();
    assert_eq!(world.get("state").await.text, r#"{"state":{"state":{"value":{"json":[1]}}}}"#);
}

#[tokio::test]
async fn a_state_that_is_not_there_is_not_found() {
    let world = World::attached().await;
    let answer = world.get("state").await;
    assert_eq!((answer.status, answer.code().as_str()), (404, "NOT_FOUND"));
    world.post("turns/1", commit(1, "1")).await.ok();
    assert_eq!(world.get("state?turn=2").await.code(), "NOT_FOUND");
    for query in ["turn=0", "turn=-1", "turn=", "turn", "page=1", "turn=1&x=2"] {
        assert_eq!(world.get(&format!("state?{query}")).await.code(), "INVALID", "{query}");
    }
}

#[tokio::test]
async fn a_fenced_worker_reads_nothing() {
    let world = World::attached().await;
    world.post("turns/1", commit(1, "1")).await.ok();
    world.lose_pod(1).await;
    assert_eq!(world.get("state").await.code(), "FENCED");
}

#[tokio::test]
async fn a_hundred_pairs_of_the_same_commit_are_each_one_ok_and_one_duplicate() {
    let world = World::attached().await;
    for turn in 1..=100 {
        let (path, body) = (format!("turns/{turn}"), commit(turn, "1"));
        let (a, b) = tokio::join!(world.post(&path, body.clone()), world.post(&path, body.clone()));
        let mut results = [a.ok()["result"].to_string(), b.ok()["result"].to_string()];
        results.sort();
        assert_eq!(results, ["\"duplicate\"", "\"ok\""]);
    }
}
