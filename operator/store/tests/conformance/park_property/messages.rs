//! What the worker, a person and the operator send, and the answers.

use std::rc::Rc;

use dalsegno_model::{
    Acknowledged, Claim, Claimed, Commit, Committed, Completed, HeartbeatAnswer, Park, Parked, Store,
    WorkerSignals, Written,
};
use dalsegno_protocol::{Payload, RecordOp};
use uuid::Uuid;

use crate::context::*;

/// What is sent at the same time as a write of the worker.
#[derive(Clone, Copy, Debug)]
pub enum Request {
    Nothing,
    Suspend,
    Resume,
    Cancel,
    /// The operator ends the attempt and reserves the next one.
    End,
}

/// What a worker sends.
pub enum Write {
    Commit(Box<Commit>),
    Claim(Rc<Claim>),
    Complete(Rc<Claim>),
    Records,
    Heartbeat,
}

/// How the worker stops.
#[derive(Clone)]
pub enum Stop {
    Park(Park),
    Acknowledge,
}

/// An acknowledgement, and what is sent at the same time.
pub struct Together {
    pub request: Request,
    pub stop: Stop,
    /// A write of the same worker that is on its way.
    pub late: Option<Write>,
}

/// The answer to an acknowledgement.
#[derive(Debug)]
pub enum Answer {
    Parked(Parked),
    Acknowledged(Acknowledged),
}

/// The answer to a write.
#[derive(Debug)]
pub enum Accepted {
    /// With the signals, if the answer has some.
    Yes(Option<WorkerSignals>),
    /// Refused for another reason: a call is open, or the write is too late for its turn.
    NotNow,
    Fenced {
        committed: bool,
    },
}

pub async fn send(store: &dyn Store, worker: &Worker, write: &Write) -> Accepted {
    const FENCED: Accepted = Accepted::Fenced { committed: false };
    match write {
        Write::Commit(commit) => match store.commit(commit).await.unwrap() {
            Committed::Ok(receipt) | Committed::Duplicate(receipt) => Accepted::Yes(Some(receipt.signals)),
            Committed::OpenCalls => Accepted::NotNow,
            Committed::Fenced { committed } => Accepted::Fenced { committed },
            other => panic!("{other:?}"),
        },
        Write::Claim(claim) => match store.claim(claim).await.unwrap() {
            Claimed::Go(_) => Accepted::Yes(None),
            Claimed::Fenced => FENCED,
            other => panic!("{other:?}"),
        },
        Write::Complete(claim) => match store.complete(&worker.complete(claim)).await.unwrap() {
            Completed::Ok => Accepted::Yes(None),
            Completed::Fenced => FENCED,
            other => panic!("{other:?}"),
        },
        Write::Records => {
            let (space, key, entry_id) = ("s".into(), "k".into(), Uuid::new_v4().to_string());
            let entry = RecordOp::Append { space, key, entry_id, value: Payload::Json(json("1")) };
            match store.write_records(&worker.record_batch(vec![entry])).await.unwrap() {
                Written::Ok => Accepted::Yes(None),
                Written::Fenced => FENCED,
                other => panic!("{other:?}"),
            }
        }
        Write::Heartbeat => match store.heartbeats(&[(worker.run, worker.capability)]).await.unwrap()[..] {
            [HeartbeatAnswer::Ok(signals)] => Accepted::Yes(Some(signals)),
            [HeartbeatAnswer::Fenced] => FENCED,
            ref other => panic!("{other:?}"),
        },
    }
}
