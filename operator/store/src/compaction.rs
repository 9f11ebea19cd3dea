//! Compaction of runs that keep their last boundaries only: the payloads of older boundaries are dropped once a
//! snapshot replaces them.
//!
//! # Guarantees
//!
//! - Payloads are dropped only after the snapshot at the last dropped boundary was read back and found equal to the
//!   state that the boundaries make.
//! - All conditions are checked again under the lock of the run's row: the boundary is on the live branch, enough
//!   boundaries follow it, its snapshot is the one that was read back, and all chunks of the snapshot exist.

use std::collections::BTreeSet;

use crate::snapshot;
use crate::snapshot_io::{HashedBoundary, SnapshotWriter};
use crate::snapshot_writer::{ReadBack, snapshot_boundary};
use dalsegno_model::{BoundaryId, Digest, Dropped, Error, Result, RunId};

/// SQL: whether the payloads of the boundary `b` were dropped. The row of its run decides, not the boundary's row
/// alone. Without an argument the run's row is looked up; the argument is the name under which it is joined.
macro_rules! is_dropped {
    () => {
        concat!("coalesce((SELECT ", is_dropped!("r"), " FROM runs r WHERE r.id = b.run), false)")
    };
    ($run:literal) => {
        concat!(
            "coalesce(",
            $run,
            ".lifecycle <> 'live' AND b.dropped OR (b.turn, b.boundary) <= (",
            $run,
            ".dropped_turn, ",
            $run,
            ".dropped_boundary) OR b.epoch < ",
            $run,
            ".dropped_epoch, false)"
        )
    };
}
pub(crate) use is_dropped;

/// SQL: whether the run `r` keeps its last boundaries only, and can be compacted. A shredded run cannot: nobody can
/// make a snapshot of it.
macro_rules! is_compactable {
    () => {
        "r.keep_last IS NOT NULL AND r.expired_at IS NULL \
             AND NOT EXISTS (SELECT 1 FROM data_keys k WHERE k.run = r.id AND k.shredded_at IS NOT NULL)"
    };
}

/// Runs that may have boundaries or snapshots to drop, after the run `$1`, at most `$2`. A turn has at most two
/// boundaries. An ended run is listed until it was found to have nothing more to drop ([`MARK_COMPACTED`]). The argument
/// is the table.
macro_rules! runs_to_compact {
    ($runs:literal) => {
        concat!(
            "SELECT id FROM ",
            $runs,
            " WHERE id > $1 AND keep_last IS NOT NULL AND expired_at IS NULL \
               AND compacted_keep_last IS DISTINCT FROM keep_last \
               AND (lifecycle <> 'live' \
                    OR 2 * (coalesce(head_turn, 0) - coalesce(dropped_turn, 0)) + 1 >= keep_last) \
             ORDER BY id LIMIT $2"
        )
    };
}
pub(crate) use runs_to_compact;

/// How many boundaries the run `$1` keeps, if it has ended.
pub(crate) const ENDED_KEEP_LAST: &str =
    "SELECT keep_last FROM runs WHERE id = $1 AND lifecycle <> 'live' AND keep_last IS NOT NULL";

/// Records that the ended run `$1`, which keeps `$2` boundaries, has nothing more to drop. Nothing is added to an ended
/// run.
pub(crate) const MARK_COMPACTED: &str = "UPDATE runs SET compacted_keep_last = keep_last WHERE id = $1 AND lifecycle <> 'live' AND keep_last = $2";

/// The first snapshot of the run `$1` from which no state is rebuilt any more.
pub(crate) const OBSOLETE_SNAPSHOT: &str = concat!(
    "SELECT s.content_hash FROM runs r JOIN snapshots s ON s.run = r.id WHERE r.id = $1 AND ",
    is_compactable!(),
    " AND ((s.turn, s.boundary) < (r.dropped_turn, r.dropped_boundary) OR s.epoch < r.dropped_epoch) \
     ORDER BY s.turn, s.boundary, s.epoch LIMIT 1"
);

/// The boundary of the live branch up to which payloads are dropped in one step. None, unless enough boundaries have
/// accumulated: while the run is live, ten more than it keeps. Of two boundaries or more, a step drops at most `$2`
/// rows, undone ones included, and `$3` bytes of payloads.
pub(crate) const TRUNCATION_POINT: &str = concat!(
    "WITH run AS ( \
         SELECT r.keep_last, r.lifecycle, coalesce(r.dropped_turn, 0) AS turn, \
                coalesce(r.dropped_boundary, 0) AS boundary \
         FROM runs r WHERE r.id = $1 AND ",
    is_compactable!(),
    " ), after AS ( \
         SELECT b.turn, b.boundary, b.epoch, b.content_hash, b.undone, run.keep_last, run.lifecycle, \
                count(*) FILTER (WHERE NOT b.undone) OVER boundary_id AS nth, \
                count(*) FILTER (WHERE NOT b.undone) OVER () AS count, \
                count(*) OVER boundary_id AS so_many, \
                sum(coalesce(length(b.ops), 0) + coalesce(length(b.events), 0)) OVER boundary_id AS bytes \
         FROM run JOIN boundaries b ON b.run = $1 AND (b.turn, b.boundary) > (run.turn, run.boundary) \
         WINDOW boundary_id AS (ORDER BY b.turn, b.boundary) \
     ) \
     SELECT turn, boundary, epoch, content_hash FROM after \
     WHERE NOT undone AND count > keep_last + CASE lifecycle WHEN 'live' THEN 9 ELSE 0 END \
       AND nth <= count - keep_last AND (nth = 1 OR so_many <= $2 AND bytes <= $3) \
     ORDER BY nth DESC LIMIT 1"
);

/// Deletes records of the run `$1` that a change up to the turn `$2` and boundary `$3` has replaced, if that change came
/// after the turn `$4` and boundary `$5`, up to which payloads are dropped already. No rewind goes back before the
/// change, so nothing can make these records visible again.
#[cfg(feature = "sqlite")]
pub(crate) const DROP_REPLACED_RECORDS: &str = "DELETE FROM records \
     WHERE run = $1 AND (space, key, seq) IN ( \
         SELECT old.space, old.key, old.seq \
         FROM ( \
             SELECT space, key, max(seq) AS seq FROM records \
             WHERE run = $1 AND op IN ('put', 'delete') AND NOT undone \
               AND (turn, boundary) <= ($2, $3) AND (turn, boundary) > ($4, $5) GROUP BY space, key \
         ) AS last CROSS JOIN records old \
         WHERE old.run = $1 AND old.space = last.space AND old.key = last.key AND old.seq < last.seq)";

/// Deletes a `delete` of the run `$1` of which [`DROP_REPLACED_RECORDS`], with the same parameters, has left nothing that
/// it replaced. A key without rows holds nothing either, and costs no read anything.
#[cfg(feature = "sqlite")]
pub(crate) const DROP_EMPTY_DELETES: &str = "DELETE FROM records \
     WHERE run = $1 AND (space, key, seq) IN ( \
         SELECT r.space, r.key, r.seq FROM records r \
         WHERE r.run = $1 AND r.op = 'delete' AND NOT r.undone \
           AND (r.turn, r.boundary) <= ($2, $3) AND (r.turn, r.boundary) > ($4, $5) \
           AND NOT EXISTS ( \
               SELECT 1 FROM records old \
               WHERE old.run = $1 AND old.space = r.space AND old.key = r.key AND old.seq < r.seq))";

/// The next step of compaction.
pub(crate) enum CompactionStep {
    /// There is nothing to do.
    Idle,
    /// Delete the obsolete snapshot of this boundary.
    Discard(Digest),
    /// Drop all payloads up to this boundary, which has this hash.
    Truncate(BoundaryId, Digest),
}

/// The boundary up to which payloads are dropped, and the snapshot that replaces them.
#[derive(Clone, Debug)]
pub(crate) struct TruncateTo {
    pub run: RunId,
    pub boundary: BoundaryId,
    pub content_hash: Digest,
    /// The snapshot of the state after the boundary.
    pub snapshot: ReadBack,
}

/// A snapshot to delete.
#[derive(Clone, Debug)]
pub(crate) struct ObsoleteSnapshot {
    pub run: RunId,
    pub content_hash: Digest,
    /// Chunks that no other snapshot of the run uses.
    pub chunks: Vec<Digest>,
    /// The run's other snapshots. If there is a snapshot that is not listed here, nothing is deleted.
    pub others: Vec<Digest>,
}

/// Deletes what compaction has made obsolete.
pub(crate) trait SnapshotGc: SnapshotWriter {
    /// The run's next step. `rows`: the most boundaries that it may drop.
    fn next(&self, run: RunId, rows: u32) -> impl Future<Output = Result<CompactionStep>> + Send;

    /// Drops the payloads of all boundaries up to this one. Returns the number of rows; 0 if a condition is no longer
    /// met.
    fn truncate(&self, to: TruncateTo) -> impl Future<Output = Result<u64>> + Send;

    /// Deletes a snapshot and its chunks. Returns the number of rows; 0 if a condition is no longer met.
    fn discard(&self, snapshot: ObsoleteSnapshot) -> impl Future<Output = Result<u64>> + Send;

    /// How many boundaries the run keeps, if it has ended.
    fn ended_keep_last(&self, run: RunId) -> impl Future<Output = Result<Option<i32>>> + Send;

    /// Records that an ended run, which keeps this many boundaries, has nothing more to drop.
    fn mark_compacted(&self, run: RunId, keep_last: i32) -> impl Future<Output = Result<()>> + Send;
}

/// Does one step of compaction for a run.
pub(crate) async fn step(gc: &impl SnapshotGc, run: RunId, limit: u32) -> Result<Dropped> {
    let rows = match gc.next(run, limit).await? {
        CompactionStep::Idle => {
            mark_if_compacted(gc, run, limit).await?;
            return Ok(Dropped::default());
        }
        CompactionStep::Discard(content_hash) => gc.discard(obsolete(gc, run, content_hash).await?).await?,
        CompactionStep::Truncate(boundary_id, content_hash) => {
            match snapshot_boundary(gc, run, HashedBoundary { id: boundary_id, content_hash }).await {
                Ok(snapshot) => {
                    gc.truncate(TruncateTo { run, boundary: boundary_id, content_hash, snapshot }).await?
                }
                // It is an error only if this is still the next step. Otherwise another process did it meanwhile.
                Err(error @ (Error::Gone { .. } | Error::Corrupt { .. })) => {
                    match gc.next(run, limit).await? {
                        CompactionStep::Truncate(now, _) if now == boundary_id => return Err(error),
                        CompactionStep::Truncate(..) | CompactionStep::Discard(_) | CompactionStep::Idle => 0,
                    }
                }
                Err(error) => return Err(error),
            }
        }
    };
    // With 0 rows another process works on this run: stop here, and look at the run again later.
    Ok(Dropped { run: Some(run), rows, done: rows == 0 })
}

/// Takes an ended run with nothing more to drop from the list. What it keeps is read before its next step: if that
/// changes in between, the run stays on the list.
async fn mark_if_compacted(gc: &impl SnapshotGc, run: RunId, limit: u32) -> Result<()> {
    let Some(keep_last) = gc.ended_keep_last(run).await? else { return Ok(()) };
    if matches!(gc.next(run, limit).await?, CompactionStep::Idle) {
        gc.mark_compacted(run, keep_last).await?;
    }
    Ok(())
}

/// What is deleted with a snapshot. If its document cannot be read, its chunks are unknown and stay.
async fn obsolete(gc: &impl SnapshotGc, run: RunId, content_hash: Digest) -> Result<ObsoleteSnapshot> {
    let others: Vec<_> = gc.snapshots(run).await?.into_iter().map(|(_, hash)| hash).collect();
    let others: Vec<_> = others.into_iter().filter(|hash| *hash != content_hash).collect();
    let mut chunks: BTreeSet<_> = snapshot::chunks(gc, run, &content_hash).await?.into_iter().collect();
    for other in &others {
        for chunk in snapshot::chunks(gc, run, other).await? {
            chunks.remove(&chunk);
        }
    }
    Ok(ObsoleteSnapshot { run, content_hash, chunks: chunks.into_iter().collect(), others })
}
