//! What to do about the approvals of a run.

use std::cmp::Reverse;
use std::time::Duration;

use dalsegno_crds::{AgentRun, ApprovalReason};
use dalsegno_model::{OpenWait, RunRecord};
use dalsegno_protocol::{OnTimeout, WaitKind};
use jiff::{SignedDuration, Timestamp};

use super::check::{Checked, check};
use super::object::{is_of, is_owned_by, name_of, wanted};
use super::observed::{
    ApprovalEffect, ObservedApproval, ObservedApprovals, PolicyState, WaitKey, WhichDecision,
};
use super::status::{self, ApprovalState};
use crate::decision::{Effect, EventSpec};

/// Number of approvals of a run that are kept after they are over.
const KEPT: usize = 20;
/// Delay until an API server is tried again that refused a request for an approval.
const RETRY: Duration = Duration::from_secs(10);
/// Delay until an approval that is being deleted, or must not be created yet, is looked at again.
const SOON: Duration = Duration::from_secs(2);
/// Time until every API server obeys a new policy. An AgentApproval that is not that much younger is replaced.
const POLICY_DELAY: SignedDuration = SignedDuration::from_secs(5);
/// Time after which a new AgentApproval is that much younger, although clocks differ.
const CREATION_DELAY: SignedDuration = SignedDuration::from_secs(8);

/// What to do about the approvals of a run.
#[derive(Debug, Default)]
pub(crate) struct ApprovalPlan {
    /// The changes and reads. The next decision depends on their results.
    pub effects: Vec<Effect>,
    /// Events of the run.
    pub events: Vec<EventSpec>,
    /// Look again after this long.
    pub requeue: Option<Duration>,
    /// Whether a decision cannot be judged before the policies were looked at.
    needs_policies: bool,
}

/// What a plan is made from.
pub(crate) struct Facts<'a> {
    pub run: &'a AgentRun,
    pub row: &'a RunRecord,
    pub approvals: &'a ObservedApprovals,
    /// Whether the run demands four eyes.
    pub four_eyes: bool,
    /// The time, by the operator's clock.
    pub now: Timestamp,
}

/// Plans what to do about the approvals of a run.
pub(crate) fn plan(facts: &Facts<'_>) -> ApprovalPlan {
    if !facts.approvals.are_objects {
        return plan_without_objects(facts.row);
    }
    let mut plan = ApprovalPlan::default();
    if facts.approvals.failed.is_some() {
        plan.look_again(RETRY);
        return plan;
    }
    let is_approval = |it: &&OpenWait| it.kind == WaitKind::Approval && facts.row.finish.is_none();
    let open: Vec<&OpenWait> = facts.row.waits.iter().filter(is_approval).collect();
    for wait in &open {
        plan.open_wait(facts, wait);
    }
    let open: Vec<WaitKey> = open.into_iter().map(WaitKey::of).collect();
    let others = facts.approvals.objects.iter().filter(|it| !open.contains(&it.wait()));
    let (mut over, not_over): (Vec<_>, Vec<_>) =
        others.filter(|it| !is_being_deleted(it)).partition(|it| status::is_over(&it.object));
    not_over.into_iter().for_each(|seen| plan.closed_wait(facts, seen));
    if plan.needs_policies {
        plan.act(ApprovalEffect::ReadPolicies);
    }
    over.sort_by_key(|it| Reverse((it.object.metadata.creation_timestamp.clone().map(|at| at.0), it.name())));
    over.into_iter().skip(KEPT).for_each(|seen| plan.delete(seen));
    plan
}

/// Where there are no AgentApprovals, as on a laptop: people decide in the store, so no decision can be missed.
fn plan_without_objects(row: &RunRecord) -> ApprovalPlan {
    let mut plan = ApprovalPlan::default();
    let is_approval = |it: &&OpenWait| it.kind == WaitKind::Approval && row.finish.is_none();
    for wait in row.waits.iter().filter(is_approval) {
        if plan.is_due(row, wait) {
            plan.act(ApprovalEffect::TimeOutWait(row.id, WaitKey::of(wait)));
        }
    }
    plan
}

impl ApprovalPlan {
    fn act(&mut self, effect: ApprovalEffect) {
        self.effects.push(Effect::Approval(Box::new(effect)));
    }

    fn look_again(&mut self, after: Duration) {
        self.requeue = Some(self.requeue.map_or(after, |it| it.min(after)));
    }

    fn delete(&mut self, seen: &ObservedApproval) {
        self.act(ApprovalEffect::Delete { name: seen.name().to_owned(), uid: seen.uid().to_owned() });
    }

    /// Shows the state in the object's status. Returns whether it did so already.
    fn show(&mut self, facts: &Facts<'_>, seen: &ObservedApproval, state: &ApprovalState) -> bool {
        let Some(object) = status::changed(seen, state, facts.now) else { return true };
        self.events.extend(status::event(seen, state));
        self.act(ApprovalEffect::WriteStatus(Box::new(object)));
        false
    }

    /// An approval that waits for a decision.
    fn open_wait(&mut self, facts: &Facts<'_>, wait: &OpenWait) {
        let Facts { run, row, approvals, four_eyes, .. } = *facts;
        let key = WaitKey::of(wait);
        let name = name_of(run, &key);
        let Some(seen) = approvals.objects.iter().find(|it| it.name() == name) else {
            return self.create(facts, wait);
        };
        if is_being_deleted(seen) {
            return self.look_again(SOON);
        }
        if !is_of(seen, run, wait, four_eyes) {
            return self.delete(seen);
        }
        // Nobody knows what happened to the object before the policies were in place.
        if let PolicyState::InPlace { since } = approvals.policies
            && seen
                .object
                .metadata
                .creation_timestamp
                .as_ref()
                .is_none_or(|at| at.0.duration_since(since) < POLICY_DELAY)
        {
            if seen.object.spec.decision.is_some() {
                return self.refuse_without_policy(facts, seen);
            }
            return self.delete(seen);
        }
        match check(seen, approvals) {
            Checked::None => self.undecided(facts, wait, seen),
            Checked::NeedsPolicies => self.needs_policies = true,
            Checked::NeedsFourEyes { since } => {
                self.act(ApprovalEffect::ReadFourEyes { run: row.id, since });
            }
            Checked::Waits(reason, message) => {
                let shown = self.show(facts, seen, &ApprovalState::Waiting(reason, message));
                if shown && reason == ApprovalReason::AwaitingSecondDecision {
                    self.time_out(facts, wait, seen);
                }
            }
            Checked::Refused(which, reason, message) => {
                // The status first: if it is written, the reason is not lost.
                if self.show(facts, seen, &ApprovalState::Waiting(reason, message)) {
                    let approval = Box::new(seen.object.clone());
                    self.act(ApprovalEffect::RefuseDecision { run: row.id, approval, which, reason });
                }
            }
            Checked::Counts(answer) => match approvals.waits.get(&key) {
                None => self.act(ApprovalEffect::ReadWait(row.id, key)),
                Some(Some(known)) if known.words.as_ref().is_some_and(|it| has_words(seen, it)) => {
                    self.act(ApprovalEffect::AnswerWait(row.id, answer));
                }
                // Not what the agent wrote: whoever decided was shown something else.
                Some(_) => self.delete(seen),
            },
        }
    }

    /// A decision that was made while the policies were not in place. It is in the audit before its object is replaced.
    fn refuse_without_policy(&mut self, facts: &Facts<'_>, seen: &ObservedApproval) {
        let reason = ApprovalReason::DecidedWithoutPolicy;
        let message = "the decision was removed: the admission policies were not in place".to_owned();
        self.events.extend(status::event(seen, &ApprovalState::Waiting(reason, message)));
        let approval = Box::new(seen.object.clone());
        self.act(ApprovalEffect::RefuseDecision {
            run: facts.row.id,
            approval,
            which: WhichDecision::First,
            reason,
        });
    }

    /// Creates the object of an approval.
    fn create(&mut self, facts: &Facts<'_>, wait: &OpenWait) {
        let Facts { run, row, approvals, four_eyes, now } = *facts;
        if let PolicyState::InPlace { since } = approvals.policies
            && now.duration_since(since) < CREATION_DELAY
        {
            return self.look_again(SOON);
        }
        let key = WaitKey::of(wait);
        match approvals.waits.get(&key) {
            None => self.act(ApprovalEffect::ReadWait(row.id, key)),
            Some(Some(known)) => {
                if let Some(words) = known.words.clone() {
                    self.act(ApprovalEffect::Create(Box::new(wanted(run, wait, words, four_eyes))));
                }
            }
            Some(None) => {}
        }
    }

    /// Nobody has decided.
    fn undecided(&mut self, facts: &Facts<'_>, wait: &OpenWait, seen: &ObservedApproval) {
        let is_overdue = wait.timed_out_at.is_some();
        let (reason, message) = match (&facts.approvals.policies, status::refusal(&seen.object)) {
            (PolicyState::Missing(which), _) => (ApprovalReason::PolicyMissing, which.clone()),
            (PolicyState::InPlace { .. }, Some((reason, message))) => (reason, message),
            (PolicyState::InPlace { .. }, None) if is_overdue => (ApprovalReason::Overdue, String::new()),
            (PolicyState::InPlace { .. }, None) => (ApprovalReason::AwaitingDecision, String::new()),
        };
        self.show(facts, seen, &ApprovalState::Waiting(reason, message));
        self.time_out(facts, wait, seen);
    }

    /// If the deadline has passed, and the approval asks for something then: looks whether somebody has decided meanwhile,
    /// and if not, times it out.
    fn time_out(&mut self, facts: &Facts<'_>, wait: &OpenWait, seen: &ObservedApproval) {
        if !self.is_due(facts.row, wait) {
            return;
        }
        self.act(match seen.live {
            true => ApprovalEffect::TimeOutWait(facts.row.id, WaitKey::of(wait)),
            false => ApprovalEffect::ReadApproval(seen.name().to_owned()),
        });
    }

    /// Whether the deadline has passed, and the approval asks for something then.
    fn is_due(&mut self, row: &RunRecord, wait: &OpenWait) -> bool {
        let Some(deadline) = wait.deadline_at else { return false };
        let left = deadline.duration_since(row.now);
        if left.is_positive() {
            self.look_again(Duration::try_from(left).unwrap_or(SOON));
            return false;
        }
        let is_parked_on = || row.parked_on().any(|it| WaitKey::of(it) == WaitKey::of(wait));
        match wait.on_timeout {
            OnTimeout::Answer => true,
            OnTimeout::Hold => wait.timed_out_at.is_none() && is_parked_on(),
            OnTimeout::Fail => is_parked_on(),
        }
    }

    /// An object whose approval is not open, and whose status does not say so yet.
    fn closed_wait(&mut self, facts: &Facts<'_>, seen: &ObservedApproval) {
        let Facts { run, row, approvals, .. } = *facts;
        let key = seen.wait();
        if !is_owned_by(seen, run) || seen.name() != name_of(run, &key) {
            return self.delete(seen);
        }
        match approvals.waits.get(&key) {
            None => self.act(ApprovalEffect::ReadWait(row.id, key)),
            Some(None) => self.delete(seen),
            Some(Some(known)) => {
                if let Some(closed) = known.closed {
                    self.show(facts, seen, &ApprovalState::Closed(closed));
                }
            }
        }
    }
}

fn is_being_deleted(seen: &ObservedApproval) -> bool {
    seen.object.metadata.deletion_timestamp.is_some()
}

/// Whether the object shows these words of the agent.
fn has_words(seen: &ObservedApproval, (title, summary): &(String, String)) -> bool {
    let spec = &seen.object.spec;
    (&spec.title, &spec.summary) == (title, summary)
}
