//! `GET events`, as pages and as a stream, and `GET memory-delta`.

use std::time::Duration;

use axum::body::Body;
use dalsegno_gateway::{Config, router};
use dalsegno_model::{BoundaryId, Operator as _, Rewind, Rewound};
use dalsegno_protocol::Boundary;
use futures::StreamExt;
use serde_json::{Value, json};
use tower::ServiceExt;
use uuid::Uuid;

use crate::context::*;
use crate::faulty_store::Fault;

/// Commits one turn for each of these lists of events.
async fn commit_events(ctx: &TestContext, turns: &[&str]) {
    for (turn, events) in (1..).zip(turns) {
        let id = Uuid::from_u128(turn);
        let body = format!(r#"{{"commitId":"{id}","state":{turn},"events":{events}}}"#);
        ctx.post(&format!("turns/{turn}"), body).await.ok();
    }
}

async fn finish(ctx: &TestContext) {
    let finish = json!({ "commitId": Uuid::nil(), "finish": { "outcome": "succeeded" } });
    ctx.post("finish", finish.to_string()).await.ok();
}

async fn follow(ctx: &TestContext, query: &str, accept: &str) -> Answer {
    let request = ctx.request("GET", &format!("events?{query}")).header("accept", accept);
    ctx.send(request.header("authorization", format!("Bearer {INSTANCE}")), "").await
}

#[tokio::test]
async fn events_are_paged_and_unchanged() {
    let ctx = TestContext::attached().await;
    let odd = r#"{"z":1,  "a":12345678901234567890.10}"#;
    commit_events(&ctx, &[&format!("[1,{odd}]"), "[]", r#"["three"]"#]).await;
    let answer = ctx.get("events").await;
    assert!(answer.text.contains(odd), "{}", answer.text);
    let events = answer.ok();
    assert_eq!(events["next"], 4);
    assert_eq!(events["events"][0], json!({ "position": 1, "turn": 1, "attempt": 1, "event": 1 }));
    assert_eq!(events["events"][2], json!({ "position": 3, "turn": 3, "attempt": 1, "event": "three" }));
    let page = ctx.get("events?from=2&limit=1").await.ok();
    assert_eq!((page["events"].as_array().unwrap().len(), &page["next"]), (1, &json!(3)));
    assert_eq!(ctx.get("events?from=4").await.ok(), json!({ "events": [], "next": 4 }));
}

#[tokio::test]
async fn events_can_be_read_from_any_turn() {
    let ctx = TestContext::attached().await;
    commit_events(&ctx, &["[1,2]", "[]", "[3]"]).await;
    for (turn, first, next) in [(1, Some(1), 4), (2, Some(3), 4), (3, Some(3), 4)] {
        let page = ctx.get(&format!("events?turn={turn}")).await.ok();
        assert_eq!((page["events"][0]["position"].as_i64(), &page["next"]), (first, &json!(next)), "{turn}");
    }
    let page = ctx.get("events?turn=1&limit=1").await.ok();
    assert_eq!((page["events"].as_array().unwrap().len(), &page["next"]), (1, &json!(2)));
    assert_eq!(ctx.get("events?turn=4").await.code(), "NOT_FOUND");

    // For a turn without events `next` is the position of the next event to come.
    let body = format!(r#"{{"commitId":"{}","state":4}}"#, Uuid::from_u128(4));
    ctx.post("turns/4", body).await.ok();
    assert_eq!(ctx.get("events?turn=4").await.ok(), json!({ "events": [], "next": 4 }));
    ctx.lose_pod(1).await;
    assert_eq!(ctx.get("events?turn=1").await.code(), "FENCED");
}

#[tokio::test]
async fn a_stream_ends_with_its_run() {
    for (accept, query) in [
        ("application/x-ndjson", "follow=true&from=2"),
        ("text/event-stream", "from=2"),
        ("text/event-stream", "turn=2"),
        ("application/x-ndjson", "follow=true&turn=2"),
    ] {
        let ctx = TestContext::attached().await;
        commit_events(&ctx, &["[1]", "[{\"a\":\n2}]"]).await;
        let later = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let body = format!(r#"{{"commitId":"{}","events":["late"]}}"#, Uuid::from_u128(9));
            ctx.post("turns/3", body).await.ok();
            finish(&ctx).await;
        };
        let (answer, ()) = tokio::join!(follow(&ctx, query, accept), later);
        assert_eq!((answer.status, answer.headers["content-type"].to_str().unwrap()), (200, accept));
        let data = answer.text.lines().filter_map(|line| match accept {
            "text/event-stream" => line.strip_prefix("data: "),
            _ => Some(line).filter(|line| !line.is_empty()),
        });
        let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
        let expected = [
            json!({ "position": 2, "turn": 2, "attempt": 1, "event": { "a": 2 } }),
            json!({ "position": 3, "turn": 3, "attempt": 1, "event": "late" }),
        ];
        assert_eq!(events, expected, "{}", answer.text);
        assert_eq!(answer.text.contains("id: 3\n"), accept == "text/event-stream");
    }
}

#[tokio::test]
async fn the_accept_header_chooses_between_page_and_stream() {
    let ctx = TestContext::attached().await;
    commit_events(&ctx, &["[1]"]).await;
    finish(&ctx).await;
    let (page, sse, ndjson) = ("application/json", "text/event-stream", "application/x-ndjson");
    for (query, accept, expected) in [
        ("", &["text/event-stream"][..], sse),
        ("", &["Text/Event-Stream; charset=utf-8"], sse),
        ("", &["text/event-stream, */*"], sse),
        ("", &["application/json;q=0.5, text/event-stream;q=0.9"], sse),
        ("", &["text/plain", "text/event-stream"], sse),
        ("", &["application/x-ndjson, text/event-stream;q=0.1"], sse),
        ("", &["application/json, text/event-stream;q=0"], page),
        ("", &["text/event-stream; q=0.000"], page),
        ("", &["application/json", "text/event-stream"], page),
        ("", &["text/event-stream;q=0.5, */*"], page),
        ("", &["text/event-stream-of-another-kind"], page),
        ("", &["application/x-ndjson"], page),
        ("follow=true", &["application/json, application/x-ndjson;q=0.5"], ndjson),
        ("follow=true", &["text/event-stream;q=0, application/x-ndjson"], ndjson),
        ("follow=true", &["application/x-ndjson;q=0.5, text/event-stream"], sse),
        ("follow=true", &["application/x-ndjson;q=0, */*"], "application/problem+json"),
    ] {
        let request = ctx.request("GET", &format!("events?{query}"));
        let request = request.header("authorization", format!("Bearer {INSTANCE}"));
        let request = accept.iter().fold(request, |request, line| request.header("accept", *line));
        let answer = ctx.send(request, "").await;
        assert_eq!(answer.headers["content-type"], expected, "{query} {accept:?}");
    }
}

/// A browser's EventSource reconnects with the same URL and sends the last position in a header.
#[tokio::test]
async fn a_reconnecting_stream_continues_after_last_event_id() {
    let ctx = TestContext::attached().await;
    commit_events(&ctx, &["[1,2]", "[3]"]).await;
    finish(&ctx).await;
    let reconnect = async |query: &str, last: &str| {
        let request = ctx.request("GET", &format!("events?{query}")).header("accept", "text/event-stream");
        let request = request.header("authorization", format!("Bearer {INSTANCE}"));
        ctx.send(request.header("last-event-id", last), "").await
    };
    for query in ["", "from=1", "turn=1", "turn=9"] {
        let answer = reconnect(query, "1").await;
        let ids: Vec<_> = answer.text.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
        assert_eq!((answer.status, ids), (200, vec!["2", "3"]), "{query}");
        let answer = reconnect(query, "3").await;
        assert_eq!((answer.status, answer.text.as_str()), (204, ""), "tells an EventSource to stop: {query}");
    }
    for odd in ["", "x", "-1", "1.5"] {
        assert_eq!(reconnect("", odd).await.code(), "INVALID", "{odd}");
    }
}

#[tokio::test]
async fn a_stream_ends_when_its_worker_is_fenced() {
    let ctx = TestContext::attached().await;
    commit_events(&ctx, &["[1]"]).await;
    let later = async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        ctx.lose_pod(1).await;
    };
    let (answer, ()) = tokio::join!(follow(&ctx, "", "text/event-stream"), later);
    assert_eq!(answer.text.matches("data: ").count(), 1);
    assert!(answer.text.contains(":\n\n"), "a keep-alive is sent: {}", answer.text);
}

#[tokio::test]
async fn a_stream_ends_at_its_time_limit() {
    let limit = Duration::from_millis(100);
    let ctx =
        TestContext::attached().await.with_config(Config { max_response_duration: limit, ..test_config() });
    commit_events(&ctx, &["[1]"]).await;
    assert_eq!(follow(&ctx, "", "text/event-stream").await.text.matches("data: ").count(), 1);
}

#[tokio::test]
async fn streams_beyond_the_total_are_refused() {
    let ctx = TestContext::attached().await.with_config(Config { max_event_streams: 0, ..test_config() });
    assert_eq!(follow(&ctx, "", "text/event-stream").await.code(), "UNAVAILABLE");
}

/// Starts a stream whose body is not read yet.
async fn begin(ctx: &TestContext, bearer: &str) -> axum::response::Response {
    let request = ctx.request("GET", "events").header("accept", "text/event-stream");
    let request = request.header("authorization", format!("Bearer {bearer}")).body(Body::empty()).unwrap();
    router(ctx.gateway.clone()).oneshot(request).await.unwrap()
}

#[tokio::test]
async fn one_run_may_have_eight_streams_at_once() {
    let ctx = TestContext::attached().await;
    let other = ctx.other_run("bakery", SECOND).await;
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(begin(&ctx, INSTANCE).await);
    }
    assert!(held.iter().all(|stream| stream.status() == 200));
    let answer = follow(&ctx, "", "text/event-stream").await;
    assert_eq!((answer.status, answer.code().as_str()), (429, "TOO_MANY_REQUESTS"));
    assert_eq!(begin(&other, SECOND).await.status(), 200);
    drop(held.pop());
    assert_eq!(begin(&ctx, INSTANCE).await.status(), 200);
}

#[tokio::test]
async fn the_unsent_part_of_a_stream_is_charged_to_the_response_bytes() {
    let ctx =
        TestContext::attached().await.with_config(Config { max_response_bytes: 2_000, ..test_config() });
    let large = format!("[\"{}\"]", "x".repeat(1_500));
    commit_events(&ctx, &[&large]).await;
    let mut stream = begin(&ctx, INSTANCE).await.into_body().into_data_stream();
    assert_eq!(ctx.get("events").await.code(), "UNAVAILABLE");
    let mut text = stream.next().await.unwrap().unwrap().to_vec();
    // A chunk counts as sent once the next one is polled. The next one waits until it can be charged.
    let body = format!(r#"{{"commitId":"{}","events":{large}}}"#, Uuid::from_u128(2));
    ctx.post("turns/2", body).await.ok();
    let held = begin(&ctx, INSTANCE).await;
    assert_eq!(held.status(), 503);
    text.extend(stream.next().await.unwrap().unwrap());
    assert_eq!(String::from_utf8(text).unwrap().matches("data: ").count(), 2);
    drop(stream);
    ctx.get("events?from=2").await.ok();
}

#[tokio::test]
async fn a_stream_is_cut_off_when_the_store_fails_and_does_not_end_normally() {
    let ctx = TestContext::attached().await;
    commit_events(&ctx, &["[1]"]).await;
    let mut stream = begin(&ctx, INSTANCE).await.into_body().into_data_stream();
    stream.next().await.unwrap().unwrap();
    ctx.store.set(Fault::Fails);
    let ended = loop {
        match stream.next().await {
            Some(Ok(_)) => {}
            ended => break ended,
        }
    };
    assert!(ended.expect("the stream does not end normally").is_err());
}

#[tokio::test]
async fn an_invalid_events_query_is_refused() {
    let ctx = TestContext::attached().await;
    for (query, why) in [
        ("from=0", "at least 1"),
        ("from=x", "whole number"),
        ("follow=maybe", "true or false"),
        ("follow=true", "Accept"),
        ("to=3", "from, turn, limit, follow"),
        ("turn=0", "number of a turn"),
        ("turn=1&from=1", "send only one of them"),
    ] {
        let answer = ctx.get(&format!("events?{query}")).await;
        assert_eq!(answer.code(), "INVALID", "{query}");
        assert!(answer.detail().contains(why), "{query}: {}", answer.detail());
    }
    ctx.lose_pod(1).await;
    assert_eq!(ctx.get("events").await.code(), "FENCED");
}

#[tokio::test]
async fn a_delta_reports_how_the_state_changed_between_two_turns() {
    let ctx = TestContext::attached().await;
    let bodies = [
        r#"{"set":{"a":{"json":1},"b":{"json":"x"}}}"#,
        r#"{"set":{"a":{"json":100}},"append":{"log":[{"json":1}]},"remove":["b"]}"#,
    ];
    for (turn, channels) in (1..).zip(bodies) {
        let body = format!(r#"{{"commitId":"{}","channels":{channels}}}"#, Uuid::from_u128(turn));
        ctx.post(&format!("turns/{turn}"), body).await.ok();
    }
    let size = |bytes: i64, items: i64| json!({ "bytes": bytes, "items": items });
    let between = json!({
        "version": 2,
        "added": { "log": size(1, 1) }, "updated": { "a": size(2, 0) }, "removed": { "b": size(3, 1) },
        "items": {
            "added": [{ "channel": "log", "index": 0, "bytes": 1 }],
            "updated": [{ "channel": "a", "bytes": 2 }],
            "removed": [{ "channel": "b", "bytes": 3 }],
        },
    });
    assert_eq!(ctx.get("memory-delta?from=1&to=2").await.ok(), between);
    assert_eq!(ctx.get("memory-delta?from=1").await.ok(), between);
    let since_the_start = ctx.get("memory-delta?from=0&to=1").await.ok();
    assert_eq!(since_the_start["added"], json!({ "a": size(1, 1), "b": size(3, 1) }));
    assert_eq!(ctx.get("checkpoint?turn=1").await.ok()["memoryDelta"], since_the_start);
    assert_eq!(ctx.get("memory-delta?from=1&to=3").await.code(), "NOT_FOUND");
    assert_eq!(ctx.get("memory-delta?from=-1").await.code(), "INVALID");
}

/// A rewind between the two reads would mix states of two branches.
#[tokio::test]
async fn a_delta_never_compares_two_branches() {
    let ctx = TestContext::attached().await;
    commit_events(&ctx, &["[]", "[]", "[]"]).await;
    let epoch = ctx.record().await.epoch;
    let to = BoundaryId { turn: 2, boundary: Boundary::Result, epoch };
    let rewind = Rewind { epoch, to, reason: "wrong result".into(), actor: "ada".into() };
    let (store, run) = (ctx.store.clone(), ctx.run);
    ctx.store.run_after_next_read(async move {
        assert!(matches!(store.rewind(run, &rewind).await, Ok(Rewound::Done(_))));
    });
    assert_eq!(ctx.get("memory-delta?from=3").await.code(), "NOT_FOUND");
    assert_eq!(ctx.record().await.head.unwrap().turn, 2);
}
