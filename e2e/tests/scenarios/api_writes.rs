//! The operator's writes per run, from the API server's audit log. Writes of the progress come at most every ten
//! seconds, so a shorter run has at most one of them.

use dalsegno_crds::Summary;
use dalsegno_e2e::wait::secs;
use dalsegno_e2e::{Agent, Result, TestContext};
use serde_json::json;

/// The maximum number of writes from a run's creation to its end.
const PER_LIFE: usize = 8;

/// The maximum number of writes of one recovery.
const PER_RECOVERY: usize = 5;

/// The maximum number of writes of the progress in a run of a few seconds.
const PROGRESS_WRITES: usize = 1;

#[tokio::test(flavor = "multi_thread")]
async fn a_run_and_a_recovery_each_cost_a_bounded_number_of_writes() -> Result {
    let ctx = TestContext::new("writes").await?;
    let undisturbed =
        ctx.start("undisturbed", &Agent::new(json!({ "turns": 5, "turnSeconds": 0.1 }))).await?;
    undisturbed.wait_for_success().await?;
    let crash = json!({ "attempt": 1, "turn": 3, "at": "start", "do": "exit:1" });
    let crashing = json!({ "turns": 5, "turnSeconds": 0.1, "script": [crash] });
    let recovered = ctx.start("recovered", &Agent::new(crashing)).await?;
    recovered.wait_for_success().await?;
    // By then the operator has written everything.
    tokio::time::sleep(secs(3)).await;

    let writes = ctx.audit.operator_writes(&undisturbed.name)?;
    assert!(writes.len() <= PER_LIFE + PROGRESS_WRITES, "{} writes: {writes:#?}", writes.len());
    let writes = ctx.audit.operator_writes(&recovered.name)?;
    assert!(
        writes.len() <= PER_LIFE + PER_RECOVERY + PROGRESS_WRITES,
        "{} writes: {writes:#?}",
        writes.len()
    );
    ctx.end().await
}

/// A worker that sends heartbeats and commits nothing, two held runs and a finished one: nothing changes, so nothing is
/// written.
#[tokio::test(flavor = "multi_thread")]
async fn quiet_runs_cost_no_write() -> Result {
    let ctx = TestContext::new("quiet").await?;
    let hang = json!({ "turn": 2, "at": "start", "do": "hang" });
    let crash = json!({ "turn": 1, "at": "start", "do": "exit:1" });
    let once = json!({ "recovery": { "maxAttemptsWithoutProgress": 1 } });
    let waiting = ctx.start("waiting", &Agent::new(json!({ "turnSeconds": 0.1, "script": [hang] }))).await?;
    let held = ctx.start("held", &Agent::new(json!({ "script": [crash] })).spec(once)).await?;
    let finished = ctx.start("finished", &Agent::new(json!({ "turns": 1, "turnSeconds": 0.1 }))).await?;
    let missing = ctx.start("missing", &Agent::from_definition("missing", json!({ "turns": 1 }))).await?;
    waiting.wait_for_turn(1).await?;
    held.wait_for(Summary::Held, secs(60)).await?;
    finished.wait_for_success().await?;
    missing.wait_for(Summary::Held, secs(60)).await?;
    // By then the progress of the last turn is written.
    tokio::time::sleep(secs(15)).await;

    let runs = [&waiting, &held, &finished, &missing];
    let count = || runs.iter().map(|run| ctx.audit.operator_writes(&run.name)).collect::<Result<Vec<_>>>();
    let before = count()?;
    tokio::time::sleep(secs(15)).await;
    let after = count()?;
    assert_eq!(before, after, "quiet runs should cost no write");
    ctx.end().await
}
