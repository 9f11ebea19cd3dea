//! Boundaries that hold several steps: fewer commits, at the price of more work that a crash repeats.

use std::collections::BTreeMap;

use dalsegno_protocol::{Boundary, ChannelOps, Code, CommitRequest, CommitResponse, Finish, Limits};

use crate::json::to_bytes;
use crate::{Commit, Error, Result, Run};

/// Commits a boundary for every N steps, and keeps the steps between in memory. [`Run::every`] makes it.
///
/// ```no_run
/// # use dalsegno_sdk::{Commit, Run, succeeded};
/// # fn work(run: &Run, page: u32) -> dalsegno_sdk::Result<u32> { Ok(page + 1) }
/// # fn main() -> dalsegno_sdk::Result<()> {
/// let mut run = Run::attach()?;
/// let mut page: u32 = run.state()?.unwrap_or_default(); // the step is counted in the state, not in the turn
/// let mut steps = run.every(10);
/// while page < 200 {
///     steps.check()?;
///     page = work(steps.run(), page)?;
///     steps.step(Commit::new(steps.run().turn()).state(&page)?)?;
/// }
/// steps.finish(succeeded())
/// # }
/// ```
///
/// *Guarantees.* All steps of a boundary are committed together or not at all, in their order. The state is that of the
/// latest step; channels, events, records, messages and usage of all its steps are in the boundary.
///
/// *What a crash costs.* The steps since the last boundary, at most N - 1 and the one under way: they are repeated,
/// model calls included. A tool call that has ended is not made again, if the repeated step gives it the same id.
///
/// *Caveats.* A turn is a boundary, so [`Run::turn`] grows by one for N steps: count steps in the state. A run's progress
/// deadline (`liveness.progressDeadlineSeconds`) must be longer than N steps take. What is kept when this is dropped is
/// lost: call [`Self::commit`] or [`Self::finish`] last.
pub struct Steps<'a> {
    run: &'a mut Run,
    /// Steps of a boundary.
    every: u32,
    kept: Option<Kept>,
}

/// Steps that are not committed.
struct Kept {
    steps: u32,
    commit: Commit,
    /// Bytes of the steps' bodies.
    bytes: usize,
}

impl Run {
    /// Commits a boundary for every `steps` steps. 1, and 0 too, commits each step.
    pub fn every(&mut self, steps: u32) -> Steps<'_> {
        Steps { run: self, every: steps.max(1), kept: None }
    }
}

impl Steps<'_> {
    /// The run, for its tool calls, waits and state. Commit with [`Self::step`].
    pub fn run(&self) -> &Run {
        self.run
    }

    /// Steps that are kept and not committed: what a crash would repeat now.
    pub fn kept(&self) -> u32 {
        self.kept.as_ref().map_or(0, |kept| kept.steps)
    }

    /// Adds a step. Every N-th step commits, and so does a step that plans calls, finishes or parks, and one that cannot
    /// be put together with the steps before it, because the boundary would be too large or would mix a whole state with
    /// changes of channels. Returns the response to the last commit; `None`: the step is only kept.
    pub fn step(&mut self, step: Commit) -> Result<Option<CommitResponse>> {
        let bytes = to_bytes(&step.request)?.len();
        let is_last = step.boundary == Boundary::Plan || step.request.outcome.is_some();
        let mut committed = None;
        if self.kept.as_ref().is_some_and(|kept| !kept.can_take(&step, bytes)) {
            committed = self.commit()?;
        }
        let kept = match self.kept.take() {
            None => Kept { steps: 1, commit: with_turn(step, self.run.turn()), bytes },
            Some(kept) => kept.with(step, bytes),
        };
        let is_due = is_last || kept.steps >= self.every;
        self.kept = Some(kept);
        if is_due { self.commit() } else { Ok(committed) }
    }

    /// Commits the kept steps now. Do so before something that must not be done without them; `None`: there are none.
    /// If it fails, the steps stay kept: after `UNSETTLED_CALLS` settle the calls, and commit again.
    pub fn commit(&mut self) -> Result<Option<CommitResponse>> {
        let Some(kept) = &mut self.kept else { return Ok(None) };
        let committed = self.run.send_commit(&mut kept.commit)?;
        self.kept = None;
        Ok(Some(committed))
    }

    /// As [`Run::check`], between two steps. Commits the kept steps first if the process must leave, unless the run is
    /// cancelled or has an open call that no boundary may pass over, its own or one of an earlier attempt.
    pub fn check(&mut self) -> Result<()> {
        if self.run.must_leave() && !self.run.cancelled() && !self.run.has_open_call() {
            match self.commit() {
                Err(Error::Refused { problem, .. }) if problem.code == Code::UnsettledCalls => {}
                committed => drop(committed?),
            }
        }
        self.run.check()
    }

    /// Commits the kept steps and ends the run.
    pub fn finish(mut self, finish: Finish) -> Result<()> {
        self.commit()?;
        self.run.finish(finish)
    }
}

impl Kept {
    /// Whether this step fits into the boundary of the kept ones.
    fn can_take(&self, step: &Commit, bytes: usize) -> bool {
        let (kept, new) = (&self.commit.request, &step.request);
        let fit = |one: usize, other: usize, limit: usize| one + other <= limit;
        let is_small = fit(self.bytes, bytes, Limits::BODY_BYTES)
            && fit(kept.events.len(), new.events.len(), Limits::EVENTS)
            && fit(kept.records.len(), new.records.len(), Limits::RECORDS)
            && fit(kept.inbox.len(), new.inbox.len(), Limits::MESSAGES);
        let channels = match (&kept.channels, &new.channels) {
            (Some(one), Some(other)) => are_mergeable(one, other),
            // A whole state replaces the channels before it, but channels cannot be changed after it.
            (None, Some(_)) => kept.state.is_none(),
            (_, None) => true,
        };
        step.boundary == Boundary::Result && is_small && channels
    }

    /// The boundary of the kept steps and this one.
    fn with(self, step: Commit, bytes: usize) -> Self {
        let mut kept = self.commit;
        kept.add_usage(step.request.usage);
        let Commit { turn, boundary, request: mut before } = kept;
        let CommitRequest {
            commit_id,
            state,
            channels,
            events,
            calls,
            open_calls,
            records,
            inbox,
            usage: _, // added above
            trigger,
            outcome,
        } = step.request;
        before.events.extend(events);
        before.records.extend(records);
        before.inbox.extend(inbox);
        let channels = match (before.channels, channels) {
            _ if state.is_some() => None,
            (Some(one), Some(other)) => Some(merged(one, other)),
            (one, other) => other.or(one),
        };
        let request = CommitRequest {
            commit_id,
            state: state.or(before.state),
            channels,
            events: before.events,
            calls,
            // A call that an earlier step named may have ended since.
            open_calls,
            records: before.records,
            inbox: before.inbox,
            usage: before.usage,
            trigger: trigger.or(before.trigger),
            outcome,
        };
        Self { steps: self.steps + 1, commit: Commit { turn, boundary, request }, bytes: self.bytes + bytes }
    }
}

/// The step as one of the open turn: a step names the turn as it was when the agent made it.
fn with_turn(step: Commit, turn: i32) -> Commit {
    Commit { turn, ..step }
}

/// Whether two changes of channels can be sent as one. They are applied in the order remove, truncate, set, append, so a
/// channel that the first one touched cannot be cut by the second one.
fn are_mergeable(one: &ChannelOps, other: &ChannelOps) -> bool {
    let touched = |name: &String| {
        one.set.contains_key(name)
            || one.append.contains_key(name)
            || one.truncate.contains_key(name)
            || one.remove.contains(name)
    };
    let count = |of: &ChannelOps| of.set.len() + of.append.len();
    let items = |of: &ChannelOps| of.append.values().map(Vec::len).sum::<usize>();
    !other.truncate.keys().any(touched)
        && !other.append.keys().any(|name| one.set.contains_key(name))
        && count(one) + count(other) <= Limits::CHANNELS
        && one.remove.len() + other.remove.len() <= Limits::CHANNELS
        && one.truncate.len() + other.truncate.len() <= Limits::CHANNELS
        && items(one) + items(other) <= Limits::ITEMS
}

/// Both changes as one.
fn merged(mut one: ChannelOps, other: ChannelOps) -> ChannelOps {
    let ChannelOps { full: _, remove, truncate, set, append } = other;
    for name in remove.iter().chain(set.keys()) {
        one.set.remove(name);
        one.append.remove(name);
        one.truncate.remove(name);
    }
    let new: Vec<_> = remove.into_iter().filter(|name| !one.remove.contains(name)).collect();
    one.remove.extend(new);
    one.truncate.extend(truncate);
    one.set.extend(set);
    extend_lists(&mut one.append, append);
    one
}

fn extend_lists<T>(lists: &mut BTreeMap<String, Vec<T>>, more: BTreeMap<String, Vec<T>>) {
    for (name, items) in more {
        lists.entry(name).or_default().extend(items);
    }
}
