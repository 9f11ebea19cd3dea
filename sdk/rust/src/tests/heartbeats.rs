//! Heartbeats: what an agent may rely on beside its loop.

use super::*;

#[test]
fn heartbeats_go_on_while_the_loop_sleeps_and_one_that_is_fenced_calls_the_hook() {
    let gateway =
        Gateway::new().on("heartbeat", [flags(json!({"cancel": true})), None, problem(409, "FENCED")]);
    let heard = Arc::new(Mutex::new(None));
    let hook = heard.clone();
    let builder = gateway.builder().heartbeat(true);
    let run = builder.on_over(move |problem| *hook.lock().unwrap() = Some(problem.code)).attach().unwrap();
    within(Duration::from_secs(5), || heard.lock().unwrap().is_some());
    assert!(run.cancelled());
    assert_eq!(gateway.bodies("heartbeat"), ["", "", ""]);
}

#[test]
fn a_heartbeat_that_is_put_off_is_not_put_off_past_the_lease() {
    let gateway =
        Gateway::new().on("heartbeat", [problem(504, "UNAVAILABLE"), flags(json!({"cancel": true}))]);
    let run = gateway.builder().heartbeat(true).attach().unwrap();
    within(Duration::from_secs(9), || run.cancelled());
}

#[test]
fn a_shorter_lease_is_beaten_for_sooner_whichever_answer_tells_of_it() {
    let lease = |seconds: u32| json!({"leaseSeconds": seconds});
    let gateway = Gateway::new()
        .on("attach", [attached(merged(lease(180), json!({"heartbeatSeconds": 60})))])
        .on(
            "heartbeat",
            [flags(lease(180)), flags(lease(2)), flags(lease(2)), flags(json!({"cancel": true}))],
        )
        .on("turns/1", [flags(merged(lease(2), json!({"result": "ok", "head": head(1, "result")})))]);
    let mut run = gateway.builder().heartbeat(true).attach().unwrap();
    within(Duration::from_secs(5), || gateway.bodies("heartbeat").len() == 1);
    run.commit(Commit::new(1)).unwrap();
    within(Duration::from_secs(9), || run.cancelled());
}

#[test]
fn a_heartbeat_after_our_own_finish_is_not_taken_for_a_fence() {
    // The first one is put off for as long as it may be, so that the run is finished before the second.
    let answers = [problem(504, "UNAVAILABLE"), problem(409, "FENCED")];
    let gateway = Gateway::new().on("finish", [committed(1, "result")]).on("heartbeat", answers);
    let heard = Arc::new(AtomicUsize::new(0));
    let hook = heard.clone();
    let builder = gateway.builder().heartbeat(true).on_over(move |_| {
        hook.fetch_add(1, Ordering::SeqCst);
    });
    let mut run = builder.attach().unwrap();
    within(Duration::from_secs(5), || !gateway.bodies("heartbeat").is_empty());
    run.finish(Finish { reason: Some("GoalReached".into()), ..succeeded() }).unwrap();
    let finish = json!({"outcome": "succeeded", "reason": "GoalReached"});
    assert_eq!(gateway.body("finish")["finish"], finish);
    // The second one is answered once the run is finished, and is the last: its thread has ended.
    within(Duration::from_secs(15), || run.beats.as_ref().unwrap().send(1).is_err());
    assert_eq!((gateway.bodies("heartbeat").len(), heard.load(Ordering::SeqCst)), (2, 0));
}
