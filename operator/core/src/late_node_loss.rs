//! A worker that a signal ended, and whose node turns out to be lost only after that.
//!
//! A node that does not shut down gracefully ends its processes by SIGTERM and SIGKILL, and no condition of the pod says
//! so. Kubernetes reports the node as not Ready up to 55 seconds later. A recovery must not wait for that: most workers that
//! a signal ends are on healthy nodes.
//!
//! # Invariants
//!
//! - The attempt ends at once and is charged, and its successor starts. The charge is taken back if the node is seen not
//!   Ready, or Ready again since the end, within [`VERDICT_TIME`].
//! - No budget is exhausted by a charge that may still be taken back: the run waits for the verdict instead.

use dalsegno_crds::Cause;
use dalsegno_model::{Attempt, Forgiveness, RunRecord};
use jiff::{SignedDuration, Timestamp};

use crate::observed::{Observed, ObservedNode};
use crate::pod_end::{CLOCK_SKEW_SECONDS, SIGKILL_EXIT, SIGTERM_EXIT};
use crate::text::with_log;

/// How long the charge of a worker that a signal ended may be taken back. Kubernetes reports a node as not Ready after 50
/// seconds without a heartbeat (40 before version 1.32), and checks that every 5 seconds.
pub const VERDICT_TIME: SignedDuration = SignedDuration::from_secs(60);
/// How late the operator may make its last look at the node.
const LATENESS: SignedDuration = SignedDuration::from_secs(10);

/// The past attempts that were charged because a signal ended their worker, and whose node may still be found lost.
pub fn awaiting_verdict(row: &RunRecord) -> impl Iterator<Item = &Attempt> {
    row.past.iter().filter(move |it| {
        it.number > row.reset_attempt
            && is_charged_for_signal(it)
            && it.ended_at.is_some_and(|at| row.now.duration_since(at) < VERDICT_TIME + LATENESS)
    })
}

/// When all nodes of these attempts have been looked at for the last time. `None`: no verdict is awaited.
pub(crate) fn last_look(row: &RunRecord, observed: &Observed) -> Option<Timestamp> {
    observed.past_nodes.as_ref()?;
    let at = |it: &Attempt| it.ended_at?.checked_add(VERDICT_TIME).ok();
    awaiting_verdict(row).filter_map(at).filter(|at| *at > row.now).max()
}

/// The charge to take back next, if a node was lost.
pub(crate) fn forgiveness(row: &RunRecord, observed: &Observed) -> Option<Forgiveness> {
    let nodes = observed.past_nodes.as_ref()?;
    let lost = awaiting_verdict(row).find(|it| {
        let node = it.node.as_ref().and_then(|name| nodes.get(name));
        node.zip(it.ended_at).is_some_and(|(node, ended)| was_lost(node, ended))
    })?;
    let before = lost.end.as_ref().map_or("", |end| &end.message);
    let message = with_log("the node was lost or restarted soon after the worker ended", before);
    Some(Forgiveness { attempt: lost.number, cause: Cause::NodeLost, message })
}

/// Whether the node is lost, or was lost after this time and is Ready again. The time is of the store's clock, and that of
/// the node is of the API server's. A node that was lost is not Ready for longer than they may differ.
fn was_lost(node: &ObservedNode, ended: Timestamp) -> bool {
    !node.ready || node.since.duration_since(ended).as_secs() > CLOCK_SKEW_SECONDS
}

fn is_charged_for_signal(attempt: &Attempt) -> bool {
    attempt.end.as_ref().is_some_and(|end| {
        end.charged
            && end.cause == Cause::ExitedWithError
            && matches!(end.exit_code, Some(SIGTERM_EXIT | SIGKILL_EXIT))
    })
}
