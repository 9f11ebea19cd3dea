//! Strategies for arbitrary inputs of a decision: usual, unusual and impossible ones.

use dalsegno_core::{NameHolder, ObservedNode, PodCreateError};
use dalsegno_crds::Cause;
use dalsegno_model::{Attempt, AttemptEnd, AttemptState, Class, FinishRow, SignalRow};
use dalsegno_protocol::Policy;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

use super::values::{beat, counters, instant, lifecycle, outcome, text, verdict};
use crate::fixtures::{Given, PodFixture, accepted, now, pod, run};

/// An arbitrary input. The run has no status, its own status, or the status of another input.
pub fn given() -> impl Strategy<Value = Given> {
    (input().boxed(), input().boxed(), 0..4).prop_map(|(this, other, status)| match status {
        0 => this,
        1 => this.status_written(),
        2 => Given { run: other.status_written().run, ..this },
        _ => Given { row: this.row.clone(), ..other.status_written() },
    })
}

fn input() -> impl Strategy<Value = Given> {
    (spec().boxed(), row().boxed(), vec(seen_pod().boxed(), 0..4), observation().boxed()).prop_map(
        |(spec, row, pods, observation)| {
            let mut given = observation.0(row.0(spec.0(run())));
            given.seen.pods = pods.into_iter().map(|it| it.0).collect();
            given.seen.pods.sort_by_key(|it| it.uid().to_owned());
            given.seen.pods.dedup_by_key(|it| it.uid().to_owned());
            given
        },
    )
}

/// A change of an input. Its debug output is short, because a failure prints the input itself.
struct Change(Box<dyn FnOnce(Given) -> Given>);

impl std::fmt::Debug for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Change")
    }
}

fn change(change: impl FnOnce(Given) -> Given + 'static) -> Change {
    Change(Box::new(change))
}

/// The spec and the agent.
fn spec() -> impl Strategy<Value = Change> {
    let limits = (of(0..5), of(1..5), of(1..5), of(0..5), of(any::<u8>()));
    let policies = (of(select(vec!["Pin", "Block", "Allow"])), any::<bool>(), of(0..3_i64), 0..5, 0..6);
    (limits, policies).prop_map(
        |((crashes, loops, in_a_row, total, delay), (policy, fail, reset, agent, other))| {
            change(move |mut given| {
                given = given.recovery(json!({
                    "maxRecoveryAttempts": crashes, "maxAttemptsWithoutProgress": loops,
                    "maxDisruptionsWithoutProgress": in_a_row, "maxDisruptions": total,
                    "backoff": { "initialSeconds": delay }, "resetGeneration": reset,
                    "onExhausted": if fail { "Fail" } else { "Hold" },
                    "onCorruptCheckpoint": if delay.is_some() { "LastGood" } else { "Hold" },
                }));
                if let Some(policy) = policy {
                    given = given.on_mismatch(policy);
                }
                given = match agent {
                    0 => given.no_definition(),
                    1 => given.image(&crate::fixtures::image_by_digest('a')),
                    2 => given.image(&crate::fixtures::image_by_digest('b')),
                    3 => given.declares("2.0"),
                    _ => given,
                };
                match other {
                    0 => given.cancelled(),
                    1 => given.edited(),
                    3 => given.suspended(),
                    2 => given.spec(json!({ "retention": { "keepPods": 0, "retentionDays": 7, "keepLast": 5, "ttlSecondsAfterFinished": 60 } })),
                    _ => given,
                }
            })
        },
    )
}

/// The store's row.
fn row() -> impl Strategy<Value = Change> {
    let attempts = (attempt().boxed(), vec(past().boxed(), 0..4), 1..6_i32);
    let head = of((0..9_i32, select(vec!['a', 'b']), instant()));
    let signal = || of((instant(), of(instant())));
    let ends = ((signal(), signal()), of((outcome(), instant(), text())), lifecycle());
    let rest = (counters(), beat(), any::<bool>(), 0..4_i32);
    let undone = prop_oneof![4 => Just(0), 1 => 1..4_i32];
    (attempts, head, ends, (rest, undone)).prop_map(
        |((attempt, past, number), head, ((cancel, suspend), finish, lifecycle), (rest, undone))| {
            change(move |given| {
                let mut given = given.reserved(number);
                if let Some((turn, image, at)) = head {
                    given = given.head(turn).head_revision(&template_hash());
                    let head = given.row.head.as_mut().unwrap();
                    (head.at, head.identity) = (at, Some(accepted(image)));
                }
                given.row.highest_turn += undone;
                let row = &mut given.row;
                row.attempt = Attempt { number, ..attempt };
                row.past = (1..number).rev().zip(past).map(|(number, it)| Attempt { number, ..it }).collect();
                let signal = |(requested_at, told_at)| SignalRow { requested_at, told_at };
                (row.cancel, row.suspend) = (cancel.map(signal), suspend.map(signal));
                row.finish = finish.map(|(outcome, at, message)| FinishRow {
                    outcome,
                    at,
                    message,
                    reason: "Done".into(),
                    output: None,
                });
                row.lifecycle = lifecycle;
                let (counters, beat, asks, reset) = rest;
                (row.counters, row.beat, row.reset_attempt) = (counters, beat, reset);
                if asks {
                    row.calls.unsettled.insert(Policy::Ask, 1);
                }
                given
            })
        },
    )
}

fn template_hash() -> String {
    run().document().hash()
}

fn attempt() -> impl Strategy<Value = Attempt> {
    use AttemptState::{Attached, Created, Ended, Reserved};
    let pod = (of(1..6), of(instant()), of(instant()), of(instant()), of(instant()));
    let what = (select(vec![Reserved, Created, Attached, Ended]), of(verdict()), any::<bool>(), of(end()));
    (pod, what).prop_map(|((pod, created, scheduled, attached, lease), (state, identity, spent, end))| {
        Attempt {
            state,
            pod_uid: pod.map(|n: i32| format!("pod-{n}")),
            pod_name: pod.map(|n| format!("triage-{n}")),
            node: scheduled.map(|_| "n1".into()),
            revision: pod.map(|_| template_hash()),
            created_at: created,
            scheduled_at: scheduled,
            attached_at: attached,
            lease_renewed_at: lease,
            identity,
            spent,
            ended_at: end.as_ref().map(|_| now()),
            end,
            ..run().row.attempt
        }
    })
}

fn past() -> impl Strategy<Value = Attempt> {
    let node = of(Just("n1".to_owned()));
    let parked = prop_oneof![4 => Just(false), 1 => Just(true)];
    (end(), instant(), of(instant()), of(verdict()), (node, of(1..6), parked)).prop_map(
        |(end, ended, attached, identity, (node, pod, parked))| Attempt {
            node,
            state: AttemptState::Ended,
            pod_uid: pod.map(|n: i32| format!("pod-{n}")),
            end: Some(match parked {
                true => AttemptEnd { cause: Cause::Suspended, message: String::new(), ..end },
                false => end,
            }),
            ended_at: Some(ended),
            attached_at: attached,
            turn_at_end: Some(3),
            revision: Some(template_hash()),
            identity,
            ..run().row.attempt
        },
    )
}

fn end() -> impl Strategy<Value = AttemptEnd> {
    let classes = vec![Class::Crash, Class::Disruption, Class::CrashWithoutProgress, Class::Neutral];
    let code = of(prop_oneof![any::<i32>(), Just(137), Just(143)]);
    let cause = prop_oneof![4 => select(Cause::ALL), 1 => Just(Cause::ExitedWithError)];
    (cause, select(classes), any::<bool>(), code, text()).prop_map(
        |(cause, class, progress, exit_code, message)| AttemptEnd {
            charged: class == Class::Crash,
            message: dalsegno_core::end::End::new(Cause::PodFailed, class, message).into_ending(1).message,
            cause,
            class,
            progress,
            exit_code,
        },
    )
}

/// A pod in any state.
fn seen_pod() -> impl Strategy<Value = PodFixture> {
    let state = (0..13, any::<i32>(), text(), -20..60_i64);
    let about = (1..7, of(0..60_i64), of(0..60_i64), of(select(vec!['a', 'b'])), 0..16_u8);
    let disruptors =
        vec!["EvictionByEvictionAPI", "TerminationByKubelet", "DeletionByTaintManager", "UnknownReason"];
    let reasons = vec!["Evicted", "Terminated", "Preempting", "OutOfcpu"];
    (state, about, select(disruptors), select(reasons)).prop_map(|(state, about, disruptor, reason)| {
        let (number, deleted, disrupted, image, flags) = about;
        let mut seen = pod(number);
        if let Some(image) = image {
            seen = if flags & 1 == 0 { seen.kubelet_shows(image) } else { seen.named_by_digest(image) };
        }
        let (kind, code, text, ago) = state;
        seen = match kind {
            0 => seen.terminated(code).message(&text).finished(ago),
            1 => seen.oom(),
            2 => seen.lost_by_kubelet(),
            3 => seen.waiting("ErrImagePull", &text),
            4 => seen.terminated(code).kubelet(reason, &text),
            5 => seen.nothing_ran().kubelet(reason, &text),
            6 => seen.unscheduled(&text),
            7 => seen.init_failed("fetch", code),
            8 => seen.sandbox_lost(ago),
            9 => seen.sandbox_lost_after_init(ago),
            10 => seen.sandbox_lost(ago).never_started(),
            11 => seen.sandbox_lost(ago).no_container_created().never_started(),
            _ => seen,
        };
        seen = deleted.into_iter().fold(seen, PodFixture::deleted);
        seen = disrupted.into_iter().fold(seen, |it, ago| it.disrupted(disruptor, ago));
        match flags >> 1 {
            0 => seen.gone(),
            1 => seen.of_other_owner(),
            2 => seen.uid("another"),
            3 => seen.resumed_from(number, 10),
            4 => seen.disruption_seen_while_running(),
            5 => seen.of_another_namespace(),
            _ => seen,
        }
    })
}

/// The store's answer, the head, the node, an error of the API server, and a taken name.
fn observation() -> impl Strategy<Value = Change> {
    let node = of((any::<bool>(), instant()));
    let create_error = of((select(vec![400_u16, 403, 404, 422, 429, 500]), any::<u32>(), instant()));
    let holder = of(select(vec![NameHolder::DeletedRun, NameHolder::AnotherOwner]));
    let past_node = of((any::<bool>(), instant()));
    let rest = (holder, past_node, 0..3, 0..8, of(1..9_i32));
    (0..12, node, create_error, rest).prop_map(
        |(store, node, create_error, (taken, past_node, template, head, good))| {
            change(move |mut given| {
                given = match head {
                    0 => given.head_unverified(),
                    1 => given.head_verified_before(),
                    2 => given.corrupt(good, &[]),
                    3 => given.corrupt(good, &["pay"]),
                    _ => given,
                };
                given.seen.node = node.map(|(ready, since)| ObservedNode { ready, since, zone_lost: false });
                given.seen.name_taken = taken;
                let past_node = past_node
                    .map(|(ready, since)| ("n1".to_owned(), ObservedNode { ready, since, zone_lost: false }));
                given.seen.past_nodes = Some(past_node.into_iter().collect());
                let revision = given.seen.agent().map_or_else(String::new, |_| given.document().hash());
                given.seen.pod_create_error = create_error.map(|(code, times, at)| PodCreateError {
                    code,
                    message: "rejected".into(),
                    times,
                    identical: times,
                    at,
                    revision,
                });
                given = match template {
                    0 => given.template_stored(&run().document()),
                    1 => given.template_missing(&template_hash()),
                    _ => given,
                };
                match store {
                    0 => given.store_unavailable(),
                    1 => given.not_in_store(),
                    2 => given.prior(3, "old-uid"),
                    _ => given,
                }
            })
        },
    )
}
