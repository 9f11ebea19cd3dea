//! A run carried out of the store.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dalsegno_store::proof::Signer;
use dalsegno_store::proof::bundle::Export;
use jiff::Timestamp;

use super::latest;
use crate::config::{RunRef, StoreArgs};
use crate::output::{Output, mention};

/// Writes a run's bundle to a file that is its owner's alone, or to standard output.
///
/// # Errors
///
/// There is no such run, the store does not answer, or the file cannot be written.
pub async fn export(
    store: &StoreArgs,
    run: &RunRef,
    output: Option<&Path>,
    key: Option<&Path>,
) -> anyhow::Result<()> {
    // The store's own key is made when it is first asked for: that is a write.
    let store = store.open_beside().await?;
    let signer = Arc::new(Signer::load(store.as_ref(), key).await.context("fetching the signing key")?);
    let run = latest(store.as_ref(), run).await?;
    let reading = store.reading().await.context("beginning to read")?;
    let begun = Export::begin(reading, run.store_id, run.id, Timestamp::now(), signer.clone());
    let mut export = begun.await.context("beginning the export")?.context("the run is gone")?;
    match output {
        Some(path) => to_file(&mut export, path).await?,
        None => write(&mut export, &mut Output).await?,
    }
    mention(&format!("signed by the public key {}", STANDARD.encode(signer.public_key())));
    Ok(())
}

/// Into a new file, which nobody but its owner may read. One that is not whole is taken away: it proves nothing, and would
/// be in the way of the next try.
async fn to_file(export: &mut Export, path: &Path) -> anyhow::Result<()> {
    let mut options = OpenOptions::new();
    let made = options.write(true).create_new(true).mode(0o600).open(path);
    let mut file = made.with_context(|| format!("creating {}", path.display()))?;
    let written = write(export, &mut file).await;
    if written.is_err()
        && let Err(error) = std::fs::remove_file(path)
    {
        mention(&format!("{} is not whole, and cannot be removed: {error}", path.display()));
    }
    written
}

async fn write(export: &mut Export, sink: &mut dyn Write) -> anyhow::Result<()> {
    while let Some(lines) = export.next().await.context("exporting the run")? {
        sink.write_all(&lines).context("writing the bundle")?;
    }
    sink.flush().context("writing the bundle")
}
