//! The snapshots of a run, held to the state that its boundaries make.

use super::Problem;
use super::account::Account;
use crate::reading::StoredSnapshot;
use crate::{Reading, Result, RunId};

/// The snapshots of a run.
pub(super) struct Snapshots {
    /// How many there are.
    pub count: u64,
    /// What is wrong with them.
    pub problems: Vec<Problem>,
}

/// Rebuilds every snapshot of a run from its boundaries; where these were dropped, it is held to what the run's audit says,
/// which has been seen.
pub(super) async fn check(reading: &mut dyn Reading, run: RunId, mut account: Account) -> Result<Snapshots> {
    let (mut count, mut problems) = (0, Vec::new());
    for snapshot in reading.snapshots(run).await? {
        count += 1;
        account.see_snapshot(&snapshot);
        let StoredSnapshot { place, digest: _, fault } = snapshot;
        problems.extend(fault.map(|fault| Problem::of(run, format!("snapshot after {place}"), fault)));
    }
    problems.extend(account.end_snapshots(run));
    Ok(Snapshots { count, problems })
}
