//! Agents that keep their own checkpoints: what such a run cannot have, and a definition that has changed its mind.

use dalsegno_crds::ConditionType::{Rewound, WorkerReady};
use dalsegno_crds::{Cause, Reason};
use dalsegno_model::{AvailableTurns, Class, RewindRefusal, RewindResult};
use serde_json::json;

use super::external::{held, running, working};
use crate::fixtures::{Case, Given, case, check_all, expect_effect, expect_end, pod, run};

#[test]
fn what_external_does_not_support_is_refused() {
    check_all(refusals());
}

#[test]
fn each_field_is_found_where_its_value_is_refused() {
    let of_runs_and_defaults = [
        (json!({ "liveness": { "heartbeatTimeoutSeconds": 30 } }), "liveness ("),
        (json!({ "suspend": { "graceSeconds": 30 } }), "suspend ("),
        (json!({ "limits": { "turns": 5, "activeSeconds": 9 } }), "limits.turns ("),
        (json!({ "limits": { "tokens": 5 } }), "limits.tokens ("),
        (json!({ "limits": { "costMicroUSD": 5 } }), "limits.costMicroUSD ("),
        (json!({ "fourEyes": true }), "fourEyes: true ("),
        (json!({ "checkpoints": { "snapshotEvery": 5 } }), "checkpoints ("),
        (json!({ "retention": { "keepLast": 5 } }), "retention.keepLast ("),
        (json!({ "recovery": { "onSameCheckpoint": "Rewind" } }), "recovery.onSameCheckpoint: Rewind ("),
        (
            json!({ "recovery": { "onCorruptCheckpoint": "LastGood" } }),
            "recovery.onCorruptCheckpoint: LastGood (",
        ),
        (json!({ "onPriorRun": "Adopt" }), "onPriorRun: Adopt ("),
    ];
    let refused =
        |given: Given, what: String| case("", given, held(Reason::NotSupported).message_contains(what));
    let cases = of_runs_and_defaults.into_iter().flat_map(|(fields, what)| {
        let of_run = run().reserved(1).external().spec(fields.clone());
        let of_defaults = run().reserved(1).external().defaults(fields);
        [refused(of_run, format!("spec.{what}")), refused(of_defaults, format!("defaults.{what}"))]
    });
    check_all(cases.collect());
}

fn refusals() -> Vec<Case> {
    let supported = |fields| run().reserved(1).external().spec(fields);
    vec![
        case(
            "a field without an effect holds the run before it is created",
            run().external().not_in_store().spec(json!({ "liveness": { "heartbeatTimeoutSeconds": 30 } })),
            held(Reason::NotSupported)
                .message_contains("spec.liveness (the worker sends no heartbeats")
                .condition(WorkerReady, "False", Reason::NoWorker),
        ),
        case(
            "but not if it is cancelled: then it can end",
            run()
                .external()
                .not_in_store()
                .spec(json!({ "resumeFrom": { "runName": "other" }, "operatingMode": "Cancelled" })),
            expect_effect("create run, resetGeneration 0, a fork, external, prior runs: Hold"),
        ),
        case(
            "a limit of what the worker does not report",
            supported(json!({ "limits": { "tokens": 5 } })),
            held(Reason::NotSupported).message_contains("spec.limits.tokens"),
        ),
        case(
            "a field of the definition's defaults",
            run().reserved(1).external().defaults(json!({ "checkpoints": { "snapshotEvery": 5 } })),
            held(Reason::NotSupported).message_contains("defaults.checkpoints"),
        ),
        case(
            "a fork",
            supported(json!({ "resumeFrom": { "runName": "other" } })),
            held(Reason::NotSupported).message_contains("spec.resumeFrom"),
        ),
        case(
            "an adoption",
            supported(json!({ "onPriorRun": "Adopt" })),
            held(Reason::NotSupported).message_contains("spec.onPriorRun: Adopt"),
        ),
        case(
            "a value that is the built-in one is no promise",
            supported(json!({ "recovery": { "onSameCheckpoint": "Retry", "onCorruptCheckpoint": "Hold" } })),
            expect_effect("create triage-1"),
        ),
        case(
            "a field that is added later leaves the worker alone",
            working().spec(json!({ "fourEyes": true })),
            held(Reason::NotSupported).condition(WorkerReady, "True", Reason::Started),
        ),
        case(
            "a definition that was created again with another checkpointing",
            {
                let mut given = run().reserved(2);
                given.row.is_external = true;
                given
            },
            held(Reason::NotSupported).message_contains("the run began with checkpointing: External"),
        ),
        case(
            "and such a definition does not switch off the deadlines of a worker that attached",
            {
                let given = run().attached(3).head(7).heartbeat(16).pod(pod(3));
                let deadlines = given.row.deadlines;
                let mut given = given.external();
                (given.row.is_external, given.row.deadlines) = (false, deadlines);
                given
            },
            expect_end(3, Cause::Silent, Class::Crash),
        ),
        case(
            "nor does it set deadlines for a worker that does not attach",
            {
                let given = working();
                let deadlines = given.row.deadlines;
                let mut given = given.image(crate::fixtures::IMAGE_BY_TAG).with_row_settings();
                given.row.deadlines = deadlines;
                given
            },
            held(Reason::NotSupported).condition(WorkerReady, "True", Reason::Started),
        ),
        case(
            "a rewind is refused by its own condition",
            {
                let mut given = working().spec(json!({ "rewind": { "generation": 1, "toTurn": 3 } }));
                given.row.observed_rewind_generation = 1;
                let refused = Some(RewindRefusal::TurnNotAvailable(AvailableTurns { first: 1, last: 0 }));
                given.row.rewind = Some(RewindResult { generation: 1, to_turn: 3, refused });
                given
            },
            running()
                .condition(Rewound, "False", Reason::TurnNotAvailable)
                .message_contains("the agent has checkpointing: External"),
        ),
    ]
}
