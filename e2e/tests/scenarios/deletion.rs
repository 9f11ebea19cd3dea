//! An AgentRun is deleted.

use std::collections::BTreeSet;

use dalsegno_crds::Summary;
use dalsegno_e2e::StatusExt;
use dalsegno_e2e::wait::secs;
use dalsegno_e2e::{Agent, Result, Run, TestContext};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret};
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

/// How long a run may take to come into any phase.
const LIMIT: std::time::Duration = secs(60);

fn crashing() -> Value {
    json!({ "turns": 3, "turnSeconds": 0.1, "script": [{ "turn": 2, "at": "start", "do": "exit:1" }] })
}

/// One run in each phase that a run can be in.
async fn one_in_each_phase(ctx: &TestContext) -> Result<Vec<Run<'_>>> {
    let long = json!({ "turns": 1000, "turnSeconds": 0.3 });
    let short = json!({ "turns": 2, "turnSeconds": 0.1 });
    let nowhere = json!({ "nodeSelector": { "kubernetes.io/hostname": "nowhere" } });
    let agents = [
        (Summary::Pending, "unscheduled", Agent::new(long.clone()).pod(nowhere)),
        (Summary::Starting, "mute", Agent::new(json!({ "neverAttach": true }))),
        (Summary::Running, "running", Agent::new(long.clone())),
        (
            Summary::BackingOff,
            "backing-off",
            Agent::new(crashing()).spec(json!({
                "recovery": { "backoff": { "initialSeconds": 600, "maxSeconds": 600 } },
            })),
        ),
        (
            Summary::Held,
            "held",
            Agent::new(crashing()).spec(json!({
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

/// Names of what is in the namespace, without what Kubernetes itself puts into every one.
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
    left.extend(names::<dalsegno_crds::AgentRun>(ctx.api()).await?);
    left.remove("ConfigMap kube-root-ca.crt");
    Ok(left)
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_run_in_any_phase_stops_its_worker_and_leaves_no_object() -> Result {
    let ctx = TestContext::new("delete").await?;
    let runs = one_in_each_phase(&ctx).await?;
    for run in &runs {
        run.delete(secs(30)).await?;
    }
    assert_eq!(objects_left(&ctx).await?, BTreeSet::new());
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_deleted_once_its_time_to_live_is_over_and_leaves_no_object() -> Result {
    let ctx = TestContext::new("ttl").await?;
    let agent = Agent::new(json!({ "turns": 2, "turnSeconds": 0.1 }))
        .spec(json!({ "retention": { "ttlSecondsAfterFinished": 5 } }));
    let run = ctx.start("run", &agent).await?;
    run.wait_for_success().await?;
    dalsegno_e2e::wait::eventually("the AgentRun to be gone", LIMIT, async || {
        Ok(ctx.api::<dalsegno_crds::AgentRun>().get_opt("run").await?.is_none().then_some(()))
    })
    .await?;
    dalsegno_e2e::wait::eventually("its pod to be gone", LIMIT, async || {
        Ok(objects_left(&ctx).await?.is_empty().then_some(()))
    })
    .await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_name_created_again_starts_at_turn_1_with_nothing_of_the_old() -> Result {
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

/// The old pod takes its time to end: its name is still taken when the new run wants it.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_name_created_again_while_the_old_pod_lingers_takes_the_next_attempt_uncharged() -> Result {
    let ctx = TestContext::new("lingering").await?;
    let deaf = Agent::new(json!({ "turns": 9, "turnSeconds": 60, "heartbeat": false, "onTerm": "ignore" }))
        .pod(json!({ "terminationGracePeriodSeconds": 20 }));
    let old = ctx.start("run", &deaf).await?;
    old.wait_for_attempt(1, LIMIT).await?;
    dalsegno_e2e::objects::delete::<dalsegno_crds::AgentRun>(&ctx.client, &ctx.namespace, "run").await?;
    dalsegno_e2e::wait::eventually("the AgentRun to be gone", LIMIT, async || {
        Ok(ctx.api::<dalsegno_crds::AgentRun>().get_opt("run").await?.is_none().then_some(()))
    })
    .await?;
    assert!(!old.pods().await?.is_empty(), "the finalizer should not wait for a kubelet");

    let fresh = ctx.start("run", &Agent::new(json!({ "turns": 4, "turnSeconds": 0.2 }))).await?;
    let status = fresh.wait_for_success().await?;
    assert_eq!(status.attempt().number, 2);
    assert_eq!(status.causes().first(), Some(&dalsegno_crds::Cause::NameTaken));
    assert_eq!((status.turn(), status.recovery().recovery_attempts), (4, 0));
    ctx.end().await
}
