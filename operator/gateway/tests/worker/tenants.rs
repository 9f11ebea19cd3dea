//! Two tenants on one gateway: whatever one sends, it neither reads nor changes what is the other's.

use axum::body::Body;
use serde_json::json;

use crate::world::*;

/// In everything that the bank's worker has committed.
const SECRET: &str = "canary-of-the-bank";

/// The bank's run, with a state, an event and a call; its worker's instance.
const BANKER: &str = "CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC";

/// Picks by a sequence that is the same in every run of the test.
struct Dice(u64);

impl Dice {
    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        &from[(self.0 >> 33) as usize % from.len()]
    }
}

#[tokio::test]
async fn a_thousand_probes_of_another_tenant_read_and_change_nothing() {
    let shop = World::attached().await;
    let bank = shop.beside("bank", BANKER).await;
    let state =
        json!({ "commitId": uuid::Uuid::from_u128(1), "state": { "balance": SECRET }, "events": [SECRET] });
    bank.post_as(BANKER, "turns/1", state.to_string()).await.ok();
    let claim =
        json!({ "claimId": uuid::Uuid::from_u128(2), "policy": "probe", "key": SECRET, "arguments": SECRET });
    bank.post_as(BANKER, "calls/pay/claim", claim.to_string()).await.ok();
    shop.post("turns/1", commit(3, r#"{"basket":1}"#)).await.ok();
    let before = bank.look().await;

    let (ours, theirs) = (shop.run.to_string(), bank.run.to_string());
    let runs = [
        theirs.clone(),
        theirs.to_uppercase(),
        theirs.replace('-', ""),
        format!("{{{theirs}}}"),
        format!("urn:uuid:{theirs}"),
        format!("{ours}/../{theirs}"),
        format!("{ours}%2f..%2f{theirs}"),
        format!("%7B{theirs}%7D"),
    ]
    .map(|run| format!("/v1/runs/{run}"));
    let names = ["bank", "%62ank", "BANK", "shop/../bank", "shop%2f..%2fbank", "bank%00", "*"]
        .map(|namespace| format!("/v1/namespaces/{namespace}/agentruns/nightly"));
    let places = [&runs[..], &names].concat();
    let paths = [
        "attach",
        "state",
        "state?turn=1",
        "state?turn=0",
        "state?turn=-1",
        "state?run=bank",
        "turns/2",
        "turns/1",
        "turns/2/plan",
        "heartbeat",
        "calls/pay/claim",
        "calls/pay/complete",
        "calls/pay/settle",
        "finish",
        "cancelled",
        "records?space=a",
        "records",
        "events?from=0",
        "memory-delta",
        "memory-delta?from=1&to=1",
        "checkpoint",
        "checkpoint?turn=1",
        "export",
        "../state",
        "./state",
        "",
    ];
    let bearers = [
        INSTANCE,
        "token-of-pod-1",
        "token-of-pod-1-in-bank",
        "token-of-pod-of-bank",
        SECOND,
        "ada",
        "",
        SECRET,
    ];
    let bodies = [
        commit(4, "1"),
        state.to_string(),
        claim.to_string(),
        json!({ "instance": INSTANCE }).to_string(),
        json!({ "instance": BANKER }).to_string(),
        json!({ "outcome": "completed", "reason": "mine" }).to_string(),
        json!({ "claimId": uuid::Uuid::from_u128(2), "outcome": "completed" }).to_string(),
        json!({ "commitId": uuid::Uuid::from_u128(5), "finish": { "outcome": "failed" } }).to_string(),
        String::new(),
    ];
    let headers =
        ["x-run-id", "x-original-url", "x-forwarded-host", "host", "x-http-method-override", "cookie"];
    let mut dice = Dice(7);
    for probe in 0..1_000 {
        let (place, path, bearer) = (dice.pick(&places), dice.pick(&paths), dice.pick(&bearers));
        let uri = format!("{place}/{path}");
        let request = axum::http::Request::builder()
            .method(*dice.pick(&["GET", "POST", "PUT", "DELETE", "HEAD"]))
            .uri(&uri)
            .header("authorization", format!("Bearer {bearer}"))
            .header(*dice.pick(&headers), &theirs);
        let answer = shop.send(request, Body::from(dice.pick(&bodies).clone())).await;
        assert!((400..500).contains(&answer.status), "probe {probe}, {uri} as {bearer}: {answer:?}");
        assert!(!answer.text.contains(SECRET), "probe {probe}, {uri} as {bearer}: {answer:?}");
        assert!(!format!("{:?}", answer.headers).contains(SECRET));
    }
    assert_eq!(bank.look().await, before, "nothing of the bank's has changed");

    // The same names on both sides are two things.
    let mine = json!({ "claimId": uuid::Uuid::from_u128(6), "policy": "probe", "key": "mine" });
    let claimed = shop.post("calls/pay/claim", mine.to_string()).await.ok();
    assert_eq!((&claimed["verdict"], &claimed["call"]["key"]), (&json!("go"), &json!("mine")));
    assert!(!shop.get("state").await.text.contains(SECRET));
}
