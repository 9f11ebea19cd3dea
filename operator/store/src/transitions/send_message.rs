//! A person sends a message to a run.

use dalsegno_protocol::Limits;
use serde_json::json;

use super::waits::{answer_message_wait, is_waited_for};
use super::{Change, Decision, Needs, Rows, Transition, text};
use crate::db_error::{DbError, DbResult};
use crate::reads::{Hash, MessageRow, encode_payload};
use dalsegno_format::header;
use dalsegno_format::messages::MessageContent;
use dalsegno_format::seal::{AadContext, CallDigestsExt as _, PayloadCipher};
use dalsegno_model::audit::kind;
use dalsegno_model::{Digest, NewMessage, Result, RunId, Sent};

/// [`dalsegno_model::Admin::send_message`].
#[derive(Clone, Debug)]
pub(crate) struct SendMessage {
    id: String,
    topic: Option<String>,
    author: String,
    audit_id: Option<String>,
    /// The value as it is stored. `None`: the run's data key was deleted, so that the run is over.
    encoded: Option<Vec<u8>>,
    /// Bytes of the value as JSON text.
    bytes: i64,
    /// The digest to store, and the one from before the run had a key.
    digests: [Digest; 2],
    /// Why nothing new is stored, if so.
    full: Option<DbError>,
}

impl SendMessage {
    pub fn of(message: &NewMessage, cipher: &PayloadCipher) -> Result<Self> {
        let NewMessage { run: _, id, topic, value, author, audit_id } = message;
        let (id, topic, author) = (text(id), topic.as_deref().map(text), text(author));
        let context = AadContext::Message(&id, topic.as_deref(), &author);
        let encoded = if cipher.is_shredded() { None } else { encode_payload(Some(value), context, cipher)? };
        let content =
            MessageContent { id: &id, topic: topic.as_deref(), author: &author, value: value.get() };
        let plain = content.digest();
        Ok(Self {
            encoded,
            bytes: value.get().len() as i64,
            digests: [cipher.message_digests(&id).of_digest(plain), plain],
            full: None,
            id,
            topic,
            author,
            audit_id: audit_id.as_deref().map(text),
        })
    }

    /// Whether the inbox has no place for the message. One that a wait of the run is open for has a place of its own:
    /// otherwise messages of another topic could keep a parked run asleep for ever.
    fn is_too_much(&self, change: &Change) -> bool {
        let (mut messages, mut bytes) = (Limits::MESSAGES, Limits::INBOX_BYTES);
        if is_waited_for(change, self.topic.as_deref()) {
            messages += Limits::WAITS;
            bytes += Limits::WAITS * Limits::MESSAGE_BYTES;
        }
        let run = change.row();
        run.unread >= messages as i64 || run.unread_bytes + self.bytes > bytes as i64
    }

    /// Refuses to store a new message. One that was stored before is still recognized.
    pub fn unless_full(self, room: DbResult<()>) -> Self {
        Self { full: room.err(), ..self }
    }
}

impl Transition for SendMessage {
    type Answer = Sent;
    const OPERATION: &'static str = "sending a message";

    fn needs(&self) -> Needs<'_> {
        Needs::Message(&self.id)
    }

    fn decide(&self, mut rows: Rows) -> DbResult<Decision<Sent>> {
        let stored = rows.message.take();
        let mut change = Change::of(rows);
        let refused = match stored {
            Some(stored) if self.digests.contains(&stored.digest) => Some(Sent::Duplicate(stored.position)),
            _ if !change.is_live() => Some(Sent::Finished),
            Some(_) => Some(Sent::Conflict),
            None if self.is_too_much(&change) => Some(Sent::TooMany),
            None => None,
        };
        if let Some(answer) = refused {
            return Ok(change.decide(answer));
        }
        if let Some(full) = &self.full {
            return Err(full.clone());
        }
        let Some(value) = self.encoded.clone() else {
            return Err(DbError::Corrupt("a live run has no data key any more".into()));
        };
        let (now, run) = (change.now(), change.run());
        run.inbox += 1;
        run.unread += 1;
        run.unread_bytes += self.bytes;
        run.stored_bytes += value.len() as i64;
        let (id, position, [digest, _]) = (run.id, run.inbox, self.digests);
        let mut detail =
            json!({ "position": position, "message": self.id, "digest": header::render(&digest) });
        if let Some(topic) = &self.topic {
            detail["topic"] = topic.as_str().into();
        }
        if let Some(id) = &self.audit_id {
            detail["auditID"] = id.as_str().into();
        }
        change.audit(kind::MESSAGE_SENT, &self.author, detail);
        change.insert_message(MessageRow {
            run: id,
            position,
            id: self.id.clone(),
            topic: self.topic.clone(),
            author: self.author.clone(),
            at: now,
            bytes: self.bytes,
            digest: Hash(digest),
            taken_turn: None,
            taken_boundary: None,
            taken_epoch: None,
            value: Some(value),
        });
        answer_message_wait(&mut change, self.topic.as_deref(), position);
        Ok(change.decide(Sent::Ok(position)))
    }

    fn without_run(&self, _: RunId) -> DbResult<Sent> {
        Ok(Sent::NotFound)
    }
}
