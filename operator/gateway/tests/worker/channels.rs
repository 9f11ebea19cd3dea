//! Named channels: values and lists, and their operations.

use dalsegno_protocol::Limits;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::context::*;

async fn change(ctx: &TestContext, turn: u128, channels: &str) -> Answer {
    let body = format!(r#"{{"commitId":"{}","channels":{channels}}}"#, Uuid::from_u128(turn));
    ctx.post(&format!("turns/{turn}"), body).await
}

async fn state(ctx: &TestContext) -> Value {
    ctx.get("state").await.ok()["state"].take()
}

#[tokio::test]
async fn channels_are_set_appended_truncated_and_removed() {
    let ctx = TestContext::attached().await;
    let first =
        r#"{"set":{"goal":{"json":"sums"},"draft":{"json":0}},"append":{"log":[{"json":1},{"json":2}]}}"#;
    change(&ctx, 1, first).await.ok();
    assert_eq!(
        state(&ctx).await,
        json!({
            "goal": { "value": { "json": "sums" } },
            "draft": { "value": { "json": 0 } },
            "log": { "list": [{ "json": 1 }, { "json": 2 }] },
        })
    );
    change(&ctx, 2, r#"{"remove":["draft"],"truncate":{"log":1},"append":{"log":[{"json":3}]}}"#).await.ok();
    assert_eq!(
        state(&ctx).await,
        json!({ "goal": { "value": { "json": "sums" } }, "log": { "list": [{ "json": 1 }, { "json": 3 }] } })
    );
    change(&ctx, 3, r#"{"full":true,"set":{"only":{"json":null}}}"#).await.ok();
    assert_eq!(state(&ctx).await, json!({ "only": { "value": { "json": null } } }));
}

#[tokio::test]
async fn bytes_are_sent_as_base64_with_their_media_type() {
    let ctx = TestContext::attached().await;
    let image = json!({ "bytes": { "mediaType": "image/png", "base64": "iVBORw0KGgo=" } });
    change(&ctx, 1, &json!({ "set": { "image": image } }).to_string()).await.ok();
    assert_eq!(state(&ctx).await, json!({ "image": { "value": image } }));
}

#[tokio::test]
async fn the_json_of_a_channel_is_returned_byte_for_byte() {
    let ctx = TestContext::attached().await;
    let text = r#"{ "z":1e999, "a":"\ud800" ,"n":12345678901234567890123 }"#;
    change(&ctx, 1, &format!(r#"{{ "append" : {{ "log" : [ {{ "json" : {text} }} ] }} }}"#)).await.ok();
    assert_eq!(
        ctx.get("state").await.text,
        format!(r#"{{"state":{{"log":{{"list":[{{"json":{text}}}]}}}}}}"#)
    );
}

#[tokio::test]
async fn a_plain_state_replaces_every_channel() {
    let ctx = TestContext::attached().await;
    change(&ctx, 1, r#"{"set":{"goal":{"json":1}}}"#).await.ok();
    ctx.post("turns/2", commit(2, "2")).await.ok();
    assert_eq!(state(&ctx).await, json!({ "state": { "value": { "json": 2 } } }));
}

#[tokio::test]
async fn invalid_channel_operations_are_refused_with_a_reason() {
    let ctx = TestContext::attached().await;
    let many: serde_json::Map<String, Value> =
        (0..65).map(|n| (format!("c{n}"), json!({ "json": n }))).collect();
    let many = json!({ "set": many }).to_string();
    let long = json!({ "set": { "x".repeat(129): { "json": 1 } } }).to_string();
    for (channels, why) in [
        (r#"{"set":{"":{"json":1}}}"#, "1 to 128 characters"),
        (r#"{"set":{"a/b":{"json":1}}}"#, "1 to 128 characters"),
        (long.as_str(), "1 to 128 characters"),
        (r#"{"remove":["a b"]}"#, "1 to 128 characters"),
        (r#"{"truncate":{"é":1}}"#, "1 to 128 characters"),
        (many.as_str(), "more than 64 are too many"),
        (r#"{"set":{"a":{"json":1}},"append":{"a":[{"json":1}]}}"#, "a value or a list"),
        (r#"{"truncate":{"a":-1}}"#, "does not have the fields of this call"),
        (r#"{"truncate":{"a":1},"remove":["a"]}"#, "deletes it by"),
        (r#"{"truncate":{"a":1},"full":true}"#, "deletes it by"),
        (r#"{"set":{"a":{"text":"1"}}}"#, "unknown variant"),
        (r#"{"set":{"a":{"bytes":{"mediaType":"","base64":""}}}}"#, "mediaType"),
        (r#"{"set":{"a":{"bytes":{"mediaType":"a/b","base64":"a"}}}}"#, "base64"),
        (r#"{"put":{}}"#, "unknown field"),
        ("[]", "does not have the fields of this call"),
    ] {
        let answer = change(&ctx, 1, channels).await;
        assert_ne!(answer.status, 200, "{channels}");
        assert_eq!((answer.status, answer.code().as_str()), (400, "INVALID"), "{channels}");
        assert!(answer.detail().contains(why), "{channels}: {}", answer.detail());
    }
    assert_eq!(ctx.record().await.head, None);
}

#[tokio::test]
async fn a_state_above_the_limit_is_refused_and_a_smaller_one_is_accepted() {
    let ctx = TestContext::attached().await.with_config(long_timeouts());
    let value = format!("{:?}", "x".repeat(Limits::STATE_BYTES / 5));
    let grow = format!(r#"{{"append":{{"log":[{{"json":{value}}}]}}}}"#);
    for turn in 1..=4 {
        change(&ctx, turn, &grow).await.ok();
    }
    let answer = change(&ctx, 5, &grow).await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "TOO_LARGE"));
    assert!(answer.detail().contains("truncate"), "{}", answer.detail());
    change(&ctx, 5, r#"{"truncate":{"log":0},"append":{"log":[{"json":1}]}}"#).await.ok();
    assert_eq!(state(&ctx).await, json!({ "log": { "list": [{ "json": 1 }] } }));
}
