//! Boundaries one by one, on whatever branch they stand: judged for a survey, or decoded for a reading.

use dalsegno_protocol::State;

use crate::branch::{self, advance};
use crate::chain::{DecodedBoundaryExt as _, EncodedBoundary};
use crate::keys;
use crate::reading::StoredBoundary;
use crate::seal::PayloadCipher;
use crate::shelf::{Found, Shelf};
use crate::{Digest, Error, Gone, Link, Place, Result, RunId, Sound};

/// Boundaries that are read at a time, and bytes of their payloads as they are kept.
pub(crate) const PAGE_ROWS: i64 = 256;
pub(crate) const PAGE_BYTES: i64 = 8 << 20;

/// A boundary of any run, as a reading finds it.
pub(crate) struct Unread {
    pub run: RunId,
    pub undone: bool,
    pub shelved: EncodedBoundary,
}

/// A boundary, and the state after it.
type Known = Option<(Place, State)>;

/// The next boundaries after a place, each judged.
pub(crate) async fn links(shelf: &impl Shelf, run: RunId, after: Option<Place>) -> Result<Vec<Link>> {
    let page = shelf.page(run, after).await?;
    let folds = page.iter().any(|found| found.shelved.as_ref().is_ok_and(EncodedBoundary::is_patch));
    let is_dropped = |found: &Found| found.shelved.as_ref().is_ok_and(|shelved| shelved.dropped);
    let kept = if page.iter().any(is_dropped) { shelf.snapshots(run).await? } else { Vec::new() };
    let mut known = None;
    let mut links = Vec::with_capacity(page.len());
    for found in page {
        let dropped = is_dropped(&found);
        let Found { place, undone, shelved } = found;
        let sound = match shelved {
            Err(detail) => Err(detail),
            Ok(shelved) if dropped => judge_dropped(shelf, run, shelved, &kept, &mut known).await?,
            Ok(shelved) => match judge(shelf, run, shelved, folds, &mut known).await {
                Ok(sound) => Ok(sound),
                // What is damaged is told of, and the survey goes on.
                Err(Error::Corrupt { detail, .. }) => Err(detail),
                Err(error) => return Err(error),
            },
        };
        links.push(Link { place, undone, sound });
    }
    Ok(links)
}

/// A boundary whose payloads were dropped: its header, and whether a snapshot stands for the state after it.
async fn judge_dropped(
    shelf: &impl Shelf,
    run: RunId,
    shelved: EncodedBoundary,
    kept: &[(Place, Digest)],
    known: &mut Known,
) -> Result<std::result::Result<Sound, String>> {
    *known = None;
    if let Some(fault) = shelved.kept.fault(run) {
        return Ok(Err(fault.into()));
    }
    let (place, sound) = (shelved.kept.place(), shelved.link());
    if kept.contains(&(place, sound.content_hash)) {
        match branch::after(shelf, run, place, sound.content_hash, Vec::new()).await {
            Ok(state) => *known = Some((place, state)),
            Err(Error::Corrupt { .. } | Error::Gone { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Ok(Sound { full: known.is_some(), gone: Some(Gone::Dropped), ..sound }))
}

/// A boundary by itself. A patch is judged after the state before it; where that is damaged, which is told of where the
/// damage is, it passes as a boundary that needs a good one before it. One that was unpacked needs none.
async fn judge(
    shelf: &impl Shelf,
    run: RunId,
    shelved: EncodedBoundary,
    folds: bool,
    known: &mut Known,
) -> Result<Sound> {
    let last = known.take();
    if let Some(fault) = shelved.kept.fault(run) {
        return Err(Error::Corrupt { doing: "judging a boundary", detail: fault.into() });
    }
    let sealing = sealing_of(shelf, run, &shelved).await?;
    let (place, sound) = (shelved.kept.place(), shelved.link());
    if let gone @ Some(_) = shelved.gone(&sealing) {
        return Ok(Sound { full: false, gone, ..sound });
    }
    let before = match (sound.parent, last) {
        (None, _) => Some(State::new()),
        (Some(parent), Some((place, state))) if place == parent => Some(state),
        (Some(parent), _) if shelved.is_patch() => {
            match branch::after(shelf, run, parent, sound.parent_hash, Vec::new()).await {
                Ok(state) => Some(state),
                Err(Error::Corrupt { .. } | Error::Gone { .. }) => return Ok(Sound { full: false, ..sound }),
                Err(error) => return Err(error),
            }
        }
        (Some(_), _) => None,
    };
    let row = shelved.decode_verified(run, &sealing, before.as_ref())?;
    if folds {
        *known = advance(before, &row)?.map(|state| (place, state));
    }
    Ok(sound)
}

async fn sealing_of(shelf: &impl Shelf, run: RunId, shelved: &EncodedBoundary) -> Result<PayloadCipher> {
    if shelved.is_sealed() { shelf.sealing(run).await } else { Ok(PayloadCipher::unsealed()) }
}

/// Boundaries with their payloads. One whose payloads cannot be decoded goes without them, and says why.
pub(crate) async fn unpacked(shelf: &impl Shelf, page: Vec<Unread>) -> Result<Vec<StoredBoundary>> {
    let folds = page.iter().any(|unread| unread.shelved.is_patch());
    let mut last: Option<(RunId, Place, State)> = None;
    let mut boundaries = Vec::with_capacity(page.len());
    for Unread { run, undone, shelved } in page {
        let header = shelved.kept.clone();
        let sealing = match sealing_of(shelf, run, &shelved).await {
            Ok(sealing) => sealing,
            Err(error) => {
                let damage = keys::unwrap_failure(Err(error))?;
                boundaries.push(StoredBoundary { run, kept: header, undone, gone: None, damage });
                continue;
            }
        };
        if let gone @ Some(_) = shelved.gone(&sealing) {
            boundaries.push(StoredBoundary { run, kept: header, undone, gone, damage: None });
            continue;
        }
        let (parent, parent_hash) = (header.parent, header.row.parent_hash);
        let before = match (parent, last.take()) {
            (None, _) => Ok(Some(State::new())),
            (Some(parent), Some((of, place, state))) if (of, place) == (run, parent) => Ok(Some(state)),
            (Some(parent), _) if shelved.is_patch() => {
                branch::after(shelf, run, parent, parent_hash, Vec::new()).await.map(Some)
            }
            (Some(_), _) => Ok(None),
        };
        let unpacked = before.and_then(|before| {
            let kept = shelved.decode(&sealing, before.as_ref())?;
            let after = if folds { advance(before, &kept.row)? } else { None };
            Ok((kept, after))
        });
        boundaries.push(match unpacked {
            Ok((kept, after)) => {
                last = after.map(|state| (run, kept.place(), state));
                StoredBoundary { run, kept, undone, gone: None, damage: None }
            }
            // A plain patch of a state that nobody can read any more.
            Err(Error::Gone { .. }) if shelf.sealing(run).await?.is_shredded() => {
                StoredBoundary { run, kept: header, undone, gone: Some(Gone::Shredded), damage: None }
            }
            Err(Error::Corrupt { detail, .. } | Error::Gone { detail, .. }) => {
                StoredBoundary { run, kept: header, undone, gone: None, damage: Some(detail) }
            }
            Err(error) => return Err(error),
        });
    }
    Ok(boundaries)
}
