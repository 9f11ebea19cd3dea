//! The AgentApprovals of a run, and which decisions count.

use dalsegno_core::approvals::four_eyes::{Author, FourEyes};
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

use crate::fixtures::{Given, ago, now, run};

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
        self.approvals().objects = vec![ObservedApproval { object, live: false }];
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

#[test]
fn an_open_approval_gets_an_object_that_shows_the_agents_words() {
    let object = case(|_| {}).settle();
    let spec = &object.spec;
    assert_eq!((&*spec.title, &*spec.summary, &*spec.proposal_hash), ("Buy", "It is cheap", HASH));
    assert_eq!((&*spec.wait_id, spec.epoch, spec.turn, spec.four_eyes), ("pay", 3, 7, false));
    assert_eq!(pending(&object), (true, ApprovalReason::AwaitingDecision));
    assert_eq!(object.metadata.owner_references, Some(vec![run().run.owner_reference()]));
}

#[test]
fn the_name_depends_on_the_run_the_wait_and_its_epoch() {
    let of = |uid: &str, id: &str, epoch: i64| {
        let mut run = run().run;
        run.metadata.uid = Some(uid.into());
        name_of(&run, &WaitKey { id: id.into(), epoch })
    };
    let first = of("u", "pay", 3);
    assert!(first.starts_with("triage-") && first.len() == "triage-".len() + 10, "{first}");
    assert_eq!(first, of("u", "pay", 3));
    for other in [of("v", "pay", 3), of("u", "pax", 3), of("u", "pay", 4), of("up", "ay", 3)] {
        assert_ne!(first, other);
    }
}

#[test]
fn an_object_is_created_only_once_the_policies_are_obeyed_everywhere() {
    let mut case = case(|_| {});
    case.approvals().policies = PolicyState::InPlace { since: ago(3) };
    assert!(case.effects().is_empty());
    assert!(case.decide().requeue.is_some());
}

#[test]
fn a_decision_answers_the_wait() {
    for (verdict, outcome) in [
        ("Approved", WaitOutcome::Approved),
        ("Denied", WaitOutcome::Denied),
        ("Changed", WaitOutcome::Changed),
    ] {
        let mut decision = decision(verdict, "alice");
        if verdict == "Changed" {
            decision["changes"] = json!({ "cents": 3 });
        }
        let mut case = case(|_| {}).decided(json!({ "decision": decision }));
        let Some(ApprovalEffect::AnswerWait(_, answer)) = case.until("answer-wait") else {
            panic!("{verdict}")
        };
        assert_eq!((answer.outcome, &*answer.id, answer.epoch), (outcome, "pay", 3));
        assert_eq!((&*answer.decision.by, answer.decision.reason.as_deref()), ("alice", Some("because")));
        let changes = answer.decision.changes.map(|it| it.get().to_owned());
        assert_eq!(changes.as_deref(), (verdict == "Changed").then_some(r#"{"cents":3}"#));
    }
}

#[test]
fn no_decision_counts_before_the_policies_were_looked_at_or_while_one_is_missing() {
    let case = case(|_| {}).decided(approved("alice"));
    let names: Vec<_> = case.effects().iter().map(ApprovalEffect::name).collect();
    assert_eq!(names, ["read-policies"]);
    let mut case = case;
    case.approvals().policies = PolicyState::Missing("the policy does not exist".into());
    let object = case.settle();
    assert_eq!(pending(&object), (true, ApprovalReason::PolicyMissing));
    assert!(object.spec.decision.is_some(), "it waits");
}

#[test]
fn an_object_from_before_the_policies_is_replaced_with_its_decision() {
    let mut case = case(|_| {}).decided(approved("alice"));
    let created = &mut case.approvals().objects[0].object.metadata.creation_timestamp;
    *created = Some(Time(ago(50)));
    case.approvals().policies = PolicyState::InPlace { since: ago(49) };
    // In the audit first.
    let [ApprovalEffect::RefuseDecision { reason, .. }] = &case.effects()[..] else { panic!("{:?}", case.effects()) };
    assert_eq!(*reason, ApprovalReason::DecidedWithoutPolicy);
    assert!(matches!(case.until("delete-approval"), Some(ApprovalEffect::Delete { .. })));
    let object = case.settle();
    assert_eq!(
        (object.spec.decision.is_none(), pending(&object)),
        (true, (true, ApprovalReason::AwaitingDecision))
    );
}

#[test]
fn an_object_of_another_owner_or_proposal_is_replaced() {
    type Edit = fn(&mut AgentApproval);
    let changes: [(&str, Edit); 6] = [
        ("owner", |it| it.metadata.owner_references = None),
        ("hash", |it| it.spec.proposal_hash = HASH.replace('7', "8")),
        ("turn", |it| it.spec.turn = 1),
        ("deadline", |it| it.spec.deadline_time = Some(Time(ago(0)))),
        ("run", |it| it.spec.run_ref.name = "other".into()),
        ("title", |it| it.spec.title = "Give".into()),
    ];
    for (what, change) in changes {
        let mut case = case(|_| {}).decided(approved("alice"));
        change(&mut case.approvals().objects[0].object);
        let effect = case.until("answer-wait");
        assert!(effect.is_none(), "{what}: {effect:?}");
        assert!(case.object().spec.decision.is_none(), "{what}");
    }
}

#[test]
fn a_decision_about_another_proposal_or_with_large_changes_is_removed() {
    let mut other = decision("Approved", "alice");
    other["proposalHash"] = json!(HASH.replace('7', "8"));
    let mut large = decision("Changed", "alice");
    large["changes"] = json!("x".repeat(17_000));
    for (decision, reason) in
        [(other, ApprovalReason::OtherProposal), (large, ApprovalReason::ChangesTooLarge)]
    {
        let mut case = case(|_| {}).decided(json!({ "decision": decision }));
        let object = case.settle();
        assert_eq!(pending(&object), (true, reason));
        assert!(object.spec.decision.is_none());
    }
}

fn facts(creator: Author, agent: Author) -> FourEyes {
    FourEyes { creator, agent, messages: Ok(vec!["mallory".into()]) }
}

fn user(name: &str) -> Author {
    Author::User(name.into())
}

/// What becomes of decisions by these users.
fn outcome(facts: FourEyes, spec: Value) -> String {
    let mut case = case(|_| {});
    case.given.run.spec.four_eyes = Some(true);
    let mut case = case.decided(spec).four_eyes(facts);
    match case.until("answer-wait") {
        Some(ApprovalEffect::AnswerWait(_, answer)) => {
            format!("{:?} by {}", answer.outcome, answer.decision.by)
        }
        _ => pending(case.object()).1.to_string(),
    }
}

#[test]
fn four_eyes() {
    let second = |verdict: &str, by: &str| {
        let mut spec = approved("bob");
        spec["secondDecision"] = decision(verdict, by);
        spec
    };
    let people = || facts(user("alice"), user("ann"));
    let flux = || facts(user("system:serviceaccount:flux:flux"), user("ann"));
    let unproven = || facts(user("alice"), Author::NotProven);
    let unknown = || facts(user("alice"), Author::Unknown("it does not exist".into()));
    let unread = FourEyes { messages: Err("the inbox cannot be read".into()), ..people() };
    let denied = json!({ "decision": decision("Denied", "bob") });
    for (facts, spec, expected) in [
        (people(), approved("bob"), "Approved by bob"),
        (people(), approved("alice"), "FourEyesViolated"),
        (people(), approved("ann"), "FourEyesViolated"),
        (people(), approved("mallory"), "FourEyesViolated"),
        (flux(), approved("bob"), "AwaitingSecondDecision"),
        (flux(), second("Approved", "carol"), "Approved by bob, carol"),
        (flux(), second("Denied", "carol"), "Denied by bob, carol"),
        (flux(), second("Approved", "ann"), "FourEyesViolated"),
        (flux(), second("Approved", "bob"), "FourEyesViolated"),
        (flux(), denied, "Denied by bob"),
        (unproven(), approved("bob"), "AwaitingSecondDecision"),
        (unproven(), second("Approved", "carol"), "Approved by bob, carol"),
        (unknown(), approved("bob"), "FourEyesUnknown"),
        (unread, approved("bob"), "FourEyesUnknown"),
    ] {
        assert_eq!(outcome(facts.clone(), spec.clone()), expected, "{facts:?} {spec}");
    }
}

#[test]
fn a_pending_approval_keeps_its_four_eyes_although_the_run_demands_none() {
    let mut case = case(|_| {});
    case.given.run.spec.four_eyes = Some(true);
    let object = case.settle();
    assert!(object.spec.four_eyes);
    case.given.run.spec.four_eyes = None;
    assert!(case.settle().spec.four_eyes);
}

/// The deadline has passed.
fn overdue(on_timeout: OnTimeout) -> Case {
    case(|wait| (wait.deadline_at, wait.on_timeout) = (Some(ago(1)), on_timeout))
}

#[test]
fn an_approval_times_out_only_after_a_live_read_without_a_decision() {
    let mut case = overdue(OnTimeout::Answer);
    case.given.row.waits[0].deadline_at = Some(ago(1));
    let object = case.until("time-out-wait").map(|_| case.object().clone()).unwrap();
    case.approvals().objects = vec![ObservedApproval { object: object.clone(), live: false }];
    let names: Vec<_> = case.effects().iter().map(ApprovalEffect::name).collect();
    assert!(
        names.contains(&"read-approval") && !names.contains(&"time-out-wait"),
        "the cache proves nothing: {names:?}"
    );
    // Somebody has decided meanwhile: that counts, although the deadline has passed.
    let mut decided = object;
    decided.spec.decision = serde_json::from_value(decision("Approved", "alice")).unwrap();
    let name = decided.metadata.name.clone().unwrap();
    case.seen.apply(EffectResult::Approval(name, Some(Box::new(decided))));
    assert!(case.until("answer-wait").is_some());
}

#[test]
fn where_there_are_no_objects_the_deadline_counts_alone() {
    let mut case = overdue(OnTimeout::Answer);
    case.seen.approvals = Some(ObservedApprovals::without_objects());
    let names: Vec<_> = case.effects().iter().map(ApprovalEffect::name).collect();
    assert_eq!(names, ["time-out-wait"]);
    let mut open = self::case(|_| {});
    open.seen.approvals = Some(ObservedApprovals::without_objects());
    assert!(open.effects().is_empty());
}

#[test]
fn hold_and_fail_wait_until_the_run_is_parked_on_the_approval() {
    for (on_timeout, is_parked, times_out) in [
        (OnTimeout::Answer, false, true),
        (OnTimeout::Hold, true, true),
        (OnTimeout::Hold, false, false),
        (OnTimeout::Fail, true, true),
        (OnTimeout::Fail, false, false),
    ] {
        let mut case = overdue(on_timeout);
        if !is_parked {
            case.given.row.park = None;
            case.seen = case.given.observed();
        }
        assert_eq!(case.until("time-out-wait").is_some(), times_out, "{on_timeout:?} {is_parked}");
    }
}

#[test]
fn a_held_approval_stays_open_for_a_decision() {
    let late = |wait: &mut OpenWait| {
        (wait.deadline_at, wait.on_timeout, wait.timed_out_at) =
            (Some(ago(9)), OnTimeout::Hold, Some(ago(8)));
    };
    assert_eq!(pending(&case(late).settle()), (true, ApprovalReason::Overdue));
    assert!(case(late).decided(approved("alice")).until("answer-wait").is_some());
}

#[test]
fn the_status_shows_how_an_approval_ended() {
    use ApprovalConditionType::{Applied, Expired, Withdrawn};
    for (closed, kind, reason) in [
        (ClosedWait::Decided(Verdict::Denied), Applied, ApprovalReason::Answered),
        (ClosedWait::TimedOut, Expired, ApprovalReason::DeadlinePassed),
        (ClosedWait::Withdrawn, Withdrawn, ApprovalReason::WaitWithdrawn),
    ] {
        let mut case = case(|_| {}).decided(approved("alice"));
        (case.given.row.waits, case.given.row.park) = (Vec::new(), None);
        let approvals = case.seen.approvals.clone();
        case.seen = Observed { approvals, ..case.given.observed() };
        let key = case.key();
        case.approvals().waits.insert(key, Some(known(Some(closed))));
        let object = case.settle();
        assert_eq!(condition(&object, kind), (true, reason));
        assert!(!pending(&object).0);
    }
}

#[test]
fn the_last_twenty_approvals_that_are_over_are_kept_and_strangers_are_deleted() {
    let mut case = case(|_| {});
    let mut over = case.settle();
    case.given.row.waits.clear();
    case.given.row.park = None;
    case.seen = case.given.observed();
    over.status = serde_json::from_value(json!({ "conditions": [{ "type": "Applied", "status": "True",
        "reason": "Answered", "message": "", "lastTransitionTime": "2026-11-20T11:00:00Z" }] }))
    .unwrap();
    let object = |epoch: i64| {
        let mut object = over.clone();
        object.spec.epoch = epoch;
        object.metadata.name = Some(name_of(&case.given.run, &WaitKey { id: "pay".into(), epoch }));
        object.metadata.creation_timestamp = Some(Time(Timestamp::from_second(1_000 + epoch).unwrap()));
        ObservedApproval { object, live: false }
    };
    let mut objects: Vec<_> = (0..22).map(object).collect();
    let mut stranger = object(99);
    (stranger.object.metadata.owner_references, stranger.object.status) = (None, None);
    stranger.object.metadata.name = Some("stranger".into());
    objects.push(stranger);
    case.approvals().objects = objects;
    let deleted: Vec<_> = case
        .effects()
        .into_iter()
        .map(|it| match it {
            ApprovalEffect::Delete { name, .. } => name,
            other => panic!("{other:?}"),
        })
        .collect();
    let oldest = |epoch| name_of(&case.given.run, &WaitKey { id: "pay".into(), epoch });
    assert_eq!(deleted, ["stranger".to_owned(), oldest(1), oldest(0)]);
}

#[test]
fn an_api_server_that_refuses_does_not_keep_the_run_from_its_worker() {
    let mut case = case(|_| {});
    case.given.row.park = None;
    let approvals = case.seen.approvals.clone();
    case.seen = Observed { approvals, ..case.given.observed() };
    case.seen.apply(EffectResult::ApprovalFailed("forbidden".into()));
    let decision = case.decide();
    assert!(
        decision.effects.iter().any(|it| matches!(it, Effect::CreateWorker { .. })),
        "{:?}",
        decision.effects
    );
    assert!(decision.requeue.is_some());
}

#[test]
fn events_name_the_object_and_never_what_the_agent_wrote() {
    let mut case = case(|_| {});
    let mut notes = Vec::new();
    for _ in 0..6 {
        let decision = case.decide();
        notes.extend(decision.events.into_iter().map(|it| (it.reason, it.note)));
        let results: Vec<_> = case.effects().into_iter().filter_map(|it| case.perform(it)).collect();
        results.into_iter().for_each(|it| case.seen.apply(it));
    }
    let name = case.object().metadata.name.clone().unwrap();
    let requested = notes.iter().find(|(reason, _)| reason == "ApprovalRequested").unwrap();
    assert!(requested.1.contains(&name) && notes.iter().all(|(_, note)| !note.contains("Buy")), "{notes:?}");
}
