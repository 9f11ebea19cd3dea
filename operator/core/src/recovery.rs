//! When a run is held, and how long its next attempt waits.
//!
//! # Invariant
//!
//! A hold is never stored. It is derived from the row's counters, its past attempts and calls, and the spec. So a
//! raised limit, a settled call or a granted budget lifts it at once. A hold whose cause may end without a person
//! ends by itself; `temporary_holds` finds those.

use dalsegno_crds::{Cause, OnExhausted, Reason};
use dalsegno_model::{Attempt, Class, LimitName, LimitUse, RunRecord};
use dalsegno_protocol::{Limits, Policy, nesting};
use jiff::{SignedDuration, Timestamp};

use crate::settings::Settings;
use crate::text::{counted, position};
use crate::version::was_refused;

/// Number of consecutive refused versions after which the run is held.
const MAX_VERSION_REFUSALS: usize = 2;

/// Why a run gets no further pod until a person acts, or until a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Reason of the hold.
    pub reason: Reason,
    /// What happened. The status adds the reason's remediation.
    pub message: String,
    /// When the hold ends by itself. `None`: only a person can end it.
    pub retry_at: Option<Timestamp>,
}

impl Hold {
    /// A hold for this reason, until a person acts.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), retry_at: None }
    }

    /// Whether the run is held because of the number of charged crashes.
    pub fn is_by_charges(&self) -> bool {
        matches!(self.reason, Reason::RecoveryLoop | Reason::RecoveryAttemptsExhausted)
    }

    /// Whether the run fails instead of being held: the recovery budget is exhausted, and `recovery.onExhausted` is
    /// `Fail`.
    pub fn is_final(&self, settings: &Settings) -> bool {
        let exhausted = self.is_by_charges() || self.reason == Reason::DisruptionsExhausted;
        exhausted && settings.on_exhausted == OnExhausted::Fail
    }
}

/// Returns why the reserved attempt of this run must not get a pod until a person acts. The first reason that applies is
/// returned.
pub fn find_hold(row: &RunRecord, settings: &Settings, input: &str) -> Option<Hold> {
    input_too_large(input)
        .or_else(|| worker_fatal(row))
        .or_else(|| key_refused(row))
        .or_else(|| effect_unknown(row))
        .or_else(|| limit_reached(row))
        .or_else(|| recovery_loop(row, settings))
        .or_else(|| attempts_exhausted(row, settings))
        .or_else(|| disruptions_exhausted(row, settings))
        .or_else(|| version_refused(row))
        .or_else(|| wait_timed_out(row))
}

fn input_too_large(input: &str) -> Option<Hold> {
    let (bytes, levels) = (Limits::INPUT_BYTES, Limits::SHOWN_DEPTH);
    let message = if input.len() > bytes {
        format!("spec.input has {} bytes, and at most {bytes} are allowed", input.len())
    } else {
        nesting::deeper_than(levels, input.as_bytes())?;
        format!("spec.input is nested deeper than {levels} levels")
    };
    Some(Hold::new(Reason::InputTooLarge, message))
}

fn worker_fatal(row: &RunRecord) -> Option<Hold> {
    let last = counted_attempts(row).next().filter(|it| ended_by(it, Cause::WorkerFatal))?;
    let message =
        format!("the worker reported that a further attempt will not help; {}", describe_end(row, last));
    Some(Hold::new(Reason::WorkerFatal, message))
}

fn key_refused(row: &RunRecord) -> Option<Hold> {
    let refused = row.calls.keys_refused;
    let message =
        format!("a tool refused the idempotency key of {}; {}", calls(refused), describe_last_end(row));
    (refused > 0).then(|| Hold::new(Reason::KeyRefused, message))
}

fn effect_unknown(row: &RunRecord) -> Option<Hold> {
    let unknown = row.calls.unsettled.get(&Policy::Ask).copied().unwrap_or_default();
    let message = format!(
        "an attempt ended during {} with policy `ask`, and it is not known whether {} took effect; {}",
        calls(unknown),
        if unknown == 1 { "it" } else { "they" },
        describe_last_end(row)
    );
    (unknown > 0).then(|| Hold::new(Reason::EffectUnknown, message))
}

/// The run has used up a limit. Each attempt that follows would be stopped at once.
fn limit_reached(row: &RunRecord) -> Option<Hold> {
    let reached: Vec<_> = row.limit_uses().into_iter().filter(LimitUse::is_reached).collect();
    let message = reached.iter().map(|it| {
        let LimitUse { used, max, .. } = in_units_of_spec(*it);
        format!("the run has used {used} of limits.{} {max}", it.limit.as_str())
    });
    let message = message.collect::<Vec<_>>().join("; ");
    (!reached.is_empty()).then(|| Hold::new(Reason::LimitReached, message))
}

/// The same use, with active time in seconds, as the spec and the status have it.
pub(crate) fn in_units_of_spec(of: LimitUse) -> LimitUse {
    let seconds = |ms: i64| ms / 1_000;
    match of.limit {
        LimitName::ActiveSeconds => LimitUse { used: seconds(of.used), max: seconds(of.max), ..of },
        LimitName::Turns | LimitName::Tokens | LimitName::CostMicroUsd => of,
    }
}

fn calls(number: i64) -> String {
    counted(number, "call", "calls")
}

fn recovery_loop(row: &RunRecord, settings: &Settings) -> Option<Hold> {
    let count = row.counters.attempts_without_progress;
    if count < settings.max_attempts_without_progress {
        return None;
    }
    let last = counted_attempts(row).find(|it| it.end.as_ref().is_some_and(|end| end.class == Class::Crash));
    let at = at_turn(row, row.head.as_ref().map_or(0, |head| head.turn));
    let last = last.map_or_else(|| describe_last_end(row), |it| describe_end(row, it));
    let attempts = counted(count, "attempt", "attempts in a row");
    let message = format!("{attempts} made no progress{at}; {last}");
    Some(Hold::new(Reason::RecoveryLoop, message))
}

fn attempts_exhausted(row: &RunRecord, settings: &Settings) -> Option<Hold> {
    let charged = row.counters.recovery_attempts.saturating_sub(row.counters.recovery_attempts_base);
    let most = settings.max_recovery_attempts;
    let crashes = counted(charged, "crash", "crashes");
    let message = format!("{crashes}, and at most {most} are recovered; {}", describe_last_end(row));
    (charged > most).then(|| Hold::new(Reason::RecoveryAttemptsExhausted, message))
}

fn disruptions_exhausted(row: &RunRecord, settings: &Settings) -> Option<Hold> {
    let total = row.counters.disruptions.saturating_sub(row.counters.disruptions_base);
    let most = settings.max_disruptions.filter(|most| total > *most)?;
    let disruptions = counted(total, "disruption", "disruptions");
    let message = format!("{disruptions}, and at most {most} are recovered; {}", describe_last_end(row));
    Some(Hold::new(Reason::DisruptionsExhausted, message))
}

fn version_refused(row: &RunRecord) -> Option<Hold> {
    let refused = consecutive(row, was_refused);
    let message = format!("the version was refused {refused} times in a row; {}", describe_last_end(row));
    (refused >= MAX_VERSION_REFUSALS).then(|| Hold::new(Reason::VersionBlocked, message))
}

fn wait_timed_out(row: &RunRecord) -> Option<Hold> {
    let wait = row.timed_out_wait()?;
    let message = format!("nobody answered the wait {:?} before its deadline", wait.id);
    Some(Hold::new(Reason::WaitTimedOut, message))
}

/// When the reserved attempt may get its pod: the end of the last attempt, by the store's clock, plus a delay. `None`
/// means at once.
///
/// The delay after the n-th consecutive crash is `initialSeconds · 2^(n-1)`, at most `maxSeconds`, times a jitter of
/// 0.8 to 1. The jitter is a hash of the run's id and the attempt's number, so every operator computes the same time.
pub fn next_attempt_time(row: &RunRecord, settings: &Settings) -> Option<Timestamp> {
    let last = row.past.first()?;
    let doublings = doublings(row, last)?;
    let initial = i64::from(settings.backoff_initial_seconds) * 1_000;
    let max = i64::from(settings.backoff_max_seconds) * 1_000;
    let delay = initial.saturating_mul(1_i64 << doublings.min(30)).min(max).max(0);
    last.ended_at?.checked_add(jittered(row, SignedDuration::from_millis(delay))).ok()
}

/// The delay times 0.8 to 1.
pub(crate) fn jittered(row: &RunRecord, delay: SignedDuration) -> SignedDuration {
    delay * (1_000 - jitter(row) % 201).cast_signed() / 1_000
}

/// How often the first delay is doubled. `None` means no delay.
fn doublings(row: &RunRecord, last: &Attempt) -> Option<u32> {
    let end = last.end.as_ref()?;
    let counters = &row.counters;
    let count = |n: i32| u32::try_from(n).unwrap_or_default();
    match end.class {
        Class::Crash | Class::CrashWithoutProgress => {
            Some(count(counters.attempts_without_progress).saturating_sub(1))
        }
        // No delay after the first disruption.
        Class::Disruption => count(counters.disruptions_without_progress).checked_sub(2),
        Class::Neutral if is_start_failure(last) => {
            u32::try_from(consecutive(row, is_start_failure)).ok()?.checked_sub(1)
        }
        // No delay after a refused version, a taken name or an adoption.
        Class::Neutral if end.exit_code.is_none() => None,
        // A crash during an outage of the gateways.
        Class::Neutral => Some(0),
    }
}

/// Describes for people how the previous attempt ended. Empty if there was none.
pub fn describe_last_end(row: &RunRecord) -> String {
    row.past.first().map_or_else(String::new, |it| describe_end(row, it))
}

/// The reason that the status shows after the end of the previous attempt. `None` if there was none.
pub fn recovery_reason(row: &RunRecord) -> Option<Reason> {
    let last = row.past.first()?;
    let Some(end) = &last.end else { return Some(Reason::Recovering) };
    Some(match (end.cause, end.class) {
        (Cause::OOMKilled, Class::Crash) => Reason::OutOfMemory,
        (Cause::Silent, Class::Crash) => Reason::WorkerSilent,
        (Cause::ProgressDeadline, Class::Crash) => Reason::NoProgress,
        (_, Class::Crash | Class::CrashWithoutProgress) => Reason::Crashed,
        (Cause::NodeLost, Class::Disruption) => Reason::NodeLost,
        (_, Class::Disruption) => Reason::Disrupted,
        (
            Cause::StartDeadline | Cause::VolumeUnavailable | Cause::ImageUnavailable | Cause::StartFailed,
            Class::Neutral,
        ) => Reason::DidNotStart,
        (Cause::VersionIncompatible, Class::Neutral) => Reason::VersionRefused,
        (Cause::NameTaken | Cause::NameInUse, Class::Neutral) => Reason::NameTaken,
        (_, Class::Neutral) => Reason::Recovering,
    })
}

/// Describes for people how the previous attempt ended, and what the current attempt does.
pub fn describe_recovery(row: &RunRecord, next: &str) -> String {
    [describe_last_end(row), format!("attempt {} {next}", row.attempt.number)]
        .into_iter()
        .filter(|it| !it.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}

/// A hash of run and attempt (FNV-1a, 32 bits).
fn jitter(row: &RunRecord) -> u32 {
    let attempt = row.attempt.number.to_be_bytes();
    let bytes = row.id.as_bytes().iter().chain(&attempt);
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// The past attempts since the last granted budget, the latest first. An attempt that only waited for another node, whose
/// name a deleted run still had, or that a suspend or a limit stopped before its worker attached, says nothing about the
/// run.
pub(crate) fn counted_attempts(row: &RunRecord) -> impl Iterator<Item = &Attempt> {
    let says_nothing = |it: &Attempt| {
        let was_stopped = ended_by(it, Cause::Suspended) || ended_by(it, Cause::LimitReached);
        (was_stopped && it.attached_at.is_none())
            || ended_by(it, Cause::NoOtherNode)
            || ended_by(it, Cause::NameInUse)
    };
    row.past.iter().filter(move |it| it.number > row.reset_attempt && !says_nothing(it))
}

/// How many of the latest counted attempts meet a condition without interruption.
pub(crate) fn consecutive(row: &RunRecord, is: impl Fn(&Attempt) -> bool) -> usize {
    counted_attempts(row).take_while(|it| is(it)).count()
}

pub(crate) fn ended_by(attempt: &Attempt, cause: Cause) -> bool {
    attempt.end.as_ref().is_some_and(|end| end.cause == cause)
}

pub(crate) fn is_start_failure(attempt: &Attempt) -> bool {
    attempt.end.as_ref().is_some_and(|end| {
        let never_started =
            matches!(end.cause, Cause::StartDeadline | Cause::ImageUnavailable | Cause::StartFailed);
        never_started && end.class == Class::Neutral
    })
}

/// Where the run was. Empty if its agent keeps its own checkpoints.
fn at_turn(row: &RunRecord, turn: i32) -> String {
    if row.is_external { String::new() } else { format!(" {}", position(turn)) }
}

fn describe_end(row: &RunRecord, attempt: &Attempt) -> String {
    let number = attempt.number;
    let at = at_turn(row, attempt.turn_at_end.unwrap_or(attempt.turn_at_start));
    match &attempt.end {
        Some(end) if end.message.is_empty() => {
            format!("attempt {number} ended{at}: {}", end.cause)
        }
        Some(end) => format!("attempt {number} ended{at}: {}: {}", end.cause, end.message),
        None => format!("attempt {number} ended{at}"),
    }
}
