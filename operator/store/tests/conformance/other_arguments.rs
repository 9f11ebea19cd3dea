//! A call that is claimed again with other arguments: it is another effect, so the claim is refused.

use dalsegno_model::{CallFilter, Claim, Claimed, Commit, Rewound};
use dalsegno_protocol::Policy;

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_claim_with_other_arguments_is_invalid_and_changes_nothing,
    the_order_of_members_and_white_space_do_not_matter,
    long_arguments_are_compared_too,
    a_claim_may_add_arguments_to_a_call_without_any,
    the_message_names_a_turn_that_a_rewind_undid,
}

const POLICIES: [Policy; 4] = [Policy::RetrySameKey, Policy::Probe, Policy::Ask, Policy::ReadOnly];

async fn claim_with(cx: &TestContext, claim: Claim, arguments: &str) -> Claimed {
    cx.claim(&Claim { arguments: Some(json(arguments)), ..claim }).await.unwrap()
}

/// Returns the message of a refusal.
#[track_caller]
fn message(claimed: Claimed) -> String {
    match claimed {
        Claimed::Invalid(why) => why,
        other => panic!("not refused: {other:?}"),
    }
}

/// Claims this call with other arguments, which is refused, and then with its own.
async fn assert_only_its_own(cx: &TestContext, worker: &Worker, claim: impl Fn() -> Claim) -> Claimed {
    let stored = || async {
        let calls = cx.calls(worker.run, CallFilter::All).await.unwrap();
        format!("{calls:?} {:?}", cx.store.audit(worker.run).await.unwrap().len())
    };
    let before = stored().await;
    let why = message(claim_with(cx, claim(), r#"{"amount":2}"#).await);
    assert!(why.contains("other arguments") && !why.contains("rewind"), "{why}");
    assert_eq!(stored().await, before, "nothing is written");
    cx.claim(&claim()).await.unwrap()
}

async fn a_claim_with_other_arguments_is_invalid_and_changes_nothing(cx: &TestContext) {
    for policy in POLICIES {
        let worker = cx.worker().await;
        let plan = Commit { calls: vec![planned("pay", policy)], ..worker.plan(1) };
        ok(cx.commit(&plan).await.unwrap());
        let first = worker.claim("pay", policy);
        let same = || Claim { claim_id: first.claim_id, ..worker.claim("pay", policy) };
        let answer = assert_only_its_own(cx, &worker, same).await;
        assert!(matches!(answer, Claimed::Go(_)), "planned: {answer:?}");
        let answer = assert_only_its_own(cx, &worker, same).await;
        assert!(matches!(answer, Claimed::Go(_)), "the same claim: {answer:?}");
        let answer = assert_only_its_own(cx, &worker, || worker.claim("pay", policy)).await;
        assert!(matches!(answer, Claimed::Uncertain(_)), "another claim: {answer:?}");

        let worker = cx.next_worker(&worker).await;
        let again = worker.claim("pay", policy);
        let same = || Claim { claim_id: again.claim_id, ..worker.claim("pay", policy) };
        match (policy, assert_only_its_own(cx, &worker, same).await) {
            (Policy::RetrySameKey | Policy::ReadOnly, Claimed::Go(_)) => {}
            (Policy::Probe | Policy::Ask, Claimed::Uncertain(_)) => continue,
            other => panic!("of an earlier attempt: {other:?}"),
        }
        cx.complete(&worker.complete(&again)).await.unwrap();
        let answer = assert_only_its_own(cx, &worker, || worker.claim("pay", policy)).await;
        assert!(matches!(answer, Claimed::Done(_)), "completed: {answer:?}");
        let bare = Claim { arguments: None, ..worker.claim("pay", policy) };
        let answer = cx.claim(&bare).await.unwrap();
        assert!(matches!(answer, Claimed::Done(_)), "without arguments: {answer:?}");
    }
}

async fn the_order_of_members_and_white_space_do_not_matter(cx: &TestContext) {
    let worker = cx.worker().await;
    let claim = || worker.claim("pay", Policy::RetrySameKey);
    let first = claim();
    let arguments = Some(json(r#"{"to":"ann","cents":[5,{"b":1,"a":2}]}"#));
    cx.claim(&Claim { arguments, claim_id: first.claim_id, ..claim() }).await.unwrap();
    let worker = cx.next_worker(&worker).await;
    let claim = || worker.claim("pay", Policy::RetrySameKey);
    message(claim_with(cx, claim(), r#"{"to":"ann","cents":[{"b":1,"a":2},5]}"#).await);
    let answer = claim_with(cx, claim(), r#"{ "cents": [5, {"a":2, "b":1}], "to": "ann" }"#).await;
    match answer {
        Claimed::Go(call) => assert_eq!(
            call.arguments.unwrap().get(),
            r#"{"to":"ann","cents":[5,{"b":1,"a":2}]}"#,
            "the stored bytes stay"
        ),
        other => panic!("{other:?}"),
    }
}

async fn long_arguments_are_compared_too(cx: &TestContext) {
    let worker = cx.worker().await;
    let long = |last: char| format!("\"{}{last}\"", "x".repeat(2 << 20));
    let go = claim_with(cx, worker.claim("pay", Policy::RetrySameKey), &long('a')).await;
    assert!(matches!(go, Claimed::Go(_)));
    let worker = cx.next_worker(&worker).await;
    message(claim_with(cx, worker.claim("pay", Policy::RetrySameKey), &long('b')).await);
    let go = claim_with(cx, worker.claim("pay", Policy::RetrySameKey), &long('a')).await;
    assert!(matches!(go, Claimed::Go(_)));
}

async fn a_claim_may_add_arguments_to_a_call_without_any(cx: &TestContext) {
    let worker = cx.worker().await;
    let bare = dalsegno_protocol::PlannedCall { arguments: None, ..planned("pay", Policy::Probe) };
    ok(cx.commit(&Commit { calls: vec![bare], ..worker.plan(1) }).await.unwrap());
    let answer = claim_with(cx, worker.claim("pay", Policy::Probe), "2").await;
    assert!(matches!(answer, Claimed::Go(call) if call.arguments.as_ref().unwrap().get() == "2"));
}

async fn the_message_names_a_turn_that_a_rewind_undid(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    for (id, turn) in [("early", 2), ("late", 3)] {
        let claim = cx.start_call(&worker, id, Policy::Probe).await;
        cx.complete(&worker.complete(&claim)).await.unwrap();
        cx.commit_turn(&worker, turn).await;
    }
    let run = cx.run_of(&worker).await;
    let rewound = cx.rewind(run.id, &rewind_to(run.epoch, result_place(2))).await.unwrap();
    let Rewound::Done(run) = rewound else { panic!("{rewound:?}") };
    let worker = cx.start_worker(&run).await;
    let claim = |id| worker.claim(id, Policy::Probe);
    let why = message(claim_with(cx, claim("early"), "2").await);
    assert!(!why.contains("rewind"), "turn 2 was not undone: {why}");
    let why = message(claim_with(cx, claim("late"), "2").await);
    assert!(why.contains("turn 3, which a rewind undid"), "{why}");
    assert!(matches!(cx.claim(&claim("late")).await.unwrap(), Claimed::Done(_)));

    cx.start_call(&worker, "new", Policy::Probe).await;
    let why = message(claim_with(cx, claim("new"), "2").await);
    assert!(!why.contains("rewind"), "it was made after the rewind: {why}");
}
