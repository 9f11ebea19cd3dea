//! `dalsegno export`: writes a run as a signed bundle.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Error};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dalsegno_model::Store;
use dalsegno_proof::Signer;
use dalsegno_proof::bundle::{Export, ExportOf};
use jiff::Timestamp;

use super::runs::find_last;
use crate::config::{ExportArgs, StoreArgs};
use crate::output::{Output, print_error};

/// Writes the bundle of a run to a file that only its owner can read, or to standard output.
///
/// # Errors
///
/// There is no such run, the store is unavailable, or the file cannot be written.
pub async fn run(args: ExportArgs) -> anyhow::Result<()> {
    let ExportArgs { store, run, output, key } = args;
    let (store, signer) = open(&store, key.signing_key.as_deref()).await?;
    let signer = Arc::new(signer);
    let run = find_last(store.as_ref(), &run).await?;
    let reading = store.begin_read().await.context("starting to read")?;
    let of = ExportOf { store: run.store_id, run: run.id, at: Timestamp::now() };
    let export = Export::begin(reading, of, signer.clone());
    let export = export.await.context("starting the export")?;
    let mut export = export.context("the store no longer has the run")?;
    match output {
        Some(path) => write_file(&mut export, &path).await?,
        None => write(&mut export, &mut Output).await?,
    }
    print_error(&format!("signed by the public key {}", STANDARD.encode(signer.public_key())));
    Ok(())
}

/// Opens the store for reading, and for writing only if that is needed: the first use of the store's own key creates it.
async fn open(store: &StoreArgs, key: Option<&Path>) -> anyhow::Result<(Arc<dyn Store>, Signer)> {
    let reader = store.open_read_only().await?;
    if let Ok(signer) = Signer::load(reader.as_ref(), key).await {
        return Ok((reader, signer));
    }
    let writer = store.open_beside().await?;
    let signer = Signer::load(writer.as_ref(), key).await.context("fetching the signing key")?;
    Ok((writer, signer))
}

/// Writes a new file that only its owner can read. An incomplete file is removed: it proves nothing, and the next try
/// could not create it.
async fn write_file(export: &mut Export, path: &Path) -> anyhow::Result<()> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let mut file = file.map_err(|error| {
        // As in the operator's pod, which has no shell either.
        let hint = match error.kind() {
            ErrorKind::ReadOnlyFilesystem => " (leave --output out, and redirect the standard output)",
            _ => "",
        };
        Error::new(error).context(format!("creating {}{hint}", path.display()))
    })?;
    let written = write(export, &mut file).await;
    if written.is_err()
        && let Err(error) = std::fs::remove_file(path)
    {
        print_error(&format!("{} is incomplete, and cannot be removed: {error}", path.display()));
    }
    written
}

async fn write(export: &mut Export, sink: &mut dyn Write) -> anyhow::Result<()> {
    while let Some(lines) = export.next().await.context("exporting the run")? {
        sink.write_all(&lines).context("writing the bundle")?;
    }
    sink.flush().context("writing the bundle")
}
