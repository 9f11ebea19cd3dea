//! The snapshots of a run, held to the state that its boundaries make, and what is gone, held to what its audit says.

use super::Problem;
use super::losses::Losses;
use crate::reading::{AuditKey, BoundaryKey, StoredSnapshot};
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
/// Among the problems are payloads that are gone without a word there.
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
    let mut after = BoundaryKey::before(run);
    loop {
        let page = reading.boundaries(after, run).await?;
        let Some(last) = page.last() else { break };
        after = last.key();
        page.iter().for_each(|boundary| losses.see_boundary(boundary));
    }
    let untold: Vec<_> = losses.end(run).collect();
    let mut found = check(reading, run, losses).await?;
    found.problems.extend(untold);
    Ok(found)
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
