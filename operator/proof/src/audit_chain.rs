//! The audit of a run, row by row.

use dalsegno_format::audit::{self, Link};
use dalsegno_format::header::NO_PARENT;
use dalsegno_model::{AuditRow, Digest, RunId};

use super::problem::Problem;

/// Holds the rows of a run's audit to each other as they come, and the last one to what the run's row says.
#[derive(Clone, Debug)]
pub struct AuditChain {
    run: RunId,
    seq: i64,
    hash: Digest,
    /// The row before the first that is there, where that is not row 1.
    begins: Option<(i64, Digest)>,
    /// Up to where the last row says that rows were pruned.
    told: Option<(i64, Digest)>,
}

impl AuditChain {
    /// Before the first row.
    pub fn new(run: RunId) -> Self {
        Self { run, seq: 0, hash: NO_PARENT, begins: None, told: None }
    }

    /// Takes the next row.
    pub fn push(&mut self, row: &AuditRow) -> Option<Problem> {
        if self.seq == 0 && row.seq > 1 {
            // Whether these were pruned a later row tells.
            (self.seq, self.hash) = (row.seq - 1, row.parent_hash);
            self.begins = Some((self.seq, self.hash));
        }
        self.told = audit::pruned_to(row).or(self.told);
        let (before, parent) = (self.seq, self.hash);
        (self.seq, self.hash) = (row.seq, row.hash);
        let link = Link {
            parent_hash: &row.parent_hash,
            run: self.run,
            seq: row.seq,
            at: row.at.as_millisecond(),
            kind: &row.kind,
            actor: &row.actor,
            detail: &row.detail,
        };
        // Foreign rows may have any number.
        let expected = before.checked_add(1);
        let what = if expected != Some(row.seq) {
            match expected {
                Some(seq) => format!("row {seq} was expected: rows are missing, or in another order"),
                None => "no row can follow the one before".to_owned(),
            }
        } else if row.hash != link.hash() {
            "it was edited: it does not have the hash it must have".to_owned()
        } else if row.parent_hash != parent {
            "it does not follow from the row before".to_owned()
        } else {
            return None;
        };
        Some(self.problem(row.seq, what))
    }

    /// After the last row: up to which row, with which hash, those before the first were pruned; none may be missing.
    ///
    /// # Errors
    ///
    /// Some are missing, and no row says that just these were pruned.
    pub fn pruned(&self) -> Result<Option<(i64, Digest)>, Problem> {
        match self.begins {
            Some((seq, _)) if self.begins != self.told => {
                Err(self.problem(seq + 1, "row 1 was expected: rows are missing, or in another order"))
            }
            begins => Ok(begins),
        }
    }

    /// After the last row: what the run's row says of it.
    pub fn end(&self, seq: i64, hash: &Digest) -> Option<Problem> {
        if self.seq != seq {
            return Some(self.problem(self.seq, format!("it is the last row, and the run has {seq}")));
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
