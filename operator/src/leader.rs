//! One operator at a time, by a Lease. It saves work; that two at once do no harm is the store's doing.

use anyhow::{Context as _, bail};
use kube::Client;
use kube_lease_manager::{LeaseCreateMode, LeaseManagerBuilder};
use tokio_util::sync::CancellationToken;

/// Name of the Lease.
const LEASE: &str = "dalsegno-operator";

/// Waits until this process leads. When it no longer does, `lost` is cancelled and the process is to end.
///
/// # Errors
///
/// The Lease cannot be held, or the process is told to stop meanwhile.
pub async fn lead(
    client: Client,
    namespace: &str,
    identity: &str,
    lost: CancellationToken,
) -> anyhow::Result<()> {
    let manager = LeaseManagerBuilder::new(client, LEASE)
        .with_namespace(namespace)
        .with_identity(identity)
        .with_duration(15)
        .with_grace(3)
        .with_create_mode(LeaseCreateMode::AutoCreate)
        .build()
        .await
        .context("preparing the Lease")?;
    let (mut leading, task) = manager.watch().await;
    tokio::select! {
        led = leading.wait_for(|it| *it) => drop(led.context("waiting to lead")?),
        () = lost.cancelled() => bail!("told to stop before leading"),
    }
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
