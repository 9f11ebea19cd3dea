//! The request of a case, and what is stored of it.

use dalsegno_model::{
    BoundaryId, CallFilter, Claim, Claimed, Commit, Committed, Complete, Completed, FinishCall, RecordBatch,
    RunId, Settle, Store, Written,
};
use dalsegno_protocol::CallState;

use super::PAY;
use crate::context::*;

/// The bytes that are sent, once or twice.
pub enum Request {
    /// A commit and the epoch that it is sent in.
    Commit(Box<Commit>, i64),
    Claim(Claim),
    Complete(Complete),
    Settle(Settle),
    Finish(FinishCall),
    Records(RecordBatch),
}

impl Request {
    /// Sends the request. Returns the answer in the page's words.
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

    /// What is stored of the request, in the page's words.
    pub async fn stored(&self, cx: &TestContext, run: RunId) -> &'static str {
        match self {
            Self::Commit(commit, epoch) => {
                let Commit { turn, boundary, .. } = &**commit;
                let boundary_id = BoundaryId { turn: *turn, boundary: *boundary, epoch: *epoch };
                let links = cx.check_boundaries(run, None).await.unwrap();
                let found = links.iter().find(|link| link.id == boundary_id);
                let stored = found.map_or("nothing", |link| if link.undone { "undone" } else { "stored" });
                check_contents(commit, stored, cx, run).await;
                stored
            }
            Self::Claim(_) | Self::Complete(_) | Self::Settle(_) => {
                let calls = cx.calls(run, CallFilter::All).await.unwrap();
                let unsettled = cx.call_ids(run, CallFilter::Unsettled).await;
                match calls.iter().find(|call| call.id == PAY).map(|call| call.state) {
                    None => "nothing",
                    Some(CallState::Started) if unsettled.is_empty() => "started",
                    Some(CallState::Started) => "unsettled",
                    Some(CallState::Completed) => "stored",
                    Some(other) => panic!("the call is {other:?}"),
                }
            }
            Self::Finish(_) => {
                let run = cx.get_run(run).await.unwrap().unwrap();
                if run.finish.is_some() { "stored" } else { "nothing" }
            }
            Self::Records(_) => match entries(cx, run).await {
                0 => "nothing",
                1 => "stored",
                more => panic!("{more} entries"),
            },
        }
    }
}

/// Asserts that a boundary's calls and records are stored exactly once together with it. A rewind keeps the planned calls
/// and hides the records.
async fn check_contents(commit: &Commit, stored: &str, cx: &TestContext, run: RunId) {
    let calls = cx.calls(run, CallFilter::All).await.unwrap();
    let calls: Vec<_> = calls.iter().map(|call| (&call.id, call.state, &call.key)).collect();
    let planned = commit.calls.iter().filter(|_| stored != "nothing");
    let planned: Vec<_> = planned.map(|call| (&call.id, CallState::Planned, &call.key)).collect();
    assert_eq!(calls, planned, "the boundary is: {stored}");
    let kept = if stored == "stored" { commit.records.len() } else { 0 };
    assert_eq!(entries(cx, run).await, kept, "the boundary is: {stored}");
}

async fn entries(cx: &TestContext, run: RunId) -> usize {
    let query = all_records();
    cx.read_records(run, &query).await.unwrap().records.len()
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
