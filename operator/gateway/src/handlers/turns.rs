//! `GET turns`: what a run has committed, without the payloads, for people.

use axum::extract::{RawQuery, State};
use axum::response::Response;
use dalsegno_format::header;
use dalsegno_model::read_transaction::{BoundaryKey, StoredBoundary};
use dalsegno_model::{BoundaryId, boundary_number};
use dalsegno_protocol::{TurnEntry, TurnsResponse};

use crate::extractors::Reader;
use crate::gateway::Gateway;
use crate::limits::response_body::json_response;
use crate::query::Query;
use crate::response::ApiProblem;

pub(crate) async fn turns(
    State(gateway): State<Gateway>,
    reader: Reader,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    let mut query = Query::parse(query.as_deref(), &["after"])?;
    let after = match query.take("after") {
        None => BoundaryKey::before(reader.run),
        Some(after) => {
            let BoundaryId { turn, boundary, epoch } = BoundaryId::parse(&after)
                .ok_or_else(|| ApiProblem::invalid("`after` is not a `next` of this call"))?;
            BoundaryKey { run: reader.run, turn, boundary: boundary_number(boundary).into(), epoch }
        }
    };
    gateway.authorize_reader(&reader).await?;
    let _permit = gateway.page_permit(&reader.owner).await?;
    let read = async || gateway.store.begin_read().await?.boundaries(after, reader.run).await;
    let page = gateway.call_with_retry("reading the turns", read).await?;
    // A page that is not empty is followed by another one, which may be empty.
    let next = page.last().map(|last| last.decoded.id().checkpoint_id());
    let turns = page.into_iter().map(entry).collect();
    json_response(&gateway, &reader.owner, &TurnsResponse { turns, next })
}

fn entry(stored: StoredBoundary) -> TurnEntry {
    let events = stored.decoded.events().unwrap_or_default();
    let StoredBoundary { run: _, decoded, undone, payload_loss, damage } = stored;
    let id = decoded.id().checkpoint_id();
    let row = decoded.row;
    TurnEntry {
        id,
        turn: row.turn,
        boundary: row.boundary,
        epoch: row.epoch,
        attempt: row.attempt,
        at: row.at.to_string(),
        trigger: row.trigger,
        usage: row.usage,
        events,
        position: row.position,
        content_hash: header::render(&row.content_hash),
        parent_hash: header::render(&row.parent_hash),
        undone,
        dropped: payload_loss.is_some(),
        damaged: damage.is_some(),
    }
}
