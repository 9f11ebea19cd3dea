//! A row of the store is damaged.

use dalsegno_crds::{ConditionType, Reason, Summary};
use dalsegno_e2e::postgres::Postgres;
use dalsegno_e2e::wait::{consistently, secs};
use dalsegno_e2e::{Agent, Result, StatusExt, TestContext};
use serde_json::json;

/// Turns of each run.
const TURNS: i32 = 6;

#[tokio::test(flavor = "multi_thread")]
async fn a_run_never_resumes_from_a_damaged_checkpoint_but_from_the_one_before_or_once_the_row_is_restored()
-> Result {
    let ctx = TestContext::new("corruption").await?;
    let postgres = Postgres::install(&ctx.client, 1).await?;
    let hang = json!({ "attempt": 1, "turn": 3, "at": "start", "do": "hang" });
    let agent = |policy| {
        Agent::new(json!({
            "turns": TURNS, "turnSeconds": 0.2, "onTerm": "exit143", "script": [hang], "callPolicy": policy,
        }))
    };
    let last_good = json!({ "recovery": { "onCorruptCheckpoint": "LastGood" } });
    let run = ctx.start("run", &agent("retrySameKey")).await?;
    let reader = ctx.start("reader", &agent("readOnly").spec(last_good.clone())).await?;
    for run in [&run, &reader] {
        run.wait_until("to have committed turn 2", secs(60), |status| status.turn() == 2).await?;
    }

    let rows = |name: &str| {
        let run = format!("SELECT id FROM runs WHERE namespace = '{}' AND name = '{name}'", ctx.namespace);
        format!("WHERE turn = 2 AND run = ({run})")
    };
    for run in [&run, &reader] {
        postgres.execute(&format!(r"UPDATE boundaries SET ops = ops || '\x00' {}", rows(&run.name))).await?;
        run.evict().await?;
    }
    let status = run.wait_for(Summary::Held, secs(60)).await?;
    assert_eq!(status.reason, Some(Reason::CheckpointCorrupt));
    assert!(!status.is_true(ConditionType::CheckpointAvailable));
    let (_, message) = status.reason_and_message(ConditionType::Held);
    assert!(message.contains("turn 2") && message.contains("turn 1"), "{message}");
    consistently("no pod", secs(5), async || ctx.audit.expect_pods(&run.name, [1])).await?;

    // The turn after the last good checkpoint has made a call. A rewind might let it take effect again, so the hold
    // names it.
    run.patch_spec(last_good).await?;
    let names_call = |status: &dalsegno_crds::AgentRunStatus| {
        status.reason_and_message(ConditionType::Held).1.contains("turn-2")
    };
    run.wait_until("to name the call of turn 2", secs(30), names_call).await?;

    // If the turn's calls only read, the turn is run again.
    let status = reader.wait_for_success().await?;
    assert_eq!((status.attempt().number, status.attempt().resumed_from_turn), (2, Some(1)));
    reader.expect_nothing_lost_up_to(1, TURNS).await?;

    let restored = rows(&run.name);
    postgres
        .execute(&format!("UPDATE boundaries SET ops = substr(ops, 1, length(ops) - 1) {restored}"))
        .await?;
    run.patch_spec(json!({ "recovery": { "resetGeneration": 1 } })).await?;
    let status = run.wait_for_success().await?;
    assert_eq!(status.attempt().resumed_from_turn, Some(2));
    run.expect_nothing_lost_or_repeated(TURNS).await?;
    for run in [run, reader] {
        run.delete(secs(30)).await?;
    }
    ctx.end().await?;
    postgres.remove().await
}
