//! Outages of Dal Segno or of Kubernetes. They must not count against the workers.

use anyhow::Context;
use dalsegno_e2e::cluster::FAULTY_NODE;
use dalsegno_e2e::wait::secs;
use dalsegno_e2e::{Agent, Result, StatusExt, TestContext};
use serde_json::json;

use crate::healthy::Healthy;

/// Three outages, one after the other, with the same runs.
#[tokio::test(flavor = "multi_thread")]
async fn outages_of_the_process_and_of_the_api_server_move_no_epoch_and_replace_no_pod() -> Result {
    let ctx = TestContext::new("outages").await?;
    let healthy = Healthy::start(&ctx, 70).await?;
    freeze_process(&ctx).await?;
    healthy.expect_first_attempts().await.context("after the process was frozen")?;
    stop_api_server(&ctx, &healthy).await?;
    healthy.expect_first_attempts().await.context("after the API server was stopped")?;
    let scaled_down = ctx.operator.scale_down().await?;
    tokio::time::sleep(secs(30)).await;
    scaled_down.revert().await?;
    healthy.expect_first_attempts().await.context("after the process was stopped")?;
    healthy.expect_success().await?;
    ctx.end().await
}

/// Freezes the process for longer than every lease. It resumes with an old clock, old caches and connections that the
/// workers have closed.
async fn freeze_process(ctx: &TestContext) -> Result {
    let frozen = ctx.operator.processes(&ctx.cluster()?).await?.freeze().await?;
    tokio::time::sleep(secs(25)).await;
    frozen.undo().await
}

/// Stops the API server for 30 s. Turns continue without it. When it is back, a node that then loses its network for 4
/// s is not replaced.
async fn stop_api_server(ctx: &TestContext, healthy: &Healthy<'_>) -> Result {
    let cluster = ctx.cluster()?;
    let before = healthy.turns().await?;
    let stopped = cluster.stop("apiserver").await?;
    tokio::time::sleep(secs(30)).await;
    let after = healthy.turns().await?;
    for ((run, before), after) in healthy.runs.iter().zip(&before).zip(&after) {
        assert!(after - before >= 10, "run {} went from turn {before} to {after} in 30 s", run.name);
    }
    stopped.undo().await?;
    let link = cluster.cut_link(FAULTY_NODE).await?;
    tokio::time::sleep(secs(4)).await;
    link.undo().await
}

/// As in every upgrade, the gateway is unavailable for a few seconds and then has another address.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_embedded_process_ends_no_attempt_even_with_the_shortest_lease() -> Result {
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
