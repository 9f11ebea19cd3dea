//! Anchors, made while the operator works: kept in the store, and told on standard output, where a collector of logs
//! takes a copy that nobody with access to the database can bend.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_store::proof::{Anchor, Signer};
use dalsegno_store::{Result, Store};
use jiff::Timestamp;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::telemetry::chain;

/// Anchors what has moved, every so often, until told to stop. A store that is away is asked again the next time.
pub async fn follow(store: Arc<dyn Store>, every: Duration, key: Option<PathBuf>, stop: CancellationToken) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut signer = None;
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        if let Err(error) = anchor(store.as_ref(), key.as_ref(), &mut signer).await {
            tracing::warn!(error = chain(&error), "what has moved could not be anchored");
        }
    }
}

async fn anchor(store: &dyn Store, key: Option<&PathBuf>, signer: &mut Option<Signer>) -> Result<()> {
    loop {
        let moved = store.unanchored().await?;
        if moved.standings.is_empty() {
            return Ok(());
        }
        let signer = match signer {
            Some(signer) => signer,
            None => signer.insert(Signer::load(store, key.map(PathBuf::as_path)).await?),
        };
        let anchor = Anchor::next(&moved, store.id().await?, Timestamp::now(), signer);
        let line = anchor.line()?;
        // Another operator may have been faster: it has told what it kept.
        if store.put_anchor(&anchor).await? {
            println!("{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dalsegno_store::sqlite::Sqlite;

    #[tokio::test]
    async fn a_store_in_which_nothing_moves_is_not_anchored() {
        let store = Sqlite::memory().await.expect("a store");
        let mut signer = None;
        anchor(&store, None, &mut signer).await.expect("it answers");
        assert!(signer.is_none(), "nothing was signed");
    }
}
