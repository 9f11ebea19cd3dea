//! People and programs send messages to a run whose worker is killed again and again, and which a person rewinds.

use std::collections::BTreeMap;

use dalsegno_crds::Summary;
use dalsegno_e2e::http::Request;
use dalsegno_e2e::wait::secs;
use dalsegno_e2e::{Agent, Result, Run, Sender, StatusExt, TestContext, Worker};
use dalsegno_protocol::MessagesResponse;
use futures::future::{try_join, try_join_all};
use serde_json::json;

/// Who sends.
const SENDERS: [&str; 8] = ["ada", "ben", "cleo", "dan", "eve", "finn", "gus", "hal"];

/// How often the worker is killed, each time while messages are sent, unless [`DEATHS`] is set.
const FEW_DEATHS: i32 = 6;

/// The environment variable with another number of deaths.
const DEATHS: &str = "DALSEGNO_E2E_MESSAGE_DEATHS";

/// How many turns the person undoes.
const UNDONE: i32 = 3;

/// The messages of each sender per death.
const EACH: i32 = 3;

/// What a sender sends while the worker is killed.
async fn send_some(sender: &Sender, death: i32) -> Result<Vec<(i64, String)>> {
    let mut sent = Vec::new();
    for number in death * EACH..(death + 1) * EACH {
        sent.push(sender.send(number, ["price", "news"][number as usize % 2]).await?);
    }
    Ok(sent)
}

/// A person undoes the last turns. What they had taken is unread again. Returns the last turn that is kept.
async fn undo_some(run: &Run<'_>) -> Result<i32> {
    run.suspend().await?;
    let turn = run.wait_for(Summary::Suspended, secs(60)).await?.turn();
    let (to, effects) = (turn - UNDONE, (turn - UNDONE + 1..=turn).map(|turn| format!("turn-{turn}")));
    let rewind = json!({ "generation": 1, "toTurn": to, "acceptEffects": effects.collect::<Vec<_>>() });
    run.patch_spec(json!({ "rewind": rewind })).await?;
    run.wait_until("to be rewound", secs(60), |status| status.turn() == to).await?;
    let attempt = run.status().await?.attempt().number;
    run.resume().await?;
    run.wait_for_attempt(attempt, secs(60)).await?;
    Ok(to)
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_several_senders_are_each_taken_once_in_order_although_the_worker_is_killed() -> Result {
    let ctx = TestContext::new("messages").await?;
    let deaths = std::env::var(DEATHS).map_or(Ok(FEW_DEATHS), |it| it.parse())?;
    let patient = json!({ "recovery": { "maxRecoveryAttempts": 100, "maxAttemptsWithoutProgress": 100 } });
    let endless = json!({ "turns": 5000, "turnSeconds": 0.1, "messages": true });
    let run = ctx.start("run", &Agent::new(endless).spec(patient)).await?;
    run.wait_for_turn(1).await?;
    let worker = Worker::for_pod(&ctx.client, &run.pod().await?).await?;
    let senders = try_join_all(SENDERS.map(|name| Sender::new(&ctx, &worker, (&run, name)))).await?;

    let (mut sent, mut undone_to) = (BTreeMap::new(), 0);
    for death in 0..deaths {
        if death == deaths / 2 {
            undone_to = undo_some(&run).await?;
        }
        let attempt = run.status().await?.attempt().number;
        let kill = async || run.processes().await?.kill().await;
        let sending = try_join_all(senders.iter().map(|sender| send_some(sender, death)));
        let (some, ()) = try_join(sending, kill()).await?;
        sent.extend(some.into_iter().flatten());
        run.wait_for_attempt(attempt + 1, secs(60)).await?;
    }
    let (position, id) = senders[0].send(deaths * EACH, "finish").await?;
    sent.insert(position, id);
    let count = deaths * EACH * SENDERS.len() as i32 + 1;
    assert!(sent.keys().copied().eq(1..=i64::from(count)), "{sent:?}");

    let status = run.wait_for_success().await?;
    assert_eq!(status.attempt().number, deaths + 2, "one more for the rewind");
    let notes = run.notes().await?;
    let in_state: Vec<&str> = notes
        .iter()
        .filter_map(|it| it.note.strip_prefix("messages "))
        .flat_map(str::split_whitespace)
        .collect();
    assert_eq!(
        in_state,
        sent.values().map(String::as_str).collect::<Vec<_>>(),
        "each is in the state once, in order"
    );

    let url = format!("{}/messages?limit=1000", senders[0].url);
    let list = Request::get(url).bearer(&senders[0].token).send().await?;
    let list: MessagesResponse = list.json()?;
    let listed: BTreeMap<i64, String> = list.messages.iter().map(|it| (it.position, it.id.clone())).collect();
    assert_eq!(listed, sent);
    let author = |sender: &str| format!("system:serviceaccount:{}:{sender}", ctx.namespace);
    for message in &list.messages {
        let sender = message.id.split('-').next().unwrap_or_default();
        assert_eq!(message.author, author(sender), "{message:?}");
        assert!(message.taken_by.is_some(), "{message:?}");
    }
    // The calls of the undone turns have kept their results: the ledger has each effect once.
    run.expect_nothing_lost_up_to(undone_to, status.turn()).await?;
    ctx.end().await
}
