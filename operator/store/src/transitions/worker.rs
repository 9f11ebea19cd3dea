//! Checks and changes that the calls of workers share: for the rules, and for SQLite's hot statements.

use dalsegno_protocol::{Policy, Usage};
use uuid::Uuid;

use super::OutboxEntry;
use crate::reads::{CallRow, Hash, RunRow};
use dalsegno_format::seal::BodyDigest;
use dalsegno_model::{CommitReceipt, Digest};

/// Whether this is the capability of the current epoch. False for every capability if no worker is attached.
pub(crate) fn has_capability(run: &RunRow, capability: &Digest) -> bool {
    run.capability == Some(Hash(*capability))
}

/// Whether calls with an unknown outcome block a commit. Calls with the policy `readOnly` block nothing.
pub(crate) fn has_unsettled(run: &RunRow) -> bool {
    run.unsettled_retry_same_key + run.unsettled_probe + run.unsettled_ask + run.keys_refused > 0
}

/// How many calls with this policy count as open while the current attempt has started them: 1 or 0. A call with another
/// policy is run again if its outcome is unknown, so it blocks nothing.
pub(crate) fn needs_outcome(policy: Policy) -> i64 {
    i64::from(matches!(policy, Policy::Probe | Policy::Ask))
}

/// Adds what a call has used to the run's usage, as with a boundary's: the limits count it at once. Returns the
/// notifications of limits that are now almost used up.
pub(crate) fn add_usage(run: &mut RunRow, call: &mut CallRow, usage: &Usage, now: i64) -> Vec<OutboxEntry> {
    call.spend(usage, now);
    run.spend(usage);
    run.check_usage_limits(now);
    OutboxEntry::near_limits(run, now)
}

/// Whether the run was finished by this call: the same commit id and the same body.
pub(crate) fn is_finish(run: &RunRow, commit_id: Uuid, digest: &BodyDigest) -> bool {
    run.finish_commit_id == Some(commit_id)
        && run.finish_digest.is_some_and(|stored| digest.matches(&stored.0))
}

/// Renews the worker's lease, if a heartbeat has started one: a write proves that the worker is alive. The lease
/// never gets shorter here: the worker may wait for the answer, which has the new length, longer than the new length.
pub(crate) fn renew_lease(run: &mut RunRow, now: i64) {
    if run.lease_renewed_at.is_some() {
        run.lease_renewed_at = Some(now);
        run.lease_ms = run.lease_ms.max(run.heartbeat_ms);
    }
}

/// Records that the answer reports a cancel or a suspend to the worker. Returns whether it is the first such answer, so
/// that the row changes.
pub(crate) fn report_signals(run: &mut RunRow, now: i64) -> bool {
    let is_first_cancel = run.cancel_requested_at.is_some() && run.cancel_told_at.is_none();
    let is_first_suspend = run.suspend && run.suspend_told_at.is_none();
    if is_first_cancel {
        run.cancel_told_at = Some(now);
    }
    if is_first_suspend {
        run.suspend_told_at = Some(now);
    }
    is_first_cancel || is_first_suspend
}

/// The head and the signals for the worker's answer.
pub(crate) fn commit_receipt(run: &RunRow, now: i64) -> CommitReceipt {
    CommitReceipt { head: run.public_head(), parent: None, signals: run.worker_signals(now) }
}
