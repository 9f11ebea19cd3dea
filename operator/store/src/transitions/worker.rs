//! What rules, and the statements that judge a worker's writes, know of the worker's call and its run.

use uuid::Uuid;

use crate::reads::{Hash, RunRow};
use crate::seal::BodyDigest;
use crate::{Digest, Standing};

/// Whether this capability is the current epoch's. Where nobody is attached, nobody's is.
pub(crate) fn holds(run: &RunRow, capability: &Digest) -> bool {
    run.capability == Some(Hash(*capability))
}

/// Whether calls with an unknown outcome stand in the way. One that changes nothing stands in nobody's.
pub(crate) fn has_unsettled(run: &RunRow) -> bool {
    run.unsettled_retry_same_key + run.unsettled_probe + run.unsettled_ask + run.keys_refused > 0
}

/// Whether these bytes are the run's finish.
pub(crate) fn is_finish(run: &RunRow, commit_id: Uuid, digest: &BodyDigest) -> bool {
    run.finish_commit_id == Some(commit_id)
        && run.finish_digest.is_some_and(|stands| digest.matches(&stands.0))
}

/// A write shows that its worker lives: it renews a lease that a heartbeat has bound, and binds none. It makes none
/// shorter: its worker may wait for the answer that would tell of it longer than the shorter one lasts.
pub(crate) fn renew_lease(run: &mut RunRow, now: i64) {
    if run.lease_renewed_at.is_some() {
        run.lease_renewed_at = Some(now);
        run.lease_ms = run.lease_ms.max(run.heartbeat_ms);
    }
}

/// The worker's next answer tells it of a cancel, if there is one. Whether this is the first such answer, so that the row
/// changes.
pub(crate) fn tell_cancel(run: &mut RunRow, now: i64) -> bool {
    let is_first = run.cancel_requested_at.is_some() && run.cancel_told_at.is_none();
    if is_first {
        run.cancel_told_at = Some(now);
    }
    is_first
}

/// Where the run stands, for the worker.
pub(crate) fn standing(run: &RunRow) -> Standing {
    Standing { head: run.public_head(), parent: None, asked: run.asked() }
}
