//! What a run keeps of its own past, while it lives.

use dalsegno_crds::{Cause, Class};
use dalsegno_e2e::wait::{eventually, secs};
use dalsegno_e2e::{Agent, Result, StatusExt, TestContext, operator};
use serde_json::json;

/// Turns before the run stands still: enough to drop some, at the operator's next look.
const TURNS: i32 = 15;
/// Boundaries that it keeps; while it lives, up to nine more.
const KEPT: i32 = 3;

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_keeps_its_last_boundaries_only_resumes_after_an_eviction_and_its_old_turns_are_gone()
-> Result {
    let ctx = TestContext::new("keep-last").await?;
    let agent = Agent::new(json!({
        "turns": TURNS + 2,
        "turnSeconds": 0.05,
        "onTerm": "exit143",
        "script": [{ "attempt": 1, "turn": TURNS + 1, "at": "start", "do": "hang" }],
    }))
    .spec(json!({ "retention": { "keepLast": KEPT } }));
    let run = ctx.start("run", &agent).await?;
    run.wait_for_turn(TURNS).await?;
    eventually("what stands before its last boundaries to be dropped", secs(90), async || {
        let shown = operator::run(&["show", &run.key()]).await?;
        Ok(shown.contains("dropped").then_some(()))
    })
    .await?;
    run.evict().await?;

    let status = run.wait_for_success().await?;
    let end = status.attempt_end(1)?;
    assert_eq!((end.cause, end.class, end.charged), (Cause::Evicted, Class::Disruption, false));
    assert_eq!(status.attempt().resumed_from_turn, Some(TURNS), "the state is whole");
    run.expect_nothing_lost_or_repeated(TURNS + 2).await?;

    let (last, old) = ((TURNS + 2).to_string(), "1");
    let shown = operator::run(&["show", &run.key(), "--turn", &last]).await?;
    assert!(shown.contains(&format!("state after turn {last}")), "{shown}");
    let refused = operator::run(&["show", &run.key(), "--turn", old]).await;
    let told = format!("{:#}", refused.expect_err("its state was dropped"));
    assert!(
        told.contains("the state after turn 1 is gone") && told.contains("the first that is kept"),
        "{told}"
    );
    let verified = operator::run(&["verify", &run.key()]).await?;
    assert!(verified.contains("0 problems"), "{verified}");
    ctx.end().await
}
