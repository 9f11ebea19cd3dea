//! The operator is scaled down to 0.

use dalsegno_crds::Class;
use dalsegno_e2e::cluster::FAULTY_NODE;
use dalsegno_e2e::nodes::with_placement;
use dalsegno_e2e::{Agent, Result, StatusExt, TestContext, process};
use serde_json::json;

/// So many that a run still works when the operator is gone and the drain begins, on a busy machine too.
const TURNS: i32 = 100;

/// Dal Segno does not block a drain: it has no finalizer on pods and no webhook.
#[tokio::test(flavor = "multi_thread")]
async fn kubectl_drain_works_without_the_operator_which_later_resumes_the_evicted_runs_uncharged() -> Result {
    let ctx = TestContext::new("operator-down").await?;
    ctx.schedule_on_faulty_node().await?;
    let mut runs = Vec::new();
    for (name, script) in [
        (
            "heartbeating",
            json!({ "turns": TURNS, "turnSeconds": 0.3, "heartbeat": true, "onTerm": "commit" }),
        ),
        ("quiet", json!({ "turns": TURNS, "turnSeconds": 0.3, "heartbeat": false, "onTerm": "exit1" })),
        ("no-term-handler", json!({ "turns": TURNS, "turnSeconds": 0.3, "onTerm": "default" })),
    ] {
        runs.push(ctx.start(name, &with_placement(Agent::new(script))).await?);
    }
    for run in &runs {
        run.wait_for_turn(3).await?;
    }
    ctx.schedule_anywhere().await?;

    let scaled_down = ctx.operator.scale_down().await?;
    let drained = process::kubectl(["drain", FAULTY_NODE, "--ignore-daemonsets", "--timeout=60s"]).await;
    let uncordoned = process::kubectl(["uncordon", FAULTY_NODE]).await;
    drained?;
    uncordoned?;
    scaled_down.revert().await?;

    for run in &runs {
        let status = run.wait_for_success().await?;
        assert_eq!(status.attempt().number, 2, "{}", run.name);
        let end = status.attempt_end(1)?;
        assert_eq!((end.class, end.charged), (Class::Disruption, false), "{end:?}");
        assert_eq!((status.recovery().recovery_attempts, status.recovery().disruptions), (0, 1));
        run.expect_nothing_lost_or_repeated(TURNS).await?;
    }
    ctx.end().await
}
