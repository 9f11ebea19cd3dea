//! The chain of a run's boundaries: each boundary checked on its own, and with the one before. Pure: the databases
//! only read the rows.

use dalsegno_model::{
    BoundaryId, BoundaryRow, DecodedBoundary, Digest, Error, PayloadLoss, Result, RunId, ValidBoundary,
};
use dalsegno_protocol::{Boundary, State};

use crate::header::{Header, NO_PARENT};
use crate::seal::{AadContext, DigestKeyExt as _, PayloadCipher, is_sealed};
use crate::{codec, fold, header};

/// Checks of a decoded boundary.
pub trait DecodedBoundaryExt {
    /// What is wrong with the row, regardless of other rows; `None` if nothing is.
    fn fault(&self, run: RunId) -> Option<&'static str>;
}

impl DecodedBoundaryExt for DecodedBoundary {
    fn fault(&self, run: RunId) -> Option<&'static str> {
        if content_hash(self, run) != self.row.content_hash {
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
            return Some("its row counts another number of events than it has");
        }
        if self.parent.is_none() != (self.row.parent_hash == NO_PARENT) {
            return Some("its parent hash and its parent columns disagree on whether it is the first");
        }
        if self.row.forked_from.is_some() && !is_base(self) {
            return Some("it names a run that was forked, and is not the first boundary of a fork");
        }
        (!follows_closely(self)).then_some("it names a parent that is not the boundary before it")
    }
}

/// Whether this can be the first boundary of a fork: the full state after the result of a turn.
fn is_base(decoded: &DecodedBoundary) -> bool {
    let DecodedBoundary { row, parent, .. } = decoded;
    parent.is_none()
        && row.full
        && row.boundary == Boundary::Result
        && row.forked_from.is_some_and(|from| from.turn == row.turn)
}

/// Whether the parent is the boundary before. Turns have no gaps: a result follows its plan or the turn before; a
/// plan follows the turn before.
fn follows_closely(decoded: &DecodedBoundary) -> bool {
    let BoundaryId { turn, boundary, .. } = decoded.id();
    match decoded.parent {
        None => turn == 1 || decoded.row.forked_from.is_some(),
        Some(BoundaryId { boundary: Boundary::Plan, turn: before, .. }) => {
            before == turn && boundary == Boundary::Result
        }
        Some(BoundaryId { boundary: Boundary::Result, turn: before, .. }) => {
            before.checked_add(1) == Some(turn)
        }
    }
}

fn content_hash(decoded: &DecodedBoundary, run: RunId) -> Digest {
    let row = &decoded.row;
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
        ops_digest: decoded.ops_digest,
        full: row.full,
        events_digest: decoded.events_digest,
        usage: row.usage,
        trigger: row.trigger.as_deref(),
        records_digest: row.records_digest,
        forked_from: row.forked_from,
    }
    .content_hash()
}

/// A boundary as it is stored, before its payloads are decoded.
#[derive(Clone, Debug)]
pub struct EncodedBoundary {
    /// The boundary without its payloads.
    pub boundary: DecodedBoundary,
    /// Its payloads; `None` if they were not read.
    pub payloads: Option<Payloads>,
    /// Whether its payloads were dropped, because the run is past its retention or this boundary is older than those
    /// that it keeps. The run's own row decides: in a live run that keeps everything no boundary is dropped, whatever
    /// the boundary's row says.
    pub dropped: bool,
    /// A snapshot of the state after it, if one is to be used.
    pub snapshot: Option<EncodedSnapshot>,
}

/// Payloads as they are stored.
#[derive(Clone, Debug)]
pub struct Payloads {
    /// Channel operations.
    pub ops: Option<Vec<u8>>,
    /// All events, encoded together.
    pub events: Option<Vec<u8>>,
}

impl Payloads {
    /// Whether they can only be read with the run's data key.
    fn are_sealed(&self) -> bool {
        [&self.ops, &self.events].into_iter().flatten().any(|payload| is_sealed(payload))
    }
}

/// A snapshot as it is stored, without its chunks.
#[derive(Clone, Debug)]
pub struct EncodedSnapshot {
    /// Its document ([`crate::manifest`]).
    pub document: Vec<u8>,
    /// The digest of the document, according to its row.
    pub digest: Vec<u8>,
}

impl EncodedBoundary {
    /// Whether its payloads can only be decoded with the state before it.
    pub fn is_patch(&self) -> bool {
        let payloads = self.payloads.as_ref();
        payloads.and_then(|payloads| payloads.ops.as_deref()).is_some_and(codec::is_patch)
    }

    /// Its links.
    pub fn link(&self) -> ValidBoundary {
        let BoundaryRow { parent_hash, content_hash, full, position, .. } = self.boundary.row;
        ValidBoundary {
            parent: self.boundary.parent,
            parent_hash,
            content_hash,
            full,
            position,
            payload_loss: None,
        }
    }

    /// Why its payloads are missing on purpose, if they are.
    pub fn gone(&self, cipher: &PayloadCipher) -> Option<PayloadLoss> {
        if self.dropped {
            return Some(PayloadLoss::Dropped);
        }
        let are_sealed = self.payloads.as_ref().is_some_and(Payloads::are_sealed);
        (are_sealed && cipher.is_shredded()).then_some(PayloadLoss::Shredded)
    }

    /// Whether any part of it can only be read with the run's data key.
    pub fn is_sealed(&self) -> bool {
        self.payloads.as_ref().is_some_and(Payloads::are_sealed)
            || self.snapshot.as_ref().is_some_and(|snapshot| is_sealed(&snapshot.document))
    }

    /// Whether it has payloads, and they are not sealed.
    pub fn is_plain(&self) -> bool {
        let payloads = self.payloads.as_ref();
        payloads.is_some_and(|decoded| {
            (decoded.ops.is_some() || decoded.events.is_some()) && !decoded.are_sealed()
        })
    }

    /// Decodes the payloads, unless they are missing on purpose. `before` is the state before the boundary, if known.
    pub fn decode(self, cipher: &PayloadCipher, before: Option<&State>) -> Result<DecodedBoundary> {
        if self.gone(cipher).is_some() {
            return Ok(self.boundary);
        }
        let payloads = self.payloads.ok_or_else(|| corrupt("its payloads were not read"))?;
        let BoundaryRow { turn, boundary, commit_id, .. } = self.boundary.row;
        let digest_key =
            payloads.are_sealed().then(|| cipher.digest_key(turn, boundary, commit_id)).flatten();
        // The base of a fork is a whole state, which may be larger than what one body of a worker adds.
        let limit = if self.boundary.row.forked_from.is_some() { codec::STATE_LIMIT } else { codec::LIMIT };
        let open = |decoded, context| cipher.open(context, decoded);
        let ops =
            payloads.ops.as_deref().map(|decoded| open(decoded, AadContext::Ops(turn, boundary, commit_id)));
        let ops = match ops.transpose()? {
            None => None,
            Some(patch) if codec::is_patch(&patch) => {
                let before =
                    before.ok_or_else(|| corrupt("it is a patch, and the state before it is not known"))?;
                Some(codec::decode_after(&fold::text(before)?, &patch, codec::LIMIT)?)
            }
            Some(payload) => Some(codec::decode(&payload, limit)?),
        };
        let ops = ops.map(String::from_utf8).transpose();
        let ops = ops.map_err(|_| corrupt("its channel operations are not UTF-8"))?;
        let events = payloads
            .events
            .as_deref()
            .map(|decoded| open(decoded, AadContext::Events(turn, boundary, commit_id)));
        let events = codec::decode_events(events.transpose()?.as_deref(), codec::LIMIT)?;
        let row = BoundaryRow { ops, events, ..self.boundary.row };
        Ok(DecodedBoundary { row, digest_key, has_payloads: true, ..self.boundary })
    }

    /// Decodes the payloads and checks the boundary against its hash.
    pub fn decode_verified(
        self,
        run: RunId,
        cipher: &PayloadCipher,
        before: Option<&State>,
    ) -> Result<BoundaryRow> {
        let decoded = self.decode(cipher, before)?;
        match decoded.fault(run) {
            Some(fault) => Err(corrupt(fault)),
            None => Ok(decoded.row),
        }
    }
}

fn corrupt(what: &str) -> Error {
    Error::Corrupt { operation: "decoding a boundary", detail: what.into() }
}

/// Checks a part of the live branch, the oldest boundary first, against the hash of the head: each boundary must pass
/// its own check, and have the hash that its successor names.
///
/// # Errors
///
/// What is wrong, and at which boundary.
pub fn verify_branch(
    run: RunId,
    head: &Digest,
    branch: &[EncodedBoundary],
) -> std::result::Result<(), String> {
    if branch.is_empty() {
        return Err("its head is not there".into());
    }
    let mut expected = *head;
    for EncodedBoundary { boundary: decoded, .. } in branch.iter().rev() {
        if decoded.row.content_hash != expected {
            return Err(format!("{}: it is not the boundary that its successor names", decoded.id()));
        }
        if let Some(fault) = decoded.fault(run) {
            return Err(format!("{}: {fault}", decoded.id()));
        }
        expected = decoded.row.parent_hash;
    }
    Ok(())
}
