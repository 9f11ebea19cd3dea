//! One operator at a time, by a Lease. It saves work; that two at once do no harm is the store's doing.

use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use kube_lease_manager::{LeaseCreateMode, LeaseManagerBuilder};
use tokio_util::sync::CancellationToken;

use crate::client::bounded;

/// Name of the Lease.
const LEASE: &str = "dalsegno-operator";
/// How long an answer about it may take: a third of the time that it is held for.
const PATIENCE: Duration = Duration::from_secs(5);

/// Waits until this process leads. When it no longer does, `lost` is cancelled and the process is to end.
///
/// # Errors
///
/// The Lease cannot be held.
pub async fn lead(
    client: Client,
    namespace: &str,
    identity: &str,
    lost: CancellationToken,
) -> anyhow::Result<()> {
    let manager = LeaseManagerBuilder::new(bounded(client, PATIENCE), LEASE)
        .with_namespace(namespace)
        .with_identity(identity)
        .with_duration(15)
        .with_grace(3)
        .with_create_mode(LeaseCreateMode::AutoCreate)
        .build()
        .await
        .context("preparing the Lease")?;
    let (mut leading, task) = manager.watch().await;
    leading.wait_for(|it| *it).await.context("waiting to lead")?;
    tracing::info!(identity, "leading");
    tokio::spawn(async move {
        // Dropping the task's handle lets it run; its receiver must live as long as we lead.
        let _task = task;
        let _ = leading.wait_for(|it| !*it).await;
        tracing::error!("no longer leading; ending");
        lost.cancel();
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;

    use axum::http::{Request, Response};
    use kube::client::Body;

    use super::*;

    #[tokio::test]
    async fn a_lease_of_which_the_api_server_says_nothing_is_an_error_and_not_waited_for() {
        let silent = tower::service_fn(|_: Request<Body>| pending::<Result<Response<Body>, Infallible>>());
        let client = Client::new(silent, "default");
        let leading = lead(client, "default", "dalsegno", CancellationToken::new());
        let led = tokio::time::timeout(PATIENCE * 4, leading).await.expect("it comes to an end");
        let error = format!("{:#}", led.expect_err("nobody said that we lead"));
        assert!(error.contains("no answer within 5s"), "{error}");
    }
}
