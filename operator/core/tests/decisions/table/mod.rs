//! Tables of cases, by topic.

mod announcements;
mod approvals;
mod approvals_in_time;
mod avoided_nodes;
mod backoff;
mod bad_roll_outs;
mod cancel;
mod certificates;
mod corruption;
mod create_run;
mod deadlines;
mod events;
mod evidence;
mod external;
mod external_refusals;
mod external_silence;
mod finished;
mod forks;
mod holds;
mod late_node_loss;
mod lifted_suspend;
mod limits;
mod lost_gateway;
mod pod_ends;
mod remedies;
mod reserved;
mod rewinds;
mod run_queue;
mod starting;
mod status;
mod suspend;
mod temporary_holds;
mod versions;
mod waits;
mod worker_pod;

use dalsegno_crds::Cause;

use crate::fixtures::Case;

#[test]
fn every_cause_that_the_operator_can_find_has_a_case() {
    let topics = [
        pod_ends::cases(),
        evidence::cases(),
        deadlines::cases(),
        cancel::cases(),
        reserved::cases(),
        holds::cases(),
        limits::cases(),
        starting::cases(),
        suspend::cases(),
        avoided_nodes::cases(),
    ];
    let expected: Vec<String> = topics.iter().flatten().flat_map(Case::effects).collect();
    let has_case = |cause: &Cause| expected.iter().any(|it| it.contains(&format!(": {cause},")));
    let (set_by_store, others): (Vec<Cause>, Vec<Cause>) =
        Cause::ALL.iter().partition(|it| is_set_by_store(**it));
    let missing: Vec<_> = others.iter().filter(|it| !has_case(it)).collect();
    assert!(missing.is_empty(), "no case ends with {missing:?}");
    let found: Vec<_> = set_by_store.iter().filter(|it| has_case(it)).collect();
    assert!(found.is_empty(), "the operator ends an attempt with {found:?} itself");
}

/// Whether the store sets this cause when it carries out something else: `each_cause_that_the_store_sets_ends_an_attempt`
/// among the store's conformance tests has a case for each of them.
fn is_set_by_store(cause: Cause) -> bool {
    matches!(cause, Cause::Adopted | Cause::Rewound | Cause::Abandoned | Cause::RunDeleted | Cause::Parked)
}
