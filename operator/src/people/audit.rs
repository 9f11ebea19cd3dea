//! Whether what the store says was done is what was written.

use anyhow::{Context as _, bail};
use dalsegno_store::proof::check_store;

/// Walks all runs and prints what is not as it was written.
///
/// # Errors
///
/// Something is not, or the store does not answer.
pub async fn verify(url: &str) -> anyhow::Result<()> {
    let store = dalsegno_store::open_read_only(url).await.context("opening the store")?;
    let mut reading = store.reading().await.context("beginning to read")?;
    let summary = check_store(&mut *reading, &mut |problem| println!("{problem}"))
        .await
        .context("reading the store")?;
    println!(
        "{} runs, {} audit rows, {} boundaries: {} problems",
        summary.runs, summary.audit, summary.boundaries, summary.problems
    );
    if summary.problems > 0 {
        bail!("the store is not as it was written");
    }
    Ok(())
}
