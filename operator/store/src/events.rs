//! Events by position: what boundaries carried, taken apart again.

use dalsegno_protocol::{Boundary, Event};
use uuid::Uuid;

use crate::seal::{AadContext, DigestKeyExt as _, PayloadCipher, is_sealed};
use crate::{Digest, Error, EventQuery, Result, codec, header};

/// The events of one boundary, as they are kept.
pub(crate) struct Kept {
    pub turn: i32,
    pub boundary: Boundary,
    pub commit_id: Uuid,
    pub attempt: i32,
    /// Of the last of them.
    pub position: i64,
    pub payload: Option<Vec<u8>>,
    pub digest: Option<Digest>,
}

impl Kept {
    /// Whether they can only be read with the key of their run.
    pub fn looks_sealed(&self) -> bool {
        self.payload.as_deref().is_some_and(is_sealed)
    }
}

/// The events that were asked for, of boundaries in order; those that were shredded are passed over.
pub(crate) fn page(boundaries: Vec<Kept>, query: &EventQuery, sealing: &PayloadCipher) -> Result<Vec<Event>> {
    let mut page = Vec::new();
    let mut room = query.bytes;
    for kept in boundaries {
        let sealed = kept.looks_sealed();
        let Kept { turn, boundary, commit_id, attempt, position: last, payload, digest } = kept;
        if sealed && sealing.is_shredded() {
            continue;
        }
        let spot = AadContext::Events(turn, boundary, commit_id);
        let opened = payload.as_deref().map(|kept| sealing.open(spot, kept)).transpose()?;
        let events = codec::decode_events(opened.as_deref(), codec::LIMIT)?;
        let key = sealed.then(|| sealing.digest_key(turn, boundary, commit_id)).flatten();
        let plain = header::events_digest(&events);
        if plain.map(|plain| key.map_or(plain, |key| key.digest(plain))) != digest {
            return Err(corrupt(format!("turn {turn} has other events than were committed")));
        }
        let first = last + 1 - events.len() as i64;
        for (position, event) in (first..).zip(events).skip_while(|(position, _)| *position < query.from) {
            if page.len() >= query.limit as usize || room == 0 {
                return Ok(page);
            }
            room = room.saturating_sub(event.get().len());
            page.push(Event { position, turn, attempt, event });
        }
    }
    Ok(page)
}

fn corrupt(detail: String) -> Error {
    Error::Corrupt { doing: "reading events", detail }
}
