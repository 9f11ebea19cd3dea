//! The audit chain of a run, checked row by row.

use dalsegno_format::audit::{self, AuditHeader};
use dalsegno_format::header::NO_PARENT;
use dalsegno_model::{AuditRow, Digest, RunId};

use super::problem::Problem;

/// Checks each row of a run's audit against the row before, and the last one against the run's own row.
#[derive(Clone, Debug)]
pub struct AuditChain {
    run: RunId,
    seq: i64,
    hash: Digest,
    /// Number and hash of the row before the first existing row, if that is not row 1.
    begins: Option<(i64, Digest)>,
    /// The last pruned row, according to the latest row that records a prune.
    pruned_to: Option<(i64, Digest)>,
    /// Number of that row.
    pruned_by: i64,
}

impl AuditChain {
    /// An empty chain.
    pub fn new(run: RunId) -> Self {
        Self { run, seq: 0, hash: NO_PARENT, begins: None, pruned_to: None, pruned_by: 0 }
    }

    /// Adds the next row.
    pub fn push(&mut self, row: &AuditRow) -> Option<Problem> {
        if self.seq == 0 && row.seq > 1 {
            // A later row says whether the earlier rows were pruned.
            (self.seq, self.hash) = (row.seq - 1, row.parent_hash);
            self.begins = Some((self.seq, self.hash));
        }
        if let Some(pruned_to) = audit::pruned_to(row) {
            (self.pruned_to, self.pruned_by) = (Some(pruned_to), row.seq);
        }
        let (before, parent) = (self.seq, self.hash);
        (self.seq, self.hash) = (row.seq, row.hash);
        // A forged row may have any number.
        let expected = before.checked_add(1);
        let what = if expected != Some(row.seq) {
            match expected {
                Some(seq) => format!("row {seq} was expected: rows are missing, or in another order"),
                None => "no row can follow the one before".to_owned(),
            }
        } else if !is_hash_of(self.run, row) {
            "it was edited: it does not have the hash it must have".to_owned()
        } else if row.parent_hash != parent {
            "it does not follow from the row before".to_owned()
        } else {
            return None;
        };
        Some(self.problem(row.seq, what))
    }

    /// To be called after the last row: number and hash of the last pruned row; `None` if no row is missing.
    ///
    /// # Errors
    ///
    /// Rows are missing, and no row records exactly their prune.
    pub fn pruned(&self) -> Result<Option<(i64, Digest)>, Problem> {
        match self.begins {
            Some((seq, _)) if self.begins != self.pruned_to => {
                Err(self.problem(seq + 1, "row 1 was expected: rows are missing, or in another order"))
            }
            begins => Ok(begins),
        }
    }

    /// Number of the last row that records a prune; 0 if there is none.
    pub fn pruned_by(&self) -> i64 {
        self.pruned_by
    }

    /// To be called after the last row: checks it against the run's own row.
    pub fn end(&self, seq: i64, hash: &Digest) -> Option<Problem> {
        if self.seq != seq {
            return Some(
                self.problem(self.seq, format!("it is the last row, and the run's row names row {seq}")),
            );
        }
        (self.hash != *hash).then(|| self.problem(self.seq, "it is not the last row that the run names"))
    }

    /// Number of the last row.
    pub fn rows(&self) -> i64 {
        self.seq
    }

    fn problem(&self, seq: i64, what: impl Into<String>) -> Problem {
        Problem::of(self.run, format!("audit row {seq}"), what)
    }
}

/// Whether a row of a run's audit has the hash that its fields give.
pub(super) fn is_hash_of(run: RunId, row: &AuditRow) -> bool {
    let header = AuditHeader {
        parent_hash: &row.parent_hash,
        run,
        seq: row.seq,
        at: row.at.as_millisecond(),
        kind: &row.kind,
        actor: &row.actor,
        detail: &row.detail,
    };
    row.hash == header.hash()
}
