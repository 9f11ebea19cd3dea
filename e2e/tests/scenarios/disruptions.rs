//! Disruptions: the agent did not cause the death, so it is never charged.

use dalsegno_crds::{Cause, Class, Summary};
use dalsegno_e2e::StatusExt;
use dalsegno_e2e::cluster::FAULTY_NODE;
use dalsegno_e2e::{Agent, Result, TestContext, process};
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;

/// Turns of a run that loses its pod. A worker that ignores SIGTERM does not finish them before it is killed.
const TURNS: i32 = 20;

/// Evicts a worker that handles SIGTERM in this way, in the middle of its run.
async fn evict_worker(on_term: &str) -> Result {
    let ctx = TestContext::new(&format!("evicted-{on_term}")).await?;
    let agent = Agent::new(json!({ "turns": TURNS, "turnSeconds": 0.3, "onTerm": on_term }));
    let run = ctx.start("run", &agent).await?;
    run.wait_for_turn(4).await?;
    let first = run.evict().await?;

    let status = run.wait_for_success().await?;
    let attempt = status.attempt();
    assert_eq!(attempt.number, 2);
    assert_ne!(attempt.pod_uid, first.uid(), "it should have resumed in another pod");
    let end = status.attempt_end(1)?;
    assert_eq!((end.cause, end.class, end.charged), (Cause::Evicted, Class::Disruption, false));
    assert!(end.turn_at_end >= 3, "it was evicted after turn 4 had begun: {end:?}");
    assert_eq!(attempt.resumed_from_turn, Some(end.turn_at_end), "it should resume at the next turn");
    assert_eq!((status.recovery().recovery_attempts, status.recovery().disruptions), (0, 1));
    run.expect_nothing_lost_or_repeated(TURNS).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_evicted_worker_resumes_at_the_next_turn_on_another_pod_uncharged() -> Result {
    evict_worker("commit").await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_evicted_worker_without_a_sigterm_handler_is_not_charged() -> Result {
    evict_worker("default").await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_evicted_worker_that_exits_1_on_sigterm_is_not_charged() -> Result {
    evict_worker("exit1").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_pod_is_a_disruption_and_the_run_resumes() -> Result {
    let ctx = TestContext::new("deleted").await?;
    let run = ctx.start("run", &Agent::new(json!({ "turns": TURNS, "turnSeconds": 0.3 }))).await?;
    run.wait_for_turn(3).await?;
    run.delete_pod(&DeleteParams::default()).await?;

    let status = run.wait_for_success().await?;
    let end = status.attempt_end(1)?;
    assert_eq!((end.cause, end.class, end.charged), (Cause::Deleted, Class::Disruption, false));
    assert_eq!((status.recovery().recovery_attempts, status.recovery().disruptions), (0, 1));
    run.expect_nothing_lost_or_repeated(TURNS).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_deleted_by_force_is_replaced_although_its_end_is_unknown() -> Result {
    let ctx = TestContext::new("forced").await?;
    let run = ctx.start("run", &Agent::new(json!({ "turns": 10, "turnSeconds": 0.3 }))).await?;
    run.wait_for_turn(3).await?;
    run.delete_pod(&DeleteParams::default().grace_period(0)).await?;

    let status = run.wait_for_success().await?;
    let end = status.attempt_end(1)?;
    assert!(matches!(end.cause, Cause::Deleted | Cause::PodVanished), "{end:?}");
    assert_eq!((end.class, end.charged), (Class::Disruption, false));
    run.expect_nothing_lost_or_repeated(10).await?;
    ctx.end().await
}

/// The drain selects only this run's pod by its labels. Meanwhile the node takes no pods of other tests.
#[tokio::test(flavor = "multi_thread")]
async fn kubectl_drain_moves_the_run_to_another_node_uncharged() -> Result {
    let ctx = TestContext::new("drained").await?;
    let agent = Agent::new(json!({ "turns": TURNS, "turnSeconds": 0.3 })).pod(prefers(FAULTY_NODE));
    let run = ctx.start("to-be-drained", &agent).await?;
    run.wait_for_turn(3).await?;
    let node = run.status().await?.attempt().node_name.unwrap_or_default();
    let selector = format!("dalsegno.dev/run={},dalsegno.dev/attempt=1", run.name);
    let drained =
        process::kubectl(["drain", &node, "--ignore-daemonsets", "--pod-selector", &selector]).await;
    process::kubectl(["uncordon", &node]).await?;
    drained?;

    let status = run.wait_for_success().await?;
    assert_eq!(status.causes().first(), Some(&Cause::Evicted));
    assert_ne!(status.attempt().node_name, Some(node), "a drained node should take no new pod");
    assert_eq!((status.recovery().recovery_attempts, status.recovery().disruptions), (0, 1));
    run.expect_nothing_lost_or_repeated(TURNS).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn disruptions_without_progress_hold_the_run_at_their_limit() -> Result {
    let ctx = TestContext::new("disrupted").await?;
    let agent = Agent::new(json!({ "turns": 3, "turnSeconds": 30 }))
        .spec(json!({ "recovery": { "maxDisruptionsWithoutProgress": 2 } }));
    let run = ctx.start("run", &agent).await?;
    for attempt in 1..=2 {
        run.wait_for_attempt(attempt, dalsegno_e2e::wait::secs(30)).await?;
        run.evict().await?;
    }

    let status = run.wait_for(Summary::Held, dalsegno_e2e::wait::secs(30)).await?;
    assert_eq!(status.reason, Some(dalsegno_crds::Reason::DisruptionsExhausted));
    assert_eq!((status.recovery().recovery_attempts, status.recovery().disruptions), (0, 2));
    ctx.audit.expect_pods(&run.name, 1..=2)?;
    ctx.end().await
}

/// A pod that prefers this node.
fn prefers(node: &str) -> serde_json::Value {
    json!({ "affinity": { "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
        "weight": 100,
        "preference": { "matchExpressions": [
            { "key": "kubernetes.io/hostname", "operator": "In", "values": [node] },
        ] },
    }] } } })
}
