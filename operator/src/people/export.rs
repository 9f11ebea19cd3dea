//! A run carried out of the store.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dalsegno_store::proof::Signer;
use dalsegno_store::proof::bundle::Export;
use jiff::Timestamp;

use super::latest;
use crate::config::{RunName, StoreArgs};

/// Writes a run's bundle to a file, or to standard output.
///
/// # Errors
///
/// There is no such run, the store does not answer, or the file cannot be written.
pub async fn export(
    store: &StoreArgs,
    name: &RunName,
    output: Option<&Path>,
    key: Option<&Path>,
) -> anyhow::Result<()> {
    // The store's own key is made when it is first asked for: that is a write.
    let store = store.open_beside().await?;
    let signer = Arc::new(Signer::load(store.as_ref(), key).await.context("fetching the signing key")?);
    let run = latest(store.as_ref(), name).await?;
    let reading = store.reading().await.context("beginning to read")?;
    let begun = Export::begin(reading, run.store_id, run.id, Timestamp::now(), signer.clone());
    let mut export = begun.await.context("beginning the export")?.context("the run is gone")?;
    let mut sink: Box<dyn Write> = match output {
        Some(path) => {
            Box::new(std::fs::File::create_new(path).with_context(|| format!("creating {}", path.display()))?)
        }
        None => Box::new(std::io::stdout().lock()),
    };
    while let Some(lines) = export.next().await.context("exporting the run")? {
        sink.write_all(&lines).context("writing the bundle")?;
    }
    sink.flush().context("writing the bundle")?;
    eprintln!("signed by the public key {}", STANDARD.encode(signer.public_key()));
    Ok(())
}
