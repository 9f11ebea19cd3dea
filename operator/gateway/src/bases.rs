//! The last full state of each run, as far as there is room: what the next one may be kept as a patch of.
//!
//! What is forgotten costs bytes, and what another gateway has overtaken is noticed by the store: it patches the head's
//! state or none. On one thing states rest: what is remembered under a boundary's hash is the state after that boundary.

use std::sync::Arc;

use dalsegno_store::{Base, Digest, PATCH_CHAIN, RunId, fold, header};
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

/// Runs that are expected to fit.
const RUNS: usize = 1_024;

/// What a run costs beyond the text of its state.
const OVERHEAD: u64 = 256;

/// States by run, forgotten beyond a budget of bytes.
pub(crate) struct Bases(Option<Cache<RunId, Last, Bytes>>);

/// The head's state.
#[derive(Clone)]
struct Last {
    base: Base,
    /// Boundaries since a full state that was kept plain.
    depth: i32,
}

#[derive(Clone)]
struct Bytes;

impl Weighter<RunId, Last> for Bytes {
    fn weight(&self, _: &RunId, last: &Last) -> u64 {
        last.base.state.len() as u64 + OVERHEAD
    }
}

/// What a boundary did to the state.
pub(crate) enum Change {
    /// It brought the full state, as these operations; as a patch, if it was given a base.
    Full { ops: Vec<u8>, patched: bool },
    /// The state stays as the boundary before it has left it, of which this is the content hash.
    None { parent: Option<Digest> },
    /// Anything else.
    Other,
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
        let last = self.0.as_ref()?.get(&run)?;
        (last.depth + 1 < PATCH_CHAIN).then_some(last.base)
    }

    /// A boundary was committed, and this is its content hash as workers see it.
    pub(crate) fn committed(&self, run: RunId, content_hash: &str, change: Change) {
        let Some(cache) = &self.0 else { return };
        let last = cache.get(&run);
        match header::parse(content_hash).and_then(|hash| after(last, hash, change)) {
            Some(last) => cache.insert(run, last),
            None => self.forget(run),
        }
    }

    /// What is known of the run may be wrong.
    pub(crate) fn forget(&self, run: RunId) {
        if let Some(cache) = &self.0 {
            cache.remove(&run);
        }
    }
}

fn after(last: Option<Last>, content_hash: [u8; 32], change: Change) -> Option<Last> {
    let depth = last.as_ref().map(|last| last.depth + 1);
    match change {
        Change::Full { ops, patched } => {
            let ops = String::from_utf8(ops).ok()?;
            let state = fold::fold([ops.as_str()]).and_then(|state| fold::text(&state)).ok()?;
            let base = Base { content_hash, state: Arc::new(state) };
            Some(Last { base, depth: if patched { depth? } else { 0 } })
        }
        // What is remembered may be older: others commit too, and a rewind goes back.
        Change::None { parent } => {
            let last = last.filter(|last| parent == Some(last.base.content_hash))?;
            Some(Last { base: Base { content_hash, ..last.base }, depth: last.depth + 1 })
        }
        Change::Other => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: RunId = RunId::from_u128(1);

    fn full(bytes: usize, patched: bool) -> Change {
        let text = "x".repeat(bytes);
        let ops = format!(r#"{{"full":true,"set":{{"state":{{"json":"{text}"}}}}}}"#).into_bytes();
        Change::Full { ops, patched }
    }

    fn hash(number: u8) -> String {
        header::render(&[number; 32])
    }

    #[test]
    fn a_base_is_the_text_of_the_state_after_the_head() {
        let bases = Bases::new(1 << 20);
        bases.committed(RUN, &hash(1), full(3, false));
        let base = bases.of(RUN).unwrap();
        assert_eq!(base.content_hash, [1; 32]);
        assert_eq!(base.state.as_slice(), br#"{"state":{"value":{"json":"xxx"}}}"#);
        bases.committed(RUN, &hash(2), Change::None { parent: Some([1; 32]) });
        assert_eq!(bases.of(RUN).unwrap().content_hash, [2; 32], "the state stayed, the head moved");
        bases.committed(RUN, &hash(3), Change::Other);
        assert!(bases.of(RUN).is_none());
    }

    #[test]
    fn a_state_that_stays_is_known_only_after_the_boundary_whose_state_is_known() {
        for parent in [Some([3; 32]), None] {
            let bases = Bases::new(1 << 20);
            bases.committed(RUN, &hash(1), full(3, false));
            bases.committed(RUN, &hash(2), Change::None { parent });
            assert!(bases.of(RUN).is_none(), "after {parent:?}");
        }
    }

    #[test]
    fn a_chain_of_patches_has_an_end() {
        let bases = Bases::new(1 << 20);
        bases.committed(RUN, &hash(1), full(3, false));
        let mut patches = 0;
        while bases.of(RUN).is_some() {
            bases.committed(RUN, &hash(2), full(3, true));
            patches += 1;
        }
        assert_eq!(patches, PATCH_CHAIN - 1);
        bases.committed(RUN, &hash(1), full(3, false));
        assert!(bases.of(RUN).is_some(), "a full state begins another");
    }

    #[test]
    fn states_are_forgotten_beyond_the_budget() {
        let bases = Bases::new(100_000);
        for number in 0..1_000 {
            bases.committed(RunId::from_u128(number), &hash(1), full(1_000, false));
        }
        let kept = (0..1_000).filter(|number| bases.of(RunId::from_u128(*number)).is_some()).count();
        assert!((1..100).contains(&kept), "{kept}");
        bases.committed(RUN, &hash(1), full(200_000, false));
        assert!(bases.of(RUN).is_none(), "what is larger than the budget is not kept");
        bases.committed(RUN, &hash(1), full(80_000, false));
        assert!(bases.of(RUN).is_some(), "one state may take nearly all of it");
    }
}
