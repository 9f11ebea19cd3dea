//! Nodes that lose their network or their power.

use std::time::Duration;

use dalsegno_crds::{AgentRun, AgentRunStatus, Cause, Class};
use dalsegno_e2e::cluster::{FAULTY_NODE, SAFE_NODE};
use dalsegno_e2e::nodes::on_faulty_node;
use dalsegno_e2e::wait::{secs, throughout, until};
use dalsegno_e2e::{Agent, Result, Run, StatusExt, World, objects};
use serde_json::{Value, json};
use tokio::time::Instant;

/// From the loss of a node to the first new turn elsewhere, with built-in liveness.
const FIRST_NEW_TURN: Duration = secs(25);

/// Turns of the runs: enough to be cut off in the middle of them.
const TURNS: i32 = 45;

/// A run on the node that will break. It ignores TERM, so that its zombie is there when the node comes back.
async fn on_the_faulty_node<'w>(world: &'w World, name: &str, script: Value) -> Result<Run<'w>> {
    let mut all = json!({ "turns": TURNS, "turnSeconds": 0.4, "onTerm": "ignore" });
    objects::merge(&mut all, &script);
    let agent = on_faulty_node(Agent::new(all)).pod(json!({ "terminationGracePeriodSeconds": 60 }));
    world.start(name, &agent).await
}

async fn has_gone_on_elsewhere(run: &Run<'_>, status: &AgentRunStatus) -> Result {
    let end = status.end_of(1)?;
    assert!(matches!(end.cause, Cause::NodeLost | Cause::TaintEvicted | Cause::Silent), "{end:?}");
    assert_eq!((end.class, end.charged), (Class::Disruption, false), "{end:?}");
    assert_eq!(status.attempt().node_name.as_deref(), Some(SAFE_NODE));
    assert_eq!(status.recovery().recovery_attempts, 0);
    run.expect_nothing_lost_or_repeated(TURNS).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_cut_off_with_its_container_running_is_left_behind_and_its_zombie_is_refused() -> Result {
    let world = World::new("cut-off").await?;
    world.only_faulty_node().await?;
    let beating = on_the_faulty_node(&world, "beating", json!({ "heartbeat": true })).await?;
    let quiet = on_the_faulty_node(&world, "quiet", json!({ "heartbeat": false })).await?;
    // By then it has sent a heartbeat, which binds it to its lease.
    beating.passes_turn(15).await?;
    quiet.passes_turn(15).await?;
    let zombie = beating.processes().await?;
    world.any_node().await?;

    let link = world.cluster()?.cut_link(FAULTY_NODE).await?;
    let cut = Instant::now();
    let turn = world.ledger.turn(&beating.key()).await?;
    beating.passes_turn(turn + 1).await?;
    let took = cut.elapsed();
    assert!(took <= FIRST_NEW_TURN, "the first new turn elsewhere took {took:?}");
    let turn = world.ledger.turn(&quiet.key()).await?;
    quiet.passes_turn(turn + 1).await?;
    assert!(zombie.any_alive(), "its container should still run, cut off");

    link.now().await?;
    until("the zombie to be told that it is fenced off", secs(30), async || {
        let notes = beating.notes().await?;
        Ok(notes.iter().any(|note| note.attempt == 1 && note.note == "fenced").then_some(()))
    })
    .await?;
    world.node_is_ready(FAULTY_NODE, true).await?;
    for run in [&beating, &quiet] {
        has_gone_on_elsewhere(run, &run.succeeds().await?).await?;
    }
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_power_is_left_behind_and_a_name_created_again_starts_anew_beside_its_stuck_pod()
-> Result {
    let world = World::new("power-loss").await?;
    world.only_faulty_node().await?;
    let run = on_the_faulty_node(&world, "run", json!({ "heartbeat": true })).await?;
    let doomed = on_the_faulty_node(&world, "doomed", json!({})).await?;
    run.passes_turn(15).await?;
    doomed.passes_turn(3).await?;
    world.any_node().await?;

    let power = world.cluster()?.kill_node(FAULTY_NODE).await?;
    let lost = Instant::now();
    objects::delete::<AgentRun>(&world.client, &world.namespace, &doomed.name).await?;
    let turn = world.ledger.turn(&run.key()).await?;
    run.passes_turn(turn + 1).await?;
    let took = lost.elapsed();
    assert!(took <= FIRST_NEW_TURN, "the first new turn elsewhere took {took:?}");

    let runs = world.api::<AgentRun>();
    until("the AgentRun to be gone though its node is dead", secs(10), async || {
        Ok(runs.get_opt(&doomed.name).await?.is_none().then_some(()))
    })
    .await?;
    assert_eq!(doomed.pods().await?.len(), 1, "its pod should be stuck on the dead node");
    let fresh = on_faulty_node(Agent::new(json!({ "turns": 4, "turnSeconds": 0.2 })));
    let fresh = world.start(&doomed.name, &fresh).await?;
    let status = fresh.succeeds().await?;
    assert_eq!((status.turn(), status.attempt().number), (4, 2), "the old pod has the first attempt's name");
    assert_eq!(
        status.end_of(2).map(|end| end.turn_at_start).unwrap_or(0),
        0,
        "nothing of the old run is left"
    );
    assert_eq!(status.causes().first(), Some(&Cause::NameTaken));

    power.now().await?;
    has_gone_on_elsewhere(&run, &run.succeeds().await?).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_restarts_and_a_cable_that_is_out_for_a_moment_disturb_no_run() -> Result {
    let world = World::new("hiccup").await?;
    world.only_faulty_node().await?;
    let script = json!({ "turns": TURNS, "turnSeconds": 0.4, "heartbeat": true });
    let run = world.start("run", &on_faulty_node(Agent::new(script))).await?;
    run.passes_turn(3).await?;
    world.any_node().await?;
    let cluster = world.cluster()?;
    cluster.restart_kubelet(FAULTY_NODE).await?;
    let link = cluster.cut_link(FAULTY_NODE).await?;
    tokio::time::sleep(secs(5)).await;
    link.now().await?;
    throughout("the first attempt", secs(8), async || world.audit.expect_pods(&run.name, [1])).await?;
    let status = run.succeeds().await?;
    assert_eq!(status.attempt().number, 1);
    run.expect_nothing_lost_or_repeated(TURNS).await?;
    world.end().await
}
