//! The ids that the SDK makes for the calls of a turn: the turn, a name, and an ordinal.
//!
//! What is done behind the plan of turn N has `planned-N` in the place of the turn. So it has other ids than the same
//! before the plan, and a process that begins behind the plan finds it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The parts of the id of a tool's call: `TURN.TOOL.DIGEST.ORDINAL`.
pub(crate) struct CallId<'a> {
    turn: i32,
    behind_plan: bool,
    /// The name of the tool.
    pub(crate) tool: &'a str,
}

impl<'a> CallId<'a> {
    /// `None` for an id of another form: it is one of the agent's own, or of a step.
    pub(crate) fn parse(id: &'a str) -> Option<Self> {
        let (place, rest) = id.split_once('.')?;
        let (rest, ordinal) = rest.rsplit_once('.')?;
        let (tool, digest) = rest.rsplit_once('.')?;
        let turn = place.strip_prefix(PLANNED).unwrap_or(place);
        let is_digest = digest.len() == 2 * DIGEST_BYTES && digest.bytes().all(|it| HEX.contains(&it));
        if !is_number(turn) || !is_number(ordinal) || !is_digest || tool.is_empty() {
            return None;
        }
        Some(Self { turn: turn.parse().ok()?, behind_plan: turn != place, tool })
    }

    pub(crate) fn is_behind_plan_of(&self, turn: i32) -> bool {
        self.behind_plan && self.turn == turn
    }
}

/// Where a call is made: the first part of its id.
pub(crate) fn place(turn: i32, behind_plan: bool) -> String {
    format!("{}{turn}", if behind_plan { PLANNED } else { "" })
}

const PLANNED: &str = "planned-";

/// Bytes of the digest of a call's arguments that its id has, as hexadecimal digits.
pub(crate) const DIGEST_BYTES: usize = 6;

const HEX: &[u8] = b"0123456789abcdef";

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit())
}

/// Counts what a turn does under each name, from 0.
///
/// Invariant: a call whose outcome is unknown keeps its ordinal, so that the same call again has the same key. Two calls
/// that run at the same time have two ordinals.
#[derive(Default)]
pub(crate) struct Ordinals(Mutex<HashMap<String, Vec<State>>>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    /// The call was left without an outcome. The next one with this name is the same call.
    Unknown,
    /// The call is over. The next one with this name is another call.
    Over,
}

/// The ordinal of a call that is being made. Dropped without [`Self::end`], for example by a panic in a tool, it leaves the
/// call without an outcome.
pub(crate) struct Slot<'a> {
    ordinals: &'a Ordinals,
    name: &'a str,
    pub(crate) ordinal: usize,
    left: State,
}

impl Slot<'_> {
    /// The outcome of the call is known.
    pub(crate) fn end(mut self) {
        self.left = State::Over;
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut states = self.ordinals.lock();
        if let Some(state) = states.get_mut(self.name).and_then(|states| states.get_mut(self.ordinal)) {
            *state = self.left;
        }
    }
}

impl Ordinals {
    /// The ordinal of the next call with this name.
    pub(crate) fn take<'a>(&'a self, name: &'a str) -> Slot<'a> {
        let mut states = self.lock();
        let states = states.entry(name.to_owned()).or_default();
        let ordinal = states.iter().position(|it| *it == State::Unknown).unwrap_or(states.len());
        if ordinal == states.len() {
            states.push(State::Running);
        } else {
            states[ordinal] = State::Running;
        }
        Slot { ordinals: self, name, ordinal, left: State::Unknown }
    }

    /// Begins to count anew.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<State>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_without_an_outcome_keeps_its_ordinal_and_any_other_call_has_its_own() {
        let ordinals = Ordinals::default();
        let [first, second, draft] = ["pay", "pay", "draft"].map(|name| ordinals.take(name));
        assert_eq!((first.ordinal, second.ordinal, draft.ordinal), (0, 1, 0));
        drop(first);
        second.end();
        let [again, third] = [(); 2].map(|()| ordinals.take("pay"));
        assert_eq!((again.ordinal, third.ordinal), (0, 2));
        ordinals.clear();
        assert_eq!(ordinals.take("pay").ordinal, 0);
    }

    #[test]
    fn only_the_whole_form_is_the_id_of_a_tools_call() {
        let parts = |id| CallId::parse(id).map(|it| (it.turn, it.behind_plan, it.tool.to_owned()));
        assert_eq!(parts("12.pay.0123456789ab.3"), Some((12, false, "pay".into())));
        assert_eq!(parts("planned-1.shop:pay.0123456789ab.0"), Some((1, true, "shop:pay".into())));
        for own in [
            "order.pay.7",
            "1.draft.0",
            "1.pay.0123456789ab",
            "1.pay.0123456789ab.x",
            "1.pay.0123456789aB.0",
            "1.pay.0123456789.0",
            "x.pay.0123456789ab.0",
            "planned-.pay.0123456789ab.0",
            "1..0123456789ab.0",
            "1.0123456789ab.0",
            "99999999999.pay.0123456789ab.0",
        ] {
            assert_eq!(parts(own), None, "{own}");
        }
    }
}
