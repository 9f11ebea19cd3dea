//! Parts of ours, or of Kubernetes, that are away for a while. Our silence is not the workers'.

use anyhow::Context;
use dalsegno_e2e::cluster::FAULTY_NODE;
use dalsegno_e2e::wait::secs;
use dalsegno_e2e::{Agent, Result, StatusExt, TestContext};
use serde_json::json;

use crate::healthy::Healthy;

/// The three outages share their runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_process_then_no_api_server_then_no_process_move_no_epoch_and_replace_no_pod() -> Result {
    let ctx = TestContext::new("outages").await?;
    let healthy = Healthy::start(&ctx, 85).await?;
    the_process_is_frozen(&ctx).await?;
    healthy.stay_in_their_first_attempts().await.context("after the process was frozen")?;
    the_api_server_is_away(&ctx, &healthy).await?;
    healthy.stay_in_their_first_attempts().await.context("after the API server was away")?;
    let away = ctx.operator.scale_down().await?;
    tokio::time::sleep(secs(60)).await;
    away.revert().await?;
    healthy.stay_in_their_first_attempts().await.context("after the process was away")?;
    healthy.succeed().await?;
    ctx.end().await
}

/// For longer than every lease. It wakes up with an old clock, old caches and the sockets of workers that have long
/// given up.
async fn the_process_is_frozen(ctx: &TestContext) -> Result {
    let frozen = ctx.operator.processes(&ctx.cluster()?).await?.freeze().await?;
    tokio::time::sleep(secs(25)).await;
    frozen.undo().await
}

/// Turns need no API server; and when it is back, a node that flaps then is given its time.
async fn the_api_server_is_away(ctx: &TestContext, healthy: &Healthy<'_>) -> Result {
    let cluster = ctx.cluster()?;
    let before = healthy.turns().await?;
    let away = cluster.stop("apiserver").await?;
    tokio::time::sleep(secs(30)).await;
    let after = healthy.turns().await?;
    for ((run, before), after) in healthy.runs.iter().zip(&before).zip(&after) {
        assert!(after - before >= 10, "run {} went from turn {before} to {after} in half a minute", run.name);
    }
    away.undo().await?;
    let flap = cluster.cut_link(FAULTY_NODE).await?;
    tokio::time::sleep(secs(4)).await;
    flap.undo().await
}

/// As in every upgrade: the gateway is away for a few seconds, then serves at another address.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_embedded_process_costs_no_worker_even_the_shortest_lease() -> Result {
    let ctx = TestContext::new("short-lease").await?;
    let shortest = json!({ "liveness": { "heartbeatTimeoutSeconds": 10 } });
    let agent = Agent::new(json!({ "turns": 100, "turnSeconds": 0.3, "heartbeat": true })).spec(shortest);
    let mut runs = Vec::new();
    for n in 0..6 {
        runs.push(ctx.start(&format!("run-{n}"), &agent).await?);
    }
    for run in &runs {
        run.wait_for_turn(3).await?;
    }
    ctx.operator.scale_down().await?.revert().await?;
    tokio::time::sleep(secs(13)).await;
    for run in &runs {
        let status = run.status().await?;
        assert_eq!(status.attempt().number, 1, "{}: {:?}", run.name, status.recovery());
    }
    ctx.end().await
}
