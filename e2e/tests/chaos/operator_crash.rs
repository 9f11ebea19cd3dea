//! The operator dies at every step of a recovery, before and after it.

use dalsegno_e2e::wait::{eventually, secs};
use dalsegno_e2e::{Agent, Result, Run, StatusExt, TestContext};
use kube::api::DeleteParams;
use serde_json::json;

/// Names the point at which the process ends itself, once in the life of its pod.
const CRASH_AT: &str = "DALSEGNO_CRASH_AT";

/// Set to anything, every point is tried with every death; else each point once.
const WHOLE_MATRIX: &str = "DALSEGNO_E2E_CRASH_MATRIX";

/// Turns of the runs.
const TURNS: i32 = 6;

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

/// How a worker dies under the operator's eyes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    /// Its pod is evicted.
    Evicted,
    /// Its pod is deleted.
    Deleted,
    /// It falls silent; its pod is there and must be stopped.
    Silent,
}

fn deaths(step: &str) -> Vec<Death> {
    let all = [Death::Evicted, Death::Deleted, Death::Silent];
    let usual = if step == "stop-worker" { Death::Silent } else { Death::Evicted };
    if std::env::var_os(WHOLE_MATRIX).is_none() {
        vec![usual]
    } else if step == "stop-worker" {
        vec![Death::Silent]
    } else {
        all.to_vec()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_killed_before_any_step_of_a_recovery_leaves_one_pod_per_attempt_and_exact_counters()
-> Result {
    every_step("before").await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_killed_after_any_step_of_a_recovery_leaves_one_pod_per_attempt_and_exact_counters()
-> Result {
    every_step("after").await
}

async fn every_step(when: &str) -> Result {
    let ctx = TestContext::new(&format!("crash-{when}")).await?;
    let points = STEPS.iter().flat_map(|step| deaths(step).into_iter().map(move |death| (*step, death)));
    let mut runs = Vec::new();
    for (step, death) in points {
        runs.push((waiting(&ctx, step, death).await?, format!("{when}:{step}"), death));
    }
    for (run, ..) in &runs {
        run.wait_for_turn(2).await?;
    }
    let operator = ctx.operator.with_env(CRASH_AT, "nowhere").await?;
    for (run, point, death) in &runs {
        operator.set_env(CRASH_AT, point).await?;
        let recovered = recovered(&ctx, run, *death).await;
        recovered.map_err(|error| error.context(format!("{point}, {death:?}")))?;
    }
    operator.set_env(CRASH_AT, &format!("{when}:create-run")).await?;
    taken_up(&ctx).await?;
    operator.set_env(CRASH_AT, &format!("{when}:mark-deleted")).await?;
    deleted(&ctx).await?;
    operator.revert().await?;
    ctx.end().await
}

/// A run whose first attempt waits in its third turn for its death, and whose second one goes on to the end.
async fn waiting<'c>(ctx: &'c TestContext, step: &str, death: Death) -> Result<Run<'c>> {
    let waits = json!({ "attempt": 1, "turn": 3, "at": "start", "do": "hang" });
    let script = json!({ "turns": TURNS, "turnSeconds": 0.2, "onTerm": "exit143", "script": [waits] });
    let name = format!("{step}-{death:?}").to_lowercase();
    ctx.start(&name, &Agent::new(script)).await
}

/// The worker dies, the operator dies at its point of the recovery, and the run ends right all the same.
async fn recovered(ctx: &TestContext, run: &Run<'_>, death: Death) -> Result {
    anyhow::ensure!(ctx.operator.restarts().await? == 0, "the operator died before the worker did");
    let frozen = match death {
        Death::Evicted => run.evict().await.map(|_| None)?,
        Death::Deleted => run.delete_pod(&DeleteParams::default()).await.map(|_| None)?,
        Death::Silent => Some(run.processes().await?.freeze().await?),
    };
    has_died_once(ctx).await?;
    let status = run.wait_for_success().await?;
    drop(frozen);
    let counted = (status.recovery().recovery_attempts, status.recovery().disruptions);
    let expected = if death == Death::Silent { (1, 0) } else { (0, 1) };
    anyhow::ensure!(counted == expected, "counted {counted:?}: {:?}", status.recovery());
    anyhow::ensure!(status.attempt().number == 2, "{:?}", status.recovery());
    run.expect_nothing_lost_or_repeated(TURNS).await
}

/// The operator dies when it takes a new run up.
async fn taken_up(ctx: &TestContext) -> Result {
    let run = ctx.start("taken-up", &Agent::new(json!({ "turns": TURNS, "turnSeconds": 0.2 }))).await?;
    has_died_once(ctx).await?;
    assert_eq!(run.wait_for_success().await?.attempt().number, 1);
    run.expect_nothing_lost_or_repeated(TURNS).await
}

/// The operator dies when it lets a run go.
async fn deleted(ctx: &TestContext) -> Result {
    let hangs = json!([{ "turn": 2, "at": "start", "do": "hang" }]);
    let run = ctx.start("deleted", &Agent::new(json!({ "turns": TURNS, "script": hangs }))).await?;
    run.wait_for_turn(1).await?;
    run.delete(secs(60)).await?;
    has_died_once(ctx).await?;
    ctx.audit.expect_pods(&run.name, [1])
}

async fn has_died_once(ctx: &TestContext) -> Result {
    eventually("the operator to have died once, and to be back", secs(60), async || {
        Ok((ctx.operator.restarts().await? == 1).then_some(()))
    })
    .await
}
