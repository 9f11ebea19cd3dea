//! Orphaned pods: pods of the run that have no task any more. They are deleted by UID, except ended pods that are kept
//! for their logs.

use std::cmp::Reverse;

use dalsegno_crds::AgentRun;
use dalsegno_model::{AttemptState, RunRecord};
use jiff::SignedDuration;

use crate::decision::Effect;
use crate::observed::{Observed, ObservedPod};
use crate::run_stage::worker_knows_end;
use crate::{pod, worker};

/// How long a worker may take to exit after it learned that the run has ended.
const EXIT_GRACE: SignedDuration = SignedDuration::from_secs(30);

/// Returns the effects that delete every orphaned pod of this run, except the latest `keep` ended ones.
pub(crate) fn deletions(run: &AgentRun, row: &RunRecord, observed: &Observed, keep: usize) -> Vec<Effect> {
    let existing =
        observed.own_pods(run).filter(|it| !it.gone && it.pod.metadata.deletion_timestamp.is_none());
    let (mut ended, running): (Vec<_>, Vec<_>) =
        existing.filter(|it| !may_run(row, it)).partition(|it| pod::all_containers_ended(&it.pod));
    ended.sort_by_key(|it| Reverse((it.attempt(), it.uid().to_owned())));
    let delete =
        |it: &ObservedPod| Effect::StopWorker { name: it.name().to_owned(), uid: it.uid().to_owned() };
    running.into_iter().chain(ended.into_iter().skip(keep)).map(delete).collect()
}

/// Whether this is the current attempt's pod, and its worker may still run or its end is not recorded yet.
fn may_run(row: &RunRecord, seen: &ObservedPod) -> bool {
    if !is_current(row, seen) {
        return false;
    }
    match &row.finish {
        Some(_) => exit_grace(row, seen).is_some(),
        None => row.attempt.state != AttemptState::Ended,
    }
}

/// Remaining time that the worker of a finished run has to exit on its own. `None` if it has none.
pub(crate) fn exit_grace(row: &RunRecord, seen: &ObservedPod) -> Option<SignedDuration> {
    let finish = row.finish.as_ref().filter(|it| worker_knows_end(row, it))?;
    let left = EXIT_GRACE - row.now.duration_since(finish.at);
    let is_running = is_current(row, seen) && !seen.gone && !pod::worker_has_ended(&seen.pod);
    (is_running && left.is_positive()).then_some(left)
}

/// Whether this is the pod of the current attempt: by its UID if one is recorded, otherwise by its name and its nonce.
pub(crate) fn is_current(row: &RunRecord, seen: &ObservedPod) -> bool {
    match &row.attempt.pod_uid {
        Some(uid) => uid == seen.uid(),
        None => {
            seen.name() == worker::pod_name(&row.name, row.attempt.number)
                && row.attempt.may_own_pod_with(pod::nonce(&seen.pod))
        }
    }
}
