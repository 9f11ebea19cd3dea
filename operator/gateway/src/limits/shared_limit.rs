//! What many share: how much of it is taken, in all and by each of them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dalsegno_protocol::Code;
use dalsegno_store::{Digest, RunId};

use crate::response::Refusal;

/// Whose share it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Who {
    /// Everybody whose word is not judged, together.
    Stranger,
    /// A worker by its own word: of another's places it takes none.
    Worker(RunId, Digest),
    /// A pod, by its token.
    Pod(String),
    /// The run whose current worker was judged.
    Run(RunId),
    /// A person, by a token.
    Person(String),
}

/// Why there is no more to take.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// All of it is taken.
    Whole,
    /// Strangers have all that they may have together.
    Strangers,
    /// This one has its share.
    Share,
}

/// Calls, bytes, streams: so many at once, and of them so many for each. Cheap to clone; all clones are the same budget.
#[derive(Clone)]
pub(crate) struct Budget {
    most: usize,
    each: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    by: HashMap<Who, usize>,
}

/// A part of a budget, taken until this is dropped.
pub(crate) struct Part {
    budget: Budget,
    who: Who,
    amount: usize,
}

impl Budget {
    pub(crate) fn new(most: usize, each: usize) -> Self {
        Self { most, each, taken: Arc::default() }
    }

    /// Takes this much. What exceeds a share alone is taken by whoever has nothing beside it.
    pub(crate) fn take(&self, who: Who, amount: usize) -> Result<Part, Full> {
        let mut part = self.nothing_yet(who);
        part.grow(amount)?;
        Ok(part)
    }

    /// A part that will grow.
    pub(crate) fn nothing_yet(&self, who: Who) -> Part {
        Part { budget: self.clone(), who, amount: 0 }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this one may have so much more, of which it has some in the same part.
    fn allows(&self, taken: &Taken, who: &Who, more: usize, in_part: usize) -> Result<(), Full> {
        let had = taken.by.get(who).copied().unwrap_or_default();
        match who {
            _ if had == in_part || had + more <= self.each => Ok(()),
            Who::Stranger => Err(Full::Strangers),
            _ => Err(Full::Share),
        }
    }
}

impl Taken {
    fn add(&mut self, who: &Who, amount: usize) {
        self.all += amount;
        *self.by.entry(who.clone()).or_default() += amount;
    }

    fn give_back(&mut self, who: &Who, amount: usize) {
        self.all -= amount;
        if let Entry::Occupied(mut had) = self.by.entry(who.clone()) {
            *had.get_mut() -= amount;
            if *had.get() == 0 {
                had.remove();
            }
        }
    }
}

impl Part {
    pub(crate) fn amount(&self) -> usize {
        self.amount
    }

    /// Takes so much more.
    pub(crate) fn grow(&mut self, more: usize) -> Result<(), Full> {
        let mut taken = self.budget.taken();
        if more > self.budget.most - taken.all {
            return Err(Full::Whole);
        }
        self.budget.allows(&taken, &self.who, more, self.amount)?;
        taken.add(&self.who, more);
        self.amount += more;
        Ok(())
    }

    /// Counts it as this one's from now on.
    pub(crate) fn pass_to(&mut self, who: Who) -> Result<(), Full> {
        let mut taken = self.budget.taken();
        self.budget.allows(&taken, &who, self.amount, 0)?;
        taken.give_back(&self.who, self.amount);
        taken.add(&who, self.amount);
        self.who = who;
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.budget.taken().give_back(&self.who, self.amount);
    }
}

impl From<Full> for Refusal {
    fn from(full: Full) -> Self {
        match full {
            Full::Whole | Full::Strangers => Self::full(),
            Full::Share => Self::new(
                Code::TooManyRequests,
                "as many calls of this run, or of this person, are under way already as may, or hold as many bytes; wait \
                 for some of them, then send the same bytes again",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Who = Who::Run(RunId::from_u128(1));
    const OTHER: Who = Who::Run(RunId::from_u128(2));

    #[test]
    fn nobody_takes_more_than_a_share_and_all_together_no_more_than_there_is() {
        let budget = Budget::new(10, 4);
        let one = budget.take(ONE, 3).unwrap();
        assert_eq!(budget.take(ONE, 2).err(), Some(Full::Share));
        let small = budget.take(ONE, 1).unwrap();
        let other = budget.take(OTHER, 6).unwrap();
        assert_eq!(other.amount(), 6, "alone it may be larger than a share");
        assert_eq!(budget.take(Who::Stranger, 1).err(), Some(Full::Whole));
        drop((one, small));
        assert!(budget.take(ONE, 4).is_ok());
        drop(other);
        assert!(budget.taken().by.is_empty() && budget.taken().all == 0);
    }

    #[test]
    fn a_part_grows_and_counts_as_whose_it_is_found_to_be() {
        let budget = Budget::new(10, 4);
        let _other = budget.take(Who::Stranger, 3).unwrap();
        let mut part = budget.take(Who::Stranger, 1).unwrap();
        assert_eq!(part.grow(2), Err(Full::Strangers), "strangers have one share together");
        part.pass_to(ONE).unwrap();
        part.grow(3).unwrap();
        let mut more = budget.take(Who::Stranger, 1).unwrap();
        assert_eq!(more.pass_to(ONE), Err(Full::Share));
        assert_eq!(budget.taken().all, 8);
    }
}
