//! The next decision about a run, explained to a person who sees less than the operator.
//!
//! # Guarantees
//!
//! The explanation comes from [`decide()`](crate::decide()) itself, over what the person can read. What only the operator
//! knows, such as whether it has verified the checkpoint, is tried in every way that matters: the rule of the operator's
//! decision is [`Explanation::rule`] or one of [`Explanation::unless`]. If there is none of these, the decision is certain.
//! A test compares both for every case of `decide`'s tables and for generated ones.

mod effects;
mod facts;
mod hypotheses;

use dalsegno_crds::AgentRun;
use jiff::Timestamp;

use crate::decide::decide;
use crate::decision::Decision;
use crate::observed::Observed;
use crate::rule::Rule;

pub use effects::describe;
pub use facts::{Fact, facts};
pub use hypotheses::Hidden;

/// An explanation of the next decision.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The rule that the decision follows, as far as the person can see.
    pub rule: Rule,
    /// The decision.
    pub decision: Decision,
    /// What is known.
    pub facts: Vec<Fact>,
    /// Other rules that the decision may follow instead, each with what would make it so. Empty: the decision is certain.
    pub unless: Vec<Unless>,
}

/// Another rule that the decision may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unless {
    /// What the person does not see.
    pub hidden: Hidden,
    /// The rule in that case.
    pub rule: Rule,
}

/// Explains the next decision. `hidden`: what of `observed` the person could not read.
pub fn explain(run: &AgentRun, observed: &Observed, hidden: &[Hidden], now: Timestamp) -> Explanation {
    let decision = decide(run, observed, now);
    let rule = decision.rule;
    let mut unless: Vec<Unless> = Vec::new();
    let mut add = |found: Unless| {
        if found.rule != rule && !unless.iter().any(|it| it.rule == found.rule) {
            unless.push(found);
        }
    };
    // Of worlds in which the same rule applies one is enough: what is still hidden is tried in each.
    let mut worlds = vec![(rule, observed.clone())];
    for hidden in hidden {
        let others: Vec<_> =
            worlds.iter().flat_map(|(_, world)| hypotheses::of(*hidden, run, (world, now))).collect();
        for other in others {
            let (rule, world) = match other {
                hypotheses::Hypothesis::World(world) => (decide(run, &world, now).rule, Some(*world)),
                hypotheses::Hypothesis::Rule(rule) => (rule, None),
            };
            add(Unless { hidden: *hidden, rule });
            if let Some(world) = world.filter(|_| worlds.iter().all(|(known, _)| *known != rule)) {
                worlds.push((rule, world));
            }
        }
    }
    Explanation { rule, facts: facts(run, observed, now), decision, unless }
}
