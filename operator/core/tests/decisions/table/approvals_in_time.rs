//! How long people have to decide, who must not decide, and what becomes of approvals that nobody waits for any more.
//!
//! Each test plays the operator against an API server and a store that do what they are asked.

use dalsegno_core::approvals::four_eyes::{Author, FourEyes};
use dalsegno_core::approvals::{
    ApprovalEffect, ClosedWait, KnownWait, ObservedApproval, ObservedApprovals, OverApproval, PolicyState,
    WaitKey, name_of,
};
use dalsegno_core::{Effect, EffectResult, Observed, ObservedStore, decide};
use dalsegno_crds::{AgentApproval, ApprovalConditionType, ApprovalReason, Cause};
use dalsegno_model::{OpenWait, ParkedOn, RunOutcome};
use dalsegno_protocol::{OnTimeout, ParkMode, WaitKind};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use crate::fixtures::{Given, ago, default_revision, neutral, now, run};

const HASH: &str = "sha256:0707070707070707070707070707070707070707070707070707070707070707";
const HOUR: i64 = 3_600;

/// An approval of attempt 1 with a deadline a second ago. It was opened four hours ago.
fn wait() -> OpenWait {
    OpenWait {
        id: "pay".into(),
        epoch: 1,
        ordinal: 1,
        kind: WaitKind::Approval,
        turn: 7,
        attempt: 1,
        opened_at: ago(4 * HOUR),
        deadline_at: Some(ago(1)),
        on_timeout: OnTimeout::Answer,
        timed_out_at: None,
        wake_at: None,
        provider: None,
        topic: None,
        proposal_hash: Some([7; 32]),
    }
}

/// What the operator has done so far, and what it sees.
struct Play {
    given: Given,
    seen: Observed,
    now: Timestamp,
    /// The state of the wait in the store.
    known: KnownWait,
    done: Vec<&'static str>,
    events: Vec<String>,
    requeue: Option<std::time::Duration>,
}

/// Attempt 1 has parked on the wait, and the policies have been in place for so long, in seconds.
fn play(policies: i64) -> Play {
    let mut given = run().reserved(2).after(neutral(1, Cause::Parked));
    (given.row.past[0].revision, given.row.past[0].reserved_at) = (Some(default_revision()), ago(5 * HOUR));
    given.row.park = Some(ParkedOn { on: vec!["pay".into()], mode: ParkMode::All, at: ago(4 * HOUR) });
    given.row.waits = vec![wait()];
    given.seen.approvals =
        Some(ObservedApprovals::cached(Vec::new(), PolicyState::InPlace { since: ago(policies) }));
    let seen = given.observed();
    let known = KnownWait { words: Some(("Buy".into(), "It is cheap".into())), closed: None };
    let (done, events) = (Vec::new(), Vec::new());
    Play { given, seen, now: now(), known, done, events, requeue: None }
}

impl Play {
    fn approvals(&mut self) -> &mut ObservedApprovals {
        self.seen.approvals.as_mut().unwrap()
    }

    /// The cache has an object of the wait that was created so long ago, in seconds.
    fn object(mut self, seconds: i64) -> Self {
        let name = name_of(&self.given.run, &WaitKey::of(&wait()));
        let spec = json!({ "runRef": { "name": self.given.run.metadata.name, "uid": self.given.run.metadata.uid },
            "waitID": "pay", "epoch": 1, "turn": 7, "proposalHash": HASH, "title": "Buy", "summary": "It is cheap",
            "deadlineTime": ago(1).to_string(), "onTimeout": "Answer", "fourEyes": false });
        let mut object = AgentApproval::new(&name, serde_json::from_value(spec).unwrap());
        object.metadata.namespace = self.given.run.metadata.namespace.clone();
        object.metadata.uid = Some("approval-uid".into());
        object.metadata.creation_timestamp = Some(Time(ago(seconds)));
        object.metadata.owner_references = Some(vec![self.given.run.owner_reference()]);
        self.approvals().objects = vec![ObservedApproval::cached(object)];
        self
    }

    /// A person has approved.
    fn approved(mut self, by: &str) -> Self {
        let decision = json!({ "verdict": "Approved", "proposalHash": HASH, "reason": "because", "by": by });
        let object = &mut self.approvals().objects[0].object;
        object.spec.decision = serde_json::from_value(decision).unwrap();
        self
    }

    /// The time goes on, and another reconcile begins.
    fn later(mut self, seconds: i64) -> Self {
        self.now += SignedDuration::from_secs(seconds);
        if let ObservedStore::Found(row) = &mut self.seen.store {
            row.now = self.now;
        }
        let approvals = self.approvals();
        approvals.objects.iter_mut().for_each(|it| it.live_at = None);
        approvals.waits.clear();
        (self.done, self.requeue) = (Vec::new(), None);
        self
    }

    /// Until the operator wants nothing any more.
    fn until_quiet(mut self) -> Self {
        for _ in 0..20 {
            let decision = decide(&self.given.run, &self.seen, self.now);
            self.events.extend(decision.events.into_iter().map(|it| it.reason));
            let wanted: Vec<_> = decision
                .effects
                .into_iter()
                .filter_map(|it| match it {
                    Effect::Approval(effect) => Some(*effect),
                    _ => None,
                })
                .collect();
            self.requeue = decision.requeue;
            self.done.extend(wanted.iter().map(ApprovalEffect::name));
            let ends = |it: &ApprovalEffect| matches!(it.name(), "answer-wait" | "time-out-wait");
            if wanted.is_empty() || wanted.iter().any(ends) {
                return self;
            }
            for effect in wanted {
                let result = self.perform(effect);
                self.seen.apply(result);
            }
        }
        panic!("it does not converge: {:?}", self.done)
    }

    fn perform(&self, effect: ApprovalEffect) -> EffectResult {
        let written = |mut object: AgentApproval| {
            object.metadata.creation_timestamp.get_or_insert(Time(self.now));
            object.metadata.uid.get_or_insert_with(|| "new-uid".into());
            EffectResult::Approval(object.metadata.name.clone().unwrap_or_default(), Some(Box::new(object)))
        };
        let approvals = self.seen.approvals.as_ref().unwrap();
        match effect {
            ApprovalEffect::ReadWait(_, key) => EffectResult::Wait(key, Some(self.known.clone())),
            ApprovalEffect::ReadApproval(_) => written(approvals.objects[0].object.clone()),
            ApprovalEffect::ReadPolicies => EffectResult::Policies(approvals.policies.clone()),
            ApprovalEffect::Create(object) | ApprovalEffect::WriteStatus(object) => written(*object),
            ApprovalEffect::Delete { name, .. } => EffectResult::Approval(name, None),
            ApprovalEffect::RefuseDecision { approval, .. } => {
                let mut object = *approval;
                (object.spec.decision, object.spec.second_decision) = (None, None);
                written(object)
            }
            other => panic!("{other:?}"),
        }
    }

    fn has_done(&self, name: &str) -> bool {
        self.done.contains(&name)
    }

    /// Status and reason of a condition of the only object.
    fn condition(&self, kind: ApprovalConditionType) -> (bool, ApprovalReason) {
        let objects = &self.seen.approvals.as_ref().unwrap().objects;
        let conditions = &objects[0].object.status.as_ref().unwrap().conditions;
        let found = conditions.iter().find(|it| it.type_ == kind.as_str()).unwrap();
        (found.status == "True", found.reason.parse().unwrap())
    }
}

#[test]
fn a_decision_from_before_the_policies_is_refused_and_people_have_an_hour_to_decide_again() {
    let first = play(60).object(HOUR).approved("ann").until_quiet();
    let refused = ["approval-status", "refuse-decision", "delete-approval", "read-wait", "create-approval"];
    assert_eq!(first.done[..5], refused, "{:?}", first.done);
    assert!(!first.has_done("time-out-wait"), "{:?}", first.done);
    assert!(first.events.iter().any(|it| it == "DecisionRefused"), "{:?}", first.events);
    assert_eq!(first.requeue.map(|it| it.as_secs()), Some(3_600), "it is looked at again then");
    let before = first.later(HOUR - 1).until_quiet();
    assert!(!before.has_done("time-out-wait"), "{:?}", before.done);
    let after = before.later(1).until_quiet();
    assert_eq!(after.done, ["read-approval", "time-out-wait"]);
}

#[test]
fn an_approval_whose_object_is_created_after_its_deadline_does_not_time_out_at_once() {
    let play = play(2 * HOUR).until_quiet();
    assert_eq!(play.done, ["read-wait", "create-approval", "approval-status"]);
    let asked = play.later(60).approved("ann").until_quiet();
    assert!(asked.has_done("answer-wait"), "{:?}", asked.done);
}

#[test]
fn an_object_that_was_there_in_time_does_not_move_the_deadline() {
    let play = play(9 * HOUR).object(3 * HOUR).until_quiet();
    assert_eq!(
        play.done,
        ["approval-status", "time-out-wait"],
        "the answer to the status write is a live read"
    );
}

#[test]
fn people_have_as_long_as_the_agent_gave_them_if_that_is_less_than_an_hour() {
    let mut play = play(9 * HOUR);
    play.given.row.waits[0].opened_at = ago(31);
    let approvals = play.seen.approvals.clone();
    play.seen = Observed { approvals, ..play.given.observed() };
    let play = play.until_quiet();
    assert!(!play.has_done("time-out-wait"), "{:?}", play.done);
    assert!(!play.later(29).until_quiet().has_done("time-out-wait"));
}

#[test]
fn an_object_that_was_read_before_the_deadline_is_read_again() {
    let mut play = play(9 * HOUR).object(3 * HOUR).until_quiet();
    play.approvals().objects[0].live_at = Some(ago(2));
    play.done.clear();
    assert_eq!(play.until_quiet().done, ["read-approval", "time-out-wait"]);
}

#[test]
fn nothing_times_out_in_the_same_step_as_a_status_that_may_be_refused() {
    let mut play = play(9 * HOUR).object(3 * HOUR);
    play.approvals().objects[0].live_at = Some(now());
    let decision = decide(&play.given.run, &play.seen, now());
    let names = |effect: &Effect| match effect {
        Effect::Approval(effect) => Some(effect.name()),
        _ => None,
    };
    assert_eq!(decision.effects.iter().filter_map(names).collect::<Vec<_>>(), ["approval-status"]);
}

/// The wait is not among the open ones any more, and the store says this of it.
fn not_open(closed: Option<ClosedWait>, is_finished: bool) -> Play {
    let mut play = play(9 * HOUR).object(HOUR);
    (play.given.row.waits, play.given.row.park) = (Vec::new(), None);
    if is_finished {
        play.given = play.given.finished(RunOutcome::Failed, 5);
    }
    play.known.closed = closed;
    let approvals = play.seen.approvals.clone();
    play.seen = Observed { approvals, ..play.given.observed() };
    play.until_quiet()
}

#[test]
fn an_approval_that_nobody_waits_for_any_more_is_withdrawn() {
    let withdrawn = (true, ApprovalReason::WaitWithdrawn);
    for (closed, is_finished) in [(Some(ClosedWait::Withdrawn), false), (None, true)] {
        let play = not_open(closed, is_finished);
        assert_eq!(play.condition(ApprovalConditionType::Withdrawn), withdrawn, "{closed:?} {is_finished}");
    }
    // Another operator may have made the object of a wait that was opened after this row was read.
    assert_eq!(not_open(None, false).done, ["read-wait"]);
}

/// What becomes of a decision by `bob` under four eyes. Alice made the run, and Ann last changed the agent.
fn decided_by_bob(change: impl FnOnce(&mut Given)) -> ApprovalReason {
    let mut play = play(9 * HOUR);
    play.given.run.spec.four_eyes = Some(true);
    change(&mut play.given);
    play.seen = play.given.observed();
    let mut play = play.until_quiet().approved("bob");
    let user = |name: &str| Author::User(name.into());
    let current = play.given.seen.agent().cloned().map(Box::new);
    let facts = FourEyes { creator: user("alice"), agent: user("ann"), current, messages: Vec::new() };
    play.approvals().four_eyes = Some(facts);
    let play = play.until_quiet();
    match play.has_done("answer-wait") {
        true => ApprovalReason::Approved,
        false => play.condition(ApprovalConditionType::Pending).1,
    }
}

#[test]
fn an_attempt_that_ran_another_template_than_the_current_one_needs_two_deciders() {
    use ApprovalReason::{Approved, AwaitingSecondDecision};
    type Edit = fn(&mut Given);
    let cases: [(&str, ApprovalReason, Edit); 6] = [
        ("the current template asked", Approved, |_| {}),
        ("another one asked", AwaitingSecondDecision, |it| {
            it.row.past[0].revision = Some("sha256:other".into())
        }),
        ("the one that asked is not known", AwaitingSecondDecision, |it| it.row.past.clear()),
        ("another one goes on", AwaitingSecondDecision, |it| {
            it.row.attempt.revision = Some("sha256:other".into());
        }),
        ("another one made the head", AwaitingSecondDecision, |it| {
            *it = it.clone().head(7);
            it.row.head.as_mut().unwrap().revision = Some("sha256:other".into());
        }),
        ("the current one with its image named by digest asked", Approved, |it| {
            let document = it.document();
            *it = it.clone().head(7);
            let head = it.row.head.as_mut().unwrap();
            let pinned = document.clone().pinned(&head.identity.as_ref().unwrap().image_digest, &document);
            (head.revision, it.row.past[0].identity) = (Some(pinned.hash()), head.identity.clone());
            it.row.past[0].revision = head.revision.clone();
        }),
    ];
    for (what, expected, change) in cases {
        assert_eq!(decided_by_bob(change), expected, "{what}");
    }
}

#[test]
fn four_eyes_of_a_definition_stay_with_a_run_that_has_begun() {
    let mut play = play(9 * HOUR);
    play.given = play.given.defaults(json!({ "fourEyes": true }));
    play.given.seen.approvals = None;
    let status = play.given.decide().status;
    assert_eq!(status.four_eyes, Some(true));
    // The author of the definition takes them back.
    let mut later = self::play(9 * HOUR);
    later.given.run.status = Some(status);
    later.seen = later.given.observed();
    let later = later.until_quiet();
    let object = &later.seen.approvals.as_ref().unwrap().objects[0].object;
    assert!(object.spec.four_eyes, "the next wait");
    let mut quiet = later.given.clone();
    quiet.seen.approvals = None;
    for given in [quiet.clone(), quiet.no_definition()] {
        assert_eq!(given.decide().status.four_eyes, Some(true), "it stays in the status");
    }
    assert_eq!(self::play(9 * HOUR).given.decide().status.four_eyes, None);
}

#[test]
fn two_open_waits_whose_objects_have_one_name_get_their_objects_one_after_the_other() {
    let mut play = play(9 * HOUR);
    // The same id and epoch stand for two ids with the same hash.
    play.given.row.waits.push(OpenWait { ordinal: 2, proposal_hash: Some([8; 32]), ..wait() });
    let approvals = play.seen.approvals.clone();
    play.seen = Observed { approvals, ..play.given.observed() };
    assert_eq!(play.until_quiet().done, ["read-wait", "create-approval", "approval-status"]);
}

#[test]
fn what_the_cache_keeps_of_approvals_that_are_over_is_enough_to_delete_the_oldest() {
    let mut play = not_open(Some(ClosedWait::Withdrawn), false);
    let over = |number: i64| OverApproval {
        name: format!("over-{number}"),
        uid: format!("uid-{number}"),
        created: Some(ago(9 * HOUR - number)),
        is_being_deleted: number == 0,
    };
    play.approvals().over = (0..22).map(over).collect();
    let decision = decide(&play.given.run, &play.seen, now());
    let deleted: Vec<_> = decision
        .effects
        .into_iter()
        .map(|it| match it {
            Effect::Approval(effect) => match *effect {
                ApprovalEffect::Delete { name, uid } => (name, uid),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        })
        .collect();
    // One object is over too, and one is being deleted already.
    assert_eq!(deleted, [2, 1].map(|it: i64| (format!("over-{it}"), format!("uid-{it}"))));
}

#[test]
fn an_open_approval_whose_object_is_over_in_the_cache_is_read() {
    let mut play = play(9 * HOUR);
    let name = name_of(&play.given.run, &WaitKey::of(&wait()));
    let over = OverApproval { name, uid: "u".into(), created: Some(ago(HOUR)), is_being_deleted: false };
    play.approvals().over = vec![over];
    let decision = decide(&play.given.run, &play.seen, now());
    assert!(
        matches!(&decision.effects[..], [Effect::Approval(it)] if it.name() == "read-approval"),
        "{:?}",
        decision.effects
    );
}
