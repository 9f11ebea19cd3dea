//! A scan of a run's boundaries in the order of their turns: what is damaged, and from which boundary the run could
//! continue. Pure; holds the hashes of two turns at a time, however long the run is.
//!
//! A boundary is *good* if the state after it can be rebuilt: its own check passes, and it either is the full state
//! or follows a good boundary. So damage affects only the boundaries up to the next full state.

use dalsegno_format::header;
use dalsegno_model::{BoundaryCheck, BoundaryId, Digest, HeadRow, PayloadLoss, RunRecord, ValidBoundary};

/// The most damaged places that a scan lists. Further ones are only counted.
const NAMED: usize = 16;

/// The result of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanReport {
    /// Boundaries that were read, undone ones too.
    pub boundaries: u64,
    /// What is damaged, in the order of turns.
    pub damage: Vec<Corruption>,
    /// The number of further damaged places that are not listed.
    pub further: u64,
    /// Boundaries whose payloads were dropped as the run's retention requires.
    pub dropped: u64,
    /// Boundaries whose payloads were shredded.
    pub shredded: u64,
    /// The last boundary up to the head at which the state can be rebuilt.
    pub last_good: Option<BoundaryId>,
}

/// A damaged place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// The boundary; `None` for the run's own row.
    pub boundary: Option<BoundaryId>,
    /// What is wrong.
    pub detail: String,
}

impl std::fmt::Display for Corruption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.boundary {
            Some(boundary_id) => write!(f, "{boundary_id}: {}", self.detail),
            None => f.write_str(&self.detail),
        }
    }
}

/// A scan in progress.
#[derive(Debug)]
pub struct IntegrityScan {
    head: Option<HeadRow>,
    highest_turn: i32,
    /// The boundaries of this turn and the one before, with their hash if their check passed. A parent is never
    /// further away.
    recent: Vec<(BoundaryId, Option<Digest>)>,
    /// The last boundary of the live branch.
    tip: Option<Tip>,
    /// Whether the live branch has forked. From there on it is unknown which boundaries are live.
    forked: bool,
    findings: ScanReport,
}

#[derive(Clone, Copy, Debug)]
struct Tip {
    boundary: BoundaryId,
    hash: Option<Digest>,
    position: i64,
    is_good: bool,
    good_before: Option<BoundaryId>,
}

impl IntegrityScan {
    /// A scan of this run's boundaries.
    pub fn new(run: &RunRecord) -> Self {
        Self {
            head: run.head.clone(),
            highest_turn: run.highest_turn,
            recent: Vec::new(),
            tip: None,
            forked: false,
            findings: ScanReport::default(),
        }
    }

    /// Adds the next boundary, in the order of [`BoundaryId`].
    pub fn add(&mut self, link: &BoundaryCheck) {
        self.findings.boundaries += 1;
        self.recent.retain(|(boundary_id, _)| boundary_id.turn >= link.id.turn.saturating_sub(1));
        match link.result.as_ref().ok().and_then(|valid| valid.payload_loss) {
            Some(PayloadLoss::Dropped) => self.findings.dropped += 1,
            Some(PayloadLoss::Shredded) => self.findings.shredded += 1,
            None => {}
        }
        match &link.result {
            Err(detail) => self.damaged(link.id, detail.clone()),
            Ok(valid) if link.undone => self.follow_dead_branch(link.id, valid),
            Ok(_) => {}
        }
        if !link.undone {
            self.follow_live_branch(link);
        }
        self.recent.push((link.id, link.result.as_ref().ok().map(|valid| valid.content_hash)));
    }

    /// The result, after all boundaries were added.
    pub fn end(mut self) -> ScanReport {
        if let Some(detail) = self.head_fault() {
            self.note(Corruption { boundary: None, detail });
        }
        self.findings
    }

    /// The parent of an undone boundary may be on any branch.
    fn follow_dead_branch(&mut self, boundary_id: BoundaryId, valid: &ValidBoundary) {
        let Some(parent) = valid.parent else { return };
        match self.recent.iter().find(|(boundary_id, _)| *boundary_id == parent) {
            Some((_, Some(hash))) if *hash != valid.parent_hash => {
                self.damaged(boundary_id, format!("{parent} before it is not the boundary that it follows"));
            }
            Some(_) => {}
            None => self.damaged(boundary_id, format!("{parent} before it is missing")),
        }
    }

    fn follow_live_branch(&mut self, link: &BoundaryCheck) {
        let BoundaryCheck { id: boundary_id, result: ref valid, .. } = *link;
        let before = self.tip;
        if before.is_some_and(|tip| {
            (tip.boundary.turn, tip.boundary.boundary) == (boundary_id.turn, boundary_id.boundary)
        }) {
            self.forked = true;
            self.findings.last_good = before.and_then(|tip| tip.good_before);
            self.damaged(boundary_id, "it exists twice, and neither is marked as undone".into());
        }
        let mut tip = Tip {
            boundary: boundary_id,
            hash: None,
            position: before.map_or(0, |tip| tip.position),
            is_good: false,
            good_before: self.findings.last_good,
        };
        if let Ok(valid) = valid {
            let gap = gap(before, valid);
            let follows =
                gap.is_none() && valid.payload_loss.is_none() && before.is_none_or(|tip| tip.is_good);
            tip.is_good = valid.full || follows;
            tip.hash = Some(valid.content_hash);
            if let Some(detail) = gap {
                self.damaged(boundary_id, detail);
            }
            if valid.position < tip.position {
                self.damaged(boundary_id, "its event position is before that of an earlier turn".into());
            }
            tip.position = valid.position;
        }
        let within_head = self
            .head
            .as_ref()
            .is_some_and(|head| (boundary_id.turn, boundary_id.boundary) <= (head.turn, head.boundary));
        if tip.is_good && within_head && !self.forked {
            self.findings.last_good = Some(boundary_id);
        }
        self.tip = Some(tip);
    }

    /// What is wrong with the head in the run's row.
    fn head_fault(&self) -> Option<String> {
        match (&self.head, &self.tip) {
            (None, None) if self.highest_turn == 0 => None,
            (None, None) => Some(format!("turn {} was reached, and there is no boundary", self.highest_turn)),
            (None, Some(tip)) => Some(format!("{} exists, and the run has no head", tip.boundary)),
            (Some(head), None) => Some(format!("the head is turn {}, and there is no boundary", head.turn)),
            (Some(head), Some(tip)) => {
                let boundary_id = BoundaryId { turn: head.turn, boundary: head.boundary, epoch: head.epoch };
                if tip.boundary != boundary_id {
                    Some(format!("the head is {boundary_id}, and the live branch ends with {}", tip.boundary))
                } else if tip.hash.is_some_and(|hash| header::render(&hash) != head.content_hash) {
                    Some(format!("the head is {boundary_id} with another hash than that boundary has"))
                } else {
                    None
                }
            }
        }
    }

    fn damaged(&mut self, boundary_id: BoundaryId, detail: String) {
        self.note(Corruption { boundary: Some(boundary_id), detail });
    }

    fn note(&mut self, damage: Corruption) {
        if self.findings.damage.len() < NAMED {
            self.findings.damage.push(damage);
        } else {
            self.findings.further += 1;
        }
    }
}

/// Why a boundary does not follow the one before it on the live branch. If that one is damaged, this is reported
/// already.
fn gap(before: Option<Tip>, valid: &ValidBoundary) -> Option<String> {
    match (before, valid.parent) {
        (None, None) => None,
        (None, Some(parent)) => Some(format!("{parent} before it is missing")),
        (Some(tip), None) => Some(format!("it is a first boundary, and {} is before it", tip.boundary)),
        (Some(tip), Some(parent)) if parent != tip.boundary => {
            Some(format!("it follows {parent}, which is missing or undone; {} is before it", tip.boundary))
        }
        (Some(tip), Some(parent)) => tip
            .hash
            .is_some_and(|hash| hash != valid.parent_hash)
            .then(|| format!("{parent} before it is not the boundary that it follows")),
    }
}
