//! `dalsegno audit`: verifies the audit of all runs, and prunes its start once an anchor vouches for it.

use std::fs::File;
use std::io::{BufRead, BufReader, stdin};
use std::path::Path;

use anyhow::{Context as _, bail};
use dalsegno_core::text::counted;
use dalsegno_model::read_transaction::AuditKey;
use dalsegno_model::{Prune, ReadTransaction, RunId, Store, audit};
use dalsegno_proof::{Anchors, NamedRows, ProvenAnchors, PublicKey, check_store_and_anchors};

use crate::config::{Justification, PruneArgs, VerifyAuditArgs};
use crate::output::print_line;

/// Verifies all anchors and runs. Prints everything that differs from what was written, or from the copy of the anchors.
///
/// # Errors
///
/// Something differs, the copy cannot be read or contains no anchor, or the store is unavailable.
pub async fn verify(args: VerifyAuditArgs) -> anyhow::Result<()> {
    let store = args.store.open_read_only().await?;
    check(store.as_ref(), args.anchors.as_deref(), args.public_key).await.map(|_| ())
}

/// Deletes the start of each run's audit, up to the last row that an anchor of the copy named before the given time.
///
/// # Errors
///
/// As for [`verify`]; then nothing was deleted. Or the database role may not delete audit rows.
pub async fn prune(args: PruneArgs) -> anyhow::Result<()> {
    let PruneArgs { store, before, anchors: copy, public_key, justification } = args;
    let Justification { reason, by } = justification;
    let store = store.open_beside().await?;
    let (copy, anchors) =
        check(store.as_ref(), Some(&copy), public_key).await.context("nothing was pruned")?;
    let mut reading = store.begin_read().await.context("starting to read")?;
    let (mut after, mut runs, mut rows) = (RunId::nil(), 0_u64, 0);
    loop {
        let page = store.run_ids(after).await.context("listing the runs")?;
        let Some(last) = page.last() else { break };
        after = *last;
        reading.renew().await.context("reading the runs")?;
        for run in page {
            let (first, needed) = first_rows(&mut *reading, run).await.context("reading an audit")?;
            let named = NamedRows { run, before, below: needed };
            let last = anchors.last_named(&mut *reading, named).await;
            let last = last.context("reading the anchors of a run")?;
            // Pruning adds a row itself: it must remove more than one.
            let Some((seq, hash)) = last.filter(|(seq, _)| *seq > first) else { continue };
            let prune = Prune { run, seq, hash, actor: by.clone(), reason: reason.clone() };
            rows += store.prune_audit(&prune).await.context("pruning an audit")?;
            runs += 1;
        }
    }
    print_line!("pruned: {} of {}", counted(rows, "row", "rows"), counted(runs, "run", "runs"));
    // The read transaction must not hold old rows while many are deleted.
    drop(reading);
    prune_anchors(store.as_ref(), copy.announced(), anchors.first_since(before)).await
}

/// Deletes the anchors below `announced`, which an anchor of the copy says may be deleted. Then requests that the next
/// anchors announce `next`.
async fn prune_anchors(store: &dyn Store, announced: i64, next: Option<i64>) -> anyhow::Result<()> {
    let mut pruned = 0;
    loop {
        let some = store.prune_anchors(announced).await.context("pruning anchors")?;
        if some == 0 {
            break;
        }
        pruned += some;
    }
    print_line!("pruned: {}", counted(pruned, "anchor", "anchors"));
    forget_purges(store).await.context("deleting purge records")?;
    if let Some(next) = next.filter(|next| *next > announced) {
        let runs = store.request_anchors_from(next).await.context("requesting that anchors be pruned")?;
        print_line!(
            "anchors before {next} can be pruned by the next `audit prune`, with a copy that has an anchor from after this one; \
             {} anchored again until then",
            counted(runs, "run is", "runs are")
        );
    }
    Ok(())
}

/// Deletes the purge records of runs that only pruned anchors named.
async fn forget_purges(store: &dyn Store) -> dalsegno_model::Result<()> {
    let (mut after, mut rows) = (RunId::nil(), 0);
    loop {
        let forgotten = store.forget_purges(after).await?;
        rows += forgotten.rows;
        let Some(next) = forgotten.next else { break };
        after = next;
    }
    if rows > 0 {
        let records = counted(rows, "purge record was", "purge records were");
        print_line!("{records} deleted, of runs that no anchor names any more");
    }
    Ok(())
}

/// Sequence numbers of a run's first audit row, and of the first row that is never pruned.
async fn first_rows(reading: &mut dyn ReadTransaction, run: RunId) -> dalsegno_model::Result<(i64, i64)> {
    let (mut after, mut first, mut permanent) = (AuditKey::before(run), None, Vec::new());
    loop {
        let page = reading.audit(after, run).await?;
        let Some((_, last)) = page.last() else {
            return Ok((first.unwrap_or(i64::MAX), audit::first_needed(&permanent)));
        };
        after.seq = last.seq;
        for (_, row) in page {
            first.get_or_insert(row.seq);
            if audit::records_payload_loss(&row) {
                permanent.push(row);
            }
        }
    }
}

/// Verifies the store and prints every problem. Returns the anchors of the copy (with no copy there are none), and those of
/// the store that they prove.
async fn check(
    store: &dyn Store,
    copy: Option<&Path>,
    keys: Vec<PublicKey>,
) -> anyhow::Result<(Anchors, ProvenAnchors)> {
    let mut problems = 0;
    let mut anchors = Anchors::signed_by(keys);
    if let Some(path) = copy {
        problems += read_copy(path, &mut anchors).with_context(|| format!("reading {}", path.display()))?;
    }
    let copied = anchors.count();
    let mut reading = store.begin_read().await.context("starting to read")?;
    let (summary, proven) =
        check_store_and_anchors(&mut *reading, &anchors, &mut |problem| print_line!("{problem}"))
            .await
            .context("reading the store")?;
    problems += summary.problems;
    let in_copy = copy.map_or_else(String::new, |_| format!(", {copied} in the copy"));
    print_line!(
        "{}, {}, {}, {}, {}, {}{in_copy}: {}",
        counted(summary.runs, "run", "runs"),
        counted(summary.audit, "audit row", "audit rows"),
        counted(summary.boundaries, "boundary", "boundaries"),
        counted(summary.calls, "call", "calls"),
        counted(summary.snapshots, "snapshot", "snapshots"),
        counted(summary.anchors, "anchor", "anchors"),
        counted(problems, "problem", "problems")
    );
    if copied > 0 {
        print_line!(
            "{} exactly where the copy proves; any other has moved since its last anchor",
            counted(summary.proven, "run is", "runs are")
        );
    }
    if summary.purged > 0 {
        let runs = counted(summary.purged, "run was", "runs were");
        print_line!("{runs} purged, and anchors name the record of it");
    }
    if summary.shredded > 0 {
        let runs = counted(summary.shredded, "run was", "runs were");
        print_line!("{runs} shredded: only the chains could be verified");
    }
    if problems > summary.locked {
        bail!("the store differs from what was written");
    }
    if summary.locked > 0 {
        bail!(
            "keys are missing, or the rows of data keys were changed: of {} only the chains could be verified",
            counted(summary.locked, "run", "runs")
        );
    }
    if copy.is_some() && copied == 0 {
        bail!(
            "the copy contains no anchor, so it proves nothing: pass the lines of the sink, in which an anchor is at the end of a \
             line as {{\"anchor\":{{…}}}}, with its quotes not escaped"
        );
    }
    Ok((anchors, proven))
}

/// Reads the anchors of a file, or of standard input if the path is `-`. Returns how many problems it printed.
fn read_copy(path: &Path, anchors: &mut Anchors) -> anyhow::Result<u64> {
    let (name, log): (_, Box<dyn BufRead>) = match path.to_str() {
        Some("-") => ("standard input".to_owned(), Box::new(stdin().lock())),
        _ => (path.display().to_string(), Box::new(BufReader::new(File::open(path)?))),
    };
    let mut problems = 0;
    for (line, number) in log.split(b'\n').zip(1..) {
        let line = line?;
        // Lines without an anchor may hold any bytes.
        let line = String::from_utf8_lossy(&line);
        if let Some(problem) = anchors.take(&format!("{name}, line {number}"), &line) {
            print_line!("{problem}");
            problems += 1;
        }
    }
    Ok(problems)
}
