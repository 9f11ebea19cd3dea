//! Boundaries of the live branch, without their payloads.

use uuid::Uuid;

use super::{Column as _, Columns, HeadPoint, boundary_id};
use crate::db_error::{DbError, DbResult};
use dalsegno_model::{BoundaryId, Digest};

/// Boundaries of the run `$1` that were not undone, in order, beginning at turn `$2`, boundary `$3`.
pub(crate) const LIVE_BOUNDARIES: &str = "\
    SELECT turn, boundary, epoch, attempt, commit_id, digest, content_hash, at FROM boundaries \
    WHERE run = $1 AND NOT undone AND (turn, boundary) >= ($2, $3) ORDER BY turn, boundary, content_hash";

/// A boundary of the live branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LiveBoundary {
    pub id: BoundaryId,
    pub attempt: i32,
    pub commit_id: Uuid,
    pub digest: Vec<u8>,
    pub hash: Vec<u8>,
    pub at: i64,
}

impl LiveBoundary {
    pub fn read(row: &impl Columns) -> DbResult<Self> {
        Ok(Self {
            id: boundary_id(row)?,
            attempt: i32::read(row, "attempt")?,
            commit_id: Uuid::read(row, "commit_id")?,
            digest: Vec::read(row, "digest")?,
            hash: Vec::read(row, "content_hash")?,
            at: i64::read(row, "at")?,
        })
    }

    /// The boundary as a head.
    pub fn head_point(&self) -> DbResult<HeadPoint> {
        let digest = |bytes: &[u8]| -> DbResult<Digest> {
            bytes.try_into().map_err(|_| DbError::Corrupt("a boundary's hash is not 32 bytes".into()))
        };
        let BoundaryId { turn, boundary, epoch } = self.id;
        Ok(HeadPoint {
            turn,
            boundary,
            epoch,
            attempt: self.attempt,
            commit_id: self.commit_id,
            digest: digest(&self.digest)?,
            hash: digest(&self.hash)?,
            at: self.at,
        })
    }
}
