//! Nodes that lose their network or their power.

use std::time::Duration;

use dalsegno_crds::{AgentRun, AgentRunStatus, Cause, Class};
use dalsegno_e2e::cluster::{FAULTY_NODE, SAFE_NODE};
use dalsegno_e2e::nodes::with_placement;
use dalsegno_e2e::wait::{consistently, eventually, secs};
use dalsegno_e2e::{Agent, Result, Run, StatusExt, TestContext, objects};
use serde_json::{Value, json};
use tokio::time::Instant;

/// From the loss of a node to the first new turn elsewhere, with built-in liveness.
const FIRST_NEW_TURN: Duration = secs(25);

/// Turns of the runs: enough to be cut off in the middle of them.
const TURNS: i32 = 45;

/// A run on the node that will break. It ignores TERM, so that its zombie is there when the node comes back.
async fn on_the_faulty_node<'c>(ctx: &'c TestContext, name: &str, script: Value) -> Result<Run<'c>> {
    let mut all = json!({ "turns": TURNS, "turnSeconds": 0.4, "onTerm": "ignore" });
    objects::merge(&mut all, &script);
    let agent = with_placement(Agent::new(all)).pod(json!({ "terminationGracePeriodSeconds": 60 }));
    ctx.start(name, &agent).await
}

async fn has_gone_on_elsewhere(run: &Run<'_>, status: &AgentRunStatus) -> Result {
    let end = status.attempt_end(1)?;
    assert!(matches!(end.cause, Cause::NodeLost | Cause::TaintEvicted | Cause::Silent), "{end:?}");
    assert_eq!((end.class, end.charged), (Class::Disruption, false), "{end:?}");
    assert_eq!(status.attempt().node_name.as_deref(), Some(SAFE_NODE));
    assert_eq!(status.recovery().recovery_attempts, 0);
    run.expect_nothing_lost_or_repeated(TURNS).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_cut_off_with_its_container_running_is_left_behind_and_its_zombie_is_refused() -> Result {
    let ctx = TestContext::new("cut-off").await?;
    ctx.schedule_on_faulty_node().await?;
    let beating = on_the_faulty_node(&ctx, "beating", json!({ "heartbeat": true })).await?;
    let quiet = on_the_faulty_node(&ctx, "quiet", json!({ "heartbeat": false })).await?;
    // By then it has sent a heartbeat, which binds it to its lease.
    beating.wait_for_turn(15).await?;
    quiet.wait_for_turn(15).await?;
    let zombie = beating.processes().await?;
    ctx.schedule_anywhere().await?;

    let link = ctx.cluster()?.cut_link(FAULTY_NODE).await?;
    let cut = Instant::now();
    let turn = ctx.ledger.highest_turn(&beating.key()).await?;
    beating.wait_for_turn(turn + 1).await?;
    let took = cut.elapsed();
    assert!(took <= FIRST_NEW_TURN, "the first new turn elsewhere took {took:?}");
    let turn = ctx.ledger.highest_turn(&quiet.key()).await?;
    quiet.wait_for_turn(turn + 1).await?;
    assert!(zombie.any_alive(), "its container should still run, cut off");

    link.undo().await?;
    eventually("the zombie to be told that it is fenced off", secs(30), async || {
        let notes = beating.notes().await?;
        Ok(notes.iter().any(|note| note.attempt == 1 && note.note == "fenced").then_some(()))
    })
    .await?;
    ctx.wait_for_node_ready(FAULTY_NODE, true).await?;
    for run in [&beating, &quiet] {
        has_gone_on_elsewhere(run, &run.wait_for_success().await?).await?;
    }
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_power_is_left_behind_and_a_name_created_again_starts_anew_beside_its_stuck_pod()
-> Result {
    let ctx = TestContext::new("power-loss").await?;
    ctx.schedule_on_faulty_node().await?;
    let run = on_the_faulty_node(&ctx, "run", json!({ "heartbeat": true })).await?;
    let doomed = on_the_faulty_node(&ctx, "doomed", json!({})).await?;
    run.wait_for_turn(15).await?;
    doomed.wait_for_turn(3).await?;
    ctx.schedule_anywhere().await?;

    let power = ctx.cluster()?.kill_node(FAULTY_NODE).await?;
    let lost = Instant::now();
    objects::delete::<AgentRun>(&ctx.client, &ctx.namespace, &doomed.name).await?;
    let turn = ctx.ledger.highest_turn(&run.key()).await?;
    run.wait_for_turn(turn + 1).await?;
    let took = lost.elapsed();
    assert!(took <= FIRST_NEW_TURN, "the first new turn elsewhere took {took:?}");

    let runs = ctx.api::<AgentRun>();
    eventually("the AgentRun to be gone though its node is dead", secs(10), async || {
        Ok(runs.get_opt(&doomed.name).await?.is_none().then_some(()))
    })
    .await?;
    assert_eq!(doomed.pods().await?.len(), 1, "its pod should be stuck on the dead node");
    let fresh = with_placement(Agent::new(json!({ "turns": 4, "turnSeconds": 0.2 })));
    let fresh = ctx.start(&doomed.name, &fresh).await?;
    let status = fresh.wait_for_success().await?;
    assert_eq!((status.turn(), status.attempt().number), (4, 2), "the old pod has the first attempt's name");
    assert_eq!(
        status.attempt_end(2).map(|end| end.turn_at_start).unwrap_or(0),
        0,
        "nothing of the old run is left"
    );
    assert_eq!(status.causes().first(), Some(&Cause::NameTaken));

    power.undo().await?;
    has_gone_on_elsewhere(&run, &run.wait_for_success().await?).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_restarts_and_a_cable_that_is_out_for_a_moment_disturb_no_run() -> Result {
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
