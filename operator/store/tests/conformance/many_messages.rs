//! Many messages from many senders, while the worker is replaced again and again: each is in the state once, in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use dalsegno_model::{BoundaryId, Class, Commit, MessageQuery, NewMessage, Sent, Store};
use dalsegno_protocol::{Boundary, Channel, Message, Payload};
use futures::future::join_all;

use crate::context::*;
use crate::engines::on_every_engine;
use crate::rewinds::done;

on_every_engine! {
    each_message_is_in_the_state_once_and_in_order,
}

const SENDERS: usize = 8;
const MESSAGES_OF_EACH: usize = 125;
/// How often the worker is replaced.
const REPLACEMENTS: usize = 50;

/// Sends the messages of one sender, each of them a second time now and then.
async fn send_all(store: Arc<dyn Store>, run: dalsegno_model::RunId, sender: usize) {
    for nth in 0..MESSAGES_OF_EACH {
        let message = NewMessage {
            run,
            id: format!("{sender}-{nth}"),
            topic: [None, Some("price"), Some("resume")][nth % 3].map(Into::into),
            value: json(&format!("[{sender}, {nth}]")),
            author: format!("sender {sender}"),
            audit_id: None,
        };
        let first = store.send_message(&message).await.unwrap();
        let Sent::Ok(position) = first else { panic!("{first:?}") };
        if nth % 5 == sender % 5 {
            assert_eq!(store.send_message(&message).await.unwrap(), Sent::Duplicate(position));
        }
    }
}

async fn unread(cx: &TestContext, worker: &Worker, limit: u32) -> Vec<Message> {
    let query = MessageQuery { after: 0, unread_only: true, limit, bytes: 1 << 20 };
    cx.messages(worker.run, &query).await.unwrap().messages
}

/// A turn that takes these messages and appends their positions to the state.
fn turn_of(worker: &Worker, turn: i32, messages: &[Message]) -> Commit {
    let items: Vec<_> = messages.iter().map(|it| format!(r#"{{"json":{}}}"#, it.position)).collect();
    let ops = format!(r#"{{"append":{{"log":[{}]}}}}"#, items.join(","));
    let size = 100 * messages.len() + 100;
    let inbox = messages.iter().map(|it| it.position).collect();
    Commit { ops: Some(ops.into()), full: false, size, inbox, ..worker.result(turn) }
}

async fn each_message_is_in_the_state_once_and_in_order(cx: &TestContext) {
    let mut worker = cx.worker().await;
    let run = worker.run;
    let all_sent = Arc::new(AtomicBool::new(false));
    let senders = tokio::spawn({
        let (first, second, all_sent) = (cx.store.clone(), cx.second_gateway.clone(), all_sent.clone());
        async move {
            let store_of = |nth: usize| if nth.is_multiple_of(2) { first.clone() } else { second.clone() };
            join_all((0..SENDERS).map(|nth| send_all(store_of(nth), run, nth))).await;
            all_sent.store(true, SeqCst);
        }
    });

    let (mut replaced, mut rewound, mut round) = (0, false, 0);
    loop {
        round += 1;
        let was_all_sent = all_sent.load(SeqCst);
        let turn = cx.run_of(&worker).await.head.map_or(1, |head| head.turn + 1);
        let messages = unread(cx, &worker, 1 + round % 7).await;
        if messages.is_empty() && was_all_sent && replaced >= REPLACEMENTS {
            break;
        }
        let is_lost = replaced < REPLACEMENTS && round % 3 != 0;
        // The worker is lost before its commit, or right after it.
        let is_skipped = is_lost && round % 2 == 0;
        if !is_skipped && !messages.is_empty() {
            ok(cx.commit(&turn_of(&worker, turn, &messages)).await.unwrap());
        }
        if is_lost {
            replaced += 1;
            worker = cx.next_worker(&worker).await;
        }
        if !rewound && turn > 12 {
            rewound = true;
            let target = cx.boundaries(run, turn - 8, turn - 8).await.unwrap().remove(0);
            let to = BoundaryId { turn: turn - 8, boundary: Boundary::Result, epoch: target.epoch };
            let epoch = cx.run_of(&worker).await.epoch;
            let run = done(cx.rewind(run, &rewind_to(epoch, to)).await.unwrap());
            assert!(run.inbox.unread > 0);
            worker = cx.start_worker(&run).await;
        }
    }
    senders.await.unwrap();
    assert!(rewound);
    cx.end_and_reserve(&worker, Class::Disruption).await;

    let state = cx.state(run, None).await.unwrap().unwrap();
    let Channel::List(items) = &state["log"] else { panic!("{state:?}") };
    let positions: Vec<i64> = items
        .iter()
        .map(|item| match item {
            Payload::Json(json) => json.get().parse().unwrap(),
            Payload::Bytes { .. } => panic!("{item:?}"),
        })
        .collect();
    assert_eq!(positions, (1..=(SENDERS * MESSAGES_OF_EACH) as i64).collect::<Vec<_>>());
    let record = cx.get_run(run).await.unwrap().unwrap();
    assert_eq!((record.inbox.position, record.inbox.unread), (1_000, 0));
    assert_eq!(cx.message_authors(run).await.unwrap().len(), SENDERS);
    cx.assert_audit_is_valid(run).await;
}
