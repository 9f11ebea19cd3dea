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
    // The store sets these causes.
    let set_by_store = |cause: &Cause| {
        matches!(
            cause,
            Cause::Adopted | Cause::Rewound | Cause::Abandoned | Cause::RunDeleted | Cause::Parked
        )
    };
    let missing = |cause: &&Cause| !expected.iter().any(|it| it.contains(&format!(": {cause},")));
    let missing: Vec<_> = Cause::ALL.iter().filter(|it| !set_by_store(it)).filter(missing).collect();
    assert!(missing.is_empty(), "no case ends with {missing:?}");
}
