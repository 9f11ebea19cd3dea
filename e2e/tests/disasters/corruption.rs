//! A row of the store that is no longer what was committed.

use dalsegno_crds::{ConditionType, Reason, Summary};
use dalsegno_e2e::postgres::Postgres;
use dalsegno_e2e::wait::{secs, throughout};
use dalsegno_e2e::{Agent, Result, StatusExt, World};
use serde_json::json;

/// Turns of the run.
const TURNS: i32 = 6;

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_checkpoint_is_never_resumed_from_and_the_run_goes_on_once_its_row_is_restored() -> Result {
    let world = World::new("corruption").await?;
    let postgres = Postgres::install(&world.client, 1).await?;
    let waits = json!({ "attempt": 1, "turn": 3, "at": "start", "do": "hang" });
    let script = json!({ "turns": TURNS, "turnSeconds": 0.2, "onTerm": "exit143", "script": [waits] });
    let run = world.start("run", &Agent::new(script)).await?;
    run.wait("to have committed turn 2", secs(60), |status| status.turn() == 2).await?;

    let rows = format!(
        "WHERE turn = 2 AND run = (SELECT id FROM runs WHERE namespace = '{}' AND name = 'run')",
        world.namespace
    );
    postgres.execute(&format!(r"UPDATE boundaries SET ops = ops || '\x00' {rows}")).await?;
    run.evict().await?;
    let status = run.reaches(Summary::Held, secs(60)).await?;
    assert_eq!(status.reason, Some(Reason::CheckpointCorrupt));
    assert!(!status.is_true(ConditionType::CheckpointAvailable));
    let (_, message) = status.why(ConditionType::Held);
    assert!(message.contains("turn 2") && message.contains("turn 1"), "{message}");
    throughout("no pod", secs(5), async || world.audit.expect_pods(&run.name, [1])).await?;

    // The turn after the last good checkpoint has made a call: going back might let it take effect again.
    run.change(json!({ "recovery": { "onCorruptCheckpoint": "LastGood" } })).await?;
    let names_calls =
        |status: &dalsegno_crds::AgentRunStatus| status.why(ConditionType::Held).1.contains("might repeat");
    run.wait("to name the calls in the gap", secs(30), names_calls).await?;

    postgres.execute(&format!("UPDATE boundaries SET ops = substr(ops, 1, length(ops) - 1) {rows}")).await?;
    run.change(json!({ "recovery": { "resetGeneration": 1 } })).await?;
    let status = run.succeeds().await?;
    assert_eq!(status.attempt().resumed_from_turn, Some(2));
    run.expect_nothing_lost_or_repeated(TURNS).await?;
    run.delete(secs(30)).await?;
    world.end().await?;
    postgres.remove().await
}
