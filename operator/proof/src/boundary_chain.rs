//! The boundaries of a run, in the order of turn, boundary and epoch: each by itself, and each with the one before.

use dalsegno_format::chain::KeptExt as _;
use dalsegno_model::reading::{HeadMark, StoredBoundary};
use dalsegno_model::{Digest, Place, RunId};
use dalsegno_protocol::Boundary;

use super::problem::Problem;

/// A boundary that may be the parent of those to come.
#[derive(Clone, Debug)]
struct Link {
    place: Place,
    hash: Digest,
    position: i64,
    undone: bool,
    /// Whether a boundary of the live branch follows from it.
    followed: bool,
}

/// Holds the boundaries of a run to each other as they come, and to the head that the run's row names. It keeps those
/// of two turns.
#[derive(Clone, Debug)]
pub struct BoundaryChain {
    run: RunId,
    head: Option<HeadMark>,
    head_found: bool,
    /// Boundaries of the last turn and the one before.
    recent: Vec<Link>,
    last: Option<Place>,
    highest: i64,
    first_followed: bool,
    count: i64,
}

impl BoundaryChain {
    /// Before the first boundary of a run with this head.
    pub fn new(run: RunId, head: Option<HeadMark>) -> Self {
        Self {
            run,
            head,
            head_found: false,
            recent: Vec::new(),
            last: None,
            highest: 0,
            first_followed: false,
            count: 0,
        }
    }

    /// Takes the next boundary.
    pub fn push(&mut self, boundary: &StoredBoundary) -> Option<Problem> {
        let (row, place) = (&boundary.kept.row, boundary.kept.place());
        let what = match self.fault(boundary, place) {
            Some(fault) => Some(fault.to_owned()),
            None => boundary.damage.clone(),
        };
        self.count += 1;
        self.last = Some(place);
        self.highest = self.highest.max(row.position);
        self.recent.retain(|link| link.place.turn >= row.turn.saturating_sub(1));
        self.recent.push(Link {
            place,
            hash: row.content_hash,
            position: row.position,
            undone: boundary.undone,
            followed: false,
        });
        what.map(|what| Problem::of(self.run, place.to_string(), what))
    }

    /// After the last boundary.
    pub fn end(&self) -> Option<Problem> {
        match &self.head {
            Some(head) if !self.head_found => Some(Problem::of(
                self.run,
                head.place.to_string(),
                "it is the run's head, and it is not there",
            )),
            Some(head) if head.position != self.highest => Some(Problem::of(
                self.run,
                "boundaries",
                format!("the run counts {} events, and they {}", head.position, self.highest),
            )),
            None if self.last.is_some() => {
                Some(Problem::of(self.run, "boundaries", "the run has no head, and there are boundaries"))
            }
            _ => None,
        }
    }

    /// How many were taken.
    pub fn count(&self) -> i64 {
        self.count
    }

    fn fault(&mut self, boundary: &StoredBoundary, place: Place) -> Option<&'static str> {
        if self.last.is_some_and(|last| last >= place) {
            return Some("it is not in its place");
        }
        if let Some(fault) = boundary.kept.fault(self.run) {
            return Some(fault);
        }
        let row = &boundary.kept.row;
        // Of a bundle's payloads that were dropped nothing is known but that.
        let events = boundary.kept.events();
        let before = match self.parent(boundary, place) {
            Ok(before) => before,
            Err(what) => return Some(what),
        };
        // Positions never go back: after a rewind they go on from the highest.
        let rewound = boundary.kept.parent.is_some_and(|parent| parent.epoch < place.epoch);
        let next = before.saturating_add(events.unwrap_or(0));
        if row.position < next || (row.position > next && events.is_some() && !rewound) {
            return Some("its position is not that of the one before and its own events");
        }
        self.standing(boundary, place)
    }

    /// Events before it.
    fn parent(&mut self, boundary: &StoredBoundary, place: Place) -> Result<i64, &'static str> {
        let live = !boundary.undone;
        let Some(parent) = boundary.kept.parent else {
            if place.turn != 1 {
                return Err("it names no place for the one before");
            }
            if live && std::mem::replace(&mut self.first_followed, true) {
                return Err("another boundary of the live branch is the first too");
            }
            return Ok(0);
        };
        let hash = boundary.kept.row.parent_hash;
        let link = self.recent.iter_mut().find(|link| link.place == parent && link.hash == hash);
        let link = link.ok_or("the one before is not there, or is another")?;
        if !follows(parent, place) {
            return Err("it is not the next boundary after the one before");
        }
        if live && link.undone {
            return Err("it is on the live branch, and the one before is not");
        }
        if live && std::mem::replace(&mut link.followed, true) {
            return Err("another boundary of the live branch follows from the same one");
        }
        Ok(link.position)
    }

    fn standing(&mut self, boundary: &StoredBoundary, place: Place) -> Option<&'static str> {
        let head = self.head.as_ref()?;
        if place == head.place {
            self.head_found = true;
            let row = &boundary.kept.row;
            if head.content_hash != row.content_hash {
                return Some("it is not the head that the run names");
            }
            return boundary.undone.then_some("it is the head, and marked as undone");
        }
        (!boundary.undone && (place.turn, place.boundary) >= (head.place.turn, head.place.boundary))
            .then_some("it is on the live branch, and beyond the head")
    }
}

/// A turn's plan follows the result of the turn before; its result follows its plan, or the result of the turn before.
fn follows(before: Place, next: Place) -> bool {
    let by_turn = match (before.boundary, next.boundary) {
        (Boundary::Plan, Boundary::Result) => next.turn == before.turn,
        (Boundary::Result, _) => next.turn == before.turn + 1,
        (Boundary::Plan, Boundary::Plan) => false,
    };
    by_turn && before.epoch <= next.epoch
}
