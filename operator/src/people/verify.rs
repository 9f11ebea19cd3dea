//! A run held to its own proofs: in the store, or as a bundle anywhere.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dalsegno_store::proof::{PublicKey, bundle, check_run};
use dalsegno_store::{Gone, verify};

use super::latest;
use super::show::print_channels;
use crate::config::{RunRef, StoreArgs};
use crate::output::print_line;

/// What is verified.
#[derive(Clone, Debug)]
pub enum Target {
    /// A bundle.
    File(PathBuf),
    /// A run in the store.
    Run(RunRef),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if Path::new(text).is_file() {
            return Ok(Self::File(text.into()));
        }
        let run = text.parse().map(Self::Run);
        run.map_err(|error: String| format!("there is no file {text}; or {error}"))
    }
}

/// Holds every boundary and every audit row of a run to its hash and every call to its rows, rebuilds every snapshot, and
/// tells from where the run could go on.
///
/// # Errors
///
/// Something is wrong with the run, there is none, or the store does not answer.
pub async fn run(store: &StoreArgs, run: &RunRef) -> anyhow::Result<()> {
    let store = store.open_read_only().await?;
    let run = latest(store.as_ref(), run).await?;
    let found = verify::survey(store.as_ref(), &run).await.context("reading the boundaries")?;
    let mut reading = store.reading().await.context("beginning to read")?;
    let checked = check_run(&mut *reading, run.id).await.context("reading the run")?;
    found.damage.iter().for_each(|damage| print_line!("{damage}"));
    checked.problems.iter().for_each(|problem| print_line!("{}: {}", problem.place, problem.what));
    if found.dropped > 0 {
        print_line!("{} boundaries: {}", found.dropped, Gone::Dropped);
    }
    if found.shredded > 0 {
        print_line!("{} boundaries: {}", found.shredded, Gone::Shredded);
    }
    let problems = (found.damage.len() + checked.problems.len()) as u64 + found.further;
    print_line!(
        "run {}/{}: {} boundaries, {} calls, {} snapshots, {} audit rows: {problems} problems",
        run.namespace,
        run.name,
        found.boundaries,
        checked.calls,
        checked.snapshots,
        checked.audit
    );
    match found.last_good {
        Some(place) => print_line!("its state can be rebuilt up to {place}"),
        None if found.boundaries > 0 => print_line!("its state can be rebuilt at no boundary"),
        None => {}
    }
    if problems > 0 {
        bail!("the run is not as it was written");
    }
    Ok(())
}

/// Refuses the flags that say something of a bundle, where a run is verified in its store.
///
/// # Errors
///
/// One of them is there.
pub fn refuse_of_bundle(turn: Option<i32>, public_key: Option<PublicKey>) -> anyhow::Result<()> {
    if turn.is_some() {
        bail!(
            "--turn is for a bundle that `dalsegno export` wrote; of a run in the store, `dalsegno show --turn` shows it"
        );
    }
    if public_key.is_some() {
        bail!(
            "--public-key is for a bundle that `dalsegno export` wrote: nothing has signed a run in the store"
        );
    }
    Ok(())
}

/// Holds a bundle to its signature, digest, chains and counts; then shows the state after a turn, if one is named.
///
/// # Errors
///
/// Something is wrong with it, it cannot be read, or it has no such turn.
pub fn bundle(path: &Path, key: Option<PublicKey>, turn: Option<i32>) -> anyhow::Result<()> {
    let open = || std::fs::File::open(path).with_context(|| format!("opening {}", path.display()));
    let found = bundle::verify(std::io::BufReader::new(open()?), key).context("reading the bundle")?;
    for problem in &found.problems {
        print_line!("{problem}");
    }
    print_line!(
        "run {}: {} boundaries, {} events, {} calls, {} audit rows: {} problems",
        found.run,
        found.boundaries,
        found.events,
        found.calls,
        found.audit,
        found.problems.len()
    );
    if found.shredded {
        print_line!("the run was shredded before it was exported: its payloads are not in the bundle");
    }
    if let Some(named) = found.public_key {
        let trust = if key.is_some() { "" } else { " (which the bundle itself names: compare it)" };
        print_line!("public key {}{trust}", STANDARD.encode(named));
    }
    if !found.problems.is_empty() {
        bail!("the bundle is not as it was written");
    }
    if let Some(turn) = turn {
        let state = bundle::state(std::io::BufReader::new(open()?), turn).context("rebuilding the state")?;
        print_channels(turn, state.with_context(|| format!("the bundle has no turn {turn}"))?);
    }
    Ok(())
}

/// A public key in base64, as `export` and `verify` print it.
///
/// # Errors
///
/// It is not 32 bytes in base64.
pub fn public_key(text: &str) -> Result<PublicKey, String> {
    let bytes = STANDARD.decode(text).map_err(|error| format!("not base64: {error}"))?;
    bytes.try_into().map_err(|_| "a public key is 32 bytes".to_owned())
}
