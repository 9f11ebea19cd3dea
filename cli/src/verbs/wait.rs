//! `wait`: until a run is in a state.

use std::time::Duration;

use dalsegno_crds::{AgentRun, ConditionStatus, ConditionType, Summary, has_status};
use futures::TryStreamExt as _;
use kube::ResourceExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::time::timeout;

use crate::advice::Need;
use crate::args::WaitArgs;
use crate::failure::{Exit, Failure, Result};
use crate::input;
use crate::output::Output;
use crate::output::changed::print_changed;
use crate::runs::{self, condition, is_true};
use crate::session::Session;

/// Waits.
pub async fn run(session: &Session, args: &WaitArgs, output: &mut Output) -> Result {
    let awaited = Awaited::parse(&args.awaited)?;
    let limit = input::duration("--timeout", &args.timeout)?;
    let found = runs::get(session, &args.run).await;
    match found {
        Err(failure) if failure.exit == Exit::NotFound && awaited == Awaited::Deleted => {
            output.print(&format!("The run {} is deleted.", args.run));
            return Ok(());
        }
        found => drop(found?),
    }
    let met = match limit {
        Some(limit) => {
            timeout(limit, watch(session, args, &awaited)).await.map_err(|_| timed_out(session, args))?
        }
        None => watch(session, args, &awaited).await,
    };
    match met? {
        Some(run) => {
            print_changed(output, &run, &format!("The run {} is there: {}.", args.run, args.awaited))
        }
        None => {
            output.print(&format!("The run {} is deleted.", args.run));
            Ok(())
        }
    }
}

/// What is awaited.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Awaited {
    Summary(Summary),
    Condition(ConditionType, ConditionStatus),
    Turn(i32),
    Ended,
    NeedsYou,
    Deleted,
}

/// Whether a state is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Met,
    NotYet,
    NeverAgain,
}

impl Awaited {
    fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            let summaries: Vec<_> = Summary::ALL.iter().map(|it| it.as_str()).collect();
            Failure::usage(
                format!("{text:?} is nothing that a run can be waited for"),
                format!(
                    "use --for with one of {}, ended, needs-you, turn=NUMBER, condition=TYPE, condition=TYPE=False, deleted",
                    summaries.join(", ")
                ),
            )
        };
        let same = |it: &&Summary| it.as_str().eq_ignore_ascii_case(text);
        if let Some(summary) = Summary::ALL.iter().find(same) {
            return Ok(Self::Summary(*summary));
        }
        match text.split_once('=') {
            None => match text.to_ascii_lowercase().as_str() {
                "ended" | "finished" => Ok(Self::Ended),
                "needs-you" => Ok(Self::NeedsYou),
                "delete" | "deleted" => Ok(Self::Deleted),
                _ => Err(wrong()),
            },
            Some(("turn", number)) => number.parse().map(Self::Turn).map_err(|_| wrong()),
            Some(("summary", summary)) => summary.parse().map(Self::Summary).map_err(|_| wrong()),
            Some(("condition", rest)) => {
                let (kind, status) = rest.split_once('=').unwrap_or((rest, "True"));
                let parsed = kind.parse().ok().zip(status.parse().ok());
                parsed.map(|(kind, status)| Self::Condition(kind, status)).ok_or_else(wrong)
            }
            Some(_) => Err(wrong()),
        }
    }

    fn progress(&self, run: &AgentRun) -> Progress {
        let status = run.status.clone().unwrap_or_default();
        let is_met = match self {
            Self::Summary(summary) => status.summary == Some(*summary),
            Self::Condition(kind, wanted) => match condition(run, *kind) {
                Some(found) => has_status(found, *wanted),
                None => *wanted == ConditionStatus::False && run.status.is_some(),
            },
            Self::Turn(turn) => status.checkpoint.is_some_and(|it| it.turn >= *turn),
            Self::Ended => is_true(run, ConditionType::Finished),
            Self::NeedsYou => Need::of(run) == Need::Person,
            Self::Deleted => false,
        };
        // A run that has ended never changes again.
        match is_met {
            true => Progress::Met,
            false if is_true(run, ConditionType::Finished) && *self != Self::Deleted => Progress::NeverAgain,
            false => Progress::NotYet,
        }
    }
}

/// Watches the run until it is there. `None`: it was deleted, as awaited.
async fn watch(session: &Session, args: &WaitArgs, awaited: &Awaited) -> Result<Option<AgentRun>> {
    let config = watcher::Config::default().fields(&format!("metadata.name={}", args.run));
    let mut stream = std::pin::pin!(watcher(session.api::<AgentRun>(), config));
    let mut failures = 0_u32;
    let mut was_listed = false;
    loop {
        let run = match stream.try_next().await {
            Ok(Some(Event::Apply(run) | Event::InitApply(run))) => run,
            Ok(Some(Event::Init)) => {
                was_listed = false;
                continue;
            }
            Ok(Some(Event::InitDone)) if was_listed => continue,
            Ok(Some(Event::Delete(_) | Event::InitDone) | None) => {
                return match awaited {
                    Awaited::Deleted => Ok(None),
                    _ => Err(Failure::new(
                        Exit::NeverAgain,
                        format!("the run {} was deleted", args.run),
                        "list the runs with `kubectl dalsegno list -A`",
                    )),
                };
            }
            Err(error) if failures >= 10 => {
                return Err(Failure::new(
                    Exit::Unavailable,
                    format!("the run cannot be watched: {}", crate::failure::chain(&error)),
                    "check your right to watch agentruns, then repeat the command",
                ));
            }
            Err(_) => {
                failures += 1;
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        (failures, was_listed) = (0, true);
        match awaited.progress(&run) {
            Progress::Met => return Ok(Some(run)),
            Progress::NotYet => {}
            Progress::NeverAgain => return Err(ended(session, &run, args)),
        }
    }
}

fn ended(session: &Session, run: &AgentRun, args: &WaitArgs) -> Failure {
    let summary = run.status.as_ref().and_then(|it| it.summary).map_or("Finished", |it| it.as_str());
    let name = run.name_any();
    Failure::new(
        Exit::NeverAgain,
        format!("the run {name} has ended ({summary}) and will never be {}", args.awaited),
        format!("see why with `kubectl dalsegno status {name}{}`", session.options()),
    )
}

fn timed_out(session: &Session, args: &WaitArgs) -> Failure {
    Failure::new(
        Exit::TimedOut,
        format!("after {} the run {} is not there: {}", args.timeout, args.run, args.awaited),
        format!(
            "see why with `kubectl dalsegno status {}{}`, or wait longer with --timeout",
            args.run,
            session.options()
        ),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(status: serde_json::Value) -> AgentRun {
        let mut run = AgentRun::new("nightly", Default::default());
        run.status = Some(serde_json::from_value(status).unwrap());
        run
    }

    #[test]
    fn what_is_awaited_is_read_and_what_is_not_is_listed() {
        for (text, expected) in [
            ("Held", Awaited::Summary(Summary::Held)),
            ("succeeded", Awaited::Summary(Summary::Succeeded)),
            ("ended", Awaited::Ended),
            ("turn=7", Awaited::Turn(7)),
            ("condition=Ready", Awaited::Condition(ConditionType::Ready, ConditionStatus::True)),
            (
                "condition=WorkerReady=False",
                Awaited::Condition(ConditionType::WorkerReady, ConditionStatus::False),
            ),
        ] {
            assert_eq!(Awaited::parse(text).unwrap(), expected, "{text}");
        }
        for text in ["", "done", "turn=x", "condition=Ready=Perhaps", "phase=Running"] {
            let failure = Awaited::parse(text).unwrap_err();
            assert!(failure.exit == Exit::Usage && failure.next.contains("needs-you"), "{text}: {failure}");
        }
    }

    #[test]
    fn a_run_that_has_ended_otherwise_is_waited_for_no_longer() {
        let finished = json!({ "summary": "Failed", "checkpoint": { "turn": 7, "eventPosition": 7 }, "conditions": [
            { "type": "Finished", "status": "True", "reason": "AgentFailed", "message": "",
              "lastTransitionTime": "2026-11-26T12:00:00Z" }] });
        let failed = run(finished);
        for (text, expected) in [
            ("Succeeded", Progress::NeverAgain),
            ("Failed", Progress::Met),
            ("ended", Progress::Met),
            ("turn=7", Progress::Met),
            ("turn=8", Progress::NeverAgain),
            ("condition=Finished", Progress::Met),
            ("needs-you", Progress::NeverAgain),
            ("deleted", Progress::NotYet),
        ] {
            assert_eq!(Awaited::parse(text).unwrap().progress(&failed), expected, "{text}");
        }
        let held = run(json!({ "summary": "Held", "reason": "EffectUnknown" }));
        assert_eq!(Awaited::NeedsYou.progress(&held), Progress::Met);
        assert_eq!(Awaited::Ended.progress(&held), Progress::NotYet);
        assert_eq!(Awaited::parse("condition=Waiting=False").unwrap().progress(&held), Progress::Met);
    }
}
