//! Ordinals of the calls of a turn: the last part of the ids that the SDK makes.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counts what a turn does under each name, from 0.
///
/// Invariant: a call whose outcome is unknown keeps its ordinal, so that the same call again has the same key. Two calls
/// that run at the same time have two ordinals.
#[derive(Default)]
pub(crate) struct Ordinals(Mutex<HashMap<String, Vec<Slot>>>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    Running,
    /// The call was left without an outcome. The next one with this name is the same call.
    Unknown,
    /// The call is over. The next one with this name is another call.
    Over,
}

impl Ordinals {
    /// The ordinal of the next call with this name.
    pub(crate) fn take(&self, name: &str) -> usize {
        let mut slots = self.lock();
        let slots = slots.entry(name.to_owned()).or_default();
        let ordinal = slots.iter().position(|slot| *slot == Slot::Unknown).unwrap_or(slots.len());
        if ordinal == slots.len() {
            slots.push(Slot::Running);
        } else {
            slots[ordinal] = Slot::Running;
        }
        ordinal
    }

    /// The call with this ordinal has ended. `is_over`: its outcome is known.
    pub(crate) fn release(&self, name: &str, ordinal: usize, is_over: bool) {
        if let Some(slot) = self.lock().get_mut(name).and_then(|slots| slots.get_mut(ordinal)) {
            *slot = if is_over { Slot::Over } else { Slot::Unknown };
        }
    }

    /// Begins to count anew.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<Slot>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_without_an_outcome_keeps_its_ordinal_and_any_other_call_has_its_own() {
        let ordinals = Ordinals::default();
        assert_eq!((ordinals.take("pay"), ordinals.take("pay"), ordinals.take("draft")), (0, 1, 0));
        ordinals.release("pay", 0, false);
        ordinals.release("pay", 1, true);
        assert_eq!((ordinals.take("pay"), ordinals.take("pay")), (0, 2));
        ordinals.clear();
        assert_eq!(ordinals.take("pay"), 0);
    }
}
