//! Messages of people: stored in order, taken with a boundary, given back by a rewind.

use dalsegno_model::{
    Commit, Committed, InboxRow, Lifecycle, MessageQuery, NewMessage, OnPrior, Retention, RunId, Sent, Shred,
    Shredded, WorkerSignals,
};
use dalsegno_protocol::{Boundary, Limits, Message, TakenBy};
use futures::future::join_all;

use crate::context::*;
use crate::engines::{on_every_engine, on_every_persistent_engine, tamper};
use crate::rewinds::done;

on_every_engine! {
    messages_are_stored_in_order_with_their_authors,
    the_same_message_again_has_the_same_position,
    an_id_names_one_message,
    every_answer_to_the_worker_names_the_latest_message,
    a_boundary_takes_messages,
    a_plan_takes_messages_too,
    only_unread_messages_can_be_taken,
    a_boundary_that_is_refused_takes_nothing,
    a_boundary_that_takes_messages_may_be_sent_again,
    what_was_not_taken_comes_again,
    a_rewind_gives_messages_back,
    a_page_has_a_limited_number_of_messages_and_bytes,
    an_inbox_has_a_limited_number_of_bytes,
    a_run_that_is_over_takes_no_new_messages,
    an_unknown_run_has_no_inbox,
    an_adopted_run_keeps_its_messages,
    retention_deletes_the_values,
    concurrent_senders_get_a_position_each,
}

on_every_persistent_engine! {
    values_are_sealed,
    an_inbox_has_a_limited_number_of_messages,
    a_shredded_run_has_no_values,
    an_edited_message_is_found,
}

pub fn message(run: RunId, id: &str) -> NewMessage {
    NewMessage {
        run,
        id: id.into(),
        topic: None,
        value: json(&format!(r#"{{"text":  "hello from {id}"}}"#)),
        author: "ada".into(),
        audit_id: None,
    }
}

pub async fn send(cx: &TestContext, message: &NewMessage) -> i64 {
    match cx.send_message(message).await.unwrap() {
        Sent::Ok(position) => position,
        other => panic!("the message was not accepted: {other:?}"),
    }
}

async fn messages(cx: &TestContext, run: RunId, unread_only: bool) -> Vec<Message> {
    let query = MessageQuery { after: 0, unread_only, limit: 1_000, bytes: 32 << 20 };
    cx.messages(run, &query).await.unwrap().messages
}

async fn unread(cx: &TestContext, run: RunId) -> Vec<i64> {
    messages(cx, run, true).await.iter().map(|message| message.position).collect()
}

/// The result of this turn, which takes these messages.
fn taking(worker: &Worker, turn: i32, positions: &[i64]) -> Commit {
    Commit { inbox: positions.to_vec(), ..worker.result(turn) }
}

async fn inbox_row(cx: &TestContext, worker: &Worker) -> (i64, i64) {
    let InboxRow { position, unread } = cx.run_of(worker).await.inbox;
    (position, unread)
}

async fn messages_are_stored_in_order_with_their_authors(cx: &TestContext) {
    let worker = cx.worker().await;
    let from_bob =
        NewMessage { author: "bob".into(), topic: Some("price".into()), ..message(worker.run, "b") };
    assert_eq!(send(cx, &message(worker.run, "a")).await, 1);
    assert_eq!(send(cx, &from_bob).await, 2);
    assert_eq!(send(cx, &NewMessage { id: "c".into(), ..from_bob.clone() }).await, 3);
    let stored = messages(cx, worker.run, false).await;
    let told: Vec<_> = stored
        .iter()
        .map(|it| (it.position, it.id.as_str(), it.topic.as_deref(), it.author.as_str(), it.taken_by))
        .collect();
    assert_eq!(
        told,
        [
            (1, "a", None, "ada", None),
            (2, "b", Some("price"), "bob", None),
            (3, "c", Some("price"), "bob", None)
        ]
    );
    assert_eq!(stored[0].value.as_ref().unwrap().get(), r#"{"text":  "hello from a"}"#, "byte for byte");
    let at: jiff::Timestamp = stored[0].at.parse().unwrap();
    assert!(at <= cx.run_of(&worker).await.now);
    assert_eq!(cx.message_authors(worker.run).await.unwrap(), ["ada", "bob"]);
    assert_eq!(inbox_row(cx, &worker).await, (3, 3));
    cx.assert_audit_is_valid(worker.run).await;
}

async fn the_same_message_again_has_the_same_position(cx: &TestContext) {
    let worker = cx.worker().await;
    let sent = message(worker.run, "a");
    send(cx, &sent).await;
    send(cx, &message(worker.run, "b")).await;
    let audit = cx.audit(worker.run).await.unwrap();
    assert_eq!(cx.send_message(&sent).await.unwrap(), Sent::Duplicate(1));
    ok(cx.commit(&taking(&worker, 1, &[1])).await.unwrap());
    assert_eq!(cx.send_message(&sent).await.unwrap(), Sent::Duplicate(1), "it was taken");
    assert_eq!(unread(cx, worker.run).await, [2]);
    ok(cx.finish(&worker.finish()).await.unwrap());
    assert_eq!(cx.send_message(&sent).await.unwrap(), Sent::Duplicate(1), "the run is over");
    let kinds = cx.audit(worker.run).await.unwrap().into_iter().skip(audit.len()).map(|row| row.kind);
    assert_eq!(kinds.collect::<Vec<_>>(), ["messages-taken", "finished"]);
}

async fn an_id_names_one_message(cx: &TestContext) {
    let worker = cx.worker().await;
    let sent = message(worker.run, "a");
    send(cx, &sent).await;
    for other in [
        NewMessage { value: json("1"), ..sent.clone() },
        NewMessage { topic: Some("price".into()), ..sent.clone() },
        NewMessage { author: "bob".into(), ..sent.clone() },
    ] {
        assert_eq!(cx.send_message(&other).await.unwrap(), Sent::Conflict, "{other:?}");
    }
    assert_eq!(send(cx, &message(cx.run().await.id, "a")).await, 1, "in another run it is another message");
    assert_eq!(inbox_row(cx, &worker).await, (1, 1));
}

async fn every_answer_to_the_worker_names_the_latest_message(cx: &TestContext) {
    let worker = cx.worker().await;
    let heartbeat = async || cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap().remove(0);
    let signals =
        |inbox| WorkerSignals { inbox, lease_ms: LONG_DEADLINES.heartbeat_ms, ..Default::default() };
    assert_eq!(heartbeat().await, dalsegno_model::HeartbeatAnswer::Ok(signals(0)));
    send(cx, &message(worker.run, "a")).await;
    assert_eq!(heartbeat().await, dalsegno_model::HeartbeatAnswer::Ok(signals(1)));
    let turn = worker.result(1);
    assert_eq!(ok(cx.commit(&turn).await.unwrap()).signals, signals(1));
    send(cx, &message(worker.run, "b")).await;
    let Committed::Duplicate(receipt) = cx.commit(&turn).await.unwrap() else { panic!("it is a duplicate") };
    assert_eq!(receipt.signals, signals(2));
    assert_eq!(ok(cx.commit(&taking(&worker, 2, &[1, 2])).await.unwrap()).signals, signals(2));
    let run = attached(cx.attach(worker.run, &worker.pod_uid, &worker.capability).await.unwrap());
    assert_eq!((run.inbox.position, run.inbox.unread), (2, 0));
    assert_eq!(ok(cx.finish(&worker.finish()).await.unwrap()).signals, signals(2));
}

async fn a_boundary_takes_messages(cx: &TestContext) {
    let worker = cx.worker().await;
    for id in ["a", "b", "c"] {
        send(cx, &message(worker.run, id)).await;
    }
    ok(cx.commit(&taking(&worker, 1, &[3, 1])).await.unwrap());
    assert_eq!(unread(cx, worker.run).await, [2]);
    let taken_by = messages(cx, worker.run, false).await.into_iter().map(|message| message.taken_by);
    let by = Some(TakenBy { turn: 1, boundary: Boundary::Result });
    assert_eq!(taken_by.collect::<Vec<_>>(), [by, None, by]);
    assert_eq!(inbox_row(cx, &worker).await, (3, 1));
    assert_eq!(cx.run_of(&worker).await.head.unwrap().turn, 1);
    cx.assert_audit_is_valid(worker.run).await;
}

async fn a_plan_takes_messages_too(cx: &TestContext) {
    let worker = cx.worker().await;
    for id in ["a", "b"] {
        send(cx, &message(worker.run, id)).await;
    }
    let calls = vec![planned("pay", dalsegno_protocol::Policy::Probe)];
    ok(cx.commit(&Commit { inbox: vec![1], calls, ..worker.plan(1) }).await.unwrap());
    let claim = cx.start_call(&worker, "pay", dalsegno_protocol::Policy::Probe).await;
    cx.complete(&worker.complete(&claim)).await.unwrap();
    let last = Commit { finish: Some(succeeded()), ..taking(&worker, 1, &[2]) };
    ok(cx.commit(&last).await.unwrap());
    assert_eq!(cx.run_of(&worker).await.lifecycle, Lifecycle::Finished);
    let taken = messages(cx, worker.run, false).await;
    let boundaries: Vec<_> = taken.iter().map(|it| it.taken_by.unwrap().boundary).collect();
    assert_eq!(boundaries, [Boundary::Plan, Boundary::Result]);
    cx.assert_audit_is_valid(worker.run).await;
}

async fn only_unread_messages_can_be_taken(cx: &TestContext) {
    let worker = cx.worker().await;
    for id in ["a", "b"] {
        send(cx, &message(worker.run, id)).await;
    }
    ok(cx.commit(&taking(&worker, 1, &[1])).await.unwrap());
    let audit = cx.audit(worker.run).await.unwrap();
    for (positions, position) in [(&[2, 3][..], 3), (&[1, 2], 1), (&[2, 9, 7], 7)] {
        let refused = cx.commit(&taking(&worker, 2, positions)).await.unwrap();
        assert_eq!(refused, Committed::NoSuchMessage { position }, "{positions:?}");
    }
    assert_eq!(cx.run_of(&worker).await.head.unwrap().turn, 1, "nothing was committed");
    assert_eq!(unread(cx, worker.run).await, [2]);
    assert_eq!(cx.audit(worker.run).await.unwrap(), audit);
    ok(cx.commit(&taking(&worker, 2, &[2])).await.unwrap());
    cx.assert_audit_is_valid(worker.run).await;
}

async fn a_boundary_that_is_refused_takes_nothing(cx: &TestContext) {
    let worker = cx.worker().await;
    send(cx, &message(worker.run, "a")).await;
    assert_eq!(cx.commit(&taking(&worker, 2, &[1])).await.unwrap(), Committed::Conflict { head: None });
    let next = cx.next_worker(&worker).await;
    assert_eq!(cx.commit(&taking(&worker, 1, &[1])).await.unwrap(), Committed::Fenced { committed: false });
    assert_eq!(unread(cx, worker.run).await, [1]);
    ok(cx.commit(&taking(&next, 1, &[1])).await.unwrap());
    assert_eq!(inbox_row(cx, &worker).await, (1, 0));
}

async fn a_boundary_that_takes_messages_may_be_sent_again(cx: &TestContext) {
    let worker = cx.worker().await;
    send(cx, &message(worker.run, "a")).await;
    let commit = taking(&worker, 1, &[1]);
    let first = ok(cx.commit(&commit).await.unwrap());
    assert_eq!(cx.commit(&commit).await.unwrap(), duplicate(&first));
    let next = cx.next_worker(&worker).await;
    assert_eq!(cx.commit(&commit).await.unwrap(), Committed::Fenced { committed: true });
    assert_eq!(inbox_row(cx, &next).await, (1, 0));
}

async fn what_was_not_taken_comes_again(cx: &TestContext) {
    let worker = cx.worker().await;
    send(cx, &message(worker.run, "a")).await;
    assert_eq!(unread(cx, worker.run).await, [1]);
    let next = cx.next_worker(&worker).await;
    assert_eq!(unread(cx, worker.run).await, [1]);
    ok(cx.commit(&taking(&next, 1, &[1])).await.unwrap());
    cx.next_worker(&next).await;
    assert_eq!(unread(cx, worker.run).await, [0; 0]);
}

async fn a_rewind_gives_messages_back(cx: &TestContext) {
    let worker = cx.worker().await;
    for id in ["a", "b", "c", "d"] {
        send(cx, &message(worker.run, id)).await;
    }
    ok(cx.commit(&taking(&worker, 1, &[1])).await.unwrap());
    ok(cx.commit(&Commit { inbox: vec![2], ..worker.plan(2) }).await.unwrap());
    ok(cx.commit(&taking(&worker, 2, &[3])).await.unwrap());
    assert_eq!(inbox_row(cx, &worker).await, (4, 1));
    let run = done(cx.rewind(worker.run, &rewind_to(1, result_place(1))).await.unwrap());
    assert_eq!((run.inbox.position, run.inbox.unread), (4, 3));
    assert_eq!(unread(cx, worker.run).await, [2, 3, 4]);
    cx.assert_audit_is_valid(worker.run).await;

    let next = cx.start_worker(&run).await;
    ok(cx.commit(&taking(&next, 2, &[2, 3, 4])).await.unwrap());
    let run = cx.run_of(&next).await;
    let plan = dalsegno_model::BoundaryId { boundary: Boundary::Plan, ..result_place(1) };
    assert!(matches!(
        cx.rewind(run.id, &rewind_to(run.epoch, plan)).await.unwrap(),
        dalsegno_model::Rewound::Refused(_)
    ));
    assert_eq!(inbox_row(cx, &next).await, (4, 0), "a refused rewind gives nothing back");
    done(cx.rewind(run.id, &rewind_to(run.epoch, result_place(1))).await.unwrap());
    assert_eq!(unread(cx, worker.run).await, [2, 3, 4]);
    cx.assert_audit_is_valid(worker.run).await;
}

async fn a_page_has_a_limited_number_of_messages_and_bytes(cx: &TestContext) {
    let worker = cx.worker().await;
    for id in 1..=5 {
        let value = json(&format!("\"{}\"", noise(id, 1_600)));
        send(cx, &NewMessage { value, ..message(worker.run, &id.to_string()) }).await;
    }
    ok(cx.commit(&taking(&worker, 1, &[2])).await.unwrap());
    let page = async |after, unread_only, limit, bytes| {
        let query = MessageQuery { after, unread_only, limit, bytes };
        let page = cx.messages(worker.run, &query).await.unwrap();
        (page.messages.iter().map(|it| it.position).collect::<Vec<_>>(), page.next)
    };
    assert_eq!(page(0, false, 2, 1 << 20).await, (vec![1, 2], Some(2)));
    assert_eq!(page(0, true, 2, 1 << 20).await, (vec![1, 3], Some(3)));
    assert_eq!(page(3, true, 2, 1 << 20).await, (vec![4, 5], None));
    assert_eq!(page(0, false, 9, 1).await, (vec![1], Some(1)), "a page has at least one message");
    assert_eq!(page(0, false, 9, 3_300).await, (vec![1, 2, 3], Some(3)));
    assert_eq!(page(4, false, 9, 1).await, (vec![5], None));
    assert_eq!(page(5, false, 9, 1).await, (vec![], None));
}

/// The run's row counts its unread messages, so it need not have as many here.
async fn an_inbox_has_a_limited_number_of_messages(cx: &TestContext) {
    let worker = cx.worker().await;
    send(cx, &message(worker.run, "1")).await;
    assert_eq!(tamper(cx, &format!("UPDATE runs SET unread = {}", Limits::MESSAGES - 1)).await, 1);
    send(cx, &message(worker.run, "2")).await;
    assert_eq!(cx.send_message(&message(worker.run, "3")).await.unwrap(), Sent::TooMany);
    assert_eq!(cx.send_message(&message(worker.run, "1")).await.unwrap(), Sent::Duplicate(1));
    ok(cx.commit(&taking(&worker, 1, &[1])).await.unwrap());
    send(cx, &message(worker.run, "3")).await;
    assert_eq!(cx.send_message(&message(worker.run, "4")).await.unwrap(), Sent::TooMany);
}

async fn an_inbox_has_a_limited_number_of_bytes(cx: &TestContext) {
    let worker = cx.worker().await;
    let value = json(&format!("\"{}\"", "x".repeat(Limits::MESSAGE_BYTES - 2)));
    let large = |id: usize| NewMessage { value: value.clone(), ..message(worker.run, &id.to_string()) };
    let fitting = Limits::INBOX_BYTES / Limits::MESSAGE_BYTES;
    for id in 1..=fitting {
        send(cx, &large(id)).await;
    }
    assert_eq!(cx.send_message(&large(0)).await.unwrap(), Sent::TooMany);
    assert_eq!(cx.send_message(&message(worker.run, "small")).await.unwrap(), Sent::TooMany);
    ok(cx.commit(&taking(&worker, 1, &[7])).await.unwrap());
    send(cx, &large(0)).await;
}

async fn a_run_that_is_over_takes_no_new_messages(cx: &TestContext) {
    let worker = cx.worker().await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    assert_eq!(cx.send_message(&message(worker.run, "a")).await.unwrap(), Sent::Finished);
    let deleted = cx.worker().await;
    cx.mark_deleted(&deleted.object_uid).await.unwrap();
    assert_eq!(cx.send_message(&message(deleted.run, "a")).await.unwrap(), Sent::Finished);
    assert_eq!(inbox_row(cx, &deleted).await, (0, 0));
}

async fn an_unknown_run_has_no_inbox(cx: &TestContext) {
    let run = RunId::now_v7();
    assert_eq!(cx.send_message(&message(run, "a")).await.unwrap(), Sent::NotFound);
    assert!(messages(cx, run, false).await.is_empty());
    assert!(cx.message_authors(run).await.unwrap().is_empty());
}

async fn an_adopted_run_keeps_its_messages(cx: &TestContext) {
    let new = new_run();
    let worker = cx.start_worker(&cx.create(&new).await).await;
    for id in ["a", "b"] {
        send(cx, &message(worker.run, id)).await;
    }
    ok(cx.commit(&taking(&worker, 1, &[1])).await.unwrap());
    let adopted = cx.create(&namesake(&new, OnPrior::Adopt)).await;
    assert_eq!((adopted.id, adopted.inbox.position, adopted.inbox.unread), (worker.run, 2, 1));
    assert_eq!(unread(cx, worker.run).await, [2]);
    cx.assert_audit_is_valid(worker.run).await;
}

/// A run that is over, with a message that was taken and one that was not, past its retention.
async fn expired(cx: &TestContext) -> Worker {
    let worker = cx.worker().await;
    for id in ["a", "b"] {
        send(cx, &message(worker.run, id)).await;
    }
    ok(cx.commit(&taking(&worker, 1, &[1])).await.unwrap());
    cx.set_retention(worker.run, &Retention { days: 0, ..Retention::default() }).await.unwrap();
    ok(cx.finish(&worker.finish()).await.unwrap());
    worker
}

async fn retention_deletes_the_values(cx: &TestContext) {
    let worker = expired(cx).await;
    loop {
        let dropped = cx.store.expire(worker.run, 1).await.unwrap();
        assert!(dropped.rows <= 1, "{dropped:?}");
        cx.assert_audit_is_valid(worker.run).await;
        if dropped.done {
            break;
        }
    }
    let left = messages(cx, worker.run, false).await;
    assert!(left.iter().all(|message| message.value.is_none()));
    assert_eq!(left.len(), 2, "who sent what when stays");
    assert!(cx.runs_to_expire(RunId::nil()).await.unwrap().is_empty());
}

async fn concurrent_senders_get_a_position_each(cx: &TestContext) {
    let run = cx.run().await.id;
    let sent: Vec<_> = (0..40).map(|id| message(run, &(id % 20).to_string())).collect();
    let answers = join_all(sent.iter().enumerate().map(|(nth, message)| {
        let store = if nth % 2 == 0 { &cx.store } else { &cx.second_gateway };
        async move { store.send_message(message).await.unwrap() }
    }));
    let answers = answers.await;
    let mut positions: Vec<_> = answers
        .iter()
        .filter_map(|answer| if let Sent::Ok(position) = answer { Some(*position) } else { None })
        .collect();
    positions.sort_unstable();
    assert_eq!(positions, (1..=20).collect::<Vec<i64>>());
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Sent::Duplicate(_))).count(), 20);
    cx.assert_audit_is_valid(run).await;
}

async fn values_are_sealed(cx: &TestContext) {
    let worker = cx.worker().await;
    send(cx, &message(worker.run, "a")).await;
    assert_eq!(cx.count_unsealed(worker.run).await.unwrap(), 0);
}

async fn a_shredded_run_has_no_values(cx: &TestContext) {
    let worker = cx.worker().await;
    send(cx, &message(worker.run, "a")).await;
    cx.commit_turn(&worker, 1).await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    let shred = Shred { run: worker.run, actor: "ada".into(), reason: "she asked".into() };
    assert_eq!(cx.shred(&shred).await.unwrap(), Shredded::Done);
    assert!(messages(cx, worker.run, false).await[0].value.is_none());
    assert_eq!(cx.send_message(&message(worker.run, "b")).await.unwrap(), Sent::Finished);
    cx.assert_audit_is_valid(worker.run).await;
}

async fn an_edited_message_is_found(cx: &TestContext) {
    let worker = cx.worker().await;
    for id in ["a", "b", "c"] {
        send(cx, &message(worker.run, id)).await;
    }
    ok(cx.commit(&taking(&worker, 1, &[1])).await.unwrap());
    for (edit, back) in [
        ("author = 'mallory' WHERE position = 1", "author = 'ada' WHERE position = 1"),
        ("topic = 'price' WHERE position = 2", "topic = NULL WHERE position = 2"),
        ("at = at + 1 WHERE position = 2", "at = at - 1 WHERE position = 2"),
        (
            "taken_turn = NULL, taken_boundary = NULL WHERE position = 1",
            "taken_turn = 1, taken_boundary = 2 WHERE position = 1",
        ),
        (
            "taken_turn = 1, taken_boundary = 2 WHERE position = 2",
            "taken_turn = NULL, taken_boundary = NULL WHERE position = 2",
        ),
        ("position = 4 WHERE position = 3", "position = 3 WHERE position = 4"),
    ] {
        assert_eq!(tamper(cx, &format!("UPDATE messages SET {edit}")).await, 1, "{edit}");
        let mut reading = cx.begin_read().await.unwrap();
        let problems = dalsegno_proof::check_run(&mut *reading, worker.run).await.unwrap().problems;
        drop(reading);
        assert!(!problems.is_empty(), "{edit}");
        assert!(problems[0].to_string().contains("message"), "{problems:?}");
        tamper(cx, &format!("UPDATE messages SET {back}")).await;
        cx.assert_audit_is_valid(worker.run).await;
    }
    tamper(cx, "DELETE FROM messages WHERE position = 3").await;
    let mut reading = cx.begin_read().await.unwrap();
    let problems = dalsegno_proof::check_run(&mut *reading, worker.run).await.unwrap().problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
}
