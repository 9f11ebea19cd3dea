//! Claims: tool calls before their effect. The cases follow the table of `Claimed`.

use dalsegno_model::{CallFilter, Claim, Claimed, Class, Commit, Complete, Completed};
use dalsegno_protocol::{CallState, CompleteOutcome, Policy};
use uuid::Uuid;

use crate::context::*;
use crate::engines::{on_every_engine, on_every_persistent_engine, tamper};

on_every_engine! {
    a_new_call_uses_the_key_of_its_claim,
    a_new_call_needs_a_key,
    a_planned_call_uses_its_planned_key,
    another_key_or_policy_is_invalid,
    the_same_claim_again_may_go,
    another_claim_in_the_same_attempt_is_uncertain,
    the_policy_decides_in_a_later_attempt,
    the_policy_decides_in_a_later_attempt_for_the_same_claim_too,
    an_ended_call_is_done,
    a_planned_call_keeps_its_first_key,
    calls_are_listed_in_the_order_they_were_first_seen,
    a_claimed_call_belongs_to_the_open_turn,
    a_claim_of_an_unknown_run_is_not_found,
}

on_every_persistent_engine! {
    a_lookup_reads_no_ended_call_of_an_earlier_turn,
}

const POLICIES: [Policy; 4] = [Policy::RetrySameKey, Policy::Probe, Policy::Ask, Policy::ReadOnly];

async fn a_new_call_uses_the_key_of_its_claim(cx: &TestContext) {
    let worker = cx.worker().await;
    for policy in POLICIES {
        let claim = worker.claim(&format!("call-{policy:?}"), policy);
        match cx.claim(&claim).await.unwrap() {
            Claimed::Go(call) => {
                assert_eq!((call.id, Some(call.key)), (claim.id, claim.key));
                assert_eq!((call.policy, call.state, call.turn), (policy, CallState::Started, 1));
                assert_eq!(call.arguments.unwrap().get(), r#"{"amount":  1}"#, "byte for byte");
                assert!(call.result.is_none());
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn a_new_call_needs_a_key(cx: &TestContext) {
    let worker = cx.worker().await;
    let keyless = Claim { key: None, ..worker.claim("pay", Policy::Probe) };
    let answer = cx.claim(&keyless).await.unwrap();
    assert!(matches!(&answer, Claimed::Invalid(why) if why.contains("key")), "{answer:?}");
    assert!(cx.call_ids(worker.run, CallFilter::All).await.is_empty());
}

async fn a_planned_call_uses_its_planned_key(cx: &TestContext) {
    let worker = cx.worker().await;
    let plan = Commit { calls: vec![planned("pay", Policy::Probe)], ..worker.plan(1) };
    ok(cx.commit(&plan).await.unwrap());
    let call = cx.calls(worker.run, CallFilter::All).await.unwrap().remove(0);
    assert_eq!((call.state, call.key.as_str(), call.turn), (CallState::Planned, "key-of-pay", 1));
    let claim = Claim { key: None, arguments: None, ..worker.claim("pay", Policy::Probe) };
    match cx.claim(&claim).await.unwrap() {
        Claimed::Go(call) => {
            assert_eq!((call.state, call.key.as_str()), (CallState::Started, "key-of-pay"));
            assert_eq!(call.arguments.unwrap().get(), r#"{"amount":  1}"#);
        }
        other => panic!("{other:?}"),
    }
}

async fn another_key_or_policy_is_invalid(cx: &TestContext) {
    let worker = cx.worker().await;
    let plan = Commit { calls: vec![planned("pay", Policy::Probe)], ..worker.plan(1) };
    ok(cx.commit(&plan).await.unwrap());
    let claim = worker.claim("pay", Policy::Probe);
    let other_key = || Claim { key: Some("another".into()), ..worker.claim("pay", Policy::Probe) };
    let other_policy = || worker.claim("pay", Policy::Ask);
    for stage in 0..3 {
        for wrong in [other_key(), other_policy()] {
            let answer = cx.claim(&wrong).await.unwrap();
            assert!(matches!(answer, Claimed::Invalid(_)), "stage {stage}: {answer:?}");
        }
        match stage {
            0 => assert!(matches!(cx.claim(&claim).await.unwrap(), Claimed::Go(_))),
            _ => {
                cx.complete(&worker.complete(&claim)).await.unwrap();
            }
        }
    }
}

async fn the_same_claim_again_may_go(cx: &TestContext) {
    let worker = cx.worker().await;
    for policy in POLICIES {
        let claim = cx.start_call(&worker, &format!("call-{policy:?}"), policy).await;
        for _ in 0..2 {
            let answer = cx.claim(&claim).await.unwrap();
            assert!(matches!(answer, Claimed::Go(_)), "{policy:?}: {answer:?}");
        }
    }
}

async fn another_claim_in_the_same_attempt_is_uncertain(cx: &TestContext) {
    let worker = cx.worker().await;
    for policy in POLICIES {
        let id = format!("call-{policy:?}");
        let first = cx.start_call(&worker, &id, policy).await;
        let answer = cx.claim(&worker.claim(&id, policy)).await.unwrap();
        assert!(matches!(answer, Claimed::Uncertain(_)), "{policy:?}: {answer:?}");
        let answer = cx.claim(&first).await.unwrap();
        assert!(matches!(answer, Claimed::Go(_)), "the first claim still counts: {answer:?}");
    }
}

async fn the_policy_decides_in_a_later_attempt(cx: &TestContext) {
    for policy in POLICIES {
        let worker = cx.worker().await;
        let first = cx.start_call(&worker, "pay", policy).await;
        let worker = cx.next_worker(&worker).await;
        let second = Claim { key: None, arguments: None, ..worker.claim("pay", policy) };
        match (policy, cx.claim(&second).await.unwrap()) {
            (Policy::RetrySameKey | Policy::ReadOnly, Claimed::Go(call)) => {
                assert_eq!(call.key, "key-of-pay");
                assert_eq!(call.arguments.unwrap().get(), r#"{"amount":  1}"#, "the stored arguments");
                let stale = Complete { claim_id: first.claim_id, ..worker.complete(&second) };
                let answer = cx.complete(&stale).await.unwrap();
                assert!(matches!(answer, Completed::Conflict(_)), "{answer:?}");
                let answer = cx.complete(&worker.complete(&second)).await.unwrap();
                assert!(matches!(answer, Completed::Ok), "{answer:?}");
            }
            (Policy::Probe | Policy::Ask, Claimed::Uncertain(call)) => {
                assert_eq!((call.key.as_str(), call.state), ("key-of-pay", CallState::Started));
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn the_policy_decides_in_a_later_attempt_for_the_same_claim_too(cx: &TestContext) {
    for policy in POLICIES {
        let worker = cx.worker().await;
        let first = cx.start_call(&worker, "pay", policy).await;
        let worker = cx.next_worker(&worker).await;
        let same = Claim { claim_id: first.claim_id, ..worker.claim("pay", policy) };
        match (policy, cx.claim(&same).await.unwrap()) {
            (Policy::RetrySameKey | Policy::ReadOnly, Claimed::Go(_)) => {
                assert!(
                    cx.run_of(&worker).await.calls.unsettled.is_empty(),
                    "it now belongs to this attempt"
                );
            }
            (Policy::Probe | Policy::Ask, Claimed::Uncertain(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn an_ended_call_is_done(cx: &TestContext) {
    for outcome in [CompleteOutcome::Completed, CompleteOutcome::Failed] {
        let worker = cx.worker().await;
        let claim = cx.start_call(&worker, "pay", Policy::Ask).await;
        let ends = Complete { outcome, ..worker.complete(&claim) };
        assert!(matches!(cx.complete(&ends).await.unwrap(), Completed::Ok));
        let later = cx.next_worker(&worker).await;
        for claim in [Claim { capability: later.capability, ..claim }, later.claim("pay", Policy::Ask)] {
            match cx.claim(&claim).await.unwrap() {
                Claimed::Done(call) => assert_eq!(call.result.unwrap().get(), r#"{"done":  true}"#),
                other => panic!("{other:?}"),
            }
        }
    }
}

async fn a_planned_call_keeps_its_first_key(cx: &TestContext) {
    let worker = cx.worker().await;
    let plan = Commit { calls: vec![planned("pay", Policy::Probe)], ..worker.plan(1) };
    ok(cx.commit(&plan).await.unwrap());
    cx.commit_turn(&worker, 1).await;
    let other = dalsegno_protocol::PlannedCall { key: "another".into(), ..planned("pay", Policy::Ask) };
    let plan = Commit { calls: vec![other, planned("ship", Policy::Ask)], ..worker.plan(2) };
    ok(cx.commit(&plan).await.unwrap());
    let calls = cx.calls(worker.run, CallFilter::All).await.unwrap();
    let seen: Vec<_> = calls.iter().map(|call| (call.id.as_str(), call.key.as_str(), call.turn)).collect();
    assert_eq!(seen, [("pay", "key-of-pay", 2), ("ship", "key-of-ship", 2)]);
    assert_eq!(calls[0].policy, Policy::Probe);
}

async fn calls_are_listed_in_the_order_they_were_first_seen(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.start_call(&worker, "z", Policy::Probe).await;
    let calls = vec![planned("m", Policy::Probe), planned("a", Policy::Probe), planned("z", Policy::Probe)];
    let plan = Commit { calls, open_calls: vec!["z".into()], ..worker.plan(1) };
    ok(cx.commit(&plan).await.unwrap());
    cx.start_call(&worker, "b", Policy::Probe).await;
    cx.start_call(&worker, "a", Policy::Probe).await;
    assert_eq!(cx.call_ids(worker.run, CallFilter::All).await, ["z", "m", "a", "b"]);
    assert!(cx.calls(Uuid::now_v7(), CallFilter::All).await.unwrap().is_empty());
}

async fn a_claimed_call_belongs_to_the_open_turn(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.start_call(&worker, "before", Policy::RetrySameKey).await;
    ok(cx.commit(&worker.plan(1)).await.unwrap());
    cx.start_call(&worker, "within", Policy::RetrySameKey).await;
    cx.commit_turn(&worker, 1).await;
    cx.start_call(&worker, "after", Policy::RetrySameKey).await;
    let turns: Vec<_> =
        cx.calls(worker.run, CallFilter::All).await.unwrap().iter().map(|call| call.turn).collect();
    assert_eq!(turns, [1, 1, 2]);
}

async fn a_claim_of_an_unknown_run_is_not_found(cx: &TestContext) {
    let worker = cx.worker().await;
    let nowhere = Claim { run: Uuid::now_v7(), ..worker.claim("pay", Policy::Ask) };
    assert!(matches!(cx.claim(&nowhere).await.unwrap(), Claimed::NotFound));
    let foreign = Claim { capability: random_digest(), ..worker.claim("pay", Policy::Ask) };
    assert!(matches!(cx.claim(&foreign).await.unwrap(), Claimed::Fenced));
}

/// An attach lists open calls. With calls in every turn, it reads only the open turn's.
async fn a_lookup_reads_no_ended_call_of_an_earlier_turn(cx: &TestContext) {
    let worker = cx.worker().await;
    for turn in 1..=30 {
        for name in ["a", "b", "c"] {
            let claim = cx.start_call(&worker, &format!("{name}{turn}"), Policy::Probe).await;
            assert!(matches!(cx.complete(&worker.complete(&claim)).await.unwrap(), Completed::Ok));
        }
        cx.commit_turn(&worker, turn).await;
    }
    let plan = Commit { calls: vec![planned("next", Policy::Probe)], ..worker.plan(31) };
    ok(cx.commit(&plan).await.unwrap());
    let done = cx.start_call(&worker, "done", Policy::Probe).await;
    cx.complete(&worker.complete(&done)).await.unwrap();
    cx.start_call(&worker, "open", Policy::Probe).await;
    cx.end_and_reserve(&worker, Class::Disruption).await;
    let sqlite = cx.is_sqlite();
    // Make the rows of the earlier turns unreadable.
    let spoil = if sqlite { "claim_id = x'00'" } else { r"arguments = '\xff'::bytea" };
    assert_eq!(tamper(cx, &format!("UPDATE calls SET {spoil} WHERE turn <= 30")).await, 90);
    assert!(cx.calls(worker.run, CallFilter::All).await.is_err());
    assert_eq!(cx.call_ids(worker.run, CallFilter::OpenTurn).await, ["done"]);
    assert_eq!(cx.call_ids(worker.run, CallFilter::Unsettled).await, ["open"]);
    assert_eq!(cx.call_ids(worker.run, CallFilter::Pending).await, ["next", "open"]);
}
