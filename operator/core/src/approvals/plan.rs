//! What to do about the approvals of a run.

use std::collections::BTreeSet;
use std::time::Duration;

use dalsegno_crds::{AgentRun, ApprovalReason};
use dalsegno_model::{OpenWait, RunRecord};
use dalsegno_protocol::{OnTimeout, WaitKind};
use jiff::{SignedDuration, Timestamp};

use super::check::{Checked, check};
use super::object::{is_of, is_owned_by, name_of, wanted};
use super::observed::{
    ApprovalEffect, ClosedWait, ObservedApproval, ObservedApprovals, OverApproval, PolicyState, WaitKey,
    WhichDecision,
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
/// An AgentApproval is there for as long as the agent gave people to decide, or for this long, before it times out. It may
/// be new although the deadline has passed: the operator was unavailable, or the object was replaced.
const LONGEST_GRACE: SignedDuration = SignedDuration::from_hours(1);

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
    let mut names = BTreeSet::new();
    for wait in &open {
        // Another open wait of the run may have the same name: the name has only some bits of a hash, and an agent may
        // choose ids for it. Then this one gets its object after the other one.
        if names.insert(name_of(facts.run, &WaitKey::of(wait))) {
            plan.open_wait(facts, wait);
        }
    }
    let open: Vec<WaitKey> = open.into_iter().map(WaitKey::of).collect();
    let others = facts.approvals.objects.iter().filter(|it| !open.contains(&it.wait()));
    let (over, not_over): (Vec<_>, Vec<_>) =
        others.filter(|it| !is_being_deleted(it)).partition(|it| status::is_over(&it.object));
    not_over.into_iter().for_each(|seen| plan.closed_wait(facts, seen));
    if plan.needs_policies {
        plan.act(ApprovalEffect::ReadPolicies);
    }
    let kept = facts.approvals.over.iter().filter(|it| !names.contains(&it.name) && !it.is_being_deleted);
    let mut over: Vec<_> = over.into_iter().map(OverApproval::of).chain(kept.cloned()).collect();
    over.sort_by(|a, b| (b.created, &b.name).cmp(&(a.created, &a.name)));
    for OverApproval { name, uid, .. } in over.into_iter().skip(KEPT) {
        plan.act(ApprovalEffect::Delete { name, uid });
    }
    plan
}

/// Where there are no AgentApprovals, as on a laptop: people decide in the store, so no decision can be missed.
fn plan_without_objects(row: &RunRecord) -> ApprovalPlan {
    let mut plan = ApprovalPlan::default();
    let is_approval = |it: &&OpenWait| it.kind == WaitKind::Approval && row.finish.is_none();
    for wait in row.waits.iter().filter(is_approval) {
        if wait.deadline_at.is_some_and(|deadline| plan.is_due(row, wait, deadline)) {
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
            // A restored store may have opened the approval again. The object may have the decision.
            return match approvals.over.iter().any(|it| it.name == name) {
                true => self.act(ApprovalEffect::ReadApproval(name)),
                false => self.create(facts, wait),
            };
        };
        if is_being_deleted(seen) {
            return self.look_again(SOON);
        }
        if !is_of(seen, run, wait, four_eyes) {
            return self.delete(seen);
        }
        if is_older_than_policies(seen, &approvals.policies) {
            return self.replace_old(facts, seen);
        }
        let four_eyes = approvals.four_eyes.as_ref().map(|it| it.of_wait(row, wait));
        match check(seen, approvals, four_eyes.as_ref()) {
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

    /// Deletes an object of which nobody knows what happened to it before the policies were in place. A decision on it is
    /// refused first, so that people see that they must decide again.
    fn replace_old(&mut self, facts: &Facts<'_>, seen: &ObservedApproval) {
        if seen.object.spec.decision.is_none() {
            return self.delete(seen);
        }
        let reason = ApprovalReason::DecidedWithoutPolicy;
        let message = "the decision was removed: the admission policies were not in place".to_owned();
        if self.show(facts, seen, &ApprovalState::Waiting(reason, message)) {
            let approval = Box::new(seen.object.clone());
            let (run, which) = (facts.row.id, WhichDecision::First);
            self.act(ApprovalEffect::RefuseDecision { run, approval, which, reason });
        }
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
        if self.show(facts, seen, &ApprovalState::Waiting(reason, message)) {
            self.time_out(facts, wait, seen);
        }
    }

    /// If nobody has decided in time, and the approval asks for something then: looks whether somebody has decided
    /// meanwhile, and if not, times it out.
    fn time_out(&mut self, facts: &Facts<'_>, wait: &OpenWait, seen: &ObservedApproval) {
        let Some(due) = due_at(wait, seen).filter(|due| self.is_due(facts.row, wait, *due)) else { return };
        self.act(match seen.live_at {
            Some(at) if at >= due => ApprovalEffect::TimeOutWait(facts.row.id, WaitKey::of(wait)),
            Some(_) | None => ApprovalEffect::ReadApproval(seen.name().to_owned()),
        });
    }

    /// Whether this time has come, and the approval asks for something then.
    fn is_due(&mut self, row: &RunRecord, wait: &OpenWait, due: Timestamp) -> bool {
        let is_parked_on = || row.parked_on().any(|it| WaitKey::of(it) == WaitKey::of(wait));
        let has_effect = match wait.on_timeout {
            OnTimeout::Answer => true,
            OnTimeout::Hold => wait.timed_out_at.is_none() && is_parked_on(),
            OnTimeout::Fail => is_parked_on(),
        };
        let left = due.duration_since(row.now);
        if left.is_positive() {
            self.look_again(Duration::try_from(left).unwrap_or(SOON));
        }
        has_effect && !left.is_positive()
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
                // A run that has ended waits for nothing, whatever an old gateway has left of its waits.
                let ended = row.finish.as_ref().map(|_| ClosedWait::Withdrawn);
                if let Some(closed) = known.closed.or(ended) {
                    self.show(facts, seen, &ApprovalState::Closed(closed));
                }
            }
        }
    }
}

fn is_being_deleted(seen: &ObservedApproval) -> bool {
    seen.object.metadata.deletion_timestamp.is_some()
}

/// Whether the object was made before the policies were in place, or so soon after that it is not certain.
fn is_older_than_policies(seen: &ObservedApproval, policies: &PolicyState) -> bool {
    let PolicyState::InPlace { since } = policies else { return false };
    let created = seen.object.metadata.creation_timestamp.as_ref();
    created.is_none_or(|at| at.0.duration_since(*since) < POLICY_DELAY)
}

/// When an approval with this object times out: at its deadline, and not before people had time to see the object.
fn due_at(wait: &OpenWait, seen: &ObservedApproval) -> Option<Timestamp> {
    let deadline = wait.deadline_at?;
    let grace = deadline.duration_since(wait.opened_at).min(LONGEST_GRACE);
    let created = seen.object.metadata.creation_timestamp.as_ref();
    let seen_long_enough = created.and_then(|at| at.0.checked_add(grace).ok());
    Some(seen_long_enough.map_or(deadline, |at| at.max(deadline)))
}

/// Whether the object shows these words of the agent.
fn has_words(seen: &ObservedApproval, (title, summary): &(String, String)) -> bool {
    let spec = &seen.object.spec;
    (&spec.title, &spec.summary) == (title, summary)
}
