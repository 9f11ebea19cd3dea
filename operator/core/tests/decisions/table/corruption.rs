//! A run whose head cannot be rebuilt: it is looked at once for each attempt, and never gone on from.

use dalsegno_crds::ConditionType::{CheckpointAvailable, Held, Stalled};
use dalsegno_crds::{Cause, Reason, Summary};
use dalsegno_protocol::Policy;
use serde_json::json;

use crate::words::{Given, acts, case, crashed, pod, rests, run, try_all};

/// Attempt 4 is reserved after turn 7.
fn reserved() -> Given {
    run().reserved(4).head(7)
}

fn last_good(given: Given) -> Given {
    given.recovery(json!({ "onCorruptCheckpoint": "LastGood" }))
}

#[test]
fn no_pod_is_made_before_the_head_was_looked_at_once() {
    let looks = || acts("verify the head of attempt 4");
    let unseen = || reserved().head_not_looked_at();
    try_all(vec![
        case("a run that goes on has its head looked at first", unseen(), looks()),
        case("and is given its pod when it is sound", reserved(), acts("create triage-4")),
        case(
            "what was found before the epoch moved says nothing",
            reserved().head_looked_at_before(),
            looks(),
        ),
        case("a fresh run has nothing to look at", run().head_not_looked_at(), acts("create triage-1")),
        case(
            "a run that has claimed a call is not fresh: it goes on with that call",
            run().reserved(2).unsettled(Policy::Probe, 1).head_not_looked_at(),
            acts("verify the head of attempt 2"),
        ),
        case(
            "a run without a head that has come somewhere before is not fresh",
            run().reserved(4).once_at(3).head_not_looked_at(),
            looks(),
        ),
        case(
            "not while its time has not come",
            unseen().crashes(1, 1).after(crashed(3, Cause::OOMKilled).ago(0)),
            rests(Summary::BackingOff, Reason::OutOfMemory),
        ),
        case(
            "not where it is held for something else",
            unseen().crashes(3, 3),
            rests(Summary::Held, Reason::RecoveryLoop),
        ),
        case(
            "a pod that is there is recorded all the same",
            unseen().pod(pod(4)),
            acts("record pod pod-4 of attempt 4"),
        ),
        case(
            "a worker that runs is left alone",
            run().attached(4).head(7).head_not_looked_at().pod(pod(4)),
            rests(Summary::Running, Reason::UnderControl),
        ),
    ]);
}

#[test]
fn a_corrupt_head_holds_the_run_or_goes_back_where_nothing_is_repeated() {
    let held = || rests(Summary::Held, Reason::CheckpointCorrupt);
    try_all(vec![
        case(
            "a corrupt head holds the run, and says what is wrong, how far it is good, and the way out",
            reserved().corrupt(Some(5), &[]),
            held()
                .says("turn 7 (result): it has another payload than was committed")
                .says("the last good checkpoint is turn 5 (result). Restore the damaged rows")
                .says("raise spec.recovery.resetGeneration")
                .is(Held, "True", Reason::CheckpointCorrupt)
                .is(Stalled, "True", Reason::CheckpointCorrupt)
                .is(CheckpointAvailable, "False", Reason::CheckpointCorrupt)
                .tells(&["CheckpointCorrupt"]),
        ),
        case(
            "with LastGood it goes back",
            last_good(reserved().corrupt(Some(5), &[])),
            acts("go back to turn 5 (result) by operator"),
        ),
        case(
            "with LastGood it is held all the same where a call would take effect again, and the calls are named",
            last_good(reserved().corrupt(Some(5), &["pay", "ship"])),
            held().says("turn 5 (result), might repeat what these calls did: pay, ship. Restore"),
        ),
        case(
            "only so many calls are named",
            last_good(reserved().corrupt(Some(5), &["c"; 14])),
            held().says("c, c, c, c, c, c, c, c, c, c and 4 more"),
        ),
        case(
            "where nothing is good it is held, and never begins anew",
            last_good(reserved().corrupt(None, &[])),
            held().says("no earlier checkpoint mends it"),
        ),
        case(
            "a run that lost its head is held too",
            last_good(run().reserved(4).once_at(3).corrupt(None, &[])),
            held(),
        ),
        case(
            "a definition's default counts",
            reserved()
                .corrupt(Some(5), &[])
                .defaults(json!({ "recovery": { "onCorruptCheckpoint": "LastGood" } })),
            acts("go back to turn 5 (result) by operator"),
        ),
        case(
            "a cancel needs no checkpoint",
            reserved().corrupt(Some(5), &[]).cancel(1, None),
            acts("end 4: Cancelled, Neutral, then finish Cancelled Cancelled"),
        ),
        case(
            "a granted budget has it looked at again",
            reserved()
                .corrupt(Some(5), &[])
                .head_looked_at_before()
                .reset(1, 3)
                .recovery(json!({ "resetGeneration": 1 })),
            acts("verify the head of attempt 4"),
        ),
    ]);
}

#[test]
fn a_run_that_went_back_is_not_behind_its_status() {
    let back = || run().reserved(4).head(5).once_at(7).knows(4, 7, 50);
    try_all(vec![
        case("its status may know a later turn", back(), acts("create triage-4")),
        case(
            "and so may a pod of an earlier attempt",
            back().pod(pod(3).oom().resumed_from(7, 50)),
            acts("create triage-4"),
        ),
        case(
            "a store that never reached it is behind",
            back().once_at(6),
            rests(Summary::Held, Reason::StoreBehind),
        ),
        case(
            "that it went back is told once",
            run().attached(4).head(7).pod(pod(4)).written().head(5).once_at(7),
            rests(Summary::Running, Reason::UnderControl).tells(&["Rewound"]),
        ),
    ]);
}
