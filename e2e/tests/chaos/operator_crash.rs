//! The operator dies before and after the steps of a recovery.

use std::time::Duration;

use dalsegno_e2e::wait::{eventually, secs};
use dalsegno_e2e::{Agent, Result, Run, StatusExt, TestContext};
use kube::api::DeleteParams;
use serde_json::json;
use tokio::time::sleep;

/// The operator's environment variable that names the point at which the process ends itself, once in the life of its
/// pod.
pub const CRASH_AT: &str = "DALSEGNO_CRASH_AT";

/// If this variable is set, each point is tested with every kind of death. Else each step is tested with one, and the
/// operator dies before it or after it.
const FULL_MATRIX: &str = "DALSEGNO_E2E_CRASH_MATRIX";

/// Turns of the runs.
const TURNS: i32 = 6;

/// After this time the worker has sent a heartbeat to the gateway that was just started: it sends one in a third of the
/// 15 seconds of its lease.
const HEARTBEAT: Duration = secs(7);

/// The steps of a recovery, in order.
const STEPS: [&str; 8] = [
    "end-attempt",
    "verify-head",
    "create-worker",
    "record-pod",
    "record-scheduled",
    "record-identity",
    "stop-worker",
    "status",
];

/// How the worker dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    /// The pod is evicted.
    Evicted,
    /// The pod is deleted.
    Deleted,
    /// The worker stops sending heartbeats. Its pod still runs and must be stopped.
    Silent,
}

/// The steps at which the operator dies, each with a death of the worker. Two of them in a row are never the same: the
/// operator's pod is only replaced, and so dies again, if the variable changes.
fn deaths(when: &str) -> Vec<(&'static str, Death)> {
    if std::env::var_os(FULL_MATRIX).is_none() {
        let steps = STEPS.into_iter().skip(usize::from(when == "after")).step_by(2);
        return steps
            .map(|step| (step, if is_stop(step) { Death::Silent } else { Death::Evicted }))
            .collect();
    }
    let with = |death| STEPS.into_iter().map(move |step| (step, death));
    let all = [Death::Evicted, Death::Deleted, Death::Silent].into_iter().flat_map(with);
    all.filter(|(step, death)| !is_stop(step) || *death == Death::Silent).collect()
}

/// Whether the step stops the worker. It only happens if the worker still runs.
fn is_stop(step: &str) -> bool {
    step == "stop-worker"
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_dies_before_a_step_of_a_recovery_leaves_one_pod_per_attempt_and_exact_counters()
-> Result {
    crash_at_every_step("before").await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_dies_after_a_step_of_a_recovery_leaves_one_pod_per_attempt_and_exact_counters()
-> Result {
    crash_at_every_step("after").await
}

async fn crash_at_every_step(when: &str) -> Result {
    let ctx = TestContext::new(&format!("crash-{when}")).await?;
    let mut runs = Vec::new();
    for (step, death) in deaths(when) {
        runs.push((start_hanging_run(&ctx, step, death).await?, format!("{when}:{step}"), death));
    }
    for (run, ..) in &runs {
        run.wait_for_turn(2).await?;
    }
    let operator = ctx.operator.with_env(CRASH_AT, "nowhere").await?;
    for (run, point, death) in &runs {
        operator.set_env(CRASH_AT, point).await?;
        if *death == Death::Silent {
            sleep(HEARTBEAT).await;
        }
        let recovery = recover_once(&ctx, run, *death, is_charged(point, *death)).await;
        recovery.map_err(|error| error.context(format!("{point}, {death:?}")))?;
    }
    operator.set_env(CRASH_AT, &format!("{when}:create-run")).await?;
    start_during_crash(&ctx).await?;
    operator.set_env(CRASH_AT, &format!("{when}:mark-deleted")).await?;
    delete_during_crash(&ctx).await?;
    operator.revert().await?;
    ctx.end().await
}

/// Starts a run whose first attempt hangs in its third turn until it dies, and whose second attempt ends the run.
async fn start_hanging_run<'c>(ctx: &'c TestContext, step: &str, death: Death) -> Result<Run<'c>> {
    let hang = json!({ "attempt": 1, "turn": 3, "at": "start", "do": "hang" });
    let script = json!({ "turns": TURNS, "turnSeconds": 0.2, "onTerm": "exit143", "script": [hang] });
    let name = format!("{step}-{death:?}").to_lowercase();
    ctx.start(&name, &Agent::new(script)).await
}

/// Whether the worker's death is charged. Silence is, unless the gateway of the last heartbeat has been stopped before
/// the end is recorded: the gateway is part of the operator's process here.
fn is_charged(point: &str, death: Death) -> bool {
    death == Death::Silent && point != "before:end-attempt"
}

/// Lets the worker die. The operator dies at its point of the recovery, and the run must end as without that.
async fn recover_once(ctx: &TestContext, run: &Run<'_>, death: Death, is_charged: bool) -> Result {
    anyhow::ensure!(ctx.operator.restarts().await? == 0, "the operator died before the worker");
    let frozen = match death {
        Death::Evicted => run.evict().await.map(|_| None)?,
        Death::Deleted => run.delete_pod(&DeleteParams::default()).await.map(|_| None)?,
        Death::Silent => Some(run.processes().await?.freeze().await?),
    };
    wait_for_one_restart(ctx).await?;
    let status = run.wait_for_success().await?;
    drop(frozen);
    let counted = (status.recovery().recovery_attempts, status.recovery().disruptions);
    let expected = (i32::from(is_charged), i32::from(death != Death::Silent));
    anyhow::ensure!(counted == expected, "counted {counted:?}: {:?}", status.recovery());
    anyhow::ensure!(status.attempt().number == 2, "{:?}", status.recovery());
    run.expect_nothing_lost_or_repeated(TURNS).await
}

/// The operator dies when it creates a new run's row.
async fn start_during_crash(ctx: &TestContext) -> Result {
    let run = ctx.start("created", &Agent::new(json!({ "turns": TURNS, "turnSeconds": 0.2 }))).await?;
    wait_for_one_restart(ctx).await?;
    assert_eq!(run.wait_for_success().await?.attempt().number, 1);
    run.expect_nothing_lost_or_repeated(TURNS).await
}

/// The operator dies when it marks a run as deleted.
async fn delete_during_crash(ctx: &TestContext) -> Result {
    let hang = json!([{ "turn": 2, "at": "start", "do": "hang" }]);
    let run = ctx.start("deleted", &Agent::new(json!({ "turns": TURNS, "script": hang }))).await?;
    run.wait_for_turn(1).await?;
    run.delete(secs(60)).await?;
    wait_for_one_restart(ctx).await?;
    ctx.audit.expect_pods(&run.name, [1])
}

async fn wait_for_one_restart(ctx: &TestContext) -> Result {
    eventually("the operator to have been restarted once", secs(60), async || {
        Ok((ctx.operator.restarts().await? == 1).then_some(()))
    })
    .await
}
