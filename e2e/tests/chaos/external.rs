//! A workflow of DBOS, whose own engine keeps the checkpoints, is lost with its node.

use dalsegno_crds::{Cause, ConditionType, Reason, Summary};
use dalsegno_e2e::cluster::FAULTY_NODE;
use dalsegno_e2e::dbos::{expect_each_page_once, start_database, workflow};
use dalsegno_e2e::nodes::with_placement;
use dalsegno_e2e::wait::{consistently, eventually, secs};
use dalsegno_e2e::{Result, StatusExt, TestContext};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams};

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_of_dbos_gets_no_second_pod_until_its_silent_node_is_deleted() -> Result {
    let ctx = TestContext::new("dbos-node").await?;
    ctx.schedule_on_faulty_node().await?;
    let server = start_database(&ctx).await?;
    let run = ctx.start("run", &with_placement(workflow(12))).await?;
    run.wait_for_turn(3).await?;
    ctx.schedule_anywhere().await?;

    let power = ctx.cluster()?.kill_node(FAULTY_NODE).await?;
    let is_held = |status: &dalsegno_crds::AgentRunStatus| status.reason == Some(Reason::EndNotConfirmed);
    let status = run.wait_until("to be held", secs(240), is_held).await?;
    let (_, message) = status.reason_and_message(ConditionType::Held);
    assert!(message.contains(FAULTY_NODE) && message.contains("delete the Node"), "{message}");
    consistently("no second pod", secs(20), async || {
        let pods = run.pods().await?;
        anyhow::ensure!(pods.len() == 1, "{} pods", pods.len());
        Ok(())
    })
    .await?;

    let nodes: Api<Node> = Api::all(ctx.client.clone());
    nodes.delete(FAULTY_NODE, &DeleteParams::default()).await?;
    run.wait_for_attempt(2, secs(180)).await?;
    let status = run.wait_for(Summary::Succeeded, secs(120)).await?;
    assert_eq!(status.causes().first(), Some(&Cause::NodeLost));
    expect_each_page_once(&ctx, &run, 12).await?;
    power.undo().await?;
    eventually("the node to be back", secs(60), async || Ok(nodes.get_opt(FAULTY_NODE).await?.map(drop)))
        .await?;
    ctx.wait_for_node_ready(FAULTY_NODE, true).await?;
    server.remove().await?;
    ctx.end().await
}
