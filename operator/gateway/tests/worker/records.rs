//! `POST records`, `GET records`, and the records of a boundary.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::context::*;
use crate::faulty_store::Fault;

fn batch(id: u128, operations: &str) -> String {
    format!(r#"{{"batchId":"{}","operations":[{operations}]}}"#, Uuid::from_u128(id))
}

fn put(key: &str, value: &str) -> String {
    format!(r#"{{"put":{{"space":"s","key":"{key}","value":{{"json":{value}}}}}}}"#)
}

fn append(key: &str, entry: &str, value: &str) -> String {
    format!(r#"{{"append":{{"space":"s","key":"{key}","entryId":"{entry}","value":{{"json":{value}}}}}}}"#)
}

fn delete_prefix(prefix: &str) -> String {
    format!(r#"{{"deletePrefix":{{"space":"s","prefix":"{prefix}"}}}}"#)
}

/// Percent-encodes every byte.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// The keys of an answer.
fn keys(answer: &Value) -> Vec<&str> {
    answer["records"].as_array().unwrap().iter().map(|it| it["key"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn records_are_written_once_and_returned_byte_for_byte() {
    let ctx = TestContext::attached().await;
    let value = r#"{"z":1,  "a":12345678901234567890.10}"#;
    let operations = [put("a/1", value), append("log", "e1", "1"), append("log", "e2", "\"two\"")].join(",");
    let body = batch(1, &operations);
    assert_eq!(ctx.post("records", body.clone()).await.ok(), json!({ "result": "ok" }));
    assert_eq!(ctx.post("records", body).await.ok(), json!({ "result": "duplicate" }));
    assert_eq!(ctx.post("records", batch(1, &put("a/1", "0"))).await.code(), "CONFLICT");

    let answer = ctx.get("records?space=s").await;
    assert!(answer.text.contains(value), "{}", answer.text);
    let log = json!([
        { "key": "log", "entryId": "e1", "value": { "json": 1 }, "turn": 1 },
        { "key": "log", "entryId": "e2", "value": { "json": "two" }, "turn": 1 },
    ]);
    assert_eq!(ctx.get("records?space=s&prefix=lo").await.ok(), json!({ "records": log }));
    assert_eq!(ctx.get("records?space=other").await.ok(), json!({ "records": [] }));
}

#[tokio::test]
async fn records_are_paged() {
    let ctx = TestContext::attached().await;
    let operations: Vec<_> = (0..5).map(|n| append("a&b=c %é.1", &n.to_string(), &n.to_string())).collect();
    ctx.post("records", batch(1, &operations.join(","))).await.ok();
    let (mut values, mut after) = (Vec::new(), String::new());
    loop {
        let page = ctx.get(&format!("records?space=s&limit=2{after}")).await.ok();
        values
            .extend(page["records"].as_array().unwrap().iter().map(|record| record["value"]["json"].clone()));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={}", encoded(next));
    }
    assert_eq!(values, [0, 1, 2, 3, 4].map(Value::from));
}

#[tokio::test]
async fn records_are_read_newest_first_and_keys_without_values() {
    let ctx = TestContext::attached().await;
    let operations =
        [append("a", "1", "1"), append("a", "2", "2"), put("b", "3"), put("c/1", "4"), put("c/2", "5")];
    ctx.post("records", batch(1, &operations.join(","))).await.ok();
    let first = ctx.get("records?space=s&order=desc&limit=3").await.ok();
    assert_eq!(keys(&first), ["c/2", "c/1", "b"]);
    assert_eq!(first["records"][0], json!({ "key": "c/2", "value": { "json": 5 }, "turn": 1 }));
    let after = encoded(first["next"].as_str().unwrap());
    let second = ctx.get(&format!("records?space=s&order=desc&limit=3&after={after}")).await.ok();
    assert_eq!(keys(&second), ["a", "a"]);
    assert_eq!([&second["records"][0]["entryId"], &second["records"][1]["entryId"]], ["2", "1"]);
    assert_eq!(second["next"], Value::Null);
    let up = ctx.get("records?space=s&order=asc&prefix=c%2F&keysOnly=false").await.ok();
    assert_eq!(keys(&up), ["c/1", "c/2"]);

    let first = ctx.get("records?space=s&keysOnly=true&limit=2").await.ok();
    assert_eq!(
        first["records"],
        json!([{ "key": "a" }, { "key": "b" }]),
        "each once, and nothing but the key"
    );
    let after = encoded(first["next"].as_str().unwrap());
    let second = ctx.get(&format!("records?space=s&keysOnly=true&limit=2&after={after}")).await.ok();
    assert_eq!(second, json!({ "records": [{ "key": "c/1" }, { "key": "c/2" }] }));
    let down = ctx.get("records?space=s&keysOnly=true&order=desc&limit=1&prefix=c").await.ok();
    assert_eq!(keys(&down), ["c/2"]);
}

#[tokio::test]
async fn the_records_of_given_keys_are_read_in_one_request() {
    let ctx = TestContext::attached().await;
    let value = format!("\"{}\"", "x".repeat(3 << 20));
    ctx.post("records", batch(1, &[put("a", "1"), put("b", "2")].join(","))).await.ok();
    ctx.post("records", batch(2, &[append("large", "1", &value), append("large", "2", &value)].join(",")))
        .await
        .ok();
    let read = async |body: Value| ctx.post("records/read", body.to_string()).await;
    let answer = read(json!({ "space": "s", "keys": ["b", "none", "a"] })).await.ok();
    let expected = json!([
        { "key": "b", "value": { "json": 2 }, "turn": 1 },
        { "key": "a", "value": { "json": 1 }, "turn": 1 },
    ]);
    assert_eq!(answer, json!({ "records": expected }));
    // Two values of 3 MiB and one more are two pages: the first ends within a key.
    let all = ["b", "large", "a"];
    let first = read(json!({ "space": "s", "keys": all })).await.ok();
    assert_eq!(keys(&first), ["b", "large", "large"]);
    let second = read(json!({ "space": "s", "keys": all, "after": first["next"] })).await.ok();
    assert_eq!(keys(&second), ["a"]);
    assert_eq!(second["next"], Value::Null);

    for (body, why) in [
        (json!({ "space": "s", "keys": [] }), "`keys` is empty"),
        (json!({ "keys": ["a"] }), "space"),
        (json!({ "space": "", "keys": ["a"] }), "`space` must have"),
        (json!({ "space": "s", "keys": ["a", "b", "a"] }), "`keys` names \"a\" twice"),
        (json!({ "space": "s", "keys": ["a", ""] }), "a key in `keys` must have"),
        (json!({ "space": "s", "keys": vec!["a"; 1_001] }), "more than 1000 are too many"),
        (json!({ "space": "s", "keys": ["a"], "after": "1.b" }), "`after` is not a `next` of these keys"),
        (json!({ "space": "s", "keys": ["a"], "after": "a" }), "`after`"),
        (json!({ "space": "s", "keys": ["a"], "limit": 1 }), "unknown field"),
    ] {
        let answer = read(body.clone()).await;
        assert_eq!(answer.code(), "INVALID", "{body}");
        assert!(answer.detail().contains(why), "{why}: {}", answer.detail());
    }
    ctx.lose_pod(1).await;
    assert_eq!(read(json!({ "space": "s", "keys": ["a"] })).await.code(), "FENCED");
}

#[tokio::test]
async fn a_prefix_is_deleted_by_a_batch_and_by_a_boundary() {
    let ctx = TestContext::attached().await;
    let puts = ["a/1", "a/2", "b/1", "c"].map(|key| put(key, "1")).join(",");
    ctx.post("records", batch(1, &puts)).await.ok();
    let body = batch(2, &delete_prefix("a/"));
    assert_eq!(ctx.post("records", body.clone()).await.ok(), json!({ "result": "ok" }));
    assert_eq!(ctx.post("records", body).await.ok(), json!({ "result": "duplicate" }));
    assert_eq!(keys(&ctx.get("records?space=s").await.ok()), ["b/1", "c"]);
    let records = [delete_prefix("b"), put("b/2", "1")].join(",");
    let boundary = format!(r#"{{"commitId":"{}","state":1,"records":[{records}]}}"#, Uuid::from_u128(3));
    assert_eq!(ctx.post("turns/1", boundary).await.ok()["result"], "ok");
    assert_eq!(keys(&ctx.get("records?space=s").await.ok()), ["b/2", "c"]);
}

#[tokio::test]
async fn a_batch_whose_answer_was_lost_is_retried_without_effect() {
    let ctx = TestContext::attached().await;
    ctx.store.set(Fault::Hangs);
    let body = batch(1, &append("log", "e1", "1"));
    let lost = ctx.second_gateway(short_timeouts()).post("records", body.clone()).await;
    assert_eq!(lost.code(), "UNAVAILABLE");
    ctx.store.set(Fault::None);
    ctx.post("records", body.clone()).await.ok();
    ctx.post("records", body).await.ok();
    assert_eq!(ctx.get("records?space=s").await.ok()["records"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_boundary_and_its_records_are_committed_together_or_not_at_all() {
    let ctx = TestContext::attached().await;
    let boundary = |id: u128, turn: i32| {
        let (id, put) = (Uuid::from_u128(id), put("k", &turn.to_string()));
        format!(r#"{{"commitId":"{id}","state":{turn},"records":[{put}]}}"#)
    };
    let body = boundary(1, 1);
    assert_eq!(ctx.post("turns/1", body.clone()).await.ok()["result"], "ok");
    assert_eq!(ctx.post("turns/1", body).await.ok()["result"], "duplicate");
    assert_eq!(ctx.post("turns/3", boundary(2, 3)).await.code(), "CONFLICT");
    let record = json!({ "key": "k", "value": { "json": 1 }, "turn": 1 });
    assert_eq!(ctx.get("records?space=s").await.ok(), json!({ "records": [record] }));
}

#[tokio::test]
async fn a_fenced_worker_neither_writes_nor_reads_records() {
    let ctx = TestContext::attached().await;
    let body = batch(1, &put("k", "1"));
    ctx.post("records", body.clone()).await.ok();
    ctx.lose_pod(1).await;
    assert_eq!(ctx.post("records", body).await.code(), "FENCED");
    assert_eq!(ctx.get("records?space=s").await.code(), "FENCED");
}

#[tokio::test]
async fn a_finished_run_accepts_no_records() {
    let ctx = TestContext::attached().await;
    let finish = json!({ "commitId": Uuid::nil(), "finish": { "outcome": "succeeded" } });
    ctx.post("finish", finish.to_string()).await.ok();
    assert_eq!(ctx.post("records", batch(1, &put("k", "1"))).await.code(), "FINISHED");
}

#[tokio::test]
async fn invalid_records_are_refused_with_a_reason() {
    let ctx = TestContext::attached().await;
    let long = "k".repeat(513);
    let many = vec![put("k", "1"); 1_001].join(",");
    let bodies = [
        (batch(1, ""), "INVALID", "empty"),
        (batch(1, r#"{"move":{"space":"s","key":"k"}}"#), "INVALID", "unknown variant"),
        (batch(1, r#"{"delete":{"space":"s","key":"k","value":1}}"#), "INVALID", "unknown field"),
        (batch(1, r#"{"append":{"space":"s","key":"k","value":{"json":1}}}"#), "INVALID", "entryId"),
        (batch(1, &put("", "1")), "INVALID", "1 to 512 bytes"),
        (batch(1, &delete_prefix("")), "INVALID", "the `prefix` of records must have 1 to 512 bytes"),
        (batch(1, r#"{"deletePrefix":{"space":"s","key":"k"}}"#), "INVALID", "unknown field"),
        (batch(1, &put(&long, "1")), "INVALID", "1 to 512 bytes"),
        (batch(1, &put("a\\nb", "1")), "INVALID", "control character"),
        (batch(1, &append("k", "", "1")), "INVALID", "entryId"),
        (batch(1, &many), "INVALID", "more than 1000 are too many"),
        (
            batch(1, r#"{"put":{"space":"s","key":"k","value":{"bytes":{"mediaType":"x","base64":"?"}}}}"#),
            "INVALID",
            "base64",
        ),
        (batch(1, &put("k", &format!("\"{}\"", "x".repeat(4 << 20)))), "TOO_LARGE", "4194304"),
    ];
    for (body, code, why) in bodies {
        let answer = ctx.post("records", body.clone()).await;
        assert_eq!(answer.code(), code, "{}", &body[..body.len().min(200)]);
        assert!(answer.detail().contains(why), "{why}: {}", answer.detail());
    }
    for (query, why) in [
        ("", "`space`"),
        ("?space=s&limit=0", "at least 1"),
        ("?space=s&limit=x", "whole number"),
        ("?space=s&space=t", "twice"),
        ("?space=s&color=red", "space, prefix, after, limit, order, keysOnly"),
        ("?space=s&order=down", "`order` must be asc or desc"),
        ("?space=s&order=", "`order` must be asc or desc"),
        ("?space=s&keysOnly=yes", "`keysOnly` must be true or false"),
        ("?space=%zz", "percent-encoded"),
        ("?space=s&after=k", "`after`"),
        ("?space=s&after=-1.k", "`after`"),
        ("?space=s&after=9223372036854775807.k", "`after`"),
    ] {
        let answer = ctx.get(&format!("records{query}")).await;
        assert_eq!(answer.code(), "INVALID", "{query}");
        assert!(answer.detail().contains(why), "{query}: {}", answer.detail());
    }
}

/// Four pages may be read at once. A run whose reads hang has one of them.
#[tokio::test]
async fn a_run_whose_reads_of_pages_hang_keeps_no_other_run_from_reading() {
    let ctx = TestContext::attached().await;
    let other = ctx.other_run("bank", SECOND).await;
    for page in ["records?space=s", "events?from=1"] {
        ctx.store.set_pages(ctx.run, Fault::Hangs);
        let hanging = futures::future::join_all((0..8).map(|_| ctx.get(page)));
        let others = async {
            while ctx.store.waiting.load(Ordering::SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
            other.get_as(SECOND, page).await.ok();
            assert_eq!(ctx.store.waiting.load(Ordering::SeqCst), 1, "one page of a run at a time");
        };
        tokio::select! {
            biased;
            answers = hanging => panic!("they should hang: {answers:?}"),
            () = others => {}
        }
        ctx.store.waiting.store(0, Ordering::SeqCst);
    }
}
