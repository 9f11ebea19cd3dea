//! How a run's boundaries hang together: each by itself, and each with the one before. Pure; the databases only read the
//! rows.

use std::fmt;

use dalsegno_protocol::{Boundary, State};
use serde::{Deserialize, Serialize};

use crate::header::{Header, NO_PARENT};
use crate::seal::{DigestKey, SHREDDED, Sealing, Spot, is_sealed};
use crate::survey::Sound;
use crate::{BoundaryRow, Digest, Error, Result, RunId, codec, fold, header};

/// Why a boundary's payloads are not there any more, which is no damage; nobody can go on from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// As the run's retention says.
    Dropped,
    /// The data key of the run was deleted.
    Shredded,
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dropped => "its payloads were dropped, as the run's retention says",
            Self::Shredded => SHREDDED,
        })
    }
}

/// Where a boundary stands in its run: the key of its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// Number of the turn.
    pub turn: i32,
    /// Which boundary of it.
    pub boundary: Boundary,
    /// The epoch it was committed under.
    pub epoch: i64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { turn, boundary, epoch: _ } = self;
        match boundary {
            Boundary::Plan => write!(f, "turn {turn} (plan)"),
            Boundary::Result => write!(f, "turn {turn} (result)"),
        }
    }
}

/// A boundary as it is kept, payloads decoded.
#[derive(Clone, Debug)]
pub struct Kept {
    /// What it says.
    pub row: BoundaryRow,
    /// The one before; `None` for the first.
    pub parent: Option<Place>,
    /// Digest of its operations, as it is kept.
    pub ops_digest: Option<Digest>,
    /// Digest of its events, as it is kept.
    pub events_digest: Option<Digest>,
    /// How many events its row counts; `None`: it comes from no row.
    pub event_count: Option<i64>,
    /// What these digests are made with; `None`: they are plain, or the payloads were not read.
    pub digest_key: Option<DigestKey>,
    /// Whether the payloads were read: without them only the header is judged.
    pub has_payloads: bool,
}

impl Kept {
    /// Where it stands.
    pub fn place(&self) -> Place {
        self.row.place()
    }

    /// Where the one before stands, by its columns. Only the first boundary has none of these; of a part that is left no
    /// boundary is the place.
    pub(crate) fn parent(turn: Option<i32>, boundary: Option<Boundary>, epoch: Option<i64>) -> Option<Place> {
        let is_first = turn.is_none() && boundary.is_none() && epoch.is_none();
        let boundary = boundary.unwrap_or(Boundary::Plan);
        (!is_first).then(|| Place { turn: turn.unwrap_or(0), boundary, epoch: epoch.unwrap_or(0) })
    }

    /// How many events it has, where anything tells.
    pub fn events(&self) -> Option<i64> {
        self.event_count.or_else(|| self.has_payloads.then_some(self.row.events.len() as i64))
    }

    /// What is wrong with the row, whatever stands around it.
    pub fn fault(&self, run: RunId) -> Option<&'static str> {
        if self.content_hash(run) != self.row.content_hash {
            return Some("it does not have the hash it must have");
        }
        let keyed =
            |plain: Digest| self.digest_key.as_ref().map_or(plain, |digest_key| digest_key.digest(plain));
        let ops = header::ops_digest(self.row.ops.as_deref().map(str::as_bytes)).map(keyed);
        let events = header::events_digest(&self.row.events).map(keyed);
        if self.has_payloads && (ops != self.ops_digest || events != self.events_digest) {
            return Some("it has another payload than was committed");
        }
        if self.has_payloads && self.events() != Some(self.row.events.len() as i64) {
            return Some("it counts other events than it has");
        }
        if self.parent.is_none() != (self.row.parent_hash == NO_PARENT) {
            return Some("its hash and its place disagree on whether it is the first");
        }
        (!self.follows_closely()).then_some("it names a parent that is not the boundary before it")
    }

    /// Turns have no gaps: before a result stands its plan, or the turn before; before a plan the turn before.
    fn follows_closely(&self) -> bool {
        let Place { turn, boundary, .. } = self.place();
        match self.parent {
            None => turn == 1,
            Some(Place { boundary: Boundary::Plan, turn: before, .. }) => {
                before == turn && boundary == Boundary::Result
            }
            Some(Place { boundary: Boundary::Result, turn: before, .. }) => {
                before.checked_add(1) == Some(turn)
            }
        }
    }

    fn content_hash(&self, run: RunId) -> Digest {
        let row = &self.row;
        Header {
            parent_hash: row.parent_hash,
            run,
            turn: row.turn,
            boundary: row.boundary,
            epoch: row.epoch,
            attempt: row.attempt,
            at: row.at.as_millisecond(),
            position: row.position,
            commit_id: row.commit_id,
            digest: row.digest,
            ops_digest: self.ops_digest,
            full: row.full,
            events_digest: self.events_digest,
            usage: row.usage,
            trigger: row.trigger.as_deref(),
            records_digest: row.records_digest,
        }
        .content_hash()
    }
}

/// A boundary as its row has it.
pub(crate) struct Shelved {
    /// Without its payloads.
    pub kept: Kept,
    /// `None`: they were not read.
    pub payloads: Option<Payloads>,
    /// They were dropped: the run is past its retention, or this boundary is before those that it keeps. The run's own
    /// row says so: of one that lives and keeps all it is never so, whatever the boundary's row says.
    pub dropped: bool,
    /// A snapshot of the state after it, where one is to be used.
    pub snapshot: Option<KeptSnapshot>,
}

/// Payloads as they are kept.
pub(crate) struct Payloads {
    pub ops: Option<Vec<u8>>,
    pub events: Option<Vec<u8>>,
}

impl Payloads {
    /// Whether they can only be read with the key of their run.
    fn are_sealed(&self) -> bool {
        [&self.ops, &self.events].into_iter().flatten().any(|kept| is_sealed(kept))
    }
}

/// A snapshot as it is kept, without its chunks.
#[derive(Clone, Debug)]
pub(crate) struct KeptSnapshot {
    pub document: Vec<u8>,
    pub digest: Vec<u8>,
}

impl Shelved {
    /// Whether its payloads can only be decoded after the state before it.
    pub fn is_patch(&self) -> bool {
        let payloads = self.payloads.as_ref();
        payloads.and_then(|payloads| payloads.ops.as_deref()).is_some_and(codec::is_patch)
    }

    /// What it is linked by.
    pub fn link(&self) -> Sound {
        let BoundaryRow { parent_hash, content_hash, full, position, .. } = self.kept.row;
        Sound { parent: self.kept.parent, parent_hash, content_hash, full, position, gone: None }
    }

    /// Why its payloads are not there any more.
    pub fn gone(&self, sealing: &Sealing) -> Option<Gone> {
        if self.dropped {
            return Some(Gone::Dropped);
        }
        let are_sealed = self.payloads.as_ref().is_some_and(Payloads::are_sealed);
        (are_sealed && sealing.is_shredded()).then_some(Gone::Shredded)
    }

    /// Whether anything of it can only be read with the key of its run.
    pub fn is_sealed(&self) -> bool {
        self.payloads.as_ref().is_some_and(Payloads::are_sealed)
            || self.snapshot.as_ref().is_some_and(|snapshot| is_sealed(&snapshot.document))
    }

    /// Whether it has payloads, and they were kept as they were written.
    pub fn is_plain(&self) -> bool {
        let payloads = self.payloads.as_ref();
        payloads.is_some_and(|kept| (kept.ops.is_some() || kept.events.is_some()) && !kept.are_sealed())
    }

    /// The boundary with its payloads, unless these are gone; `before` is the state before it, where that is known.
    pub fn unpack(self, sealing: &Sealing, before: Option<&State>) -> Result<Kept> {
        if self.gone(sealing).is_some() {
            return Ok(self.kept);
        }
        let payloads = self.payloads.ok_or_else(|| corrupt("its payloads were not read"))?;
        let BoundaryRow { turn, boundary, commit_id, .. } = self.kept.row;
        let digest_key =
            payloads.are_sealed().then(|| sealing.digest_key(turn, boundary, commit_id)).flatten();
        let open = |kept, spot| sealing.open(spot, kept);
        let ops = payloads.ops.as_deref().map(|kept| open(kept, Spot::Ops(turn, boundary, commit_id)));
        let ops = match ops.transpose()? {
            None => None,
            Some(patch) if codec::is_patch(&patch) => {
                let before =
                    before.ok_or_else(|| corrupt("it is a patch, and the state before it is not known"))?;
                Some(codec::decode_after(&fold::text(before)?, &patch, codec::LIMIT)?)
            }
            Some(payload) => Some(codec::decode(&payload, codec::LIMIT)?),
        };
        let ops = ops.map(String::from_utf8).transpose();
        let ops = ops.map_err(|_| corrupt("its channel operations are not UTF-8"))?;
        let events =
            payloads.events.as_deref().map(|kept| open(kept, Spot::Events(turn, boundary, commit_id)));
        let events = codec::decode_events(events.transpose()?.as_deref(), codec::LIMIT)?;
        let row = BoundaryRow { ops, events, ..self.kept.row };
        Ok(Kept { row, digest_key, has_payloads: true, ..self.kept })
    }

    /// The boundary with its payloads, held to what it was committed as.
    pub fn unpack_sound(self, run: RunId, sealing: &Sealing, before: Option<&State>) -> Result<BoundaryRow> {
        let kept = self.unpack(sealing, before)?;
        match kept.fault(run) {
            Some(fault) => Err(corrupt(fault)),
            None => Ok(kept.row),
        }
    }
}

fn corrupt(what: &str) -> Error {
    Error::Corrupt { doing: "decoding a boundary", detail: what.into() }
}

/// Holds a piece of the live branch, the oldest first, to the hash of the head: each boundary must be sound, and have
/// the hash that its successor says it has.
///
/// # Errors
///
/// What is wrong, and where.
pub(crate) fn hold(run: RunId, head: &Digest, branch: &[Shelved]) -> std::result::Result<(), String> {
    if branch.is_empty() {
        return Err("its head is not there".into());
    }
    let mut expected = *head;
    for Shelved { kept, .. } in branch.iter().rev() {
        if kept.row.content_hash != expected {
            return Err(format!("{}: it is not the boundary that its successor names", kept.place()));
        }
        if let Some(fault) = kept.fault(run) {
            return Err(format!("{}: {fault}", kept.place()));
        }
        expected = kept.row.parent_hash;
    }
    Ok(())
}
