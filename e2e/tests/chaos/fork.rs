//! The operator dies while it copies a fork.

use std::time::Instant;

use dalsegno_crds::Summary;
use dalsegno_e2e::wait::secs;
use dalsegno_e2e::{Agent, Result, StatusExt, TestContext, operator};
use serde_json::json;

use crate::operator_crash::CRASH_AT;

/// If this variable is set, the parent has 1,000 turns and 50 MB of records, else 100 turns and 5 MB.
const LARGE: &str = "DALSEGNO_E2E_LARGE_FORK";

/// Bytes of a record of each turn.
const RECORD_BYTES: usize = 50_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_goes_on_after_the_operator_died_in_the_middle() -> Result {
    let ctx = TestContext::new("fork-crash").await?;
    let turns = if std::env::var_os(LARGE).is_some() { 1_000 } else { 100 };
    let (at, end) = (turns - 5, turns + 3);
    let script = |turns: i32| json!({ "turns": turns, "turnSeconds": 0, "recordBytes": RECORD_BYTES, "channels": true });
    let parent = ctx.start("parent", &Agent::new(script(turns))).await?;
    parent.wait_for(Summary::Succeeded, secs(600)).await?;
    let before = operator::run(&["export", &parent.key()]).await?;

    let operator = ctx.operator.with_env(CRASH_AT, "after:fork-step").await?;
    let restarts = ctx.operator.restarts().await?;
    let calls: Vec<_> = (at + 1..=turns).map(|turn| format!("turn-{turn}")).collect();
    let from = json!({ "resumeFrom": { "runName": "parent", "turn": at, "acceptEffects": calls } });
    let started = Instant::now();
    let fork = ctx.start("fork", &Agent::new(script(end)).spec(from)).await?;
    let status = fork.wait_for(Summary::Succeeded, secs(300)).await?;
    println!("a fork of {turns} turns ended {:?} after it was created", started.elapsed());
    assert!(ctx.operator.restarts().await? > restarts, "the operator should have died");
    operator.revert().await?;
    assert_eq!((status.turn(), status.attempt().resumed_from_turn), (end, Some(at)));
    let own: Vec<_> = ctx.ledger.entries(&fork.key()).await?.iter().map(|it| it.turn).collect();
    assert_eq!(own, (at + 1..=end).collect::<Vec<_>>());
    ctx.ledger.expect_turns(&parent.key(), turns).await?;

    let after = operator::run(&["export", &parent.key()]).await?;
    let lines = |bundle: &str| {
        let lines: Vec<_> = bundle.lines().map(str::to_owned).collect();
        lines[1..lines.len() - 1].to_vec()
    };
    assert_eq!(lines(&after), lines(&before), "the parent is untouched");
    let verified = operator::run(&["verify", &fork.key()]).await?;
    assert!(verified.contains("0 problems"), "{verified}");
    ctx.end().await
}
