//! Tests that need PostgreSQL: several operators, and outages of the store or the gateway alone.

use dalsegno_crds::{ConditionType, Reason, Summary};
use dalsegno_e2e::cluster::{FAULTY_NODE, SAFE_NODE};
use dalsegno_e2e::install::Version;
use dalsegno_e2e::postgres::{self, GATEWAY, Postgres};
use dalsegno_e2e::wait::{consistently, secs};
use dalsegno_e2e::{Agent, Operator, Result, StatusExt, TestContext, objects};
use futures::future::try_join_all;
use serde_json::json;

use crate::healthy::Healthy;
use crate::parked::Parked;

#[tokio::test(flavor = "multi_thread")]
async fn two_operators_without_leader_election_create_one_pod_per_attempt() -> Result {
    let ctx = TestContext::new("two-operators").await?;
    let postgres = Postgres::install(&ctx.client, 2).await?;
    let no_election = ctx.operator.with_env("DALSEGNO_LEADER_ELECTION", "false").await?;
    let hang = json!({ "attempt": 1, "turn": 3, "at": "start", "do": "hang" });
    let crash = json!({ "attempt": 2, "turn": 5, "at": "start", "do": "exit:1" });
    let script = json!({ "turns": 8, "turnSeconds": 0.2, "onTerm": "exit143", "script": [hang, crash] });
    let agent = Agent::new(script);
    let mut runs = Vec::new();
    for n in 0..12 {
        runs.push(ctx.start(&format!("run-{n}"), &agent).await?);
    }
    try_join_all(runs.iter().map(|run| run.wait_for_turn(2))).await?;
    try_join_all(runs.iter().map(|run| run.evict())).await?;
    for run in &runs {
        let status = run.wait_for_success().await?;
        assert_eq!(status.attempt().number, 3, "{}: {:?}", run.name, status.recovery());
        let counted = (status.recovery().recovery_attempts, status.recovery().disruptions);
        assert_eq!(counted, (1, 1), "{}: {:?}", run.name, status.recovery());
        run.expect_nothing_lost_or_repeated(8).await?;
        run.delete(secs(30)).await?;
    }
    no_election.revert().await?;
    ctx.end().await?;
    postgres.remove().await
}

/// Two outages with the same runs. Another run loses its pod while the store is unavailable, and ten are parked: they sleep
/// through the outages and a restart of the operator, and the time of two of them comes meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn outages_of_the_store_and_of_the_gateway_move_no_epoch_and_a_recovery_waits_for_the_store() -> Result
{
    let ctx = TestContext::new("store-outage").await?;
    let postgres = Postgres::install(&ctx.client, 1).await?;
    let parked = Parked::start(&ctx, 60).await?;
    parked.expect_quiet_restart().await?;
    let healthy = Healthy::start(&ctx, 60).await?;
    let evicted = ctx.start("evicted", &Agent::new(json!({ "turns": 12, "turnSeconds": 0.3 }))).await?;
    evicted.wait_for_turn(3).await?;

    let stopped = postgres.stop().await?;
    evicted.evict().await?;
    let is_unknown = |status: &dalsegno_crds::AgentRunStatus| {
        status.reason_and_message(ConditionType::Ready).0 == Reason::StoreUnavailable.as_str()
    };
    evicted.wait_until("to report that the store is unavailable", secs(40), is_unknown).await?;
    consistently("no second attempt", secs(25), async || ctx.audit.expect_pods(&evicted.name, [1])).await?;
    tokio::time::sleep(secs(10)).await;
    stopped.undo().await?;
    let status = evicted.wait_for(Summary::Succeeded, secs(60)).await?;
    assert_eq!((status.recovery().recovery_attempts, status.recovery().disruptions), (0, 1));
    evicted.expect_nothing_lost_or_repeated(12).await?;
    healthy.expect_first_attempts().await?;

    let scaled_down = Operator::named(&ctx.client, GATEWAY).scale_down().await?;
    tokio::time::sleep(secs(30)).await;
    scaled_down.revert().await?;
    healthy.expect_first_attempts().await?;
    healthy.expect_success().await?;
    parked.expect_no_pods()?;
    parked.go_on().await?;
    for run in healthy.runs.iter().chain([&evicted]).chain(parked.runs()) {
        run.delete(secs(30)).await?;
    }
    ctx.end().await?;
    postgres.remove().await
}

/// The tries of the workers to connect again go to the lost gateway too, until Kubernetes removes its address.
#[tokio::test(flavor = "multi_thread")]
async fn no_worker_is_replaced_when_the_node_of_one_of_two_gateways_is_lost() -> Result {
    let ctx = TestContext::new("lost-gateway").await?;
    let mut values = postgres::values(2);
    objects::merge(&mut values, &json!({ "nodeSelector": null }));
    let postgres = Postgres::install_version(&ctx.client, &Version::current(), &values).await?;
    let pods = Operator::named(&ctx.client, GATEWAY).all_pods().await?;
    let mut nodes: Vec<_> = pods.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref()).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, [SAFE_NODE, FAULTY_NODE], "a gateway on each node");
    let healthy = Healthy::start_on(&ctx, 80, [SAFE_NODE; 2]).await?;

    let link = ctx.cluster()?.cut_link(FAULTY_NODE).await?;
    tokio::time::sleep(secs(50)).await;
    link.undo().await?;
    ctx.wait_for_node_ready(FAULTY_NODE, true).await?;
    healthy.expect_first_attempts().await?;
    healthy.expect_success().await?;
    for run in &healthy.runs {
        run.delete(secs(30)).await?;
    }
    ctx.end().await?;
    postgres.remove().await
}
