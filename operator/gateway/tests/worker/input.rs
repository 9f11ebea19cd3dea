//! Requests that violate the contract.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::context::*;

const ID: &str = r#""commitId":"00000000-0000-0000-0000-000000000001""#;

#[tokio::test]
async fn a_turn_that_is_not_a_number_from_1_is_invalid() {
    let ctx = TestContext::attached().await;
    for turn in ["-1", "0", "1000001", "99999999999999999999", "abc", "1.0", "+1", "%31%20", "1e3", "٣"] {
        for path in [format!("turns/{turn}"), format!("turns/{turn}/plan")] {
            let uri = path.replace('٣', "%D9%A3");
            let answer = ctx.post(&uri, commit(1, "1")).await;
            assert_eq!((answer.status, answer.code().as_str()), (400, "INVALID"), "{path}");
            assert!(answer.detail().contains("turns are numbered 1, 2, 3"), "{}", answer.detail());
        }
    }
}

#[tokio::test]
async fn a_malformed_body_is_refused_with_a_reason() {
    let ctx = TestContext::attached().await;
    let events = format!("{{{ID},\"events\":[{}]}}", vec!["1"; 1_001].join(","));
    let call = |id: &str| json!({ "id": id, "policy": "ask", "key": "k" });
    let calls =
        |calls: Vec<serde_json::Value>| json!({ "commitId": Uuid::nil(), "calls": calls }).to_string();
    let bodies = [
        (String::new(), "empty"),
        ("{".into(), "not JSON: EOF while parsing an object at line 1 column 1"),
        ("{]".into(), "not JSON"),
        (format!("{{{ID}}} trailing"), "not JSON: trailing characters"),
        ("[]".into(), "must be a JSON object"),
        ("null".into(), "must be a JSON object"),
        ("{}".into(), "missing field `commitId`"),
        (r#"{"commitId":"7"}"#.into(), "does not have the fields of this call"),
        (format!("{{{ID},\n\"stat\":1}}"), "unknown field `stat`"),
        (format!("{{{ID},\n\"stat\":1}}"), "line 2"),
        (format!("{{{ID},{ID}}}"), "duplicate field"),
        (format!("{{{ID},\"state\":1,\"channels\":{{}}}}"), "exclude each other"),
        (format!("{{{ID},\"state\":\"\u{1}\"}}"), "not JSON"),
        (format!("{{{ID},\"events\":[NaN]}}"), "NaN and Infinity are not JSON"),
        (format!("{{{ID},\"state\":[NaN],\"usage\":{{\"tokensIn\":Infinity}}}}"), "may hold them"),
        (format!("{{{ID},\"state\":[1NaN]}}"), "not JSON"),
        (format!("{{{ID},\"state\":NaN,\"state\":1}}"), "not JSON"),
        (format!("{{{ID},\"trigger\":\"\"}}"), "`trigger`"),
        (format!("{{{ID},\"trigger\":\"TASK_ENDED\"}}"), "must be one of TURN_END, TASK_END"),
        (format!("{{{ID},\"trigger\":\"task ended\"}}"), "such as invoice.checked"),
        (format!("{{{ID},\"usage\":{{\"tokensIn\":-1}}}}"), "`usage.tokensIn` is -1"),
        (format!("{{{ID},\"usage\":{{\"costMicroUSD\":1099511627777}}}}"), "`usage.costMicroUSD`"),
        (
            format!("{{{ID},\"usage\":{{\"toolCalls\":99999999999999999999}}}}"),
            "does not have the fields of this call",
        ),
        (format!("{{{ID},\"outcome\":{{\"suspend\":{{}}}}}}"), "unknown variant `suspend`"),
        (events, "more than 1000 are too many"),
        (calls(vec![call("a"), call("a")]), "two calls have the id \"a\""),
        (calls(vec![call("a b")]), "1 to 128 characters"),
        (calls(vec![call("")]), "1 to 128 characters"),
        (calls((0..101).map(|n| call(&format!("c{n}"))).collect()), "more than 100 are too many"),
    ];
    for (body, why) in bodies {
        let answer = ctx.post("turns/1/plan", body.clone()).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "INVALID"), "{body:.80}");
        assert!(answer.detail().contains(why), "{body:.80}: {}", answer.detail());
    }
    let late = ctx.post("turns/1", calls(vec![call("a")])).await;
    assert!(late.code() == "INVALID" && late.detail().contains("turns/{n}/plan"), "{}", late.text);
    assert_eq!(ctx.record().await.head, None);
}

/// JSON pointers of the objects in a body, without those whose fields the worker chooses.
fn objects(value: &Value, at: String) -> Vec<String> {
    const FREE_FORM: [&str; 7] = ["state", "json", "truncate", "events", "arguments", "result", "output"];
    match value {
        Value::Object(fields) => {
            let inner = fields.iter().filter(|(name, _)| !FREE_FORM.contains(&name.as_str()));
            let inner = inner.flat_map(|(name, value)| objects(value, format!("{at}/{name}")));
            inner.chain([at.clone()]).collect()
        }
        Value::Array(items) => {
            items.iter().enumerate().flat_map(|(n, item)| objects(item, format!("{at}/{n}"))).collect()
        }
        _ => Vec::new(),
    }
}

#[tokio::test]
async fn an_unknown_field_is_refused_at_every_level() {
    let ctx = TestContext::new().await;
    let bytes = json!({ "bytes": { "mediaType": "a/b", "base64": "AA==" } });
    let entry = |of: Value| json!({ "space": "s", "key": "k", "value": of });
    let operations = json!([
        { "put": entry(json!({ "json": 1 })) },
        { "putIfAbsent": entry(bytes.clone()) },
        { "append": { "space": "s", "key": "k", "entryId": "e", "value": bytes } },
        { "delete": { "space": "s", "key": "k" } },
    ]);
    let finish = json!({ "outcome": "failed", "reason": "No", "message": "m", "output": {} });
    let boundary = json!({
        "commitId": Uuid::from_u128(1),
        "channels": { "set": { "a": { "json": {} }, "b": bytes }, "append": { "c": [{ "json": {} }, bytes] },
                      "truncate": { "d": 1 }, "remove": ["e"] },
        "events": [{}],
        "calls": [{ "id": "planned", "policy": "probe", "key": "k1", "arguments": {} }],
        "records": operations,
        "usage": { "tokensIn": 1 },
        "trigger": "t",
    });
    let ended = json!({ "commitId": Uuid::from_u128(2), "state": {}, "outcome": { "finish": finish } });
    let claim = json!({ "claimId": Uuid::from_u128(3), "policy": "probe", "key": "k2", "arguments": {} });
    let complete = json!({ "claimId": Uuid::from_u128(3), "outcome": "completed", "result": {} });
    let settle = json!({ "outcome": "failed", "reason": "seen", "result": {} });
    // 409: a well-formed call at the wrong time.
    for (path, body, status) in [
        ("attach", json!({ "instance": INSTANCE }), 200),
        ("turns/1/plan", boundary, 200),
        ("calls/pay/claim", claim, 200),
        ("calls/pay/complete", complete, 200),
        ("calls/pay/settle", settle, 409),
        ("records", json!({ "batchId": Uuid::from_u128(4), "operations": operations }), 200),
        ("park", json!({ "parkId": Uuid::from_u128(6) }), 200),
        ("turns/1", ended, 200),
        ("finish", json!({ "commitId": Uuid::from_u128(5), "finish": finish }), 409),
    ] {
        let bearer = if path == "attach" { "token-of-pod-1" } else { INSTANCE };
        for pointer in objects(&body, String::new()) {
            let mut altered = body.clone();
            altered.pointer_mut(&pointer).unwrap()["unknown"] = json!(1);
            let answer = ctx.post_as(bearer, path, altered.to_string()).await;
            assert_eq!(answer.status, 400, "{path} {altered}");
            assert_eq!(answer.code(), "INVALID", "{path} {altered}");
        }
        assert_eq!(ctx.post_as(bearer, path, body.to_string()).await.status, status, "{path} {body}");
    }
}

#[tokio::test]
async fn a_body_that_is_not_utf_8_is_invalid() {
    let ctx = TestContext::attached().await;
    let body = [b"{".as_slice(), ID.as_bytes(), b",\"state\":\"\xff\"}"].concat();
    assert_eq!(ctx.post("turns/1", body).await.code(), "INVALID");
}

#[tokio::test]
async fn the_deepest_allowed_nesting_is_stored_and_one_level_more_is_refused() {
    let ctx = TestContext::attached().await;
    let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let answer = ctx.post("turns/1", commit(1, &deep(128))).await;
    assert_eq!(answer.code(), "INVALID");
    assert!(answer.detail().contains("deeper than 128 levels at byte"), "{}", answer.detail());
    ctx.post("turns/1", commit(1, &deep(127))).await.ok();
    assert!(ctx.get("state").await.text.contains(&deep(127)));
}

#[tokio::test]
async fn an_unknown_path_or_method_is_not_found() {
    let ctx = TestContext::attached().await;
    let run = ctx.run;
    for (method, path) in [
        ("GET", "/".to_owned()),
        ("POST", "/v1/runs".into()),
        ("POST", format!("/v1/runs/{run}")),
        ("POST", format!("/v1/runs/{run}/suspend")),
        ("POST", format!("/v1/runs/{run}/turns/")),
        ("POST", format!("/v1/runs/{run}/turns/1/")),
        ("POST", format!("/v1/runs/{run}/attach/now")),
        ("POST", format!("/v2/runs/{run}/attach")),
        ("GET", format!("/v1/runs/{run}/attach")),
        ("PUT", format!("/v1/runs/{run}/turns/1")),
        ("DELETE", format!("/v1/runs/{run}/state")),
        ("POST", format!("/v1/runs/{run}/state")),
    ] {
        let request = axum::http::Request::builder().method(method).uri(&path);
        let answer = ctx.send(request, "{}").await;
        assert_eq!((answer.status, answer.code().as_str()), (404, "NOT_FOUND"), "{method} {path}");
        assert!(answer.detail().contains("docs/reference/contract.md"));
    }
}

#[tokio::test]
async fn a_null_character_is_invalid_and_the_problem_names_the_field() {
    let ctx = TestContext::attached().await;
    let id = Uuid::nil();
    let planned =
        |call, key| json!({ "commitId": id, "calls": [{ "id": call, "policy": "ask", "key": key }] });
    let finish = |reason| json!({ "commitId": id, "finish": { "outcome": "failed", "reason": reason } });
    let set = |name: &str, media_type| {
        let payload = json!({ "bytes": { "mediaType": media_type, "base64": "AA==" } });
        json!({ "commitId": id, "channels": { "set": { name: payload } } })
    };
    let with = |channels| json!({ "commitId": id, "channels": channels });
    let cases = [
        ("turns/1", json!({ "commitId": id, "trigger": "a\0" }), "`trigger`"),
        ("turns/1", set("a\0", "text/plain"), "a channel's name"),
        ("turns/1", set("a", "text/\0"), "`mediaType`"),
        ("turns/1", with(json!({ "append": { "a\0": [] } })), "a channel's name"),
        ("turns/1", with(json!({ "remove": ["a\0"] })), "a channel's name"),
        ("turns/1", with(json!({ "truncate": { "a\0": 1 } })), "a channel's name"),
        ("turns/1/plan", planned("a\0", "k"), "a call's `id`"),
        ("turns/1/plan", planned("a", "k\0"), "a call's `key`"),
        ("calls/a/claim", json!({ "claimId": id, "policy": "ask", "key": "k\0" }), "`key`"),
        ("calls/a%00/claim", json!({ "claimId": id, "policy": "ask", "key": "k" }), "the call's id"),
        ("calls/a%00/complete", json!({ "claimId": id, "outcome": "failed" }), "the call's id"),
        ("calls/a%00/settle", json!({ "outcome": "failed", "reason": "seen" }), "the call's id"),
        ("calls/a/settle", json!({ "outcome": "failed", "reason": "s\0" }), "`reason`"),
        ("finish", finish("A\0"), "`reason`"),
    ];
    for (path, body, field) in cases {
        let answer = ctx.post(path, body.to_string()).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "INVALID"), "{path} {body}");
        assert!(answer.detail().contains(field), "{path} {body}: {}", answer.detail());
    }
    assert_eq!(ctx.attach("pod-1", &format!("{}\0", &INSTANCE[1..])).await.code(), "INVALID");
    assert_eq!(ctx.record().await.head, None);
}
