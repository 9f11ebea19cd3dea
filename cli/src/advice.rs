//! What happens next to a run, and the command that a person types.

use dalsegno_core::remedy::takes_fresh_budget;
use dalsegno_crds::{AgentRun, ConditionType, Reason, Summary, WaitKind};
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::output::time;
use crate::runs::condition;

/// How much a run needs a person; the first needs one most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// It does not go on until a person acts.
    Person,
    /// Something outside of the run keeps it from going on, or it was never looked at.
    Trouble,
    /// It goes on by itself.
    Nothing,
    /// A person has suspended it.
    Stopped,
    /// It has ended.
    Over,
}

impl Need {
    /// The need of a run.
    pub fn of(run: &AgentRun) -> Self {
        let Some(status) = &run.status else { return Self::Trouble };
        match (status.summary, status.reason) {
            (Some(Summary::Held), _) => Self::Person,
            (Some(Summary::Waiting), Some(Reason::Approval | Reason::Message)) => Self::Person,
            (
                _,
                Some(
                    Reason::PodRefused
                    | Reason::Unschedulable
                    | Reason::ImagePullFailed
                    | Reason::QuotaExceeded
                    | Reason::StoreUnavailable,
                ),
            ) => Self::Trouble,
            (Some(Summary::Suspended), _) => Self::Stopped,
            (Some(Summary::Succeeded | Summary::Failed | Summary::Cancelled), _) => Self::Over,
            (
                Some(
                    Summary::Pending
                    | Summary::Starting
                    | Summary::Running
                    | Summary::BackingOff
                    | Summary::Waiting,
                ),
                _,
            ) => Self::Nothing,
            (None, _) => Self::Trouble,
        }
    }
}

/// What happens next, and what a person may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advice {
    /// What the operator does next by itself.
    pub next: String,
    /// What a person should do. Empty: nothing.
    pub act: String,
    /// The commands that lift what the run waits for.
    pub commands: Vec<String>,
}

/// What is known besides the AgentRun.
#[derive(Clone, Copy, Debug)]
pub struct Around<'a> {
    /// Options that name the namespace and the context again.
    pub options: &'a str,
    /// Names of the AgentApprovals of the run that wait for a decision.
    pub approvals: &'a [String],
    /// The time.
    pub now: Timestamp,
}

/// The advice for a run.
pub fn advise(run: &AgentRun, around: Around<'_>) -> Advice {
    let mut advice = of_summary(run, around);
    advice.commands.extend(accept_rewind(run, around));
    advice
}

/// The command that names the calls for which the last rewind was refused.
fn accept_rewind(run: &AgentRun, around: Around<'_>) -> Option<String> {
    let rewind = run.status.as_ref()?.rewind.as_ref().filter(|it| !it.effects.is_empty())?;
    // The agent chose the ids, and a person copies the command into a shell.
    let is_harmless = |id: &&String| id.chars().all(|it| it.is_ascii_alphanumeric() || "-_.:".contains(it));
    let named: String =
        rewind.effects.iter().filter(is_harmless).map(|id| format!(" --accept-effect={id}")).collect();
    let named = if named.is_empty() { " --accept-effect CALL".to_owned() } else { named };
    let (name, options) = (run.name_any(), around.options);
    Some(format!("kubectl dalsegno rewind {name}{options} --to {}{named}", rewind.to_turn?))
}

/// The advice for the state that a run is in.
fn of_summary(run: &AgentRun, around: Around<'_>) -> Advice {
    let command = |verb: &str, rest: &str| {
        let rest = if rest.is_empty() { String::new() } else { format!(" {rest}") };
        format!("kubectl dalsegno {verb} {}{}{rest}", run.name_any(), around.options)
    };
    let Some(status) = &run.status else {
        return Advice {
            next: "The operator has not looked at the run yet.".into(),
            act: "If this lasts for more than a minute, check that the operator runs.".into(),
            commands: Vec::new(),
        };
    };
    let next = |text: &str| Advice { next: text.to_owned(), ..Advice::default() };
    match status.summary {
        Some(Summary::Held) => held(run, status.reason, around, &command),
        Some(Summary::Waiting) => waiting(run, around, &command),
        Some(Summary::Suspended) => Advice {
            commands: vec![command("resume", "")],
            ..next(
                "Nothing, until the suspend is lifted. The run then goes on at the turn after its checkpoint.",
            )
        },
        Some(Summary::BackingOff) => {
            let at = status.recovery.as_ref().and_then(|it| it.next_attempt_time.as_ref());
            next(&format!("The next attempt starts at {}.", time::of(around.now, at)))
        }
        Some(Summary::Running) if status.reason == Some(Reason::Suspending) => {
            next("The worker stores its turn and parks, or is stopped after suspend.graceSeconds.")
        }
        Some(Summary::Running) if status.reason == Some(Reason::Cancelling) => {
            next("The worker acknowledges the cancel, or is stopped. The run then ends.")
        }
        Some(Summary::Running) => next("The worker commits its next turn."),
        Some(Summary::Pending | Summary::Starting) => {
            let reason = status.reason.unwrap_or(Reason::Starting);
            let act = match Need::of(run) {
                Need::Trouble => reason.remediation().to_owned(),
                Need::Person | Need::Nothing | Need::Stopped | Need::Over => String::new(),
            };
            Advice { act, ..next(starting(reason)) }
        }
        Some(Summary::Succeeded | Summary::Failed | Summary::Cancelled) => Advice {
            commands: vec![command("export", "-f bundle.jsonl"), format!("{} NEW-NAME", command("fork", ""))],
            ..next("Nothing. The run has ended, and its data is kept as its retention says.")
        },
        None => next("The operator has not written a summary yet."),
    }
}

fn starting(reason: Reason) -> &'static str {
    match reason {
        Reason::Queued => "The run starts when a run of the same AgentDefinition ends.",
        Reason::QuotaExceeded => "The operator tries again when the quota has room.",
        Reason::PodRefused => "The operator tries to create the same pod again, with growing pauses.",
        Reason::Unschedulable => "The pod starts as soon as a node can run it.",
        Reason::ImagePullFailed => "The kubelet tries to pull the image again.",
        _ => "The pod starts, and its worker attaches.",
    }
}

fn held(
    run: &AgentRun,
    reason: Option<Reason>,
    around: Around<'_>,
    command: &dyn Fn(&str, &str) -> String,
) -> Advice {
    let reason = reason.unwrap_or(Reason::Held);
    let message = condition(run, ConditionType::Held).map_or("", |it| it.message.as_str());
    let (_, told) = split_remedy(message, reason);
    let commands = match reason {
        Reason::EffectUnknown | Reason::KeyRefused => settle_commands(told, command),
        Reason::WaitTimedOut => answers(run, around, command),
        reason if takes_fresh_budget(reason) => vec![command("reset", "--reason \"WHAT YOU FIXED\"")],
        _ => quoted_commands(told),
    };
    let recovery = run.status.as_ref().and_then(|it| it.recovery.as_ref());
    let next = match recovery.and_then(|it| it.next_attempt_time.as_ref()) {
        Some(at) => format!("The operator tries again by itself at {}.", time::of(around.now, Some(at))),
        None => "Nothing, until a person acts.".to_owned(),
    };
    Advice { next, act: reason.remediation().to_owned(), commands }
}

/// One command for each call that the operator's message names, or the command that lists the calls.
fn settle_commands(told: &str, command: &dyn Fn(&str, &str) -> String) -> Vec<String> {
    let mut commands = vec![command("calls", "--open")];
    let named = quoted_commands(told).into_iter().find(|it| it.contains(" settle "));
    let call = named.and_then(|it| {
        let words: Vec<_> = it.split_whitespace().map(str::to_owned).collect();
        let at = words.iter().position(|word| word == "settle")?;
        words.get(at + 2).filter(|word| !word.starts_with("--")).cloned()
    });
    let call = call.unwrap_or_else(|| "CALL".to_owned());
    commands.push(command(
        "settle",
        &format!("{call} --outcome completed|failed --reason \"HOW YOU FOUND OUT\""),
    ));
    commands
}

fn waiting(run: &AgentRun, around: Around<'_>, command: &dyn Fn(&str, &str) -> String) -> Advice {
    let kinds: Vec<WaitKind> = waits(run).map(|(_, kind)| kind).collect();
    let needs_person = kinds.iter().any(|kind| matches!(kind, WaitKind::Approval | WaitKind::Message));
    let next = if needs_person {
        "The run goes on as soon as it is answered. It holds no pod until then."
    } else {
        "The run goes on by itself. It holds no pod until then."
    };
    let act = run.status.as_ref().and_then(|it| it.reason).map_or("", Reason::remediation);
    let act = if needs_person { act.to_owned() } else { String::new() };
    Advice { next: next.to_owned(), act, commands: answers(run, around, command) }
}

/// The commands that answer what the run waits for.
fn answers(run: &AgentRun, around: Around<'_>, command: &dyn Fn(&str, &str) -> String) -> Vec<String> {
    let approve = |name: &String| format!("kubectl dalsegno approve {name}{}", around.options);
    let mut commands: Vec<String> = around.approvals.iter().map(approve).collect();
    if commands.is_empty() && waits(run).any(|(_, kind)| kind == WaitKind::Approval) {
        commands.push(command("approvals", ""));
    }
    if waits(run).any(|(_, kind)| kind == WaitKind::Message) {
        commands.push(command("send", "\"TEXT\""));
    }
    commands
}

fn waits(run: &AgentRun) -> impl Iterator<Item = (&str, WaitKind)> {
    let waits = run.status.iter().filter_map(|it| it.waiting.as_ref()).flat_map(|it| &it.waits);
    waits.map(|it| (it.id.as_str(), it.kind))
}

/// The message of a hold: what happened, and what the operator says to do. The operator adds the reason's remediation at
/// the end. What happened may quote a worker, which may quote the remediation: the last one counts.
pub fn split_remedy(message: &str, reason: Reason) -> (&str, &str) {
    match message.rsplit_once(reason.remediation()) {
        Some((what, told)) => (what.trim_end(), told.trim_start()),
        None => (message, ""),
    }
}

/// The commands in backticks of a message of the operator, which are for this run. Foreign text is not in that part of the
/// message.
fn quoted_commands(told: &str) -> Vec<String> {
    told.split('`').skip(1).step_by(2).filter(|it| it.starts_with("kubectl ")).map(str::to_owned).collect()
}
