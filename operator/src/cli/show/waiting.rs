//! Why a run has no worker: it is held, it waits, or it starts.
//!
//! A hold depends on the AgentRun's spec, which the store does not have. So in the operator's pod the AgentRun is read
//! as well. The settings of `dalsegno dev` are known. Elsewhere only those holds are shown that no setting can lift.

use std::time::Duration;

use anyhow::Context as _;
use dalsegno_core::CliLocation;
use dalsegno_core::recovery::{self, Hold};
use dalsegno_core::remedy::{self, HeldRun, MAX_CALLS};
use dalsegno_core::settings::Settings;
use dalsegno_core::temporary_holds;
use dalsegno_crds::{
    AgentRun, AgentRunSpec, AgentRunStatus, ConditionType, RunDefaults, Summary, find_condition,
};
use dalsegno_model::{AttemptState, Lifecycle, RunRecord, Store};
use kube::Api;

use crate::cli::runs::utc;
use crate::config::StoreArgs;
use crate::dev;
use crate::kube_client::{connect_in_pod, with_timeout};
use crate::output::print_line;

/// Timeout of the API server: without it, less is shown.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Prints why the run has no worker, if it has none.
///
/// # Errors
///
/// The store is unavailable.
pub async fn print_waiting(args: &StoreArgs, store: &dyn Store, run: &RunRecord) -> anyhow::Result<()> {
    if run.lifecycle != Lifecycle::Live {
        return Ok(());
    }
    if let Some(status) = read_status(run).await {
        of_status(&status).iter().for_each(|line| print_line!("{line}"));
        return Ok(());
    }
    let calls = store.calls_to_settle(run.id, MAX_CALLS).await.context("reading the calls to settle")?;
    of_store(run, &calls, args.url()).iter().for_each(|line| print_line!("{line}"));
    Ok(())
}

/// The status of the run's AgentRun, if this program runs in a pod that may read it.
async fn read_status(run: &RunRecord) -> Option<AgentRunStatus> {
    let client = with_timeout(connect_in_pod().ok()?, TIMEOUT);
    let api: Api<AgentRun> = Api::namespaced(client, &run.namespace);
    let object = api.get_opt(&run.name).await.ok()??;
    // A later AgentRun may have the name.
    object.status.filter(|_| object.metadata.uid.as_ref() == Some(&run.object_uid))
}

/// What the conditions of an AgentRun say.
fn of_status(status: &AgentRunStatus) -> Option<String> {
    let condition = |kind| find_condition(&status.conditions, kind);
    let (word, shown) = match status.summary? {
        Summary::Held => ("held", condition(ConditionType::Held)?),
        Summary::Pending | Summary::BackingOff => ("waits", condition(ConditionType::WorkerReady)?),
        Summary::Suspended => ("waits", condition(ConditionType::Suspended)?),
        Summary::Waiting => ("waits", condition(ConditionType::Waiting)?),
        Summary::Starting => ("starts", condition(ConditionType::WorkerReady)?),
        Summary::Running | Summary::Succeeded | Summary::Failed | Summary::Cancelled => return None,
    };
    let text = format!("{}: {}", shown.reason, shown.message);
    Some(line(word, shown.last_transition_time.0, text.trim_end_matches([' ', ':'])))
}

/// What the store alone says.
fn of_store(run: &RunRecord, calls: &[String], store_url: &str) -> Option<String> {
    let on_laptop = run.tenant == dev::NAMESPACE_UID;
    let ended = run.past.first().and_then(|it| it.ended_at).unwrap_or(run.created_at);
    let settings = if on_laptop { dev::settings() } else { unlimited() };
    match run.attempt.state {
        AttemptState::Attached | AttemptState::Ended => None,
        AttemptState::Created => Some(line("starts", ended, "the worker of the attempt has not attached")),
        AttemptState::Reserved => {
            let input = serde_json::Value::Null.to_string();
            if let Some(hold) = temporary_holds::find_hold(run, &settings, &input) {
                let remedy = remedy_of(&hold, run, calls, on_laptop.then_some(store_url));
                let text = format!("{}: {}. {remedy}", hold.reason, hold.message.trim_end_matches('.'));
                return Some(line("held", ended, &text));
            }
            if let Some(suspend) = &run.suspend {
                let text = format!("a person suspended the run. {}", describe(run));
                return Some(line("waits", suspend.requested_at, &text));
            }
            if let Some(park) = &run.park {
                let on = run.parked_on().map(|wait| wait.id.as_str()).collect::<Vec<_>>().join(", ");
                return Some(line(
                    "waits",
                    park.at,
                    &format!("the run waits for {on}, and has no pod meanwhile"),
                ));
            }
            let continues = "the same `dalsegno dev` command continues the run";
            let next = recovery::next_attempt_time(run, &settings).filter(|at| *at > run.now);
            let text = match next {
                Some(at) if on_laptop => {
                    let recovery = recovery::describe_recovery(run, &format!("starts at {}", utc(at)));
                    format!("{recovery}. If `dalsegno dev` has ended, {continues}")
                }
                None if on_laptop => continues.to_owned(),
                _ => format!("attempt {} has no pod. {}", run.attempt.number, describe(run)),
            };
            Some(line("waits", ended, &text))
        }
    }
}

/// What to do about a hold. A command of a pod would name a namespace that is not known here.
fn remedy_of(hold: &Hold, run: &RunRecord, calls: &[String], laptop: Option<&str>) -> String {
    let Some(url) = laptop else { return describe(run) };
    let mut object = AgentRun::new(&run.name, AgentRunSpec::default());
    object.metadata.namespace = Some(run.namespace.clone());
    let cli = CliLocation::Local { store_url: url.to_owned() };
    remedy::describe(
        hold,
        HeldRun { run: &object, row: Some(run), calls, is_external: run.is_external },
        &cli,
    )
}

/// The command that shows the rest.
fn describe(run: &RunRecord) -> String {
    let RunRecord { namespace, name, .. } = run;
    format!("To see why and what to do: `kubectl describe agentrun {name} --namespace {namespace}`")
}

/// The built-in settings without limits.
fn unlimited() -> Settings {
    Settings {
        max_recovery_attempts: i32::MAX,
        max_attempts_without_progress: i32::MAX,
        max_disruptions_without_progress: Some(i32::MAX),
        ..Settings::resolve(&AgentRunSpec::default(), &RunDefaults::default())
    }
}

/// One line: the last lines of a worker's log, which a message may quote, are put into it too.
fn line(word: &str, since: jiff::Timestamp, text: &str) -> String {
    let text: Vec<&str> = text.lines().collect();
    format!("{word:<11} since {}: {}", utc(since), text.join(" / "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use serde_json::{Value, json};

    use super::*;

    fn shown(summary: &str, conditions: &[(&str, &str, &str)]) -> Option<String> {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(kind, reason, message)| {
                json!({ "type": kind, "status": "True", "reason": reason, "message": message,
                        "lastTransitionTime": "2026-05-01T10:00:00Z" })
            })
            .collect();
        let status = json!({ "summary": summary, "conditions": conditions });
        of_status(&serde_json::from_value(status).unwrap())
    }

    #[test]
    fn the_status_of_a_held_a_waiting_and_a_queued_run_is_one_line() {
        let held = ("Held", "EffectUnknown", "one call. Find out");
        let worker = |reason, message| ("WorkerReady", reason, message);
        for (summary, conditions, expected) in [
            (
                "Held",
                [held, worker("NoWorker", "")],
                Some("held        since 2026-05-01 10:00:00 UTC: EffectUnknown: one call. Find out"),
            ),
            (
                "Held",
                [("Held", "RecoveryLoop", "exit code 1: one\ntwo. Find out"), worker("NoWorker", "")],
                Some(
                    "held        since 2026-05-01 10:00:00 UTC: RecoveryLoop: exit code 1: one / two. Find out",
                ),
            ),
            (
                "Pending",
                [("Held", "NotHeld", ""), worker("Queued", "2 runs of this AgentDefinition start before it")],
                Some(
                    "waits       since 2026-05-01 10:00:00 UTC: Queued: 2 runs of this AgentDefinition start before it",
                ),
            ),
            (
                "BackingOff",
                [held, worker("BackingOff", "")],
                Some("waits       since 2026-05-01 10:00:00 UTC: BackingOff"),
            ),
            ("Running", [held, worker("Attached", "")], None),
        ] {
            assert_eq!(shown(summary, &conditions).as_deref(), expected);
        }
    }
}
