//! A survey of a run's boundaries, in the order of their turns: what is damaged, and from where the run could still go
//! on. Pure; holds two turns' hashes at a time, however long the run is.
//!
//! A state can be rebuilt at a boundary (it is *good*) if the boundary is sound and either is the full state, or follows
//! a good one. So damage before a full state costs what is between, and no more.

use dalsegno_format::header;
use dalsegno_model::{Digest, Gone, HeadRow, Link, Place, RunRecord, Sound};

/// Damages that a survey names; of further ones it keeps the number.
const NAMED: usize = 16;

/// What a survey found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Boundaries that were seen, undone ones too.
    pub boundaries: u64,
    /// What is damaged, from the first turn on.
    pub damage: Vec<Damage>,
    /// Damages beyond those.
    pub further: u64,
    /// Boundaries whose payloads were dropped, as the run's retention says.
    pub dropped: u64,
    /// Boundaries whose payloads were shredded.
    pub shredded: u64,
    /// The last boundary up to the head at which the state can be rebuilt.
    pub last_good: Option<Place>,
}

/// One damage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where; `None`: in the run's own row.
    pub place: Option<Place>,
    /// What.
    pub detail: String,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.place {
            Some(place) => write!(f, "{place}: {}", self.detail),
            None => f.write_str(&self.detail),
        }
    }
}

/// A survey under way.
#[derive(Debug)]
pub struct Survey {
    head: Option<HeadRow>,
    highest_turn: i32,
    /// The boundaries of this turn and the one before, sound ones with their hash: a parent is never further away.
    recent: Vec<(Place, Option<Digest>)>,
    /// The last boundary of the live branch, and whether it is good.
    tip: Option<Tip>,
    /// Whether the live branch was seen to fork: what is live after that cannot be told.
    forked: bool,
    findings: Findings,
}

#[derive(Clone, Copy, Debug)]
struct Tip {
    place: Place,
    hash: Option<Digest>,
    position: i64,
    is_good: bool,
    good_before: Option<Place>,
}

impl Survey {
    /// Of the boundaries of this run.
    pub fn new(run: &RunRecord) -> Self {
        Self {
            head: run.head.clone(),
            highest_turn: run.highest_turn,
            recent: Vec::new(),
            tip: None,
            forked: false,
            findings: Findings::default(),
        }
    }

    /// Takes the next boundary, in the order of [`Place`].
    pub fn take(&mut self, link: &Link) {
        self.findings.boundaries += 1;
        self.recent.retain(|(place, _)| place.turn >= link.place.turn.saturating_sub(1));
        match link.sound.as_ref().ok().and_then(|sound| sound.gone) {
            Some(Gone::Dropped) => self.findings.dropped += 1,
            Some(Gone::Shredded) => self.findings.shredded += 1,
            None => {}
        }
        match &link.sound {
            Err(detail) => self.damaged(link.place, detail.clone()),
            Ok(sound) if link.undone => self.follow_dead_branch(link.place, sound),
            Ok(_) => {}
        }
        if !link.undone {
            self.follow_live_branch(link);
        }
        self.recent.push((link.place, link.sound.as_ref().ok().map(|sound| sound.content_hash)));
    }

    /// What was found, once all boundaries are taken.
    pub fn end(mut self) -> Findings {
        if let Some(detail) = self.head_fault() {
            self.note(Damage { place: None, detail });
        }
        self.findings
    }

    /// The parent of an undone boundary is on any branch.
    fn follow_dead_branch(&mut self, place: Place, sound: &Sound) {
        let Some(parent) = sound.parent else { return };
        match self.recent.iter().find(|(place, _)| *place == parent) {
            Some((_, Some(hash))) if *hash != sound.parent_hash => {
                self.damaged(place, format!("{parent} before it is not the boundary that it follows"));
            }
            Some(_) => {}
            None => self.damaged(place, format!("{parent} before it is not there")),
        }
    }

    fn follow_live_branch(&mut self, link: &Link) {
        let Link { place, ref sound, .. } = *link;
        let before = self.tip;
        if before.is_some_and(|tip| (tip.place.turn, tip.place.boundary) == (place.turn, place.boundary)) {
            self.forked = true;
            self.findings.last_good = before.and_then(|tip| tip.good_before);
            self.damaged(place, "it stands there twice, and neither is marked as undone".into());
        }
        let mut tip = Tip {
            place,
            hash: None,
            position: before.map_or(0, |tip| tip.position),
            is_good: false,
            good_before: self.findings.last_good,
        };
        if let Ok(sound) = sound {
            let gap = gap(before, sound);
            let follows = gap.is_none() && sound.gone.is_none() && before.is_none_or(|tip| tip.is_good);
            tip.is_good = sound.full || follows;
            tip.hash = Some(sound.content_hash);
            if let Some(detail) = gap {
                self.damaged(place, detail);
            }
            if sound.position < tip.position {
                self.damaged(place, "its event position is before that of an earlier turn".into());
            }
            tip.position = sound.position;
        }
        let within_head =
            self.head.as_ref().is_some_and(|head| (place.turn, place.boundary) <= (head.turn, head.boundary));
        if tip.is_good && within_head && !self.forked {
            self.findings.last_good = Some(place);
        }
        self.tip = Some(tip);
    }

    /// What is wrong with the head, as the run's row has it.
    fn head_fault(&self) -> Option<String> {
        match (&self.head, &self.tip) {
            (None, None) if self.highest_turn == 0 => None,
            (None, None) => Some(format!("turn {} was reached, and nothing is there", self.highest_turn)),
            (None, Some(tip)) => Some(format!("{} is there, and the run has no head", tip.place)),
            (Some(head), None) => Some(format!("the head is turn {}, and nothing is there", head.turn)),
            (Some(head), Some(tip)) => {
                let place = Place { turn: head.turn, boundary: head.boundary, epoch: head.epoch };
                if tip.place != place {
                    Some(format!("the head is {place}, and the live branch ends with {}", tip.place))
                } else if tip.hash.is_some_and(|hash| header::render(&hash) != head.content_hash) {
                    Some(format!("the head is {place} with another hash than that boundary has"))
                } else {
                    None
                }
            }
        }
    }

    fn damaged(&mut self, place: Place, detail: String) {
        self.note(Damage { place: Some(place), detail });
    }

    fn note(&mut self, damage: Damage) {
        if self.findings.damage.len() < NAMED {
            self.findings.damage.push(damage);
        } else {
            self.findings.further += 1;
        }
    }
}

/// Why a sound boundary does not follow the one before it on the live branch. A damaged one before it was told of.
fn gap(before: Option<Tip>, sound: &Sound) -> Option<String> {
    match (before, sound.parent) {
        (None, None) => None,
        (None, Some(parent)) => Some(format!("{parent} before it is not there")),
        (Some(tip), None) => Some(format!("it is a first boundary, and {} stands before it", tip.place)),
        (Some(tip), Some(parent)) if parent != tip.place => {
            Some(format!("it follows {parent}, which is not there or undone; {} stands before it", tip.place))
        }
        (Some(tip), Some(parent)) => tip
            .hash
            .is_some_and(|hash| hash != sound.parent_hash)
            .then(|| format!("{parent} before it is not the boundary that it follows")),
    }
}
