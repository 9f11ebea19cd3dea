//! Waiting: the only place where a story sleeps for something to become true.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::Result;

/// Between two looks.
const PERIOD: Duration = Duration::from_millis(150);

/// What one look at the API server or the ledger may take.
const LOOK: Duration = Duration::from_secs(10);

/// Seconds, for short lines in stories.
pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Looks again and again until `look` returns something. An error of `look` means "not yet": what it looks at may be
/// away just now.
///
/// # Errors
///
/// It was not so within `limit`; the error says what was waited for and what the last look saw.
pub async fn until<T>(
    what: impl Display,
    limit: Duration,
    look: impl AsyncFn() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        let failure = match timeout(LOOK, look()).await {
            Ok(Ok(Some(found))) => return Ok(found),
            Ok(Ok(None)) => None,
            Ok(Err(error)) => Some(format!("{error:#}")),
            Err(_) => Some(format!("no answer within {LOOK:?}")),
        };
        if Instant::now() >= deadline {
            let failure = failure.map(|text| format!("; the last look: {text}")).unwrap_or_default();
            anyhow::bail!("waited {limit:?} in vain for {what}{failure}");
        }
        sleep(PERIOD).await;
    }
}

/// Looks again and again for the whole time: `look` fails as soon as something is not as it must stay.
///
/// # Errors
///
/// The first error of `look`.
pub async fn consistently(what: impl Display, time: Duration, look: impl AsyncFn() -> Result) -> Result {
    let end = Instant::now() + time;
    while Instant::now() < end {
        look().await.map_err(|error| error.context(format!("it should have stayed so: {what}")))?;
        sleep(PERIOD).await;
    }
    Ok(())
}
