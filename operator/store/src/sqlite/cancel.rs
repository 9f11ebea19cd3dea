//! A cancel: asked for, told, acknowledged.

use sqlx::SqliteConnection;

use super::change::{append, close, cut_off};
use super::columns::Hash;
use super::judge;
use super::read::record;
use super::row::RunRow;
use crate::audit::{actor, kind};
use crate::fault::Work;
use crate::{Acknowledged, AskedBy, Digest, Lifecycle, NewFinish, RunId, RunOutcome, RunRecord};

/// The worker's next answer tells it of a cancel, if there is one. Whether this is the first such answer, so that the
/// row must be saved.
pub(super) fn tell(row: &mut RunRow, now: i64) -> bool {
    let first = row.cancel_requested_at.is_some() && row.cancel_told_at.is_none();
    if first {
        row.cancel_told_at = Some(now);
    }
    first
}

