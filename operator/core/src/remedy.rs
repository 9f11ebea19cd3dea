//! What a person does about a hold: the remediation of its reason, with the commands for this run.

use dalsegno_crds::{AgentRun, Reason};
use dalsegno_model::{LimitUse, RunRecord};

use crate::cli_location::CliLocation;
use crate::recovery::{Hold, in_units_of_spec};
use crate::text::shell_quoted;

/// Number of calls that are named. The command `show` lists all.
pub const MAX_CALLS: u32 = 10;

/// Begins what to do about a hold on a laptop, at the end of the message of the condition Held.
pub const ON_A_LAPTOP: &str = "What to do: ";

/// The run that is held.
#[derive(Clone, Copy, Debug)]
pub struct HeldRun<'a> {
    /// The AgentRun.
    pub run: &'a AgentRun,
    /// Its row, if the store is consistent.
    pub row: Option<&'a RunRecord>,
    /// Ids of the calls that hold it, at most [`MAX_CALLS`].
    pub calls: &'a [String],
    /// Whether its agent keeps its own checkpoints.
    pub is_external: bool,
}

/// Describes what to do about the hold.
pub fn describe(hold: &Hold, held: HeldRun<'_>, cli: &CliLocation) -> String {
    let HeldRun { run, row, calls, is_external } = held;
    let name = RunName::of(run);
    match cli {
        CliLocation::Pod { .. } if is_external && hold.reason == Reason::PriorRunFound => {
            "Set spec.onPriorRun to Ignore to start anew, or choose another name. An agent with checkpointing: External cannot \
             adopt an earlier run."
                .to_owned()
        }
        CliLocation::Pod { .. } => {
            let command = match hold.reason {
                Reason::EffectUnknown | Reason::KeyRefused => Some(settle(cli, &name, calls)),
                Reason::PriorRunFound => Some(format!(
                    "To continue the earlier run, run `{}`.",
                    name.patch(r#"{"spec":{"onPriorRun":"Adopt"}}"#)
                )),
                Reason::LimitReached => row.map(|row| raise_limits(&name, row)),
                reason if takes_fresh_budget(reason) => row.map(|row| fresh_budget(&name, run, row)),
                _ => None,
            };
            let what = hold.reason.remediation();
            command.map_or_else(|| what.to_owned(), |command| format!("{what} {command}"))
        }
        CliLocation::Local { .. } => on_a_laptop(hold.reason, cli, &name, calls),
    }
}

/// Where there is no AgentRun to edit: the command that started the run is run again.
fn on_a_laptop(reason: Reason, cli: &CliLocation, name: &RunName, calls: &[String]) -> String {
    let what = match reason {
        Reason::EffectUnknown | Reason::KeyRefused => format!(
            "find out in the tool's own records whether the call took effect. {} Then run the same `dalsegno dev` command \
             again.",
            settle(cli, name, calls)
        ),
        Reason::InputTooLarge => {
            "pass a smaller input, or one that refers to a file, with --fresh.".to_owned()
        }
        Reason::LimitReached => "run the same command again with a higher --limit, or without it.".to_owned(),
        _ => "fix the agent, then run the same command again, which grants a fresh budget. --fresh starts a new run."
            .to_owned(),
    };
    format!("{ON_A_LAPTOP}{what}")
}

/// The command that settles the first call, and the names of the others.
fn settle(cli: &CliLocation, name: &RunName, calls: &[String]) -> String {
    let RunName { namespace, name } = name;
    let run = format!("{namespace}/{name}");
    let Some((first, others)) = calls.split_first() else {
        return format!("To list its calls, run `{}`.", cli.command("show", &[&run, "--calls"]));
    };
    let start = cli.command("settle", &[&run]);
    // A word that begins with a dash is an option, unless it comes after two dashes.
    let (before, after) = match first.starts_with('-') {
        false => (format!(" {}", shell_quoted(first)), String::new()),
        true => (String::new(), format!(" -- {}", shell_quoted(first))),
    };
    let why = cli.justification("what you found");
    let others = match others {
        [] => String::new(),
        [..] if others.len() + 1 < MAX_CALLS as usize => format!(" Then settle {}.", others.join(", ")),
        [..] => format!(
            " Then settle {} and the others, which `{}` lists.",
            others.join(", "),
            cli.command("show", &[&run, "--calls"])
        ),
    };
    format!(
        "If it took effect, run `{start}{before} --outcome completed {why}{after}`; if not, the same with `--outcome failed`.{others}"
    )
}

/// Whether the remediation of a reason asks for a fresh budget. A test compares this with the texts.
pub fn takes_fresh_budget(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::RecoveryLoop
            | Reason::RecoveryAttemptsExhausted
            | Reason::DisruptionsExhausted
            | Reason::CannotStart
            | Reason::VersionBlocked
            | Reason::PinnedImageUnavailable
            | Reason::CheckpointCorrupt
            | Reason::WorkerFatal
            | Reason::NameCollision
    )
}

/// The command that doubles each limit that is reached, from what is used.
fn raise_limits(name: &RunName, row: &RunRecord) -> String {
    let reached = row.limit_uses().into_iter().filter(LimitUse::is_reached).map(in_units_of_spec);
    let raised = reached.map(|it| format!(r#""{}":{}"#, it.limit.as_str(), doubled(&it)));
    let patch = format!(r#"{{"spec":{{"limits":{{{}}}}}}}"#, raised.collect::<Vec<_>>().join(","));
    format!("To double it, run `{}`.", name.patch(&patch))
}

fn doubled(of: &LimitUse) -> i64 {
    of.used.max(of.max).max(1).saturating_mul(2)
}

fn fresh_budget(name: &RunName, run: &AgentRun, row: &RunRecord) -> String {
    let requested = run.spec.recovery.as_ref().and_then(|it| it.reset_generation).unwrap_or_default();
    let next = requested.max(row.observed_reset_generation).saturating_add(1);
    let patch = format!(r#"{{"spec":{{"recovery":{{"resetGeneration":{next}}}}}}}"#);
    format!("To raise resetGeneration, run `{}`.", name.patch(&patch))
}

/// Namespace and name of the run.
struct RunName<'a> {
    namespace: &'a str,
    name: &'a str,
}

impl<'a> RunName<'a> {
    fn of(run: &'a AgentRun) -> Self {
        Self {
            namespace: run.metadata.namespace.as_deref().unwrap_or_default(),
            name: run.metadata.name.as_deref().unwrap_or_default(),
        }
    }

    /// The command that merges this JSON into the AgentRun.
    fn patch(&self, json: &str) -> String {
        let Self { namespace, name } = self;
        format!("kubectl patch agentrun {name} --namespace {namespace} --type merge --patch '{json}'")
    }
}
