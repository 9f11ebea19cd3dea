//! `dalsegno verify`: verifies a run in the store, or a bundle.

use std::path::Path;

use anyhow::{Context as _, bail};
use dalsegno_core::text::counted;
use dalsegno_model::PayloadLoss;
use dalsegno_proof::verify;
use dalsegno_proof::{PublicKey, bundle, check_run};

use super::runs::find_last;
use super::show::print_state;
use crate::config::{DatabaseArgs, RunRef, StoreArgs, VerifyArgs, VerifyTarget};
use crate::output::print_line;

/// Verifies the target.
///
/// # Errors
///
/// It differs from what was written, it cannot be read, or a flag does not apply to it.
pub async fn run(args: VerifyArgs) -> anyhow::Result<()> {
    let VerifyArgs { target, database_url, encryption, turn, public_key } = args;
    match target {
        VerifyTarget::Bundle(path) => verify_bundle(&path, public_key, turn),
        VerifyTarget::Run(run) => {
            reject_bundle_flags(turn, public_key)?;
            let database_url = database_url.context("to verify a run, name its store: --database-url")?;
            let store = StoreArgs { database: DatabaseArgs { database_url }, encryption };
            verify_run(&store, &run).await
        }
    }
}

/// Checks every boundary and audit row of a run against its hash and every call against its rows, rebuilds every
/// snapshot, and prints the last boundary whose state can be rebuilt.
async fn verify_run(store: &StoreArgs, run: &RunRef) -> anyhow::Result<()> {
    let store = store.open_read_only().await?;
    let run = find_last(store.as_ref(), run).await?;
    let scan = verify::scan(store.as_ref(), &run).await.context("reading the boundaries")?;
    let mut reading = store.begin_read().await.context("starting to read")?;
    let report = check_run(&mut *reading, run.id).await.context("reading the run")?;
    scan.damage.iter().for_each(|damage| print_line!("{damage}"));
    report.problems.iter().for_each(|problem| print_line!("{}: {}", problem.location, problem.what));
    if scan.dropped > 0 {
        print_line!("{}: {}", counted(scan.dropped, "boundary", "boundaries"), PayloadLoss::Dropped);
    }
    if scan.shredded > 0 {
        print_line!("{}: {}", counted(scan.shredded, "boundary", "boundaries"), PayloadLoss::Shredded);
    }
    let problems = (scan.damage.len() + report.problems.len()) as u64 + scan.further;
    print_line!(
        "run {}/{}: {}, {}, {}, {}: {}",
        run.namespace,
        run.name,
        counted(scan.boundaries, "boundary", "boundaries"),
        counted(report.calls, "call", "calls"),
        counted(report.snapshots, "snapshot", "snapshots"),
        counted(report.audit, "audit row", "audit rows"),
        counted(problems, "problem", "problems")
    );
    match scan.last_good {
        Some(boundary_id) => print_line!("the state can be rebuilt up to {boundary_id}"),
        None if scan.boundaries > 0 => print_line!("the state can be rebuilt at no boundary"),
        None => {}
    }
    if problems > 0 {
        bail!("the run differs from what was written");
    }
    Ok(())
}

/// Rejects the flags that apply only to a bundle.
fn reject_bundle_flags(turn: Option<i32>, public_key: Option<PublicKey>) -> anyhow::Result<()> {
    if turn.is_some() {
        bail!(
            "--turn is for a bundle that `dalsegno export` wrote; for a run in the store use `dalsegno show --turn`"
        );
    }
    if public_key.is_some() {
        bail!("--public-key is for a bundle that `dalsegno export` wrote: a run in the store is not signed");
    }
    Ok(())
}

/// Checks a bundle: signature, digest, chains and counts. Then prints the state after `turn`, if given.
fn verify_bundle(path: &Path, key: Option<PublicKey>, turn: Option<i32>) -> anyhow::Result<()> {
    let open = || std::fs::File::open(path).with_context(|| format!("opening {}", path.display()));
    let verified = bundle::verify(std::io::BufReader::new(open()?), key).context("reading the bundle")?;
    verified.report(key.is_some()).iter().for_each(|line| print_line!("{line}"));
    if !verified.problems.is_empty() {
        bail!("the bundle differs from what was written");
    }
    if let Some(turn) = turn {
        let state = bundle::state(std::io::BufReader::new(open()?), turn).context("rebuilding the state")?;
        print_state(turn, state.with_context(|| format!("the bundle has no turn {turn}"))?);
    }
    Ok(())
}
