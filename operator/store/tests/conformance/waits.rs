//! Waits: a run opens them, parks on them, and goes on once they are answered.

use dalsegno_model::{
    AttemptState, Cause, Class, Commit, Committed, OpenWaitRequest, Park, Parked, RunRecord, Wait, WaitAsks,
    WaitOpened,
};
use dalsegno_protocol::{Limits, OnTimeout, ParkMode, ParkRequest, Policy, WaitKind, WaitOutcome, WaitState};
use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_run_parks_on_a_time_and_goes_on_when_it_has_come,
    the_same_bytes_give_the_wait_again_in_later_attempts_too,
    other_bytes_are_refused,
    only_the_current_worker_of_a_live_run_opens_a_wait,
    a_run_has_at_most_as_many_open_waits_as_the_contract_says,
    a_park_on_what_is_answered_is_ready,
    a_park_names_waits_of_the_live_branch,
    a_park_on_all_waits_for_the_last_and_one_on_any_for_the_first,
    a_boundary_parks_in_one_step_with_its_commit,
    a_boundary_that_may_not_park_is_not_stored,
    a_boundary_whose_wait_is_answered_wakes_the_run_at_once,
    a_park_on_waits_acknowledges_a_suspend,
    parks_without_progress_are_counted_and_progress_resets_them,
}

/// A request to open a wait.
pub fn request(worker: &Worker, id: &str, asks: WaitAsks) -> OpenWaitRequest {
    OpenWaitRequest {
        run: worker.run,
        capability: worker.capability,
        id: id.into(),
        digest: random_digest(),
        body: json(r#"{"kind":  "until"}"#),
        asks,
        deadline_ms: None,
        on_timeout: OnTimeout::Answer,
    }
}

/// This long from now, by the clock of this machine, which is the store's.
pub fn in_ms(ms: i64) -> Timestamp {
    Timestamp::now() + SignedDuration::from_millis(ms)
}

/// A time that does not come during a test.
pub fn later() -> WaitAsks {
    WaitAsks::Until(in_ms(3_600_000))
}

/// An approval.
pub fn approval() -> WaitAsks {
    WaitAsks::Approval { salt: [7; 16], proposal_hash: [9; 32] }
}

pub fn opened(opened: WaitOpened) -> Wait {
    match opened {
        WaitOpened::Wait(wait) => *wait,
        other => panic!("the wait was not opened: {other:?}"),
    }
}

/// Opens a wait.
pub async fn open(cx: &TestContext, request: &OpenWaitRequest) -> Wait {
    opened(cx.open_wait(request).await.unwrap())
}

/// A park on these waits.
pub fn park_on(worker: &Worker, on: &[&str], mode: ParkMode) -> Park {
    Park { on: on.iter().map(|id| (*id).to_owned()).collect(), mode, ..worker.park() }
}

/// Parks on these waits.
pub async fn parked(cx: &TestContext, worker: &Worker, on: &[&str], mode: ParkMode) -> RunRecord {
    assert_eq!(cx.park(&park_on(worker, on, mode)).await.unwrap(), Parked::Parked);
    cx.run_of(worker).await
}

/// Waits for so many milliseconds, and lets the store's clock answer the run's waits.
pub async fn settle_after(cx: &TestContext, worker: &Worker, ms: i64) -> RunRecord {
    sleep_ms(ms.unsigned_abs()).await;
    cx.settle_time(worker.run).await.unwrap()
}

/// Plays a case in which something happens before a time that is this many milliseconds away. `None` says that the time
/// came first, because the machine was too slow: then the case is played again with twice as many.
pub async fn in_time(mut ms: i64, case: impl AsyncFn(i64) -> Option<()>) {
    while case(ms).await.is_none() {
        ms *= 2;
        assert!(ms < 120_000, "the time always comes first");
    }
}

/// Parks before this time. `None`: it has come.
pub async fn parked_before(
    cx: &TestContext,
    worker: &Worker,
    park: &Park,
    time: Option<Timestamp>,
) -> Option<RunRecord> {
    let answer = cx.park(park).await.unwrap();
    let run = cx.run_of(worker).await;
    if run.now >= time.unwrap() {
        return None;
    }
    assert_eq!(answer, Parked::Parked);
    Some(run)
}

async fn a_run_parks_on_a_time_and_goes_on_when_it_has_come(cx: &TestContext) {
    in_time(300, async |ms: i64| {
        let worker = cx.worker().await;
        cx.commit_turn(&worker, 1).await;
        let wait = open(cx, &request(&worker, "noon", WaitAsks::Until(in_ms(ms)))).await;
        let (park, time) = (park_on(&worker, &["noon"], ParkMode::All), wait.facts.wake_at);
        let run = parked_before(cx, &worker, &park, time).await?;
        assert_eq!((wait.state, wait.facts.kind, wait.facts.turn), (WaitState::Open, WaitKind::Until, 2));
        assert_eq!((run.attempt.number, run.attempt.state), (2, AttemptState::Reserved));
        let end = run.past[0].end.clone().unwrap();
        assert_eq!((end.cause, end.class, end.charged), (Cause::Parked, Class::Neutral, false));
        assert_eq!(run.park.as_ref().unwrap().on, ["noon"]);
        assert_eq!((run.wake_at, run.waits[0].wake_at), (time, time));

        let same = cx.settle_time(worker.run).await.unwrap();
        if same.now >= time.unwrap() {
            return None;
        }
        assert_eq!(without_times(same), without_times(run.clone()), "the time has not come");
        let woken = settle_after(cx, &worker, ms + 100).await;
        assert_eq!((woken.park.clone(), woken.waits.len(), woken.wake_at), (None, 0, None));
        assert_eq!((woken.epoch, woken.attempt.number), (run.epoch, 2), "the reserved attempt is the same");
        let [wait] = &cx.waits(worker.run).await.unwrap()[..] else { panic!("one wait was answered") };
        assert_eq!(wait.answer.as_ref().unwrap().outcome, WaitOutcome::Elapsed);

        let next = cx.start_worker(&woken).await;
        cx.commit_turn(&next, 2).await;
        assert_eq!(cx.waits(worker.run).await.unwrap().len(), 0, "it was answered before the head");
        cx.assert_audit_is_valid(worker.run).await;
        Some(())
    })
    .await;
}

async fn the_same_bytes_give_the_wait_again_in_later_attempts_too(cx: &TestContext) {
    in_time(200, async |ms: i64| {
        let worker = cx.worker().await;
        let first = request(&worker, "noon", WaitAsks::Until(in_ms(ms)));
        let wait = open(cx, &first).await;
        let again = open(cx, &first).await;
        let park = park_on(&worker, &["noon"], ParkMode::All);
        let run = parked_before(cx, &worker, &park, wait.facts.wake_at).await?;
        assert_eq!((again.state, &again.facts), (WaitState::Open, &wait.facts));
        settle_after(cx, &worker, ms + 100).await;
        let next = cx.start_worker(&run).await;
        let later = OpenWaitRequest { capability: next.capability, asks: later(), ..first };
        let again = open(cx, &later).await;
        assert_eq!(again.state, WaitState::Answered);
        assert_eq!(again.answer.unwrap().outcome, WaitOutcome::Elapsed);
        assert_eq!(cx.run_of(&worker).await.waits.len(), 0);
        Some(())
    })
    .await;
}

async fn other_bytes_are_refused(cx: &TestContext) {
    let worker = cx.worker().await;
    open(cx, &request(&worker, "noon", later())).await;
    let other = cx.open_wait(&request(&worker, "noon", later())).await.unwrap();
    assert!(matches!(&other, WaitOpened::Invalid(why) if why.contains("noon")), "{other:?}");
    assert_eq!(cx.run_of(&worker).await.waits.len(), 1);
}

async fn only_the_current_worker_of_a_live_run_opens_a_wait(cx: &TestContext) {
    let worker = cx.worker().await;
    let of_another = OpenWaitRequest { capability: random_digest(), ..request(&worker, "noon", later()) };
    assert!(matches!(cx.open_wait(&of_another).await.unwrap(), WaitOpened::Fenced));
    let unknown = OpenWaitRequest { run: Uuid::now_v7(), ..of_another };
    assert!(matches!(cx.open_wait(&unknown).await.unwrap(), WaitOpened::NotFound));
    ok(cx.finish(&worker.finish()).await.unwrap());
    let finished = cx.open_wait(&request(&worker, "noon", later())).await.unwrap();
    assert!(matches!(finished, WaitOpened::Finished), "{finished:?}");
}

async fn a_run_has_at_most_as_many_open_waits_as_the_contract_says(cx: &TestContext) {
    let worker = cx.worker().await;
    let large = format!("\"{}\"", "x".repeat(Limits::OPEN_WAIT_BYTES));
    let too_large = OpenWaitRequest { body: json(&large), ..request(&worker, "large", later()) };
    assert!(matches!(cx.open_wait(&too_large).await.unwrap(), WaitOpened::TooLarge));
    for number in 0..Limits::WAITS {
        open(cx, &request(&worker, &format!("wait-{number}"), later())).await;
    }
    let one_more = cx.open_wait(&request(&worker, "one-more", later())).await.unwrap();
    assert!(matches!(one_more, WaitOpened::TooMany), "{one_more:?}");
    assert_eq!(cx.run_of(&worker).await.waits.len(), Limits::WAITS);
    cx.assert_audit_is_valid(worker.run).await;
}

async fn a_park_on_what_is_answered_is_ready(cx: &TestContext) {
    let worker = cx.worker().await;
    open(cx, &request(&worker, "past", WaitAsks::Until(in_ms(-1_000)))).await;
    open(cx, &request(&worker, "later", later())).await;
    for (on, mode) in [(vec!["past"], ParkMode::All), (vec!["past", "later"], ParkMode::Any)] {
        assert_eq!(cx.park(&park_on(&worker, &on, mode)).await.unwrap(), Parked::Ready);
    }
    assert_eq!(cx.run_of(&worker).await.attempt.state, AttemptState::Attached);
    parked(cx, &worker, &["past", "later"], ParkMode::All).await;
}

async fn a_park_names_waits_of_the_live_branch(cx: &TestContext) {
    let worker = cx.worker().await;
    open(cx, &request(&worker, "known", later())).await;
    let park = park_on(&worker, &["known", "unknown"], ParkMode::Any);
    assert_eq!(cx.park(&park).await.unwrap(), Parked::NoSuchWait("unknown".into()));
    assert_eq!(cx.run_of(&worker).await.attempt.state, AttemptState::Attached);
}

async fn a_park_on_all_waits_for_the_last_and_one_on_any_for_the_first(cx: &TestContext) {
    for (mode, is_woken) in [(ParkMode::All, false), (ParkMode::Any, true)] {
        in_time(200, async |ms: i64| {
            let worker = cx.worker().await;
            let soon = open(cx, &request(&worker, "soon", WaitAsks::Until(in_ms(ms)))).await;
            open(cx, &request(&worker, "later", later())).await;
            let park = park_on(&worker, &["soon", "later"], mode);
            parked_before(cx, &worker, &park, soon.facts.wake_at).await?;
            let run = settle_after(cx, &worker, ms + 100).await;
            assert_eq!((run.park.is_none(), run.waits.len()), (is_woken, 1), "{mode:?}");
            Some(())
        })
        .await;
    }
}

/// A commit that parks on these waits.
fn commit_and_park(worker: &Worker, turn: i32, on: &[&str]) -> Commit {
    let on = on.iter().map(|id| (*id).to_owned()).collect();
    let park = ParkRequest { park_id: Uuid::new_v4(), on, mode: ParkMode::All };
    Commit { park: Some(park), ..worker.result(turn) }
}

async fn a_boundary_parks_in_one_step_with_its_commit(cx: &TestContext) {
    let worker = cx.worker().await;
    open(cx, &request(&worker, "later", later())).await;
    let commit = commit_and_park(&worker, 1, &["later"]);
    let committed = cx.commit(&commit).await.unwrap();
    assert!(matches!(&committed, Committed::Parked(receipt) if receipt.head.as_ref().unwrap().turn == 1));
    let run = cx.run_of(&worker).await;
    assert_eq!((run.attempt.number, run.head.as_ref().unwrap().turn), (2, 1));
    assert_eq!(run.park.unwrap().on, ["later"]);
    assert_eq!(cx.commit(&commit).await.unwrap(), Committed::Fenced { committed: true }, "a retry");
    let park = commit.park.clone().unwrap();
    let retry = Park { park_id: park.park_id, ..park_on(&worker, &["later"], ParkMode::All) };
    assert_eq!(cx.park(&retry).await.unwrap(), Parked::Parked);
    let next = cx.commit(&worker.result(2)).await.unwrap();
    assert_eq!(next, Committed::Fenced { committed: false }, "nothing more is accepted");
    cx.assert_audit_is_valid(worker.run).await;
}

async fn a_boundary_that_may_not_park_is_not_stored(cx: &TestContext) {
    let worker = cx.worker().await;
    let unknown = cx.commit(&commit_and_park(&worker, 1, &["unknown"])).await.unwrap();
    assert_eq!(unknown, Committed::NoSuchWait("unknown".into()));
    assert_eq!(cx.run_of(&worker).await.head, None);
    open(cx, &request(&worker, "later", later())).await;
    cx.start_call(&worker, "pay", Policy::Ask).await;
    let named = Commit { open_calls: vec!["pay".into()], ..commit_and_park(&worker, 1, &["later"]) };
    assert_eq!(cx.commit(&named).await.unwrap(), Committed::OpenCalls);
    let run = cx.run_of(&worker).await;
    assert_eq!((run.head, run.attempt.state), (None, AttemptState::Attached));
}

async fn a_boundary_whose_wait_is_answered_wakes_the_run_at_once(cx: &TestContext) {
    let worker = cx.worker().await;
    open(cx, &request(&worker, "past", WaitAsks::Until(in_ms(-1_000)))).await;
    let committed = cx.commit(&commit_and_park(&worker, 1, &["past"])).await.unwrap();
    assert!(matches!(committed, Committed::Parked(_)), "never ready: {committed:?}");
    let run = cx.run_of(&worker).await;
    assert_eq!((run.attempt.number, run.park.clone()), (2, None));
    cx.start_worker(&run).await;
}

async fn a_park_on_waits_acknowledges_a_suspend(cx: &TestContext) {
    in_time(200, async |ms: i64| {
        let worker = cx.worker().await;
        let soon = open(cx, &request(&worker, "soon", WaitAsks::Until(in_ms(ms)))).await;
        cx.suspend(worker.run).await.unwrap();
        let park = park_on(&worker, &["soon"], ParkMode::All);
        let run = parked_before(cx, &worker, &park, soon.facts.wake_at).await?;
        assert!(run.suspend.is_some() && run.park.is_some());
        let run = settle_after(cx, &worker, ms + 100).await;
        assert!(run.suspend.is_some() && run.park.is_none(), "its wait is answered while it is suspended");
        assert_eq!(cx.resume(worker.run).await.unwrap().suspend, None);
        Some(())
    })
    .await;
}

async fn parks_without_progress_are_counted_and_progress_resets_them(cx: &TestContext) {
    in_time(100, async |ms: i64| {
        let mut worker = cx.worker().await;
        for parks in 1..=4 {
            let id = format!("past-{parks}");
            let wait = open(cx, &request(&worker, &id, WaitAsks::Until(in_ms(ms)))).await;
            let park = park_on(&worker, &[&id], ParkMode::All);
            let run = parked_before(cx, &worker, &park, wait.facts.wake_at).await?;
            assert_eq!(run.parks_without_progress, parks);
            let delay =
                run.slowed_until().map(|at| at.duration_since(run.past[0].ended_at.unwrap()).as_secs());
            assert_eq!(delay, [None, None, Some(10), Some(20)][parks as usize - 1]);
            let run = settle_after(cx, &worker, ms + 50).await;
            worker = cx.start_worker(&run).await;
        }
        cx.commit_turn(&worker, 1).await;
        open(cx, &request(&worker, "later", later())).await;
        let run = parked(cx, &worker, &["later"], ParkMode::All).await;
        assert_eq!((run.parks_without_progress, run.slowed_until()), (0, None));
        Some(())
    })
    .await;
}
