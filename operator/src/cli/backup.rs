//! `dalsegno backup`: copies the embedded store while the operator uses it, and verifies the copy.

use std::fs::{File, hard_link, remove_file};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use dalsegno_core::text::counted;
use dalsegno_proof::{Anchors, check_store_and_anchors};

use crate::config::{BackupArgs, DatabaseArgs, StoreArgs};
use crate::output::{print_error, print_line};

/// Copies the store to a new file that only its owner can read. The file gets its name after the copy was verified.
///
/// # Errors
///
/// The store is not embedded or unavailable, the file exists, the volume of the copy is full, or the copy differs from what
/// was written. Then there is no copy.
pub async fn run(args: BackupArgs) -> anyhow::Result<()> {
    let BackupArgs { store, to } = args;
    ensure!(
        to.symlink_metadata().is_err(),
        "{} exists already; a backup never overwrites a file",
        to.display()
    );
    let incomplete = with_suffix(&to, ".incomplete");
    dalsegno_store::back_up(store.url(), &incomplete).await.context("copying the store")?;
    let finished = finish(&store, &incomplete, &to).await;
    for file in ["", "-wal", "-shm"].map(|suffix| with_suffix(&incomplete, suffix)) {
        if let Err(error) = remove_file(&file)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            print_error(&format!("{} cannot be removed: {error}", file.display()));
        }
    }
    finished
}

/// Verifies the copy, syncs it and gives it its name.
async fn finish(store: &StoreArgs, copy: &Path, to: &Path) -> anyhow::Result<()> {
    let path = std::path::absolute(copy).context("finding the copy")?;
    let path = path.to_str().context("the name of the file is not UTF-8")?;
    let database = DatabaseArgs { database_url: format!("sqlite://{path}") };
    let copied = StoreArgs { database, encryption: store.encryption.clone() }.open_read_only().await?;
    let mut reading = copied.begin_read().await.context("starting to read the copy")?;
    let anchors = Anchors::signed_by(Vec::new());
    let checked =
        check_store_and_anchors(&mut *reading, &anchors, &mut |problem| print_line!("{problem}")).await;
    let (summary, _) = checked.context("reading the copy")?;
    if summary.problems > summary.locked {
        let problems = counted(summary.problems - summary.locked, "problem", "problems");
        bail!("the copy differs from what was written: {problems}");
    }
    drop((reading, copied));
    let file = File::open(copy).context("opening the copy")?;
    file.sync_all().context("syncing the copy")?;
    // Unlike a rename, this never replaces a file that another program has made meanwhile.
    hard_link(copy, to).with_context(|| format!("creating {}", to.display()))?;
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).context("syncing the folder of the copy")?;
    let bytes = file.metadata().context("measuring the copy")?.len();
    print_line!("{}: {}, {bytes} bytes, verified", to.display(), counted(summary.runs, "run", "runs"));
    if summary.locked > 0 {
        print_error(&format!(
            "without the keys only the chains of {} could be verified",
            counted(summary.locked, "run", "runs")
        ));
    }
    Ok(())
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
