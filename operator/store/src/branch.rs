//! The live branch, for both engines: the links are verified by their hashes, payloads are decoded in order, and
//! states are built from the nearest boundary that does not depend on an earlier one.
//!
//! # Guarantees
//!
//! - Every result follows from the run's head: each boundary has the hash that its successor, or the run's row,
//!   states, and each payload has its digest.
//! - A damaged snapshot is skipped, and earlier boundaries are read instead: this takes longer, and the result is the
//!   same. A plain snapshot of a run that has a data key is skipped too, unless a later boundary was written plain,
//!   or the payloads before the snapshot were dropped.
//! - If a wanted payload was dropped or shredded, the result is [`Error::Gone`].
//! - Any other damage or loss is [`Error::Corrupt`].

use dalsegno_protocol::State;

use crate::snapshot::{self, OpenedSnapshot, SnapshotOf};
use crate::snapshot_io::{Branch, HashedBoundary, SnapshotReader, Walk};
use dalsegno_format::chain::{self, EncodedBoundary, EncodedSnapshot};
use dalsegno_format::seal::{PayloadCipher, is_sealed};
use dalsegno_format::{fold, size};
use dalsegno_model::{BoundaryId, BoundaryRow, Digest, Error, PayloadLoss, Result, RunId};

/// Damaged snapshots that a walk skips one by one. After these, it uses a snapshot only where there is no other way.
const MAX_SKIPPED: usize = 3;

/// The state after a boundary, and that boundary without its payloads.
pub(crate) struct StateAt {
    pub state: State,
    pub row: BoundaryRow,
    /// Boundaries that were folded onto the nearest snapshot, plain full state or beginning.
    pub lag: i32,
    /// Chunks that are stored and were verified.
    pub chunks: Vec<Digest>,
}

/// The state after a turn of the live branch, or after its head.
pub(crate) async fn state(
    reader: &impl SnapshotReader,
    run: RunId,
    turn: Option<i32>,
) -> Result<Option<StateAt>> {
    read_state(reader, run, Walk::to_state(None), turn).await
}

/// The state after the head. `None` if this state, or an earlier one on the way to it, is larger than `max_bytes`, as
/// [`size`] counts them.
pub(crate) async fn small_state(
    reader: &impl SnapshotReader,
    run: RunId,
    max_bytes: usize,
) -> Result<Option<StateAt>> {
    read_state(reader, run, Walk { max_state_bytes: Some(max_bytes), ..Walk::to_state(None) }, None).await
}

/// The state after a boundary of any branch. The snapshots of the `excluded` boundaries are not used.
pub(crate) async fn state_after(
    reader: &impl SnapshotReader,
    run: RunId,
    boundary: HashedBoundary,
    excluded: Vec<Digest>,
) -> Result<State> {
    let walk = Walk { excluded_snapshots: excluded, ..Walk::to_state(Some(boundary)) };
    Ok(existing_state(reader, run, boundary.id, walk).await?.state)
}

/// The state after a boundary of any branch; `None`: the run has no such boundary.
///
/// The hash of a live boundary follows from the head. That of an undone one is its own: nothing that is read links to it.
pub(crate) async fn state_by_id(
    reader: &impl SnapshotReader,
    run: RunId,
    id: BoundaryId,
) -> Result<Option<StateAt>> {
    let Some(mut stored) = reader.boundary_hash(run, id).await? else { return Ok(None) };
    if stored.is_live && !is_on_live_branch(reader, run, stored.boundary).await? {
        // A rewind may have undone it in between.
        match reader.boundary_hash(run, id).await? {
            Some(again) => stored = again,
            None => return Ok(None),
        }
        if stored.is_live {
            let detail = format!("{id}: its row says that it is on the live branch, and it is not");
            return Err(corrupt(run, detail));
        }
    }
    existing_state(reader, run, id, Walk::to_state(Some(stored.boundary))).await.map(Some)
}

async fn is_on_live_branch(
    reader: &impl SnapshotReader,
    run: RunId,
    HashedBoundary { id, content_hash }: HashedBoundary,
) -> Result<bool> {
    let turn = boundaries(reader, run, id.turn, id.turn).await?;
    Ok(turn.iter().any(|row| row.id() == id && row.content_hash == content_hash))
}

/// The state after a boundary, built from boundaries alone; from a snapshot only if the payloads before it were
/// dropped.
pub(crate) async fn state_without_snapshots(
    reader: &impl SnapshotReader,
    run: RunId,
    boundary: HashedBoundary,
) -> Result<StateAt> {
    let walk = Walk { avoid_snapshots: true, ..Walk::to_state(Some(boundary)) };
    existing_state(reader, run, boundary.id, walk).await
}

async fn existing_state(
    reader: &impl SnapshotReader,
    run: RunId,
    boundary_id: BoundaryId,
    walk: Walk,
) -> Result<StateAt> {
    let found = read_state(reader, run, walk, None).await?;
    found.ok_or_else(|| corrupt(run, format!("{boundary_id}: it does not exist")))
}

async fn read_state(
    reader: &impl SnapshotReader,
    run: RunId,
    walk: Walk,
    turn: Option<i32>,
) -> Result<Option<StateAt>> {
    let to = turn.map_or(walk.to, |turn| turn.min(walk.to));
    if to < 1 {
        return Ok(None);
    }
    let walk = Walk { to, ..walk };
    let Some(DecodedBranch { mut rows, state, head_turn, chunks, from_snapshot }) =
        read(reader, run, walk).await?
    else {
        return Ok(None);
    };
    if turn.is_some_and(|turn| turn > head_turn) {
        return Ok(None);
    }
    // A plain full state, like a snapshot, does not depend on an earlier boundary.
    let is_independent = from_snapshot || rows.first().is_some_and(|first| first.full);
    let lag = i32::try_from(rows.len()).unwrap_or(i32::MAX) - i32::from(is_independent);
    let (Some(state), Some(row)) = (state, rows.pop()) else {
        return Err(corrupt(run, "its live branch ends before a full state or the first boundary"));
    };
    Ok(Some(StateAt { state, row, lag, chunks }))
}

/// The boundaries of a range of turns of the live branch, in order, with decoded payloads.
pub(crate) async fn boundaries(
    reader: &impl SnapshotReader,
    run: RunId,
    from: i32,
    to: i32,
) -> Result<Vec<BoundaryRow>> {
    let (from, to) = (from.max(1), to.min(i32::MAX - 1));
    if from > to {
        return Ok(Vec::new());
    }
    let walk = Walk { from, to, with_state: false, ..Walk::to_state(None) };
    let Some(decoded) = read(reader, run, walk).await? else {
        return Ok(Vec::new());
    };
    Ok(decoded.rows.into_iter().filter(|row| row.turn >= from).collect())
}

/// Decoded boundaries up to the last wanted turn, and the state after them.
struct DecodedBranch {
    rows: Vec<BoundaryRow>,
    state: Option<State>,
    head_turn: i32,
    chunks: Vec<Digest>,
    /// Whether the state after the first row is that of a snapshot.
    from_snapshot: bool,
}

async fn read(reader: &impl SnapshotReader, run: RunId, mut walk: Walk) -> Result<Option<DecodedBranch>> {
    let mut cipher = PayloadCipher::unsealed();
    loop {
        let Some(branch) = reader.walk(run, &walk).await? else {
            return Ok(None);
        };
        branch.verify(walk.from)?;
        // Needed even if no snapshot is used: the cipher decides whether missing payloads are gone or damaged.
        if branch.encoded.iter().any(EncodedBoundary::is_sealed) {
            cipher = reader.cipher(run).await?;
        }
        // The latest snapshot. Earlier boundaries may be in the walk too: wanted ones whose payloads were dropped.
        let snapshot = branch.encoded.iter().enumerate().rev();
        let mut snapshot =
            snapshot.filter_map(|(index, encoded)| Some((index, encoded, encoded.snapshot.as_ref()?)));
        let Some((index, encoded, snapshot)) = snapshot.next() else {
            return branch.decode(&walk, None, &cipher);
        };
        let content_hash = encoded.boundary.row.content_hash;
        if walk.is_too_large(|| snapshot::length(&content_hash, snapshot, &cipher)) {
            return Ok(None);
        }
        let found = SnapshotOf { run, content_hash: &content_hash, stored: snapshot };
        let opened = match branch.may_use(index, snapshot) {
            true => snapshot::open(reader, found, &cipher).await,
            false => Err(corrupt(
                run,
                "it is plain although the run has a data key, and no boundary after it is plain",
            )),
        };
        match opened {
            Ok(opened) => return branch.decode(&walk, Some((index, opened)), &cipher),
            Err(Error::Corrupt { detail, .. }) => {
                tracing::warn!(%run, detail, "a snapshot was not used");
                walk.exclude(content_hash);
            }
            Err(other) => return Err(other),
        }
    }
}

impl Walk {
    /// To the state after a boundary, or after the head.
    fn to_state(start: Option<HashedBoundary>) -> Self {
        Self {
            start,
            from: i32::MAX,
            to: i32::MAX - 1,
            with_state: true,
            excluded_snapshots: Vec::new(),
            avoid_snapshots: false,
            max_state_bytes: None,
        }
    }

    /// Whether a state of this size is larger than the walk allows. The size is computed only if there is a limit.
    fn is_too_large(&self, bytes: impl FnOnce() -> usize) -> bool {
        self.max_state_bytes.is_some_and(|max| bytes() > max)
    }

    fn exclude(&mut self, content_hash: Digest) {
        self.avoid_snapshots |= self.excluded_snapshots.len() >= MAX_SKIPPED;
        self.excluded_snapshots.push(content_hash);
    }
}

impl Branch {
    /// Verifies that the boundaries are those that the head's hash covers, and that no wanted one is missing.
    fn verify(&self, from: i32) -> Result<()> {
        let run = self.run;
        chain::verify_branch(run, &self.head_hash, &self.encoded).map_err(|detail| corrupt(run, detail))?;
        let parent = self.encoded.first().and_then(|first| first.boundary.parent);
        if parent.is_some_and(|parent| parent.turn >= from) {
            return Err(corrupt(run, "its live branch ends before its first boundary"));
        }
        Ok(())
    }

    /// Whether the snapshot at this index may be used. A plain one may be used if the run has no data key, or if a
    /// later boundary was written without one, which its hash proves. It is also used if the payloads up to it were
    /// dropped: then there is nothing else to read.
    fn may_use(&self, index: usize, snapshot: &EncodedSnapshot) -> bool {
        !self.has_data_key
            || is_sealed(&snapshot.document)
            || self.encoded[index].dropped
            || self.encoded[index + 1..].iter().any(EncodedBoundary::is_plain)
    }

    /// Decodes the boundaries up to the last wanted turn. `opened`: the index of a boundary whose payloads were not
    /// read, and the snapshot of the state after it. `None`: a state is larger than the walk allows.
    fn decode(
        self,
        walk: &Walk,
        mut opened: Option<(usize, OpenedSnapshot)>,
        cipher: &PayloadCipher,
    ) -> Result<Option<DecodedBranch>> {
        let run = self.run;
        let folds = walk.with_state || self.encoded.iter().any(EncodedBoundary::is_patch);
        let has_beginning = self.encoded.first().is_some_and(|first| first.boundary.parent.is_none());
        let from_snapshot = opened.is_some();
        let mut chunks = Vec::new();
        let mut state = has_beginning.then(State::new);
        let mut rows = Vec::with_capacity(self.encoded.len());
        let mut wanted = self.encoded;
        wanted.retain(|encoded| encoded.boundary.row.turn <= walk.to);
        // In a shredded run, a plain boundary may depend on one that nobody can read.
        let is_gone = cipher.is_shredded() || wanted.last().is_some_and(|last| last.gone(cipher).is_some());
        let is_too_large =
            |state: &Option<State>| walk.is_too_large(|| state.as_ref().map_or(0, size::of_state));
        for (index, encoded) in wanted.into_iter().enumerate() {
            if is_too_large(&state) {
                return Ok(None);
            }
            let boundary_id = encoded.boundary.id();
            if let Some((_, opened)) = opened.take_if(|(at, _)| *at == index) {
                (state, chunks) = (Some(opened.state), opened.chunks);
                rows.push(encoded.boundary.row);
                continue;
            }
            let is_lost = encoded.is_patch() && state.is_none() && cipher.is_shredded();
            if let Some(gone) = encoded.gone(cipher).or(is_lost.then_some(PayloadLoss::Shredded)) {
                if walk.with_state {
                    let (operation, detail) =
                        ("reading a live branch", format!("run {run}: {boundary_id}: {gone}"));
                    return Err(if is_gone {
                        Error::Gone { operation, detail }
                    } else {
                        Error::Corrupt { operation, detail }
                    });
                }
                state = None;
                rows.push(encoded.boundary.row);
                continue;
            }
            let mut row = encoded
                .decode_verified(run, cipher, state.as_ref())
                .map_err(|error| at(run, boundary_id, error))?;
            if folds {
                state = advance(state, &row)?;
            }
            // Free the payloads that only the state needed: decoded, those of many boundaries may be large together.
            if row.turn < walk.from {
                (row.ops, row.events) = (None, Vec::new());
            }
            rows.push(row);
        }
        if is_too_large(&state) {
            return Ok(None);
        }
        Ok(Some(DecodedBranch { rows, state, head_turn: self.head_turn, chunks, from_snapshot }))
    }
}

/// The state after a boundary, from the state before it; `None`: the state before it is needed and unknown.
pub(crate) fn advance(before: Option<State>, row: &BoundaryRow) -> Result<Option<State>> {
    let Some(ops) = &row.ops else { return Ok(before) };
    let Some(mut state) = (if row.full { Some(State::new()) } else { before }) else {
        return Ok(None);
    };
    fold::step(&mut state, ops)?;
    Ok(Some(state))
}

fn at(run: RunId, boundary_id: BoundaryId, error: Error) -> Error {
    match error {
        Error::Corrupt { detail, .. } => corrupt(run, format!("{boundary_id}: {detail}")),
        other => other,
    }
}

fn corrupt(run: RunId, detail: impl std::fmt::Display) -> Error {
    Error::Corrupt { operation: "reading a live branch", detail: format!("run {run}: {detail}") }
}
