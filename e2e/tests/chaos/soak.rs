//! Random deaths of workers, nodes, the operator, the gateways and PostgreSQL while runs come and go, and others are
//! parked.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context;
use dalsegno_crds::{AgentRun, Summary};
use dalsegno_e2e::cluster::FAULTY_NODE;
use dalsegno_e2e::operator::NAMESPACE;
use dalsegno_e2e::postgres::{GATEWAY, Postgres};
use dalsegno_e2e::test_context::clients;
use dalsegno_e2e::wait::secs;
use dalsegno_e2e::{Agent, Operator, Result, Run, StatusExt, TestContext};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::parked::Parked;

/// The environment variable with the time of the faults, in seconds. Without it the test takes a short slice.
const SECONDS: &str = "DALSEGNO_E2E_SOAK_SECONDS";

/// The environment variable with the seed of the faults. The test prints the seed it uses.
const SEED: &str = "DALSEGNO_SEED";

/// The time of the faults without [`SECONDS`].
const SLICE: Duration = secs(75);

/// Lanes. Each starts one run after the other. The runs of every third lane park on times now and then.
const LANES: usize = 10;

/// Turns of each run, of 0.3 s.
const TURNS: i32 = 60;

/// Limit for a run to succeed. The faults go on meanwhile.
const RUN_LIMIT: Duration = secs(600);

/// Limit for a fault to be applied. It may not be applicable at all, for example because its run has just ended.
const FAULT_LIMIT: Duration = secs(60);

/// The API server is not stopped in the last part of the test. After an outage the controllers of Kubernetes take a while
/// to watch again. A Deployment that is deleted and created meanwhile is only updated to them, and the pods of the
/// deleted one stay for ever; the end of the test does so.
const CONTROLLERS_WATCH_AGAIN: Duration = secs(60);

/// What can happen. The more often a fault is listed, the more often it is chosen.
const FAULTS: [Fault; 18] = [
    Fault::WorkerKilled,
    Fault::WorkerKilled,
    Fault::WorkerKilled,
    Fault::WorkerFrozen,
    Fault::WorkerFrozen,
    Fault::Evicted,
    Fault::Evicted,
    Fault::Evicted,
    Fault::PodDeleted,
    Fault::PodDeleted,
    Fault::OperatorDeleted,
    Fault::GatewayDeleted,
    Fault::GatewayDeleted,
    Fault::PostgresStopped,
    Fault::LinkCut,
    Fault::NodeWithoutPower,
    Fault::KubeletRestarted,
    Fault::ApiServerStopped,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// The worker's processes get SIGKILL.
    WorkerKilled,
    /// The worker's processes are stopped for longer than a lease, and then continue while their successor runs.
    WorkerFrozen,
    /// The pod is evicted.
    Evicted,
    /// The pod is deleted without a grace period.
    PodDeleted,
    /// A pod of the operator is deleted without a grace period.
    OperatorDeleted,
    /// A pod of the gateway is deleted without a grace period.
    GatewayDeleted,
    /// PostgreSQL stops at once, as in a power loss, and is started again.
    PostgresStopped,
    /// A node loses its network.
    LinkCut,
    /// A node loses its power.
    NodeWithoutPower,
    /// A kubelet is killed and started again.
    KubeletRestarted,
    /// The API server is killed and started again.
    ApiServerStopped,
}

/// Every run reaches its last turn, each turn has its effect once, and no acknowledged turn is lost. Ten runs are parked
/// before the first fault, have no pod until the last one is repaired, and then go on once.
#[tokio::test(flavor = "multi_thread")]
async fn runs_lose_and_repeat_nothing_under_random_faults() -> Result {
    let duration = std::env::var(SECONDS).map_or(Ok(SLICE), |text| text.parse().map(secs))?;
    let seed = std::env::var(SEED).map_or_else(|_| Ok(rand::random()), |text| text.parse::<u64>())?;
    println!("{SEED}={seed}");
    let (client, _) = clients().await?;
    let postgres = Postgres::install(&client, 2).await?;
    // After the server, so that a failure shows the runs before they lose their store.
    let ctx = TestContext::new("soak").await?;
    // The last fault may begin at the end. The time of the parked runs comes after it is repaired.
    let time_comes_after = (duration + 2 * FAULT_LIMIT).as_secs();
    let parked = Parked::start(&ctx, u32::try_from(time_comes_after)?).await?;
    let end = Instant::now() + duration;

    let faults = async {
        let applied = break_things(&ctx, &postgres, end, seed).await?;
        parked.expect_all_parked().await.context("after the last fault")?;
        anyhow::Ok(applied)
    };
    let lanes = try_join_all((0..LANES).map(|lane| start_runs(&ctx, lane, end)));
    let (applied, attempts) = tokio::try_join!(faults, lanes)?;
    let attempts: Vec<i32> = attempts.into_iter().flatten().collect();
    let pods: i32 = attempts.iter().sum();
    println!("{SEED}={seed}: {} runs, {pods} attempts; faults: {applied:?}", attempts.len());
    let count: usize = applied.values().sum();
    let expected = duration.as_secs() as usize / 60;
    anyhow::ensure!(count >= expected, "{count} faults could be applied, expected at least {expected}");
    parked.go_on().await?;
    println!("{} runs were parked through all faults, and each went on once", parked.runs().count());
    ctx.end().await?;
    postgres.remove().await
}

/// Starts one run after the other until `end`, and checks each. Returns the number of attempts of each run.
async fn start_runs(ctx: &TestContext, lane: usize, end: Instant) -> Result<Vec<i32>> {
    let patient = json!({
        "recovery": {
            "maxRecoveryAttempts": 1000, "maxAttemptsWithoutProgress": 1000, "maxDisruptionsWithoutProgress": 1000,
            "backoff": { "initialSeconds": 0, "maxSeconds": 2 },
        },
        "liveness": { "heartbeatTimeoutSeconds": 10 },
    });
    let mut script = json!({ "turns": TURNS, "turnSeconds": 0.3, "heartbeat": lane.is_multiple_of(2) });
    if lane.is_multiple_of(3) {
        script["waits"] = json!([
            { "every": 16, "kind": "until", "seconds": 2 },
            { "every": 25, "kind": "until", "seconds": 1, "inCommit": true },
        ]);
    }
    let agent = Agent::new(script).spec(patient);
    let mut attempts = Vec::new();
    while Instant::now() < end {
        let name = format!("lane-{lane}-{}", attempts.len());
        let run = start_when_possible(ctx, &name, &agent).await?;
        let status = run.wait_for(Summary::Succeeded, RUN_LIMIT).await?;
        run.expect_nothing_lost_or_repeated(TURNS).await?;
        attempts.push(status.attempt().number);
    }
    Ok(attempts)
}

/// Creates a run. The API server may be unavailable, and a request without an answer may have succeeded.
async fn start_when_possible<'c>(ctx: &'c TestContext, name: &str, agent: &Agent) -> Result<Run<'c>> {
    let limit = Instant::now() + RUN_LIMIT;
    loop {
        match ctx.start(name, agent).await {
            Ok(run) => return Ok(run),
            Err(_) if ctx.run(name).object().await.is_ok() => return Ok(ctx.run(name)),
            Err(error) if Instant::now() > limit => return Err(error.context(format!("creating run {name}"))),
            Err(_) => sleep(secs(1)).await,
        }
    }
}

/// Applies one random fault after the other until `end`, and repairs each. Returns how often each was applied.
async fn break_things(
    ctx: &TestContext,
    postgres: &Postgres,
    end: Instant,
    seed: u64,
) -> Result<BTreeMap<Fault, usize>> {
    let mut rng = StdRng::seed_from_u64(seed);
    let start = Instant::now();
    let mut applied = BTreeMap::new();
    while Instant::now() < end {
        sleep(Duration::from_millis(rng.random_range(500..4_000))).await;
        let fault = *FAULTS.choose(&mut rng).context("no faults")?;
        let left = end.saturating_duration_since(Instant::now());
        if fault == Fault::ApiServerStopped && left < CONTROLLERS_WATCH_AGAIN {
            continue;
        }
        let length = Duration::from_millis(rng.random_range(500..25_000));
        let index = rng.random_range(0..LANES);
        let at = start.elapsed().as_secs();
        match timeout(FAULT_LIMIT, apply(ctx, postgres, Planned { fault, index, length })).await {
            Ok(Ok(())) => {
                println!("{at} s: {fault:?}, {length:?}");
                *applied.entry(fault).or_default() += 1;
            }
            Ok(Err(error)) => println!("{at} s: {fault:?} could not be applied: {error:#}"),
            Err(_) => println!("{at} s: {fault:?} took longer than {FAULT_LIMIT:?}"),
        }
    }
    Ok(applied)
}

/// A fault, the index of the run that it hits, and how long it lasts.
struct Planned {
    fault: Fault,
    index: usize,
    length: Duration,
}

async fn apply(ctx: &TestContext, postgres: &Postgres, planned: Planned) -> Result {
    let Planned { fault, index, length } = planned;
    let cluster = ctx.cluster()?;
    let at_once = DeleteParams::default().grace_period(0);
    let guard = match fault {
        Fault::WorkerKilled => return running(ctx, index).await?.processes().await?.kill().await,
        Fault::Evicted => return running(ctx, index).await?.evict().await.map(drop),
        Fault::PodDeleted => return running(ctx, index).await?.delete_pod(&at_once).await.map(drop),
        Fault::OperatorDeleted => return delete_a_pod(ctx, &ctx.operator, &at_once).await,
        Fault::GatewayDeleted => {
            return delete_a_pod(ctx, &Operator::named(&ctx.client, GATEWAY), &at_once).await;
        }
        Fault::KubeletRestarted => return cluster.restart_kubelet(FAULTY_NODE).await,
        Fault::WorkerFrozen => running(ctx, index).await?.processes().await?.freeze().await?,
        Fault::PostgresStopped => postgres.stop().await?,
        Fault::LinkCut => cluster.cut_link(FAULTY_NODE).await?,
        Fault::NodeWithoutPower => cluster.kill_node(FAULTY_NODE).await?,
        Fault::ApiServerStopped => cluster.stop("apiserver").await?,
    };
    sleep(length).await;
    guard.undo().await?;
    if matches!(fault, Fault::LinkCut | Fault::NodeWithoutPower) {
        ctx.wait_for_node_ready(FAULTY_NODE, true).await?;
    }
    Ok(())
}

/// A running run: the one at this index, counted from the first again after the last.
async fn running(ctx: &TestContext, index: usize) -> Result<Run<'_>> {
    let mut runs = ctx.api::<AgentRun>().list(&ListParams::default()).await?.items;
    runs.retain(|run| run.status.as_ref().is_some_and(|status| status.summary == Some(Summary::Running)));
    let run = runs.get(index % runs.len().max(1)).context("no run is running")?;
    Ok(ctx.run(&run.name_any()))
}

async fn delete_a_pod(ctx: &TestContext, deployment: &Operator, params: &DeleteParams) -> Result {
    let pods = deployment.all_pods().await?;
    let pod = pods.first().context("the Deployment has no pod")?;
    Api::<Pod>::namespaced(ctx.client.clone(), NAMESPACE).delete(&pod.name_any(), params).await?;
    Ok(())
}
