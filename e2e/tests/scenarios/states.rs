//! What a person's verbs do in each state of a run: twelve cells of the table in `docs/guides/state-machine.md`, on a real
//! cluster. The store's tests have a table of all cells (`phases.rs`).

use dalsegno_crds::{Reason, Summary};
use dalsegno_e2e::wait::secs;
use dalsegno_e2e::{Agent, Result, Run, TestContext};
use serde_json::{Value, json};

/// The states in which a verb meets a run.
#[derive(Clone, Copy, Debug)]
enum State {
    Running,
    BackingOff,
    Suspended,
    Waiting,
    Held,
    Succeeded,
}

impl State {
    /// The input and the spec of a run that reaches this state and stays in it.
    fn agent(self) -> Agent {
        let crash = json!([{ "attempt": 1, "turn": 2, "at": "start", "do": "exit:1" }]);
        let slow = json!({ "initialSeconds": 600, "maxSeconds": 600 });
        let (input, spec): (Value, Value) = match self {
            Self::Running => (json!({ "turns": 400, "turnSeconds": 0.3 }), json!({})),
            Self::BackingOff => {
                (json!({ "turns": 3, "script": crash }), json!({ "recovery": { "backoff": slow } }))
            }
            Self::Suspended => (json!({ "turns": 3 }), json!({ "operatingMode": "Suspended" })),
            Self::Waiting => {
                (json!({ "turns": 3, "waits": [{ "afterTurn": 1, "kind": "message" }] }), json!({}))
            }
            Self::Held => {
                (json!({ "turns": 3, "script": crash }), json!({ "recovery": { "maxRecoveryAttempts": 0 } }))
            }
            Self::Succeeded => (json!({ "turns": 2, "turnSeconds": 0.1 }), json!({})),
        };
        Agent::new(input).spec(spec)
    }

    fn summary(self) -> Summary {
        match self {
            Self::Running => Summary::Running,
            Self::BackingOff => Summary::BackingOff,
            Self::Suspended => Summary::Suspended,
            Self::Waiting => Summary::Waiting,
            Self::Held => Summary::Held,
            Self::Succeeded => Summary::Succeeded,
        }
    }
}

/// What a person does.
#[derive(Clone, Copy, Debug)]
enum Verb {
    Suspend,
    Resume,
    Cancel,
    Grant,
}

async fn perform(run: &Run<'_>, verb: Verb) -> Result {
    match verb {
        Verb::Suspend => run.suspend().await,
        Verb::Resume => run.resume().await,
        Verb::Cancel => run.cancel().await,
        Verb::Grant => {
            run.patch_spec(json!({ "recovery": { "resetGeneration": 1, "maxRecoveryAttempts": 5 } })).await
        }
    }
}

/// State, verb, and the summary after it.
const CELLS: [(State, Verb, Summary); 12] = [
    (State::Running, Verb::Suspend, Summary::Suspended),
    (State::Running, Verb::Cancel, Summary::Cancelled),
    (State::BackingOff, Verb::Suspend, Summary::Suspended),
    (State::BackingOff, Verb::Cancel, Summary::Cancelled),
    (State::Suspended, Verb::Resume, Summary::Succeeded),
    (State::Suspended, Verb::Cancel, Summary::Cancelled),
    (State::Waiting, Verb::Suspend, Summary::Suspended),
    (State::Waiting, Verb::Cancel, Summary::Cancelled),
    (State::Held, Verb::Suspend, Summary::Held),
    (State::Held, Verb::Cancel, Summary::Cancelled),
    (State::Held, Verb::Grant, Summary::Succeeded),
    (State::Succeeded, Verb::Suspend, Summary::Succeeded),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_verb_has_its_defined_answer_in_every_state() -> Result {
    let ctx = TestContext::new("states").await?;
    let mut runs = Vec::new();
    for (number, (state, ..)) in CELLS.iter().enumerate() {
        runs.push(ctx.start(&format!("cell-{number}"), &state.agent()).await?);
    }
    for (run, (state, verb, _)) in runs.iter().zip(CELLS) {
        run.wait_for(state.summary(), secs(120)).await?;
        perform(run, verb).await?;
    }
    for (run, (state, verb, expected)) in runs.iter().zip(CELLS) {
        let seen = run.wait_for(expected, secs(90)).await;
        seen.map_err(|error| error.context(format!("{state:?}, {verb:?}")))?;
    }
    // A held run that is suspended stays held, and one that waits and was suspended waits again.
    runs[6].resume().await?;
    runs[8].wait_until("to be held and suspended", secs(30), |status| status.suspend.is_some()).await?;
    assert_eq!(runs[6].wait_for(Summary::Waiting, secs(60)).await?.reason, Some(Reason::Message));
    assert!(runs[11].status().await?.suspend.is_none(), "a finished run is not suspended");
    ctx.end().await
}
