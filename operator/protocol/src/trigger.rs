//! Why a boundary was committed: one word, of the contract or of the agent.

use std::fmt;
use std::str::FromStr;

use crate::Limits;

/// Why a boundary was committed. Tools compare these words, so the contract reserves all words in capitals.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// `TURN_END`: a turn of the agent's loop has ended.
    TurnEnd,
    /// `TASK_END`: a task of the agent's plan has succeeded.
    TaskEnd,
    /// `GUARD_EVAL`: a guard has judged what the agent is about to do.
    GuardEval,
    /// `POLICY_PRE`: a policy has judged a step before it is taken.
    PolicyPre,
    /// `POLICY_POST`: a policy has judged a step after it was taken.
    PolicyPost,
    /// `COMPENSATION`: the agent is about to undo an effect.
    Compensation,
    /// `SUSPENSION`: the agent is about to wait or to park.
    Suspension,
    /// A word of the agent's own, in small letters. [`Trigger::own`] makes it.
    Own(OwnTrigger),
}

/// A word of the agent's own: a small letter, then characters of `a-z 0-9 . _ -`, at most [`Limits::NAME_CHARS`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnTrigger(String);

/// The words of the contract.
static KNOWN: [Trigger; 7] = [
    Trigger::TurnEnd,
    Trigger::TaskEnd,
    Trigger::GuardEval,
    Trigger::PolicyPre,
    Trigger::PolicyPost,
    Trigger::Compensation,
    Trigger::Suspension,
];

impl Trigger {
    /// The words of the contract.
    pub fn known() -> impl Iterator<Item = &'static str> {
        KNOWN.iter().map(Self::as_str)
    }

    /// A word of the agent's own, such as `invoice.checked`.
    ///
    /// # Errors
    ///
    /// It does not look like one: see [`OwnTrigger`].
    pub fn own(word: &str) -> Result<Self, InvalidTrigger> {
        let is_small = |byte: u8| byte.is_ascii_lowercase();
        let may_follow = |byte: u8| is_small(byte) || byte.is_ascii_digit() || b"._-".contains(&byte);
        let fits = (1..=Limits::NAME_CHARS).contains(&word.len());
        if fits && word.bytes().next().is_some_and(is_small) && word.bytes().all(may_follow) {
            Ok(Self::Own(OwnTrigger(word.to_owned())))
        } else {
            Err(InvalidTrigger)
        }
    }

    /// The word, as it is sent and stored.
    pub fn as_str(&self) -> &str {
        match self {
            Self::TurnEnd => "TURN_END",
            Self::TaskEnd => "TASK_END",
            Self::GuardEval => "GUARD_EVAL",
            Self::PolicyPre => "POLICY_PRE",
            Self::PolicyPost => "POLICY_POST",
            Self::Compensation => "COMPENSATION",
            Self::Suspension => "SUSPENSION",
            Self::Own(OwnTrigger(word)) => word,
        }
    }
}

impl FromStr for Trigger {
    type Err = InvalidTrigger;

    fn from_str(word: &str) -> Result<Self, InvalidTrigger> {
        KNOWN.iter().find(|known| known.as_str() == word).map_or_else(|| Self::own(word), |it| Ok(it.clone()))
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is no trigger. The error does not repeat the text, since it may be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidTrigger;

impl fmt::Display for InvalidTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Trigger::known().collect::<Vec<_>>().join(", ");
        write!(
            f,
            "`trigger` must be one of {known}, or a word of your own: a small letter, then at most {} characters of \
             a-z 0-9 . _ -, such as invoice.checked",
            Limits::NAME_CHARS - 1
        )
    }
}

impl std::error::Error for InvalidTrigger {}
