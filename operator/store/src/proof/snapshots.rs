//! The snapshots of a run, held to the state that its boundaries make; and what else of it there is, held to what its audit says.

use super::Problem;
use super::account::Account;
use crate::reading::{AuditKey, BoundaryKey, StoredSnapshot, run_head};
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
/// Among the problems is whatever else contradicts the audit: the run's own row, boundaries that no rewind undid, payloads
/// that are gone without a word there.
///
/// # Errors
///
/// The store does not answer.
pub async fn check_snapshots(reading: &mut dyn Reading, run: RunId) -> Result<Snapshots> {
    let mut account = Account::default();
    let mut after = AuditKey::before(run);
    loop {
        let page = reading.audit(after, run).await?;
        let Some((_, last)) = page.last() else { break };
        after.seq = last.seq;
        page.iter().for_each(|(_, row)| account.see_audit(row));
    }
    let mut after = BoundaryKey::before(run);
    loop {
        let page = reading.boundaries(after, run).await?;
        let Some(last) = page.last() else { break };
        after = last.key();
        page.iter().for_each(|boundary| account.see_boundary(boundary));
    }
    let mut untold: Vec<_> = account.end(run).collect();
    if let Some(head) = run_head(reading, run).await? {
        untold.extend(account.end_run(&head).chain(account.end_outcome(&head)));
    }
    let mut found = check(reading, run, account).await?;
    found.problems.extend(untold);
    Ok(found)
}

/// The same, once the run's audit has been seen.
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
