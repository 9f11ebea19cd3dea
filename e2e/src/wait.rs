//! Polling. It is the only place where a test sleeps until something becomes true.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::Result;

/// The pause between two polls.
const PERIOD: Duration = Duration::from_millis(150);

/// Timeout of one poll.
const POLL_TIMEOUT: Duration = Duration::from_secs(10);

/// Seconds, for short lines in tests.
pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Polls until `poll` returns a value. An error of `poll` counts as "not yet", because the polled server may be
/// unavailable.
///
/// If the limit passes, the error names what was awaited and the last poll's error.
pub async fn eventually<T>(
    what: impl Display,
    limit: Duration,
    poll: impl AsyncFn() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        let failure = match timeout(POLL_TIMEOUT, poll()).await {
            Ok(Ok(Some(found))) => return Ok(found),
            Ok(Ok(None)) => None,
            Ok(Err(error)) => Some(format!("{error:#}")),
            Err(_) => Some(format!("no answer within {POLL_TIMEOUT:?}")),
        };
        if Instant::now() >= deadline {
            let failure = failure.map(|text| format!("; the last poll failed: {text}")).unwrap_or_default();
            anyhow::bail!("timed out after {limit:?} waiting for {what}{failure}");
        }
        sleep(PERIOD).await;
    }
}

/// Polls for the whole time and fails at the first error of `poll`.
pub async fn consistently(what: impl Display, time: Duration, poll: impl AsyncFn() -> Result) -> Result {
    let end = Instant::now() + time;
    while Instant::now() < end {
        poll().await.map_err(|error| error.context(format!("did not stay true for {time:?}: {what}")))?;
        sleep(PERIOD).await;
    }
    Ok(())
}
