//! A message's row.

use dalsegno_protocol::{Message, TakenBy};
use uuid::Uuid;

use super::table::row;
use super::{BoundaryColumn, Column, Columns, Hash, decode_payload};
use crate::db_error::{DbError, DbResult, timestamp};
use dalsegno_format::seal::{AadContext, PayloadCipher, is_sealed};
use dalsegno_model::Digest;
use dalsegno_model::read_transaction::StoredMessage;

row! {
    /// A message to a run.
    MessageRow in "messages" {
        run: Uuid,
        position: i64,
        id: String,
        topic: Option<String>,
        author: String,
        at: i64,
        bytes: i64,
        digest: Hash,
        taken_turn: Option<i32>,
        taken_boundary: Option<BoundaryColumn>,
        taken_epoch: Option<i64>,
        value: Option<Vec<u8>>,
    }
}

/// A message of which only this is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageRef {
    pub position: i64,
    pub digest: Digest,
}

impl MessageRef {
    /// Selects the message of the run `$1` with the id `$2`, in both databases.
    pub const SQL: &'static str = "SELECT position, digest FROM messages WHERE run = $1 AND id = $2";

    pub fn read(row: &impl Columns) -> DbResult<Self> {
        let Hash(digest) = Column::read(row, "digest")?;
        Ok(Self { position: Column::read(row, "position")?, digest })
    }
}

/// Messages that a rewind gives back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TakenSince {
    /// How many.
    pub messages: i64,
    /// Bytes of their values.
    pub bytes: i64,
}

impl TakenSince {
    /// Counts these messages of the run `$1`, in both databases. `$2` turn, `$3` boundary and `$4` epoch: those of the
    /// boundary that stays.
    pub const SQL: &'static str = "SELECT count(*) AS messages, CAST(coalesce(sum(bytes), 0) AS bigint) AS bytes \
         FROM messages WHERE run = $1 AND ((taken_turn, taken_boundary) > ($2, $3) \
           OR (taken_turn, taken_boundary) = ($2, $3) AND taken_epoch <> $4)";

    /// SQL that gives these messages back. `last`: turn, boundary and epoch of the boundary that stays, in SQL.
    pub fn give_back(run: &str, last: [&str; 3]) -> String {
        let [turn, boundary, epoch] = last;
        format!(
            "UPDATE messages SET taken_turn = NULL, taken_boundary = NULL, taken_epoch = NULL \
             WHERE run = {run} AND ((taken_turn, taken_boundary) > ({turn}, {boundary}) \
               OR (taken_turn, taken_boundary) = ({turn}, {boundary}) AND taken_epoch <> {epoch})"
        )
    }

    pub fn read(row: &impl Columns) -> DbResult<Self> {
        Ok(Self { messages: Column::read(row, "messages")?, bytes: Column::read(row, "bytes")? })
    }
}

impl MessageRow {
    /// Whether the value looks sealed: then it is only readable with the run's data key.
    pub fn looks_sealed(&self) -> bool {
        self.value.as_deref().is_some_and(is_sealed)
    }

    /// The message for workers and users.
    pub fn public(&self, cipher: &PayloadCipher) -> DbResult<Message> {
        let context = AadContext::Message(&self.id, self.topic.as_deref(), &self.author);
        let value = decode_payload(self.value.as_deref(), context, cipher)
            .map_err(|error| error.of(format!("message {}", self.position)))?;
        Ok(Message { value, ..self.public_without_value()? })
    }

    /// The message for checks of the store and exports of a run.
    pub fn stored(&self, cipher: &PayloadCipher) -> DbResult<StoredMessage> {
        let stored = StoredMessage {
            message: self.public_without_value()?,
            at: self.at,
            taken_epoch: self.taken_epoch,
            digest: self.digest.0,
            digests: cipher.message_digests(&self.id),
            damage: None,
        };
        match self.public(cipher) {
            Ok(message) => Ok(StoredMessage { message, ..stored }),
            Err(DbError::Corrupt(damage)) => Ok(StoredMessage { damage: Some(damage), ..stored }),
            Err(error) => Err(error),
        }
    }

    fn public_without_value(&self) -> DbResult<Message> {
        let taken_by = self.taken_turn.zip(self.taken_boundary);
        Ok(Message {
            position: self.position,
            id: self.id.clone(),
            topic: self.topic.clone(),
            value: None,
            author: self.author.clone(),
            at: timestamp(self.at)?.to_string(),
            taken_by: taken_by.map(|(turn, boundary)| TakenBy { turn, boundary: boundary.0 }),
        })
    }
}
