//! When a run is held, and how long it waits before its next attempt.
//!
//! A hold is never stored: it follows from the row's counters and past attempts, the calls, the spec and the limits,
//! so that a limit that is raised, a call that is settled or a budget that is granted lifts it at once.

use dalsegno_crds::{Cause, OnExhausted, Reason};
use dalsegno_model::{Attempt, Class, RunRecord};
use dalsegno_protocol::{Limits, Policy, nesting};
use jiff::{SignedDuration, Timestamp};

use crate::Refusal;
use crate::settings::Settings;

/// Attempts in a row that never got to attach, after which the run is held.
const START_FAILURES: usize = 3;
/// Refused versions in a row after which the run is held.
const VERSION_REFUSALS: usize = 2;
/// Taken pod names in a row after which the run is held.
const NAMES_TAKEN: usize = 10;
/// First and longest pause after the API server refused a pod, in seconds.
const REFUSAL_PAUSE: (i64, i64) = (2, 60);

/// Why a run gets no further pod until a person does something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Which reason.
    pub reason: Reason,
    /// What happened; the reason's way out is added where it is shown.
    pub message: String,
}

impl Hold {
    /// A hold for this reason.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// Whether the run ends with it: the recovery budget is what ran out, and `recovery.onExhausted` says so.
    pub fn is_final(&self, settings: &Settings) -> bool {
        let exhausted = matches!(
            self.reason,
            Reason::RecoveryLoop | Reason::RecoveryAttemptsExhausted | Reason::DisruptionsExhausted
        );
        exhausted && settings.on_exhausted == OnExhausted::Fail
    }
}

/// Whether the reserved attempt of this run may get a pod at all. The first reason that applies.
pub fn hold_of(row: &RunRecord, settings: &Settings, input: &str) -> Option<Hold> {
    input_too_large(input)
        .or_else(|| worker_fatal(row))
        .or_else(|| key_refused(row))
        .or_else(|| effect_unknown(row))
        .or_else(|| recovery_loop(row, settings))
        .or_else(|| attempts_exhausted(row, settings))
        .or_else(|| disruptions_exhausted(row, settings))
        .or_else(|| version_refused(row))
        .or_else(|| names_taken(row))
}

fn input_too_large(input: &str) -> Option<Hold> {
    let (bytes, levels) = (Limits::INPUT_BYTES, Limits::SHOWN_DEPTH);
    let message = if input.len() > bytes {
        format!("spec.input has {} bytes, at most {bytes} are carried", input.len())
    } else {
        nesting::deeper_than(levels, input.as_bytes())?;
        format!("spec.input is nested deeper than {levels} levels")
    };
    Some(Hold::new(Reason::InputTooLarge, message))
}

fn worker_fatal(row: &RunRecord) -> Option<Hold> {
    let last = evidence(row).next().filter(|it| ended_by(it, Cause::WorkerFatal))?;
    let message = format!("the worker said that no further attempt helps; {}", told(last));
    Some(Hold::new(Reason::WorkerFatal, message))
}

fn key_refused(row: &RunRecord) -> Option<Hold> {
    let refused = row.calls.keys_refused;
    let message =
        format!("the idempotency key of {refused} call(s) was refused by the tool; {}", last_end(row));
    (refused > 0).then(|| Hold::new(Reason::KeyRefused, message))
}

fn effect_unknown(row: &RunRecord) -> Option<Hold> {
    let unknown = row.calls.unsettled.get(&Policy::Ask).copied().unwrap_or_default();
    let message = format!(
        "{unknown} call(s) with policy `ask` were begun by an attempt that died; nobody knows whether they took \
         effect; {}",
        last_end(row)
    );
    (unknown > 0).then(|| Hold::new(Reason::EffectUnknown, message))
}

fn recovery_loop(row: &RunRecord, settings: &Settings) -> Option<Hold> {
    let count = row.counters.attempts_without_progress;
    if count < settings.max_attempts_without_progress {
        return None;
    }
    let last = evidence(row).find(|it| it.end.as_ref().is_some_and(|end| end.class == Class::Crash));
    let turn = row.head.as_ref().map_or(0, |head| head.turn);
    let how = last.map_or_else(|| last_end(row), told);
    let message = format!("{count} attempt(s) in a row gained nothing after turn {turn}; {how}");
    Some(Hold::new(Reason::RecoveryLoop, message))
}

fn attempts_exhausted(row: &RunRecord, settings: &Settings) -> Option<Hold> {
    let charged = row.counters.recovery_attempts.saturating_sub(row.counters.recovery_attempts_base);
    let most = settings.max_recovery_attempts;
    let message = format!("{charged} crash(es), {most} are recovered; {}", last_end(row));
    (charged > most).then(|| Hold::new(Reason::RecoveryAttemptsExhausted, message))
}

fn disruptions_exhausted(row: &RunRecord, settings: &Settings) -> Option<Hold> {
    let in_a_row = row.counters.disruptions_without_progress;
    let total = row.counters.disruptions.saturating_sub(row.counters.disruptions_base);
    let what = if in_a_row >= settings.max_disruptions_without_progress {
        format!("{in_a_row} disruption(s) in a row, and nothing was gained between them")
    } else {
        let most = settings.max_disruptions.filter(|most| total > *most)?;
        format!("{total} disruption(s), {most} are recovered")
    };
    Some(Hold::new(Reason::DisruptionsExhausted, format!("{what}; {}", last_end(row))))
}

fn version_refused(row: &RunRecord) -> Option<Hold> {
    let refused = in_a_row(row, |it| ended_by(it, Cause::VersionIncompatible));
    let message = format!("refused {refused} times in a row; {}", last_end(row));
    (refused >= VERSION_REFUSALS).then(|| Hold::new(Reason::VersionBlocked, message))
}

fn names_taken(row: &RunRecord) -> Option<Hold> {
    let taken = in_a_row(row, |it| ended_by(it, Cause::NameTaken));
    let message = format!("{taken} pod names in a row were taken by other objects; {}", last_end(row));
    (taken >= NAMES_TAKEN).then(|| Hold::new(Reason::NameCollision, message))
}

/// Whether too many attempts in a row never attached. `pinned`: what would be tried next is an older image.
pub fn cannot_start(row: &RunRecord, pinned: bool) -> Option<Hold> {
    let failures = in_a_row(row, is_start_failure);
    if failures < START_FAILURES {
        return None;
    }
    let no_image = evidence(row).next().is_some_and(|it| ended_by(it, Cause::ImageUnavailable));
    let reason = if pinned && no_image { Reason::PinnedImageUnavailable } else { Reason::CannotStart };
    Some(Hold::new(reason, format!("{failures} attempts in a row never attached; {}", last_end(row))))
}

/// When the reserved attempt may get its pod: the last end, by the store's clock, plus a delay.
///
/// The delay of the n-th attempt in a row is `initialSeconds · 2^(n-1)`, at most `maxSeconds`, times 0.8 to 1 by the
/// hash of run and attempt: derived from stored facts, so that every operator computes the same.
pub fn next_attempt_time(row: &RunRecord, settings: &Settings) -> Option<Timestamp> {
    let last = row.past.first()?;
    let doublings = doublings(row, last)?;
    let initial = i64::from(settings.backoff_initial_seconds) * 1_000;
    let max = i64::from(settings.backoff_max_seconds) * 1_000;
    let delay = initial.saturating_mul(1_i64 << doublings.min(30)).min(max).max(0);
    let jittered = delay * (1_000 - i64::from(jitter(row) % 201)) / 1_000;
    last.ended_at?.checked_add(SignedDuration::from_millis(jittered)).ok()
}

/// How often the first delay is doubled; `None`: no delay.
fn doublings(row: &RunRecord, last: &Attempt) -> Option<u32> {
    let end = last.end.as_ref()?;
    let counters = &row.counters;
    let times = |n: i32| u32::try_from(n).unwrap_or_default();
    match end.class {
        Class::Crash | Class::CrashWithoutProgress => {
            Some(times(counters.attempts_without_progress).saturating_sub(1))
        }
        // The first disruption is replaced at once.
        Class::Disruption => times(counters.disruptions_without_progress).checked_sub(2),
        Class::Neutral if is_start_failure(last) => {
            u32::try_from(in_a_row(row, is_start_failure)).ok()?.checked_sub(1)
        }
        // A version that was refused, a name that was taken, a row that was adopted: nothing to wait for.
        Class::Neutral if end.exit_code.is_none() => None,
        // A crash in a silence of ours.
        Class::Neutral => Some(0),
    }
}

/// How long the API server is not asked again for a pod that it has refused.
pub fn refusal_pause(refusal: &Refusal, now: Timestamp) -> Option<SignedDuration> {
    let (first, longest) = REFUSAL_PAUSE;
    let pause = (first << refusal.times.saturating_sub(1).min(16)).min(longest);
    let left = SignedDuration::from_secs(pause) - now.duration_since(refusal.at);
    left.is_positive().then_some(left)
}

/// How the attempt before this one ended, for people; empty if there was none.
pub fn last_end(row: &RunRecord) -> String {
    row.past.first().map_or_else(String::new, told)
}

/// What ended the attempt before this one, in the one word of a column; `None`: there was none.
pub fn cause_of_recovery(row: &RunRecord) -> Option<Reason> {
    let last = row.past.first()?;
    let Some(end) = &last.end else { return Some(Reason::Recovering) };
    Some(match (end.cause, end.class) {
        (Cause::OOMKilled, Class::Crash) => Reason::OutOfMemory,
        (Cause::Silent, Class::Crash) => Reason::WorkerSilent,
        (Cause::ProgressDeadline, Class::Crash) => Reason::NoProgress,
        (_, Class::Crash | Class::CrashWithoutProgress) => Reason::Crashed,
        (Cause::NodeLost, Class::Disruption) => Reason::NodeLost,
        (_, Class::Disruption) => Reason::Disrupted,
        (Cause::StartDeadline | Cause::ImageUnavailable, Class::Neutral) => Reason::DidNotStart,
        (Cause::VersionIncompatible, Class::Neutral) => Reason::VersionRefused,
        (Cause::NameTaken, Class::Neutral) => Reason::NameTaken,
        (_, Class::Neutral) => Reason::Recovering,
    })
}

/// How the attempt before this one ended, and what comes now; for people.
pub fn told_with_next(row: &RunRecord, next: &str) -> String {
    [last_end(row), format!("attempt {} {next}", row.attempt.number)]
        .into_iter()
        .filter(|it| !it.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}

/// A number from run and attempt (FNV-1a, 32 bits).
fn jitter(row: &RunRecord) -> u32 {
    let attempt = row.attempt.number.to_be_bytes();
    let bytes = row.id.as_bytes().iter().chain(&attempt);
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Past attempts that a granted budget has not forgiven, the latest first.
fn evidence(row: &RunRecord) -> impl Iterator<Item = &Attempt> {
    row.past.iter().filter(|it| it.number > row.reset_attempt)
}

fn in_a_row(row: &RunRecord, is: impl Fn(&Attempt) -> bool) -> usize {
    evidence(row).take_while(|it| is(it)).count()
}

fn ended_by(attempt: &Attempt, cause: Cause) -> bool {
    attempt.end.as_ref().is_some_and(|end| end.cause == cause)
}

fn is_start_failure(attempt: &Attempt) -> bool {
    ended_by(attempt, Cause::StartDeadline) || ended_by(attempt, Cause::ImageUnavailable)
}

fn told(attempt: &Attempt) -> String {
    let number = attempt.number;
    let turn = attempt.turn_at_end.unwrap_or(attempt.turn_at_start);
    match &attempt.end {
        Some(end) if end.message.is_empty() => {
            format!("attempt {number} ended after turn {turn}: {}", end.cause)
        }
        Some(end) => format!("attempt {number} ended after turn {turn}: {}: {}", end.cause, end.message),
        None => format!("attempt {number} ended after turn {turn}"),
    }
}
