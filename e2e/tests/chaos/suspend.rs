//! The operator dies while runs are suspended.

use dalsegno_crds::Summary;
use dalsegno_e2e::wait::secs;
use dalsegno_e2e::{Agent, Result, TestContext};
use serde_json::json;

/// How long nothing should happen.
const QUIET: std::time::Duration = secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn suspended_runs_get_no_pod_from_a_new_operator_and_cost_no_write() -> Result {
    let ctx = TestContext::new("suspend-restart").await?;
    let parked = ctx.start("parked", &Agent::new(json!({ "turns": 8, "turnSeconds": 0.5 }))).await?;
    let suspended = json!({ "operatingMode": "Suspended" });
    let never =
        ctx.start("never", &Agent::new(json!({ "turns": 2, "turnSeconds": 0.1 })).spec(suspended)).await?;
    parked.wait_for_turn(2).await?;
    parked.suspend().await?;
    for run in [&parked, &never] {
        run.wait_for(Summary::Suspended, secs(60)).await?;
    }
    // By then the last pod has ended, and everything is written.
    tokio::time::sleep(secs(10)).await;

    let writes = || -> Result<_> {
        Ok([ctx.audit.operator_writes(&parked.name)?, ctx.audit.operator_writes(&never.name)?])
    };
    let before = writes()?;
    tokio::time::sleep(QUIET).await;
    assert_eq!(before, writes()?, "a suspended run should cost no write");
    ctx.operator.scale_down().await?.revert().await?;
    ctx.operator.ready().await?;
    tokio::time::sleep(QUIET).await;
    assert_eq!(before, writes()?, "a suspended run should cost a new operator no write");
    ctx.audit.expect_pods(&parked.name, [1])?;
    ctx.audit.expect_pods(&never.name, [])?;

    for (run, turns) in [(&parked, 8), (&never, 2)] {
        run.resume().await?;
        run.wait_for_success().await?;
        run.expect_nothing_lost_or_repeated(turns).await?;
    }
    ctx.end().await
}
