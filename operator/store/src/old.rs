//! What stands before the last boundaries that a run keeps: its payloads are dropped once a snapshot stands for them.
//!
//! # Guarantees
//!
//! - Nothing is dropped unless the state after the last dropped boundary was read back from its snapshot, and is the one
//!   that the boundaries make.
//! - What was looked at is judged again under the lock of the run's row: the boundary is still of the live branch, so many
//!   come after it, its snapshot is the one that was read, and all chunks of it are there.

use std::collections::BTreeSet;

use crate::shelf::Keeper;
use crate::snapshot;
use crate::snapshot_writer::{ReadBack, stand_for};
use crate::{Digest, Dropped, Error, Place, Result, RunId};

/// Whether the payloads of the boundary `b` were dropped: the row of its run says so, and not its own alone. That row is looked
/// up, or joined under the name that is given.
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

/// Whether the run `r` keeps its last boundaries only. Of one that was shredded nobody can make a snapshot.
macro_rules! keeps_last {
    () => {
        "r.keep_last IS NOT NULL AND r.expired_at IS NULL \
             AND NOT EXISTS (SELECT 1 FROM data_keys k WHERE k.run = r.id AND k.shredded_at IS NOT NULL)"
    };
}

/// Runs that may have boundaries or snapshots to drop. No turn has more than two boundaries.
pub(crate) const KEEPERS: &str = concat!(
    "SELECT r.id FROM runs r WHERE r.id > $1 AND ",
    keeps_last!(),
    " AND 2 * (coalesce(r.head_turn, 0) - coalesce(r.dropped_turn, 0)) + 1 >= r.keep_last ORDER BY r.id LIMIT $2"
);

/// The first snapshot that nothing is rebuilt with any more.
pub(crate) const SPENT: &str = concat!(
    "SELECT s.content_hash FROM runs r JOIN snapshots s ON s.run = r.id WHERE r.id = $1 AND ",
    keeps_last!(),
    " AND ((s.turn, s.boundary) < (r.dropped_turn, r.dropped_boundary) OR s.epoch < r.dropped_epoch) \
     ORDER BY s.turn, s.boundary, s.epoch LIMIT 1"
);

/// The boundary of the live branch up to which boundaries are dropped at once, if enough have gathered: where that is more than
/// one, no more than `$2` with those that were undone beside them, and `$3` bytes of payloads.
pub(crate) const CUT: &str = concat!(
    "WITH run AS ( \
         SELECT r.keep_last, r.lifecycle, coalesce(r.dropped_turn, 0) AS turn, \
                coalesce(r.dropped_boundary, 0) AS boundary \
         FROM runs r WHERE r.id = $1 AND ",
    keeps_last!(),
    " ), after AS ( \
         SELECT b.turn, b.boundary, b.epoch, b.content_hash, b.undone, run.keep_last, run.lifecycle, \
                count(*) FILTER (WHERE NOT b.undone) OVER place AS nth, \
                count(*) FILTER (WHERE NOT b.undone) OVER () AS count, \
                count(*) OVER place AS so_many, \
                sum(coalesce(length(b.ops), 0) + coalesce(length(b.events), 0)) OVER place AS bytes \
         FROM run JOIN boundaries b ON b.run = $1 AND (b.turn, b.boundary) > (run.turn, run.boundary) \
         WINDOW place AS (ORDER BY b.turn, b.boundary) \
     ) \
     SELECT turn, boundary, epoch, content_hash FROM after \
     WHERE NOT undone AND count > keep_last + CASE lifecycle WHEN 'live' THEN 9 ELSE 0 END \
       AND nth <= count - keep_last AND (nth = 1 OR so_many <= $2 AND bytes <= $3) \
     ORDER BY nth DESC LIMIT 1"
);

/// What is done next.
pub(crate) enum Next {
    /// Nothing.
    Rest,
    /// The snapshot of this boundary is spent.
    Discard(Digest),
    /// Everything up to this boundary goes.
    Cut(Place, Digest),
}

/// Up to where boundaries are dropped, and what stands for them.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pub run: RunId,
    pub place: Place,
    pub content_hash: Digest,
    /// The snapshot after it.
    pub snapshot: ReadBack,
}

/// A snapshot that is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Spent {
    pub run: RunId,
    pub content_hash: Digest,
    /// Chunks that no other has.
    pub chunks: Vec<Digest>,
    /// The others; there must be none but these.
    pub others: Vec<Digest>,
}

/// A shelf that is cleared.
pub(crate) trait Clearer: Keeper {
    /// What is to be done.
    fn next(&self, run: RunId, rows: u32) -> impl Future<Output = Result<Next>> + Send;

    /// Drops the payloads of boundaries up to there: how many rows; 0 if it is not as it was looked at.
    fn cut(&self, cut: Cut) -> impl Future<Output = Result<u64>> + Send;

    /// Drops a snapshot and its chunks: how many rows; 0 if it is not as it was looked at.
    fn discard(&self, spent: Spent) -> impl Future<Output = Result<u64>> + Send;
}

/// One step.
pub(crate) async fn step(shelf: &impl Clearer, run: RunId, limit: u32) -> Result<Dropped> {
    let rows = match shelf.next(run, limit).await? {
        Next::Rest => return Ok(Dropped::default()),
        Next::Discard(content_hash) => shelf.discard(spent(shelf, run, content_hash).await?).await?,
        Next::Cut(place, content_hash) => {
            match stand_for(shelf, run, place, content_hash).await {
                Ok(snapshot) => shelf.cut(Cut { run, place, content_hash, snapshot }).await?,
                // Unless it is the next still, somebody else has been at it meanwhile.
                Err(error @ (Error::Gone { .. } | Error::Corrupt { .. })) => {
                    match shelf.next(run, limit).await? {
                        Next::Cut(now, _) if now == place => return Err(error),
                        Next::Cut(..) | Next::Discard(_) | Next::Rest => 0,
                    }
                }
                Err(error) => return Err(error),
            }
        }
    };
    // Where it was not as it was looked at, somebody else is at it: the next look is for later.
    Ok(Dropped { run: Some(run), rows, done: rows == 0 })
}

/// What goes with a snapshot. One whose document cannot be read has no chunk that anybody finds.
async fn spent(shelf: &impl Clearer, run: RunId, content_hash: Digest) -> Result<Spent> {
    let others: Vec<_> = shelf.snapshots(run).await?.into_iter().map(|(_, hash)| hash).collect();
    let others: Vec<_> = others.into_iter().filter(|hash| *hash != content_hash).collect();
    let mut chunks: BTreeSet<_> = snapshot::chunks(shelf, run, &content_hash).await?.into_iter().collect();
    for other in &others {
        for chunk in snapshot::chunks(shelf, run, other).await? {
            chunks.remove(&chunk);
        }
    }
    Ok(Spent { run, content_hash, chunks: chunks.into_iter().collect(), others })
}
