//! The boundary chain of a run, in the order of turn, boundary and epoch: each boundary checked on its own, and with
//! the one before.

use dalsegno_format::chain::DecodedBoundaryExt as _;
use dalsegno_model::read_transaction::{HeadRef, StoredBoundary};
use dalsegno_model::{BoundaryId, Digest, RunId};
use dalsegno_protocol::Boundary;

use super::problem::Problem;

/// A boundary that may be the parent of later ones.
#[derive(Clone, Debug)]
struct ParentCandidate {
    boundary: BoundaryId,
    hash: Digest,
    position: i64,
    undone: bool,
    /// Whether it has a child on the live branch.
    has_successor: bool,
}

/// Checks each boundary of a run on its own and with its parent, and the last one against the head in the run's row.
/// Holds the boundaries of two turns at a time.
#[derive(Clone, Debug)]
pub struct BoundaryChain {
    run: RunId,
    head: Option<HeadRef>,
    head_found: bool,
    /// Boundaries of the last turn and of the turn before.
    recent: Vec<ParentCandidate>,
    last: Option<BoundaryId>,
    highest: i64,
    has_first: bool,
    count: i64,
}

impl BoundaryChain {
    /// An empty chain of a run with this head.
    pub fn new(run: RunId, head: Option<HeadRef>) -> Self {
        Self {
            run,
            head,
            head_found: false,
            recent: Vec::new(),
            last: None,
            highest: 0,
            has_first: false,
            count: 0,
        }
    }

    /// Adds the next boundary.
    pub fn push(&mut self, boundary: &StoredBoundary) -> Option<Problem> {
        let (row, boundary_id) = (&boundary.decoded.row, boundary.decoded.id());
        let what = match self.fault(boundary, boundary_id) {
            Some(fault) => Some(fault.to_owned()),
            None => boundary.damage.clone(),
        };
        self.count += 1;
        self.last = Some(boundary_id);
        self.highest = self.highest.max(row.position);
        self.recent.retain(|candidate| candidate.boundary.turn >= row.turn.saturating_sub(1));
        self.recent.push(ParentCandidate {
            boundary: boundary_id,
            hash: row.content_hash,
            position: row.position,
            undone: boundary.undone,
            has_successor: false,
        });
        what.map(|what| Problem::of(self.run, boundary_id.to_string(), what))
    }

    /// To be called after the last boundary.
    pub fn end(&self) -> Option<Problem> {
        match &self.head {
            Some(head) if !self.head_found => Some(Problem::of(
                self.run,
                head.boundary.to_string(),
                "it is the run's head, and it is missing",
            )),
            Some(head) if head.position != self.highest => Some(Problem::of(
                self.run,
                "boundaries",
                format!("the run's row counts {} events, and the boundaries {}", head.position, self.highest),
            )),
            None if self.last.is_some() => {
                Some(Problem::of(self.run, "boundaries", "the run has no head, and there are boundaries"))
            }
            _ => None,
        }
    }

    /// The number of boundaries.
    pub fn count(&self) -> i64 {
        self.count
    }

    fn fault(&mut self, boundary: &StoredBoundary, boundary_id: BoundaryId) -> Option<&'static str> {
        if self.last.is_some_and(|last| last >= boundary_id) {
            return Some("it is out of order");
        }
        if let Some(fault) = boundary.decoded.fault(self.run) {
            return Some(fault);
        }
        let row = &boundary.decoded.row;
        // A bundle does not say how many events a boundary had whose payloads were dropped.
        let events = boundary.decoded.events();
        let before = match self.parent(boundary, boundary_id) {
            Ok(before) => before,
            Err(what) => return Some(what),
        };
        // Positions never decrease: after a rewind they continue from the highest.
        let rewound = boundary.decoded.parent.is_some_and(|parent| parent.epoch < boundary_id.epoch);
        let next = before.saturating_add(events.unwrap_or(0));
        if row.position < next || (row.position > next && events.is_some() && !rewound) {
            return Some("its position is not that of its parent plus its own events");
        }
        self.check_head(boundary, boundary_id)
    }

    /// The position of the parent, or 0.
    fn parent(&mut self, boundary: &StoredBoundary, boundary_id: BoundaryId) -> Result<i64, &'static str> {
        let live = !boundary.undone;
        let Some(parent) = boundary.decoded.parent else {
            if boundary_id.turn != 1 && boundary.decoded.row.forked_from.is_none() {
                return Err("it names no boundary before it");
            }
            if live && std::mem::replace(&mut self.has_first, true) {
                return Err("another boundary of the live branch is a first one too");
            }
            return Ok(0);
        };
        let hash = boundary.decoded.row.parent_hash;
        let candidate =
            self.recent.iter_mut().find(|candidate| candidate.boundary == parent && candidate.hash == hash);
        let candidate = candidate.ok_or("the boundary before is missing or different")?;
        if !follows(parent, boundary_id) {
            return Err("it is not the next boundary after its parent");
        }
        if live && candidate.undone {
            return Err("it is on the live branch, and its parent is not");
        }
        if live && std::mem::replace(&mut candidate.has_successor, true) {
            return Err("another boundary of the live branch has the same parent");
        }
        Ok(candidate.position)
    }

    fn check_head(&mut self, boundary: &StoredBoundary, boundary_id: BoundaryId) -> Option<&'static str> {
        let head = self.head.as_ref()?;
        if boundary_id == head.boundary {
            self.head_found = true;
            let row = &boundary.decoded.row;
            if head.content_hash != row.content_hash {
                return Some("it is not the head that the run names");
            }
            return boundary.undone.then_some("it is the head, and marked as undone");
        }
        (!boundary.undone
            && (boundary_id.turn, boundary_id.boundary) >= (head.boundary.turn, head.boundary.boundary))
            .then_some("it is on the live branch, and beyond the head")
    }
}

/// A plan follows the result of the turn before. A result follows its own plan, or the result of the turn before.
fn follows(before: BoundaryId, next: BoundaryId) -> bool {
    let by_turn = match (before.boundary, next.boundary) {
        (Boundary::Plan, Boundary::Result) => next.turn == before.turn,
        (Boundary::Result, _) => next.turn == before.turn + 1,
        (Boundary::Plan, Boundary::Plan) => false,
    };
    by_turn && before.epoch <= next.epoch
}
