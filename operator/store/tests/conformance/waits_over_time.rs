//! Waits that outlive what they were opened for: an attempt, a rewind, a full inbox, a rate limit, a readable answer.

use dalsegno_model::{
    Answered, CallFilter, Claim, Claimed, Commit, Deadline, NewMessage, OpenWaitRequest, RunRecord, Sent,
    WaitAnswer, WaitAsks, WaitDecision, WaitPolled,
};
use dalsegno_protocol::{Limits, ParkMode, Policy, WaitOutcome, WaitState};
use jiff::Timestamp;

use super::messages::{message, send};
use super::rewinds::done;
use super::waits::{
    approval, in_ms, in_time, later, open, park_on, parked, parked_before, request, settle_after,
};
use crate::context::*;
use crate::engines::{on_every_engine, on_every_persistent_engine, tamper};

on_every_engine! {
    a_wait_that_a_later_attempt_asks_for_again_is_that_attempts_own,
    an_unread_message_answers_the_wait_that_is_opened_for_it,
    a_call_that_is_refused_for_its_arguments_uses_no_approval,
    the_poll_names_the_time_that_has_come,
}

on_every_persistent_engine! {
    a_message_that_the_run_waits_for_has_a_place_in_a_full_inbox,
    only_a_run_that_has_just_waited_moves_the_waits_of_others_and_not_by_much,
    an_answer_that_cannot_be_read_concerns_its_own_poller_only,
}

async fn a_wait_that_a_later_attempt_asks_for_again_is_that_attempts_own(cx: &TestContext) {
    let first = cx.worker().await;
    cx.commit_turn(&first, 1).await;
    let asked = request(&first, "pay", approval());
    open(cx, &asked).await;
    let second = cx.next_worker(&first).await;
    assert!(cx.run_of(&second).await.unattended_wait().is_none(), "it has not asked");
    let audit = cx.audit(second.run).await.unwrap().len();
    open(cx, &OpenWaitRequest { capability: second.capability, ..asked.clone() }).await;
    let run = cx.run_of(&second).await;
    assert_eq!(run.unattended_wait().map(|wait| wait.attempt), Some(2));
    assert_eq!((run.waits.len(), cx.audit(second.run).await.unwrap().len()), (1, audit));
    cx.commit_turn(&second, 2).await;
    assert!(cx.run_of(&second).await.unattended_wait().is_none(), "it goes on without the answer");
    assert!(matches!(cx.open_wait(&asked).await.unwrap(), dalsegno_model::WaitOpened::Fenced));
    cx.assert_audit_is_valid(second.run).await;
}

async fn an_unread_message_answers_the_wait_that_is_opened_for_it(cx: &TestContext) {
    let first = cx.worker().await;
    open(cx, &request(&first, "early", WaitAsks::Message(None))).await;
    cx.commit_turn(&first, 1).await;
    open(cx, &request(&first, "late", WaitAsks::Message(None))).await;
    let run = parked(cx, &first, &["late"], ParkMode::All).await;
    send(cx, &message(first.run, "m")).await;
    let second = cx.start_worker(&run).await;
    ok(cx.commit(&Commit { inbox: vec![1], ..second.result(2) }).await.unwrap());
    let run = cx.run_of(&second).await;
    let run = done(cx.rewind(second.run, &rewind_to(run.epoch, result_place(1))).await.unwrap());
    let third = cx.start_worker(&run).await;
    let again = open(cx, &request(&third, "late", WaitAsks::Message(None))).await;
    assert_eq!((again.state, again.answer.and_then(|it| it.position)), (WaitState::Answered, Some(1)));
    let open: Vec<_> = cx.run_of(&third).await.waits.iter().map(|it| it.id.clone()).collect();
    assert_eq!(open, ["early"], "the run does not look at it");
    cx.assert_audit_is_valid(third.run).await;
}

async fn answered(cx: &TestContext, worker: &Worker, id: &str) {
    let epoch = open(cx, &request(worker, id, approval())).await.facts.epoch;
    let decision = WaitDecision { by: "ada".into(), reason: None, changes: None };
    let answer = WaitAnswer { id: id.into(), epoch, outcome: WaitOutcome::Approved, decision };
    assert!(matches!(cx.answer_wait(worker.run, &answer).await.unwrap(), Answered::Ok(_)));
}

async fn a_call_that_is_refused_for_its_arguments_uses_no_approval(cx: &TestContext) {
    let worker = cx.worker().await;
    answered(cx, &worker, "pay").await;
    let claim = worker.claim("payment", Policy::RetrySameKey);
    assert!(matches!(cx.claim(&claim).await.unwrap(), Claimed::Go(_)));
    let again = |arguments: &str| Claim {
        claim_id: claim.claim_id,
        approval: Some("pay".into()),
        arguments: Some(json(arguments)),
        ..worker.claim("payment", Policy::RetrySameKey)
    };
    let (approved, other) = (again(r#"{"amount":  1}"#), again(r#"{"amount":  1000000}"#));
    let refused = cx.claim(&other).await.unwrap();
    assert!(matches!(refused, Claimed::Invalid(_)), "{refused:?}");
    let used = async || {
        let audit = cx.audit(worker.run).await.unwrap();
        audit.iter().filter(|row| row.kind == "approvalUsed").count()
    };
    assert_eq!(used().await, 0);
    let next = Claim { approval: Some("pay".into()), ..worker.claim("another", Policy::RetrySameKey) };
    assert!(matches!(cx.claim(&next).await.unwrap(), Claimed::Go(_)), "the approval is free");
    assert_eq!(used().await, 1);
    assert!(matches!(cx.claim(&approved).await.unwrap(), Claimed::ApprovalSpent));
    // The same call again, with the arguments that are stored.
    assert!(matches!(cx.claim(&next).await.unwrap(), Claimed::Go(_)));
    assert_eq!(cx.call_ids(worker.run, CallFilter::All).await, ["payment", "another"]);
    cx.assert_audit_is_valid(worker.run).await;
}

async fn the_poll_names_the_time_that_has_come(cx: &TestContext) {
    in_time(100, async |ms: i64| {
        let worker = cx.worker().await;
        let one = open(cx, &request(&worker, "one", WaitAsks::Until(in_ms(ms)))).await.facts.wake_at;
        let two = open(cx, &request(&worker, "two", WaitAsks::Until(in_ms(ms + 150)))).await.facts.wake_at;
        let park = park_on(&worker, &["one", "two"], ParkMode::All);
        let run = parked_before(cx, &worker, &park, one).await?;
        let wake = async || {
            let poll = cx.poll_deadlines(Timestamp::now().into()).await.unwrap();
            let found = poll.expired.into_iter().find(|it| it.object.uid == run.object_uid);
            found.map(|it| (it.deadline, it.wake_at))
        };
        sleep_ms(ms.unsigned_abs() + 250).await;
        assert_eq!([0, 1].map(|nth| run.waits[nth].wake_at), [one, two]);
        assert_eq!(wake().await, Some((Deadline::Wake, one)));
        let next_timer = |now: Option<Timestamp>| RunRecord { now: now.unwrap(), ..run.clone() }.next_timer();
        let timers = [next_timer(Some(Timestamp::UNIX_EPOCH)), next_timer(one), next_timer(two)];
        assert_eq!(timers, [one, two, None]);
        cx.settle_time(worker.run).await.unwrap();
        assert_eq!(wake().await, None);
        Some(())
    })
    .await;
}

/// The run's row counts its unread messages, so it need not have as many here.
async fn a_message_that_the_run_waits_for_has_a_place_in_a_full_inbox(cx: &TestContext) {
    let worker = cx.worker().await;
    let on = |topic: &str, id: &str| NewMessage { topic: Some(topic.into()), ..message(worker.run, id) };
    send(cx, &on("noise", "1")).await;
    let fill = |messages: usize| format!("UPDATE runs SET unread = {messages}");
    assert_eq!(tamper(cx, &fill(Limits::MESSAGES)).await, 1);
    let too_many = async |message: &NewMessage| cx.send_message(message).await.unwrap() == Sent::TooMany;
    assert!(too_many(&on("reply", "2")).await, "nothing waits for it");
    open(cx, &request(&worker, "reply", WaitAsks::Message(Some("reply".into())))).await;
    parked(cx, &worker, &["reply"], ParkMode::All).await;
    assert!(too_many(&on("noise", "3")).await);
    send(cx, &on("reply", "4")).await;
    assert_eq!(cx.run_of(&worker).await.park, None, "the run goes on");
    assert!(too_many(&on("reply", "5")).await, "one message for each wait");

    let next = cx.start_worker(&cx.run_of(&worker).await).await;
    open(cx, &request(&next, "again", WaitAsks::Message(Some("reply".into())))).await;
    tamper(cx, &fill(Limits::MESSAGES + Limits::WAITS)).await;
    assert!(too_many(&on("reply", "6")).await, "there is a limit");
    tamper(cx, &fill(Limits::MESSAGES)).await;
    tamper(cx, &format!("UPDATE runs SET unread_bytes = {}", Limits::INBOX_BYTES)).await;
    send(cx, &on("reply", "7")).await;
}

fn rate_limit(reset: Timestamp) -> WaitAsks {
    WaitAsks::RateLimit { provider: "models.example".into(), reset: Some(reset) }
}

async fn only_a_run_that_has_just_waited_moves_the_waits_of_others_and_not_by_much(cx: &TestContext) {
    let (probe, other) = (cx.worker().await, cx.worker().await);
    open(cx, &request(&probe, "limit", rate_limit(in_ms(-10_000)))).await;
    settle_after(cx, &probe, 1_100).await;
    assert_eq!(cx.waits(probe.run).await.unwrap()[0].state, WaitState::Answered);
    let before = open(cx, &request(&other, "limit", rate_limit(in_ms(60_000)))).await.facts.wake_at;
    let moved = async || {
        let after = cx.run_of(&other).await.waits[0].wake_at;
        after.unwrap().duration_since(before.unwrap()).as_millis()
    };
    let answered = |ms: i64| {
        format!(
            "UPDATE waits SET answered_at = answered_at - {ms} WHERE id = 'limit' \
        AND outcome = 'elapsed'"
        )
    };
    assert_eq!(tamper(cx, &answered(3_600_000)).await, 1);
    open(cx, &request(&probe, "limit-2", rate_limit(in_ms(86_400_000)))).await;
    assert_eq!(moved().await, 0, "the run tried an hour ago");
    assert_eq!(tamper(cx, &answered(-3_600_000)).await, 1);
    open(cx, &request(&probe, "limit-3", rate_limit(in_ms(86_400_000)))).await;
    assert_eq!(moved().await, 600_000);
    open(cx, &request(&probe, "limit-4", rate_limit(in_ms(86_400_000)))).await;
    assert_eq!(moved().await, 1_200_000, "the next one moves it again");
}

async fn an_answer_that_cannot_be_read_concerns_its_own_poller_only(cx: &TestContext) {
    let (damaged, healthy) = (cx.worker().await, cx.worker().await);
    for worker in [&damaged, &healthy] {
        answered(cx, worker, "pay").await;
    }
    open(cx, &request(&damaged, "noon", later())).await;
    // It looks sealed, and no key opens it.
    let (run, bytes) = (damaged.run.simple(), "10".repeat(40));
    let sql = match cx.is_sqlite() {
        true => format!("UPDATE waits SET answer = x'{bytes}' WHERE run = x'{run}' AND id = 'pay'"),
        false => format!("UPDATE waits SET answer = '\\x{bytes}' WHERE run = '{run}' AND id = 'pay'"),
    };
    assert_eq!(tamper(cx, &sql).await, 1);
    let of = |worker: &Worker, id: &str| (worker.run, worker.capability, id.to_owned());
    let polled = [of(&damaged, "pay"), of(&healthy, "pay"), of(&damaged, "noon")];
    let states = cx.wait_states(&polled).await.unwrap();
    let [WaitPolled::Unreadable(why), WaitPolled::Wait(answered), WaitPolled::Wait(open)] = &states[..]
    else {
        panic!("{states:?}")
    };
    assert!(why.to_string().contains("pay"), "{why}");
    assert_eq!((answered.state, open.state), (WaitState::Answered, WaitState::Open));
}
