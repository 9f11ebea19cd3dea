//! Verification of the head: once for each attempt. A run never resumes from a corrupt head.

use dalsegno_crds::ConditionType::{CheckpointAvailable, Held, Stalled};
use dalsegno_crds::{Cause, EventReason, Reason, Summary};
use dalsegno_model::RunOutcome;
use dalsegno_protocol::Policy;
use serde_json::json;

use crate::fixtures::{
    Given, case, check_all, crashed, expect_effect, expect_finish, expect_status, pod, run,
};

/// Attempt 4 is reserved after turn 7.
fn reserved() -> Given {
    run().reserved(4).head(7)
}

fn last_good(given: Given) -> Given {
    given.recovery(json!({ "onCorruptCheckpoint": "LastGood" }))
}

#[test]
fn the_head_is_verified_before_the_pod_is_created() {
    let verifies = || expect_effect("verify the head of attempt 4");
    let unseen = || reserved().head_unverified();
    check_all(vec![
        case("a run with a head has its head verified first", unseen(), verifies()),
        case("a run with a valid head gets its pod", reserved(), expect_effect("create triage-4")),
        case(
            "a verification of an earlier epoch does not count",
            reserved().head_verified_before(),
            verifies(),
        ),
        case("a new run has nothing to verify", run().head_unverified(), expect_effect("create triage-1")),
        case(
            "a run with a claimed call is verified, because it resumes with that call",
            run().reserved(2).unsettled(Policy::Probe, 1).head_unverified(),
            expect_effect("verify the head of attempt 2"),
        ),
        case(
            "a run without a head that committed turns before is verified",
            run().reserved(4).rewound_from(3).head_unverified(),
            verifies(),
        ),
        case(
            "the head is not verified while the run backs off",
            unseen().crashes(1, 1).after(crashed(3, Cause::OOMKilled).ago(0)),
            expect_status(Summary::BackingOff, Reason::OutOfMemory),
        ),
        case(
            "the head is not verified while the run is held for another reason",
            unseen().crashes(3, 3),
            expect_status(Summary::Held, Reason::RecoveryLoop),
        ),
        case(
            "an existing pod is recorded without verification",
            unseen().pod(pod(4)),
            expect_effect("record pod pod-4 of attempt 4"),
        ),
        case(
            "a running worker is not touched",
            run().attached(4).head(7).head_unverified().pod(pod(4)),
            expect_status(Summary::Running, Reason::UnderControl),
        ),
    ]);
}

#[test]
fn a_corrupt_head_holds_the_run_or_rewinds_it_if_no_effect_is_repeated() {
    let held = || expect_status(Summary::Held, Reason::CheckpointCorrupt);
    check_all(vec![
        case(
            "a corrupt head holds the run, and the message has the damage, the last good checkpoint and the remediation",
            reserved().corrupt(Some(5), &[]),
            held()
                .message_contains("turn 7 (result): it has another payload than was committed")
                .message_contains("the last good checkpoint is turn 5 (result). Restore the damaged rows")
                .message_contains("raise spec.recovery.resetGeneration")
                .condition(Held, "True", Reason::CheckpointCorrupt)
                .condition(Stalled, "True", Reason::CheckpointCorrupt)
                .condition(CheckpointAvailable, "False", Reason::CheckpointCorrupt)
                .events(&[&Reason::CheckpointCorrupt]),
        ),
        case(
            "LastGood rewinds the run",
            last_good(reserved().corrupt(Some(5), &[])),
            expect_effect("rewind to turn 5 (result) by operator"),
        ),
        case(
            "LastGood holds the run if a call would take effect again, and the message lists the calls",
            last_good(reserved().corrupt(Some(5), &["pay", "ship"])),
            held().message_contains(
                "turn 5 (result), might repeat the effects of these calls: pay, ship. Restore",
            ),
        ),
        case(
            "the message lists at most ten calls",
            last_good(reserved().corrupt(Some(5), &["c"; 14])),
            held().message_contains("c, c, c, c, c, c, c, c, c, c and 4 more"),
        ),
        case(
            "without a good checkpoint the run is held, and does not start at turn 1",
            last_good(reserved().corrupt(None, &[])),
            held().message_contains("no earlier checkpoint can be rebuilt"),
        ),
        case(
            "a run that lost its head is held",
            last_good(run().reserved(4).rewound_from(3).corrupt(None, &[])),
            held(),
        ),
        case(
            "LastGood can be the definition's default",
            reserved()
                .corrupt(Some(5), &[])
                .defaults(json!({ "recovery": { "onCorruptCheckpoint": "LastGood" } })),
            expect_effect("rewind to turn 5 (result) by operator"),
        ),
        case(
            "a run with a corrupt head can be cancelled",
            reserved().corrupt(Some(5), &[]).cancel(1, None),
            expect_finish(4, Cause::Cancelled, RunOutcome::Cancelled, Reason::Cancelled),
        ),
        case(
            "a granted budget causes another verification",
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
fn a_rewound_run_is_not_behind_its_status() {
    let back = || run().reserved(4).head(5).rewound_from(7).status_knows(4, 7, 50);
    check_all(vec![
        case("the status may show a later turn", back(), expect_effect("create triage-4")),
        case(
            "a pod of an earlier attempt may show a later turn",
            back().pod(pod(3).oom().resumed_from(7, 50)),
            expect_effect("create triage-4"),
        ),
        case(
            "a store that never reached that turn is behind",
            back().rewound_from(6),
            expect_status(Summary::Held, Reason::StoreBehind),
        ),
        case(
            "the rewind is published as one event",
            run().attached(4).head(7).pod(pod(4)).status_written().head(5).rewound_from(7),
            expect_status(Summary::Running, Reason::UnderControl).events(&[&EventReason::Rewound]),
        ),
    ]);
}
