//! Twenty healthy runs, which an outage must not disturb.

use std::time::Duration;

use dalsegno_e2e::cluster::{FAULTY_NODE, SAFE_NODE};
use dalsegno_e2e::wait::{consistently, secs};
use dalsegno_e2e::{Agent, Result, Run, StatusExt, TestContext};
use futures::future::try_join_all;
use serde_json::json;

/// The number of runs.
const RUNS: usize = 20;

/// Longer than every worker's heartbeat timeout. If the outage counted against the workers, they would be replaced by
/// then.
const OBSERVATION: Duration = secs(15);

/// Runs, half of them on each of two nodes. Every second one sends heartbeats, with a timeout of 10 s.
pub struct Healthy<'c> {
    /// The runs.
    pub runs: Vec<Run<'c>>,
    ctx: &'c TestContext,
    turns: i32,
}

impl<'c> Healthy<'c> {
    /// Starts the runs, each with this number of turns of one second, and waits until each has made four.
    pub async fn start(ctx: &'c TestContext, turns: i32) -> Result<Self> {
        Self::start_on(ctx, turns, [SAFE_NODE, FAULTY_NODE]).await
    }

    /// As [`Self::start`], with the node of each half of the runs.
    pub async fn start_on(ctx: &'c TestContext, turns: i32, nodes: [&str; 2]) -> Result<Self> {
        let start = async |n: usize| {
            let script = json!({ "turns": turns, "turnSeconds": 1, "heartbeat": n.is_multiple_of(2) });
            let node = nodes[n / 2 % 2];
            let agent = Agent::new(script)
                .spec(json!({ "liveness": { "heartbeatTimeoutSeconds": 10 } }))
                .pod(json!({ "nodeSelector": { "kubernetes.io/hostname": node } }));
            ctx.start(&format!("run-{n:02}"), &agent).await
        };
        let runs = try_join_all((0..RUNS).map(start)).await?;
        // By then each has sent its first heartbeat.
        try_join_all(runs.iter().map(|run| run.wait_for_turn(4))).await?;
        Ok(Self { runs, ctx, turns })
    }

    /// The latest turn of each run.
    pub async fn turns(&self) -> Result<Vec<i32>> {
        let keys: Vec<String> = self.runs.iter().map(Run::key).collect();
        try_join_all(keys.iter().map(|key| self.ctx.ledger.highest_turn(key))).await
    }

    /// Checks for 15 s that no run takes another attempt and nothing is counted.
    pub async fn expect_first_attempts(&self) -> Result {
        consistently("twenty runs in their first attempts", OBSERVATION, async || {
            let mut made = self.ctx.audit.all_pods_created()?;
            made.retain(|pod| pod.starts_with("run-"));
            anyhow::ensure!(made.len() == self.runs.len(), "the audit log has these pods: {made:?}");
            Ok(())
        })
        .await?;
        for run in &self.runs {
            let status = run.status().await?;
            let recovery = status.recovery();
            let counted = (status.attempt().number, recovery.recovery_attempts, recovery.disruptions);
            anyhow::ensure!(
                counted == (1, 0, 0),
                "run {}: (attempt, crashes, disruptions) {counted:?}",
                run.name
            );
        }
        Ok(())
    }

    /// Checks that each run succeeds in its first attempt, without a lost or repeated turn.
    pub async fn expect_success(&self) -> Result {
        for run in &self.runs {
            let status = run.wait_for_success().await?;
            anyhow::ensure!(status.attempt().number == 1, "run {} took another attempt", run.name);
            run.expect_nothing_lost_or_repeated(self.turns).await?;
        }
        Ok(())
    }
}
