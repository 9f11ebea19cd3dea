//! Background tasks of the operator that leads.

pub mod anchor_sink;
pub mod anchors;
pub mod cache_cleanup;
pub mod capacity;
pub mod certificates;
pub mod deadline_poll;
pub mod leader;
pub mod notifications;
pub mod policies;
mod progress_mirror;
pub mod purge;
pub mod retention;
pub mod run_counts;
pub mod watches;

use std::pin::pin;

use anyhow::{Context as _, bail};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Runs `work` as long as all tasks run. A task that ends before `stop` ends the work with an error,
/// because no other task replaces it.
///
/// # Errors
///
/// A task ended before `stop`, or panicked.
pub async fn run_with_tasks(
    work: impl Future<Output = ()>,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            () = &mut work => return Ok(()),
            Some(ended) = tasks.join_next() => {
                ended.context("a background task of the operator panicked")?;
                if !stop.is_cancelled() {
                    bail!("a background task of the operator ended before the stop");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    async fn error_with(
        task: impl Future<Output = ()> + Send + 'static,
        stop: &CancellationToken,
    ) -> Option<String> {
        let mut tasks = JoinSet::new();
        tasks.spawn(task);
        let work = async { stop.cancelled().await };
        run_with_tasks(work, &mut tasks, stop).await.err().map(|error| format!("{error:#}"))
    }

    #[tokio::test]
    async fn a_task_that_panics_or_ends_by_itself_ends_the_operator() {
        let stop = CancellationToken::new();
        let error = error_with(async { panic!("no such poll") }, &stop).await.unwrap_or_default();
        assert!(error.contains("panicked") && error.contains("no such poll"), "{error}");
        let error = error_with(async {}, &stop).await.unwrap_or_default();
        assert!(error.contains("ended before the stop"), "{error}");
    }

    #[tokio::test]
    async fn a_task_that_ends_after_the_stop_is_no_error() {
        let stop = CancellationToken::new();
        let obeys = stop.clone().cancelled_owned();
        let cancel = async {
            tokio::task::yield_now().await;
            stop.cancel();
        };
        assert_eq!(tokio::join!(error_with(obeys, &stop), cancel).0, None);
        assert_eq!(error_with(pending(), &stop).await, None);
    }
}
