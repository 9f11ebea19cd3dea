//! Messages: each stored message must follow from the run's audit, and so must the boundary that has taken it.

use std::collections::BTreeMap;

use dalsegno_format::messages::MessageContent;
use dalsegno_format::seal::{CallDigests, CallDigestsExt as _};
use dalsegno_model::audit::kind;
use dalsegno_model::read_transaction::StoredMessage;
use dalsegno_model::{AuditRow, Digest, RunId};
use dalsegno_protocol::{Boundary, TakenBy};
use serde::Deserialize;

use super::encoding::Hash;
use super::problem::Problem;

/// The messages of a run according to its audit, and those that are stored, added in any order. Holds no values.
#[derive(Clone, Debug, Default)]
pub(super) struct Messages {
    audited: BTreeMap<i64, AuditedMessage>,
    taken: BTreeMap<i64, TakenBy>,
    stored: BTreeMap<i64, StoredRow>,
    /// Whether rows of the audit were pruned: then they may have recorded the first messages.
    is_pruned: bool,
    /// Whether values may be missing, because the run is past its retention or shredded.
    is_over: bool,
}

#[derive(Clone, Debug)]
struct AuditedMessage {
    id: String,
    author: String,
    at: i64,
    digest: Digest,
}

#[derive(Clone, Debug)]
struct StoredRow {
    id: String,
    author: String,
    at: i64,
    digest: Digest,
    taken_by: Option<TakenBy>,
    has_value: bool,
    /// Whether the row has the digest of its contents. Unknown without the value, or without the key of the digest.
    is_whole: Option<bool>,
    damage: Option<String>,
}

/// The detail of the row of a message.
#[derive(Deserialize)]
struct Sent {
    position: i64,
    message: String,
    digest: Hash,
}

/// The detail of the row of a boundary that took messages.
#[derive(Deserialize)]
struct Taken {
    turn: i32,
    boundary: Boundary,
    positions: Vec<i64>,
}

/// The detail of the row of a rewind.
#[derive(Deserialize)]
struct Rewound {
    to: Target,
}

#[derive(Deserialize)]
struct Target {
    turn: i32,
    boundary: Boundary,
}

impl Messages {
    /// Adds a row of the run's audit. A row with an unreadable detail is ignored.
    pub fn add_audit_row(&mut self, row: &AuditRow) {
        match row.kind.as_str() {
            kind::MESSAGE_SENT => {
                if let Ok(Sent { position, message, digest: Hash(digest) }) =
                    serde_json::from_str(&row.detail)
                {
                    let author = row.actor.clone();
                    let at = row.at.as_millisecond();
                    self.audited.insert(position, AuditedMessage { id: message, author, at, digest });
                }
            }
            kind::MESSAGES_TAKEN => {
                if let Ok(Taken { turn, boundary, positions }) = serde_json::from_str(&row.detail) {
                    let taken = positions.into_iter().map(|position| (position, TakenBy { turn, boundary }));
                    self.taken.extend(taken);
                }
            }
            kind::REWOUND => {
                if let Ok(Rewound { to }) = serde_json::from_str(&row.detail) {
                    self.taken.retain(|_, taken| (taken.turn, taken.boundary) <= (to.turn, to.boundary));
                }
            }
            kind::PRUNED => self.is_pruned = true,
            kind::EXPIRED | kind::SHREDDED => self.is_over = true,
            _ => {}
        }
    }

    /// Adds a stored message.
    pub fn add_message(&mut self, stored: StoredMessage) {
        let StoredMessage { message, at, taken_epoch: _, digest, digests, damage } = stored;
        let plain = message.value.as_deref().map(|value| {
            let content = MessageContent {
                id: &message.id,
                topic: message.topic.as_deref(),
                author: &message.author,
                value: value.get(),
            };
            content.digest()
        });
        // It has a plain digest if it was stored before its run had a key.
        let is_digest = |plain: Digest| [digests.of_digest(plain), plain].contains(&digest);
        let row = StoredRow {
            id: message.id,
            author: message.author,
            at,
            digest,
            taken_by: message.taken_by,
            has_value: plain.is_some(),
            is_whole: plain.filter(|_| digests != CallDigests::Lost).map(is_digest),
            damage,
        };
        self.stored.insert(message.position, row);
    }

    /// To be called after the last message and audit row.
    pub fn end(&self, run: RunId) -> impl Iterator<Item = Problem> {
        let one = move |position: i64, what: &str| Problem::of(run, format!("message {position}"), what);
        let gone = self.audited.keys().filter(|position| !self.stored.contains_key(position));
        let gone = gone.map(move |position| one(*position, "the audit records it, and it is missing"));
        let last = self.stored.keys().next_back().copied().unwrap_or_default();
        let is_gap = last != self.stored.len() as i64;
        let gap =
            is_gap.then(|| Problem::of(run, "messages", "some are missing: their positions have a gap"));
        let faults = self.stored.iter().filter_map(move |(position, stored)| {
            let what = match &stored.damage {
                Some(damage) => damage.as_str(),
                None => self.fault(*position, stored)?,
            };
            Some(one(*position, what))
        });
        gone.chain(gap).chain(faults)
    }

    fn fault(&self, position: i64, stored: &StoredRow) -> Option<&'static str> {
        if stored.is_whole == Some(false) {
            return Some("it does not have the digest it must have");
        }
        if !stored.has_value && !self.is_over {
            return Some("its value is missing, and the audit does not say why");
        }
        match self.audited.get(&position) {
            Some(AuditedMessage { id, author, at, digest }) => {
                if (id, author, at, digest) != (&stored.id, &stored.author, &stored.at, &stored.digest) {
                    return Some("it is not what the audit says");
                }
            }
            None if self.is_pruned && self.audited.keys().next().is_none_or(|first| position < *first) => {}
            None => return Some("it exists, and the audit does not record it"),
        }
        match (self.taken.get(&position), &stored.taken_by) {
            (None, _) if self.is_pruned => None,
            (audited, stored) if audited == stored.as_ref() => None,
            _ => Some("the boundary that has taken it is not the one that the audit says"),
        }
    }
}
