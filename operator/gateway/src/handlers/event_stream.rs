//! A stream of events.

use std::io;
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use dalsegno_protocol::{Code, Event};
use dalsegno_store::{EventPage, EventQuery};
use futures::stream;

use crate::extractors::Reader;
use crate::gateway::Gateway;
use crate::limits::response_body;
use crate::limits::shared_limit::{Full, Part};
use crate::response::Refusal;
use crate::store_reads;

pub(crate) async fn page(
    gateway: &Gateway,
    reader: &Reader,
    query: EventQuery,
) -> Result<EventPage, Refusal> {
    gateway.ask("reading events", || gateway.store.events(reader.run, query)).await
}

/// How a stream is written.
#[derive(Clone, Copy)]
pub(crate) enum Format {
    Lines,
    ServerSent,
}

impl Format {
    /// The stream that a caller would have before all else that it accepts; `None`: a page, if it does not follow.
    pub(crate) fn of(headers: &HeaderMap, follow: bool) -> Option<Self> {
        let lines = headers.get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok());
        let ranges = lines.flat_map(|line| line.split(',')).map(weighed);
        let mut ranges: Vec<_> = ranges.filter(|(_, weight)| *weight > 0.0).collect();
        // Of those that weigh the same the first comes first.
        ranges.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        let known = ranges.iter().find_map(|(range, _)| match range.as_str() {
            "text/event-stream" => Some(Some(Self::ServerSent)),
            "application/x-ndjson" if follow => Some(Some(Self::Lines)),
            "application/json" | "application/*" | "*/*" if !follow => Some(None),
            _ => None,
        });
        known.flatten()
    }

    fn media_type(self) -> &'static str {
        match self {
            Self::Lines => "application/x-ndjson",
            Self::ServerSent => "text/event-stream",
        }
    }

    /// One event. Its text is the worker's own, so that a line break in it must be told as the format wants it.
    fn write(self, event: &Event, text: &mut String) {
        let Event { position, turn, attempt, event } = event;
        // Between tokens a line break is nothing but white space, and inside of a string JSON has none.
        let event = event.get().replace(['\r', '\n'], " ");
        let json = format!(r#"{{"position":{position},"turn":{turn},"attempt":{attempt},"event":{event}}}"#);
        match self {
            Self::Lines => text.push_str(&format!("{json}\n")),
            Self::ServerSent => text.push_str(&format!("id: {position}\ndata: {json}\n\n")),
        }
    }

    /// Shows that the stream lives.
    fn idle(self) -> &'static str {
        match self {
            Self::Lines => "\n",
            Self::ServerSent => ":\n\n",
        }
    }
}

/// A range of media types that somebody accepts, and how much it weighs: `q`, or 1.
fn weighed(range: &str) -> (String, f32) {
    let mut parts = range.split(';').map(|part| part.trim().to_ascii_lowercase());
    let name = parts.next().unwrap_or_default();
    let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok());
    (name, weight.unwrap_or(1.0))
}

/// What goes out at once, in its place among the answers.
type Piece = (String, Part);

/// What a stream goes on from. It counts among the run's calls for as long as it lasts.
struct Following {
    gateway: Gateway,
    reader: Reader,
    format: Format,
    query: EventQuery,
    first: Option<Piece>,
    going_out: Option<Part>,
    began: Instant,
    _place: Part,
}

/// Ends when the run is over, the worker is fenced, the gateway closes, or its time is up. Where the store fails it breaks
/// off, so that nobody takes that for the end.
pub(crate) fn stream(
    gateway: Gateway,
    reader: Reader,
    format: Format,
    query: EventQuery,
    page: EventPage,
) -> Result<Response, Refusal> {
    let place = gateway.streams.take(reader.who.clone(), 1)?;
    let began = Instant::now();
    let mut following =
        Following { gateway, reader, format, query, first: None, going_out: None, began, _place: place };
    following.first = Some(following.write(&page)?);
    let pieces = stream::try_unfold(following, |mut following| async move {
        let text = following.next().await.map_err(response_body::broken)?;
        Ok::<_, io::Error>(text.map(|text| (text, following)))
    });
    let head = [(header::CONTENT_TYPE, format.media_type()), (header::CACHE_CONTROL, "no-cache")];
    Ok((head, Body::from_stream(pieces)).into_response())
}

impl Following {
    async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        // The piece before has gone out: this one is asked for.
        self.going_out = None;
        let piece = match self.first.take() {
            Some(first) => Some(first),
            None => self.wait().await?,
        };
        Ok(piece.map(|(text, part)| {
            self.going_out = Some(part);
            text.into()
        }))
    }

    /// The next page, at the latest when it is time to show that the stream lives, and there is room for it.
    async fn wait(&mut self) -> Result<Option<Piece>, Refusal> {
        let config = self.gateway.config.clone();
        let since = Instant::now();
        loop {
            if self.began.elapsed() >= config.follow_limit {
                return Ok(None);
            }
            match store_reads::judge(&self.gateway, &self.reader).await {
                Err(refusal) if refusal.0.code == Code::Fenced => return Ok(None),
                judged => judged?,
            }
            let page = page(&self.gateway, &self.reader, self.query).await?;
            if page.over && page.events.is_empty() {
                return Ok(None);
            }
            if (!page.events.is_empty() || since.elapsed() >= config.follow_idle)
                && let Ok(piece) = self.write(&page)
            {
                return Ok(Some(piece));
            }
            // It would be held for as long as there is no room.
            drop(page);
            tokio::select! {
                () = self.gateway.closing.cancelled() => return Ok(None),
                () = tokio::time::sleep(config.follow_poll) => {}
            }
        }
    }

    /// A page as text, after which the stream goes on.
    fn write(&mut self, page: &EventPage) -> Result<Piece, Full> {
        let mut text = String::new();
        for event in &page.events {
            self.format.write(event, &mut text);
        }
        if page.events.is_empty() {
            text.push_str(self.format.idle());
        }
        let part = self.gateway.answers.take(self.reader.who.clone(), text.len())?;
        self.query.from = page.events.last().map_or(self.query.from, |last| last.position + 1);
        Ok((text, part))
    }
}
