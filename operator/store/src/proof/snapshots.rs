//! The snapshots of a run, held to the state that its boundaries make.

use super::Problem;
use super::losses::Losses;
use crate::reading::{AuditKey, StoredSnapshot};
use crate::{Reading, Result, RunId};

/// The snapshots of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshots {
    /// How many there are.
    pub count: u64,
    /// What is wrong with them.
    pub problems: Vec<Problem>,
}

/// Rebuilds every snapshot of a run from its boundaries; where these were dropped, it is held to what the run's audit says.
///
/// # Errors
///
/// The store does not answer.
pub async fn check_snapshots(reading: &mut dyn Reading, run: RunId) -> Result<Snapshots> {
    let mut losses = Losses::default();
    let mut after = AuditKey::before(run);
    loop {
        let page = reading.audit(after, run).await?;
        let Some((_, last)) = page.last() else { break };
        after.seq = last.seq;
        page.iter().for_each(|(_, row)| losses.see_audit(row));
    }
    check(reading, run, losses).await
}

/// The same, once the run's audit has been seen.
pub(super) async fn check(reading: &mut dyn Reading, run: RunId, mut losses: Losses) -> Result<Snapshots> {
    let (mut count, mut problems) = (0, Vec::new());
    for snapshot in reading.snapshots(run).await? {
        count += 1;
        losses.see_snapshot(&snapshot);
        let StoredSnapshot { place, digest: _, fault } = snapshot;
        problems.extend(fault.map(|fault| Problem::of(run, format!("snapshot after {place}"), fault)));
    }
    problems.extend(losses.end_snapshots(run));
    Ok(Snapshots { count, problems })
}
