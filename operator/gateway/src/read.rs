//! `GET state`, `GET memory-delta` and `GET checkpoint`: what a worker, and a person, may look at.

use std::io;

use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use dalsegno_protocol::{Code, StateResponse};
use dalsegno_store::{RunRecord, memory};
use futures::stream;
use serde::Serialize;
use tokio::time::Instant;

use crate::budget::{Part, Who};
use crate::gateway::Gateway;
use crate::path::{self, Reader};
use crate::query::Query;
use crate::refusal::{self, JSON, Refusal};
use crate::room::TWO_STATES;

/// Bytes handed to the connection at a time.
const CHUNK: usize = 256 << 10;

pub(crate) async fn state(
    State(gateway): State<Gateway>,
    reader: Reader,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let turn = one_turn(query.as_deref())?;
    judge(&gateway, &reader).await?;
    // What an attempt goes on from: it did not come with attach where it is large.
    let goes_on = turn.is_none() && reader.capability.is_some();
    let among = if goes_on { &gateway.resumes } else { &gateway.states };
    let bytes = gateway.state_bytes(reader.run, turn).await?;
    let _room = gateway.room(among, &reader.who, bytes).await?;
    let state = after(&gateway, &reader, turn).await?;
    answer(&gateway, &reader.who, &StateResponse { state })
}

/// Between two turns, or against the start: turn 0.
pub(crate) async fn memory_delta(
    State(gateway): State<Gateway>,
    reader: Reader,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let mut query = Query::parse(query.as_deref(), &["from", "to"])?;
    let from = query.take("from").filter(|from| from != "0");
    let from = from.map(|turn| path::turn(&turn)).transpose()?;
    let to = query.take("to").map(|turn| path::turn(&turn)).transpose()?;
    judge(&gateway, &reader).await?;
    let _room = gateway.room(&gateway.states, &reader.who, TWO_STATES).await?;
    loop {
        let began = epoch(&gateway, &reader).await?;
        let before = match from {
            None => dalsegno_protocol::State::new(),
            from => after(&gateway, &reader, from).await?,
        };
        let after = after(&gateway, &reader, to).await?;
        // What a rewind between the two has undone is on no branch with what it left.
        if epoch(&gateway, &reader).await? == began {
            return answer(&gateway, &reader.who, &memory::delta(&before, &after));
        }
    }
}

async fn epoch(gateway: &Gateway, reader: &Reader) -> Result<i64, Refusal> {
    Ok(row(gateway, reader).await?.epoch)
}

async fn row(gateway: &Gateway, reader: &Reader) -> Result<RunRecord, Refusal> {
    let run = gateway.ask("looking up a run", || gateway.store.get_run(reader.run)).await?;
    run.ok_or_else(Refusal::no_such_run)
}

/// All that is known of one boundary but the state itself.
pub(crate) async fn checkpoint(
    State(gateway): State<Gateway>,
    reader: Reader,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let turn = one_turn(query.as_deref())?;
    judge(&gateway, &reader).await?;
    let bytes = gateway.bytes_with_calls(reader.run, turn).await?;
    let _room = gateway.room(&gateway.states, &reader.who, bytes).await?;
    // After the wait: of a head that has moved since nothing would be pending.
    let run = row(&gateway, &reader).await?;
    let call = || dalsegno_store::checkpoint(&*gateway.store, &run, turn);
    let document = gateway.ask("reading a checkpoint", call).await?;
    answer(&gateway, &reader.who, &document.ok_or_else(|| nothing(turn))?)
}

/// The turn that is asked for; `None`: the head.
fn one_turn(query: Option<&str>) -> Result<Option<i32>, Refusal> {
    Query::parse(query, &["turn"])?.take("turn").map(|turn| path::turn(&turn)).transpose()
}

/// Refuses whoever may not read: of workers only that of the current attempt may. A person was judged by the API server.
pub(crate) async fn judge(gateway: &Gateway, reader: &Reader) -> Result<(), Refusal> {
    let Some(capability) = &reader.capability else { return Ok(()) };
    let judged = || gateway.store.is_current(reader.run, capability);
    match gateway.ask("judging a capability", judged).await? {
        true => Ok(()),
        false => Err(Refusal::fenced()),
    }
}

/// The state after a turn, or after the head.
async fn after(
    gateway: &Gateway,
    reader: &Reader,
    turn: Option<i32>,
) -> Result<dalsegno_protocol::State, Refusal> {
    gateway.state(reader.run, turn).await?.ok_or_else(|| nothing(turn))
}

/// There is no such turn; `None`: there is none at all.
pub(crate) fn nothing(turn: Option<i32>) -> Refusal {
    Refusal::new(
        Code::NotFound,
        match turn {
            None => "nothing is committed yet: the run begins at turn 1 with no state".to_owned(),
            Some(turn) => format!("turn {turn} is not committed"),
        },
    )
}

/// An answer that may be large: it is measured, and unless it is small it has its place before it is written, until it has
/// gone out. Who reads it for longer than a stream may last gets no more of it: others wait for the place.
pub(crate) fn answer(gateway: &Gateway, who: &Who, answer: &impl Serialize) -> Result<Response, Refusal> {
    let most = gateway.config.answer_budget;
    let length = length(answer, most).ok_or_else(|| Refusal::answer_too_large(most))?;
    if length <= gateway.config.small_answer() {
        return refusal::ok(answer);
    }
    let budget = gateway.answers.take(who.clone(), length)?;
    let text = Bytes::from(refusal::text(answer)?);
    let head = [(header::CONTENT_TYPE, JSON), (header::CONTENT_LENGTH, text.len().into())];
    let until = Instant::now() + gateway.config.follow_limit;
    Ok((head, trickle(text, budget, until)).into_response())
}

/// Ends a body that has begun, where all that can still be told is that it is not whole.
pub(crate) fn broken(refusal: Refusal) -> io::Error {
    io::Error::other(refusal.0.detail)
}

/// Bytes of an answer as text, without writing it anywhere; `None`: more than so many.
pub(crate) fn length(answer: &impl Serialize, most: usize) -> Option<usize> {
    struct Room(usize);

    impl std::io::Write for Room {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let mut room = Room(most);
    serde_json::to_writer(&mut room, answer).ok()?;
    Some(most - room.0)
}

fn trickle(bytes: Bytes, budget: Part, until: Instant) -> Body {
    Body::from_stream(stream::unfold((bytes, budget), move |(mut bytes, budget)| async move {
        if bytes.is_empty() {
            return None;
        }
        if Instant::now() > until {
            let late = io::Error::new(io::ErrorKind::TimedOut, "its reader takes too long");
            return Some((Err(late), (Bytes::new(), budget)));
        }
        let chunk = bytes.split_to(bytes.len().min(CHUNK));
        Some((Ok(chunk), (bytes, budget)))
    }))
}
