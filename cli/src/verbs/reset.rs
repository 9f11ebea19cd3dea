//! `reset`: a fresh recovery budget for a held run, or for many: previewed first, and in steps that grow.

use std::time::Duration;

use dalsegno_core::remedy::takes_fresh_budget;
use dalsegno_core::text::counted;
use dalsegno_crds::{AgentRun, ConditionType, Reason, Summary};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use kube::api::{Api, Patch};
use serde_json::json;
use tokio::time::Instant;

use crate::args::ResetArgs;
use crate::failure::{Exit, Failure, Result};
use crate::input;
use crate::output::changed::print_changed;
use crate::output::table::Rows;
use crate::output::{Format, Output, Style};
use crate::runs::{self, Scope};
use crate::session::{Session, reason_annotation};
use crate::verbs::list::decisive;

/// Pause between two looks at the runs of a step.
const PAUSE: Duration = Duration::from_secs(2);

/// A run whose worker has lasted so long counts as free, although it has committed no turn yet.
const PROVEN: SignedDuration = SignedDuration::from_secs(30);

/// Resets one run, or many.
pub async fn run(session: &Session, args: &ResetArgs, output: &mut Output) -> Result {
    match &args.run {
        Some(name) => one(session, args, name, output).await,
        None => all(session, args, output).await,
    }
}

async fn one(session: &Session, args: &ResetArgs, name: &str, output: &mut Output) -> Result {
    let run = runs::get(session, name).await?;
    runs::refuse_ended(&run)?;
    if let Some(reason) = held_reason(&run).filter(|reason| !takes_fresh_budget(*reason)) {
        return Err(Failure::new(
            Exit::Refused,
            format!("the run {name} is held for {reason}, and no budget lifts that"),
            format!("see what does: `kubectl dalsegno status {name}{}`", session.options()),
        ));
    }
    let run = reset(session, &run, args.reason.as_deref()).await?;
    let text = format!(
        "The run {name} has a fresh recovery budget. A hold whose cause is still there comes back.\n\
         See it:  kubectl dalsegno status {name}{}",
        session.options()
    );
    print_changed(output, &run, &text)
}

/// Raises the generation, unless somebody else changes the run at the same time: then it is read again, once.
async fn reset(session: &Session, run: &AgentRun, reason: Option<&str>) -> Result<AgentRun> {
    let namespace = run.namespace().unwrap_or_else(|| session.namespace.clone());
    let api: Api<AgentRun> = Api::namespaced(session.client.clone(), &namespace);
    let name = run.name_any();
    let mut current = run.clone();
    for is_last in [false, true] {
        let mut metadata = reason_annotation(reason);
        metadata["resourceVersion"] = json!(current.metadata.resource_version);
        let recovery = json!({ "resetGeneration": next_generation(&current) });
        let change = json!({ "metadata": metadata, "spec": { "recovery": recovery } });
        match api.patch(&name, &Session::patch_params(), &Patch::Merge(&change)).await {
            Err(kube::Error::Api(status)) if status.code == 409 && !is_last => {
                let read = api.get(&name).await;
                current = read.map_err(|error| Failure::of_api("reading the AgentRun", &error))?;
            }
            patched => return patched.map_err(|error| Failure::of_api(&format!("resetting {name}"), &error)),
        }
    }
    Ok(current)
}

/// A generation that no budget of this run has had.
fn next_generation(run: &AgentRun) -> i64 {
    let requested = run.spec.recovery.as_ref().and_then(|it| it.reset_generation);
    let observed = run.status.as_ref().and_then(|it| it.recovery.as_ref()?.observed_reset_generation);
    requested.max(observed).unwrap_or_default().saturating_add(1)
}

fn held_reason(run: &AgentRun) -> Option<Reason> {
    let status = run.status.as_ref().filter(|it| it.summary == Some(Summary::Held))?;
    status.reason
}

/// Which holds are lifted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    /// All that a fresh budget lifts.
    Any,
    /// Of this reason.
    Of(Reason),
}

impl Holds {
    /// `--held-for`, or a `--reason` that is the name of a hold.
    fn of(args: &ResetArgs) -> Result<Self> {
        if let Some(named) = &args.held_for {
            let liftable: Vec<_> =
                Reason::ALL.iter().filter(|it| takes_fresh_budget(**it)).map(|it| it.as_str()).collect();
            let reason = named.parse::<Reason>().ok().filter(|it| takes_fresh_budget(*it));
            return reason.map(Self::Of).ok_or_else(|| {
                Failure::usage(
                    format!("{named:?} is no hold that a fresh budget lifts"),
                    format!("choose one of {}", liftable.join(", ")),
                )
            });
        }
        let named = args.reason.as_deref().and_then(|it| it.parse::<Reason>().ok());
        Ok(named.filter(|it| takes_fresh_budget(*it)).map_or(Self::Any, Self::Of))
    }

    fn lift(self, run: &AgentRun) -> bool {
        match (self, held_reason(run)) {
            (Self::Any, Some(reason)) => takes_fresh_budget(reason),
            (Self::Of(wanted), Some(reason)) => wanted == reason,
            (_, None) => false,
        }
    }
}

async fn all(session: &Session, args: &ResetArgs, output: &mut Output) -> Result {
    let holds = Holds::of(args)?;
    let timeout = input::duration("--ramp-timeout", &args.ramp_timeout)?;
    let scope = Scope { all_namespaces: args.all_namespaces, selector: args.selector.as_deref() };
    let mut found: Vec<AgentRun> =
        runs::list(session, scope).await?.into_iter().filter_map(|it| it.run.ok()).collect();
    found.retain(|run| holds.lift(run));
    found.sort_by_key(|run| runs::condition(run, decisive(run)).map(|it| it.last_transition_time.0));
    preview(&found, args, output)?;
    if found.is_empty() || !args.yes {
        return Ok(());
    }
    let mut left = found.as_slice();
    let mut size = args.ramp.map_or(left.len(), |it| it as usize);
    while !left.is_empty() {
        let (step, rest) = left.split_at(size.min(left.len()));
        let mut changed = Vec::with_capacity(step.len());
        for run in step {
            changed.push(reset(session, run, args.reason.as_deref()).await?);
        }
        let names: Vec<_> = step.iter().map(full_name).collect();
        say(output, &format!("Reset {}: {}", counted(step.len(), "run", "runs"), names.join(", ")));
        if args.ramp.is_some() && !rest.is_empty() {
            await_step(session, &changed, (timeout, rest.len()), output).await?;
        }
        (left, size) = (rest, size.saturating_mul(2));
    }
    Ok(())
}

/// A message about progress, printed while the command runs. It is not part of a document.
fn say(output: &mut Output, text: &str) {
    if !output.format.is_document() {
        output.print(text);
    }
}

fn full_name(run: &AgentRun) -> String {
    format!("{}/{}", run.namespace().unwrap_or_default(), run.name_any())
}

/// Shows what would be reset.
fn preview(found: &[AgentRun], args: &ResetArgs, output: &mut Output) -> Result {
    if output.format.is_document() {
        return output.document(&json!({ "apiVersion": "v1", "kind": "List", "items": found }));
    }
    if output.format == Format::Name {
        found.iter().for_each(|run| output.print(&format!("agentrun.dalsegno.dev/{}", run.name_any())));
        return Ok(());
    }
    if found.is_empty() {
        output.paragraph(
            "No run is held for a reason that a fresh budget lifts. `kubectl dalsegno list -A` shows all runs.",
        );
        return Ok(());
    }
    let mut rows = Rows::new(&["RUN", "HELD FOR", "CRASHES", "DISRUPTIONS", "TURN"]);
    for run in found {
        let status = run.status.clone().unwrap_or_default();
        let recovery = status.recovery.unwrap_or_default();
        rows.push(
            Style::Plain,
            vec![
                full_name(run),
                status.reason.map_or_else(String::new, |it| it.to_string()),
                recovery.recovery_attempts.to_string(),
                recovery.disruptions.to_string(),
                status.checkpoint.map_or(0, |it| it.turn).to_string(),
            ],
        );
    }
    rows.print(output);
    if !args.yes {
        let count = counted(found.len(), "run", "runs");
        output.print("");
        output.paragraph(&format!(
            "Nothing was changed. To reset {count}, repeat the command with --yes; with --ramp 1 one run goes first, and \
             the others follow if it stays free."
        ));
    }
    Ok(())
}

/// Waits until each run of a step has made progress, has had a worker for a while, waits or has ended.
async fn await_step(
    session: &Session,
    step: &[AgentRun],
    (timeout, rest): (Option<Duration>, usize),
    output: &mut Output,
) -> Result {
    let stopped = |exit, what: String| {
        let left = counted(rest, "run was", "runs were");
        Failure::new(
            exit,
            format!("{what}; {left} not reset"),
            "remove the cause that `kubectl dalsegno status` shows, then repeat the command",
        )
    };
    let until = timeout.map(|it| Instant::now() + it);
    loop {
        let mut waiting = None;
        for before in step {
            let namespace = before.namespace().unwrap_or_default();
            let api: Api<AgentRun> = Api::namespaced(session.client.clone(), &namespace);
            let now = api.get_opt(&before.name_any()).await;
            let now = now.map_err(|error| Failure::of_api("reading the AgentRun", &error))?;
            // A run that was deleted meanwhile is no reason to stop.
            let Some(now) = now else { continue };
            match progress(before, &now, Timestamp::now()) {
                Progress::HeldAgain => {
                    let reason = held_reason(&now).map_or("", |it| it.as_str());
                    return Err(stopped(
                        Exit::NeverAgain,
                        format!("{} is held again: {reason}", full_name(&now)),
                    ));
                }
                Progress::NotYet => waiting = Some(full_name(&now)),
                Progress::Free => {}
            }
        }
        let Some(name) = waiting else { break };
        if until.is_some_and(|until| Instant::now() >= until) {
            return Err(stopped(Exit::TimedOut, format!("{name} has no worker in time")));
        }
        tokio::time::sleep(PAUSE).await;
    }
    say(output, "They are free. The next step follows.");
    Ok(())
}

/// What became of a run that was reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    NotYet,
    Free,
    HeldAgain,
}

fn progress(reset: &AgentRun, now: &AgentRun, time: Timestamp) -> Progress {
    let granted = reset.spec.recovery.as_ref().and_then(|it| it.reset_generation);
    let status = now.status.clone().unwrap_or_default();
    let observed = status.recovery.as_ref().and_then(|it| it.observed_reset_generation);
    if observed < granted {
        return Progress::NotYet;
    }
    match status.summary {
        Some(Summary::Held) => Progress::HeldAgain,
        Some(
            Summary::Waiting | Summary::Suspended | Summary::Succeeded | Summary::Failed | Summary::Cancelled,
        ) => Progress::Free,
        Some(Summary::Running) => {
            let since = runs::condition(now, ConditionType::WorkerReady).map(|it| it.last_transition_time.0);
            let has_lasted = since.is_some_and(|since| time.duration_since(since) >= PROVEN);
            if has_lasted || turn(now) > turn(reset) { Progress::Free } else { Progress::NotYet }
        }
        Some(Summary::Pending | Summary::Starting | Summary::BackingOff) | None => Progress::NotYet,
    }
}

fn turn(run: &AgentRun) -> i32 {
    run.status.as_ref().and_then(|it| it.checkpoint.as_ref()).map_or(0, |it| it.turn)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(status: serde_json::Value, granted: i64) -> AgentRun {
        let run = json!({
            "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun",
            "metadata": { "name": "nightly", "namespace": "shop" },
            "spec": { "agentRef": { "name": "nightly" }, "recovery": { "resetGeneration": granted } },
            "status": status,
        });
        serde_json::from_value(run).unwrap()
    }

    fn held(reason: &str, observed: i64) -> AgentRun {
        let recovery =
            json!({ "recoveryAttempts": 13, "disruptions": 2, "observedResetGeneration": observed });
        run(json!({ "summary": "Held", "reason": reason, "recovery": recovery }), 0)
    }

    fn args(change: impl FnOnce(&mut ResetArgs)) -> ResetArgs {
        let mut args = ResetArgs {
            run: None,
            all: true,
            all_namespaces: false,
            selector: None,
            held_for: None,
            reason: None,
            ramp: None,
            ramp_timeout: "5m".into(),
            yes: false,
        };
        change(&mut args);
        args
    }

    #[test]
    fn only_holds_that_a_budget_lifts_are_reset_and_a_reason_can_name_one() {
        let any = Holds::of(&args(|it| it.reason = Some("the registry is back".into()))).unwrap();
        assert!(any.lift(&held("CannotStart", 0)) && !any.lift(&held("EffectUnknown", 0)));
        for named in [
            args(|it| it.reason = Some("CannotStart".into())),
            args(|it| it.held_for = Some("CannotStart".into())),
        ] {
            let holds = Holds::of(&named).unwrap();
            assert!(holds.lift(&held("CannotStart", 0)) && !holds.lift(&held("RecoveryLoop", 0)));
        }
        let wrong = Holds::of(&args(|it| it.held_for = Some("EffectUnknown".into()))).unwrap_err();
        assert!(wrong.exit == Exit::Usage && wrong.next.contains("RecoveryLoop"), "{wrong}");
    }

    #[test]
    fn a_generation_is_raised_above_what_was_requested_and_what_was_granted() {
        assert_eq!(next_generation(&held("CannotStart", 4)), 5);
        assert_eq!(next_generation(&run(json!({}), 7)), 8);
    }

    #[test]
    fn a_run_is_free_once_it_has_seen_the_budget_and_goes_on() {
        let reset = run(json!({ "checkpoint": { "turn": 3, "eventPosition": 3 } }), 2);
        let now: Timestamp = "2026-11-26T12:00:00Z".parse().unwrap();
        let progress = |reset: &AgentRun, seen: &AgentRun| progress(reset, seen, now);
        let running = |turn: i32, since: &str| {
            let ready = json!({ "type": "WorkerReady", "status": "True", "reason": "Attached", "message": "",
                                "lastTransitionTime": since });
            run(
                json!({ "summary": "Running", "recovery": { "observedResetGeneration": 2 }, "conditions": [ready],
                        "checkpoint": { "turn": turn, "eventPosition": 3 } }),
                2,
            )
        };
        assert_eq!(progress(&reset, &running(3, "2026-11-26T11:59:55Z")), Progress::NotYet);
        assert_eq!(progress(&reset, &running(3, "2026-11-26T11:59:30Z")), Progress::Free);
        assert_eq!(progress(&reset, &running(4, "2026-11-26T11:59:55Z")), Progress::Free);
        let seen = |summary: &str, observed: i64| {
            run(json!({ "summary": summary, "recovery": { "observedResetGeneration": observed } }), 2)
        };
        assert_eq!(progress(&reset, &seen("Held", 1)), Progress::NotYet);
        assert_eq!(progress(&reset, &seen("Held", 2)), Progress::HeldAgain);
        assert_eq!(progress(&reset, &seen("Starting", 2)), Progress::NotYet);
        assert_eq!(progress(&reset, &seen("Waiting", 2)), Progress::Free);
    }

    #[test]
    fn the_preview_says_what_would_happen_in_eighty_columns() {
        let mut output = Output::kept(Format::Text, 80, jiff::Timestamp::UNIX_EPOCH);
        preview(&[held("CannotStart", 0), held("RecoveryLoop", 1)], &args(|_| {}), &mut output).unwrap();
        insta::assert_snapshot!(output.text());
    }
}
