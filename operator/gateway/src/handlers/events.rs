//! `GET events`: a run's events, as pages or as a stream; and `GET log`: as lines, for people.

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use dalsegno_model::{EventPage, EventQuery};
use dalsegno_protocol::{EventsResponse, Limits};

use crate::extractors::{Reader, parse_turn};
use crate::gateway::Gateway;
use crate::handlers::event_stream::{EventStream, StreamFormat, StreamOptions, read_page};
use crate::limits::response_body::json_response;
use crate::query::Query;
use crate::response::ApiProblem;

pub(crate) async fn events(
    State(gateway): State<Gateway>,
    reader: Reader,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    let parameters = Parameters::parse(query.as_deref())?;
    let last_seen = last_event_id(&headers)?;
    gateway.authorize_reader(&reader).await?;
    let from = match (last_seen, parameters.turn) {
        (Some(last_seen), _) => last_seen.saturating_add(1),
        (None, Some(turn)) => first_position(&gateway, &reader, turn).await?,
        (None, None) => parameters.from.unwrap_or(1),
    };
    let query = EventQuery { from, limit: parameters.limit, bytes: Limits::PAGE_BYTES };
    let page = read_page(&gateway, &reader, query).await?;
    match StreamFormat::negotiate(&headers, parameters.follow) {
        // An EventSource reconnects after the end of a stream; this status tells it to stop.
        Some(StreamFormat::ServerSentEvents) if page.over && page.events.is_empty() => {
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        Some(format) => {
            let follow = true;
            EventStream::new(gateway, reader, StreamOptions { format, follow, query })?.respond(&page)
        }
        None if parameters.follow => Err(ApiProblem::invalid(
            "`follow` needs a header `Accept: application/x-ndjson` or `text/event-stream`",
        )),
        None => page_response(&gateway, &reader, from, page),
    }
}

/// All events as lines of JSON, whatever the client accepts; with `follow=true` also those to come. The API server cuts
/// the requests of every other subresource after a minute.
pub(crate) async fn log(
    State(gateway): State<Gateway>,
    reader: Reader,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    let Parameters { from, turn, limit, follow } = Parameters::of_log(query.as_deref())?;
    gateway.authorize_reader(&reader).await?;
    let from = match turn {
        Some(turn) => first_position(&gateway, &reader, turn).await?,
        None => from.unwrap_or(1),
    };
    let query = EventQuery { from, limit, bytes: Limits::PAGE_BYTES };
    let page = read_page(&gateway, &reader, query).await?;
    let options = StreamOptions { format: StreamFormat::Ndjson, follow, query };
    EventStream::new(gateway, reader, options)?.respond(&page)
}

fn page_response(
    gateway: &Gateway,
    reader: &Reader,
    from: i64,
    page: EventPage,
) -> Result<Response, ApiProblem> {
    let next = page.events.last().map_or(from, |last| last.position + 1);
    json_response(gateway, &reader.owner, &EventsResponse { events: page.events, next })
}

struct Parameters {
    /// A position. Excludes `turn`.
    from: Option<i64>,
    turn: Option<i32>,
    limit: u32,
    follow: bool,
}

impl Parameters {
    fn parse(query: Option<&str>) -> Result<Self, ApiProblem> {
        Self::of(Query::parse(query, &["from", "turn", "limit", "follow"])?)
    }

    fn of_log(query: Option<&str>) -> Result<Self, ApiProblem> {
        Self::of(Query::parse(query, &["from", "turn", "follow"])?)
    }

    fn of(mut query: Query) -> Result<Self, ApiProblem> {
        let follow = match query.take("follow").as_deref() {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => return Err(ApiProblem::invalid("`follow` must be true or false")),
        };
        let (from, turn) = (query.take_number("from", 1)?, query.take("turn"));
        if from.is_some() && turn.is_some() {
            return Err(ApiProblem::invalid("`from` is a position and `turn` a turn: send only one of them"));
        }
        let turn = turn.map(|turn| parse_turn(&turn)).transpose()?;
        Ok(Self { from, turn, limit: query.take_limit()?, follow })
    }
}

/// The position of the last event that the client has seen. An EventSource reconnects with the same URL as before and
/// sends the position in this header.
fn last_event_id(headers: &HeaderMap) -> Result<Option<i64>, ApiProblem> {
    let Some(last) = headers.get("last-event-id") else { return Ok(None) };
    let last = last.to_str().ok().and_then(|last| last.parse().ok()).filter(|last| *last >= 0);
    last.map(Some).ok_or_else(|| ApiProblem::invalid("`Last-Event-ID` must be the position of an event"))
}

/// The position of a turn's first event.
async fn first_position(gateway: &Gateway, reader: &Reader, turn: i32) -> Result<i64, ApiProblem> {
    let find = || gateway.store.first_event(reader.run, turn);
    let position = gateway.call_with_retry("finding a turn's first event", find).await?;
    position.ok_or_else(|| ApiProblem::no_such_turn(Some(turn)))
}
