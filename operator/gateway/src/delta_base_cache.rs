//! Caches the last full state of each run, so that the next full state can be stored as a delta. The store decides what
//! to remember after a commit ([`PatchChain`]).

use dalsegno_format::PatchChain;
use dalsegno_model::{Commit, Committed, DeltaBase, RunId};
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

/// Expected number of cached states; only a hint for the cache.
const EXPECTED_STATES: usize = 1_024;

/// Estimated bytes of a cache entry without its state.
const ENTRY_OVERHEAD: u64 = 256;

/// States by run, within a limit of bytes. `None` if no cache can be built.
pub(crate) struct DeltaBaseCache(Option<Cache<RunId, PatchChain, StateWeighter>>);

#[derive(Clone)]
struct StateWeighter;

impl Weighter<RunId, PatchChain> for StateWeighter {
    fn weight(&self, _: &RunId, last: &PatchChain) -> u64 {
        last.bytes() as u64 + ENTRY_OVERHEAD
    }
}

impl DeltaBaseCache {
    /// A cache of at most this many bytes.
    pub(crate) fn new(max_bytes: usize) -> Self {
        // One shard, so that one state may take the whole capacity.
        let options = OptionsBuilder::new()
            .shards(1)
            .estimated_items_capacity(EXPECTED_STATES)
            .weight_capacity(max_bytes as u64)
            .build();
        Self(options.ok().map(|options| {
            let hasher = DefaultHashBuilder::default();
            Cache::with_options(options, StateWeighter, hasher, DefaultLifecycle::default())
        }))
    }

    /// What the run's next full state may be stored as a delta of.
    pub(crate) fn base_of(&self, run: RunId) -> Option<DeltaBase> {
        self.0.as_ref()?.get(&run)?.base()
    }

    /// Updates the cache after the store has answered a commit.
    pub(crate) fn committed(&self, commit: &Commit, committed: &Committed) {
        let Some(cache) = &self.0 else { return };
        match PatchChain::after(cache.get(&commit.run), commit, committed) {
            Some(last) => cache.insert(commit.run, last),
            None => drop(cache.remove(&commit.run)),
        }
    }
}

#[cfg(test)]
mod tests {
    use dalsegno_model::{CommitReceipt, WorkerSignals};
    use dalsegno_protocol::{Boundary, Head, Usage};
    use uuid::Uuid;

    use super::*;

    const RUN: RunId = RunId::from_u128(1);

    /// Commits a full state of this many bytes.
    fn commit_full(bases: &DeltaBaseCache, run: RunId, bytes: usize) {
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
            open_calls: Vec::new(),
            records: Vec::new(),
            inbox: Vec::new(),
            usage: Usage::default(),
            trigger: None,
            finish: None,
            park: None,
        };
        let content_hash = format!("sha256:{}", "00".repeat(32));
        let head = Some(Head { turn: 1, boundary: Boundary::Result, position: 0, content_hash });
        bases.committed(
            &commit,
            &Committed::Ok(CommitReceipt { head, parent: None, signals: WorkerSignals::default() }),
        );
    }

    #[test]
    fn states_beyond_the_limit_are_evicted() {
        let bases = DeltaBaseCache::new(100_000);
        for number in 0..1_000 {
            commit_full(&bases, RunId::from_u128(number), 1_000);
        }
        let cached = (0..1_000).filter(|number| bases.base_of(RunId::from_u128(*number)).is_some()).count();
        assert!((1..100).contains(&cached), "{cached}");
        commit_full(&bases, RUN, 200_000);
        assert!(bases.base_of(RUN).is_none(), "a state larger than the limit is not cached");
        commit_full(&bases, RUN, 80_000);
        assert!(bases.base_of(RUN).is_some(), "one state may take nearly the whole limit");
    }
}
