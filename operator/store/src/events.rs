//! Events by position, read from the boundaries that carried them.

use dalsegno_protocol::{Boundary, Event};
use uuid::Uuid;

use dalsegno_format::seal::{AadContext, DigestKeyExt as _, PayloadCipher, is_sealed};
use dalsegno_format::{codec, header};
use dalsegno_model::{Digest, Error, EventQuery, Result};

/// The events of one boundary, as they are stored.
pub(crate) struct StoredEvents {
    pub turn: i32,
    pub boundary: Boundary,
    pub commit_id: Uuid,
    pub attempt: i32,
    /// Position of the last event.
    pub position: i64,
    pub payload: Option<Vec<u8>>,
    pub digest: Option<Digest>,
}

impl StoredEvents {
    /// Whether the payload looks sealed: then it is only readable with the run's data key.
    pub fn looks_sealed(&self) -> bool {
        self.payload.as_deref().is_some_and(is_sealed)
    }
}

/// One page of events. `boundaries` are in order; those whose events were shredded are skipped.
pub(crate) fn page(
    boundaries: Vec<StoredEvents>,
    query: &EventQuery,
    cipher: &PayloadCipher,
) -> Result<Vec<Event>> {
    let mut page = Vec::new();
    let mut bytes_left = query.bytes;
    for stored in boundaries {
        let sealed = stored.looks_sealed();
        let StoredEvents { turn, boundary, commit_id, attempt, position: last, payload, digest } = stored;
        if sealed && cipher.is_shredded() {
            continue;
        }
        let context = AadContext::Events(turn, boundary, commit_id);
        let opened = payload.as_deref().map(|payload| cipher.open(context, payload)).transpose()?;
        let events = codec::decode_events(opened.as_deref(), codec::LIMIT)?;
        let key = sealed.then(|| cipher.digest_key(turn, boundary, commit_id)).flatten();
        let plain = header::events_digest(&events);
        if plain.map(|plain| key.map_or(plain, |key| key.digest(plain))) != digest {
            return Err(corrupt(format!("the events of turn {turn} do not match their digest")));
        }
        let first = last + 1 - events.len() as i64;
        for (position, event) in (first..).zip(events).skip_while(|(position, _)| *position < query.from) {
            if page.len() >= query.limit as usize || bytes_left == 0 {
                return Ok(page);
            }
            bytes_left = bytes_left.saturating_sub(event.get().len());
            page.push(Event { position, turn, attempt, event });
        }
    }
    Ok(page)
}

fn corrupt(detail: String) -> Error {
    Error::Corrupt { operation: "reading events", detail }
}
