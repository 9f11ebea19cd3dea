//! Orphaned pods: pods of the run that have no task any more. They are deleted by UID, except ended pods that are kept
//! for their logs.

use std::cmp::Reverse;

use dalsegno_crds::{AgentRun, Cause};
use dalsegno_model::{Attempt, AttemptState, RunRecord};
use jiff::{SignedDuration, Timestamp};

use crate::decision::Effect;
use crate::observed::{Observed, ObservedPod};
use crate::recovery::ended_by;
use crate::run_stage::worker_knows_end;
use crate::{external, pod, worker};

/// How long a worker may take to exit after it finished the run, acknowledged a cancel or parked.
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

/// Returns the effects that remove the finalizer of each pod that nobody waits for.
pub(crate) fn releases(run: &AgentRun, row: &RunRecord, observed: &Observed) -> Vec<Effect> {
    held(run, observed).filter(|it| is_over(row, it)).map(release).collect()
}

/// As [`releases`], of a run that has ended, as its status says, and that has no row. Only a pod whose worker has ended is let
/// go.
pub(crate) fn releases_of_ended(run: &AgentRun, observed: &Observed) -> Vec<Effect> {
    held(run, observed).filter(|it| external::has_ended(it)).map(release).collect()
}

/// The pods that a finalizer keeps.
fn held<'a>(run: &'a AgentRun, observed: &'a Observed) -> impl Iterator<Item = &'a ObservedPod> {
    observed.own_pods(run).filter(|it| !it.gone && pod::is_external(&it.pod.metadata))
}

fn release(seen: &ObservedPod) -> Effect {
    Effect::ReleasePod { name: seen.name().to_owned(), uid: seen.uid().to_owned() }
}

/// A pod of a run whose agent keeps its own checkpoints, beside the current attempt's, whose worker may still run. Such a
/// pod belongs to no attempt: the API server created it after the operator had given up waiting for the answer.
pub(crate) fn of_no_attempt<'a>(
    run: &'a AgentRun,
    row: &RunRecord,
    observed: &'a Observed,
) -> Option<&'a ObservedPod> {
    let is_other = |it: &&ObservedPod| !is_current(row, it) && !is_over(row, it);
    observed.own_pods(run).find(is_other).filter(|_| row.is_external)
}

/// Whether nobody waits for the end of this pod: its end is recorded, or it is no attempt's and its worker has ended, or the
/// run has ended.
fn is_over(row: &RunRecord, seen: &ObservedPod) -> bool {
    if row.finish.is_some() {
        return true;
    }
    if is_current(row, seen) {
        return row.attempt.state == AttemptState::Ended;
    }
    let is_recorded = |it: &Attempt| it.pod_uid.as_deref() == Some(seen.uid());
    external::has_ended(seen) || row.past.iter().any(is_recorded)
}

/// Whether this is the current attempt's pod, and its worker may still run or its end is not recorded yet; or the pod of
/// a worker that has parked, and still has time to exit on its own.
fn may_run(row: &RunRecord, seen: &ObservedPod) -> bool {
    if !is_current(row, seen) {
        return parked_exit_grace(row, seen).is_some();
    }
    match &row.finish {
        Some(_) => exit_grace(row, seen).is_some(),
        None => row.attempt.state != AttemptState::Ended,
    }
}

/// Remaining time that the worker of a finished run has to exit on its own. `None` if it has none.
pub(crate) fn exit_grace(row: &RunRecord, seen: &ObservedPod) -> Option<SignedDuration> {
    let finish = row.finish.as_ref().filter(|it| worker_knows_end(row, it))?;
    time_to_exit(row, seen, finish.at).filter(|_| is_current(row, seen))
}

/// Remaining time that the worker of this pod has to exit on its own after it parked. `None` if it has none.
pub(crate) fn parked_exit_grace(row: &RunRecord, seen: &ObservedPod) -> Option<SignedDuration> {
    let is_its_pod = |it: &&Attempt| it.pod_uid.as_deref() == Some(seen.uid());
    let parked = row.past.iter().find(is_its_pod).filter(|it| has_parked(it))?;
    time_to_exit(row, seen, parked.ended_at?)
}

/// Whether the attempt ended by a park. The store records a park with an empty message, and the operator ends the attempt
/// of a suspended worker that does not park with a message.
fn has_parked(attempt: &Attempt) -> bool {
    let is_park = ended_by(attempt, Cause::Suspended) || ended_by(attempt, Cause::Parked);
    is_park && attempt.end.as_ref().is_some_and(|end| end.message.is_empty())
}

/// Remaining time to exit of a worker that ended its attempt at this time and still runs.
fn time_to_exit(row: &RunRecord, seen: &ObservedPod, ended: Timestamp) -> Option<SignedDuration> {
    let left = EXIT_GRACE - row.now.duration_since(ended);
    let is_running = !seen.gone && !pod::worker_has_ended(&seen.pod);
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
