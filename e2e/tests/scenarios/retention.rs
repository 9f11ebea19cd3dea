//! The retention of an active run's old boundaries.

use dalsegno_crds::{Cause, Class};
use dalsegno_e2e::wait::{eventually, secs};
use dalsegno_e2e::{Agent, Result, StatusExt, TestContext, operator};
use serde_json::json;

/// Turns before the run hangs: enough for the operator to drop some of them.
const TURNS: i32 = 15;
/// The value of `keepLast`. An active run keeps up to nine boundaries more.
const KEEP_LAST: i32 = 3;

#[tokio::test(flavor = "multi_thread")]
async fn a_run_with_keep_last_resumes_after_an_eviction_and_drops_its_old_turns() -> Result {
    let ctx = TestContext::new("keep-last").await?;
    let agent = Agent::new(json!({
        "turns": TURNS + 2,
        "turnSeconds": 0.05,
        "onTerm": "exit143",
        "script": [{ "attempt": 1, "turn": TURNS + 1, "at": "start", "do": "hang" }],
    }))
    .spec(json!({ "retention": { "keepLast": KEEP_LAST } }));
    let run = ctx.start("run", &agent).await?;
    run.wait_for_turn(TURNS).await?;
    eventually("the old boundaries to be dropped", secs(90), async || {
        let shown = operator::run(&["show", &run.key()]).await?;
        Ok(shown.contains("dropped").then_some(()))
    })
    .await?;
    run.evict().await?;

    let status = run.wait_for_success().await?;
    let end = status.attempt_end(1)?;
    assert_eq!((end.cause, end.class, end.charged), (Cause::Evicted, Class::Disruption, false));
    assert_eq!(status.attempt().resumed_from_turn, Some(TURNS), "the run should resume with its full state");
    run.expect_nothing_lost_or_repeated(TURNS + 2).await?;

    let (last, old) = ((TURNS + 2).to_string(), "1");
    let shown = operator::run(&["show", &run.key(), "--turn", &last]).await?;
    assert!(shown.contains(&format!("state after turn {last}")), "{shown}");
    let refused = operator::run(&["show", &run.key(), "--turn", old]).await;
    let message = format!("{:#}", refused.expect_err("the state after turn 1 should be dropped"));
    let turns = message
        .split("turn ")
        .skip(1)
        .filter_map(|rest| rest.split(|next: char| !next.is_ascii_digit()).next()?.parse::<i32>().ok());
    let (dropped, kept): (Vec<i32>, Vec<i32>) = turns.partition(|turn| *turn == 1);
    assert!(
        !dropped.is_empty() && !kept.is_empty(),
        "the message should name turn 1 and the first kept turn: {message}"
    );
    let verified = operator::run(&["verify", &run.key()]).await?;
    assert!(verified.contains("0 problems"), "{verified}");
    ctx.end().await
}
