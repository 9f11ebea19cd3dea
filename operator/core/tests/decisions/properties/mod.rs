//! Properties of every decision, for arbitrary inputs.

mod strategies;
mod values;

use dalsegno_core::settings::Settings;
use dalsegno_core::{
    Decision, Effect, Observed, ObservedPod, ObservedStore, pod, recovery, temporary_holds, worker,
};
use dalsegno_crds::{Cause, ConditionType, OperatingMode, Summary, find_condition};
use dalsegno_model::checkpoint::Checkpoint;
use dalsegno_model::{AttemptState, RunRecord};
use proptest::prelude::*;

use crate::fixtures::{Given, describe, violations};

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// A decision is pure and total, has at most one change, and is stable: after its status is written, the next
    /// decision has the same status and no events.
    #[test]
    fn every_decision_is_well_formed(given in strategies::given()) {
        let failures = violations(&given, &given.decide());
        prop_assert!(failures.is_empty(), "{}", failures.join("\n"));
    }

    #[test]
    fn a_trimmed_pod_gives_the_same_decision(given in strategies::given()) {
        let trimmed = given.clone().with_trimmed_pods();
        prop_assert_eq!(format!("{:?}", given.decide()), format!("{:?}", trimmed.decide()));
    }

    #[test]
    fn a_pod_is_created_only_for_a_reserved_attempt_of_a_run_that_is_not_held(given in strategies::given()) {
        let decision = given.decide();
        for effect in &decision.effects {
            let Effect::CreateWorker { revision, .. } = effect else { continue };
            let row = consistent_row(&given);
            prop_assert!(row.is_some(), "the store is not consistent");
            let row = row.unwrap();
            let settings = Settings::of(&given.run, &given.seen.agent);
            prop_assert_eq!(row.attempt.state, AttemptState::Reserved);
            prop_assert!(row.finish.is_none() && row.cancel.is_none() && row.suspend.is_none());
            prop_assert_ne!(given.run.spec.operating_mode, Some(OperatingMode::Suspended));
            prop_assert_eq!(temporary_holds::find_hold(row, &settings, &worker::input_text(&given.run)), None);
            prop_assert!(recovery::next_attempt_time(row, &settings).is_none_or(|at| at <= row.now));
            let template = temporary_holds::StartTemplate { revision, pinned: false };
            prop_assert_eq!(temporary_holds::find_start_hold(row, &settings, template), None);
            let name = worker::pod_name(&row.name, row.attempt.number);
            let is_its_pod = |it: &ObservedPod| {
                it.name() == name && row.attempt.may_own_pod_with(pod::nonce(&it.pod))
            };
            prop_assert!(!own_pods(&given).any(is_its_pod), "its pod exists");
        }
    }

    /// Otherwise a run could replace its pods for ever.
    #[test]
    fn a_pod_that_was_just_created_has_the_template_that_would_be_used_now(given in strategies::given()) {
        for effect in given.decide().effects {
            let Effect::CreateWorker { attempt, pod, revision, .. } = effect else { continue };
            let mut created = given.clone().created(attempt).made_from(&revision);
            let mut pod = ObservedPod::of(serde_json::from_value(pod).unwrap());
            pod.pod.metadata.uid = created.row.attempt.pod_uid.clone();
            created.seen.pods.push(pod);
            let replaced = created.decide().effects.iter().any(|it| {
                matches!(it, Effect::EndAttempt { ending, .. } if ending.cause == Cause::TemplateChanged)
            });
            prop_assert!(!replaced, "{:?}", descriptions(&created.decide()));
        }
    }

    #[test]
    fn no_pod_is_deleted_that_may_run_or_has_another_owner(given in strategies::given()) {
        let decision = given.decide();
        for uid in deleted_pods(&decision) {
            let row = consistent_row(&given);
            prop_assert!(row.is_some(), "the store is not consistent");
            let row = row.unwrap();
            let current = row.attempt.pod_uid.as_deref() == Some(uid);
            let lives = row.finish.is_none() && row.attempt.state != AttemptState::Ended;
            prop_assert!(!(current && lives), "it is the current attempt's pod: {}", uid);
            let parked = row.past.iter().any(|it| {
                let end = it.end.as_ref().filter(|end| end.cause == Cause::Suspended && end.message.is_empty());
                let is_just_now = it.ended_at.is_some_and(|at| row.now.duration_since(at).as_secs() < 30);
                it.pod_uid.as_deref() == Some(uid) && end.is_some() && is_just_now
            });
            let exits = own_pods(&given).any(|it| it.uid() == uid && !pod::worker_has_ended(&it.pod));
            prop_assert!(!(parked && exits), "its worker has parked and has time to exit: {}", uid);
            let own = own_pods(&given).find(|it| it.uid() == uid);
            prop_assert!(own.is_some_and(|it| !it.gone && it.pod.metadata.deletion_timestamp.is_none()));
        }
    }

    #[test]
    fn an_attempt_that_nothing_fences_ends_only_with_its_pod(given in strategies::given()) {
        let given = given.external();
        let attempt = &given.row.attempt;
        let pod = attempt.pod_uid.as_deref().and_then(|uid| given.seen.pod(uid));
        let never_runs = |it: &ObservedPod| {
            let has_node = it.pod.spec.as_ref().is_some_and(|it| it.node_name.is_some());
            it.pod.metadata.deletion_timestamp.is_some() && !has_node
        };
        let may_run = |it: &ObservedPod| !it.gone && !pod::worker_has_ended(&it.pod) && !never_runs(it);
        let has_pod = matches!(attempt.state, AttemptState::Created | AttemptState::Attached);
        let ends = given.decide().effects.iter().any(|it| matches!(it, Effect::EndAttempt { .. }));
        prop_assert!(!(ends && has_pod && pod.is_some_and(may_run)), "{:?}", descriptions(&given.decide()));
    }

    #[test]
    fn an_unavailable_or_inconsistent_store_has_no_effects(given in strategies::given()) {
        let decision = given.decide();
        let known = matches!(given.seen.store, ObservedStore::Found(_));
        if known && consistent_row(&given).is_none() || matches!(given.seen.store, ObservedStore::Unknown(_)) {
            prop_assert!(decision.effects.is_empty(), "{:?}", descriptions(&decision));
        }
    }

    #[test]
    fn a_held_run_changes_nothing_in_the_store(given in strategies::given()) {
        let written = given.status_written();
        let decision = written.decide();
        if decision.status.summary == Some(Summary::Held) && decision.effects.iter().all(is_pod_deletion) {
            let again = written.status_written().decide();
            prop_assert!(again.effects.iter().all(is_pod_deletion), "{:?}", descriptions(&again));
        }
    }

    #[test]
    fn a_suspended_run_is_ready_and_needs_nobody(given in strategies::given()) {
        let status = given.decide().status;
        let is_written_now = given.decide().effects.iter().all(is_pod_deletion);
        if is_written_now && consistent_row(&given).is_some() && status.summary == Some(Summary::Suspended) {
            let is = |kind| find_condition(&status.conditions, kind).map(|it| it.status.as_str());
            prop_assert_eq!(is(ConditionType::Suspended), Some("True"));
            prop_assert_eq!(is(ConditionType::Ready), Some("True"));
            prop_assert_eq!(is(ConditionType::WorkerReady), Some("False"));
            prop_assert!(status.suspend.is_some());
        }
    }

    #[test]
    fn an_effect_is_about_the_current_attempt(given in strategies::given()) {
        let row = &given.row;
        for effect in given.decide().effects {
            match effect {
                Effect::EndAttempt { run, ending, .. } => {
                    prop_assert_eq!((run, ending.attempt), (row.id, row.attempt.number));
                    prop_assert!(ending.message.len() <= 512 && !ending.message.contains('\0'));
                }
                Effect::RecordPod { attempt, pod, .. } => {
                    prop_assert_eq!((attempt, row.attempt.state), (row.attempt.number, AttemptState::Reserved));
                    prop_assert!(own_pods(&given).any(|it| it.uid() == pod.uid));
                }
                Effect::RecordScheduled { attempt, .. } => prop_assert_eq!(attempt, row.attempt.number),
                Effect::RecordIdentity { attempt, .. } => {
                    prop_assert_eq!(attempt, row.attempt.number);
                    prop_assert!(row.attempt.identity.is_none(), "only the first identity counts");
                }
                _ => {}
            }
        }
    }

    #[test]
    fn a_pod_is_created_only_for_a_verified_head(given in strategies::given()) {
        let observed = given.observed();
        let found = observed.head.as_ref().filter(|head| head.is_of(&given.row)).map(|head| &head.found);
        for effect in given.decide().effects {
            match effect {
                Effect::CreateWorker { .. } if given.row.highest_turn > 0 => {
                    prop_assert_eq!(found, Some(&Checkpoint::Valid));
                }
                Effect::Rewind(run, rewind) => {
                    let Some(Checkpoint::Corrupt(corruption)) = found else { panic!("the head is valid") };
                    let good = corruption.last_good.as_ref().unwrap();
                    prop_assert_eq!((run, rewind.epoch, rewind.to), (given.row.id, given.row.epoch, good.boundary));
                    prop_assert!(good.effects.is_empty(), "a call would take effect again");
                }
                _ => {}
            }
        }
    }

    #[test]
    fn a_run_is_deleted_only_after_its_time_to_live_and_after_its_status_shows_the_end(given in strategies::given()) {
        let ttl = given.run.spec.retention.as_ref().and_then(|it| it.ttl_seconds_after_finished);
        if given.decide().effects.iter().any(|it| matches!(it, Effect::DeleteRun)) {
            let lived = given.row.now.duration_since(given.row.finish.as_ref().unwrap().at);
            prop_assert!(lived.as_secs() >= ttl.unwrap().into());
            prop_assert!(given.run.status.as_ref().unwrap().completion_time.is_some());
        }
    }

    #[test]
    fn an_ended_run_is_not_changed(given in strategies::given()) {
        if given.row.finish.is_some() {
            let decision = given.decide();
            let known = matches!(given.seen.store, ObservedStore::Found(_));
            let is_cleanup = |effect| is_pod_deletion(effect) || matches!(effect, Effect::DeleteRun | Effect::SetRetention(..));
            prop_assert!(!known || decision.effects.iter().all(is_cleanup), "{:?}", descriptions(&decision));
        }
    }
}

fn is_pod_deletion(effect: &Effect) -> bool {
    matches!(effect, Effect::StopWorker { .. })
}

fn descriptions(decision: &Decision) -> Vec<String> {
    decision.effects.iter().map(describe).collect()
}

fn deleted_pods(decision: &Decision) -> impl Iterator<Item = &str> {
    decision.effects.iter().filter_map(|it| match it {
        Effect::StopWorker { name: _, uid } => Some(uid.as_str()),
        _ => None,
    })
}

fn own_pods(given: &Given) -> impl Iterator<Item = &ObservedPod> {
    given.seen.own_pods(&given.run).filter(|it| it.pod.metadata.namespace == given.run.metadata.namespace)
}

/// The row, if it is from the status's store and not behind the status. Written independently of the code under test.
fn consistent_row(given: &Given) -> Option<&RunRecord> {
    let Observed { store: ObservedStore::Found(_), .. } = &given.seen else { return None };
    let row = &given.row;
    let status = given.run.status.clone().unwrap_or_default();
    let turn = row.highest_turn;
    let same = status.store_id.is_none_or(|id| id == row.store_id.to_string());
    let known_turn = status.checkpoint.map_or(0, |it| it.turn);
    let known_attempt = status.attempt.map_or(0, |it| it.number);
    let labelled = own_pods(given).filter_map(ObservedPod::attempt).max().unwrap_or_default();
    let number = row.attempt.number;
    (same && turn >= known_turn && number >= known_attempt && number >= labelled).then_some(row)
}
