//! The check of one run against its audit.

use dalsegno_format::keys;
use dalsegno_model::read_transaction::run_head;
use dalsegno_model::{ReadTransaction, Result, RunId};

use super::audit_chain::AuditChain;
use super::audit_reconciler::{AuditReconciler, StoredRun};
use super::problem::Problem;
use super::sorted_rows::SortedRows;

/// The result of the check of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Number of audit rows.
    pub audit: u64,
    /// Number of calls.
    pub calls: u64,
    /// Number of snapshots.
    pub snapshots: u64,
    /// The problems that were found.
    pub problems: Vec<Problem>,
}

/// Checks the audit of a run, and against it the run's own row, its calls, its undone boundaries and its missing
/// payloads. Compares every snapshot with the state that the boundaries produce, or, if these were dropped, with the
/// audit. Whether each boundary matches its hash is checked by [`crate::verify::scan`].
///
/// # Errors
///
/// The store does not respond.
pub async fn check_run(reading: &mut dyn ReadTransaction, run: RunId) -> Result<Checked> {
    let head = run_head(reading, run).await?;
    let mut rows = SortedRows::of(reading, run);
    let (mut reconciler, mut chain) = (AuditReconciler::default(), AuditChain::new(run));
    let (mut problems, mut audit) = (Vec::new(), 0);
    while let Some((_, row)) = rows.next_audit(|_| true).await? {
        reconciler.add_audit_row(&row);
        problems.extend(chain.push(&row));
        audit += 1;
    }
    problems.extend(chain.pruned().err());
    problems.extend(head.as_ref().and_then(|head| chain.end(head.audit_seq, &head.audit_hash)));
    while let Some(boundary) = rows.next_boundary(|_| true).await? {
        reconciler.add_boundary(&boundary);
    }
    let key_fault = keys::unwrap_failure(reading.unwrap_data_key(run).await)?;
    let stored_run = StoredRun { id: run, head: head.as_ref(), key_fault };
    let stored = reconciler.check_stored_rows(reading, stored_run).await?;
    problems.extend(stored.problems);
    Ok(Checked { audit, calls: stored.calls, snapshots: stored.snapshots, problems })
}
