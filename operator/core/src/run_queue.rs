//! The queue of runs whose AgentDefinition limits how many of them run at the same time.

use jiff::Timestamp;

/// What the queue of a definition knows of one of its runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedRun {
    /// UID of the AgentRun.
    pub uid: String,
    /// When the AgentRun was created.
    pub created: Timestamp,
    /// Whether the run has a place.
    pub place: Place,
}

/// Whether a run has a place in its definition's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It has had no pod yet.
    Waiting,
    /// It has had a pod, and has not ended.
    Taken,
    /// It has ended, is held, is suspended or waits: it needs no place.
    NotNeeded,
}

/// Position in the queue, from 1, of the run with this UID. `None`: it may start.
///
/// The oldest run is first. A run whose pod was created and that is still shown as waiting keeps its place in the order,
/// so that a view that is behind starts no run too many.
pub fn position<'a>(
    runs: impl Iterator<Item = &'a QueuedRun>,
    uid: &str,
    max_concurrent: i32,
) -> Option<i32> {
    let (mut taken, mut waiting) = (0_i32, Vec::new());
    for run in runs {
        match run.place {
            Place::Taken => taken = taken.saturating_add(1),
            Place::Waiting => waiting.push((run.created, run.uid.as_str())),
            // The caller asks for a run that wants to start now.
            Place::NotNeeded if run.uid == uid => waiting.push((run.created, uid)),
            Place::NotNeeded => {}
        }
    }
    let own = waiting.iter().find(|(_, it)| *it == uid)?;
    let before = i32::try_from(waiting.iter().filter(|it| *it < own).count()).unwrap_or(i32::MAX);
    let free = max_concurrent.saturating_sub(taken).max(0);
    (before >= free).then(|| before.saturating_sub(free).saturating_add(1))
}
