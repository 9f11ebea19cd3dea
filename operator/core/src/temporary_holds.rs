//! Holds that end by themselves: their cause, such as an unavailable registry, may end without anybody's help.
//!
//! # Invariant
//!
//! Such a hold ends at a time that is computed from stored facts: the end of the last attempt, and how often the run
//! has failed in this way. Then one attempt starts. If it fails in the same way, the next pause is twice as long.

use dalsegno_crds::{Cause, Reason};
use dalsegno_model::{Attempt, Class, RunRecord};
use jiff::{SignedDuration, Timestamp};

use crate::recovery::{
    self, Hold, consecutive, counted_attempts, describe_last_end, ended_by, is_start_failure, jittered,
    next_attempt_time,
};
use crate::settings::Settings;
use crate::text::counted;

/// Number of consecutive attempts that never attached after which the run is held.
const MAX_START_FAILURES: usize = 3;
/// Built-in number of consecutive disruptions without progress after which the run is held.
const MAX_DISRUPTIONS: i32 = 10;
/// Number of consecutive taken pod names after which the run is held.
const MAX_NAMES_TAKEN: usize = 10;
/// So many disruptions hold a run only if they span at least this time: one roll-out of a node pool may cause them all.
/// A limit in the spec counts at once.
const DISRUPTION_SPAN: SignedDuration = SignedDuration::from_mins(10);
/// First and longest pause of a hold.
const PAUSES: (SignedDuration, SignedDuration) =
    (SignedDuration::from_mins(1), SignedDuration::from_mins(30));
/// So many doublings of the first pause are more than the longest one.
const DOUBLINGS_TO_LONGEST: usize = 5;

/// The template of the next attempt.
#[derive(Clone, Copy, Debug)]
pub struct StartTemplate<'a> {
    /// Its hash.
    pub revision: &'a str,
    /// Whether it is the one that wrote the checkpoint, and not the definition's current one.
    pub pinned: bool,
}

/// Returns a hold if too many attempts in a row never attached, all of them with this template.
pub fn find_start_hold(row: &RunRecord, settings: &Settings, template: StartTemplate<'_>) -> Option<Hold> {
    let StartTemplate { revision, pinned } = template;
    let has_template = |it: &Attempt| it.revision.as_deref().is_none_or(|it| it == revision);
    let failures = consecutive(row, |it| is_start_failure(it) && has_template(it));
    let beyond = failures.checked_sub(MAX_START_FAILURES)?;
    let at = retry_time(row, settings, beyond)?;
    let no_image = counted_attempts(row).next().is_some_and(|it| ended_by(it, Cause::ImageUnavailable));
    let reason = if pinned && no_image { Reason::PinnedImageUnavailable } else { Reason::CannotStart };
    let message = format!("{failures} attempts in a row never attached; {}", describe_last_end(row));
    Some(Hold { retry_at: Some(at), ..Hold::new(reason, message) })
}

/// Returns the hold that comes first of those that do not depend on the next template.
pub fn find_hold(row: &RunRecord, settings: &Settings, input: &str) -> Option<Hold> {
    recovery::find_hold(row, settings, input)
        .or_else(|| find_disruption_hold(row, settings))
        .or_else(|| find_name_hold(row, settings))
}

/// Returns a hold if too many pod names in a row were taken by strangers.
fn find_name_hold(row: &RunRecord, settings: &Settings) -> Option<Hold> {
    let taken = consecutive(row, |it| ended_by(it, Cause::NameTaken));
    // The row shows one attempt more than hold the run, so the second pause is the longest one already.
    let at = retry_time(row, settings, DOUBLINGS_TO_LONGEST * taken.checked_sub(MAX_NAMES_TAKEN)?)?;
    let message =
        format!("{taken} pod names in a row were taken by pods of other owners; {}", describe_last_end(row));
    Some(Hold { retry_at: Some(at), ..Hold::new(Reason::NameCollision, message) })
}

/// Returns a hold if too many disruptions in a row made no progress.
fn find_disruption_hold(row: &RunRecord, settings: &Settings) -> Option<Hold> {
    let in_a_row = row.counters.disruptions_without_progress;
    let limit = settings.max_disruptions_without_progress;
    let beyond = usize::try_from(in_a_row - limit.unwrap_or(MAX_DISRUPTIONS)).ok()?;
    if limit.is_none() && are_quick(row) {
        return None;
    }
    let disruptions = counted(in_a_row, "disruption", "disruptions in a row");
    let message = format!("{disruptions} without progress; {}", describe_last_end(row));
    let hold = Hold::new(Reason::DisruptionsExhausted, message);
    if hold.is_final(settings) {
        return Some(hold);
    }
    Some(Hold { retry_at: Some(retry_time(row, settings, beyond)?), ..hold })
}

/// Whether all disruptions since the last progress began within [`DISRUPTION_SPAN`]. If the row does not show all of
/// them, they are not quick.
fn are_quick(row: &RunRecord) -> bool {
    let is_disruption = |it: &&Attempt| it.end.as_ref().is_some_and(|end| end.class == Class::Disruption);
    let since_progress =
        counted_attempts(row).take_while(|it| it.end.as_ref().is_some_and(|end| !end.progress));
    let ends: Vec<Option<Timestamp>> = since_progress.filter(is_disruption).map(|it| it.ended_at).collect();
    let all = i32::try_from(ends.len()).is_ok_and(|shown| shown >= row.counters.disruptions_without_progress);
    let first = ends.into_iter().flatten().min();
    all && first.is_some_and(|first| row.now.duration_since(first) < DISRUPTION_SPAN)
}

/// When a hold ends by itself: 1, 2, 4 … 30 minutes after the end of the last attempt, and not before its backoff.
/// `None` if that time has passed. `beyond`: how often the run has failed since it was first held.
fn retry_time(row: &RunRecord, settings: &Settings, beyond: usize) -> Option<Timestamp> {
    let (first, longest) = PAUSES;
    let doublings = u32::try_from(beyond).unwrap_or(u32::MAX).min(16);
    let pause = first.checked_mul(1 << doublings).unwrap_or(longest).min(longest);
    // An attempt whose name a deleted run still had was no try.
    let ended = row.past.iter().find(|it| !ended_by(it, Cause::NameInUse))?.ended_at?;
    let at =
        ended.checked_add(jittered(row, pause)).ok()?.max(next_attempt_time(row, settings).unwrap_or(ended));
    (at > row.now).then_some(at)
}
