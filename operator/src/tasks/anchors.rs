//! Anchors the heads of all runs periodically. An anchor is stored, and printed on standard output: a collector of logs
//! then has a copy that nobody with access to the database can change.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_model::{Result, Store};
use dalsegno_proof::{Anchor, Signer};
use jiff::Timestamp;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::log::error_chain;

/// Anchors the runs that changed, once per period `every`, until `stop`. `key`: file of the signing key; unset: the store's
/// own. If the store is unavailable, the next round tries again.
pub async fn run(store: Arc<dyn Store>, every: Duration, key: Option<PathBuf>, stop: CancellationToken) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut signer = None;
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        if let Err(error) = anchor(store.as_ref(), key.as_ref(), &mut signer, &mut std::io::stdout()).await {
            tracing::warn!(error = error_chain(&error), "the changed runs could not be anchored");
        }
    }
}

async fn anchor(
    store: &dyn Store,
    key: Option<&PathBuf>,
    signer: &mut Option<Signer>,
    output: &mut (dyn Write + Send),
) -> Result<()> {
    loop {
        let moved = store.heads_to_anchor().await?;
        if moved.heads.is_empty() {
            return Ok(());
        }
        let signer = match signer {
            Some(signer) => signer,
            None => signer.insert(Signer::load(store, key.map(PathBuf::as_path)).await?),
        };
        let anchor = Anchor::next(&moved, store.id().await?, Timestamp::now(), signer).row()?;
        // If another operator has stored this anchor first, it has printed its own.
        if store.put_anchor(&anchor).await?
            && let Err(error) = writeln!(output, "{}", anchor.line).and_then(|()| output.flush())
        {
            tracing::error!(%error, "an anchor is stored, but could not be printed: external copies will lack it");
        }
    }
}

#[cfg(test)]
mod tests {
    use dalsegno_model::{Deadlines, NewRun, OnPrior, Operator as _};
    use dalsegno_store::sqlite::Sqlite;
    use uuid::Uuid;

    use super::*;

    /// A log whose reader is gone.
    struct BrokenLog;

    impl Write for BrokenLog {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_store_without_changes_is_not_anchored() {
        let store = Sqlite::memory().await.expect("a store");
        let mut signer = None;
        anchor(&store, None, &mut signer, &mut BrokenLog).await.expect("it succeeds");
        assert!(signer.is_none(), "nothing was signed");
    }

    #[tokio::test]
    async fn an_anchor_that_cannot_be_printed_is_stored_and_the_next_one_is_printed() {
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
            let output: &mut (dyn Write + Send) = if name == "first" { &mut BrokenLog } else { &mut log };
            anchor(&store, None, &mut signer, output).await.expect("it is stored");
        }
        let log = String::from_utf8(log).expect("text");
        assert_eq!((log.lines().count(), log.contains(r#""seq":2"#)), (1, true), "{log}");
    }

    #[tokio::test]
    async fn a_tick_writes_one_short_line_whatever_the_number_of_runs() {
        let store = Sqlite::memory().await.expect("a store");
        for number in 0..1_000 {
            let name = format!("run-{number}");
            let run = NewRun {
                id: Uuid::now_v7(),
                tenant: "tenant".into(),
                namespace: "shop".into(),
                name: name.clone(),
                object_uid: name,
                reset_generation: 0,
                deadlines: Deadlines { heartbeat_ms: 1, start_ms: 1, progress_ms: 1 },
                on_prior: OnPrior::Hold,
            };
            store.create_run(&run).await.expect("a run");
        }
        let (mut signer, mut log) = (None, Vec::new());
        anchor(&store, None, &mut signer, &mut log).await.expect("it succeeds");
        let lines = log.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
        assert!(lines == 1 && log.len() <= 301, "{lines} lines, {} bytes", log.len());
    }
}
