//! An AgentRun is deleted.

use std::collections::BTreeSet;

use dalsegno_crds::{AgentRun, Cause, Summary};
use dalsegno_e2e::wait::{eventually, secs};
use dalsegno_e2e::{Agent, Result, Run, StatusExt, TestContext, objects};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret};
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

/// Limit for a run to reach a phase.
const LIMIT: std::time::Duration = secs(60);

fn crashing_run() -> Value {
    json!({ "turns": 3, "turnSeconds": 0.1, "script": [{ "turn": 2, "at": "start", "do": "exit:1" }] })
}

/// Starts one run for each phase, and waits until each is in its phase.
async fn start_one_run_per_phase(ctx: &TestContext) -> Result<Vec<Run<'_>>> {
    let long = json!({ "turns": 1000, "turnSeconds": 0.3 });
    let short = json!({ "turns": 2, "turnSeconds": 0.1 });
    let nowhere = json!({ "nodeSelector": { "kubernetes.io/hostname": "nowhere" } });
    let agents = [
        (Summary::Pending, "unscheduled", Agent::new(long.clone()).pod(nowhere)),
        (Summary::Starting, "unattached", Agent::new(json!({ "neverAttach": true }))),
        (Summary::Running, "running", Agent::new(long.clone())),
        (
            Summary::BackingOff,
            "backing-off",
            Agent::new(crashing_run()).spec(json!({
                "recovery": { "backoff": { "initialSeconds": 600, "maxSeconds": 600 } },
            })),
        ),
        (
            Summary::Held,
            "held",
            Agent::new(crashing_run()).spec(json!({
                "recovery": { "maxAttemptsWithoutProgress": 1, "maxRecoveryAttempts": 0 },
            })),
        ),
        (Summary::Held, "undefined", Agent::from_definition("missing", short.clone())),
        (Summary::Succeeded, "succeeded", Agent::new(short.clone())),
        (Summary::Failed, "failed", Agent::new(json!({ "turns": 1, "finishOutcome": "failed" }))),
        (Summary::Cancelled, "cancelled", Agent::new(long).spec(json!({ "operatingMode": "Cancelled" }))),
    ];
    let mut runs = Vec::new();
    for (summary, name, agent) in &agents {
        runs.push((ctx.start(name, agent).await?, *summary));
    }
    for (run, summary) in &runs {
        run.wait_for(*summary, LIMIT).await?;
    }
    Ok(runs.into_iter().map(|(run, _)| run).collect())
}

/// The names of the objects in the namespace, without those that Kubernetes creates in every namespace.
async fn objects_left(ctx: &TestContext) -> Result<BTreeSet<String>> {
    async fn names<K>(api: Api<K>) -> Result<Vec<String>>
    where
        K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let kind = K::kind(&());
        let list = api.list(&ListParams::default()).await?;
        Ok(list.iter().map(|object| format!("{kind} {}", object.name_any())).collect())
    }
    let mut left: BTreeSet<String> = BTreeSet::new();
    left.extend(names::<Pod>(ctx.api()).await?);
    left.extend(names::<Secret>(ctx.api()).await?);
    left.extend(names::<ConfigMap>(ctx.api()).await?);
    left.extend(names::<PersistentVolumeClaim>(ctx.api()).await?);
    left.extend(names::<AgentRun>(ctx.api()).await?);
    left.remove("ConfigMap kube-root-ca.crt");
    Ok(left)
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_run_in_any_phase_stops_its_worker_and_leaves_no_object() -> Result {
    let ctx = TestContext::new("delete").await?;
    let runs = start_one_run_per_phase(&ctx).await?;
    for run in &runs {
        run.delete(secs(30)).await?;
    }
    assert_eq!(objects_left(&ctx).await?, BTreeSet::new());
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_deleted_when_its_ttl_expires_and_leaves_no_object() -> Result {
    let ctx = TestContext::new("ttl").await?;
    let agent = Agent::new(json!({ "turns": 2, "turnSeconds": 0.1 }))
        .spec(json!({ "retention": { "ttlSecondsAfterFinished": 5 } }));
    let run = ctx.start("run", &agent).await?;
    run.wait_for_success().await?;
    eventually("the AgentRun to be gone", LIMIT, async || {
        Ok(ctx.api::<AgentRun>().get_opt("run").await?.is_none().then_some(()))
    })
    .await?;
    eventually("its pod to be gone", LIMIT, async || Ok(objects_left(&ctx).await?.is_empty().then_some(())))
        .await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_created_again_under_the_same_name_starts_at_turn_1() -> Result {
    let ctx = TestContext::new("again").await?;
    let run = ctx.start("run", &Agent::new(json!({ "turns": 100, "turnSeconds": 0.3 }))).await?;
    run.wait_for_turn(3).await?;
    run.delete(secs(30)).await?;

    let fresh = ctx.start("run", &Agent::new(json!({ "turns": 3, "turnSeconds": 0.2 }))).await?;
    let status = fresh.wait_for_success().await?;
    assert_eq!(status.attempt().number, 1);
    assert_eq!(status.attempt().resumed_from_turn.unwrap_or(0), 0);
    assert_eq!((status.turn(), status.recovery().disruptions), (3, 0));
    ctx.end().await
}

/// The old pod is still terminating, so its name is taken when the new run starts.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_created_again_while_its_old_pod_terminates_takes_the_next_attempt_uncharged() -> Result {
    let ctx = TestContext::new("terminating").await?;
    let agent = Agent::new(json!({ "turns": 9, "turnSeconds": 60, "heartbeat": false, "onTerm": "ignore" }))
        .pod(json!({ "terminationGracePeriodSeconds": 20 }));
    let old = ctx.start("run", &agent).await?;
    old.wait_for_attempt(1, LIMIT).await?;
    objects::delete::<AgentRun>(&ctx.client, &ctx.namespace, "run").await?;
    eventually("the AgentRun to be gone", LIMIT, async || {
        Ok(ctx.api::<AgentRun>().get_opt("run").await?.is_none().then_some(()))
    })
    .await?;
    assert!(!old.pods().await?.is_empty(), "the finalizer should not wait for a kubelet");

    let fresh = ctx.start("run", &Agent::new(json!({ "turns": 4, "turnSeconds": 0.2 }))).await?;
    let status = fresh.wait_for_success().await?;
    assert_eq!(status.attempt().number, 2);
    assert_eq!(status.causes().first(), Some(&Cause::NameInUse));
    assert_eq!((status.turn(), status.recovery().recovery_attempts), (4, 0));
    ctx.end().await
}

/// Each round leaves one more pod that is being deleted for a minute and has a name that the next run would use.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_created_again_twelve_times_while_its_old_pods_terminate_is_never_held() -> Result {
    let ctx = TestContext::new("often-again").await?;
    let script = json!({ "turns": 9, "turnSeconds": 60, "heartbeat": false, "onTerm": "ignore" });
    let agent = Agent::new(script).pod(json!({ "terminationGracePeriodSeconds": 60 }));
    for _ in 0..12 {
        let run = ctx.start("run", &agent).await?;
        run.wait_for_attempt(1, LIMIT).await?;
        objects::delete::<AgentRun>(&ctx.client, &ctx.namespace, "run").await?;
        eventually("the AgentRun to be gone", LIMIT, async || {
            Ok(ctx.api::<AgentRun>().get_opt("run").await?.is_none().then_some(()))
        })
        .await?;
    }
    let last = ctx.start("run", &Agent::new(json!({ "turns": 4, "turnSeconds": 0.2 }))).await?;
    let status = last.wait_for_success().await?;
    let number = status.attempt().number;
    assert!(number > 11, "more than ten names in a row should be in use, as {number} attempts show");
    assert_eq!((status.turn(), status.recovery().recovery_attempts), (4, 0));
    assert_eq!(status.causes().first(), Some(&Cause::NameInUse));
    assert!(!status.causes().contains(&Cause::NameTaken), "{:?}", status.causes());
    ctx.end().await
}
