//! Events by position: what boundaries carried, taken apart again.

use dalsegno_protocol::Event;

use crate::{Digest, Error, EventQuery, Result, codec, header};

/// The events of one boundary, as they are kept.
pub(crate) struct Kept {
    pub turn: i32,
    pub attempt: i32,
    /// Of the last of them.
    pub position: i64,
    pub payload: Option<Vec<u8>>,
    pub digest: Option<Digest>,
}

/// The events that were asked for, of boundaries in order.
pub(crate) fn page(boundaries: Vec<Kept>, query: &EventQuery) -> Result<Vec<Event>> {
    let mut page = Vec::new();
    let mut room = query.bytes;
    for Kept { turn, attempt, position: last, payload, digest } in boundaries {
        let events = codec::decode_events(payload.as_deref(), codec::LIMIT)?;
        if header::events_digest(&events) != digest {
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
