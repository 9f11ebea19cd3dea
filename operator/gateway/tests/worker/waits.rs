//! `POST waits/{id}`, `GET waits/{id}`, and parks on waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dalsegno_gateway::{Gateway, Listener, router, serve};
use dalsegno_model::{Answered, AttemptState, Cause, Operator as _, Read as _, WaitAnswer, WaitDecision};
use dalsegno_protocol::{Limits, WaitOutcome};
use futures::future::join_all;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::context::*;

fn approval() -> Value {
    json!({ "kind": "approval", "title": "Pay the bill", "summary": "It is due.", "proposal": { "cents": 500 } })
}

fn until(seconds: i64) -> Value {
    let time = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
    json!({ "kind": "until", "time": time.to_string() })
}

fn park(id: u128, on: &[&str]) -> String {
    json!({ "parkId": Uuid::from_u128(id), "on": on }).to_string()
}

impl TestContext {
    async fn open(&self, id: &str, wait: Value) -> Value {
        self.post(&format!("waits/{id}"), wait.to_string()).await.ok()
    }

    /// A person decides.
    async fn decide(&self, id: &str, outcome: WaitOutcome) {
        let run = self.store.get_run(self.run).await.unwrap().unwrap();
        let epoch = run.waits.iter().find(|wait| wait.id == id).unwrap().epoch;
        let changes =
            serde_json::from_str(r#"{"cents":400}"#).ok().filter(|_| outcome == WaitOutcome::Changed);
        let decision = WaitDecision { by: "ada".into(), reason: Some("too much".into()), changes };
        let answer = WaitAnswer { id: id.into(), epoch, outcome, decision };
        assert!(matches!(self.store.answer_wait(self.run, &answer).await.unwrap(), Answered::Ok(_)));
    }
}

#[tokio::test]
async fn a_wait_is_opened_once_and_its_answer_stays_readable_in_later_attempts() {
    let ctx = TestContext::attached().await;
    let body = approval().to_string();
    let opened = ctx.post("waits/pay", body.clone()).await.ok();
    assert_eq!(
        (&opened["id"], &opened["kind"], &opened["state"]),
        (&json!("pay"), &json!("approval"), &json!("open"))
    );
    let hash = opened["proposalHash"].as_str().unwrap();
    assert!(hash.starts_with("sha256:") && hash.len() == 71, "{hash}");
    assert_eq!(ctx.post("waits/pay", body.clone()).await.ok(), opened, "the same bytes, the same salt");
    let other = ctx.post("waits/pay", approval().to_string() + " ").await;
    assert_eq!((other.status, other.code().as_str()), (400, "INVALID"));

    assert_eq!(ctx.post("park", park(1, &["pay"])).await.ok(), json!({ "result": "parked" }));
    assert_eq!(ctx.post("park", park(1, &["pay"])).await.ok(), json!({ "result": "parked" }), "a retry");
    ctx.decide("pay", WaitOutcome::Changed).await;
    ctx.record_pod(2, "pod-2", Some(accepted())).await;
    let attached = ctx.attach("pod-2", SECOND).await.ok();
    let answer = json!({
        "outcome": "changed", "by": "ada", "reason": "too much", "changes": { "cents": 400 },
        "at": attached["waits"][0]["answer"]["at"],
    });
    assert_eq!(
        (&attached["waits"][0]["state"], &attached["waits"][0]["answer"]),
        (&json!("answered"), &answer)
    );
    let again = ctx.post_as(SECOND, "waits/pay", body).await.ok();
    assert_eq!((&again["answer"], &again["proposalHash"]), (&answer, &opened["proposalHash"]));
    ctx.post_as(SECOND, "turns/1", commit(1, "1")).await.ok();
    let again = ctx.attach("pod-2", SECOND).await.ok();
    assert_eq!(again["waits"], json!([]), "it was answered before the head");
}

#[tokio::test]
async fn each_kind_has_its_own_fields_within_their_limits() {
    let ctx = TestContext::attached().await;
    let long = |bytes: usize| "x".repeat(bytes);
    let with = |mut wait: Value, field: &str, value: Value| {
        wait[field] = value;
        wait
    };
    let message = || json!({ "kind": "message" });
    let limit = || json!({ "kind": "rateLimit", "provider": "models.example" });
    for (wait, expected) in [
        (json!({ "kind": "approval", "title": "Pay" }), "`proposal`"),
        (with(approval(), "topic", json!("t")), "`topic`"),
        (with(approval(), "title", json!(long(Limits::NAME_CHARS + 1))), "`title`"),
        (with(approval(), "summary", json!(long(Limits::SUMMARY_BYTES + 1))), "`summary`"),
        (with(approval(), "proposal", json!(long(Limits::PROPOSAL_BYTES))), "`proposal`"),
        (with(approval(), "answerSchema", json!(long(Limits::ANSWER_SCHEMA_BYTES))), "`answerSchema`"),
        (json!({ "kind": "until" }), "`time`"),
        (json!({ "kind": "until", "time": "tomorrow" }), "`time`"),
        (with(until(5), "provider", json!("p")), "`provider`"),
        (json!({ "kind": "rateLimit" }), "`provider`"),
        (with(limit(), "resetTime", json!("soon")), "`resetTime`"),
        (with(message(), "title", json!("t")), "`title`"),
        (with(message(), "topic", json!("order reply")), "`topic`"),
        (with(message(), "deadlineSeconds", json!(0)), "`deadlineSeconds`"),
        (with(message(), "onTimeout", json!("Explode")), "Explode"),
        (json!({ "kind": "sleep" }), "sleep"),
    ] {
        let answer = ctx.post("waits/w", wait.to_string()).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "INVALID"), "{expected}");
        assert!(answer.detail().contains(expected), "{expected}: {}", answer.detail());
    }
    for (number, wait) in
        [approval(), until(60), message(), limit(), with(limit(), "resetTime", until(9)["time"].clone())]
            .into_iter()
            .enumerate()
    {
        assert_eq!(ctx.open(&format!("w{number}"), wait).await["state"], "open");
    }
    let bad_id = ctx.post("waits/a%20b", message().to_string()).await;
    assert_eq!((bad_id.status, bad_id.code().as_str()), (400, "INVALID"));
}

#[tokio::test]
async fn waits_are_refused_with_codes_of_their_own() {
    let ctx = TestContext::attached().await;
    for path in ["park", "turns/1"] {
        let mut body =
            json!({ "commitId": Uuid::nil(), "outcome": { "park": { "parkId": Uuid::nil(), "on": ["w"] } } });
        if path == "park" {
            body = body["outcome"]["park"].clone();
        }
        let answer = ctx.post(path, body.to_string()).await;
        assert_eq!((answer.status, answer.code().as_str()), (404, "NO_SUCH_WAIT"), "{path}");
    }
    let unknown = ctx.get("waits/w?seconds=0").await;
    assert_eq!((unknown.status, unknown.code().as_str()), (404, "NO_SUCH_WAIT"));
    for number in 0..Limits::WAITS {
        ctx.open(&format!("w{number}"), json!({ "kind": "message" })).await;
    }
    let one_more = ctx.post("waits/more", json!({ "kind": "message" }).to_string()).await;
    assert_eq!((one_more.status, one_more.code().as_str()), (409, "TOO_MANY_WAITS"));
    let twice = ctx.post("park", park(1, &["w1", "w1"])).await;
    assert_eq!((twice.status, twice.code().as_str()), (400, "INVALID"));
    let many: Vec<_> = (0..=Limits::WAITS).map(|_| "w1").collect();
    assert_eq!(ctx.post("park", park(1, &many)).await.status, 400);
}

#[tokio::test]
async fn a_boundary_that_parks_says_so_and_its_retry_is_fenced_and_committed() {
    let ctx = TestContext::attached().await;
    ctx.open("later", until(600)).await;
    let body = json!({
        "commitId": Uuid::from_u128(1), "state": 1,
        "outcome": { "park": { "parkId": Uuid::from_u128(2), "on": ["later"], "mode": "any" } },
    })
    .to_string();
    let answer = ctx.post("turns/1", body.clone()).await.ok();
    assert_eq!((&answer["result"], &answer["head"]["turn"]), (&json!("parked"), &json!(1)));
    let retry = ctx.post("turns/1", body).await;
    assert_eq!(
        (retry.status, retry.code().as_str(), &retry.json()["committed"]),
        (409, "FENCED", &json!(true))
    );
    let record = ctx.record().await;
    assert_eq!((record.attempt.number, record.attempt.state), (2, AttemptState::Reserved));
    let end = ctx.store.attempt(ctx.run, 1).await.unwrap().unwrap().end.unwrap();
    assert_eq!(end.cause, Cause::Parked);
    assert_eq!(record.park.unwrap().on, ["later"]);
}

#[tokio::test]
async fn a_long_poll_returns_with_the_answer_or_after_its_time() {
    let ctx = Arc::new(TestContext::attached().await);
    ctx.open("pay", approval()).await;
    let started = Instant::now();
    assert_eq!(ctx.get("waits/pay?seconds=1").await.ok()["state"], "open");
    assert!(started.elapsed() >= Duration::from_secs(1));
    let polling = tokio::spawn({
        let ctx = ctx.clone();
        async move { ctx.get("waits/pay?seconds=20").await.ok() }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    ctx.decide("pay", WaitOutcome::Denied).await;
    let answered = polling.await.unwrap();
    assert_eq!((&answered["state"], &answered["answer"]["outcome"]), (&json!("answered"), &json!("denied")));
    assert!(started.elapsed() < Duration::from_secs(10));
    let invalid = ctx.get("waits/pay?seconds=soon").await;
    assert_eq!((invalid.status, invalid.code().as_str()), (400, "INVALID"));
    assert_eq!(ctx.get_as(SECOND, "waits/pay?seconds=0").await.code(), "FENCED");
}

#[tokio::test]
async fn a_stopping_gateway_releases_its_pollers() {
    let ctx = TestContext::attached().await;
    ctx.open("pay", approval()).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let listener = Listener::plain(listener, &ctx.gateway);
    let serving = tokio::spawn(serve(vec![listener], ctx.gateway.clone(), async { drop(stopped.await) }));
    let polling = ctx.get("waits/pay?seconds=20");
    let (answer, ()) = tokio::join!(polling, async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        stop.send(()).unwrap();
    });
    assert_eq!((answer.status, answer.code().as_str()), (503, "UNAVAILABLE"));
    drop(serving.await.unwrap());
}

#[tokio::test]
async fn a_wait_that_cannot_be_read_delays_its_own_poller_only() {
    let ctx = TestContext::attached().await;
    let other = ctx.other_run("team-b", SECOND).await;
    for (ctx, bearer) in [(&ctx, INSTANCE), (&other, SECOND)] {
        ctx.post_as(bearer, "waits/pay", approval().to_string()).await.ok();
        ctx.decide("pay", WaitOutcome::Approved).await;
    }
    ctx.store.set_unreadable_waits(ctx.run);
    let started = Instant::now();
    let unreadable = async {
        let answer = ctx.get("waits/pay?seconds=8").await;
        (answer.status, answer.code(), started.elapsed())
    };
    let readable = async {
        // After the other poll has begun.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let answer = other.get_as(SECOND, "waits/pay?seconds=20").await.ok();
        (answer["state"].clone(), started.elapsed())
    };
    let ((status, code, longest), (state, took)) = tokio::join!(unreadable, readable);
    assert_eq!((status, code.as_str(), state), (503, "UNAVAILABLE", json!("answered")));
    assert!(took < longest, "{took:?}, and the other poller {longest:?}");
    ctx.store.set_unreadable_waits(other.run);
    assert_eq!(ctx.get("waits/pay?seconds=4").await.ok()["state"], "answered", "once it can be read");
}

#[tokio::test]
async fn all_pollers_of_a_gateway_share_one_query_in_a_second() {
    let ctx = TestContext::attached().await;
    ctx.open("pay", approval()).await;
    let mut runs = vec![(ctx.run, INSTANCE.to_owned())];
    for number in 0..9 {
        let other = ctx.other_run(&format!("team-{number}"), &format!("{number}{}", &SECOND[1..])).await;
        runs.push((other.run, format!("{number}{}", &SECOND[1..])));
    }
    let gateway: Gateway = ctx.gateway.clone();
    let polled = || ctx.store.wait_polls.load(std::sync::atomic::Ordering::SeqCst);
    let before = polled();
    // Each worker has at most 16 calls at once.
    let polls = runs.iter().flat_map(|(run, bearer)| (0..15).map(move |_| (*run, bearer.clone()))).map(
        |(run, bearer)| {
            let gateway = gateway.clone();
            async move {
                let request = axum::http::Request::builder()
                    .uri(format!("/v1/runs/{run}/waits/pay?seconds=2"))
                    .header("authorization", format!("Bearer {bearer}"))
                    .body(axum::body::Body::empty())
                    .unwrap();
                tower::ServiceExt::oneshot(router(gateway), request).await.unwrap().status().as_u16()
            }
        },
    );
    let statuses = join_all(polls).await;
    assert!(statuses.iter().all(|status| [200, 404].contains(status)), "{statuses:?}");
    let queries = polled() - before;
    assert!((1..=4).contains(&queries), "{queries} queries for {} pollers", statuses.len());
}
