//! Checks each minute whether the chart's admission policies are in place. They are also checked before a decision counts.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::approvals::PolicyState;
use tokio_util::sync::CancellationToken;

use crate::controller::context::Context;

/// Interval of the checks.
const INTERVAL: Duration = Duration::from_secs(60);

/// Checks the policies each minute, until cancelled. A change wakes the runs that have approvals.
pub async fn run(ctx: Arc<Context>, stop: CancellationToken) {
    loop {
        let before = ctx.policies.state();
        let after = ctx.policies.check(&ctx.client).await;
        if before != after {
            match &after {
                PolicyState::InPlace { .. } => tracing::info!("the admission policies are in place"),
                PolicyState::Missing(which) => {
                    tracing::warn!(
                        which,
                        "no decision about an approval counts: an admission policy is not in place"
                    );
                }
            }
            ctx.approvals.runs().iter().for_each(|run| ctx.enqueue(run));
        }
        ctx.metrics.set_policies_in_place(matches!(after, PolicyState::InPlace { .. }));
        if stop.run_until_cancelled(tokio::time::sleep(INTERVAL)).await.is_none() {
            return;
        }
    }
}
