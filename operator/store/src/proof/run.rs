//! One run, held to what its audit says.

use super::account::Account;
use super::check::see_calls;
use super::snapshots::{self, Snapshots};
use super::{AuditChain, Problem};
use crate::reading::{AuditKey, BoundaryKey, run_head};
use crate::{Reading, Result, RunId};

/// What was looked at of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Rows of its audit.
    pub audit: u64,
    /// Its calls.
    pub calls: u64,
    /// Its snapshots.
    pub snapshots: u64,
    /// What is wrong.
    pub problems: Vec<Problem>,
}

/// Holds the audit of a run to itself, and to it the run's own row, its calls, what was undone and what is gone; and rebuilds
/// every snapshot from the boundaries, or, where these were dropped, holds it to what the audit says. Whether each boundary
/// is what its hash says is for [`crate::verify::survey`] to find.
///
/// # Errors
///
/// The store does not answer.
pub async fn check_run(reading: &mut dyn Reading, run: RunId) -> Result<Checked> {
    let (mut account, mut chain) = (Account::default(), AuditChain::new(run));
    let (mut problems, mut audit) = (Vec::new(), 0);
    let mut after = AuditKey::before(run);
    loop {
        let page = reading.audit(after, run).await?;
        let Some((_, last)) = page.last() else { break };
        after.seq = last.seq;
        audit += page.len() as u64;
        for (_, row) in &page {
            account.see_audit(row);
            problems.extend(chain.push(row));
        }
    }
    problems.extend(chain.pruned().err());
    let mut after = BoundaryKey::before(run);
    loop {
        let page = reading.boundaries(after, run).await?;
        let Some(last) = page.last() else { break };
        after = last.key();
        page.iter().for_each(|boundary| account.see_boundary(boundary));
    }
    let calls = see_calls(reading, run, &mut account).await?;
    problems.extend(account.end(run).chain(account.end_calls(run)));
    if let Some(head) = run_head(reading, run).await? {
        problems.extend(chain.end(head.audit_seq, &head.audit_hash));
        problems.extend(account.end_run(&head).chain(account.end_outcome(&head)));
    }
    let Snapshots { count, problems: of_snapshots } = snapshots::check(reading, run, account).await?;
    problems.extend(of_snapshots);
    Ok(Checked { audit, calls, snapshots: count, problems })
}
