//! A run whose head cannot be rebuilt: it is looked at once for each attempt, and never gone on from.

use dalsegno_crds::ConditionType::{CheckpointAvailable, Held, Stalled};
use dalsegno_crds::{Cause, Reason, Summary};
use dalsegno_protocol::Policy;
use serde_json::json;

use crate::fixtures::{Given, case, check_all, crashed, expect_effect, expect_status, pod, run};

/// Attempt 4 is reserved after turn 7.
fn reserved() -> Given {
    run().reserved(4).head(7)
}

fn last_good(given: Given) -> Given {
    given.recovery(json!({ "onCorruptCheckpoint": "LastGood" }))
}

#[test]
fn no_pod_is_made_before_the_head_was_looked_at_once() {
    let looks = || expect_effect("verify the head of attempt 4");
    let unseen = || reserved().head_unverified();
    check_all(vec![
        case("a run that goes on has its head looked at first", unseen(), looks()),
        case("and is given its pod when it is sound", reserved(), expect_effect("create triage-4")),
        case(
            "what was found before the epoch moved says nothing",
            reserved().head_verified_before(),
            looks(),
        ),
        case("a fresh run has nothing to look at", run().head_unverified(), expect_effect("create triage-1")),
        case(
            "a run that has claimed a call is not fresh: it goes on with that call",
            run().reserved(2).unsettled(Policy::Probe, 1).head_unverified(),
            expect_effect("verify the head of attempt 2"),
        ),
        case(
            "a run without a head that has come somewhere before is not fresh",
            run().reserved(4).rewound_from(3).head_unverified(),
            looks(),
        ),
        case(
            "not while its time has not come",
            unseen().crashes(1, 1).after(crashed(3, Cause::OOMKilled).ago(0)),
            expect_status(Summary::BackingOff, Reason::OutOfMemory),
        ),
        case(
            "not where it is held for something else",
            unseen().crashes(3, 3),
            expect_status(Summary::Held, Reason::RecoveryLoop),
        ),
        case(
            "a pod that is there is recorded all the same",
            unseen().pod(pod(4)),
            expect_effect("record pod pod-4 of attempt 4"),
        ),
        case(
            "a worker that runs is left alone",
            run().attached(4).head(7).head_unverified().pod(pod(4)),
            expect_status(Summary::Running, Reason::UnderControl),
        ),
    ]);
}

#[test]
fn a_corrupt_head_holds_the_run_or_goes_back_where_nothing_is_repeated() {
    let held = || expect_status(Summary::Held, Reason::CheckpointCorrupt);
    check_all(vec![
        case(
            "a corrupt head holds the run, and says what is wrong, how far it is good, and the way out",
            reserved().corrupt(Some(5), &[]),
            held()
                .message_contains("turn 7 (result): it has another payload than was committed")
                .message_contains("the last good checkpoint is turn 5 (result). Restore the damaged rows")
                .message_contains("raise spec.recovery.resetGeneration")
                .condition(Held, "True", Reason::CheckpointCorrupt)
                .condition(Stalled, "True", Reason::CheckpointCorrupt)
                .condition(CheckpointAvailable, "False", Reason::CheckpointCorrupt)
                .events(&["CheckpointCorrupt"]),
        ),
        case(
            "with LastGood it goes back",
            last_good(reserved().corrupt(Some(5), &[])),
            expect_effect("go back to turn 5 (result) by operator"),
        ),
        case(
            "with LastGood it is held all the same where a call would take effect again, and the calls are named",
            last_good(reserved().corrupt(Some(5), &["pay", "ship"])),
            held().message_contains("turn 5 (result), might repeat the effects of these calls: pay, ship. Restore"),
        ),
        case(
            "only so many calls are named",
            last_good(reserved().corrupt(Some(5), &["c"; 14])),
            held().message_contains("c, c, c, c, c, c, c, c, c, c and 4 more"),
        ),
        case(
            "where nothing is good it is held, and never begins anew",
            last_good(reserved().corrupt(None, &[])),
            held().message_contains("no earlier checkpoint can be rebuilt"),
        ),
        case(
            "a run that lost its head is held too",
            last_good(run().reserved(4).rewound_from(3).corrupt(None, &[])),
            held(),
        ),
        case(
            "a definition's default counts",
            reserved()
                .corrupt(Some(5), &[])
                .defaults(json!({ "recovery": { "onCorruptCheckpoint": "LastGood" } })),
            expect_effect("go back to turn 5 (result) by operator"),
        ),
        case(
            "a cancel needs no checkpoint",
            reserved().corrupt(Some(5), &[]).cancel(1, None),
            expect_effect("end 4: Cancelled, Neutral, then finish Cancelled Cancelled"),
        ),
        case(
            "a granted budget has it looked at again",
            reserved()
                .corrupt(Some(5), &[])
                .head_verified_before()
                .budget_reset(1, 3)
                .recovery(json!({ "resetGeneration": 1 })),
            expect_effect("verify the head of attempt 4"),
        ),
    ]);
}

#[test]
fn a_run_that_went_back_is_not_behind_its_status() {
    let back = || run().reserved(4).head(5).rewound_from(7).status_knows(4, 7, 50);
    check_all(vec![
        case("its status may know a later turn", back(), expect_effect("create triage-4")),
        case(
            "and so may a pod of an earlier attempt",
            back().pod(pod(3).oom().resumed_from(7, 50)),
            expect_effect("create triage-4"),
        ),
        case(
            "a store that never reached it is behind",
            back().rewound_from(6),
            expect_status(Summary::Held, Reason::StoreBehind),
        ),
        case(
            "that it went back is told once",
            run().attached(4).head(7).pod(pod(4)).status_written().head(5).rewound_from(7),
            expect_status(Summary::Running, Reason::UnderControl).events(&["Rewound"]),
        ),
    ]);
}
