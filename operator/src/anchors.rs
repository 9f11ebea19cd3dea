//! Anchors, made while the operator works: kept in the store, and told on standard output, where a collector of logs
//! takes a copy that nobody with access to the database can bend.

use std::io::Write;
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
        if let Err(error) = anchor(store.as_ref(), key.as_ref(), &mut signer, &mut std::io::stdout()).await {
            tracing::warn!(error = chain(&error), "what has moved could not be anchored");
        }
    }
}

async fn anchor(
    store: &dyn Store,
    key: Option<&PathBuf>,
    signer: &mut Option<Signer>,
    told: &mut (dyn Write + Send),
) -> Result<()> {
    loop {
        let moved = store.unanchored().await?;
        if moved.standings.is_empty() {
            return Ok(());
        }
        let signer = match signer {
            Some(signer) => signer,
            None => signer.insert(Signer::load(store, key.map(PathBuf::as_path)).await?),
        };
        let anchor = Anchor::next(&moved, store.id().await?, Timestamp::now(), signer).row()?;
        // Another operator may have been faster: it has told what it kept.
        if store.put_anchor(&anchor).await?
            && let Err(error) = writeln!(told, "{}", anchor.line).and_then(|()| told.flush())
        {
            tracing::error!(%error, "an anchor is kept, and could not be told: a copy outside will lack it");
        }
    }
}

#[cfg(test)]
mod tests {
    use dalsegno_store::sqlite::Sqlite;
    use dalsegno_store::{Deadlines, NewRun, OnPrior, Operator as _};
    use uuid::Uuid;

    use super::*;

    /// A log that nobody reads any more.
    struct Broken;

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_store_in_which_nothing_moves_is_not_anchored() {
        let store = Sqlite::memory().await.expect("a store");
        let mut signer = None;
        anchor(&store, None, &mut signer, &mut Broken).await.expect("it answers");
        assert!(signer.is_none(), "nothing was signed");
    }

    #[tokio::test]
    async fn an_anchor_that_cannot_be_told_is_kept_all_the_same_and_the_next_one_is_told() {
        let store = Sqlite::memory().await.expect("a store");
        let (mut signer, mut log) = (None, Vec::new());
        for name in ["first", "second"] {
            let run = NewRun {
                id: Uuid::now_v7(),
                tenant: "tenant".into(),
                namespace: "shop".into(),
                name: name.into(),
                object_uid: name.into(),
                reset_generation: 0,
                deadlines: Deadlines { heartbeat_ms: 1, start_ms: 1, progress_ms: 1 },
                on_prior: OnPrior::Hold,
            };
            store.create_run(&run).await.expect("a run");
            let told: &mut (dyn Write + Send) = if name == "first" { &mut Broken } else { &mut log };
            anchor(&store, None, &mut signer, told).await.expect("it is kept");
        }
        let log = String::from_utf8(log).expect("text");
        assert_eq!((log.lines().count(), log.contains(r#""seq":2"#)), (1, true), "{log}");
    }
}
