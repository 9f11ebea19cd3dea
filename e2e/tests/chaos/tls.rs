//! The CA of the gateway is replaced twice while twenty workers are attached, of which half are in Python and half in Rust.
//! No heartbeat is lost, and no attempt ends.

use std::collections::BTreeSet;

use anyhow::Context;
use dalsegno_crds::names;
use dalsegno_e2e::agent::PYTHON;
use dalsegno_e2e::install::Version;
use dalsegno_e2e::operator::NAMESPACE;
use dalsegno_e2e::postgres::{self, GATEWAY, Postgres};
use dalsegno_e2e::wait::{eventually, secs};
use dalsegno_e2e::{Agent, Operator, Result, Run, StatusExt, TestContext, objects, process};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::api::{Api, ListParams, LogParams};
use serde_json::{Value, json};

/// The number of runs.
const RUNS: usize = 20;

/// How long every pod must have had a new CA. The kubelets of this cluster look each ten seconds.
const SETTLE: &str = "15s";

/// How long the old CA is trusted afterwards.
const KEEP: &str = "5s";

/// What the SDKs log after five seconds without an answer.
const NO_ANSWER: &str = "no answer yet";

/// Every turn is one second. No run ends by itself.
fn agent(n: usize) -> Agent {
    let mut script = json!({ "turns": 100_000, "turnSeconds": 1 });
    let is_python = !n.is_multiple_of(2);
    if is_python {
        script["goal"] = "TLS".into();
    }
    let agent = Agent::new(script).spec(json!({ "liveness": { "heartbeatTimeoutSeconds": 10 } }));
    if is_python { agent.container(json!({ "image": PYTHON })) } else { agent }
}

/// The operator's CA, what the gateway serves, and what workers trust.
#[derive(Debug)]
struct Certificates {
    newest: String,
    of_served: String,
    bundle: String,
}

impl Certificates {
    async fn read(ctx: &TestContext) -> Result<Self> {
        let secrets: Api<Secret> = Api::namespaced(ctx.client.clone(), NAMESPACE);
        let certificate = async |name: &str| {
            let secret = secrets.get(name).await?;
            let data = secret.data.unwrap_or_default();
            let ca = data.get("ca.crt").context("a Secret without ca.crt")?;
            anyhow::Ok(String::from_utf8(ca.0.clone())?)
        };
        let maps: Api<ConfigMap> = Api::namespaced(ctx.client.clone(), NAMESPACE);
        let bundle = maps.get("dalsegno-ca").await?.data.unwrap_or_default();
        Ok(Self {
            newest: normal(&certificate("dalsegno-ca").await?),
            of_served: normal(&certificate("dalsegno-tls").await?),
            bundle: normal(bundle.get("ca.crt").context("a bundle without ca.crt")?),
        })
    }
}

/// PEM without the choice of its line ends.
fn normal(pem: &str) -> String {
    pem.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

/// Asks for another CA, and waits until the gateway serves a certificate of it.
async fn rotate(ctx: &TestContext) -> Result {
    let before = Certificates::read(ctx).await?;
    let annotate = ["annotate", "secret", "dalsegno-ca", "--namespace", NAMESPACE, "dalsegno.dev/rotate=now"];
    process::kubectl(annotate).await?;
    eventually("the gateway to serve a certificate of the new CA", secs(120), async || {
        let now = Certificates::read(ctx).await?;
        let is_replaced = now.newest != before.newest && now.of_served == now.newest;
        anyhow::ensure!(
            !is_replaced || now.bundle.contains(&now.newest),
            "the bundle lacks the served CA: {now:?}"
        );
        Ok(is_replaced.then_some(()))
    })
    .await?;
    expect_bundles(ctx, &Certificates::read(ctx).await?).await
}

/// Waits until workers trust the newest CA alone.
async fn complete(ctx: &TestContext) -> Result {
    eventually("the old CA to be dropped", secs(60), async || {
        let now = Certificates::read(ctx).await?;
        let bundles = bundles(ctx).await?;
        let is_dropped = now.bundle == now.newest && bundles == BTreeSet::from([now.newest.clone()]);
        Ok(is_dropped.then_some(()))
    })
    .await
}

/// The bundles in the annotations of the workers' pods.
async fn bundles(ctx: &TestContext) -> Result<BTreeSet<String>> {
    let pods = ctx.api::<Pod>().list(&ListParams::default()).await?;
    let annotation = |pod: Pod| pod.metadata.annotations?.remove(names::ANNOTATION_CA);
    let all: Vec<_> = pods.into_iter().map(annotation).map(|it| normal(&it.unwrap_or_default())).collect();
    anyhow::ensure!(all.len() == RUNS, "{} pods", all.len());
    Ok(all.into_iter().collect())
}

/// Every pod had the new CA before the certificate was replaced.
async fn expect_bundles(ctx: &TestContext, now: &Certificates) -> Result {
    for bundle in bundles(ctx).await? {
        anyhow::ensure!(bundle.contains(&now.newest), "a pod lacks the served CA: {bundle}");
    }
    Ok(())
}

/// Replaces the pods of the gateway one after the other, so that every worker connects anew.
async fn restart_gateways(ctx: &TestContext) -> Result {
    let deployment = format!("deployment/{GATEWAY}");
    process::kubectl(["rollout", "restart", &deployment, "--namespace", NAMESPACE]).await?;
    process::kubectl(["rollout", "status", &deployment, "--namespace", NAMESPACE, "--timeout", "100s"])
        .await?;
    Operator::named(&ctx.client, GATEWAY).wait_for_rollout().await
}

/// Every run makes a turn, in its first attempt, and none has missed an answer.
async fn expect_undisturbed(ctx: &TestContext, runs: &[Run<'_>]) -> Result {
    let pods = ctx.api::<Pod>();
    try_join_all(runs.iter().map(async |run| {
        let turn = ctx.ledger.highest_turn(&run.key()).await?;
        run.wait_for_turn(turn + 1).await?;
        let status = run.status().await?;
        let recovery = status.recovery();
        let counted = (status.attempt().number, recovery.recovery_attempts, recovery.disruptions);
        anyhow::ensure!(
            counted == (1, 0, 0),
            "run {}: (attempt, crashes, disruptions) {counted:?}",
            run.name
        );
        let log = pods.logs(&format!("{}-1", run.name), &LogParams::default()).await?;
        let missed: Vec<_> = log.lines().filter(|line| line.contains(NO_ANSWER)).collect();
        anyhow::ensure!(missed.is_empty(), "run {}: {missed:?}", run.name);
        Ok(())
    }))
    .await
    .map(drop)
}

fn values() -> Value {
    let mut values = postgres::values(2);
    objects::merge(&mut values, &json!({ "gateway": { "tls": { "settle": SETTLE, "keepOldCA": KEEP } } }));
    values
}

#[tokio::test(flavor = "multi_thread")]
async fn two_changes_of_the_ca_disturb_none_of_twenty_workers() -> Result {
    let ctx = TestContext::new("tls").await?;
    let postgres = Postgres::install_version(&ctx.client, &Version::current(), &values()).await?;
    let names: Vec<_> = (0..RUNS).map(|n| (format!("run-{n:02}"), agent(n))).collect();
    let runs = try_join_all(names.iter().map(|(name, agent)| ctx.start(name, agent))).await?;
    try_join_all(runs.iter().map(|run| run.wait_for_turn(3))).await?;
    for _ in 0..2 {
        rotate(&ctx).await?;
        expect_undisturbed(&ctx, &runs).await?;
        restart_gateways(&ctx).await?;
        expect_undisturbed(&ctx, &runs).await?;
        complete(&ctx).await?;
        restart_gateways(&ctx).await?;
        expect_undisturbed(&ctx, &runs).await?;
    }
    println!("{RUNS} workers, two changes of the CA, four restarts of the gateways");
    ctx.end().await?;
    postgres.remove().await
}
