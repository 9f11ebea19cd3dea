//! A fleet in bad weather: no registry, a webhook that takes 30 s, a full quota, an injected sidecar, and a bad roll-out.
//! All runs end without a person's help, nothing is charged, and no unrelated run waits for them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dalsegno_crds::Summary;
use dalsegno_e2e::process::UndoGuard;
use dalsegno_e2e::wait::{eventually, secs};
use dalsegno_e2e::{Agent, Definition, Result, Run, StatusExt, TestContext, objects};
use futures::future::{try_join, try_join_all};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::api::{Api, PostParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

/// The environment variable with the number of all runs. Without it the test takes a small fleet.
const RUNS: &str = "DALSEGNO_E2E_FLEET_RUNS";

/// The number of all runs without [`RUNS`].
const SMALL_FLEET: usize = 40;

/// The number of runs of each kind. At most a few pods of the runs over the quota exist at one time.
struct Fleet {
    without_image: usize,
    behind_webhook: usize,
    over_quota: usize,
    /// Pods that the quota allows.
    quota: usize,
    with_sidecar: usize,
    rolled_out: usize,
    unrelated: usize,
}

impl Fleet {
    fn from_env() -> Result<Self> {
        let runs = std::env::var(RUNS).map_or(Ok(SMALL_FLEET), |runs| runs.parse())?;
        anyhow::ensure!(runs >= 20, "{RUNS} is {runs}; a fleet has at least 20 runs");
        let share = |of_twenty: usize| runs * of_twenty / 20;
        Ok(Self {
            without_image: share(4),
            behind_webhook: share(4),
            over_quota: share(8),
            quota: share(2),
            with_sidecar: share(2),
            rolled_out: share(1),
            unrelated: share(1),
        })
    }
}

/// Limit for the recovery of an unrelated run: from the end of its pod until the next one is created. It is shorter than
/// one answer of the webhook, so no recovery waits behind one. The test prints the slowest.
const RECOVERY_LIMIT: Duration = secs(25);
/// Limit for a kubelet to end a pod, or to start one whose worker attaches. Both kubelets work on all containers of the
/// fleet on few cores meanwhile, so this says nothing about the operator.
const KUBELET_LIMIT: Duration = secs(240);
/// Limit for every run to succeed after the weather.
const END_LIMIT: Duration = secs(420);
/// Turns of the runs of the roll-out, of one second each.
const TURNS: i32 = 45;

/// An agent whose image may already be on the node, which is what lets it start without the registry.
fn cached(script: Value) -> Agent {
    Agent::new(script).container(json!({ "imagePullPolicy": "IfNotPresent" }))
}

fn short() -> Value {
    json!({ "turns": 3, "turnSeconds": 0.2 })
}

async fn start_all<'c>(ctx: &'c TestContext, count: usize, agent: &Agent) -> Result<Vec<Run<'c>>> {
    let names: Vec<String> = (0..count).map(|i| format!("run-{i}")).collect();
    try_join_all(names.iter().map(|name| ctx.start(name, agent))).await
}

/// Waits until each run has its first worker.
async fn wait_for_workers(runs: &[Run<'_>]) -> Result {
    try_join_all(runs.iter().map(|run| run.wait_for_attempt(1, KUBELET_LIMIT))).await?;
    Ok(())
}

/// Waits until all runs have succeeded, and checks that nothing was charged, lost or repeated.
async fn expect_success(runs: &[Run<'_>], turns: i32) -> Result {
    for run in runs {
        let status = run.wait_for(Summary::Succeeded, END_LIMIT).await?;
        expect_nothing_charged(run, &status.recovery())?;
        run.expect_nothing_lost_or_repeated(turns).await?;
    }
    Ok(())
}

fn expect_nothing_charged(run: &Run<'_>, recovery: &dalsegno_crds::RecoveryStatus) -> Result {
    let is_free = recovery.recovery_attempts == 0 && recovery.history.iter().all(|end| !end.charged);
    anyhow::ensure!(is_free, "run {} was charged: {recovery:?}", run.name);
    Ok(())
}

/// Creates an object without a namespace. The guard deletes it.
async fn create_global<K>(ctx: &TestContext, manifest: Value) -> Result<UndoGuard>
where
    K: kube::Resource<Scope = kube::core::ClusterResourceScope, DynamicType = ()>,
    K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let object: K = serde_json::from_value(manifest)?;
    let name = object.meta().name.clone().unwrap_or_default();
    let kind = K::kind(&()).to_lowercase();
    let undo = UndoGuard::new(["kubectl", "delete", &kind, &name, "--ignore-not-found"]);
    Api::all(ctx.client.clone()).create(&PostParams::default(), &object).await?;
    Ok(undo)
}

fn only_in(ctx: &TestContext) -> Value {
    json!({ "matchLabels": { "kubernetes.io/metadata.name": ctx.namespace } })
}

/// From now on each pod of this namespace waits 30 s for a webhook that accepts connections and never answers.
async fn install_slow_webhook(ctx: &TestContext) -> Result<UndoGuard> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("https://{}/", listener.local_addr()?);
    tokio::spawn(async move {
        let mut connections = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            connections.push(connection);
        }
    });
    let rule =
        json!({ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"] });
    let webhook = json!({
        "name": "slow.e2e.dalsegno.test", "clientConfig": { "url": url }, "rules": [rule],
        "namespaceSelector": only_in(ctx), "timeoutSeconds": 30, "failurePolicy": "Fail",
        "sideEffects": "None", "admissionReviewVersions": ["v1"],
    });
    let manifest = json!({ "metadata": { "name": ctx.namespace }, "webhooks": [webhook] });
    create_global::<ValidatingWebhookConfiguration>(ctx, manifest).await
}

/// From now on each pod of this namespace gets a second container, which never ends by itself.
async fn inject_sidecar(ctx: &TestContext) -> Result<[UndoGuard; 2]> {
    let image = "registry.dalsegno.test/dalsegno-example-rust:dev";
    let container =
        format!(r#"Object.spec.containers{{name: "proxy", image: "{image}", command: ["/ledger"]}}"#);
    let rule =
        json!({ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"] });
    let change = format!(r#"[JSONPatch{{op: "add", path: "/spec/containers/-", value: {container}}}]"#);
    let policy = json!({
        "metadata": { "name": ctx.namespace },
        "spec": {
            "matchConstraints": { "resourceRules": [rule] }, "reinvocationPolicy": "Never",
            "mutations": [{ "patchType": "JSONPatch", "jsonPatch": { "expression": change } }],
        },
    });
    let binding = json!({
        "metadata": { "name": ctx.namespace },
        "spec": {
            "policyName": ctx.namespace, "matchResources": { "namespaceSelector": only_in(ctx) },
        },
    });
    Ok([
        create_global::<MutatingAdmissionPolicy>(ctx, policy).await?,
        create_global::<MutatingAdmissionPolicyBinding>(ctx, binding).await?,
    ])
}

/// Waits until the policy acts: a pod of a dry run has two containers.
async fn wait_for_sidecar(ctx: &TestContext) -> Result {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "probe" },
        "spec": { "containers": [{ "name": "agent", "image": "none" }] },
    });
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let pod: k8s_openapi::api::core::v1::Pod = serde_json::from_value(pod)?;
    eventually("the sidecar to be injected", secs(60), async || {
        let made = ctx.api().create(&dry_run, &pod).await?;
        Ok(made.spec.filter(|spec| spec.containers.len() == 2).map(drop))
    })
    .await
}

/// Evicts the runs one after the other until `stop`, and returns the slowest recovery.
async fn evict_until(runs: &[Run<'_>], stop: &AtomicBool) -> Result<Duration> {
    let mut slowest = Duration::ZERO;
    for run in runs.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let attempt = run.status().await?.attempt().number;
        run.wait_for_end_of(&run.evict().await?, KUBELET_LIMIT).await?;
        let began = Instant::now();
        let has_pod = |status: &dalsegno_crds::AgentRunStatus| {
            status.attempt().number > attempt && status.attempt().pod_uid.is_some()
        };
        run.wait_until("to have its next pod", RECOVERY_LIMIT, has_pod).await?;
        slowest = slowest.max(began.elapsed());
        run.wait_for_attempt(attempt + 1, KUBELET_LIMIT).await?;
        sleep(secs(1)).await;
    }
    for run in runs {
        expect_nothing_charged(run, &run.status().await?.recovery())?;
    }
    Ok(slowest)
}

/// A bad roll-out under `Pin`: a tag that does not exist, then a command that cannot start, then the right definition.
async fn roll_out(ctx: &TestContext, count: usize) -> Result {
    let image = ctx.push_image("live", "old").await?;
    let good = Definition::new().image(&image.tagged);
    ctx.create_definition("agent", &good).await?;
    let script = json!({ "turns": TURNS, "turnSeconds": 1, "onTerm": "exit143" });
    let runs = start_all(ctx, count, &Agent::from_definition("agent", script)).await?;
    wait_for_workers(&runs).await?;
    try_join_all(runs.iter().map(|run| run.wait_for_turn(3))).await?;
    let missing = Definition::new().image("registry.dalsegno.test/no-such-image:1");
    let broken = good.clone().container(json!({ "command": ["/no-such-command"] }));
    for definition in [&missing, &broken, &good] {
        ctx.update_definition("agent", definition).await?;
        try_join_all(runs.iter().map(|run| async move {
            let attempt = run.status().await?.attempt().number;
            run.evict().await?;
            run.wait_for_attempt(attempt + 1, KUBELET_LIMIT).await
        }))
        .await?;
    }
    expect_success(&runs, TURNS).await
}

/// Waits until three attempts of each run have ended because the image could not be pulled in time.
async fn wait_for_three_deadlines(runs: &[Run<'_>]) -> Result {
    let has_three = |status: &dalsegno_crds::AgentRunStatus| status.recovery().history.len() >= 3;
    for run in runs {
        run.wait_until("to miss three start deadlines", END_LIMIT, has_three).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_in_bad_weather_end_by_themselves_and_no_other_run_waits() -> Result {
    let fleet = Fleet::from_env()?;
    let contexts = ["unrelated", "sidecar", "registry", "webhook", "full-quota", "roll-out"];
    let contexts = try_join_all(contexts.map(TestContext::new)).await?;
    let [unrelated, sidecar, registry, webhook, quota, rollout] = &contexts[..] else {
        anyhow::bail!("six namespaces are needed");
    };
    let endless = json!({ "turns": 10_000, "turnSeconds": 0.5, "onTerm": "exit143" });
    let bystanders = start_all(unrelated, fleet.unrelated, &cached(endless)).await?;
    let policy = inject_sidecar(sidecar).await?;
    wait_for_sidecar(sidecar).await?;
    let with_sidecar = start_all(sidecar, fleet.with_sidecar, &cached(short())).await?;
    wait_for_workers(&bystanders).await?;
    try_join_all(bystanders.iter().map(|run| run.wait_for_turn(2))).await?;

    let stop = AtomicBool::new(false);
    let weather = async {
        let done = async {
            expect_success(&with_sidecar, 3).await?;
            let hard = json!({ "pods": fleet.quota.to_string() });
            let pods = json!({ "metadata": { "name": "few-pods" }, "spec": { "hard": hard } });
            objects::create::<ResourceQuota>(&quota.client, &quota.namespace, pods).await?;
            let slow = install_slow_webhook(webhook).await?;
            let away = registry.cluster()?.stop("registry").await?;
            let late = Agent::new(short()).spec(json!({ "liveness": { "startDeadlineSeconds": 5 } }));
            let without_image = start_all(registry, fleet.without_image, &late).await?;
            let behind_webhook = start_all(webhook, fleet.behind_webhook, &cached(short())).await?;
            let over_quota = start_all(quota, fleet.over_quota, &cached(short())).await?;
            wait_for_three_deadlines(&without_image).await?;
            away.undo().await?;
            slow.undo().await?;
            let others = [&without_image, &behind_webhook, &over_quota];
            try_join(
                roll_out(rollout, fleet.rolled_out),
                try_join_all(others.map(|runs| expect_success(runs, 3))),
            )
            .await?;
            anyhow::Ok(())
        }
        .await;
        stop.store(true, Ordering::Relaxed);
        done
    };
    let (slowest, ()) = try_join(evict_until(&bystanders, &stop), weather).await?;
    println!("the slowest recovery of an unrelated run took {slowest:?}");
    for guard in policy {
        guard.undo().await?;
    }
    for ctx in contexts {
        ctx.end().await?;
    }
    Ok(())
}
