//! A stream of a run's events: NDJSON or server-sent events.

use std::io;
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use dalsegno_model::{EventPage, EventQuery};
use dalsegno_protocol::{Code, Event};
use futures::stream;

use crate::extractors::Reader;
use crate::gateway::Gateway;
use crate::limits::response_body::abort_error;
use crate::limits::shared_limit::{LimitExceeded, LimitPermit};
use crate::response::ApiProblem;

/// Reads one page of events.
pub(crate) async fn read_page(
    gateway: &Gateway,
    reader: &Reader,
    query: EventQuery,
) -> Result<EventPage, ApiProblem> {
    let _permit = gateway.page_permit(&reader.owner).await?;
    gateway.call_with_retry("reading events", || gateway.store.events(reader.run, query)).await
}

/// How a stream is written.
#[derive(Clone, Copy)]
pub(crate) enum StreamFormat {
    Ndjson,
    ServerSentEvents,
}

impl StreamFormat {
    /// Chooses the format that the `Accept` header prefers; `None`: the client gets a page, or, with `follow`, accepts
    /// no stream.
    pub(crate) fn negotiate(headers: &HeaderMap, follow: bool) -> Option<Self> {
        let lines = headers.get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok());
        let ranges = lines.flat_map(|line| line.split(',')).map(media_range);
        let mut ranges: Vec<_> = ranges.filter(|(_, weight)| *weight > 0.0).collect();
        // Stable: of equal weights the first one stays first.
        ranges.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        let known = ranges.iter().find_map(|(range, _)| match range.as_str() {
            "text/event-stream" => Some(Some(Self::ServerSentEvents)),
            "application/x-ndjson" if follow => Some(Some(Self::Ndjson)),
            "application/json" | "application/*" | "*/*" if !follow => Some(None),
            _ => None,
        });
        known.flatten()
    }

    fn media_type(self) -> &'static str {
        match self {
            Self::Ndjson => "application/x-ndjson",
            Self::ServerSentEvents => "text/event-stream",
        }
    }

    /// Appends one event. Its JSON is the worker's own text, so its line breaks are replaced: JSON allows them only
    /// between tokens, where they mean nothing.
    fn write(self, event: &Event, text: &mut String) {
        let Event { position, turn, attempt, event } = event;
        let event = event.get().replace(['\r', '\n'], " ");
        let json = format!(r#"{{"position":{position},"turn":{turn},"attempt":{attempt},"event":{event}}}"#);
        match self {
            Self::Ndjson => text.push_str(&format!("{json}\n")),
            Self::ServerSentEvents => text.push_str(&format!("id: {position}\ndata: {json}\n\n")),
        }
    }

    fn keepalive(self) -> &'static str {
        match self {
            Self::Ndjson => "\n",
            Self::ServerSentEvents => ":\n\n",
        }
    }
}

/// A media range of an `Accept` header and its weight `q`, which is 1 unless given.
fn media_range(range: &str) -> (String, f32) {
    let mut parts = range.split(';').map(|part| part.trim().to_ascii_lowercase());
    let name = parts.next().unwrap_or_default();
    let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok());
    (name, weight.unwrap_or(1.0))
}

/// Text to send, and the permit for its bytes.
type Chunk = (String, LimitPermit);

/// What a stream sends.
#[derive(Clone, Copy)]
pub(crate) struct StreamOptions {
    pub(crate) format: StreamFormat,
    /// Whether it waits for events to come. If not, it ends after the last event.
    pub(crate) follow: bool,
    /// Its first page.
    pub(crate) query: EventQuery,
}

/// An open stream. It counts among the caller's calls under way for as long as it lasts.
pub(crate) struct EventStream {
    gateway: Gateway,
    reader: Reader,
    format: StreamFormat,
    /// Whether the stream waits for events to come.
    follow: bool,
    /// The next page.
    query: EventQuery,
    started: Instant,
    /// Permit of the chunk that is being sent.
    sending: Option<LimitPermit>,
    _stream: LimitPermit,
}

impl EventStream {
    /// A stream. Fails if the caller has too many streams open.
    pub(crate) fn new(
        gateway: Gateway,
        reader: Reader,
        options: StreamOptions,
    ) -> Result<Self, LimitExceeded> {
        let StreamOptions { format, follow, query } = options;
        let stream = gateway.event_streams.acquire(reader.owner.clone(), 1)?;
        let started = Instant::now();
        Ok(Self { gateway, reader, format, follow, query, started, sending: None, _stream: stream })
    }

    /// Answers with the stream; `page` is its first page.
    ///
    /// The stream ends when the run is over, the worker is fenced, the gateway stops, or `max_response_duration` has
    /// passed. If the store fails, the connection breaks off, so that no client takes that for the end.
    pub(crate) fn respond(mut self, page: &EventPage) -> Result<Response, ApiProblem> {
        let media_type = self.format.media_type();
        let first = Some(self.write(page)?);
        let chunks = stream::try_unfold((self, first), |(mut events, first)| async move {
            let text = events.next(first).await.map_err(abort_error)?;
            Ok::<_, io::Error>(text.map(|text| (text, (events, None))))
        });
        let head = [(header::CONTENT_TYPE, media_type), (header::CACHE_CONTROL, "no-cache")];
        Ok((head, Body::from_stream(chunks)).into_response())
    }

    /// The first chunk, or the next one after it; `None`: the end.
    async fn next(&mut self, first: Option<Chunk>) -> Result<Option<Bytes>, ApiProblem> {
        // The connection polls for a chunk once the one before it is sent.
        self.sending = None;
        let chunk = match first {
            Some(first) => Some(first),
            None => self.wait().await?,
        };
        Ok(chunk.map(|(text, permit)| {
            self.sending = Some(permit);
            text.into()
        }))
    }

    /// Waits for new events, or for the time to send a keep-alive, and for a permit to send it.
    async fn wait(&mut self) -> Result<Option<Chunk>, ApiProblem> {
        let config = self.gateway.config.clone();
        let since = Instant::now();
        loop {
            if self.started.elapsed() >= config.max_response_duration {
                return Ok(None);
            }
            match self.gateway.authorize_reader(&self.reader).await {
                Err(problem) if problem.0.code == Code::Fenced => return Ok(None),
                authorized => authorized?,
            }
            let page = self.poll().await?;
            let is_empty = page.as_ref().is_none_or(|page| page.events.is_empty());
            if page.as_ref().is_some_and(|page| is_empty && (page.over || !self.follow)) {
                return Ok(None);
            }
            let is_due = !is_empty || since.elapsed() >= config.stream_keepalive_interval;
            if is_due && let Ok(chunk) = self.write(&page.clone().unwrap_or_default()) {
                return Ok(Some(chunk));
            }
            // Without a permit its bytes must not stay in memory during the sleep.
            drop(page);
            tokio::select! {
                () = self.gateway.stopping.cancelled() => return Ok(None),
                () = tokio::time::sleep(config.stream_poll_interval) => {}
            }
        }
    }

    /// Reads the next page. `None`: too many pages are read, and the stream tries again at the next poll.
    async fn poll(&self) -> Result<Option<EventPage>, ApiProblem> {
        let Self { gateway, reader, query, .. } = self;
        let Ok(_permit) = gateway.page_permit(&reader.owner).await else { return Ok(None) };
        gateway.call_with_retry("reading events", || gateway.store.events(reader.run, *query)).await.map(Some)
    }

    /// Writes a page as text and moves the stream behind it.
    fn write(&mut self, page: &EventPage) -> Result<Chunk, LimitExceeded> {
        let mut text = String::new();
        for event in &page.events {
            self.format.write(event, &mut text);
        }
        if page.events.is_empty() && self.follow {
            text.push_str(self.format.keepalive());
        }
        let permit = self.gateway.response_bytes.acquire(self.reader.owner.clone(), text.len())?;
        self.query.from = page.events.last().map_or(self.query.from, |last| last.position + 1);
        Ok((text, permit))
    }
}
