//! The aggregated API: people reach the payloads of runs with nothing but a kubeconfig, and a gateway or a release that is
//! gone keeps no namespace of the cluster from being deleted.

use std::time::{Duration, Instant};

use dalsegno_crds::{AgentRunStatus, ApprovalConditionType as Condition, ApprovalReason as Reason};
use dalsegno_e2e::approval::{manifest, payment};
use dalsegno_e2e::install::Version;
use dalsegno_e2e::operator::{NAMESPACE, RELEASE};
use dalsegno_e2e::plugin::expect_harmless;
use dalsegno_e2e::postgres::{self, GATEWAY, Postgres};
use dalsegno_e2e::process::{self, kubectl};
use dalsegno_e2e::wait::{consistently, eventually, secs};
use dalsegno_e2e::{Agent, Operator, Result, Run, StatusExt as _, TestContext, objects};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Api, DeleteParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

const GROUP: &str = "/apis/subresources.dalsegno.dev/v1alpha1";
const NAME: &str = "v1alpha1.subresources.dalsegno.dev";

/// The breaker of these tests.
const BREAKER: Duration = secs(20);

/// The namespace controller tries again after up to the time that it has tried for already.
const RETRY_OF_NAMESPACES: Duration = secs(60);

/// The release on PostgreSQL with a short breaker, once the API server reaches a gateway.
async fn install(client: &Client) -> Result<Postgres> {
    let mut values = postgres::values(2);
    let env = json!([
        { "name": "DALSEGNO_PEOPLE_API_UNAVAILABLE_AFTER", "value": format!("{}s", BREAKER.as_secs()) },
        { "name": "DALSEGNO_PEOPLE_API_RETRY_AFTER", "value": "10s" },
    ]);
    objects::merge(&mut values, &json!({ "operator": { "env": env } }));
    let postgres = Postgres::install_version(client, &Version::current(), &values).await?;
    wait_until_available(client).await?;
    Ok(postgres)
}

/// The registration, and whether the API server reaches a gateway.
async fn registration(client: &Client) -> Result<Option<bool>> {
    let services: Api<APIService> = Api::all(client.clone());
    let Some(service) = services.get_opt(NAME).await? else { return Ok(None) };
    let conditions = service.status.and_then(|it| it.conditions).unwrap_or_default();
    Ok(Some(conditions.iter().any(|it| it.type_ == "Available" && it.status == "True")))
}

async fn wait_until_available(client: &Client) -> Result {
    eventually("the aggregated API to be available", secs(90), async || {
        Ok((registration(client).await? == Some(true)).then_some(()))
    })
    .await
}

async fn wait_until_not_registered(client: &Client, limit: Duration) -> Result {
    eventually("the aggregated API not to be registered", limit, async || {
        Ok(registration(client).await?.is_none().then_some(()))
    })
    .await
}

/// Creates a namespace and deletes it. Returns how long the deletion takes.
async fn delete_a_namespace(client: &Client, limit: Duration) -> Result<Duration> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let name = format!("aggregated-{}", &uuid::Uuid::new_v4().simple().to_string()[..6]);
    objects::create_namespace(client, &name, json!({})).await?;
    let since = Instant::now();
    namespaces.delete(&name, &DeleteParams::default()).await?;
    eventually(format!("the namespace {name} to be gone"), limit, async || {
        Ok(namespaces.get_opt(&name).await?.is_none().then_some(()))
    })
    .await?;
    Ok(since.elapsed())
}

/// `kubectl get --raw` of a path of a run, as this user.
async fn get(user: &str, namespace: &str, path: &str) -> Result<String> {
    let url = format!("{GROUP}/namespaces/{namespace}/agentruns/{path}");
    kubectl(["--as", user, "get", "--raw", &url]).await
}

/// `kubectl create --raw`, as this user.
async fn create(user: &str, namespace: &str, path: &str, body: &Value) -> Result<String> {
    let file = std::env::temp_dir().join(format!("e2e-body-{}", uuid::Uuid::new_v4().simple()));
    std::fs::write(&file, body.to_string())?;
    let url = format!("{GROUP}/namespaces/{namespace}/agentruns/{path}");
    let created = kubectl(["--as", user, "create", "--raw", &url, "-f", &file.display().to_string()]).await;
    std::fs::remove_file(&file)?;
    created
}

async fn bind(ctx: &TestContext, user: &str, role: &str) -> Result {
    let role = format!("dalsegno-{role}");
    let name = format!("{user}-{role}");
    let binding = ["create", "rolebinding", &name, "--clusterrole", &role, "--user", user];
    kubectl([&binding[..], &["--namespace", &ctx.namespace]].concat()).await.map(drop)
}

/// A person with nothing but a kubeconfig settles, approves, rewinds and forks by the plugin.
async fn use_the_plugin(ctx: &TestContext, run: &Run<'_>) -> Result {
    let plugin = ctx.plugin_without_account();
    let unclear = json!([{ "attempt": 1, "turn": 2, "at": "afterClaim", "do": "exit:1" }]);
    let agent = json!({ "turns": 3, "turnSeconds": 0.1, "callPolicy": "ask", "script": unclear });
    ctx.start("held", &Agent::new(agent)).await?;
    ctx.create_run(manifest(ctx, "asking", json!({}))).await?;
    let asked = ctx.ask(ctx.run("asking"), "pay", payment(500)).await?;
    for verb in ["turns", "calls", "events"] {
        expect_harmless(&plugin.run(&[verb, "run"]).await?)?;
    }
    assert!(plugin.run(&["state", "run"]).await?.contains("turn-1"));
    asked.wait_for(Condition::Pending, Reason::AwaitingDecision).await?;
    let shown = plugin.try_run(&["approve", "asking"]).await?;
    assert!(shown.stdout.contains("\"cents\": 500"), "the proposal comes through the API server: {shown}");
    plugin.run(&["approve", "asking", "--yes"]).await?;
    asked.wait_for(Condition::Applied, Reason::Answered).await?;

    plugin.run(&["wait", "held", "--for", "Held"]).await?;
    let outcome = ["--outcome", "failed", "--reason", "the ledger does not have it"];
    plugin.run(&[&["settle", "held", "turn-2"], &outcome[..]].concat()).await?;
    plugin.run(&["wait", "held", "--for", "Succeeded"]).await?;

    plugin.run(&["suspend", "run"]).await?;
    plugin.run(&["wait", "run", "--for", "Suspended"]).await?;
    let turn = run.status().await?.turn();
    plugin.run(&["rewind", "run", "--to", "1", "--yes"]).await?;
    let is_refused = |it: &AgentRunStatus| it.rewind.as_ref().is_some_and(|it| !it.effects.is_empty());
    run.wait_until("to refuse the rewind", secs(30), is_refused).await?;
    let told = plugin.run(&["status", "run"]).await?;
    assert!(told.contains("turn-2") && told.contains("--accept-effect"), "{told}");
    let calls: Vec<String> = (2..=turn).map(|turn| format!("turn-{turn}")).collect();
    let accepted: Vec<&str> = calls.iter().flat_map(|it| ["--accept-effect", it]).collect();
    plugin.run(&[&["rewind", "run", "--to", "1", "--yes"], &accepted[..]].concat()).await?;
    run.wait_until("to be rewound", secs(30), |status| status.turn() == 1).await?;
    // The calls of the undone turns may have changed something too.
    plugin.run(&[&["fork", "run", "fork"], &accepted[..]].concat()).await?;
    plugin.run(&["wait", "fork", "--for", "turn=3"]).await?;
    plugin.run(&["cancel", "fork", "--yes"]).await?;
    plugin.run(&["resume", "run"]).await?;
    for name in ["held", "asking", "fork"] {
        ctx.run(name).delete(secs(60)).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn aggregated_people_need_nothing_but_a_kubeconfig_also_while_the_store_is_away() -> Result {
    let ctx = TestContext::new("aggregated").await?;
    let postgres = install(&ctx.client).await?;
    let run = ctx.start("run", &Agent::new(json!({ "turns": 1000, "turnSeconds": 0.5 }))).await?;
    run.wait_for_turn(3).await?;
    for (user, role) in [("ada", "inspector"), ("ada", "operator"), ("vera", "viewer")] {
        bind(&ctx, user, role).await?;
    }
    let namespace = ctx.namespace.clone();
    eventually("the rights to take effect", secs(30), async || {
        Ok(get("ada", &namespace, "run/state").await.is_ok().then_some(()))
    })
    .await?;
    // A subresource named `log` is not cut at the API server's time-out of 60 s.
    let since = Instant::now();
    let following = tokio::spawn({
        let namespace = namespace.clone();
        async move { get("ada", &namespace, "run/log?follow=true").await }
    });
    let reads = [
        "state",
        "checkpoint",
        "events",
        "memory-delta?from=1&to=2",
        "calls",
        "turns",
        "records?space=notes",
        "messages",
        "audit",
    ];
    for call in reads {
        let answer = get("ada", &namespace, &format!("run/{call}")).await?;
        let answer: Value =
            serde_json::from_str(&answer).map_err(|error| anyhow::anyhow!("{call}: {error}"))?;
        assert!(answer.is_object(), "{call}: {answer}");
    }
    assert!(get("ada", &namespace, "run/export").await?.contains("signature"), "a bundle");
    for call in reads.iter().chain(&["export", "log", "proposal?wait=a&epoch=1"]) {
        let refused = get("vera", &namespace, &format!("run/{call}")).await.expect_err(call).to_string();
        assert!(refused.contains("Forbidden"), "{call}: {refused}");
    }
    let refused = kubectl(["--as", "vera", "get", "agentapprovals", "--namespace", &namespace]).await;
    assert!(refused.expect_err("approvals").to_string().contains("Forbidden"));

    // kubectl prints the message of a problem.
    for (path, message) in [
        ("no-such/state", "the store has no run"),
        ("run/proposal?wait=a&epoch=1", "never had a wait of this id"),
        ("run/state?turn=0", "is not the number of a turn"),
    ] {
        let error = get("ada", &namespace, path).await.expect_err(path).to_string();
        assert!(error.contains(message), "{path}: {error}");
    }
    let sent = create("ada", &namespace, "run/messages", &json!({ "id": "a", "value": "hello" })).await?;
    assert!(sent.contains(r#""position":1"#), "{sent}");
    let settle = json!({ "call": "nothing", "outcome": "failed", "reason": "there is none" });
    let error = create("ada", &namespace, "run/settle", &settle).await.expect_err("no call").to_string();
    assert!(error.contains("has no call of this id"), "{error}");
    let error =
        create("vera", &namespace, "run/messages", &json!({})).await.expect_err("no right").to_string();
    assert!(error.contains("Forbidden"), "{error}");
    let audit: Value = serde_json::from_str(&get("ada", &namespace, "run/audit").await?)?;
    let rows = audit["rows"].as_array().into_iter().flatten();
    let sent: Vec<&str> =
        rows.filter(|it| it["kind"] == "message-sent").filter_map(|it| it["detail"].as_str()).collect();
    assert!(sent.len() == 1 && sent[0].contains(r#""auditID":""#), "{sent:?}");
    // The kind AgentRun is still the only one of this name.
    assert!(kubectl(["get", "agentruns", "--namespace", &namespace]).await?.contains("run"));
    let resources =
        kubectl(["api-resources", "--api-group", "subresources.dalsegno.dev", "--no-headers"]).await?;
    assert_eq!(resources.trim(), "");

    use_the_plugin(&ctx, &run).await?;
    // The log ends with the run.
    tokio::time::sleep(secs(70).saturating_sub(since.elapsed())).await;
    run.cancel().await?;
    let log = following.await??;
    println!("the log was followed for {:?}", since.elapsed());
    // The agent has no events: a blank line each 15 s shows that the stream is alive.
    assert!(since.elapsed() >= secs(70) && log.lines().count() >= 4, "{:?}: {log:?}", since.elapsed());

    let stopped = postgres.stop().await?;
    let since = Instant::now();
    let took = delete_a_namespace(&ctx.client, secs(45)).await?;
    println!("the store is away: a namespace is deleted in {took:?}");
    consistently(
        "the documents and the registration",
        secs(40).saturating_sub(since.elapsed()),
        async || {
            let list = kubectl(["get", "--raw", GROUP]).await?;
            anyhow::ensure!(list.contains("agentruns/state"), "{list}");
            anyhow::ensure!(registration(&ctx.client).await? == Some(true), "the registration");
            Ok(())
        },
    )
    .await?;
    let error = get("ada", &namespace, "run/state").await.expect_err("no store").to_string();
    assert!(error.contains("the store did not answer"), "{error}");
    stopped.undo().await?;

    run.delete(secs(60)).await?;
    ctx.end().await?;
    postgres.remove().await
}

#[tokio::test(flavor = "multi_thread")]
async fn aggregated_gateways_that_are_away_hold_up_no_namespace_for_longer_than_the_breaker() -> Result {
    let ctx = TestContext::new("aggregated-away").await?;
    let postgres = install(&ctx.client).await?;
    let gateways = Operator::named(&ctx.client, GATEWAY).scale_down().await?;
    let since = Instant::now();
    let limit = BREAKER + RETRY_OF_NAMESPACES + secs(30);
    let (namespace, withdrawn) = tokio::join!(delete_a_namespace(&ctx.client, limit), async {
        wait_until_not_registered(&ctx.client, BREAKER + secs(30)).await.map(|()| since.elapsed())
    });
    println!("gateways away: withdrawn after {:?}, a namespace is deleted in {:?}", withdrawn?, namespace?);
    let events = kubectl(["get", "events", "--namespace", NAMESPACE]).await?;
    assert!(events.contains("PeopleApiWithdrawn"), "{events}");

    // For ever: nothing is registered while no gateway serves, and namespaces are deleted as ever.
    let away = async || {
        anyhow::ensure!(registration(&ctx.client).await?.is_none(), "registered without a gateway");
        Ok(())
    };
    let (for_ever, took) = tokio::join!(
        consistently("no registration", secs(30), away),
        delete_a_namespace(&ctx.client, secs(30))
    );
    for_ever?;
    println!("gateways away for ever: a namespace is deleted in {:?}", took?);
    gateways.revert().await?;
    wait_until_available(&ctx.client).await?;

    // Operators and gateways die at once, without a signal. Nobody can withdraw the registration until they are back.
    kubectl(["delete", "pods", "--all", "--force", "--grace-period=0", "--namespace", NAMESPACE]).await?;
    let took = delete_a_namespace(&ctx.client, limit).await?;
    println!("operators and gateways killed: a namespace is deleted in {took:?}");
    wait_until_available(&ctx.client).await?;

    process::run("helm", ["uninstall", RELEASE, "--namespace", NAMESPACE, "--wait"]).await?;
    let since = Instant::now();
    wait_until_not_registered(&ctx.client, secs(30)).await?;
    let took = delete_a_namespace(&ctx.client, secs(45)).await?;
    println!("uninstalled: not registered {:?} later, a namespace is deleted in {took:?}", since.elapsed());
    postgres.remove().await?;
    consistently("no registration with the embedded store", secs(15), async || {
        anyhow::ensure!(registration(&ctx.client).await?.is_none(), "the embedded store registers nothing");
        Ok(())
    })
    .await?;
    ctx.end().await
}

/// The operators stop with their namespace, and their ServiceAccount is deleted at about the same time.
#[tokio::test(flavor = "multi_thread")]
async fn aggregated_the_release_withdraws_the_registration_when_its_own_namespace_is_deleted() -> Result {
    let ctx = TestContext::new("aggregated-own").await?;
    let postgres = install(&ctx.client).await?;
    ctx.operator.is_done_with_earlier_tests().await?;
    let namespaces: Api<Namespace> = Api::all(ctx.client.clone());
    let since = Instant::now();
    namespaces.delete(NAMESPACE, &DeleteParams::default()).await?;
    eventually("the release's namespace to be gone", secs(110), async || {
        Ok(namespaces.get_opt(NAMESPACE).await?.is_none().then_some(()))
    })
    .await?;
    println!("the release's own namespace is deleted in {:?}", since.elapsed());
    let services: Api<APIService> = Api::all(ctx.client.clone());
    assert!(services.get_opt(NAME).await?.map(|it| it.name_any()).is_none(), "it is not registered");
    postgres.remove().await?;
    ctx.end().await
}
