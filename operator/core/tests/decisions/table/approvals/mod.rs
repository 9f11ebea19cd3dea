//! The AgentApprovals of a run, and which decisions count.

mod deadlines;
mod decisions;
mod four_eyes;
mod objects;
mod status;

use dalsegno_core::approvals::four_eyes::FourEyes;
use dalsegno_core::approvals::{
    ApprovalEffect, ClosedWait, KnownWait, ObservedApproval, ObservedApprovals, PolicyState, WaitKey, name_of,
};
use dalsegno_core::{Decision, Effect, EffectResult, Observed, decide};
use dalsegno_crds::{AgentApproval, ApprovalConditionType, ApprovalReason, Verdict};
use dalsegno_model::{OpenWait, ParkedOn};
use dalsegno_protocol::{OnTimeout, ParkMode, WaitKind, WaitOutcome};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use crate::fixtures::{Given, ago, default_revision, now, run};

const HASH: &str = "sha256:0707070707070707070707070707070707070707070707070707070707070707";

fn wait() -> OpenWait {
    OpenWait {
        id: "pay".into(),
        epoch: 3,
        ordinal: 1,
        kind: WaitKind::Approval,
        turn: 7,
        attempt: 1,
        opened_at: ago(60),
        deadline_at: None,
        on_timeout: OnTimeout::Answer,
        timed_out_at: None,
        wake_at: None,
        provider: None,
        topic: None,
        proposal_hash: Some([7; 32]),
    }
}

/// A run that waits for an approval, and the facts about it. Every step of [`Case::settle`] is what the operator would do.
struct Case {
    given: Given,
    seen: Observed,
}

/// The policies have been in place for an hour.
fn in_place() -> PolicyState {
    PolicyState::InPlace { since: ago(3_600) }
}

fn case(change: impl FnOnce(&mut OpenWait)) -> Case {
    let mut wait = wait();
    change(&mut wait);
    let mut given = run();
    given.row.park = Some(ParkedOn { on: vec![wait.id.clone()], mode: ParkMode::All, at: ago(60) });
    given.row.waits = vec![wait];
    given.row.attempt.revision = Some(default_revision());
    given.seen.approvals = Some(ObservedApprovals::cached(Vec::new(), in_place()));
    let seen = given.observed();
    Case { given, seen }
}

impl Case {
    fn approvals(&mut self) -> &mut ObservedApprovals {
        self.seen.approvals.as_mut().unwrap()
    }

    fn decide(&self) -> Decision {
        decide(&self.given.run, &self.seen, now())
    }

    fn key(&self) -> WaitKey {
        WaitKey { id: "pay".into(), epoch: 3 }
    }

    /// Applies the results that a healthy API server and store return, until an effect of this name is wanted.
    fn until(&mut self, name: &str) -> Option<ApprovalEffect> {
        for _ in 0..20 {
            let wanted = self.effects();
            if let Some(effect) = wanted.iter().find(|it| it.name() == name) {
                return Some(effect.clone());
            }
            let results: Vec<_> = wanted.into_iter().filter_map(|it| self.perform(it)).collect();
            if results.is_empty() {
                return None;
            }
            results.into_iter().for_each(|it| self.seen.apply(it));
        }
        panic!("it does not converge: {:?}", self.effects())
    }

    /// Until nothing is wanted any more.
    fn settle(&mut self) -> AgentApproval {
        assert!(self.until("nothing has this name").is_none());
        self.object().clone()
    }

    fn effects(&self) -> Vec<ApprovalEffect> {
        let of = |it: Effect| match it {
            Effect::Approval(effect) => Some(*effect),
            _ => None,
        };
        self.decide().effects.into_iter().filter_map(of).collect()
    }

    fn perform(&self, effect: ApprovalEffect) -> Option<EffectResult> {
        let written = |mut object: AgentApproval| {
            object.metadata.creation_timestamp.get_or_insert(Time(now()));
            object.metadata.uid.get_or_insert_with(|| "approval-uid".into());
            let name = object.metadata.name.clone().unwrap_or_default();
            Some(EffectResult::Approval(name, Some(Box::new(object))))
        };
        match effect {
            ApprovalEffect::ReadWait(_, key) => Some(EffectResult::Wait(key, Some(known(None)))),
            ApprovalEffect::ReadApproval(name) => {
                let object = Box::new(self.object().clone());
                Some(EffectResult::Approval(name, Some(object)))
            }
            ApprovalEffect::ReadPolicies => {
                Some(EffectResult::Policies(self.seen.approvals.as_ref().unwrap().policies.clone()))
            }
            ApprovalEffect::Create(object) | ApprovalEffect::WriteStatus(object) => written(*object),
            ApprovalEffect::Delete { name, .. } => Some(EffectResult::Approval(name, None)),
            ApprovalEffect::RefuseDecision { approval, .. } => {
                let mut object = *approval;
                (object.spec.decision, object.spec.second_decision) = (None, None);
                written(object)
            }
            ApprovalEffect::ReadFourEyes { .. }
            | ApprovalEffect::AnswerWait(..)
            | ApprovalEffect::TimeOutWait(..) => None,
        }
    }

    fn object(&self) -> &AgentApproval {
        let [seen] = &self.seen.approvals.as_ref().unwrap().objects[..] else {
            panic!("{:#?}", self.seen.approvals)
        };
        &seen.object
    }

    /// The operator has created the object, and a person has written this.
    fn decided(mut self, spec: Value) -> Self {
        let mut object = self.settle();
        let mut json = serde_json::to_value(&object.spec).unwrap();
        for (name, value) in spec.as_object().unwrap() {
            json[name] = value.clone();
        }
        object.spec = serde_json::from_value(json).unwrap();
        self.approvals().objects = vec![ObservedApproval::cached(object)];
        self.approvals().waits.clear();
        self
    }

    fn four_eyes(mut self, facts: FourEyes) -> Self {
        self.approvals().four_eyes = Some(facts);
        self
    }
}

fn known(closed: Option<ClosedWait>) -> KnownWait {
    KnownWait { words: Some(("Buy".into(), "It is cheap".into())), closed }
}

fn decision(verdict: &str, by: &str) -> Value {
    json!({ "verdict": verdict, "proposalHash": HASH, "reason": "because", "by": by })
}

fn approved(by: &str) -> Value {
    json!({ "decision": decision("Approved", by) })
}

/// Status and reason of a condition.
fn condition(object: &AgentApproval, kind: ApprovalConditionType) -> (bool, ApprovalReason) {
    let conditions = &object.status.as_ref().unwrap().conditions;
    let found = conditions.iter().find(|it| it.type_ == kind.as_str()).unwrap();
    (found.status == "True", found.reason.parse().unwrap())
}

fn pending(object: &AgentApproval) -> (bool, ApprovalReason) {
    condition(object, ApprovalConditionType::Pending)
}
