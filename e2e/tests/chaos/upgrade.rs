//! Dal Segno is upgraded and rolled back while runs are active. Both versions use the same store. The version before has no
//! TLS: its workers use plain HTTP until their pod ends, and before the rollback TLS is turned off.

use std::sync::atomic::{AtomicI32, Ordering};

use anyhow::Context as _;
use dalsegno_crds::Summary;
use dalsegno_e2e::install::{self, Version};
use dalsegno_e2e::operator::{NAMESPACE, RELEASE};
use dalsegno_e2e::postgres::{self, GATEWAY, Postgres};
use dalsegno_e2e::process::{self, UndoGuard};
use dalsegno_e2e::wait::secs;
use dalsegno_e2e::{Agent, Operator, Result, Run, StatusExt, TestContext, objects};
use dalsegno_protocol::{Code, env};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, LogParams, ObjectMeta, PostParams};
use serde_json::{Value, json};

use crate::healthy::Healthy;

/// The turns of the runs: one second each, longer than the changes take. On PostgreSQL there is one change more.
const TURNS: i32 = 125;
const TURNS_ON_POSTGRESQL: i32 = 190;
/// The Deployment of a gateway of the version before, beside the release's.
const BEFORE: &str = "gateway-before";
/// The turns of the run that is started under the current version.
const STARTED_TURNS: i32 = 90;

#[tokio::test(flavor = "multi_thread")]
async fn runs_on_the_embedded_store_survive_an_upgrade_and_a_rollback() -> Result {
    let ctx = TestContext::new("upgrade").await?;
    let current = UndoGuard::new(Version::current().helm_command(&install::values()));
    // The previous version shall create the database itself.
    process::run("helm", ["uninstall", RELEASE, "--namespace", NAMESPACE, "--wait"]).await?;
    process::kubectl(["delete", "persistentvolumeclaim", RELEASE, "--namespace", NAMESPACE]).await?;
    // The operator does not overwrite the anchors of another store.
    let anchors = ["delete", "configmap", "dalsegno-anchors", "--namespace", NAMESPACE, "--ignore-not-found"];
    process::kubectl(anchors).await?;
    Version::previous()?.install(&ctx.client, &install::values()).await?;

    let runs = Upgraded::start(&ctx, TURNS).await?;
    let started = runs.upgrade_and_roll_back(&install::values()).await?;
    current.undo().await?;
    ctx.operator.wait_for_rollout().await?;
    runs.expect_success(&started).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_on_postgresql_survive_an_upgrade_and_a_rollback() -> Result {
    let ctx = TestContext::new("upgrade-postgres").await?;
    let postgres =
        Postgres::install_version(&ctx.client, &Version::previous()?, &postgres::values(2)).await?;
    let runs = Upgraded::start(&ctx, TURNS_ON_POSTGRESQL).await?;
    let started = runs.upgrade_and_roll_back(&postgres::values(2)).await?;
    Version::current().install(&ctx.client, &postgres::values(2)).await?;
    runs.expect_success(&started).await?;
    ctx.end().await?;
    postgres.remove().await
}

/// Checks the scheme of the URL in a run's pod.
async fn expect_scheme(run: &Run<'_>, scheme: &str) -> Result {
    let pod = run.pod().await?;
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut variables = containers.flat_map(|container| container.env.iter().flatten());
    let url = variables.find(|variable| variable.name == env::URL).and_then(|it| it.value.clone());
    let url = url.unwrap_or_default();
    anyhow::ensure!(url.starts_with(scheme), "run {}: {url} and not {scheme}", run.name);
    Ok(())
}

/// Runs that were started under the previous version.
struct Upgraded<'c> {
    ctx: &'c TestContext,
    /// They make their turns and lose no pod.
    healthy: Healthy<'c>,
    /// It loses a pod under each version.
    evicted: Run<'c>,
    turns: i32,
    evictions: AtomicI32,
}

impl<'c> Upgraded<'c> {
    async fn start(ctx: &'c TestContext, turns: i32) -> Result<Self> {
        let healthy = Healthy::start(ctx, turns).await?;
        let script = json!({ "turns": turns, "turnSeconds": 1, "onTerm": "exit143" });
        let evicted = ctx.start("evicted", &Agent::new(script)).await?;
        evicted.wait_for_turn(2).await?;
        Ok(Self { ctx, healthy, evicted, turns, evictions: AtomicI32::new(0) })
    }

    /// Upgrades to the current version, turns TLS off, and rolls back. Under each version a run of the other one loses its pod.
    /// Returns the run that was started under the current version.
    async fn upgrade_and_roll_back(&self, values: &Value) -> Result<Run<'c>> {
        let status =
            process::run("helm", ["status", RELEASE, "--namespace", NAMESPACE, "--output", "json"]).await?;
        let before: Value = serde_json::from_str(&status)?;
        let revision = before["version"].to_string();
        self.evict().await?;
        let deployments: Api<Deployment> = Api::namespaced(self.ctx.client.clone(), NAMESPACE);
        let gateway = deployments.get_opt(GATEWAY).await?;
        Version::current().install(&self.ctx.client, values).await?;
        self.evict().await?;
        let started =
            self.ctx.start("new", &Agent::new(json!({ "turns": STARTED_TURNS, "turnSeconds": 1 }))).await?;
        started.wait_for_turn(2).await?;
        expect_scheme(&started, "https://").await?;
        expect_scheme(&self.evicted, "https://").await?;
        expect_scheme(&self.healthy.runs[0], "http://").await?;
        if let Some(gateway) = gateway {
            self.serve_beside(gateway, &started).await?;
        }
        // The workers with TLS are served on until their pods are replaced.
        let mut off = values.clone();
        objects::merge(&mut off, &json!({ "gateway": { "tls": { "mode": "off" } } }));
        Version::current().install(&self.ctx.client, &off).await?;
        started.evict().await?;
        started.wait_for_attempt(2, secs(30)).await?;
        self.evict().await?;
        for run in [&started, &self.evicted] {
            expect_scheme(run, "http://").await?;
        }
        let rollback =
            ["rollback", RELEASE, &revision, "--namespace", NAMESPACE, "--wait", "--timeout", "100s"];
        process::run("helm", rollback).await?;
        self.ctx.operator.wait_for_rollout().await?;
        started.evict().await?;
        self.evict().await?;
        Ok(started)
    }

    /// A gateway of the version before serves beside those of this version. Every worker may reach any of them, no attempt
    /// ends, one that begins meanwhile makes turns, and no gateway calls a request of a worker wrong.
    async fn serve_beside(&self, mut gateway: Deployment, started: &Run<'_>) -> Result {
        let deployments: Api<Deployment> = Api::namespaced(self.ctx.client.clone(), NAMESPACE);
        let own = ("e2e.dalsegno.dev/version".to_owned(), "before".to_owned());
        gateway.metadata = ObjectMeta { name: Some(BEFORE.into()), ..ObjectMeta::default() };
        gateway.status = None;
        let spec = gateway.spec.as_mut().context("a Deployment without a spec")?;
        spec.replicas = Some(1);
        spec.selector.match_labels.get_or_insert_default().extend([own.clone()]);
        spec.template.metadata.get_or_insert_default().labels.get_or_insert_default().extend([own]);
        deployments.create(&PostParams::default(), &gateway).await?;
        let before = UndoGuard::new(["kubectl", "delete", "deployment", BEFORE, "--namespace", NAMESPACE]);
        Operator::named(&self.ctx.client, BEFORE).wait_for_rollout().await?;
        self.evict().await?;
        self.healthy.expect_first_attempts().await?;
        assert_eq!(started.status().await?.attempt().number, 1, "{}", started.name);
        let pods: Api<Pod> = Api::namespaced(self.ctx.client.clone(), &self.ctx.namespace);
        for run in self.healthy.runs.iter().chain([started, &self.evicted]) {
            let name = run.pod().await?.name_any();
            let log = pods.logs(&name, &LogParams::default()).await?;
            assert!(!log.contains(&Code::Invalid.to_string()), "{name}: {log}");
        }
        before.undo().await
    }

    /// Evicts the pod of a run, and waits until another one has made a turn.
    async fn evict(&self) -> Result {
        let before = self.evicted.status().await?.attempt().number;
        self.evicted.evict().await?;
        self.evictions.fetch_add(1, Ordering::Relaxed);
        self.evicted.wait_for_attempt(before + 1, secs(30)).await?;
        let turn = self.ctx.ledger.highest_turn(&self.evicted.key()).await?;
        self.evicted.wait_for_turn(turn + 1).await
    }

    /// Checks that every run was active during the last change and succeeds, that the evictions are all that was counted, and that the audit is unbroken.
    async fn expect_success(&self, started: &Run<'_>) -> Result {
        let turns = self.healthy.turns().await?;
        assert!(turns.iter().all(|turn| *turn < self.turns), "a run ended before the last change: {turns:?}");
        self.healthy.expect_first_attempts().await?;
        // The changes are quicker on the embedded store than on PostgreSQL, so more turns are left.
        for run in [started, &self.evicted] {
            run.wait_for(Summary::Succeeded, secs(180)).await?;
        }
        let status = started.status().await?;
        assert_eq!(status.attempt().number, 3, "{:?}", status.recovery());
        started.expect_nothing_lost_or_repeated(STARTED_TURNS).await?;
        self.healthy.expect_success().await?;
        let status = self.evicted.status().await?;
        let recovery = status.recovery();
        let counted = (status.attempt().number, recovery.recovery_attempts, recovery.disruptions);
        let evictions = self.evictions.load(Ordering::Relaxed);
        assert_eq!(counted, (evictions + 1, 0, evictions), "{recovery:?}");
        self.evicted.expect_nothing_lost_or_repeated(self.turns).await?;
        let operator = format!("deployment/{RELEASE}");
        let verify = ["exec", "--namespace", NAMESPACE, &operator, "--", "/dalsegno", "audit", "verify"];
        println!("{}", process::kubectl(verify).await?);
        Ok(())
    }
}
