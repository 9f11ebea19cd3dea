//! A workflow of DBOS, whose own engine keeps the checkpoints, in a PostgreSQL of the test's. Its pods are killed, evicted and
//! lost with their node.

use std::collections::BTreeSet;

use dalsegno_crds::{Cause, ConditionType, Reason, Summary};
use dalsegno_e2e::cluster::FAULTY_NODE;
use dalsegno_e2e::nodes::with_placement;
use dalsegno_e2e::postgres::Server;
use dalsegno_e2e::wait::{consistently, eventually, secs};
use dalsegno_e2e::{Agent, Result, Run, StatusExt, TestContext, objects};
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use serde_json::json;

/// The image of `deploy/examples/dbos`.
const IMAGE: &str = "registry.dalsegno.test/dalsegno-example-dbos:dev";

/// The example's agent: this number of pages, each of two steps.
fn workflow(pages: i32) -> Agent {
    let run_uid = json!({ "fieldRef": { "fieldPath": "metadata.labels['dalsegno.dev/run-uid']" } });
    let url = json!({ "secretKeyRef": { "name": "dbos", "key": "url" } });
    with_placement(Agent::new(json!({ "pages": pages, "pageSeconds": 1 })).with_definition(|it| {
        it.spec(json!({ "checkpointing": "External" })).image(IMAGE).container(json!({
            "env": [{ "name": "DBOS__VMID", "valueFrom": run_uid }, { "name": "DATABASE_URL", "valueFrom": url }],
            "resources": { "limits": { "memory": "256Mi" } },
        }))
    }))
}

/// Tells the agents where their database is.
async fn create_secret(ctx: &TestContext, server: &Server, database: &str) -> Result {
    let secret =
        json!({ "metadata": { "name": "dbos" }, "stringData": { "url": server.url(database, "require") } });
    objects::create::<Secret>(&ctx.client, &ctx.namespace, secret).await?;
    Ok(())
}

/// Each page was written once, under keys that begin with the run's UID: DBOS__VMID was the same in each pod.
async fn expect_each_page_once(ctx: &TestContext, run: &Run<'_>, pages: i32) -> Result {
    ctx.ledger.expect_turns(&run.key(), pages).await?;
    let uid = run.object().await?.uid().unwrap_or_default();
    let entries = ctx.ledger.entries(&run.key()).await?;
    for entry in &entries {
        assert_eq!(entry.key, format!("{uid}/{}", entry.turn));
    }
    let first_attempts: Vec<i32> = entries.iter().map(|it| it.attempt).collect();
    assert!(first_attempts.is_sorted(), "an earlier pod wrote a later page: {first_attempts:?}");
    let of_two = entries.iter().filter(|it| it.attempts.len() > 1).count();
    let attempts: BTreeSet<i32> = first_attempts.into_iter().collect();
    assert!(of_two < attempts.len(), "at most the page that an attempt died in is sent again: {entries:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_of_dbos_goes_on_at_its_next_step_however_its_pod_ends() -> Result {
    let ctx = TestContext::new("dbos").await?;
    ctx.schedule_anywhere().await?;
    let server = Server::start().await?;
    create_secret(&ctx, &server, "steps").await?;
    let run = ctx.start("run", &workflow(14)).await?;
    run.wait_for_turn(3).await?;
    run.processes().await?.kill().await?;
    run.wait_for_attempt(2, secs(60)).await?;
    run.wait_for_turn(6).await?;
    run.delete_pod(&DeleteParams::default()).await?;
    run.wait_for_attempt(3, secs(60)).await?;
    run.wait_for_turn(9).await?;
    run.evict().await?;
    let status = run.wait_for(Summary::Succeeded, secs(120)).await?;
    let causes = status.causes();
    assert_eq!(causes[..3], [Cause::ExitedWithError, Cause::Deleted, Cause::Evicted], "{causes:?}");
    assert_eq!((status.attempt().number, status.recovery().recovery_attempts), (4, 1));
    expect_each_page_once(&ctx, &run, 14).await?;
    server.remove().await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_of_dbos_gets_no_second_pod_until_its_silent_node_is_deleted() -> Result {
    let ctx = TestContext::new("dbos-node").await?;
    ctx.schedule_on_faulty_node().await?;
    let server = Server::start().await?;
    create_secret(&ctx, &server, "node").await?;
    let run = ctx.start("run", &workflow(12)).await?;
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
