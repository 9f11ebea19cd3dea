//! Pods that shall not be there: deleted by UID, but for ended ones that are kept to be read.

use dalsegno_crds::AgentRun;
use dalsegno_model::{AttemptState, RunRecord};
use jiff::SignedDuration;

use crate::situation::worker_knows;
use crate::{Effect, Observed, PodSight, pod, worker};

/// A worker that knows the run to be over may take this long to exit.
const EXIT_GRACE: SignedDuration = SignedDuration::from_secs(30);

/// Every pod of this run that is not the current attempt's, or whose run is over. `keep` ended ones stay, the latest.
pub(crate) fn of(run: &AgentRun, row: &RunRecord, observed: &Observed, keep: usize) -> Vec<Effect> {
    let there = observed.own_pods(run).filter(|it| !it.gone && it.pod.metadata.deletion_timestamp.is_none());
    let (mut ended, running): (Vec<_>, Vec<_>) =
        there.filter(|it| !may_run(row, it)).partition(|it| pod::has_stopped(&it.pod));
    ended.sort_by_key(|it| std::cmp::Reverse((it.attempt(), it.uid().to_owned())));
    let stop = |it: &PodSight| Effect::StopWorker { name: it.name().to_owned(), uid: it.uid().to_owned() };
    running.into_iter().chain(ended.into_iter().skip(keep)).map(stop).collect()
}

/// Whether this is the current attempt's pod, and there is still something for it to do or to tell.
fn may_run(row: &RunRecord, seen: &PodSight) -> bool {
    if !is_current(row, seen) {
        return false;
    }
    match &row.finish {
        Some(_) => exit_grace(row, seen).is_some(),
        None => row.attempt.state != AttemptState::Ended,
    }
}

/// How long the worker of a run that is over may still take to exit by itself.
pub(crate) fn exit_grace(row: &RunRecord, seen: &PodSight) -> Option<SignedDuration> {
    let finish = row.finish.as_ref().filter(|it| worker_knows(row, it))?;
    let left = EXIT_GRACE - row.now.duration_since(finish.at);
    (is_current(row, seen) && !seen.gone && !pod::has_ended(&seen.pod) && left.is_positive()).then_some(left)
}

/// Whether this is the pod of the current attempt: by its UID once that is recorded, by its name before.
pub(crate) fn is_current(row: &RunRecord, seen: &PodSight) -> bool {
    match &row.attempt.pod_uid {
        Some(uid) => uid == seen.uid(),
        None => seen.name() == worker::pod_name(&row.name, row.attempt.number),
    }
}
