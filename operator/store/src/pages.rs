//! Boundaries one by one, on all branches: checked for an integrity scan, or decoded for a read transaction.

use dalsegno_protocol::State;

use crate::branch::{self, advance};
use crate::keys;
use crate::snapshot_io::{HashedBoundary, PageEntry, SnapshotReader};
use dalsegno_format::chain::{DecodedBoundaryExt as _, EncodedBoundary};
use dalsegno_format::seal::PayloadCipher;
use dalsegno_model::read_transaction::StoredBoundary;
use dalsegno_model::{BoundaryCheck, BoundaryId, Digest, Error, PayloadLoss, Result, RunId, ValidBoundary};

/// Boundaries in a page.
pub(crate) const PAGE_ROWS: i64 = 256;
/// Bytes of a page's stored payloads.
pub(crate) const PAGE_BYTES: i64 = 8 << 20;

/// A boundary of any run, as a read transaction finds it.
pub(crate) struct UndecodedBoundary {
    pub run: RunId,
    pub undone: bool,
    pub encoded: EncodedBoundary,
}

/// A boundary and the state after it, if known.
type KnownState = Option<(BoundaryId, State)>;

/// The next boundaries after `after`, each checked.
pub(crate) async fn check(
    reader: &impl SnapshotReader,
    run: RunId,
    after: Option<BoundaryId>,
) -> Result<Vec<BoundaryCheck>> {
    let page = reader.page(run, after).await?;
    let folds = page.iter().any(|entry| entry.encoded.as_ref().is_ok_and(EncodedBoundary::is_patch));
    let is_dropped = |entry: &PageEntry| entry.encoded.as_ref().is_ok_and(|encoded| encoded.dropped);
    let snapshots = if page.iter().any(is_dropped) { reader.snapshots(run).await? } else { Vec::new() };
    let mut page_check = PageCheck { reader, run, folds, snapshots, known: None };
    let mut checked = Vec::with_capacity(page.len());
    for entry in page {
        let dropped = is_dropped(&entry);
        let PageEntry { boundary: boundary_id, undone, encoded } = entry;
        let valid = match encoded {
            Err(detail) => Err(detail),
            Ok(encoded) if dropped => page_check.check_dropped(encoded).await?,
            Ok(encoded) => match page_check.check_one(encoded).await {
                Ok(valid) => Ok(valid),
                // Damage is part of the result, and the scan continues.
                Err(Error::Corrupt { detail, .. }) => Err(detail),
                Err(error) => return Err(error),
            },
        };
        checked.push(BoundaryCheck { id: boundary_id, undone, result: valid });
    }
    Ok(checked)
}

/// A check of the boundaries of a page, one after the other.
struct PageCheck<'a, R> {
    reader: &'a R,
    run: RunId,
    /// Whether states are built, because a boundary of the page is a patch.
    folds: bool,
    /// The boundaries that have a snapshot. Empty if no boundary of the page was dropped.
    snapshots: Vec<(BoundaryId, Digest)>,
    /// The last boundary whose state is known.
    known: KnownState,
}

impl<R: SnapshotReader> PageCheck<'_, R> {
    /// Checks a boundary whose payloads were dropped: its header, and whether there is a snapshot of the state after it.
    async fn check_dropped(
        &mut self,
        encoded: EncodedBoundary,
    ) -> Result<std::result::Result<ValidBoundary, String>> {
        self.known = None;
        if let Some(fault) = encoded.boundary.fault(self.run) {
            return Ok(Err(fault.into()));
        }
        let (boundary_id, valid) = (encoded.boundary.id(), encoded.link());
        if self.snapshots.contains(&(boundary_id, valid.content_hash)) {
            let boundary = HashedBoundary { id: boundary_id, content_hash: valid.content_hash };
            match branch::state_after(self.reader, self.run, boundary, Vec::new()).await {
                Ok(state) => self.known = Some((boundary_id, state)),
                Err(Error::Corrupt { .. } | Error::Gone { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Ok(ValidBoundary {
            full: self.known.is_some(),
            payload_loss: Some(PayloadLoss::Dropped),
            ..valid
        }))
    }

    /// Checks a boundary whose payloads exist. A patch is checked together with the state before it. If that state is
    /// damaged, the damage is reported where it is, and the patch passes as one that needs an intact boundary before it.
    /// A boundary that is not a patch is checked by itself.
    async fn check_one(&mut self, encoded: EncodedBoundary) -> Result<ValidBoundary> {
        let last = self.known.take();
        if let Some(fault) = encoded.boundary.fault(self.run) {
            return Err(Error::Corrupt { operation: "checking a boundary", detail: fault.into() });
        }
        let cipher = cipher_of(self.reader, self.run, &encoded).await?;
        let (boundary_id, valid) = (encoded.boundary.id(), encoded.link());
        if let gone @ Some(_) = encoded.gone(&cipher) {
            return Ok(ValidBoundary { full: false, payload_loss: gone, ..valid });
        }
        let before = match (valid.parent, last) {
            (None, _) => Some(State::new()),
            (Some(parent), Some((boundary_id, state))) if boundary_id == parent => Some(state),
            (Some(parent), _) if encoded.is_patch() => {
                let parent = HashedBoundary { id: parent, content_hash: valid.parent_hash };
                match branch::state_after(self.reader, self.run, parent, Vec::new()).await {
                    Ok(state) => Some(state),
                    Err(Error::Corrupt { .. } | Error::Gone { .. }) => {
                        return Ok(ValidBoundary { full: false, ..valid });
                    }
                    Err(error) => return Err(error),
                }
            }
            (Some(_), _) => None,
        };
        let row = encoded.decode_verified(self.run, &cipher, before.as_ref())?;
        if self.folds {
            self.known = advance(before, &row)?.map(|state| (boundary_id, state));
        }
        Ok(valid)
    }
}

async fn cipher_of(
    reader: &impl SnapshotReader,
    run: RunId,
    encoded: &EncodedBoundary,
) -> Result<PayloadCipher> {
    if encoded.is_sealed() { reader.cipher(run).await } else { Ok(PayloadCipher::unsealed()) }
}

/// Decodes the boundaries of a page. If payloads cannot be decoded, the boundary has the reason instead.
pub(crate) async fn decode(
    reader: &impl SnapshotReader,
    page: Vec<UndecodedBoundary>,
) -> Result<Vec<StoredBoundary>> {
    let folds = page.iter().any(|undecoded| undecoded.encoded.is_patch());
    let mut last: Option<(RunId, BoundaryId, State)> = None;
    let mut boundaries = Vec::with_capacity(page.len());
    for UndecodedBoundary { run, undone, encoded } in page {
        let header = encoded.boundary.clone();
        let cipher = match cipher_of(reader, run, &encoded).await {
            Ok(cipher) => cipher,
            Err(error) => {
                let damage = keys::unwrap_failure(Err(error))?;
                boundaries.push(StoredBoundary { run, decoded: header, undone, payload_loss: None, damage });
                continue;
            }
        };
        if let gone @ Some(_) = encoded.gone(&cipher) {
            boundaries.push(StoredBoundary {
                run,
                decoded: header,
                undone,
                payload_loss: gone,
                damage: None,
            });
            continue;
        }
        let (parent, parent_hash) = (header.parent, header.row.parent_hash);
        let before = match (parent, last.take()) {
            (None, _) => Ok(Some(State::new())),
            (Some(parent), Some((of, boundary_id, state))) if (of, boundary_id) == (run, parent) => {
                Ok(Some(state))
            }
            (Some(parent), _) if encoded.is_patch() => {
                let parent = HashedBoundary { id: parent, content_hash: parent_hash };
                branch::state_after(reader, run, parent, Vec::new()).await.map(Some)
            }
            (Some(_), _) => Ok(None),
        };
        let decoded = before.and_then(|before| {
            let decoded = encoded.decode(&cipher, before.as_ref())?;
            let after = if folds { advance(before, &decoded.row)? } else { None };
            Ok((decoded, after))
        });
        boundaries.push(match decoded {
            Ok((decoded, after)) => {
                last = after.map(|state| (run, decoded.id(), state));
                StoredBoundary { run, decoded, undone, payload_loss: None, damage: None }
            }
            // The patch itself is plain, but the state that it patches was shredded.
            Err(Error::Gone { .. }) if reader.cipher(run).await?.is_shredded() => StoredBoundary {
                run,
                decoded: header,
                undone,
                payload_loss: Some(PayloadLoss::Shredded),
                damage: None,
            },
            Err(Error::Corrupt { detail, .. } | Error::Gone { detail, .. }) => {
                StoredBoundary { run, decoded: header, undone, payload_loss: None, damage: Some(detail) }
            }
            Err(error) => return Err(error),
        });
    }
    Ok(boundaries)
}
