//! `GET events`, in pages and as a stream, and `GET memory-delta`.

use std::time::Duration;

use axum::body::Body;
use dalsegno_gateway::{Config, router};
use dalsegno_protocol::Boundary;
use dalsegno_store::{Operator as _, Place, Rewind, Rewound};
use futures::StreamExt;
use serde_json::{Value, json};
use tower::ServiceExt;
use uuid::Uuid;

use crate::faults::Fault;
use crate::world::*;

/// Commits turns with these events.
async fn commit_events(world: &World, turns: &[&str]) {
    for (turn, events) in (1..).zip(turns) {
        let id = Uuid::from_u128(turn);
        let body = format!(r#"{{"commitId":"{id}","state":{turn},"events":{events}}}"#);
        world.post(&format!("turns/{turn}"), body).await.ok();
    }
}

async fn finish(world: &World) {
    let finish = json!({ "commitId": Uuid::nil(), "finish": { "outcome": "succeeded" } });
    world.post("finish", finish.to_string()).await.ok();
}

async fn follow(world: &World, query: &str, accept: &str) -> Answer {
    let request = world.request("GET", &format!("events?{query}")).header("accept", accept);
    world.send(request.header("authorization", format!("Bearer {INSTANCE}")), "").await
}

#[tokio::test]
async fn events_come_in_pages_as_they_came() {
    let world = World::attached().await;
    let odd = r#"{"z":1,  "a":12345678901234567890.10}"#;
    commit_events(&world, &[&format!("[1,{odd}]"), "[]", r#"["three"]"#]).await;
    let answer = world.get("events").await;
    assert!(answer.text.contains(odd), "{}", answer.text);
    let events = answer.ok();
    assert_eq!(events["next"], 4);
    assert_eq!(events["events"][0], json!({ "position": 1, "turn": 1, "attempt": 1, "event": 1 }));
    assert_eq!(events["events"][2], json!({ "position": 3, "turn": 3, "attempt": 1, "event": "three" }));
    let page = world.get("events?from=2&limit=1").await.ok();
    assert_eq!((page["events"].as_array().unwrap().len(), &page["next"]), (1, &json!(3)));
    assert_eq!(world.get("events?from=4").await.ok(), json!({ "events": [], "next": 4 }));
}

#[tokio::test]
async fn events_come_from_any_turn_on() {
    let world = World::attached().await;
    commit_events(&world, &["[1,2]", "[]", "[3]"]).await;
    for (turn, first, next) in [(1, Some(1), 4), (2, Some(3), 4), (3, Some(3), 4)] {
        let page = world.get(&format!("events?turn={turn}")).await.ok();
        assert_eq!((page["events"][0]["position"].as_i64(), &page["next"]), (first, &json!(next)), "{turn}");
    }
    let page = world.get("events?turn=1&limit=1").await.ok();
    assert_eq!((page["events"].as_array().unwrap().len(), &page["next"]), (1, &json!(2)));
    assert_eq!(world.get("events?turn=4").await.code(), "NOT_FOUND");

    // A turn without events: `next` is where what comes after it will be.
    let body = format!(r#"{{"commitId":"{}","state":4}}"#, Uuid::from_u128(4));
    world.post("turns/4", body).await.ok();
    assert_eq!(world.get("events?turn=4").await.ok(), json!({ "events": [], "next": 4 }));
    world.lose_pod(1).await;
    assert_eq!(world.get("events?turn=1").await.code(), "FENCED");
}

#[tokio::test]
async fn a_stream_ends_with_its_run() {
    for (accept, query) in [
        ("application/x-ndjson", "follow=true&from=2"),
        ("text/event-stream", "from=2"),
        ("text/event-stream", "turn=2"),
        ("application/x-ndjson", "follow=true&turn=2"),
    ] {
        let world = World::attached().await;
        commit_events(&world, &["[1]", "[{\"a\":\n2}]"]).await;
        let later = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let body = format!(r#"{{"commitId":"{}","events":["late"]}}"#, Uuid::from_u128(9));
            world.post("turns/3", body).await.ok();
            finish(&world).await;
        };
        let (answer, ()) = tokio::join!(follow(&world, query, accept), later);
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
async fn a_stream_is_for_those_who_would_have_it_before_a_page() {
    let world = World::attached().await;
    commit_events(&world, &["[1]"]).await;
    finish(&world).await;
    let (page, sent, lines) = ("application/json", "text/event-stream", "application/x-ndjson");
    for (query, accept, expected) in [
        ("", &["text/event-stream"][..], sent),
        ("", &["Text/Event-Stream; charset=utf-8"], sent),
        ("", &["text/event-stream, */*"], sent),
        ("", &["application/json;q=0.5, text/event-stream;q=0.9"], sent),
        ("", &["text/plain", "text/event-stream"], sent),
        ("", &["application/x-ndjson, text/event-stream;q=0.1"], sent),
        ("", &["application/json, text/event-stream;q=0"], page),
        ("", &["text/event-stream; q=0.000"], page),
        ("", &["application/json", "text/event-stream"], page),
        ("", &["text/event-stream;q=0.5, */*"], page),
        ("", &["text/event-stream-of-another-kind"], page),
        ("", &["application/x-ndjson"], page),
        ("follow=true", &["application/json, application/x-ndjson;q=0.5"], lines),
        ("follow=true", &["text/event-stream;q=0, application/x-ndjson"], lines),
        ("follow=true", &["application/x-ndjson;q=0.5, text/event-stream"], sent),
        ("follow=true", &["application/x-ndjson;q=0, */*"], "application/problem+json"),
    ] {
        let request = world.request("GET", &format!("events?{query}"));
        let request = request.header("authorization", format!("Bearer {INSTANCE}"));
        let request = accept.iter().fold(request, |request, line| request.header("accept", *line));
        let answer = world.send(request, "").await;
        assert_eq!(answer.headers["content-type"], expected, "{query} {accept:?}");
    }
}

/// A browser's EventSource asks the same again, and says beside it what it has seen.
#[tokio::test]
async fn a_stream_that_is_taken_up_again_goes_on_after_the_last_event_that_was_seen() {
    let world = World::attached().await;
    commit_events(&world, &["[1,2]", "[3]"]).await;
    finish(&world).await;
    let again = async |query: &str, last: &str| {
        let request = world.request("GET", &format!("events?{query}")).header("accept", "text/event-stream");
        let request = request.header("authorization", format!("Bearer {INSTANCE}"));
        world.send(request.header("last-event-id", last), "").await
    };
    for query in ["", "from=1", "turn=1", "turn=9"] {
        let answer = again(query, "1").await;
        let ids: Vec<_> = answer.text.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
        assert_eq!((answer.status, ids), (200, vec!["2", "3"]), "{query}");
        let answer = again(query, "3").await;
        assert_eq!((answer.status, answer.text.as_str()), (204, ""), "which tells it to stop: {query}");
    }
    for odd in ["", "x", "-1", "1.5"] {
        assert_eq!(again("", odd).await.code(), "INVALID", "{odd}");
    }
}

#[tokio::test]
async fn a_stream_ends_when_its_worker_is_fenced() {
    let world = World::attached().await;
    commit_events(&world, &["[1]"]).await;
    let later = async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        world.lose_pod(1).await;
    };
    let (answer, ()) = tokio::join!(follow(&world, "", "text/event-stream"), later);
    assert_eq!(answer.text.matches("data: ").count(), 1);
    assert!(answer.text.contains(":\n\n"), "it shows that it lives: {}", answer.text);
}

#[tokio::test]
async fn a_stream_ends_when_its_time_is_up() {
    let limit = Duration::from_millis(100);
    let world = World::attached().await.with(Config { follow_limit: limit, ..quick() });
    commit_events(&world, &["[1]"]).await;
    assert_eq!(follow(&world, "", "text/event-stream").await.text.matches("data: ").count(), 1);
}

#[tokio::test]
async fn a_gateway_has_so_many_streams_at_once() {
    let world = World::attached().await.with(Config { streams: 0, ..quick() });
    assert_eq!(follow(&world, "", "text/event-stream").await.code(), "UNAVAILABLE");
}

/// A stream that has begun, and of which nothing was taken yet.
async fn begin(world: &World, bearer: &str) -> axum::response::Response {
    let request = world.request("GET", "events").header("accept", "text/event-stream");
    let request = request.header("authorization", format!("Bearer {bearer}")).body(Body::empty()).unwrap();
    router(world.gateway.clone()).oneshot(request).await.unwrap()
}

#[tokio::test]
async fn one_run_has_no_more_streams_at_once_than_its_share() {
    let world = World::attached().await;
    let beside = world.beside("bakery", SECOND).await;
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(begin(&world, INSTANCE).await);
    }
    assert!(held.iter().all(|stream| stream.status() == 200));
    let answer = follow(&world, "", "text/event-stream").await;
    assert_eq!((answer.status, answer.code().as_str()), (429, "TOO_MANY_REQUESTS"));
    assert_eq!(begin(&beside, SECOND).await.status(), 200);
    drop(held.pop());
    assert_eq!(begin(&world, INSTANCE).await.status(), 200);
}

#[tokio::test]
async fn what_a_stream_has_not_sent_yet_takes_its_place_among_the_answers() {
    let world = World::attached().await.with(Config { answer_budget: 2_000, ..quick() });
    let large = format!("[\"{}\"]", "x".repeat(1_500));
    commit_events(&world, &[&large]).await;
    let mut stream = begin(&world, INSTANCE).await.into_body().into_data_stream();
    assert_eq!(world.get("events").await.code(), "UNAVAILABLE");
    let mut text = stream.next().await.unwrap().unwrap().to_vec();
    // It has gone out once the next piece is asked for, and what comes now waits until there is room for it.
    let body = format!(r#"{{"commitId":"{}","events":{large}}}"#, Uuid::from_u128(2));
    world.post("turns/2", body).await.ok();
    let held = begin(&world, INSTANCE).await;
    assert_eq!(held.status(), 503);
    text.extend(stream.next().await.unwrap().unwrap());
    assert_eq!(String::from_utf8(text).unwrap().matches("data: ").count(), 2);
    drop(stream);
    world.get("events?from=2").await.ok();
}

#[tokio::test]
async fn a_stream_breaks_off_where_the_store_fails_and_does_not_end_as_if_the_run_were_over() {
    let world = World::attached().await;
    commit_events(&world, &["[1]"]).await;
    let mut stream = begin(&world, INSTANCE).await.into_body().into_data_stream();
    stream.next().await.unwrap().unwrap();
    world.store.set(Fault::Fails);
    let ended = loop {
        match stream.next().await {
            Some(Ok(_)) => {}
            ended => break ended,
        }
    };
    assert!(ended.expect("it does not end").is_err());
}

#[tokio::test]
async fn a_question_for_events_that_makes_no_sense_is_refused() {
    let world = World::attached().await;
    for (query, why) in [
        ("from=0", "at least 1"),
        ("from=x", "whole number"),
        ("follow=maybe", "true or false"),
        ("follow=true", "Accept"),
        ("to=3", "from, turn, limit, follow"),
        ("turn=0", "number of a turn"),
        ("turn=1&from=1", "give one of them"),
    ] {
        let answer = world.get(&format!("events?{query}")).await;
        assert_eq!(answer.code(), "INVALID", "{query}");
        assert!(answer.detail().contains(why), "{query}: {}", answer.detail());
    }
    world.lose_pod(1).await;
    assert_eq!(world.get("events").await.code(), "FENCED");
}

#[tokio::test]
async fn a_delta_tells_how_the_state_changed_between_two_turns() {
    let world = World::attached().await;
    let bodies = [
        r#"{"set":{"a":{"json":1},"b":{"json":"x"}}}"#,
        r#"{"set":{"a":{"json":100}},"append":{"log":[{"json":1}]},"remove":["b"]}"#,
    ];
    for (turn, channels) in (1..).zip(bodies) {
        let body = format!(r#"{{"commitId":"{}","channels":{channels}}}"#, Uuid::from_u128(turn));
        world.post(&format!("turns/{turn}"), body).await.ok();
    }
    let size = |bytes: i64, items: i64| json!({ "bytes": bytes, "items": items });
    let between = json!({
        "added": { "log": size(1, 1) }, "updated": { "a": size(2, 0) }, "removed": { "b": size(3, 1) },
    });
    assert_eq!(world.get("memory-delta?from=1&to=2").await.ok(), between);
    assert_eq!(world.get("memory-delta?from=1").await.ok(), between);
    let since_the_start =
        json!({ "added": { "a": size(1, 1), "b": size(3, 1) }, "updated": {}, "removed": {} });
    assert_eq!(world.get("memory-delta?from=0&to=1").await.ok(), since_the_start);
    assert_eq!(world.get("memory-delta?from=1&to=3").await.code(), "NOT_FOUND");
    assert_eq!(world.get("memory-delta?from=-1").await.code(), "INVALID");
}

/// What is undone while the two states are read is on no branch with what is left.
#[tokio::test]
async fn a_delta_is_of_one_branch() {
    let world = World::attached().await;
    commit_events(&world, &["[]", "[]", "[]"]).await;
    let epoch = world.record().await.epoch;
    let to = Place { turn: 2, boundary: Boundary::Result, epoch };
    let rewind = Rewind { epoch, to, reason: "it went astray".into(), actor: "ada".into() };
    let (store, run) = (world.store.clone(), world.run);
    world.store.set_meanwhile(async move {
        assert!(matches!(store.rewind(run, &rewind).await, Ok(Rewound::Done(_))));
    });
    assert_eq!(world.get("memory-delta?from=3").await.code(), "NOT_FOUND");
    assert_eq!(world.record().await.head.unwrap().turn, 2);
}
