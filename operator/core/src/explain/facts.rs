//! What a decision is made from, for people.

use dalsegno_crds::AgentRun;
use dalsegno_model::{AttemptState, Deadline, LimitUse, RunRecord};
use jiff::Timestamp;

use crate::late_node_loss;
use crate::observed::{Observed, ObservedAgent, ObservedPod, ObservedStore};
use crate::pod;
use crate::recovery::{in_units_of_spec, next_attempt_time};
use crate::settings::Settings;
use crate::text::{counted, position};

/// A fact: what it is about, and what is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// What it is about.
    pub about: &'static str,
    /// What is known. It may hold foreign text.
    pub text: String,
}

/// The facts that decide about a run.
pub fn facts(run: &AgentRun, observed: &Observed, now: Timestamp) -> Vec<Fact> {
    let mut facts = Vec::new();
    let mut add = |about, text: String| facts.push(Fact { about, text });
    add("spec", spec(run));
    add("agent", agent(observed));
    let row = match &observed.store {
        ObservedStore::Found(row) => row,
        ObservedStore::Unknown(error) => {
            add("store", format!("it does not respond: {error}"));
            return facts;
        }
        ObservedStore::NotFound { .. } => {
            add("store", "it does not have the run".to_owned());
            return facts;
        }
        ObservedStore::Prior(prior) => {
            add(
                "store",
                format!("it has a run of this name at turn {} of object {}", prior.turn, prior.object_uid),
            );
            return facts;
        }
    };
    let settings = Settings::of(run, &observed.agent);
    add("store", store(row));
    add("attempt", attempt(row));
    of_run(row, &settings, &mut add);
    let current = row.attempt.pod_uid.as_deref().and_then(|uid| observed.pod(uid));
    match (row.attempt.state, current) {
        (AttemptState::Created | AttemptState::Attached, Some(seen)) => add("pod", of_pod(seen)),
        (AttemptState::Created | AttemptState::Attached, None) => add("pod", "it does not exist".to_owned()),
        (AttemptState::Reserved | AttemptState::Ended, _) => {}
    }
    if let Some(node) = observed.node {
        let ready = if node.ready { "Ready" } else { "not Ready" };
        add("node", format!("{ready} since {}", node.since));
    }
    if late_node_loss::awaiting_verdict(row).next().is_some() {
        add("verdict", "a charge may be taken back if a node turns out to be lost".to_owned());
    }
    if let Some(at) = next_attempt_time(row, &settings).max(row.slowed_until()).filter(|at| *at > now) {
        add("backoff", format!("the next pod may start at {at}"));
    }
    facts
}

fn spec(run: &AgentRun) -> String {
    let mode = run.spec.operating_mode.map_or("Running", |it| it.as_str());
    let reset = run.spec.recovery.as_ref().and_then(|it| it.reset_generation).unwrap_or_default();
    format!("operatingMode {mode}, resetGeneration {reset}")
}

fn agent(observed: &Observed) -> String {
    match &observed.agent {
        ObservedAgent::Found { agent, .. } => agent
            .agent_version
            .as_ref()
            .map_or_else(|| "found".to_owned(), |it| format!("found, version {it}")),
        ObservedAgent::NotFound => "there is no such AgentDefinition".to_owned(),
        ObservedAgent::Malformed(error) => format!("it cannot be parsed: {error}"),
    }
}

fn store(row: &RunRecord) -> String {
    let head = match &row.head {
        Some(head) => format!("the head is turn {}, of attempt {}", head.turn, head.attempt),
        None => "nothing is committed".to_owned(),
    };
    let end =
        row.finish.as_ref().map_or_else(String::new, |it| format!(", the run has ended: {:?}", it.outcome));
    format!("{head}, epoch {}{end}", row.epoch)
}

fn attempt(row: &RunRecord) -> String {
    let it = &row.attempt;
    let state = match it.state {
        AttemptState::Reserved => "is reserved and has no pod",
        AttemptState::Created => "has a pod, and no worker has attached",
        AttemptState::Attached => "has a worker",
        AttemptState::Ended => "has ended",
    };
    let last = row.past.first().and_then(|it| Some((it, it.end.as_ref()?)));
    let last = last.map_or_else(String::new, |(past, end)| {
        let at = position(past.turn_at_end.unwrap_or(past.turn_at_start));
        format!("; attempt {} ended {at}: {} ({:?})", past.number, end.cause, end.class)
    });
    format!("{} {state}{last}", it.number)
}

fn of_run(row: &RunRecord, settings: &Settings, add: &mut impl FnMut(&'static str, String)) {
    let it = &row.counters;
    add(
        "budget",
        format!(
            "{} of {} charged, {} of {} in a row without progress, {} in a row without progress",
            counted(it.recovery_attempts.saturating_sub(it.recovery_attempts_base), "crash", "crashes"),
            settings.max_recovery_attempts,
            it.attempts_without_progress,
            settings.max_attempts_without_progress,
            counted(it.disruptions_without_progress, "disruption", "disruptions"),
        ),
    );
    let unsettled: i64 = row.calls.unsettled.values().sum();
    if unsettled + row.calls.keys_refused > 0 {
        let of = row.calls.unsettled.iter().map(|(policy, number)| format!("{number} {policy:?}"));
        let text = of.chain([format!("{} with a refused key", row.calls.keys_refused)]).collect::<Vec<_>>();
        add("calls", format!("their outcome is unknown: {}", text.join(", ")));
    }
    for used in row.limit_uses().into_iter().map(in_units_of_spec) {
        let LimitUse { limit, used, max, .. } = used;
        add("limit", format!("{used} of {max} {}", limit.as_str()));
    }
    for (what, signal) in [("cancel", &row.cancel), ("suspend", &row.suspend)] {
        if let Some(signal) = signal {
            let told = signal.told_at.map_or_else(
                || "its worker does not know".to_owned(),
                |at| format!("its worker knows since {at}"),
            );
            add(what, format!("requested at {}, {told}", signal.requested_at));
        }
    }
    for wait in &row.waits {
        let deadline = wait.deadline_at.map_or_else(String::new, |at| format!(", deadline {at}"));
        let wake = wait.wake_at.map_or_else(String::new, |at| format!(", due at {at}"));
        let is_parked_on = row.parked_on().any(|it| it.id == wait.id);
        let parked = if is_parked_on { ", and the run is parked on it" } else { "" };
        add("wait", format!("{:?} {:?} is open{deadline}{wake}{parked}", wait.kind, wait.id));
    }
    let deadlines = [
        (Deadline::Cancel, "cancel"),
        (Deadline::Suspend, "suspend"),
        (Deadline::Limit, "limit"),
        (Deadline::Lease, "heartbeat"),
        (Deadline::Start, "start"),
        (Deadline::Progress, "progress"),
    ];
    let expired: Vec<_> =
        deadlines.iter().filter(|(it, _)| row.is_expired(*it)).map(|(_, name)| *name).collect();
    if !expired.is_empty() {
        add("deadlines", format!("expired: {}", expired.join(", ")));
    }
}

fn of_pod(seen: &ObservedPod) -> String {
    let phase = seen.pod.status.as_ref().and_then(|it| it.phase.as_deref()).unwrap_or("unknown");
    let waits = pod::waiting(&seen.pod);
    let waits = waits
        .map_or_else(String::new, |(reason, message)| format!(", its container waits: {reason} {message}"));
    let deleted = if seen.pod.metadata.deletion_timestamp.is_some() { ", it is being deleted" } else { "" };
    format!("{} is {phase}{waits}{deleted}", seen.name())
}
