//! What is true of every decision, whatever was observed.

mod any;

use dalsegno_core::settings::Settings;
use dalsegno_core::{Decision, Effect, Observed, PodSight, StoreSight, pod, recovery, worker};
use dalsegno_crds::Summary;
use dalsegno_model::checkpoint::Checkpoint;
use dalsegno_model::{AttemptState, RunRecord};
use proptest::prelude::*;

use crate::words::{Given, always, in_words};

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Pure and total; one change at a time; a status that stands once it is written, and tells nothing twice.
    #[test]
    fn every_decision_is_well_formed(given in any::given()) {
        let failures = always(&given, &given.decide());
        prop_assert!(failures.is_empty(), "{}", failures.join("\n"));
    }

    #[test]
    fn what_is_kept_of_a_pod_is_all_that_a_decision_reads_of_it(given in any::given()) {
        let mut kept = given.clone();
        for seen in &mut kept.seen.pods {
            seen.pod = pod::trimmed(std::mem::take(&mut seen.pod));
        }
        prop_assert_eq!(format!("{:?}", given.decide()), format!("{:?}", kept.decide()));
    }

    #[test]
    fn a_pod_is_made_only_of_a_reserved_attempt_that_nothing_holds(given in any::given()) {
        let decision = given.decide();
        if decision.effects.iter().any(|it| matches!(it, Effect::CreateWorker { .. })) {
            let row = trusted(&given);
            prop_assert!(row.is_some(), "the store is not to be trusted");
            let row = row.unwrap();
            let settings = Settings::of(&given.run, &given.seen.agent);
            prop_assert_eq!(row.attempt.state, AttemptState::Reserved);
            prop_assert!(row.finish.is_none() && row.cancel.is_none());
            prop_assert_eq!(recovery::hold_of(row, &settings, &worker::input_text(&given.run)), None);
            prop_assert_eq!(recovery::cannot_start(row, false), None);
            prop_assert!(recovery::next_attempt_time(row, &settings).is_none_or(|at| at <= row.now));
            let name = worker::pod_name(&row.name, row.attempt.number);
            prop_assert!(own_pods(&given).all(|it| it.name() != name), "its pod is there");
        }
    }

    #[test]
    fn no_pod_is_stopped_that_may_run_or_is_not_ours(given in any::given()) {
        let decision = given.decide();
        for uid in stopped(&decision) {
            let row = trusted(&given);
            prop_assert!(row.is_some(), "the store is not to be trusted");
            let row = row.unwrap();
            let current = row.attempt.pod_uid.as_deref() == Some(uid);
            let lives = row.finish.is_none() && row.attempt.state != AttemptState::Ended;
            prop_assert!(!(current && lives), "it is the current attempt's: {}", uid);
            let own = own_pods(&given).find(|it| it.uid() == uid);
            prop_assert!(own.is_some_and(|it| !it.gone && it.pod.metadata.deletion_timestamp.is_none()));
        }
    }

    #[test]
    fn a_store_that_is_unknown_or_not_trusted_is_not_changed_and_no_pod_is_touched(given in any::given()) {
        let decision = given.decide();
        let known = matches!(given.seen.store, StoreSight::Found(_));
        if known && trusted(&given).is_none() || matches!(given.seen.store, StoreSight::Unknown(_)) {
            prop_assert!(decision.effects.is_empty(), "{:?}", words(&decision));
        }
    }

    #[test]
    fn a_held_run_changes_nothing_in_the_store(given in any::given()) {
        let written = given.written();
        let decision = written.decide();
        if decision.status.summary == Some(Summary::Held) && decision.effects.iter().all(is_stop) {
            let again = written.written().decide();
            prop_assert!(again.effects.iter().all(is_stop), "{:?}", words(&again));
        }
    }

    #[test]
    fn an_effect_is_about_the_current_attempt(given in any::given()) {
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
    fn no_pod_is_made_on_a_head_that_was_not_found_sound_and_none_that_lost_it(given in any::given()) {
        let observed = given.observed();
        let found = observed.head.as_ref().filter(|head| head.is_of(&given.row)).map(|head| &head.found);
        for effect in given.decide().effects {
            match effect {
                Effect::CreateWorker { .. } if given.row.highest_turn > 0 => {
                    prop_assert_eq!(found, Some(&Checkpoint::Sound));
                }
                Effect::Rewind(run, rewind) => {
                    let Some(Checkpoint::Corrupt(corruption)) = found else { panic!("it was sound") };
                    let good = corruption.last_good.as_ref().unwrap();
                    prop_assert_eq!((run, rewind.epoch, rewind.to), (given.row.id, given.row.epoch, good.place));
                    prop_assert!(good.effects.is_empty(), "a call would take effect again");
                }
                _ => {}
            }
        }
    }

    #[test]
    fn only_a_run_that_is_over_and_has_told_so_for_its_time_to_live_is_deleted(given in any::given()) {
        let ttl = given.run.spec.retention.as_ref().and_then(|it| it.ttl_seconds_after_finished);
        if given.decide().effects.iter().any(|it| matches!(it, Effect::DeleteRun)) {
            let lived = given.row.now.duration_since(given.row.finish.as_ref().unwrap().at);
            prop_assert!(lived.as_secs() >= ttl.unwrap().into());
            prop_assert!(given.run.status.as_ref().unwrap().completion_time.is_some());
        }
    }

    #[test]
    fn a_run_that_is_over_is_never_changed_again(given in any::given()) {
        if given.row.finish.is_some() {
            let decision = given.decide();
            let known = matches!(given.seen.store, StoreSight::Found(_));
            let clears = |effect| is_stop(effect) || matches!(effect, Effect::DeleteRun | Effect::SetRetention(..));
            prop_assert!(!known || decision.effects.iter().all(clears), "{:?}", words(&decision));
        }
    }
}

fn is_stop(effect: &Effect) -> bool {
    matches!(effect, Effect::StopWorker { .. })
}

fn words(decision: &Decision) -> Vec<String> {
    decision.effects.iter().map(in_words).collect()
}

fn stopped(decision: &Decision) -> impl Iterator<Item = &str> {
    decision.effects.iter().filter_map(|it| match it {
        Effect::StopWorker { name: _, uid } => Some(uid.as_str()),
        _ => None,
    })
}

fn own_pods(given: &Given) -> impl Iterator<Item = &PodSight> {
    given.seen.own_pods(&given.run).filter(|it| it.pod.metadata.namespace == given.run.metadata.namespace)
}

/// The row, if it is of the same store as the status and not behind it: said anew, and in other words than the code.
fn trusted(given: &Given) -> Option<&RunRecord> {
    let Observed { store: StoreSight::Found(_), .. } = &given.seen else { return None };
    let row = &given.row;
    let status = given.run.status.clone().unwrap_or_default();
    let turn = row.highest_turn;
    let same = status.store_id.is_none_or(|id| id == row.store_id.to_string());
    let known_turn = status.checkpoint.map_or(0, |it| it.turn);
    let known_attempt = status.attempt.map_or(0, |it| it.number);
    let labelled = own_pods(given).filter_map(PodSight::attempt).max().unwrap_or_default();
    let number = row.attempt.number;
    (same && turn >= known_turn && number >= known_attempt && number >= labelled).then_some(row)
}
