//! The check of a decision: whether it counts, and what it answers.

use dalsegno_crds::{AgentApprovalSpec, ApprovalDecision, ApprovalReason, SecondVerdict, Verdict};
use dalsegno_model::{WaitAnswer, WaitDecision};
use dalsegno_protocol::nesting::deeper_than;
use dalsegno_protocol::{Limits, WaitOutcome};
use jiff::Timestamp;
use serde_json::value::to_raw_value;

use super::four_eyes::{Demand, FourEyes};
use super::observed::{ObservedApproval, ObservedApprovals, PolicyState, WhichDecision};

/// Bytes of the changes of a decision.
const CHANGES_BYTES: usize = 16 << 10;

/// What a decision does.
#[derive(Clone, Debug)]
pub(super) enum Checked {
    /// There is none.
    None,
    /// It counts, and answers the wait.
    Counts(Box<WaitAnswer>),
    /// It does not count yet.
    Waits(ApprovalReason, String),
    /// It does not count, and is removed, so that somebody else can decide.
    Refused(WhichDecision, ApprovalReason, String),
    /// The policies were not looked at during this reconcile. They may be gone since the last look.
    NeedsPolicies,
    /// Who must not decide was not read yet.
    NeedsFourEyes {
        /// Since when the stamps prove who made a change.
        since: Timestamp,
    },
}

/// Checks the decision of an AgentApproval, whose object is the wait's. `facts`: who must not decide about this wait, if it
/// was read.
pub(super) fn check(
    seen: &ObservedApproval,
    approvals: &ObservedApprovals,
    facts: Option<&FourEyes>,
) -> Checked {
    let spec = &seen.object.spec;
    let Some(decision) = &spec.decision else { return Checked::None };
    if !approvals.policies_live {
        return Checked::NeedsPolicies;
    }
    let since = match &approvals.policies {
        PolicyState::Missing(which) => return Checked::Waits(ApprovalReason::PolicyMissing, which.clone()),
        PolicyState::InPlace { since } => *since,
    };
    let refused = |which, reason, why: String| Checked::Refused(which, reason, why);
    let of = |by: &str| format!("the decision of {by} was removed");
    if decision.proposal_hash != spec.proposal_hash {
        let why = format!("{}: it names another proposal", of(&decision.by));
        return refused(WhichDecision::First, ApprovalReason::OtherProposal, why);
    }
    if let Some(why) = too_large(decision) {
        let why = format!("{}: {why}", of(&decision.by));
        return refused(WhichDecision::First, ApprovalReason::ChangesTooLarge, why);
    }
    let second = spec.second_decision.as_ref();
    if let Some(second) = second.filter(|it| it.proposal_hash != spec.proposal_hash) {
        let why = format!("{}: it names another proposal", of(&second.by));
        return refused(WhichDecision::Second, ApprovalReason::OtherProposal, why);
    }
    if !spec.four_eyes {
        return Checked::Counts(Box::new(answer(spec, decision)));
    }
    let Some(facts) = facts else { return Checked::NeedsFourEyes { since } };
    match four_eyes(spec, decision, facts) {
        Some(checked) => checked,
        None => Checked::Counts(Box::new(answer(spec, decision))),
    }
}

/// Why the decision does not count under four eyes, or not yet.
fn four_eyes(spec: &AgentApprovalSpec, decision: &ApprovalDecision, facts: &FourEyes) -> Option<Checked> {
    let removed = |by: &str, why: &str| format!("the decision of {by} was removed: {why}");
    let violated = |which, by: &str, role: &str| {
        let why = removed(by, &format!("{by} {role}"));
        Some(Checked::Refused(which, ApprovalReason::FourEyesViolated, why))
    };
    match facts.demand(&decision.by, None) {
        Demand::Unknown(why) => {
            let why = removed(&decision.by, &why);
            return Some(Checked::Refused(WhichDecision::First, ApprovalReason::FourEyesUnknown, why));
        }
        Demand::Excluded(role) => return violated(WhichDecision::First, &decision.by, role),
        Demand::Satisfied | Demand::SecondDecider => {}
    }
    // One person may deny.
    if decision.verdict == Verdict::Denied {
        return None;
    }
    let second = spec.second_decision.as_ref();
    match facts.demand(&decision.by, second.map(|it| it.by.as_str())) {
        Demand::Satisfied => None,
        Demand::SecondDecider => Some(Checked::Waits(
            ApprovalReason::AwaitingSecondDecision,
            format!("{} has decided", decision.by),
        )),
        Demand::Excluded(role) => {
            violated(WhichDecision::Second, second.map_or("", |second| second.by.as_str()), role)
        }
        Demand::Unknown(why) => Some(Checked::Refused(
            WhichDecision::Second,
            ApprovalReason::FourEyesUnknown,
            removed(second.map_or("", |second| second.by.as_str()), &why),
        )),
    }
}

fn too_large(decision: &ApprovalDecision) -> Option<String> {
    let changes = decision.changes.as_ref()?.to_string();
    if changes.len() > CHANGES_BYTES {
        return Some(format!("its changes are {} bytes, and {CHANGES_BYTES} are allowed", changes.len()));
    }
    let depth = deeper_than(Limits::SHOWN_DEPTH, changes.as_bytes());
    depth.map(|_| format!("its changes are nested deeper than {} levels", Limits::SHOWN_DEPTH))
}

/// The answer of the wait: the first decision, unless a second person denied it.
fn answer(spec: &AgentApprovalSpec, decision: &ApprovalDecision) -> WaitAnswer {
    let second = spec.second_decision.as_ref();
    let denied =
        second.filter(|it| it.verdict == SecondVerdict::Denied && decision.verdict != Verdict::Denied);
    let outcome = match (denied, decision.verdict) {
        (Some(_), _) | (None, Verdict::Denied) => WaitOutcome::Denied,
        (None, Verdict::Approved) => WaitOutcome::Approved,
        (None, Verdict::Changed) => WaitOutcome::Changed,
    };
    let by = match second {
        Some(second) => format!("{}, {}", decision.by, second.by),
        None => decision.by.clone(),
    };
    let reason = denied.map_or(&decision.reason, |second| &second.reason);
    let changes = decision.changes.as_ref().filter(|_| outcome == WaitOutcome::Changed);
    WaitAnswer {
        id: spec.wait_id.clone(),
        epoch: spec.epoch,
        outcome,
        decision: WaitDecision {
            by,
            reason: Some(reason.clone()).filter(|it| !it.is_empty()),
            changes: changes.and_then(|it| to_raw_value(it).ok()),
        },
    }
}
