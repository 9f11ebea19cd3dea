//! `GET events`: what happened, in pages or as a stream.

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use dalsegno_protocol::{EventsResponse, Limits};
use dalsegno_store::EventQuery;

use crate::extractors::{self, Reader};
use crate::gateway::Gateway;
use crate::handlers::event_stream::{Format, page, stream};
use crate::limits::response_body;
use crate::query::Query;
use crate::response::Refusal;
use crate::store_reads;

pub(crate) async fn events(
    State(gateway): State<Gateway>,
    reader: Reader,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let mut query = Query::parse(query.as_deref(), &["from", "turn", "limit", "follow"])?;
    let follow = match query.take("follow").as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(Refusal::invalid("`follow` is true or false")),
    };
    let (from, turn) = (query.number("from", 1)?, query.take("turn"));
    if from.is_some() && turn.is_some() {
        return Err(Refusal::invalid("`from` is a position and `turn` a turn: give one of them"));
    }
    let turn = turn.map(|turn| extractors::turn(&turn)).transpose()?;
    let limit = query.limit()?;
    let last = last_event(&headers)?;
    store_reads::judge(&gateway, &reader).await?;
    let from = match (last, turn) {
        (Some(last), _) => last.saturating_add(1),
        (None, Some(turn)) => first_of(&gateway, &reader, turn).await?,
        (None, None) => from.unwrap_or(1),
    };
    let query = EventQuery { from, limit, bytes: Limits::PAGE_BYTES };
    let page = page(&gateway, &reader, query).await?;
    match Format::of(&headers, follow) {
        // Whoever follows comes again after the end of a stream, and stops at this.
        Some(Format::ServerSent) if page.over && page.events.is_empty() => {
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        Some(format) => stream(gateway, reader, format, query, page),
        None if follow => Err(Refusal::invalid(
            "`follow` needs a header `Accept: application/x-ndjson` or `text/event-stream`",
        )),
        None => {
            let next = page.events.last().map_or(from, |last| last.position + 1);
            response_body::answer(&gateway, &reader.who, &EventsResponse { events: page.events, next })
        }
    }
}

/// The last event that whoever comes again has seen: an EventSource asks the same as the first time, and tells it beside.
fn last_event(headers: &HeaderMap) -> Result<Option<i64>, Refusal> {
    let Some(last) = headers.get("last-event-id") else { return Ok(None) };
    let last = last.to_str().ok().and_then(|last| last.parse().ok()).filter(|last| *last >= 0);
    last.map(Some).ok_or_else(|| Refusal::invalid("`Last-Event-ID` is the position of an event"))
}

/// The position that a turn's events begin at.
async fn first_of(gateway: &Gateway, reader: &Reader, turn: i32) -> Result<i64, Refusal> {
    let asked = || gateway.store.first_event(reader.run, turn);
    gateway.ask("looking for a turn", asked).await?.ok_or_else(|| store_reads::nothing(Some(turn)))
}
