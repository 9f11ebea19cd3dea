//! `GET state`, `GET memory-delta` and `GET checkpoint`: what a worker, and a person, may look at.

use axum::extract::{RawQuery, State};
use axum::response::Response;
use dalsegno_protocol::StateResponse;
use dalsegno_store::memory;

use crate::extractors::{self, Reader};
use crate::gateway::Gateway;
use crate::limits::response_body::answer;
use crate::limits::state_reads::TWO_STATES;
use crate::query::Query;
use crate::response::Refusal;
use crate::store_reads::{judge, nothing, row};

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
    let _room = among.take(&reader.who, bytes).await?;
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
    let from = from.map(|turn| extractors::turn(&turn)).transpose()?;
    let to = query.take("to").map(|turn| extractors::turn(&turn)).transpose()?;
    judge(&gateway, &reader).await?;
    let _room = gateway.states.take(&reader.who, TWO_STATES).await?;
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

/// All that is known of one boundary but the state itself.
pub(crate) async fn checkpoint(
    State(gateway): State<Gateway>,
    reader: Reader,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let turn = one_turn(query.as_deref())?;
    judge(&gateway, &reader).await?;
    let bytes = gateway.bytes_with_calls(reader.run, turn).await?;
    let _room = gateway.states.take(&reader.who, bytes).await?;
    // After the wait: of a head that has moved since nothing would be pending.
    let run = row(&gateway, &reader).await?;
    let call = || dalsegno_store::checkpoint(&*gateway.store, &run, turn);
    let document = gateway.ask("reading a checkpoint", call).await?;
    answer(&gateway, &reader.who, &document.ok_or_else(|| nothing(turn))?)
}

/// The turn that is asked for; `None`: the head.
fn one_turn(query: Option<&str>) -> Result<Option<i32>, Refusal> {
    Query::parse(query, &["turn"])?.take("turn").map(|turn| extractors::turn(&turn)).transpose()
}

/// The state after a turn, or after the head.
async fn after(
    gateway: &Gateway,
    reader: &Reader,
    turn: Option<i32>,
) -> Result<dalsegno_protocol::State, Refusal> {
    gateway.state(reader.run, turn).await?.ok_or_else(|| nothing(turn))
}
