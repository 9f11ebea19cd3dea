//! The examples on agent frameworks, as a person applies them: each has its manifest applied on the real cluster, is
//! evicted twice in the middle, and is approved with kubectl. The workflow of DBOS keeps its own checkpoints, and its pods
//! end in several ways. The images are built by `hack/images.sh all`.

use dalsegno_crds::{Cause, Summary};
use dalsegno_e2e::dbos::{expect_each_page_once, start_database, workflow};
use dalsegno_e2e::wait::secs;
use dalsegno_e2e::{Result, StatusExt, TestContext};
use kube::api::DeleteParams;

/// What an example does, however often its pod is evicted.
struct Expected {
    /// Its directory in `deploy/examples`.
    directory: &'static str,
    /// The run of its manifest.
    run: &'static str,
    /// The turns that it commits.
    turns: i32,
    /// How often it asks the model.
    asked: usize,
    /// The notes of its effects in the ledger.
    notes: &'static [&'static str],
}

async fn survives_evictions(expected: Expected) -> Result {
    let Expected { directory, run, turns, asked, notes } = expected;
    let ctx = TestContext::new(&format!("example-{run}")).await?;
    let example = ctx.apply_example(directory, run).await?;
    let status = example.succeed_through_two_evictions().await?;
    example.expect_effects(&status, notes).await?;
    example.expect_nothing_repeated(&status, turns, asked).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn pydantic_ai_buys_once_although_it_is_evicted() -> Result {
    survives_evictions(Expected {
        directory: "pydantic_ai",
        run: "buyer",
        turns: 1,
        asked: 3,
        notes: &[r#"{"supplier": "Bird & Sons", "cents": 500}"#],
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn langgraph_refunds_each_order_once_although_it_is_evicted() -> Result {
    survives_evictions(Expected {
        directory: "langgraph",
        run: "refund-desk",
        turns: 27,
        asked: 9,
        notes: &[
            r#"{"order": "A-1", "cents": 1900}"#,
            r#"{"order": "A-2", "cents": 48900}"#,
            r#"{"order": "A-3", "cents": 750}"#,
        ],
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn openai_agents_pay_each_bill_once_although_they_are_evicted() -> Result {
    survives_evictions(Expected {
        directory: "openai",
        run: "clerk",
        turns: 6,
        asked: 5,
        notes: &["paper: 4200 to Bird & Sons", "heating: 31900 to Warm Ltd", "roof: 98000 to Slate & Co"],
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn claude_pays_each_invoice_once_although_it_is_evicted() -> Result {
    survives_evictions(Expected {
        directory: "claude",
        run: "accountant",
        turns: 6,
        asked: 4,
        notes: &[r#"{"number": "A-17", "cents": 12000}"#, r#"{"number": "A-18", "cents": 48900}"#],
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn dbos_goes_on_at_its_next_step_however_its_pod_ends() -> Result {
    let ctx = TestContext::new("dbos").await?;
    let server = start_database(&ctx).await?;
    let run = ctx.start("run", &workflow(14)).await?;
    run.wait_for_turn(3).await?;
    run.processes().await?.kill().await?;
    run.wait_for_attempt(2, secs(60)).await?;
    run.wait_for_turn(6).await?;
    run.delete_pod(&DeleteParams::default()).await?;
    run.wait_for_attempt(3, secs(60)).await?;
    run.wait_for_turn(9).await?;
    run.evict().await?;
    let status = run.wait_for(Summary::Succeeded, secs(120)).await?;
    let causes = status.causes();
    assert_eq!(causes[..3], [Cause::ExitedWithError, Cause::Deleted, Cause::Evicted], "{causes:?}");
    assert_eq!((status.attempt().number, status.recovery().recovery_attempts), (4, 1));
    expect_each_page_once(&ctx, &run, 14).await?;
    server.remove().await?;
    ctx.end().await
}
