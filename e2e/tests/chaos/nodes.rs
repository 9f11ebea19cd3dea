//! A node loses its network or its power.

use std::time::Duration;

use dalsegno_crds::{AgentRun, AgentRunStatus, Cause, Class, Summary};
use dalsegno_e2e::agent::PYTHON;
use dalsegno_e2e::cluster::{FAULTY_NODE, SAFE_NODE};
use dalsegno_e2e::nodes::with_placement;
use dalsegno_e2e::wait::{consistently, eventually, secs};
use dalsegno_e2e::{Agent, Result, Run, StatusExt, TestContext, objects};
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use serde_json::{Value, json};
use tokio::time::Instant;

/// Limit from the loss of a node to the first new turn on another node, with the default liveness settings.
const FIRST_NEW_TURN: Duration = secs(25);

/// Turns of each run: enough to be interrupted in the middle.
const TURNS: i32 = 45;

/// Starts a run on the node that will break. Its worker ignores SIGTERM, so that it still runs when the node is back.
async fn start_on_faulty_node<'c>(ctx: &'c TestContext, name: &str, script: Value) -> Result<Run<'c>> {
    let mut all = json!({ "turns": TURNS, "turnSeconds": 0.4, "onTerm": "ignore" });
    objects::merge(&mut all, &script);
    let agent = with_placement(Agent::new(all)).pod(json!({ "terminationGracePeriodSeconds": 60 }));
    ctx.start(name, &agent).await
}

async fn expect_recovered_on_safe_node(run: &Run<'_>, status: &AgentRunStatus) -> Result {
    let end = status.attempt_end(1)?;
    assert!(matches!(end.cause, Cause::NodeLost | Cause::TaintEvicted | Cause::Silent), "{end:?}");
    assert_eq!((end.class, end.charged), (Class::Disruption, false), "{end:?}");
    assert_eq!(status.attempt().node_name.as_deref(), Some(SAFE_NODE));
    assert_eq!(status.recovery().recovery_attempts, 0);
    run.expect_nothing_lost_or_repeated(TURNS).await
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_a_disconnected_node_recover_elsewhere_and_their_old_workers_are_fenced() -> Result {
    let ctx = TestContext::new("cut-off").await?;
    ctx.schedule_on_faulty_node().await?;
    let heartbeating = start_on_faulty_node(&ctx, "heartbeating", json!({ "heartbeat": true })).await?;
    let quiet = start_on_faulty_node(&ctx, "quiet", json!({ "heartbeat": false })).await?;
    // By then the worker has sent a heartbeat, which binds it to its lease.
    heartbeating.wait_for_turn(15).await?;
    quiet.wait_for_turn(15).await?;
    let old_worker = heartbeating.processes().await?;
    ctx.schedule_anywhere().await?;

    let link = ctx.cluster()?.cut_link(FAULTY_NODE).await?;
    let cut = Instant::now();
    let turn = ctx.ledger.highest_turn(&heartbeating.key()).await?;
    heartbeating.wait_for_turn(turn + 1).await?;
    let took = cut.elapsed();
    assert!(took <= FIRST_NEW_TURN, "the first new turn on another node took {took:?}");
    let turn = ctx.ledger.highest_turn(&quiet.key()).await?;
    quiet.wait_for_turn(turn + 1).await?;
    assert!(old_worker.any_alive(), "the container on the disconnected node should still run");

    link.undo().await?;
    eventually("the old worker to be fenced", secs(30), async || {
        let notes = heartbeating.notes().await?;
        Ok(notes.iter().any(|note| note.attempt == 1 && note.note == "fenced").then_some(()))
    })
    .await?;
    ctx.wait_for_node_ready(FAULTY_NODE, true).await?;
    for run in [&heartbeating, &quiet] {
        expect_recovered_on_safe_node(run, &run.wait_for_success().await?).await?;
    }
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_a_node_without_power_recovers_elsewhere_and_a_deleted_one_can_be_created_again() -> Result {
    let ctx = TestContext::new("power-loss").await?;
    ctx.schedule_on_faulty_node().await?;
    let run = start_on_faulty_node(&ctx, "run", json!({ "heartbeat": true })).await?;
    let doomed = start_on_faulty_node(&ctx, "doomed", json!({})).await?;
    run.wait_for_turn(15).await?;
    doomed.wait_for_turn(3).await?;
    ctx.schedule_anywhere().await?;

    let power = ctx.cluster()?.kill_node(FAULTY_NODE).await?;
    let lost = Instant::now();
    objects::delete::<AgentRun>(&ctx.client, &ctx.namespace, &doomed.name).await?;
    let turn = ctx.ledger.highest_turn(&run.key()).await?;
    run.wait_for_turn(turn + 1).await?;
    let took = lost.elapsed();
    assert!(took <= FIRST_NEW_TURN, "the first new turn on another node took {took:?}");

    let runs = ctx.api::<AgentRun>();
    eventually("the AgentRun to be gone though its node is dead", secs(30), async || {
        Ok(runs.get_opt(&doomed.name).await?.is_none().then_some(()))
    })
    .await?;
    assert_eq!(doomed.pods().await?.len(), 1, "the pod should be stuck on the dead node");
    let fresh = with_placement(Agent::new(json!({ "turns": 4, "turnSeconds": 0.2 })));
    let fresh = ctx.start(&doomed.name, &fresh).await?;
    let status = fresh.wait_for_success().await?;
    assert_eq!(
        (status.turn(), status.attempt().number),
        (4, 2),
        "the old pod still has the name of the first attempt"
    );
    assert_eq!(
        status.attempt_end(2).map(|end| end.turn_at_start).unwrap_or(0),
        0,
        "the new run should not have the old run's turns"
    );
    assert_eq!(status.causes().first(), Some(&Cause::NameInUse));

    power.undo().await?;
    expect_recovered_on_safe_node(&run, &run.wait_for_success().await?).await?;
    ctx.end().await
}

/// Waits until the node has created the container of the run's only pod.
async fn wait_until_created(ctx: &TestContext, run: &Run<'_>) -> Result {
    let created = ListParams::default().fields("involvedObject.kind=Pod,reason=Created");
    let pod = format!("{}-1", run.name);
    eventually(format!("the container of {pod} to be created"), secs(60), async || {
        let events = ctx.api::<Event>().list(&created).await?.items;
        Ok(events.iter().any(|it| it.involved_object.name.as_ref() == Some(&pod)).then_some(()))
    })
    .await
}

/// The kubelet never starts such a container. Without the evidence of its pod's status, the run would wait for the start
/// deadline of ten minutes, and the external one for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_node_loses_power_between_creation_and_start_is_replaced() -> Result {
    let ctx = TestContext::new("never-started").await?;
    ctx.schedule_on_faulty_node().await?;
    let starts = ctx.cluster()?.hold_starts(FAULTY_NODE).await?;
    let run = ctx.start("run", &with_placement(Agent::new(json!({ "turns": 4 })))).await?;
    let external = Agent::new(json!({})).with_definition(|it| {
        let script = json!({ "command": ["python3", "-c", "pass"] });
        it.spec(json!({ "checkpointing": "External" })).image(PYTHON).container(script)
    });
    let external = ctx.start("external", &with_placement(external)).await?;
    for run in [&run, &external] {
        wait_until_created(&ctx, run).await?;
    }

    ctx.cluster()?.kill_node(FAULTY_NODE).await?.undo().await?;
    starts.undo().await?;
    ctx.schedule_anywhere().await?;
    for run in [&run, &external] {
        let status = run.wait_for(Summary::Succeeded, secs(120)).await?;
        let end = status.attempt_end(1)?;
        assert_eq!(
            (end.cause, end.class, end.charged),
            (Cause::NodeLost, Class::Disruption, false),
            "{end:?}"
        );
        assert!(end.message.as_deref().is_some_and(|it| it.contains("lost its sandbox")), "{end:?}");
        assert_eq!(status.attempt().number, 2);
    }
    run.expect_nothing_lost_or_repeated(4).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_restart_and_a_network_outage_of_five_seconds_disturb_no_run() -> Result {
    let ctx = TestContext::new("hiccup").await?;
    ctx.schedule_on_faulty_node().await?;
    let script = json!({ "turns": TURNS, "turnSeconds": 0.4, "heartbeat": true });
    let run = ctx.start("run", &with_placement(Agent::new(script))).await?;
    run.wait_for_turn(3).await?;
    ctx.schedule_anywhere().await?;
    let cluster = ctx.cluster()?;
    cluster.restart_kubelet(FAULTY_NODE).await?;
    let link = cluster.cut_link(FAULTY_NODE).await?;
    tokio::time::sleep(secs(5)).await;
    link.undo().await?;
    consistently("the first attempt", secs(8), async || ctx.audit.expect_pods(&run.name, [1])).await?;
    let status = run.wait_for_success().await?;
    assert_eq!(status.attempt().number, 1);
    run.expect_nothing_lost_or_repeated(TURNS).await?;
    ctx.end().await
}
