//! One run, held to what its audit says.

use dalsegno_format::keys;
use dalsegno_model::reading::run_head;
use dalsegno_model::{Reading, Result, RunId};

use super::account::Account;
use super::audit_chain::AuditChain;
use super::problem::Problem;
use super::rows::Rows;

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
    let head = run_head(reading, run).await?;
    let mut rows = Rows::of(reading, run);
    let (mut account, mut chain) = (Account::default(), AuditChain::new(run));
    let (mut problems, mut audit) = (Vec::new(), 0);
    while let Some((_, row)) = rows.next_audit(|_| true).await? {
        account.see_audit(&row);
        problems.extend(chain.push(&row));
        audit += 1;
    }
    problems.extend(chain.pruned().err());
    problems.extend(head.as_ref().and_then(|head| chain.end(head.audit_seq, &head.audit_hash)));
    while let Some(boundary) = rows.next_boundary(|_| true).await? {
        account.see_boundary(&boundary);
    }
    let key_fault = keys::fault(reading.unwrap_data_key(run).await)?;
    let closed = account.close(reading, run, head.as_ref(), key_fault).await?;
    problems.extend(closed.problems);
    Ok(Checked { audit, calls: closed.calls, snapshots: closed.snapshots, problems })
}
