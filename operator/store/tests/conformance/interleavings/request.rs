//! What a case sends, and what stands of it.

use dalsegno_protocol::CallState;
use dalsegno_store::{
    CallFilter, Claim, Claimed, Commit, Committed, Complete, Completed, FinishCall, Place, RecordBatch,
    RecordQuery, RunId, Settle, Store, Written,
};

use super::PAY;
use crate::world::*;

/// The bytes that are sent, as often as it takes.
pub enum Request {
    /// And the epoch that it is meant for.
    Commit(Box<Commit>, i64),
    Claim(Claim),
    Complete(Complete),
    Settle(Settle),
    Finish(FinishCall),
    Records(RecordBatch),
}

impl Request {
    /// The answer, in the page's words.
    pub async fn send(&self, store: &dyn Store) -> &'static str {
        match self {
            Self::Commit(commit, _) => committed(store.commit(commit).await.unwrap()),
            Self::Finish(finish) => committed(store.finish(finish).await.unwrap()),
            Self::Claim(claim) => match store.claim(claim).await.unwrap() {
                Claimed::Go(_) => "go",
                Claimed::Fenced => "fenced",
                other => panic!("{other:?}"),
            },
            Self::Complete(complete) => completed(store.complete(complete).await.unwrap()),
            Self::Settle(settle) => completed(store.settle(settle).await.unwrap()),
            Self::Records(batch) => match store.write_records(batch).await.unwrap() {
                Written::Ok => "ok",
                Written::Duplicate => "duplicate",
                Written::Fenced => "fenced",
                other => panic!("{other:?}"),
            },
        }
    }

    /// What is there of it.
    pub async fn stands(&self, world: &World, run: RunId) -> &'static str {
        match self {
            Self::Commit(commit, epoch) => {
                let Commit { turn, boundary, .. } = &**commit;
                let place = Place { turn: *turn, boundary: *boundary, epoch: *epoch };
                let links = world.links(run, None).await.unwrap();
                let found = links.iter().find(|link| link.place == place);
                let stands = found.map_or("nothing", |link| if link.undone { "undone" } else { "stands" });
                hold_with(commit, stands, world, run).await;
                stands
            }
            Self::Claim(_) | Self::Complete(_) | Self::Settle(_) => {
                let calls = world.calls(run, CallFilter::All).await.unwrap();
                let unsettled = world.call_ids(run, CallFilter::Unsettled).await;
                match calls.iter().find(|call| call.id == PAY).map(|call| call.state) {
                    None => "nothing",
                    Some(CallState::Started) if unsettled.is_empty() => "started",
                    Some(CallState::Started) => "unsettled",
                    Some(CallState::Completed) => "stands",
                    Some(other) => panic!("the call is {other:?}"),
                }
            }
            Self::Finish(_) => {
                let run = world.get_run(run).await.unwrap().unwrap();
                if run.finish.is_some() { "stands" } else { "nothing" }
            }
            Self::Records(_) => match entries(world, run).await {
                0 => "nothing",
                1 => "stands",
                more => panic!("{more} entries"),
            },
        }
    }
}

/// What a boundary brought stands or falls with it: each planned call is there once with its key, which a rewind leaves to
/// it, and each record once, which a rewind hides.
async fn hold_with(commit: &Commit, stands: &str, world: &World, run: RunId) {
    let calls = world.calls(run, CallFilter::All).await.unwrap();
    let calls: Vec<_> = calls.iter().map(|call| (&call.id, call.state, &call.key)).collect();
    let planned = commit.calls.iter().filter(|_| stands != "nothing");
    let planned: Vec<_> = planned.map(|call| (&call.id, CallState::Planned, &call.key)).collect();
    assert_eq!(calls, planned, "where the boundary came to: {stands}");
    let kept = if stands == "stands" { commit.records.len() } else { 0 };
    assert_eq!(entries(world, run).await, kept, "where the boundary came to: {stands}");
}

async fn entries(world: &World, run: RunId) -> usize {
    let query = RecordQuery { space: "s".into(), prefix: String::new(), after: None, limit: 9, bytes: 999 };
    world.read_records(run, &query).await.unwrap().records.len()
}

fn committed(answer: Committed) -> &'static str {
    match answer {
        Committed::Ok(_) => "ok",
        Committed::Duplicate(_) => "duplicate",
        Committed::Fenced { committed: true } => "fenced, committed",
        Committed::Fenced { committed: false } => "fenced",
        other => panic!("{other:?}"),
    }
}

fn completed(answer: Completed) -> &'static str {
    match answer {
        Completed::Ok => "ok",
        Completed::Duplicate => "duplicate",
        Completed::Fenced => "fenced",
        other => panic!("{other:?}"),
    }
}
