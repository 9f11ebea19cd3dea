//! Whether what the store says was done is what was written; and the start of it, once an anchor stands for that.

use std::fs::File;
use std::io::{BufRead, BufReader, stdin};
use std::path::Path;

use anyhow::{Context as _, bail};
use dalsegno_store::proof::{Anchors, PublicKey, check_store};
use dalsegno_store::reading::AuditKey;
use dalsegno_store::{Prune, Reading, RunId, Store, audit};
use jiff::Timestamp;

use crate::config::StoreArgs;
use crate::output::print_line;

/// Somebody's word, for the audit.
pub struct Word {
    /// Why.
    pub reason: String,
    /// Who.
    pub by: String,
}

/// Walks all anchors and runs and prints what is not as it was written, or not as a copy of the anchors has it.
///
/// # Errors
///
/// Something is not, the copy cannot be read or holds no anchor, or the store does not answer.
pub async fn verify(store: &StoreArgs, copy: Option<&Path>, keys: Vec<PublicKey>) -> anyhow::Result<()> {
    let store = store.open_read_only().await?;
    check(store.as_ref(), copy, keys).await.map(|_| ())
}

/// Drops the start of each run's audit, up to the last row that the copy's anchors named before this time, if all that is
/// there proves itself.
///
/// # Errors
///
/// As of [`verify`]; then nothing was dropped. Or the role may not drop it.
pub async fn prune(
    store: &StoreArgs,
    copy: &Path,
    keys: Vec<PublicKey>,
    before: Timestamp,
    Word { reason, by }: &Word,
) -> anyhow::Result<()> {
    let store = store.open_beside().await?;
    let anchors = check(store.as_ref(), Some(copy), keys).await.context("nothing was pruned")?;
    let mut reading = store.reading().await.context("beginning to read")?;
    let (mut after, mut runs, mut rows) = (RunId::nil(), 0_u64, 0);
    loop {
        let page = store.run_ids(after).await.context("listing the runs")?;
        let Some(last) = page.last() else { break };
        after = *last;
        for run in page {
            let (first, needed) = ends(&mut *reading, run).await.context("reading an audit")?;
            let last = anchors.last_named(run, before, needed);
            // To say that one row has gone takes one.
            let Some((seq, hash)) = last.filter(|(seq, _)| *seq > first) else { continue };
            let prune = Prune { run, seq, hash, actor: by.clone(), reason: reason.clone() };
            rows += store.prune_audit(&prune).await.context("pruning an audit")?;
            runs += 1;
        }
    }
    print_line!("{rows} rows of {runs} runs were pruned");
    Ok(())
}

/// Numbers of a run's first row, and of the first that is never pruned.
async fn ends(reading: &mut dyn Reading, run: RunId) -> dalsegno_store::Result<(i64, i64)> {
    let (mut after, mut first, mut lasting) = (AuditKey::before(run), None, Vec::new());
    loop {
        let page = reading.audit(after, run).await?;
        let Some((_, last)) = page.last() else {
            return Ok((first.unwrap_or(i64::MAX), audit::first_needed(&lasting)));
        };
        after.seq = last.seq;
        for (_, row) in page {
            first.get_or_insert(row.seq);
            if audit::tells_of_loss(&row) {
                lasting.push(row);
            }
        }
    }
}

/// Prints every problem. The anchors of the copy, if there is none.
async fn check(store: &dyn Store, copy: Option<&Path>, keys: Vec<PublicKey>) -> anyhow::Result<Anchors> {
    let mut problems = 0;
    let mut anchors = Anchors::signed_by(keys);
    if let Some(path) = copy {
        problems += read(path, &mut anchors).with_context(|| format!("reading {}", path.display()))?;
    }
    let copied = anchors.count();
    let mut reading = store.reading().await.context("beginning to read")?;
    let summary = check_store(&mut *reading, anchors.clone(), &mut |problem| print_line!("{problem}"))
        .await
        .context("reading the store")?;
    problems += summary.problems;
    print_line!(
        "{} runs, {} audit rows, {} boundaries, {} calls, {} snapshots, {} anchors, {copied} in the copy: {problems} problems",
        summary.runs,
        summary.audit,
        summary.boundaries,
        summary.calls,
        summary.snapshots,
        summary.anchors
    );
    if summary.shredded > 0 {
        print_line!("{} runs were shredded: of them only the chains are proved", summary.shredded);
    }
    if problems > summary.locked {
        bail!("the store is not as it was written");
    }
    if summary.locked > 0 {
        bail!(
            "keys are missing, or the rows of data keys were changed: of {} runs only the chains are proved",
            summary.locked
        );
    }
    if copy.is_some() && copied == 0 {
        bail!(
            "the copy holds no anchor, so it proves nothing: give the operator's log, in which one stands at the end of a \
             line as {{\"anchor\":{{…}}}}, its quotes not escaped"
        );
    }
    Ok(anchors)
}

/// Takes the anchors in a file, or in standard input where it is `-`; answers how many problems it told.
fn read(path: &Path, anchors: &mut Anchors) -> anyhow::Result<u64> {
    let (name, log): (_, Box<dyn BufRead>) = match path.to_str() {
        Some("-") => ("standard input".to_owned(), Box::new(stdin().lock())),
        _ => (path.display().to_string(), Box::new(BufReader::new(File::open(path)?))),
    };
    let mut problems = 0;
    for (line, number) in log.split(b'\n').zip(1..) {
        let line = line?;
        // Other lines may hold any bytes.
        let line = String::from_utf8_lossy(&line);
        if let Some(problem) = anchors.take(&format!("{name}, line {number}"), &line) {
            print_line!("{problem}");
            problems += 1;
        }
    }
    Ok(problems)
}
