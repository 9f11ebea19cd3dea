//! The live branch, whichever database keeps it: links held to their hashes, payloads decoded in their order, states
//! found from the nearest boundary that needs nothing before it.
//!
//! # Guarantees
//!
//! - What is answered follows from the run's head: every boundary read has the hash that its successor, or the run's
//!   row, says it has, and every payload its digest.
//! - A damaged snapshot costs time and no answer: it is left aside, and the boundaries before it are read. So is one that is
//!   plain and stands beside a data key, unless a boundary after it was written plain too, or there is nothing else.
//! - Payloads that were dropped or shredded are [`Error::Gone`] to whoever asks for them.
//! - Anything else that is damaged or gone is [`Error::Corrupt`].

use dalsegno_protocol::State;

use crate::chain::{self, EncodedBoundary, EncodedSnapshot};
use crate::seal::{PayloadCipher, is_sealed};
use crate::shelf::{Branch, Shelf, Walk};
use crate::snapshot;
use crate::{BoundaryRow, Digest, Error, Gone, Place, Result, RunId, fold, size};

/// Damaged snapshots that are left aside one by one; after these, all are that a walk can do without.
const REFUSALS: usize = 3;

/// A state and the boundary after which it stands, without its payloads.
pub(crate) struct Standpoint {
    pub state: State,
    pub row: BoundaryRow,
    /// Boundaries that were folded onto the nearest snapshot, plain full state or beginning.
    pub lag: i32,
    /// Chunks that are known to be whole.
    pub chunks: Vec<Digest>,
}

/// The state after a turn of the live branch, or after its head.
pub(crate) async fn state(shelf: &impl Shelf, run: RunId, turn: Option<i32>) -> Result<Option<Standpoint>> {
    standpoint(shelf, run, Walk::to_state(None), turn).await
}

/// The state after the head, unless it or one before it counts more than so many bytes, as [`size`] does; then nothing.
pub(crate) async fn small_state(shelf: &impl Shelf, run: RunId, most: usize) -> Result<Option<Standpoint>> {
    standpoint(shelf, run, Walk { most: Some(most), ..Walk::to_state(None) }, None).await
}

/// The state after a boundary, on whatever branch it stands. The snapshots of the `refused` boundaries are not used.
pub(crate) async fn after(
    shelf: &impl Shelf,
    run: RunId,
    place: Place,
    content_hash: Digest,
    refused: Vec<Digest>,
) -> Result<State> {
    let walk = Walk { refused, ..Walk::to_state(Some((place, content_hash))) };
    Ok(standing(shelf, run, place, walk).await?.state)
}

/// The state after a boundary, of boundaries alone: of no snapshot but the one for which those before it were dropped.
pub(crate) async fn rebuilt(
    shelf: &impl Shelf,
    run: RunId,
    place: Place,
    content_hash: Digest,
) -> Result<Standpoint> {
    let walk = Walk { sparing: true, ..Walk::to_state(Some((place, content_hash))) };
    standing(shelf, run, place, walk).await
}

async fn standing(shelf: &impl Shelf, run: RunId, place: Place, walk: Walk) -> Result<Standpoint> {
    let found = standpoint(shelf, run, walk, None).await?;
    found.ok_or_else(|| corrupt(run, format!("{place}: it is not there")))
}

async fn standpoint(
    shelf: &impl Shelf,
    run: RunId,
    walk: Walk,
    turn: Option<i32>,
) -> Result<Option<Standpoint>> {
    let last = turn.map_or(walk.last, |turn| turn.min(walk.last));
    if last < 1 {
        return Ok(None);
    }
    let walk = Walk { last, ..walk };
    let Some(Unpacked { mut rows, state, head_turn, chunks, snapshots }) = read(shelf, run, walk).await?
    else {
        return Ok(None);
    };
    if turn.is_some_and(|turn| turn > head_turn) {
        return Ok(None);
    }
    // A full state that is kept plain needs nothing before it, as a snapshot does not.
    let needs_nothing = snapshots || rows.first().is_some_and(|first| first.full);
    let lag = i32::try_from(rows.len()).unwrap_or(i32::MAX) - i32::from(needs_nothing);
    let (Some(state), Some(row)) = (state, rows.pop()) else {
        return Err(corrupt(run, "its live branch ends before a full state or the first boundary"));
    };
    Ok(Some(Standpoint { state, row, lag, chunks }))
}

/// Boundaries of some turns of the live branch, in order, payloads decoded.
pub(crate) async fn boundaries(
    shelf: &impl Shelf,
    run: RunId,
    from: i32,
    to: i32,
) -> Result<Vec<BoundaryRow>> {
    let (from, last) = (from.max(1), to.min(i32::MAX - 1));
    if from > last {
        return Ok(Vec::new());
    }
    let walk = Walk { from, last, state: false, ..Walk::to_state(None) };
    let Some(unpacked) = read(shelf, run, walk).await? else {
        return Ok(Vec::new());
    };
    Ok(unpacked.rows.into_iter().filter(|row| row.turn >= from).collect())
}

/// Boundaries up to the last wanted turn with their payloads, and what became of the state.
struct Unpacked {
    rows: Vec<BoundaryRow>,
    state: Option<State>,
    head_turn: i32,
    chunks: Vec<Digest>,
    /// Whether the first row's state is that of a snapshot.
    snapshots: bool,
}

async fn read(shelf: &impl Shelf, run: RunId, mut walk: Walk) -> Result<Option<Unpacked>> {
    let mut sealing = PayloadCipher::unsealed();
    loop {
        let Some(branch) = shelf.walk(run, &walk).await? else {
            return Ok(None);
        };
        branch.hold(run, walk.from)?;
        // Asked for a snapshot that is refused, it still says why nothing stands for what was dropped.
        if branch.shelved.iter().any(EncodedBoundary::is_sealed) {
            sealing = shelf.sealing(run).await?;
        }
        // Before it there may be boundaries that were dropped, and are wanted all the same.
        let snapshot = branch.shelved.iter().enumerate().rev();
        let mut snapshot =
            snapshot.filter_map(|(index, shelved)| Some((index, shelved, shelved.snapshot.as_ref()?)));
        let Some((index, shelved, snapshot)) = snapshot.next() else {
            return branch.unpack(run, &walk, None, &sealing);
        };
        let content_hash = shelved.kept.row.content_hash;
        if walk.gives_up_at(|| snapshot::length(&content_hash, snapshot, &sealing)) {
            return Ok(None);
        }
        let opened = match branch.is_in_its_time(index, snapshot) {
            true => snapshot::open(shelf, run, &content_hash, snapshot, &sealing).await,
            false => {
                Err(corrupt(run, "it is plain, and so is nothing after it, though the run has a data key"))
            }
        };
        match opened {
            Ok(opened) => return branch.unpack(run, &walk, Some((index, opened)), &sealing),
            Err(Error::Corrupt { detail, .. }) => {
                tracing::warn!(%run, detail, "a snapshot was not used");
                walk.refuse(content_hash);
            }
            Err(other) => return Err(other),
        }
    }
}

impl Walk {
    /// To the state after a boundary, or after the head.
    fn to_state(start: Option<(Place, Digest)>) -> Self {
        let (from, last) = (i32::MAX, i32::MAX - 1);
        Self { start, from, last, state: true, refused: Vec::new(), sparing: false, most: None }
    }

    /// Whether a state of so many bytes is not made.
    fn gives_up_at(&self, bytes: impl FnOnce() -> usize) -> bool {
        self.most.is_some_and(|most| bytes() > most)
    }

    fn refuse(&mut self, content_hash: Digest) {
        self.sparing |= self.refused.len() >= REFUSALS;
        self.refused.push(content_hash);
    }
}

impl Branch {
    /// The boundaries are those that the head stands for, and none that is wanted is missing.
    fn hold(&self, run: RunId, from: i32) -> Result<()> {
        chain::verify_branch(run, &self.head_hash, &self.shelved).map_err(|detail| corrupt(run, detail))?;
        let parent = self.shelved.first().and_then(|first| first.kept.parent);
        if parent.is_some_and(|parent| parent.turn >= from) {
            return Err(corrupt(run, "its live branch ends before its first boundary"));
        }
        Ok(())
    }

    /// Whether the snapshot at this index is sealed or may be plain: there is no data key, or a boundary that came later was
    /// written without one, which its hash proves. Where the payloads up to it were dropped there is nothing else to read.
    fn is_in_its_time(&self, index: usize, snapshot: &EncodedSnapshot) -> bool {
        !self.has_data_key
            || is_sealed(&snapshot.document)
            || self.shelved[index].dropped
            || self.shelved[index + 1..].iter().any(EncodedBoundary::is_plain)
    }

    /// `opened`: the state after the boundary at this index, whose payloads were not read. `None`: it was given up.
    fn unpack(
        self,
        run: RunId,
        walk: &Walk,
        mut opened: Option<(usize, snapshot::Opened)>,
        sealing: &PayloadCipher,
    ) -> Result<Option<Unpacked>> {
        let folds = walk.state || self.shelved.iter().any(EncodedBoundary::is_patch);
        let begins = self.shelved.first().is_some_and(|first| first.kept.parent.is_none());
        let snapshots = opened.is_some();
        let mut chunks = Vec::new();
        let mut state = begins.then(State::new);
        let mut rows = Vec::with_capacity(self.shelved.len());
        let mut wanted = self.shelved;
        wanted.retain(|shelved| shelved.kept.row.turn <= walk.last);
        // Where the run was shredded, what is plain may follow from what nobody can read.
        let is_gone = sealing.is_shredded() || wanted.last().is_some_and(|last| last.gone(sealing).is_some());
        let outgrown = |state: &Option<State>| walk.gives_up_at(|| state.as_ref().map_or(0, size::of_state));
        for (index, shelved) in wanted.into_iter().enumerate() {
            if outgrown(&state) {
                return Ok(None);
            }
            let place = shelved.kept.place();
            if let Some((_, opened)) = opened.take_if(|(at, _)| *at == index) {
                (state, chunks) = (Some(opened.state), opened.chunks);
                rows.push(shelved.kept.row);
                continue;
            }
            let lost = shelved.is_patch() && state.is_none() && sealing.is_shredded();
            if let Some(gone) = shelved.gone(sealing).or(lost.then_some(Gone::Shredded)) {
                if walk.state {
                    let (doing, detail) = ("reading a live branch", format!("run {run}: {place}: {gone}"));
                    return Err(if is_gone {
                        Error::Gone { doing, detail }
                    } else {
                        Error::Corrupt { doing, detail }
                    });
                }
                state = None;
                rows.push(shelved.kept.row);
                continue;
            }
            let mut row = shelved
                .decode_verified(run, sealing, state.as_ref())
                .map_err(|error| at(run, place, error))?;
            if folds {
                state = advance(state, &row)?;
            }
            // What was read for the state alone is done with: unpacked it may be large at each of many boundaries.
            if row.turn < walk.from {
                (row.ops, row.events) = (None, Vec::new());
            }
            rows.push(row);
        }
        if outgrown(&state) {
            return Ok(None);
        }
        Ok(Some(Unpacked { rows, state, head_turn: self.head_turn, chunks, snapshots }))
    }
}

/// The state after a boundary, from the state before it; `None`: not known.
pub(crate) fn advance(before: Option<State>, row: &BoundaryRow) -> Result<Option<State>> {
    let Some(ops) = &row.ops else { return Ok(before) };
    let Some(mut state) = (if row.full { Some(State::new()) } else { before }) else {
        return Ok(None);
    };
    fold::step(&mut state, ops)?;
    Ok(Some(state))
}

fn at(run: RunId, place: Place, error: Error) -> Error {
    match error {
        Error::Corrupt { detail, .. } => corrupt(run, format!("{place}: {detail}")),
        other => other,
    }
}

fn corrupt(run: RunId, detail: impl std::fmt::Display) -> Error {
    Error::Corrupt { doing: "reading a live branch", detail: format!("run {run}: {detail}") }
}
