//! The last state of each run, as far as there is room: what the next full one may be kept as a patch of. What is to be
//! remembered after which commit, the store says ([`LastState`]).

use dalsegno_store::{Base, Commit, Committed, LastState, RunId};
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

/// Runs that are expected to fit.
const RUNS: usize = 1_024;

/// What a run costs beyond the text of its state.
const OVERHEAD: u64 = 256;

/// States by run, forgotten beyond a budget of bytes.
pub(crate) struct Bases(Option<Cache<RunId, LastState, Bytes>>);

#[derive(Clone)]
struct Bytes;

impl Weighter<RunId, LastState> for Bytes {
    fn weight(&self, _: &RunId, last: &LastState) -> u64 {
        last.bytes() as u64 + OVERHEAD
    }
}

impl Bases {
    pub(crate) fn new(budget: usize) -> Self {
        // One shard: a state may be as large as the whole budget.
        let options = OptionsBuilder::new()
            .shards(1)
            .estimated_items_capacity(RUNS)
            .weight_capacity(budget as u64)
            .build();
        Self(options.ok().map(|options| {
            Cache::with_options(options, Bytes, DefaultHashBuilder::default(), DefaultLifecycle::default())
        }))
    }

    /// What the run's next full state may be a patch of.
    pub(crate) fn of(&self, run: RunId) -> Option<Base> {
        self.0.as_ref()?.get(&run)?.base()
    }

    /// A commit was answered.
    pub(crate) fn committed(&self, commit: &Commit, committed: &Committed) {
        let Some(cache) = &self.0 else { return };
        match LastState::after(cache.get(&commit.run), commit, committed) {
            Some(last) => cache.insert(commit.run, last),
            None => drop(cache.remove(&commit.run)),
        }
    }
}

#[cfg(test)]
mod tests {
    use dalsegno_protocol::{Boundary, Head, Usage};
    use dalsegno_store::{Asked, Standing};
    use uuid::Uuid;

    use super::*;

    const RUN: RunId = RunId::from_u128(1);

    /// A full state of so many bytes was committed.
    fn full(bases: &Bases, run: RunId, bytes: usize) {
        let ops = format!(r#"{{"full":true,"set":{{"state":{{"json":"{}"}}}}}}"#, "x".repeat(bytes));
        let commit = Commit {
            run,
            capability: [0; 32],
            turn: 1,
            boundary: Boundary::Result,
            commit_id: Uuid::nil(),
            digest: [0; 32],
            ops: Some(ops.into()),
            full: true,
            size: 0,
            base: None,
            events: Vec::new(),
            calls: Vec::new(),
            records: Vec::new(),
            usage: Usage::default(),
            trigger: None,
            finish: None,
        };
        let content_hash = format!("sha256:{}", "00".repeat(32));
        let head = Some(Head { turn: 1, boundary: Boundary::Result, position: 0, content_hash });
        bases.committed(&commit, &Committed::Ok(Standing { head, parent: None, asked: Asked::default() }));
    }

    #[test]
    fn states_are_forgotten_beyond_the_budget() {
        let bases = Bases::new(100_000);
        for number in 0..1_000 {
            full(&bases, RunId::from_u128(number), 1_000);
        }
        let kept = (0..1_000).filter(|number| bases.of(RunId::from_u128(*number)).is_some()).count();
        assert!((1..100).contains(&kept), "{kept}");
        full(&bases, RUN, 200_000);
        assert!(bases.of(RUN).is_none(), "what is larger than the budget is not kept");
        full(&bases, RUN, 80_000);
        assert!(bases.of(RUN).is_some(), "one state may take nearly all of it");
    }
}
