//! Whether what the store says was done is what was written.

use std::io::BufRead as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use dalsegno_store::proof::{Anchors, PublicKey, check_store};

use crate::config::StoreArgs;

/// Walks all anchors and runs and prints what is not as it was written, or not as a copy of the anchors has it.
///
/// # Errors
///
/// Something is not, the copy cannot be read or holds no anchor, or the store does not answer.
pub async fn verify(store: &StoreArgs, copy: Option<&Path>, key: Option<PublicKey>) -> anyhow::Result<()> {
    let mut problems = 0;
    let mut anchors = Anchors::signed_by(key);
    if let Some(path) = copy {
        problems += read(path, &mut anchors).with_context(|| format!("reading {}", path.display()))?;
    }
    let copied = anchors.count();
    let store = store.open_read_only().await?;
    let mut reading = store.reading().await.context("beginning to read")?;
    let summary = check_store(&mut *reading, anchors, &mut |problem| println!("{problem}"))
        .await
        .context("reading the store")?;
    problems += summary.problems;
    println!(
        "{} runs, {} audit rows, {} boundaries, {} snapshots, {} anchors, {copied} in the copy: {problems} problems",
        summary.runs, summary.audit, summary.boundaries, summary.snapshots, summary.anchors
    );
    if summary.shredded > 0 {
        println!("{} runs were shredded: of them only the chains are proved", summary.shredded);
    }
    if problems > 0 {
        bail!("the store is not as it was written");
    }
    if copy.is_some() && copied == 0 {
        bail!("the copy holds no anchor, so it proves nothing");
    }
    Ok(())
}

/// Takes the anchors in a file; answers how many problems it told.
fn read(path: &Path, anchors: &mut Anchors) -> anyhow::Result<u64> {
    let mut problems = 0;
    for (line, number) in std::io::BufReader::new(std::fs::File::open(path)?).lines().zip(1..) {
        if let Some(problem) = anchors.take(&format!("{}, line {number}", path.display()), &line?) {
            println!("{problem}");
            problems += 1;
        }
    }
    Ok(problems)
}
