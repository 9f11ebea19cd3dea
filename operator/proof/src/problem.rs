//! A problem that a check has found.

use std::fmt;

use dalsegno_model::RunId;

/// Something that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The run; `None` if the problem belongs to no run.
    pub run: Option<RunId>,
    /// Where it was found, for example `audit row 7`.
    pub location: String,
    /// What is wrong.
    pub what: String,
}

impl Problem {
    /// A problem of a run.
    pub fn of(run: RunId, location: impl Into<String>, what: impl Into<String>) -> Self {
        Self { run: Some(run), location: location.into(), what: what.into() }
    }

    /// A problem that belongs to no run.
    pub fn at(location: impl Into<String>, what: impl Into<String>) -> Self {
        Self { run: None, location: location.into(), what: what.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, location, what } = self;
        match run {
            Some(run) => write!(f, "run {run}, {location}: {what}"),
            None => write!(f, "{location}: {what}"),
        }
    }
}
