//! The aggregated API: what the API server's front proxy may read and write, over TLS on this machine.

mod front_proxy;

use std::time::Duration;

use dalsegno_gateway::Config;
use dalsegno_model::{Admin as _, NamespaceAdoption, Read as _};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::context::*;
use crate::faulty_store::Fault;
use front_proxy::{ApiServer, Client};

const RUN: &str = "/apis/subresources.dalsegno.dev/v1alpha1/namespaces/shop/agentruns/nightly";

/// A run with two committed turns, a call, a record and a message, and the aggregated API in front of it.
async fn run() -> (TestContext, ApiServer) {
    let ctx = TestContext::attached().await;
    for turn in 1..=2 {
        let id = Uuid::from_u128(turn);
        let body = format!(r#"{{"commitId":"{id}","state":{{"secret": {turn}}},"events":["event {turn}"]}}"#);
        ctx.post(&format!("turns/{turn}"), body).await.ok();
    }
    let claim = json!({ "claimId": Uuid::from_u128(7), "policy": "readOnly", "key": "k" });
    ctx.post("calls/look/claim", claim.to_string()).await.ok();
    let record = json!({ "put": { "space": "notes", "key": "a", "value": { "json": 1 } } });
    let batch = json!({ "batchId": Uuid::from_u128(9), "operations": [record] });
    ctx.post("records", batch.to_string()).await.ok();
    let server = ApiServer::start();
    server.api.open(ctx.gateway.clone());
    (ctx, server)
}

/// The same call by the token door.
async fn by_token(ctx: &TestContext, path: &str) -> Answer {
    let request = axum::http::Request::builder()
        .uri(format!("/v1/namespaces/shop/agentruns/nightly/{path}"))
        .header("authorization", "Bearer ada");
    ctx.send(request, "").await
}

#[tokio::test]
async fn both_doors_answer_the_same() {
    let (ctx, server) = run().await;
    for call in [
        "state",
        "state?turn=1",
        "memory-delta?from=1&to=2",
        "checkpoint",
        "events",
        "events?from=2",
        "log",
        "log?from=2",
        "calls",
        "turns",
        "turns?after=1.2.1",
        "records?space=notes",
        "messages",
        "audit",
        "audit?after=3",
    ] {
        let (of_proxy, of_token) = (server.get(&format!("{RUN}/{call}")).await, by_token(&ctx, call).await);
        assert_eq!((of_proxy.status, of_token.status), (200, 200), "{call}: {}", of_proxy.text);
        assert_eq!(of_proxy.text, of_token.text, "{call}");
        assert!(!of_proxy.text.is_empty(), "{call}");
    }
    // The facts have the time of the look.
    let facts = server.get(&format!("{RUN}/facts")).await;
    assert_eq!((facts.status, by_token(&ctx, "facts").await.status), (200, 200), "{}", facts.text);
    let bundle = server.get(&format!("{RUN}/export")).await;
    let found = dalsegno_proof::bundle::verify(bundle.text.as_bytes(), None).unwrap();
    assert_eq!((found.run.as_str(), found.boundaries), ("shop/nightly", 2));
}

#[tokio::test]
async fn turns_and_calls_are_listed_in_pages_and_turns_without_payloads() {
    let (_ctx, server) = run().await;
    let turns = server.get(&format!("{RUN}/turns")).await.json();
    let numbers: Vec<_> = turns["turns"].as_array().unwrap().iter().map(|it| &it["turn"]).collect();
    assert_eq!(numbers, [1, 2]);
    assert_eq!(turns["turns"][0]["events"], 1);
    assert!(!turns.to_string().contains("secret") && !turns.to_string().contains("event 1"), "{turns}");
    let after = turns["next"].as_str().unwrap();
    let end = server.get(&format!("{RUN}/turns?after={after}")).await.json();
    assert_eq!(end, json!({ "turns": [] }));

    let calls = server.get(&format!("{RUN}/calls")).await.json();
    let call = &calls["calls"][0];
    let facts = (&call["id"], &call["state"], &call["attempt"], &call["key"]);
    assert_eq!(facts, (&json!("look"), &json!("started"), &json!(1), &json!("k")));
    let after = calls["next"].as_str().unwrap();
    assert_eq!(server.get(&format!("{RUN}/calls?after={after}")).await.json(), json!({ "calls": [] }));
    for path in ["turns?after=1", "turns?after=1.9.1", "calls?after=x", "log?limit=1", "log?follow=maybe"] {
        let refused = server.get(&format!("{RUN}/{path}")).await;
        assert_eq!((refused.status, refused.json()["reason"].as_str()), (400, Some("BadRequest")), "{path}");
    }
}

#[tokio::test]
async fn the_documents_need_neither_a_gateway_nor_a_store_nor_a_user() {
    let ctx = TestContext::attached().await;
    let server = ApiServer::start();
    let documents = ["/apis", "/apis/subresources.dalsegno.dev/v1alpha1", "/openapi/v2", "/openapi/v3"];
    let read_all = async |when: &str| {
        for path in documents {
            let answer = server.client().get(path, &[]).await.unwrap();
            assert_eq!(answer.status, 200, "{path} {when}");
            answer.json();
        }
    };
    read_all("before there is a gateway").await;
    let early = server.get(&format!("{RUN}/state")).await;
    assert_eq!((early.status, early.json()["reason"].as_str()), (503, Some("ServiceUnavailable")));
    assert_eq!(early.json()["kind"], "Status");

    server.api.open(ctx.gateway.clone());
    ctx.store.set(Fault::Fails);
    read_all("while the store fails").await;
    let away = server.get(&format!("{RUN}/state")).await;
    assert_eq!((away.status, away.json()["details"]["retryAfterSeconds"].as_u64()), (503, Some(1)));
    ctx.store.set(Fault::Hangs);
    read_all("while the store hangs").await;

    let accept = ("accept", "application/vnd.kubernetes.protobuf");
    let discovery = server.client().get("/apis", &[accept]).await.unwrap();
    let content_type = discovery.headers["content-type"].to_str().unwrap();
    assert_eq!(content_type, "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
    let etag = discovery.headers["etag"].to_str().unwrap().to_owned();
    let again = server.client().get("/apis", &[("if-none-match", &etag)]).await.unwrap();
    assert_eq!((again.status, again.text.as_str()), (304, ""));
}

#[tokio::test]
async fn only_the_front_proxy_is_answered() {
    let (_ctx, server) = run().await;
    let path = format!("{RUN}/state");
    let headers = [("x-remote-user", "ada"), ("x-remote-group", "system:masters")];
    let pki = &server.pki;
    for (who, client) in [
        ("without a certificate", Client { identity: None, ..server.client() }),
        ("with a certificate of another CA", server.client_with(pki.stranger("front-proxy-client"))),
        ("with an ordinary client's name", server.client_with(pki.client("kubernetes-admin"))),
        ("without a name", server.client_with(pki.client(""))),
        ("with a server's certificate", server.client_with(pki.server_only("front-proxy-client"))),
        ("with an expired certificate", server.client_with(pki.expired("front-proxy-client"))),
    ] {
        // The handshake fails, or the connection is closed without an answer.
        let answer = client.get(&path, &headers).await;
        assert!(answer.is_err(), "{who}: {answer:?}");
        assert!(client.get("/apis", &headers).await.is_err(), "{who}: even the documents");
    }
    let proxy = server.client().get(&path, &headers).await.unwrap();
    assert!(proxy.status == 200 && proxy.text.contains("secret"), "{proxy:?}");
}

#[tokio::test]
async fn a_front_proxy_that_names_nobody_or_two_is_refused_and_tokens_are_not_read() {
    let (_ctx, server) = run().await;
    for headers in [
        &[][..],
        &[("authorization", "Bearer ada")],
        &[("x-remote-user", "")],
        &[("x-remote-user", "ada"), ("x-remote-user", "root")],
        &[("x-forwarded-user", "ada")],
        &[("x-remote-group", "system:masters")],
    ] {
        let answer = server.client().get(&format!("{RUN}/state"), headers).await.unwrap();
        assert_eq!(
            (answer.status, answer.json()["reason"].as_str()),
            (401, Some("Unauthorized")),
            "{headers:?}"
        );
        assert!(!answer.text.contains("secret"));
    }
    // The token door is no route of this listener, and neither are the workers' calls.
    for path in ["/v1/namespaces/shop/agentruns/nightly/state", &format!("/v1/runs/{}/state", _ctx.run)] {
        let headers = [("x-remote-user", "ada"), ("authorization", &format!("Bearer {INSTANCE}"))];
        assert_eq!(server.client().get(path, &headers).await.unwrap().status, 404, "{path}");
    }
}

#[tokio::test]
async fn the_workers_listener_ignores_the_front_proxys_headers() {
    let (ctx, _server) = run().await;
    for (path, token) in [
        ("/v1/namespaces/shop/agentruns/nightly/state".to_owned(), ""),
        ("/v1/namespaces/shop/agentruns/nightly/state".to_owned(), "nobody"),
        (format!("{RUN}/state"), "ada"),
        (format!("/v1/runs/{}/state", ctx.run), "ada"),
    ] {
        let request = axum::http::Request::builder()
            .uri(&path)
            .header("x-remote-user", "system:admin")
            .header("x-remote-group", "system:masters")
            .header("x-remote-extra-authentication.kubernetes.io%2fpod-uid", "pod-1")
            .header("authorization", format!("Bearer {token}"));
        let answer = ctx.send(request, "").await;
        assert!(matches!(answer.status, 401 | 404), "{path} {token}: {answer:?}");
        assert!(!answer.text.contains("secret"), "{path} {token}");
    }
}

#[tokio::test]
async fn only_paths_with_exactly_the_segments_that_the_api_server_has_authorized_are_answered() {
    let (ctx, server) = run().await;
    ctx.other_run("bank", SECOND).await;
    let group = "/apis/subresources.dalsegno.dev/v1alpha1/namespaces";
    for path in [
        format!("{RUN}/events/../state"),
        format!("{RUN}/events/..%2Fstate"),
        format!("{RUN}/events%2F..%2Fstate"),
        format!("{RUN}/%73tate"),
        format!("{RUN}%2Fstate"),
        format!("{RUN}//state"),
        format!("{RUN}/./state"),
        format!("{RUN}/state/"),
        format!("{RUN}/state/more"),
        format!("{RUN}/state;events"),
        RUN.to_owned(),
        format!("{group}/bank/../shop/agentruns/nightly/state"),
        format!("{group}/bank%2F..%2Fshop/agentruns/nightly/state"),
        format!("{group}/shop/agentruns/nightly%2Fstate/events"),
        format!("{group}/shop/agentruns/../agentruns/nightly/state"),
        format!("{group}/shop/agentruns/NIGHTLY/state"),
        format!("{group}/shop/agentdefinitions/nightly/state"),
        "/apis/subresources.dalsegno.dev/v1alpha1/agentruns/nightly/state".to_owned(),
        "/apis/subresources.dalsegno.dev/v1/namespaces/shop/agentruns/nightly/state".to_owned(),
        "/apis/subresources.dalsegno.dev/v1alpha1/watch/namespaces/shop/agentruns/nightly/state".to_owned(),
    ] {
        let answer = server.get(&path).await;
        assert_eq!((answer.status, answer.json()["kind"].as_str()), (404, Some("Status")), "{path}");
        assert!(!answer.text.contains("secret"), "{path}");
    }
    // The token door reads names as RBAC does.
    for name in ["nightly%2Fstate", "..%2Fnightly", "NIGHTLY"] {
        let request = axum::http::Request::builder()
            .uri(format!("/v1/namespaces/shop/agentruns/{name}/state"))
            .header("authorization", "Bearer ada");
        assert_eq!(ctx.send(request, "").await.code(), "NOT_FOUND", "{name}");
    }
    // A method that the API server has authorized as another verb changes nothing.
    for method in ["PUT", "PATCH", "DELETE", "OPTIONS"] {
        let headers = [("x-remote-user", "ada")];
        let answer =
            server.client().send((method, &format!("{RUN}/messages")), &headers, "{}").await.unwrap();
        assert_eq!(answer.status, 404, "{method}");
    }
}

#[tokio::test]
async fn a_run_of_an_earlier_namespace_of_the_same_name_is_not_shown() {
    let (ctx, server) = run().await;
    let adoption = NamespaceAdoption {
        from: "uid-shop".into(),
        to: "uid-later".into(),
        actor: "root".into(),
        reason: "it was restored".into(),
    };
    ctx.store.adopt_namespace(&adoption).await.unwrap();
    let answer = server.get(&format!("{RUN}/state")).await;
    assert_eq!((answer.status, answer.json()["details"]["name"].as_str()), (404, Some("nightly")));
    let unknown = server.get(&RUN.replace("shop", "no-such")).await;
    assert_eq!(unknown.status, 404);
    let fails = format!("{}/state", RUN.replace("shop", "unreadable"));
    assert_eq!(server.get(&fails).await.status, 503);
}

#[tokio::test]
async fn a_person_writes_with_the_audit_id_of_the_api_server_and_a_pod_of_the_run_does_not() {
    let (ctx, server) = run().await;
    ctx.lose_pod(1).await;
    ctx.attach("pod-2", SECOND).await.ok();
    let claim = json!({ "claimId": Uuid::from_u128(8), "policy": "ask", "key": "k" });
    ctx.post_as(SECOND, "calls/pay/claim", claim.to_string()).await.ok();
    ctx.reserve_next(2).await;
    let headers = [("x-remote-user", "ada"), ("audit-id", "5f0e-1")];
    let client = server.client();
    let message = json!({ "id": "a", "value": "hello" }).to_string();
    let sent = client.send(("POST", &format!("{RUN}/messages")), &headers, &message).await.unwrap();
    assert_eq!((sent.status, sent.json()["result"].as_str()), (200, Some("ok")), "{sent:?}");
    let again = [("x-remote-user", "ada"), ("audit-id", "5f0e-2")];
    let again = client.send(("POST", &format!("{RUN}/messages")), &again, &message).await.unwrap();
    assert_eq!(again.json()["result"], "duplicate");
    let settle =
        json!({ "call": "pay", "outcome": "completed", "reason": "it is in the ledger" }).to_string();
    let settled = client.send(("POST", &format!("{RUN}/settle")), &headers, &settle).await.unwrap();
    assert_eq!(settled.status, 200, "{settled:?}");

    let audited: Vec<(String, Value)> = ctx
        .store
        .audit(ctx.run)
        .await
        .unwrap()
        .iter()
        .filter(|row| row.actor == "ada")
        .map(|row| (row.kind.clone(), serde_json::from_str::<Value>(&row.detail).unwrap()["auditID"].clone()))
        .collect();
    let id = json!("5f0e-1");
    assert_eq!(audited, [("message-sent".to_owned(), id.clone()), ("settled".to_owned(), id)]);

    let pod = [
        ("x-remote-user", "system:serviceaccount:shop:default"),
        ("x-remote-extra-authentication.kubernetes.io%2fpod-uid", "pod-2"),
    ];
    let refused = client.send(("POST", &format!("{RUN}/messages")), &pod, &message).await.unwrap();
    assert_eq!((refused.status, refused.json()["reason"].as_str()), (403, Some("Forbidden")));
}

#[tokio::test]
async fn the_log_follows_the_events_until_the_run_is_over() {
    let (ctx, server) = run().await;
    let following = {
        let client = server.client();
        tokio::spawn(async move {
            client.get(&format!("{RUN}/log?follow=true"), &[("x-remote-user", "ada")]).await.unwrap()
        })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    ctx.post("turns/3", format!(r#"{{"commitId":"{}","state":3,"events":["later"]}}"#, Uuid::from_u128(3)))
        .await
        .ok();
    let finish = json!({ "commitId": Uuid::nil(), "finish": { "outcome": "succeeded" } });
    ctx.post("finish", finish.to_string()).await.ok();
    let log = following.await.unwrap();
    let lines: Vec<Value> =
        log.text.lines().filter(|it| !it.is_empty()).map(|it| serde_json::from_str(it).unwrap()).collect();
    let events: Vec<_> = lines.iter().map(|it| it["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["event 1", "event 2", "later"]);
    assert_eq!(log.headers["content-type"], "application/x-ndjson");
}

#[tokio::test]
async fn a_new_certificate_or_front_proxy_counts_at_once_without_a_restart() {
    let (_ctx, server) = run().await;
    let headers = [("x-remote-user", "ada")];
    let path = format!("{RUN}/state");
    let mut open = server.client().connect().await.unwrap();
    assert_eq!(open.get(&path, &headers).await.unwrap().status, 200);

    let renewed = server.pki.issue_server();
    server.serve_certificate(&renewed);
    let client = server.client();
    assert_eq!(client.get(&path, &headers).await.unwrap().status, 200);
    assert_eq!(client.connect().await.unwrap().server_certificate(), renewed.der());

    let other = front_proxy::Pki::new();
    server.trust(&other.config_map(&["front-proxy-client"]));
    assert!(client.get(&path, &headers).await.is_err(), "the earlier front proxy");
    let replaced = server.client_with(other.client("front-proxy-client"));
    assert_eq!(replaced.get(&path, &headers).await.unwrap().status, 200);
    // A connection that the earlier CA has verified is closed.
    let closed = tokio::time::timeout(Duration::from_secs(10), async {
        while open.get(&path, &headers).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    closed.await.expect("it is closed");

    server.distrust();
    assert!(replaced.get(&path, &headers).await.is_err(), "nobody is trusted");
}

#[tokio::test]
async fn a_user_of_the_front_proxy_has_the_same_limits_as_one_with_a_token() {
    let ctx = TestContext::attached().await.with_config(Config { max_user_calls: 0, ..test_config() });
    let server = ApiServer::start();
    server.api.open(ctx.gateway.clone());
    let answer = server.get(&format!("{RUN}/events")).await;
    assert_eq!((answer.status, answer.headers["retry-after"].to_str().unwrap()), (503, "1"));
}
