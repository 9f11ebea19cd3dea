//! One big table, by theme.

mod cancel;
mod corruption;
mod deaths;
mod evidence;
mod holds;
mod over;
mod reserved;
mod silence;
mod starting;
mod status;
mod taking_up;
mod transitions;
mod versions;
mod waits;
mod worker_pod;

use dalsegno_crds::Cause;

use crate::words::Case;

#[test]
fn every_cause_that_the_operator_can_find_is_in_the_table() {
    let themes = [
        deaths::cases(),
        evidence::cases(),
        silence::cases(),
        cancel::cases(),
        reserved::cases(),
        holds::cases(),
    ];
    let expected: Vec<String> = themes.iter().flatten().flat_map(Case::effects).collect();
    // These are the store's.
    let by_the_store = |cause: &Cause| {
        matches!(cause, Cause::Adopted | Cause::Rewound | Cause::Abandoned | Cause::RunDeleted)
    };
    let missing = |cause: &&Cause| !expected.iter().any(|it| it.contains(&format!(": {cause},")));
    let missing: Vec<_> = Cause::ALL.iter().filter(|it| !by_the_store(it)).filter(missing).collect();
    assert!(missing.is_empty(), "no case ends with {missing:?}");
}
